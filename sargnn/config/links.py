"""Settings of ``task=links`` and ``task=edges``: how pairs of nodes are scored, trained and ranked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from sargnn.config.fields import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, RUN, one_of, starts

DECODERS = ("dot", "cosine", "mlp", "bilinear", "distmult", "complex")
EDGE_DECODERS = ("concat", "product")
LinkMetric = Literal["auc", "ap", "mrr", "hits@1", "hits@3", "hits@10", "hits@20", "hits@50", "hits@100"]
LINK_METRICS: tuple[LinkMetric, ...] = get_args(LinkMetric)
Corrupt = Literal["tail", "head", "both", "ends"]
Ranked = Literal["both", "tail", "head"]


@dataclass(frozen=True)
class LinksConfig:
    """How links are predicted from the embeddings that the model gives.

    Attributes:
        decoder: dot, cosine, mlp, bilinear, distmult, complex, or FILE.py:CLASS of a module.
        embedding_dim: the model's outputs; null: as many as model.hidden.
        mlp_hidden: of the decoder mlp; null: as wide as an embedding.
        temperature: scores are divided by it; null: by what makes the first step's 1/4, as root of their mean square.
        loss: bce, softmax (of a pair among its negatives) or margin.
        margin: of that loss.
        negatives: drawn for each pair in every step.
        corrupt: which end of a negative is drawn: tail, head, one of both, or both ends.
        shared: all pairs of a step have the same negatives.
        degree_power: draw nodes in proportion to their degree to this power; 0: uniformly.
        strict: leave known links out.
        rank: which end of a pair is ranked among all nodes: both, tail or head.
    """

    decoder: str = field(default="dot", metadata=one_of(DECODERS))
    embedding_dim: int | None = field(default=None, metadata=AT_LEAST_ONE)
    mlp_hidden: int | None = field(default=None, metadata=AT_LEAST_ONE)
    temperature: float | None = field(default=1.0, metadata=POSITIVE | starts(1.0, links=None))
    loss: Literal["bce", "softmax", "margin"] = "bce"
    margin: float = field(default=1.0, metadata=POSITIVE)
    negatives: int = field(default=1, metadata=AT_LEAST_ONE)
    corrupt: Corrupt = "tail"
    shared: bool = False
    degree_power: float = field(default=0.0, metadata=NOT_NEGATIVE)
    strict: bool = False
    rank: Ranked = field(default="both", metadata=RUN)


@dataclass(frozen=True)
class EdgesConfig:
    """How labels of edges are predicted from the embeddings that the model gives.

    Attributes:
        decoder: concat (rows of both ends), product (of both, the same both ways), or FILE.py:CLASS of a module.
        embedding_dim: the model's outputs; null: as many as model.hidden.
        mlp_hidden: of the decoder; null: as wide as an embedding.
        features: the decoder reads the edge's own features, too.
        scale: what the decoder reads of rows is divided by it; null: by the root of its mean square in the first step.
    """

    decoder: str = field(default="concat", metadata=one_of(EDGE_DECODERS))
    embedding_dim: int | None = field(default=None, metadata=AT_LEAST_ONE)
    mlp_hidden: int | None = field(default=None, metadata=AT_LEAST_ONE)
    features: bool = True
    scale: float | None = field(default=1.0, metadata=POSITIVE | starts(1.0, edges=None))
