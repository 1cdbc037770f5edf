"""Stores and raw files that somebody broke or made up: one message that names the file, and nothing outside is opened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import StoreError
from sargnn.graph.dataset import open_dataset, write_dataset
from sargnn.graph.manifest import digest_of
from sargnn.graph.store import Store, StoreWriter
from sargnn.partition import store as partition_store
from sargnn.partition.order import order_nodes
from sargnn.partition.store import open_part, partition_info
from tests.graphs import assign, nasty_graph, with_weights
from tests.partition.cuts import write_parts

Content = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a dataset with edge weights, and the store of its partition into two."""
    folder, graph = tmp_path_factory.mktemp("whole"), with_weights(nasty_graph())
    write_dataset(folder / "dataset", graph, made_by={})
    with StoreWriter(folder / "partition", "partition", partition_store.FORMAT_VERSION) as writer:
        stats = write_parts(writer, graph, *order_nodes(graph, assign(graph, "range", 2), 2, "original"))
        writer.meta = {
            "world": 2, "num_nodes": graph.num_nodes, "num_edges": graph.num_edges, "schema": graph.schema.to_json(),
            "feature_widths": graph.feature_widths, "num_classes": 5, "dataset_name": "nasty", "dataset_hash": "",
            "partition_time_s": 0.5, "stats": vars(stats), "made_by": {},
            "edge_weights": {"smallest": 0.0, "largest": 2.0},
        }  # fmt: skip
    return folder


@pytest.fixture
def stores(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "stores"))


def rewrite(store: Path, change: Callable[[Content], Any]) -> None:
    """Change a manifest and give it the right checksum again."""
    path = store / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_text(json.dumps({**content, "sha256": digest_of(content)}))


def replace_array(store: Path, name: str, array: np.ndarray) -> None:
    """Put another array into a store, with a manifest that describes it."""
    with StoreWriter(store.with_name("other"), "other", 1) as writer:
        writer.put(name, array)
    shutil.copy(store.with_name("other") / f"{name}.npy", store / f"{name}.npy")
    entry = json.loads((store.with_name("other") / "manifest.json").read_text())["files"][name]
    shutil.rmtree(store.with_name("other"))
    rewrite(store, lambda content: content["files"].update({name: entry}))


def open_all(stores: Path) -> None:
    open_dataset(stores / "dataset", verify=True)
    partition_info(stores / "partition")
    for rank in range(2):
        open_part(stores / "partition", rank)


def test_whole_stores_open(stores: Path) -> None:
    for kind in ("dataset", "partition"):
        rewrite(stores / kind, lambda content: None)
    open_all(stores)


@pytest.mark.parametrize("kind", ["dataset", "partition"])
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"meta":' * 100_000, "[]", "7", "", "null", '{"kind": "dataset"}', "\udc80", "9" * 5000, '"' + "x" * 100],
    ids=["deep list", "deep mapping", "list", "number", "empty", "null", "short", "no text", "long number", "cut off"],
)
def test_manifests_that_are_none(stores: Path, kind: str, text: str) -> None:
    (stores / kind / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreError, match=f"{kind}/manifest.json"):
        open_all(stores)


def files(value: Any) -> Callable[[Content], Any]:
    return lambda content: content.update(files=value)


def entry(**changes: Any) -> Callable[[Content], Any]:
    """Of some file; ``...`` removes a key."""

    def change(content: Content) -> None:
        one = content["files"][sorted(content["files"])[0]]
        one.update(changes)
        for key in [key for key, value in changes.items() if value is ...]:
            del one[key]

    return change


def meta(**changes: Any) -> Callable[[Content], Any]:
    return lambda content: content["meta"].update(changes)


NOTHING = {"shape": [1], "dtype": "<i8", "bytes": 136, "sha256": "00"}
SCHEMA = nasty_graph().schema.to_json()


