"""A graph whose edges are links to predict: pairs are drawn for validation and test, and are no messages.

Which split a pair belongs to is a Philox number of (seed, its smaller id, its larger id): both directions of an edge and its
repeats go together, whatever the order of a file, and another pair more or less changes nothing for the rest.

    u(a, b) in [0, 1),   train: u < s_0,   valid: u < s_0 + s_1,   test: u < s_0 + s_1 + s_2,   else: a message only

Letters: N nodes, E directed edges, P pairs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.choices import DatasetSettings
from sargnn.errors import ConfigError, DataError, nearest
from sargnn.graph.dataset import Dataset, InMemoryReader, open_dataset, row_runs, write_dataset
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.graph.pairs import Known, Pairs
from sargnn.graph.schema import SPLITS, Schema, has_label, relation_dtype
from sargnn.graph.store import map_new
from sargnn.rng import MAX_ID, Purpose, pair_keys
from sargnn.sources.given_pairs import inverse_relations, without_labelled

_PIECE = 1 << 20


class LinkSplit(InMemoryReader):
    """Draws links of a dataset that lies in a store. ``source``: what tells it from others."""

    def __init__(self, base: Path, source: str, config: DatasetSettings) -> None:
        self._base, self._source, self._config = base, source, config

    def identity(self) -> dict[str, Any]:
        config = self._config
        return {
            "reader": "links",
            "base": self._source,
            "split": list(config.link_split or ()),
            "seed": config.link_seed,
            "messages": config.link_messages,
            "known": "by relation",
            "relations": None if config.link_relations is None else sorted(config.link_relations),
        }

    def write(self, path: Path, buffer_bytes: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".links-", suffix=".tmp") as scratch:
            write_dataset(path, self.read(Path(scratch)), made_by=self.identity())

    def read(self, folder: Path | None = None) -> Dataset:
        dataset = open_dataset(self._base, verify=True)
        assert self._config.link_split is not None
        if dataset.pairs is not None and dataset.pairs.undrawn:
            return draw_labelled(dataset, self._config)
        if dataset.pairs is not None:
            raise ConfigError(
                f"The pairs of '{dataset.name}' are given with their split.",
                given=f"dataset.link_split={list(self._config.link_split)}",
                hint="leave dataset.link_split out",
            )
        return draw_links(
            dataset,
            self._config.link_split,
            seed=self._config.link_seed,
            messages=self._config.link_messages,
            relations=self._config.link_relations,
            folder=folder,
        )


def draw_links(
    dataset: Dataset,
    shares: tuple[float, ...] | list[float],
    *,
    seed: int = 0,
    messages: bool = True,
    relations: list[str] | None = None,
    folder: Path | None = None,
) -> Dataset:
    """The same graph without the edges that are drawn as links, and with these as pairs.

    Args:
        shares: of training, validation and test pairs; they come to at most 1.
        messages: training pairs stay edges, too.
        relations: whose edges are links; all if not given. Their inverses (``rev_NAME``) are none, and go with them.
        folder: where what is made lies, mapped; None: in memory.

    Raises:
        ConfigError: a relation that there is not.
        DataError: no edge is drawn for training, or none is left as a message; node ids of 2**32 and more.
    """
    n = dataset.num_nodes
    if n > MAX_ID:
        raise DataError(f"The links of '{dataset.name}' are drawn by node id, and it has ids of 2**32 and more.")
    wanted, gone = _of_relations(dataset.schema, relations)
    out, several, form = GrowingArrays(folder), len(dataset.schema.relations) > 1, relation_dtype(len(dataset.schema.relations))
    both_ways = not dataset.schema.typed and _same_both_ways(dataset)
    by_head = (np.asarray(dataset.indptr), dataset.indices, None) if both_ways else _by_source(dataset, out)
    known, count, trained = np.zeros(n + 1, np.int64), 0, False
    for heads, tails, of in _blocks(*by_head):
        links = np.stack([heads, tails, of])[:, wanted[of] & (heads != tails)]
        links = links[:, np.lexsort(links[::-1])]
        links = links[:, np.diff(links, prepend=-1).any(0)]
        heads, tails, of = links if not several else links[:, np.lexsort(links[[1, 2, 0]])]  # of a head, by relation first
        known += np.bincount(heads + 1, minlength=n + 1)
        out.add("known_tails", tails)
        if several:
            out.add("known_relation", of.astype(form))
        heads, tails, of = links if not both_ways else links[:, links[0] < links[1]]
        count += len(heads)
        split = splits_of(heads, tails, shares, seed)
        trained |= SPLITS["train"] in split
        drawn = {"heads": heads, "tails": tails, "split": split} | ({"relation": of.astype(form)} if several else {})
        for name, column in drawn.items():
            out.add(name, column[split > 0])
    if not trained:
        raise DataError(
            f"None of the {count} links of '{dataset.name}' is drawn for training.",
            given=f"dataset.link_split={list(shares)}",
        )
    pairs = Pairs(
        out.take("heads", np.int64),
        out.take("tails", np.int64),
        out.take("split", np.uint8),
        Known(np.cumsum(known), out.take("known_tails", np.int64), out.take("known_relation", form) if several else None),
        both_ways,
        out.take("relation", form) if several else None,
    )
    held = [SPLITS["valid"], SPLITS["test"], *([] if messages else [SPLITS["train"]])]
    degrees, first, is_connected = np.zeros(n + 1, np.int64), 0, False
    for destinations, sources, of in _blocks(np.asarray(dataset.indptr), dataset.indices, dataset.relation):
        loops = sources == destinations
        leaves = gone[of] & np.isin(splits_of(sources, destinations, shares, seed), held) & ~loops
        kept = np.flatnonzero(~leaves)
        is_connected |= not bool(loops[kept].all())
        degrees += np.bincount(destinations[kept] + 1, minlength=n + 1)
        out.add("indices", sources[kept].astype(dataset.indices.dtype))
        if dataset.relation is not None:
            out.add("message_relation", of[kept])
        columns = dataset.columns.run(slice(first, first + len(sources))).take(kept)
        for name in columns.forms:
            out.add(f"edge_{name}", np.asarray(columns[name]))
        first += len(sources)
    if not is_connected:
        raise DataError(
            f"No edge between two nodes of '{dataset.name}' is left as a message.",
            given=f"dataset.link_split={list(shares)} dataset.link_messages={str(messages).lower()}",
            hint="dataset.link_messages=true, or shares that add up to less than 1",
        )
    forms = dataset.columns.forms.items()
    return replace(
        dataset,
        indptr=np.cumsum(degrees),
        indices=out.take("indices", dataset.indices.dtype),
        relation=None if dataset.relation is None else out.take("message_relation", dataset.relation.dtype),
        columns=EdgeColumns.of({name: out.take(f"edge_{name}", form.base, form.shape) for name, form in forms}),
        content_hash="",
        stored_weights=None,
        pairs=pairs,
    )


class GrowingArrays:
    """Arrays that are made piece by piece: in files of a folder, from which they are mapped; or in memory, without one."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._pieces = folder, dict[str, list[np.ndarray]]()

    def add(self, name: str, piece: np.ndarray) -> None:
        if self._folder is None:
            self._pieces.setdefault(name, []).append(piece)
        else:
            with (self._folder / name).open("ab") as file:
                piece.tofile(file)

    def take(self, name: str, dtype: np.dtype | type, row: tuple[int, ...] = ()) -> np.ndarray:
        """The whole array, of entries of a shape; once."""
        if self._folder is None:
            return np.concatenate([np.zeros((0, *row), dtype), *self._pieces.pop(name, [])])
        file = self._folder / name
        if not file.exists() or not file.stat().st_size:
            return np.zeros((0, *row), dtype)
        return np.memmap(file, dtype, "r").reshape(-1, *row)

    def room(self, name: str, count: int, dtype: np.dtype) -> np.ndarray:
        """An array of so many numbers that are put in in any order."""
        if self._folder is None or not count:
            return np.empty(count, dtype)
        return map_new(self._folder / f"{name}.npy", (count,), dtype)


