"""Groups of a run's settings that know nothing of each other: how it optimises, exchanges, checkpoints, and what it adds;
how pairs of nodes are scored, trained and ranked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sargnn.config.fields import (
    AT_LEAST_ONE,
    FRACTION,
    FREE,
    LOSSES,
    MUST_BE_GIVEN,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    RUN,
    TARGET,
    number,
    one_of,
    only_when,
    only_with,
    starts,
)
from sargnn.errors import ConfigError

AUTO = "auto"
Adjacency = Literal["dad", "da", "ad"]
"""D^-1/2 A D^-1/2, D^-1 A or A D^-1."""
DECODERS = ("dot", "cosine", "mlp", "bilinear", "distmult", "complex", "transe", "rotate")
EDGE_DECODERS = ("concat", "product")
LinkMetric = Literal["auc", "ap", "mrr", "hits@K"]
LINK_METRICS: tuple[LinkMetric, ...] = get_args(LinkMetric)
Corrupt = Literal["tail", "head", "both", "ends"]
Ranked = Literal["both", "tail", "head"]


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer, its learning rate over the epochs, and what is minimised.

    Attributes:
        lr: learning rate.
        weight_decay: times a parameter, added to its gradient; adamw: times the rate, the share of it that goes in a step.
        schedule: constant, cosine (to 0) or step.
        warmup: epochs of linear growth before that.
        step_every: epochs; step: the rate times step_factor so often.
        step_factor: step: what the rate is multiplied by.
        clip: largest norm of all gradients together.
        label_smoothing: in the training loss.
        weight_decay_of: a decay of its own for a group of parameters, weight_decay_of.first=5e-4: docs/howto/choose-a-model.md.
        lr_of: a learning rate of its own for a group of parameters, lr_of.first=1e-3; the schedule changes it likewise.
        average: evaluate the parameters' exponential average, such as 0.99, the share of itself that it keeps in a step.
        class_weights: of each class in the training loss, such as [1,5]; balanced: training nodes / (classes x those of the
            class).
        target: FILE.py:CLASS, or such as torch.optim:SGD.
        args: its further arguments, args.momentum=0.9.
        loss: a loss of your own, FILE.py:NAME or torch.nn.functional:NAME: docs/howto/best-accuracy.md.
    """

    name: Literal["adam", "adamw", "custom"]
    lr: float = field(metadata=POSITIVE | starts(0.01, links=0.002, edges=0.002, queries=0.002))
    weight_decay: float = field(metadata=NOT_NEGATIVE | starts(0.0))
    schedule: Literal["constant", "cosine", "step"] = field(metadata=starts("constant"))
    warmup: int = field(default=0, metadata=NOT_NEGATIVE | starts(0, links=10, edges=10))
    step_every: int = field(default=30, metadata=AT_LEAST_ONE)
    step_factor: float = field(default=0.5, metadata=number(low=0, high=1, open_low=True))
    clip: float | None = field(default=None, metadata=POSITIVE)
    label_smoothing: float = field(default=0.0, metadata=PROBABILITY)
    weight_decay_of: dict[str, float] | None = field(default=None, metadata=NOT_NEGATIVE)
    lr_of: dict[str, float] | None = field(default=None, metadata=POSITIVE)
    average: float | None = field(default=None, metadata=PROBABILITY)
    class_weights: list[float] | Literal["balanced"] | None = field(default=None, metadata=NOT_NEGATIVE)
    target: str | None = field(default=None, metadata=TARGET | starts(MUST_BE_GIVEN) | only_with("custom"))
    args: dict[str, Any] | None = field(default=None, metadata=only_with("custom"))
    loss: str | None = field(default=None, metadata=TARGET)

    @property
    def depends_on_epochs(self) -> bool:
        """Whether an epoch's learning rate depends on how many epochs there are in all."""
        return self.schedule == "cosine"

    @property
    def tables(self) -> int:
        """How many tables of its size an evaluation finds beside each parameter: its gradient, two of the optimizer as Adam
        has them, its average."""
        return 3 if self.average is None else 4

    @property
    def lasting(self) -> int:
        """Of those, how many lie in a file with ``spill`` where they are large: not the gradient, nor what another optimizer
        keeps."""
        return self.tables - (3 if self.name == "custom" else 1)


@dataclass(frozen=True)
class LabelsConfig:
    """Labels of training nodes as further input (``tasks/labels.py``).

    Attributes:
        rate: of training nodes that carry their label in an epoch; at evaluation all do.
        reuse: times that predicted labels are fed back to the nodes that carry none.
    """

    name: Literal["none", "masked"] = "none"
    rate: float = field(default=0.5, metadata=PROBABILITY)
    reuse: int = field(default=0, metadata=NOT_NEGATIVE)


_CS = only_with("cs")


