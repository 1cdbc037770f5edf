"""What a job does around its workers, once each, on the first node:

    python -m sargnn.run.job begin RUN_DIR
    python -m sargnn.run.job end RUN_DIR
    python -m sargnn.run.job files RUN_DIR RANK ...

``begin`` makes the stores that are missing, compiles the kernels, finds the newest checkpoint; 3 is its exit code where all
epochs are trained. ``end`` shows the result, or what went wrong; 0 is its exit code for a run that is over, 75 for one that was
interrupted and has a checkpoint, 1 for one that failed. ``files`` lists what a host without a shared file system needs for
these ranks, once the run has begun: paths from the working folder, one a line.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sargnn.config.losses import loss_lines
from sargnn.config.run import flatten, load, parts_of
from sargnn.errors import ConfigError, SargnnError
from sargnn.graph.manifest import MANIFEST
from sargnn.memory.settle import Machine, settle
from sargnn.partition.store import part_folder
from sargnn.resolve import file_of_target
from sargnn.run.check import check_strategies, prepare_stores
from sargnn.run.checkpoints import is_over
from sargnn.run.env import prepare_process, workers_of
from sargnn.run.job_files import note_job, read_job
from sargnn.run.local import report_failure
from sargnn.run.run_folder import begin_run
from sargnn.tracking import files, summary
from sargnn.tracking.files import Inputs, file_lock, read_inputs
from sargnn.tracking.progress import say
from sargnn.tracking.summary import read_summary
from sargnn.tracking.tables import profile_tables, result_table

FINISHED, FAILED, NOTHING_TO_DO, INTERRUPTED = 0, 1, 3, 75
_LINES, _LOGS = 4, 8
"""The ends of logs that are shown: lines of each, of so many ranks."""


def begin(run_dir: Path, environment: Mapping[str, str]) -> int:
    """Everything that workers need; an exit code. Raises ``SargnnError`` for anything a user can cause."""
    started_at = time.time()
    config = prepare_process(load(run_dir / files.CONFIG))
    if is_over(config, run_dir):  # which may not be written over
        say(f"all epochs of '{run_dir}' are trained; nothing to do")
        return NOTHING_TO_DO
    config.dataset.check_files()
    check_strategies(config.stand_in)
    from sargnn.training.checkpoint import existing

    begins = not existing(run_dir)
    with _alone(Path(config.store_dir)):
        stores = prepare_stores(config, begins=begins)
    config, planned = settle(config, stores.dataset, Machine.of_job(config, environment))
    inputs = begin_run(config, run_dir, stores, started_at=started_at, going_on=None, planned=planned)
    files.write_secret(run_dir / files.TOKEN, secrets.token_hex(32))
    _note_start(run_dir, inputs, environment)
    say(f"training {config.name}: {workers_of(config)}, {config.epochs} epochs")
    for line in loss_lines(config, norms_over_rows=stores.norms_over_rows):
        say(line)
    return FINISHED


def _note_start(run_dir: Path, inputs: Inputs, environment: Mapping[str, str]) -> None:
    from sargnn.training.checkpoint import steps_trained

    known = read_job(run_dir)
    number = environment.get("SLURM_JOB_ID")
    if environment.get("SLURM_ARRAY_JOB_ID"):
        number = f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    steps = 0 if inputs.checkpoint is None else steps_trained(Path(inputs.checkpoint))
    start = {
        "job": number,
        "restarts": int(environment.get("SLURM_RESTART_COUNT", "0")),
        "epoch": inputs.first_epoch,
        "steps": steps,
    }
    jobs = known["jobs"] + ([number] if number and number not in known["jobs"] else [])
    note_job(run_dir, jobs=jobs, starts=[*known["starts"], start])


@contextmanager
def _alone(store_dir: Path) -> Iterator[None]:
    """One job at a time prepares: the points of an array that start together need the same stores."""
    store_dir.mkdir(parents=True, exist_ok=True)
    lock = file_lock(store_dir / ".prepare.lock")
    with suppress(OSError, NotImplementedError):  # a file system without locks; then they do the same work side by side
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def end(run_dir: Path) -> int:
    """Show how the run came out; an exit code."""
    config = load(run_dir / files.CONFIG)
    reported = read_summary(run_dir)
    if reported is not None and reported.status == summary.FINISHED:
        result_table(reported)
        profile_tables(reported)
        say(f"figures, logs and configuration: {run_dir}")
        return FINISHED
    if reported is not None and reported.status == summary.INTERRUPTED:
        from sargnn.training.checkpoint import newest, steps_trained

        path, _ = newest(run_dir)
        trained, starts = len(reported.losses), read_job(run_dir)["starts"]
        stuck = trained <= starts[-1]["epoch"] if starts else False
        if stuck and path is not None:
            stuck = steps_trained(path) <= starts[-1].get("steps", 0)
        if stuck:  # queued again it would come no further
            say(f"sargnn: A signal ended the run before it had trained more than the {trained} epochs that it began with.")
            say("  next:    a longer slurm.time, and slurm.signal_s longer than a step takes")
            return FAILED
        say(f"a signal ended the run after epoch {trained} of {config.epochs}; a checkpoint is written")
        return INTERRUPTED
    what = "The workers ended without a result."
    report_failure(run_dir, config, what)
    say(f"sargnn: {what} The last lines of their logs (what ended them first is in srun's lines above):")
    lines: list[str] = []
    for rank in range(config.num_processes):
        log = files.log_path(run_dir, rank)
        if len(lines) < _LOGS * _LINES and log.exists():
            lines += [f"rank {rank}: {line}" for line in log.read_text(errors="replace").splitlines()[-_LINES:]]
    for line in lines:
        say(f"    {line}")
    say(f"  next:    look into {run_dir / 'logs'}; submitted again, the run goes on from its newest checkpoint")
    return FAILED


def needed_files(run_dir: Path, ranks: Sequence[int]) -> list[Path]:
    """What the workers of some processes read: settings, token, checkpoint, their own parts, and files that settings name a
    class or function in. Raises ``SargnnError`` where the run has not begun, or has no such rank.
    """
    config, inputs = load(run_dir / files.CONFIG), read_inputs(run_dir)
    wrong = [str(rank) for rank in ranks if rank >= config.num_processes]
    if wrong:
        raise ConfigError("No such rank.", given=" ".join(wrong), allowed=f"0 to {config.num_processes - 1}")
    ranks = [part for rank in ranks for part in parts_of(rank, config.num_processes, config.of_ranks.world)]
    stores = [Path(location) for location in (inputs.partition, inputs.preloaded) if location is not None]
    paths = [run_dir / name for name in (files.CONFIG, files.INPUTS, files.TOKEN)] + [store / MANIFEST for store in stores]
    paths += sorted({Path(path) for value in flatten(config).values() if (path := file_of_target(value)) is not None})
    folders = [part_folder(store, rank) for store in stores for rank in ranks]
    folders += [run_dir / files.START] + ([] if inputs.checkpoint is None else [Path(inputs.checkpoint)])
    return paths + [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def main() -> int:
    asks_files = sys.argv[1:2] == ["files"] and len(sys.argv) > 3 and all(word.isdecimal() for word in sys.argv[3:])
    if not asks_files and (len(sys.argv) != 3 or sys.argv[1] not in ("begin", "end")):
        print("usage: python -m sargnn.run.job begin|end RUN_DIR, or files RUN_DIR RANK ...", file=sys.stderr)
        return 2
    run_dir = Path(sys.argv[2]).resolve()
    try:
        if asks_files:
            for path in needed_files(run_dir, [int(word) for word in sys.argv[3:]]):
                print(os.path.relpath(path))
            return FINISHED
        return begin(run_dir, os.environ) if sys.argv[1] == "begin" else end(run_dir)
    except SargnnError as error:
        print(f"sargnn: {error}", file=sys.stderr)
        if (run_dir / files.CONFIG).is_file():
            report_failure(run_dir, load(run_dir / files.CONFIG), str(error))
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