def _blocks(
    indptr: np.ndarray, others: np.ndarray, relation: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Edges row by row, some at a time, those of a row together: rows and other ends, int64, and relations, int."""
    for first, last in row_runs(indptr, _PIECE):
        span = slice(int(indptr[first]), int(indptr[last]))
        rows = np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
        of = np.zeros(len(rows), np.uint8) if relation is None else np.asarray(relation[span])
        yield rows, np.asarray(others[span], np.int64), of


def _same_both_ways(dataset: Dataset) -> bool:
    """Whether each edge has its inverse, repeats and loops left out of account."""
    every = Known(np.asarray(dataset.indptr), dataset.indices)
    return all(
        every.contains(sources, destinations, of)[sources != destinations].all()
        for destinations, sources, of in _blocks(every.indptr, dataset.indices, None)
    )


def _by_source(dataset: Dataset, out: GrowingArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The graph's edges in the order of their sources, then of their destinations: indptr, destinations, relations."""
    n, indptr = dataset.num_nodes, np.asarray(dataset.indptr)
    begins = np.zeros(n + 1, np.int64)
    for _, sources, _ in _blocks(indptr, dataset.indices, None):
        begins += np.bincount(sources + 1, minlength=n + 1)
    begins = np.cumsum(begins)
    cursor = begins[:-1].copy()
    turned = out.room("turned", dataset.num_edges, dataset.indices.dtype)
    relation = None if dataset.relation is None else out.room("turned_relation", dataset.num_edges, dataset.relation.dtype)
    for destinations, sources, of in _blocks(indptr, dataset.indices, dataset.relation):
        order = np.argsort(sources, kind="stable")
        rows, starts, counts = np.unique(sources[order], return_index=True, return_counts=True)
        places = np.repeat(cursor[rows] - starts, counts) + np.arange(len(order))
        cursor[rows] += counts
        turned[places] = destinations[order]
        if relation is not None:
            relation[places] = of[order]
    return begins, turned, relation


def draw_labelled(dataset: Dataset, config: DatasetSettings) -> Dataset:
    """The same graph, whose labelled edges are split by the ids of their ends: repeats and inverses go together.

    Raises ``ConfigError``: ``link_relations``; ``DataError``: no edge is drawn for training; node ids of 2**32 and more.
    """
    pairs = dataset.pairs
    assert pairs is not None and pairs.labels is not None and config.link_split is not None
    if config.link_relations is not None:
        raise ConfigError(
            "Edges that have labels are split where they have them.",
            given=f"dataset.link_relations={config.link_relations}",
            hint="leave it out, or leave edge_y of other relations out",
        )
    if dataset.num_nodes > MAX_ID:
        raise DataError(f"The edges of '{dataset.name}' are split by node id, and it has ids of 2**32 and more.")
    split = splits_of(np.asarray(pairs.heads), np.asarray(pairs.tails), config.link_split, config.link_seed)
    split[~has_label(np.asarray(pairs.labels))] = 0
    if not (split == SPLITS["train"]).any():
        raise DataError(
            f"None of the labelled edges of '{dataset.name}' is drawn for training.",
            given=f"{int(has_label(np.asarray(pairs.labels)).sum())} edges, dataset.link_split={list(config.link_split)}",
        )
    drawn = replace(pairs, split=split)
    if config.link_messages:
        return replace(dataset, content_hash="", stored_weights=None, pairs=drawn)
    return without_labelled(dataset, drawn)


def splits_of(heads: np.ndarray, tails: np.ndarray, shares: tuple[float, ...] | list[float], seed: int) -> np.ndarray:
    """uint8 [P], the split of each pair, 0 for none. ``heads``, ``tails``: int64 [P], original ids below 2**32; which is which
    does not matter."""
    bounds = np.cumsum(shares)
    split = np.zeros(len(heads), np.uint8)
    for start in range(0, len(heads), _PIECE):
        piece = slice(start, start + _PIECE)
        low, high = (end(heads[piece], tails[piece]) for end in (np.minimum, np.maximum))
        number = (pair_keys(low, high, np.zeros_like(low), seed, Purpose.PAIR_SPLIT) >> 11) / 2.0**52
        place = np.searchsorted(bounds, number, side="right")
        split[piece] = np.where(place < 3, place + 1, 0)
    return split


def read_pairs(file: Path) -> np.ndarray:
    """Pairs to score, int64 [2, P], from a ``.npy`` file of whole numbers [2, P] or [P, 2]. Raises ``DataError``."""
    try:
        pairs: np.ndarray = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"'{file}' cannot be read.", given=str(error), allowed="a .npy file") from error
    if pairs.ndim != 2 or 2 not in pairs.shape or pairs.dtype.kind not in "iu":
        raise DataError(
            f"'{file}' holds no pairs of nodes.",
            given=f"{pairs.dtype.name} {list(pairs.shape)}",
            allowed="whole numbers [2, P]",
        )
    return np.asarray(pairs if len(pairs) == 2 else pairs.T, np.int64)


