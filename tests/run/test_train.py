"""``sargnn train`` as a person runs it: results, files, MLflow, failures, a new mode."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from sargnn.cli.conf import conf_dir
from sargnn.profile import BETWEEN_WAIT, CATEGORIES
from tests.in_process import sargnn_here
from tests.processes import ROOT, family, run_command, sargnn_command, search_path, started_command
from tests.run.runs import SMALL, summary_of

CONTRACT = (
    "status losses test_acc val_acc best_val_acc test_acc_at_best_val test_acc_smoothed val_acc_smoothed epoch_time_s "
    "evaluate_time_s startup_time_s partition_time_s compute_time_s comm_wait_time_s comm_bytes_per_epoch peak_rss_bytes "
    "peak_train_bytes peak_evaluate_bytes world mode model kernel dataset num_params edge_cut halo_rows config_hash "
    "dataset_hash partition_hash git_sha versions memory_bytes cpu cores"
).split()


def run(folder: Path, *arguments: str, path: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": search_path(path), "COLUMNS": "80"}
    return run_command(sargnn_command(*arguments), folder, environment=environment, timeout_s=timeout)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(folder, "train", "world=2", *SMALL)


def test_a_run_ends_with_a_table_and_commands_to_go_on_with(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = finished
    assert done.returncode == 0, done.stderr
    for words in ("test accuracy", "median epoch time", "bytes exchanged", "peak training memory"):
        assert words in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    said = re.findall(r"^epoch (\d)/4 ", done.stderr, re.M)  # stderr is no terminal: a line every few seconds
    assert (said[0], said[-1]) == ("1", "4")
    tail = done.stderr.split("worth trying next:")[1].strip().splitlines()
    commands = [line for line in tail if not line.lstrip().startswith("#")]
    assert ("world=4" in commands[0]) == (len(os.sched_getaffinity(0)) >= 4)
    verbs = [found[1] for one in commands if (found := re.search(r"sargnn (\w+)", one))]
    assert verbs == ["train", "train", "predict", "ui"]
    assert "edge cut" in done.stderr and "halo rows" in done.stderr and "balance" in done.stderr


def test_the_summary_keeps_the_contract(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    summary = summary_of(folder / "run")
    assert set(CONTRACT) <= set(summary)
    assert summary["status"] == "finished" and len(summary["losses"]) == 4
    assert (summary["world"], summary["mode"], summary["model"], summary["dataset"]) == (2, "sar", "sage", "synthetic")
    for name in ("peak_rss_bytes", "peak_train_bytes", "peak_evaluate_bytes", "halo_rows"):
        assert len(summary[name]) == 2 and all(value > 0 for value in summary[name])
    assert 0 <= summary["test_acc"] <= 1 and summary["epoch_time_s"] > 0
    # layers 2 and 3 send rows and gradients of 16 and 10; layer 1 sent its constant features once
    assert summary["comm_bytes_per_epoch"] == sum(summary["halo_rows"]) * 4 * (2 * 16 + 2 * 10)
    assert summary["cache_static"] is True and summary["kernel"] == "fused" and summary["profile_s"] is None
    assert all(private < 60e6 for private in summary["private_bytes_before_loading"])
    parts = summary["memory_bytes"]
    assert [sum(column) for column in zip(*parts.values(), strict=True)] == summary["peak_rss_bytes"]
    assert parts["training"] == summary["peak_train_bytes"] and sum(parts["features"]) == 600 * 64 * 4
    assert parts["parameters"] == [4 * summary["num_params"]] * 2 and min(parts["base"] + parts["graph"]) > 0


def test_the_run_folder_is_whole(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert [row["loss"] for row in rows] == summary_of(folder / "run")["losses"]
    assert [("val_acc" in row) for row in rows] == [False, True, False, True]
    for row in rows:
        assert max(row["ranks"]["comm_wait_time_s"]) == row["comm_wait_time_s"]
        assert sum(row["ranks"]["sent_bytes"]) == row["comm_bytes"]
        assert ("peak_evaluate_bytes" in row["ranks"]) == ("val_acc" in row)
    peaks = zip(*(row["ranks"]["peak_train_bytes"] for row in rows), strict=True)
    assert [max(peak) for peak in peaks] == summary_of(folder / "run")["peak_train_bytes"]
    assert yaml.safe_load((folder / "run" / "config.yaml").read_text())["world"] == 2
    assert {p.name for p in (folder / "run" / "logs").iterdir()} == {"rank_00.log", "rank_01.log"}


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_run(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sargnn")
    assert experiment is not None
    (tracked,) = client.search_runs([experiment.experiment_id])
    summary = summary_of(folder / "run")
    assert tracked.info.status == "FINISHED" and tracked.data.params["model.hidden"] == "16"
    assert [m.value for m in client.get_metric_history(tracked.info.run_id, "loss")] == summary["losses"]
    assert tracked.info.run_name == "run" and [one.dataset.name for one in tracked.inputs.dataset_inputs] == ["synthetic"]
    assert tracked.data.metrics["peak_mb"] == pytest.approx(max(summary["peak_train_bytes"]) / 1e6, rel=1e-3)
    assert tracked.data.metrics["epoch_s"] == pytest.approx(summary["epoch_time_s"], rel=1e-3)
    assert tracked.data.metrics["edge_cut"] == summary["edge_cut"]
    assert {f.path for f in client.list_artifacts(tracked.info.run_id)} >= {"config.yaml", "summary.json", "logs"}


def test_a_profile_accounts_for_the_time(tmp_path: Path) -> None:
    done = sargnn_here(tmp_path, "train", "world=2", "profile=true", "tracking=none", *SMALL)
    assert done.returncode == 0, done.stderr
    for category in (*CATEGORIES, "seconds waited", "rank 1"):
        assert category in done.stdout
    summary = summary_of(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for rank in range(2):
        trace = json.loads((tmp_path / "run" / "traces" / f"rank_{rank:02d}.json").read_text())
        spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        assert {e["name"] for e in spans} == set(CATEGORIES) - {BETWEEN_WAIT}
        assert all(e["dur"] >= 0 and e["pid"] == rank for e in spans)
        own = {name: seconds[rank] for name, seconds in summary["profile_s"].items()}
        assert all(seconds >= 0 for seconds in own.values()) and own[BETWEEN_WAIT] == 0
        trained = sum(seconds for name, seconds in own.items() if name != "evaluation")
        waits = summary["profile_wait_s"][rank]  # by peer; the one peer has all of the exchange's
        assert waits[rank] == 0 and 0 < waits[1 - rank] == pytest.approx(own["exchange wait"], rel=0.3, abs=3e-2)
        # the slowest rank's epochs, first left out, are no shorter than this rank's spans
        assert trained <= 1.01 * sum(row["epoch_time_s"] for row in rows[1:]) / 3


@pytest.mark.long
def test_thirty_two_workers(tmp_path: Path) -> None:
    """More workers than cores by far: they start, agree with one process, and share what they start with."""
    done = run(tmp_path, "train", "world=32", "tracking=none", *SMALL, "epochs=2")
    assert done.returncode == 0, done.stderr
    many = summary_of(tmp_path / "run")
    assert len(many["private_bytes_before_loading"]) == 32
    assert all(private < 60e6 for private in many["private_bytes_before_loading"])
    done = sargnn_here(tmp_path, "train", "world=1", "tracking=none", *SMALL, "run_dir=one", "epochs=2")
    assert done.returncode == 0, done.stderr
    for loss, wanted in zip(many["losses"], summary_of(tmp_path / "one")["losses"], strict=True):
        assert abs(loss - wanted) <= 1e-4 * wanted


@pytest.mark.parametrize("world", [1, 3])
def test_the_same_losses_on_other_worlds(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, world: int
) -> None:
    done = sargnn_here(tmp_path, "train", f"world={world}", "mode=domain_parallel", "tracking=none", *SMALL)
    assert done.returncode == 0, done.stderr
    want, found = summary_of(finished[0] / "run"), summary_of(tmp_path / "run")
    assert found["config_hash"] == want["config_hash"] and found["dataset_hash"] == want["dataset_hash"]
    for a, b in zip(found["losses"], want["losses"], strict=True):
        assert abs(a - b) <= 1e-4 * want["losses"][0]


def test_a_run_folder_is_not_overwritten(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = sargnn_here(finished[0], "train", "world=1", "tracking=none", *SMALL)
    assert done.returncode == 1 and "holds a run" in done.stderr and "Traceback" not in done.stderr


LONG = ["tracking=none", *SMALL, "epochs=100000", "eval_every=50"]


def _all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=5)
    return not alive


def _wait_for_epochs(launcher: subprocess.Popen[str], run_dir: Path, epochs: int) -> None:
    metrics, deadline = run_dir / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") >= epochs):
        assert time.monotonic() < deadline and launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)


def test_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    with started_command(sargnn_command("train", "world=4", *LONG), tmp_path) as launcher:
        _wait_for_epochs(launcher, tmp_path / "run", 4)
        log = (tmp_path / "run" / "logs" / "rank_02.log").read_text()
        found = re.search(r"process (\d+)", log)
        assert found is not None
        started = family()
        assert int(found.group(1)) in {process.pid for process in started}
        os.kill(int(found.group(1)), signal.SIGKILL)
        killed = time.monotonic()
        _, stderr = launcher.communicate(timeout=30)
        assert time.monotonic() - killed < 10
        assert launcher.returncode == 1
        assert "rank 2 was killed by SIGKILL" in stderr and "rank 2 of 4" in stderr and "Traceback" not in stderr
        assert _all_gone(started)
    summary = summary_of(tmp_path / "run")
    assert summary["status"] == "failed" and "rank 2" in summary["error"] and len(summary["losses"]) > 2


def test_a_raising_worker_is_named_with_its_last_lines(tmp_path: Path) -> None:
    assert sargnn_here(tmp_path, "train", "world=3", "tracking=none", *SMALL).returncode == 0
    shutil.rmtree(tmp_path / "run")
    (file,) = (tmp_path / "stores" / "partitions").glob("*/part_001/features_00.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    started = time.monotonic()
    done = sargnn_here(tmp_path, "train", "world=3", "tracking=none", *SMALL)
    assert done.returncode == 1 and time.monotonic() - started < 60  # comm.timeout_s is 300
    assert "rank 1 failed" in done.stderr and "part_001/features_00.npy" in done.stderr
    assert "checksum" in done.stderr and "Traceback" not in done.stderr


def test_an_infinite_loss_stops_before_the_step(tmp_path: Path) -> None:
    done = sargnn_here(tmp_path, "train", "world=2", "tracking=none", *SMALL, "optim.lr=1e30", "model.norm=none")
    assert done.returncode == 1 and "not finite" in done.stderr and "Traceback" not in done.stderr
    assert re.search(r"epoch \d", done.stderr) and "rank" in done.stderr


@pytest.mark.machine
def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    with started_command(sargnn_command("train", "world=2", *LONG), tmp_path) as launcher:
        _wait_for_epochs(launcher, tmp_path / "run", 1)
        started = family()
        launcher.send_signal(signal.SIGINT)
        _, stderr = launcher.communicate(timeout=30)
        assert launcher.returncode == 130 and "Interrupted by SIGINT" in stderr and "Traceback" not in stderr
        assert _all_gone(started)
    assert summary_of(tmp_path / "run")["status"] == "interrupted"


@pytest.mark.machine
def test_an_interrupt_that_was_ignored_from_the_start_stays_so(tmp_path: Path) -> None:
    """As for every Unix command in a shell's background or under nohup; SIGTERM ends the run there."""
    ignored = (signal.SIGINT, signal.SIGHUP)
    with started_command(sargnn_command("train", "world=2", *LONG), tmp_path, ignored=ignored) as launcher:
        _wait_for_epochs(launcher, tmp_path / "run", 1)
        started = family()
        for number in ignored:
            launcher.send_signal(number)
        epochs = (tmp_path / "run" / "metrics.jsonl").read_text().count("\n")
        _wait_for_epochs(launcher, tmp_path / "run", epochs + 20)
        launcher.send_signal(signal.SIGTERM)
        _, stderr = launcher.communicate(timeout=30)
        assert launcher.returncode == 143 and "Interrupted by SIGTERM" in stderr and "Traceback" not in stderr
        assert _all_gone(started)
    assert summary_of(tmp_path / "run")["status"] == "interrupted"


