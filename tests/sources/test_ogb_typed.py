"""OGB's typed raw layout, that of ogbn-mag: against OGB's own dataset class, and wrong files."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.ogb.named import ogb_dir
from sargnn.sources.settings import OgbDirConfig
from tests.sources.ogb_files import write_gz
from tests.sources.stores import edges_of, write_and_read

COUNTS = {"author": 7, "field_of_study": 4, "institution": 3, "paper": 9}
RELATIONS = {
    ("author", "affiliated_with", "institution"): 6,
    ("author", "writes", "paper"): 15,
    ("paper", "cites", "paper"): 12,
    ("paper", "has_topic", "field_of_study"): 11,
}
CONFIG = OgbDirConfig("ogb_dir", "", add_inverse_edges=False, normalize_features=False, add_self_loops=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All that OGB's own loader wants: markers, years and relation numbers too, which are of no use here."""
    rng = np.random.default_rng(4)
    root = tmp_path / "ogbn_mag"
    raw = root / "raw"
    types = ["paper", "author", "institution", "field_of_study"]  # not sorted
    write_gz(raw / "num-node-dict.csv.gz", ",".join(types) + "\n" + ",".join(str(COUNTS[t]) for t in types) + "\n")
    write_gz(raw / "triplet-type-list.csv.gz", "".join(",".join(t) + "\n" for t in reversed(RELATIONS)))
    write_gz(raw / "nodetype-has-label.csv.gz", ",".join(types) + "\n" + ",".join(str(t == "paper") for t in types) + "\n")
    for number, (triplet, count) in enumerate(RELATIONS.items()):
        base = raw / "relations" / "___".join(triplet)
        ends = zip(rng.integers(COUNTS[triplet[0]], size=count), rng.integers(COUNTS[triplet[2]], size=count), strict=True)
        write_gz(base / "edge.csv.gz", "".join(f"{a},{b}\n" for a, b in ends))
        write_gz(base / "num-edge-list.csv.gz", f"{count}\n")
        write_gz(base / "edge_reltype.csv.gz", f"{number}\n" * count)
    papers = rng.standard_normal((COUNTS["paper"], 5)).round(4)
    write_gz(raw / "node-feat/paper/node-feat.csv.gz", "".join(",".join(map(str, row)) + "\n" for row in papers))
    write_gz(raw / "node-feat/paper/node_year.csv.gz", "2015\n" * COUNTS["paper"])
    labels = [*range(4), *rng.integers(4, size=COUNTS["paper"] - 4)]
    write_gz(raw / "node-label/paper/node-label.csv.gz", "".join(f"{one}\n" for one in labels))
    write_gz(root / "split/time/nodetype-has-split.csv.gz", ",".join(types) + "\nTrue,False,False,False\n")
    for name, rows in (("train", "0\n1\n5\n"), ("valid", "2\n"), ("test", "3\n8\n")):
        write_gz(root / f"split/time/paper/{name}.csv.gz", rows)
    (root / "RELEASE_v2.txt").write_text("")
    (root / "processed").mkdir()
    return root


def read(folder: Path, **flags: Any) -> Dataset:
    return write_and_read(ogb_dir(dataclasses.replace(CONFIG, root=str(folder), **flags)))


