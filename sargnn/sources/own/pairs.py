"""Pairs of nodes that come with an own graph: links to predict, what they are measured against, and labels of edges.

Letters: P pairs, Q negatives, K negatives of a pair, E edges, C columns of labels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sargnn.config.choices import Task
from sargnn.errors import DataError
from sargnn.graph.check import WeightCheck
from sargnn.graph.edge_columns import WEIGHT
from sargnn.graph.schema import SPLITS, has_label
from sargnn.sources.given_pairs import SplitPairs
from sargnn.sources.own.edges import EdgeArrays, EdgeList, Triplet, WeightedEdges, checked_edges
from sargnn.sources.own.given import EDGE_LABELS, EDGE_MASKS, PAIRS, GivenArray, PlainArray, read_labels

_PIECE = 1 << 22


class PairArrays(EdgeArrays):
    """Pairs in arrays, integers [P]. ``rows``: int64 [P], where each stands in what was given; None: in their order."""

    def __init__(self, name: str, heads: GivenArray, tails: GivenArray, rows: np.ndarray | None = None) -> None:
        super().__init__(name, heads, tails)
        self._rows = rows

    @classmethod
    def of_table(cls, given: GivenArray) -> PairArrays:
        """From [2, P] or [P, 2]; [2, 2] is taken as the first. Raises ``DataError`` for one of another shape."""
        if len(given.shape) != 2 or 2 not in given.shape:
            raise DataError(
                f"{given.name} must hold a head and a tail for each pair.",
                given=f"shape {list(given.shape)}",
                allowed="[2, number of pairs] or [number of pairs, 2]",
            )
        ends = [given.row(0), given.row(1)] if given.shape[0] == 2 else [PlainArray(given.name, e) for e in given.whole().T]
        return cls(given.name, *ends)

    def place(self, position: int) -> str:
        return f"pair {position if self._rows is None else self._rows[position]} (counted from 0)"


def pair_leaf(used: str, array: GivenArray) -> GivenArray | PairArrays:
    return array if PAIRS[used][1] in ("weights", "candidates") else PairArrays.of_table(array)


def marked_pairs(called: str, sources: GivenArray, destinations: GivenArray, mask: GivenArray) -> PairArrays:
    """Those of some edges, integers [E], that a mask [E] names: true and false, or 1 and 0. Raises ``DataError`` for
    another."""
    flags = mask.whole().reshape(-1)
    if flags.shape != sources.shape or not np.isin(flags, (0, 1)).all():
        raise DataError(
            f"{mask.name} is no mask of edges.",
            given=f"{mask.dtype.name} {list(mask.shape)}, {sources.shape[0]} edges",
            allowed="true or false, or 1 and 0, for each edge",
        )
    rows = np.flatnonzero(flags)
    heads, tails = (PlainArray(called, ends.whole()[rows]) for ends in (sources, destinations))
    return PairArrays(called, heads, tails, rows)


def labelled_pairs(split: str, index: GivenArray, labels: GivenArray | None) -> dict[str, PairArrays]:
    """Pairs and negatives, by name of ``PAIRS``, of what PyG's ``RandomLinkSplit`` gives. Training negatives are left out.

    Args:
        index: integers [2, P].
        labels: [P], 1 of a link and 0 of a negative; None: all are links.

    Raises ``DataError``: another shape, or a label that is neither.
    """
    if len(index.shape) != 2 or index.shape[0] != 2:
        raise DataError(
            f"{index.name} must have two rows, heads and tails.", given=f"shape {list(index.shape)}", allowed="[2, pairs]"
        )
    if labels is None:
        return {f"{split}_pairs": PairArrays.of_table(index)}
    flags = labels.whole().reshape(-1)
    if len(flags) != index.shape[1]:
        raise DataError(
            f"{labels.name} does not have a label for each pair.",
            given=f"{len(flags)} labels, {index.shape[1]} pairs in {index.name}",
        )
    wrong = ~np.isin(flags, (0, 1))
    if wrong.any():
        raise DataError(
            f"{labels.name} holds a label that is neither 0 nor 1, of pair {int(wrong.argmax())} (counted from 0).",
            given=flags[wrong.argmax()],
            allowed="1 of a link, 0 of a pair that is none",
            hint=f"kinds of links are relations of a typed graph; labels of edges are {EDGE_LABELS}, in the order of the edges",
        )
    marked = {
        f"{split}_{what}": marked_pairs(index.name, index.row(0), index.row(1), PlainArray(labels.name, flags == value))
        for what, value in (("pairs", 1), ("negatives", 0))
        if value or (flags == 0).any()
    }
    if split == "train" and (negatives := marked.pop("train_negatives", None)) is not None:
        logging.getLogger(__name__).warning(
            f"not read: the {negatives.count} negatives of {index.name}, as every step of training draws new ones."
        )
    return marked


@dataclass(frozen=True)
class GivenPairs:
    """P pairs of a split and a relation, perhaps with weights; Q negatives and candidates [P, K], tails, or None."""

    pairs: EdgeList
    negatives: EdgeList | None = None
    candidates: GivenArray | None = None

    @property
    def lists(self) -> list[EdgeList]:
        return [self.pairs, *([] if self.negatives is None else [self.negatives])]

    def digest(self) -> list[str]:
        """What decides the content, JSON-able."""
        arrays: list[EdgeList | GivenArray | None] = [self.pairs, self.negatives, self.candidates]
        return ["" if array is None else array.digest() for array in arrays]


OwnPairs = Mapping[Triplet, Mapping[str, GivenPairs]]
"""By relation and split."""


def build_pairs(tree: Mapping[str, Any], relations: Sequence[Triplet], whole: str) -> OwnPairs:
    """Pairs from what a tree has for names of ``PAIRS``; of a typed graph by relation.

    Raises ``DataError``: a relation that there is not; something of pairs that are not given; shapes that disagree.
    """
    given: dict[Triplet, dict[str, dict[str, Any]]] = {}
    for name, values in tree.items():
        split, what = PAIRS[name]
        for triplet, value in values.items() if isinstance(values, Mapping) else [(relations[0], values)]:
            if triplet not in relations:
                raise DataError(
                    f"{whole} has pairs in '{name}' of a relation that has no edges.",
                    given=" ".join(triplet),
                    allowed=[" ".join(relation) for relation in relations],
                )
            given.setdefault(triplet, {}).setdefault(split, {})[what] = value
    pairs = {
        triplet: {split: _of_split(whole, split, of_split) for split, of_split in by_split.items()}
        for triplet, by_split in sorted(given.items())
    }
    for split in SPLITS:
        _check_relations(whole, split, [by_split[split] for by_split in pairs.values() if split in by_split])
    return pairs


def _of_split(whole: str, split: str, given: Mapping[str, Any]) -> GivenPairs:
    """One relation's. ``given``: pairs, weights, negatives, candidates, as far as there are any."""
    pairs, negatives, candidates = given.get("pairs"), given.get("negatives"), given.get("candidates")
    if pairs is None:
        (other, *_) = given.values()
        raise DataError(f"{whole} has {other.name}, and no pairs that it is of.", hint=f"'{split}_pairs', [2, number of pairs]")
    if "weights" in given:
        pairs = WeightedEdges(pairs, given["weights"])
    if negatives is not None and candidates is not None:
        raise DataError(
            f"{negatives.name} and {candidates.name} both say what pairs are measured against.", hint="leave one out"
        )
    if candidates is not None:
        shape = candidates.shape
        if len(shape) != 2 or shape[0] != pairs.count or not shape[1] or candidates.dtype.kind not in "iu":
            raise DataError(
                f"{candidates.name} must hold node numbers, as many tails for each pair.",
                given=f"{candidates.dtype.name} {list(shape)}, {pairs.count} pairs in {pairs.name}",
                allowed=f"[{pairs.count}, 1 or more], whole numbers, in the order of the pairs",
            )
    return GivenPairs(pairs, negatives, candidates)