MODE = '''
"""As sar, the remote shards in one go at the end of a list: a toy."""

from sargnn.engine.modes.sar import Sar


class Patient(Sar):
    """Collects all rows first, then folds them."""

    name = "patient"

    def forward(self, call, exchanged, dest_local, params):
        fold, reducer = call.fold, call.reducer
        state = reducer.init(fold, exchanged, dest_local, params)
        for piece, rows in list(call.exchange.rows(call.plan.lists, exchanged, keep=True)):
            reducer.step(fold, call.plan.shards[piece], rows, dest_local, params, state)
        return *reducer.finish(fold, dest_local, params, state), {}
'''


@pytest.mark.long
def test_a_new_mode_is_one_file_one_yaml_and_one_line(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "sargnn", tmp_path / "sargnn", ignore=shutil.ignore_patterns("__pycache__", "conf"))
    shutil.copytree(conf_dir(), tmp_path / "conf")
    (tmp_path / "sargnn" / "engine" / "modes" / "patient.py").write_text(MODE)
    (tmp_path / "conf" / "mode" / "patient.yaml").write_text("name: patient\n")
    table = tmp_path / "sargnn" / "engine" / "modes" / "__init__.py"
    line = '    "patient": "sargnn.engine.modes.patient:Patient",\n}'
    table.write_text(table.read_text().replace("\n}", f"\n{line}"))
    done = run(tmp_path, "train", "mode=patient", "world=2", "tracking=none", *SMALL, path=tmp_path)
    assert done.returncode == 0, done.stderr
    patient, sar = summary_of(tmp_path / "run"), summary_of(finished[0] / "run")
    assert patient["mode"] == "patient" and patient["comm_bytes_per_epoch"] == sar["comm_bytes_per_epoch"]
    assert patient["losses"] == sar["losses"]


