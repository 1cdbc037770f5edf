"""Kernels in Triton run on a GPU where there is one, else in Triton's interpreter, on a CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from tests.backends.interpreter import round_to_nearest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

pytest.importorskip("triton", reason="Triton is not installed")
if DEVICE == "cpu":
    round_to_nearest()


@pytest.fixture
def device() -> Iterator[str]:
    """Where tensors are that name no device."""
    with torch.device(DEVICE):
        yield DEVICE
