"""The nodes that the pairs of a run's first views and their negatives end in, drawn as the run draws them, and what these hold.

Letters: N nodes, S steps of an epoch, K micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from sargnn.comm.directory import Directory
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.rng import Purpose, pair_keys
from sargnn.tasks import edges, links
from sargnn.tasks.negatives import Sampler
from sargnn.tasks.queries import QueryCounts
from sargnn.training.fit import LOOKED_AT
from sargnn.training.steps import deal


class PlannedPairs:
    """Of one configuration's training pairs; ``most``: micro-batches that a step can have. Queries reach all nodes."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        assert dataset.pairs is not None
        self._config, self._dataset, self._pairs = config, dataset, dataset.pairs
        self._counts = QueryCounts(config.links, dataset.pairs.count("train"))

    @property
    def most(self) -> int:
        config = self._config
        return self._counts.most if config.asks_queries else max(1, self._pairs.count("train") // config.batches.steps)

    def queries(self, count: int) -> tuple[int, int]:
        """As of ``training.fit.Candidates``."""
        return (self._counts.of_view(count), self._counts.of_evaluation(count)) if self._config.asks_queries else (0, 0)

    def step_bytes(self, count: int) -> int:
        """What a worker's view holds beside its rows, of steps of so many."""
        config, pairs = self._config, self._pairs
        if config.asks_queries:  # tables of its rows, which an account has
            return 0
        in_view = -(-pairs.count("train") // (config.world * config.batches.steps * count))
        if config.predicts_edges:
            return edges.step_bytes(config.edges, pairs, in_view)
        return links.step_bytes(config, in_view)

    def evaluation_bytes(self) -> int:
        """Likewise of an evaluation."""
        config, pairs = self._config, self._pairs
        if config.asks_queries:
            return 0
        if config.predicts_edges:
            return edges.evaluation_bytes(config.edges, pairs, -(-len(pairs.heads) // config.world))
        return links.evaluation_bytes(pairs, config.world)

    def nodes(self, count: int) -> Iterator[tuple[int, np.ndarray]]:
        """Of the first views of steps of so many: the number of the step, and the nodes, int64 ascending."""
        config, runs = self._config, self._config.batches.steps * count
        if config.asks_queries:
            yield 0, np.arange(self._dataset.num_nodes)
            return
        run_of = deal(pair_keys(*self._training, config.seed, Purpose.PAIR_STEP), runs, Group.single())
        for run in range(min(runs, LOOKED_AT)):
            heads, tails, relation = (column[run_of == run] for column in self._training)
            ends = [heads, tails]
            if config.predicts_links:
                drawn = self._sampler.draw(heads, tails, relation, run // count)
                ends += [drawn.heads.ravel(), drawn.tails.ravel()]
            yield run // count, np.unique(np.concatenate(ends))

    @cached_property
    def _training(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        pairs = self._pairs
        which = np.flatnonzero(np.asarray(pairs.split) == SPLITS["train"])
        relation = np.zeros(len(which), np.int64)
        if pairs.relation is not None:
            relation = np.asarray(pairs.relation)[which].astype(np.int64)
        return np.asarray(pairs.heads)[which], np.asarray(pairs.tails)[which], relation

    @cached_property
    def _sampler(self) -> Sampler:
        """Of one worker that has all nodes."""
        config, dataset, group, ids = self._config, self._dataset, Group.single(), np.arange(self._dataset.num_nodes)
        directory = Directory(group, ids, len(ids))
        known, degrees = self._pairs.known, np.diff(np.asarray(dataset.indptr))
        return Sampler(group, config.links, dataset.schema, config.seed, directory, known, degrees, ids)
