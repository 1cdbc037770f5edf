"""Edge weights on their way into a store: finite numbers in single precision, and the range that they span.

Letters: E directed edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sargnn.errors import DataError
from sargnn.graph.edge_columns import WEIGHT, EdgeColumns

if TYPE_CHECKING:
    from sargnn.graph.dataset import Dataset

LARGEST = 1e30
"""In size: sums of a hundred million of them are still fp32 numbers."""
_CHUNK = 1 << 22

Range = tuple[float, float]
"""The smallest and the largest weight."""


class WeightCheck:
    """Takes the weights of edges in their order, refuses what no weight can be, and remembers the range.

    Args:
        source: where they come from, for errors.
        place: what an edge's place is called there, from its position.
    """

    def __init__(self, source: str, place: Callable[[int], str] | None = None) -> None:
        self._source, self._place = source, place or edge_place
        self._edge = 0
        self._low, self._high = np.inf, -np.inf

    def to_float32(self, weights: np.ndarray) -> np.ndarray:
        """The next weights, numbers or bool [E], in fp32.

        Raises:
            DataError: one that is not finite, or above ``LARGEST`` in size; its place and value are named.
        """
        if not len(weights):
            return weights.astype(np.float32)
        low, high = float(weights.min()), float(weights.max())
        if not (-LARGEST <= low and high <= LARGEST):  # also where they are nan
            wide = weights.astype(np.float64, copy=False)
            row = int((~((wide >= -LARGEST) & (wide <= LARGEST))).argmax())
            what = "too large" if np.isfinite(wide[row]) else "not finite"
            raise DataError(
                f"{self._source} holds an edge weight that is {what}, of {self._place(self._edge + row)}.",
                given=str(weights[row]),
                allowed=f"numbers from {-LARGEST:g} to {LARGEST:g}",
                hint="leave such edges out, or give them a weight; 0 keeps an edge and silences it",
            )
        taken = weights.astype(np.float32, copy=False)
        self._low, self._high = min(self._low, float(taken.min())), max(self._high, float(taken.max()))
        self._edge += len(weights)
        return taken

    def checked(self, columns: EdgeColumns) -> EdgeColumns:
        """The next edges' columns, as a store has them: their weights in fp32. Raises as ``to_float32``."""
        weights = columns.weight
        return columns if weights is None else columns.put(WEIGHT, self.to_float32(weights))

    @property
    def range(self) -> Range:
        """Of all weights so far; 0 to 0 where there was none."""
        return (self._low, self._high) if self._edge else (0.0, 0.0)


def edge_place(position: int) -> str:
    """What an edge's place is called that has no better name."""
    return f"edge {position} (counted from 0)"


def check_weights(dataset: Dataset) -> Range | None:
    """Every weight of a dataset can be used; one pass. The range, None without weights. Raises ``DataError``."""
    weights = dataset.columns.weight
    if weights is None:
        return None
    check = WeightCheck(f"The dataset '{dataset.name}'")
    for piece in _pieces(weights):
        check.to_float32(piece)
    return check.range


def weight_range(dataset: Dataset) -> Range | None:
    """The range of a dataset's weights: as its store says, else found by reading them. None without weights."""
    weights = dataset.columns.weight
    if weights is None or dataset.stored_weights is not None:
        return dataset.stored_weights if weights is not None else None
    lows, highs = zip(*((piece.min(), piece.max()) for piece in _pieces(weights)), strict=True)
    return float(min(lows)), float(max(highs))


def to_json(extremes: Range) -> dict[str, Any]:
    """What a store's manifest says of its weights."""
    return {"smallest": extremes[0], "largest": extremes[1]}


def from_json(content: Any) -> Range:
    """The inverse of ``to_json``. Raises ``TypeError``, ``KeyError`` or ``ValueError`` for something else."""
    low, high = content["smallest"], content["largest"]
    if type(low) is not float or type(high) is not float or not low <= high:
        raise TypeError("no range of numbers")
    return low, high


def all_finite(numbers: np.ndarray) -> bool:
    """Of flat floats, which may be mapped."""
    return all(bool(np.isfinite(piece).all()) for piece in _pieces(numbers))


def _pieces(weights: np.ndarray) -> Iterator[np.ndarray]:
    """At least one, which may be empty."""
    for start in range(0, max(1, len(weights)), _CHUNK):
        yield np.asarray(weights[start : start + _CHUNK])
