"""The environment of the tests' processes."""

from __future__ import annotations

import os
from pathlib import Path


def set_up_environment() -> None:
    """Before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = "1"  # several processes share few cores
    if not Path("/dev/nvidiactl").exists():  # no GPU: kernels in Triton run in its interpreter
        os.environ["TRITON_INTERPRET"] = "1"
