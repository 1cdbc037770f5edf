"""OGB's datasets of links, from small folders in their layout: what OGB's own class reads of them; and what is refused."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.errors import DataError
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.sources.ogb.named import address_of, ogb_named
from sargnn.sources.prepare import prepare_dataset
from sargnn.sources.settings import OgbConfig
from tests.sources.ogb_files import ogbs_own, write_gz
from tests.sources.pair_sets import edges_in_order, edges_of, known_of, pairs_of, turned
from tests.sources.stores import write_and_read

NAMES = {"ogbl-collab": "time", "ogbl-ppa": "throughput", "ogbl-citation2": "time", "ogbl-ddi": "target"}
"""With their splits."""
N = 40
Split = dict[str, dict[str, np.ndarray]]


def config(name: str, root: Path, **changes: Any) -> OgbConfig:
    inverse = name != "ogbl-citation2"  # as OGB's own class
    plain: dict[str, Any] = {"add_inverse_edges": inverse, "normalize_features": False, "download": False}
    return OgbConfig(name=name, root=str(root), **{**plain, **changes})


def read(name: str, root: Path, **changes: Any) -> Dataset:
    return write_and_read(ogb_named(config(name, root, **changes)))


def split_of(name: str) -> Split:
    rng = np.random.default_rng(0)

    def ends(count: int) -> np.ndarray:
        every = np.array([(a, b) for a in range(N) for b in range(a + 1, N)])
        return every[rng.permutation(len(every))[:count]]

    links = ends(110)
    parts = dict(zip(SPLITS, np.split(links, [90, 100]), strict=True))
    if name == "ogbl-citation2":
        return {
            split: {"source_node": own[:, 0], "target_node": own[:, 1]}
            | ({} if split == "train" else {"target_node_neg": rng.integers(0, N, (10, 6))})
            for split, own in parts.items()
        }
    split: Split = {key: {"edge": own} | ({} if key == "train" else {"edge_neg": ends(15)}) for key, own in parts.items()}
    if name == "ogbl-collab":  # the first pair again in another year, and the last of the test
        split["train"]["edge"] = np.concatenate([links[:90], links[:1, ::-1], links[-1:]])
        for own in split.values():
            own |= {"weight": rng.integers(1, 5, len(own["edge"])), "year": rng.integers(1990, 2019, len(own["edge"]))}
    return split


def folder_of(name: str, root: Path, save: Callable[[Any, Path], None] = torch.save) -> tuple[Split, Path]:
    """A small graph in the dataset's layout; what its split holds."""
    folder, split = root / name.replace("-", "_"), split_of(name)
    train = split["train"]
    edges = train["edge"] if "edge" in train else np.stack([train["source_node"], train["target_node"]], 1)
    tables: dict[str, Any] = {"edge": edges, "num-node-list": [[N]], "num-edge-list": [[len(edges)]]}
    if name != "ogbl-ddi":
        tables["node-feat"] = np.random.default_rng(1).random((N, 3)).astype(np.float32)
    if name == "ogbl-collab":
        tables |= {"edge_weight": train["weight"][:, None], "edge_year": train["year"][:, None]}
    if name == "ogbl-citation2":
        tables["node_year"] = np.full((N, 1), 2000)
    for table, rows in tables.items():
        write_gz(folder / "raw" / f"{table}.csv.gz", "".join(",".join(map(str, row)) + "\n" for row in rows))
    for part in ("processed", f"split/{NAMES[name]}"):
        (folder / part).mkdir(parents=True)
    for key, arrays in split.items():
        save(arrays, folder / "split" / NAMES[name] / f"{key}.pt")
    (folder / "RELEASE_v1.txt").write_text("")
    return split, folder


def save_as_numpy_1(content: Any, path: Path) -> None:
    """In PyTorch's first format, with the names that NumPy 1 gave, as OGB's files were written."""
    torch.save(content, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"numpy._core", b"numpy.core"))
    assert b"numpy.core.multiarray" in path.read_bytes()


def save_tensors(content: Any, path: Path) -> None:
    torch.save({name: torch.from_numpy(array) for name, array in content.items()}, path)


