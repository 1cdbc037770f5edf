"""Cutting by several processes, and going on after an interruption: the same store, nothing twice, nothing left."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from scipy import sparse

from sargnn.cli.stores import stores
from sargnn.config.run import RunConfig
from sargnn.errors import StoreError
from sargnn.graph.claim import claim, is_claimed
from sargnn.graph.dataset import Dataset, by_destination, open_dataset, write_dataset
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.partition import crew, prepare, stages
from sargnn.partition.crew import Crew, Tally
from sargnn.partition.cut import cut
from sargnn.partition.memory import writing_bytes
from sargnn.partition.metis import symmetric
from sargnn.partition.order import graph_within, group_members
from sargnn.partition.prepare import prepare_partition
from sargnn.partition.stages import unfinished_beside
from sargnn.partition.store import open_part
from tests.configs import config
from tests.graphs import assign, nasty_graph, typed_graph
from tests.in_process import sargnn_here

WORLD = 4


def weighted_graph() -> Dataset:
    graph = nasty_graph()
    weights = np.random.default_rng(1).standard_normal(graph.num_edges).astype(np.float32)
    return dataclasses.replace(graph, columns=EdgeColumns.of({"weight": weights}))


GRAPHS: dict[str, Callable[[], Dataset]] = {
    "homogeneous": lambda: nasty_graph(6000), "typed": typed_graph, "weighted": weighted_graph,
}  # fmt: skip


@dataclasses.dataclass
class Place:
    """A graph's store, and partition stores of it."""

    folder: Path
    patch: pytest.MonkeyPatch
    kind: str = "homogeneous"

    def __post_init__(self) -> None:
        write_dataset(self.folder / "graph", GRAPHS[self.kind](), {})
        self.patch.setattr(crew, "_WORTH_EDGES", 1)

    def config(self, stores: str) -> RunConfig:
        order = "locality" if self.kind == "homogeneous" else "original"
        words = (f"world={WORLD}", "partitioner=metis", f"partitioner.order={order}")
        return dataclasses.replace(config(*words), store_dir=str(self.folder / stores))

    def make(self, stores: str, processes: int = 1) -> Path:
        """Make a partition store in a folder of stores; its path."""
        self.patch.setattr(prepare, "threads_of", lambda _: processes)
        return prepare_partition(self.config(stores), self.folder / "graph").path

    def left(self, stores: str) -> list[str]:
        return sorted(one.name for one in (self.folder / stores / "partitions").iterdir())

    def unfinished(self, stores: str) -> Path:
        (name,) = self.left(stores)
        return self.folder / stores / "partitions" / name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The partition store that nothing has happened to."""
    with pytest.MonkeyPatch.context() as patch:
        return Place(tmp_path_factory.mktemp("whole"), patch).make("whole")


def content_of(path: Path) -> dict[str, bytes]:
    """All files but the manifest, which has times in it."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name != "manifest.json"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


class Interrupt:
    """Counts the calls of a function of ``stages``, and interrupts one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, at: int = -1) -> None:
        self.calls, self._real, self._at = 0, getattr(stages, name), at
        patch.setattr(stages, name, self)

    def __call__(self, *arguments: Any) -> Any:
        if self.calls == self._at:
            raise KeyboardInterrupt
        self.calls += 1
        return self._real(*arguments)


@pytest.mark.parametrize("kind", [pytest.param(one, marks=pytest.mark.long) if one == "homogeneous" else one for one in GRAPHS])
def test_one_process_and_several_make_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place = Place(tmp_path, monkeypatch, kind)
    one, two = place.make("one"), place.make("two", 2)
    assert content_of(one) == content_of(two) and len(content_of(one)) > 10 * WORLD
    assert prepare_partition(place.config("one"), tmp_path / "graph").stats == prepare_partition(
        place.config("two"), tmp_path / "graph").stats  # fmt: skip
    dataset = open_dataset(tmp_path / "graph", verify=False)
    parts = [open_part(two, rank) for rank in range(WORLD)]
    ends = np.cumsum([0, *(len(part.node_ids) for part in parts)])
    for part, want in zip(parts, cut(dataset, ends, np.concatenate([part.node_ids for part in parts])), strict=True):
        assert np.array_equal(part.send_rows, want.send_rows) and np.array_equal(part.halo_ids, want.halo_ids)
    assert place.left("two") == [two.name] and not children()


def children() -> list[psutil.Process]:
    """Processes of a crew that are alive."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if "sargnn.partition.crew" in " ".join(one.cmdline())]


