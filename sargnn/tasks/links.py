"""Predicting links: their scores are raised above those of negatives.

With the scores s_i of P pairs, s_ik of their K negatives each, weights w_i (1 where none are given), and v_ik = 0 for a strict
negative that is a link all the same, else 1, the loss of a step is, over all workers,

    bce        1/(P (1 + K)) sum_i w_i [ log(1 + exp(-s_i)) + sum_k v_ik log(1 + exp(s_ik)) ]
    softmax    1/P           sum_i w_i [ log(exp(s_i) + sum_k v_ik exp(s_ik)) - s_i ]
    margin     1/(P K)       sum_i w_i sum_k v_ik max(0, margin - s_i + s_ik)

Each is a sum over pairs, so that workers, steps and micro-batches are added up.

Letters: N own rows, M output rows, F width of an embedding, P pairs, K negatives of a pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.comm.group import Group
from sargnn.config.groups import LinksConfig
from sargnn.config.models import RowsSettings
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.pairs import MEASURED, Known, Pairs
from sargnn.graph.schema import SPLITS
from sargnn.partition.part import Part
from sargnn.tasks.base import Counted, Of, Targets
from sargnn.tasks.decoders import check_decoder, make_decoder
from sargnn.tasks.full_ranks import Candidates, Queries, full_ranks, top_partners
from sargnn.tasks.kinds import Scores, hits_of
from sargnn.tasks.metrics import mean_ranks, measure_pairs, measure_ranks
from sargnn.tasks.negatives import Sampler
from sargnn.tasks.pair_scores import HELD_BYTES, PAIR_BYTES, SCRATCH_BYTES, PairLists
from sargnn.tasks.pairs import PairBatch, PairTargets, PairTask, check_counts

_TEMPERATURE = "temperature_of_sargnn"
_DRAWN_BYTES = 160
"""Of a pair that is measured while strict negatives are drawn, and it is looked for who scores it."""
_MEASURED_AT_ONCE = 1 << 21
"""Pairs with candidates of their own that a worker has scored at once."""
_MEASURED_STEP = 2**32 - len(SPLITS) - 1
"""From here on the numbers of steps are those of splits, whose negatives are the same in every evaluation."""


@dataclass(frozen=True)
class LinkBatch(PairBatch):
    """Some pairs of a step and their negatives; asked for are the pairs of this worker, then their negatives, pair by pair.

    Attributes:
        count: P of this worker.
        negatives: K.
        weights: [P]; None: all are 1.
        counts: [P, K], 0 for a negative that is a link all the same, else 1; None: all are 1.
    """

    count: int
    negatives: int
    weights: Tensor | None
    counts: Tensor | None


class LinkTask(PairTask):
    @classmethod
    def check(cls, config: RunConfig, dataset: Dataset) -> None:
        pairs = dataset.pairs
        if pairs is not None and pairs.labels is not None:
            raise ConfigError(f"'{dataset.name}' has labels of edges, and no links to predict.", hint="task=edges")
        if pairs is None:
            raise ConfigError(
                f"'{dataset.name}' has no pairs to predict.",
                given="task=links",
                hint="dataset.link_split=[0.85,0.05,0.1] draws edges as pairs; or give train_pairs, valid_pairs, ...",
            )
        check_counts(config, pairs, "pairs")
        check_decoder(config.links, config.num_outputs(dataset.num_classes), len(dataset.schema.relations), config.seed)

    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        super().__init__(config, part, outputs, group)
        self.name, self._config, pairs = "links", config.links, self._pairs
        self._run = config
        self.metric = config.metric or ("mrr" if pairs.candidates else "auc")
        self._hits = hits_of(self.metric)
        alone, relations = isinstance(config.model, RowsSettings), len(part.schema.relations)
        decoder = make_decoder(config.links, outputs, relations, config.seed, alone=alone)
        self.decoder = decoder.to(self._device, self._dtype)
        self._temperature = torch.full((), config.links.temperature or torch.nan, dtype=torch.float64, device=self._device)
        if config.links.temperature is None:
            self.decoder.register_buffer(_TEMPERATURE, self._temperature)  # a checkpoint has it
            self._rescale(None)
        self._sampler = Sampler(
            group, config.links, part.schema, config.seed, self.directory, pairs.known, part.in_degrees, self._ids
        )
        self._evaluated: dict[str, tuple[PairLists, int]] = {}
        self._turned: Known | None = None

    def known_labels(self) -> np.ndarray:
        return np.ones(len(self._training), np.int64)

    def batch(self, chosen: np.ndarray, step: int) -> LinkBatch:
        which, pairs = self._training[chosen], self._pairs
        heads, tails, relation = self._ends(which)
        drawn = self._sampler.draw(heads, tails, relation, step)
        negatives = self._config.negatives
        of = np.concatenate([relation, np.repeat(relation, negatives)]) if self._several else relation[:1]
        ends = np.stack([np.append(heads, drawn.heads), np.append(tails, drawn.tails)])
        counts = None if drawn.are_none is None else self._on_device(~drawn.are_none)
        no_messages = np.stack([heads, tails], 1) if self._run.samples else None
        del drawn, heads, tails, relation  # a step may have many
        weights = None if pairs.weights is None else self._on_device(np.asarray(pairs.weights)[which])
        return LinkBatch(self._route(ends, of), no_messages, len(which), negatives, weights, counts)

    def step_bytes(self, scored: int) -> int:
        return step_bytes(self._run, -(-scored // (1 + self._config.negatives)))

    def evaluation_bytes(self) -> int:
        return evaluation_bytes(self._pairs, 1)

    def loss(self, outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
        assert isinstance(targets, PairTargets) and isinstance(targets.batch, LinkBatch)
        batch = targets.batch
        scores = self._scores(batch.lists, outputs)
        positives, negatives = scores[: batch.count], scores[batch.count :].view(batch.count, batch.negatives)
        total = max(counted.total(targets), 1)
        return loss_sum(self._config, positives, negatives, batch.weights, batch.counts) / total

    def _scores(self, lists: PairLists, outputs: Tensor) -> Tensor:
        return self._score(lists, outputs) / self._temperature

    def begin(self, of_first_step: Callable[[Of], Tensor]) -> None:
        """Once, divide scores by 4 times the root of the first step's mean square. There the loss is then that of a guess,
        whatever the model and the decoder: with scores s of mean square 1/16

            |bce - log 2|  =  |mean of softplus(-s_i), softplus(s_ik) - log 2|  <=  1/2 mean |s| + 1/8 mean s^2  <=  0.133

        and hardly above 1/128 where links and negatives score alike.
        """
        super().begin(of_first_step)
        if not self._temperature.isnan():
            return
        root = self._root(of_first_step, lambda lists, outputs: self._score(lists, outputs).double().square())
        self._temperature.fill_(4 * root)

    def score(self, outputs: Tensor, heads: np.ndarray, tails: np.ndarray, relation: int) -> Tensor:
        with torch.no_grad():
            return self._scores(self._route(np.stack([heads, tails]), np.full(1, relation)), outputs)

    def metrics(self, outputs: Tensor, targets: Targets) -> Scores:
        assert isinstance(targets, PairTargets)
        measured = {split: self._measure(split, outputs, targets.output_rows) for split in MEASURED}
        self.measured = measured
        return {"train": None, **{split: values.get(self.metric) for split, values in measured.items()}}

    def judged(self, outputs: Tensor) -> dict[str, Any]:
        """What ``evaluation.json`` holds of them (``sargnn evaluate``). ``outputs``: [N, F], of all own rows. All workers must
        call it together.
        """
        with torch.no_grad():
            return self.judged_by(self.metrics(outputs, self.targets(None)))

    def partners(self, outputs: Tensor, count: int, relation: int) -> tuple[Tensor, Tensor]:
        """Each own head's ``count`` best tails in a relation, known links left out: original ids, int64 [heads, K], -1 where
        there are no more, and scores. ``outputs``: [N, F], of all own rows. All workers must call it together.
        """
        begin, end = self._ids_of(self._schema.relations[relation].source)
        own = np.flatnonzero((self._ids >= begin) & (self._ids < end))
        queries = self._queries(outputs, own, np.full(len(own), relation), self._pairs.known, ranks_heads=False)
        ids = torch.from_numpy(self._ids[own]).to(self._device)
        partners, scores = top_partners(self.group, self.decoder, self._candidates(outputs), queries, ids, count)
        return partners, scores / self._temperature

    def _ids_of(self, node_type: int) -> tuple[int, int]:
        return self._schema.offsets[node_type], self._schema.offsets[node_type + 1]

    def _candidates(self, outputs: Tensor) -> Candidates:
        return Candidates(outputs, torch.from_numpy(self._ids).to(self._device))

    def _queries(self, outputs: Tensor, rows: np.ndarray, relation: np.ndarray, known: Known, *, ranks_heads: bool) -> Queries:
        """Own rows (int64 [B]) that are scored with all nodes of the other end's type but those that they are linked to
        in the relation."""
        ends = np.array([self._ids_of(each.source if ranks_heads else each.destination) for each in self._schema.relations])
        left_out = known.of_queries(rows, relation)
        first, last = ends[relation].T
        tables = (np.ascontiguousarray(table) for table in (relation, first, last, left_out.indptr, left_out.tails))
        of, begin, end, starts, others = (torch.from_numpy(table).to(self._device) for table in tables)
        which = torch.full((len(rows),), ranks_heads, device=self._device)
        return Queries(outputs[torch.from_numpy(rows).to(self._device)], of, which, begin, end, starts, others)

    def _ranks(self, split: str, outputs: Tensor) -> Tensor:
        """The ranks of a split's pairs among all nodes, float64, of each end that is to be ranked, of the pairs whose other end
        is here. All workers must call it together.
        """
        pairs, which = self._pairs, self._pairs.of_split(split)
        (_, tails, relation), rows, ranks = self._ends(which), pairs.heads[which].astype(np.int64), []
        if self._config.rank != "head":
            queries = self._queries(outputs, rows, relation, pairs.known, ranks_heads=False)
            ranks.append(self._ranked(outputs, queries, tails))
        if self._config.rank != "tail":
            places, by_tail = self.directory.send(tails, np.stack([self._ids[rows], relation], 1))
            queries = self._queries(outputs, places, by_tail[:, 1], self._known_heads(), ranks_heads=True)
            ranks.append(self._ranked(outputs, queries, by_tail[:, 0]))
        return torch.cat(ranks)

    def _ranked(self, outputs: Tensor, queries: Queries, true_ids: np.ndarray) -> Tensor:
        ids = torch.from_numpy(np.ascontiguousarray(true_ids)).to(self._device)
        true_rows = self.directory.fetch(outputs, true_ids)
        return full_ranks(self.group, self.decoder, self._candidates(outputs), queries, true_rows, ids)

    def _known_heads(self) -> Known:
        """The heads that are linked to each own row as a tail. All workers must call it together."""
        known = self._pairs.known
        if self._pairs.both_ways:
            return known
        if self._turned is None:
            heads = np.repeat(self._ids, np.diff(known.indptr))
            relation = np.zeros_like(heads) if known.relation is None else np.asarray(known.relation)
            rows, sent = self.directory.send(np.asarray(known.tails), np.stack([heads, relation], 1))
            of = None if known.relation is None else sent[:, 1]
            self._turned = Known.of(rows, sent[:, 0], of, len(self._ids))
        return self._turned

    def _measure(self, split: str, outputs: Tensor, output_rows: Tensor | None) -> dict[str, float | None]:
        """All metrics of a split. All workers must call it together."""
        given = split in self._pairs.negatives
        if split in self._pairs.candidates:
            return measure_ranks(self.group, self._ranks_given(split, outputs.detach(), output_rows), self._hits)
        if not (self.metric in ("auc", "ap") or (given and self.metric.startswith("hits"))):
            assert output_rows is None or len(output_rows) == len(self._ids)
            return measure_ranks(self.group, self._ranks(split, outputs.detach()), self._hits)
        if split not in self._evaluated:
            self._evaluated[split] = self._measured_pairs(split)
        lists, count = self._evaluated[split]
        scores = self._scores(lists.among(output_rows), outputs.detach())
        return measure_pairs(self.group, scores[:count], scores[count:], self._hits)

    def _ranks_given(self, split: str, outputs: Tensor, output_rows: Tensor | None) -> Tensor:
        """The ranks of a split's pairs of this worker among the candidates that each has, float64, of each end that is to be
        ranked. All workers must call it together.
        """
        pairs, ranks = self._pairs, list[Tensor]()
        own = self._ends(pairs.of_split(split))
        most = int(max(self.group.gather(torch.tensor(len(own[0])))))
        sides = {"tail": pairs.candidates, "head": pairs.head_candidates}
        there = [end for end, given in sides.items() if split in given]
        for end in [end for end in there if self._config.rank in ("both", end)] or there:
            others = sides[end][split]
            width = others.shape[1]
            size = max(1, _MEASURED_AT_ONCE // max(1, width))
            for first in range(0, most, size):
                key, run = f"{split} {end} {first}", slice(first, first + size)
                held = self._evaluated.get(key)
                if held is None:
                    real = [column[run] for column in own]  # heads, tails, relations
                    asked = [np.repeat(column, width) for column in real]
                    asked[end == "tail"] = np.asarray(others[run]).ravel()
                    *ends, of = (np.concatenate(both) for both in zip(real, asked, strict=True))
                    held = self._route(np.stack(ends), of), len(real[0])
                if most <= size:  # else more than a piece would be held
                    self._evaluated[key] = held
                scores, count = self._scores(held[0].among(output_rows), outputs), held[1]
                ranks.append(mean_ranks(scores[:count], scores[count:].view(count, width)))
        return torch.cat([outputs.new_zeros(0, dtype=torch.float64), *ranks])

    def _measured_pairs(self, split: str) -> tuple[PairLists, int]:
        """Who scores a split's pairs and negatives, and how many of those that this worker asks for are pairs."""
        pairs, which = self._pairs, self._pairs.of_split(split)
        heads, tails, relation = self._ends(which)
        if split in pairs.negatives:
            given = np.asarray(pairs.negatives[split])
            ends = self._ids[given[:, 0]], given[:, 1], np.zeros(len(given), np.int64)
        else:
            drawn = self._sampler.draw_measured(heads, tails, relation, _MEASURED_STEP + SPLITS[split])
            assert drawn.are_none is not None
            kept = ~drawn.are_none.ravel()
            ends = drawn.heads.ravel()[kept], drawn.tails.ravel()[kept], relation[kept]
        *asked, of = (np.concatenate(both) for both in zip((heads, tails, relation), ends, strict=True))
        return self._route(np.stack(asked), of), len(which)


