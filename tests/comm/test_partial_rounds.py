"""The exchange of partial results by itself: every request gets its own answer, however unlike the lists of the ranks are."""

from __future__ import annotations

import pytest

from tests.comm.exchanges import asks, wanted
from tests.pool import pool


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("message_rows", [1, 3, 100])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_every_request_gets_its_answer(world: int, message_rows: int, depth: int) -> None:
    for rank, found in enumerate(pool(world)(asks, message_rows, depth)):
        assert sorted(found) == [(q, row) for q in range(world) for row in range(wanted(rank, q))]