def held(part: dict[str, np.ndarray]) -> np.ndarray:
    return part["edge"] if "edge" in part else np.stack([part["source_node"], part["target_node"]], 1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_equals_ogbs_own_class(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges, weights, features and pairs. The graph stays as it is published, also where a link of later years is an edge."""
    folder_of(name, tmp_path)
    ours = read(name, tmp_path)
    graph, split = ogbs_own(name, tmp_path, monkeypatch)
    assert ours.num_nodes == graph["num_nodes"] and ours.pairs is not None
    wanted = [*map(tuple, graph["edge_index"].T.tolist())]
    if name == "ogbl-collab":
        weights = graph["edge_weight"][:, 0].tolist()
        assert ours.columns.weight is not None and ours.pairs.weights is not None
        carried = zip(edges_in_order(ours), ours.columns.weight.tolist(), strict=True)
        assert sorted(carried) == sorted(zip(wanted, weights, strict=True))
    assert edges_of(ours) == sorted(wanted)
    if graph["node_feat"] is None:
        assert ours.feature_widths == (0,)
    else:
        assert np.array_equal(ours.features[0], graph["node_feat"])
    for key in SPLITS:
        links, repeats = [*map(tuple, held(split[key]).tolist())], 1 if name == "ogbl-collab" and key == "train" else 0
        if repeats:
            links.remove(links[0][::-1])
        assert pairs_of(ours.pairs, key) == links
        if key != "train" and name == "ogbl-citation2":
            assert np.array_equal(ours.pairs.candidates[key], split[key]["target_node_neg"])
        elif key != "train":
            assert np.array_equal(ours.pairs.negatives[key], split[key]["edge_neg"])
    assert ours.pairs.both_ways == (name != "ogbl-citation2")


def test_weights_of_collab(tmp_path: Path) -> None:
    """Those of years are added up; the ones of validation and test are not read."""
    split, _ = folder_of("ogbl-collab", tmp_path)
    dataset, weights = read("ogbl-collab", tmp_path), split["train"]["weight"]
    pairs = dataset.pairs
    assert pairs is not None and pairs.weights is not None and pairs.weights[0] == weights[0] + weights[90]
    assert np.array_equal(pairs.weights[1:91], np.concatenate([weights[1:90], weights[91:]]))
    assert (pairs.weights[91:] == 1).all() and len(pairs.weights) == 91 + 20
    assert tuple(split["test"]["edge"][-1].tolist()) in edges_of(dataset)


@pytest.mark.parametrize("name", NAMES)
def test_known_and_inverses(name: str, tmp_path: Path) -> None:
    """All links are known, with their inverses where links have no direction; inverse edges change nothing of that."""
    split, _ = folder_of(name, tmp_path)
    links = {pair for part in split.values() for pair in map(tuple, held(part).tolist())}
    wanted = links if name == "ogbl-citation2" else links | turned(links)
    count = len(held(split["train"]))
    for changes, edges in (({"add_inverse_edges": False}, count), ({"add_inverse_edges": True}, 2 * count)):
        dataset = read(name, tmp_path, **changes)
        assert dataset.pairs is not None and known_of(dataset.pairs) == wanted and dataset.num_edges == edges
    dataset = read(name, tmp_path, link_messages=False)
    assert dataset.pairs is not None and known_of(dataset.pairs) == wanted and not dataset.num_edges


@pytest.mark.parametrize("save", [save_as_numpy_1, save_tensors])
def test_forms_of_the_split_files(save: Callable[[Any, Path], None], tmp_path: Path) -> None:
    for name in ("ogbl-collab", "ogbl-citation2"):
        folder_of(name, tmp_path / "wanted")
        folder_of(name, tmp_path / "given", save)
        hashes = [read(name, tmp_path / folder).content_hash for folder in ("wanted", "given")]
        assert hashes[0] == hashes[1]


def test_counts_may_be_missing(tmp_path: Path) -> None:
    _, folder = folder_of("ogbl-ppa", tmp_path)
    wanted = read("ogbl-ppa", tmp_path).content_hash
    for name in ("num-node-list", "num-edge-list"):
        (folder / "raw" / f"{name}.csv.gz").unlink()
    assert read("ogbl-ppa", tmp_path).content_hash == wanted


def test_through_the_store(tmp_path: Path) -> None:
    """Once the store is made the raw files may go; other messages are another store."""
    _, folder = folder_of("ogbl-ddi", tmp_path)
    store = prepare_dataset(config("ogbl-ddi", tmp_path), str(tmp_path / "stores"))
    folder.rename(tmp_path / "gone")
    assert prepare_dataset(config("ogbl-ddi", tmp_path), str(tmp_path / "stores")) == store
    with pytest.raises(DataError, match="dataset.download=true"):
        prepare_dataset(config("ogbl-ddi", tmp_path, link_messages=False), str(tmp_path / "stores"))


def test_addresses() -> None:
    assert [Path(address_of(name)).name for name in NAMES] == ["collab.zip", "ppassoc.zip", "citation-v2.zip", "ddi.zip"]


class Evil:
    def __reduce__(self) -> Any:
        return print, ("no",)


def put(key: str, split: str, array: Any) -> Callable[[Split], None]:
    """Changes an array of a split."""

    def change(parts: Split) -> None:
        parts[split][key] = array if isinstance(array, np.ndarray) else array(parts[split][key])

    return change


def without(key: str, split: str) -> Callable[[Split], None]:
    def change(parts: Split) -> None:
        del parts[split][key]

    return change


WRONG: dict[str, tuple[str, Callable[[Split], None], tuple[str, ...]]] = {
    "no negatives": ("ogbl-ppa", without("edge_neg", "valid"), ("valid.pt", "no array 'edge_neg'", "edge")),
    "no pairs": ("ogbl-ppa", without("edge", "train"), ("train.pt", "no array 'edge'")),
    "no candidates": ("ogbl-citation2", without("target_node_neg", "test"), ("test.pt", "no array 'target_node_neg'")),
    "pairs on their side": ("ogbl-ddi", put("edge", "test", np.transpose), ("test.pt", "'edge'", "[2, 10]", "['any', 2]")),
    "fractions": ("ogbl-ddi", put("edge_neg", "test", lambda array: array * 1.0), ("test.pt", "'edge_neg'", "float64")),
    "a node too many": ("ogbl-ppa", put("edge", "valid", lambda a: a + N), ("valid.pt", "'edge'", "row 1", f"0 to {N - 1}")),
    "few targets": (
        "ogbl-citation2",
        put("target_node", "train", lambda a: a[1:]),
        ("train.pt", "target", "90, 89"),
    ),
    "few candidates": (
        "ogbl-citation2",
        put("target_node_neg", "valid", lambda a: a[1:]),
        ("valid.pt", "[9, 6]", "[10, 'any']"),
    ),
    "few weights": ("ogbl-collab", put("weight", "train", lambda a: a[1:]), ("train.pt", "weight", "91, 92")),
    "a weight that is none": (
        "ogbl-collab",
        put("weight", "train", lambda a: a * np.nan),
        ("train.pt", "not finite", "pair 0"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_splits(case: str, tmp_path: Path) -> None:
    name, change, words = WRONG[case]
    split, folder = folder_of(name, tmp_path)
    change(split)
    for key, arrays in split.items():
        torch.save(arrays, folder / "split" / NAMES[name] / f"{key}.pt")
    with pytest.raises(DataError) as caught:
        read(name, tmp_path)
    assert all(word in str(caught.value) for word in words), caught.value


def test_wrong_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = folder_of("ogbl-collab", tmp_path)
    file = folder / "split" / "time" / "valid.pt"
    whole = file.read_bytes()

    def refused(*words: str) -> None:
        with pytest.raises(DataError) as caught:
            read("ogbl-collab", tmp_path)
        assert all(word in str(caught.value) for word in words), caught.value

    file.write_bytes(whole[:-200])
    refused("valid.pt", "cannot be read")
    torch.save({"edge": Evil()}, file)
    refused("valid.pt", "cannot be read")
    assert "no" not in capsys.readouterr().out.split()
    torch.save([1, 2], file)
    refused("valid.pt", "arrays by name", "list")
    file.write_bytes(whole)
    write_gz(folder / "raw" / "edge_weight.csv.gz", "1\n")
    refused("edge_weight.csv.gz", "1 rows", "92 rows")
    write_gz(folder / "raw" / "edge.csv.gz", f"0,1\n0,{N}\n")
    write_gz(folder / "raw" / "num-edge-list.csv.gz", "2\n")
    refused("edge.csv.gz", "row 2", f"0 to {N - 1}")
    file.unlink()
    (folder / "raw" / "node-feat.csv.gz").unlink()
    (folder / "raw" / "num-node-list.csv.gz").unlink()
    refused("no split/time/valid.pt", "no raw/num-node-list.csv.gz", "OGB's layout of links")


def test_an_archive_beside_the_root(tmp_path: Path) -> None:
    """Is unpacked, as those of nodes are; nothing is fetched."""
    _, folder = folder_of("ogbl-ddi", tmp_path / "wanted")
    with zipfile.ZipFile(tmp_path / "ddi.zip", "w") as archive:
        for file in folder.rglob("*.*"):
            if file.is_file():
                archive.write(file, Path("ddi") / file.relative_to(folder))
    wanted = read("ogbl-ddi", tmp_path / "wanted")
    assert read("ogbl-ddi", tmp_path).content_hash == wanted.content_hash
