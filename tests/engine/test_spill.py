"""Tables on disk: what a run computes does not depend on where they lie, and nobody reads one that is out."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from sargnn.backends import memory, spill, spill_file
from sargnn.backends.spill import SpillingPool
from sargnn.backends.spill_file import SpillFile
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.errors import SargnnError
from sargnn.graph.dataset import Dataset
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import near

ROWS, WIDTH = 1 << 10, 300
LIKE = torch.empty(0)
_SHARED: list[SpillingPool] = []
"""The pool of all ranks."""


class _PagesOfOneByte:
    """What the kernel does, for tables of any size: memory that is given back holds NaN, so that who reads it is found."""

    def madvise(self, address: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        ctypes.memset(address, 255, size.value)
        return 0

    def mprotect(self, address: ctypes.c_void_p, size: ctypes.c_size_t, access: int) -> int:
        return 0


@contextmanager
def small_tables(folder: Path, budget: int | None = 1, **settings: Any) -> Iterator[None]:
    """``curve``'s pool spills tables of any size; with the smallest budget all that may go, whenever there is a new one."""
    with (
        patch.object(spill_file, "_PAGE", 1),
        patch.object(spill_file, "_libc", _PagesOfOneByte()),
        patch.object(SpillFile, "_open", lambda self, flags=0: _buffered(self.folder)),
        patch.object(spill, "SMALLEST", 1),
    ):
        pool = SpillingPool(SpillFile(folder), budget, **settings)
        _SHARED[:] = [pool]
        yield
        pool.close()


def _buffered(folder: Path) -> int:
    return os.open(folder / "tables", os.O_RDWR | os.O_CREAT)


def curve(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """As ``cases.curve``, of a rank whose process's pool spills."""
    (pool,) = _SHARED
    trainer = cases.trainer_of(group, config, dataset, lambda *, enabled: pool)
    trainer.engine.table_room = None  # the budget says nothing of tables as small as these
    with pool.within(group.putting_away):
        history = trainer.run()
    parameters = [p.detach().numpy().tobytes() for p in trainer.optimization.replicated]
    read = pool.moved.read_bytes
    return {"losses": history.losses, "scores": history.scores, "parameters": b"".join(parameters), "read": read}


MORE: dict[str, dict[str, Any]] = {
    "all": {},
    "sqrt": {"keep_layers": "sqrt"},
    "sent rounded": {"wire": "bf16"},
    "flows": {"mfg": True},
}


@pytest.mark.parametrize(
    ("model", "mode", "groups"),
    spread(
        ["sage", "gat", "gatv2", "rgcn", "gin", "gcn"],
        [("sar", None), ("sar", 2), ("no_remat", None), ("one_shot", 2)],
    ),
)
def test_the_same_bits(tmp_path: Path, model: str, mode: str, groups: int | None) -> None:
    wide = {} if model.startswith("gat") else {"hidden": 48}  # sums are cut into groups of 16 columns and more
    config = cases.run_config(
        cases.model_config(model, **wide), mode=mode, precision="fp32", world=3, epochs=2, aggregate="post", message_rows=7
    )
    graph = cases.graph_for(model)
    expected = near(3)(cases.curve, config, graph)
    with small_tables(tmp_path):
        spilled = near(3)(curve, cases.in_groups(config, groups), graph)
    for here, there in zip(spilled, expected, strict=True):
        for what in ("losses", "scores", "parameters"):
            assert here[what] == there[what], what
    assert sum(rank["read"] for rank in spilled) > 0


@pytest.mark.parametrize(
    ("model", "more", "precision"),
    spread(["sage", "sage, maxima", "gat"], list(MORE), ["fp32", "fp64", "bf16", "mixed"]),
)
def test_the_same_bits_of_all_precisions(tmp_path: Path, model: str, more: str, precision: str) -> None:
    """Maxima are taken of the input's rows, which are let go of while they are in groups."""
    if more == "sent rounded" and precision != "fp32":
        pytest.skip("only fp32 rows are rounded on their way")
    model, *aggregates = model.split(", ")
    layers = cases.model_config(model, **({"aggregator": "max"} if aggregates else {}))
    config = cases.run_config(layers, precision=precision, world=3, epochs=2, aggregate="post", **MORE[more])
    graph = cases.graph_for(model)
    expected = near(3)(cases.curve, config, graph)
    with small_tables(tmp_path, None, spills_all=True):
        spilled = near(3)(curve, cases.in_groups(config, 3), graph)
    for here, there in zip(spilled, expected, strict=True):
        for what in ("losses", "scores", "parameters"):
            assert here[what] == there[what], what


@contextmanager
def real(folder: Path, budget: int | None = 1, **settings: Any) -> Iterator[SpillingPool]:
    """A pool whose tables have the kernel's pages."""
    pool = SpillingPool(SpillFile(folder), budget, **settings)
    yield pool
    pool.close()


def table(pool: SpillingPool, value: float) -> Tensor:
    return pool.empty(ROWS, WIDTH, LIKE).fill_(value)


def test_kept_tables_go_and_come_back(tmp_path: Path) -> None:
    with real(tmp_path) as pool:
        kept = [pool.keep(table(pool, value)) for value in range(5)]
        assert pool.moved.written_bytes >= 4 * ROWS * WIDTH * 4 - 5 * spill_file._PAGE
        assert not list(tmp_path.iterdir()), "the file has no name"
        for _ in range(2):
            for value in (3, 0, 4, 1, 2):
                assert bool((kept[value]() == value).all())
        again = pool.moved.written_bytes
        assert again <= 5 * ROWS * WIDTH * 4, "what is kept is written once"


def test_what_somebody_holds_stays(tmp_path: Path) -> None:
    with real(tmp_path) as pool:
        held = table(pool, 1)
        kept = pool.keep(held)
        for _ in range(3):
            table(pool, 2)
        assert pool.moved.written_bytes == 0 or bool((held == 1).all())
        assert pool._find(held).out is False  # type: ignore[union-attr]
        assert bool((kept() == 1).all())


def test_what_is_used_last_goes_first(tmp_path: Path) -> None:
    """As the last epoch had it; of those that it did not use the oldest first."""
    with real(tmp_path, 10**15) as pool:
        for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0]):
            pool.begin()
            kept = [pool.keep(table(pool, value)) for value in range(5)]
            assert [int(victim.tensor[0]) for victim in pool._victims()] == order
            for value in (0, 1, 2, 3, 4):
                assert bool((kept[value]() == value).all())
            del kept