@pytest.mark.parametrize("kind", ["dataset", "partition"])
@pytest.mark.parametrize(
    "change",
    [
        files([]), files(None), files("labels"), files({"labels": 3}), files({"labels": []}), files({}),
        files({"../outside": NOTHING}), files({"/etc/passwd": NOTHING}), files({"a/../../outside": NOTHING}),
        files({"a\0b": NOTHING}), files({"": NOTHING}), files({"x" * 5000: NOTHING}), files({".": NOTHING}),
        entry(shape="300"), entry(shape=[-1]), entry(shape=[1.5]), entry(shape=[True]), entry(shape=...), entry(shape=[10**30]),
        entry(shape=[0, 10**30]), entry(shape=[7, 7]), entry(dtype="O"), entry(dtype="|O8"), entry(dtype="nonsense"),
        entry(dtype=3), entry(dtype="("), entry(dtype=["<f4"]), entry(dtype="<f8"), entry(dtype=...), entry(bytes="many"),
        entry(bytes=1.0), entry(bytes=None), entry(sha256=7), entry(sha256=...), entry(sha256="00"),
        meta(schema=None), meta(schema={}), meta(schema={**SCHEMA, "offsets": [0, -1]}),
        meta(schema={**SCHEMA, "offsets": [0, 10**30]}), meta(schema={**SCHEMA, "offsets": ["0", "300"]}),
        meta(schema={**SCHEMA, "relations": [[0, "edge", 7]]}), meta(schema={**SCHEMA, "relations": []}),
        meta(schema={**SCHEMA, "relations": [[0]]}), meta(schema={**SCHEMA, "node_types": [3]}), meta(num_classes="five"),
        lambda content: content.update(meta=[]), lambda content: content.update(meta=3),
    ],
)  # fmt: skip
def test_manifests_that_say_what_cannot_be(stores: Path, kind: str, change: Callable[[Content], Any]) -> None:
    """With right checksums; a file beside the stores, of the size that the manifest gives, is not taken for one of theirs."""
    np.save(stores / "outside.npy", np.zeros(1, np.int64))
    rewrite(stores / kind, change)
    with pytest.raises(StoreError, match=f"(?s)stores/{kind}/") as caught:
        open_all(stores)
    assert "Error" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [meta(world="two"), meta(stats={}), meta(stats=None), meta(feature_widths=["11"]), meta(num_nodes=7), meta(surplus=1),
     meta(partition_time_s="long"), meta(feature_widths=[11, 11]), meta(edge_weights=True),
     meta(edge_weights={"smallest": 2.0, "largest": 1.0})],
)  # fmt: skip
def test_partitions_of_something_else(stores: Path, change: Callable[[Content], Any]) -> None:
    rewrite(stores / "partition", change)
    with pytest.raises(StoreError, match="partition/manifest.json"):
        partition_info(stores / "partition")


@pytest.mark.parametrize("linked", ["labels.npy", "manifest.json", "features"])
def test_links_out_of_a_store_are_not_followed(stores: Path, linked: str) -> None:
    """What they lead to has the right content, so that only the place can be the reason."""
    (stores / "dataset" / linked).rename(stores / linked)
    (stores / "dataset" / linked).symlink_to(stores / linked)
    with pytest.raises(StoreError, match="(?s)dataset/.*outside the store"):
        open_dataset(stores / "dataset", verify=False)


def test_a_store_may_lie_behind_a_link(stores: Path) -> None:
    (stores / "link").symlink_to(stores / "dataset")
    open_dataset(stores / "link", verify=True)


