"""Micro-batches and kept layers that fit a memory budget, and what is said where nothing does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from sargnn.cli.main import main
from sargnn.comm.group import Group
from sargnn.config.groups import BatchesConfig, LinksConfig, MemoryConfig, read_size
from sargnn.config.models import CustomSettings
from sargnn.config.run import RunConfig
from sargnn.engine.segments import layer_runs
from sargnn.errors import ConfigError
from sargnn.memory import budget as budget_module
from sargnn.memory.plan_run import Cut, plan_run
from sargnn.memory.plan_worker import Runtime
from sargnn.sources.links import draw_links
from tests.graphs import asked_graph, nasty_graph
from tests.in_process import sargnn_here
from tests.parity import cases
from tests.run.runs import summary_of

_LINKS = ["task=links", "dataset.link_split=[0.85,0.05,0.1]", "model=sage", "model.num_layers=2"]
_MODULE = Path(__file__).parents[2] / "examples" / "layers" / "dgl_gat.py"


def test_runs_of_layers() -> None:
    assert [len(one) for one in layer_runs(56, "sqrt")] == [11, 10, 9, 8, 7, 6, 5]
    for depth in range(1, 40):
        for keep in ("all", "sqrt", 1, 2, 5, 100):
            runs = layer_runs(depth, keep)
            assert [index for one in runs for index in one] == list(range(depth))
            assert len(runs) <= (depth if keep == 100 else 1 if keep in ("all", 1) else 1000)
        # While a run goes backward, the inputs of those up to it and what its layers keep are held.
        assert max(k + len(one) for k, one in enumerate(layer_runs(depth, "sqrt"))) <= (2 * depth) ** 0.5 + 1


@pytest.mark.parametrize(("text", "size"), [("6GB", 6e9), ("500 MB", 5e8), ("1.5gb", 1.5e9)])
def test_sizes(text: str, size: float) -> None:
    assert read_size("memory_budget", text, "6GB") == size


@pytest.mark.parametrize("text", ["6", "much", "10MB", ""])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="'memory_budget' is no size"):
        read_size("memory_budget", text, "6GB")


def test_a_budget_that_everything_fits_takes_one_batch() -> None:
    model = cases.model_config("sage", norm="layer")
    config = dataclasses.replace(
        cases.run_config(model, precision="fp32", batches=BatchesConfig(count="auto")), memory_budget=MemoryConfig("900GB")
    )
    trainer = cases.trainer_of(Group.single(), config, nasty_graph())
    assert len(trainer.loop.steps.views(0)) == 1 and trainer.engine.keep_layers == "all" and len(trainer.evaluator.views) == 1
    assert trainer.planned_bytes is not None and trainer.planned_bytes[0] > 0


def test_the_search_doubles_and_bisects(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as fit: with a hundred megabytes for each K-th part of 1,600, at most 260 are 7 batches."""
    model = cases.model_config("sage", norm="layer")
    config = dataclasses.replace(
        cases.run_config(model, precision="fp32", batches=BatchesConfig(count="auto")), memory_budget=MemoryConfig("900GB")
    )
    tried: list[int] = []

    def planned(self: budget_module.Budget, count: int, keep: object) -> tuple[int, ...]:
        tried.append(count)
        return (1_600_000_000 // count,)

    def fits(self: budget_module.Budget, planned: tuple[int, ...], what: str) -> bool:
        return planned[0] <= 260_000_000

    monkeypatch.setattr(budget_module.Budget, "planned", planned)
    monkeypatch.setattr(budget_module.Budget, "fits", fits)
    trainer = cases.trainer_of(Group.single(), config, nasty_graph())
    assert len(trainer.loop.steps.views(0)) == 7 and tried == [1, 2, 4, 8, 6, 7]


def test_micro_batches_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit, with the losses and the metrics of one, which is measured in groups of rows; and where none do."""
    graph = draw_links(nasty_graph(), [0.6, 0.2, 0.2])
    model = cases.model_config("sage", norm="none", dropout=0.0)
    config = dataclasses.replace(cases.run_config(model), task="links", links=LinksConfig(embedding_dim=6))
    results = []
    for count, size in ((1, None), ("auto", "900GB")):
        batches, room = BatchesConfig(count=count), MemoryConfig(size)  # type: ignore[arg-type]
        trainer = cases.trainer_of(Group.single(), dataclasses.replace(config, batches=batches, memory_budget=room), graph)
        losses = [trainer.loop.train_epoch(epoch).loss for epoch in range(2)]
        results.append((losses, trainer.evaluator.evaluate().scores))
        monkeypatch.setattr(budget_module.Budget, "planned", lambda self, count, keep: (1_600_000_000 // count,))
        monkeypatch.setattr(budget_module.Budget, "fits", _fits)
    assert len(trainer.loop.steps.views(0)) == 7 and len(trainer.evaluator.views) == 4
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-12) and results[1][1] == pytest.approx(results[0][1])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="number of micro-batches"):
        cases.trainer_of(
            Group.single(), dataclasses.replace(config, batches=batches, memory_budget=MemoryConfig("257MB")), graph
        )


def _asking(**choices: Any) -> RunConfig:
    """32 queries a step."""
    model = CustomSettings("custom", target=f"{_MODULE.parent / 'nbfnet.py'}:NBFNet", args={"hidden": 8, "num_layers": 2})
    links = LinksConfig(loss="softmax", negatives=0, queries=32)
    return dataclasses.replace(cases.run_config(model), task="queries", links=links, metric="mrr", **choices)


def test_micro_batches_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as fit, with the losses and the ranks of one; and where none do."""
    graph, results = asked_graph(shares=(0.1, 0.05, 0.05)), []
    for size in ("900GB", "901GB"):
        config = _asking(batches=BatchesConfig(count="auto"), memory_budget=MemoryConfig(size))
        trainer = cases.trainer_of(Group.single(), config, graph)
        losses = [trainer.loop.train_epoch(epoch).loss for epoch in range(2)]
        results.append((len(trainer.loop.steps.views(0)), losses, trainer.evaluator.evaluate().scores))
        assert trainer.planned_bytes is not None and trainer.planned_bytes[0] > 0
        monkeypatch.setattr(budget_module.Budget, "planned", lambda self, count, keep: (1_600_000_000 // count,))
        monkeypatch.setattr(budget_module.Budget, "fits", lambda self, planned, what: planned[0] <= 260_000_000)
    assert [count for count, *_ in results] == [1, 7]
    assert results[1][1] == pytest.approx(results[0][1], rel=1e-12) and results[1][2] == pytest.approx(results[0][2])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"number of micro-batches[^$]*the least that a worker needs"):
        cases.trainer_of(Group.single(), dataclasses.replace(config, memory_budget=MemoryConfig("257MB")), graph)


def test_planned_micro_batches_of_queries() -> None:
    """The fewest that fit, of a graph that is not trained on."""
    graph = asked_graph(20_000, 60_000, (0.01, 0.001, 0.001))
    cut = Cut(np.zeros(graph.num_nodes, np.int32), [], 0, None, exact=False)

    def held(count: int | Literal["auto"], size: str | None = None) -> tuple[int, int]:
        config = _asking(batches=BatchesConfig(count=count), memory_budget=MemoryConfig(size))
        plan = plan_run(config, graph, cut, Runtime(0, 0, 0))
        return plan.batches, plan.largest.while_training

    _, whole = held(1)
    limit = whole * 2 // 5
    count, planned = held("auto", f"{limit / 1e6}MB")
    assert count > 2 and planned <= limit < held(count - 1)[1]
    with pytest.raises(ConfigError, match="the least that a worker needs"):
        held(1, f"{limit / 1e6}MB")


def _fits(self: budget_module.Budget, planned: tuple[int, ...], what: str) -> bool:
    """Seven micro-batches, and an evaluation in four groups."""
    return planned[0] <= 260_000_000 if what.startswith("batches") else what == "evaluation in 4 groups"


def test_more_batches_than_targets() -> None:
    config = cases.run_config(cases.model_config("sage", norm="layer"), batches=BatchesConfig(count=1000))
    with pytest.raises(ConfigError, match="more micro-batches than rank 0 has training nodes"):
        cases.trainer_of(Group.single(), config, nasty_graph())


def test_a_budget_that_nothing_fits() -> None:
    """The process is larger than that already."""
    for norm, says in (("layer", "number of micro-batches"), ("batch", "changes no loss")):
        model = cases.model_config("sage", norm=norm)
        config = dataclasses.replace(
            cases.run_config(model, precision="fp32", batches=BatchesConfig(count="auto")), memory_budget=MemoryConfig("257MB")
        )  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            cases.trainer_of(Group.single(), config, nasty_graph())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["batches.count=auto"], "the memory.*memory_budget=6GB"),
        (["batches.count=0"], "'batches.count'.*at least 1"),
        (["batches.count=many"], "'batches.count'.*many.*auto, a whole number"),
        (["batches.by=regg"], "'batches.by'.*'regg'.*reg"),
        (["engine.keep_layers=0"], "'engine.keep_layers'.*at least 1"),
        (["engine.keep_layers=most"], "'engine.keep_layers'.*most.*all, sqrt, a whole number"),
        (["batches.count=auto", "memory_budget=6"], "'memory_budget' is no size"),
        (["model=label_propagation", "batches.count=2"], "all nodes.*batches.count=1"),
        (["model=custom", f"model.target={_MODULE}:Gat", "engine.keep_layers=2"], "layers end"),
    ],
)
def test_mistakes(arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"run_dir={tmp_path / 'run'}", *arguments]) == 1
    assert re.search(says, " ".join(capsys.readouterr().err.split())), says


