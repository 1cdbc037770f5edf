"""Negatives of links: Philox numbers of the pair, so that they are the same on any world, mode and partitioner.

    key     = (seed, number of the step since the run's beginning)
    counter = (head id, tail id, k + K * attempt, purpose << 24 | relation)          shared: (0, 0, k, ...)

for the k-th of a pair's K negatives. Words 0 and 1 choose the end that is drawn, of two ends words 2 and 3 the other one; the
last bit of word 3 says which end is, where it may be either. A node is floor(u n) of its type's n, for u = 52 bits / 2^52; in
proportion to degree^p it is the first whose sum of round(2^20 degree^p) over all nodes up to it is above floor(u total): whole
numbers, so that the sums are the same whoever adds them. The nodes of a type that no edge ends in are drawn uniformly.

Strict negatives are drawn again, up to ``ATTEMPTS`` times, while they are known links of the pair's relation or a node with
itself. Whoever has the head knows. What is still a link then is left as it is drawn, with a weight of 0.

Letters: P pairs, K negatives of a pair, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch

from sargnn.comm.directory import Directory
from sargnn.comm.group import Group
from sargnn.config.groups import Corrupt, LinksConfig
from sargnn.graph.pairs import Known
from sargnn.graph.schema import Schema
from sargnn.native import Entry
from sargnn.rng import Purpose

ATTEMPTS = 16
_draw = Entry(
    "draw_negatives",
    "heads l P, tails l P, relation l P, places l",
    "attempt int, step int, seed int, tag int, corrupt int, shared int",
    "sources l R 2, destinations l R 2, sums l?, new_heads l P K, new_tails l P K",
)


@dataclass(frozen=True)
class Negatives:
    """Negatives of pairs: heads and tails, int64 [P, K], original ids.

    ``are_none``: bool [P, K]: known links all the same, since no others were drawn; None: nobody has looked.
    """

    heads: np.ndarray
    tails: np.ndarray
    are_none: np.ndarray | None = None


class Sampler:
    """Draws negatives of pairs, given as original ids of heads and tails and relations, int64 [P]. All workers must make one,
    and call its methods, together.

    Args:
        schema: an end is drawn from its relation's type.
        directory: finds who has a node.
        known: the links of this worker's heads, which are its own rows.
        degrees: int64 [own rows], where nodes are drawn by degree.
        ids: int64 [own rows], original ids.
    """

    def __init__(
        self,
        group: Group,
        config: LinksConfig,
        schema: Schema,
        seed: int,
        directory: Directory,
        known: Known,
        degrees: np.ndarray,
        ids: np.ndarray,
    ) -> None:
        self._group, self._config, self._schema, self._seed = group, config, schema, seed
        self._directory, self._known = directory, known
        spans = np.lib.stride_tricks.sliding_window_view(np.asarray(schema.offsets, np.int64), 2)
        ends = np.array([(relation.source, relation.destination) for relation in schema.relations])
        self._sources, self._destinations = spans[ends[:, 0]], spans[ends[:, 1]]
        self._sums: np.ndarray | None = None
        if config.degree_power:
            self._sums = _degree_sums(group, np.asarray(degrees), np.asarray(ids), schema.num_nodes, config.degree_power)

    def draw(self, heads: np.ndarray, tails: np.ndarray, relation: np.ndarray, step: int) -> Negatives:
        """Those of a training step, numbered since the run's beginning, as configured."""
        config = self._config
        return self._strict(
            heads, tails, relation, step, config.negatives, config.corrupt, strict=config.strict, shared=config.shared
        )

    def draw_measured(self, heads: np.ndarray, tails: np.ndarray, relation: np.ndarray, number: int) -> Negatives:
        """One strict negative for each pair, both ends drawn: what a split without negatives of its own is measured against,
        its number in the place of a step's.
        """
        return self._strict(heads, tails, relation, number, 1, "ends", strict=True, shared=False)

    def _strict(
        self,
        heads: np.ndarray,
        tails: np.ndarray,
        relation: np.ndarray,
        step: int,
        count: int,
        corrupt: Corrupt,
        *,
        strict: bool,
        shared: bool,
    ) -> Negatives:
        new_heads, new_tails = np.empty((2, len(heads), count), np.int64)
        left = np.arange(new_heads.size)
        for attempt in range(ATTEMPTS if strict else 1):
            _draw(
                heads,
                tails,
                relation,
                left,
                attempt,
                step,
                self._seed,
                int(Purpose.NEGATIVES) << 24,
                get_args(Corrupt).index(corrupt),
                shared,
                self._sources,
                self._destinations,
                self._sums,
                new_heads,
                new_tails,
            )
            if not strict:
                return Negatives(new_heads, new_tails)
            drawn = new_heads.ravel()[left], new_tails.ravel()[left]
            wrong = self.are_links(*drawn, relation[left // count]) | (drawn[0] == drawn[1])
            left = left[wrong]
            if not int(self._group.sum_(torch.tensor(len(left)))):
                break
        are_none = np.zeros(new_heads.shape, bool)
        are_none.flat[left] = True
        return Negatives(new_heads, new_tails, are_none)

    def are_links(self, heads: np.ndarray, tails: np.ndarray, relation: np.ndarray) -> np.ndarray:
        """bool: which pairs (int64 [n], original ids) are known links of their relations."""
        return self._directory.ask(heads, self._known.contains, tails, relation)


def _degree_sums(group: Group, degrees: np.ndarray, ids: np.ndarray, num_nodes: int, power: float) -> np.ndarray:
    """int64 [N + 1]: the sums of all nodes' weights up to each one; 8 bytes a node on every worker."""
    weights = np.zeros(num_nodes + 1, np.int64)
    weights[ids + 1] = np.maximum(np.rint(2.0**20 * degrees.astype(np.float64) ** power), 0).astype(np.int64)
    sums: np.ndarray = np.cumsum(group.sum_(torch.from_numpy(weights)).numpy())
    return sums