@pytest.mark.filterwarnings("ignore")
def test_equals_ogbs_own_dataset(folder: Path) -> None:
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    from ogb.nodeproppred import NodePropPredDataset

    theirs = NodePropPredDataset("ogbn-mag", root=str(folder.parent))
    graph, labels = theirs[0]
    ours = read(folder)
    schema = ours.schema
    assert {t: schema.count(i) for i, t in enumerate(schema.node_types)} == graph["num_nodes_dict"] == COUNTS
    names = [(schema.node_types[r.source], r.name, schema.node_types[r.destination]) for r in schema.relations]
    assert names == list(graph["edge_index_dict"])
    for number, triplet in enumerate(names):
        assert edges_of(ours, number) == sorted(zip(*graph["edge_index_dict"][triplet].tolist(), strict=True))
    for number, node_type in enumerate(schema.node_types):
        if node_type in graph["node_feat_dict"]:
            assert np.array_equal(ours.features[number], graph["node_feat_dict"][node_type])
        else:
            assert ours.features[number].shape == (COUNTS[node_type], 0)
    papers = slice(*schema.offsets[schema.node_types.index("paper") :][:2])
    assert np.array_equal(ours.labels[papers], labels["paper"][:, 0])
    for name, rows in theirs.get_idx_split().items():
        assert np.array_equal(np.flatnonzero(ours.split[papers] == SPLITS[name]), np.sort(rows["paper"]))
    others = np.ones(ours.num_nodes, bool)
    others[papers] = False
    assert (ours.labels[others] == -1).all() and not ours.split[others].any()


def test_inverse_edges_are_relations_of_their_own(folder: Path) -> None:
    plain, both = read(folder), read(folder, add_inverse_edges=True)
    assert len(both.schema.relations) == 8 and both.num_edges == 2 * plain.num_edges
    for number, relation in enumerate(plain.schema.relations):
        inverse = both.schema.relations[number + 4]
        assert (inverse.source, inverse.destination) == (relation.destination, relation.source)
        assert inverse.name == f"rev_{relation.name}"
        assert edges_of(both, number + 4) == sorted((b, a) for a, b in edges_of(plain, number))


def test_the_store_keeps_it_all(folder: Path, tmp_path: Path) -> None:
    wanted = read(folder, add_inverse_edges=True)
    ogb_dir(dataclasses.replace(CONFIG, root=str(folder), add_inverse_edges=True)).write(tmp_path / "store", 0)
    found = open_dataset(tmp_path / "store", verify=True)
    assert found.schema == wanted.schema
    for name in ("labels", "split", "indptr", "indices", "relation"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name))
    for one, other in zip(found.features, wanted.features, strict=True):
        assert np.array_equal(one, other) and one.shape == other.shape


def test_a_relation_without_edges(folder: Path) -> None:
    base = folder / "raw/relations/author___affiliated_with___institution"
    write_gz(base / "edge.csv.gz", "")
    write_gz(base / "num-edge-list.csv.gz", "0\n")
    assert edges_of(read(folder), 0) == []


def test_homogenised(folder: Path) -> None:
    """Types without features get the mean of their neighbours that have some; institutions only know authors."""
    typed, plain = read(folder), read(folder, homogenize=True)
    assert not plain.schema.typed and plain.num_edges == typed.num_edges and plain.features[0].shape == (23, 5)
    offsets = typed.schema.offsets
    papers = typed.features[3]
    assert np.array_equal(plain.features[0][offsets[3] :], papers)
    authors = np.zeros((COUNTS["author"], 5))
    for author in range(COUNTS["author"]):
        rows = [papers[paper] for a, paper in edges_of(typed, 1) if a == author]
        authors[author] = np.mean(rows, 0) if rows else 0
    np.testing.assert_allclose(plain.features[0][: offsets[1]], authors, rtol=1e-5, atol=1e-6)
    for institution in range(COUNTS["institution"]):
        rows = [authors[a] for a, i in edges_of(typed, 0) if i == institution]
        want = np.mean(rows, 0) if rows else np.zeros(5)
        np.testing.assert_allclose(plain.features[0][offsets[2] + institution], want, rtol=1e-5, atol=1e-6)
    assert np.array_equal(plain.labels, typed.labels) and np.array_equal(plain.split, typed.split)


def test_homogenising_needs_features_of_one_width(folder: Path) -> None:
    write_gz(folder / "raw/node-feat/institution/node-feat.csv.gz", "1,2\n3,4\n5,6\n")
    with pytest.raises(DataError, match="(?s)one width.*institution: 2.*paper: 5"):
        read(folder, homogenize=True)


