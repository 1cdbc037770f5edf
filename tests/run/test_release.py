"""Whatever happens between the first worker's start and the last one's end: no worker, lock, thread or handler is left."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse
from sargnn.errors import ConfigError
from sargnn.run import local
from sargnn.run.local import Interrupted, train
from sargnn.run.processes import Workers, WorkerSettings
from sargnn.run.run_folder import hold_run_dir
from sargnn.tracking.summary import FAILED, FINISHED, INTERRUPTED, Summary, read_summary
from tests.in_process import fork_server, kept_handlers
from tests.in_process import sargnn_here as run

SETTINGS = WorkerSettings(world=3, port=None, interface=None, timeout_s=60.0)
TINY = ["dataset.num_nodes=300", "model.hidden=8", "epochs=2", "world=2", "threads=1", "tracking=none"]
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def _sleep(config_path: str) -> None:
    time.sleep(60)


def _quick(config_path: str) -> None:
    Path(config_path).with_name(f"rank_{os.environ['RANK']}").touch()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ForkServerProcess]:
    """The workers that a test starts, and handlers that must be in place again afterwards."""
    fork_server()
    found: list[ForkServerProcess] = []
    start = ForkServerProcess.start

    def noted(process: ForkServerProcess) -> None:
        start(process)
        found.append(process)

    monkeypatch.setattr(ForkServerProcess, "start", noted)
    return found


def before_worker(count: int, what: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something just before the worker ``count`` starts."""
    start, calls = ForkServerProcess.start, [0]

    def disturbed(process: ForkServerProcess) -> None:
        calls[0] += 1
        if calls[0] == count:
            what()
        start(process)

    monkeypatch.setattr(ForkServerProcess, "start", disturbed)


