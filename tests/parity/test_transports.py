"""Ranks that are processes over gloo and ranks that take turns in one process train the same model, to the last bit."""

from __future__ import annotations

import pytest

from sargnn.bf16 import ROW_DTYPES
from sargnn.engine.modes import MODES
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import near, pool, processes

WORLD, EPOCHS = 3, 3
PRECISIONS = list(ROW_DTYPES)


@pytest.mark.parametrize(("mode", "precision"), spread(list(MODES), PRECISIONS))
def test_the_same_bits(mode: str, precision: str) -> None:
    model = cases.model_config("gat")
    config = cases.run_config(model, mode=mode, precision=precision, world=WORLD, epochs=EPOCHS)
    graph = cases.graph_for("gat")
    here, there = (ranks(WORLD)(cases.curve, config, graph) for ranks in (pool, processes))
    for one_process, over_gloo in zip(here, there, strict=True):
        for what in ("losses", "parameters", "epoch_bytes"):
            assert one_process[what] == over_gloo[what], what


@pytest.mark.parametrize(
    ("model", "mode", "precision"),
    spread(["sage", "gat", "rgcn", "gin"], ["sar", "no_remat", "one_shot"], PRECISIONS),
)
def test_rows_read_where_they_lie_give_the_same_bits(model: str, mode: str, precision: str) -> None:
    """Messages are sent where partial results are made, and where rows are fetched; here several pieces are read at once."""
    config = cases.run_config(
        cases.model_config(model), mode=mode, precision=precision, world=4, epochs=2, aggregate="post", message_rows=7
    )
    graph = cases.graph_for(model)
    for here, there in zip(near(4)(cases.curve, config, graph), pool(4)(cases.curve, config, graph), strict=True):
        for what in ("losses", "parameters", "epoch_bytes"):
            assert here[what] == there[what], what
