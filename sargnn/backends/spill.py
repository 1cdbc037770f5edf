"""A pool whose tables may lie on a disk while nobody reads them, so that a process stays within a budget of memory.

Two kinds of tables may:

| kind | goes | comes back |
|---|---|---|
| kept until backward | while only ``Kept`` handles hold it | when a handle is asked |
| of a rank of this process that waits | unless it is shown to others | before the rank goes on |

A table that is out has its address still: its pages were written, given back to the kernel and closed to all access, so that
whoever reads one by mistake ends with a fault, not with wrong numbers. Where memory is short those go first whose next use is
farthest away, if this epoch is like the last one (Belady, 1966). Of others nothing is known: kept ones go before those of
waiting ranks, the oldest first, which backward needs last; then the ranks that have waited for the shortest time. What is
likely to go next, since it went at this place in the last epoch, is written, and what is likely to be used next is read, while
the cores compute. A table that is kept is not written to, so it is written to disk once, however often it comes and goes.

Tensors that never change, such as edges, may be laid in a file that is mapped: the kernel reads and drops their pages. Others
that stay, learned rows and moments, lie in one that is mapped to be written to: the kernel writes their pages before it drops
them. Where the budget is exceeded, the process lets go of them as soon as it has gone through them.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sargnn.backends.memory import COUNTS, SMALLEST, Moved, Pool, PuttingAway, Storage, holders
from sargnn.backends.spill_file import Places, SpillFile, close_pages, open_pages, resident_pages, whole_pages
from sargnn.errors import SargnnError

_AHEAD, _LOOKED_AT = 3, 64
"""Tables that are read ahead at one time, and among how many uses they are looked for."""
_WRITTEN_AHEAD = 3
"""Of as many bytes as are needed, how many are written before they are needed."""
_LAID_BYTES = 1 << 16
"""What is smaller is not laid in a file."""


@dataclass
class _Copy:
    """What the file has of a table: where, and when it is written."""

    places: Places
    written: Future[None]


@dataclass(eq=False)
class _Table(Storage):
    """A storage of the pool that ``kept`` handles hold, the newest of them number ``since``, and ``shown`` exchanges show to
    other ranks. ``key`` says which of its rank's tables it is, the same in every epoch. ``copy``, on disk, is valid while it is
    out, or kept; ``discarded``: it is out, and not on disk."""

    kept: int = 0
    since: int = 0
    shown: int = 0
    thread: int = 0
    key: Any = None
    copy: _Copy | None = None
    out: bool = False
    discarded: bool = False
    reading: Future[None] | None = None

    @property
    def pages(self) -> tuple[int, int]:
        """The address and the bytes of its whole pages."""
        return whole_pages(self.tensor.data_ptr(), self.used)

    @property
    def is_kept_only(self) -> bool:
        return self.kept > 0 and holders(self.tensor) == self.idle_count + self.kept


class _Uses:
    """The order in which tables were used in the last epoch, and between which uses they went out: likely the same now."""

    def __init__(self) -> None:
        self._now: list[Any] = []
        self._last: list[Any] = []
        self._places: dict[Any, list[int]] = {}
        self._begun: set[int] = set()
        self._made = defaultdict[int, Counter[int]](Counter)
        self._times = defaultdict[Any, int](int)
        self._went: set[tuple[Any, int]] = set()
        self._went_last: set[tuple[Any, int]] | None = None

    def begin(self, thread: int) -> bool:
        """A rank begins an epoch; whether it is the first of its process."""
        first = not self._begun or thread in self._begun
        if first:
            self._last, self._now, self._places = self._now, [], defaultdict(list)
            for place, key in enumerate(self._last):
                self._places[key].append(place)
            self._went_last = self._went if self._last else None
            self._went, self._times = set(), defaultdict(int)
            self._begun.clear()
        self._begun.add(thread)
        self._made[thread].clear()
        return first

    def key(self, thread: int, size: int) -> Any:
        """A new table's: a rank makes as many of a size in every epoch."""
        self._made[thread][size] += 1
        return thread, size, self._made[thread][size]

    def note(self, key: Any) -> None:
        self._now.append(key)
        self._times[key] += 1

    def went(self, key: Any) -> None:
        """A table goes out."""
        self._went.add((key, self._times[key]))

    def is_to_go(self, key: Any) -> bool:
        """Whether it went out before its next use in the last epoch, or nothing is known."""
        return self._went_last is None or (key, self._times[key]) in self._went_last

    def next(self, key: Any) -> float:
        """The place of a table's next use in the last epoch's order; infinite where none is known. As ranks may come in another
        order than in the last epoch, that is the use behind as many as it had in this one.
        """
        places, used = self._places.get(key, []), self._times[key]
        return places[used] if used < len(places) else math.inf

    def coming(self) -> Iterator[Any]:
        return islice(self._last, len(self._now), len(self._now) + _LOOKED_AT)


