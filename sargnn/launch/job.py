"""What a job does around its workers, once each, on the first node:

    python -m sargnn.launch.job begin RUN_DIR
    python -m sargnn.launch.job end RUN_DIR

``begin`` makes the stores that are missing, compiles the kernels, finds the newest checkpoint; 3 is its exit code where all
epochs are trained. ``end`` shows the result, or what went wrong; 0 is its exit code for a run that is over, 75 for one that was
interrupted and has a checkpoint, 1 for one that failed.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sargnn.config import RunConfig, load
from sargnn.errors import SargnnError
from sargnn.launch.compile import warm_up
from sargnn.launch.job_files import note_job, read_job
from sargnn.launch.local import made_ready, prepare_run
from sargnn.launch.run_folder import begin as begin_run
from sargnn.launch.run_folder import report_failure, reported
from sargnn.tracking import files
from sargnn.tracking.progress import result_table, say

FINISHED, FAILED, NOTHING_TO_DO, INTERRUPTED = 0, 1, 3, 75
_LINES = 4
_LOGS = 8


def begin(run_dir: Path, environment: Mapping[str, str]) -> int:
    """Everything that workers need; an exit code.

    Raises:
        SargnnError: anything a user can cause.
    """
    started_at = time.time()
    config = load(run_dir / files.CONFIG)
    summary = reported(run_dir)
    if summary.get("status") == "finished":  # which may not be written over
        say(f"all {len(summary['losses'])} epochs of '{run_dir}' are trained; nothing to do")
        return NOTHING_TO_DO
    config = made_ready(config, fork_server=False)
    with _alone(Path(config.store_dir)):
        prepared = prepare_run(config)
        if config.threads == 1:  # else it is done
            warm_up()
    _, epoch = begin_run(config, run_dir, prepared, started_at=started_at, going_on=None)
    _note_start(run_dir, epoch, environment)
    say(f"training {config.name}: {config.world} workers with {config.threads} threads each, {config.epochs} epochs")
    return FINISHED


def _note_start(run_dir: Path, epoch: int, environment: Mapping[str, str]) -> None:
    """Into ``job.json``."""
    known = read_job(run_dir)
    number = environment.get("SLURM_JOB_ID")
    if environment.get("SLURM_ARRAY_JOB_ID"):
        number = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    start = {"job": number, "restarts": int(environment.get("SLURM_RESTART_COUNT", "0")), "epoch": epoch}
    jobs = known["jobs"] + ([number] if number and number not in known["jobs"] else [])
    note_job(run_dir, jobs=jobs, starts=[*known["starts"], start])


@contextmanager
def _alone(store_dir: Path) -> Iterator[None]:
    """One job at a time prepares: the points of an array that start together need the same stores."""
    store_dir.mkdir(parents=True, exist_ok=True)
    with (store_dir / ".prepare.lock").open("a") as file:
        with suppress(OSError):  # a file system without locks; then they do the same work side by side
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def end(run_dir: Path) -> int:
    """Show how the run came out; an exit code."""
    config = load(run_dir / files.CONFIG)
    summary = reported(run_dir)
    if summary.get("status") == "finished":
        result_table(summary)
        say(f"figures, logs and configuration: {run_dir}")
        return FINISHED
    if summary.get("status") == "interrupted":
        trained, starts = len(summary["losses"]), read_job(run_dir)["starts"]
        if starts and trained <= starts[-1]["epoch"]:  # queued again it would come no further
            say(f"sargnn: A signal ended the run before it had trained an epoch more than the {trained} that it began with.")
            say("  next:    a longer slurm.time, and slurm.signal_s longer than an epoch takes")
            return FAILED
        say(f"a signal ended the run after epoch {trained} of {config.epochs}; a checkpoint is written")
        return INTERRUPTED
    what = "The workers ended without a result."
    report_failure(config, run_dir, what)
    say(f"sargnn: {what} The last lines of their logs (what ended them first is in srun's lines above):")
    for line in _last_lines(config, run_dir):
        say(f"    {line}")
    say(f"  next:    look into {run_dir / 'logs'}; submitted again, the run goes on from its newest checkpoint")
    return FAILED


def _last_lines(config: RunConfig, run_dir: Path) -> list[str]:
    """The ends of the first ranks' logs."""
    lines: list[str] = []
    for rank in range(config.world):
        path = files.log_path(run_dir, rank)
        if len(lines) < _LOGS * _LINES and path.exists():
            lines += [f"rank {rank}: {line}" for line in path.read_text(errors="replace").splitlines()[-_LINES:]]
    return lines


def main() -> int:
    """The command line; an exit code."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("begin", "end"):
        print("usage: python -m sargnn.launch.job begin|end RUN_DIR", file=sys.stderr)
        return 2
    run_dir = Path(sys.argv[2]).resolve()
    try:
        return begin(run_dir, os.environ) if sys.argv[1] == "begin" else end(run_dir)
    except SargnnError as error:
        print(f"sargnn: {error}", file=sys.stderr)
        if (run_dir / files.CONFIG).is_file():
            report_failure(load(run_dir / files.CONFIG), run_dir, str(error))
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
