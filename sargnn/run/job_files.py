"""What a SLURM job leaves beside a run: ``job.json`` in the run folder, the script in ``slurm/`` and, of a sweep,
``submit.sh``, which hands the script of each point to sbatch, so that one command submits them all. Also what became of a run's
job, from squeue and scontrol, and how far it is, from the run folder."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from sargnn.config.run import RunConfig, fixed_settings, load, save
from sargnn.errors import ConfigError, SargnnError, writing
from sargnn.run.run_folder import LOCK, hold_run_dir, numbered
from sargnn.run.slurm import Job, SlurmConfig, check_syntax, comment, quoted, render, run_dir_line
from sargnn.tracking import files
from sargnn.tracking.files import file_lock
from sargnn.tracking.scores import show_score
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
    return next(path for path in numbered(Path("runs").resolve() / config.name) if _usable(config, path))


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
    for script in numbered(scripts.resolve() / name, ".sbatch"):
        if not script.exists() or run_dir_line(job) in script.read_text(errors="replace").splitlines():  # not another run's
            break
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
    with writing("The script", path):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return path


_PATIENCE_S = 20
_RECENT = 10
_ALIVE = ("RUNNING", "PENDING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED")


def status_lines(run_dir: Path) -> list[str]:
    """A few lines for a person; of a sweep's folder, a line per point. Raises ``ConfigError`` for no run folder."""
    points = [path for path in sorted(run_dir.glob("*")) if (path / files.CONFIG).is_file()]
    if not (run_dir / files.CONFIG).is_file():
        if not points:
            raise ConfigError("This is no run folder.", given=str(run_dir), hint="a run folder holds config.yaml")
        jobs = _jobs()
        return [f"{path.name}: {'; '.join(_state(path, jobs) + _epochs(path)[:1])}" for path in points]
    return _state(run_dir, _jobs()) + _epochs(run_dir)


def _state(run_dir: Path, jobs: list[dict[str, str]] | str) -> list[str]:
    record = read_job(run_dir)
    if isinstance(jobs, str):
        known = f" (its jobs: {', '.join(record['jobs'])})" if record["jobs"] else ""
        return [f"job: its state is not known, {jobs}{known}"]
    matching = [job for job in jobs if _belongs(job, record)]
    if not matching:
        if record["jobs"]:
            return [f"job {record['jobs'][-1]}: SLURM no longer knows it"]
        return ["job: not submitted"]
    last = record["starts"][-1].get("job") if record["starts"] else None  # a later one may have found the run under way
    job = max(
        matching, key=lambda candidate: (candidate["JobState"] in _ALIVE, _number(candidate) == last, int(candidate["JobId"]))
    )
    number = _number(job)
    if record["index"] is not None and "ArrayJobId" in job:  # of tasks that wait SLURM gives the whole range
        number = f"{job['ArrayJobId']}_{record['index']}"
    line = f"job {number}: {job['JobState']}"
    again = job.get("Restarts", "0")
    if job["JobState"] == "RUNNING":
        line += f" on {job.get('NodeList')} for {job.get('RunTime')} of {job.get('TimeLimit')}"
    elif job["JobState"] == "PENDING":
        line += f" ({job.get('Reason')}, from {job.get('StartTime')})"
    else:
        line += f", exit code {job.get('ExitCode', '').partition(':')[0]}, {job.get('EndTime')}"
    if again != "0":
        line += f"; queued again {'once' if again == '1' else f'{again} times'}"
    return [line]


def _number(job: dict[str, str]) -> str:
    return f"{job['ArrayJobId']}_{job['ArrayTaskId']}" if "ArrayTaskId" in job else job["JobId"]


def _jobs() -> list[dict[str, str]] | str:
    """Every job that SLURM knows, with its fields; or why that is not known."""
    if shutil.which("scontrol") is None:
        return "there is no scontrol on this machine"
    try:
        done = subprocess.run(
            ["scontrol", "show", "job", "--oneliner"], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return f"scontrol has not answered for {_PATIENCE_S} s"
    if done.returncode:
        return f"scontrol says: {(done.stderr.strip().splitlines() or ['nothing'])[0]}"
    return [fields for line in done.stdout.splitlines() if (fields := _fields(line))]


def _fields(line: str) -> dict[str, str]:
    """The fields of a job's line. Its name may hold anything: numbers stand before it, the script behind it."""
    front, separator, rest = line.partition(" JobName=")
    if not separator:
        return {}
    fields = _words(rest.partition(" UserId=")[2]) | _words(front)
    if " Command=" in rest:
        fields["Command"] = rest.rpartition(" Command=")[2].partition(" WorkDir=")[0].strip()
    return fields if "JobId" in fields else {}


def _words(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def _belongs(job: dict[str, str], record: dict[str, Any]) -> bool:
    numbers = {job["JobId"], job.get("ArrayJobId", ""), f"{job.get('ArrayJobId')}_{job.get('ArrayTaskId')}"}
    by_number = not numbers.isdisjoint(record["jobs"])
    if not by_number and (record["script"] is None or job.get("Command", "") != record["script"]):
        return False
    if record["index"] is None or "ArrayTaskId" not in job:
        return True
    return record["index"] in _indices(job["ArrayTaskId"])


def _indices(text: str) -> set[int]:
    """``3``, or of tasks that wait, ``0-3%2`` and ``1,4-6``."""
    indices: set[int] = set()
    for part in text.partition("%")[0].split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (not high or high.isdigit()):
            indices |= set(range(int(low), int(high or low) + 1))
    return indices


def _epochs(run_dir: Path) -> list[str]:
    config = load(run_dir / files.CONFIG)
    rows = list(files.MetricsTail(run_dir).new_rows())
    lines = []
    if rows:
        last = rows[-1]
        text = f"epoch {last['epoch'] + 1} of {config.epochs}, loss {last['loss']:.4f}"
        scored = next((row for row in reversed(rows) if row.get("val_metric") is not None), None)
        if scored is not None:
            text += f", validation {scored['metric']} {show_score(scored['val_metric'], scored['metric'])}"
        usual = statistics.median(row["epoch_time_s"] for row in rows[-_RECENT:])
        lines.append(f"{text}, {usual:.3g} s an epoch, {(config.epochs - last['epoch'] - 1) * usual / 60:.1f} min left")
    else:
        lines.append(f"no epoch of {config.epochs} yet")
    summary = read_summary(run_dir)
    finished = summary is not None and summary.status == FINISHED
    if (
        finished
        and config.early_stopping is None
        and config.max_seconds is None
        and rows
        and rows[-1]["epoch"] + 1 < config.epochs
    ):
        lines.append("waits to be gone on with: it has more epochs now")
    elif finished:
        lines[-1] = lines[-1].rpartition(", ")[0]
        lines.append("finished")
    elif summary is not None:
        lines.append(f"{summary.status}: {(summary.error or '').partition(chr(10))[0]}")
    starts = read_job(run_dir)["starts"]
    if len(starts) > 1:
        lines.append(f"started {len(starts)} times, at epochs {', '.join(str(start['epoch']) for start in starts)}")
    return lines
