"""sargnn from Python: what is refused at once, what is made once, and what a script leaves behind."""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import sargnn
from sargnn.api import process
from sargnn.api.run import as_words
from sargnn.config.run import save
from sargnn.errors import ConfigError, WorkerError
from sargnn.graph.store import StoreWriter
from sargnn.training import checkpoint
from tests.configs import config
from tests.processes import ROOT, started_command

GRAPH: dict[str, Any] = {
    "edge_index": np.random.default_rng(0).integers(0, 200, (2, 1500)),
    "x": np.random.default_rng(1).normal(size=(200, 5)).astype(np.float32),
    "y": np.arange(200) % 3,
    "train_mask": np.arange(200) < 120,
    "test_mask": np.arange(200) >= 160,
}


def test_settings_as_words() -> None:
    words = as_words(
        ("model=gat",),
        {
            "world": 4, "graphless": True, "resume": None, "optim": {"lr": 1e-3, "schedule": "step"}, "run_dir": Path("a b'c"),
            "dataset": {"split": [0.5, 0.25, 0.25]}, "seed": np.int64(3),
        },
    )  # fmt: skip
    assert words == [
        "model=gat", "world=4", "graphless=true", "resume=null", "optim.lr=0.001", "optim.schedule=step", r"run_dir='a b\'c'",
        "dataset.split=[0.5,0.25,0.25]", "seed=3",
    ]  # fmt: skip


class MeanPool:
    def __call__(self) -> None: ...


def inner() -> type:
    class Inner: ...

    return Inner


def test_a_class_of_modules_as_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_words(("epochs=2",), {"model": MeanPool, "world": 2}) == [
        "epochs=2", "model=custom", f"model.target='{__file__}:MeanPool'", "world=2"
    ]  # fmt: skip
    monkeypatch.setattr(MeanPool, "__module__", "__main__")
    with pytest.raises(ConfigError, match="defined where"):
        as_words((), {"model": MeanPool})
    package = tmp_path / "some_nets"
    package.mkdir()
    (package / "one.py").write_text("from . import __path__ as path\n\n\nclass One: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    one = importlib.import_module("some_nets.one").One
    assert as_words((), {"model": one}) == ["model=custom", "model.target='some_nets.one:One'"]


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]] = {
    "a graph and a dataset": (("dataset=synthetic",), {"graph": GRAPH}, ("graph", "dataset=synthetic")),
    "a graph in a text's place": ((GRAPH,), {}, ("override", "dict", "graph=...")),
    "no setting": ((), {"wrold": 4}, ("There is no setting 'wrold'", "world")),
    "no value": ((), {"world": object()}, ("'world'", "no setting can")),
    "a model that is made": ((), {"model": MeanPool()}, ("made already", "a MeanPool", "model=MeanPool")),
    "a model inside a function": ((), {"model": inner()}, ("by a name", "inner.<locals>.Inner")),
    "no model": (("model=gatt",), {}, ("'model' has no option 'gatt'", "gat")),
    "a sweep": (("model=gat,sage",), {}, ("several values",)),
    "an experiment that is one": (("experiment=modes_sweep",), {}, ("is a sweep", "loop")),
    "no graph": ((), {"graph": 7}, ("no graph", "int", "DGLGraph")),
    "a graph that is wrong": ((), {"graph": {**GRAPH, "y": None}}, ("no labels",)),
    "a graph that was not returned": ((), {"graph": None}, ("graph= is None", "return graph")),
    "a folder": ((), {"graph": "here"}, ("no graph", "dataset=arrays")),
    "a function": ((), {"graph": as_words}, ("no graph", "call it: as_words()")),
    "a graph for a run that is there": ((), {"graph": GRAPH, "resume": "x"}, ("has its graph", "leave graph= out")),
    "no run": ((), {"resume": "nowhere"}, ("no such run", "nowhere")),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words, settings, wanted = WRONG[case]
    with pytest.raises(sargnn.SargnnError) as caught:
        sargnn.train(*words, **settings)
    assert all(text in str(caught.value) for text in wanted), str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_one_of_several_ranks_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="sargnn.shard"):
        sargnn.train("model=sage")


def test_runs_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such run"):
        sargnn.load(tmp_path)
    with pytest.raises(ConfigError, match="compare"):
        sargnn.compare([])


