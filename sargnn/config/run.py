"""The resolved configuration of a run: plain dataclasses, checked field by field.

Hydra composes; this module checks. ``parse`` turns the resolved mapping into a ``RunConfig`` and answers every unknown
key, wrong type and value out of range with a ``ConfigError``. Workers read the same ``config.yaml`` through ``load``
and need neither Hydra nor OmegaConf.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

import yaml

from sargnn.config.fields import (
    AT_LEAST_ONE,
    DECIDES,
    FRACTION,
    FREE,
    LOSSES,
    PLAIN_NAME,
    POSITIVE,
    RUN,
    TARGET,
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
    only_with,
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
    EngineConfig,
    LabelsConfig,
    MemoryConfig,
    OptimConfig,
    Precision,
    PreloadConfig,
    SampleConfig,
    SmoothConfig,
    TrackingConfig,
)
from sargnn.config.links import EdgesConfig, LinksConfig
from sargnn.config.partitioner import PartitionerConfig, Strategy
from sargnn.errors import ConfigError

DATASETS = chosen_from("dataset", "sargnn.sources:DATASETS")

ONE_GRAPH = ("one_shot", "domain_parallel")
"""Modes that fetch all rows and aggregate one graph."""
Task = Literal["classes", "multilabel", "regression"]
"""What a node's labels are: one class, several labels, or numbers (``sargnn.graph.schema``)."""
Predicted = Literal["classes", "multilabel", "regression", "links"]
"""What a run predicts: of nodes, or which are linked."""
Metric = Literal[
    "accuracy",
    "rocauc",
    "f1",
    "f1_macro",
    "f1_weighted",
    "mse",
    "mae",
    "r2",
    "auc",
    "ap",
    "mrr",
    "hits@1",
    "hits@3",
    "hits@10",
    "hits@20",
    "hits@50",
    "hits@100",
]
"""What evaluations measure; ``sargnn.tasks.kinds`` says which go with which labels."""

LINK_METRICS: tuple[Metric, ...] = ("auc", "ap", "mrr", "hits@1", "hits@3", "hits@10", "hits@20", "hits@50", "hits@100")
"""Those of links."""
AUTO_MODES = ("no_remat", "sar")
"""What ``mode=auto`` chooses from, the fastest first: what ``no_remat`` keeps it need not fetch again."""


@dataclass(frozen=True)
class ModeConfig(Strategy):
    """Which training mode runs: a key of ``sargnn.engine.modes.MODES``, or a class outside.

    Attributes:
        keep: what stays for the backward pass: rows, or all: the scores of attention, too.
    """

    keep: Literal["rows", "all"] = field(default="rows", kw_only=True, metadata=only_with("no_remat"))


@dataclass(frozen=True)
class KernelConfig(Strategy):
    """Which kernel runs: ``auto``, a key of ``sargnn.backends.KERNELS``, or a class outside."""


class DatasetReader(Protocol):
    """Where a dataset comes from: raw files or a generator (``sargnn.graph.dataset.Reader``)."""

    def identity(self) -> dict[str, Any]:
        """What decides the content, JSON-able, for the store's key."""

    def write(self, path: Path, buffer_bytes: int) -> None:
        """Write the dataset's store, whose folder does not exist yet, in about ``buffer_bytes`` of memory."""


