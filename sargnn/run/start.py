"""Starting workers on this machine and waiting for them, starting them again after a failure, and how the run came out."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from sargnn.config.run import RunConfig
from sargnn.errors import SargnnError, WorkerError
from sargnn.run.processes import Failure, Workers, WorkerSettings
from sargnn.tracking import files
from sargnn.tracking.progress import say
from sargnn.tracking.summary import FAILED, FINISHED, INTERRUPTED, Summary, read_summary, write_summary

_LOG_LINES = 12


class Interrupted(SargnnError):
    """The run was ended by a signal.

    Attributes:
        signal_number: which one.
    """

    def __init__(self, signal_number: int, run_dir: Path, hint: str | None = None) -> None:
        from sargnn.training import checkpoint

        if hint is None and checkpoint.existing(run_dir):
            hint = f"sargnn train resume={run_dir} goes on from the newest checkpoint"
        begun = (run_dir / files.METRICS).exists()
        so_far = f"figures so far are in '{run_dir}'" if begun else f"no epoch was over; its folder is '{run_dir}'"
        super().__init__(
            f"Interrupted by {signal.Signals(signal_number).name}; {so_far}.",
            hint=hint or "no checkpoint was written yet: start it anew, and in another folder if run_dir is given",
        )
        self.signal_number = signal_number


def run_and_restart(run_dir: Path, config: RunConfig, go_back: Callable[[], int]) -> None:
    """``run_workers``, and after a failure again from the newest checkpoint, ``comm.max_restarts`` times.

    Args:
        go_back: makes the run folder ready to go on from that checkpoint; returns how many epochs it has.
    """
    for restarts_left in reversed(range(config.comm.max_restarts + 1)):
        try:
            return run_workers(run_dir, config)
        except WorkerError as error:
            if not restarts_left:
                raise
            epoch = go_back()
            files.keep_metrics(run_dir, epoch)
            say(f"{str(error).splitlines()[0]}\nstarting again after epoch {epoch}; restarts left: {restarts_left - 1}")


def run_workers(run_dir: Path, config: RunConfig, hint: str | None = None) -> None:
    """Start the workers and wait for them. Raises ``WorkerError``, or ``Interrupted`` with ``hint``, if given."""
    from sargnn.run.worker import entry

    settings = WorkerSettings(config.world, config.comm.port, config.comm.interface, config.comm.timeout_s)
    workers = Workers(entry, str(run_dir / files.CONFIG), settings)
    failure = workers.watch()
    if workers.asked is not None:
        raise Interrupted(workers.asked, run_dir, hint)
    if failure is not None:
        raise _worker_error(run_dir, settings, failure)


def _worker_error(run_dir: Path, settings: WorkerSettings, failure: Failure) -> WorkerError:
    rank, code = failure.rank, failure.exitcode
    path = files.log_path(run_dir, rank)
    lines = path.read_text(errors="replace").splitlines()[-_LOG_LINES:] if path.exists() else []
    hint = f"the whole log: {path}"
    if code is None:
        how = f"hangs: others waited {settings.timeout_s:g} s for it"
        how += f" (it has begun {failure.begun} exchanges and sums, they {failure.others_begun})"
        hint += "; if it only is slow, set a larger comm.timeout_s"
    elif code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            more = f"world={2 * settings.world}"
            hint += f"; if nobody did that, memory ran out: more workers ({more}) or mode=sar need less each"
    else:
        how = f"failed with exit code {code}"
    tail = "\n".join(f"    {line}" for line in lines)
    return WorkerError(f"Worker rank {rank} {how}. The last lines of its log:\n{tail}", hint=hint)


def report_end(run_dir: Path, config: RunConfig, error: SargnnError | None) -> tuple[Summary, SargnnError | None]:
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
    return report_failure(run_dir, config, str(error), interrupted=interrupted), error


def report_failure(run_dir: Path, config: RunConfig, error: str, *, interrupted: bool = False) -> Summary:
    """Write the summary of a run whose workers wrote none; what it holds."""
    losses: list[float] = []
    try:
        losses = [row["loss"] for row in files.MetricsTail(run_dir).new_rows()]
    except SargnnError as damaged:
        say(f"warning: {damaged}")
    summary = Summary(
        status=INTERRUPTED if interrupted else FAILED,
        error=error,
        losses=losses,
        world=config.world,
        mode=config.mode.name,
        model=config.model.name,
        config_hash=config.config_hash,
    )
    try:
        write_summary(run_dir, summary)
    except OSError as failed:
        say(f"warning: the summary cannot be written: {failed}")
    return summary
