"""The resolved configuration of a run: plain dataclasses, checked field by field.

Hydra composes; this module checks. ``parse`` turns the resolved mapping into a ``RunConfig`` and answers every unknown
key, wrong type and value out of range with a ``ConfigError``. Workers read the same ``config.yaml`` through ``load``
and need neither Hydra nor OmegaConf.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from sargnn.errors import ConfigError
from sargnn.fields import AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, PROBABILITY, build, number
from sargnn.sources import DatasetConfig

Adjacency = Literal["dad", "da", "ad"]
"""D^-1/2 A D^-1/2, D^-1 A or A D^-1."""


@dataclass(frozen=True)
class BufferConfig:
    """How stores are made. ``buffer``: memory for what is read, sorted and cut at once, such as ``8GB``."""

    buffer: str = "8GB"

    @property
    def bytes(self) -> int:
        """Raises ``ConfigError`` for a text that is no size of at least 256 MB."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", self.buffer.strip(), flags=re.IGNORECASE)
        size = float(found.group(1)) * 1000 ** " KMGT".index(found.group(2).upper() or " ") if found else 0.0
        if size < 256e6:
            raise ConfigError("'prepare.buffer' is no size.", given=self.buffer, allowed="at least 256MB, such as 500MB or 8GB")
        return int(size)


@dataclass(frozen=True)
class PartitionerConfig:
    """How nodes are assigned to workers, and the order of the nodes inside a part."""

    name: str
    seed: int = field(metadata=NOT_NEGATIVE)
    order: Literal["locality", "original"]
    imbalance: float = field(default=0.03, metadata=NOT_NEGATIVE)


@dataclass(frozen=True)
class StackConfig:
    """What every stack of graph layers has."""

    hidden: int = field(metadata=AT_LEAST_ONE)
    num_layers: int = field(metadata=number(low=1, high=256))
    norm: Literal["batch", "none"]
    activation: Literal["relu", "elu"]
    residual: bool
    dropout: float = field(metadata=PROBABILITY)
    input_dropout: float = field(metadata=PROBABILITY)


@dataclass(frozen=True)
class SageConfig(StackConfig):
    """GraphSage (Hamilton et al., 2017)."""

    name: Literal["sage"]
    aggregator: Literal["mean", "max", "sum"]


@dataclass(frozen=True)
class GcnConfig(StackConfig):
    """GCN (Kipf and Welling, 2017)."""

    name: Literal["gcn"]


@dataclass(frozen=True)
class GatConfig(StackConfig):
    """GAT (Velickovic et al., 2018), or GATv2 (Brody et al., 2022). ``hidden`` is the width of a head.

    Attributes:
        heads: of all layers but the last, concatenated. out_heads: of the last, averaged.
        attn_dropout: of attention weights.
        negative_slope: of the scores' LeakyReLU.
        v2: score as GATv2 does.
    """

    name: Literal["gat"]
    heads: int = field(metadata=AT_LEAST_ONE)
    out_heads: int = field(metadata=AT_LEAST_ONE)
    attn_dropout: float = field(metadata=PROBABILITY)
    negative_slope: float = field(metadata=FRACTION)
    v2: bool