@pytest.mark.parametrize("name", ["labels.npy", "manifest.json"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)], ids=["pipe", "folder", "loop"])
def test_what_is_no_file_is_not_read(stores: Path, name: str, make: Callable[[Path], None]) -> None:
    path = stores / "dataset" / name
    path.unlink()
    make(path)
    with pytest.raises(StoreError, match=name):
        open_dataset(stores / "dataset", verify=False)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '|O', 'fortran_order': False, 'shape': (300,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (900,), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-300,), }",
        "(" * 100,
        "nothing",
    ],
)
def test_arrays_with_another_header(stores: Path, header: str) -> None:
    """The manifest's checksum fits the file, which is of the right size."""
    file = stores / "dataset" / "labels.npy"
    content = file.read_bytes()
    file.write_bytes(content[:10] + header.ljust(117).encode() + b"\n" + content[128:])
    with pytest.raises(StoreError, match="labels.npy.*the array"):
        open_dataset(stores / "dataset", verify=False)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("labels", np.zeros(300, np.int32)), ("labels", np.zeros(299, np.int64)), ("labels", np.zeros((300, 1), np.int64)),
        ("labels", np.full(300, 5)), ("labels", np.full(300, -2)), ("split", np.full(300, 4, np.uint8)),
        ("indptr", np.zeros(301, np.int64)), ("indptr", np.zeros(300, np.int64)), ("indices", np.full(1135, 300, np.int32)),
        ("features/00", np.zeros((7, 3), np.float32)), ("features/00", np.zeros((300, 3), np.float64)),
        ("features/00", np.zeros(300, np.float32)), ("edge_weight", np.ones(1134, np.float32)),
        ("edge_weight", np.ones(1135)), ("edge_weight", np.ones((1135, 1), np.float32)),
        ("edge_weight", np.ones(1135, np.float32)), ("edge_weight", np.full(1135, np.nan, np.float32)),
        ("edge_weight", np.full(1135, np.inf, np.float32)),
    ],
)  # fmt: skip
def test_arrays_that_are_no_datasets(stores: Path, name: str, array: np.ndarray) -> None:
    replace_array(stores / "dataset", name, array)
    with pytest.raises(StoreError, match="stores/dataset"):
        open_dataset(stores / "dataset", verify=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["meta"].pop("edge_weights"), lambda content: content["files"].pop("edge_weight"),
        meta(edge_weights=None), meta(edge_weights=[0.0, 2.0]), meta(edge_weights={"smallest": 0.0}),
        meta(edge_weights={"smallest": 2.0, "largest": 0.0}), meta(edge_weights={"smallest": "0", "largest": "2"}),
        meta(edge_weights={"smallest": float("nan"), "largest": 2.0}),
    ],
)  # fmt: skip
def test_weights_that_the_manifest_does_not_describe(stores: Path, change: Callable[[Content], Any]) -> None:
    rewrite(stores / "dataset", change)
    with pytest.raises(StoreError, match="stores/dataset/manifest.json"):
        open_dataset(stores / "dataset", verify=False)


def test_a_range_of_other_weights(stores: Path) -> None:
    rewrite(stores / "dataset", meta(edge_weights={"smallest": 0.0, "largest": 1.0}))
    with pytest.raises(StoreError, match="another range"):
        open_dataset(stores / "dataset", verify=True)


@pytest.mark.parametrize("name", [*partition_store.PART_ARRAYS, *partition_store.WEIGHT_ARRAYS])
def test_arrays_that_are_no_parts(stores: Path, name: str) -> None:
    """Of a wrong type, too short, and with a number beyond what it may name."""
    store = stores / "partition"
    found = np.array(Store(store, "partition", partition_store.FORMAT_VERSION).array(f"part_001/{name}"))
    beyond = found.copy()
    beyond[-1] = 100 if found.dtype == np.uint8 else np.nan if found.dtype.kind == "f" else 10**6
    free = ("labels", "split", "in_degrees", "out_degrees")  # what a number means there is not the part's to say
    for wrong in (found.astype(np.float16), found[:-1], found[:, None], *([] if name in free else [beyond])):
        replace_array(store, f"part_001/{name}", wrong)
        with pytest.raises(StoreError, match=r"part_001/\w+.npy"):
            open_part(store, 1)
    replace_array(store, f"part_001/{name}", found)
    open_part(store, 1)


def test_a_part_that_is_not_there(stores: Path) -> None:
    with pytest.raises(StoreError, match="manifest.json.*part_002"):
        open_part(stores / "partition", 2)


def test_stores_made_before_features_were_checked(stores: Path) -> None:
    """What an older version let in is found when the store is verified."""
    features = np.zeros((300, 11), np.float32)
    features[40, 2] = 1e30
    replace_array(stores / "dataset", "features/00", features)
    rewrite(stores / "dataset", lambda content: content["meta"].pop("features_checked"))
    with pytest.raises(StoreError, match="(?s)stores/dataset.*too large in node 40, column 3.*1e\\+30"):
        open_dataset(stores / "dataset", verify=True)


def test_stores_made_before_classes_were_checked(stores: Path) -> None:
    labels = nasty_graph().labels
    labels[17] = 10**9
    replace_array(stores / "dataset", "labels", labels)
    rewrite(stores / "dataset", meta(num_classes=10**9 + 1))
    with pytest.raises(StoreError, match="(?s)stores/dataset.*node 17.*1000000000"):
        open_dataset(stores / "dataset", verify=True)