@dataclass(frozen=True)
class DatasetSettings(ABC):
    """What every dataset's settings have: a name, and how the dataset is read. The package's own:
    ``sargnn.sources.DATASETS``.

    Attributes:
        target: ``FILE.py:NAME`` of a class outside the package that extends this one.
        add_self_loops: null: as the model's definition has it (gcn, gat: true).
        loop_features: of the self-loops that this adds, where edges have features: zeros, or mean, of a node's in-edges.
        edge_weights: use the graph's edge weights, where it has any; false: train as if there were none.
        task: what labels are read as: classes, multilabel or regression; task=... says the same.
        link_split: task=links, edges: shares of training, validation and test pairs, such as [0.85,0.05,0.1]; null: a split is
            given.
        link_messages: training pairs, or edges with labels, stay edges of the graph; false: they are pairs only.
        link_relations: typed: whose edges are links, such as [writes]; null: those of all relations.
        link_seed: of the draw of pairs.
    """

    name: str = field(metadata=PLAIN_NAME)
    target: str | None = field(default=None, kw_only=True, metadata=TARGET)
    add_self_loops: bool | None = field(default=None, kw_only=True)
    loop_features: Literal["zeros", "mean"] = field(default="zeros", kw_only=True)
    task: Task | None = field(default=None, kw_only=True)
    edge_weights: bool = field(default=True, kw_only=True)
    link_split: list[float] | None = field(default=None, kw_only=True, metadata=FRACTION)
    link_messages: bool = field(default=True, kw_only=True)
    link_relations: list[str] | None = field(default=None, kw_only=True)
    link_seed: int = field(default=0, kw_only=True, metadata=number(low=0, high=2**32 - 1))

    reads_target: ClassVar[str] = ""
    """What the target names where that is no class of settings: what the dataset is made by."""
    fetches: ClassVar[bool] = False
    """Raw files that are missing may be fetched."""

    @property
    def title(self) -> str:
        """What a person is told that the dataset is called."""
        return self.name

    def title_of(self, stored: str) -> str:
        """The title where a store is there.

        Args:
            stored: what the store says. It was made for the first of all datasets with the same content, so that it counts only
                where these settings have no title of their own.
        """
        return stored if self.title == self.name else self.title

    @abstractmethod
    def reader(self) -> DatasetReader:
        """What writes the dataset's store."""

    def check_files(self) -> None:
        """Raise ``DataError`` with all files that are missing, before anything slow; what is fetched or drawn lacks none."""
        return None

    def is_here(self, stores: Path) -> bool:
        """Whether it can be read without fetching anything. stores: the folder of dataset stores."""
        return True

    def find_store(self, stores: Path) -> Path | None:
        """A store below ``stores`` that serves without reading anything; None where the reader must say what it would make."""
        return None

    def check_links(self) -> None:
        """Raise ``ConfigError`` for settings of links that cannot be drawn."""
        shares = self.link_split
        if shares is None:
            if self.link_relations is not None:  # pairs that are given have their relations
                raise ConfigError(
                    "No links are drawn whose relations could be chosen.",
                    given="dataset.link_split=null",
                    hint="dataset.link_split=[0.85,0.05,0.1], or leave dataset.link_relations out",
                )
            return
        if len(shares) != 3 or sum(shares) > 1 + 1e-9 or not shares[0]:
            raise ConfigError(
                "'dataset.link_split' are no shares of training, validation and test pairs.",
                given=shares,
                allowed="three numbers from 0 to 1 that add up to at most 1, the first above 0, such as [0.85,0.05,0.1]",
            )
        if self.link_relations == []:
            raise ConfigError(
                "No relation's edges are links.",
                given="dataset.link_relations=[]",
                hint="dataset.link_relations=null takes all",
            )