WRITES = "raw/relations/author___writes___paper"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (f"{WRITES}/edge.csv.gz", "0,1\n7,2\n" + "0,0\n" * 13, "edge.csv.gz.*of type author .*in row 2"),
        (f"{WRITES}/edge.csv.gz", "0,1\n1,9\n" + "0,0\n" * 13, "edge.csv.gz.*of type paper .*in row 2"),
        (f"{WRITES}/edge.csv.gz", "0,1\n", "edge.csv.gz.*shape"),
        (f"{WRITES}/edge.csv.gz", "0,x\n" * 15, "edge.csv.gz.*whole number in row 1"),
        ("raw/num-node-dict.csv.gz", "author,paper\n3\n", "num-node-dict.csv.gz"),
        ("raw/num-node-dict.csv.gz", "author,paper\n3,many\n", "num-node-dict.csv.gz.*their counts"),
        ("raw/num-node-dict.csv.gz", "author,author\n3,4\n", "distinct node types"),
        ("raw/num-node-dict.csv.gz", "author,paper\n3,\u00b2\n", "num-node-dict.csv.gz.*their counts"),
        ("raw/triplet-type-list.csv.gz", "author,writes,paper\nauthor,writes,paper\n", "a relation twice"),
        ("raw/triplet-type-list.csv.gz", "author,writes,book\n", "triplet-type-list.csv.gz.*no node types"),
        ("raw/triplet-type-list.csv.gz", "author,writes\n", "triplet-type-list.csv.gz.*no node types"),
        ("raw/nodetype-has-label.csv.gz", "paper,author\nTrue,True\n", "exactly one"),
        ("raw/nodetype-has-label.csv.gz", "paper,author\nFalse,False\n", "exactly one"),
        ("raw/node-feat/paper/node-feat.csv.gz", "1,1\n", "node-feat.csv.gz.*shape"),
        ("raw/node-label/paper/node-label.csv.gz", "0.5\n" * 9, "class in row 1"),
        (f"{WRITES}/num-edge-list.csv.gz", "7\n8\n", "num-edge-list.csv.gz.*one number.*2 rows"),
        (f"{WRITES}/edge.csv.gz", "0,1\n1,-1\n" + "0,0\n" * 13, "edge.csv.gz.*of type paper .*in row 2"),
        ("raw/num-node-dict.csv.gz", "author,paper\n3," + "9" * 5000 + "\n", "num-node-dict.csv.gz.*their counts"),
        ("raw/num-node-dict.csv.gz", "../author,paper\n3,4\n", "num-node-dict.csv.gz.*no folder can have.*'../author'"),
        ("raw/num-node-dict.csv.gz", "", "num-node-dict.csv.gz.*cannot be read"),
        ("raw/triplet-type-list.csv.gz", "author,../..,paper\n", "triplet-type-list.csv.gz.*no folder can have"),
        ("raw/node-label/paper/node-label.csv.gz", "0\n" * 8 + "1000000000\n", "node-label.csv.gz.*row 9.*label 1000000000"),
        ("raw/node-label/paper/node-label.csv.gz", "0\n" * 8 + "inf\n", "class in row 9.*given:   inf"),
        ("raw/node-feat/paper/node-feat.csv.gz", "1,1\n" * 8 + "1,1e30\n", "node-feat.csv.gz.*too large in row 9, column 2"),
        ("split/time/paper/test.csv.gz", "3,8\n", "test.csv.gz.*2 columns"),
        ("split/time/paper/test.csv.gz", "9\n", "test.csv.gz.*not exist in row 1"),
    ],
)
def test_wrong_files(folder: Path, file: str, text: str, words: str) -> None:
    write_gz(folder / file, text)
    with pytest.raises(DataError) as caught:
        read(folder)
    assert re.search(words, str(caught.value), re.S), str(caught.value)


def test_a_missing_relation_folder_is_named(folder: Path) -> None:
    shutil.rmtree(folder / WRITES)
    with pytest.raises(DataError, match="(?s)1 part is missing.*author___writes___paper/edge.csv.gz"):
        read(folder)
