"""Which features can be trained on: a check that every table passes on its way into a store.

Letters: N nodes, F features.
"""

from __future__ import annotations

import logging

import numpy as np

from sargnn.errors import DataError

LARGEST = 1.8e19
"""The square of anything larger is no fp32 number, so variances and products of features are infinite.

This holds also where rows are to be normalized: the sum of a row of larger numbers may be infinite, and the row 0.
"""
LARGE = 1e6
"""From here on one rounding of an fp32 attention score, 6e-8 of it, changes its weight by several per cent, so losses depend
visibly on the order in which things are added."""


class FeatureCheck:
    """Takes a table's rows in order, refuses what cannot be trained on, and warns at the end of what rounding will blur.

    Args:
        source: where the rows come from, for errors.
        unit, first: what a row is called there, and the number of the first.
    """

    def __init__(self, source: str, *, unit: str = "row", first: int = 1) -> None:
        self._source, self._unit, self._row = source, unit, first
        self._largest, self._where = LARGE, ""

    def to_float32(self, rows: np.ndarray, *, normalize: bool = False) -> np.ndarray:
        """The next rows in fp32.

        Args:
            rows: float [rows, F], as they stand in the source.
            normalize: divide each row by its L1 norm.

        Raises:
            DataError: a number that is not finite, or above ``LARGEST`` in size; its row, column and value are named.
        """
        if not rows.size:
            return rows.astype(np.float32, copy=False)
        with np.errstate(invalid="ignore"):
            low, high = float(rows.min()), float(rows.max())
        if not (-LARGEST <= low and high <= LARGEST):  # also where they are nan
            raise self._refusal(rows)
        taken = rows.astype(np.float32, copy=False)
        if normalize:
            taken = taken / np.maximum(np.abs(taken).sum(1, keepdims=True), 1e-12)
        elif max(-low, high) > self._largest:
            flat = int(rows.argmin() if -low > high else rows.argmax())
            self._largest, self._where = max(-low, high), self._place(*divmod(flat, rows.shape[1]))
        self._row += len(rows)
        return taken

    def finish(self) -> None:
        """All rows were given: warn if any of them holds a number above ``LARGE`` in size."""
        if self._where:
            logging.getLogger(__name__).warning(
                f"warning: '{self._source}' holds features up to {self._largest:.3g} in size ({self._where}): rounding will "
                "show in the losses. Scale the columns, or use dataset.normalize_features=true."
            )

    def _refusal(self, rows: np.ndarray) -> DataError:
        wide = rows.astype(np.float64, copy=False)
        bad = ~((wide >= -LARGEST) & (wide <= LARGEST))
        row, column = divmod(int(bad.argmax()), rows.shape[1])
        what = "too large" if np.isfinite(rows[row, column]) else "not finite"
        return DataError(
            f"'{self._source}' holds a feature that is {what} in {self._place(row, column)}.",
            given=str(rows[row, column]),
            allowed=f"numbers from {-LARGEST:g} to {LARGEST:g}, whose squares single precision can hold",
        )

    def _place(self, row: int, column: int) -> str:
        return f"{self._unit} {self._row + row}, column {column + 1}"
