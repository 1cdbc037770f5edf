"""A run on this machine, step by step: prepare this process, check, prepare stores, make the run folder, start, follow, report.

Each step is a function of its own module and gets what it needs; none goes back. A SLURM job (``run.job``) and predictions
(``run.predict``) are made of the same steps.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sargnn.config.losses import loss_lines
from sargnn.config.run import RunConfig, load, parts_of
from sargnn.errors import SargnnError, WorkerError
from sargnn.memory.plan_stores import plan_alone
from sargnn.memory.settle import Machine, settle
from sargnn.run.check import Stores, check_network, check_strategies, prepare_stores
from sargnn.run.checkpoints import check_checkpoint, check_epochs_left, choose_checkpoint, find_start
from sargnn.run.env import gpu_lines, places_of, prepare_process, usual_processes, with_processes, workers_of
from sargnn.run.processes import Failure, Workers, WorkerSettings, start_fork_server
from sargnn.run.run_folder import begin_run, hold_run_dir, make_run_dir
from sargnn.tracking import files
from sargnn.tracking.files import CONFIG, Inputs, write_inputs
from sargnn.tracking.follow import Follower, Sender
from sargnn.tracking.progress import Steps, say
from sargnn.tracking.provenance import usable_cores, without_bf16
from sargnn.tracking.summary import FAILED, FINISHED, INTERRUPTED, Summary, read_summary, write_summary
from sargnn.tracking.target import target_of

_LOG_LINES = 12


def train(
    config: RunConfig, *, resume: Path | None = None, on_begin: Callable[[Path, int], None] = lambda folder, epoch: None
) -> tuple[Summary, Path]:
    """Run a training from start to end; the summary and the run folder.

    Args:
        resume: a run folder, to go on from its newest whole checkpoint, in the same folder and MLflow run.
        on_begin: told the run's folder and its first epoch, before workers start.

    Raises:
        SargnnError: anything a user can cause; a failed worker as ``WorkerError`` with its rank and last lines.
        Interrupted: SIGINT, SIGTERM or SIGHUP.
    """
    started_at, asked = time.time(), config
    config = prepare_process(with_processes(config)).on_one_machine
    check_network(config.comm)
    config.dataset.check_files()
    if slow := without_bf16(config.precision, config.device):
        say(slow)
    start_fork_server()
    check_strategies(config.stand_in)
    if resume is not None:
        check_epochs_left(config, resume)
        check_checkpoint(resume)
    else:
        config = find_start(config)

    stores = prepare_stores(config, begins=resume is None)
    config, planned = settle(config, stores.dataset, Machine.here(config.num_processes))
    with Steps():
        alone = plan_alone(config, stores.dataset, stores.partition) if config.joins_parts else None
    from sargnn.engine.serving import baseline_lines  # with PyTorch, which is loaded by now

    run_dir = resume.resolve() if resume else make_run_dir(config.run_dir, config.name)
    config = dataclasses.replace(config, run_dir=str(run_dir))
    lock = hold_run_dir(run_dir)
    try:
        before = config.precision if resume is None else load(run_dir / CONFIG).precision
        inputs = begin_run(
            dataclasses.replace(config, processes=asked.processes, comm=asked.comm),  # as is chosen anew when the run goes on
            run_dir,
            stores,
            started_at=started_at,
            going_on=resume is not None,
            planned=planned,
            alone=alone,
            processes=config.num_processes,
        )
        on_begin(run_dir, inputs.first_epoch)
        start = f", from the parameters in '{config.init_from}'" if config.init_from and resume is None else ""
        changed = "" if before == config.precision else f", in {config.precision} from here on, {before} before"
        say(f"training {run_dir.name}: {workers_of(config)}, {config.epochs} epochs{start}{changed}")
        for line in (
            *place_lines(config, chosen=asked.processes != config.processes),
            *gpu_lines(config),
            *baseline_lines(config),
            *loss_lines(config, norms_over_rows=stores.norms_over_rows),
        ):
            say(line)
        summary, error = _run_tracked(config, run_dir, inputs, stores, same_run=resume is not None)
    finally:
        lock.release()
    if error is not None:
        raise error
    return summary, run_dir


def place_lines(config: RunConfig, *, chosen: bool) -> list[str]:
    """What is said where processes have several workers, and where more of them share the machine's cores than there are.
    ``chosen``: the number of processes was, here.
    """
    processes, cores, world = config.num_processes, usable_cores(), config.world
    here = f"{cores} core{'s' * (cores > 1)}"
    if chosen and processes < world:
        return [f"{here} for {world} workers: fastest {places_of(config)}; processes={world} has a process for each"]
    usual = usual_processes(config)
    return [f"{processes} processes share {here}: processes={usual} would be faster"] if processes > max(cores, usual) else []


def _run_tracked(
    config: RunConfig, run_dir: Path, inputs: Inputs, stores: Stores, *, same_run: bool
) -> tuple[Summary, SargnnError | None]:
    """Start the workers, follow them, report; the summary, and the error that the run ends with. ``same_run``: go on with the
    folder's run in MLflow.
    """

    def go_back() -> int:
        """Prepare the run folder for a new start; how many epochs it has."""
        again = choose_checkpoint(config, run_dir, inputs, stores.dataset_hash)
        write_inputs(run_dir, again)
        return again.first_epoch

    sender: Sender | None = None
    follower: Follower | None = None
    summary: Summary | None = None
    error: SargnnError | None = None
    try:
        try:
            target = target_of(config, run_dir, inputs, same_run=same_run)
            sender = Sender(target if config.tracking.enabled else None)
            follower = Follower(run_dir, config.epochs, inputs.first_epoch, sender)
            follower.start()
            run_and_restart(run_dir, config, go_back)
        except SargnnError as caught:
            error = caught
        except KeyboardInterrupt:
            error = Interrupted(signal.SIGINT, run_dir)
        except Exception as unexpected:
            summary = report_failure(run_dir, config, f"{type(unexpected).__name__}: {unexpected}")
            raise
        finally:
            if follower is not None and follower.is_alive():
                follower.stop()
        summary, error = report_end(run_dir, config, error)
    finally:
        if sender is not None:
            sender.finish(summary or Summary(FAILED))
    return summary, error


class Interrupted(SargnnError):
    """The run was ended by a signal."""

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
    """``run_workers``, and after a failure again from the newest checkpoint, ``comm.max_restarts`` times. ``go_back`` makes the
    run folder ready for that; it gives how many epochs the checkpoint has.
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
    """Raises ``WorkerError``, or ``Interrupted`` with ``hint``, if given."""
    from sargnn.run.worker import entry

    settings = WorkerSettings(config.num_processes, config.comm.port, config.comm.interface, config.comm.timeout_s)
    workers = Workers(entry, str(run_dir / files.CONFIG), settings)
    failure = workers.watch()
    if workers.asked is not None:
        raise Interrupted(workers.asked, run_dir, hint)
    if failure is not None:
        raise _worker_error(run_dir, config, settings, failure)


def _worker_error(run_dir: Path, config: RunConfig, settings: WorkerSettings, failure: Failure) -> WorkerError:
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
            from sargnn.run.worker import less_memory

            hint += f"; if nobody did that, memory ran out: {less_memory(config, settings.world)}; mode=sar needs least"
    else:
        how = f"failed with exit code {code}"
    parts = parts_of(rank, config.num_processes, config.world)
    who = f"Worker rank {rank}" if len(parts) == 1 else f"The process of ranks {parts[0]} to {parts[-1]}"
    tail = "\n".join(f"    {line}" for line in lines)
    return WorkerError(f"{who} {how}. The last lines of its log:\n{tail}", hint=hint)


def report_end(run_dir: Path, config: RunConfig, error: SargnnError | None) -> tuple[Summary, SargnnError | None]:
    """The summary, written here if the workers wrote none, and the error that the run ends with, if it does; ``error``: what
    ended starting and watching the workers.
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
    """Write the summary of a run whose workers wrote none."""
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