@dataclass(frozen=True)
class RgcnConfig(StackConfig):
    """R-GCN (Schlichtkrull et al., 2018).

    Attributes:
        bases: how many bases the relations' weights are composed of; null: a full weight for each relation.
        order: map rows before they are summed over a relation's edges, or after; auto: what keeps less for backward.
        embedding: width of the learnable rows of node types without features, and of the map of features of another width;
            null: that of the features, or ``hidden`` where none has features or their widths differ.
    """

    name: Literal["rgcn"]
    bases: int | None = field(metadata=AT_LEAST_ONE)
    order: Literal["auto", "transform_first", "aggregate_first"]
    embedding: int | None = field(metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class MlpConfig(StackConfig):
    """A multi-layer perceptron, or with one layer a linear classifier: baselines that read no edges."""

    name: Literal["mlp", "linear"]


@dataclass(frozen=True)
class LabelPropagationConfig:
    """Label propagation: nothing is trained (``engine/propagate.py`` has the equation).

    Attributes:
        adjacency: how edges are weighted. alpha: how much comes from the neighbours in each of ``steps`` steps.
    """

    name: Literal["label_propagation"]
    adjacency: Adjacency
    alpha: float = field(metadata=FRACTION)
    steps: int = field(metadata=NOT_NEGATIVE)


ModelConfig = SageConfig | GcnConfig | GatConfig | RgcnConfig | MlpConfig | LabelPropagationConfig


@dataclass(frozen=True)
class ModeConfig:
    """Which training mode runs: a key of ``sargnn.engine.modes.MODES``."""

    name: str


@dataclass(frozen=True)
class KernelConfig:
    """Which kernel runs: ``auto`` or a key of ``sargnn.kernels.KERNELS``."""

    name: str


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer, its learning rate over the epochs, and what is minimised.

    Attributes:
        schedule: ``constant``; ``cosine``: half a cosine towards 0; ``step``: times ``step_factor`` every ``step_every``
            epochs.
        warmup: epochs of linear growth before that.
        clip: largest norm of all gradients together; null: no limit.
        label_smoothing: how much of a label's weight is spread over all classes, in the training loss.
    """

    name: Literal["adam", "adamw"]
    lr: float = field(metadata=POSITIVE)
    weight_decay: float = field(metadata=NOT_NEGATIVE)
    schedule: Literal["constant", "cosine", "step"]
    warmup: int = field(default=0, metadata=NOT_NEGATIVE)
    step_every: int = field(default=30, metadata=AT_LEAST_ONE)
    step_factor: float = field(default=0.5, metadata=number(low=0, high=1, open_low=True))
    clip: float | None = field(default=None, metadata=POSITIVE)
    label_smoothing: float = field(default=0.0, metadata=PROBABILITY)


@dataclass(frozen=True)
class LabelsConfig:
    """Labels of training nodes as further input (``training/labels.py``).

    Attributes:
        rate: of training nodes that carry their label in an epoch; the loss is taken on the others.
        reuse: how many times predicted labels are fed back to the nodes that carry none.
    """

    name: Literal["none", "masked"] = "none"
    rate: float = field(default=0.5, metadata=PROBABILITY)
    reuse: int = field(default=0, metadata=NOT_NEGATIVE)


@dataclass(frozen=True)
class SmoothConfig:
    """What is done to the predictions after training: nothing, or Correct & Smooth (``training/correct_smooth.py``).

    Attributes:
        autoscale: size the spread errors as the known ones are; else ``scale`` times them.
        correct_adjacency, correct_alpha, correct_steps: of the correction. smooth_...: of the smoothing.
    """

    name: Literal["none", "cs"] = "none"
    autoscale: bool = True
    scale: float = field(default=1.0, metadata=NOT_NEGATIVE)
    correct_adjacency: Adjacency = "dad"
    correct_alpha: float = field(default=0.8, metadata=FRACTION)
    correct_steps: int = field(default=50, metadata=NOT_NEGATIVE)
    smooth_adjacency: Adjacency = "dad"
    smooth_alpha: float = field(default=0.8, metadata=FRACTION)
    smooth_steps: int = field(default=50, metadata=NOT_NEGATIVE)


@dataclass(frozen=True)
class CommConfig:
    """How workers exchange rows."""

    backend: Literal["gloo"]
    prefetch_depth: int = field(metadata=NOT_NEGATIVE)
    timeout_s: float = field(metadata=POSITIVE)
    message_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    max_restarts: int = field(default=0, metadata=NOT_NEGATIVE)
    interface: str | None = None
    port: int | None = field(default=None, metadata=number(low=1, high=65535))


@dataclass(frozen=True)
class EngineConfig:
    """Choices of the engine that change no loss. ``cache_static``: keep aggregates of constant rows over the epochs."""

    cache_static: Literal["auto", False] = "auto"


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written: ``every`` so many epochs, and after the last one; null: only when a signal asks for one.

    Attributes:
        keep: how many of the newest are kept, beside the one with the best validation accuracy.
    """

    every: int | None = field(metadata=AT_LEAST_ONE)
    keep: int = field(metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class TrackingConfig:
    """Where figures are sent. ``uri`` null: an sqlite store in the working folder."""

    enabled: bool
    uri: str | None
    experiment: str


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved. ``config.yaml`` in the run folder holds exactly this."""

    dataset: DatasetConfig
    partitioner: PartitionerConfig
    model: ModelConfig
    mode: ModeConfig
    kernel: KernelConfig
    optim: OptimConfig
    comm: CommConfig
    engine: EngineConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    epochs: int = field(metadata=AT_LEAST_ONE)
    eval_every: int = field(metadata=AT_LEAST_ONE)
    seed: int = field(metadata=number(low=0, high=2**32 - 1))
    world: int = field(metadata=AT_LEAST_ONE)
    threads: int | None = field(metadata=AT_LEAST_ONE)
    device: Literal["cpu"]
    precision: Literal["fp32", "fp64"]
    profile: bool
    store_dir: str
    run_name: str | None
    run_dir: str | None
    prepare: BufferConfig = BufferConfig()
    labels: LabelsConfig = LabelsConfig()
    smooth: SmoothConfig = SmoothConfig()
    mfg: bool = False
    early_stopping: int | None = field(default=None, metadata=AT_LEAST_ONE)

    @property
    def name(self) -> str:
        """The run's name: ``run_name``, or ``{model}-{mode}-w{world}-s{seed}``."""
        return self.run_name or f"{self.model.name}-{self.mode.name}-w{self.world}-s{self.seed}"

    @property
    def add_self_loops(self) -> bool:
        """Whether every node gets exactly one self-loop: as configured, else as the model's definition has it."""
        configured = self.dataset.add_self_loops
        return self.model.name in ("gcn", "gat") if configured is None else configured

    @property
    def config_hash(self) -> str:
        """16 hex digits over what decides the losses: not world, mode, kernel, partitioner, comm, tracking or paths."""
        dataset = dataclasses.asdict(self.dataset) | {"add_self_loops": self.add_self_loops}
        for place in ("root", "download"):
            dataset.pop(place, None)
        deciding = {
            "dataset": dataset,
            "model": dataclasses.asdict(self.model) | ({"order": "auto"} if isinstance(self.model, RgcnConfig) else {}),
            "optim": _given(self.optim),
            "seed": self.seed,
            "precision": self.precision,
            "epochs": self.epochs,
        }
        if self.labels.name != "none":
            deciding["labels"] = _given(self.labels)
        if self.mfg and getattr(self.model, "norm", "none") == "batch":
            deciding["mfg"] = True
        if self.early_stopping is not None:
            deciding["early_stopping"] = [self.early_stopping, self.eval_every]
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


def _given(settings: Any) -> dict[str, Any]:
    """A group's settings but those at their defaults, so that a new setting leaves older runs' hashes as they are."""
    defaults = {one.name: one.default for one in dataclasses.fields(settings)}
    return {key: value for key, value in dataclasses.asdict(settings).items() if value != defaults[key]}


@dataclass(frozen=True)
class PrepareConfig:
    """``sargnn prepare``."""

    dataset: DatasetConfig
    store_dir: str
    prepare: BufferConfig = BufferConfig()


@dataclass(frozen=True)
class PartitionConfig:
    """``sargnn partition``."""

    dataset: DatasetConfig
    partitioner: PartitionerConfig
    world: int = field(metadata=AT_LEAST_ONE)
    store_dir: str
    prepare: BufferConfig = BufferConfig()


@dataclass(frozen=True)
class ExportConfig:
    """``sargnn export-ogb``. ``layout``: csv, binary, typed, or auto: that of the dataset which this one stands in for."""

    dataset: DatasetConfig
    out: str
    layout: Literal["auto", "csv", "binary", "typed"]
    store_dir: str
    prepare: BufferConfig = BufferConfig()


def parse_export(mapping: dict[str, Any]) -> ExportConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return build(ExportConfig, mapping, "")


def parse_prepare(mapping: dict[str, Any]) -> PrepareConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return build(PrepareConfig, mapping, "")


def parse_partition(mapping: dict[str, Any]) -> PartitionConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return build(PartitionConfig, mapping, "")


def parse(mapping: dict[str, Any]) -> RunConfig:
    """Check a resolved mapping and return it typed. Raises ``ConfigError`` with the dotted name of the first wrong key."""
    config = build(RunConfig, mapping, "")
    if config.run_name is not None and (not config.run_name.strip(".") or "/" in config.run_name):
        raise ConfigError("'run_name' cannot be a folder's name.", given=config.run_name, hint="run_dir=FOLDER takes a path")
    if config.mfg and isinstance(config.model, LabelPropagationConfig):
        raise ConfigError("Label propagation reads all nodes in every step.", given="mfg=true", allowed="mfg=false")
    if config.labels.name != "none" and isinstance(config.model, LabelPropagationConfig):
        raise ConfigError(
            "Label propagation reads labels by itself.", given=f"labels={config.labels.name}", allowed="labels=none"
        )
    if config.labels.name == "none" and config.labels.reuse:
        raise ConfigError("Labels that are not read cannot be fed back.", given="labels=none", allowed="labels=masked")
    if not config.store_dir:
        raise ConfigError("'store_dir' is empty.", hint="store_dir=FOLDER, such as stores")
    return config


def load(path: Path) -> RunConfig:
    """Read a run's ``config.yaml``."""
    try:
        mapping = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError("A run's configuration cannot be read.", given=str(path), hint=str(error).splitlines()[0]) from error
    return parse(mapping)


def save(config: RunConfig, path: Path) -> None:
    """Write a run's ``config.yaml``."""
    temporary = path.with_name(f".{path.name}.tmp")  # a run's settings are never half there
    temporary.write_text(yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))
    temporary.replace(path)


def flatten(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value, as MLflow's compare view wants it."""
    flat: dict[str, Any] = {}
    for key, value in dataclasses.asdict(config).items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": v for inner, v in value.items()})
        else:
            flat[key] = value
    return flat


def differing(config: RunConfig, other: RunConfig) -> list[str]:
    """The settings that decide the losses and differ, as ``key: one, other``."""
    one, two = flatten(config), flatten(other)
    deciding: tuple[str, ...] = (
        "dataset.",
        "model.",
        "optim.",
        "labels.",
        "seed",
        "precision",
        "epochs",
        "mfg",
        "early_stopping",
    )
    deciding += ("eval_every",) if config.early_stopping is not None else ()
    keys = [key for key in sorted({*one, *two}) if key.startswith(deciding) and key not in ("dataset.root", "dataset.download")]
    return [f"{key}: {two.get(key)} instead of {one.get(key)}" for key in keys if one.get(key) != two.get(key)]