def test_ranks_that_come_in_another_order_leave_the_next_uses_known() -> None:
    """A use that comes early is one of its own table's, and says nothing of the others'."""
    uses = spill._Uses()
    uses.begin(0)
    for key in ("a", "b", "a", "c"):
        uses.note(key)
    uses.begin(0)
    assert [uses.next(key) for key in "abc"] == [0, 1, 3]
    uses.note("c")
    assert [uses.next(key) for key in "abc"] == [0, 1, float("inf")]
    uses.note("a")
    assert uses.next("a") == 2


def test_tables_have_names_by_their_size() -> None:
    """One more of another size, as constants in the first epoch, changes no name."""
    uses = spill._Uses()
    uses.begin(0)
    first = [uses.key(0, size) for size in (8, 4, 8)]
    uses.begin(0)
    assert [uses.key(0, size) for size in (8, 8)] == [first[0], first[2]]


def test_only_what_went_out_in_the_last_epoch_is_written_ahead(tmp_path: Path) -> None:
    size, written = ROWS * WIDTH * 4, []
    with real(tmp_path, 10**15) as pool, patch.object(SpillingPool, "_over", lambda *_: 0):
        for epoch in range(3):
            pool.begin()
            before = pool.moved.written_bytes
            kept = [pool.keep(table(pool, value)) for value in range(3)]
            pool._make_room(size)
            written.append(round((pool.moved.written_bytes - before) / size))
            if epoch == 1:
                pool._put_out(pool._victims()[0])
            for give in kept:
                give()
            del kept, give
    assert written == [3, 0, 1], "nothing is known; nothing went; one did"


def test_reading_a_table_that_is_out_is_a_fault(tmp_path: Path) -> None:
    """Not wrong numbers. A view that the pool does not know of stands for a mistake."""
    child = os.fork()
    if not child:
        with real(tmp_path) as pool:
            rows = table(pool, 1)
            address, kept = rows.data_ptr(), pool.keep(rows)
            del rows
            table(pool, 2)
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ctypes.string_at(address + ROWS * WIDTH * 2, 1)
            kept()
        os._exit(0)
    assert os.waitpid(child, 0)[1] & 127 == signal.SIGSEGV


