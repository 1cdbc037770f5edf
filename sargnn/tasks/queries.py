"""Answering queries: which node does a relation lead to from a node, by a model whose rows depend on what is asked.

A triple (h, r, t) is two queries: (h, r, ?), whose answer is t, and (t, r', ?) with the inverse relation r', whose answer is
h. A step asks Q of them. The model's outputs [N, Q] are every node's scores s_vq, and stay where the nodes are: what a loss
or a rank needs of other workers is a number or two a query. With the answer a of query q, its K negatives or all other nodes
as C, of which v_cq = 0 where c is a known answer of the training graph, else 1, the loss of a step is

    softmax    1/Q           sum_q w_q [ log(exp(s_aq) + sum_c v_cq exp(s_cq)) - s_aq ]
    bce, margin              as those of links (``tasks.links``)

All workers compute it alike from sums over them: T = sum over workers p of T_p, L = L(T), and since dT / dT_p = 1, the
gradient of what worker p has put in is dL/dT. The gradients of parameters are then summed over workers, as ever.

Ranks are among all nodes of the relation's type but the other known answers, of any split, or among the candidates that a
pair comes with:

    rank(q) = 1 + |{c : s_cq > s_aq}| + 1/2 |{c : s_cq = s_aq}|

Letters: N own rows, Q queries of a view, q of this worker's pairs, K negatives or candidates, A own scores of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sargnn.comm.group import Group
from sargnn.config.groups import LinksConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.graph.pairs import MEASURED, Known
from sargnn.graph.queries import Queries
from sargnn.partition.part import Part
from sargnn.sources.given_pairs import inverse_relations
from sargnn.tasks.base import Counted, Targets
from sargnn.tasks.full_ranks import best_of
from sargnn.tasks.kinds import Scores, hits_of
from sargnn.tasks.links import loss_sum
from sargnn.tasks.metrics import gather_rows, measure_ranks
from sargnn.tasks.negatives import Sampler
from sargnn.tasks.pairs import DealtPairs, check_counts


@dataclass(frozen=True)
class QueryCounts:
    """How many queries are asked at a time. A pair is one or two; a step has ``links.queries`` of them at most, in K
    micro-batches that are as large as each other.

    ``pairs``: of training, over all workers.
    """

    config: LinksConfig
    pairs: int

    @property
    def of_pair(self) -> int:
        return 2 if self.config.rank == "both" else 1

    @property
    def steps(self) -> int:
        """S, of an epoch."""
        return max(1, -(-self.pairs // max(1, self.config.queries // self.of_pair)))

    @property
    def most(self) -> int:
        """The most micro-batches, of which each asks something."""
        return max(1, self.pairs // self.steps)

    def of_view(self, batches: int) -> int:
        """The most that a micro-batch asks."""
        return self.of_pair * -(-self.pairs // (self.steps * batches))

    def of_evaluation(self, batches: int) -> int:
        """The most that a view of an evaluation asks: as many as a micro-batch, about."""
        return self.of_pair * max(1, self.config.queries // (self.of_pair * batches))


@dataclass(frozen=True)
class Asked:
    """Queries of some pairs, original ids, and relations, int64 [Q] each; the same on all workers.

    ``negatives``: int64 [Q, K], of an evaluation the candidates, original ids, -1 where one is none; None: all other nodes are.
    ``weights``: float64 [Q].
    """

    heads: np.ndarray
    answers: np.ndarray
    relations: np.ndarray
    weights: np.ndarray
    negatives: np.ndarray | None = None


@dataclass(frozen=True)
class OwnScores:
    """Own scores of one kind: rows and queries, int64 [A] each."""

    rows: Tensor
    queries: Tensor

    def of(self, scores: Tensor) -> Tensor:
        """[A], of scores [N, Q]."""
        return scores[self.rows, self.queries]


@dataclass(frozen=True)
class QueryTargets(Targets):
    """What is asked in a view. ``labels`` have no columns; ``rows`` are of an evaluation the queries of a split that this
    worker measures.

    Attributes:
        answers: the answers that are own rows.
        left_out: other known answers that are own rows.
        outside: bool [N, Q], own rows that are no node of the type that is asked for; None: all nodes are.
        negatives: the negatives that are own rows, by their places among [Q, K]; None: all other nodes are negatives.
        weights: [Q].
        counts: [Q, K], 0 where there is no such negative, else 1.
    """

    answers: OwnScores = field(kw_only=True)
    left_out: OwnScores = field(kw_only=True)
    outside: Tensor | None = field(kw_only=True)
    negatives: OwnScores | None = field(default=None, kw_only=True)
    weights: Tensor = field(kw_only=True)
    counts: Tensor | None = field(default=None, kw_only=True)


class _Total(torch.autograd.Function):
    """The sum over all workers, of which each then makes the same: see the module's text."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group) -> Tensor:
        return group.sum_(own.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class QueryTask(DealtPairs):
    """Asks a module for answers."""

    @classmethod
    def check(cls, config: RunConfig, dataset: Dataset) -> None:
        pairs = dataset.pairs
        if pairs is None or pairs.labels is not None:
            raise ConfigError(
                f"'{dataset.name}' has no links to ask for.",
                given="task=queries",
                hint="dataset=triples, or dataset.link_split=[0.85,0.05,0.1]",
            )
        if pairs.negatives:
            raise ConfigError(
                f"'{dataset.name}' gives negatives that all links of a split are measured against, and each query has a rank.",
                given="task=queries",
                hint="task=links",
            )
        check_counts(config, pairs, "pairs")
        most = QueryCounts(config.links, pairs.count("train")).most
        if isinstance(config.batches.count, int) and config.batches.count > most:
            raise ConfigError(
                "There are more micro-batches than links that a step asks for.",
                given=f"batches.count={config.batches.count}",
                allowed=f"1 to {most}",
                hint="links.queries=Q is what a step asks, in all its micro-batches",
            )
        inverses = _inverses(dataset)
        missing = [r.name for number, r in enumerate(dataset.schema.relations) if number not in inverses]
        if config.links.rank != "tail" and missing:
            raise ConfigError(
                "Heads are asked for by inverse relations, and the graph lacks some.",
                given=f"links.rank={config.links.rank}, no inverse of '{missing[0]}'",
                hint="dataset.add_inverse_edges=true, or links.rank=tail",
            )

    def __init__(self, config: RunConfig, part: Part, outputs: int, group: Group, *, reads_labels: bool = False) -> None:
        super().__init__(config, part, outputs, group)
        self.name, self._config, self.metric = "links", config.links, config.metric or "mrr"
        both_ways, relations = self._pairs.both_ways, len(part.schema.relations)
        inverses = inverse_relations(part.schema)
        self._inverse = np.arange(relations) if both_ways else np.full(relations, -1)
        for inverse, of in inverses.items():
            self._inverse[[inverse, of]] = of, inverse
        self._order = np.argsort(self._ids, kind="stable")
        self._sorted = self._ids[self._order]
        self._types = np.asarray(part.schema.offsets)
        self._answer_types = np.array([relation.destination for relation in part.schema.relations])
        _, tails, relation = self._ends(self._training)
        self._trained = self._known(np.asarray(self._pairs.heads)[self._training].astype(np.int64), tails, relation)
        known = self._pairs.known
        rows = np.repeat(np.arange(len(self._ids)), np.diff(known.indptr))
        relation = np.zeros_like(rows) if known.relation is None else np.asarray(known.relation).astype(np.int64)
        self._all = self._known(rows, np.asarray(known.tails), relation)
        self._sampler: Sampler | None = None
        if config.links.negatives:
            given = config.seed, self.directory, self._trained, part.in_degrees, self._ids
            self._sampler = Sampler(group, config.links, part.schema, *given)

    def counts(self) -> QueryCounts:
        """All workers must call it together."""
        return QueryCounts(self._config, int(self.group.sum_(torch.tensor(len(self._training)))))

    def known_labels(self) -> np.ndarray:
        return np.full(len(self._training), 2 if self._config.rank == "both" else 1)

    def _known(self, rows: np.ndarray, tails: np.ndarray, relation: np.ndarray) -> Known:
        """Answers of own rows, from links of own rows to tails (original ids), int64 each, and those of inverse relations that
        others have. All workers must call it together."""
        inverse = self._inverse[relation]
        asks = inverse >= 0
        turned, about = self.directory.send(tails[asks], np.stack([self._ids[rows[asks]], inverse[asks]], 1))
        every, others = np.concatenate([rows, turned]), np.concatenate([tails, about[:, 0]])
        return Known.of(every, others, np.concatenate([relation, about[:, 1]]), len(self._ids))

    def _asked(self, which: np.ndarray, step: int | None, given: Mapping[str, np.ndarray]) -> Asked:
        """The queries of own pairs (int64), with those of all workers, in an order that is the same on any world. All workers
        must call it together.

        Args:
            step: a training step, which has negatives; None: an evaluation.
            given: of tails and heads that are asked for, those that each pair's answer is ranked among, original ids, int64
                [pairs, K]; where there are some, only such ends are asked for. None of them: all nodes are.
        """
        heads, tails, relation = self._ends(which)
        weights = np.ones(len(which)) if self._pairs.weights is None else np.asarray(self._pairs.weights)[which]
        ends = [end for end in ("tail", "head") if self._config.rank in ("both", end)]
        ends = [end for end in ends if not given or end in given] or list(given)
        of_ends = {"tail": (heads, tails, relation), "head": (tails, heads, self._inverse[relation])}
        own = np.concatenate([np.stack(of_ends[end], 1) for end in ends])
        weights = np.concatenate([weights.astype(np.float64)] * len(ends))
        heads, tails, relation = np.ascontiguousarray(own.T)
        negatives = None
        if given:
            widest = max(given[end].shape[1] for end in ends)
            padded = [np.pad(given[end], ((0, 0), (0, widest - given[end].shape[1])), constant_values=-1) for end in ends]
            negatives = np.concatenate(padded)
        elif step is not None and self._sampler is not None:
            drawn = self._sampler.draw(heads, tails, relation, step)
            negatives = drawn.tails if drawn.are_none is None else np.where(drawn.are_none, -1, drawn.tails)
        if negatives is not None:
            own = np.concatenate([own, negatives], 1)
        every = gather_rows(self.group, torch.from_numpy(own)).numpy()
        all_weights = gather_rows(self.group, torch.from_numpy(weights)).numpy()
        order = np.lexsort(every[:, 2::-1].T)
        every = every[order]
        return Asked(every[:, 0], every[:, 1], every[:, 2], all_weights[order], None if negatives is None else every[:, 3:])

    def _own(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of some nodes (original ids, int64 [n]) are own rows, and which rows these are."""
        place = np.searchsorted(self._sorted, ids)
        here = np.flatnonzero(place < len(self._sorted))
        here = here[self._sorted[place[here]] == ids[here]]
        return here, self._order[place[here]]

    def _scores_of(self, ids: np.ndarray, queries: np.ndarray | None = None) -> OwnScores:
        """Of nodes, of each of the queries in their order or of the queries that are named."""
        here, rows = self._own(ids)
        of = here if queries is None else queries[here]
        return OwnScores(*(torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device) for numbers in (rows, of)))

    def _left_out(self, asked: Asked, known: Known) -> OwnScores:
        """Known answers other than the query's. All workers must call it together."""
        here, rows = self._own(asked.heads)
        others = known.of_queries(rows, asked.relations[here])
        about = np.stack([np.repeat(here, np.diff(others.indptr)), np.asarray(others.tails)], 1)
        queries, ids = gather_rows(self.group, torch.from_numpy(about)).numpy().T
        keeps = ids != asked.answers[queries]
        return self._scores_of(ids[keeps], queries[keeps])

    def _targets(self, asked: Asked, known: Known, rows: dict[str, Tensor], counts: dict[str, int]) -> QueryTargets:
        """All workers must call it together."""
        count, heads = len(asked.heads), self._scores_of(asked.heads)
        is_head = torch.zeros(len(self._ids), count, dtype=self._dtype, device=self._device)
        is_head[heads.rows, heads.queries] = 1
        of_type = self._answer_types[asked.relations]
        outside = None
        if len(self._types) > 2:
            ids = torch.from_numpy(self._ids).to(self._device)[:, None]
            first, last = (torch.from_numpy(self._types[of_type + end]).to(self._device) for end in (0, 1))
            outside = (ids < first) | (ids >= last)
        negatives, are_some = None, None
        if asked.negatives is not None:
            negatives = self._scores_of(asked.negatives.ravel())
            are_some = self._on_device(asked.negatives >= 0)
        return QueryTargets(
            labels=self._no_labels(None),
            rows=rows,
            global_counts=counts,
            queries=Queries(torch.from_numpy(asked.relations.copy()).to(self._device), is_head),
            answers=self._scores_of(asked.answers),
            left_out=self._left_out(asked, known),
            outside=outside,
            negatives=negatives,
            weights=self._on_device(asked.weights),
            counts=are_some,
        )

    def training_targets(self, chosen: np.ndarray, step: int, total: int) -> QueryTargets:
        """Of some of this worker's training pairs (int64), of a step with so many queries. All workers must call it."""
        return self._targets(self._asked(self._training[chosen], step, {}), self._trained, {}, {"train": total})

    def edges_of(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The edges into own rows that are some training pairs (of each worker those of its own, int64), or their inverses:
        rows, original ids of sources and relations, int64 [n] each. All workers must call it together."""
        heads, tails, relation = self._ends(self._training[chosen])
        inverse = self._inverse[relation]
        turns = inverse >= 0
        sources, of = np.concatenate([heads, tails[turns]]), np.concatenate([relation, inverse[turns]])
        rows, about = self.directory.send(np.concatenate([tails, heads[turns]]), np.stack([sources, of], 1))
        return rows, about[:, 0], about[:, 1]

    def asked_targets(self, heads: np.ndarray, relation: int) -> QueryTargets:
        """Of (head, relation, ?) for each of some nodes (original ids, int64 [Q]), the same on all workers; known answers and
        the node itself are left out. All workers must call it together."""
        asked = Asked(heads, heads, np.full(len(heads), relation), np.ones(len(heads)))
        return self._targets(asked, self._all, {}, {})

    def best(self, outputs: Tensor, targets: QueryTargets, count: int) -> tuple[Tensor, Tensor]:
        """Each query's ``count`` best answers: original ids, int64 [Q, K], the best first, of equal scores the smallest id, -1
        where there are no more; and scores [Q, K]. All workers must call it together.
        """
        scores = self._candidates(outputs, targets)
        scores[targets.answers.rows, targets.answers.queries] = -torch.inf
        ids = torch.from_numpy(self._ids).to(self._device).expand(scores.shape[1], -1)
        own = best_of(scores.T, ids, count)
        lacking = 0, count - own[0].shape[1]
        padded = pad(own[0], lacking, value=-torch.inf), pad(own[1], lacking, value=-1)
        every = [torch.cat(self.group.gather(table), 1) for table in padded]
        best, answers = best_of(every[0], every[1], count)
        return answers.where(best > -torch.inf, -1), best

    def scores_of(self, outputs: Tensor, tails: np.ndarray, queries: np.ndarray) -> Tensor:
        """[n], of nodes (original ids, int64 [n]) and numbers of queries. All workers must call it together."""
        here, rows = self._own(tails)
        scores = outputs.new_zeros(len(tails))
        scores[here] = outputs[rows, queries[here]]
        return self.group.sum_(scores)

    def measured_pairs(self) -> dict[str, list[int]]:
        """Split -> how many of its pairs each worker has [P]. All workers must call it together."""
        counts = torch.tensor([len(self._pairs.of_split(split)) for split in MEASURED])
        return dict(zip(MEASURED, torch.stack(self.group.gather(counts), 1).tolist(), strict=True))

    def measured_targets(self, split: str, some: slice) -> QueryTargets:
        """Of some of a split's pairs that this worker has. All workers must call it together."""
        ends = {"tail": self._pairs.candidates, "head": self._pairs.head_candidates}
        given = {end: np.asarray(candidates[split][some]) for end, candidates in ends.items() if split in candidates}
        asked = self._asked(self._pairs.of_split(split)[some], None, given)
        count, world = len(asked.heads), self.group.world
        own = torch.arange(len(range(self.group.rank, count, world)))
        rows = {name: own if name == split else own[:0] for name in MEASURED}
        return replace(self._targets(asked, self._all, rows, {split: count}), labels=self._no_labels(own))

    def loss(self, outputs: Tensor, targets: Targets, counted: Counted) -> Tensor:
        assert isinstance(targets, QueryTargets)
        total, world = max(counted.total(targets), 1), self.group.world
        positives = self._total(targets.answers, outputs)
        if targets.negatives is None:
            losses = ((self._log_sum(outputs, targets) - positives) * targets.weights).sum()
        else:
            own, counts = targets.negatives, targets.counts
            assert counts is not None
            scores = outputs[own.rows, own.queries // counts.shape[1]]
            table = outputs.new_zeros(counts.numel()).index_add(0, own.queries, scores)
            negatives = _Total.apply(table, self.group).view_as(counts)
            losses = loss_sum(self._config, positives, negatives, targets.weights, counts)
        whole = losses / total
        return whole - whole.detach() * (1 - 1 / world)  # each worker's share of the number, and all of its gradient

    def _total(self, own: OwnScores, outputs: Tensor) -> Tensor:
        """[Q], of one score a query, which some worker has."""
        table = outputs.new_zeros(outputs.shape[1]).index_add(0, own.queries, own.of(outputs))
        out: Tensor = _Total.apply(table, self.group)
        return out

    def _log_sum(self, outputs: Tensor, targets: QueryTargets) -> Tensor:
        """[Q]: log sum over all workers' nodes of exp(s), but those that are no candidates."""
        scores = self._candidates(outputs, targets)
        own_top = scores.detach().amax(0) if len(scores) else scores.new_full((scores.shape[1],), -torch.inf)
        top = torch.stack(self.group.gather(own_top)).amax(0)
        total: Tensor = _Total.apply((scores - top).exp().sum(0), self.group)
        return top + total.log()

    def _candidates(self, outputs: Tensor, targets: QueryTargets) -> Tensor:
        """Scores [N, Q], -inf where a node is no candidate."""
        scores = outputs if targets.outside is None else outputs.masked_fill(targets.outside, -torch.inf)
        nothing = scores.new_full((), -torch.inf)
        return scores.index_put((targets.left_out.rows, targets.left_out.queries), nothing)

    def kept_of(self, outputs: Tensor, targets: Targets) -> Tensor:
        """Ranks of this worker's share of a view's queries, float64 [q, 1]; NaN where a score is not finite."""
        assert isinstance(targets, QueryTargets)
        group, answers, outputs = self.group, targets.answers, super().kept_of(outputs, targets)
        own = self._total(answers, outputs)
        wrong = (~outputs.isfinite()).sum(0)
        if (given := targets.negatives) is None:
            scores = self._candidates(outputs, targets)
            scores[answers.rows, answers.queries] = -torch.inf
            counts = torch.stack([(scores > own).sum(0), (scores == own).sum(0), wrong]).double()
        else:
            assert targets.counts is not None
            queries = given.queries // targets.counts.shape[1]
            scores, of = outputs[given.rows, queries], own[queries]
            counts = torch.stack([torch.zeros_like(wrong), torch.zeros_like(wrong), wrong]).double()
            counts[:2].index_add_(1, queries, torch.stack([scores > of, scores == of]).double())
        above, equal, wrong = group.sum_(counts)
        ranks = (1 + above + equal / 2).where(wrong == 0, torch.nan)
        return ranks[group.rank :: group.world, None]

    def metrics(self, outputs: Tensor, targets: Targets) -> Scores:
        """``outputs``: of ``kept_of``, of all views."""
        rows = [targets.rows[split].to(outputs.device) for split in MEASURED]
        self.measured = {
            split: measure_ranks(self.group, outputs[of, 0].double(), hits_of(self.metric))
            for split, of in zip(MEASURED, rows, strict=True)
        }
        return {"train": None, **{split: values.get(self.metric) for split, values in self.measured.items()}}


def _inverses(dataset: Dataset) -> set[int]:
    """Relations that have an inverse in the graph."""
    if dataset.pairs is not None and dataset.pairs.both_ways:
        return set(range(len(dataset.schema.relations)))
    inverses = inverse_relations(dataset.schema)
    return {*inverses, *inverses.values()}
