"""Negatives of links: drawn as often as they should be, the same on any number of workers, and no links where they are strict.

Seeds are fixed, so each test always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from sargnn.comm.directory import Directory
from sargnn.comm.group import Group
from sargnn.config.groups import LinksConfig
from sargnn.graph.pairs import Known
from sargnn.graph.schema import Schema
from sargnn.sources.links import draw_links
from sargnn.tasks.negatives import Negatives, Sampler
from tests.graphs import assign, knowledge_graph, nasty_graph, typed_graph
from tests.pool import pool

N = 40
"""Nodes of small graphs."""
LEAST = 1e-3
"""Probability of what a fair draw may give."""
NO_LINKS = Known(np.zeros(N + 1, np.int64), np.zeros(0, np.int64))
PLAIN = Schema.homogeneous(N)
TYPED = draw_links(typed_graph(), [0.6, 0.2, 0.2])
DIRECTED = draw_links(nasty_graph(), [0.6, 0.2, 0.2])
TRIPLES = draw_links(knowledge_graph(), [0.6, 0.2, 0.2])


def drawn(
    group: Group,
    links: LinksConfig,
    schema: Schema,
    known: Known,
    pairs: np.ndarray,
    *,
    step: int = 0,
    owner: np.ndarray | None = None,
    degrees: np.ndarray | None = None,
    measured: bool = False,
) -> Negatives:
    """Those of every ``world``-th pair, from this rank on.

    Args:
        pairs: int64 [P, 3], head, tail and relation.
        owner: [N], each node's rank.
        degrees: int64 [N].
    """
    n = schema.num_nodes
    ids = np.flatnonzero(np.zeros(n) == group.rank if owner is None else owner == group.rank)
    ids = np.random.default_rng(group.rank).permutation(ids)  # rows are in no order
    degrees = np.ones(n, np.int64) if degrees is None else degrees
    directory = Directory(group, ids, n)
    sampler = Sampler(group, links, schema, 5, directory, known.of_heads(ids), degrees[ids], ids)
    draw = sampler.draw_measured if measured else sampler.draw
    heads, tails, relation = pairs[group.rank :: group.world].T.copy()
    return draw(heads, tails, relation, step)


def alone(links: LinksConfig, schema: Schema, known: Known, pairs: np.ndarray, **more: Any) -> Negatives:
    return drawn(Group.single(), links, schema, known, pairs, **more)


def some_pairs(count: int, n: int = N) -> np.ndarray:
    """Each another one, of a graph with one relation: the same pair would have the same negatives."""
    heads, tails = np.divmod(np.random.default_rng(1).choice(n * n, size=count, replace=False), n)
    return np.stack([heads, tails, np.zeros(count, np.int64)], 1)


def pairs_of(dataset: Any) -> np.ndarray:
    pairs = dataset.pairs
    relation = np.zeros(len(pairs.heads), np.int64) if pairs.relation is None else pairs.relation.astype(np.int64)
    return np.stack([pairs.heads, pairs.tails, relation], 1)


def assert_drawn_in_proportion(nodes: np.ndarray, shares: np.ndarray) -> None:
    """By a chi-squared test. ``shares``: of all nodes."""
    counts = np.bincount(nodes.ravel(), minlength=len(shares))
    assert not counts[shares == 0].any()
    possible = shares > 0
    expected = shares[possible] / shares.sum() * nodes.size
    assert expected.min() > 5
    assert chisquare(counts[possible], expected).pvalue > LEAST


@pytest.mark.parametrize("corrupt", ["tail", "head", "ends"])
def test_uniform(corrupt: Any) -> None:
    pairs = some_pairs(1500)
    negatives = alone(LinksConfig(negatives=8, corrupt=corrupt), PLAIN, NO_LINKS, pairs)
    assert negatives.heads.shape == negatives.tails.shape == (1500, 8) and negatives.are_none is None
    for end, given, other in ((negatives.heads, pairs[:, 0], "tail"), (negatives.tails, pairs[:, 1], "head")):
        if corrupt == other:
            assert (end == given[:, None]).all()
        else:
            assert_drawn_in_proportion(end, np.ones(N))
    if corrupt == "ends":  # each end by itself
        assert_drawn_in_proportion(N * negatives.heads + negatives.tails, np.ones(N * N))


def test_one_of_both_ends() -> None:
    pairs = some_pairs(1500)
    negatives = alone(LinksConfig(negatives=15, corrupt="both"), PLAIN, NO_LINKS, pairs)
    other_head, other_tail = negatives.heads != pairs[:, :1], negatives.tails != pairs[:, 1:2]
    assert not (other_head & other_tail).any()
    count, same = negatives.heads.size, 1 / N  # a node may be drawn in its own place
    assert abs(int(other_head.sum()) - count * (1 - same) / 2) < 5 * np.sqrt(count / 4)
    assert abs(int(other_tail.sum()) - count * (1 - same) / 2) < 5 * np.sqrt(count / 4)
    assert_drawn_in_proportion(negatives.heads[other_head], np.ones(N))


@pytest.mark.parametrize("corrupt", ["tail", "head", "both", "ends"])
def test_ends_are_of_their_types(corrupt: Any) -> None:
    """Each end is drawn from its relation's type, uniformly."""
    schema = TYPED.schema
    for relation in np.unique(pairs_of(TYPED)[:, 2]):
        pairs = pairs_of(TYPED)[pairs_of(TYPED)[:, 2] == relation]
        links = LinksConfig(negatives=4000 // len(pairs), corrupt=corrupt)
        negatives = alone(links, schema, Known.none(schema.num_nodes), pairs)
        _, name, _ = kind = schema.relations[relation]
        for ends, place, node_type in ((negatives.heads, 0, kind.source), (negatives.tails, 1, kind.destination)):
            assert (schema.types_of(ends) == node_type).all(), name
            changed = ends[ends != pairs[:, place : place + 1]]
            assert (len(changed) > 0) == (corrupt in ("both", "ends", ("head", "tail")[place])), name
            if len(changed) and corrupt != "both":
                inside = np.arange(schema.num_nodes) >= schema.offsets[node_type]
                inside &= np.arange(schema.num_nodes) < schema.offsets[node_type + 1]
                assert_drawn_in_proportion(ends, inside.astype(float))


@pytest.mark.parametrize("power", [0.75, 1.0, 2.0])
def test_in_proportion_to_degree(power: float) -> None:
    """Nodes without an edge are never drawn."""
    degrees = np.arange(N) % 7
    negatives = alone(LinksConfig(negatives=20, degree_power=power), PLAIN, NO_LINKS, some_pairs(1000), degrees=degrees)
    assert_drawn_in_proportion(negatives.tails, degrees**power)


def test_in_proportion_to_degree_within_a_type() -> None:
    """Of a type that no edge ends in all nodes are as likely."""
    schema, degrees = TYPED.schema, np.diff(TYPED.indptr)
    names = [relation.name for relation in schema.relations]
    nothing = Known.none(schema.num_nodes)
    for name, corrupt in (("employs", "head"), ("employs", "tail"), ("cites", "tail")):
        relation = names.index(name)
        kind = schema.relations[relation]
        heads, tails = np.divmod(np.arange(1500), schema.count(kind.destination))  # each pair another one
        first = schema.offsets[kind.source], schema.offsets[kind.destination]
        pairs = np.stack([first[0] + heads, first[1] + tails, np.full(1500, relation)], 1)
        links = LinksConfig(negatives=10, corrupt=corrupt, degree_power=0.75)  # type: ignore[arg-type]
        negatives = alone(links, schema, nothing, pairs, degrees=degrees)
        node_type, ends = (kind.source, negatives.heads) if corrupt == "head" else (kind.destination, negatives.tails)
        nodes = np.arange(schema.num_nodes)
        inside = (nodes >= schema.offsets[node_type]) & (nodes < schema.offsets[node_type + 1])
        shares = np.where(inside, degrees**0.75, 0)
        assert shares.any() == (corrupt == "tail")
        assert_drawn_in_proportion(ends, shares if shares.any() else inside.astype(float))


HOW: dict[str, LinksConfig] = {
    "one tail": LinksConfig(),
    "strict": LinksConfig(negatives=3, corrupt="both", strict=True),
    "by degree": LinksConfig(negatives=2, corrupt="ends", degree_power=0.75),
    "shared": LinksConfig(negatives=4, corrupt="head", shared=True),
}


@pytest.mark.parametrize(("partitioner", "world"), [("metis", 2), ("random", 2), ("empty", 4), ("random", 4), ("metis", 7)])
@pytest.mark.parametrize("how", [*HOW, "measured"])
@pytest.mark.parametrize("dataset", [DIRECTED, TYPED, TRIPLES], ids=["directed", "typed", "triples"])
def test_the_same_on_any_workers(dataset: Any, how: str, partitioner: str, world: int) -> None:
    """However nodes are dealt out, and whoever has a pair."""
    pairs, owner = pairs_of(dataset), assign(dataset, partitioner, world)
    given = HOW.get(how, LinksConfig()), dataset.schema, dataset.pairs.known, pairs
    more = {"step": 3, "degrees": np.diff(dataset.indptr), "measured": how == "measured"}
    whole = alone(*given, **more)
    for rank, part in enumerate(pool(world)(_drawn_of, given, more | {"owner": owner})):
        for name in ("heads", "tails", "are_none"):
            own, expected = getattr(part, name), getattr(whole, name)
            assert (own is None) == (expected is None)
            assert own is None or np.array_equal(own, expected[rank::world]), name


def _drawn_of(group: Group, given: tuple[Any, ...], more: dict[str, Any]) -> Negatives:
    return drawn(group, *given, **more)


def is_known(known: Known, heads: np.ndarray, tails: np.ndarray, relation: np.ndarray) -> np.ndarray:
    n = len(known.indptr) - 1
    of = 0 if known.relation is None else known.relation.astype(np.int64) * n
    numbers = (of + np.repeat(np.arange(n), np.diff(known.indptr))) * n + known.tails
    return np.isin((relation * n + heads) * n + tails, numbers)


@pytest.mark.parametrize("corrupt", ["tail", "head", "both", "ends"])
@pytest.mark.parametrize("dataset", [DIRECTED, TRIPLES], ids=["directed", "triples"])
def test_strict_ones_are_no_links(dataset: Any, corrupt: Any) -> None:
    """Of the pair's relation; what another one links stays a negative."""
    known, pairs = dataset.pairs.known, pairs_of(dataset)
    of = pairs[:, 2:]
    loose = alone(LinksConfig(negatives=20, corrupt=corrupt), dataset.schema, known, pairs)
    assert is_known(known, loose.heads, loose.tails, of).any() and (loose.heads == loose.tails).any()
    strict = alone(LinksConfig(negatives=20, corrupt=corrupt, strict=True), dataset.schema, known, pairs)
    assert strict.are_none is not None and not strict.are_none.any()
    assert not is_known(known, strict.heads, strict.tails, of).any() and (strict.heads != strict.tails).all()
    good = ~is_known(known, loose.heads, loose.tails, of) & (loose.heads != loose.tails)
    assert np.array_equal(strict.heads[good], loose.heads[good]) and np.array_equal(strict.tails[good], loose.tails[good])


@pytest.mark.parametrize("draw", [alone, lambda *given: pool(2)(_drawn_of, given, {"owner": np.arange(6) % 2})[0]])
def test_where_all_nodes_are_linked(draw: Callable[..., Negatives]) -> None:
    """What is no negative after all attempts is marked, and nothing else."""
    heads, tails = (ends.ravel() for ends in np.meshgrid(np.arange(6), np.arange(6), indexing="ij"))
    everything = Known.of(heads, tails, None, 6)
    links, schema = LinksConfig(negatives=5, strict=True), Schema.homogeneous(6)
    negatives = draw(links, schema, everything, some_pairs(30, 6))
    assert negatives.are_none is not None and negatives.are_none.all()
    all_but_one = (heads != 0) | (tails != 5)
    known = Known.of(heads[all_but_one], tails[all_but_one], None, 6)
    negatives = draw(links, schema, known, some_pairs(30, 6))
    assert negatives.are_none is not None and 0 < (~negatives.are_none).sum()
    left = (negatives.heads == 0) & (negatives.tails == 5)
    assert np.array_equal(~negatives.are_none, left)


def test_no_known_link_at_all() -> None:
    negatives = alone(LinksConfig(negatives=5, strict=True), PLAIN, NO_LINKS, some_pairs(30))
    assert negatives.are_none is not None and not negatives.are_none.any()
    assert (negatives.heads != negatives.tails).all()


@pytest.mark.parametrize("corrupt", ["tail", "head"])
def test_shared_ones(corrupt: Any) -> None:
    """All pairs of a step have the same, and another step others."""
    links = LinksConfig(negatives=6, corrupt=corrupt, shared=True)
    first, second = (alone(links, PLAIN, NO_LINKS, some_pairs(50), step=step) for step in (0, 1))
    ends = [negatives.tails if corrupt == "tail" else negatives.heads for negatives in (first, second)]
    for rows in ends:
        assert (rows == rows[0]).all() and len(np.unique(rows[0])) > 1
    assert not np.array_equal(ends[0], ends[1])
    many = alone(LinksConfig(negatives=8000, corrupt=corrupt, shared=True), PLAIN, NO_LINKS, some_pairs(1))
    assert_drawn_in_proportion(many.tails if corrupt == "tail" else many.heads, np.ones(N))


def test_steps_and_repeats_differ() -> None:
    pairs = some_pairs(1500)
    first, second = (alone(LinksConfig(negatives=2), PLAIN, NO_LINKS, pairs, step=step).tails for step in (0, 1))
    for one_draw, other_draw in ((first, second), (first[:, 0], first[:, 1])):
        share = float((one_draw == other_draw).mean())
        assert abs(share - 1 / N) < 5 * np.sqrt(1 / N / one_draw.size)
    again = alone(LinksConfig(negatives=2), PLAIN, NO_LINKS, pairs, step=1)
    assert np.array_equal(again.tails, second)


def test_what_evaluations_are_measured_against() -> None:
    """One strict negative for each pair, both ends drawn, whatever training has."""
    known, pairs = DIRECTED.pairs.known, pairs_of(DIRECTED)  # type: ignore[union-attr]
    plain = alone(LinksConfig(), DIRECTED.schema, known, pairs, step=9, measured=True)
    other = alone(HOW["shared"], DIRECTED.schema, known, pairs, step=9, measured=True)
    for name in ("heads", "tails", "are_none"):
        assert np.array_equal(getattr(plain, name), getattr(other, name))
    assert plain.heads.shape == (len(pairs), 1)
    assert not is_known(known, plain.heads, plain.tails, pairs[:, 2:]).any() and (plain.heads != plain.tails).all()
    assert (plain.heads != pairs[:, :1]).mean() > 0.9 and (plain.tails != pairs[:, 1:2]).mean() > 0.9
    another = alone(LinksConfig(), DIRECTED.schema, known, pairs, step=10, measured=True)
    assert not np.array_equal(plain.tails, another.tails)
