"""OGB's knowledge graphs, from their official raw files: ogbl-wikikg2, and ogbl-biokg, whose entities have types.

ogbl-wikikg2:

    raw/edge.csv.gz [E, 2]   raw/edge_reltype.csv.gz [E, 1]   raw/num-node-list.csv.gz [1]

ogbl-biokg, of each relation h, r, t; entities are numbered within their types:

    raw/relations/h___r___t/{edge,edge_reltype}.csv.gz   raw/triplet-type-list.csv.gz   raw/num-node-dict.csv.gz

split/NAME/{train,valid,test}.pt: arrays by name, as ``torch.save`` writes them,

    head, relation, tail [P]; of valid and test head_neg, tail_neg [P, K]; of ogbl-biokg head_type, tail_type: P texts

Edges are the training triples. Each validation and test triple is ranked among its own K heads, and its K tails. Relations of
ogbl-wikikg2 are called r0, r1, ...

Letters: E edges, P triples, K candidates, R relations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, InMemoryReader
from sargnn.graph.manifest import shape_fits
from sargnn.graph.pairs import MEASURED
from sargnn.graph.schema import MAX_RELATIONS, UNLABELLED, Relation, Schema
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.sources.given_pairs import SplitPairs, give_pairs
from sargnn.sources.ogb import tables
from sargnn.sources.ogb.layouts import ENTITY, MAX_EDGES, MAX_NODES, find_triples
from sargnn.sources.ogb.links import read_arrays
from sargnn.sources.scan import identity_of
from sargnn.sources.settings import OgbConfig
from sargnn.steps import step


class TripleOgbDir(InMemoryReader):
    """Raises ``DataError`` where files are missing, with all of them."""

    def __init__(self, config: OgbConfig, root: Path) -> None:
        self.config, self.files = config, find_triples(root, typed=config.name == "ogbl-biokg")

    def identity(self) -> dict[str, Any]:
        return {
            "reader": "ogb triples",
            "version": 1,
            "name": self.config.name,
            "files": identity_of(self.files.every),
            "add_inverse_edges": self.config.add_inverse_edges,
            "link_messages": self.config.link_messages,
        }

    def read(self) -> Dataset:
        """Raises ``DataError`` with file and row: unreadable, counts disagree, no such entity or relation, another type."""
        files, splits = self.files, {key: _Triples(path, read_arrays(path)) for key, path in self.files.split.items()}
        counts = files.counts or {ENTITY: tables.read_count(files.nodes, 1, MAX_NODES)}
        types, place = list(counts), np.full(MAX_RELATIONS, -1)
        step("reading edges")
        relations = list[Edges]()
        for (head, name, tail), paths in files.edges.items():
            ends, numbers = _edges(paths, counts[head], counts[tail])
            own = (
                [name]
                if files.counts
                else [f"r{r}" for r in range(1 + max(numbers.max(initial=0), *map(_largest, splits.values())))]
            )
            if files.counts and len(numbers) and (numbers != numbers[0]).any():
                raise DataError(
                    f"'{paths[1]}' must hold one relation's number in all rows.", given=np.unique(numbers)[:3].tolist()
                )
            order = np.argsort(numbers, kind="stable")
            first = numbers[:1] if files.counts else np.arange(len(own))
            place[first] = np.arange(len(relations), len(relations) + len(first))
            runs = np.split(ends[order], np.searchsorted(numbers[order], np.arange(1, len(own))))
            pair = types.index(head), types.index(tail)
            relations += [Edges(Relation(pair[0], each, pair[1]), *run.T) for each, run in zip(own, runs, strict=True)]
        inverses = [edges.inverse() for edges in relations] if self.config.add_inverse_edges else []
        first_type = counts[types[0]]
        dataset = typed_dataset(
            name=self.config.name,
            num_classes=1,
            node_types=types,
            features=[np.zeros((n, 0), np.float32) for n in counts.values()],
            relations=[*relations, *inverses],
            labelled=0,
            labels=np.full(first_type, UNLABELLED, np.int64),
            split=np.zeros(first_type, np.uint8),
        )
        given = [pairs for key, triples in splits.items() for pairs in triples.pairs(dataset.schema, key, place)]
        return give_pairs(dataset, given, messages=self.config.link_messages, undirected=False)


def _edges(paths: tuple[Path, Path, Path | None], heads: int, tails: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends [E, 2], numbers within their types, of which there are so many; and relations' numbers [E]."""
    path, of, counted = paths
    ends, numbers = (tables.read_table(file, np.int64, may_be_empty=True) for file in (path, of))
    ends = ends if len(ends) else np.zeros((0, 2), np.int64)
    count = len(ends) if counted is None else tables.read_count(counted, 0, MAX_EDGES)
    tables.expect_shape(path, ends, (count, 2))
    tables.expect_shape(of, numbers, (count, 1))
    tables.expect_range(of, numbers, 0, MAX_RELATIONS, "a relation that cannot be")
    for column, nodes in enumerate((heads, tails)):
        tables.expect_range(path, ends[:, column : column + 1], 0, nodes, "a node that does not exist")
    return ends, numbers[:, 0]