def _check_relations(whole: str, split: str, given: Sequence[GivenPairs]) -> None:
    """What the pairs of a split are measured against is one table. Raises ``DataError``."""
    widths = {0 if pairs.candidates is None else pairs.candidates.shape[1] for pairs in given}
    if len(widths) > 1:
        raise DataError(
            f"{whole} has {split} pairs of several relations, whose candidates differ.",
            given=f"{', '.join(map(str, sorted(widths)))} for each pair",
            allowed="as many for each pair of every relation, or none at all",
        )
    if len(given) > 1 and any(pairs.negatives is not None for pairs in given):
        raise DataError(
            f"{whole} has {split} pairs of several relations, and negatives do not say of which they are.",
            hint=f"'{split}_candidates', [pairs, K]: tails for each pair",
        )


@dataclass(frozen=True)
class PairReader:
    """Reads pairs in a graph's numbers. Its types follow one another; ``offsets``: the original id of a type's first node."""

    relations: Sequence[Triplet]
    offsets: Mapping[str, int]
    counts: Mapping[str, int]

    def read(self, pairs: OwnPairs) -> list[SplitPairs]:
        """All of them. Raises ``DataError`` for an end that is no node, or a weight that is none; array and pair are named."""
        return [self._split(triplet, split, of_split) for triplet, by in pairs.items() for split, of_split in by.items()]

    def _split(self, triplet: Triplet, split: str, given: GivenPairs) -> SplitPairs:
        heads, tails, weights = self._ends(triplet, given.pairs)
        return SplitPairs(
            split,
            self.relations.index(triplet),
            heads,
            tails,
            weights,
            None if given.negatives is None else np.stack(self._ends(triplet, given.negatives)[:2], 1),
            None if given.candidates is None else self._candidates(triplet[2], given.candidates),
        )

    def _ends(self, triplet: Triplet, pairs: EdgeList) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """int64 [P] twice, and float32 [P] where they have weights."""
        source, _, destination = triplet
        check = WeightCheck(pairs.weights_name, pairs.place)
        heads, tails, weights = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for head, tail, columns in checked_edges(pairs, _PIECE, self.counts[source], self.counts[destination]):
            heads.append(head.astype(np.int64) + self.offsets[source])
            tails.append(tail.astype(np.int64) + self.offsets[destination])
            if columns.weight is not None:
                weights.append(check.to_float32(np.asarray(columns.weight)))
        weighted = WEIGHT in pairs.forms
        return np.concatenate(heads), np.concatenate(tails), np.concatenate(weights) if weighted else None

    def _candidates(self, node_type: str, candidates: GivenArray) -> np.ndarray:
        tails, count = candidates.whole(), self.counts[node_type]
        wrong = ((tails < 0) | (tails >= count)).any(1)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{candidates.name} names a node that does not exist, for pair {row} (counted from 0).",
                given=tails[row][:8].tolist(),
                allowed=f"0 to {count - 1}",
            )
        return tails.astype(np.int64) + self.offsets[node_type]


