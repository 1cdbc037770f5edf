"""``--dry-run``: what it says is what a run then does, and nothing is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sargnn.cli.compose import sweep_points
from sargnn.cli.conf import built_in_folder, find_folders
from sargnn.cli.sweep import plan_sweep
from tests.cli.conftest import Sargnn

TINY = ["dataset.num_nodes=300", "world=2", "tracking=none"]


def test_a_run(sargnn: Sargnn, tmp_path: Path) -> None:
    words = ["train", *TINY, "model=gat", "model.heads=2"]
    done = sargnn(*words, "--dry-run")
    assert done.returncode == 0 and not list(tmp_path.iterdir()), done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "run folder  runs/gat-sar-w2-s0" and lines[1].startswith("workers     2 with ")
    assert lines[3] == "partition   by metis into 2, would be made"
    differing = {line.split()[0]: line.split("(default ")[1][:-1] for line in lines if line.startswith("  ")}
    assert differing == {
        "model=gat": "sage", "tracking=none": "mlflow", "dataset.num_nodes=300": "20000", "model.heads=2": "4", "world=2": "4",
    }  # fmt: skip
    store = lines[2].split()[1].rstrip(",")
    assert "would be made" in lines[2] and sargnn("partition", *TINY[:2]).returncode == 0
    (tmp_path / "runs" / "gat-sar-w2-s0").mkdir(parents=True)
    lines = sargnn(*words, "--dry-run").stdout.splitlines()
    assert lines[0].endswith("runs/gat-sar-w2-s0-2")
    assert lines[2] == f"dataset     {store}, is there" and (tmp_path / store).is_dir()
    (parts,) = (tmp_path / "stores" / "partitions").iterdir()
    assert lines[3] == f"partition   stores/partitions/{parts.name}, is there"


def test_what_would_be_fetched_is_not(sargnn: Sargnn, tmp_path: Path) -> None:
    done = sargnn("train", "dataset=ogbn-arxiv", "--dry-run")
    assert done.returncode == 0 and "fetched where" in done.stdout and not list(tmp_path.iterdir()), done.stderr


@pytest.mark.parametrize(
    "name", ["arxiv_gcn", "arxiv_gat", "products_sage_full", "cora_sgc", "cora_appnp", "cora_gcnii", "cora_gae"]
)
def test_presets_of_known_results(sargnn: Sargnn, tmp_path: Path, name: str) -> None:
    """Everything about them goes together, on the graph that they are for and on another one."""
    if not name.startswith("cora"):
        done = sargnn("train", f"experiment={name}", "--dry-run")
        assert done.returncode == 0 and "fetched where" in done.stdout, done.stderr
        assert f"dataset=ogbn-{name.partition('_')[0]}" in done.stdout
    done = sargnn("train", f"experiment={name}", "dataset=synthetic", *TINY, "--dry-run")
    assert done.returncode == 0 and not list(tmp_path.iterdir()), done.stderr
    model = {"sage": "", "gae": "gcn"}.get(name.split("_")[1], name.split("_")[1])  # what is not said is sage
    assert f"model={model}" in done.stdout or not model


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.hidden=0"], "out of range"),
        (["mode=domain_parallel", "kernel=fused"], "No kernel can serve"),
        (["run_dir=old"], "holds a run"),
        (["dataset=ogb_dir", "dataset.root=nowhere"], "does not exist"),
    ],
)
def test_what_a_run_would_refuse(sargnn: Sargnn, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").write_text("")
    done = sargnn("train", *words, "--dry-run")
    assert done.returncode == 1 and message in done.stderr and "runs" not in [path.name for path in tmp_path.iterdir()]


def test_a_sweep(sargnn: Sargnn, tmp_path: Path) -> None:
    words = [*TINY, "model=sage,gat", "seed=0,1"]
    points = sweep_points("train", words, multirun=True)
    assert points is not None
    folder = plan_sweep(points, built_in_folder()).folder
    assert not list(tmp_path.iterdir())
    done = sargnn("train", "-m", *words, "--dry-run")
    assert done.returncode == 0, done.stderr
    *listed, last = done.stdout.splitlines()
    assert listed == [
        f"sweep of 4 points, in {folder}", "  000  model=sage seed=0", "  001  model=sage seed=1", "  002  model=gat seed=0",
        "  003  model=gat seed=1",
    ]  # fmt: skip
    assert last.startswith("4 would run") and "--dry-run" in last
    assert not list(tmp_path.iterdir())


def test_points_that_are_finished_or_cannot_run(sargnn: Sargnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*TINY, "kernel=fused", "mode=sar,domain_parallel"]
    points = sweep_points("train", words, multirun=True)
    assert points is not None
    finished = plan_sweep(points, built_in_folder()).folder / "000"
    finished.mkdir(parents=True)
    monkeypatch.setattr("sargnn.cli.sweep._finished", lambda folder, number: finished if number == 0 else None)
    done = sargnn("train", "-m", *words, "--dry-run")
    assert done.returncode == 1 and "  000  mode=sar\n         finished" in done.stdout
    assert (
        "  001  mode=domain_parallel\n         cannot run: No kernel can serve" in done.stdout
        and "\n0 would run" in done.stdout
    )
    again = sargnn("train", "-m", *words, "skip_finished=false", "--dry-run").stdout
    assert "would be skipped" not in again and "\n1 would run" in again


def test_a_job(sargnn: Sargnn, tmp_path: Path) -> None:
    done = sargnn("slurm", *TINY, "slurm.time=30", "--dry-run")
    assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash") and "--time=30" in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


def test_other_verbs_have_none(sargnn: Sargnn) -> None:
    done = sargnn("compare", "--dry-run")
    assert done.returncode == 1 and "no flag '--dry-run'" in done.stderr


def test_the_folder_is_that_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same points give the same folder, also without what only says what to do with finished ones."""
    monkeypatch.chdir(tmp_path)
    plain, asked = (
        plan_sweep([("seed=1", *more), ("seed=2", *more)], built_in_folder()) for more in ((), ("skip_finished=true",))
    )
    assert plain.folder == asked.folder and json.dumps(plain.points) == json.dumps(asked.points) and asked.skip == "true"


def test_the_same_words_with_other_options_are_another_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may stand for something else, so that nothing of the first one is finished."""
    monkeypatch.chdir(tmp_path)
    options = [built_in_folder()]
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
        options.append(find_folders(name))
    assert len({plan_sweep([("seed=1",)], folders).folder for folders in options}) == 3
