"""``sargnn`` called in the tests' own process, which costs no interpreter's start.

Its workers are processes as always. They come from the fork server that the tests' pools use too, so they start at once; what
is said of start-up, memory, signals or threads needs a launching process of its own (``tests.processes``).
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.command import call
from sargnn.cli import sweep
from sargnn.cli.main import main
from sargnn.run import env
from sargnn.run.env import worker_environment
from sargnn.tracking.summary import read_summary


def fork_server() -> ForkServerContext:
    """Started on first use."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sargnn.run.ignore_signals", "tests.preload"])
    with patch.dict(os.environ, worker_environment(threads=1)):
        forkserver.ensure_running()
    return context


@contextmanager
def kept_handlers() -> Iterator[None]:
    """What the block sets for these signals is undone at its end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sargnn_here(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``sargnn`` with these words in ``folder``, 80 columns wide, where each worker has a core: so it has a process, unless the
    words say otherwise. The environment is as before when it has ended."""
    return _here(folder, ["sargnn", *arguments], lambda: main(arguments))


def benchmark_here(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Likewise ``python -m benchmarks.NAME``."""
    verb = importlib.import_module(f"benchmarks.{name}").VERB
    return _here(folder, [*verb.command.split(), *arguments], lambda: call(verb, arguments))


def _here(folder: Path, command: Sequence[str], run: Callable[[], int]) -> subprocess.CompletedProcess[str]:
    fork_server()
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        kept_handlers(), patch.dict(os.environ, {"COLUMNS": "80"}), warnings.catch_warnings(),
        pytest.MonkeyPatch.context() as place, redirect_stdout(stdout), redirect_stderr(stderr),
    ):  # fmt: skip
        warnings.resetwarnings()
        warnings.simplefilter("ignore")  # of others' code; a command's user sees none of them
        warnings.filterwarnings("error", module="sargnn")
        place.chdir(folder)
        place.setattr(env, "usual_processes", lambda config: config.world)
        code = run()
    return subprocess.CompletedProcess(command, code, stdout.getvalue(), stderr.getvalue())


def points_here(place: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Let the points of a sweep that is started in ``folder`` run in this process, too; the labels of those that have run."""
    ran: list[str] = []

    def run(words: Sequence[str], label: str, run_dir: Path, environment: dict[str, str]) -> sweep.Outcome:
        ran.append(label)
        done = sargnn_here(folder, "train", *words, f"run_dir={run_dir}", "hydra.mode=RUN")
        summary = read_summary(folder / run_dir)
        if done.returncode:
            return sweep.Outcome(label, run_dir, "failed", summary, done.stderr.strip().splitlines()[0])
        return sweep.Outcome(label, run_dir, "finished", summary)

    place.setattr(sweep, "_run", run)
    return ran
