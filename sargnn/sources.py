"""Configurations of datasets: where a graph comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sargnn.fields import AT_LEAST_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, number


@dataclass(frozen=True)
class SyntheticConfig:
    """The embedded graph: a degree-corrected stochastic block model (``data/synthetic.py`` gives the distribution)."""

    name: Literal["synthetic"]
    num_nodes: int = field(metadata=AT_LEAST_ONE)
    mean_degree: float = field(metadata=POSITIVE)
    num_features: int = field(metadata=AT_LEAST_ONE)
    num_classes: int = field(metadata=number(low=2))
    blocks_per_class: int = field(metadata=AT_LEAST_ONE)
    homophily: float = field(metadata=FRACTION)
    power: float = field(metadata=number(low=1, open_low=True))
    label_noise: float = field(metadata=FRACTION)
    feature_signal: float = field(metadata=NOT_NEGATIVE)
    train_fraction: float = field(metadata=FRACTION)
    val_fraction: float = field(metadata=FRACTION)
    seed: int = field(metadata=NOT_NEGATIVE)
    normalize_features: bool
    add_self_loops: bool | None


@dataclass(frozen=True)
class LookalikeConfig:
    """A stand-in for a real graph (``data/lookalike.py``); scale 1.0 has the real graph's nodes and edges."""

    name: Literal["products_like", "papers_like"]
    scale: float = field(metadata=number(low=0, high=10, open_low=True))
    seed: int = field(metadata=number(low=0, high=2**32 - 1))
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
    scale: float = field(metadata=number(low=0, high=10, open_low=True))
    seed: int = field(metadata=NOT_NEGATIVE)
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


OGB_NAMES = ("ogbn-products", "ogbn-arxiv", "ogbn-papers100M", "ogbn-mag")


@dataclass(frozen=True)
class OgbConfig:
    """One of OGB's datasets by its name, from its official raw files.

    Attributes:
        root: the folder that holds the dataset's folder, or that folder itself.
        download: fetch what is missing.
        add_inverse_edges, homogenize: as in ``OgbDirConfig``.
    """

    name: Literal["ogbn-products", "ogbn-arxiv", "ogbn-papers100M", "ogbn-mag"]
    root: str
    download: bool
    add_inverse_edges: bool
    normalize_features: bool
    add_self_loops: bool | None
    homogenize: bool = False


DatasetConfig = SyntheticConfig | LookalikeConfig | MagLikeConfig | OgbDirConfig | OgbConfig
