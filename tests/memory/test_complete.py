"""Everything that can be chosen is planned: each mode, reducer, model, grouping and view trains here, and what a record of all
operators sees it allocate is what the plan says; for three models also what PyTorch's own profiler sees. What is registered and
has no case fails by its name.

Letters: P workers.
"""

from __future__ import annotations

import atexit
import dataclasses
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

import sargnn
from sargnn.backends import memory as engine_pool
from sargnn.backends.torch.dgl_kernel import DglKernel
from sargnn.cli.compose import compose_verb
from sargnn.comm.group import Group
from sargnn.config.groups import (
    BatchesConfig,
    EngineConfig,
    LabelsConfig,
    LinksConfig,
    PreloadConfig,
    SampleConfig,
    SmoothConfig,
)
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig, parse
from sargnn.engine.modes import MODES
from sargnn.engine.reducers import REDUCERS, lstm
from sargnn.graph.dataset import Dataset, open_dataset
from sargnn.memory import account_trace
from sargnn.memory.account_trace import Trace, TracedPool, replay
from sargnn.memory.plan_run import Cut, plan_views
from sargnn.memory.plan_traffic import shape_of
from sargnn.memory.plan_views import Views, has_views
from sargnn.memory.plan_worker import Account, Runtime, WorkerPlan
from sargnn.models import MODELS
from sargnn.plan import GROUPINGS
from sargnn.plan.sizes import Sizes
from sargnn.sources.prepare import prepare_dataset
from tests.graphs import asked_graph, assign, nasty_graph
from tests.parity import cases
from tests.parity.covering import only, spread
from tests.pool import pool

_NODES, _WIDE = 3000, {"hidden": 32, "embedding": 32}
_MODULE = Path(__file__).parents[2] / "examples" / "layers" / "written.py"
Settings = dict[str, Any]

REDUCER_CASES: dict[str, tuple[str, Settings]] = dict(cases.REDUCER_CASES)
MODE_CASES = {"sar": 2, "no_remat": 2, "one_shot": 2, "domain_parallel": 2}
"""The number of workers."""
MODEL_CASES = [*cases.MODEL_CASES, "custom"]
VIEW_CASES: dict[str, tuple[str, Settings]] = {
    "batches=micro": ("sage", {"batches": BatchesConfig(count=3)}),
    "sample=neighbours": ("sage", {"sample": SampleConfig(fanouts=[3, 3, 3])}),
    "preload=none": ("sage", {"mfg": True}),
    "preload=shared": ("sage", {"servers": 2}),
    "preload=auto": ("sage", {"servers": 2, "preload": PreloadConfig("shared")}),  # planned as if it were chosen
    "smooth=none": ("gat", {"mfg": True}),
    "smooth=cs": ("sage", {"smooth": SmoothConfig("cs")}),
    "labels=none": ("gcn", {}),
    "labels=masked": ("sage", {"labels": LabelsConfig("masked", reuse=1)}),
    **{f"batches.by={name}": ("gat", {"batches": BatchesConfig(count=2, by=name)}) for name in GROUPINGS},
}
SETTINGS_CASES: dict[type, dict[str, tuple[str, Settings] | None]] = {
    BatchesConfig: {
        "name": None,
        "count": VIEW_CASES["batches=micro"],
        "by": VIEW_CASES["batches.by=star"],
        "flows": ("sage", {"batches": BatchesConfig(count=3, flows="memory")}),
        "steps": ("sage", {"batches": BatchesConfig(steps=2)}),
    },
    SampleConfig: {
        "name": None,
        "fanouts": VIEW_CASES["sample=neighbours"],
        "every": ("gcn", {"sample": SampleConfig(fanouts=[2, 2, 2], every="epoch")}),
    },
    PreloadConfig: {
        "name": VIEW_CASES["preload=shared"],
        "max_hop": ("sage", {"servers": 2, "preload": PreloadConfig("shared", max_hop=1)}),
        "fanout": ("sage", {"servers": 2, "preload": PreloadConfig("shared", fanout=2)}),
    },
    SmoothConfig: {
        "name": VIEW_CASES["smooth=cs"],
        "autoscale": ("sage", {"smooth": SmoothConfig("cs", autoscale=False)}),
        **dict.fromkeys(
            ("scale", "correct_alpha", "smooth_alpha", "correct_steps", "smooth_steps", "correct_adjacency",
             "smooth_adjacency"),
        ),
    },
    LabelsConfig: {
        "name": VIEW_CASES["labels=masked"],
        "rate": None,
        "reuse": VIEW_CASES["labels=masked"],
    },
    EngineConfig: {
        "cache_static": ("sage", {"cache_static": False}),
        "column_groups": ("sage", {"column_groups": 2}),
        "edge_rows": None,
        "keep_layers": ("gcn", {"keep_layers": 2, "mfg": True}),
    },
}  # fmt: skip
"""Of each group of settings what decides bytes, with a case; None: it decides none."""
VIEWS = [name for name in VIEW_CASES if "auto" not in name]
SETTINGS = [
    (group, name)
    for group, own in SETTINGS_CASES.items()
    for name, one in own.items()
    if one is not None and one not in VIEW_CASES.values()
]
"""What is trained; of each list every other one in ``make test``."""


