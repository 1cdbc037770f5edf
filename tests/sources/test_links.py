"""Links that are drawn from a graph's edges: which split a pair is in, what stays a message, and what parts have."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError, DataError, StoreError
from sargnn.graph.dataset import Dataset, by_destination, open_dataset, write_dataset
from sargnn.graph.pairs import Pairs
from sargnn.graph.schema import SPLITS, Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.partition.cut import parts_of
from sargnn.partition.pairs import PartPairs
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.store import open_part
from sargnn.run.check import partition_of
from sargnn.sources import links
from sargnn.sources.links import draw_links, splits_of
from sargnn.sources.prepare import dataset_path, prepare_dataset
from tests.configs import config
from tests.graphs import NUM_CLASSES, assign, nasty_graph, typed_graph, with_weights
from tests.partition.cuts import two_ways

SHARES = [0.5, 0.2, 0.2]
Pair = tuple[int, int, int]
"""Head, tail and relation."""


def of_edges(sources: np.ndarray, destinations: np.ndarray, num_nodes: int = 300) -> Dataset:
    indptr, indices = by_destination(sources, destinations, num_nodes)
    return dataclasses.replace(nasty_graph(num_nodes), indptr=indptr, indices=indices)


def edges_of(dataset: Dataset) -> list[Pair]:
    destinations = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    relation = np.zeros(dataset.num_edges, int) if dataset.relation is None else np.asarray(dataset.relation)
    return list(zip(np.asarray(dataset.indices).tolist(), destinations.tolist(), relation.tolist(), strict=True))


def pairs_of(dataset: Dataset) -> dict[Pair, int]:
    """Each pair's split."""
    pairs = dataset.pairs
    assert pairs is not None
    relation = np.zeros(len(pairs.heads), int) if pairs.relation is None else pairs.relation
    keys = zip(pairs.heads.tolist(), pairs.tails.tolist(), relation.tolist(), strict=True)
    splits = dict(zip(keys, pairs.split.tolist(), strict=True))
    assert len(splits) == len(pairs.heads)  # each is there once
    return splits


def known_of(dataset: Dataset) -> set[tuple[int, int]]:
    assert dataset.pairs is not None
    known = dataset.pairs.known
    assert len(known.indptr) == dataset.num_nodes + 1
    return set(zip(np.repeat(np.arange(dataset.num_nodes), np.diff(known.indptr)).tolist(), known.tails.tolist(), strict=True))


