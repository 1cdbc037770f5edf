"""The resolved configuration of a run: plain dataclasses, checked field by field.

Hydra composes; this module checks. ``parse`` turns the resolved mapping into a ``RunConfig`` and answers every unknown
key, wrong type and value out of range with a ``ConfigError``. Workers read the same ``config.yaml`` through ``load``
and need neither Hydra nor OmegaConf.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from sargnn.config.choices import DATASETS, DatasetSettings, KernelConfig, ModeConfig, ModelSettings
from sargnn.config.combinations import RUN as ROWS
from sargnn.config.combinations import check
from sargnn.config.fields import (
    AT_LEAST_ONE,
    DECIDES,
    FREE,
    LOSSES,
    POSITIVE,
    RUN,
    as_mapping,
    build,
    chosen_from,
    find_deciding,
    find_free,
    flat,
    gone,
    number,
    one_of,
    only_when,
    read_yaml,
    starts,
)
from sargnn.config.groups import (
    AUTO,
    GONE_PRECISIONS,
    BatchesConfig,
    BufferConfig,
    CheckpointConfig,
    CommConfig,
    EdgesConfig,
    EngineConfig,
    LabelsConfig,
    LinkMetric,
    LinksConfig,
    MemoryConfig,
    OptimConfig,
    Precision,
    PreloadConfig,
    SampleConfig,
    SmoothConfig,
    TrackingConfig,
)
from sargnn.config.partitioner import PartitionerConfig
from sargnn.errors import ConfigError
from sargnn.resolve import is_target

Predicted = Literal["classes", "multilabel", "regression", "links"]
"""What a run predicts: of nodes, or which are linked."""
Metric = Literal["accuracy", "rocauc", "f1", "f1_macro", "f1_weighted", "mse", "mae", "r2", LinkMetric]
"""What evaluations measure; ``sargnn.tasks.kinds`` says which go with which labels."""
AUTO_MODES = ("no_remat", "sar")
"""What ``mode=auto`` chooses from, the fastest first: what ``no_remat`` keeps it need not fetch again."""


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved. ``config.yaml`` in the run folder holds exactly this.

    Every setting says what it decides: ``LOSSES``, ``RUN`` or ``FREE`` (``config.fields``). What a group says holds for all its
    settings that say nothing themselves.

    Attributes:
        world: workers; auto: the fewest that fit this machine.
        processes: that the workers live in; null: one for each; auto: as many as are fast here, in a job one for each.
        servers: groups of workers that talk fast to each other; null: one for each host, here one.
        threads: of each worker's process; null: the cores shared out.
        device: where rows lie and are computed; cuda: on a GPU for each process.
        precision: fp32; fp64; bf16: rows are bf16; mixed: products are.
        epochs: each is one step on the whole graph, or batches.steps of them.
        eval_every: the last epoch is always evaluated.
        early_stopping: end after so many evaluations without a better validation metric, or loss, as select says.
        max_seconds: of training, evaluations left out, after which the run ends; null: epochs decide.
        select: what the best epoch is chosen by: val_metric, or val_loss.
        metric: docs/howto/tasks-and-metrics.md has those of each task; null: its first, such as accuracy of classes.
        eval: what evaluations and predictions read: the full graph, or sampled: edges as sample.fanouts has them.
        mfg: message-flow graphs: each layer computes only rows that reach a training node.
        spill: what may lie on disk while nobody reads it. auto: what memory_budget has no room for; all: all that is kept.
        spill_dir: on a local disk; null: the run's folder.
        seed: parameters and dropout; the same seed gives the same losses on any world, mode and partitioner.
        profile: where the time goes: a table, and a Perfetto trace per rank in run_dir/traces.
        init_from: a run folder, or a checkpoint in it: a new run that starts from those parameters.
        run_name: null: {model}-{mode}-w{world}-s{seed}.
        run_dir: null: runs/{run_name}.
        store_dir: dataset and partition stores.
    """

    dataset: DatasetSettings = field(metadata=LOSSES | DATASETS)
    partitioner: PartitionerConfig = field(metadata=LOSSES | only_when("bounds_preload"))
    model: ModelSettings = field(metadata=LOSSES | chosen_from("model", "sargnn.models:MODELS"))
    mode: ModeConfig = field(metadata=RUN)
    kernel: KernelConfig = field(metadata=RUN)
    optim: OptimConfig = field(metadata=LOSSES)
    comm: CommConfig = field(metadata=FREE)
    engine: EngineConfig = field(metadata=RUN)
    checkpoint: CheckpointConfig = field(metadata=FREE)
    tracking: TrackingConfig = field(metadata=FREE)
    epochs: int = field(metadata=AT_LEAST_ONE | LOSSES | starts(60))
    eval_every: int = field(metadata=AT_LEAST_ONE | LOSSES | only_when("stops_early") | starts(5))
    seed: int = field(metadata=number(low=0, high=2**32 - 1) | LOSSES | starts(0))
    world: int = field(metadata=AT_LEAST_ONE | LOSSES | only_when("world_decides") | starts(4))
    threads: int | None = field(metadata=AT_LEAST_ONE | FREE | starts(None))
    device: Literal["cpu", "cuda"] = field(metadata=RUN | starts("cpu"))
    precision: Precision = field(metadata=LOSSES | gone(GONE_PRECISIONS) | starts("fp32"))
    profile: bool = field(metadata=FREE | starts(False))
    store_dir: str = field(metadata=FREE | starts("stores"))
    run_name: str | None = field(metadata=RUN | starts(None))
    run_dir: str | None = field(metadata=FREE | starts(None))
    prepare: BufferConfig = field(default=BufferConfig(), metadata=FREE)
    labels: LabelsConfig = field(default=LabelsConfig(), metadata=LOSSES | only_when("reads_labels"))
    smooth: SmoothConfig = field(default=SmoothConfig(), metadata=RUN)
    mfg: bool = field(default=False, metadata=LOSSES | only_when("norms_over_rows"))
    batches: BatchesConfig = field(default=BatchesConfig(), metadata=RUN)
    sample: SampleConfig = field(default=SampleConfig(), metadata=RUN)
    eval: Literal["full", "sampled"] = field(default="full", metadata=LOSSES | only_when("stops_early"))
    memory_budget: MemoryConfig = field(default=MemoryConfig(), metadata=RUN)
    early_stopping: int | None = field(default=None, metadata=AT_LEAST_ONE | LOSSES)
    max_seconds: float | None = field(default=None, metadata=POSITIVE | FREE)
    init_from: str | None = field(default=None, metadata=FREE)
    init_digest: str | None = field(default=None, metadata=LOSSES)  # of those parameters' content; launching fills it in
    metric: str | None = field(default=None, metadata=one_of(get_args(Metric)) | LOSSES | only_when("stops_early"))
    select: Literal["val_metric", "val_loss"] = field(default="val_metric", metadata=LOSSES | only_when("stops_early"))
    servers: int | None = field(default=None, metadata=AT_LEAST_ONE | LOSSES | only_when("bounds_preload"))
    preload: PreloadConfig = field(default=PreloadConfig(), metadata=RUN)
    task: str = field(default="nodes", metadata=one_of("sargnn.tasks:TASKS") | LOSSES)
    links: LinksConfig = field(default=LinksConfig(), metadata=LOSSES | only_when("predicts_links"))
    edges: EdgesConfig = field(default=EdgesConfig(), metadata=LOSSES | only_when("predicts_edges"))
    processes: int | Literal["auto"] | None = field(default="auto", metadata=AT_LEAST_ONE | FREE)
    spill: Literal["none", "auto", "all"] = field(default="none", metadata=FREE)
    spill_dir: str | None = field(default=None, metadata=FREE)

    @property
    def name(self) -> str:
        """The run's name: ``run_name``, or ``{model}-{mode}-w{world}-s{seed}``; a user's module is named behind its model."""
        return self.run_name or f"{self.model.title}-{self.mode.name}-w{self.world}-s{self.seed}"

    @property
    def add_self_loops(self) -> bool:
        """Whether every node gets exactly one self-loop: as configured, else as the model's definition has it."""
        configured = self.dataset.add_self_loops
        return self.model.adds_self_loops if configured is None else configured

    @property
    def budget_bytes(self) -> int | None:
        """What a worker's memory is kept to by micro-batches and by what is refused; None: nothing, or not settled. Raises
        ``ConfigError`` for what is no size."""
        return self.memory_budget.bytes if self.memory_budget.enforce and not self.spills else None

    @property
    def spills(self) -> bool:
        """Whether tables may lie on disk, so that a process keeps to ``memory_budget``."""
        return self.spill != "none"

    @property
    def stops_early(self) -> bool:
        """Whether evaluations decide when training ends."""
        return self.early_stopping is not None

    @property
    def reads_labels(self) -> bool:
        """Whether labels are a further input."""
        return self.labels.name != "none"

    @property
    def norms_over_rows(self) -> bool:
        """Whether it matters to a row which other rows are computed."""
        return self.model.norms_over_rows

    @property
    def norms_over_batches(self) -> bool:
        """Whether norms take their statistics of each micro-batch."""
        return self.model.norms_over_rows and self.batches.count not in (1, "auto")

    @property
    def chooses_mode(self) -> bool:
        """Whether its mode is still to be chosen, by the memory that there is (``mode=auto``)."""
        return self.mode.target is None and self.mode.name == AUTO

    def with_mode(self, mode: str) -> RunConfig:
        """In another of the package's modes; what ``mode.keep`` says stays where the mode has it."""
        return replace(self, mode=ModeConfig(mode, keep=self.mode.keep if mode == "no_remat" else "rows"))

    @property
    def in_modes(self) -> list[RunConfig]:
        """In what ``mode=auto`` chooses from, the fastest first; itself where its mode is chosen."""
        return [self.with_mode(mode) for mode in AUTO_MODES] if self.chooses_mode else [self]

    @property
    def stand_in(self) -> RunConfig:
        """With a mode in place of ``mode=auto``, for what is checked before memory is planned."""
        return self.in_modes[-1]

    @property
    def predicts_links(self) -> bool:
        """Whether it is predicted which nodes are linked."""
        return self.task == "links" or self.asks_queries

    @property
    def asks_queries(self) -> bool:
        """Whether links are predicted by a model whose rows depend on what it is asked."""
        return self.task == "queries"

    @property
    def predicts_edges(self) -> bool:
        """Whether labels of edges are predicted."""
        return self.task == "edges"

    @property
    def predicts_pairs(self) -> bool:
        """Whether pairs of nodes are scored, so that the model's outputs are embeddings."""
        return self.predicts_links or self.predicts_edges

    def num_outputs(self, num_classes: int) -> int:
        """C, the outputs of the model: the dataset's, or the width of an embedding where pairs are scored."""
        if not self.predicts_pairs:
            return num_classes
        given = self.edges.embedding_dim if self.predicts_edges else self.links.embedding_dim
        return given or getattr(self.model, "hidden", None) or 64

    @property
    def samples(self) -> bool:
        """Whether layers aggregate over samples of edges."""
        return self.sample.fanouts is not None

    @property
    def draws_flows(self) -> bool:
        """Whether what a step computes is drawn."""
        return self.samples or self.batches.steps > 1

    @property
    def trains_on_flows(self) -> bool:
        """Whether a training step computes only rows that reach its training nodes."""
        several = self.batches.count not in (1, "auto") and not self.asks_queries  # whose views compute all rows
        return self.mfg or self.draws_flows or several

    @property
    def num_servers(self) -> int:
        """``servers``, 1 where nobody knows of more."""
        return self.servers or 1

    @property
    def num_processes(self) -> int:
        """``processes``; as many as ``world`` where that is not said."""
        return self.processes if isinstance(self.processes, int) else self.world

    @property
    def of_processes(self) -> RunConfig:
        """The same with a worker for each process: what each of these holds is what a process of several holds, or about that
        where these take turns."""
        return self if self.num_processes == self.world else replace(self, world=self.num_processes, processes=None)

    @property
    def shares_processes(self) -> bool:
        """Whether workers have a process together."""
        return self.num_processes != self.world

    @property
    def joins_parts(self) -> bool:
        """Whether a process of several workers computes their parts as one. Else they take turns: where temporary tables of all
        parts at once may have no room, and where losses depend on who has which rows."""
        bound = self.num_servers > 1 or self.norms_over_batches
        return self.shares_processes and self.device == "cpu" and not (self.spills or bound)

    @property
    def joined(self) -> int | None:
        """The number of processes whose parts lie together as one; None: each part lies by itself."""
        return self.num_processes if self.joins_parts else None

    @property
    def on_one_machine(self) -> RunConfig:
        """With rows between processes where nothing is said of partial results: there messages cost more than bytes."""
        return self if self.comm.aggregate is not None else replace(self, comm=replace(self.comm, aggregate="post"))

    @property
    def of_ranks(self) -> RunConfig:
        """The same with a worker for each rank that computes: a process whose parts are joined is one."""
        return self.of_processes if self.joins_parts else self

    @property
    def on_host(self) -> RunConfig:
        """The same without a device: its tables are as large there, so that memory is accounted for where there is no GPU."""
        return self if self.device == "cpu" else replace(self, device="cpu", kernel=KernelConfig("auto"))

    @property
    def may_preload(self) -> bool:
        """Whether servers may come to hold copies of other servers' nodes."""
        return self.preload.name != "none" and self.num_servers > 1 and self.model.no_preload is None

    @property
    def bounds_preload(self) -> bool:
        """Whether servers may preload less than the model reads, so that what they hold decides the losses."""
        layers, most = self.model.aggregations, self.preload.max_hop
        exact = self.preload.fanout is None and layers is not None and most is not None and most >= layers
        return self.preload.bounded and not exact

    @property
    def world_decides(self) -> bool:
        """Whether the number of workers decides which nodes a server has, and that the losses."""
        return self.bounds_preload and not self.partitioner.cuts_servers

    @property
    def config_hash(self) -> str:
        """16 hex digits over what decides the losses: not world, mode, kernel, partitioner, comm, tracking or paths."""
        deciding = loss_settings(self)
        if "eval_every" in deciding:
            deciding["early_stopping"] = [deciding["early_stopping"], deciding.pop("eval_every")]
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]


