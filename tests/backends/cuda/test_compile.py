"""Every kernel compiled for GPUs that are not here: it has registers enough for the standard shapes, and nothing spills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = {
    *("_sums", "_weight_gradients", "_maxima", "_max_gradients"),
    *("attend", "attend_backward", "join", "records", "edge_sums", "gatv2_destinations", "edge_row_gradients"),
}


@pytest.mark.parametrize(
    "choices",
    [["fp32:90", "bf16:80"], pytest.param(["fp32:80", "bf16:90", "fp64:90"], marks=pytest.mark.long)],
    ids=str,
)
def test_kernels_compile(choices: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backends.cuda.compile_kernels", *choices]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["kernel"] for one in made} >= KERNELS
    assert {one["gpu"] for one in made} == {int(choice.split(":")[1]) for choice in choices}
    for one in made:
        assert one["reg"] <= 255 and one["shared"] <= 48 << 10, one
        if "*fp64" not in one["types"]:  # which only tests of exactness use
            assert one["stack"] == one["local"] == 0, f"spills: {one}"
