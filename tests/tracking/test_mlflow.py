"""What MLflow is sent: names, units, one curve of a run that goes on, its dataset, and how the pages open."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.config.run import RunConfig, parse, save
from sargnn.tasks.kinds import METRICS
from sargnn.tracking import files
from sargnn.tracking.files import Inputs, write_inputs
from sargnn.tracking.find_runs import label_of, write_points
from sargnn.tracking.mlflow.figures import EpochFigures, SteadyMedian, settled_figures, single_figures
from sargnn.tracking.mlflow.run import MlflowRun
from sargnn.tracking.mlflow.store import VIEW_KEY, VIEW_TAG, find_runs_page, make_client, open_store
from sargnn.tracking.scores import column_of
from sargnn.tracking.summary import Summary, read_summary, write_summary
from sargnn.tracking.target import Target, target_of
from tests.in_process import sargnn_here

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow's own
EPOCHS = 5
GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "mlflow.md"


def row(epoch: int, loss: float | None = None, world: int = 2) -> dict[str, Any]:
    """A line of ``metrics.jsonl``."""
    figures = {
        "epoch": epoch, "loss": loss or 3.0 - 0.1 * epoch, "lr": 0.01, "epoch_time_s": 1.0 + (7 * epoch % 5),
        "compute_time_s": 0.5, "comm_wait_time_s": 0.25 * epoch, "comm_bytes": 3_000_000 + epoch,
    }  # fmt: skip
    ranks = {
        "compute_time_s": [0.5] * world, "comm_wait_time_s": [0.25] * world, "sent_bytes": [1_500_000] * world,
        "peak_train_bytes": [(40 + rank + epoch % 3) * 1_000_000 for rank in range(world)],
    }  # fmt: skip
    scores = {"task": "classes", "metric": "accuracy", "val_metric": 0.5 + 0.01 * epoch, "test_metric": 0.4}
    return figures | {"ranks": ranks} | (scores if epoch % 2 else {})


def summary_of(rows: Sequence[dict[str, Any]]) -> Summary:
    """What a run with these epochs reports."""
    later = rows[1:]
    peaks = [max(peak) for peak in zip(*(one["ranks"]["peak_train_bytes"] for one in rows), strict=True)]
    return Summary(
        "finished", losses=[one["loss"] for one in rows], task="classes", metric="accuracy", val_metric=0.53, test_metric=0.4,
        best_val_metric=0.53, test_metric_at_best_val=0.41, epoch_time_s=median(one["epoch_time_s"] for one in later),
        comm_wait_time_s=median(one["comm_wait_time_s"] for one in later),
        comm_bytes_per_epoch=int(median(one["comm_bytes"] for one in later)), peak_train_bytes=peaks,
        peak_rss_bytes=[300_000_000, 310_000_000], startup_time_s=2.5, edge_cut=0.125, world=2, mode="sar", model="sage",
        kernel="fused", dataset="synthetic",
    )  # fmt: skip


def config_of(*words: str) -> RunConfig:
    return parse(compose_verb("train", [f"epochs={EPOCHS}", "world=2", *words]))


def write_run(run_dir: Path, config: RunConfig, rows: Sequence[dict[str, Any]]) -> Inputs:
    """A run folder as ``sargnn train`` leaves it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    save(config, run_dir / files.CONFIG)
    inputs = Inputs("no store", 1_700_000_000.0, "0123456789abcdef", partition_stats={"partition.edge_cut": 0.125})
    write_inputs(run_dir, inputs)
    write_rows(run_dir, rows)
    return inputs


