"""The parts of a worker's resident memory add up to all of it, whatever was counted and measured."""

from __future__ import annotations

import mmap
import random

import pytest

from sargnn.tracking import memory
from sargnn.tracking.memory import PARTS, PeakMeter, split_peak


def test_the_parts_of_a_run() -> None:
    meter = PeakMeter(baseline_bytes=100, process_peak_bytes=190, training_bytes=70)
    assert split_peak(40, 15, 5, meter) == {
        "base": 40, "graph": 40, "features": 15, "parameters": 5, "training": 70, "other": 20
    }  # fmt: skip


def test_parts_add_up_and_none_is_negative() -> None:
    rng = random.Random(5)
    for _ in range(500):
        baseline, above, training = (rng.randrange(100) for _ in range(3))
        meter = PeakMeter(baseline, baseline + above, training)
        parts = split_peak(rng.randrange(150), rng.randrange(100), rng.randrange(100), meter)
        assert tuple(parts) == PARTS and min(parts.values()) >= 0 and sum(parts.values()) == baseline + above


def test_a_phase_forgets_no_peak_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what came between two phases; the kernel's own peak starts anew with each."""
    meter, peaks = PeakMeter(baseline_bytes=100), iter([300, 150, 180, 120])
    monkeypatch.setattr(memory, "peak_bytes", lambda: next(peaks))
    monkeypatch.setattr(memory, "reset_peak", lambda: None)
    for above, most in ((50, 300), (20, 300)):
        meter.begin()
        assert meter.end() == above and meter.process_peak_bytes == most


def test_the_baseline_is_no_more_than_the_peak() -> None:
    meter = PeakMeter.here()
    with mmap.mmap(-1, 50_000_000) as block:  # fresh pages, which freed ones of this process need not be
        for page in range(0, len(block), 4096):
            block[page] = 1
    assert meter.process_peak_bytes >= meter.baseline_bytes > 0 and meter.training_bytes == 0
    assert meter.end() >= 40_000_000 or meter.process_peak_bytes > meter.baseline_bytes + 40_000_000
