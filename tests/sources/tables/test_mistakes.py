"""What is wrong with tables is said in one message, which names the file, and the row where there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from tests.in_process import sargnn_here
from tests.sources.tables.shop import SPEC, E, N, follows, shop, users

NODES, EDGES = SPEC["nodes"], SPEC["edges"]


def nodes(**changes: Any) -> dict[str, Any]:
    return SPEC | {"nodes": {name: value for name, value in (NODES | changes).items() if value is not None}}


def edges(**changes: Any) -> dict[str, Any]:
    return SPEC | {"edges": {name: value for name, value in (EDGES | changes).items() if value is not None}}


def at(table: dict[str, Any], column: str, row: int, value: Any, kind: Any = None) -> dict[str, Any]:
    """The table with one value changed."""
    values = table[column].to_pylist()
    values[row] = value
    return table | {column: pa.array(values, kind or table[column].type)}


USERS = users()
FOLLOWS = follows(USERS["id"])
FIRST = USERS["id"][0].as_py()
Case = tuple[dict[str, Any], dict[str, Any], tuple[str, ...], tuple[str, ...]]
CASES: dict[str, Case] = {
    # name: (spec, tables, words of the command, what the message says)
    "no file": (nodes(files="nobody"), {}, (), ("nobody", "names no file", "relative names")),
    "an empty folder": (nodes(files="empty"), {}, (), ("empty", ".parquet")),
    "other files": (nodes(files="notes/*"), {}, (), ("notes", "other forms", "readme.txt")),
    "a broken file": (nodes(files="broken.parquet"), {}, (), ("broken.parquet", "cannot be read")),
    "a broken arrow file": (nodes(files="broken.arrow"), {}, (), ("broken.arrow", "cannot be read")),
    "no such scheme": (nodes(files="nowhere://x/*.parquet"), {}, (), ("nowhere://", "fsspec")),
    "no such column": (nodes(id="uid"), {}, (), ("no column 'uid'", "'id' names", "part-0.parquet", "age")),
    "a column of one file": (nodes(files=["users", "follows"]), {}, (), ("follows", "no column 'id'")),
    "no such feature": (nodes(features=["age", "height"]), {}, (), ("no column 'height'", "'features' names")),
    "ids that are fractions": (nodes(id="age", features=["taste"]), {}, (), ("'age'", "double", "whole numbers")),
    "a feature that is none": (
        nodes(features=["when"]),
        {"users": USERS | {"when": pa.array([b"x"] * N)}},
        (),
        ("'when'", "binary"),
    ),
    "no such kind": (nodes(features={"age": "log"}), {}, (), ("nodes.features.age", "'log'", "standard")),
    "a kind that does not fit": (
        nodes(features={"part": "list"}, split=None),
        {},
        (),
        ("'part'", "'list'", "category"),
    ),
    "too many categories": (
        nodes(features=["name"]),
        {
            "users": {name: pa.array(column.to_pylist() * 20) for name, column in USERS.items() if name != "id"}
            | {"id": pa.array(range(20 * N)), "name": pa.array([f"n{k}" for k in range(20 * N)])},
            "follows": follows(pa.array(range(N))),
        },
        (),
        ("'name'", "too many categories", "more than 1000"),
    ),
    "an id that is null": (
        {**SPEC},
        {"users": at(USERS, "id", 25, None)},
        (),
        ("null", "row 6 of", "part-1.parquet", "on_error=drop"),
    ),
    "an id twice": (
        {**SPEC},
        {"users": at(USERS, "id", 25, FIRST)},
        (),
        ("twice", FIRST, "row 1 of", "row 6 of", "part-1.parquet"),
    ),
    "a null feature": ({**SPEC}, {"users": at(USERS, "age", 41, None)}, (), ("'age'", "null", "row 2 of", "part-2.parquet")),
    "a feature that is nan": (
        {**SPEC},
        {"users": at(USERS, "age", 3, float("nan"))},
        (),
        ("'age'", "nan", "row 4 of", "a finite number"),
    ),
    "a short list": (
        {**SPEC},
        {"users": at(USERS, "taste", 3, [1.0])},
        (),
        ("'taste'", "1 entries", "row 4 of", "3 finite numbers"),
    ),
    "a null in a list": ({**SPEC}, {"users": at(USERS, "taste", 3, [1.0, None, 2.0])}, (), ("'taste'", "row 4 of")),
    "no label in a split": (
        {**SPEC},
        {"users": at(USERS, "kind", 0, None)},
        (),
        ("kind", "no label", "row 1 of"),
    ),
    "a label that is no class": (
        {**SPEC},
        {"users": at(USERS, "kind", 30, 1.5, pa.float64())},
        (),
        ("kind", "not a class", "row 11 of", "1.5", "task=regression"),
    ),
    "no such split": (
        {**SPEC},
        {"users": at(USERS, "part", 30, "dev")},
        (),
        ("'part'", "'dev'", "row 11 of", "train, valid, test"),
    ),
    "nobody to train on": ({**SPEC}, {"users": USERS | {"part": pa.array(["test"] * N)}}, (), ("no node",)),
    "no split": (nodes(split=None), {}, (), ("train on", "dataset.split=[0.6,0.2,0.2]")),
    "no labels": (nodes(label=None, split=None), {}, (), ("no labels",)),
    "an end that is null": (
        {**SPEC},
        {"follows": at(FOLLOWS, "to", 140, None)},
        (),
        ("'to'", "null", "row 8 of", "part-1.parquet"),
    ),
    "an end that is no node": (
        {**SPEC},
        {"follows": at(FOLLOWS, "to", 140, "who?")},
        (),
        ("'to'", "'who?'", "row 8 of", "1 in all"),
    ),
    "ids of another type": (
        {**SPEC},
        {"follows": FOLLOWS | {"to": pa.array(np.arange(E))}},
        (),
        ("'to'", "its table", "row 1 of", f"{E} in all"),
    ),
    "a weight that is null": ({**SPEC}, {"follows": at(FOLLOWS, "amount", 7, None)}, (), ("'amount'", "null", "row 8 of")),
    "a weight that is a text": (edges(weight="from"), {}, (), ("'from'", "cannot be 'weight'", "numbers")),
    "a label twice": (nodes(label="age"), {}, (), ("'age' is a feature", "nodes.label")),
    "no edges": ({"nodes": NODES}, {}, (), ("'edges'",)),
    "an unknown entry": (SPEC | {"edge": {}}, {}, (), ("no entry 'edge'", "nodes, edges")),
    "a misspelt key": (edges(wieght="amount", weight=None), {}, (), ("edges.wieght", "edges.weight")),
    "a key too few": (edges(destination=None), {}, (), ("edges.destination", "missing")),
    "types of edges alone": (
        SPEC | {"edges": {"user follows user": EDGES}},
        {},
        (),
        ("'edges' has types and 'nodes' has none",),
    ),
    "a relation of two words": (
        {"nodes": {"user": NODES}, "edges": {"user follows": EDGES}},
        {},
        (),
        ("user follows", "RELATION"),
    ),
    "a type that nothing joins": (
        {"nodes": {"user": NODES, "shop": NODES}, "edges": {"user follows user": EDGES}},
        {},
        (),
        ("'shop'", "No edges join"),
    ),
    "a split by no column": (
        {**SPEC},
        {},
        ("dataset.split_by=when", "dataset.split=[0.8,0.1,0.1]"),
        ("no column 'when'", "split_by"),
    ),
    "a split by a text": (
        {**SPEC},
        {},
        ("dataset.split_by=part", "dataset.split=[0.8,0.1,0.1]"),
        ("'part'", "dates"),
    ),
    "a split by time alone": ({**SPEC}, {}, ("dataset.split_by=age",), ("two moments", "split_at")),
    "moments the wrong way round": (
        {**SPEC},
        {},
        ("dataset.split_by=age", "dataset.split_at=['1','0']"),
        ("Test begins after validation",),
    ),
    "times that are alike": (
        {**SPEC},
        {"users": USERS | {"when": pa.array([1] * (N // 2) + [2] * (N // 2))}},
        ("dataset.split_by=when", "dataset.split=[0.8,0.1,0.1]"),
        ("'when'", "nothing for valid", "dataset.split_at"),
    ),
    "a list with a mapping": (
        nodes(features=[{"age": "standard"}, "taste"]),
        {},
        (),
        ("nodes.features", "a mapping"),
    ),
    "a column of two kinds": (
        nodes(files=["users", "others"], features=["age"]),
        {"others": USERS | {"age": pa.array(["old"] * N)}},
        (),
        ("'age'", "all files", "numbers in", "texts in"),
    ),
    "three moments": ({**SPEC}, {}, ("dataset.split_by=age", "dataset.split_at=['1','2','3']"), ("split_at", "two moments")),
    "moments that are none": (
        {**SPEC},
        {},
        ("dataset.split_by=age", "dataset.split_at=[soon,later]"),
        ("split_at", "soon", "numbers"),
    ),
    "a file that is none": ({**SPEC}, {}, ("dataset.root=nothing.yaml",), ("file of tables", "nothing.yaml")),
    "a folder": ({**SPEC}, {}, ("dataset.root=users",), ("a YAML file",)),
    "like no tables": ({**SPEC}, {}, ("dataset.like=users",), ("users",)),
    "another word on mistakes": ({**SPEC}, {}, ("dataset.on_error=skip",), ("dataset.on_error", "fail, drop")),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong(tmp_path: Path, case: str) -> None:
    spec, tables, words, said = CASES[case]
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("users")
    for form in ("parquet", "arrow"):
        (tmp_path / f"broken.{form}").write_bytes(b"no table")
    shop(tmp_path, spec, **tables)
    done = sargnn_here(tmp_path, "prepare", "dataset=tables", "dataset.root=shop.yaml", *words)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.count("sargnn: ") == 1 and "Traceback" not in done.stderr and "sargnn/" not in done.stderr
    text = " ".join(done.stderr.split())
    assert all(word in text for word in said), done.stderr
    assert not list(tmp_path.glob("stores/datasets/*")) and not list(tmp_path.glob("stores/datasets/.*"))


CSV: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "a text among numbers": (
        lambda lines: [*lines[:30], lines[30].replace(lines[30].split(",")[1], "old"), *lines[31:]],
        "'old' among 59 numbers",
    ),
    "a field too many": (lambda lines: [*lines[:30], f"{lines[30]},7", *lines[31:]], "5 columns in row 30"),
    "bytes that are no text": (lambda lines: [*lines[:30], "\udcff" + lines[30], *lines[31:]], "UTF8 in row 30"),
}


@pytest.mark.parametrize("case", CSV)
def test_what_is_wrong_with_csv(tmp_path: Path, case: str) -> None:
    change, said = CSV[case]
    path = shop(tmp_path, nodes(files="users.csv", features=["age"]))
    lines = ["id,age,kind,part"]
    lines += [f"{USERS['id'][k]},{USERS['age'][k]},{USERS['kind'][k]},{USERS['part'][k]}" for k in range(N)]
    (tmp_path / "users.csv").write_bytes("\n".join(change(lines)).encode(errors="surrogateescape"))
    done = sargnn_here(tmp_path, "prepare", "dataset=tables", f"dataset.root={path}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    assert ("users.csv' cannot be read" in text) == (said != "'old' among 59 numbers") and said in text, done.stderr


def test_the_file_may_be_damaged(tmp_path: Path) -> None:
    path = shop(tmp_path)
    for content in ("nodes: [", "3", yaml.safe_dump({"nodes": [1], "edges": EDGES})):
        path.write_text(content)
        done = sargnn_here(tmp_path, "prepare", "dataset=tables", f"dataset.root={path}")
        assert done.returncode == 1 and "shop.yaml" in done.stderr and "Traceback" not in done.stderr, done.stderr