def write_rows(run_dir: Path, rows: Sequence[dict[str, Any]]) -> None:
    (run_dir / files.METRICS).write_text("".join(json.dumps(one) + "\n" for one in rows))
    write_summary(run_dir, summary_of(rows))


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store for all tests of this file, for making one takes seconds; ``empty.db`` beside it has no run."""
    folder = tmp_path_factory.mktemp("store")
    made = f"sqlite:///{folder / 'mlflow.db'}"
    open_store(made, "sargnn")
    shutil.copy(folder / "mlflow.db", folder / "empty.db")
    return made


def target(run_dir: Path, uri: str, *words: str, same_run: bool = False) -> Target:
    config = config_of(f"tracking.uri={uri}", f"tracking.experiment={run_dir.parent.name}", *words)
    rows = [row(epoch) for epoch in range(EPOCHS)]
    inputs = write_run(run_dir, config, rows) if not run_dir.exists() else Inputs("no store", 0.0, "0123456789abcdef")
    return target_of(config, run_dir, inputs, same_run=same_run)


def send(wanted: Target) -> Any:
    """All of a run; as MLflow has it then."""
    run = MlflowRun(wanted)
    summary = read_summary(wanted.run_dir)
    assert summary is not None
    run.finish(summary)
    return make_client(wanted.uri).get_run(run.run_id)


def history(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in make_client(uri).get_metric_history(run_id, name)]


def test_a_figure_that_settles_ends_as_the_summary_has_it() -> None:
    rows = [row(epoch) for epoch in range(EPOCHS)]
    figures = EpochFigures()
    found = [figures.add(one) for one in rows]
    assert found[-1] | settled_figures(summary_of(rows)) == found[-1]
    assert found[0]["epoch_s"] == rows[0]["epoch_time_s"] and found[1]["epoch_s"] == rows[1]["epoch_time_s"]
    assert [one["peak_mb"] for one in found] == [41.0, 42.0, 43.0, 43.0, 43.0]
    assert found[0]["sent_mb"] == 3.0 and "val_acc" not in found[0] and found[1]["val_acc"] == 0.51
    values = [5.0, 1.0, 4.0, 2.0, 8.0]
    medians = SteadyMedian()
    assert [medians.add(value) for value in values] == [median(values[1:end] or values[:1]) for end in range(1, 6)]


def test_a_dozen_figures_have_plain_names_and_the_guide_explains_each(tmp_path: Path, uri: str) -> None:
    run = send(target(tmp_path / "runs" / "first", uri))
    names = set(run.data.metrics)
    assert 10 <= len(names) <= 14 and not any("/" in name for name in names)
    assert run.data.metrics["resident_mb"] == 310.0 and run.data.metrics["startup_s"] == 2.5
    assert run.data.metrics["test_acc_at_best_val"] == 0.41 and run.data.metrics["loss"] == row(EPOCHS - 1)["loss"]
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    explained = {name for line in rows for name in re.findall(r"`(\w+)`", line)}
    assert names <= explained, names - explained


def test_a_run_is_called_as_its_folder_and_has_its_dataset(tmp_path: Path, uri: str) -> None:
    run = send(target(tmp_path / "runs" / "sage-sar-w2-s0-2", uri))
    assert run.info.run_name == "sage-sar-w2-s0-2" and run.info.status == "FINISHED"
    (one,) = run.inputs.dataset_inputs
    assert (one.dataset.name, one.dataset.digest) == ("synthetic", "01234567")
    assert json.loads(one.dataset.source)["num_nodes"] == 20000 and one.tags[0].value == "training"
    assert run.data.params["mode.name"] == "sar" and run.data.params["partition.edge_cut"] == "0.125"
    assert not {"epochs", "run_dir"} & set(run.data.params) and run.data.tags["epochs"] == str(EPOCHS)


def test_figures_of_ranks_come_on_request(tmp_path: Path, uri: str) -> None:
    run = send(target(tmp_path / "runs" / "ranks", uri, "tracking.ranks=true"))
    assert run.data.metrics["rank_01/peak_mb"] == row(EPOCHS - 1)["ranks"]["peak_train_bytes"][1] / 1e6
    assert run.data.metrics["rank_01/resident_mb"] == 310.0 and run.data.metrics["rank_00/wait_s"] == 0.25
    assert not any(name.startswith("rank_") for name in single_figures(summary_of([row(0), row(1)])))


def test_a_run_that_goes_on_draws_one_curve(tmp_path: Path, uri: str) -> None:
    """Its checkpoint is older than what was sent, its world is another one, and it is made longer."""
    first = target(tmp_path / "runs" / "resumed", uri)
    run = MlflowRun(first)
    again = [*(row(epoch) for epoch in range(3)), *(row(epoch, 3.0 - 0.1 * epoch + 1e-7, 4) for epoch in range(3, 8))]
    for one in again:
        one["ranks"] = {name: (values * 2)[:4] for name, values in one["ranks"].items()}
    write_rows(first.run_dir, again)
    resumed = send(target(first.run_dir, uri, "world=4", "epochs=8", same_run=True))
    assert resumed.info.run_id == run.run_id and resumed.info.status == "FINISHED"
    for name in ("loss", "epoch_s", "peak_mb"):
        assert [step for step, _ in history(uri, run.run_id, name)] == list(range(8)), name
    losses = [value for _, value in history(uri, run.run_id, "loss")]
    assert losses[:5] == [row(epoch)["loss"] for epoch in range(5)] and losses[5:] == [one["loss"] for one in again[5:]]
    assert (resumed.data.tags["world"], resumed.data.tags["epochs"]) == ("4", "8") and resumed.data.params["world"] == "2"
    assert "world=4" in resumed.data.tags["resumed_with"].split()
    back = send(target(first.run_dir, uri, "epochs=8", same_run=True))
    assert "resumed_with" not in back.data.tags and back.data.metrics["best_val_acc"] == 0.53


def test_a_run_that_an_earlier_version_began_keeps_its_epochs_and_says_what_they_are_now(tmp_path: Path, uri: str) -> None:
    first = target(tmp_path / "runs" / "old", uri)
    run = MlflowRun(replace(first, params=first.params | {"epochs": str(EPOCHS)}))
    resumed = send(target(first.run_dir, uri, "epochs=9", same_run=True))
    assert resumed.info.run_id == run.run_id and resumed.data.tags["resumed_with"] == "epochs=9"


def test_what_mlflow_missed_is_filled_in(tmp_path: Path, uri: str) -> None:
    first = target(tmp_path / "runs" / "gap", uri)
    whole = (first.run_dir / files.METRICS).read_text()
    (first.run_dir / files.METRICS).write_text("".join(line + "\n" for k, line in enumerate(whole.splitlines()) if k in (0, 3)))
    run = MlflowRun(first)
    assert [step for step, _ in history(uri, run.run_id, "loss")] == [0, 3]
    (first.run_dir / files.METRICS).write_text(whole)
    MlflowRun(replace(first, same_run=True)).log_epochs([row(4)])  # which it has read itself
    assert sorted(step for step, _ in history(uri, run.run_id, "loss")) == list(range(EPOCHS))


def test_a_run_that_was_deleted_in_mlflow_is_begun_anew(tmp_path: Path, uri: str) -> None:
    first = target(tmp_path / "runs" / "deleted", uri)
    run = MlflowRun(first)
    make_client(uri).delete_run(run.run_id)
    assert send(replace(first, same_run=True)).info.run_id != run.run_id


def test_a_sweeps_point_is_called_as_what_it_overrides(tmp_path: Path, uri: str) -> None:
    folder = tmp_path / "sweeps" / "0123abcd"
    write_points(folder, ["mode=sar world=2", "mode=one_shot world=2"])
    config = config_of(f"tracking.uri={uri}", "tracking.experiment=points", "mode=one_shot")
    write_run(folder / "001-2", config, [row(0), row(1)])
    done = sargnn_here(tmp_path, "track", str(folder / "001-2"))
    assert done.returncode == 0, done.stderr
    client = make_client(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("points").experiment_id])
    assert run.info.run_name == "mode=one_shot world=2" and run.data.tags["sweep"] == "0123abcd"
    assert run.info.start_time == 1_700_000_000_000  # when it began, not when it was sent
    write_points(folder, ["the only point"])
    assert target_of(config, folder / "000", None).name == config.name
    (folder / "sweep.json").write_text('{"labels": 3}')
    assert label_of(folder / "001") is None and target_of(config, folder / "001", None).name == "001"


def test_the_view_names_figures_that_runs_have(tmp_path: Path, uri: str) -> None:
    run = send(target(tmp_path / "runs" / "viewed", uri))
    experiment = make_client(uri).get_experiment(run.info.experiment_id)
    view = json.loads(zlib.decompress(base64.b64decode(experiment.tags[VIEW_TAG].removeprefix("deflate;"))))
    columns = {
        kind: [one.split("`")[1] for one in view["selectedColumns"] if one.startswith(kind)] for kind in ("metrics", "tags")
    }
    assert {"loss", "val_acc", "test_acc_at_best_val", "epoch_s", "peak_mb"} <= set(columns["metrics"])
    assert {"mode", "world"} <= set(columns["tags"]) <= {*run.data.tags, "sweep"}
    others = {name for name in columns["metrics"] if name not in run.data.metrics}
    names = [column_of(metric) for metric in METRICS if metric != "accuracy"]
    assert "hits_at_10" in names  # MLflow's names have no @
    assert others and all(any(name in other for name in names) for other in others)
    charts = [one["metricKey"] for one in view["compareRunCharts"] if one["metricKey"] in run.data.metrics]
    assert charts[:4] == ["loss", "val_acc", "epoch_s", "peak_mb"]
    (section,) = view["compareRunSections"]
    assert {one["metricSectionId"] for one in view["compareRunCharts"]} == {section["uuid"]}


def test_the_pages_open_where_the_newest_run_is(tmp_path: Path, uri: str) -> None:
    run = send(target(tmp_path / "newest" / "last", uri))
    client, number = make_client(uri), run.info.experiment_id
    client.delete_experiment_tag(number, VIEW_TAG)  # as earlier versions made it
    client.create_experiment("another program's")
    page = find_runs_page(uri)
    assert page is not None and page.startswith(f"/#/experiments/{number}/runs?") and f"={VIEW_KEY}" in page
    assert VIEW_TAG in client.get_experiment(number).tags
    assert VIEW_TAG not in client.get_experiment_by_name("another program's").tags


def test_a_store_without_runs_has_no_page(tmp_path: Path, uri: str) -> None:
    assert find_runs_page(uri.replace("mlflow.db", "empty.db")) is None
    (tmp_path / "broken.db").write_text("no database")
    assert find_runs_page(f"sqlite:///{tmp_path / 'broken.db'}") is None