@dataclass(frozen=True)
class LabelledEdges:
    """Labels [E] or [E, C] of a relation's edges; ``masks``: split -> [E]; empty: the split is drawn."""

    labels: GivenArray
    masks: Mapping[str, GivenArray]

    def digest(self) -> list[str]:
        """What decides the content, JSON-able."""
        return [self.labels.digest(), *(f"{split} {mask.digest()}" for split, mask in sorted(self.masks.items()))]

    def read(self, task: Task | None) -> tuple[np.ndarray, np.ndarray]:
        """The labels as ``graph.schema`` has them (of no task: classes), and the split of each, uint8 [E].

        Raises ``DataError``: they are none of the task; an edge is in two splits, or in one and has no label.
        """
        labels = read_labels(self.labels, task, "edge")
        split = np.zeros(len(labels), np.uint8)
        for name, mask in self.masks.items():
            flags = mask.whole().reshape(-1)
            if not np.isin(flags, (0, 1)).all():
                raise DataError(
                    f"{mask.name} is no mask of edges.", given=mask.dtype.name, allowed="true or false for each edge"
                )
            if (twice := (split > 0) & flags.astype(bool)).any():
                raise DataError(f"{mask.name} has an edge that is in another split, too.", given=f"edge {int(twice.argmax())}")
            split[flags.astype(bool)] = SPLITS[name]
        if (wrong := (split > 0) & ~has_label(labels)).any():
            raise DataError(
                f"{self.labels.name} has no label for an edge that is in a split.",
                given=f"edge {int(wrong.argmax())} (counted from 0), {int(wrong.sum())} in all",
                hint="leave it out of the masks",
            )
        return labels, split


def build_edge_labels(
    tree: Mapping[str, Any], edges: Mapping[Triplet, EdgeList], whole: str, pairs: OwnPairs
) -> dict[Triplet, LabelledEdges]:
    """What a tree has for ``EDGE_LABELS`` and names of ``EDGE_MASKS``; of a typed graph by relation. ``pairs``: links, too.

    Raises ``DataError``: a relation that there is not, masks without labels, another number than of edges, labels beside links.
    """
    given: dict[Triplet, dict[str, GivenArray]] = {}
    for name, values in tree.items():
        for triplet, array in values.items() if isinstance(values, Mapping) else [(next(iter(edges)), values)]:
            if triplet not in edges:
                raise DataError(
                    f"{whole} has '{name}' of a relation that has no edges.",
                    given=" ".join(triplet),
                    allowed=[" ".join(relation) for relation in edges],
                )
            if not array.shape or array.shape[0] != edges[triplet].count:
                raise DataError(
                    f"{array.name} does not have an entry for each edge.",
                    given=f"shape {list(array.shape)}, {edges[triplet].count} edges in {edges[triplet].name}",
                )
            given.setdefault(triplet, {})[name] = array
    labelled = {}
    for triplet, arrays in sorted(given.items()):
        labels = arrays.pop(EDGE_LABELS, None)
        if labels is None:
            (mask, *_) = arrays.values()
            raise DataError(
                f"{mask.name} splits edges that have no labels.", hint=f"'{EDGE_LABELS}', in the order of the edges"
            )
        if len({EDGE_MASKS[name] for name in arrays}) < len(arrays):
            raise DataError(f"{whole} says twice which edges are in a split.", given=sorted(arrays), hint="leave one out")
        masks = {EDGE_MASKS[name]: mask for name, mask in arrays.items()}
        if masks and "train" not in masks:
            raise DataError(f"{whole} does not say which edges are trained on.", given=sorted(arrays), hint="'edge_train_mask'")
        labelled[triplet] = LabelledEdges(labels, masks)
    if labelled and pairs:
        raise DataError(f"{whole} has pairs to predict, and labels of edges, too.", hint="leave one of both out")
    if len({bool(edge_labels.masks) for edge_labels in labelled.values()}) > 1:
        raise DataError(
            f"{whole} has masks for the labelled edges of some relations only.", hint="for all of them, or for none"
        )
    if len(widths := {edge_labels.labels.shape[1:] for edge_labels in labelled.values()}) > 1:
        raise DataError(
            f"{whole} has labels of edges of several widths.", given=", ".join(str(list(width)) for width in widths)
        )
    return labelled
