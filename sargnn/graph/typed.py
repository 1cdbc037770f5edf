"""Typed graphs put together from their relations, their inverse relations, and their homogeneous form.

Letters: N nodes, E directed edges, F features, T node types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy import sparse

from sargnn.errors import DataError
from sargnn.graph.check import check_widths, index_dtype
from sargnn.graph.dataset import Dataset, destination_order
from sargnn.graph.edge_columns import ATTR, NO_COLUMNS, EdgeColumns, EdgePiece, join
from sargnn.graph.origin import Ids
from sargnn.graph.schema import MAX_RELATIONS, UNLABELLED, Relation, Schema, relation_dtype


@dataclass(frozen=True)
class Edges:
    """One relation's edges: integers [E of the relation], numbers within their types, and what they carry."""

    relation: Relation
    sources: np.ndarray
    destinations: np.ndarray
    columns: EdgeColumns = NO_COLUMNS

    @classmethod
    def of_pieces(
        cls, relation: Relation, pieces: Sequence[EdgePiece], forms: Mapping[str, np.dtype] = MappingProxyType({})
    ) -> Edges:
        """Joined from pieces; ``forms``: the columns that there are where there is no piece."""
        nothing = np.zeros(0, np.int64)
        sources = np.concatenate([nothing, *(source.astype(np.int64, copy=False) for source, _, _ in pieces)])
        destinations = np.concatenate([nothing, *(destination.astype(np.int64, copy=False) for _, destination, _ in pieces)])
        counts = [0, *(len(source) for source, *_ in pieces)]
        columns = join([EdgeColumns.empty(forms), *(columns for *_, columns in pieces)], counts)
        return cls(relation, sources, destinations, columns)

    def inverse(self) -> Edges:
        """The same edges turned round that carry the same, as a relation of its own: ``rev_NAME``."""
        source, name, destination = self.relation
        return Edges(Relation(destination, f"rev_{name}", source), self.destinations, self.sources, self.columns)

    def with_inverses(self) -> Edges:
        """The same edges, between nodes of one type, and each the other way round, as one relation."""
        ends = self.sources, self.destinations
        columns = join([self.columns] * 2, [len(self.sources)] * 2)
        return Edges(self.relation, np.concatenate(ends), np.concatenate(ends[::-1]), columns)


def typed_dataset(
    name: str,
    num_classes: int,
    node_types: Sequence[str],
    features: Sequence[np.ndarray],
    relations: Sequence[Edges],
    labelled: int,
    labels: np.ndarray,
    split: np.ndarray,
) -> Dataset:
    """Number the nodes type by type and join the relations' edges.

    Args:
        features: per type float32 [nodes of the type, F], F = 0 without features.
        relations: where some have a column, the edges of the others carry what added ones do: a weight of 1, else 0.
        labelled: the type that has labels, of any task (``graph.schema``), and the split, uint8.

    Raises ``DataError``: more relations than can be numbered, or edge features of different widths.
    """
    if len(relations) > MAX_RELATIONS:
        raise DataError("The graph has too many relations.", given=len(relations), allowed=f"at most {MAX_RELATIONS}")
    featured = [edges for edges in relations if ATTR in edges.columns]
    names = [f"{node_types[head]} {relation} {node_types[tail]}" for head, relation, tail in (e.relation for e in featured)]
    widths = [edges.columns.width for edges in featured]
    check_widths(f"The dataset '{name}'", dict(zip(names, widths, strict=True)))
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in features])])
    schema = Schema(tuple(node_types), tuple(offsets.tolist()), tuple(edges.relation for edges in relations))
    n = schema.num_nodes
    nothing = np.zeros(0, np.int64)
    source = np.concatenate([nothing, *(edges.sources + offsets[edges.relation.source] for edges in relations)])
    destination = np.concatenate([nothing, *(edges.destinations + offsets[edges.relation.destination] for edges in relations)])
    relation = np.repeat(
        np.arange(len(relations), dtype=relation_dtype(len(relations))), [len(edges.sources) for edges in relations]
    )
    indptr, order = destination_order(source, destination, n)
    columns = join([edges.columns for edges in relations], [len(edges.sources) for edges in relations])
    labels = labels.astype(np.int64) if labels.ndim == 1 else labels
    blank = np.nan if labels.dtype.kind == "f" else UNLABELLED
    all_labels, all_split = np.full((n, *labels.shape[1:]), blank, labels.dtype), np.zeros(n, np.uint8)
    own = slice(offsets[labelled], offsets[labelled + 1])
    all_labels[own], all_split[own] = labels, split
    return Dataset(
        name=name,
        num_classes=num_classes,
        schema=schema,
        features=tuple(features),
        labels=all_labels,
        split=all_split,
        indptr=indptr,
        indices=source[order].astype(index_dtype(n)),
        relation=relation[order] if len(relations) > 1 else None,
        columns=columns.take(order),
    )


def homogenize(dataset: Dataset) -> Dataset:
    """The same nodes and edges without types.

    A type without features gets, node by node, the mean features of its neighbours (along edges in both directions) in the
    types that have them; types further away follow hop by hop. A node without such neighbours gets zeros. What edges
    carry stays as it is, and this mean does not see it.

    Raises ``DataError`` for types with features of different widths, or none with features.
    """
    schema = dataset.schema
    if not schema.typed:
        return dataset
    widths = sorted({width for width in dataset.feature_widths if width})
    if len(widths) != 1:
        raise DataError(
            "The graph cannot be homogenised: its node types must have features of one width.",
            given=", ".join(f"{t}: {w}" for t, w in zip(schema.node_types, dataset.feature_widths, strict=True)),
            hint="dataset.homogenize=false with model=rgcn keeps the types",
        )
    n = dataset.num_nodes
    features, known = np.zeros((n, widths[0]), np.float32), np.zeros(n, bool)
    spans = [slice(first, last) for first, last in zip(schema.offsets, schema.offsets[1:], strict=False)]
    for own, rows in zip(spans, dataset.features, strict=True):
        if rows.shape[1]:
            features[own], known[own] = rows, True
    ones = np.ones(dataset.num_edges, np.float32)
    incoming = sparse.csr_array((ones, np.asarray(dataset.indices), np.asarray(dataset.indptr)), shape=(n, n))
    waiting = [t for t, width in enumerate(dataset.feature_widths) if not width]
    while waiting:
        seen = known.astype(np.float32)
        means: dict[int, np.ndarray] = {}
        for t in waiting:
            near = incoming[spans[t]] + incoming[:, spans[t]].T
            counts = near @ seen
            if counts.any():
                means[t] = (near @ features) / np.maximum(counts, 1)[:, None]
        if not means:
            break
        for t, rows in means.items():
            features[spans[t]], known[spans[t]] = rows, True
            waiting.remove(t)
    homogeneous = Dataset.homogeneous(
        dataset.name,
        dataset.num_classes,
        features,
        dataset.labels,
        dataset.split,
        dataset.indptr,
        dataset.indices,
        dataset.columns,
    )
    pairs, origin = dataset.pairs, dataset.origin
    ids = [] if origin is None else [ids for ids in origin.ids if ids is not None]
    return replace(
        homogeneous,
        pairs=None if pairs is None else replace(pairs, relation=None),
        origin=None if origin is None else replace(origin, ids=(Ids.join(ids) if len(ids) == len(origin.ids) else None,)),
    )
