"""The environment of the tests' processes."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch


def skip_syncs() -> None:
    """No test cuts the power, and disks take long."""
    patch.object(os, "fsync", lambda file: None).start()


def set_up_environment() -> None:
    """Before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = "1"  # several processes share few cores
    skip_syncs()
    if not Path("/dev/nvidiactl").exists():  # no GPU: kernels in Triton run in its interpreter
        os.environ["TRITON_INTERPRET"] = "1"
