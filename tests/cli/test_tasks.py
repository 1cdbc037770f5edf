"""Several labels and numbers from the command line: a dataset of one's own, trained, predicted, scored and compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.graph.schema import SPLITS
from sargnn.run.job_files import status_lines
from sargnn.tracking.summary import read_summary
from tests.cli.conftest import Sargnn
from tests.graphs import nasty_graph, with_task
from tests.in_process import sargnn_here as run

READER = """
from dataclasses import dataclass
from sargnn.sources.settings import InMemoryDataset

@dataclass(frozen=True)
class Ours(InMemoryDataset):
    kind: str

    def read(self):
        import dataclasses
        import numpy as np
        from tests.graphs import nasty_graph, with_task
        graph = nasty_graph()
        if self.kind in ("two", "lone"):  # two classes; of validation nodes one
            labels = np.where(graph.labels > 0, graph.labels % 2, graph.labels)
            split = np.where((graph.split == 2) & (self.kind == "lone") & (labels == 1), 0, graph.split).astype(np.uint8)
            return dataclasses.replace(graph, labels=labels, split=split, num_classes=2)
        return graph if self.kind == "classes" else with_task(graph, self.kind)
"""
SMALL = ["dataset=ours", "model.hidden=16", "epochs=4", "eval_every=2", "world=2", "threads=1"]
METRICS = {"multilabel": "rocauc", "regression": "mse"}
VALUES = ("train_metric", "val_metric", "test_metric", "best_val_metric", "test_metric_at_best_val")


def write_reader(folder: Path) -> None:
    (folder / "conf" / "dataset").mkdir(parents=True)
    (folder / "ours.py").write_text(READER)
    (folder / "conf" / "dataset" / "ours.yaml").write_text("name: ours\ntarget: ours.py:Ours\nkind: multilabel\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each task; that of several labels went to MLflow."""
    path = tmp_path_factory.mktemp("tasks")
    write_reader(path)
    for task in METRICS:
        more: list[str] = []
        if task == "regression":
            more = ["tracking=none", "labels=masked", "labels.reuse=1", "mfg=true", "task=regression"]
        done = run(path, "train", *SMALL, f"dataset.kind={task}", f"run_dir={task}", *more)
        assert done.returncode == 0, done.stderr
        assert f"test {METRICS[task]} at best validation" in done.stdout and f"val {METRICS[task]} " in done.stderr
        assert "4 labels" in done.stderr if task == "multilabel" else "4 values" in done.stderr
    return path


