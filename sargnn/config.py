"""The resolved configuration of a run: plain dataclasses, checked field by field.

Hydra composes; this module checks. ``parse`` turns the resolved mapping into a ``RunConfig`` and answers every unknown
key, wrong type and value out of range with a ``ConfigError``. Workers read the same ``config.yaml`` through ``load``
and need neither Hydra nor OmegaConf.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from sargnn.errors import ConfigError, nearest

T = TypeVar("T")


def _number(
    *, low: float | None = None, high: float | None = None, open_low: bool = False, open_high: bool = False
) -> dict[str, Any]:  # noqa: E501
    return {"low": low, "high": high, "open_low": open_low, "open_high": open_high}


_POSITIVE = _number(low=0, open_low=True)
_NOT_NEGATIVE = _number(low=0)
_AT_LEAST_ONE = _number(low=1)
_PROBABILITY = _number(low=0, high=1, open_high=True)
_FRACTION = _number(low=0, high=1)


@dataclass(frozen=True)
class SyntheticConfig:
    """The embedded graph: a degree-corrected stochastic block model (``data/synthetic.py`` gives the distribution)."""

    name: Literal["synthetic"]
    num_nodes: int = field(metadata=_AT_LEAST_ONE)
    mean_degree: float = field(metadata=_POSITIVE)
    num_features: int = field(metadata=_AT_LEAST_ONE)
    num_classes: int = field(metadata=_number(low=2))
    blocks_per_class: int = field(metadata=_AT_LEAST_ONE)
    homophily: float = field(metadata=_FRACTION)
    power: float = field(metadata=_number(low=1, open_low=True))
    label_noise: float = field(metadata=_FRACTION)
    feature_signal: float = field(metadata=_NOT_NEGATIVE)
    train_fraction: float = field(metadata=_FRACTION)
    val_fraction: float = field(metadata=_FRACTION)
    seed: int = field(metadata=_NOT_NEGATIVE)
    normalize_features: bool
    add_self_loops: bool | None


@dataclass(frozen=True)
class LookalikeConfig:
    """A stand-in for a real graph (``data/lookalike.py``); scale 1.0 has the real graph's nodes and edges."""

    name: Literal["products_like", "papers_like"]
    scale: float = field(metadata=_number(low=0, high=10, open_low=True))
    seed: int = field(metadata=_number(low=0, high=2**32 - 1))
    normalize_features: bool
    add_self_loops: bool | None


@dataclass(frozen=True)
class MagLikeConfig:
    """A stand-in for ogbn-mag, a typed graph (``data/mag_like.py``); scale 1.0 has the real graph's nodes and edges.

    Attributes:
        add_inverse_edges: give every relation its inverse, as a relation of its own.
        homogenize: drop the types; types without features get their neighbours' mean.
    """

    name: Literal["mag_like"]
    scale: float = field(metadata=_number(low=0, high=10, open_low=True))
    seed: int = field(metadata=_NOT_NEGATIVE)
    add_inverse_edges: bool
    homogenize: bool
    normalize_features: bool
    add_self_loops: bool | None


@dataclass(frozen=True)
class OgbDirConfig:
    """A folder in OGB's raw layout, homogeneous or typed.

    Attributes:
        add_inverse_edges: every edge also the other way round; of a typed graph, as relations of their own.
        homogenize: of a typed graph: drop the types; types without features get their neighbours' mean.
    """

    name: Literal["ogb_dir"]
    root: str
    add_inverse_edges: bool
    normalize_features: bool
    add_self_loops: bool | None
    homogenize: bool = False


DatasetConfig = SyntheticConfig | LookalikeConfig | MagLikeConfig | OgbDirConfig


@dataclass(frozen=True)
class PartitionerConfig:
    """How nodes are assigned to workers, and the order of the nodes inside a part."""

    name: str
    seed: int = field(metadata=_NOT_NEGATIVE)
    order: Literal["locality", "original"]
    imbalance: float = field(default=0.03, metadata=_NOT_NEGATIVE)


