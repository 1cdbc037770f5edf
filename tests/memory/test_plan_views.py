"""Plans of views: what they say that each worker computes is what a run's own views have, and what it holds is measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LabelsConfig, LinksConfig, MemoryConfig, SampleConfig
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.memory.account_record import SMOOTHING
from sargnn.memory.plan_run import Cut, WorldPlan, cut_of, plan_run, plan_views
from sargnn.memory.plan_traffic import shape_of
from sargnn.memory.plan_views import Views
from sargnn.memory.plan_worker import BEFORE_TRAINING, Account, Runtime
from sargnn.partition.cut import parts_of
from sargnn.plan.sizes import Sizes, sizes_of_plans
from sargnn.sources.links import draw_links
from sargnn.tasks.kinds import in_split
from sargnn.training.fit import LOOKED_AT
from sargnn.training.views import View
from tests.graphs import assign
from tests.in_process import sargnn_here
from tests.memory.plans import planned
from tests.parity import cases
from tests.pool import pool

GRAPH = ("dataset=products_like", "dataset.scale=0.01", "world=2")
_LINKS = ("task=links", "dataset.link_split=[0.85,0.05,0.1]", "model=sage", "model.num_layers=2")
MEASURED = {
    "message flows": ("model=sage", "mfg=true"),
    "micro-batches": ("model=sage", "model.norm=layer", "batches.count=4"),
    "samples": ("model=sage", "sample.fanouts=[10,10,10]", "batches.steps=4"),
    "servers": ("model=sage", "servers=2", "preload=shared"),
    "smoothing": ("model=sage", "smooth=cs"),
    "kept layers": ("model=gat", "mfg=true", "engine.keep_layers=2"),
    "steps of links": (*_LINKS, "batches.steps=4"),
    "samples of links": (*_LINKS, "batches.steps=4", "sample.fanouts=[10,5]"),
}
NOT_SENT = ("samples", "kept layers", "steps of links", "samples of links")
"""Of which no plan says what travels."""
_FIXED = 30_000_000
"""What libraries take more or less from run to run; of runs as small as these a good part."""


@pytest.mark.machine
@pytest.mark.parametrize("name", MEASURED)
def test_planned_is_measured(name: str, tmp_path: Path) -> None:
    words = [*GRAPH, *MEASURED[name], "epochs=2", "eval_every=10", "tracking=none", f"store_dir={tmp_path}/stores"]
    done = sargnn_here(tmp_path, "train", *words, "run_dir=run")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    config, dataset, cut = planned(words)
    assert cut.exact
    plan = plan_run(config, dataset, cut, Runtime(0, 0))
    for worker, measured in zip(plan.workers, summary["peak_train_bytes"], strict=True):
        assert measured * 0.85 - _FIXED <= worker.training <= measured * 1.15 + _FIXED
        assert min(worker.terms.values()) >= 0 and worker.phase
    if name == "smoothing":
        for worker, measured in zip(plan.workers, summary["peak_smooth_bytes"], strict=True):
            assert measured * 0.85 - _FIXED <= worker.smoothing <= measured * 1.15 + _FIXED
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert plan.sent == (None if name in NOT_SENT else rows[1]["comm_bytes"])


EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "message flows": ("sage", {"mfg": True}),
    "message flows, self-loops": ("gat", {"mfg": True, "precision": "fp32"}),
    "message flows, types": ("rgcn", {"mfg": True}),
    "message flows, all that travels": ("gcn", {"mfg": True, "aggregate": "post"}),
    "micro-batches by star": ("sage", {"batches": BatchesConfig(count=3)}),
    "micro-batches by reg": ("gat", {"batches": BatchesConfig(count=3, by="reg")}),
    "micro-batches by metis": ("rgcn", {"batches": BatchesConfig(count=2, by="metis")}),
    "micro-batches at random": ("gcn", {"batches": BatchesConfig(count=2, by="random"), "labels": LabelsConfig("masked")}),
    "micro-batches in order": ("sage", {"batches": BatchesConfig(count=2, by="range", flows="memory"), "mfg": True}),
    "samples": ("sage", {"sample": SampleConfig(fanouts=[3, 2, 4]), "batches": BatchesConfig(steps=4)}),
    "samples, self-loops": ("gcn", {"sample": SampleConfig(fanouts=[-1, 2, 2], every="epoch")}),
    "samples, types": ("rgcn", {"sample": SampleConfig(fanouts=[3, 3, 3]), "batches": BatchesConfig(count=2)}),
    "steps": ("sage", {"batches": BatchesConfig(steps=5, count=2)}),
    "servers": ("sage", {"servers": 2}),
    "servers, message flows": ("gat", {"servers": 2, "mfg": True}),
    "servers, types": ("rgcn", {"servers": 2, "batches": BatchesConfig(count=2)}),
    "servers, samples": ("sage", {"servers": 2, "sample": SampleConfig(fanouts=[2, 2, 2])}),
}


@pytest.mark.parametrize("name", EXACT)
def test_sizes_are_those_of_a_runs_views(name: str) -> None:
    """On four workers: rows by layer and type, edges, and halo rows that travel."""
    model, settings = EXACT[name]
    config = cases.run_config(cases.model_config(model), world=4, **settings)
    dataset = cases.graph_for(model)
    found = pool(4)(sizes_here, config, dataset)
    account = Account(config, shape_of(dataset, config), dataset.num_nodes)
    part = assign(dataset, config.partitioner.choice, 4)
    views = Views(config, dataset, part, None, shape_of(dataset, config), account.engine, account.model)
    count = config.batches.count
    assert isinstance(count, int)
    for rank, (training, evaluation) in enumerate(found):
        own = views.worker(rank, count)
        assert [one.sizes.counts for one in own.training] == [one.counts for one in training]
        assert [one.sizes.halo for one in own.training] == [one.halo for one in training]
        if own.evaluation is not None:
            assert without_targets(own.evaluation.sizes) == without_targets(evaluation)
            assert own.evaluation.sizes.halo == evaluation.halo


@pytest.mark.parametrize(("model", "steps", "count"), [("sage", 5, 2), ("gcn", 1, 3), ("rgcn", 2, 1)])
def test_sizes_of_links_are_those_of_a_runs_views(model: str, steps: int, count: int) -> None:
    """Of the pairs and negatives of the first views."""
    config = cases.run_config(cases.model_config(model), world=4, batches=BatchesConfig(steps=steps, count=count))
    config = dataclasses.replace(config, task="links", links=LinksConfig(embedding_dim=6, negatives=2, strict=True))
    dataset = draw_links(cases.graph_for(model), [0.6, 0.2, 0.2])
    shape = shape_of(dataset, config)
    account = Account(config, shape, dataset.num_nodes)
    part = assign(dataset, config.partitioner.choice, 4)
    views = Views(config, dataset, part, None, shape, account.engine, account.model)
    for rank, (training, _) in enumerate(pool(4)(sizes_here, config, dataset)):
        own = views.worker(rank, count).training
        assert len(own) == min(LOOKED_AT, len(training))
        assert [without_targets(one.sizes) for one in own] == [without_targets(one) for one in training[: len(own)]]
        assert [one.sizes.halo for one in own] == [one.halo for one in training[: len(own)]]


def sizes_here(group: Group, config: RunConfig, dataset: Dataset) -> tuple[list[Sizes], Sizes]:
    """Of the training views of the first steps, and of what evaluations read."""
    trainer = cases.trainer_of(group, config, dataset)

    def sizes(view: View) -> Sizes:
        return sizes_of_plans(view.flow.plans, trainer.graph.num_rows, len(view.targets.rows.get("train", ())))

    trainer.loop.steps.begin(0)
    training = []
    for step in range(min(trainer.loop.steps.count, LOOKED_AT)):
        views = trainer.loop.steps.views(step)
        training += [sizes(views[number]) for number in range(len(views))]
    return training, sizes(trainer.evaluation)


@pytest.mark.parametrize(
    ("name", "aggregate"),
    [("message flows", "fastest"), ("message flows, types", "post"), ("micro-batches by star", "least")],
)
def test_bytes_are_those_of_a_runs_views(name: str, aggregate: str) -> None:
    """Of the second epoch: aggregates of constant rows that stay have travelled by then."""
    model, settings = EXACT[name]
    config = cases.run_config(cases.model_config(model), world=4, epochs=2, **{**settings, "aggregate": aggregate})
    dataset = cases.graph_for(model)
    cut = cut_of(config, dataset, assign(dataset, config.partitioner.choice, 4))
    sent = plan_run(config, dataset, cut, Runtime(0, 0)).sent
    assert sent and sent == pool(4)(cases.curve, config, dataset)[0]["epoch_bytes"][1]


def without_targets(sizes: Sizes) -> dict[Any, int]:
    """An evaluation's wanted rows are of any split."""
    return {key: count for key, count in sizes.counts.items() if key[0] != "targets"}