def test_edges_are_sorted_as_a_sort_would() -> None:
    """By (source part, relation, destination, source); equal ones in the graph's order. Long runs and short ones."""
    rng = np.random.default_rng(0)
    source, destination = rng.integers(60, size=4000), rng.integers(8, size=4000)
    indptr, indices = by_destination(source, destination, 300)
    weights = rng.standard_normal(4000).astype(np.float32)
    graph = dataclasses.replace(nasty_graph(), indptr=indptr, indices=indices, columns=EdgeColumns.of({"weight": weights}))
    offsets, nodes = np.array([0, 0, 100, 300]), rng.permutation(300)
    position = np.argsort(nodes)
    owner = np.searchsorted(offsets, position, side="right") - 1
    ends = np.repeat(np.arange(300), np.diff(indptr))
    for p, part in enumerate(cut(graph, offsets, nodes)):
        mine = np.flatnonzero(owner[ends] == p)
        keys = position[indices[mine]], position[ends[mine]], owner[indices[mine]]
        mine = mine[np.lexsort(keys)]
        assert np.array_equal(part.node_ids[part.edge_dst], ends[mine])
        assert part.columns.weight is not None and np.array_equal(part.columns.weight, weights[mine])
        counts = np.bincount(owner[indices[mine]], minlength=3)
        assert np.array_equal(np.diff(part.edge_offsets), counts)
        for q in range(3):
            block = slice(part.edge_offsets[q], part.edge_offsets[q + 1])
            rows = part.node_ids if q == p else part.halo_ids[part.halo_offsets[q] : part.halo_offsets[q + 1]]
            assert np.array_equal(rows[part.edge_src[block]], indices[mine][block])


@pytest.mark.parametrize("kind", GRAPHS)
def test_the_graph_within_a_part(kind: str) -> None:
    graph = GRAPHS[kind]()
    part = assign(graph, "random", 3)
    members = group_members(part, 3)
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    for p in range(3):
        own = members.own(p)
        inside = (part[ends] == p) & (part[graph.indices] == p)
        rows, columns = np.searchsorted(own, ends[inside]), np.searchsorted(own, graph.indices[inside])
        ones = np.ones(len(rows), np.int32)
        want = symmetric(sparse.csr_array((ones, (rows, columns)), shape=(len(own), len(own))))
        found = graph_within(graph, members, p)
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(found, name), getattr(want, name)), name


@pytest.mark.parametrize("stage", ["order_part", "write_part"])
def test_interrupted_it_goes_on_where_it_was(place: Place, stage: str, whole: Path) -> None:
    with place.patch.context() as patch:
        first = Interrupt(patch, stage, at=2)
        with pytest.raises(KeyboardInterrupt):
            place.make("again")
    assert place.unfinished("again") == unfinished_beside(place.folder / "again" / "partitions" / whole.name)
    assert not is_claimed(place.unfinished("again"))
    place.patch.setattr(prepare, "_assign", None)  # not called
    ordered, written = Interrupt(place.patch, "order_part"), Interrupt(place.patch, "write_part")
    again = place.make("again")
    assert first.calls == 2 and content_of(again) == content_of(whole) and place.left("again") == [again.name]
    assert (ordered.calls, written.calls) == ((WORLD - 2, WORLD) if stage == "order_part" else (0, WORLD - 2))


