"""KaMinPar's graph file and its cut, in a process of its own.

A process of its own because KaMinPar ends its process where it finds a fault in a file, takes memory that is wanted back at
once, and can be ended like any other when a person has had enough. It ends with its parent, and what ended it can be said.

The file is ParHIP's binary form, which is read into a compressed graph: a header of three 64-bit numbers (flags, N, M), N + 1
64-bit addresses of rows, M 32-bit neighbours, 32-bit node weights if there are any, 32-bit edge weights if there are any.

Letters: N nodes, M entries of the symmetric graph, P parts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sargnn.errors import ConfigError


def end_with_parent(parent: int) -> None:
    """Have Linux end this process when process ``parent``, which started it, ends, however that does; at once if it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)


def reason_of_end(code: int, said: str) -> str:
    """Why a process ended, from its exit code and the last line that it wrote."""
    last = said.strip().splitlines()[-1:]
    ended = (
        f"ended by signal {-code}" + (", as where memory is short" if code == -9 else "") if code < 0 else f"exit code {code}"
    )
    return " ".join([ended, *last])


_PR_SET_PDEATHSIG = 1
PRESETS = {"fast": "fast", "default": "default", "eco": "eco", "strong": "strong", "large": "largek"}
"""What a preset is called there."""
_MOST_SEED, _LEAST_IMBALANCE = 2**31, 1e-6
_NARROW_SUM = 2**31
"""What builds with 32-bit numbers count up to."""
_HINT = "partitioner=metis, or partitioner=stream, which takes the least memory"
_NO_EDGE_WEIGHTS, _NO_NODE_WEIGHTS, _NARROW = 1, 2, 8 | 16 | 32
_HEADER_BYTES, _ID_BYTES, _ADDRESS_BYTES, _WEIGHT_BYTES = 24, 4, 8, 4


@dataclass(frozen=True)
class Rows:
    """The neighbours of some nodes from ``first`` on, int64 or int32 [M], ascending in each row; ``weights``, int32 [M], count
    the directed edges that join two nodes, or half of them.
    """

    first: int
    degrees: np.ndarray
    neighbours: np.ndarray
    weights: np.ndarray


def file_bytes(num_nodes: int, entries: float) -> float:
    """How much of the disk it takes at most: the file with weights of edges and nodes, and the former once more."""
    return _HEADER_BYTES + num_nodes * (_ADDRESS_BYTES + _WEIGHT_BYTES) + entries * (_ID_BYTES + 2 * _WEIGHT_BYTES)


def write_graph(path: Path, num_nodes: int, blocks: Iterator[Rows], node_weights: np.ndarray | None = None) -> int:
    """Write a symmetric graph that comes row block by row block; gives M. ``node_weights``: integers [N] from 1 to below
    2^32.
    """
    addresses = np.zeros(num_nodes + 1, np.uint64)
    begin, entries, uniform, first_weight = _HEADER_BYTES + _ADDRESS_BYTES * (num_nodes + 1), 0, True, 0
    aside = path.with_name(f"{path.name}.weights")
    with path.open("wb") as file, aside.open("w+b") as weights:
        file.seek(begin)
        for block in blocks:
            rows = slice(block.first + 1, block.first + 1 + len(block.degrees))
            addresses[rows] = entries + np.cumsum(block.degrees)
            block.neighbours.astype(np.uint32).tofile(file)
            block.weights.astype(np.uint32).tofile(weights)
            if len(block.weights):
                first_weight = first_weight or int(block.weights[0])
                uniform = uniform and bool((block.weights == first_weight).all())
            entries += len(block.neighbours)
        if node_weights is not None:
            node_weights.astype(np.uint32).tofile(file)
        if not uniform:
            weights.flush()
            weights.seek(0)
            shutil.copyfileobj(weights, file, 1 << 24)
        flags = _NARROW | (_NO_EDGE_WEIGHTS if uniform else 0) | (_NO_NODE_WEIGHTS if node_weights is None else 0)
        file.seek(0)
        np.array([flags, num_nodes, entries], np.uint64).tofile(file)
        addresses *= np.uint64(_ID_BYTES)
        addresses += np.uint64(begin)
        addresses.tofile(file)
    aside.unlink()
    return entries


