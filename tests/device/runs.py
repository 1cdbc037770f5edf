"""Training on the pretended device, on ranks that take turns in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from sargnn.backends import BACKENDS, DEVICES
from sargnn.backends.device import Device
from sargnn.comm.group import Group
from sargnn.comm.turns import Turns
from sargnn.config.run import RunConfig
from tests.device.pretended import DEVICE, Present


class PretendedDevice(Device):
    """What answers for it."""

    is_host = False

    def load(self, table: Any, dtype: torch.dtype) -> torch.Tensor:
        return super().load(table, dtype).to(self.device)


def there(config: RunConfig) -> RunConfig:
    """The same run on the pretended device."""
    return dataclasses.replace(config, device=DEVICE.type)  # type: ignore[arg-type]


def on_ranks(config: RunConfig, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``function(group, config, *arguments)`` on every rank of a run, with the device present; the results in rank order.

    They read each other's rows where they lie. With ``kernel=reference`` plain PyTorch does all else, too, elsewhere Triton.
    """

    def present(group: Group) -> Any:
        with Present():
            return function(group, config, *arguments)

    answers = {DEVICE.type: f"{PretendedDevice.__module__}:{PretendedDevice.__name__}"}
    backends = {"cuda": BACKENDS["torch"]} if config.kernel.choice == "reference" else {}
    with patch.dict(DEVICES, answers), patch.dict(BACKENDS, backends):
        return Turns(config.world, near=config.world > 1).run(present)