def registered_views() -> list[str]:
    """What the command line offers of each kind of view, and the groupings."""
    folder = Path(sargnn.__file__).parents[1] / "conf"
    kinds = ("batches", "sample", "preload", "smooth", "labels")
    files = [(kind, file.stem) for kind in kinds for file in sorted((folder / kind).glob("*.yaml"))]
    return [f"{kind}={name}" for kind, name in files if not name.startswith("_")] + [f"batches.by={one}" for one in GROUPINGS]


def without_case(known: Iterable[str], table: Iterable[str]) -> list[str]:
    """Names of one and not of the other."""
    return sorted(set(known) ^ set(table))


def test_everything_has_a_case() -> None:
    assert not without_case(REDUCER_CASES, REDUCERS), "reducers"
    assert not without_case(MODE_CASES, MODES), "modes"
    assert not without_case(MODEL_CASES, MODELS), "models"
    assert not without_case(VIEW_CASES, registered_views()), "views"
    for group, own in SETTINGS_CASES.items():
        assert not without_case(own, [one.name for one in dataclasses.fields(group)]), group.__name__


@cache
def graph_for(model: str) -> Dataset:
    """Of some thousand nodes; a typed one where the model is for such."""
    if model != "rgcn":
        return nasty_graph(_NODES)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = ["dataset=mag_like", "dataset.scale=0.004", f"store_dir={folder}"]
    config = parse(compose_verb("train", words))
    found = open_dataset(prepare_dataset(config.dataset, config.store_dir, config.prepare.bytes), verify=False)
    held = {one.name: getattr(found, one.name) for one in dataclasses.fields(found)}
    held = {name: np.array(value) if isinstance(value, np.memmap) else value for name, value in held.items()}
    held["features"] = tuple(np.array(table) for table in found.features)
    return dataclasses.replace(found, **held)  # in memory, to be sent to other processes


def config_for(model: str, changes: Settings, *, world: int = 1, mode: str = "sar") -> RunConfig:
    """A run in fp32. changes: of the model, where it has such settings, and of the run."""
    if model == "custom":
        settings: Any = CustomSettings("custom", target=f"{_MODULE}:Net")
    else:
        of_model = cases.known(model, **{**_WIDE, "norm": "layer", **changes})
        settings = cases.model_config(model, **of_model)
        changes = {name: value for name, value in changes.items() if name not in of_model}
    return cases.run_config(settings, mode=mode, world=world, precision="fp32", epochs=2, **changes)


