"""Whole first steps with a GPU's kernels, which Triton's interpreter runs on a CPU, on workers that take turns.

The engine gets kernel and backend as on a GPU; norms, dropout, packs and partial results are theirs, too.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.parity import cases
from tests.parity.checks import check

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize(
    ("name", "mode", "world", "changes"),
    [
        ("sage", "sar", 2, {}),
        ("gat", "sar", 2, {"num_layers": 2, "heads": 2, "out_heads": 1}),
        *(
            pytest.param(name, mode, world, {}, marks=pytest.mark.long)
            for name in cases.NAMES
            for mode, world in (("sar", 1), ("sar", 3), ("one_shot", 2))
        ),
    ],
)
def test_first_steps(name: str, mode: str, world: int, changes: dict[str, Any]) -> None:
    kind = name if name == "rgcn" else "few_nodes"
    check(cases.model_config(name, **changes), kind, mode=mode, kernel="triton", world=world, partitioner="metis")
