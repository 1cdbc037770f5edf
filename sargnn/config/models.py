"""The settings of the package's models. Help and ``slurm`` read them, so nothing here needs torch.

What a model computes is in ``sargnn/models/NAME.py``; what differs for it from the classes here in ``conf/model/NAME.yaml``.
Fields with a default are younger than the first runs, whose files lack them.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sargnn.config.choices import ModelSettings
from sargnn.config.fields import (
    AT_LEAST_ONE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    RUN,
    check_plain,
    hashed_as,
    number,
    one_of,
    starts,
)
from sargnn.config.groups import Adjacency
from sargnn.errors import ConfigError, SargnnError
from sargnn.resolve import describe_source, load_attribute, resolve


@dataclass(frozen=True)
class StackSettings(ModelSettings, ABC):
    """What every stack of graph layers has; ``linear_residuals``: whether ``residual=linear`` is there.

    Attributes:
        hidden: width of the rows between layers.
        num_layers: hops that an output reads.
        norm: batch, layer or none.
        activation: relu or elu.
        residual: add a layer's input to its output, before the norm.
        dropout: between layers.
        input_dropout: of the first layer's input.
    """

    hidden: int = field(metadata=AT_LEAST_ONE | starts(256))
    num_layers: int = field(metadata=number(low=1, high=256) | starts(3))
    norm: Literal["batch", "layer", "none"] = field(metadata=starts("batch", links="none", edges="none"))
    activation: Literal["relu", "elu"] = field(metadata=starts("relu"))
    residual: bool | Literal["linear"] = field(metadata=starts(False))
    dropout: float = field(metadata=PROBABILITY | starts(0.5, links=0.0, edges=0.0))
    input_dropout: float = field(metadata=PROBABILITY | starts(0.0))

    linear_residuals: ClassVar[bool] = False

    @property
    def draws_by_id(self) -> bool:
        return bool(self.dropout or self.input_dropout)

    @property
    def has_embeddings(self) -> bool:
        return self.num_layers > 1

    @property
    def aggregations(self) -> int | None:
        return self.num_layers if self.target is None else None

    @property
    def norms_over_rows(self) -> bool:
        return self.norm == "batch"


@dataclass(frozen=True)
class TunedSettings(StackSettings, ABC):
    """A stack with what classic networks need for their best numbers (``sargnn/models/tuned.py``).

    Attributes:
        residual: add a layer's input to its output, before the norm; linear: a linear map of it, on every graph layer.
        pre_norm: norms come before the layers.
        input_linear: a linear map of the features comes first.
        head: the last layer: one of the graph, or linear: a map behind num_layers of them.
        jumping: what a linear head reads: last, or the rows of all layers by sum, max or cat (side by side).
        blocks: reversible: num_layers blocks of two graph layers each, of which no input is kept; full batches.
    """

    pre_norm: bool = field(default=False, kw_only=True)
    input_linear: bool = field(default=False, kw_only=True)
    head: Literal["graph", "linear"] = field(default="graph", kw_only=True)
    jumping: Literal["last", "sum", "max", "cat"] = field(default="last", kw_only=True)
    blocks: Literal["plain", "reversible"] = field(default="plain", kw_only=True)

    linear_residuals: ClassVar[bool] = True

    @property
    def is_plain(self) -> bool:
        """Whether nothing of this is chosen that a ``StackSettings`` has not."""
        return self.residual != "linear" and not self.pre_norm and not self.input_linear and self.head == "graph"

    @property
    def has_embeddings(self) -> bool:
        return self.num_layers > 1 or self.input_linear or self.head == "linear" or self.blocks == "reversible"

    @property
    def aggregations(self) -> int | None:
        layers = super().aggregations
        return 2 * layers if layers is not None and self.blocks == "reversible" else layers


class BuiltIn:
    """What most models of the package have in common; it comes before a class's other base.

    Attributes:
        builder: makes the model of settings and a ``GraphShape``, as "module:NAME"; importing it would load torch.
    """

    builder: ClassVar[str]

    @property
    def operations(self) -> tuple[str, ...]:
        return ("sum",)

    @property
    def no_weights(self) -> str | None:
        return None

    def build(self, shape: Any) -> Any:
        return load_attribute(self.builder)(self, shape)


class SymmetricSums(BuiltIn):
    """Models that sum by ``D^-1/2 (A + I) D^-1/2`` (``models/propagation.py``)."""

    adds_self_loops: ClassVar[bool] = True
    divides_by_weights = True


_OPERATIONS = {"mean": "sum", "max": "max", "sum": "sum", "pool": "max", "lstm": "sum"}
WEIGHTED_AGGREGATORS = ("mean", "sum")
"""Aggregators that use edge weights."""


@dataclass(frozen=True)
class SageSettings(BuiltIn, TunedSettings):
    """GraphSage (Hamilton et al., 2017).

    Attributes:
        aggregator: mean, max, sum, pool, lstm (mode=one_shot or domain_parallel), or FILE.py:NAME of a reducer.
    """

    aggregator: str = field(metadata=one_of(tuple(_OPERATIONS)) | starts("mean"))

    builder = "sargnn.models.sage:build"

    @property
    def operations(self) -> tuple[str, ...]:
        if self.aggregator in _OPERATIONS:
            return (_OPERATIONS[self.aggregator],)
        return (str(resolve("aggregator", _OPERATIONS, self.aggregator).operation),)

    @property
    def no_weights(self) -> str | None:
        if self.aggregator in WEIGHTED_AGGREGATORS:
            return None
        if self.aggregator in ("max", "pool"):
            return f"A maximum over neighbours, model.aggregator={self.aggregator}, has no place for edge weights."
        if self.aggregator == "lstm":
            return "A sequence of neighbours, model.aggregator=lstm, has no place for edge weights."
        return f"What a reducer from outside the package does, model.aggregator={self.aggregator}, knows no edge weights."

    @property
    def divides_by_weights(self) -> bool:
        return self.aggregator == "mean"

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or self.aggregator == "lstm"


@dataclass(frozen=True)
class AttentionSettings(StackSettings, ABC):
    """What stacks with attention have.

    Attributes:
        hidden: per head.
        heads: concatenated.
        out_heads: of the last layer, averaged.
        attn_dropout: of attention weights.
        negative_slope: of the scores' LeakyReLU.
        edge_features: scores read features of edges, where there are some, as PyG's layers do with edge_dim.
    """

    heads: int = field(kw_only=True, metadata=AT_LEAST_ONE | starts(4))
    out_heads: int = field(kw_only=True, metadata=AT_LEAST_ONE | starts(1))
    attn_dropout: float = field(kw_only=True, metadata=PROBABILITY | starts(0.0))
    negative_slope: float = field(kw_only=True, metadata=FRACTION | starts(0.2))
    edge_features: bool = field(default=True, kw_only=True)

    @property
    def reads_edge_features(self) -> bool:
        return self.edge_features

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or bool(self.attn_dropout)


@dataclass(frozen=True)
class GatSettings(BuiltIn, AttentionSettings, TunedSettings):
    """GAT (Velickovic et al., 2018), or GATv2 (Brody et al., 2022).

    Attributes:
        v2: score as GATv2 does.
        linear_residual: every layer, the last too, adds a linear map of its own input.
        attn_dst: scores have a part of the destination; GAT only.
        symmetric_norm: rows over the root of their out-degree, outputs times that of their in-degree; GAT only.
        edge_dropout: of edges, which then take no part in the softmax.
        init: of maps: Glorot's normal with ReLU's gain, as DGL's layers; uniform: without it, as PyG's; for deep networks.
    """

    v2: bool = field(metadata=starts(False))
    linear_residual: bool = False
    attn_dst: bool = True
    symmetric_norm: bool = False
    edge_dropout: float = field(default=0.0, metadata=PROBABILITY)
    init: Literal["normal", "uniform"] = "normal"

    builder = "sargnn.models.gat:build"
    adds_self_loops: ClassVar[bool] = True

    @property
    def operations(self) -> tuple[str, ...]:
        return ("gatv2" if self.v2 else "gat",)

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or bool(self.edge_dropout)


@dataclass(frozen=True)
class GcnSettings(SymmetricSums, TunedSettings):
    """GCN (Kipf and Welling, 2017)."""

    builder = "sargnn.models.gcn:build"


@dataclass(frozen=True)
class GinSettings(BuiltIn, TunedSettings):
    """GIN (Xu et al., 2019). A layer's perceptron has the stack's norm and activation and is ``hidden`` wide inside.

    Attributes:
        eps: a node's own row counts 1 + eps times.
        learn_eps: learn one eps per layer, from there.
        mlp_layers: linear maps of a layer's perceptron, with norm and activation between them.
        edge_features: read features of edges, where there are some: GINE (Hu et al., 2020).
    """

    eps: float = field(metadata=starts(0.0))
    learn_eps: bool = field(metadata=starts(False))
    mlp_layers: int = field(metadata=number(low=1, high=256) | starts(2))
    edge_features: bool = True
    norm: Literal["batch", "layer", "none"] = field(metadata=starts("batch", links="layer", edges="layer"))

    builder = "sargnn.models.gin:build"

    @property
    def reads_edge_features(self) -> bool:
        return self.edge_features


@dataclass(frozen=True)
class SgcSettings(SymmetricSums, ModelSettings):
    """SGC (Wu et al., 2019). Its embeddings are the rows that its linear map reads, S^K X.

    Attributes:
        steps: K; constant features are propagated once, in the first epoch.
        input_dropout: of the features; above 0 they are propagated in every epoch.
    """

    steps: int = field(metadata=number(low=1, high=256) | starts(2))
    input_dropout: float = field(metadata=PROBABILITY | starts(0.0))

    builder = "sargnn.models.sgc:SgcModel"
    has_embeddings = True

    @property
    def draws_by_id(self) -> bool:
        return bool(self.input_dropout)

    @property
    def aggregations(self) -> int:
        return self.steps


@dataclass(frozen=True)
class AppnpSettings(SymmetricSums, StackSettings):
    """APPNP (Gasteiger et al., 2019): a perceptron, which the settings of a stack describe, and propagation of its outputs.

    Its embeddings are the rows that the perceptron's last layer reads, propagated.

    Attributes:
        num_layers: of the perceptron.
        steps: K; memory does not grow with it.
        alpha: teleport probability: how much of its own prediction a row takes in a step.
        edge_dropout: of the adjacency's entries, another draw in each step.
    """

    steps: int = field(metadata=number(low=1, high=256) | starts(10))
    alpha: float = field(metadata=FRACTION | starts(0.1))
    edge_dropout: float = field(metadata=PROBABILITY | starts(0.0))

    builder = "sargnn.models.sgc:AppnpModel"
    has_embeddings = True

    @property
    def draws_by_id(self) -> bool:
        return super().draws_by_id or bool(self.edge_dropout)

    @property
    def aggregations(self) -> int:
        return self.steps


@dataclass(frozen=True)
class GcniiSettings(SymmetricSums, StackSettings):
    """GCNII (Chen et al., 2020).

    Attributes:
        num_layers: convolutions, between two linear maps; each keeps two tables [nodes, hidden].
        alpha: how much of the first rows each convolution takes.
        theta: lambda: layer l maps by (1 - b) I + b W, b = log(theta / l + 1).
    """

    num_layers: int = field(metadata=number(low=1, high=255) | starts(8))
    alpha: float = field(metadata=FRACTION | starts(0.1))
    theta: float = field(metadata=POSITIVE | starts(0.5))

    builder = "sargnn.models.gcn:build_gcnii"
    has_embeddings = True


@dataclass(frozen=True)
class ResGcnSettings(BuiltIn, StackSettings):
    """ResGCN+ (Li et al., 2020): pre-activation blocks between two linear maps.

    Attributes:
        num_layers: blocks of norm, ReLU, dropout and graph layer, added to their input; each keeps one table [nodes, hidden].
        conv: the graph layer: gcn or sage.
    """

    num_layers: int = field(metadata=number(low=1, high=253) | starts(28))
    conv: Literal["gcn", "sage"] = field(metadata=starts("sage"))

    builder = "sargnn.models.gcn:build_resgcn"
    divides_by_weights = True
    has_embeddings = True

    @property
    def adds_self_loops(self) -> bool:  # type: ignore[override]
        return self.conv == "gcn"


@dataclass(frozen=True)
class RgcnSettings(BuiltIn, StackSettings):
    """R-GCN (Schlichtkrull et al., 2018).

    Attributes:
        norm: batch, layer or none; per node type.
        bases: of the relations' weights; null: a full weight for each relation.
        order: transform_first, aggregate_first, or auto: what keeps less for backward.
        embedding: width of learnable rows for types without features; null: that of the features.
    """

    bases: int | None = field(metadata=AT_LEAST_ONE | starts(None))
    order: Literal["auto", "transform_first", "aggregate_first"] = field(metadata=RUN | hashed_as("auto") | starts("auto"))
    embedding: int | None = field(metadata=AT_LEAST_ONE | starts(None))

    builder = "sargnn.models.rgcn:build"
    divides_by_weights = True


@dataclass(frozen=True)
class RgatSettings(BuiltIn, AttentionSettings):
    """RGAT: GAT's attention in each relation of a typed graph.

    Attributes:
        norm: batch, layer or none; per node type.
        embedding: width of learnable rows for types without features; null: that of the features.
    """

    embedding: int | None = field(metadata=AT_LEAST_ONE | starts(None))

    builder = "sargnn.models.rgat:build"
    operations = ("gat",)


@dataclass(frozen=True)
class MlpSettings(BuiltIn, StackSettings):
    """A multi-layer perceptron, or with one layer a linear classifier. It reads no edges."""

    builder = "sargnn.models.stack:build_mlp"
    aggregations = 0
    operations = ()


@dataclass(frozen=True)
class RowsSettings(BuiltIn, ModelSettings):
    """A row for each node, which is learned, and nothing else: what decoders of knowledge graphs are usually trained with.

    Attributes:
        hidden: numbers in a row.
    """

    hidden: int = field(metadata=AT_LEAST_ONE | starts(256))

    builder = "sargnn.models.stack:build_rows"
    aggregations = 0
    operations = ()
    draws_by_id = True


@dataclass(frozen=True)
class LabelPropagationSettings(BuiltIn, ModelSettings):
    """Label propagation: nothing is trained (``engine/propagate.py`` has the equation).

    Attributes:
        adjacency: dad: D^-1/2 A D^-1/2, da: D^-1 A, ad: A D^-1.
        alpha: how much comes from the neighbours in a step.
        steps: each goes one hop further.
    """

    adjacency: Adjacency = field(metadata=starts("dad"))
    alpha: float = field(metadata=FRACTION | starts(0.9))
    steps: int = field(metadata=NOT_NEGATIVE | starts(50))

    builder = "sargnn.models.label_propagation:build"
    divides_by_weights = True
    no_preload = "Label propagation reads rows as many hops away as it takes steps, in one layer."
    trains: ClassVar[bool] = False


@dataclass(frozen=True)
class CustomSettings(BuiltIn, ModelSettings):
    """A ``torch.nn.Module`` with ``forward(graph, x)``, built with ``args`` and, by their names, what the data decide.

    ``target`` is ``FILE.py:CLASS`` or ``package.module:Class``; a function that returns a module does as well.

    Attributes:
        args: arguments that the data do not decide: model.args.KEY=VALUE.
        content: hash of that file, which the run keeps; null: as the file is now.
        embedding: typed: width of learnable rows for types without features, or {TYPE: width}; null: that of the features.
    """

    args: dict[str, Any] = field(default_factory=dict, metadata=starts({}))
    content: str | None = None
    embedding: int | dict[str, int] | None = field(default=None, metadata=AT_LEAST_ONE)

    builder = "sargnn.models.custom:CustomModel"
    draws_by_id = True
    norms_over_rows = True
    reads_degrees = True
    reads_edge_features = True
    no_preload = "What a module of your own asks about all rows counts each of them once, and servers that preload have copies."
    reads_target: ClassVar[str] = "a torch.nn.Module"
    no_embeddings: ClassVar[str] = "A module of your own does not say which of its rows the last layer reads."

    def __post_init__(self) -> None:
        for name, value in self.args.items():
            check_plain(value, f"model.args.{name}")
        if self.content is None and self.target is not None:
            object.__setattr__(self, "content", self._content_now())

    def _content_now(self) -> str | None:
        """What ``content`` is of the file as it is now, or as it was when this process loaded it; None: it cannot be found."""
        try:
            return describe_source(str(self.target)).rpartition(" ")[2]
        except SargnnError:
            raise
        except Exception:  # to find a module its package is imported, whatever that does; loading it says what is wrong
            return None

    @property
    def title(self) -> str:
        return f"{self.name}-{self.target.rpartition(':')[2]}" if self.target else self.name

    def check_target(self) -> None:
        load_attribute("sargnn.models.custom:find_module")(self)
        if self.content != self._content_now():
            raise ConfigError(
                "The file of 'model.target' has changed since the run was made.",
                given=self.target,
                hint="undo the change, or train anew, without model.content",
            )
