"""OGB's datasets by name: what is read equals what OGB's own class reads from the same folder; wrong and missing files."""

from __future__ import annotations

import dataclasses
import io
import shutil
import socket
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.errors import DataError, StoreError
from sargnn.graph.dataset import Dataset
from sargnn.graph.edge_buckets import EdgeBuckets
from sargnn.graph.schema import SPLITS, Relation
from sargnn.graph.typed import Edges, typed_dataset
from sargnn.sources.ogb import named
from sargnn.sources.ogb.export import export
from sargnn.sources.ogb.homogeneous import BinaryOgbDir
from sargnn.sources.ogb.named import ogb_named
from sargnn.sources.prepare import prepare_dataset
from sargnn.sources.settings import OgbConfig
from tests.graphs import nasty_graph
from tests.sources.stores import write_and_read

LAYOUTS = {"ogbn-products": "csv", "ogbn-arxiv": "csv", "ogbn-papers100M": "binary", "ogbn-mag": "typed"}


def config(name: str, root: Path, **changes: Any) -> OgbConfig:
    plain: dict[str, Any] = {"add_inverse_edges": False, "normalize_features": False, "add_self_loops": None, "download": False}
    return OgbConfig(name=name, root=str(root), **{**plain, **changes})


def mag_graph() -> Dataset:
    """Papers first by name would be last: types come in sorted order, as OGB takes them."""
    rng = np.random.default_rng(0)
    counts = {"author": 30, "field_of_study": 8, "institution": 6, "paper": 50}
    relations = [(0, "affiliated_with", 2, 40), (0, "writes", 3, 120), (3, "cites", 3, 150), (3, "has_topic", 1, 90)]
    edges = [
        Edges(
            Relation(a, name, b),
            rng.integers(list(counts.values())[a], size=n),
            rng.integers(list(counts.values())[b], size=n),
        )
        for a, name, b, n in relations
    ]
    features = [rng.standard_normal((n, 7 if t == "paper" else 0)).astype(np.float32) for t, n in counts.items()]
    labels, split = np.concatenate([np.arange(5), rng.integers(5, size=45)]), rng.choice([1, 1, 2, 3], size=50).astype(np.uint8)
    return typed_dataset("mag", 5, list(counts), features, edges, 3, labels, split)


def folder_of(name: str, root: Path) -> tuple[Dataset, Path]:
    """A small graph in the named dataset's place and layout."""
    graph = mag_graph() if name == "ogbn-mag" else nasty_graph()
    if name == "ogbn-products":
        graph = dataclasses.replace(graph, labels=np.abs(graph.labels))
    if name == "ogbn-papers100M":
        graph = dataclasses.replace(graph, labels=np.where(graph.split > 0, graph.labels, -1))
    folder = root / name.replace("-", "_")
    export(graph, folder, LAYOUTS[name], symmetric=False)
    if name == "ogbn-arxiv":
        (folder / "split" / "sales_ranking").rename(folder / "split" / "time")
        years = np.full(graph.num_nodes, 2000)
        from sargnn.sources.ogb.export import _table

        _table(folder / "raw" / "node_year.csv.gz", [years])
    return graph, folder


