"""What a worker notes of each tensor, so small that it can be kept and such that it can be compared with other worlds.

| rows of the tensor | what is noted |
|---|---|
| nodes | for each row its original id and the row's products with 2 random vectors |
| edges | the same, times 2 numbers drawn by an edge's two original ends, summed over the edges into each destination |
| of no order that is known | sums over all elements: how many, x, abs(x), x squared, cos(x) |
| none: the same on all workers | the values; and these sums, since as many rows as the worker has may be meant |

All in fp64. Letters: N rows, W elements of a row, D destinations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sargnn.modules.session import Places
from sargnn.modules.tag import Mark

Kind = Literal["nodes", "edges", "loose", "same"]
MOST_VALUES = 1 << 16
"""A tensor without rows of the graph that has more elements is noted by its products with 2 random vectors, too."""
_ENTRIES = "entries"
_NAN, _INF, _MINUS_INF = 3.25, 5.5, -7.75


@dataclass(frozen=True)
class Entry:
    """One tensor on one worker.

    Attributes:
        step: from 1. during: such as ``forward``, ``gradient``. what: the function, or the parameter's name.
        place: ``FILE line N`` of the user's, or nothing.
        shape: on this worker. kind: what its rows are. type: of the nodes, or the relation. count: of the rows.
        inputs: numbers of entries that it was computed from, where they are known. of_rows: some argument had rows.
    """

    step: int
    during: str
    what: str
    place: str
    shape: tuple[int, ...]
    kind: Kind
    type: int = 0
    count: int = 0
    inputs: tuple[int, ...] = ()
    of_rows: bool = False


@dataclass(frozen=True)
class Noted:
    """What the table above says.

    Attributes:
        values: of rows [N, 2] or [D, 2], else flat. ids: int64 [N] or [D], original ids; None without. sums: [5]; None of rows.
    """

    values: np.ndarray
    ids: np.ndarray | None = None
    sums: np.ndarray | None = None


@dataclass(frozen=True)
class Records:
    """All that one worker has noted, in order."""

    entries: list[Entry]
    noted: list[Noted]


def note_tensor(tensor: Tensor, mark: Mark | None, places: Places | None) -> tuple[Kind, Noted]:
    """What is noted of a tensor.

    Args:
        mark: where its rows are. places: whose rows they are; may be None without a mark.
    """
    values = _numbers(tensor)
    if mark is not None and mark.rows is not None and places is not None:
        moved = values.movedim(mark.dim, 0).reshape(mark.number, -1) if mark.number else values.new_zeros(0, 1)
        products = _products(moved)
        if mark.rows.kind == "edges":
            return "edges", _note_edges(products, *places.edge_ids(mark.rows))
        return "nodes", Noted(products.numpy(), places.first_node_ids(mark.rows, mark.number).numpy())
    if mark is not None:
        return "loose", Noted(np.zeros(0), None, _sums(values))
    few = values.numel() <= MOST_VALUES
    own = values.flatten() if few else _products(values.reshape(len(values), -1)).flatten()
    return "same", Noted(own.numpy(), None, _sums(values))


def note_rows(tensor: Tensor, ids: Tensor) -> Noted:
    """Of a table of nodes [N, ...] whose original ids are known."""
    values = _numbers(tensor)
    return Noted(_products(values.reshape(len(values), -1) if len(values) else values.new_zeros(0, 1)).numpy(), ids.numpy())


def note_values(tensor: Tensor) -> Noted:
    """All values, however many."""
    return Noted(_numbers(tensor).flatten().numpy(), None, _sums(_numbers(tensor)))


def _numbers(tensor: Tensor) -> Tensor:
    """A copy in fp64."""
    numbers = tensor.detach()
    if numbers.is_sparse or numbers.layout != torch.strided:
        numbers = numbers.to_dense()
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    return torch.nan_to_num(numbers.to("cpu", torch.float64, copy=True), _NAN, _INF, _MINUS_INF)


def _products(rows: Tensor) -> Tensor:
    """[N, W] with 2 vectors of W numbers that are always the same ones, [N, 2]."""
    generator = torch.Generator().manual_seed(rows.shape[1])
    return rows @ torch.randn(rows.shape[1], 2, generator=generator, dtype=torch.float64)


def _note_edges(products: Tensor, sources: Tensor, destinations: Tensor) -> Noted:
    ends = torch.stack([sources, destinations], 1).double()
    factors = torch.cos(ends @ torch.tensor([[12.9898, 39.4251], [78.2331, 11.1352]], dtype=torch.float64))
    ids, place = torch.unique(destinations, return_inverse=True)
    summed = torch.zeros(len(ids), 2, dtype=torch.float64).index_add_(0, place, products * factors)
    return Noted(summed.numpy(), ids.numpy())


def _sums(values: Tensor) -> np.ndarray:
    sums = [values.sum(), values.abs().sum(), values.square().sum(), values.cos().sum()]
    return np.array([values.numel(), *map(float, sums)])


def save_records(path: Path, records: Records) -> None:
    """Into one file; tables of ids that several entries share stand there once."""
    arrays: dict[str, np.ndarray] = {}
    tables: dict[bytes, int] = {}
    rows: list[dict[str, Any]] = []
    for number, (entry, noted) in enumerate(zip(records.entries, records.noted, strict=True)):
        row = asdict(entry)
        arrays[f"values{number}"] = noted.values
        if noted.ids is not None:
            row["ids"] = tables.setdefault(noted.ids.tobytes(), len(tables))
            arrays[f"ids{row['ids']}"] = noted.ids
        if noted.sums is not None:
            row["sums"] = noted.sums.tolist()
        rows.append(row)
    arrays[_ENTRIES] = np.frombuffer(json.dumps(rows).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_records(path: Path) -> Records:
    """The inverse of ``save_records``."""
    with np.load(path) as arrays:
        rows = json.loads(arrays[_ENTRIES].tobytes())
        ids = {key: arrays[key] for key in arrays if key.startswith("ids")}
        return Records(*map(list, zip(*_read(rows, arrays, ids), strict=True))) if rows else Records([], [])


def _read(rows: list[dict[str, Any]], arrays: Any, ids: dict[str, np.ndarray]) -> Iterator[tuple[Entry, Noted]]:
    for number, row in enumerate(rows):
        table, sums = row.pop("ids", None), row.pop("sums", None)
        entry = Entry(**row | {"shape": tuple(row["shape"]), "inputs": tuple(row["inputs"])})
        own = None if table is None else ids[f"ids{table}"]
        yield entry, Noted(arrays[f"values{number}"], own, None if sums is None else np.array(sums))