@dataclass(frozen=True)
class StackConfig:
    """What every stack of graph layers has."""

    hidden: int = field(metadata=_AT_LEAST_ONE)
    num_layers: int = field(metadata=_number(low=1, high=256))
    norm: Literal["batch", "none"]
    activation: Literal["relu", "elu"]
    residual: bool
    dropout: float = field(metadata=_PROBABILITY)
    input_dropout: float = field(metadata=_PROBABILITY)


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
    heads: int = field(metadata=_AT_LEAST_ONE)
    out_heads: int = field(metadata=_AT_LEAST_ONE)
    attn_dropout: float = field(metadata=_PROBABILITY)
    negative_slope: float = field(metadata=_FRACTION)
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
    bases: int | None = field(metadata=_AT_LEAST_ONE)
    order: Literal["auto", "transform_first", "aggregate_first"]
    embedding: int | None = field(metadata=_AT_LEAST_ONE)


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
    """The optimizer and its learning rate over the epochs."""

    name: Literal["adam", "adamw"]
    lr: float = field(metadata=_POSITIVE)
    weight_decay: float = field(metadata=_NOT_NEGATIVE)
    schedule: Literal["constant", "cosine"]


@dataclass(frozen=True)
class CommConfig:
    """How workers exchange rows."""

    backend: Literal["gloo"]
    prefetch_depth: int = field(metadata=_NOT_NEGATIVE)
    timeout_s: float = field(metadata=_POSITIVE)
    message_rows: int | None = field(default=None, metadata=_AT_LEAST_ONE)
    max_restarts: int = field(default=0, metadata=_NOT_NEGATIVE)
    interface: str | None = None
    port: int | None = field(default=None, metadata=_number(low=1, high=65535))


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

    every: int | None = field(metadata=_AT_LEAST_ONE)
    keep: int = field(metadata=_AT_LEAST_ONE)