@pytest.mark.parametrize("task", METRICS)
def test_summary_and_metrics(folder: Path, task: str) -> None:
    summary = json.loads((folder / task / "summary.json").read_text())
    assert (summary["task"], summary["metric"]) == (task, METRICS[task])
    assert all(isinstance(summary[key], float) for key in VALUES)
    assert all(summary[key.replace("metric", "acc")] is None for key in VALUES)
    rows = [json.loads(line) for line in (folder / task / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("metric") for row in rows] == [None, METRICS[task], None, METRICS[task]]
    assert rows[-1]["val_metric"] == summary["val_metric"] and rows[-1]["val_acc"] is None
    better = min if task == "regression" else max
    assert summary["best_val_metric"] == better(row["val_metric"] for row in rows if "metric" in row)
    assert f"validation {METRICS[task]} " in "".join(status_lines(folder / task))


def test_mlflow_has_the_metric_by_its_name(folder: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (sent,) = client.search_runs([client.get_experiment_by_name("sargnn").experiment_id])
    summary = json.loads((folder / "multilabel" / "summary.json").read_text())
    found = sent.data.metrics
    assert found["val_rocauc"] == summary["val_metric"]
    assert found["test_rocauc_at_best_val"] == summary["test_metric_at_best_val"]
    assert not any("acc" in name.replace("rocauc", "") for name in found)


@pytest.mark.parametrize(("task", "metric"), [("multilabel", "rocauc"), ("multilabel", "f1"), ("regression", "mse")])
def test_predict_and_evaluate(folder: Path, task: str, metric: str) -> None:
    out = f"{task}-{metric}"
    chosen = [f"metric={metric}"] if metric == "f1" else []
    done = run(folder, "predict", f"run={task}", f"out={out}", *chosen)
    assert done.returncode == 0, done.stderr
    predictions, logits = (np.load(folder / out / f"{name}.npy") for name in ("predictions", "logits"))
    assert predictions.shape == logits.shape == (300, 4)
    if task == "multilabel":
        assert predictions.dtype == np.uint8 and np.array_equal(predictions, logits > 0)
    else:
        assert np.array_equal(predictions, logits)
    done = run(folder, "evaluate", f"run={task}", f"predictions={out}")
    assert done.returncode == 0, done.stderr
    judge = "OGB's evaluator" if metric == "rocauc" else "sargnn"
    assert f"{metric}, by {judge}" in done.stdout
    content = json.loads((folder / out / "evaluation.json").read_text())
    assert (content["task"], content["metric"]) == (task, metric) and "accuracy" not in content
    summary: dict[str, Any] = json.loads((folder / task / "summary.json").read_text())
    found = content["scores"]["predictions"]
    if metric != "f1":
        wanted = {"train": "train_metric", "valid": "val_metric", "test": "test_metric"}
        assert found == pytest.approx({split: summary[key] for split, key in wanted.items()}, rel=1e-5)
    else:
        dataset = with_task(nasty_graph(), "multilabel")
        rows = np.asarray(dataset.split) == SPLITS["test"]
        labels, said = np.asarray(dataset.labels)[rows], predictions[rows]
        right = ((labels == 1) & (said == 1)).sum()
        assert found["test"] == pytest.approx(2 * right / ((labels == 1).sum() + ((labels >= 0) & (said == 1)).sum()))


@pytest.mark.long
def test_rocauc_of_two_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Trained with early stopping, smoothed, predicted, scored by OGB's evaluator, and compared with a run by accuracy."""
    write_reader(tmp_path)
    train = "train", *SMALL, "tracking=none", "dataset.kind=two"
    done = run(tmp_path, *train, "run_dir=area", "metric=rocauc", "smooth=cs", "early_stopping=9", "checkpoint.every=2")
    assert done.returncode == 0 and not caplog.records, done.stderr
    assert "test rocauc after Correct & Smooth" in done.stdout
    summary = json.loads((tmp_path / "area" / "summary.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "area" / "metrics.jsonl").read_text().splitlines()]
    assert summary["best_val_metric"] == max(row["val_metric"] for row in rows if "metric" in row)
    assert summary["best_val_acc"] is None and summary["test_acc_smoothed"] is None
    for words in (("predict", "run=area"), ("evaluate", "run=area")):
        done = run(tmp_path, *words)
        assert done.returncode == 0, done.stderr
    assert "rocauc, by OGB's evaluator" in done.stdout
    judged = json.loads((tmp_path / "area" / "predictions" / "evaluation.json").read_text())["scores"]
    assert judged["model"]["test"] == pytest.approx(summary["test_metric"], abs=1e-12)
    assert judged["smoothed"]["valid"] == pytest.approx(summary["val_metric_smoothed"], abs=1e-12)
    done = run(tmp_path, *train, "run_dir=hits")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "compare", "area", "hits", "out=plots")
    assert done.returncode == 0 and "metric" in done.stdout, done.stderr
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert {"rocauc.png", "accuracy.png"} <= names


def test_a_split_of_one_class_has_no_rocauc(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_reader(tmp_path)
    done = run(tmp_path, "train", *SMALL, "tracking=none", "dataset.kind=lone", "metric=rocauc", "run_dir=lone")
    assert done.returncode == 0 and "test rocauc" in done.stdout, done.stderr
    (record,) = caplog.records
    assert all(word in record.message for word in ("'valid'", "class 0"))
    summary = json.loads((tmp_path / "lone" / "summary.json").read_text())
    assert summary["val_metric"] is None and summary["best_val_metric"] is None and summary["test_metric"] > 0


def test_compare(folder: Path) -> None:
    done = run(folder, "compare", "multilabel", "regression", "seeds=true", "out=plots")
    assert done.returncode == 0, done.stderr
    assert "rocauc" in done.stdout and "mse" in done.stdout
    names = {path.name for path in (folder / "plots").iterdir()}
    assert {"rocauc.png", "mse.png", "loss.png"} <= names and "accuracy.png" not in names


def test_summaries_of_before_there_were_tasks(folder: Path, tmp_path: Path) -> None:
    summary = json.loads((folder / "multilabel" / "summary.json").read_text())
    old = {key: value for key, value in summary.items() if key not in ("task", "metric", *VALUES)}
    (tmp_path / "summary.json").write_text(json.dumps(old | {"test_acc": 0.5, "best_val_acc": 0.75}))
    found = read_summary(tmp_path)
    assert found is not None and (found.metric, found.test_metric, found.best_val_metric) == ("accuracy", 0.5, 0.75)
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"metric": "../../plot"}))
    with pytest.raises(Exception, match="metric"):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["metric=mse"], "'mse'.*multilabel.*metric=mse.*rocauc, f1"),
        (["dataset.kind=classes", "metric=f1"], "task, classes.*metric=f1.*accuracy, rocauc"),
        (["dataset.kind=classes", "metric=rocauc"], "metric=rocauc, [3-9] classes.*metric=accuracy"),
        (
            ["dataset.kind=lone", "metric=rocauc", "early_stopping=2"],
            "both classes.*class 0, early_stopping=2.*metric=accuracy",
        ),
        (["dataset.kind=lone", "metric=ap", "early_stopping=2"], "metric=ap.*class 0, early_stopping=2"),
        (["metric=auk"], "'metric'.*auk.*rocauc"),
        (["metric=auc"], "'auc'.*multilabel.*rocauc"),
        (["smooth=cs"], "Correct & Smooth.*multilabel.*smooth=none"),
        (["dataset.kind=regression", "optim.label_smoothing=0.1"], "label smoothing.*regression.*optim.label_smoothing=0"),
        (["model=label_propagation"], "'label_propagation'.*multilabel"),
        (["task=regression"], "labels of 'ours'.*task=regression.*task=multilabel"),
    ],
)
def test_what_train_refuses(sargnn: Sargnn, tmp_path: Path, words: list[str], message: str) -> None:
    write_reader(tmp_path)
    small = [word for word in SMALL if not word.startswith("model.")]
    done = sargnn("train", *small, "tracking=none", *words)
    said = " ".join(done.stderr.split("sargnn: ")[-1].split())
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(message, said), said
    assert not list((tmp_path / "stores").glob("partitions/*"))


def test_the_task_holds_for_every_verb(sargnn: Sargnn, tmp_path: Path) -> None:
    write_reader(tmp_path)
    for verb, *more in (("prepare",), ("partition", "world=2"), ("export-ogb", "out=raw")):
        done = sargnn(verb, "dataset=ours", "task=classes", *more)
        assert done.returncode == 1 and "task=multilabel" in done.stderr, done.stderr
    done = sargnn("export-ogb", "dataset=ours", "out=raw")
    assert done.returncode == 1 and "task multilabel" in done.stderr and not (tmp_path / "raw").exists()
    done = sargnn("prepare", "dataset=ours", "task=multilabel")
    assert done.returncode == 0 and "4 labels" in done.stderr, done.stderr