@dataclass(frozen=True)
class ModelSettings(ABC):
    """What every model's settings have, and all that the rest must know of a model. No torch is needed to read it.

    Those of the package: ``sargnn.models.MODELS``.

    Attributes:
        target: ``FILE.py:NAME`` of a class outside the package that extends this one.
        adds_self_loops: its definition has a self-loop at every node.
        trains: it has parameters to train.
        reads_target: what the target names where that is no class of settings.
        no_embeddings: why there are none, where there are none.
    """

    name: str = field(metadata=PLAIN_NAME)
    target: str | None = field(default=None, kw_only=True, metadata=TARGET)

    reads_target: ClassVar[str] = ""
    adds_self_loops: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    no_embeddings: ClassVar[str] = "A model of one layer has no embeddings."

    @property
    def title(self) -> str:
        """What runs are named after."""
        return self.name

    @property
    @abstractmethod
    def operations(self) -> tuple[str, ...]:
        """Kernel operations that its layers need."""

    def check_target(self) -> None:
        """What the target names can be loaded, and takes what it is given. May import torch. Raises ``ConfigError``."""
        return None

    @abstractmethod
    def build(self, shape: Any) -> Any:
        """The ``models.base.Model`` for a graph of this ``GraphShape``, in fp32. Raises ``ConfigError`` where none is."""

    @property
    def no_weights(self) -> str | None:
        """Why it cannot use edge weights, a sentence; None: it can."""
        return "A model from outside the package says so itself where it uses edge weights (no_weights)."

    @property
    def divides_by_weights(self) -> bool:
        """Whether it divides by sums of edge weights, which must not be negative then."""
        return False

    @property
    def draws_by_id(self) -> bool:
        """Whether it draws anything by a node's id, such as dropout. (Rows for node types without features are drawn, too.)"""
        return False

    @property
    def reads_degrees(self) -> bool:
        """Whether it is built with a histogram of the nodes' in-degrees."""
        return False

    @property
    def reads_edge_features(self) -> bool:
        """Whether it reads the graph's features of edges, where there are any."""
        return False

    @property
    def has_embeddings(self) -> bool:
        """Whether its last layer reads rows that another layer wrote."""
        return False

    @property
    def aggregations(self) -> int | None:
        """How many of its layers aggregate; None: that is known once it is built."""
        return None

    @property
    def norms_over_rows(self) -> bool:
        """Whether a row's output depends on which other rows are computed, as with batch norm."""
        return False

    @property
    def no_preload(self) -> str | None:
        """Why servers cannot preload what its rows depend on, a sentence; None: they can."""
        return None

    def check(self, run: RunConfig) -> None:
        """Refuse what does not go together with this model. Raises ``ConfigError``."""
        return None


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
    task: str = field(default="nodes", metadata=one_of(("nodes", "links", "edges")) | LOSSES)
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
        return self.task == "links"

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
        return self.mfg or self.draws_flows or self.batches.count not in (1, "auto")

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
    def joins_parts(self) -> bool:
        """Whether a process of several workers computes their parts as one. Else they take turns: where temporary tables of all
        parts at once may have no room, and where losses depend on who has which rows."""
        several, bound = self.num_processes != self.world, self.num_servers > 1 or self.norms_over_batches
        return several and self.device == "cpu" and not (self.spills or bound)

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
    if config.labels.name == "none" and config.labels.reuse:
        raise ConfigError("Labels that are not read cannot be fed back.", given="labels=none", allowed="labels=masked")
    if config.init_digest is not None and config.init_from is None:
        raise ConfigError("'init_digest' is filled in by itself.", given=config.init_digest, hint="init_from=RUN_DIR")
    if config.comm.wire != "exact" and config.precision == "fp64":
        raise ConfigError(
            "fp64 rows are sent as they are.",
            given=f"precision=fp64, comm.wire={config.comm.wire}",
            hint="precision=fp32, or comm.wire=exact",
        )
    if config.comm.rate is not None and config.comm.aggregate not in (None, "fastest"):
        raise ConfigError(
            "Only comm.aggregate=fastest asks how fast workers talk.",
            given=f"comm.aggregate={config.comm.aggregate} comm.rate={config.comm.rate}",
            hint="leave one of them out",
        )
    _ = config.comm.bytes_per_s
    if config.comm.aggregate in ("pre", "least", "fastest") and config.mode.target is None and config.mode.name in ONE_GRAPH:
        raise ConfigError(
            "This mode aggregates all edges where their destinations are.",
            given=f"mode={config.mode.name} comm.aggregate={config.comm.aggregate}",
            allowed="mode=sar, mode=no_remat",
            hint="leave comm.aggregate out, or comm.aggregate=post",
        )
    if config.mode.keep == "all" and config.mode.target is None and config.mode.name != "no_remat":
        raise ConfigError(
            "Only no_remat keeps attention's scores.",
            given=f"mode={config.mode.name} mode.keep=all",
            allowed="mode=no_remat mode.keep=all",
        )
    check_processes(config)
    _check_spill(config)
    _check_device(config)
    config.dataset.check_links()
    _check_pairs(config)
    _check_flows(config)
    config.preload.check(config.world, config.num_servers, config.model.no_preload)
    if config.bounds_preload and config.partitioner.target is None and config.partitioner.name == "auto":
        raise ConfigError(
            "What a server holds decides the losses here, and 'auto' may cut otherwise another time.",
            given="partitioner=auto preload.max_hop preload.fanout",
            allowed="partitioner=metis, kaminpar or stream",
        )
    if config.bounds_preload:
        config.preload.check_full_evaluation(config.eval, limited=config.memory_budget.limits)
    if not config.store_dir:
        raise ConfigError("'store_dir' is empty.", hint="store_dir=FOLDER, such as stores")
    return config


