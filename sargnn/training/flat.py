"""The trainer without copies beside one whose server holds some."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sargnn.training.loop import Trainer


class Flat:
    """Made when it is needed first.

    Args:
        make: makes it; None: there are no copies.
        bounded: servers preload less than the model reads.
    """

    def __init__(self, make: Callable[[], Trainer] | None = None, *, bounded: bool = False) -> None:
        self._make, self._bounded = make, bounded
        self._made: Trainer | None = None

    @property
    def exists(self) -> bool:
        """Whether there are copies, so that it is another trainer."""
        return self._make is not None

    @property
    def serves_evaluations(self) -> bool:
        """Whether evaluations and predictions read it."""
        return self.exists and self._bounded

    def get(self, trainer: Trainer) -> Trainer:
        """It, with the parameters and buffers that ``trainer`` has now. All workers must call it together."""
        assert self._make is not None
        if self._made is None:
            self._made = self._make()
        theirs = [*self._made.model.parameters(), *self._made.model.buffers()]
        with torch.no_grad():
            for own, other in zip([*trainer.model.parameters(), *trainer.model.buffers()], theirs, strict=True):
                other.copy_(own)
        return self._made
