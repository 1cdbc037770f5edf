"""What is known of the kernels that were compiled before."""

from __future__ import annotations

from pathlib import Path

import pytest

from sargnn.run.env import PRECISION, kernels_are_compiled, note_compiled


def test_kernels_are_known_by_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv(PRECISION, "fp32")
    assert not kernels_are_compiled()
    note_compiled()
    assert kernels_are_compiled()
    monkeypatch.setenv(PRECISION, "fp64")
    assert not kernels_are_compiled()
    monkeypatch.delenv(PRECISION)
    assert not kernels_are_compiled()
    note_compiled()
    assert kernels_are_compiled()
    monkeypatch.setenv(PRECISION, "fp64")
    assert kernels_are_compiled()
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    note_compiled()  # nowhere