class Kept:
    """A tensor that is not written to, and may be on disk until it is asked for."""

    def __init__(self, pool: SpillingPool, table: _Table, tensor: Tensor) -> None:
        self._pool, self._table, self._tensor, self._version = pool, table, tensor.detach(), tensor._version
        table.kept += 1

    def __call__(self) -> Tensor:
        assert self._tensor._version == self._version, "what is kept was written to"
        tensor = self._tensor.detach()  # from here on it is not kept only
        self._pool.bring(self._table)
        return tensor

    def __del__(self) -> None:
        self._table.kept -= 1
        if not self._table.kept:
            self._pool.forget(self._table)


class SpillingPool(Pool):
    """See the module's text. Of all ranks of a process.

    Args:
        budget: bytes that the process may have in memory, file pages that the kernel can drop aside; None: as many as it takes.
        spills_all: what is kept until backward goes to disk in any case.

    Raises ``SargnnError``: this PyTorch does not count who holds a tensor's memory.
    """

    spills = True

    def __init__(self, file: SpillFile, budget: int | None = None, *, spills_all: bool = False) -> None:
        super().__init__()
        if not COUNTS:
            raise SargnnError("This PyTorch does not tell who holds a tensor.", given=torch.__version__, hint="spill=none")
        self._file, self._budget, self._spills_all = file, budget, spills_all
        self._moved = defaultdict[int, Moved](Moved)
        self._numbers = count()
        self._other = self._other_before = 0  # the most that is not in tables, in this epoch and in the one before
        self._away: dict[int, int] = {}  # threads of ranks that wait, and since when
        self._uses = _Uses()
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)

    # What a rank calls.

    @property
    def moved(self) -> Moved:
        return self._moved[threading.get_ident()]

    @property
    def on_disk(self) -> int:
        return self._file.size

    @contextmanager
    def within(self, putting_away: PuttingAway) -> Iterator[None]:
        """Within it what autograd saves is kept here, and tables of the rank may be out while it waits."""
        with ExitStack() as stack:
            stack.enter_context(saved_tensors_hooks(self._pack, self._unpack))
            stack.enter_context(putting_away(self._leave))
            yield

    def keep(self, tensor: Tensor) -> Callable[[], Tensor]:
        packed = self._pack(tensor)
        return packed if isinstance(packed, Kept) else lambda: packed

    def show(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        tables = [table for table in map(self._table_of, tensors) if table is not None]
        for table in tables:
            table.shown += 1

        def hide() -> None:
            for table in tables:
                table.shown -= 1

        return hide

    def begin(self) -> None:
        if self._uses.begin(threading.get_ident()):
            self._other, self._other_before = 0, self._other
            for table in self._tables():
                table.key = id(table)

    def bring(self, table: _Table) -> None:
        """A table is about to be read: have it in memory, and what is likely to be read after it on its way."""
        self._uses.note(table.key)
        if table.out:
            self._make_room(table.pages[1])
            self._begin_reading(table)
        if table.reading is not None:
            self._wait(table.reading)
            table.reading = None
        self._read_ahead()

    def _begin_reading(self, table: _Table) -> None:
        (address, size), copy = table.pages, table.copy
        assert copy is not None
        self._wait(copy.written)
        open_pages(address, size)
        table.out, table.reading = False, self._file.read(copy.places, address)
        self.moved.read_bytes += size

    def _read_ahead(self) -> None:
        tables = {table.key: table for table in self._tables() if table.out and not (table.is_idle or table.discarded)}
        room = _AHEAD - sum(table.reading is not None for table in self._tables())
        for key in self._uses.coming():
            if not tables or room <= 0:
                return
            table = tables.pop(key, None)
            if table is None:
                continue
            size, until = table.pages[1], self._uses.next(key)
            if not self._make_room(size, until=until):
                return
            self._begin_reading(table)
            room -= 1

    def forget(self, table: _Table) -> None:
        """What the disk has of a table that is in memory is of no more use."""
        if table.copy is not None and not table.out:
            self._file.give(table.copy.places)
            table.copy = None

    def lay(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or tensor.nbytes < _LAID_BYTES or self._file.has(tensor):
            return tensor
        try:
            return self._file.mapped(tensor)
        except OSError as error:
            raise self._told(error) from error

    def lasting(self, rows: int, width: int, like: Tensor) -> Tensor:
        if like.device.type != "cpu" or rows * width * like.element_size() < _LAID_BYTES:
            return super().lasting(rows, width, like)
        try:
            return self._file.zeros(rows, width, like.dtype)
        except OSError as error:
            raise self._told(error) from error

    def rest(self, tensor: Tensor) -> None:
        if self._file.has(tensor) and (self._budget is None or resident_pages(self._statm)[0] > self._budget):
            self._file.drop(tensor)

    def discard(self, tensor: Tensor) -> None:
        table = self._find(tensor)
        if table is None or table.kept or table.shown or tensor.nbytes != table.used:
            return
        if holders(table.tensor) == table.idle_count + 1:  # else somebody reads it under another name
            if table.copy is not None:
                self._wait(table.copy.written)
            self.forget(table)
            self._give_back(table)
            table.discarded = True

    def renew(self, tensor: Tensor) -> None:
        table = self._find(tensor)
        if table is not None and table.discarded:
            self._make_room(table.pages[1])
            self._let_go(table)

    def room(self) -> int:
        return super().room() if self._budget is None else -self._over(0)

    def overwrite(self, tensor: Tensor) -> None:
        table = self._find(tensor)
        if table is not None:
            self.forget(table)

    def close(self) -> None:
        for table in self._tables():
            self._let_go(table)
        self._file.close()
        os.close(self._statm)

    # Memory.

    def _owns(self, tensor: Tensor) -> Storage:
        return _Table(tensor, holders(tensor))

    def _give(self, storage: Storage, used: int, *, fresh: bool = False) -> None:
        assert isinstance(storage, _Table)
        self._make_room(used if fresh or storage.out else 0)
        self._let_go(storage)
        super()._give(storage, used)
        storage.thread = threading.get_ident()
        storage.key = self._uses.key(storage.thread, used)

    def _let_go(self, storage: Storage) -> None:
        assert isinstance(storage, _Table)
        if storage.reading is not None:
            self._wait(storage.reading)
            storage.reading = None
        if storage.out:
            open_pages(*storage.pages)
            storage.out = storage.discarded = False
        self.forget(storage)

    def _find(self, tensor: Tensor) -> _Table | None:
        where = tensor.untyped_storage().data_ptr()
        return next((table for table in self._tables() if table.tensor.data_ptr() == where), None)

    def _tables(self) -> Iterator[_Table]:
        for storage in self._owned:
            assert isinstance(storage, _Table)
            yield storage

    def _table_of(self, tensor: Tensor) -> _Table | None:
        """Its table, from now on also where the memory is PyTorch's own; None for small ones, NumPy's memory and files."""
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() < SMALLEST:
            return None
        table = self._find(tensor)
        if table is None and storage.resizable():
            numel = storage.nbytes() // tensor.element_size()
            flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (numel,), (1,))
            table = _Table(flat, holders(torch.empty(1)))
            self._give(table, storage.nbytes())
            self._owned.append(table)
        return table

    def _pack(self, tensor: Tensor) -> Tensor | Kept:
        table = self._table_of(tensor)
        if table is None:
            return tensor
        table.since = next(self._numbers)
        return Kept(self, table, tensor)

    def _unpack(self, packed: Tensor | Kept) -> Tensor:
        return packed() if isinstance(packed, Kept) else packed

    def _leave(self) -> Callable[[], None]:
        thread = threading.get_ident()
        self._away[thread] = next(self._numbers)

        def take_up() -> None:
            del self._away[thread]
            own = [t for t in self._tables() if t.thread == thread and not (t.is_idle or t.is_kept_only or t.discarded)]
            for table in own:  # a list of all would hold what is to be freed
                self.bring(table)
                if not table.kept:
                    self.forget(table)  # it may be written to

        return take_up

    def _victims(self) -> list[_Table]:
        """What may go, in this order."""
        kept, waiting = [], []
        for table in self._tables():
            if table.out or table.shown or table.reading is not None or table.is_idle:
                continue
            if table.is_kept_only:
                kept.append(table)
            elif table.thread in self._away:
                waiting.append(table)
        kept.sort(key=lambda table: table.since)
        waiting.sort(key=lambda table: -self._away[table.thread])
        # Of what was used after this point in the last epoch, what is used last goes first; of other tables nothing is known.
        return sorted(kept + waiting, key=lambda table: -self._uses.next(table.key))

    def _make_room(self, size: int, *, until: float = math.inf) -> bool:
        """Whether there is room for so many bytes more. ``until``: leave what is used before this, and wait for nothing."""
        if self._budget is None and not self._spills_all:
            return True
        over = self._over(size)
        if over > 0:
            self._free_idle(0)
            over = self._over(size)
        victims = [table for table in self._victims() if until == math.inf or self._uses.next(table.key) > until]
        for table in victims:
            if over <= 0 and not (self._spills_all and table.is_kept_only):
                continue
            if until == math.inf or (table.copy is not None and table.copy.written.done()):
                over -= self._put_out(table)
        ahead = over + _WRITTEN_AHEAD * size
        for table in victims:
            if ahead <= 0:
                break
            if not table.out and self._uses.is_to_go(table.key):
                self._write(table)
                ahead -= table.pages[1]
        return over <= 0

    def _over(self, size: int) -> int:
        """By how many bytes the budget is exceeded with ``size`` more."""
        if self._budget is None:
            return -size
        resident = sum(table.used for table in self._tables() if not table.out)
        held, in_files = resident_pages(self._statm)
        self._other = max(self._other, held - in_files - resident)
        return resident + size + max(self._other, self._other_before) - self._budget

    def _write(self, table: _Table) -> None:
        if table.copy is None:
            self._free_places()
            address, size = table.pages
            places = self._file.take(size)
            table.copy = _Copy(places, self._file.write(places, address))
            self.moved.written_bytes += size

    def _free_places(self) -> None:
        """Of tables that nobody holds any more."""
        for table in self._tables():
            if table.copy is None or not table.is_idle:
                continue
            if table.out:
                self._file.give(table.copy.places)
                table.copy, table.discarded = None, True
            else:
                self.forget(table)

    def _put_out(self, table: _Table) -> int:
        """Write a table, unless that was done, and give its memory back: so many bytes."""
        self._write(table)
        assert table.copy is not None
        self._wait(table.copy.written)
        self._uses.went(table.key)
        return self._give_back(table)

    def _give_back(self, table: _Table) -> int:
        """Give a table's memory back, and close it to all access: so many bytes."""
        close_pages(*table.pages)
        table.out = True
        return table.pages[1]

    def _wait(self, work: Future[None]) -> None:
        started = time.perf_counter()
        try:
            work.result()
        except OSError as error:
            raise self._told(error) from error
        finally:
            self.moved.wait_s += time.perf_counter() - started

    def _told(self, error: OSError) -> SargnnError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "The disk that tables lie on is full." if full else f"The disk that tables lie on fails: {error.strerror}."
        hint = "another spill_dir, or a larger memory_budget"
        return SargnnError(what, given=f"spill_dir={self._file.folder}, {self._file.size} bytes", hint=hint)
