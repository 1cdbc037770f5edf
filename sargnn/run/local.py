"""A run on this machine, step by step: prepare this process, check, prepare stores, make the run folder, start, follow, report.

Each step is a function of its own module and gets what it needs; none goes back. A SLURM job (``launch.job``) and predictions
(``launch.predict``) are made of the same steps.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path

from sargnn.config.losses import loss_lines
from sargnn.config.run import RunConfig, load
from sargnn.cpu import without_bf16
from sargnn.errors import SargnnError
from sargnn.memory.settle import Machine, settle
from sargnn.run.check import Stores, check_network, check_strategies, prepare_stores
from sargnn.run.checkpoints import check_checkpoint, check_epochs_left, choose_checkpoint, find_start
from sargnn.run.env import kernels_are_compiled, prepare_process
from sargnn.run.processes import start_fork_server
from sargnn.run.run_folder import begin_run, hold_run_dir, make_run_dir
from sargnn.run.start import Interrupted, report_end, report_failure, run_and_restart
from sargnn.tracking.files import CONFIG, Inputs, write_inputs
from sargnn.tracking.follow import Follower, Sender
from sargnn.tracking.mlflow.target import target_of
from sargnn.tracking.progress import say
from sargnn.tracking.summary import FAILED, Summary


def train(config: RunConfig, *, resume: Path | None = None) -> tuple[Summary, Path]:
    """Run a training from start to end.

    Args:
        resume: a run folder, to go on from its newest whole checkpoint, in the same folder and MLflow run.

    Returns:
        The summary and the run folder.

    Raises:
        SargnnError: anything a user can cause; a failed worker as ``WorkerError`` with its rank and last lines.
        Interrupted: SIGINT, SIGTERM or SIGHUP.
    """
    started_at = time.time()
    config = prepare_process(config)
    check_network(config.comm)
    config.dataset.check_files()
    if not kernels_are_compiled():
        say("compiling the kernels, once for this version: a minute or two, beside what follows")
    if slow := without_bf16(config.precision):
        say(slow)
    start_fork_server()
    check_strategies(config.stand_in)
    if resume is not None:
        check_epochs_left(config, resume)
        check_checkpoint(resume)
    else:
        config = find_start(config)

    stores = prepare_stores(config, begins=resume is None)
    config, planned = settle(config, stores.dataset, Machine.here(config.world))

    run_dir = resume.resolve() if resume else make_run_dir(config.run_dir, config.name)
    config = dataclasses.replace(config, run_dir=str(run_dir))
    lock = hold_run_dir(run_dir)
    try:
        before = config.precision if resume is None else load(run_dir / CONFIG).precision
        inputs = begin_run(config, run_dir, stores, started_at=started_at, going_on=resume is not None, planned=planned)
        start = f", from the parameters in '{config.init_from}'" if config.init_from and resume is None else ""
        changed = "" if before == config.precision else f", in {config.precision} from here on, {before} before"
        many = f"{config.world} workers with {config.threads} threads each, {config.epochs} epochs"
        say(f"training {run_dir.name}: {many}{start}{changed}")
        for line in loss_lines(config, norms_over_rows=stores.norms_over_rows):
            say(line)
        summary, error = _run_tracked(config, run_dir, inputs, stores, same_run=resume is not None)
    finally:
        lock.release()
    if error is not None:
        raise error
    return summary, run_dir


def _run_tracked(
    config: RunConfig, run_dir: Path, inputs: Inputs, stores: Stores, *, same_run: bool
) -> tuple[Summary, SargnnError | None]:
    """Start the workers, follow them, report; the summary, and the error that the run ends with.

    Args:
        same_run: go on with the folder's run in MLflow.
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
