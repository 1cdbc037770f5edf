"""A run's job, from squeue and scontrol, and how far it is, from the run folder."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

from sargnn.config.run import load
from sargnn.errors import ConfigError
from sargnn.run.job_files import read_job
from sargnn.tracking import files
from sargnn.tracking.scores import show_score
from sargnn.tracking.summary import FINISHED, read_summary

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
