"""How a run came out: what its workers reported, or what must be reported for them."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import SargnnError, WorkerError
from sargnn.run.start import Interrupted
from sargnn.tracking.files import MetricsTail
from sargnn.tracking.progress import say
from sargnn.tracking.summary import FAILED, FINISHED, INTERRUPTED, Summary, read_summary, write_summary


@dataclass(frozen=True)
class Identity:
    """What a run is, for a summary without figures."""

    world: int
    mode: str
    model: str
    config_hash: str


def describe_identity(config: RunConfig) -> Identity:
    """What this run is."""
    return Identity(config.world, config.mode.name, config.model.name, config.config_hash)


def report_end(run_dir: Path, identity: Identity, error: SargnnError | None) -> tuple[Summary, SargnnError | None]:
    """The summary, written here if the workers wrote none, and the error that the run ends with, if it does.

    Args:
        error: what ended starting and watching the workers.
    """
    summary: Summary | None = None
    try:
        summary = read_summary(run_dir)
    except SargnnError as unreadable:
        error = error or unreadable
    if error is None and summary is None:
        error = WorkerError("The workers ended without a result.", hint=f"their logs: {run_dir / 'logs'}")
    if error is None and summary is not None and summary.status == INTERRUPTED:
        error = Interrupted(signal.SIGTERM, run_dir)  # which someone else has sent to a worker
    interrupted = isinstance(error, Interrupted)
    if summary is not None and interrupted and summary.status == FINISHED:
        return summary, None  # the signal came too late
    if summary is not None and (error is None or interrupted):  # interrupted workers wrote a summary with their checkpoint
        return summary, error
    return report_failure(run_dir, identity, str(error), interrupted=interrupted), error


def report_failure(run_dir: Path, identity: Identity, error: str, *, interrupted: bool = False) -> Summary:
    """Write the summary of a run whose workers wrote none; what it holds."""
    losses: list[float] = []
    try:
        losses = [row["loss"] for row in MetricsTail(run_dir).new_rows()]
    except SargnnError as damaged:
        say(f"warning: {damaged}")
    summary = Summary(
        status=INTERRUPTED if interrupted else FAILED,
        error=error,
        losses=losses,
        world=identity.world,
        mode=identity.mode,
        model=identity.model,
        config_hash=identity.config_hash,
    )
    try:
        write_summary(run_dir, summary)
    except OSError as failed:
        say(f"warning: the summary cannot be written: {failed}")
    return summary