def step_bytes(config: RunConfig, pairs: int) -> int:
    """Bytes of what a step with so many of the worker's pairs holds beside embeddings and their gradients."""
    left_out = 2 * config.samples  # edges of a pair, which a sample leaves out
    return SCRATCH_BYTES + pairs * (1 + config.links.negatives + left_out) * PAIR_BYTES


def evaluation_bytes(pairs: Pairs, world: int) -> int:
    """Likewise of an evaluation, of each worker. What splits are measured against is drawn, or taken, one after the other."""
    held, most = 0, 0
    for split in MEASURED:
        count, given = pairs.count(split), pairs.negatives.get(split)
        sides = [side[split].shape[1] for side in (pairs.candidates, pairs.head_candidates) if split in side]
        for asked in [count * (1 + width) for width in sides] or [count + (count if given is None else len(given))]:
            at_once = min(asked // world, _MEASURED_AT_ONCE) if sides else asked // world
            held, most = held + (at_once if at_once == asked // world else 0), max(most, at_once)
    return SCRATCH_BYTES + held * HELD_BYTES + most * _DRAWN_BYTES


def loss_sum(
    config: LinksConfig, positives: Tensor, negatives: Tensor, weights: Tensor | None, counts: Tensor | None
) -> Tensor:
    """P times the loss of this worker's share of a step (see the module's text); a differentiable zero without pairs.

    Args:
        positives: [P], scores.
        negatives, counts: [P, K].
        weights: [P].
    """
    of_negatives = torch.ones_like(negatives) if counts is None else counts
    if config.loss == "bce":
        # PyTorch's softplus is linear from 20 on, which costs 2e-9.
        below = (of_negatives * F.logsigmoid(-negatives)).sum(1)
        losses = -(F.logsigmoid(positives) + below) / (1 + negatives.shape[1])
    elif config.loss == "margin":
        too_near = F.relu(config.margin - positives[:, None] + negatives)
        losses = (of_negatives * too_near).sum(1) / negatives.shape[1]
    else:
        every = torch.cat([positives[:, None], negatives + of_negatives.log()], 1)
        losses = every.logsumexp(1) - positives
    return (losses if weights is None else losses * weights).sum()
