"""A sweep: one process per point, one after the other; a point that fails does not stop the others.

``sweeps/KEY/`` holds a folder per point, and is the same for the same points: a second start finds what is finished there.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sargnn.cli.compose import compose_verb, provisional
from sargnn.cli.conf import ConfFolders
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError, SargnnError, writing
from sargnn.run.check import check_network, check_strategies
from sargnn.run.processes import end_process
from sargnn.tracking.find_runs import write_points
from sargnn.tracking.progress import say
from sargnn.tracking.summary import Summary, read_summary

Point = tuple[str, ...]


@dataclass
class Outcome:
    """One point's end.

    Attributes:
        label: the overrides in which the points differ.
        status: ``finished``, ``skipped``, ``failed``, ``interrupted`` or ``not run``.
        error: its first line, if it failed.
    """

    label: str
    run_dir: Path
    status: str
    summary: Summary | None
    error: str = ""

    @property
    def is_done(self) -> bool:
        return self.status in ("finished", "skipped")


@dataclass(frozen=True)
class Plan:
    """A sweep that has not begun, or has partly run.

    Attributes:
        points: the overrides of each.
        labels: those in which it differs from others.
        done: point's number -> its folder, of those that are finished.
        skip: ``ask``, ``true`` or ``false``, for these.
    """

    points: list[Point]
    labels: list[str]
    folder: Path
    done: dict[int, Path]
    skip: str


def plan_sweep(points: Sequence[Point], folders: ConfFolders, check: Callable[[int], object] | None = None) -> Plan:
    """What would be run, every configuration checked; nothing is made.

    ``check`` is called with each point's number, and raises ``ConfigError`` for one that cannot run; None: as local workers run
    it. The error names the point; settings that a sweep cannot have raise it, too.
    """
    if (given := next((word for point in points for word in point if word.startswith("run_dir=")), None)) is not None:
        raise ConfigError("A sweep chooses its run folders itself.", given=given, hint="leave run_dir out")
    skip = next((word.partition("=")[2] for word in reversed(points[0]) if word.startswith("skip_finished=")), "ask")
    if skip not in ("ask", "true", "false"):
        raise ConfigError("'skip_finished' has a value that is not known.", given=skip, allowed="ask, true, false")
    points = [tuple(word for word in point if not word.startswith("skip_finished=")) for point in points]
    key = json.dumps([*points, *folders.arguments])
    folder = Path("sweeps") / hashlib.sha256(key.encode()).hexdigest()[:10]
    common = set(points[0]).intersection(*points) if len(points) > 1 else set()
    labels = [" ".join(word for word in point if word not in common) or "the only point" for point in points]
    for number, label in enumerate(labels):
        with naming_point(label):
            if check is not None:
                check(number)
            else:
                parse(provisional(compose_verb("train", points[number], folders=folders)))
    done = {number: run_dir for number in range(len(points)) if (run_dir := _finished(folder, number)) is not None}
    return Plan(points, labels, folder, done, skip)


def check_run(config: RunConfig) -> None:
    """What is checked of a configuration before anything long. Raises ``SargnnError``."""
    check_network(config.comm)
    config.dataset.check_files()
    check_strategies(config.stand_in)


def show_sweep(points: Sequence[Point], folders: ConfFolders) -> int:
    """Print a sweep's points, and which are finished or cannot run; exit code 1 if one cannot.

    Raises ``ConfigError`` for a point whose configuration is wrong.
    """
    plan = plan_sweep(points, folders)
    done = plan.done if plan.skip != "false" else {}
    there = f", {len(plan.done)} finished" if plan.done else ""
    print(f"sweep of {len(plan.points)} point{'s' * (len(plan.points) != 1)}{there}, in {plan.folder}")
    names = [done.get(number, free_folder(plan.folder, number)).name for number in range(len(plan.points))]
    width = max(map(len, names))
    failing = 0
    for number, (point, label, name) in enumerate(zip(plan.points, plan.labels, names, strict=True)):
        state = ""
        if number in done:
            state = "finished, would be skipped"
        else:
            try:
                check_run(parse(compose_verb("train", point, folders=folders)))
            except SargnnError as error:
                failing += 1
                state = f"cannot run: {str(error).splitlines()[0]}"
        print(f"  {name:<{width}}  {label}" + (f"\n  {'':<{width}}    {state}" if state else ""))
    left = len(plan.points) - len(done) - failing
    print(f"{left} would run; nothing was made or started: leave --dry-run out to start")
    return int(bool(failing))


def run_sweep(points: Sequence[Point], folders: ConfFolders) -> int:
    """Prints a table at the end. Exit code 1 if a point failed, 130 if it was interrupted."""
    from sargnn.tracking.tables import sweep_table

    plan = plan_sweep(points, folders)
    outcomes = run_points(plan, folders)
    failed = [outcome for outcome in outcomes if not outcome.is_done]
    sweep_table(outcomes)
    for outcome in failed:
        say(f"{outcome.status}: {outcome.label}: {outcome.error or 'the sweep was interrupted'}")
    if failed:
        say("start the same sweep again to run what is not finished")
    else:
        say(f"compare them: sargnn compare {plan.folder}/*/")
    return 130 if any(outcome.status == "interrupted" for outcome in outcomes) else int(bool(failed))


def note_points(plan: Plan) -> None:
    """Write down which points a sweep's folder has. Raises ``ConfigError``: it cannot be written."""
    with writing("The sweep's folder", plan.folder):
        write_points(plan.folder, plan.labels, plan.points)