def random_edges(count: int, num_nodes: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Without self-loops."""
    sources, destinations = np.random.default_rng(seed).integers(num_nodes, size=(2, count))
    return sources[sources != destinations], destinations[sources != destinations]


def test_neither_order_nor_direction_of_edges_matters() -> None:
    a, b = random_edges(2000)
    turned = np.random.default_rng(1).random(len(a)) < 0.5
    order = np.random.default_rng(2).permutation(len(a))
    heads, tails = np.where(turned, b, a)[order], np.where(turned, a, b)[order]
    assert np.array_equal(splits_of(heads, tails, SHARES, 3), splits_of(a, b, SHARES, 3)[order])
    both = of_edges(np.concatenate([a, b]), np.concatenate([b, a]))
    again = of_edges(np.concatenate([heads, tails]), np.concatenate([tails, heads]))
    assert pairs_of(draw_links(both, SHARES)) == pairs_of(draw_links(again, SHARES))
    one_way = pairs_of(draw_links(of_edges(a, b), SHARES))
    other_way = pairs_of(draw_links(of_edges(b, a), SHARES))
    assert one_way == {(head, tail, 0): split for (tail, head, _), split in other_way.items()}


def test_repeats_and_both_directions_go_together() -> None:
    a, b = random_edges(600, num_nodes=40)  # most of them several times, either way
    drawn = draw_links(of_edges(a, b, 40), SHARES)
    splits, messages = pairs_of(drawn), edges_of(drawn)
    there = {(tail, head) for head, tail, _ in splits}
    assert len({(head, tail) for head, tail, _ in splits} & there) > 50
    assert all(splits.get((tail, head, 0), split) == split for (head, tail, _), split in splits.items())
    held = {frozenset(pair[:2]) for pair, split in splits.items() if split != SPLITS["train"]}
    assert held and not held & {frozenset(edge[:2]) for edge in messages}
    left = [edge for edge in edges_of(of_edges(a, b, 40)) if frozenset(edge[:2]) not in held]
    assert messages == left  # all others, repeats too, in their order


def test_training_pairs_may_be_no_messages() -> None:
    graph = nasty_graph()
    with_them, without = draw_links(graph, SHARES), draw_links(graph, SHARES, messages=False)
    assert pairs_of(with_them) == pairs_of(without) and known_of(with_them) == known_of(without)
    pairs = {frozenset(pair[:2]) for pair in pairs_of(without)}
    messages = edges_of(without)
    assert not pairs & {frozenset(edge[:2]) for edge in messages}
    assert messages == [edge for edge in edges_of(graph) if frozenset(edge[:2]) not in pairs]
    trained = {pair for pair, split in pairs_of(with_them).items() if split == SPLITS["train"]}
    assert trained <= set(edges_of(with_them))


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_shares(seed: int) -> None:
    """Within five standard deviations of a binomial."""
    heads, tails = random_edges(200_000, num_nodes=2**32 - 1, seed=5)
    counts, n = np.bincount(splits_of(heads, tails, SHARES, seed), minlength=4), len(heads)
    for count, share in zip(counts, [1 - sum(SHARES), *SHARES], strict=True):
        assert abs(count - n * share) < 5 * np.sqrt(n * share * (1 - share))


def test_all_or_none() -> None:
    heads, tails = random_edges(10_000)
    assert set(splits_of(heads, tails, [0.7, 0.1, 0.2], 0)) == {1, 2, 3}  # they come to 1, but for rounding
    assert set(splits_of(heads, tails, [1, 0, 0], 0)) == {1}
    assert set(splits_of(heads, tails, [0.5, 0, 0.5], 0)) == {1, 3}


def test_another_seed_is_another_draw() -> None:
    heads, tails = random_edges(10_000)
    first, second = splits_of(heads, tails, SHARES, 0), splits_of(heads, tails, SHARES, 1)
    same, chance = float((first == second).mean()), sum(share**2 for share in [1 - sum(SHARES), *SHARES])
    assert abs(same - chance) < 0.03


def test_another_pair_changes_nothing_for_the_rest() -> None:
    a, b = random_edges(500)
    more = draw_links(of_edges(np.append(a, 298), np.append(b, 299)), SHARES)
    fewer = draw_links(of_edges(a, b), SHARES)
    assert pairs_of(more).items() >= pairs_of(fewer).items()
    assert set(pairs_of(more)) - set(pairs_of(fewer)) <= {(298, 299, 0)}
    assert set(edges_of(more)) - set(edges_of(fewer)) <= {(298, 299, 0)} and set(edges_of(fewer)) <= set(edges_of(more))


def test_self_loops_are_no_pairs_and_stay() -> None:
    graph = nasty_graph()
    drawn = draw_links(graph, [0.4, 0.3, 0.3], messages=True)
    loops = [edge for edge in edges_of(graph) if edge[0] == edge[1]]
    assert loops and loops == [edge for edge in edges_of(drawn) if edge[0] == edge[1]]
    assert all(head != tail for head, tail, _ in pairs_of(drawn)) and all(head != tail for head, tail in known_of(drawn))


def test_what_is_known_of_a_directed_graph() -> None:
    """All of its edges, also those in no split, as they point."""
    graph = nasty_graph()
    drawn = draw_links(graph, SHARES)
    assert drawn.pairs is not None and not drawn.pairs.both_ways and drawn.pairs.relation is None
    edges = {edge[:2] for edge in edges_of(graph) if edge[0] != edge[1]}
    assert known_of(drawn) == edges and len(pairs_of(drawn)) < len(edges)
    assert {pair[:2] for pair in pairs_of(drawn)} <= edges


def test_what_is_known_of_an_undirected_graph() -> None:
    """Either orientation; a pair is there once."""
    graph = two_ways()
    drawn = draw_links(graph, SHARES)
    assert drawn.pairs is not None and drawn.pairs.both_ways
    assert known_of(drawn) == {edge[:2] for edge in edges_of(graph) if edge[0] != edge[1]}
    assert all(head < tail for head, tail, _ in pairs_of(drawn))
    most = draw_links(graph, [1, 0, 0])
    assert {(a, b) for head, tail, _ in pairs_of(most) for a, b in ((head, tail), (tail, head))} == known_of(drawn)
    a, b = random_edges(500)
    one_edge_more = draw_links(of_edges(np.concatenate([a, b, [298]]), np.concatenate([b, a, [299]])), SHARES)
    assert one_edge_more.pairs is not None and not one_edge_more.pairs.both_ways


def test_edges_keep_what_they_carry() -> None:
    graph = with_weights(nasty_graph())
    drawn = draw_links(graph, SHARES)
    before, after = (sorted(zip(edges_of(each), each.columns["weight"].tolist(), strict=True)) for each in (graph, drawn))
    pairs = pairs_of(drawn)
    held = {frozenset(pair[:2]) for pair, split in pairs.items() if split != SPLITS["train"]}
    assert after == [entry for entry in before if frozenset(entry[0][:2]) not in held]


RELATIONS = ["writes", "cites", "has", "employs", "retracts", "under", "rev_writes", "of"]


def test_a_relation_and_its_inverse() -> None:
    """The inverse has no pairs, and loses the edges of those that are drawn; others lose none."""
    graph = typed_graph()
    assert sorted(relation.name for relation in graph.schema.relations) == sorted(RELATIONS)
    number = {relation.name: r for r, relation in enumerate(graph.schema.relations)}
    drawn = draw_links(graph, SHARES, relations=["writes"])
    splits, messages = pairs_of(drawn), edges_of(drawn)
    assert {relation for *_, relation in splits} == {number["writes"]}
    held = {pair[:2] for pair, split in splits.items() if split != SPLITS["train"]}
    assert held
    forward = {edge[:2] for edge in messages if edge[2] == number["writes"]}
    backward = {edge[1::-1] for edge in messages if edge[2] == number["rev_writes"]}
    assert not held & (forward | backward) and forward == backward != set()
    others = {number["writes"], number["rev_writes"]}
    assert [e for e in messages if e[2] not in others] == [e for e in edges_of(graph) if e[2] not in others]
    assert known_of(drawn) == {edge[:2] for edge in edges_of(graph) if edge[2] == number["writes"]}


def test_an_inverse_that_is_chosen_takes_the_relation_with_it() -> None:
    graph = typed_graph()
    number = {relation.name: r for r, relation in enumerate(graph.schema.relations)}
    drawn = draw_links(graph, SHARES, relations=["rev_writes"])
    held = {pair[:2] for pair, split in pairs_of(drawn).items() if split != SPLITS["train"]}
    assert held and not held & {edge[1::-1] for edge in edges_of(drawn) if edge[2] == number["writes"]}


def test_all_relations_but_inverses_have_links() -> None:
    graph = typed_graph()
    number = {relation.name: r for r, relation in enumerate(graph.schema.relations)}
    drawn = draw_links(graph, SHARES)
    assert drawn.pairs is not None and not drawn.pairs.both_ways and drawn.pairs.relation is not None
    assert {relation for *_, relation in pairs_of(drawn)} == set(range(8)) - {number["rev_writes"], number["retracts"]}
    held = {pair for pair, split in pairs_of(drawn).items() if split != SPLITS["train"]}
    messages = edges_of(drawn)
    turned = {(tail, head, number["writes"]) for head, tail, relation in messages if relation == number["rev_writes"]}
    assert not held & (set(messages) | turned)


def test_a_name_alone_makes_no_inverse() -> None:
    """``rev_NAME`` between other types is a relation like any other."""
    likes = Edges(Relation(0, "likes", 1), np.arange(30) % 10, np.arange(30) % 12)
    other = Edges(Relation(0, "rev_likes", 1), np.arange(30) % 10, np.arange(30) % 12)
    rows = [np.zeros((count, 2), np.float32) for count in (10, 12)]
    labels, split = np.zeros(12, np.int64), np.ones(12, np.uint8)
    graph = typed_dataset("likes", NUM_CLASSES, ["a", "b"], rows, [likes, other], 1, labels, split)
    assert {relation for *_, relation in pairs_of(draw_links(graph, SHARES))} == {0, 1}
    only = draw_links(graph, SHARES, relations=["likes"])
    kept = next(r for r, relation in enumerate(graph.schema.relations) if relation.name == "rev_likes")
    assert [e for e in edges_of(only) if e[2] == kept] == [e for e in edges_of(graph) if e[2] == kept]


def with_more(dataset: Dataset) -> Dataset:
    """Weights, negatives of one split and candidates of the other, as given pairs have."""
    pairs, rng = dataset.pairs, np.random.default_rng(0)
    assert pairs is not None
    return dataclasses.replace(
        dataset,
        pairs=dataclasses.replace(
            pairs,
            weights=rng.random(len(pairs.heads)).astype(np.float32),
            negatives={"valid": rng.integers(dataset.num_nodes, size=(70, 2))},
            candidates={"test": rng.integers(dataset.num_nodes, size=(pairs.count("test"), 4))},
        ),
    )


GRAPHS = {
    "directed": lambda: with_more(draw_links(nasty_graph(), SHARES)),
    "undirected": lambda: draw_links(two_ways(), SHARES),
    "typed": lambda: with_more(draw_links(typed_graph(), SHARES)),
}


def arrays_of(pairs: Pairs | PartPairs) -> dict[str, np.ndarray]:
    arrays = {name: getattr(pairs, name) for name in ("heads", "tails", "split", "relation", "weights")}
    arrays |= {f"{split} negatives": ends for split, ends in pairs.negatives.items()}
    arrays |= {f"{split} candidates": tails for split, tails in pairs.candidates.items()}
    arrays |= {f"known {name}": getattr(pairs.known, name) for name in ("indptr", "tails", "relation")}
    return {name: np.asarray(array) for name, array in arrays.items() if array is not None}


def assert_same(first: Pairs | PartPairs | None, second: Pairs | PartPairs | None) -> None:
    assert first is not None and second is not None and first.both_ways == second.both_ways
    one, other = arrays_of(first), arrays_of(second)
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype and np.array_equal(array, other[name]), name


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_store_gives_them_back(kind: str, tmp_path: Path) -> None:
    graph = GRAPHS[kind]()
    write_dataset(tmp_path / "store", graph, made_by={})
    stored = open_dataset(tmp_path / "store", verify=True)
    assert_same(stored.pairs, graph.pairs)
    assert edges_of(stored) == edges_of(graph)


def test_a_store_whose_known_links_are_of_no_relation(tmp_path: Path) -> None:
    """As they were before 2026-12: what one relation links was known of all."""
    graph = GRAPHS["typed"]()
    assert graph.pairs is not None
    mixed = dataclasses.replace(graph.pairs, known=dataclasses.replace(graph.pairs.known, relation=None))
    write_dataset(tmp_path / "store", dataclasses.replace(graph, pairs=mixed), made_by={})
    with pytest.raises(StoreError, match="earlier version"):
        open_dataset(tmp_path / "store", verify=True)


def test_a_graph_without_them_has_none(tmp_path: Path) -> None:
    write_dataset(tmp_path / "store", nasty_graph(), made_by={})
    assert open_dataset(tmp_path / "store", verify=True).pairs is None


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize(("partitioner", "world"), [("random", 1), ("random", 4), ("empty", 3), ("metis", 7)])
def test_each_pair_is_where_its_head_is(kind: str, partitioner: str, world: int) -> None:
    graph = GRAPHS[kind]()
    pairs = graph.pairs
    assert pairs is not None
    parts = parts_of(graph, assign(graph, partitioner, world), world)
    taken, negatives, known = [], [], set()
    for part in parts:
        own, ids = part.pairs, np.asarray(part.node_ids)
        assert own is not None and own.both_ways == pairs.both_ways and len(own.known.indptr) == len(ids) + 1
        columns = [ids[own.heads], own.tails, own.split, *(c for c in (own.relation, own.weights) if c is not None)]
        taken += list(zip(*(column.tolist() for column in columns), strict=True))
        for ends in own.negatives.values():
            negatives += list(zip(ids[ends[:, 0]].tolist(), ends[:, 1].tolist(), strict=True))
        rows = np.repeat(np.arange(len(ids)), np.diff(own.known.indptr))
        known |= set(zip(ids[rows].tolist(), own.known.tails.tolist(), strict=True))
        for split, tails in own.candidates.items():
            mine = np.isin(pairs.heads[pairs.split == SPLITS[split]], ids)
            assert np.array_equal(tails, pairs.candidates[split][mine])
    whole = [pairs.heads, pairs.tails, pairs.split, *(c for c in (pairs.relation, pairs.weights) if c is not None)]
    assert sorted(taken) == sorted(zip(*(column.tolist() for column in whole), strict=True))
    assert sorted(negatives) == sorted(map(tuple, pairs.negatives.get("valid", np.zeros((0, 2), int)).tolist()))
    assert known == known_of(graph)


def run_config(folder: Path, *words: str) -> RunConfig:
    return config("dataset.num_nodes=200", f"store_dir={folder}", "partitioner=random", "task=links", *words)


def test_stores_of_a_run(tmp_path: Path) -> None:
    """A draw is a store of its own beside the graph's; a partition's parts are those that are cut in memory."""
    run = run_config(tmp_path, "dataset.link_split=[0.5,0.2,0.2]", "world=3")
    assert dataset_path(run.dataset, str(tmp_path)) == (path := prepare_dataset(run.dataset, str(tmp_path)))
    assert len(list((tmp_path / "datasets").iterdir())) == 2
    info = prepare_partition(partition_of(run), path)
    dataset = open_dataset(path, verify=True)
    stored = [open_part(info.path, p) for p in range(3)]
    assignment = np.empty(dataset.num_nodes, np.int32)
    for p, part in enumerate(stored):
        assignment[np.asarray(part.node_ids)] = p
    for part, cut in zip(stored, parts_of(dataset, assignment, 3), strict=True):
        assert_same(part.pairs, cut.pairs)


@pytest.mark.parametrize("name", ["one way", "both ways", "typed", "weights"])
def test_pieces_in_files_change_nothing(name: str, tmp_path: Path) -> None:
    """A few rows at a time, mapped."""
    a, b = random_edges(900)
    graphs = {"typed": typed_graph(), "weights": with_weights(nasty_graph()), "one way": of_edges(a, b)}
    graph = graphs.get(name) or of_edges(np.append(a, b), np.append(b, a))
    whole = draw_links(graph, SHARES)
    with patch.object(links, "_PIECE", 40):
        pieces = draw_links(graph, SHARES, folder=tmp_path)
    assert_same(pieces.pairs, whole.pairs)
    assert isinstance(pieces.indices, np.memmap) and pieces.columns.forms == whole.columns.forms
    assert edges_of(pieces) == edges_of(whole)
    for column in whole.columns.forms:
        assert np.array_equal(pieces.columns[column], whole.columns[column])


@pytest.mark.parametrize("word", ["dataset.link_seed=1", "dataset.link_messages=false", "dataset.link_split=[0.5,0.2,0.1]"])
def test_another_draw_is_another_store(word: str, tmp_path: Path) -> None:
    run = run_config(tmp_path, "dataset.link_split=[0.5,0.2,0.2]")
    other = run_config(tmp_path, "dataset.link_split=[0.5,0.2,0.2]", word)
    assert prepare_dataset(run.dataset, str(tmp_path)) != prepare_dataset(other.dataset, str(tmp_path))
    assert run.config_hash != other.config_hash


def test_a_stored_graph(tmp_path: Path) -> None:
    """Its links are drawn wherever it lies, once; of a store that has pairs none are."""
    write_dataset(tmp_path / "plain", nasty_graph(), made_by={})
    words = "dataset=stored", "dataset.link_split=[0.5,0.2,0.2]", "task=links"
    path = prepare_dataset(config(*words, f"dataset.root={tmp_path / 'plain'}").dataset, str(tmp_path))
    assert_same(open_dataset(path, verify=True).pairs, draw_links(nasty_graph(), [0.5, 0.2, 0.2]).pairs)
    (tmp_path / "plain").rename(tmp_path / "elsewhere")
    assert prepare_dataset(config(*words, f"dataset.root={tmp_path / 'elsewhere'}").dataset, str(tmp_path)) == path
    with pytest.raises(ConfigError, match="with their split(.|\n)*leave dataset.link_split out"):
        prepare_dataset(config(*words, f"dataset.root={path}").dataset, str(tmp_path))


def test_what_cannot_be_drawn() -> None:
    graph = nasty_graph()
    with pytest.raises(ConfigError, match="no relation 'writs'(.|\n)*allowed: writes"):
        draw_links(typed_graph(), SHARES, relations=["writs"])
    with pytest.raises(ConfigError, match="no relation 'writes'(.|\n)*allowed: edge"):
        draw_links(graph, SHARES, relations=["writes"])
    with pytest.raises(DataError, match="None of the 0 links of 'typed'"):
        draw_links(typed_graph(), SHARES, relations=["retracts"])
    with pytest.raises(DataError, match="is drawn for training(.|\n)*1e-09"):
        draw_links(graph, [1e-9, 0.5, 0.4])
    with pytest.raises(DataError, match="No edge between two nodes(.|\n)*dataset.link_messages=true"):
        draw_links(graph, [0.8, 0.1, 0.1], messages=False)
    with patch.object(links, "MAX_ID", 299), pytest.raises(DataError, match="ids of 2\\*\\*32 and more"):
        draw_links(graph, SHARES)