@pytest.mark.machine
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["model=gat", "model.hidden=16", "engine.keep_layers=2"], id="kept layers"),
        pytest.param(["model=sage", "model.norm=layer", "model.num_layers=2", "batches.count=2"], id="micro-batches"),
        pytest.param(["model=sage", "sample.fanouts=[5,5,5]", "batches.steps=2"], id="samples"),
        pytest.param(
            ["model=gcn", "sample.fanouts=[8,8,8]", "model.norm=layer", "batches.count=2"], id="samples, micro-batches"
        ),
        pytest.param(["model=sage", "model.num_layers=2", "batches.steps=4"], id="steps"),
        pytest.param([*_LINKS, "batches.steps=4"], id="steps of links"),
        pytest.param([*_LINKS, "batches.count=3", "links.negatives=3"], id="micro-batches of links"),
        pytest.param([*_LINKS, "batches.steps=8", "sample.fanouts=[10,5]"], id="samples of links"),
        pytest.param(
            ["model=sage", "model.aggregator=lstm", "mode=one_shot", "model.num_layers=1", "model.norm=none",
             "sample.fanouts=[10]", "sample.every=run", "eval=sampled", "batches.count=4"], id="an LSTM on samples",
        ),
    ],
)  # fmt: skip
def test_planned_is_what_is_held(words: list[str], tmp_path: Path) -> None:
    """In a process of its own, whose memory is measured."""
    graph = ["dataset=products_like", "dataset.scale=0.02", "world=1", "threads=1", "epochs=2", "memory_budget=90GB"]
    done = sargnn_here(tmp_path, "train", *graph, *words, "tracking=none", "run_dir=run")
    assert done.returncode == 0, done.stderr
    found = summary_of(tmp_path / "run")
    assert found["planned_train_bytes"][0] == pytest.approx(found["peak_train_bytes"][0], rel=0.15)
    assert "planned" in (tmp_path / "run" / "logs" / "rank_00.log").read_text()
    assert not (tmp_path / "run" / "scratch").exists()
