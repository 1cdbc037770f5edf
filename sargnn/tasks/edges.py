"""Predicting edges: one class, several labels or numbers of each, as ``tasks.nodes`` has them of nodes, with the same losses.

A decoder gives C numbers z of an edge from the embeddings of its ends and the edge's own features. Labels are no messages, so
that all edges stay in the graph. The loss of a step is the mean over the known labels of its training edges, over all workers.

Letters: N own rows, F width of an embedding, P edges, A edges that a worker asks for, C outputs, D features of an edge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.groups import EdgesConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.pairs import Pairs
from sargnn.graph.schema import SPLITS, known_entries, task_of
from sargnn.partition.part import Part
from sargnn.tasks.base import Counted, Targets
from sargnn.tasks.decoders import check_edge_decoder, make_edge_decoder
from sargnn.tasks.kinds import Scores, choose_metric, metric_name
from sargnn.tasks.metrics import check_metric, measure
from sargnn.tasks.nodes import LABELS, LabelLoss, check_loss, mean_loss, scaled_weights
from sargnn.tasks.pair_scores import HELD_BYTES, PAIR_BYTES, SCRATCH_BYTES, PairLists
from sargnn.tasks.pairs import PairBatch, PairTargets, PairTask, check_counts

_AT_ONCE, _READ_AT_ONCE = 1 << 18, 1 << 15
"""Edges that a worker scores at a time where no gradient is wanted; whose features it reads."""


@dataclass(frozen=True)
class EdgeBatch(PairBatch):
    """Labels [A] or [A, C] of a step's edges, and features [A, D], or None, of those that are scored here, in that order."""

    labels: Tensor
    features: Tensor | None


