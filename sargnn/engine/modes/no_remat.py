"""Sequential aggregation without rematerialization (mode 2 of the reference library)."""

from __future__ import annotations

from sargnn.engine.modes.sar import Sar
from sargnn.engine.reducers.base import Reducer


class NoRemat(Sar):
    """As ``sar``, but fetched rows that the reducer's backward needs are kept: no re-fetch, up to all halo rows resident.

    For case-1 reducers (sum, mean) nothing is needed, so it equals ``sar``.
    """

    name = "no_remat"
    keep_rows = True

    def row_exchanges(self, reducer: Reducer, sent_needs_grad: bool) -> int:
        return 2 if sent_needs_grad else 1
