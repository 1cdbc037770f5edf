"""A dataset looked over before training: nodes, edges, labels, features and sizes, in numbers. ``remarks`` says what they mean.

Letters: N nodes, E directed edges, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.graph.dataset import Dataset
from sargnn.graph.examine.edges import EdgeFindings, Homophily, NodeFindings, examine_edges
from sargnn.graph.examine.labels import LabelFindings, examine_labels
from sargnn.graph.weights import weight_range
from sargnn.steps import step

HIDDEN = 256
"""Of the layer whose size is told."""
_LARGEST_PIECE_BYTES = 1 << 26
_PIECE = 1 << 22


@dataclass(frozen=True)
class FeatureFindings:
    """The features of a type's nodes.

    Attributes:
        width: F. constant: columns that are the same for all nodes, numbered from 0. zero_rows: nodes with nothing but zeros.
        largest: number in size. smallest_column, largest_column: by the largest number in size that each column holds, with
            that number; columns of zeros left out, None where there are no others.
    """

    width: int
    constant: list[int]
    zero_rows: int
    largest: float
    smallest_column: tuple[int, float] | None
    largest_column: tuple[int, float] | None


@dataclass(frozen=True)
class WeightFindings:
    """Edge weights. ``smallest``, ``largest``; ``zeros``, ``negative``: how many edges have such a one."""

    smallest: float
    largest: float
    zeros: int
    negative: int


@dataclass(frozen=True)
class Sizes:
    """In bytes: features, edges, the store on disk, and one layer of ``HIDDEN`` outputs for all nodes in fp32."""

    features_bytes: int
    edges_bytes: int
    store_bytes: int
    hidden_bytes: int


@dataclass(frozen=True)
class Findings:
    """What there is to know of a dataset; nodes and features by type, edges by relation."""

    name: str
    nodes: dict[str, NodeFindings]
    edges: list[EdgeFindings]
    homophily: Homophily | None
    labels: LabelFindings
    features: dict[str, FeatureFindings]
    sizes: Sizes
    weights: WeightFindings | None = None

    @property
    def typed(self) -> bool:
        """Whether there is more than one type or relation."""
        return len(self.nodes) > 1 or len(self.edges) > 1


def examine(dataset: Dataset, store: Path, buffer_bytes: int) -> Findings:
    """Look a dataset over.

    Args:
        dataset: in range, as ``open_dataset(verify=True)`` gives it. store: its folder.
        buffer_bytes: about how much memory this may take, beside a few numbers per node.
    """
    nodes, edges, homophily = examine_edges(dataset, buffer_bytes)
    piece = min(buffer_bytes // 16, _LARGEST_PIECE_BYTES)
    names = dataset.schema.node_types
    graph = [dataset.indptr, dataset.indices, *([] if dataset.relation is None else [dataset.relation])]
    return Findings(
        name=dataset.name,
        nodes=nodes,
        edges=edges,
        homophily=homophily,
        labels=examine_labels(dataset),
        features={name: examine_features(rows, piece) for name, rows in zip(names, dataset.features, strict=True)},
        sizes=Sizes(
            features_bytes=sum(rows.nbytes for rows in dataset.features),
            edges_bytes=sum(array.nbytes for array in graph) + dataset.num_edges * dataset.columns.edge_bytes,
            store_bytes=sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
            hidden_bytes=dataset.num_nodes * HIDDEN * 4,
        ),
        weights=_examine_weights(dataset),
    )


def _examine_weights(dataset: Dataset) -> WeightFindings | None:
    weights, extremes = dataset.columns.weight, weight_range(dataset)
    if weights is None or extremes is None:
        return None
    zeros = negative = 0
    for first in range(0, len(weights), _PIECE):
        piece = np.asarray(weights[first : first + _PIECE])
        zeros, negative = zeros + int((piece == 0).sum()), negative + int((piece < 0).sum())
    return WeightFindings(*extremes, zeros, negative)


def examine_features(features: np.ndarray, piece_bytes: int) -> FeatureFindings:
    """Look at float32 [N, F], which may be mapped, in pieces."""
    count, width = features.shape
    if not features.size:
        return FeatureFindings(width, [], 0, 0.0, None, None)
    low, high, zero_rows = np.full(width, np.inf), np.full(width, -np.inf), 0
    size = max(1, piece_bytes // (4 * width))
    for first in range(0, count, size):
        step("looking at features", first, count)
        rows = np.asarray(features[first : first + size])
        np.minimum(low, rows.min(0), out=low)
        np.maximum(high, rows.max(0), out=high)
        zero_rows += int((~rows.any(1)).sum())
    scale = np.maximum(np.abs(low), np.abs(high))
    used = np.flatnonzero(scale)
    small, large = (int(used[pick(scale[used])]) if len(used) else None for pick in (np.argmin, np.argmax))
    return FeatureFindings(
        width=width,
        constant=np.flatnonzero(low == high).tolist(),
        zero_rows=zero_rows,
        largest=float(scale.max()),
        smallest_column=None if small is None else (small, float(scale[small])),
        largest_column=None if large is None else (large, float(scale[large])),
    )