class EdgeTask(PairTask):
    @classmethod
    def check(cls, config: RunConfig, dataset: Dataset) -> None:
        pairs = dataset.pairs
        if pairs is None or pairs.labels is None:
            raise ConfigError(
                f"The edges of '{dataset.name}' have no labels.",
                given="task=edges",
                hint="edge_y, an entry for each edge" + ("; or task=links" if pairs is not None else ""),
            )
        if pairs.undrawn:
            raise ConfigError(
                f"Nothing says which labelled edges of '{dataset.name}' are trained on.",
                hint="dataset.link_split=[0.6,0.2,0.2] draws a split by both ends; or edge_train_mask, edge_val_mask, ...",
            )
        name = task_of(np.asarray(pairs.labels))
        some = np.asarray(pairs.labels)[np.flatnonzero(np.asarray(pairs.split) == SPLITS["train"])[:8]]
        check_metric(name, config.metric, pairs.outputs, some)
        check_loss(config, name, pairs.outputs, some)
        check_counts(config, pairs, "edges")
        sizes = (
            config.num_outputs(dataset.num_classes),
            len(dataset.schema.relations),
            _width(config.edges, pairs),
            pairs.outputs,
        )
        check_edge_decoder(config.edges, *sizes, config.seed)

    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        super().__init__(config, part, outputs, group)
        pairs, self._edges = self._pairs, config.edges
        assert pairs.labels is not None
        self.name = task_of(np.asarray(pairs.labels))
        self.kind, self._measured = LABELS[self.name], choose_metric(self.name, config.metric, pairs.outputs)
        self.metric, weights = metric_name(self._measured), None
        if config.optim.class_weights is not None:
            own = torch.from_numpy(self._labels(self._training))
            weights = scaled_weights(config.optim.class_weights, own, pairs.outputs, group).to(self._device)
        self.label_loss = LabelLoss(config.optim, self.kind, weights)
        self._features = pairs.features if config.edges.features else None
        sizes = outputs, len(part.schema.relations), _width(config.edges, pairs), pairs.outputs
        self.decoder = make_edge_decoder(config.edges, *sizes, config.seed).to(self._device, self._dtype)
        self._rescale(config.edges.divisor)

    def known_labels(self) -> np.ndarray:
        known = known_entries(self._labels(self._training))
        return known.sum(1) if known.ndim > 1 else known.astype(np.int64)

    def batch(self, chosen: np.ndarray, step: int) -> EdgeBatch:
        which = self._training[chosen]
        *ends, relation = self._ends(which)
        lists = self._route(np.stack(ends), relation)
        return EdgeBatch(lists, None, torch.from_numpy(self._labels(which)).to(self._device), self._features_of(which, lists))

    def step_bytes(self, scored: int) -> int:
        return step_bytes(self._edges, self._pairs, scored)

    def evaluation_bytes(self) -> int:
        return evaluation_bytes(self._edges, self._pairs, len(self._pairs.heads))

    def _labels(self, which: np.ndarray) -> np.ndarray:
        assert self._pairs.labels is not None
        return np.asarray(self._pairs.labels[which])

    def _features_of(self, which: np.ndarray, lists: PairLists) -> Tensor | None:
        """Of some own edges, in the order in which they are scored."""
        if self._features is None:
            return None
        rows = np.empty((len(which), self._features.shape[1]), np.float32)
        for first in range(0, len(which), _READ_AT_ONCE):
            some = slice(first, first + _READ_AT_ONCE)
            rows[some] = self._features[which[some]]
            self.release()
        return lists.spread(self.group, self._on_device(rows))

    def loss(self, outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
        assert isinstance(targets, PairTargets) and isinstance(targets.batch, EdgeBatch)
        batch = targets.batch
        logits = self._score(batch.lists, outputs, batch.features, (self._pairs.outputs,))
        return self.label_loss(logits, batch.labels) / max(counted.total(targets), 1)

    def logits(self, outputs: Tensor, which: np.ndarray, output_rows: Tensor | None = None) -> Tensor:
        """What the decoder gives of some own edges, [P, C], a part of them at a time; all workers must call it together.

        Args:
            outputs: [N, F], or of output rows.
            which: int64 [P], numbers of own edges.
            output_rows: as of ``PairTargets``.
        """
        most = max(int(count) for count in self.group.gather(torch.tensor(len(which))))
        pieces = []
        with torch.no_grad():
            for first in range(0, max(most, 1), _AT_ONCE):
                some = which[first : first + _AT_ONCE]
                *ends, relation = self._ends(some)
                lists = self._route(np.stack(ends), relation)
                features = self._features_of(some, lists)
                pieces.append(self._score(lists.among(output_rows), outputs, features, (self._pairs.outputs,)))
        return torch.cat(pieces)

    def score(self, outputs: Tensor, heads: np.ndarray, tails: np.ndarray, relation: int) -> Tensor:
        lists = self._route(np.stack([heads, tails]), np.full(1, relation))
        with torch.no_grad():
            return self._score(lists, outputs, None, (self._pairs.outputs,))

    def validation_loss(self, outputs: Tensor, targets: Targets) -> float | None:
        assert isinstance(targets, PairTargets)
        which = self._pairs.of_split("valid")
        labels = torch.from_numpy(self._labels(which)).to(self._device)
        logits = self.logits(outputs.detach(), which, targets.output_rows)
        return mean_loss(
            self.group, self.label_loss(logits, labels).double(), int(self.group.sum_(torch.tensor(self.kind.count(labels))))
        )

    def metrics(self, outputs: Tensor, targets: Targets) -> Scores:
        assert isinstance(targets, PairTargets)
        which = np.flatnonzero(np.asarray(self._pairs.split))
        split, labels = np.asarray(self._pairs.split)[which], self._labels(which)
        known = known_entries(labels)
        rows = {name: np.flatnonzero(split == value) for name, value in SPLITS.items()}
        counts = self.group.sum_(torch.tensor([int(known[own].sum()) for own in rows.values()])).tolist()
        there = {name: torch.from_numpy(own).to(self._device) for name, own in rows.items()}
        counted, numbers = dict(zip(rows, counts, strict=True)), torch.from_numpy(self.numbers[which])
        measured = Targets(torch.from_numpy(labels).to(self._device), there, counted, ids=numbers)
        return measure(self._measured, self.logits(outputs.detach(), which, targets.output_rows), measured, self.group)

    @property
    def numbers(self) -> np.ndarray:
        """int64 [P], which of the whole graph's edges own ones are."""
        return np.arange(0) if self._pairs.numbers is None else np.asarray(self._pairs.numbers)

    @property
    def total(self) -> int:
        """P of all workers; all must ask together."""
        return int(self.group.sum_(torch.tensor(len(self.numbers))))


def _width(config: EdgesConfig, pairs: Pairs) -> int:
    """D, as far as the decoder reads them."""
    return pairs.width if config.features else 0


def step_bytes(config: EdgesConfig, pairs: Pairs, count: int) -> int:
    """Bytes of what a step with so many training edges holds beside embeddings and their gradients."""
    return SCRATCH_BYTES + count * max(PAIR_BYTES, HELD_BYTES + 4 * (4 * pairs.outputs + 2 * _width(config, pairs)))


def evaluation_bytes(config: EdgesConfig, pairs: Pairs, count: int) -> int:
    """Likewise of an evaluation of so many edges: of some at a time, and what the decoder gives of all, their labels beside."""
    return step_bytes(config, pairs, min(count, _AT_ONCE)) + count * 4 * (3 * pairs.outputs + 6)