@pytest.mark.long
def test_the_curve_on_cora_is_the_same_in_the_launched_run(cora: Path, tmp_path: Path) -> None:
    common = ["dataset=ogb_dir", f"dataset.root={cora}", "dataset.add_inverse_edges=false", "experiment=cora_sage"]
    for world, mode in ((4, "sar"), (1, "domain_parallel")):
        chosen = [f"world={world}", f"mode={mode}", "tracking=none", "epochs=12", f"run_dir=run{world}"]
        done = sargnn_here(tmp_path, "train", *common, *chosen)
        assert done.returncode == 0, done.stderr
    one, four = summary_of(tmp_path / "run1"), summary_of(tmp_path / "run4")
    for a, b in zip(one["losses"], four["losses"], strict=True):
        assert abs(a - b) <= 1e-4 * one["losses"][0]


def _typed_run(folder: Path, mode: str) -> dict[str, Any]:
    small = ["dataset.scale=0.002", "model.hidden=16", "epochs=4", "eval_every=4", f"run_dir={mode}", "tracking=none"]
    done = sargnn_here(folder, "train", "experiment=mag_like_rgcn", f"mode={mode}", *small)
    assert done.returncode == 0, done.stderr
    assert "paper: 1473 nodes, 128 features" in done.stderr
    summary = summary_of(folder / mode)
    assert summary["dataset"] == "mag_like" and summary["model"] == "rgcn" and summary["world"] == 4
    assert len(summary["sharded_params"]) == 4 and min(summary["sharded_params"]) > 0
    return summary


@pytest.mark.parametrize("modes", [["sar"], pytest.param(["sar", "no_remat", "one_shot"], marks=pytest.mark.long)])
def test_the_typed_experiment_trains_in_every_mode(tmp_path: Path, modes: list[str]) -> None:
    """On four workers; the same curve in each mode."""
    wanted = _typed_run(tmp_path, "domain_parallel")["losses"]
    for mode in modes:
        losses = _typed_run(tmp_path, mode)["losses"]
        assert max(abs(a - b) for a, b in zip(losses, wanted, strict=True)) <= 1e-4 * wanted[0], mode


def test_a_homogenised_graph_trains_a_homogeneous_model(tmp_path: Path) -> None:
    small = ["dataset.scale=0.002", "dataset.homogenize=true", "model.hidden=16", "epochs=2", "world=2", "tracking=none"]
    done = sargnn_here(tmp_path, "train", "dataset=mag_like", "model=sage", "run_dir=run", *small)
    assert done.returncode == 0, done.stderr
    assert summary_of(tmp_path / "run")["sharded_params"] == [0, 0]
