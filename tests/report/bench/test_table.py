"""``sargnn bench table`` on a small graph: rows, ratios, and going on where it was interrupted; its timings are no test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from sargnn.cli.bench import run_of
from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import built_in_folder
from sargnn.config.run import parse
from sargnn.report.bench import measure
from sargnn.report.bench.entries import Case, Entry, entries_of
from sargnn.report.bench.settings import BenchTableConfig
from sargnn.report.bench.table import Found, markdown
from tests.in_process import sargnn_here as run
from tests.parity import cases
from tests.processes import ROOT, sargnn_command

TINY = ["dataset.scale=0.001", "model.hidden=8", "epochs=3", "rounds=1", "limits=false", "worlds=[2]", "modes=[sar]"]
OTHER = """
import json, sys, pathlib, yaml
config, store = map(pathlib.Path, sys.argv[1:])
assert yaml.safe_load(config.read_text())["model"]["name"] == "sage" and (store / "manifest.json").exists()
print("loading")
print(json.dumps({"times_s": [9, 1, 2], "peak_train_bytes": [5000000, 6000000]}))
"""


def test_one_process_is_for_modes_that_are_measured(tmp_path: Path) -> None:
    done = run(tmp_path, "bench", "table", *TINY, "models=[sage]", "one_process=[one_shot]")
    assert done.returncode == 1 and "one_process" in done.stderr and "allowed: sar" in " ".join(done.stderr.split())
    config = parse(compose_verb("train", ["world=4", "model=sage"]))
    table = BenchTableConfig(
        cases={}, models=["sage"], modes=["sar"], worlds=[1, 4], rounds=1, stock=False, not_static=[], one_process=["sar"],
        limits=False, others={}, bench_dir="bench", precisions=["bf16"],
    )  # fmt: skip
    entries = [entry for entry, _ in entries_of(Case("sage", config), table) if "one process" in entry.name]
    assert {entry.name for entry in entries} == {"sar, world 4, one process", "sar, world 4, bf16, one process"}
    assert all(entry.config.processes == 1 and entry.config.threads is None for entry in entries)


def test_a_case_keeps_its_pairs_on_another_graph() -> None:
    """What a case says of its own dataset goes with that, what it says of any does not."""
    links, typed = ["task=links", "dataset.link_split=[0.5,0.2,0.2]"], ["model=rgcn", "dataset=mag_like", "dataset.scale=0.1"]
    of_links = run_of("bench_table", "links", links, ["dataset=synthetic"], built_in_folder())
    assert of_links.dataset.link_split == [0.5, 0.2, 0.2] and of_links.dataset.name == "synthetic"
    assert run_of("bench_table", "rgcn", typed, ["dataset=synthetic"], built_in_folder()).dataset.name == "synthetic"


def rows_of(folder: Path, case: str) -> dict[str, dict[str, Any]]:
    found = json.loads((folder / "bench" / "table.json").read_text())["cases"][case]
    return {row["name"]: row for row in found["rows"]}


def measured(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in (folder / "bench" / "runs").glob("*/*.json")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of GraphSage, with everything on."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "other.py").write_text(OTHER)
    words = [word for word in TINY if not word.startswith(("limits", "modes"))]
    words += ["models=[sage]", "modes=[sar,domain_parallel]", f"+others.mine='{sys.executable} {folder / 'other.py'}'"]
    done = run(folder, "bench", "table", *words)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80 and "stock DGL" in done.stdout
    return folder


@pytest.mark.long
def test_rows_and_ratios(made: Path) -> None:
    rows = rows_of(made, "sage")
    assert "stock PyG, edge index" in rows or "stock PyG, CSR" in rows
    assert [name for name in rows if "PyG" not in name] == [
        "stock DGL", "sar, world 2", "sar, world 2, not static", "stock DGL, huge pages", "domain_parallel, world 2", "mine",
    ]  # fmt: skip
    stock, ours, baseline = rows["stock DGL"], rows["sar, world 2"], rows["domain_parallel, world 2"]
    assert rows["mine"]["epoch_s"] == [1.5, 1.0, 2.0] and rows["mine"]["peak_bytes"] == 6e6  # the first epoch is left out
    assert ours["epoch_to_stock"] == ours["epoch_s"][0] / stock["epoch_s"][0]
    assert ours["peak_to_stock"] == ours["peak_bytes"] / stock["peak_bytes"]
    assert ours["epoch_to_huge"] == ours["epoch_s"][0] / rows["stock DGL, huge pages"]["epoch_s"][0]
    assert ours["epoch_to_baseline"] == ours["epoch_s"][0] / baseline["epoch_s"][0]
    assert ours["peak_bytes"] == max(ours["peaks_bytes"]) and len(ours["peaks_bytes"]) == 2
    assert ours["static_aggregate"] and not rows["sar, world 2, not static"]["static_aggregate"]
    assert ours["bytes_per_epoch"] < rows["sar, world 2, not static"]["bytes_per_epoch"]
    for row in (ours, baseline):
        assert 0 <= row["waiting"][1] <= row["waiting"][0] <= 1 and row["startup_s"] > 0
    assert stock["waiting"] is None and stock["epoch_to_stock"] == 1


@pytest.mark.long
def test_a_row_says_what_its_run_says(made: Path) -> None:
    run_dir = made / "bench" / "runs" / "sage" / "sar-world-2-1"
    summary = json.loads((run_dir / "summary.json").read_text())
    epochs = [json.loads(line)["epoch_time_s"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    row = rows_of(made, "sage")["sar, world 2"]
    assert row["epoch_s"] == [median(epochs[1:]), min(epochs[1:]), max(epochs[1:])] and len(epochs) == 3
    assert row["peaks_bytes"] == summary["peak_train_bytes"] and row["epoch_s"][0] == summary["epoch_time_s"]


@pytest.mark.long
def test_the_profiled_run_stands_below(made: Path) -> None:
    text = (made / "bench" / "table.md").read_text()
    assert "waiting for" in text and "GFLOP/s" in text and "| linear maps |" in text
    rows, beside, *_ = re.split(r"\*\*Beside .*stock DGL.*stock PyG\*\*", text)
    assert rows.count("| sage |") == len(rows_of(made, "sage")) and beside.count("| sage |") == 3


@pytest.mark.long
def test_what_is_measured_is_kept(made: Path, tmp_path: Path) -> None:
    """A missing measurement is made anew, the others are kept; those of other settings are refused."""
    shutil.copytree(made, tmp_path / "copy")
    folder = tmp_path / "copy"
    words = ["models=[sage]", *TINY]
    lost = folder / "bench" / "runs" / "sage" / "sar-world-2-1.json"
    lost.unlink()  # as if it had been killed: the run folder is there
    before = measured(folder)
    done = run(folder, "bench", "table", *words)
    assert done.returncode == 0 and "are kept" in done.stderr, done.stderr
    after = measured(folder)
    assert {name: after[name] for name in before} == before and len(after) == len(before) + 1
    before = measured(folder)
    done = run(folder, "bench", "table", *words, "optim.lr=0.5")
    assert done.returncode == 1 and "other settings" in done.stderr and "lr" in done.stderr and "bench_dir" in done.stderr
    assert measured(folder) == before
    lost.write_text("{")
    done = run(folder, "bench", "table", *words)
    assert done.returncode == 1 and "cannot be read" in done.stderr and lost.name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_an_interrupt_ends_what_runs(tmp_path: Path) -> None:
    words = [*TINY, "models=[sage]", "epochs=100000", "stock=false", "not_static=[]"]
    process = subprocess.Popen(
        sargnn_command("bench", "table", *words),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    family: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 150
        metrics = tmp_path / "bench" / "runs" / "sage" / "sar-world-2-1" / "metrics.jsonl"
        while not metrics.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 3
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130 and "Traceback" not in stderr, stderr
        assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        for one in [*family, psutil.Process(process.pid)] if process.poll() is None else family:
            if one.is_running():
                one.kill()


@pytest.mark.long
def test_further_precisions_stand_beside_the_own(tmp_path: Path) -> None:
    words = [word for word in TINY if not word.startswith("limits")] + ["not_static=[]", "precisions=[bf16,mixed]"]
    done = run(tmp_path, "bench", "table", "models=[sage]", *words, "model.dropout=0")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path, "sage")
    assert [name for name in rows if "PyG" not in name] == [
        "stock DGL", "sar, world 2", "stock DGL, huge pages", "sar, world 2, bf16", "sar, world 2, mixed",
        "stock DGL, bf16, huge pages",
    ]  # fmt: skip
    bf16, mixed = rows["sar, world 2, bf16"], rows["sar, world 2, mixed"]
    assert bf16["bytes_to_own"] == 0.5 and mixed["bytes_to_own"] == 1
    assert bf16["peak_to_own"] == bf16["peak_bytes"] / rows["sar, world 2"]["peak_bytes"]
    text = (tmp_path / "bench" / "table.md").read_text()
    assert "| peak / fp32 | exchanged / fp32 |" in text and text.count("| linear maps |") == 3


@pytest.mark.long
@pytest.mark.parametrize(("model", "more"), [("gat", []), ("rgcn", ["dataset=mag_like"])])
def test_other_models_beside_stock(model: str, more: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, "bench", "table", f"models=[{model}]", *TINY, *more)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path, model)
    assert rows["sar, world 2"]["epoch_to_stock"] > 0 and rows["stock DGL"]["peak_bytes"] > 0
    assert (rows["sar, world 2"].get("peak_without_tables_bytes") is not None) == (model == "rgcn")  # embeddings


def measured_rows(**runs: Any) -> Found:
    names = {"dgl": "stock DGL", "index": "stock PyG, edge index", "csr": "stock PyG, CSR", "ours": "sar, world 2"}
    config = cases.run_config(cases.model_config("sage"))
    return Found(Case("sage", config), {names[name]: [figures] for name, figures in runs.items()})


def figures_of(epoch_s: float, peak_bytes: int) -> dict[str, Any]:
    return {"times_s": [epoch_s], "peak_train_bytes": [peak_bytes]}


def test_the_better_peer_is_shown_and_named() -> None:
    ours = figures_of(1.0, 100) | {
        "waits_s": [0.0], "mean_waits_s": [0.0], "comm_bytes_per_epoch": 1, "startup_time_s": 1.0, "cache_static": True,
        "sharded_params": [0],
    }  # fmt: skip
    gone = {"out_of_memory": "it held more than 1 GB"}
    rows = measured_rows(dgl=figures_of(4.0, 400), index=figures_of(5.0, 900), csr=figures_of(2.0, 500), ours=ours)
    assert [row["name"] for row in rows.figures()] == ["stock DGL", "stock PyG, CSR", "sar, world 2"]
    text = "\n".join(markdown([rows]))
    assert "| sage | sar, world 2 | 0.25 of stock DGL | 0.50 of stock PyG, CSR |" in text
    rows = measured_rows(dgl=gone, index=figures_of(5.0, 200), csr=gone, ours=ours)
    assert [row["name"] for row in rows.figures()] == ["stock DGL", "stock PyG, edge index", "sar, world 2"]
    (line,) = [line for line in markdown([rows]) if line.startswith("| sage | stock DGL |")]
    assert "| out of memory |" in line and " - |" in line
    assert "0.50 of stock PyG, edge index | 0.20 of stock PyG, edge index" in "\n".join(markdown([rows]))
    rows = measured_rows(index=gone, csr=gone, ours=ours)
    assert [row["name"] for row in rows.figures()] == ["stock PyG, edge index", "sar, world 2"]
    assert "better" not in "\n".join(markdown([rows]))


def test_a_command_that_takes_too_much_memory_is_ended(tmp_path: Path) -> None:
    case = Case("sage", cases.run_config(cases.model_config("sage")))
    kept = measure.Kept(tmp_path, case, Entry("other", "greedy", case.config), 0)
    started = time.monotonic()
    greedy = [sys.executable, "-c", "import time; held = b'x' * 400_000_000; time.sleep(60)"]
    assert measure._output(greedy, kept, dict(os.environ), 200_000_000) is None and time.monotonic() - started < 30
    modest = [sys.executable, "-c", 'import time; time.sleep(0.2); print(\'{"out_of_memory": "no room"}\')']
    answer = measure._output(modest, kept, dict(os.environ), 200_000_000)
    assert answer is not None and measure._read(answer, kept) == {"out_of_memory": "no room"}


def test_mistakes_are_answered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, what in (
        (["model=gat"], "models=[A,B]"),
        (["world=2"], "worlds=[4,8]"),
        (["experiment=mag_like_rgcn"], "dataset=NAME"),
        (["worlds=[]"], "names none"),
        (["worlds=[0]"], "at least 1"),
        (["modes=[sar,sar]"], "twice"),
        (["precisions=[bf61]"], "bf16"),
        (["modes=[sra]"], "There is no mode 'sra'"),
        (["partitioner.name=metsi"], "There is no partitioner 'metsi'"),
        (["models=[sgae]"], "sage"),
        (["models=[sage]", "model.heads=2"], "The case 'sage'"),
        (["rounds=0"], "rounds"),
        (["epochs=1"], "first epoch"),
        (["-m", "rounds=1,2"], "no sweeps"),
        (["models=[sage]", "run_dir=x"], "run_dir"),
        (["models=[sage]", "optim.lr=0.1,0.2"], "several values"),
        (["bench_dir=file"], "cannot be written"),
        (["roundz=1"], "rounds"),
    ):
        done = run(tmp_path, "bench", "table", *words)
        assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
        assert not list(tmp_path.glob("bench")) and not list(tmp_path.glob("stores")), words
    done = run(tmp_path, "bench", "table", "--help")
    assert done.returncode == 0 and "rounds" in done.stdout and max(len(x) for x in done.stdout.splitlines()) <= 80


@pytest.mark.long
def test_a_row_that_fails_is_named(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")  # of which all else is measured
    for other, what in (
        ("python -c raise(SystemExit(3))", "exit code 3"),
        ("python -c print(5)", "times_s"),
        ("nowhere/at/all", "cannot be started"),
    ):
        done = run(tmp_path / "copy", "bench", "table", *TINY, "models=[sage]", f"+others.another='{other}'")
        assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr, (other, done.stderr)
