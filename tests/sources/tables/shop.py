"""A small graph as tables in several files and forms, and its reader with the settings that it has by default."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from pyarrow import csv, ipc, parquet

from sargnn.graph.dataset import Dataset, Reader
from sargnn.sources.settings import TablesConfig
from sargnn.sources.tables.reader import TablesReader
from tests.sources.own.small import SETTINGS
from tests.sources.stores import write_and_read

N, E = 60, 400
Columns = Mapping[str, Any]
SPEC: dict[str, Any] = {
    "nodes": {"files": "users", "id": "id", "features": ["age", "taste"], "label": "kind", "split": "part"},
    "edges": {"files": "follows", "source": "from", "destination": "to", "weight": "amount"},
}


TYPED: dict[str, Any] = {
    "nodes": {
        "user": SPEC["nodes"],
        "item": {"files": "items", "id": "sku", "features": {"price": "standard", "colour": None, "since": "number"}},
    },
    "edges": {
        "user follows user": {"files": "follows", "source": "from", "destination": "to"},
        "user buys item": {"files": "buys", "source": "who", "destination": "what"},
        "item in shop": {"files": "places", "source": "sku", "destination": "shop"},
    },
}
SKUS = [9_000_000_000 + 3 * k for k in range(5)]


def users(texts: bool = True, seed: int = 0) -> dict[str, Any]:
    """The table of nodes."""
    draw = np.random.default_rng(seed)
    numbers = draw.permutation(N) * 7 - 50
    parts = np.array(["train", "valid", "test", ""], object)[np.concatenate([[0, 1, 2], draw.integers(0, 4, N - 3)])]
    return {
        "id": pa.array([f"ü-{number}" * (1 + number % 3) for number in numbers] if texts else numbers),
        "age": pa.array(draw.normal(size=N)),
        "taste": pa.array(list(draw.normal(size=(N, 3)).astype(np.float32))),
        "kind": pa.array(draw.integers(0, 3, N)),
        "part": pa.array(parts.tolist(), pa.string()),
    }


def follows(ids: pa.Array, seed: int = 1) -> dict[str, Any]:
    """The table of edges between these ids."""
    draw = np.random.default_rng(seed)
    ends = [ids.take(pa.array(draw.integers(0, len(ids), E))) for _ in range(2)]
    return {"from": ends[0], "to": ends[1], "amount": pa.array(draw.random(E))}


def save(folder: Path, columns: Columns, files: int = 3, form: str = "parquet") -> Path:
    """A table in several files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(dict(columns))
    bounds = np.linspace(0, table.num_rows, files + 1).astype(int)
    for number, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        part, path = table.slice(first, last - first), folder / f"part-{number}.{form}"
        if form == "parquet":
            parquet.write_table(part, path, row_group_size=7)
        elif form == "csv":
            csv.write_csv(part, path)
        else:
            with ipc.new_file(path, table.schema) as file:
                file.write_table(part, max_chunksize=5)
    return folder


def shop(folder: Path, spec: Mapping[str, Any] = SPEC, **tables: Columns) -> Path:
    """The graph's YAML file beside its tables; ``users`` and ``follows`` are as they come where they are not given."""
    nodes = tables.pop("users", None) or users()
    for name, columns in ({"users": nodes, "follows": follows(nodes["id"])} | tables).items():
        save(folder / name, columns)
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump(dict(spec), sort_keys=False))
    return path


def typed(folder: Path) -> Path:
    nodes = users()
    ids = nodes["id"].to_pylist()
    items = {
        "sku": pa.array(SKUS),
        "price": pa.array([1.0, 2.0, 3.0, 4.0, 10.0]),
        "colour": pa.array(["red", "blue", "red", "green", "blue"]).dictionary_encode(),
        "since": pa.array(np.array(["1970-01-02", "1970-01-03", "1970-01-04", "1970-01-05", "1970-01-01"], "datetime64[ns]")),
    }
    buys = {"who": pa.array(ids[:10]), "what": pa.array([SKUS[k % 5] for k in range(10)], pa.int64())}
    places = {"sku": pa.array(SKUS, pa.int64()), "shop": pa.array(["b", "a", "b", "c", "a"])}
    return shop(folder, TYPED, items=items, buys=buys, places=places)


def reader(path: Path, **changes: Any) -> Reader:
    config = TablesConfig("tables", root=str(path), **(SETTINGS | changes))
    return TablesReader(config)


def read(path: Path, buffer_bytes: int = 10**9, **changes: Any) -> Dataset:
    return write_and_read(reader(path, **changes), buffer_bytes)
