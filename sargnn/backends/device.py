"""Where rows lie, and what of it the loop and a worker must know: one interface, which the host itself answers here.

A device computes what it is given in the order in which it is given it, and the host goes on meanwhile. Whoever reads a number
of it on the host waits for all that comes before. So a step reads none but its loss, at its end.

Letters: N rows, F columns.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sargnn.backends import DEVICES
from sargnn.resolve import resolve


class Device:
    """The host: a CPU and its memory. ``is_host``: tables lie in the process's own memory."""

    is_host = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def unavailable(self) -> str | None:
        """Why there is none, a sentence; None: there is."""
        return None

    @property
    def name(self) -> str | None:
        """Its model; None of the host."""
        return None

    @property
    def count(self) -> int:
        return 1

    def start(self, number: int) -> None:
        """Before a process makes anything there, in each of its threads. ``number``: which of them is the process's."""

    def synchronize(self) -> None:
        """Return when all that was given to it is done, so that a clock can be read."""

    def held_bytes(self) -> int:
        """What tensors there hold now; 0 on the host, whose memory the kernel tells of (``tracking.memory``)."""
        return 0

    def peak_bytes(self) -> int:
        """The most that they have held since ``reset_peak``."""
        return 0

    def reset_peak(self) -> None:
        """Start a new peak at what they hold now."""

    def answers_lack_of_memory(self) -> AbstractContextManager[None]:
        """Within it the device's own lack of memory becomes a ``SargnnError``, which says what would take less."""
        return nullcontext()

    def load(self, table: np.ndarray, dtype: torch.dtype) -> Tensor:
        """A table's numbers [N, F] there; on the host it stays mapped from its file where it has that dtype."""
        return torch.from_numpy(table).to(dtype)

    def fill(self, out: Tensor, table: np.ndarray) -> None:
        """Write a table's numbers [N, F] to ``out`` [N, F] there."""
        out.copy_(torch.from_numpy(table))

    def random_states(self) -> list[Tensor]:
        """Of PyTorch's own generators, the host's first."""
        return [torch.get_rng_state()]

    def set_random_states(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])

    def lines(self) -> list[str]:
        """What there is, for ``sargnn info``."""
        return ["cpu"]


def device_of(device: torch.device | str) -> Device:
    device = torch.device(device)
    kind: Any = resolve("device", DEVICES, device.type)
    made: Device = kind(device)
    return made
