"""Settings of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sargnn.launch.env import numba_cache_dir

# Before numba is imported, so that every process of the tests shares one cache of compiled kernels.
os.environ["NUMBA_CACHE_DIR"] = str(numba_cache_dir())
os.environ.setdefault("DGLBACKEND", "pytorch")
for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):  # several processes share few cores
    os.environ[name] = "1"

SHARED = Path(__file__).parent.parent.parent / "shared"


@pytest.fixture
def cora() -> Path:
    """The folder of Cora in OGB's raw layout."""
    folder = SHARED / "data" / "cora"
    if not folder.is_dir():
        pytest.skip("the Cora files lie beside the development checkout only")
    return folder
