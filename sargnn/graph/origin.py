"""What a graph's nodes, classes and columns were called in the tables that it was read from, kept in its store.

Letters: N nodes of a type, T node types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.graph.manifest import blame_manifest
from sargnn.graph.store import Store, StoreWriter

if TYPE_CHECKING:
    import pyarrow

_PIECE = 1 << 20


@dataclass(frozen=True)
class Ids:
    """The ids of a type's nodes, in the order of their numbers: int64 [N], whole numbers, or texts in UTF-8 one after another,
    uint8, of which text i is ``data[ends[i]:ends[i + 1]]``. Arrays may be memory-mapped.
    """

    data: np.ndarray
    ends: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.data) if self.ends is None else len(self.ends) - 1

    def arrow(self, first: int, last: int) -> pyarrow.Array:
        """The ids of nodes ``first`` up to ``last``: int64, or large_string."""
        import pyarrow

        if self.ends is None:
            return pyarrow.array(np.array(self.data[first:last]))
        ends = np.array(self.ends[first : last + 1])
        texts = np.array(self.data[ends[0] : ends[-1]])
        buffers = [pyarrow.py_buffer(ends - ends[0]), pyarrow.py_buffer(texts)]
        return pyarrow.LargeStringArray.from_buffers(last - first, *buffers)

    def take(self, nodes: np.ndarray) -> pyarrow.Array:
        """The ids of some nodes, int64 [n], in their order."""
        import pyarrow

        if self.ends is None:
            return pyarrow.array(np.array(self.data[nodes]))
        starts, lengths = self.ends[nodes], self.ends[nodes + 1] - self.ends[nodes]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
        buffers = [pyarrow.py_buffer(ends), pyarrow.py_buffer(np.array(self.data[places]))]
        return pyarrow.LargeStringArray.from_buffers(len(nodes), *buffers)

    def texts(self) -> Ids:
        if self.ends is not None:
            return self
        words = [str(number).encode() for number in self.data.tolist()]
        return Ids(np.frombuffer(b"".join(words), np.uint8), np.cumsum([0, *map(len, words)]))

    @classmethod
    def join(cls, several: Sequence[Ids]) -> Ids:
        """The ids of several types one after another: texts, but where all are numbers."""
        if all(ids.ends is None for ids in several):
            return cls(np.concatenate([ids.data for ids in several]))
        several = [ids.texts() for ids in several]
        lengths = [np.diff(ids.ends) for ids in several if ids.ends is not None]
        return cls(np.concatenate([ids.data for ids in several]), np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))


def _piece(array: np.ndarray, start: int) -> np.ndarray:
    """Some entries of a flat array; of one that is mapped they are read, so that they do not count as memory afterwards."""
    if isinstance(array, np.memmap) and array.filename is not None:
        return np.fromfile(array.filename, array.dtype, _PIECE, offset=array.offset + start * array.itemsize)
    return array[start : start + _PIECE]


@dataclass(frozen=True)
class Origin:
    """What a dataset remembers of its tables.

    Attributes:
        ids: of each of the T node types; None: its nodes have none but their numbers.
        classes: what the classes of the labels were called; empty: they were numbers.
        encodings: "type" or "source relation destination" -> column -> how its values became numbers, JSON-able.
    """

    ids: tuple[Ids | None, ...]
    classes: tuple[str, ...] = ()
    encodings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def save(self, writer: StoreWriter) -> dict[str, Any]:
        """Put it into a dataset's store, a piece at a time; what the manifest says of it."""
        for node_type, ids in enumerate(self.ids):
            for name, array in (("data", ids.data), ("ends", ids.ends)) if ids is not None else ():
                if array is not None:
                    with writer.append(f"ids/{node_type:02d}_{name}", array.dtype) as target:
                        for start in range(0, len(array), _PIECE):
                            target.write(_piece(array, start))
        more = {"classes": list(self.classes), "encodings": self.encodings}
        # An array as well, so that the content hash covers it.
        writer.put("origin", np.frombuffer(json.dumps(more, sort_keys=True).encode(), np.uint8))
        return {"origin": more}

    @classmethod
    def open(cls, store: Store, num_types: int) -> Origin | None:
        """None where the dataset came from no tables. Raises ``StoreError`` for a damaged one."""
        if "origin" not in store.meta:
            return None

        def array(node_type: int, name: str) -> np.ndarray | None:
            name = f"ids/{node_type:02d}_{name}"
            return store.array(name) if name in store.files else None

        ids = []
        for node_type in range(num_types):
            data, ends = array(node_type, "data"), array(node_type, "ends")
            ids.append(None if data is None else Ids(data, ends))
        with blame_manifest(store.path, "of the tables"):
            more = store.meta["origin"]
            return cls(tuple(ids), tuple(map(str, more["classes"])), dict(more["encodings"]))
