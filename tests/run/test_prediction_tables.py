"""Predictions as Parquet and CSV say of each node, edge and pair, by its own id, what the arrays say by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.run.predict import write_tables
from sargnn.sources.settings import TablesConfig
from tests.sources.own.small import SETTINGS
from tests.sources.tables.shop import SKUS, TYPED, N, follows, shop, typed, users


def stored(folder: Path, path: Path, **changes: Any) -> Dataset:
    TablesConfig("tables", root=str(path), **(SETTINGS | changes)).reader().write(folder / "store", 10**9)
    return open_dataset(folder / "store", verify=True)


def read(path: Path) -> dict[str, list[Any]]:
    content: dict[str, list[Any]] = (pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)).to_pydict()
    return content


def save(folder: Path, **arrays: np.ndarray) -> list[str]:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return [f"{name}.npy" for name in arrays]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_nodes(tmp_path: Path, form: str) -> None:
    nodes = users() | {"kind": pa.array(np.array(["low", "mid", "top"])[np.arange(N) % 3])}
    dataset = stored(tmp_path, shop(tmp_path, users=nodes))
    logits = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
    names = save(tmp_path, predictions=logits.argmax(1), logits=logits)
    assert write_tables(tmp_path, names, dataset, form, {}, of="node") == [f"predictions.{form}"]
    table = read(tmp_path / f"predictions.{form}")
    assert table["id"] == nodes["id"].to_pylist()
    assert table["prediction"] == [["low", "mid", "top"][k] for k in logits.argmax(1)]
    columns = np.column_stack([table[f"logits_{k}"] for k in range(3)]) if form == "csv" else np.array(table["logits"])
    np.testing.assert_allclose(columns, logits, rtol=1e-6)


def test_nodes_without_ids(tmp_path: Path) -> None:
    from tests.sources.own.small import GRAPH, of_object

    of_object(GRAPH).write(tmp_path / "store", 10**9)
    names = save(tmp_path, predictions=np.arange(6))
    write_tables(tmp_path, names, open_dataset(tmp_path / "store", verify=True), "csv", {}, of="node")
    assert read(tmp_path / "predictions.csv") == {"node": list(range(6)), "prediction": list(range(6))}


def test_edges(tmp_path: Path) -> None:
    nodes = users()
    edges = follows(nodes["id"])
    labels = pa.array(np.array(["bad", "good"])[np.arange(len(edges["to"])) % 2])
    spec = {
        "nodes": {"files": "users", "id": "id", "features": "age"},
        "edges": {"files": "follows", "source": "from", "destination": "to", "label": "rating"},
    }
    path = shop(tmp_path, spec, users=nodes, follows=edges | {"rating": labels})
    dataset = stored(tmp_path, path, link_split=None)
    codes = np.arange(len(labels)) // 7 % 2
    write_tables(tmp_path, save(tmp_path, predictions=codes), dataset, "parquet", {}, of="")
    table = read(tmp_path / "predictions.parquet")
    assert table["source"] == edges["from"].to_pylist() and table["destination"] == edges["to"].to_pylist()
    assert table["prediction"] == [["bad", "good"][code] for code in codes]


def test_pairs_and_partners_of_a_typed_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Types have numbers, texts; what is of several types is of texts, in every batch."""
    monkeypatch.setattr("sargnn.run.predict._ROWS", 5)
    dataset = stored(tmp_path, typed(tmp_path))
    ids = users()["id"].to_pylist()
    pairs = np.array([[3, 0, 59], [4, 2, 0]])
    np.save(tmp_path / "asked.npy", pairs)
    partners = np.full((N, 2), -1)
    partners[[0, 1, 7]] = [[1, 4], [0, -1], [2, -1]]  # in two batches
    names = save(
        tmp_path,
        pair_scores=np.array([0.5, 1.5, -1.0]),
        partners=partners,
        partner_scores=np.arange(2.0 * N).reshape(N, 2),
        embeddings=np.arange(2.0 * dataset.num_nodes).reshape(-1, 2),
    )
    asked = {"relation": "buys", "pairs": str(tmp_path / "asked.npy")}
    assert len(TYPED["edges"]) == 3
    written = write_tables(tmp_path, names, dataset, "parquet", asked, of="")
    assert written == ["embeddings.parquet", "pair_scores.parquet", "partners.parquet"]
    table = read(tmp_path / "pair_scores.parquet")
    assert table == {"source": [ids[3], ids[0], ids[59]], "destination": [SKUS[4], SKUS[2], SKUS[0]], "score": [0.5, 1.5, -1.0]}
    table = read(tmp_path / "partners.parquet")
    assert table["id"] == [ids[0], ids[0], ids[1], ids[7]]
    assert table["partner"] == [SKUS[1], SKUS[4], SKUS[0], SKUS[2]]
    assert table["rank"] == [1, 2, 1, 1] and table["score"] == [0.0, 1.0, 2.0, 14.0]
    table = read(tmp_path / "embeddings.parquet")
    assert table["id"] == [*map(str, SKUS), "b", "a", "c", *ids] and table["type"][4:9] == [
        "item",
        "shop",
        "shop",
        "shop",
        "user",
    ]
    assert table["embeddings"][-1] == [2.0 * dataset.num_nodes - 2, 2.0 * dataset.num_nodes - 1]