@dataclass(frozen=True)
class SmoothConfig:
    """What is done to the predictions after training: nothing, or Correct & Smooth (``tasks/correct_smooth.py``).

    Attributes:
        autoscale: size the spread errors as the known ones are; false: scale times them.
        scale: with autoscale=false: what the spread errors are multiplied by.
        correct_adjacency: dad: D^-1/2 A D^-1/2, da: D^-1 A, ad: A D^-1.
        correct_alpha: how much comes from the neighbours in a step.
        correct_steps: of the correction.
        smooth_adjacency: as correct_adjacency, of the smoothing.
        smooth_alpha: as correct_alpha, of the smoothing.
        smooth_steps: of the smoothing.
    """

    name: Literal["none", "cs"] = "none"
    autoscale: bool = field(default=True, metadata=_CS)
    scale: float = field(default=1.0, metadata=NOT_NEGATIVE | _CS)
    correct_adjacency: Adjacency = field(default="dad", metadata=_CS)
    correct_alpha: float = field(default=0.8, metadata=FRACTION | _CS)
    correct_steps: int = field(default=50, metadata=NOT_NEGATIVE | _CS)
    smooth_adjacency: Adjacency = field(default="dad", metadata=_CS)
    smooth_alpha: float = field(default=0.8, metadata=FRACTION | _CS)
    smooth_steps: int = field(default=50, metadata=NOT_NEGATIVE | _CS)