@pytest.mark.parametrize(
    ("damaged", "how", "counts"),
    [
        ("store/part_000/edge_src.npy", "flipped", (0, 0, 3)), ("store/part_000/edge_src.npy", "gone", (0, 0, 3)),
        ("parts/001.json", "flipped", (0, 0, 3)), ("parts/001.json", "empty", (0, 0, 3)),
        ("orders/002.npy", "flipped", (0, 1, 2)), ("orders/002.npy", "cut off", (0, 1, 2)),
        ("orders/000.json", "gone", (0, 1, 2)), ("assignment.npy", "flipped", (1, 4, 4)),
        ("assignment.json", "cut off", (1, 4, 4)),
    ],
)  # fmt: skip
def test_what_is_damaged_is_made_again(place: Place, whole: Path, damaged: str, how: str, counts: tuple[int, ...]) -> None:
    """Assignments, orders and parts that are made after two parts were written and something has happened to a file."""
    with place.patch.context() as patch:
        Interrupt(patch, "write_part", at=2)
        with pytest.raises(KeyboardInterrupt):
            place.make("again")
    finished = sorted(file.stem for file in (place.unfinished("again") / "parts").glob("*.json"))
    # The largest parts come first.
    file = place.unfinished("again") / damaged.replace("part_000", f"part_{finished[0]}").replace("001", finished[1])
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes({"flipped": content, "cut off": content[:-5]}.get(how, bytearray()))
    if how == "gone":
        file.unlink()
    made = [0]
    real = prepare._assign

    def count(*arguments: Any) -> np.ndarray:
        made[0] += 1
        return real(*arguments)

    place.patch.setattr(prepare, "_assign", count)
    ordered, written = Interrupt(place.patch, "order_part"), Interrupt(place.patch, "write_part")
    assert content_of(place.make("again")) == content_of(whole)
    assert (made[0], ordered.calls, written.calls) == counts


def test_parts_of_another_order_are_written_again(place: Place) -> None:
    """As where KaMinPar with several threads has to find an order again."""
    with place.patch.context() as patch:
        Interrupt(patch, "write_part", at=2)
        with pytest.raises(KeyboardInterrupt):
            place.make("again")
    (place.unfinished("again") / "orders" / "003.json").unlink()
    real = stages.order_part
    place.patch.setattr(stages, "order_part", lambda *arguments: np.asarray(real(*arguments))[::-1])
    written = Interrupt(place.patch, "write_part")
    path = place.make("again")
    assert written.calls == WORLD
    assert sorted(np.concatenate([open_part(path, rank).node_ids for rank in range(WORLD)]).tolist()) == list(range(6000))


def test_a_process_that_is_killed_is_one_message(place: Place, whole: Path) -> None:
    """Then the rest is done."""
    with place.patch.context() as patch:
        given = [0]
        real = crew._Member.give

        def kill(member: Any, p: int) -> None:
            given[0] += 1
            if given[0] == 3:
                os.kill(member._process.pid, signal.SIGKILL)
            real(member, p)

        patch.setattr(crew._Member, "give", kill)
        with pytest.raises(StoreError, match="(?s)ordering nodes.*signal 9.*prepare.buffer"):
            place.make("again", 2)
    assert not children()
    ordered = Interrupt(place.patch, "order_part")
    assert content_of(place.make("again")) == content_of(whole)
    assert 0 < ordered.calls < WORLD