def plans(config: RunConfig, dataset: Dataset) -> tuple[list[WorkerPlan], list[int]]:
    """Each worker's plan without any allowance for libraries, and bytes of it that PyTorch does not allocate."""
    part, runtime = assign(dataset, config.partitioner.choice, config.world), Runtime(0, 0, 0)
    shape = shape_of(dataset, config)
    account = Account(config, shape, dataset.num_nodes)
    views = Views(config, dataset, part, None, shape, account.engine, account.model)
    parts = [views.part_sizes(rank) for rank in range(config.world)]
    if not has_views(config):
        return [account.worker(one, runtime) for one in parts], [0] * config.world
    count = config.batches.count
    assert isinstance(count, int)
    unseen = []
    for rank, one in enumerate(parts):
        own = views.worker(rank, count)
        held = [
            view.sizes.flow_bytes + view.sizes.counts["out", 0, -1] * 4 * account.model.inputs.width for view in own.training
        ]
        made_later = 0 if config.mfg or not (config.trains_on_flows or config.asks_queries) else max(held)
        unseen.append(account.bytes_since(one, own) + (sum(held) if config.batches.flows == "memory" else made_later))
    return plan_views(config, dataset, Cut(part, [], 0, None, exact=False), runtime).workers, unseen


def allocated(trace: Trace) -> int:
    """The most that was held while a record was made, bytes, with a pool that does as the engine's."""
    nothing = Sizes({}, (), ())
    return replay(trace.events, nothing, nothing).peak


def train_here(group: Group, config: RunConfig, dataset: Dataset) -> int:
    """The most that two epochs allocate, by a record of all operators."""
    trace = Trace()
    trainer = cases.trainer_of(group, config, dataset, lambda *, enabled: TracedPool(trace, enabled=enabled))
    with trace:
        for epoch in range(2):
            trainer.loop.train_epoch(epoch)
    return allocated(trace)


def profiled(config: RunConfig, dataset: Dataset) -> int:
    """The same, by PyTorch's profiler: the most that is allocated and not freed meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_pool, "SMALLEST", 1)
        trainer = cases.trainer_of(Group.single(), config, dataset)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            for epoch in range(2):
                trainer.loop.train_epoch(epoch)
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    return int(held.max())


@pytest.fixture(autouse=True)
def tables_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of graphs as small as these all come from the pool; and PyTorch sees nothing of what DGL allocates."""
    monkeypatch.setattr(account_trace, "SMALLEST", 1)
    monkeypatch.setattr(DglKernel, "graph_bytes", lambda *_, **__: 0)
    monkeypatch.setattr(lstm, "EDGES_AT_ONCE", 1500)  # which batches of larger graphs come to
    monkeypatch.setattr(lstm.Lstm, "library_bytes", 0)  # only tensors are compared


def check(config: RunConfig, dataset: Dataset, within: float = 0.07) -> None:
    """On every worker, what is planned is what is allocated, up to a share of it."""
    workers, unseen_bytes = plans(config, dataset)
    if config.world == 1:
        measured = [train_here(Group.single(), config, dataset)]
    else:
        measured = pool(config.world)(train_here, config, dataset)
    for plan, unseen, most in zip(workers, unseen_bytes, measured, strict=True):
        check_plan(plan, most, within, unseen)


def check_plan(plan: WorkerPlan, most: int, within: float, unseen: int = 0) -> None:
    assert most * (1 - within) - 50_000 <= plan.training <= most * (1 + within) + 50_000 + unseen, (plan, unseen, most)


@pytest.mark.parametrize("name", only(["gat"], ["sage", "gat", "rgcn"]))
def test_as_the_profiler_counts(name: str) -> None:
    """It loses events now and then, and never adds any: what it sees is the record's, or less."""
    config, dataset = config_for(name, {}), graph_for(name)
    (plan,), _ = plans(config, dataset)
    check_plan(plan, max(profiled(config, dataset) for _ in range(2)), 0.07)