def _largest(triples: _Triples) -> int:
    """Of the numbers of relations, at least 0."""
    return int(triples.numbers("relation", (None,), MAX_RELATIONS, "a relation that cannot be").max(initial=0))


@dataclass(frozen=True)
class _Triples:
    """A split's file, and its arrays by name."""

    path: Path
    arrays: dict[str, np.ndarray]

    def pairs(self, schema: Schema, split: str, place: np.ndarray) -> list[SplitPairs]:
        """Of each relation, in original ids. ``place``: of each relation's number which one it is, -1 for none."""
        numbers = self.numbers("relation", (None,), MAX_RELATIONS, "a relation that cannot be")
        of, given = place[numbers], dict[str, np.ndarray]()
        if (wrong := of < 0).any():
            row = int(wrong.argmax())
            raise DataError(
                f"'{self.path}' names a relation that there is not, in row {row + 1}.",
                given=int(numbers[row]),
                allowed=f"one of the {int((place >= 0).sum())} relations in raw/",
            )
        for column, end in enumerate(("head", "tail")):
            kind = np.array([(r.source, r.destination)[column] for r in schema.relations])[of]
            names, offsets = np.asarray(schema.node_types)[kind], np.asarray(schema.offsets)
            said = self.arrays.get(f"{end}_type", names)
            if said.shape != names.shape or (said != names).any():
                row = int((said != names).argmax()) if said.shape == names.shape else len(said)
                raise DataError(
                    f"'{self.path}' does not hold the types of its relations' {end}s as '{end}_type'.",
                    given=f"{said[row]} in row {row + 1}" if row < len(said) else f"{row} types",
                    allowed=f"{names[row]}" if row < len(said) else f"{len(names)} types",
                )
            shapes = {end: (len(of),)} | ({f"{end}_neg": (len(of), None)} if split in MEASURED else {})
            for name, shape in shapes.items():
                what = "a node that does not exist" if len(schema.node_types) == 1 else "no node of its relation's type"
                ids = self.numbers(name, shape, np.diff(offsets)[kind], what)
                given[name] = ids + offsets[kind].reshape(-1, *[1] * (ids.ndim - 1))
        order = np.argsort(of, kind="stable")
        return [
            SplitPairs(
                split,
                int(of[run[0]]),
                given["head"][run],
                given["tail"][run],
                candidates=given["tail_neg"][run] if split in MEASURED else None,
                head_candidates=given["head_neg"][run] if split in MEASURED else None,
            )
            for run in np.split(order, np.flatnonzero(np.diff(of[order])) + 1)
            if len(run)
        ]

    def numbers(self, name: str, shape: tuple[int | None, ...], below: int | np.ndarray, what: str) -> np.ndarray:
        """int64 of a shape, None being any length, from 0; ``below``: one for all, or one of each row. Raises ``DataError``."""
        array = self.arrays.get(name)
        if array is None:
            raise DataError(f"'{self.path}' holds no array '{name}'.", given=", ".join(sorted(self.arrays)))
        if not shape_fits(array.shape, shape) or array.dtype.kind not in "iu":
            raise DataError(
                f"'{self.path}' does not hold '{name}' as numbers.",
                given=f"{array.dtype.name} {list(array.shape)}",
                allowed=f"whole numbers {['any' if want is None else want for want in shape]}",
            )
        rows, most = array.reshape(len(array), -1), np.broadcast_to(below, (len(array),))
        if (wrong := (rows < 0) | (rows >= most[:, None])).any():
            row, column = map(int, np.argwhere(wrong)[0])
            raise DataError(
                f"'{self.path}' names {what} in row {row + 1} of '{name}'.",
                given=int(rows[row, column]),
                allowed=f"0 to {int(most[row]) - 1}",
            )
        return array.astype(np.int64)