def relation_of(schema: Schema, name: str | None) -> int:
    """A relation by its name; the only one that is no inverse where no name is given. Raises ``ConfigError``."""
    names = [relation.name for relation in schema.relations]
    if name is None:
        wanted, _ = _of_relations(schema, None)
        if wanted.sum() > 1:
            raise ConfigError("The pairs' relation must be named.", allowed=[f"relation={each}" for each in names])
        return int(wanted.argmax())
    if name not in names:
        raise ConfigError(f"There is no relation '{name}'.", given=f"relation={name}", allowed=nearest(name, names))
    return names.index(name)


def _of_relations(schema: Schema, chosen: list[str] | None) -> tuple[np.ndarray, np.ndarray]:
    """bool [R] twice: the relations whose edges are links, and those that lose the edges that are drawn."""
    names = [relation.name for relation in schema.relations]
    for name in chosen or ():
        if name not in names:
            raise ConfigError(
                f"There is no relation '{name}'.", given=f"dataset.link_relations={chosen}", allowed=nearest(name, names)
            )
    inverse_of = inverse_relations(schema)
    wanted = np.array([name in chosen if chosen is not None else r not in inverse_of for r, name in enumerate(names)])
    gone = wanted.copy()
    for inverse, r in inverse_of.items():
        gone[[inverse, r]] |= wanted[[r, inverse]]
    return wanted, gone