def gone(processes: list[ForkServerProcess]) -> bool:
    return all(not psutil.pid_exists(one.pid) for one in processes if one.pid is not None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_workers_start_ends_them_at_once(
    started: list[ForkServerProcess], monkeypatch: pytest.MonkeyPatch, number: signal.Signals, tmp_path: Path
) -> None:
    before_worker(2, lambda: signal.raise_signal(number), monkeypatch)
    with kept_handlers():
        before = [signal.getsignal(one) for one in HEARD]
        workers = Workers(_sleep, str(tmp_path / "config.yaml"), SETTINGS)
        begun = time.monotonic()
        assert workers.watch() is None and workers.asked == number
        assert time.monotonic() - begun < 5  # grace_s is 12
        assert [signal.getsignal(one) for one in HEARD] == before
    assert len(started) == 2 and gone(started)  # the third was not started any more


def _until_asked(config_path: str) -> None:
    """As one that trains: at a signal it writes something, and ends."""
    file = Path(config_path).with_name(f"rank_{os.environ['RANK']}")

    def write(number: int, frame: object) -> None:
        file.write_text("asked")
        os._exit(0)

    signal.signal(signal.SIGTERM, write)
    file.touch()
    time.sleep(60)


def test_who_trains_by_then_is_asked_though_the_signal_came_before_it_was_watched(
    started: list[ForkServerProcess], tmp_path: Path
) -> None:
    with kept_handlers():
        workers = Workers(_until_asked, str(tmp_path / "config.yaml"), SETTINGS)
        files = [tmp_path / f"rank_{rank}" for rank in range(SETTINGS.world)]
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        assert workers.watch() is None and workers.asked == signal.SIGTERM
    assert [file.read_text() for file in files] == ["asked"] * 3 and gone(started)


def test_who_only_starts_is_ended_though_it_misses_the_first_signal(started: list[ForkServerProcess], tmp_path: Path) -> None:
    with kept_handlers():
        workers = Workers(_sleep, str(tmp_path / "config.yaml"), SETTINGS)
        signal.raise_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert workers.watch() is None and workers.asked == signal.SIGTERM
        assert time.monotonic() - begun < 5  # grace_s is 12
    assert gone(started)


def test_a_start_that_fails_half_way_leaves_nothing(
    started: list[ForkServerProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise OSError(11, "no more processes")

    before_worker(3, fail, monkeypatch)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    before = [signal.getsignal(one) for one in HEARD]
    with pytest.raises(OSError, match="no more processes"):
        Workers(_sleep, str(tmp_path / "config.yaml"), WorkerSettings(3, port, None, 60.0))
    assert len(started) == 2 and gone(started)
    assert [signal.getsignal(one) for one in HEARD] == before
    with socket.socket() as probe, pytest.raises(OSError, match="refused"):
        probe.connect(("127.0.0.1", port))


def in_thread(what: Callable[[], Any]) -> Any:
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(what())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    return answers[0]


def test_workers_are_watched_outside_the_main_thread(started: list[ForkServerProcess], tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in HEARD]
    assert in_thread(lambda: Workers(_quick, str(tmp_path / "config.yaml"), SETTINGS).watch()) is None
    assert [signal.getsignal(one) for one in HEARD] == before
    assert len(list(tmp_path.glob("rank_*"))) == 3 and gone(started)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stores, and a run."""
    folder = tmp_path_factory.mktemp("release")
    assert run(folder, "train", *TINY, "run_dir=run").returncode == 0
    return folder


def config_of(*words: str) -> RunConfig:
    return parse(compose_verb("train", [*TINY, *words]))


@pytest.mark.parametrize("where", ["target_of", "run_and_restart", "report_end"])
@pytest.mark.parametrize("error", [RuntimeError("out of the blue"), KeyboardInterrupt()], ids=["unexpected", "interrupt"])
def test_a_run_lets_go_of_everything(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException
) -> None:
    monkeypatch.chdir(folder)
    sent: list[str] = []

    class Recorded:
        """In place of the run in MLflow."""

        def __init__(self, target: object) -> None:
            pass

        def log_epochs(self, rows: object) -> None:
            pass

        def finish(self, summary: Summary) -> None:
            sent.append(summary.status)

    def fail(*arguments: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr("sargnn.tracking.mlflow.run.MlflowRun", Recorded)
    monkeypatch.setattr(local, where, fail)
    interrupted = isinstance(error, KeyboardInterrupt) and where != "report_end"
    with pytest.raises(Interrupted if interrupted else type(error)), patch.dict(os.environ):
        train(config_of(f"run_dir={tmp_path / 'run'}", "tracking.enabled=true"))
    hold_run_dir(tmp_path / "run").release()
    assert sent == ([] if where == "target_of" else [INTERRUPTED] if interrupted else [FAILED])
    assert not {"follower", "mlflow"} & {thread.name for thread in threading.enumerate()}
    if where != "report_end":
        summary = read_summary(tmp_path / "run")
        assert summary is not None and summary.status == (INTERRUPTED if interrupted else FAILED)
        assert summary.error is not None and ("out of the blue" in summary.error or interrupted)


def test_a_run_that_cannot_begin_lets_go_of_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    def fail(*arguments: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "begin_run", fail)
    with pytest.raises(KeyboardInterrupt), patch.dict(os.environ):
        train(config_of("run_dir=unbegun"))
    hold_run_dir(folder / "unbegun").release()


def test_a_run_outside_the_main_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with patch.dict(os.environ):
        summary, run_dir = in_thread(lambda: train(config_of("run_dir=threaded")))
    assert summary.status == FINISHED and summary == read_summary(run_dir)


def test_predictions_hold_their_folder(folder: Path) -> None:
    out = folder / "run" / "predictions"
    out.mkdir()
    held = hold_run_dir(out)
    done = run(folder, "predict", "run=run")
    assert done.returncode == 1 and "writing predictions" in done.stderr and str(out) in done.stderr
    assert [path.name for path in out.iterdir()] == [".lock"]
    held.release()
    for stale in ("first", "second"):
        done = run(folder, "predict", "run=run")
        assert done.returncode == 0, done.stderr
        assert {"logits.npy", "predictions.json"} <= {path.name for path in out.iterdir()}
        assert stale == "first" or not (out / "stale" / "file").exists()
        (out / "stale").mkdir()
        (out / "stale" / "file").touch()
    lock = hold_run_dir(out)
    with pytest.raises(ConfigError):
        hold_run_dir(out)
    lock.release()
    done = run(folder, "predict", "run=run", "out=run")
    assert done.returncode == 1 and "holds something else" in done.stderr and (folder / "run" / "summary.json").exists()