@dataclass(frozen=True)
class TrackingConfig:
    """Where figures are sent. ``uri`` null: an sqlite store in the working folder."""

    enabled: bool
    uri: str | None
    experiment: str


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved. ``config.yaml`` in the run folder holds exactly this."""

    dataset: SyntheticConfig | LookalikeConfig | MagLikeConfig | OgbDirConfig
    partitioner: PartitionerConfig
    model: SageConfig | GcnConfig | GatConfig | RgcnConfig
    mode: ModeConfig
    kernel: KernelConfig
    optim: OptimConfig
    comm: CommConfig
    engine: EngineConfig
    checkpoint: CheckpointConfig
    tracking: TrackingConfig
    epochs: int = field(metadata=_AT_LEAST_ONE)
    eval_every: int = field(metadata=_AT_LEAST_ONE)
    seed: int = field(metadata=_number(low=0, high=2**32 - 1))
    world: int = field(metadata=_AT_LEAST_ONE)
    threads: int | None = field(metadata=_AT_LEAST_ONE)
    device: Literal["cpu"]
    precision: Literal["fp32", "fp64"]
    profile: bool
    store_dir: str
    run_name: str | None
    run_dir: str | None

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
        dataset.pop("root", None)
        deciding = {
            "dataset": dataset,
            "model": dataclasses.asdict(self.model) | ({"order": "auto"} if isinstance(self.model, RgcnConfig) else {}),
            "optim": dataclasses.asdict(self.optim),
            "seed": self.seed,
            "precision": self.precision,
            "epochs": self.epochs,
        }
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PrepareConfig:
    """``sargnn prepare``."""

    dataset: SyntheticConfig | LookalikeConfig | MagLikeConfig | OgbDirConfig
    store_dir: str


@dataclass(frozen=True)
class PartitionConfig:
    """``sargnn partition``."""

    dataset: SyntheticConfig | LookalikeConfig | MagLikeConfig | OgbDirConfig
    partitioner: PartitionerConfig
    world: int = field(metadata=_AT_LEAST_ONE)
    store_dir: str


def parse_prepare(mapping: dict[str, Any]) -> PrepareConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return _build(PrepareConfig, mapping, "")


def parse_partition(mapping: dict[str, Any]) -> PartitionConfig:
    """Check a resolved mapping, as ``parse`` does."""
    return _build(PartitionConfig, mapping, "")


@dataclass(frozen=True)
class BenchKernelsConfig:
    """``sargnn bench kernels``: the compiled kernel against DGL's operators.

    Attributes:
        operations: which; ``sum`` and ``mean`` of rows, ``gat`` for attention, forward and backward.
        order: of the nodes: as workers have them, or as the dataset has them.
        widths: features of the rows that are summed.
        heads: of attention, each of ``head_width`` features.
        repeats: interleaved measurements of each kernel.
        bench_dir: where results go.
    """

    dataset: SyntheticConfig | LookalikeConfig | MagLikeConfig | OgbDirConfig
    operations: list[Literal["sum", "mean", "gat"]]
    order: Literal["locality", "original"]
    widths: list[int]
    heads: list[int]
    head_width: int = field(metadata=_AT_LEAST_ONE)
    repeats: int = field(metadata=_AT_LEAST_ONE)
    threads: int | None = field(metadata=_AT_LEAST_ONE)
    seed: int = field(metadata=_NOT_NEGATIVE)
    store_dir: str
    bench_dir: str


def parse_bench_kernels(mapping: dict[str, Any]) -> BenchKernelsConfig:
    """Check a resolved mapping, as ``parse`` does."""
    config = _build(BenchKernelsConfig, mapping, "")
    for name, example in (("widths", "[100,128,256]"), ("heads", "[2,4,8]")):
        if min(getattr(config, name), default=0) < 1:
            raise ConfigError(f"'{name}' must name numbers of at least 1.", given=getattr(config, name), allowed=example)
    if not config.operations:
        raise ConfigError("'operations' names none.", allowed="some of [sum,mean,gat]")
    return config


def parse(mapping: dict[str, Any]) -> RunConfig:
    """Check a resolved mapping and return it typed. Raises ``ConfigError`` with the dotted name of the first wrong key."""
    config = _build(RunConfig, mapping, "")
    if config.run_name is not None and (not config.run_name.strip(".") or "/" in config.run_name):
        raise ConfigError("'run_name' cannot be a folder's name.", given=config.run_name, hint="run_dir=FOLDER takes a path")
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
    deciding = ("dataset.", "model.", "optim.", "seed", "precision", "epochs")
    keys = [key for key in sorted({*one, *two}) if key.startswith(deciding) and key != "dataset.root"]
    return [f"{key}: {two.get(key)} instead of {one.get(key)}" for key in keys if one.get(key) != two.get(key)]


def _build(cls: type[T], mapping: Any, prefix: str) -> T:
    if not isinstance(mapping, dict):
        raise ConfigError(f"'{prefix.rstrip('.')}' must be a group of settings.", given=repr(mapping))
    hints = get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in mapping:
        if key not in known:
            raise ConfigError(
                f"There is no setting '{prefix}{key}'.", allowed=[prefix + name for name in nearest(str(key), known)]
            )
    values: dict[str, Any] = {}
    for key, spec in known.items():
        if key not in mapping:
            if spec.default is not dataclasses.MISSING:
                continue
            raise ConfigError(f"The setting '{prefix}{key}' is missing.")
        values[key] = _convert(hints[key], mapping[key], prefix + key, dict(spec.metadata))
    return cls(**values)


def _convert(hint: Any, value: Any, key: str, bounds: dict[str, Any]) -> Any:
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        classes = [option for option in options if dataclasses.is_dataclass(option)]
        if classes:
            return _choose(classes, value, key)
        if value is None and type(None) in options:
            return None
        hint = next(option for option in options if option is not type(None))
        return _convert(hint, value, key, bounds)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, f"{key}.")  # type: ignore[arg-type]
    if origin is list:
        if not isinstance(value, list):
            raise ConfigError(f"'{key}' must be a list.", given=repr(value), allowed="[a,b,c]")
        return [_convert(options[0], one, f"{key}[{index}]", bounds) for index, one in enumerate(value)]
    if origin is Literal:
        if value not in options:
            allowed = [str(o).lower() if isinstance(o, bool) else str(o) for o in options]
            raise ConfigError(f"'{key}' has a value that is not known.", given=repr(value), allowed=allowed)
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a name such as 2024 reaches us as a number
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"'{key}' has the wrong type.", given=repr(value), allowed=_TYPE_NAMES[hint])
    if hint in (int, float):
        _check_bounds(value, key, bounds)
    return value


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _check_bounds(value: float, key: str, bounds: dict[str, Any]) -> None:
    low, high = bounds.get("low"), bounds.get("high")
    too_low = low is not None and (value <= low if bounds["open_low"] else value < low)
    too_high = high is not None and (value >= high if bounds["open_high"] else value > high)
    if math.isfinite(value) and not too_low and not too_high:
        return
    words = []
    if low is not None:
        words.append(f"{'more than' if bounds['open_low'] else 'at least'} {low}")
    if high is not None:
        words.append(f"{'less than' if bounds['open_high'] else 'at most'} {high}")
    raise ConfigError(f"'{key}' is out of range.", given=value, allowed=" and ".join(words) or "a finite number")


def _choose(classes: list[Any], value: Any, key: str) -> Any:
    names = {name: cls for cls in classes for name in get_args(get_type_hints(cls)["name"])}
    name = value.get("name") if isinstance(value, dict) else None
    if name not in names:
        raise ConfigError(f"'{key}.name' is not known.", given=repr(name), allowed=nearest(str(name), names))
    return _build(names[name], value, f"{key}.")