class GraphFile:
    """Such a file of 32-bit numbers, mapped; what is read of it can be taken back by the system at any time.

    ``arrays``: addresses of rows, uint64 [N + 1], the address of the first, neighbours, uint32 [M], weights of entries, uint32
    [M], and of nodes, uint32 [N]; weights that are all alike: [0].
    """

    def __init__(self, path: Path) -> None:
        flags, self.num_nodes, self.entries = np.fromfile(path, np.uint64, 3).tolist()
        n, m = self.num_nodes, self.entries
        base = _HEADER_BYTES + _ADDRESS_BYTES * (n + 1)
        addresses = np.memmap(path, np.uint64, "r", _HEADER_BYTES, (n + 1,))
        after = base + _ID_BYTES * m
        neighbours = self._map(path, base, m)
        node_weights = self._map(path, after, 0 if flags & _NO_NODE_WEIGHTS else n)
        after += _WEIGHT_BYTES * len(node_weights)
        entry_weights = self._map(path, after, 0 if flags & _NO_EDGE_WEIGHTS else m)
        self.arrays = (addresses, base, neighbours, entry_weights, node_weights)

    @staticmethod
    def _map(path: Path, offset: int, count: int) -> np.ndarray:
        return np.memmap(path, np.uint32, "r", offset, (count,)) if count else np.zeros(0, np.uint32)

    def weights_of_nodes(self) -> np.ndarray:
        """uint32 [N]."""
        weights = self.arrays[-1]
        return weights if len(weights) else np.ones(self.num_nodes, np.uint32)

    def most_neighbours(self) -> int:
        """Of a node."""
        addresses, most = self.arrays[0], 0
        for first in range(0, self.num_nodes, 1 << 20):
            most = max(most, int(np.diff(addresses[first : first + (1 << 20) + 1]).max(initial=0)))
        return most // _ID_BYTES

    def row_after(self, first: int, entries: int) -> int:
        """The row before which ``entries`` entries from row ``first`` on lie."""
        addresses = self.arrays[0]
        last = int(addresses[first]) + _ID_BYTES * entries
        return int(np.searchsorted(addresses, np.uint64(last), side="right")) - 1 if last < addresses[-1] else self.num_nodes


def cut(path: Path, parts: int, *, seed: int, imbalance: float, threads: int, preset: str, hint: str = _HINT) -> np.ndarray:
    """KaMinPar's assignment of a file's nodes, int32 [N]. With one thread the same seed gives the same; with several it may
    differ from call to call. Raises ``ConfigError`` with its last words where it failed.
    """
    out = path.with_name(f"{path.name}.parts.npy")
    wanted = {
        "path": str(path),
        "out": str(out),
        "parts": parts,
        "seed": seed % _MOST_SEED,
        "threads": threads,
        "imbalance": max(imbalance, _LEAST_IMBALANCE),
        "preset": PRESETS[preset],
        "parent": os.getpid(),
    }
    command = [sys.executable, "-m", "sargnn.interop.kaminpar", json.dumps(wanted)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate()
    finally:
        process.kill()
    if process.returncode or not out.exists():
        raise ConfigError("KaMinPar could not cut the graph.", given=reason_of_end(process.returncode, said), hint=hint)
    assignment = np.load(out)
    out.unlink()
    return np.asarray(assignment, np.int32)


def main(words: Sequence[str]) -> int:
    """The process: reads what it is asked in JSON, writes the assignment."""
    wanted = json.loads(words[0])
    end_with_parent(wanted["parent"])
    import kaminpar

    _, num_nodes, entries = np.fromfile(wanted["path"], np.uint64, 3).tolist()
    if not getattr(kaminpar, "__64bit__", True) and max(num_nodes, entries) >= _NARROW_SUM:
        sys.exit(f"this build of KaMinPar numbers no more than {_NARROW_SUM} nodes and entries")
    kaminpar.reseed(wanted["seed"])
    # Made first: it says how many threads there are, also for reading the graph. Each draws numbers of its own, by the order in
    # which they come.
    partitioner = kaminpar.KaMinPar(wanted["threads"], kaminpar.context_by_name(wanted["preset"]))
    graph = kaminpar.load_graph(wanted["path"], kaminpar.GraphFileFormat.PARHIP, compress=True)
    with contextlib.suppress(OSError):
        Path(wanted["path"]).unlink()  # read; what follows takes no disk
    assignment = partitioner.compute_partition(graph, wanted["parts"], wanted["imbalance"])
    np.save(wanted["out"], np.asarray(assignment, np.int32))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