def check_processes(config: RunConfig) -> None:
    """Several workers may share a process. Raises ``ConfigError``."""
    given = f"world={config.world} processes={config.processes}"
    if config.num_processes > config.world:
        raise ConfigError("There are more processes than workers.", given=given, allowed=f"at most processes={config.world}")
    if config.world % config.num_processes and not config.joins_parts:
        fitting = [f"processes={count}" for count in range(1, config.world + 1) if config.world % count == 0]
        raise ConfigError("All processes have the same number of workers where these take turns.", given=given, allowed=fitting)
    config.comm.check_backend(config.device, several=config.num_processes != config.world)
    if config.num_processes == config.world:
        return
    if config.mode.target is None and config.mode.name == "domain_parallel":
        raise ConfigError(
            "The baseline is what a user has without this project: a process for each worker.",
            given=f"mode=domain_parallel {given}",
            allowed="mode=sar, no_remat or one_shot",
            hint="leave processes out",
        )
    if config.comm.backend == "mpi":
        raise ConfigError("MPI has a process for each worker.", given=f"comm.backend=mpi {given}", allowed="comm.backend=gloo")
    if config.memory_budget.limits and not config.spills:
        raise ConfigError(
            "A memory budget is kept by workers that have a process of their own, or by tables on disk.",
            given=f"memory_budget {given}",
            allowed="spill=auto",
            hint="leave processes out, or memory_budget",
        )


def _check_spill(config: RunConfig) -> None:
    """Tables on disk. Raises ``ConfigError``."""
    if not config.spills:
        return
    if config.mode.target is None and config.mode.name == "domain_parallel":
        raise ConfigError(
            "The baseline is what a user has without this project: its tables stay in memory.",
            given=f"mode=domain_parallel spill={config.spill}",
            allowed="mode=sar, no_remat or one_shot",
        )
    if config.spill == "auto" and config.memory_budget.size is None:
        raise ConfigError(
            "What goes to disk depends on the memory that a process may take.",
            given="spill=auto",
            hint="memory_budget=8GB, or memory_budget=auto; spill=all writes all that backward needs",
        )


def _check_device(config: RunConfig) -> None:
    """What a GPU's memory has not. Raises ``ConfigError``."""
    if config.device == "cpu":
        return
    if config.spills:
        raise ConfigError(
            "Tables that lie on a GPU do not go to the disk.",
            given=f"device={config.device} spill={config.spill}",
            allowed="spill=none",
            hint="world=N processes=1 and engine.keep_layers=sqrt hold less at a time; or device=cpu",
        )
    if config.memory_budget.limits:
        raise ConfigError(
            "A memory budget is of resident memory, and not of a GPU's.",
            given=f"device={config.device} memory_budget={config.memory_budget.size}",
            allowed="memory_budget=null",
            hint="batches.count=K and engine.keep_layers=sqrt hold less at a time; or device=cpu",
        )


def _check_flows(config: RunConfig) -> None:
    """Micro-batches, samples and what evaluations read. Raises ``ConfigError``."""
    _ = config.memory_budget.bytes  # read, so that what is no size is found here
    if config.batches.count == "auto" and (config.spills or not config.memory_budget.limits):
        raise ConfigError(
            "How many micro-batches there must be depends on the memory that they may take.",
            given=f"batches.count=auto{f' spill={config.spill}' * config.spills}",
            hint="memory_budget=6GB, for each worker, without spill; or batches.count=K",
        )
    if (layers := config.model.aggregations) is not None:
        config.sample.check(layers, config.model.name)
    if not config.samples and config.eval == "sampled":
        raise ConfigError(
            "There is no sample to evaluate on.",
            given="eval=sampled sample.fanouts=null",
            hint="sample.fanouts=[10,10,10], one for each layer; or eval=full",
        )


