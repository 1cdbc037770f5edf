"""Planetoid's and Reddit's files in small, written as those who made them did."""

from __future__ import annotations

import io
import pickle
import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

_Pickler: Any = pickle._Pickler
"""The one in Python, whose parts can be replaced."""


class _Python2(_Pickler):
    """Protocol 2 as Python 2 with the libraries of that time writes it: texts are bytes, and modules have their old names."""

    dispatch = dict(_Pickler.dispatch)

    def _save_text(self, one: Any) -> None:
        content = one if isinstance(one, bytes) else one.encode("latin1")
        short = len(content) < 256
        self.write((b"U" + struct.pack("<B", len(content)) if short else b"T" + struct.pack("<i", len(content))) + content)
        self.memoize(one)

    def save_global(self, one: Any, name: str | None = None) -> None:
        old = {
            "csr_matrix": "scipy.sparse.csr", "_reconstruct": "numpy.core.multiarray", "list": "__builtin__",
            "ndarray": "numpy", "dtype": "numpy", "defaultdict": "collections",
        }  # fmt: skip
        self.write(f"c{old[one.__name__]}\n{one.__name__}\n".encode())
        self.memoize(one)

    dispatch[str] = dispatch[bytes] = _save_text
    dispatch[type] = save_global


def dump(value: Any, *, python: int) -> bytes:
    """A pickle of protocol 2, as this Python writes it, or as Python 2 did."""
    if python == 3:
        return pickle.dumps(value, protocol=2)
    file = io.BytesIO()
    _Python2(file, 2).dump(value)
    return file.getvalue()


@dataclass
class Citations:
    """A graph as Planetoid's files have it.

    Attributes:
        features: [N, F]. classes: [N], -1 for a row of zeros. lists: node -> neighbours.
        train: how many nodes train. test: the nodes of the rows of ``tx``, in their order; the first one of all is ``first``.
    """

    features: np.ndarray
    classes: np.ndarray
    lists: dict[int, list[int]]
    train: int
    first: int
    test: list[int]

    def write(self, folder: Path, name: str, *, python: int = 2) -> None:
        """The eight files."""
        folder.mkdir(parents=True, exist_ok=True)
        one_hot = np.eye(self.classes.max() + 1, dtype=np.int32)
        one_hot = np.where(self.classes[:, None] < 0, 0, one_hot[self.classes]).astype(np.int32)
        rows: dict[str, Any] = {"": slice(0, self.train), "all": slice(0, self.first), "t": self.test}
        for prefix, chosen in rows.items():
            matrix = sparse.csr_matrix(self.features[chosen].astype(np.float32))
            (folder / f"ind.{name}.{prefix}x").write_bytes(dump(matrix, python=python))
            (folder / f"ind.{name}.{prefix}y").write_bytes(dump(one_hot[chosen], python=python))
        lists: dict[int, list[int]] = defaultdict(list, self.lists)
        (folder / f"ind.{name}.graph").write_bytes(dump(lists, python=python))
        (folder / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in self.test))


def write_reddit(folder: Path, arrays: dict[str, np.ndarray], matrix: Any) -> None:
    """The two archives, as DGL's RedditDataset has them."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "reddit_data.npz", **arrays)  # type: ignore[arg-type]
    sparse.save_npz(folder / "reddit_graph.npz", matrix)
