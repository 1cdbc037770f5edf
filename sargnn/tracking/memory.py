"""Memory of this process: what is resident, read from the kernel (Linux), and what tensors hold on a device."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports torch, which who only plans or writes job scripts does not wait for
    from sargnn.backends.device import Device

_STATUS = Path("/proc/self/status")
_ROLLUP = Path("/proc/self/smaps_rollup")
_M_MMAP_THRESHOLD = -3
_CLEAR_REFS = Path("/proc/self/clear_refs")


def resident_bytes(process: int | None = None) -> int:
    """Resident set size now (VmRSS); of another process by its id, 0 once that has ended."""
    if process is None:
        return _field("VmRSS")
    try:
        return _field("VmRSS", Path(f"/proc/{process}/status"))
    except OSError:
        return 0


def peak_bytes() -> int:
    """The largest resident set size since the last ``reset_peak`` (VmHWM)."""
    return _field("VmHWM")


def private_bytes() -> int:
    """Resident memory that no other process shares (Private_Clean + Private_Dirty)."""
    fields = dict(line.split(":", 1) for line in _ROLLUP.read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Private_Clean", "Private_Dirty"))


def reset_peak() -> None:
    """Start a new peak at the present resident set size. Needs no privilege; does nothing where the kernel has no such file."""
    with suppress(OSError):
        _CLEAR_REFS.write_text("5")


def return_freed_memory() -> None:
    """In a process that is running already give freed tensors of 1 MB and more back at once, as workers do (``run.env``): else
    glibc keeps what is below 32 MB. Does nothing where the C library is another one."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def trim() -> None:
    """Give back what small allocations have left behind; does nothing where the C library is another one."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class PeakMeter:
    """Peaks of phases above a baseline, and the largest resident set of all, which resetting would forget.

    Attributes:
        baseline_bytes: resident once graph, features and parameters were read in and nothing else was.
        process_peak_bytes: the largest resident set seen so far.
        training_bytes: the largest peak of this process's epochs above the baseline.
        device: whose memory's peaks ``end`` gives, above ``device_bytes``; None: the resident set's.
        device_bytes: what tensors held there when ``baseline_bytes`` was read.
    """

    baseline_bytes: int
    process_peak_bytes: int = 0
    training_bytes: int = 0
    device: Device | None = None
    device_bytes: int = 0

    @classmethod
    def here(cls, device: Device | None = None) -> PeakMeter:
        """With what is held now as the baseline. ``device``: where rows lie; None: on the host."""
        baseline = resident_bytes()
        meter = cls(baseline, max(baseline, peak_bytes()))
        if device is not None and not device.is_host:
            meter.device, meter.device_bytes = device, device.held_bytes()
        return meter

    def begin(self) -> None:
        self.process_peak_bytes = max(self.process_peak_bytes, peak_bytes())
        reset_peak()
        if self.device is not None:
            self.device.reset_peak()

    def end(self, *, training: bool = False) -> int:
        """The peak since ``begin`` above the baseline, bytes; of a device where there is one. ``training``: of an epoch."""
        peak = peak_bytes()
        self.process_peak_bytes = max(self.process_peak_bytes, peak)
        above = max(0, peak - self.baseline_bytes)
        if training:
            self.training_bytes = max(self.training_bytes, above)
        return above if self.device is None else max(0, self.device.peak_bytes() - self.device_bytes)


class SharedMeter(PeakMeter):
    """Of a process whose workers take turns: a phase begins with the first of them, and what is measured is theirs together."""

    _inside = 0

    def begin(self) -> None:
        if not self._inside:
            super().begin()
        self._inside += 1

    def end(self, *, training: bool = False) -> int:
        self._inside -= 1
        return super().end(training=training)


PARTS = ("base", "graph", "features", "parameters", "training", "other")
"""In the order in which they come to be (``split_peak``)."""


def split_peak(base_bytes: int, features_bytes: int, parameters_bytes: int, meter: PeakMeter) -> dict[str, int]:
    """A worker's largest resident set, by ``PARTS``; they add up to ``meter.process_peak_bytes`` exactly.

        base        resident before the worker opened its part: the interpreter and libraries, also what processes share
        graph       the rest of the baseline: edges in blocks, lists of halo rows, ids, degrees, labels, split
        features    what the first layer reads, counted: tables mapped from the store and copies of them
        parameters  of the model, with embeddings, counted; their optimizer's state belongs to training
        training    the largest epoch's peak above the baseline
        other       what loading, an evaluation, a checkpoint or Correct & Smooth took beyond that

    What is counted is at most the growth since ``base_bytes`` was measured.
    """
    base = min(base_bytes, meter.baseline_bytes)
    loaded = meter.baseline_bytes - base
    parameters = min(parameters_bytes, loaded)
    features = min(features_bytes, loaded - parameters)
    training = min(meter.training_bytes, meter.process_peak_bytes - meter.baseline_bytes)
    other = meter.process_peak_bytes - meter.baseline_bytes - training
    graph = loaded - features - parameters
    return dict(zip(PARTS, (base, graph, features, parameters, training, other), strict=True))


def _field(name: str, status: Path = _STATUS) -> int:
    for line in status.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def human_bytes(count: float) -> str:
    """``1.5 MB``: powers of ten, as disks and networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
