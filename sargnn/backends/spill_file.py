"""The file that tables of a pool lie in (``backends.spill``), and the pages of memory that are moved to it and back.

Files have no names, so nothing is left of them whatever ends the process. Tables bypass the page cache where the disk's file
system can.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from sargnn.errors import SargnnError

_PAGE, _CHUNK = mmap.PAGESIZE, 1 << 26
_LEAST_PIECE = 1 << 20
"""What is smaller than this, and than what is to be written, is not filled with a part of a table."""
Places = tuple[tuple[int, int], ...]
"""Where a table lies in a file, one piece behind the other: of each its place and its bytes."""
_NONE, _READ_WRITE, _DONTNEED = 0, 3, 4
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p


def whole_pages(address: int, size: int) -> tuple[int, int]:
    """The address and the bytes of the whole pages in so many bytes of memory: what may be moved past the page cache."""
    first, last = -(-address // _PAGE) * _PAGE, (address + size) // _PAGE * _PAGE
    return first, max(0, last - first)


def resident_pages(statm: int) -> tuple[int, int]:
    """Bytes of this process's memory, and of those what is in a file. statm: ``/proc/self/statm``, open."""
    _, held, shared, *_ = map(int, os.pread(statm, 100, 0).split())
    return held * _PAGE, shared * _PAGE


def close_pages(address: int, size: int) -> None:
    """Give whole pages back to the kernel, and close them to all access."""
    if _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _DONTNEED):
        raise OSError(ctypes.get_errno(), "madvise")
    _protect(address, size, _NONE)


def open_pages(address: int, size: int) -> None:
    _protect(address, size, _READ_WRITE)


def _protect(address: int, size: int, access: int) -> None:
    if size and _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "mprotect")


class SpillFile:
    """A file without a name, in a folder that is made if need be. Raises ``SargnnError`` where it cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._file, self._direct = self._open(os.O_DIRECT), True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._file, self._direct = self._open(), False
        except OSError as error:
            raise SargnnError(
                f"Tables cannot lie there: {error.strerror}.", given=f"spill_dir={folder}", hint="a folder on a local disk"
            ) from error
        self._mapped: int | None = None
        self._addresses: set[int] = set()
        self._end, self._laid_bytes = 0, 0
        self._holes: dict[int, int] = {}  # their bytes, by place
        self._ends: dict[int, int] = {}  # their places, by end
        self._writer, self._reader = (ThreadPoolExecutor(1, f"spill {name}") for name in ("writer", "reader"))

    def _open(self, flags: int = 0) -> int:
        path = self.folder / f"spill_{os.getpid()}"
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o600)
        finally:
            path.unlink(missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes that it has had at one time, and those that are mapped."""
        return self._end + self._laid_bytes

    def take(self, size: int) -> Places:
        """Where ``size`` bytes may be written, a multiple of the size of a page.

        That is the smallest hole that has room, else pieces of the largest ones, else the end of the file: tables of ranks are
        of many sizes, and what one gives back would seldom have another's.
        """
        places = []
        while size:
            holes = sorted((room, place) for place, room in self._holes.items())
            room, place = next((hole for hole in holes if hole[0] >= size), holes[-1] if holes else (0, 0))
            if room < min(size, _LEAST_PIECE):
                place, room, self._end = self._end, size, self._end + size
            else:
                del self._holes[place], self._ends[place + room]
            taken = min(size, room)
            places.append((place, taken))
            self._free(place + taken, room - taken)
            size -= taken
        return tuple(places)

    def give(self, places: Places) -> None:
        for place, size in places:
            self._free(place, size)

    def _free(self, place: int, size: int) -> None:
        """A hole, joined with those beside it."""
        if not size:
            return
        end = place + size
        end += self._holes.pop(end, 0)
        place = self._ends.pop(place, place)
        self._holes[place], self._ends[end] = end - place, place

    def write(self, places: Places, address: int) -> Future[None]:
        """Begin to write memory, one table after the other."""
        return self._writer.submit(self._move, os.pwrite, places, address)

    def read(self, places: Places, address: int) -> Future[None]:
        """Begin to read into memory, one table after the other."""
        return self._reader.submit(self._move, lambda file, room, at: os.preadv(file, [room], at), places, address)

    def _move(self, move: Callable[[int, memoryview, int], int], places: Places, address: int) -> None:
        for place, size in places:
            memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
            done = 0
            while done < size:
                moved = move(self._file, memory[done : done + _CHUNK], place + done)
                if not moved:
                    raise OSError(errno.EIO, "the file is shorter than what was written")
                done += moved
            address += size
            if not self._direct:
                os.fdatasync(self._file)
                os.posix_fadvise(self._file, place, size, os.POSIX_FADV_DONTNEED)

    def mapped(self, tensor: Tensor) -> Tensor:
        """A contiguous tensor in a file, whose pages the kernel reads when they are read, and drops when it needs room."""
        file, place, size = self._extend(tensor.nbytes)
        memory, done = memoryview(tensor.view(-1).view(torch.uint8).numpy().data), 0
        while done < len(memory):
            done += os.pwrite(file, memory[done : done + _CHUNK], place + done)
        os.fdatasync(file)
        os.posix_fadvise(file, place, size, os.POSIX_FADV_DONTNEED)
        address, room = self._map(mmap.MAP_PRIVATE, file, place, size)
        _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_SEQUENTIAL)
        return torch.frombuffer(room, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)

    def zeros(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """[rows, width] in a file, whose pages the kernel reads when they are read, writes, and drops when it needs room."""
        file, place, size = self._extend(rows * width * dtype.itemsize)
        _, room = self._map(mmap.MAP_SHARED, file, place, size)
        return torch.frombuffer(room, dtype=dtype, count=rows * width).view(rows, width)

    def _extend(self, size: int) -> tuple[int, int, int]:
        """The file that is mapped, and where it has room for so many more bytes, zeros: whole pages that the disk has taken."""
        size = -(-size // _PAGE) * _PAGE
        if self._mapped is None:
            self._mapped = self._open()
        place = os.lseek(self._mapped, 0, os.SEEK_END)
        os.posix_fallocate(self._mapped, place, size)
        self._laid_bytes += size
        return self._mapped, place, size

    def _map(self, sharing: int, file: int, place: int, size: int) -> tuple[int, ctypes.Array[ctypes.c_char]]:
        # Python's own mapping would keep a file of its own open.
        address = _libc.mmap(None, ctypes.c_size_t(size), _READ_WRITE, sharing, file, ctypes.c_long(place))
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        room = (ctypes.c_char * size).from_address(address)
        weakref.finalize(room, self._unmap, address, size)
        self._addresses.add(address)
        return address, room

    def drop(self, tensor: Tensor) -> None:
        """Of a contiguous tensor that lies there, or a part of one: whoever asks for its pages next gets them from the file."""
        address, size = whole_pages(tensor.data_ptr(), tensor.nbytes)
        _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _DONTNEED)

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor, or what it is a part of, lies there."""
        return tensor.untyped_storage().data_ptr() in self._addresses

    def _unmap(self, address: int, size: int) -> None:
        self._addresses.discard(address)
        _libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))

    def close(self) -> None:
        """Wait for what is under way, and give the space back."""
        for threads in (self._writer, self._reader):
            threads.shutdown()
        os.close(self._file)
