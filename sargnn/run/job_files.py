"""What a SLURM job leaves beside a run: ``job.json`` in the run folder, the script in ``slurm/`` and, of a sweep,
``submit.sh``, which hands the script of each point to sbatch, so that one command submits them all."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from sargnn.config.run import RunConfig, fixed_settings, load, save
from sargnn.errors import ConfigError, SargnnError
from sargnn.run.run_folder import LOCK, hold_run_dir
from sargnn.run.slurm import Job, SlurmConfig, check_syntax, comment, quoted, render, run_dir_line
from sargnn.tracking import files
from sargnn.tracking.files import file_lock
from sargnn.tracking.summary import FINISHED, read_summary

JOB = "job.json"
SUBMIT = "submit.sh"
_TEXT = """\
#!/bin/bash
{about}
# shellcheck disable=SC2016 # what points are called is text

cd {folder} || exit 1
SCRIPTS={scripts}
refused=0

submit() {{
    local job
    if job=$(sbatch --parsable "$SCRIPTS/$1"); then
        printf 'job %s: %s\\n' "${{job%%;*}}" "$2"
    else
        printf 'sargnn: sbatch did not take it; later: sbatch %q\\n' "$SCRIPTS/$1" >&2
        refused=1
    fi
}}

{calls}
exit "$refused"
"""


def read_job(run_dir: Path) -> dict[str, Any]:
    """``script``, ``index`` (in an array, else None), ``jobs`` (numbers) and ``starts``; empty if there is no whole record."""
    empty: dict[str, Any] = {"script": None, "index": None, "jobs": [], "starts": []}
    try:
        record = empty | files.read_json(run_dir / JOB)
    except SargnnError:
        return empty
    starts = record["starts"]
    fits = isinstance(record["jobs"], list) and all(isinstance(job, str) for job in record["jobs"])
    fits &= isinstance(record["script"], str | None) and isinstance(record["index"], int | None)
    fits &= isinstance(starts, list) and all(
        isinstance(start, dict) and isinstance(start.get("epoch"), int) and isinstance(start.get("job"), str | None)
        for start in starts
    )
    return record if fits else empty


def note_job(run_dir: Path, **changes: Any) -> None:
    files.write_json(run_dir / JOB, read_job(run_dir) | changes)


def choose_run_dir(config: RunConfig) -> Path:
    """The folder of a run that a script is written for: a new one, or that of the same run where it is not over.

    Raises ``ConfigError`` where ``run_dir`` names a folder with another run, or one that is over.
    """
    if config.run_dir is not None:
        run_dir = Path(config.run_dir).resolve()
        if _usable(config, run_dir):
            return run_dir
        raise ConfigError(
            "The run folder already holds a run.",
            given=str(run_dir),
            hint=f"choose another run_dir, or sargnn slurm resume={run_dir} to go on with it",
        )
    base = Path("runs").resolve() / config.name
    number, candidate = 1, base
    while not _usable(config, candidate):
        number += 1
        candidate = base.with_name(f"{base.name}-{number}")
    return candidate


def _usable(config: RunConfig, run_dir: Path) -> bool:
    if not run_dir.exists():
        return True
    if not run_dir.is_dir():
        return False
    if not (run_dir / files.CONFIG).exists():
        return not any(run_dir.iterdir())
    summary = read_summary(run_dir) if (run_dir / JOB).exists() else None
    is_over = summary is not None and summary.status == FINISHED
    return (run_dir / JOB).exists() and not is_over and _same(config, run_dir)


def _same(config: RunConfig, run_dir: Path) -> bool:
    """Whether its settings are these. How many servers there are may change, as the nodes may, where none preloads."""
    saved, wanted = fixed_settings(load(run_dir / files.CONFIG)), fixed_settings(config)
    if not config.may_preload:
        saved["servers"] = wanted["servers"]
    return saved == wanted


def choose_point_dir(config: RunConfig, tried: Sequence[Path], new: Path) -> Path:
    """The folder of a sweep's point that a script is written for: of an earlier try that a job goes on with, or a new one."""
    return next((folder for folder in tried if _usable(config, folder)), new)