_NEVER = (
    ("labels", "none", "Labels are of nodes, and pairs have none."),
    ("smooth", "none", "Correct & Smooth spreads the shares of classes of nodes."),
    ("preload", "none", "Any node may be an end of a pair."),
)
_SAID = {"links": "links are", "edges": "edges are", "nodes": "nodes are"}


def _check_pairs(config: RunConfig) -> None:
    """What goes with links, edges or neither. Raises ``ConfigError``."""
    for group, settings, predicts in (
        ("links", config.links, config.predicts_links),
        ("edges", config.edges, config.predicts_edges),
    ):
        changed = {} if predicts else flat(find_deciding(settings, config, LOSSES[DECIDES]))
        if changed and config.task in _SAID:
            raise ConfigError(
                f"Settings of {group} decide nothing where {_SAID[config.task]} predicted.",
                given=f"task={config.task} {' '.join(f'{group}.{key}={value}' for key, value in changed.items())}",
                hint=f"task={group}, or leave them out",
            )
    if config.predicts_pairs:
        _check_any_pairs(config)
    if config.predicts_links:
        _check_links(config)
    if config.task == "nodes" and config.dataset.link_split is not None:
        raise ConfigError(
            "Links are drawn to be predicted, and held-out ones are no edges of the graph.",
            given=f"task=nodes dataset.link_split={config.dataset.link_split}",
            hint="task=links or task=edges, or leave dataset.link_split out",
        )


def _check_any_pairs(config: RunConfig) -> None:
    """What does not go with links or edges. Raises ``ConfigError``."""
    task = f"task={config.task}"
    needed: list[tuple[str, Any, Any, str]] = [(key, getattr(config, key).name, only, why) for key, only, why in _NEVER]
    needed += [
        ("mfg", config.mfg, False, "Any node may be an end of a pair, so all rows are computed."),
        ("eval", config.eval, "full", "Pairs are measured with all edges."),
    ]
    for key, given, only, why in needed:
        if given != only:
            raise ConfigError(why, given=f"{task} {key}={given}".lower(), allowed=f"{key}={only}".lower())
    if config.batches.count == "auto":
        raise ConfigError("Nobody plans micro-batches of pairs.", given=f"{task} batches.count=auto", allowed="batches.count=K")
    if config.memory_budget.limits and not config.spills:
        raise ConfigError(
            "The memory of predicting pairs is not planned.",
            given=f"{task} memory_budget={config.memory_budget.size}",
            allowed="memory_budget=null",
            hint="batches.steps=S and batches.count=K hold less at a time; spill=auto keeps to a budget by tables on disk",
        )
    if not config.model.trains:
        raise ConfigError(
            "A model without parameters gives no embeddings to train.",
            given=f"{task} model={config.model.name}",
            hint="model=sage",
        )


def _check_links(config: RunConfig) -> None:
    """What does not go with links. Raises ``ConfigError``."""
    config.links.check(config.num_outputs(0))
    if config.select != "val_metric":
        raise ConfigError(
            "Validation pairs have no loss, which is of negatives that are drawn.",
            given=f"task=links select={config.select}",
            allowed="select=val_metric",
        )
    for name, why in (
        ("label_smoothing", "A pair has no classes to spread a label's weight over."),
        ("class_weights", "A pair has no class that could have a weight."),
        ("loss", "What is minimised of pairs is links.loss."),
    ):
        value, usual = getattr(config.optim, name), getattr(OptimConfig, name)
        if value != usual:
            allowed = f"optim.{name}={'null' if usual is None else usual}"
            raise ConfigError(why, given=f"task=links optim.{name}={value}", allowed=allowed)
    if config.metric is not None and config.metric not in LINK_METRICS:
        raise ConfigError(f"'{config.metric}' is no metric of links.", given=f"metric={config.metric}", allowed=LINK_METRICS)


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
