"""Rows of one file, in each form, also remote; numbers as people write them, and the place of one that is none."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from sargnn.errors import DataError
from sargnn.sources import scan
from sargnn.sources.own.edges import EdgeTable
from sargnn.sources.scan import Scan, files_of


@pytest.mark.parametrize("form", ["csv", "csv.gz", "arrow", "stream.arrow"])
def test_remote_forms(form: str, tmp_path: Path) -> None:
    """Rows come in pieces of any size; of a text a blank line is none."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    table = pa.table({"id": ["x", "y", "z"], "age": [1.0, 2.0, 3.5]})
    path = f"/{tmp_path.name}/{form}/part.{form}"
    with memory.open(path, "wb") as file:
        if form.startswith("csv"):
            content = b"id,age\nx,1\n\ny,2\n   \nz,3.5\n"
            file.write(gzip.compress(content) if form == "csv.gz" else content)
        else:
            with (ipc.new_file if form == "arrow" else ipc.new_stream)(file, table.schema) as writer:
                writer.write_table(table)
    (file,) = files_of(f"memory:/{path}", tmp_path, "it")
    rows = Scan(file, texts=["id"])
    assert rows.count == 3
    for size in (1, 2, 5):
        batches = list(rows.batches(["age", "id"], size, {"age": pa.float64()}))
        assert max(map(len, batches)) <= size and pa.Table.from_batches(batches).select(["id", "age"]).equals(table)


@pytest.mark.parametrize(
    "text",
    [
        "0,1,0.5\n1,2,1\n", "0.0,1e0,.5\n+1,2.0,1\n", '"0", "1", "0.5"\n1, 2, 1\n', "0 1\t0.5 \r\n\r\n  1  2 1",
        "\ufeff0;1;0.5\n1;2;1", "0\t1\t0.5\n \n1\t2\t1\n",
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where blocks end within blanks, a number or a line's end."""
    path = tmp_path / "edges.csv"
    head = next((mark for mark in ",;" if mark in text), " " if " " in text[:3] else "\t").join(["source", "target", "weight"])
    path.write_text(f"{head}\n{text}" if text[0] != "\ufeff" else f"\ufeff{head}\n{text[1:]}", newline="")
    for block in (25, 31, 1 << 20):
        monkeypatch.setattr(scan, "_BLOCK_BYTES", block)
        edges = EdgeTable(path)
        pieces = list(edges.pieces(1))
        assert edges.count == 2 and [(int(a[0]), int(b[0])) for a, b, _ in pieces] == [(0, 1), (1, 2)]
        assert [np.asarray(columns["weight"]).tolist() for *_, columns in pieces] == [[0.5], [1.0]]


def test_truth_values_are_numbers_and_none_is_nan(tmp_path: Path) -> None:
    path = tmp_path / "edges.csv.gz"
    path.write_bytes(gzip.compress(b"source,target,weight,edge_attr\n0,1,True,None\n1,2,False,2\n"))
    ((_, _, columns),) = EdgeTable(path).pieces(5)
    np.testing.assert_array_equal(columns["weight"], [1, 0])
    np.testing.assert_array_equal(columns["attr"], [[np.nan], [2]])


@pytest.mark.parametrize("last", ["5,x", "5,1.5", "5,", "5", "5,6,7"])
def test_the_place_of_what_is_wrong(last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever block it is."""
    monkeypatch.setattr(scan, "_BLOCK_BYTES", 1000)
    path = tmp_path / "edges.csv"
    path.write_text("\nsource,target\n" + "".join(f"{k},{k + 1}\n\n" for k in range(2000)) + last)
    with pytest.raises(DataError, match=rf"(?s)edges.csv' cannot be read: .* in line 4003\..*given:\s+{last}\n"):
        list(EdgeTable(path).pieces(300))
