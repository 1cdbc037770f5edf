"""What a job does around its workers, once each, on the first node:

    python -m sargnn.launch.job begin RUN_DIR
    python -m sargnn.launch.job end RUN_DIR

``begin`` makes the stores that are missing, compiles the kernels, finds the newest checkpoint; 3 is its exit code where all
epochs are trained. ``end`` shows the result, or what went wrong; 0 is its exit code for a run that is over, 75 for one that was
interrupted and has a checkpoint, 1 for one that failed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sargnn.config import RunConfig, load
from sargnn.errors import ConfigError, SargnnError
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
        SargnnError: anything a user can cause; a job that was queued again and has trained nothing since.
    """
    started_at = time.time()
    config = load(run_dir / files.CONFIG)
    summary = reported(run_dir)
    if summary.get("status") == "finished":
        say(f"all {len(summary['losses'])} epochs of '{run_dir}' are trained; nothing to do")
        return NOTHING_TO_DO
    config = made_ready(config, fork_server=False)
    prepared = prepare_run(config)
    if config.threads == 1:  # else it is done
        warm_up()
    _, epoch = begin_run(config, run_dir, prepared, started_at=started_at, going_on=None)
    _note_start(run_dir, epoch, environment)
    say(f"training {config.name}: {config.world} workers with {config.threads} threads each, {config.epochs} epochs")
    return FINISHED


def _note_start(run_dir: Path, epoch: int, environment: Mapping[str, str]) -> None:
    """Into ``job.json``. Raises ``ConfigError`` where the job was queued again and stands where it stood."""
    known = read_job(run_dir)
    number = environment.get("SLURM_JOB_ID")
    if environment.get("SLURM_ARRAY_JOB_ID"):
        number = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    restarts = int(environment.get("SLURM_RESTART_COUNT", "0"))
    start = {"job": number, "restarts": restarts, "epoch": epoch}
    before = known["starts"][-1] if known["starts"] else {}
    if restarts and before.get("job") == number and before.get("epoch") == epoch and before.get("restarts") != restarts:
        raise ConfigError(
            "The job was queued again and has trained nothing since.", given=f"epoch {epoch} both times, in '{run_dir}'",
            hint="a longer slurm.time; slurm.signal_s longer than an epoch takes",
        )  # fmt: skip
    jobs = known["jobs"] + ([number] if number and number not in known["jobs"] else [])
    note_job(run_dir, jobs=jobs, starts=[*known["starts"], start])


def end(run_dir: Path) -> int:
    """Show how the run came out; an exit code."""
    config = load(run_dir / files.CONFIG)
    summary = reported(run_dir)
    if summary.get("status") == "finished":
        result_table(summary)
        say(f"figures, logs and configuration: {run_dir}")
        return FINISHED
    if summary.get("status") == "interrupted":
        say(f"a signal ended the run after epoch {len(summary['losses'])} of {config.epochs}; a checkpoint is written")
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
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
