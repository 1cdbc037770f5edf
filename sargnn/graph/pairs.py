"""Pairs of nodes beside a graph's edges: links that are trained on, measured by and known, or edges that have labels.

Letters: N nodes, P pairs, Q negatives, K negatives of a pair, C outputs for a pair, D features of an edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.errors import DataError, StoreError
from sargnn.graph.schema import SPLITS, has_label, label_form
from sargnn.graph.store import Store, StoreWriter

if TYPE_CHECKING:
    from typing_extensions import Self

MEASURED = ("valid", "test")
"""The splits that may have negatives."""
_ENTRY = "pairs"
_GIVEN = {"negatives": 2, "candidates": None, "head_candidates": None}
"""What splits are measured against, and how many columns that has."""
_OPTIONAL = ("relation", "weights", "labels", "features", "numbers")


@dataclass(frozen=True)
class Known:
    """All links that are known, whatever their split, and the edges that are no pairs: what a negative is not to be.

    Those of head i lie at ``indptr[i]:indptr[i + 1]``, ascending by relation, then by tail, each once. Of pairs that are the
    same both ways each end is a head.

    Attributes:
        indptr: int64 [N + 1].
        tails: int64.
        relation: of each; None: there is one.
    """

    indptr: np.ndarray
    tails: np.ndarray
    relation: np.ndarray | None = None

    @classmethod
    def of(cls, heads: np.ndarray, tails: np.ndarray, relation: np.ndarray | None, num_nodes: int) -> Known:
        """From ends, int64, in any order and repeated."""
        columns = [heads, *([] if relation is None else [relation]), tails]
        order = np.lexsort(columns[::-1])
        columns = [column[order] for column in columns]
        first = np.ones(len(heads), bool)
        first[1:] = np.any([column[1:] != column[:-1] for column in columns], 0)
        heads, *of, tails = (column[first] for column in columns)
        return cls(np.concatenate([[0], np.cumsum(np.bincount(heads, minlength=num_nodes))]), tails, *of)

    @classmethod
    def none(cls, num_heads: int) -> Known:
        return cls(np.zeros(num_heads + 1, np.int64), np.zeros(0, np.int64))

    def of_heads(self, nodes: np.ndarray) -> Known:
        """What is known of some heads (int64 [n]), which are then numbered from 0."""
        return self._runs(np.asarray(self.indptr)[nodes], np.asarray(self.indptr)[nodes + 1])

    def of_queries(self, heads: np.ndarray, relation: np.ndarray) -> Known:
        """What is known of some heads in a relation each (int64 [n] both), numbered from 0."""
        if self.relation is None:
            return self.of_heads(heads)
        return self._runs(self._place(heads, relation, -1), self._place(heads, relation + 1, -1))

    def contains(self, heads: np.ndarray, tails: np.ndarray, relation: np.ndarray) -> np.ndarray:
        """Which links are known: bool, of the shape of the three, int64."""
        place, stop = self._place(heads, relation, tails), np.asarray(self.indptr)[heads + 1]
        is_there = place < stop
        place = np.where(is_there, place, 0)
        if len(self.tails):
            is_there &= np.asarray(self.tails[place]) == tails
            is_there &= self.relation is None or np.asarray(self.relation[place]) == relation
        return is_there

    def _runs(self, first: np.ndarray, last: np.ndarray) -> Known:
        ends = np.concatenate([[0], np.cumsum(last - first)])
        places = np.arange(ends[-1]) + np.repeat(first - ends[:-1], last - first)
        of = None if self.relation is None else np.asarray(self.relation)[places]
        return Known(ends, np.asarray(self.tails)[places], of)

    def _place(self, heads: np.ndarray, relation: np.ndarray, tails: np.ndarray | int) -> np.ndarray:
        """Where each head's links from a relation and a tail on begin, by bisection of its run."""
        low, high = np.asarray(self.indptr)[heads], np.asarray(self.indptr)[heads + 1]
        while (is_open := low < high).any():
            middle = np.where(is_open, (low + high) // 2, 0)
            is_less = np.asarray(self.tails[middle]) < tails
            if self.relation is not None:
                of = np.asarray(self.relation[middle])
                is_less = (of < relation) | ((of == relation) & is_less)
            low, high = np.where(is_open & is_less, middle + 1, low), np.where(is_less, high, np.minimum(high, middle))
        return low


@dataclass(frozen=True)
class Pairs:
    """Links of a graph, each once in its split; or its edges of which some have labels, as they were given.

    Attributes:
        heads, tails: int64 [P], original ids.
        split: uint8 [P], a value of ``SPLITS``; 0 is none of them, and all are 0 where a split is still to be drawn.
        known: what a negative is not to be; of labelled edges empty.
        both_ways: a pair is the same as its inverse, as in an undirected graph.
        relation: [P], as edges have it, of a graph with several relations; else None.
        weights: float32 [P], of the training loss; None: all are 1.
        negatives: split -> int64 [Q, 2], heads and tails that all its pairs are measured against.
        candidates: split -> int64 [pairs of the split, K], tails that each of its pairs is measured against, in the pairs'
            order. A split with neither has negatives drawn, or is measured at full rank.
        head_candidates: likewise heads, of splits that have tails.
        labels: of edges, [P] or [P, C] as ``graph.schema`` has those of nodes; None: the pairs are links.
        features: float32 [P, D], of edges that have labels and features; None: they have none.
        numbers: int64 [P] ascending, of a part: which of the whole graph's edges they are; None: they are all, or links.
    """

    heads: np.ndarray
    tails: np.ndarray
    split: np.ndarray
    known: Known
    both_ways: bool = False
    relation: np.ndarray | None = None
    weights: np.ndarray | None = None
    negatives: Mapping[str, np.ndarray] = field(default_factory=dict)
    candidates: Mapping[str, np.ndarray] = field(default_factory=dict)
    head_candidates: Mapping[str, np.ndarray] = field(default_factory=dict)
    labels: np.ndarray | None = None
    outputs: int = 0
    features: np.ndarray | None = None
    numbers: np.ndarray | None = None

    @property
    def undrawn(self) -> bool:
        """Whether these are edges whose labels are in no split yet."""
        return self.labels is not None and not np.any(self.split)

    @property
    def width(self) -> int:
        return 0 if self.features is None else int(self.features.shape[1])

    def count(self, split: str) -> int:
        return int(np.count_nonzero(np.asarray(self.split) == SPLITS[split]))

    def save(self, writer: StoreWriter, prefix: str = f"{_ENTRY}/") -> dict[str, Any]:
        """Write all arrays to a store, under names with the prefix; what its manifest says of them."""
        arrays = {"heads": self.heads, "tails": self.tails, "split": self.split}
        arrays |= {"known_indptr": self.known.indptr, "known_tails": self.known.tails}
        arrays |= {} if self.known.relation is None else {"known_relation": self.known.relation}
        arrays |= {name: array for name in _OPTIONAL if (array := getattr(self, name)) is not None}
        for given in _GIVEN:
            arrays |= {f"{split}_{given}": array for split, array in getattr(self, given).items()}
        for name, array in arrays.items():
            writer.put(prefix + name, array)
        return {_ENTRY: {"both_ways": self.both_ways, "arrays": sorted(arrays), "outputs": self.outputs}}

    @classmethod
    def open(
        cls, store: Store, num_heads: int, prefix: str = f"{_ENTRY}/", dtype: type = np.int64, *, verify: bool = False
    ) -> Self | None:
        """Those of a store, memory-mapped; None where it has none. Raises ``StoreError`` where an array is damaged.

        Args:
            num_heads: of how many nodes, or rows, it has what is known.
            dtype: of the heads.
            verify: compare checksums first.
        """
        entry = store.meta.get(_ENTRY)
        if entry is None:
            return None
        there = set(entry["arrays"])
        if verify:
            store.verify(prefix + name for name in there)

        def array(name: str, dtype: type, *shape: int | None) -> np.ndarray:
            return store.array(prefix + name, dtype, shape)

        def relations(name: str, count: int) -> np.ndarray | None:
            if name not in there:
                return None
            return array(name, np.uint16 if store.dtype(prefix + name) == np.uint16 else np.uint8, count)

        heads, labels, outputs = array("heads", dtype, None), None, int(entry.get("outputs", 0))
        count = len(heads)
        if "relation" in there and not {"labels", "known_relation"} & there:
            raise StoreError(
                f"'{store.path}' is of an earlier version, which mixed up what is known of the relations.",
                hint="remove it, and it is made anew",
            )
        if "labels" in there:
            form, shape = label_form(store.dtype(f"{prefix}labels"), outputs)
            labels = store.array(f"{prefix}labels", form, (count, *shape))
        return cls(
            heads=heads,
            tails=array("tails", np.int64, count),
            split=array("split", np.uint8, count),
            known=Known(
                array("known_indptr", np.int64, num_heads + 1),
                tails := array("known_tails", np.int64, None),
                relations("known_relation", len(tails)),
            ),
            both_ways=bool(entry["both_ways"]),
            relation=relations("relation", count),
            weights=array("weights", np.float32, count) if "weights" in there else None,
            **{
                given: {s: array(f"{s}_{given}", np.int64, None, width) for s in MEASURED if f"{s}_{given}" in there}
                for given, width in _GIVEN.items()
            },
            labels=labels,
            outputs=outputs,
            features=array("features", np.float32, count, None) if "features" in there else None,
            numbers=array("numbers", np.int64, count) if "numbers" in there else None,
        )


def check_pairs(name: str, pairs: Pairs, num_nodes: int, num_relations: int) -> None:
    """Raises ``DataError`` naming the dataset ``name`` and the first pair that cannot be trained on."""
    if not pairs.count("train") and not pairs.undrawn:
        raise DataError(f"The dataset '{name}' has no training {'pairs' if pairs.labels is None else 'edges'}.")
    if pairs.labels is not None and (wrong := (np.asarray(pairs.split) > 0) & ~has_label(np.asarray(pairs.labels))).any():
        raise DataError(f"Edge {int(wrong.argmax())} of '{name}' is in a split and has no label.")
    for end, ids in (("head", pairs.heads), ("tail", pairs.tails)):
        wrong = (np.asarray(ids) < 0) | (np.asarray(ids) >= num_nodes)
        if wrong.any():
            place = int(wrong.argmax())
            raise DataError(
                f"Pair {place} of '{name}' has a {end} that is no node.", given=int(ids[place]), allowed=f"0 to {num_nodes - 1}"
            )
    if pairs.relation is not None and (wrong := np.asarray(pairs.relation) >= num_relations).any():
        place = int(wrong.argmax())
        raise DataError(
            f"Pair {place} of '{name}' is of a relation that there is not.",
            given=int(pairs.relation[place]),
            allowed=f"0 to {num_relations - 1}",
        )
    if pairs.weights is not None and not (np.isfinite(pairs.weights) & (np.asarray(pairs.weights) >= 0)).all():
        raise DataError(f"The dataset '{name}' has a weight of a pair that is negative or not finite.")
    candidates = [*pairs.candidates.items(), *pairs.head_candidates.items()]
    for split, ids in (*pairs.negatives.items(), *candidates):
        if not ((np.asarray(ids) >= 0) & (np.asarray(ids) < num_nodes)).all():
            raise DataError(
                f"The negatives of the split '{split}' of '{name}' name a node that there is not.",
                allowed=f"0 to {num_nodes - 1}",
            )
    for split, ids in candidates:
        if len(ids) != (count := pairs.count(split)):
            raise DataError(
                f"Each pair of the split '{split}' of '{name}' has candidates of its own.",
                given=f"{len(ids)} rows",
                allowed=f"{count} rows",
            )
