"""Groups of a run's settings that know nothing of each other: how it optimises, exchanges, checkpoints, and what it adds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sargnn.config.fields import (
    AT_LEAST_ONE,
    FRACTION,
    FREE,
    LOSSES,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    RUN,
    TARGET,
    number,
    one_of,
    only_when,
)
from sargnn.errors import ConfigError

AUTO = "auto"
Adjacency = Literal["dad", "da", "ad"]
"""D^-1/2 A D^-1/2, D^-1 A or A D^-1."""


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer, its learning rate over the epochs, and what is minimised.

    Attributes:
        schedule: ``constant``; ``cosine``: half a cosine towards 0; ``step``: times ``step_factor`` every ``step_every``
            epochs.
        warmup: epochs of linear growth before that.
        clip: largest norm of all gradients together; null: no limit.
        label_smoothing: how much of a label's weight is spread over all classes, in the training loss.
        weight_decay_of: groups of parameters that the model names, each with a weight decay of its own; null: none.
        lr_of: groups of parameters that the model names, each with a learning rate of its own, which the schedule changes
            likewise; null: none.
        average: evaluations and predictions are of the parameters' exponential average, which keeps this share of itself in
            each step; null: of the parameters.
        class_weights: of each class, in the training loss; ``balanced``: those of rare classes are larger; null: all are 1.
        target: of ``optim=custom``: a class that extends ``torch.optim.Optimizer``. args: its arguments, by name.
        loss: a loss of one's own for the labels of nodes and edges, ``FILE.py:NAME`` or one of PyTorch's
            (``tasks.nodes.LabelLoss``); null: that of the labels' kind.
    """

    name: Literal["adam", "adamw", "custom"]
    lr: float = field(metadata=POSITIVE)
    weight_decay: float = field(metadata=NOT_NEGATIVE)
    schedule: Literal["constant", "cosine", "step"]
    warmup: int = field(default=0, metadata=NOT_NEGATIVE)
    step_every: int = field(default=30, metadata=AT_LEAST_ONE)
    step_factor: float = field(default=0.5, metadata=number(low=0, high=1, open_low=True))
    clip: float | None = field(default=None, metadata=POSITIVE)
    label_smoothing: float = field(default=0.0, metadata=PROBABILITY)
    weight_decay_of: dict[str, float] | None = field(default=None, metadata=NOT_NEGATIVE)
    lr_of: dict[str, float] | None = field(default=None, metadata=POSITIVE)
    average: float | None = field(default=None, metadata=PROBABILITY)
    class_weights: list[float] | Literal["balanced"] | None = field(default=None, metadata=NOT_NEGATIVE)
    target: str | None = field(default=None, metadata=TARGET)
    args: dict[str, Any] | None = None
    loss: str | None = field(default=None, metadata=TARGET)

    def __post_init__(self) -> None:
        if (self.name == "custom") != (self.target is not None):
            raise ConfigError(
                "'optim.target' names an optimizer of your own.",
                given=f"optim={self.name} optim.target={self.target or 'null'}",
                allowed="optim=custom optim.target=FILE.py:CLASS, such as torch.optim:SGD",
            )
        if self.args and self.name != "custom":
            raise ConfigError(
                "'optim.args' are of an optimizer of your own.", given=f"optim={self.name}", allowed="optim=custom"
            )
        for name in ("lr", "weight_decay"):
            if name in (self.args or {}):
                raise ConfigError(f"'optim.args' does not set {name}.", given=f"optim.args.{name}", hint=f"optim.{name}=...")

    @property
    def depends_on_epochs(self) -> bool:
        """Whether an epoch's learning rate depends on how many epochs there are in all."""
        return self.schedule == "cosine"

    @property
    def tables(self) -> int:
        """How many tables of its size an evaluation finds beside each parameter: its gradient, two of the optimizer as Adam
        has them, its average."""
        return 3 if self.average is None else 4


@dataclass(frozen=True)
class LabelsConfig:
    """Labels of training nodes as further input (``tasks/labels.py``).

    Attributes:
        rate: of training nodes that carry their label in an epoch; the loss is taken on the others.
        reuse: how many times predicted labels are fed back to the nodes that carry none.
    """

    name: Literal["none", "masked"] = "none"
    rate: float = field(default=0.5, metadata=PROBABILITY)
    reuse: int = field(default=0, metadata=NOT_NEGATIVE)


