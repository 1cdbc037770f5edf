"""Ids of nodes, texts or 64-bit numbers in any order, become node numbers by a join on disk.

An id is known by a key of 128 bits: of a whole number its mix, which no other number has, of a text its MurmurHash3
(Appleby, public domain; x64, 128 bits), which two of N texts share with a probability below N^2 / 2^129: 1e-20 of a billion.
Keys go to files by their first bits. One file at a time is read back, and a hash table of it says which keys occur twice and
which row of the nodes' table an end of an edge names. So memory is that of one file and a byte for each row.

Letters: N ids of a type, n some of them, B files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from sargnn.graph.dataset import group_by
from sargnn.native import Entry

_RECORD = np.dtype([("high", np.uint64), ("low", np.uint64), ("row", np.int64)])
_FILE_BYTES = 1 << 25
"""Of records in one file: a hash table of more does not stay in a processor's cache."""
_MOST_FILES = 256
_BLOCK = 64
_hash_texts = Entry("hash_texts", "data b, ends l n+1, records l n 3")
_hash_numbers = Entry("hash_numbers", "numbers l n, records l n 3")
_fill_slots = Entry("fill_slots", "records l n 3, slots i, again l n")
"""Open addressing: a slot has the number of a record, or -1. again: of a key's later records the number of its first."""
_look_up = Entry("look_up_ids", "wanted l w 3, records l n 3, slots i, numbers *")
_rank_rows = Entry("rank_rows", "kept b, before l, block int, records l n 3")
"""In place of each record's row how many rows before it are kept; -1 where it is not kept itself."""


class Records:
    """Records, 24 bytes each, in 2^bits files by the first bits of their keys, each file in the order in which they came."""

    def __init__(self, folder: Path, name: str, bits: int) -> None:
        self.folder, self.name, self.bits = folder, name, bits
        self.paths = [folder / f"{name}_{number:03d}" for number in range(1 << bits)]
        for path in self.paths:
            path.touch()

    def add(self, records: np.ndarray) -> None:
        """Some records, as ``keys_of`` gives them, in the order of their rows."""
        starts, order = np.array([0, len(records)]), None
        if self.bits:
            starts, order = group_by((records["high"] >> np.uint64(64 - self.bits)).astype(np.int64), len(self.paths))
        records = records if order is None else records[order]
        for number, path in enumerate(self.paths):
            with path.open("ab") as file:
                records[starts[number] : starts[number + 1]].tofile(file)


def keys_of(ids: pa.Array, rows: np.ndarray) -> np.ndarray:
    """Records [n] of ids without nulls, texts (large_string) or int64, and their rows, int64 [n]."""
    records = np.empty(len(ids), _RECORD)
    records["row"] = rows
    if pa.types.is_integer(ids.type):
        _hash_numbers(ids.to_numpy(zero_copy_only=False), _words(records))
    else:
        _hash_texts(*text_arrays(ids), _words(records))
    return records


def text_arrays(ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Of large_string ids the bytes, uint8, and int64 [n + 1]: text i is ``data[ends[i]:ends[i + 1]]``."""
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8), ends


class IdMap(Records):
    """The ids of one type of nodes: rows of its table, of which some are not kept, and their numbers.

    About so many ids will come, of which ``buffer_bytes`` are read at once, 24 bytes each; ``count`` have numbers, behind
    ``number``.
    """

    def __init__(self, folder: Path, name: str, about: int, buffer_bytes: int) -> None:
        files = about * _RECORD.itemsize // max(1, min(buffer_bytes, _FILE_BYTES))
        super().__init__(folder, name, min(max(files, 1) - 1, _MOST_FILES - 1).bit_length())
        self.count = 0

    def repeats(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All rows, int64, whose id a row before has, file by file, with the first row that has it."""
        for path in self.paths:
            records = np.fromfile(path, _RECORD)
            again = np.full(len(records), -1, np.int64)
            _fill_slots(_words(records), _slots(len(records)), again)
            later = np.flatnonzero(again >= 0)
            yield records["row"][later], records["row"][again[later]]

    def number(self, kept: np.ndarray) -> None:
        """Rows that are kept get numbers in their order. kept: bool [rows]."""
        counts = np.add.reduceat(kept, np.arange(0, len(kept), _BLOCK), dtype=np.int64) if len(kept) else np.zeros(0, np.int64)
        before = np.concatenate([[0], np.cumsum(counts)])
        if before[-1] < len(kept):
            for path in self.paths:
                records = np.fromfile(path, _RECORD)
                _rank_rows(kept, before, _BLOCK, _words(records))
                records[records["row"] >= 0].tofile(path)
        self.count = int(before[-1])

    def look_up(self, ends: Records, numbers: np.ndarray) -> None:
        """The numbers of the nodes that ends of edges name; -1 where there is none. numbers: integers [ends], to fill."""
        for path, wanted_path in zip(self.paths, ends.paths, strict=True):
            wanted = np.fromfile(wanted_path, _RECORD)
            wanted_path.unlink()
            if len(wanted):
                records = np.fromfile(path, _RECORD)
                slots = _slots(len(records))
                _fill_slots(_words(records), slots, np.empty(len(records), np.int64))
                _look_up(_words(wanted), _words(records), slots, numbers)

    def ends(self, name: str) -> Records:
        """What takes ends of edges that are to be looked up; their rows are places in a list of ends. name: of its files."""
        return Records(self.folder, f"{self.name}_{name}", self.bits)


def _slots(records: int) -> np.ndarray:
    return np.full(1 << max(3, (2 * records - 1).bit_length()), -1, np.int32)


def _words(records: np.ndarray) -> np.ndarray:
    """Records [n] as int64 [n, 3], as loops take them."""
    return records.view(np.int64).reshape(len(records), 3)
