"""What predicting links and predicting edges share: pairs of nodes are scored from embeddings, the model's outputs.

Letters: N own rows, M output rows, F width of an embedding, P pairs, A pairs that a worker asks for, C numbers of a score.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sargnn.bf16 import ROW_DTYPES, wide
from sargnn.comm.directory import Directory
from sargnn.comm.exchange import Exchange
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.pairs import MEASURED, Pairs
from sargnn.partition.pairs import PartPairs
from sargnn.partition.part import Part
from sargnn.rng import Purpose, pair_keys
from sargnn.tasks.base import Counted, Of, Targets, Task
from sargnn.tasks.decoders import Perceptron, ReadSquares
from sargnn.tasks.kinds import Scores
from sargnn.tasks.pair_scores import PairLists, route, score_pairs


@dataclass(frozen=True)
class PairBatch:
    """Some pairs of a step.

    ``no_messages``: int64 [P, 2], original ids of both ends: edges that a sampled step leaves out; None: it leaves none out.
    """

    lists: PairLists
    no_messages: np.ndarray | None


@dataclass(frozen=True)
class PairTargets(Targets):
    """What output rows are scored for: a batch of pairs, rows numbered among the output rows; None: those of evaluations. The
    output rows are own rows, int64 [M]; None: all, in their order.
    """

    output_rows: Tensor | None = field(default=None)
    batch: PairBatch | None = field(default=None)

    @staticmethod
    def join(parts: Sequence[Targets]) -> Targets:
        if len(parts) == 1:
            return parts[0]
        first, labels = parts[0], torch.cat([part.labels for part in parts])
        rows = [part.output_rows for part in parts if isinstance(part, PairTargets) and part.output_rows is not None]
        return PairTargets(labels, {}, first.global_counts, output_rows=torch.cat(rows))


class DealtPairs(Task):
    """A task whose training pairs are dealt into steps. Any node may be an end of a pair, so that all rows are outputs."""

    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        pairs = part.pairs
        assert pairs is not None
        self.outputs, self.group = outputs, group
        self._ids, self._schema, self._seed = np.asarray(part.node_ids), part.schema, config.seed
        self._pairs: PartPairs = pairs
        self._device, self._dtype = torch.device(config.device), wide(ROW_DTYPES[config.precision])
        self.directory = Directory(group, self._ids, part.schema.num_nodes)
        self._training = pairs.of_split("train")

    def rows(self, split: str | None = None) -> np.ndarray:
        """Any of them may be an end of a pair."""
        return np.arange(len(self._ids))

    def count(self, rows: np.ndarray) -> int:
        return len(rows)

    def targets(self, output_rows: Tensor | None, counts: Mapping[str, int] | None = None) -> PairTargets:
        return PairTargets(self._no_labels(output_rows), {}, dict(counts or {"train": 0}), output_rows=output_rows)

    def _no_labels(self, output_rows: Tensor | None) -> Tensor:
        return torch.zeros(len(self._ids) if output_rows is None else len(output_rows), 0, device=self._device)

    def counted(self, step: int, rows: np.ndarray | None) -> Counted:
        return Counted()

    def step_keys(self, epoch: int) -> np.ndarray:
        """int64, below 2**63: what this worker's training pairs are sorted by in an epoch, to be dealt into steps."""
        heads, tails, relation = self._ends(self._training)
        return pair_keys(heads, tails, relation, self._seed, Purpose.PAIR_STEP, epoch)

    @abstractmethod
    def known_labels(self) -> np.ndarray:
        """int64: of each of this worker's training pairs, how many terms of the loss it has."""

    def release(self) -> None:
        """Give back the pages of pairs that are mapped."""
        self._pairs.release()

    def judged_by(self, scores: Scores) -> dict[str, Any]:
        """What ``evaluation.json`` holds of scores that were measured now. All workers must call it together."""
        counts = self.group.sum_(torch.tensor([len(self._pairs.of_split(split)) for split in MEASURED])).tolist()
        return {
            "task": self.name,
            "metric": self.metric,
            "scores": {"predictions": {split: scores[split] for split in MEASURED}},
            "metrics": self.measured,
            "pairs": dict(zip(MEASURED, counts, strict=True)),
        }

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, self._dtype)

    def _ends(self, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Original ids of some own pairs' heads and tails, and their relations, int64 each."""
        pairs = self._pairs
        relation = np.zeros(len(which), np.int64) if pairs.relation is None else pairs.relation[which].astype(np.int64)
        return self._ids[pairs.heads[which]], np.asarray(pairs.tails[which]), relation

    def tables(self, outputs: Tensor) -> dict[str, Tensor]:
        """The outputs are the embeddings."""
        return {}


class PairTask(DealtPairs):
    """Scores pairs of nodes. The model's outputs are embeddings [N, F], of every node. The decoder, which scores pairs of
    embeddings, is trained with the model.
    """

    decoder: nn.Module
    _exchange: Exchange | None = None
    _message_rows, _near = 2**31, range(0)

    @property
    def module(self) -> nn.Module | None:
        return self.decoder

    def connect(self, exchange: Exchange, message_rows: int, near: range) -> None:
        self._exchange, self._message_rows, self._near = exchange, message_rows, near

    def _rescale(self, given: float | None) -> None:
        """Divide what a perceptron reads by ``given``; None: by what the first step shows."""
        if isinstance(self.decoder, Perceptron) and given != 1:
            self.decoder.scale = torch.full((), given or torch.nan, dtype=torch.float64, device=self._device)

    def begin(self, of_first_step: Callable[[Of], Tensor]) -> None:
        decoder = self.decoder
        if isinstance(decoder, Perceptron) and decoder.scale is not None and decoder.scale.isnan():
            read = ReadSquares(decoder)
            decoder.scale.fill_(self._root(of_first_step, lambda lists, outputs: self._score(lists, outputs, decoder=read)))

    def _root(self, of_first_step: Callable[[Of], Tensor], squares: Callable[[PairLists, Tensor], Tensor]) -> float:
        """The root of the mean of what is given for each pair of the first step; 1 where it is 0 or not finite."""

        def sums(outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
            assert isinstance(targets, PairTargets) and targets.batch is not None
            numbers = squares(targets.batch.lists, outputs).double()
            return torch.stack([numbers.sum(), numbers.new_tensor(len(numbers))])

        total, count = of_first_step(sums).tolist()
        root = (total / max(count, 1)) ** 0.5
        return root if 0 < root < torch.inf else 1.0

    @abstractmethod
    def step_bytes(self, scored: int) -> int:
        """What a view holds beside its rows on a worker that scores so many pairs, negatives among them."""

    @abstractmethod
    def batch(self, chosen: np.ndarray, step: int) -> PairBatch:
        """Some of this worker's training pairs (int64 ascending), for a step since the run's beginning. All must call it."""

    def targets_of(self, batch: PairBatch, output_rows: Tensor | None, total: int) -> PairTargets:
        """What a view's output rows are scored for.

        Args:
            output_rows: int64 [M], the own rows that they are, with all of ``batch.lists.rows()``; None: all.
            total: terms of the loss of the whole step, over all workers.
        """
        here = replace(batch, lists=batch.lists.among(output_rows))
        return PairTargets(self._no_labels(output_rows), {}, {"train": total}, output_rows=output_rows, batch=here)

    @property
    def _several(self) -> bool:
        """Whether there are several relations."""
        return self._pairs.relation is not None

    def _route(self, ends: np.ndarray, relation: np.ndarray) -> PairLists:
        """Who scores pairs that this worker asks for. ``ends``: int64 [2, A], original ids; ``relation``: int64 [A], or one for
        all."""
        ranks, rows = self.directory.locate(ends)
        asked = np.empty((ends.shape[1], 4), np.int32)
        for column, numbers in enumerate((rows[0], ranks[1], rows[1], relation)):
            asked[:, column] = numbers
        head_ranks = ranks[0].copy()
        del ranks, rows  # as large as all that follows
        return route(self.group, asked, head_ranks, self._message_rows, self._near, self._device, several=self._several)

    def _score(
        self,
        lists: PairLists,
        outputs: Tensor,
        features: Tensor | None = None,
        shape: tuple[int, ...] = (),
        decoder: nn.Module | None = None,
    ) -> Tensor:
        """``decoder``: in place of the task's own."""
        assert self._exchange is not None
        return score_pairs(self._exchange, lists, outputs, decoder or self.decoder, features, shape)

    @abstractmethod
    def score(self, outputs: Tensor, heads: np.ndarray, tails: np.ndarray, relation: int) -> Tensor:
        """Scores [A] or [A, C] of any pairs that this worker asks for; all workers must call it together.

        ``outputs``: [N, F], of all own rows; ``heads``, ``tails``: int64 [A], original ids.
        """


def check_counts(config: RunConfig, pairs: Pairs, called: str) -> None:
    """Raises ``ConfigError`` where there are too few pairs, as they are ``called``, for the steps, or none to stop early by."""
    if config.batches.steps > (count := pairs.count("train")):
        raise ConfigError(
            f"There are more steps in an epoch than training {called}.",
            given=f"batches.steps={config.batches.steps}",
            allowed=f"1 to {count}",
        )
    if config.early_stopping is not None and not pairs.count("valid"):
        raise ConfigError(f"Early stopping needs validation {called}, and the dataset has none.", hint="early_stopping=null")