@pytest.mark.parametrize("model", ["sage", "rgcn"])
def test_parts_are_counted_before_there_is_a_partition(model: str) -> None:
    """Own rows, edges, rows of others and rows that others read, of an assignment alone."""
    dataset = cases.graph_for(model)
    part = assign(dataset, "random", 4)
    counted = cut_of(cases.run_config(cases.model_config(model), world=4), dataset, part).parts
    for sizes, own in zip(counted, parts_of(dataset, part, 4), strict=True):
        assert sizes.rows == sizes.inner == tuple(np.diff(own.row_bounds))
        assert sizes.edges == tuple(np.diff(own.edge_offsets).reshape(4, -1).sum(0))
        assert (sizes.halo, sizes.sent) == (len(own.halo_ids), len(own.send_rows)) and sizes.halo
        assert sizes.targets == in_split(own.split, "train").sum() and sizes.split == (own.split > 0).sum()


def test_a_budget_that_nothing_fits() -> None:
    config = cases.run_config(cases.model_config("sage", norm="layer"), batches=BatchesConfig(count="auto"), world=2)
    config = dataclasses.replace(config, memory_budget=MemoryConfig("257MB"))
    dataset = cases.graph_for("sage")
    with pytest.raises(ConfigError, match="No number of micro-batches fits"):
        plan_views(config, dataset, Cut(assign(dataset, "random", 2), [], 0, None, exact=False), Runtime(300_000_000, 0))


