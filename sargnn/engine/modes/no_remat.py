"""Sequential aggregation without rematerialization (mode 2 of the reference library)."""

from __future__ import annotations

from sargnn.engine.modes.sar import Sar


class NoRemat(Sar):
    """As ``sar``, but fetched rows that the reducer's backward needs are kept: no re-fetch, up to all halo rows resident.

    For case-1 reducers (sum, mean) nothing is needed, so it equals ``sar``. With ``keeps_scores`` (``mode.keep=all``) attention
    keeps the scores of all edges that are aggregated here, too: [E, K] a layer, from which a weight is one exponential.
    """

    name = "no_remat"
    keep_rows = True
    fetches_again = False