@pytest.mark.parametrize("name", only([*MODEL_CASES][::2], MODEL_CASES))
def test_models(name: str) -> None:
    check(config_for(name, {}), graph_for(name))


@pytest.mark.parametrize("name", only([*REDUCER_CASES][::2], REDUCER_CASES))
def test_reducers(name: str) -> None:
    model, changes = REDUCER_CASES[name]
    check(config_for(model, changes), graph_for(model), 0.15 if name == "lstm" else 0.07)  # an LSTM's depend on degrees


@pytest.mark.parametrize(("mode", "model"), spread(list(MODE_CASES), ["sage", "gat"]))
def test_modes(mode: str, model: str) -> None:
    check(config_for(model, {"message_rows": 128}, world=MODE_CASES[mode], mode=mode), graph_for(model))


@pytest.mark.parametrize("name", only(VIEWS[::2], VIEWS))
def test_views(name: str) -> None:
    model, changes = VIEW_CASES[name]
    check(config_for(model, changes, world=max(1, changes.get("servers", 1))), graph_for(model))


@pytest.mark.parametrize("setting", only(SETTINGS[::2], SETTINGS), ids=lambda setting: f"{setting[0].__name__}-{setting[1]}")
def test_settings(setting: tuple[type, str]) -> None:
    group, name = setting
    case = SETTINGS_CASES[group][name]
    assert case is not None
    check(config_for(case[0], case[1], world=max(1, case[1].get("servers", 1))), graph_for(case[0]))


QUERY_CASES = [("sar", 2, 2), ("domain_parallel", 2, 1), ("no_remat", 1, 2), ("one_shot", 2, 1)]
"""Mode, workers and micro-batches."""


@pytest.mark.parametrize("case", only(QUERY_CASES[:1], QUERY_CASES))
def test_queries(case: tuple[str, int, int]) -> None:
    """Of three layers, whose rows are tables of queries, on others' rows, too."""
    mode, world, count = case
    model = CustomSettings("custom", target=f"{_MODULE.parent / 'nbfnet.py'}:NBFNet", args={"hidden": 8, "num_layers": 3})
    config = cases.run_config(model, mode=mode, world=world, precision="fp32", batches=BatchesConfig(count=count))
    links = LinksConfig(loss="softmax", negatives=0, queries=24)
    graph = asked_graph(1000, 4000, (0.002, 0.001, 0.001))
    config = dataclasses.replace(config, task="queries", links=links, metric="mrr")
    check(config, graph, 0.12 if mode == "domain_parallel" else 0.07)  # a copy of own rows takes the place of some


def test_an_average_of_the_parameters_is_planned() -> None:
    """With the norm of all gradients, which holds nothing of their size."""
    dataset, without = graph_for("sage"), config_for("sage", {"hidden": 1024})
    config = dataclasses.replace(without, optim=dataclasses.replace(without.optim, average=0.9, clip=1.0))
    check(config, dataset, 0.02)
    (plan,), (before,) = plans(config, dataset)[0], plans(without, dataset)[0]
    assert plan.evaluation - before.evaluation == plan.terms["parameters"] > 100_000


@pytest.mark.parametrize("autoscale", [True, False])
def test_smoothing(autoscale: bool) -> None:
    config = config_for("gcn", {"smooth": SmoothConfig("cs", autoscale=autoscale, correct_steps=3, smooth_steps=3)})
    dataset = graph_for("gcn")
    trace = Trace()
    trainer = cases.trainer_of(Group.single(), config, dataset, lambda *, enabled: TracedPool(trace, enabled=enabled))
    with trace:
        trainer.evaluator.smoothed(trainer.rows.new_zeros(_NODES, dataset.num_classes))
    most = allocated(trace)
    (plan,), _ = plans(config, dataset)
    states = sum(one.nbytes for one in trainer.optimization.parameters)
    plan_of_data = plan.smoothing - states - most
    assert -0.05 * most <= plan_of_data <= 0.05 * most + 8 * dataset.num_edges + 60 * _NODES