Precision = Literal["fp32", "fp64", "bf16", "mixed"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
GONE_PRECISIONS = {name: "fp32, or mixed" for name in ("bf16x3", "bf16x6")}
"""Those of earlier versions, which products of bf16 terms were for, and what to use instead."""


@dataclass(frozen=True)
class CommConfig:
    """How workers exchange rows.

    Attributes:
        backend: what carries rows; mpi where PyTorch was built with it and mpirun starts workers; nccl: GPU to GPU, not run
            yet.
        prefetch_depth: rounds of the exchange posted ahead.
        timeout_s: a peer that does not answer for so long is lost.
        message_rows: most rows in one message; more: faster sums, more memory; null: 3/8 of a worker's average rows.
        max_restarts: after a failure start again from the newest checkpoint, so many times.
        interface: network interface, such as eth0; null: loopback in a local run, else gloo's choice.
        port: where workers meet; null: a free one.
        wire: bf16: rows and their gradients are rounded on their way, half the bytes; changes the losses.
        aggregate: post: rows travel; pre: partial results; least: fewer bytes; fastest: less time; null: post on one machine,
            else fastest.
        rate: bytes a second between workers, for fastest; ``benchmarks.network`` measures it; null: 1.25GB.
    """

    backend: Literal["gloo", "mpi", "nccl"] = field(metadata=starts("gloo"))
    prefetch_depth: int = field(metadata=NOT_NEGATIVE | starts(1))
    timeout_s: float = field(metadata=POSITIVE | starts(300.0))
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


@dataclass(frozen=True)
class EngineConfig:
    """Choices of the engine that change no loss (``engine.segments`` for ``keep_layers``).

    Attributes:
        cache_static: aggregate constant features once (never in domain_parallel), or false.
        keep_layers: whose inputs survive until backward: all; sqrt: about the square root of all layers; or a number of them.
        column_groups: aggregate in so many groups of columns or heads; null: as few as memory_budget with spill has room for.
        edge_rows: features of edges in memory, or mapped from the store; auto: in memory where memory_budget has 8 times the
            room.
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
        steps: optimizer steps an epoch, each on its share of the training nodes, shuffled in every epoch.
        count: groups of each worker's training nodes; auto: as few as fit memory_budget.
        by: star, reg, metis, random, range, or FILE.py:NAME of a function that groups them.
        flows: where the graphs of the groups that are not computed at the moment are: disk or memory.
    """

    name: str = "micro"
    count: Literal["auto"] | int = field(default=1, metadata=AT_LEAST_ONE | LOSSES | only_when("norms_over_batches"))
    by: str = field(
        default="star",
        metadata=one_of("sargnn.plan:GROUPINGS") | LOSSES | only_when("norms_over_batches"),
    )
    flows: Literal["disk", "memory"] = field(default="disk", metadata=FREE)
    steps: int = field(default=1, metadata=AT_LEAST_ONE | LOSSES)


@dataclass(frozen=True)
class SampleConfig:
    """Neighbour sampling (Hamilton et al., 2017): which in-edges a layer keeps of each destination (``plan.drawn``).

    Attributes:
        fanouts: one for each layer that aggregates, the first layer first: [10,10,5]; -1 keeps all edges; null: no sampling.
        every: when samples are drawn anew: step, epoch or run.
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
        max_hop: preload=shared: only nodes so many hops away (paper: 1); null: all hops of the model, which is exact.
        fanout: preload=shared: of each node's in-neighbours on other servers only so many (paper: 15); null: all, as is exact.
    """

    name: Literal["none", "shared", "auto"] = "none"
    max_hop: int | None = field(default=None, metadata=AT_LEAST_ONE | LOSSES | only_when("bounds_preload"))
    fanout: int | None = field(default=None, metadata=AT_LEAST_ONE | LOSSES | only_when("bounds_preload"))

    @property
    def bounded(self) -> bool:
        """Whether less may be preloaded than the model reads."""
        return self.max_hop is not None or self.fanout is not None


def _listed(fanouts: list[int]) -> str:
    """As a command line has them."""
    return f"sample.fanouts=[{','.join(map(str, fanouts))}]"


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written.

    Attributes:
        every: epochs, and after the last one; null: only when a signal asks for one.
        keep: the newest, beside the best one.
    """

    every: int | None = field(metadata=AT_LEAST_ONE | starts(20))
    keep: int = field(metadata=AT_LEAST_ONE | starts(2))


@dataclass(frozen=True)
class TrackingConfig:
    """Where figures are sent.

    Attributes:
        enabled: send figures.
        uri: MLflow's store, null: sqlite in the working folder; W&B's server, null: W&B's own.
        experiment: MLflow's experiment, W&B's project, which holds the runs.
        ranks: also the figures of each rank.
        name: mlflow, tensorboard, wandb, or FILE.py:NAME of a class that extends ``sargnn.tracking.tracker.Tracker``.
        offline: W&B: into the run folder, for wandb sync.
    """

    enabled: bool = field(metadata=starts(True))
    uri: str | None = field(metadata=starts(None))
    experiment: str = field(metadata=starts("sargnn"))
    ranks: bool = False
    name: str = field(default="mlflow", metadata=one_of(("mlflow", "tensorboard", "wandb")))
    offline: bool = False

    @property
    def to_mlflow(self) -> bool:
        """Whether figures go to MLflow."""
        return self.enabled and self.name == "mlflow"


@dataclass(frozen=True)
class BufferConfig:
    """How stores are made.

    Attributes:
        buffer: memory for raw files being read and sorted.
    """

    buffer: str = "8GB"

    @property
    def bytes(self) -> int:
        """Raises ``ConfigError`` for a text that is no size of at least 128 MB."""
        return read_size("prepare.buffer", self.buffer, "8GB")


@dataclass(frozen=True)
class MemoryConfig:
    """What a worker's whole resident memory may be.

    Attributes:
        size: of each worker's whole resident memory, such as 6GB; auto: what is free, shared out; null: no limit.
        enforce: false: launch also what is planned to need more.
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


@dataclass(frozen=True)
class LinksConfig:
    """How links are predicted from the embeddings that the model gives.

    Attributes:
        decoder: dot, cosine, mlp, bilinear, distmult, complex, transe, rotate, or FILE.py:CLASS of a module.
        embedding_dim: the model's outputs; null: as many as model.hidden.
        mlp_hidden: of the decoder mlp; null: as wide as an embedding.
        temperature: scores are divided by it; null: by what makes the first step's 1/4, as root of their mean square.
        loss: bce, softmax (of a pair among its negatives) or margin.
        margin: of that loss.
        negatives: drawn for each pair in every step; 0: none, of task=queries all nodes that are no known answer.
        corrupt: which end of a negative is drawn: tail, head, one of both, or both ends.
        shared: all pairs of a step have the same negatives.
        degree_power: draw nodes in proportion to their degree to this power; 0: uniformly.
        strict: leave known links out.
        rank: which end of a pair is ranked among all nodes, or asked for: both, tail or head.
        queries: task=queries: that a step asks at most, in batches.count micro-batches.
    """

    decoder: str = field(default="dot", metadata=one_of(DECODERS))
    embedding_dim: int | None = field(default=None, metadata=AT_LEAST_ONE)
    mlp_hidden: int | None = field(default=None, metadata=AT_LEAST_ONE)
    temperature: float | None = field(default=1.0, metadata=POSITIVE | starts(1.0, links=None))
    loss: Literal["bce", "softmax", "margin"] = field(default="bce", metadata=starts("bce", queries="softmax"))
    margin: float = field(default=1.0, metadata=POSITIVE)
    negatives: int = field(default=1, metadata=NOT_NEGATIVE | starts(1, queries=0))
    corrupt: Corrupt = "tail"
    shared: bool = False
    degree_power: float = field(default=0.0, metadata=NOT_NEGATIVE)
    strict: bool = field(default=False, metadata=starts(False, queries=True))
    rank: Ranked = field(default="both", metadata=RUN)
    queries: int = field(default=64, metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class EdgesConfig:
    """How labels of edges are predicted from the embeddings that the model gives.

    Attributes:
        decoder: concat (rows of both ends), product (of both, the same both ways), or FILE.py:CLASS of a module.
        embedding_dim: the model's outputs; null: as many as model.hidden.
        mlp_hidden: of the decoder; null: as wide as an embedding.
        features: the decoder reads the edge's own features, too.
        divisor: what the decoder reads of rows is divided by it; null: by the root of its mean square in the first step.
    """

    decoder: str = field(default="concat", metadata=one_of(EDGE_DECODERS))
    embedding_dim: int | None = field(default=None, metadata=AT_LEAST_ONE)
    mlp_hidden: int | None = field(default=None, metadata=AT_LEAST_ONE)
    features: bool = True
    divisor: float | None = field(default=1.0, metadata=POSITIVE | starts(1.0, edges=None))