def test_as_few_micro_batches_as_fit(tmp_path: Path) -> None:
    """Of a graph without a partition; with one less than that number the largest worker does not fit."""
    words = [*GRAPH, "model=sage", "model.norm=layer", "batches.count=auto", f"store_dir={tmp_path}/stores"]
    config, dataset, cut = planned([*words, "memory_budget=900GB"])
    assert not cut.exact and cut.store is None
    runtime = Runtime(200_000_000, 0)

    def peak(plan: WorldPlan) -> int:
        """Of training, of the whole."""
        return max(sum(worker.terms[name] for name in BEFORE_TRAINING) + worker.training for worker in plan.workers)

    def with_batches(count: int) -> WorldPlan:
        batches = dataclasses.replace(config.batches, count=count)
        return plan_run(dataclasses.replace(config, memory_budget=MemoryConfig(), batches=batches), dataset, cut, runtime)

    assert plan_run(config, dataset, cut, runtime).batches == 1
    limit = peak(with_batches(3)) / 1e6 + 0.01
    found = plan_run(dataclasses.replace(config, memory_budget=MemoryConfig(f"{limit:.2f}MB")), dataset, cut, runtime)
    assert found.largest.total <= limit * 1e6  # evaluations in groups of rows, too
    assert 1 < found.batches <= 3 and peak(found) <= limit * 1e6 < peak(with_batches(found.batches - 1))


def test_the_phase_of_smoothing() -> None:
    """Where a narrow model is smoothed for many classes, that is when most is held."""
    config = cases.run_config(cases.model_config("linear", norm="none"), world=1)
    config = dataclasses.replace(config, smooth=dataclasses.replace(config.smooth, name="cs"))
    dataset = dataclasses.replace(cases.graph_for("sage", 1), num_classes=400)
    part = assign(dataset, "random", 1)
    account = Account(config, shape_of(dataset, config), dataset.num_nodes)
    views = Views(config, dataset, part, None, shape_of(dataset, config), account.engine, account.model)
    found = account.worker(views.part_sizes(0), Runtime(0, 0, 0))
    assert found.phase == SMOOTHING
    assert found.smoothing >= 5 * 400 * 8 * dataset.num_nodes  # fp64: scores, residuals, and three while they spread
