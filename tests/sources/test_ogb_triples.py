"""OGB's knowledge graphs, from small folders in their layouts: what OGB's own class reads, ranks by its evaluator, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.comm.group import Group
from sargnn.config.groups import LinksConfig
from sargnn.config.run import RunConfig
from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.ogb.named import address_of, ogb_named
from sargnn.sources.settings import OgbConfig
from sargnn.tasks.links import LinkTask
from tests.parity import cases
from tests.pool import pool
from tests.sources.ogb_files import judge, ogbs_own, write_gz
from tests.sources.stores import write_and_read

NAMES = {"ogbl-wikikg2": "time", "ogbl-biokg": "random"}
COUNTS = {"disease": 12, "drug": 9, "protein": 20}
TRIPLETS = [
    ("drug", "drug-disease", "disease"),
    ("protein", "protein-protein_x", "protein"),
    ("disease", "disease-protein", "protein"),
]
"""By their numbers, which are not in the order of names."""
N, R, K = 40, 7, 6
Split = dict[str, dict[str, Any]]


def config(name: str, root: Path, **changes: Any) -> OgbConfig:
    plain: dict[str, Any] = {"add_inverse_edges": False, "normalize_features": False, "download": False}
    return OgbConfig(name=name, root=str(root), **{**plain, **changes})


def read(name: str, root: Path, **changes: Any) -> Dataset:
    return write_and_read(ogb_named(config(name, root, **changes)))


def split_of(name: str) -> Split:
    """Distinct triples; the last relation of ogbl-wikikg2 has none to train on."""
    rng, typed = np.random.default_rng(0), name == "ogbl-biokg"
    split: Split = {}
    every = {
        (
            int(r),
            int(rng.integers(COUNTS[TRIPLETS[r][0]] if typed else N)),
            int(rng.integers(COUNTS[TRIPLETS[r][2]] if typed else N)),
        )
        for r in rng.integers(3 if typed else R - 1, size=150)
    }
    triples = np.array(sorted(every))[rng.permutation(len(every))]
    for key, own in zip(SPLITS, np.split(triples, [90, 105]), strict=True):
        if key == "test" and not typed:
            own[0, 0] = R - 1
        relation, head, tail = own.T.copy()
        split[key] = {"head": head, "relation": relation, "tail": tail}
        ends = [(TRIPLETS[r][0], TRIPLETS[r][2]) if typed else ("", "") for r in relation]
        if typed:
            split[key] |= {"head_type": [a for a, _ in ends], "tail_type": [b for _, b in ends]}
        if key != "train":
            for column, end in enumerate(("head", "tail")):
                most = np.array([COUNTS[pair[column]] if typed else N for pair in ends])
                split[key][f"{end}_neg"] = (rng.random((len(own), K)) * most[:, None]).astype(np.int64)
    return split


def rows(array: Any) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in np.asarray(array).tolist())


def folder_of(name: str, root: Path, change: Callable[[Split], None] = lambda split: None) -> tuple[Split, Path]:
    folder, split = root / name.replace("-", "_"), split_of(name)
    train, raw = split["train"], folder / "raw"
    edges = np.stack([train["head"], train["tail"]], 1)
    if name == "ogbl-biokg":
        write_gz(raw / "num-node-dict.csv.gz", ",".join(COUNTS) + "\n" + ",".join(map(str, COUNTS.values())) + "\n")
        write_gz(raw / "triplet-type-list.csv.gz", "".join(",".join(triplet) + "\n" for triplet in TRIPLETS))
    else:
        write_gz(raw / "num-node-list.csv.gz", f"{N}\n")
    for r, triplet in enumerate(TRIPLETS if name == "ogbl-biokg" else [None]):
        own = np.flatnonzero(train["relation"] == r) if triplet else np.arange(len(edges))
        place = raw / "relations" / "___".join(triplet) if triplet else raw
        tables = {"edge": edges[own], "edge_reltype": train["relation"][own][:, None], "num-edge-list": [[len(own)]]}
        for table, content in tables.items():
            write_gz(place / f"{table}.csv.gz", rows(content))
    change(split)
    for part in ("processed", f"split/{NAMES[name]}"):
        (folder / part).mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("")
    for key, arrays in split.items():
        torch.save(arrays, folder / "split" / NAMES[name] / f"{key}.pt")
    return split, folder


def triples_of(dataset: Dataset, split: str) -> list[tuple[Any, ...]]:
    """(type, head, relation, type, tail, head candidates, tail candidates), numbers within types."""
    pairs, schema = dataset.pairs, dataset.schema
    assert pairs is not None and pairs.relation is not None
    own = np.flatnonzero(pairs.split == SPLITS[split])
    found = []
    for place, p in enumerate(own):
        of = schema.relations[pairs.relation[p]]
        first, last = schema.offsets[of.source], schema.offsets[of.destination]
        given = [(pairs.head_candidates, first), (pairs.candidates, last)]
        others = [tuple((ids[split][place] - begin).tolist()) for ids, begin in given] if split != "train" else []
        types = schema.node_types[of.source], schema.node_types[of.destination]
        found.append((types[0], pairs.heads[p] - first, of.name, types[1], pairs.tails[p] - last, *others))
    return sorted(found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_equals_ogbs_own_class(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(name, tmp_path)
    ours = read(name, tmp_path)
    graph, split = ogbs_own(name, tmp_path, monkeypatch)
    schema, typed = ours.schema, name == "ogbl-biokg"
    assert dict(zip(schema.node_types, np.diff(schema.offsets), strict=True)) == (COUNTS if typed else {"entity": N})
    names = {r: TRIPLETS[r] if typed else ("entity", f"r{r}", "entity") for r in range(3 if typed else R)}
    into = np.repeat(np.arange(ours.num_nodes), np.diff(ours.indptr))
    assert ours.relation is not None
    edges = set()
    for source, number, destination in zip(ours.indices, ours.relation, into, strict=True):
        of = schema.relations[number]
        edges.add((of.name, int(source) - schema.offsets[of.source], int(destination) - schema.offsets[of.destination]))
    if typed:
        wanted = {(t[1], a, b) for t, ends in graph["edge_index_dict"].items() for a, b in ends.T.tolist()}
    else:
        wanted = {
            (f"r{r}", a, b) for r, (a, b) in zip(graph["edge_reltype"][:, 0], graph["edge_index"].T.tolist(), strict=True)
        }
    assert edges == wanted
    for key, part in split.items():
        columns = [part["head"], part["relation"], part["tail"]]
        said = []
        for p, (head, r, tail) in enumerate(zip(*columns, strict=True)):
            others = [tuple(part[f"{end}_neg"][p].tolist()) for end in ("head", "tail")] if key != "train" else []
            said.append((names[r][0], head, names[r][1], names[r][2], tail, *others))
        assert triples_of(ours, key) == sorted(said)


def measured(group: Group, run: RunConfig, graph: Dataset) -> dict[str, Any]:
    trainer = cases.trainer_of(group, run, graph)
    task = trainer.task
    assert isinstance(task, LinkTask)
    outputs = trainer.evaluator.predictions().round(decimals=1)  # many ties
    with torch.no_grad():
        task.metrics(outputs, task.targets(None))
    weight = dict(task.decoder.named_parameters())["weight"].detach().numpy()
    return {"metrics": task.measured, "outputs": outputs.numpy(), "ids": trainer.ids.numpy(), "weight": weight}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranked", ["both", "head"])
def test_ranks_are_ogbs(name: str, ranked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same scores, both sides together; on one worker in pieces, and on three."""
    folder_of(name, tmp_path)
    dataset, evaluator = read(name, tmp_path), judge(name, monkeypatch)
    run = replace(cases.run_config(cases.model_config("none")), task="links", links=LinksConfig("distmult", 6, rank=ranked))
    monkeypatch.setattr("sargnn.tasks.links._MEASURED_AT_ONCE", 4 * K)
    alone = measured(Group.single(), run, dataset)
    rows = np.empty_like(alone["outputs"])
    rows[alone["ids"]] = alone["outputs"]
    pairs = dataset.pairs
    assert pairs is not None and pairs.relation is not None
    for split in ("valid", "test"):
        own = pairs.split == SPLITS[split]
        heads, of, tails = rows[pairs.heads[own]], alone["weight"][pairs.relation[own]], rows[pairs.tails[own]]
        scores = {"positive": torch.from_numpy((heads * of * tails).sum(1))}
        scores["head"] = torch.from_numpy(np.einsum("pkf,pf,pf->pk", rows[pairs.head_candidates[split]], of, tails))
        scores["tail"] = torch.from_numpy(np.einsum("pf,pf,pkf->pk", heads, of, rows[pairs.candidates[split]]))
        sides = ["head", "tail"] if ranked == "both" else ["head"]
        said = [
            evaluator.eval({"y_pred_pos": scores["positive"].round(decimals=9), "y_pred_neg": scores[s].round(decimals=9)})
            for s in sides
        ]
        got = alone["metrics"][split]
        for ours, theirs in (
            ("mrr", "mrr_list"),
            ("hits@1", "hits@1_list"),
            ("hits@3", "hits@3_list"),
            ("hits@10", "hits@10_list"),
        ):
            assert got[ours] == pytest.approx(torch.cat([each[theirs] for each in said]).double().mean().item(), rel=1e-6)
        assert got["mrr"] != got["hits@1"]
    for answer in pool(3)(measured, cases.with_world(run, 3), dataset):
        for split, values in alone["metrics"].items():
            assert answer["metrics"][split] == pytest.approx(values, rel=1e-12)


