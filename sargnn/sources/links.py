"""A graph whose edges are links to predict: pairs are drawn for validation and test, and are no messages.

Which split a pair belongs to is a Philox number of (seed, its smaller id, its larger id): both directions of an edge and its
repeats go together, whatever the order of a file, and another pair more or less changes nothing for the rest.

    u(a, b) in [0, 1),   train: u < s_0,   valid: u < s_0 + s_1,   test: u < s_0 + s_1 + s_2,   else: a message only

Letters: N nodes, E directed edges, P pairs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sargnn.config.choices import DatasetSettings
from sargnn.errors import ConfigError, DataError, nearest
from sargnn.graph.dataset import Dataset, InMemoryReader, open_dataset
from sargnn.graph.pairs import Known, Pairs
from sargnn.graph.schema import SPLITS, Schema, has_label
from sargnn.rng import MAX_ID, Purpose, pair_keys
from sargnn.sources.given_pairs import inverse_relations, same_both_ways, with_links, without_labelled

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

    def read(self) -> Dataset:
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
        )


def draw_links(
    dataset: Dataset,
    shares: tuple[float, ...] | list[float],
    *,
    seed: int = 0,
    messages: bool = True,
    relations: list[str] | None = None,
) -> Dataset:
    """The same graph without the edges that are drawn as links, and with these as pairs.

    Args:
        shares: of training, validation and test pairs; they come to at most 1.
        messages: training pairs stay edges, too.
        relations: whose edges are links; all if not given. Their inverses (``rev_NAME``) are none, and go with them.

    Raises:
        ConfigError: a relation that there is not.
        DataError: no edge is drawn for training, or none is left as a message; node ids of 2**32 and more.
    """
    n = dataset.num_nodes
    if n > MAX_ID:
        raise DataError(f"The links of '{dataset.name}' are drawn by node id, and it has ids of 2**32 and more.")
    wanted, gone = _of_relations(dataset.schema, relations)
    indptr = np.asarray(dataset.indptr)
    sources = np.asarray(dataset.indices, np.int64)
    destinations = np.repeat(np.arange(n), np.diff(indptr))
    relation = np.zeros(len(sources), np.uint8) if dataset.relation is None else np.asarray(dataset.relation)
    is_link = wanted[relation] & (sources != destinations)
    heads, tails, of = sources[is_link], destinations[is_link], relation[is_link]
    both_ways = not dataset.schema.typed and same_both_ways(heads, tails)
    known = Known.of(heads, tails, of if len(dataset.schema.relations) > 1 else None, n)
    if both_ways:
        once = heads < tails
        heads, tails, of = heads[once], tails[once], of[once]
    order = np.lexsort((of, tails, heads))
    heads, tails, of = heads[order], tails[order], of[order]
    first = np.ones(len(heads), bool)
    first[1:] = (np.diff(heads) != 0) | (np.diff(tails) != 0) | (np.diff(of) != 0)
    heads, tails, of = heads[first], tails[first], of[first]
    split = splits_of(heads, tails, shares, seed)
    drawn = split > 0
    held = [SPLITS["valid"], SPLITS["test"], *([] if messages else [SPLITS["train"]])]
    leaves = gone[relation] & np.isin(splits_of(sources, destinations, shares, seed), held) & (sources != destinations)
    pairs = Pairs(
        heads[drawn],
        tails[drawn],
        split[drawn],
        known,
        both_ways,
        of[drawn] if len(dataset.schema.relations) > 1 else None,
    )
    if not pairs.count("train"):
        raise DataError(
            f"None of the {len(heads)} links of '{dataset.name}' is drawn for training.",
            given=f"dataset.link_split={list(shares)}",
        )
    kept = np.flatnonzero(~leaves)
    if (sources[kept] == destinations[kept]).all():
        raise DataError(
            f"No edge between two nodes of '{dataset.name}' is left as a message.",
            given=f"dataset.link_split={list(shares)} dataset.link_messages={str(messages).lower()}",
            hint="dataset.link_messages=true, or shares that add up to less than 1",
        )
    return with_links(dataset, destinations, leaves, pairs)


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
