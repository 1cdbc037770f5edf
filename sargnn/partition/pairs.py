"""The pairs of a part: each is where its head is.

Letters: N own nodes, P pairs of the part, Q negatives, K negatives of a pair.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sargnn.graph.pairs import Known, Pairs
from sargnn.graph.schema import SPLITS
from sargnn.graph.store import Store, StoreWriter

_ENTRY = "pairs"
_PIECE = 1 << 20
_COLUMNS = ("relation", "weights", "labels", "features")


@dataclass(frozen=True)
class PartPairs(Pairs):
    """Links whose heads are own nodes, in the order of the whole graph's. What differs:

    Attributes:
        heads: int32 [P], own rows.
        known: ends that are linked to each own row, the rows numbered from 0.
        negatives: split -> int64 [Q, 2], own rows and the other ends' original ids.
        candidates, head_candidates: split -> int64 [own pairs of the split, K], original ids.
    """

    @classmethod
    def none(cls, num_rows: int) -> PartPairs:
        nothing = np.zeros(0, np.int64)
        return cls(nothing.astype(np.int32), nothing, np.zeros(0, np.uint8), Known.none(num_rows), labels=nothing, outputs=1)

    def release(self) -> None:
        """Give back the pages of what is mapped; they are read again if needed."""
        known = (self.known.indptr, self.known.tails, self.known.relation)
        for array in (
            *vars(self).values(),
            *known,
            *self.negatives.values(),
            *self.candidates.values(),
            *self.head_candidates.values(),
        ):
            if (mapped := getattr(array, "_mmap", None)) is not None:
                mapped.madvise(mmap.MADV_DONTNEED)

    def of_split(self, split: str) -> np.ndarray:
        """int64, ascending: which pairs are in it."""
        return np.flatnonzero(np.asarray(self.split) == SPLITS[split])


class PairCutter:
    """Cuts the pairs of a whole graph. ``offsets``, ``nodes``: as of ``partition.ground``."""

    def __init__(self, pairs: Pairs, offsets: np.ndarray, nodes: np.ndarray) -> None:
        self._pairs, self._offsets, self._nodes = pairs, np.asarray(offsets), np.asarray(nodes)
        place = np.empty(len(nodes), np.int64)
        place[self._nodes] = np.arange(len(nodes))
        self._place = place

    def part(self, p: int, *, features: bool = True) -> PartPairs:
        """``features``: of edges, with these in memory."""
        pairs, first, last = self._pairs, self._offsets[p], self._offsets[p + 1]

        def own(heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Which have their heads here, and which rows these are."""
            pieces = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
            for start in range(0, len(heads), _PIECE):
                places = self._place[np.asarray(heads[start : start + _PIECE])]
                here = np.flatnonzero((places >= first) & (places < last))
                pieces.append((start + here, places[here] - first))
            which, rows = (np.concatenate(column) for column in zip(*pieces, strict=True))
            return which, rows

        here, rows = own(pairs.heads)
        split = np.asarray(pairs.split)
        negatives = {}
        for name, ends in pairs.negatives.items():
            some, heads = own(ends[:, 0])
            negatives[name] = np.stack([heads, np.asarray(ends)[some, 1]], 1)

        def of_own(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            splits = {name: np.flatnonzero(split == SPLITS[name]) for name in given}
            own_pairs = {name: np.searchsorted(every, here[split[here] == SPLITS[name]]) for name, every in splits.items()}
            return {name: np.asarray(ids)[own_pairs[name]] for name, ids in given.items()}

        names = [name for name in _COLUMNS if features or name != "features"]
        columns = {name: np.asarray(array)[here] for name in names if (array := getattr(pairs, name)) is not None}
        return PartPairs(
            heads=rows.astype(np.int32),
            tails=np.asarray(pairs.tails)[here],
            split=split[here],
            known=pairs.known.of_heads(self._nodes[first:last]),
            both_ways=pairs.both_ways,
            negatives=negatives,
            candidates=of_own(pairs.candidates),
            head_candidates=of_own(pairs.head_candidates),
            outputs=pairs.outputs,
            numbers=None if pairs.labels is None else here,
            **columns,
        )


def put_pairs(writer: StoreWriter, pairs: Pairs, offsets: np.ndarray, nodes: np.ndarray) -> dict[str, Any]:
    """Write the pairs of all parts; what the store's manifest says of them. Arguments as of ``PairCutter``."""
    cutter, entry = PairCutter(pairs, offsets, nodes), dict[str, Any]()
    for p in range(len(offsets) - 1):
        part, features = cutter.part(p, features=False), pairs.features
        entry = part.save(writer, _prefix(p))[_ENTRY]
        if features is not None:
            assert part.numbers is not None
            rows = max(1, _PIECE // max(1, pairs.width))
            with writer.append(f"{_prefix(p)}features", np.float32, features.shape[1:]) as target:
                for first in range(0, len(part.numbers), rows):
                    target.write(np.asarray(features[part.numbers[first : first + rows]]))
            entry["arrays"].append("features")
    return {_ENTRY: entry | {"counts": {split: pairs.count(split) for split in SPLITS}}}


def open_pairs(store: Store, rank: int, num_rows: int) -> PartPairs | None:
    """Memory-mapped; None where the store has none. Raises ``StoreError`` where an array is damaged."""
    return PartPairs.open(store, num_rows, _prefix(rank), np.int32, verify=True)


def _prefix(rank: int) -> str:
    return f"part_{rank:03d}/pairs_"