def test_inverse_relations_are_no_links(tmp_path: Path) -> None:
    folder_of("ogbl-biokg", tmp_path)
    plain, both = (read("ogbl-biokg", tmp_path, add_inverse_edges=added) for added in (False, True))
    assert both.num_edges == 2 * plain.num_edges and len(both.schema.relations) == 6
    assert both.pairs is not None and plain.pairs is not None
    assert np.array_equal(both.pairs.relation, plain.pairs.relation)  # type: ignore[arg-type]


def test_addresses() -> None:
    assert [Path(address_of(name)).name for name in NAMES] == ["wikikg-v2.zip", "biokg.zip"]


def put(split: str, key: str, change: Callable[[Any], Any]) -> Callable[[Split], None]:
    def apply(parts: Split) -> None:
        parts[split][key] = change(parts[split][key])

    return apply


WRONG: dict[str, tuple[str, Callable[[Split], None], tuple[str, ...]]] = {
    "unknown relation": (
        "ogbl-biokg",
        put("valid", "relation", lambda a: a + 1),
        ("valid.pt", "a relation that there is not", "3"),
    ),
    "negative relation": ("ogbl-wikikg2", put("train", "relation", lambda a: a - 7), ("train.pt", "relation that cannot be")),
    "another type": (
        "ogbl-biokg",
        put("test", "tail_neg", lambda a: a + 100),
        ("test.pt", "no node of its relation's type", "row 1 of 'tail_neg'"),
    ),
    "types that are others": (
        "ogbl-biokg",
        put("train", "head_type", lambda a: ["drug"] * len(a)),
        ("train.pt", "'head_type'", "drug in row"),
    ),
    "few types": ("ogbl-biokg", put("train", "tail_type", lambda a: a[1:]), ("train.pt", "'tail_type'", "types")),
    "no such node": ("ogbl-wikikg2", put("valid", "head", lambda a: a + N), ("valid.pt", "does not exist", f"0 to {N - 1}")),
    "few heads": ("ogbl-wikikg2", put("valid", "head", lambda a: a[1:]), ("valid.pt", "'head'", "[14]", "[15]")),
    "fractions": ("ogbl-wikikg2", put("test", "head_neg", lambda a: a * 1.0), ("test.pt", "'head_neg'", "float64")),
    "no candidates": ("ogbl-wikikg2", lambda parts: parts["test"].__delitem__("head_neg"), ("no array 'head_neg'",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_splits(case: str, tmp_path: Path) -> None:
    name, change, words = WRONG[case]
    folder_of(name, tmp_path, change)
    with pytest.raises(DataError) as caught:
        read(name, tmp_path)
    assert all(word in str(caught.value) for word in words), caught.value


def test_files_that_are_missing_or_differ(tmp_path: Path) -> None:
    _, folder = folder_of("ogbl-biokg", tmp_path)
    place = folder / "raw" / "relations" / "___".join(TRIPLETS[1])
    write_gz(place / "num-edge-list.csv.gz", "1\n")
    with pytest.raises(DataError, match=r"edge.csv.gz(.|\n)*1 rows, 2 columns"):
        read("ogbl-biokg", tmp_path)
    (place / "num-edge-list.csv.gz").unlink()
    (place / "edge_reltype.csv.gz").unlink()
    (folder / "split" / "random" / "test.pt").unlink()
    with pytest.raises(DataError, match=r"OGB's typed layout of triples(.|\n)*edge_reltype.csv.gz(.|\n)*test.pt"):
        read("ogbl-biokg", tmp_path)
