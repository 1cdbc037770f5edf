"""Verbs beside train, as a person uses them."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Sargnn, run, started
from tests.in_process import sargnn_here

TINY = ["debug=tiny"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("one", ["mode=sar"]), ("two", ["mode=one_shot", "world=3"])):
        done = sargnn_here(folder, "train", *TINY, f"run_name={name}", *more)
        assert done.returncode == 0, done.stderr
    return folder


def test_prepare_and_partition(sargnn: Sargnn, tmp_path: Path) -> None:
    done = sargnn("prepare", "dataset.num_nodes=300")
    store = Path(done.stdout.strip())
    assert done.returncode == 0 and (tmp_path / store / "manifest.json").exists() and "300 nodes" in done.stderr
    done = sargnn("partition", "dataset.num_nodes=300", "world=3")
    assert done.returncode == 0 and "edge cut" in done.stderr and "w3" in done.stdout
    done = sargnn("info")
    assert "datasets/" in done.stdout and "partitions/" in done.stdout and "can run" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    done = sargnn("clean")
    assert done.returncode == 1 and "yes=true" in done.stderr and list((tmp_path / "stores" / "datasets").iterdir())
    done = sargnn("clean", "what=partitions", "yes=true")
    assert done.returncode == 0 and not list((tmp_path / "stores" / "partitions").iterdir())
    assert list((tmp_path / "stores" / "datasets").iterdir())


def test_compare(sargnn: Sargnn, runs: Path) -> None:
    done = sargnn("compare", folder=runs)
    assert done.returncode == 0, done.stderr
    assert "one" in done.stdout and "two" in done.stdout and "*" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for name in ("memory", "epoch_time", "loss", "accuracy"):
        assert (runs / "compare" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_track_sends_once(sargnn: Sargnn, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs" / "one", tmp_path / "one")
    uri = f"sqlite:///{tmp_path / 'late.db'}"
    done = sargnn_here(tmp_path, "track", "one", f"tracking.uri={uri}")
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "late.db") as database:
        losses = database.execute("select value from metrics where key = 'loss' order by step").fetchall()
        params = dict(database.execute("select key, value from params").fetchall())
    assert [loss for (loss,) in losses] == json.loads((tmp_path / "one" / "summary.json").read_text())["losses"]
    assert params["mode.name"] == "sar" and "partition.edge_cut" in params
    done = sargnn_here(tmp_path, "track", "one", f"tracking.uri={uri}")
    assert done.returncode == 1 and "sent already" in done.stderr
    done = sargnn("track", "nowhere")
    assert done.returncode == 1 and "no such run" in done.stderr


@pytest.mark.long
def test_training_does_not_wait_for_a_dead_server(tmp_path: Path) -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # bound, but nobody listens
        uri = f"http://127.0.0.1:{dead.getsockname()[1]}"
        done = run(tmp_path, "train", *TINY, "tracking=mlflow", f"tracking.uri={uri}", "run_dir=run")
    assert done.returncode == 0 and "warning" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    done = run(tmp_path, "track", "run", f"tracking.uri=sqlite:///{tmp_path / 'late.db'}")
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_training_does_not_wait_for_a_silent_server(tmp_path: Path) -> None:
    """It takes the connection and never answers: training goes on, and its end waits for a while only."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        done = run(tmp_path, "train", *TINY, "tracking=mlflow", f"tracking.uri={uri}", "run_dir=run")
        assert time.monotonic() - started < 90
    assert done.returncode == 0 and "sargnn track" in done.stderr and "Traceback" not in done.stderr, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and max(row["epoch_time_s"] for row in rows) < 10


@pytest.mark.long
def test_two_first_runs_at_once(tmp_path: Path) -> None:
    """Neither the stores nor MLflow's database suffer."""
    arguments = [*TINY, "tracking=mlflow", f"tracking.uri=sqlite:///{tmp_path / 'mlflow.db'}"]
    with ExitStack() as both:
        processes = [both.enter_context(started(tmp_path, "train", *arguments, f"run_dir=run{k}")) for k in range(2)]
        for process in processes:
            _, stderr = process.communicate(timeout=120)
            assert process.returncode == 0 and "warning" not in stderr, stderr
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        (count,) = database.execute("select count(*) from runs where status = 'FINISHED'").fetchone()
    assert count == 2


@pytest.mark.long
def test_a_sweep(tmp_path: Path) -> None:
    """A failed point stops no other; a second start runs what is not finished; MLflow has parent and children."""
    arguments = ["-m", *TINY, "tracking=mlflow", "kernel=fused", "mode=domain_parallel,sar"]
    done = sargnn_here(tmp_path, "train", *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.count("finished") == 1 and done.stdout.count("failed") == 1
    assert "failed: mode=domain_parallel: No kernel can serve" in done.stderr
    (folder,) = (tmp_path / "sweeps").iterdir()
    assert yaml.safe_load((folder / "001" / "config.yaml").read_text())["mode"]["name"] == "sar"
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        parents = database.execute("select run_uuid from tags where key = 'points'").fetchall()
        children = database.execute("select value from tags where key = 'mlflow.parentRunId'").fetchall()
        names = database.execute("select name from runs where name not like 'sweep-%'").fetchall()
    assert len(parents) == 1 and children == parents and names == [("mode=sar",)]
    done = sargnn_here(tmp_path, "train", *arguments)
    assert done.stdout.count("skipped") == 1 and done.stdout.count("failed") == 1 and "skip_finished=false" in done.stderr
    assert (folder / "001").is_dir() and not (folder / "001-2").exists()


@pytest.mark.long
def test_an_experiment_may_be_a_sweep(tmp_path: Path) -> None:
    from sargnn.cli.compose import sweep_points

    points = sweep_points("train", ["experiment=scaling_sweep"], multirun=False)
    assert points is not None and len(points) == 8
    assert points[0] == ("experiment=scaling_sweep", "mode=sar", "world=1")
    points = sweep_points("train", ["experiment=modes_sweep", "model=gcn"], multirun=False)
    assert points is not None and len(points) == 4  # what is given is not swept
    assert sweep_points("train", ["world=2"], multirun=False) is None
    done = sargnn_here(tmp_path, "train", "experiment=scaling_sweep", *TINY, "world=2", "mode=sar", "epochs=1")
    assert done.returncode == 0 and done.stdout.count("finished") == 1, done.stdout + done.stderr


@pytest.mark.long
def test_ui(sargnn: Sargnn, tmp_path: Path) -> None:
    done = sargnn("ui")
    assert done.returncode == 1 and "no MLflow store" in done.stderr
    done = sargnn_here(tmp_path, "train", *TINY, "tracking=mlflow")
    assert done.returncode == 0, done.stderr
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        port = busy.getsockname()[1]
        busy.listen()
        done = sargnn("ui", f"port={port}")
        assert done.returncode == 1 and f"given:   {port}" in done.stderr
    with started(tmp_path, "ui", f"port={port}") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert f"http://127.0.0.1:{port}/#/experiments/1/runs?viewStateShareKey=sargnn" in lines[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        time.sleep(0.5)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0  # nothing is left
