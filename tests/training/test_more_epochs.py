"""``resume=RUN epochs=MORE``: bit for bit the run that had so many epochs from the start, or one message why not."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import OptimConfig
from sargnn.config.run import RunConfig, load
from sargnn.graph.dataset import Dataset
from sargnn.run.checkpoints import has_settings_of
from sargnn.run.job import NOTHING_TO_DO, begin
from sargnn.tracking.files import read_inputs
from sargnn.training import checkpoint
from sargnn.training.optim import learning_rate
from tests.graphs import nasty_graph
from tests.in_process import kept_handlers
from tests.in_process import sargnn_here as run
from tests.parity import cases
from tests.run.runs import summary_of

TINY = ["dataset.num_nodes=300", "model.hidden=8", "eval_every=2", "tracking=none", "threads=1"]
CHANGES = ["model.dropout=0.5", "model.input_dropout=0.2", "optim.schedule=step", "optim.step_every=2", "optim.warmup=1"]


def trained(folder: Path, *words: str) -> None:
    done = run(folder, "train", *words)
    assert done.returncode == 0, done.stderr


def epochs_of(run_dir: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 3 epochs that was made longer twice, and one of as many epochs from the start."""
    folder = tmp_path_factory.mktemp("longer")
    trained(folder, *TINY, *CHANGES, "world=2", "epochs=3", "run_dir=run")
    assert (folder / "run" / "checkpoints" / "epoch_000003").is_dir()
    trained(folder, "resume=run", "epochs=5")
    trained(folder, "resume=run", "epochs=6")
    trained(folder, *TINY, *CHANGES, "world=2", "epochs=6", "run_dir=whole")
    return folder


def test_a_longer_run_is_bit_identical(folder: Path) -> None:
    longer, whole = summary_of(folder / "run"), summary_of(folder / "whole")
    assert longer["losses"] == whole["losses"] and len(whole["losses"]) == 6
    assert longer["status"] == "finished" and longer["config_hash"] == whole["config_hash"]
    assert (longer["test_acc"], longer["val_acc"]) == (whole["test_acc"], whole["val_acc"])
    assert load(folder / "run" / "config.yaml").epochs == 6 and epochs_of(folder / "run") == list(range(6))
    one, other = (checkpoint.open_checkpoint(checkpoint.path_of(folder / name, 6), verify=True) for name in ("run", "whole"))
    assert one.files == other.files and any(name.startswith("second_moment/") for name in one.files)


def test_predictions_of_a_longer_run_from_any_of_its_checkpoints(folder: Path) -> None:
    """Those of the shorter run are the longer one's, too; ``epochs`` itself is no setting of a prediction."""
    best = checkpoint.best(folder / "run")
    assert best is not None and checkpoint.open_checkpoint(best, verify=False).meta["epochs"] in (3, 5, 6)
    early = checkpoint.open_checkpoint(checkpoint.path_of(folder / "run", 5), verify=False).meta
    config = load(folder / "run" / "config.yaml")
    assert early["config_hash"] != config.config_hash and has_settings_of(early, config)
    for name in ("run", "whole"):
        done = run(folder, "predict", f"run={name}", f"out={name}-predicted")
        assert done.returncode == 0, done.stderr
    found, wanted = (np.load(folder / f"{name}-predicted" / "logits.npy") for name in ("run", "whole"))
    assert (found == wanted).all()
    done = run(folder, "predict", "run=run", "epochs=9")
    assert done.returncode == 1 and "epochs: 9 instead of 6" in done.stderr


def refusals(folder: Path, cases: Sequence[tuple[list[str], list[str]]]) -> None:
    for words, wanted in cases:
        done = run(folder, *words)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert all(word in done.stderr for word in wanted), done.stderr


def test_what_is_refused(folder: Path) -> None:
    before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
    for verb in ("train", "slurm"):
        refusals(
            folder,
            [
                ([verb, "resume=run", "epochs=4"], ["6 epochs", "epochs=4", "more than 6"]),
                ([verb, "resume=run"], ["all its epochs", "epochs=MORE"]),
                ([verb, "resume=run", "epochs=9", "seed=2"], ["seed: 2 instead of 0"]),
            ],
        )
        assert "epochs:" not in run(folder, verb, "resume=run", "epochs=9", "seed=2").stderr
    assert before == {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}