@dataclass(frozen=True)
class SmoothConfig:
    """What is done to the predictions after training: nothing, or Correct & Smooth (``tasks/correct_smooth.py``).

    Attributes:
        autoscale: size the spread errors as the known ones are; else ``scale`` times them.
        correct_adjacency: of the correction.
        correct_alpha: likewise.
        correct_steps: likewise.
        smooth_adjacency: of the smoothing.
        smooth_alpha: likewise.
        smooth_steps: likewise.
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


Precision = Literal["fp32", "fp64", "bf16", "mixed"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
GONE_PRECISIONS = {name: "fp32, or mixed" for name in ("bf16x3", "bf16x6")}
"""Those of earlier versions, which products of bf16 terms were for, and what to use instead."""


@dataclass(frozen=True)
class CommConfig:
    """How workers exchange rows.

    Attributes:
        backend: what carries rows; ``mpi`` where PyTorch was built with it, and mpirun starts the workers; ``nccl`` from GPU to
            GPU, where each process has one of its own: not run yet.
        wire: what fp32 rows and their gradients are rounded to on their way to other workers; ``exact``: they are not.
        aggregate: who aggregates an edge between two workers: the destination's (``post``), the source's (``pre``), or whoever
            makes for fewer bytes (``least``) or takes less time (``fastest``); null: ``post`` where ``sargnn train`` starts all
            processes on one machine, else ``fastest`` where the mode can.
        rate: bytes that a worker sends to others in a second, by which ``fastest`` weighs them against work; null: 1.25 GB.
    """

    backend: Literal["gloo", "mpi", "nccl"]
    prefetch_depth: int = field(metadata=NOT_NEGATIVE)
    timeout_s: float = field(metadata=POSITIVE)
    message_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    max_restarts: int = field(default=0, metadata=NOT_NEGATIVE)
    interface: str | None = None
    port: int | None = field(default=None, metadata=number(low=1, high=65535))
    wire: Literal["exact", "bf16"] = field(default="exact", metadata=LOSSES)
    aggregate: Literal["post", "pre", "least", "fastest"] | None = field(default=None, metadata=RUN)
    rate: str | None = field(default=None, metadata=RUN)

    @property
    def bytes_per_s(self) -> int:
        """``rate``. Raises ``ConfigError`` for a text that is no size."""
        return read_size("comm.rate", self.rate or "1.25GB", "12GB", least_mb=1)

    def check_backend(self, device: str, *, several: bool) -> None:
        """What carries rows goes together with where they lie, and with the workers of a process. Raises ``ConfigError``.

        Args:
            device: ``cpu`` or ``cuda``.
            several: whether a process has several workers.
        """
        if self.backend == "nccl" and device != "cuda":
            raise ConfigError(
                "NCCL carries rows from GPU to GPU.", given=f"device={device} comm.backend=nccl", allowed="comm.backend=gloo"
            )
        if self.backend == "nccl" and several:
            raise ConfigError(
                "NCCL has a process for each worker.",
                given="comm.backend=nccl and fewer processes than workers",
                allowed="comm.backend=gloo",
            )


@dataclass(frozen=True)
class EngineConfig:
    """Choices of the engine that change no loss.

    Attributes:
        cache_static: keep aggregates of constant rows over the epochs.
        keep_layers: whose inputs survive until backward: of ``all`` layers, of about the square root of their number, or of so
            many, evenly spaced; what lies between is computed again (``engine.segments``).
        column_groups: aggregations are made in so many groups of columns, or of heads, so that less is held at one time; null:
            in as few as ``memory_budget`` with ``spill`` has room for.
        edge_rows: where features of edges are: in ``memory``, or ``mapped`` from the store, whose pages are given back after
            each aggregation; ``auto``: in memory where ``memory_budget`` has eight times as much room.
    """

    cache_static: Literal["auto", False] = "auto"
    keep_layers: Literal["all", "sqrt"] | int = field(default="all", metadata=AT_LEAST_ONE)
    column_groups: int | None = field(default=None, metadata=AT_LEAST_ONE)
    edge_rows: Literal["auto", "mapped", "memory"] = "auto"


@dataclass(frozen=True)
class BatchesConfig:
    """Steps of an epoch, and the micro-batches of a step: its training nodes in groups, one after the other, whose gradients
    add up (Yang et al., 2023).

    Attributes:
        steps: optimizer steps of an epoch, each on its own share of the training nodes, shuffled anew in every epoch.
        count: how many groups each worker's training nodes are in; ``auto``: as few as fit ``memory_budget``.
        by: how they are put together: a key of ``sargnn.plan.GROUPINGS``, or ``FILE.py:NAME`` of such a function.
        flows: where the message flows of the groups that are not computed at the moment are.
    """

    name: str = "micro"
    count: Literal["auto"] | int = field(default=1, metadata=AT_LEAST_ONE | LOSSES | only_when("norms_over_batches"))
    by: str = field(
        default="star",
        metadata=one_of(("star", "reg", "metis", "random", "range")) | LOSSES | only_when("norms_over_batches"),
    )
    flows: Literal["disk", "memory"] = field(default="disk", metadata=FREE)
    steps: int = field(default=1, metadata=AT_LEAST_ONE | LOSSES)


@dataclass(frozen=True)
class SampleConfig:
    """Neighbour sampling (Hamilton et al., 2017): which in-edges a layer keeps of each destination (``plan.drawn``).

    Attributes:
        fanouts: of each layer that aggregates, the first layer first, how many of each relation; -1: all; null: no sampling.
        every: when samples are drawn anew.
    """

    name: str = "neighbours"
    fanouts: list[int] | None = field(default=None, metadata=number(low=-1) | LOSSES)
    every: Literal["step", "epoch", "run"] = field(default="step", metadata=LOSSES | only_when("samples"))

    def __post_init__(self) -> None:
        if self.fanouts is not None and 0 in self.fanouts:
            raise ConfigError(
                "A layer that keeps no edge of any node aggregates nothing.",
                given=_listed(self.fanouts),
                allowed="whole numbers from 1, or -1 for all edges",
            )

    def check(self, layers: int, model: str) -> None:
        """There is a fan-out for each of the ``layers`` of a model that aggregate. Raises ``ConfigError``."""
        if self.fanouts is None or len(self.fanouts) == layers:
            return
        given = _listed(self.fanouts)
        if not layers:
            raise ConfigError(
                "This model reads no edges that could be sampled.",
                given=f"model={model} {given}",
                allowed="sample.fanouts=null",
            )
        fewer = (self.fanouts or [10])[:layers]
        meant = _listed([*fewer, *[fewer[-1]] * (layers - len(fewer))])
        raise ConfigError(
            "There must be a fan-out for each layer that aggregates, the first layer first.",
            given=f"{len(self.fanouts)}: {given}",
            allowed=f"{layers}, such as {meant}",
        )


@dataclass(frozen=True)
class PreloadConfig:
    """What a server holds of other servers' nodes (Song et al., 2023): nothing, or all that its own nodes depend on.

    Attributes:
        max_hop: how many hops from its own nodes; null: as many as the model has layers that aggregate.
        fanout: of each node's in-neighbours on other servers how many; null: all.
    """

    name: Literal["none", "shared", "auto"] = "none"
    max_hop: int | None = field(default=None, metadata=AT_LEAST_ONE | LOSSES | only_when("bounds_preload"))
    fanout: int | None = field(default=None, metadata=AT_LEAST_ONE | LOSSES | only_when("bounds_preload"))

    @property
    def bounded(self) -> bool:
        """Whether less may be preloaded than the model reads."""
        return self.max_hop is not None or self.fanout is not None

    def check(self, world: int, servers: int, no_preload: str | None = None) -> None:
        """It goes together with so many servers, and with the model. Raises ``ConfigError``.

        Args:
            no_preload: why servers cannot preload for the model.
        """
        if self.name == "shared" and no_preload is not None:
            raise ConfigError(no_preload, given="preload=shared", allowed="preload=none")
        if world % servers:
            allowed = [f"servers={n}" for n in range(1, world + 1) if world % n == 0]
            raise ConfigError(
                "All servers have the same number of workers.", given=f"world={world} servers={servers}", allowed=allowed
            )
        bounds = f"preload={self.name} preload.max_hop={self.max_hop} preload.fanout={self.fanout}".replace("None", "null")
        if self.bounded and self.name == "none":
            raise ConfigError("Nothing is preloaded that could be bounded.", given=bounds, hint="preload=shared")
        if self.bounded and self.name == "auto":
            raise ConfigError(
                "'preload=auto' chooses only what changes no loss, and bounds on what is preloaded change losses.",
                given=bounds,
                hint="preload=shared, or leave preload.max_hop and preload.fanout out",
            )
        if self.name == "shared" and servers == 1:
            raise ConfigError(
                "One server has all nodes: there is nothing to preload.",
                given=f"preload=shared world={world} servers=1",
                hint="servers=S, a divisor of world; or preload=none",
            )

    def check_full_evaluation(self, evaluation: str, *, limited: bool) -> None:
        """What may be beside evaluations of the full graph, which bounds bring. Raises ``ConfigError``.

        Args:
            evaluation: ``eval``.
        """
        reads = "Where servers preload less than the model reads, evaluations read the full graph"
        if evaluation != "full":
            raise ConfigError(f"{reads}.", given=f"eval={evaluation} preload.max_hop preload.fanout", allowed="eval=full")
        if limited:
            raise ConfigError(
                f"{reads} at once, which no budget holds back.",
                given="memory_budget preload.max_hop preload.fanout",
                hint="preload=shared without bounds, or no memory_budget",
            )


def _listed(fanouts: list[int]) -> str:
    """As a command line has them."""
    return f"sample.fanouts=[{','.join(map(str, fanouts))}]"


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written: ``every`` so many epochs, and after the last one; null: only when a signal asks for one.

    Attributes:
        keep: how many of the newest are kept, beside the one that validates best.
    """

    every: int | None = field(metadata=AT_LEAST_ONE)
    keep: int = field(metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class TrackingConfig:
    """Where figures are sent.

    Attributes:
        enabled: whether they are.
        uri: MLflow's store, null: sqlite in the working folder; or the address of a W&B server, null: W&B's own.
        experiment: MLflow's experiment, W&B's project.
        ranks: also the figures of each rank.
        name: what takes them, or ``FILE.py:NAME`` of a class that extends ``sargnn.tracking.tracker.Tracker``.
        offline: W&B's run is written into the run folder, for ``wandb sync``.
    """

    enabled: bool
    uri: str | None
    experiment: str
    ranks: bool = False
    name: str = field(default="mlflow", metadata=one_of(("mlflow", "tensorboard", "wandb")))
    offline: bool = False

    @property
    def to_mlflow(self) -> bool:
        """Whether figures go to MLflow."""
        return self.enabled and self.name == "mlflow"


@dataclass(frozen=True)
class BufferConfig:
    """How stores are made. ``buffer``: memory for what is read, sorted and cut at once, such as ``8GB``."""

    buffer: str = "8GB"

    @property
    def bytes(self) -> int:
        """Raises ``ConfigError`` for a text that is no size of at least 128 MB."""
        return read_size("prepare.buffer", self.buffer, "8GB")


@dataclass(frozen=True)
class MemoryConfig:
    """What a worker's whole resident memory may be.

    Attributes:
        size: such as ``6GB``; ``auto``: what is free on the machine, or left in its control group, over the workers there,
            settled when a run is launched; null: no limit.
        enforce: refuse what does not fit before it is launched, and train so that it does; else the size is only compared.
    """

    size: str | None = None
    enforce: bool = True

    @property
    def bytes(self) -> int | None:
        """None where there is no limit, or none yet. Raises ``ConfigError`` for a text that is no size."""
        return None if self.size is None or self.is_auto else read_size("memory_budget", self.size, "6GB")

    @property
    def is_auto(self) -> bool:
        """It is not settled yet."""
        return self.size == AUTO

    @property
    def limits(self) -> bool:
        """A run keeps to it, also where its size is not settled yet."""
        return self.enforce and self.size is not None


def read_size(key: str, text: str, example: str, least_mb: int = 128) -> int:
    """Bytes of a text such as ``500MB``. Raises ``ConfigError`` for what is no size of at least ``least_mb`` MB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), flags=re.IGNORECASE)
    size = float(match.group(1)) * 1000 ** " KMGT".index(match.group(2).upper() or " ") if match else 0.0
    if size < least_mb * 1e6:
        raise ConfigError(f"'{key}' is no size.", given=text, allowed=f"at least {least_mb}MB, such as 500MB or {example}")
    return int(size)
