"""``sargnn predict`` and ``sargnn evaluate``, and the recipe from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sargnn.cli.compose import compose_verb
from tests.cli.conftest import Sargnn
from tests.in_process import sargnn_here as run

RECIPE = ["debug=tiny", "labels=masked", "smooth=cs", "mfg=true", "epochs=6", "checkpoint.every=2", "tracking=none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the whole recipe."""
    path = tmp_path_factory.mktemp("recipe")
    done = run(path, "train", *RECIPE, "run_dir=one", "eval_every=3", "optim.warmup=2", "optim.clip=1.0")
    assert done.returncode == 0, done.stderr
    assert "Correct & Smooth" in done.stdout
    return path


def test_a_run_with_the_whole_recipe(folder: Path) -> None:
    summary = json.loads((folder / "one" / "summary.json").read_text())
    assert 0 < summary["test_acc_smoothed"] <= 1 and 0 < summary["val_acc_smoothed"] <= 1
    assert len(summary["peak_smooth_bytes"]) == summary["world"] and summary["smooth_time_s"] > 0
    layers = summary["mfg"]["training"]
    assert len(layers) == 3 and layers[2]["rows"] < layers[0]["input_rows"] and layers[2]["edges"] < layers[0]["edges"]
    log = (folder / "one" / "logs" / "rank_00.log").read_text()
    assert f"layer 3: computes {layers[2]['rows']} rows" in log


def test_predict_and_evaluate(sargnn: Sargnn, folder: Path) -> None:
    done = sargnn("evaluate", "run=one", folder=folder)
    assert done.returncode == 1 and "sargnn predict run=one" in done.stderr
    done = run(folder, "predict", "run=one", "embeddings=true")
    assert done.returncode == 0, done.stderr
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == ["logits.npy", "smoothed.npy", "predictions.npy", "embeddings.npy"]
    done = sargnn("evaluate", "run=one", folder=folder)
    assert done.returncode == 0 and "smoothed" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    summary = json.loads((folder / "one" / "summary.json").read_text())
    scores = json.loads((folder / "one" / "predictions" / "evaluation.json").read_text())["accuracy"]
    assert scores["smoothed"]["test"] == pytest.approx(summary["test_acc_smoothed"], abs=1e-9)
    assert scores["model"]["test"] == pytest.approx(summary["test_acc"], abs=1e-9)

    done = run(folder, "predict", "run=one", "world=3", "mode=one_shot", "partitioner=random", "out=elsewhere")
    assert done.returncode == 0, done.stderr
    first, second = (np.load(path / "logits.npy") for path in (folder / "one" / "predictions", folder / "elsewhere"))
    np.testing.assert_allclose(first, second, atol=1e-4)
    done = run(folder, "predict", "one", "checkpoint=best", "smooth=none", "out=best")
    assert done.returncode == 0 and not (folder / "best" / "smoothed.npy").exists(), done.stderr


def test_what_predict_refuses(sargnn: Sargnn, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "checkpoints")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("")
    for words, message in (
        (["run=nowhere"], "no such run"),
        ([], "next:    sargnn train"),
        ([f"run={folder / 'one'}", "model.hidden=3"], "model.hidden"),
        ([f"run={folder / 'one'}", "checkpoint=last"], "newest, best"),
        ([f"run={folder / 'one'}", "embeddings=yes"], "true or false"),
        ([f"run={folder / 'one'}", f"out={tmp_path / 'full'}", f"store_dir={folder / 'stores'}"], "something else"),
        ([f"run={tmp_path / 'other'}", f"store_dir={folder / 'stores'}"], "no whole checkpoint"),
        ([f"run={folder / 'one'}", f"out={folder / 'one'}"], "something else"),
        ([f"run={folder / 'one'}", f"out={folder / 'one' / 'config.yaml'}"], "something else"),
        ([f"run={folder / 'one'}", "--cfg", "job"], "config.yaml"),
        ([f"run={folder / 'one'}", "-m"], "no sweeps"),
    ):
        done = sargnn("predict", *words)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "full" / "thesis.txt").exists() and (folder / "one" / "checkpoints").is_dir()


@pytest.mark.parametrize("how", ["missing", "short", "damaged", "manifest"])
def test_damaged_predictions_are_named(sargnn: Sargnn, folder: Path, how: str) -> None:
    if not (folder / "good").exists():
        assert run(folder, "predict", "run=one", "out=good").returncode == 0
    shutil.copytree(folder / "good", folder / how)
    file = folder / how / ("predictions.json" if how == "manifest" else "predictions.npy")
    if how == "missing":
        file.unlink()
    elif how == "short":
        np.save(file, np.zeros(3, np.int64))
    else:
        file.write_bytes(file.read_bytes()[:20])
    done = sargnn("evaluate", "run=one", f"predictions={how}", folder=folder)
    assert done.returncode == 1 and file.name in done.stderr and "sargnn predict run=one" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("model", ["mlp", "linear", "label_propagation"])
def test_baselines(sargnn: Sargnn, tmp_path: Path, model: str) -> None:
    small = ["dataset.num_nodes=600", "world=2", "tracking=none"]
    done = run(tmp_path, "train", *small, f"model={model}", "smooth=cs", "run_dir=one", "epochs=2")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert summary["test_acc_smoothed"] is not None
    assert (summary["num_params"] == 0) == (model == "label_propagation")
    if model == "label_propagation":
        done = run(tmp_path, "predict", "run=one")
        assert done.returncode == 0, done.stderr
        done = sargnn("predict", "run=one", "embeddings=true")
        assert done.returncode == 1 and "no embeddings" in done.stderr


@pytest.mark.parametrize("name", ["products_sage", "products_gat", "papers100M_sage", "papers100M_gat", "mag_rgcn"])
def test_the_papers_experiments(sargnn: Sargnn, name: str) -> None:
    """Each composes to what it says, and looks for the real files; the dataset can be chosen beside it."""
    where = name.partition("_")[0]
    if name.endswith("sage"):
        done = sargnn("train", f"experiment={name}", "dataset.download=false")
        assert done.returncode == 1 and str(Path("data") / f"ogbn_{where}") in done.stderr, done.stderr
    config = compose_verb("train", [f"experiment={name}"])
    assert config["epochs"] == 100 and config["smooth"]["name"] == "cs" and config["model"]["num_layers"] == 3
    assert config["optim"]["schedule"] == "cosine" and config["model"]["norm"] == "batch"
    assert config["dataset"]["name"] == f"ogbn-{where}" and config["dataset"]["add_inverse_edges"]
    other = "mag_like" if where == "mag" else "products_like"
    assert compose_verb("train", [f"experiment={name}", f"dataset={other}"])["dataset"]["name"] == other
    assert config["mfg"] == name.startswith("papers") and config["model"]["name"] == name.partition("_")[2]
