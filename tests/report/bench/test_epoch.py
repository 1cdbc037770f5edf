"""``sargnn bench epoch``: the parts are whole and the work is what the model's sizes say; its timings are no test."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from sargnn.cli.compose import compose_verb
from sargnn.cli.conf import built_in_folder
from sargnn.graph.dataset import open_dataset
from sargnn.report.bench import epoch
from tests.in_process import sargnn_here as run


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.long
def test_the_work_of_graph_sage(world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "measure_roofline", cache(epoch.measure_roofline))  # else before and after the run
    words = ["dataset.scale=0.001", "epochs=3", f"world={world}", "threads=1", "model.hidden=32", "model.dropout=0.5"]
    done = run(tmp_path, "bench", "epoch", *words, "partitioner=range")
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    found = json.loads((tmp_path / "bench" / "epoch.json").read_text())
    parts = {part["name"]: part for part in found["parts"]}
    store = next((tmp_path / "stores" / "datasets").iterdir())
    dataset = open_dataset(store, verify=False)
    nodes, edges, classes = dataset.num_nodes, len(dataset.indices), dataset.num_classes
    # Of each of a layer's two maps the product, its weights' error and, but for the features, the rows' error.
    layers = ((100, 32, 2), (32, 32, 3), (32, classes, 3))
    assert parts["linear maps"]["work"] == sum(2 * 2 * nodes * a * b * products for a, b, products in layers)
    # Rows of 32 are summed forward and back; of the classes' layer the narrower side; features once, which is not counted.
    assert parts["aggregation"]["work"] > 4 * edges * (2 * 32 + 2 * min(32, classes))
    assert parts["aggregation"]["work"] < 4 * (edges + 8 * world * nodes) * (2 * 32 + 2 * classes)
    # Moments 1, forward 2, rebuilt 2, backward 3 and 3 passes over the two hidden layers' rows.
    assert parts["norm + dropout"]["work"] == 2 * (1 + 2 + 2 + 3 + 3) * 4 * nodes * 32
    assert (parts["exchange wait"]["work"] > 0) == (world > 1)
    assert all(rate > 0 for rate in found["roofline"].values())
    assert parts["exchange wait"]["limit_core_s"] is None and parts["exchange wait"]["share_of_limit"] is None
    assert parts["linear maps"]["share_of_limit"] > 0
    cores = found["about"]["cores"]
    for part in parts.values():
        assert 0 <= part["core_s"] <= 1.5 * cores * sum(one["seconds"] for one in parts.values())
        if part["limit_core_s"] and part["name"] == "linear maps":
            assert part["limit_core_s"] == pytest.approx(cores * part["work"] / found["roofline"]["gemm_flops"])
            assert part["share_of_limit"] == part["limit_core_s"] / part["core_s"]
    table = (tmp_path / "bench" / "epoch.md").read_text()
    assert table.count("\n| ") >= len(parts) and "GFLOP/s" in table


def test_mistakes_are_answered(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "epoch.md").mkdir(parents=True)
    for words, what in (
        (["epochs=1"], "first epoch"),
        (["-m", "world=1,2"], "no sweeps"),
        (["experiment=modes_sweep"], "no sweeps"),
        (["world=0"], "world"),
        (["resume=runs/bench"], "of its own"),
        (["skip_finished=true"], "of its own"),
        (["profile=false"], "of its own"),
        (["mode=domain_parallel"], "sar, no_remat, one_shot"),
        (["comm.max_restarts=1"], "second start"),
        (["bench_dir=taken"], "cannot be written"),
        (["bench_dir=file"], "cannot be written"),
        (["bench_dir=file/below"], "cannot be written"),
        (["partitioner=metiss"], "metis"),
    ):
        done = run(tmp_path, "bench", "epoch", *words)
        assert done.returncode == 1 and what in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
        assert not list(tmp_path.glob("bench")) and not list(tmp_path.glob("runs"))
    done = run(tmp_path, "bench", "epoch", "--help")
    assert done.returncode == 0 and "profiled" in done.stdout and max(len(x) for x in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize("verb", ["train", "slurm", "bench_epoch", "bench_table"])
def test_an_experiments_dataset_wins_over_the_commands_and_a_given_one_over_both(verb: str) -> None:
    default = {"bench_epoch": "products_like", "bench_table": "products_like"}.get(verb, "synthetic")
    assert compose_verb(verb, [])["dataset"]["name"] == default == built_in_folder().groups(verb)["dataset"]
    chosen = compose_verb(verb, ["experiment=mag_like_rgcn"])
    assert chosen["dataset"]["name"] == "mag_like" and chosen["dataset"]["scale"] == 0.05 and chosen["model"]["name"] == "rgcn"
    given = compose_verb(verb, ["experiment=mag_like_rgcn", "dataset=papers_like"])
    assert given["dataset"]["name"] == "papers_like" and given["model"]["name"] == "rgcn"