def edges_of(dataset: Dataset) -> list[tuple[int, int]]:
    destination = np.repeat(np.arange(dataset.num_nodes), np.diff(dataset.indptr))
    return sorted(zip(dataset.indices.tolist(), destination.tolist(), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_ogbs_own_class(name: str, tmp_path: Path) -> None:
    """Edges, features, labels, splits, types: OGB's class on the same folder."""
    folder_of(name, tmp_path)
    sys.modules.setdefault("outdated", None)  # type: ignore[arg-type]
    from ogb.nodeproppred import NodePropPredDataset

    theirs = NodePropPredDataset(name=name, root=str(tmp_path))
    graph, labels = theirs[0]
    splits = theirs.get_idx_split()
    # OGB doubles the edges of ogbn-products by itself.
    ours = write_and_read(ogb_named(config(name, tmp_path, add_inverse_edges=name == "ogbn-products")))
    if name != "ogbn-mag":
        assert ours.num_nodes == graph["num_nodes"]
        assert edges_of(ours) == sorted(zip(*graph["edge_index"].tolist(), strict=True))
        assert np.array_equal(ours.features[0], graph["node_feat"].astype(np.float32))
        kinds = {"": (labels, splits, slice(None))}
    else:
        offsets, types = ours.schema.offsets, list(ours.schema.node_types)
        assert {t: ours.schema.count(k) for k, t in enumerate(types)} == graph["num_nodes_dict"]
        assert ours.relation is not None
        destination = np.repeat(np.arange(ours.num_nodes), np.diff(ours.indptr))
        found = [(types[r.source], r.name, types[r.destination]) for r in ours.schema.relations]
        assert sorted(found) == sorted(graph["edge_index_dict"])
        for number, triplet in enumerate(found):
            one, own = ours.schema.relations[number], ours.relation == number
            pairs = ours.indices[own] - offsets[one.source], destination[own] - offsets[one.destination]
            wanted = graph["edge_index_dict"][triplet].tolist()
            assert sorted(zip(*(p.tolist() for p in pairs), strict=True)) == sorted(zip(*wanted, strict=True))
        assert np.array_equal(ours.features[types.index("paper")], graph["node_feat_dict"]["paper"].astype(np.float32))
        own_rows = slice(*offsets[types.index("paper") : types.index("paper") + 2])
        kinds = {"paper": (labels["paper"], {k: v["paper"] for k, v in splits.items()}, own_rows)}
    for their_labels, their_split, own_rows in kinds.values():
        raw = their_labels[:, 0].astype(float)
        assert np.array_equal(ours.labels[own_rows], np.where(np.isnan(raw), -1, raw))
        for split, value in SPLITS.items():
            assert np.array_equal(np.flatnonzero(ours.split[own_rows] == value), np.sort(their_split[split]))


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-papers100M"])
def test_pieces_of_any_size_give_the_same(name: str, tmp_path: Path) -> None:
    """A buffer of a few rows, with every bucket divided again."""
    graph, _ = folder_of(name, tmp_path)
    settings = config(name, tmp_path, add_inverse_edges=True)
    whole, pieces = (write_and_read(ogb_named(settings), size) for size in (10**9, 32 * 50))
    assert whole.content_hash == pieces.content_hash and whole.num_edges == 2 * graph.num_edges
    assert edges_of(whole) == sorted(edges_of(graph) + [(b, a) for a, b in edges_of(graph)])


def test_raw_files_may_go_once_the_store_is_made(tmp_path: Path) -> None:
    _, folder = folder_of("ogbn-products", tmp_path)
    both = config("ogbn-products", tmp_path, add_inverse_edges=True)
    store = prepare_dataset(both, str(tmp_path / "stores"))
    assert prepare_dataset(both, str(tmp_path / "stores")) == store
    shutil.rmtree(folder)
    assert prepare_dataset(both, str(tmp_path / "stores")) == store
    for other in (config("ogbn-products", tmp_path), config("ogbn-products", tmp_path / "elsewhere", add_inverse_edges=True)):
        with pytest.raises(DataError, match="not there"):
            prepare_dataset(other, str(tmp_path / "stores"))


def test_symmetric_graphs_are_written_once(tmp_path: Path) -> None:
    pairs = {(min(p), max(p)) for p in edges_of(nasty_graph()) if p[0] != p[1]}
    from sargnn.graph.dataset import by_destination

    graph = nasty_graph()
    ends = np.array(sorted(pairs | {(b, a) for a, b in pairs})).T
    indptr, indices = by_destination(ends[0], ends[1], graph.num_nodes)
    graph = dataclasses.replace(graph, indptr=indptr, indices=indices)
    for name, layout in (("ogbn-products", "csv"), ("ogbn-papers100M", "binary")):
        export(graph, tmp_path / name.replace("-", "_"), layout, symmetric=True)
        assert edges_of(write_and_read(ogb_named(config(name, tmp_path, add_inverse_edges=True)))) == edges_of(graph)
        assert write_and_read(ogb_named(config(name, tmp_path))).num_edges == len(pairs)


def test_skewed_buckets_are_divided(tmp_path: Path) -> None:
    """All edges in one corner, and a node with more edges than a bucket may hold."""
    rng = np.random.default_rng(1)
    source = rng.integers(1000, size=5000)
    destination = np.where(rng.random(5000) < 0.5, 3, rng.integers(20, size=5000))
    with EdgeBuckets(tmp_path, 1000, 5000, 100) as buckets:
        for first in range(0, 5000, 701):
            buckets.add(destination[first : first + 701], source[first : first + 701])
        buckets.flush()
        runs = list(buckets.runs())
    assert np.array_equal(np.concatenate(runs), np.sort(destination * 1000 + source))
    assert sorted(map(len, runs))[-2] <= 400 and not list(tmp_path.iterdir())


def damage(folder: Path, how: str) -> None:
    raw = folder / "raw"
    data = raw / "data.npz"
    if how == "truncated":
        data.write_bytes(data.read_bytes()[:-300])
    elif how == "flipped":
        content = bytearray(data.read_bytes())
        content[len(content) // 3] ^= 255
        data.write_bytes(bytes(content))
    elif how == "swapped":
        shutil.copy(raw / "node-label.npz", data)
    elif how == "release":
        (folder / "RELEASE_v1.txt").rename(folder / "RELEASE_v7.txt")
    elif how == "missing":
        (raw / "node-label.npz").unlink()
    elif how in ("infinite", "billion"):
        arrays = dict(np.load(raw / "node-label.npz"))
        arrays["node_label"][20] = np.inf if how == "infinite" else 1e9
        np.savez_compressed(raw / "node-label.npz", **arrays)
    elif how == "header":
        with zipfile.ZipFile(data, "w") as archive:
            for name in ("num_nodes_list", "node_feat", "edge_index"):
                archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 117 + b"\n")
    else:
        arrays = dict(np.load(data))
        if how == "pickled":
            arrays["edge_index"] = arrays["edge_index"].astype(object)
        elif how == "counts":
            arrays["num_edges_list"] = arrays["num_edges_list"] + 1
        elif how in ("nan", "large"):
            arrays["node_feat"][17, 2] = np.nan if how == "nan" else 1e30
        elif how == "two graphs":
            arrays["num_nodes_list"] = np.array([100, 200])
        elif how == "negative":
            arrays["edge_index"][0, 7] = -1
        else:
            arrays["edge_index"][1, 40] = 300
        np.savez_compressed(data, **arrays)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("truncated", "data.npz"), ("flipped", "data.npz"), ("swapped", "'edge_index' in raw/data.npz"),
        ("release", "another release"), ("missing", "no raw/node-label.npz"), ("pickled", "not read"),
        ("counts", "'edge_index'"), ("outside", "not exist in row 41"),
        ("nan", "not finite in row 18, column 3"), ("large", "too large in row 18, column 3"),
        ("two graphs", "'num_nodes_list'"), ("negative", "not exist in row 8"),
        ("infinite", "row 21.\n  given:   inf"), ("billion", "row 21.\n  given:   label 1000000000"),
        ("header", "header is damaged"),
    ],
)  # fmt: skip
def test_wrong_binary_files(tmp_path: Path, how: str, words: str) -> None:
    _, folder = folder_of("ogbn-papers100M", tmp_path)
    damage(folder, how)
    target = tmp_path / "stores" / "one"
    with pytest.raises(DataError) as caught:
        ogb_named(config("ogbn-papers100M", tmp_path)).write(target, 10**9)
    assert words in str(caught.value)
    assert not target.exists() and (not target.parent.exists() or not list(target.parent.iterdir()))


