"""Settings that are there for memory and time, and change the losses nonetheless; said here for all that tells of a run.

Whatever else decides the losses, such as a sample or another number of steps, is what the run is asked to compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from sargnn.config.fields import started_by_task
from sargnn.config.run import RunConfig


@dataclass(frozen=True)
class LossSetting:
    """A setting without which the losses would be others.

    Attributes:
        setting: as a command line has it.
        change: what it does, a clause.
        brief: the same in a few words.
        kept_by: what keeps the losses that there are without it.
    """

    setting: str
    change: str
    brief: str
    kept_by: str

    def as_dict(self) -> dict[str, str]:
        """As ``summary.json`` has it."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "brief"}


def losses_depend_on(config: RunConfig, *, norms_over_rows: bool) -> list[LossSetting]:
    """The run's settings of this kind.

    ``norms_over_rows``: whether the model has norms whose statistics are of rows that are computed together; of a module of a
    user's only the module that is built says so (``models.base.Model``).
    """
    settings: list[LossSetting] = []
    other_norm = "nn.LayerNorm in the module" if config.model.reads_target else "model.norm=layer"
    count, precision, preload = config.batches.count, config.precision, config.preload
    if norms_over_rows and count not in (1, "auto"):
        change = (
            "batch norm has statistics of each micro-batch: losses depend on batches.count, batches.by, world and partitioner"
        )
        kept_by = f"{other_norm} or batches.count=1"
        settings.append(LossSetting(f"batches.count={count}", change, "norms over each micro-batch", kept_by))
    elif norms_over_rows and config.mfg and not config.draws_flows:
        change = "batch norm has statistics of the rows that reach a training node"
        settings.append(LossSetting("mfg=true", change, "norms over fewer rows", f"{other_norm} or mfg=false"))
    if precision == "bf16":
        change = "rows and their gradients are rounded to bf16"
        settings.append(LossSetting("precision=bf16", change, "rows are rounded", "precision=fp32"))
    elif precision == "mixed":
        change = "products are of entries rounded to bf16"
        settings.append(LossSetting("precision=mixed", change, "products are rounded", "precision=fp32"))
    if config.comm.wire != "exact" and precision != "bf16" and config.world > 1:
        change = "rows are rounded on their way to other workers: losses depend on world and partitioner"
        settings.append(
            LossSetting(f"comm.wire={config.comm.wire}", change, "rows are rounded on their way", "comm.wire=exact")
        )
    if config.bounds_preload:
        bounds = (("preload.max_hop", preload.max_hop), ("preload.fanout", preload.fanout))
        given = [(key, value) for key, value in bounds if value is not None]
        setting, kept_by = " ".join(f"{key}={value}" for key, value in given), " ".join(f"{key}=null" for key, _ in given)
        change = "servers hold less than the model reads: losses depend on servers and partitioner"
        settings.append(LossSetting(setting, change, "fewer nodes are read", kept_by))
    return settings


def loss_lines(config: RunConfig, *, norms_over_rows: bool) -> list[str]:
    """A line for a person of what a run has because of its task, and of each of ``losses_depend_on``."""
    starts = started_by_task(config, config.task)
    lines = [f"where nothing else is said, task={config.task} has {', '.join(starts)}"] if starts else []
    return lines + [describe(setting.as_dict()) for setting in losses_depend_on(config, norms_over_rows=norms_over_rows)]


def describe(setting: Mapping[str, str]) -> str:
    """A line for a person of one that ``summary.json`` has."""
    return f"{setting['setting']} changes losses: {setting['change']} ({setting['kept_by']} keeps them)"
