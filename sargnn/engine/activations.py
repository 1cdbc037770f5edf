"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.nn.functional.relu, "elu": torch.nn.functional.elu}