def run_points(plan: Plan, folders: ConfFolders) -> list[Outcome]:
    """What each point came to, in order; those after an interrupt are not run. Finished ones may be skipped."""
    points, labels, folder, done = plan.points, plan.labels, plan.folder, plan.done
    skipped = set(done) if done and skips_finished(plan) else set()
    note_points(plan)
    say(f"sweep of {len(points)} points, in {folder}")
    parent: Any = None
    if len(skipped) < len(points):
        try:
            tracking = compose_verb("train", points[0], folders=folders)["tracking"]
            if tracking["enabled"] and tracking["name"] == "mlflow":
                from sargnn.tracking.mlflow.run import Parent
                from sargnn.tracking.mlflow.store import absolute

                tags = {"sweep": folder.name, "points": str(len(points))}
                parent = Parent(absolute(tracking["uri"]), tracking["experiment"], f"sweep-{folder.name}", tags)
        except SargnnError as error:
            say(f"warning: the sweep has no run of its own in MLflow: {error}")
    environment = dict(os.environ)
    if parent is not None:
        from sargnn.tracking.mlflow.run import PARENT

        environment[PARENT] = parent.run_id
    outcomes: list[Outcome] = []
    interrupted = False
    as_interrupts()
    for number, point in enumerate(points):
        if number in skipped:
            outcomes.append(Outcome(labels[number], done[number], "skipped", _summary(done[number])))
            continue
        run_dir = free_folder(folder, number)
        if interrupted:
            outcomes.append(Outcome(labels[number], run_dir, "not run", None))
            continue
        say(f"point {number + 1} of {len(points)}: {labels[number]}")
        outcome = _run([*folders.arguments, *point], labels[number], run_dir, environment)
        interrupted = outcome.status == "interrupted"
        outcomes.append(outcome)
    if parent is not None:
        tags = {f"points_{s}": str(sum(o.status == s for o in outcomes)) for s in ("finished", "skipped", "failed")}
        try:
            parent.finish(tags, failed=not all(ended.is_done for ended in outcomes))
        except Exception as error:  # tracking never decides how a sweep ends
            say(f"warning: MLflow did not take the sweep's end: {str(error).splitlines()[0]}")
    return outcomes


def _run(words: Sequence[str], label: str, run_dir: Path, environment: dict[str, str]) -> Outcome:
    # A point of an experiment that is a sweep is none itself.
    command = [sys.executable, "-m", "sargnn.cli.main", "train", *words, f"run_dir={run_dir}", "hydra.mode=RUN"]
    lines: list[str] = []
    # A session of its own: what ends the sweep is handed on once, by us.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line.rstrip())
                if line.startswith(("epoch", "training")):
                    print(f"  {line.rstrip()}", file=sys.stderr)
            code = process.wait()
        except KeyboardInterrupt:
            _end_point(process)
            return Outcome(label, run_dir, "interrupted", _summary(run_dir), "the sweep was interrupted")
    summary = _summary(run_dir)
    if code == 0 and summary is not None and summary.status == "finished":
        return Outcome(label, run_dir, "finished", summary)
    errors = [line.removeprefix("sargnn: ") for line in lines if line.startswith("sargnn: ")]
    return Outcome(label, run_dir, "failed", summary, errors[-1] if errors else f"exit code {code}")


def _end_point(process: subprocess.Popen[str], patience_s: float = 15) -> None:
    """Let a point end its workers, by force where it does not; nothing may interrupt this."""
    steps = [(signal.SIGINT, patience_s), (signal.SIGTERM, 5), (signal.SIGKILL, 5)]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; then the point ignores it, too
        steps = [(signal.SIGTERM, patience_s), (signal.SIGKILL, 5)]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_process(process, steps)


@contextmanager
def naming_point(label: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"A point of the sweep cannot run, so none was started: {label}\n  {error}") from error


def tried_folders(folder: Path, number: int) -> list[Path]:
    """The first try first."""
    return sorted(folder.glob(f"{number:03d}*"))


def _finished(folder: Path, number: int) -> Path | None:
    for path in tried_folders(folder, number):
        summary = _summary(path)
        if summary is not None and summary.status == "finished":
            return path
    return None


def free_folder(folder: Path, number: int) -> Path:
    taken = len(tried_folders(folder, number))
    return folder / (f"{number:03d}" if not taken else f"{number:03d}-{taken + 1}")


def _summary(run_dir: Path) -> Summary | None:
    try:
        return read_summary(run_dir)
    except SargnnError:
        return None  # damaged: the point runs again


def skips_finished(plan: Plan) -> bool:
    """Whether finished points are left out; asks where someone can answer, and leaves them out where nobody can."""
    finished = f"{len(plan.done)} of {len(plan.points)} points are finished already"
    if plan.skip == "ask" and sys.stdin.isatty():
        from sargnn.cli.stores import ask

        answer = ask(f"{finished}. Skip them? [Y/n] ")
        return answer.strip().lower() not in ("n", "no")
    if plan.skip == "ask":
        say(f"{finished} and are skipped; skip_finished=false runs them again")
    return plan.skip != "false"


def as_interrupts() -> None:
    """From now on SIGTERM and SIGHUP raise ``KeyboardInterrupt``, so that what was started is ended too.

    A signal that this process was started to ignore, as SIGHUP under nohup, stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