def test_predictions_are_made_anew_after_another_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once for each; the launching process is played."""
    save(config(), tmp_path / "config.yaml")

    def predict(request: dict[str, Any], *, quiet: bool) -> None:
        folder, (newest, _) = Path(request["folder"]), checkpoint.newest(tmp_path)
        assert newest is not None
        folder.mkdir(exist_ok=True)
        save(config(), folder / "config.yaml")
        store = checkpoint.open_checkpoint(newest, verify=False)
        np.save(folder / "predictions.npy", store.array("param/w"))
        made = {"checkpoint": store.content_hash, "files": ["predictions.npy"]}
        (folder / "predictions.json").write_text(json.dumps(made))
        asked.append(newest.name)

    asked: list[str] = []
    monkeypatch.setattr("sargnn.api.run.ask", predict)
    run = sargnn.load(tmp_path)
    for epoch in (1, 2):
        with StoreWriter(checkpoint.path_of(tmp_path, epoch), "checkpoint", checkpoint.FORMAT_VERSION) as writer:
            writer.put("param/w", np.full(3, epoch))
        for _ in range(2):
            assert run.predictions().tolist() == [epoch] * 3
    assert asked == ["epoch_000001", "epoch_000002"]


def answering(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None, code: int = 0) -> None:
    """The launching process is played: it gives this answer."""

    def run(command: list[str], shown: Any, listen: Any) -> tuple[int, bool]:
        if answer is not None:
            Path(command[-1]).write_text(json.dumps(answer))
        return code, code == -2

    monkeypatch.setattr(process, "_run", run)


def test_what_went_wrong_there_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"error": "WorkerError", "text": "Worker rank 1 failed.", "signal": None})
    with pytest.raises(WorkerError, match="Worker rank 1 failed."):
        process.ask({}, quiet=True)
    answering(monkeypatch, {"error": "Interrupted", "text": "Interrupted by SIGINT.", "signal": 2})
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        process.ask({}, quiet=True)
    answering(monkeypatch, None, code=-9)
    with pytest.raises(sargnn.SargnnError, match="without an answer"):
        process.ask({}, quiet=True)
    answering(monkeypatch, None, code=-2)
    with pytest.raises(KeyboardInterrupt, match="had begun"):
        process.ask({}, quiet=True)


def test_an_epoch_takes_the_place_of_the_one_before_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["training\n", "epoch 1/2  loss 3\n", "epoch 2/2  loss 2\n", "done\n"]
    for notebook, wanted in ((False, "".join(lines)), (True, "training\nepoch 1/2  loss 3\repoch 2/2  loss 2\ndone\n")):
        monkeypatch.setattr(process, "in_notebook", lambda notebook=notebook: notebook)
        shown, over = io.StringIO(), False
        for line in lines:
            over = process.show_line(line, shown, over)
        assert shown.getvalue() == wanted


def test_a_notebooks_process_is_no_terminal() -> None:
    """Although its environment says so."""
    given = {"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1", "RANK": "3", "HOME": "/home"}
    assert set(process.environment(given, directly=False)) == {"HOME", "PYTHONPATH", "PYTHONUNBUFFERED"}
    assert "FORCE_COLOR" in process.environment(given, directly=True)


def test_importing_loads_nothing_heavy() -> None:
    """Also not what the first look at a name loads."""
    heavy = ("torch", "pandas", "hydra", "numpy")
    code = f"import sys, sargnn; sargnn.__version__; print([one for one in {heavy} if one in sys.modules])"
    with started_command([sys.executable, "-c", code], ROOT) as child:
        assert child.communicate()[0].strip() == "[]"


ENDLESS = """
import threading, sargnn
def train():
    settings = {"world": 2, "epochs": 100000, "eval_every": 100000, "run_dir": "run"}
    sargnn.train("model=sage", "tracking=none", "checkpoint.every=null", **settings)
"""


def epochs(folder: Path) -> int:
    path = folder / "run" / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_epochs(folder: Path, child: Any) -> None:
    deadline = time.monotonic() + 120
    while epochs(folder) < 2:
        assert child.poll() is None and time.monotonic() < deadline, child.communicate()
        time.sleep(0.1)


def started_by(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.machine
def test_an_interrupt_from_standard_input(tmp_path: Path) -> None:
    """Code without a file and without a guard; the interrupt leaves a checkpoint, and nothing running."""
    script = (
        ENDLESS
        + """
try:
    train()
except KeyboardInterrupt as error:
    print("caught", sargnn.load("run").summary["status"], "resume=" in str(error))
"""
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", f"exec {sys.executable} - <<'EOF'\n{script}\nEOF"]
    with started_command(command, tmp_path, environment=environment) as child:
        wait_for_epochs(tmp_path, child)
        others = started_by(child.pid)
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=60)
        assert stdout.strip() == "caught interrupted True", stderr
        assert len(others) >= 4 and not psutil.wait_procs(others, timeout=10)[1]
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.machine
def test_a_killed_script_leaves_nothing_running(tmp_path: Path) -> None:
    """Which trained in a thread; its run ends as if it were asked to, with a checkpoint."""
    (tmp_path / "script.py").write_text(ENDLESS + "threading.Thread(target=train).start()\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with started_command([sys.executable, "script.py"], tmp_path, environment=environment) as child:
        wait_for_epochs(tmp_path, child)
        others = started_by(child.pid)
        child.kill()
        child.wait()
        assert len(others) >= 4 and not psutil.wait_procs(others, timeout=30)[1]
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert sargnn.load(tmp_path / "run").summary["status"] == "interrupted"