def is_under_way(run_dir: Path) -> bool:
    """Whether a process works in the folder, as far as the file system's locks tell."""
    if not (run_dir / LOCK).exists():
        return False
    lock = file_lock(run_dir / LOCK, timeout_s=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False
    lock.release()
    return False


def check_point(config: RunConfig, run_dir: Path) -> None:
    """Raises ``ConfigError`` where a sweep's folder holds something else than this point."""
    if (run_dir / files.CONFIG).exists() and not _same(config, run_dir):
        raise ConfigError("The sweep's folder holds other runs.", given=str(run_dir), hint="remove it, or choose other points")


def write(slurm: SlurmConfig, job: Job, configs: Sequence[RunConfig], template: Path, scripts: Path) -> Path:
    """Write the script and, in each run folder, ``config.yaml`` and ``job.json``; the script's path. There is a configuration
    for each of ``job.run_dirs``.

    Raises ``ConfigError`` for what ``render`` refuses, a template that cannot be read, a run that is under way, or a folder
    that cannot be written.
    """
    text = script_text(slurm, job, template)
    name = job.name if job.is_array else job.run_dirs[0].name
    script, number = scripts.resolve() / f"{name}.sbatch", 1
    while script.exists() and run_dir_line(job) not in script.read_text(errors="replace").splitlines():  # another run's
        number += 1
        script = scripts.resolve() / f"{name}-{number}.sbatch"
    try:
        for config, run_dir in zip(configs, job.run_dirs, strict=True):
            run_dir.mkdir(parents=True, exist_ok=True)
            hold_run_dir(run_dir).release()  # nothing works in it now
            if config.init_from is not None:
                from sargnn.run.checkpoints import keep_start

                keep_start(config, run_dir)
            save(dataclasses.replace(config, run_dir=str(run_dir)), run_dir / files.CONFIG)
            note_job(run_dir, script=str(script), index=int(run_dir.name) if job.is_array else None)
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
    except OSError as error:
        raise ConfigError(f"The script cannot be written: {error.strerror}.", given=error.filename) from error
    return script


def script_text(slurm: SlurmConfig, job: Job, template: Path) -> str:
    """Raises ``ConfigError`` for what ``render`` refuses, or a template that cannot be read."""
    try:
        text = render(slurm, job, template.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("The template cannot be read.", given=str(template), hint=str(error).splitlines()[0]) from error
    check_syntax(text)
    return text


def submit_text(job: Job, scripts: Sequence[Path], labels: Sequence[str]) -> str:
    """The script that submits the points' scripts, all in one folder. ``job``: of any point, for where the command was given,
    and its words. Raises ``ConfigError`` for a folder that cannot stand in a script.
    """
    sweep = job.run_dirs[0].parent
    about = [
        f"Submits the points of the sweep {sweep.name} that were not finished, each as a job of its own: {len(scripts)}.",
        "",
        f"Written by: sargnn {shlex.join(job.words)}",
        "A line taken out leaves its point out. A job whose run is over by then, or under way, ends at once.",
        f"How far they are: sargnn slurm --status {shlex.quote(str(sweep))}",
    ]
    printable = [comment(label).removeprefix("# ") for label in labels]
    calls = [f"submit {quoted(path.name)} {quoted(label)}" for path, label in zip(scripts, printable, strict=True)]
    text = _TEXT.format(
        about="\n".join(map(comment, about)),
        folder=quoted(job.folder),
        scripts=quoted(scripts[0].parent),
        calls="\n".join(calls),
    )
    check_syntax(text)
    return text


def write_submit(text: str, folder: Path) -> Path:
    """Its path. Raises ``ConfigError`` where the folder cannot be written."""
    path = folder / SUBMIT
    try:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise ConfigError(f"The script cannot be written: {error.strerror}.", given=str(path)) from error
    return path
