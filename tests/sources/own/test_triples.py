"""A knowledge graph as text: what is read of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sargnn.errors import ConfigError, DataError
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.graph.examine_edges import examine_edges
from sargnn.graph.schema import SPLITS
from sargnn.partition.cut import parts_of
from sargnn.sources.prepare import prepare_dataset
from tests.configs import config
from tests.conftest import SHARED

TEXTS = {
    "train": "b\tlikes\ta\na\tlikes\tc\na\tis a\tc\nb\tis a\tb\n",
    "valid": "c\tlikes\tb\n",
    "test": "d\tis a\ta\na\towns\td\n",
}


def folder_of(root: Path, **changed: str) -> Path:
    for split, text in {**TEXTS, **changed}.items():
        (root / f"{split}.txt").write_text(text)
    return root


def read(root: Path, stores: Path) -> Dataset:
    run = config("dataset=triples", f"dataset.root={root}", "task=links", "model=none", "links.decoder=distmult")
    return open_dataset(prepare_dataset(run.dataset, str(stores)), verify=True)


def test_what_is_read(tmp_path: Path) -> None:
    """Names are numbered in their order; training triples are edges and pairs."""
    dataset = read(folder_of(tmp_path), tmp_path / "stores")
    schema, pairs = dataset.schema, dataset.pairs
    assert pairs is not None and schema.node_types == ("entity",) and dataset.num_nodes == 4
    names = [relation.name for relation in schema.relations]
    assert sorted(names) == ["is a", "likes", "owns"] and pairs.relation is not None

    def triples(split: str) -> set[tuple[str, str, str]]:
        own = pairs.split == SPLITS[split]
        columns = pairs.heads[own], pairs.relation[own], pairs.tails[own]  # type: ignore[index]
        return {("abcd"[head], names[relation], "abcd"[tail]) for head, relation, tail in zip(*columns, strict=True)}

    for split, text in TEXTS.items():
        assert triples(split) == {tuple(line.split("\t")) for line in text.splitlines()}
    into = np.repeat(np.arange(4), np.diff(dataset.indptr))
    edges = {("abcd"[a], names[r], "abcd"[b]) for a, r, b in zip(dataset.indices, dataset.relation, into, strict=True)}  # type: ignore[arg-type]
    assert edges == triples("train")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"valid": "a\tlikes\n"}, "Line 1 of .*valid.txt' is no triple.(.|\n)*2 columns: a\tlikes"),
        ({"train": TEXTS["train"] + "a likes c\n"}, "Line 5 of .*train.txt"),
        ({"test": "a\t\tc\n"}, "Line 1 of .*test.txt"),
    ],
)
def test_lines_that_are_no_triples(changed: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read(folder_of(tmp_path, **changed), tmp_path / "stores")


def test_a_folder_without_them(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "valid.txt").unlink()
    with pytest.raises(DataError, match="valid.txt is missing"):
        read(tmp_path, tmp_path / "stores")


def test_rows_alone_say_nothing_of_classes() -> None:
    with pytest.raises(ConfigError, match="nothing of classes"):
        config("model=none")


@pytest.mark.parametrize("count", [256, 257, 600])
def test_relations_by_hundreds(count: int, tmp_path: Path) -> None:
    """One byte for each relation's number, or two; the store, what is told of it, and parts have them."""
    numbers = np.random.default_rng(0).integers(count, size=3 * count)
    numbers[:count] = np.arange(count)
    lines = [f"e{a % 41}\tr{r:03}\te{(a + r) % 43}\n" for a, r in enumerate(numbers.tolist())]
    splits = {"train": "".join(lines[: 2 * count]), "valid": "".join(lines[2 * count :]), "test": lines[0]}
    dataset = read(folder_of(tmp_path, **splits), tmp_path / "stores")
    names = [relation.name for relation in dataset.schema.relations]
    pairs = dataset.pairs
    assert names == [f"r{r:03}" for r in range(count)] and pairs is not None
    wanted = np.uint8 if count == 256 else np.uint16
    for relation in (dataset.relation, pairs.relation, pairs.known.relation):
        assert relation is not None and relation.dtype == wanted and int(relation.max()) == count - 1
    assert dataset.relation is not None and pairs.relation is not None
    counts = np.bincount(dataset.relation, minlength=count)
    _, edges, _ = examine_edges(dataset, 1 << 30)
    assert [found.count for found in edges] == counts.tolist()
    parts = list(parts_of(dataset, np.arange(dataset.num_nodes) % 2, 2))
    own = sum(np.diff(part.edge_offsets).reshape(2, count).sum(0) for part in parts)
    assert np.array_equal(own, counts)
    assert all(
        part.pairs is not None and part.pairs.relation is not None and part.pairs.relation.dtype == wanted for part in parts
    )


def test_umls(tmp_path: Path) -> None:
    if not (SHARED / "data" / "umls").is_dir():
        pytest.skip("needs ../shared/data/umls")
    dataset = read(SHARED / "data" / "umls", tmp_path / "stores")
    assert dataset.pairs is not None and len(dataset.schema.relations) == 46 and dataset.num_nodes == 135
    assert dataset.pairs.count("train") == 5216