def parts_of(process: int, processes: int, world: int) -> range:
    """Which of ``world`` parts, or workers, a process has: as many as others, or one more or less."""
    return range(process * world // processes, (process + 1) * world // processes)


def loss_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide the losses (``find_deciding``); ``dataset.add_self_loops`` as it comes out with this model."""
    deciding = find_deciding(config, config)
    deciding["dataset"]["add_self_loops"] = config.add_self_loops
    return deciding


def parse(mapping: Any) -> RunConfig:
    """Check a resolved mapping and return it typed. Raises ``ConfigError`` with the dotted name of the first wrong key."""
    if isinstance(mapping, dict) and isinstance(mapping.get("memory_budget", {}), str | None):  # as runs had it before 2026-11
        mapping = {**mapping, "memory_budget": {"size": mapping["memory_budget"]}}
    if isinstance(mapping, dict) and mapping.get("world") == "auto":
        raise ConfigError(
            "Only sargnn train chooses a number of workers, for the machine that it runs on.",
            given="world=auto",
            hint="sargnn plan what=fit says which numbers fit; world=N",
        )
    config = build(RunConfig, mapping, "")
    if config.run_name is not None and (not config.run_name.strip(".") or "/" in config.run_name):
        raise ConfigError("'run_name' cannot be a folder's name.", given=config.run_name, hint="run_dir=FOLDER takes a path")
    config.model.check(config)
    _ = config.comm.bytes_per_s, config.memory_budget.bytes  # read, so that what is no size is found here
    if config.preload.name == "shared" and config.model.no_preload is not None:
        raise ConfigError(config.model.no_preload, given="preload=shared", allowed="preload=none")
    for group, settings, predicts in (
        ("links", config.links, config.predicts_links),
        ("edges", config.edges, config.predicts_edges),
    ):
        changed = {} if predicts else flat(find_deciding(settings, config, LOSSES[DECIDES]))
        if changed and not is_target(config.task):
            raise ConfigError(
                f"Settings of {group} decide nothing where {config.task} are predicted.",
                given=f"task={config.task} {' '.join(f'{group}.{key}={value}' for key, value in changed.items())}",
                hint=f"task={group}, or leave them out",
            )
    if (layers := config.model.aggregations) is not None:
        config.sample.check(layers, config.model.name)
    check(config, ROWS)
    return config


def load(path: Path) -> RunConfig:
    """Read a run's ``config.yaml``. Raises ``ConfigError`` with the file's name."""
    mapping = read_yaml(path, "A run's configuration")
    try:
        return parse(mapping)
    except ConfigError as error:
        raise ConfigError(f"'{path}': {error}") from error


def save(config: RunConfig, path: Path) -> None:
    """Write a run's ``config.yaml``."""
    temporary = path.with_name(f".{path.name}.tmp")  # a run's settings are never half there
    temporary.write_text(yaml.safe_dump(as_mapping(config), sort_keys=False))
    temporary.replace(path)


def flatten(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value, as MLflow's compare view wants it."""
    return flat(as_mapping(config))


def fixed_settings(config: RunConfig) -> dict[str, Any]:
    """Dotted key -> value of all settings that stay between two submissions of one run: all that are not ``FREE``.

    A finer list than resuming allows, for runs are compared.
    """
    free = find_free(config)
    return {key: value for key, value in flatten(config).items() if key not in free}


def differing(config: RunConfig, other: RunConfig) -> list[str]:
    """The settings that decide the losses and differ, as ``key: that of other instead of that of config``."""
    first, second = flat(loss_settings(config)), flat(loss_settings(other))
    keys = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
    first, second = flatten(config) | first, flatten(other) | second
    return [f"{key}: {second.get(key)} instead of {first.get(key)}" for key in keys]
