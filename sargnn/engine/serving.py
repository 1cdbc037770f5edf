"""Whether what a run has chosen can compute what its model aggregates by: asked before anything long."""

from __future__ import annotations

from collections.abc import Collection

import torch

from sargnn.backends.choose import make_kernel
from sargnn.backends.device import Device, device_of
from sargnn.bf16 import ROW_DTYPES
from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.gat import DotAttention, Gat, GatV2, check_scores
from sargnn.errors import ConfigError


def engine_alone(config: RunConfig) -> Engine:
    """An engine with the run's mode, kernel and precision and one worker.

    Raises ``ConfigError`` where they do not exist, or do not go together, or there is no such device.
    """
    usable_device(config.device)
    settings = EngineSettings(
        mode=config.mode.choice,
        keep=config.mode.keep,
        kernel=config.kernel.choice,
        device=torch.device(config.device),
        dtype=ROW_DTYPES[config.precision],
    )
    return Engine(Group.single(), settings)


def usable_device(name: str) -> Device:
    """What answers for a device. Raises ``ConfigError`` where there is none."""
    device = device_of(name)
    if device.unavailable is not None:
        raise ConfigError(
            f"There is no device to compute on. {device.unavailable}",
            given=f"device={name}",
            allowed="device=cpu",
            hint="sargnn info lists devices and kernels",
        )
    return device


def baseline_lines(config: RunConfig) -> list[str]:
    """That a baseline whose kernel was not chosen runs PyTorch's operators, where DGL's cannot run; else nothing."""
    engine = engine_alone(config)
    if not engine.mode.is_baseline or config.kernel.choice != "auto":
        return []
    reasons = make_kernel("dgl").unavailable_reasons(engine.device, engine.dtype)
    return [f"the baseline runs PyTorch's operators (kernel=reference): {'; '.join(reasons)}"] if reasons else []


def check_serves(engine: Engine, operations: Collection[str], whole: str | None) -> None:
    """Raises ``ConfigError`` or ``KernelError`` unless the kernel serves all operations, with the scores that are to be kept.

    ``whole``: the model, for the error that is raised where none is attention's; None: there may be other operations.
    """
    for name in operations:
        engine.kernel(name)
    if not engine.mode.keeps_scores:
        return
    attention = [name for name in operations if name in (Gat.operation, GatV2.operation, DotAttention.operation)]
    for name in attention:
        check_scores(engine.operation(name))
    if whole is not None and not attention:
        raise ConfigError(
            "This model has no attention whose scores could be kept.",
            given=f"mode.keep=all; {whole}",
            allowed="model=gat, or a module of your own with GATConv, GATv2Conv or DotGatConv",
            hint="mode.keep=rows",
        )