def test_interrupted_with_a_crew(place: Place) -> None:
    """No process is left, and what they had finished is not done again; what fails in one of them is said as here."""
    with place.patch.context() as patch:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(Tally, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            place.make("again", 2)
    assert not children()
    folder = place.unfinished("again")
    assert not is_claimed(folder) and list((folder / "orders").glob("*.json"))
    (folder / "parts").write_text("")  # where a folder should be
    with pytest.raises(StoreError, match="(?s)store .*not written.*same command"):
        place.make("again", 2)
    assert not children()


def test_who_comes_second_waits(place: Place, whole: Path) -> None:
    """For the store, or for its turn to make what was not made."""
    path = place.folder / "again" / "partitions" / whole.name
    folder = unfinished_beside(path)
    folder.mkdir(parents=True)
    first = claim(folder)
    assert first is not None and claim(folder) is None and is_claimed(folder)
    done: list[Path] = []
    second = threading.Thread(target=lambda: done.append(place.make("again")))
    second.start()
    second.join(0.5)
    assert second.is_alive() and not path.exists()
    first.release()
    second.join(30)
    assert done == [path] and place.left("again") == [path.name]


def test_a_file_system_without_locks(place: Place, whole: Path) -> None:
    """Each makes its own, and leaves nothing."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    place.patch.setattr("fcntl.flock", flock)
    with place.patch.context() as patch:
        Interrupt(patch, "write_part", at=2)
        with pytest.raises(KeyboardInterrupt):
            place.make("again")
    assert place.left("again") == []
    assert content_of(place.make("again")) == content_of(whole) and place.left("again") == [whole.name]


def test_clean_finds_what_is_left_and_leaves_what_is_written(place: Place, tmp_path: Path) -> None:
    with place.patch.context() as patch:
        Interrupt(patch, "write_part", at=2)
        with pytest.raises(KeyboardInterrupt):
            place.make("stores")
    folder = place.unfinished("stores")
    assert [one for one, _ in stores(tmp_path / "stores", ["partitions"])] == [folder]
    held = claim(folder)
    assert held is not None
    words = ("clean", "what=partitions", "yes=true", "store_dir=stores")
    done = sargnn_here(tmp_path, *words)
    assert done.returncode == 0 and folder.is_dir() and "being written" in done.stdout
    held.release()
    done = sargnn_here(tmp_path, *words)
    assert done.returncode == 0 and "removed 1 store" in done.stderr and place.left("stores") == []


def test_how_many_processes(place: Place) -> None:
    """As many as fit, are worth it, and have a part to do; one in any case."""
    place.patch.setattr(crew, "_WORTH_EDGES", 100)
    many = Crew(8, 1000)
    assert many.size(parts=20, edges=10_000, one_bytes=100, free_bytes=10_000) == 8
    assert many.size(parts=3, edges=10_000, one_bytes=100, free_bytes=10_000) == 3
    assert many.size(parts=20, edges=250, one_bytes=100, free_bytes=10_000) == 3
    assert many.size(parts=20, edges=10_000, one_bytes=300, free_bytes=10_000) == 3
    assert many.size(parts=20, edges=10_000, one_bytes=100, free_bytes=450) == 4
    assert many.size(parts=20, edges=10_000, one_bytes=5000, free_bytes=10) == 1
    graph = weighted_graph()
    plain = dataclasses.replace(graph, columns=EdgeColumns())
    assert writing_bytes(graph, 10**8, 4) - writing_bytes(plain, 10**8, 4) == 5e8


def test_what_is_told(place: Place) -> None:
    """All that is to be done, what was done before, never more than a part has, and every part at its end."""
    from sargnn import steps

    told: list[tuple[str, int | None, int | None]] = []
    steps.install(lambda *one: told.append(one))
    try:
        tally = Tally("cutting parts", {1: 100, 2: 50}, 30)
        tally.add(1, 60)
        tally.add(2, 70)
        tally.finish(1)
        tally.finish(2)
        assert told == [("cutting parts", done, 180) for done in (30, 90, 140, 180, 180)]
        told.clear()
        place.make("stores")
    finally:
        steps.install(None)
    for text in ("ordering nodes", "cutting parts"):
        done = [(one, total) for said, one, total in told if said == text and total is not None]
        assert len(done) > WORLD and [one for one, _ in done] == sorted(one or 0 for one, _ in done)
        assert done[-1][0] == done[-1][1] and done[0][0] == 0