def test_a_truncated_gzip(tmp_path: Path) -> None:
    _, folder = folder_of("ogbn-products", tmp_path)
    for name in ("edge", "node-feat"):
        path = folder / "raw" / f"{name}.csv.gz"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) * 2 // 3])
        with pytest.raises(DataError, match=f"{name}.csv.gz.*cannot be read"):
            write_and_read(ogb_named(config("ogbn-products", tmp_path)))
        path.write_bytes(whole)


def test_relations_that_point_outside_their_types(tmp_path: Path) -> None:
    from sargnn.sources.ogb.export import _table

    _, folder = folder_of("ogbn-mag", tmp_path)
    edge = folder / "raw/relations/author___affiliated_with___institution/edge.csv.gz"
    _table(edge, [np.array([[0, 1]] * 39 + [[2, 6]])])
    with pytest.raises(DataError, match="affiliated_with.*institution .*in row 40"):
        write_and_read(ogb_named(config("ogbn-mag", tmp_path)))


def test_a_full_disk_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of("ogbn-papers100M", tmp_path)
    reader = ogb_named(config("ogbn-papers100M", tmp_path))
    assert isinstance(reader, BinaryOgbDir)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(StoreError, match="(?s)too little room.*while it is made"):
        reader.write(tmp_path / "stores" / "one", 10**9)