def test_a_schedule_that_depends_on_the_number_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, *TINY, "optim.schedule=cosine", "world=1", "epochs=2", "run_dir=run")
    for verb in ("train", "slurm"):
        refusals(
            tmp_path,
            [
                ([verb, "resume=run", "epochs=4"], ["optim.schedule=cosine", "epochs=4 instead of 2", "init_from=run"]),
                ([verb, "resume=run"], ["all its epochs", "init_from="]),
            ],
        )
    meta = checkpoint.open_checkpoint(checkpoint.path_of(tmp_path / "run", 2), verify=False).meta
    assert not has_settings_of(meta, dataclasses.replace(load(tmp_path / "run" / "config.yaml"), epochs=4))


def test_a_run_that_early_stopping_ended_is_refused(tmp_path: Path) -> None:
    words = [*TINY, "dataset.val_fraction=0.5", "optim.lr=1e-9", "early_stopping=1", "eval_every=1", "world=1", "epochs=9"]
    trained(tmp_path, *words, "run_dir=run")
    assert 1 < len(summary_of(tmp_path / "run")["losses"]) < 9
    refusals(
        tmp_path,
        [
            (["train", "resume=run", "epochs=20"], ["Early stopping", "init_from="]),
            (["train", "resume=run"], ["Early stopping"]),
            (["slurm", "resume=run", "epochs=20"], ["Early stopping"]),
        ],
    )
    assert begin(tmp_path / "run", {}) == NOTHING_TO_DO


def test_under_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained is not trained again, and a checkpoint from before this was known is found to fit."""
    trained(tmp_path, *TINY, "world=1", "epochs=2", "run_dir=run")
    monkeypatch.chdir(tmp_path)
    with patch.dict(os.environ), kept_handlers():
        assert begin(tmp_path / "run", {}) == NOTHING_TO_DO
        assert run(tmp_path, "slurm", "resume=run", "epochs=5").returncode == 0
        original = checkpoint.Store

        def older(*arguments: object) -> checkpoint.Store:
            store = original(*arguments)  # type: ignore[arg-type]
            for key in ("epochs", "counted_best", "schema"):
                store.meta.pop(key)
            return store

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "Store", older)
            assert begin(tmp_path / "run", {}) == 0
    inputs = read_inputs(tmp_path / "run")
    assert inputs.first_epoch == 2 and inputs.checkpoint is not None and load(tmp_path / "run" / "config.yaml").epochs == 5
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_which_schedules_depend_on_the_number(schedule: str) -> None:
    config = OptimConfig(name="adam", lr=0.1, weight_decay=0.0, schedule=schedule, warmup=2, step_every=2)  # type: ignore[arg-type]
    same = [learning_rate(config, epoch, 7) for epoch in range(7)] == [learning_rate(config, epoch, 30) for epoch in range(7)]
    assert config.depends_on_epochs == (not same)


def _losses(config: RunConfig, dataset: Dataset, run_dir: Path, start: Path | None = None) -> list[float]:
    trainer = cases.trainer_of(Group.single(), config, dataset)
    first = 0
    if start is not None:
        first = checkpoint.load(trainer, start)
    return trainer.run(first, checkpoint.Checkpoints(trainer, config, "some", run_dir)).losses


def test_the_extra_evaluation_of_a_shorter_run_does_not_count_for_early_stopping(tmp_path: Path) -> None:
    config = cases.run_config(cases.model_config("sage"), epochs=40)
    config = dataclasses.replace(
        config, eval_every=4, early_stopping=2, optim=dataclasses.replace(config.optim, schedule="constant"),
        checkpoint=dataclasses.replace(config.checkpoint, every=100),
    )  # fmt: skip
    dataset = nasty_graph()
    whole = _losses(config, dataset, tmp_path / "whole")
    assert 8 < len(whole) < 40
    for epochs in range(1, len(whole)):
        shorter = dataclasses.replace(config, epochs=epochs)
        assert _losses(shorter, dataset, tmp_path / f"{epochs}") == whole[:epochs]
        assert _losses(config, dataset, tmp_path / "on", checkpoint.path_of(tmp_path / f"{epochs}", epochs)) == whole, epochs
