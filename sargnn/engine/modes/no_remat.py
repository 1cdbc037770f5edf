"""Sequential aggregation without rematerialization (mode 2 of the reference library)."""

from __future__ import annotations

from sargnn.engine.modes.sar import Sar


class NoRemat(Sar):
    """As ``sar``, but fetched rows that the reducer's backward needs are kept: no re-fetch, up to all halo rows resident.

    For case-1 reducers (sum, mean) nothing is needed, so it equals ``sar``.
    """

    name = "no_remat"
    keep_rows = True
    fetches_again = False