class _Server:
    """Serves one file, with ranges; cuts answers off after the next of ``limits`` bytes."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.limits: list[int] = []
        self.asked: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
                outer.asked.append(first)
                body = outer.content[first:]
                if not body:
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(outer.content)}")
                    self.end_headers()
                    return
                self.send_response(206 if first else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: outer.limits.pop(0) if outer.limits else None])

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/products.zip"


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """A small dataset as OGB publishes it."""
    _, folder = folder_of("ogbn-products", tmp_path / "made")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as target:
        for path in sorted(folder.rglob("*")):
            target.write(path, Path("products") / path.relative_to(folder))
    return content.getvalue()


def test_download_resumes_and_unpacks(tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    server = _Server(archive)
    monkeypatch.setattr("sargnn.sources.ogb.named.address_of", lambda name: server.address)
    settings = config("ogbn-products", tmp_path / "data", download=True)
    server.limits = [len(archive) // 3, 0]  # it breaks off, and then nothing comes
    with pytest.raises(DataError, match=f"(?s){server.address}.*{len(archive) // 3} bytes"):
        ogb_named(settings)
    part = tmp_path / "data" / "products.zip.part"
    assert part.stat().st_size == len(archive) // 3 and not part.with_name("products.zip").exists()
    server.limits = [len(archive) // 3]  # breaks off once more, and goes on by itself
    found = write_and_read(ogb_named(settings))
    assert found.num_nodes == 300 and found.name == "ogbn-products"
    assert server.asked == [0, *[len(archive) // 3] * 2, 2 * (len(archive) // 3)]
    before = len(server.asked)
    ogb_named(settings)
    assert len(server.asked) == before  # raw files are used where they lie
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [".ogbn_products.lock", "ogbn_products"]


def test_what_had_come_whole_is_used(tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that died between the last byte and the rename; and a part of another file."""
    server = _Server(archive)
    monkeypatch.setattr("sargnn.sources.ogb.named.address_of", lambda name: server.address)
    for content in (archive, archive + b"more"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "products.zip.part").write_bytes(content)
        settings = config("ogbn-products", tmp_path / "data", download=True)
        if content == archive:
            ogb_named(settings)
            shutil.rmtree(tmp_path / "data")
        else:
            with pytest.raises(DataError, match="416"):
                ogb_named(settings)
            ogb_named(settings)


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\nbytes without a length"])
def test_answers_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.recv(1 << 16)
            connection.sendall(answer)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/products.zip"
        monkeypatch.setattr("sargnn.sources.ogb.named.address_of", lambda name: address)
        with pytest.raises(DataError, match=f"{address}.*fetched"):
            ogb_named(config("ogbn-products", tmp_path, download=True))


def test_folders_of_something_else(tmp_path: Path) -> None:
    _, folder = folder_of("ogbn-products", tmp_path)
    with pytest.raises(DataError, match="(?s)ogbn-products.*dataset=ogbn-products"):
        ogb_named(config("ogbn-arxiv", folder))
    (tmp_path / "raw").mkdir()  # of somebody's own
    assert write_and_read(ogb_named(config("ogbn-products", tmp_path))).num_nodes == 300
    (tmp_path / "ogbn_papers100M").mkdir()
    with pytest.raises(DataError, match="no raw files"):
        ogb_named(config("ogbn-papers100M", tmp_path, download=True))
    (tmp_path / "ogbn_papers100M" / "raw").mkdir()
    with pytest.raises(DataError, match="(?s)missing.*no raw/data.npz"):
        ogb_named(config("ogbn-papers100M", tmp_path))


def test_unsigned_edges(tmp_path: Path) -> None:
    graph, folder = folder_of("ogbn-papers100M", tmp_path)
    arrays = dict(np.load(folder / "raw/data.npz"))
    arrays["edge_index"] = arrays["edge_index"].astype(np.uint64)
    arrays["node_feat"] = arrays["node_feat"].astype(np.float16)
    np.savez_compressed(folder / "raw/data.npz", **arrays)
    found = write_and_read(ogb_named(config("ogbn-papers100M", tmp_path)))
    assert edges_of(found) == edges_of(graph) and np.array_equal(found.features[0], arrays["node_feat"].astype(np.float32))


@pytest.mark.parametrize("how", ["flipped", "two", "outside"])
def test_a_damaged_archive_is_named(tmp_path: Path, archive: bytes, how: str) -> None:
    path = tmp_path / "data" / "products.zip"
    path.parent.mkdir()
    content = bytearray(archive)
    if how == "flipped":
        content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))
    if how != "flipped":
        with zipfile.ZipFile(path, "a") as target:
            target.writestr("other/file" if how == "two" else "../outside", "x")
    with pytest.raises(DataError, match="products.zip"):
        ogb_named(config("ogbn-products", path.parent))
    assert sorted(one.name for one in path.parent.iterdir()) == [".ogbn_products.lock", "products.zip"]


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer within seconds, that says what to fetch and where to put it."""
    for address in ("http://127.0.0.1:9/products.zip", "http://nowhere.invalid/products.zip"):
        monkeypatch.setattr("sargnn.sources.ogb.named.address_of", lambda name, address=address: address)
        started = time.monotonic()
        with pytest.raises(DataError) as caught:
            ogb_named(config("ogbn-products", tmp_path, download=True))
        assert time.monotonic() - started < 10
        for word in (address, str(tmp_path / "products.zip"), str(tmp_path / "ogbn_products")):
            assert word in str(caught.value)
    monkeypatch.setattr(named, "_TIMEOUT_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/products.zip"
        monkeypatch.setattr("sargnn.sources.ogb.named.address_of", lambda name: address)
        with pytest.raises(DataError, match=f"{address}.*fetched"):
            ogb_named(config("ogbn-products", tmp_path, download=True))
    with pytest.raises(DataError, match="dataset.download=true"):
        ogb_named(config("ogbn-products", tmp_path))


def test_addresses_are_ogbs_own() -> None:
    for name in LAYOUTS:
        assert named.address_of(name).endswith(".zip")