def test_tables_of_a_rank_that_waits(tmp_path: Path) -> None:
    """All but what it shows, and what it had written to after it was kept."""
    with real(tmp_path) as pool:
        mine, shown = table(pool, 1), table(pool, 2)
        hide = pool.show([shown])
        take_up = pool._leave()
        other = threading.Thread(target=table, args=(pool, 3))
        other.start()
        other.join()
        assert pool._find(mine).out and not pool._find(shown).out  # type: ignore[union-attr]
        take_up()
        hide()
        assert bool((mine == 1).all()) and bool((shown == 2).all())


def test_what_is_discarded_is_not_written(tmp_path: Path) -> None:
    with real(tmp_path) as pool:
        rows = table(pool, 1)
        pool.discard(rows)
        assert pool._find(rows).out and pool.moved.written_bytes == 0  # type: ignore[union-attr]
        pool.renew(rows)
        assert bool((rows.fill_(2) == 2).all())


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    def write(file: int, memory: memoryview, place: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with real(tmp_path) as pool, patch.object(os, "pwrite", write):
        kept = pool.keep(table(pool, 1))
        with pytest.raises(SargnnError, match="is full"):
            table(pool, 2)
        assert bool((kept() == 1).all())


def test_what_is_read_under_another_name_is_not_discarded(tmp_path: Path) -> None:
    with real(tmp_path) as pool:
        rows = table(pool, 1)
        view = rows[1:]
        pool.discard(rows)
        is_out = pool._find(view).out  # type: ignore[union-attr]
        assert not is_out
        assert bool((view == 1).all())


def test_holes_of_the_file_are_filled(tmp_path: Path) -> None:
    """Whatever the sizes: a hole that has room, else pieces of the largest; what is given back is joined."""
    file, mb = SpillFile(tmp_path), 1 << 20
    try:
        first, second, third = (file.take(size * mb) for size in (3, 2, 4))
        file.give(first)
        file.give(third)
        assert file.take(2 * mb) == ((0, 2 * mb),), "the smallest that has room"
        assert file.take(6 * mb) == ((5 * mb, 4 * mb), (2 * mb, mb), (9 * mb, mb)), "the largest pieces, then the end"
        file.give(second)
        assert file.take(2 * mb) == second and file.size == 10 * mb
        file.give(((2 * mb, mb),))
        file.give(((5 * mb, mb),))
        file.give(second)
        assert file.take(4 * mb) == ((2 * mb, 4 * mb),), "one hole before it and one behind"
    finally:
        file.close()


def test_a_table_in_pieces_comes_back(tmp_path: Path) -> None:
    with real(tmp_path, 10**15) as pool:
        size = pool._find(table(pool, 0)).pages[1]  # type: ignore[union-attr]
        rest = size // spill_file._PAGE // 3 * spill_file._PAGE
        with patch.object(spill_file, "_LEAST_PIECE", spill_file._PAGE):
            holes = [pool._file.take(part) for part in (rest, spill_file._PAGE, size - rest)]
            pool._file.give(holes[0])
            pool._file.give(holes[2])
            numbers = pool.empty(ROWS, WIDTH, LIKE)
            numbers.view(-1).copy_(torch.arange(ROWS * WIDTH))
            kept = pool.keep(numbers)
            del numbers
            (victim,) = pool._victims()
            pool._put_out(victim)
            assert victim.copy is not None and len(victim.copy.places) > 1
        assert torch.equal(kept().view(-1), torch.arange(ROWS * WIDTH, dtype=torch.float32))


def test_large_tensors_are_laid_in_a_file(tmp_path: Path) -> None:
    with real(tmp_path) as pool:
        before = pool.on_disk
        rows = torch.arange(1 << 20, dtype=torch.int32).view(1 << 10, -1)
        laid = pool.lay(rows)
        assert torch.equal(laid, rows) and laid.data_ptr() != rows.data_ptr()
        assert pool.on_disk - before == rows.nbytes
        assert pool.lay(rows[:1]).data_ptr() == rows.data_ptr(), "small ones stay"


def test_pools_without_a_disk_keep_what_they_are_given() -> None:
    pool = memory.Pool()
    rows = pool.empty(2, 3, LIKE).fill_(1)
    assert pool.keep(rows)().data_ptr() == rows.data_ptr() and pool.lay(rows) is rows
