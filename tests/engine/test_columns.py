"""Aggregations in groups of columns, or of heads, have the bits of those that are made at once."""

from __future__ import annotations

from typing import Any

import pytest

from sargnn.engine.reducers.gat import DotAttention, EdgeDotAttention, Gat
from sargnn.engine.reducers.sum import SPLIT_COLUMNS, DroppedSum, Mean, Sum
from sargnn.rng import Draw, Purpose
from tests.parity import cases
from tests.parity.covering import spread
from tests.pool import pool

DRAW = Draw(0, 0, Purpose.DROPOUT, 0, 0.5)


@pytest.mark.parametrize(
    ("model", "mode", "aggregate"),
    spread(
        ["sage", "gat", "gatv2", "gcn", "gin"],
        [("sar", "post"), ("sar", "least"), ("no_remat", "post"), ("no_remat", "least"), ("one_shot", "post")],
    ),
)
def test_the_same_bits_over_messages(model: str, mode: str, aggregate: str) -> None:
    wide = {} if model.startswith("gat") else {"hidden": 3 * SPLIT_COLUMNS}  # sums are cut into groups of so many columns
    config = cases.run_config(
        cases.model_config(model, **wide), mode=mode, precision="fp32", world=3, epochs=2, aggregate=aggregate, message_rows=7
    )
    graph = cases.graph_for(model)
    whole = pool(3)(cases.curve, config, graph)
    parts = pool(3)(cases.curve, cases.in_groups(config, 3), graph)
    for here, there in zip(parts, whole, strict=True):
        for what in ("losses", "parameters", "epoch_bytes"):
            assert here[what] == there[what], what


@pytest.mark.parametrize("model", ["sage", "gat"])
@pytest.mark.parametrize(
    "changes", [{"norm": "layer"}, {"norm": "none"}, {"residual": True}, {"residual": "linear"}, {"keep_layers": 2}], ids=str
)
def test_whatever_stands_behind_a_layer(model: str, changes: dict[str, Any]) -> None:
    """What reads groups, and what joins them."""
    changes = dict(changes)
    keep = changes.pop("keep_layers", "all")
    wide = {} if model == "gat" else {"hidden": 3 * SPLIT_COLUMNS}
    config = cases.run_config(
        cases.model_config(model, num_layers=3, **wide, **changes), precision="fp32", world=2, epochs=2, keep_layers=keep
    )
    whole = pool(2)(cases.curve, config, cases.graph_for(model))
    parts = pool(2)(cases.curve, cases.in_groups(config, 3), cases.graph_for(model))
    for here, there in zip(parts, whole, strict=True):
        for what in ("losses", "parameters"):
            assert here[what] == there[what], what


@pytest.mark.parametrize("width", [1, 15, 16, 47, 256])
@pytest.mark.parametrize("reducer", [Sum(), Mean(weighted=True), DroppedSum(DRAW)])
def test_sums_are_cut_where_columns_are_added_alike(reducer: Sum, width: int) -> None:
    parts = reducer.parts(width, 3)
    assert len(parts) == (min(3, width // SPLIT_COLUMNS) if width >= 2 * SPLIT_COLUMNS else 0)
    columns = [column for part in parts for column in range(width)[part.columns(width)]]
    assert columns == list(range(width)) * bool(parts)
    assert all(part.first % SPLIT_COLUMNS == 0 for part in parts)


def test_attention_is_cut_between_heads() -> None:
    parts = DotAttention(heads=5).parts(5 * 8, 2)
    assert [part.columns(40) for part in parts] == [slice(0, 16), slice(16, 40)]
    assert [part.reducer.attention.heads for part in parts] == [2, 3]  # type: ignore[attr-defined]
    assert len(Gat(heads=2).parts(16, 9)) == 2
    assert (
        Gat(heads=1).parts(16, 2)
        == Gat(heads=4, draw=DRAW).parts(16, 2)
        == EdgeDotAttention(2, learned=True).parts(16, 2)
        == ()
    )
