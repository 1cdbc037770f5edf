"""Message-flow graphs and label inputs: first steps against the dense oracle, whole curves, and that no label leaks."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sargnn.backends.block import EdgeBlock
from sargnn.comm.group import Group
from sargnn.config.groups import LabelsConfig
from sargnn.config.run import RunConfig
from sargnn.graph.dataset import Dataset
from sargnn.graph.schema import SPLITS
from sargnn.plan.layer_plan import LayerPlan
from tests.graphs import NUM_CLASSES
from tests.parity import cases
from tests.parity.cases import MASKED, QUICK, REUSED
from tests.parity.checks import GRAPHS, assert_same_curve, check
from tests.parity.covering import only, spread
from tests.parity.oracle import carried_labels, needed_rows
from tests.pool import pool


def with_few_labels(dataset: Dataset, keep: int) -> Dataset:
    """Only the first ``keep`` training nodes stay in the split, beside some for validation."""
    split = np.array(dataset.split)
    train = np.flatnonzero(split == SPLITS["train"])
    split[train[keep:]] = 0
    valid = np.flatnonzero(split == SPLITS["valid"])
    split[valid[2 * keep :]] = 0
    return dataclasses.replace(dataset, split=split)


for _name in cases.NAMES:
    GRAPHS[f"few {_name}"] = with_few_labels(cases.graph_for(_name), 6)
GRAPHS["few mlp"] = GRAPHS["few sage"]


WHERE = [("range", 1), ("random", 2), ("range", 4), ("apart", 4)]


@pytest.mark.parametrize(("name", "mode", "kernel", "partitioner", "world"), cases.spread_models(QUICK, WHERE))
def test_message_flow_first_step(name: str, mode: str, kernel: str, partitioner: str, world: int) -> None:
    """Few training nodes, so that some ranks keep no row of some layers; batch norm over the rows that are kept."""
    model = cases.model_config(name, **({"residual": True} if name == "gcn" else {}))
    check(model, f"few {name}", mode=mode, kernel=kernel, partitioner=partitioner, world=world, mfg=True)


@pytest.mark.parametrize(
    ("mode", "kernel", "order", "partitioner"),
    spread(QUICK, ["transform_first", "aggregate_first"], ["metis", "by_type"]),
)
def test_message_flow_where_ranks_lack_types(mode: str, kernel: str, order: str, partitioner: str) -> None:
    model = cases.model_config("rgcn", order=order, bases=2)
    check(model, "few rgcn", mode=mode, kernel=kernel, partitioner=partitioner, world=4, mfg=True, message_rows=7)


@pytest.mark.parametrize(
    ("name", "mode", "kernel", "reuse", "mfg"),
    [
        *cases.spread_models(QUICK, [0, 2], [False, True]),
        *spread(["mlp"], QUICK, [0, 2], [False, True]),
    ],
)
def test_labels_first_step(name: str, mode: str, kernel: str, reuse: int, mfg: bool) -> None:
    labels = dataclasses.replace(MASKED, reuse=reuse)
    choices: dict[str, Any] = {"mode": mode, "kernel": kernel, "partitioner": "random", "world": 4, "mfg": mfg}
    check(cases.model_config(name), name if name != "mlp" else "sage", labels=labels, **choices)


@pytest.mark.parametrize(
    ("variant", "mode"),
    spread(["input_dropout", "residual", "one_layer", "max", "aggregate_first"], ["sar", "one_shot", "domain_parallel"]),
)
def test_label_variants(variant: str, mode: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "input_dropout": {"input_dropout": 0.3}, "residual": {"residual": True, "hidden": 11 + NUM_CLASSES},
        "one_layer": {"num_layers": 1}, "max": {"aggregator": "max"}, "aggregate_first": {"hidden": 60},
    }  # fmt: skip
    check(cases.model_config("sage", **changes[variant]), "sage", labels=MASKED, mode=mode, world=4, mfg=True)


CURVES: dict[str, tuple[str, str, str, str, int, LabelsConfig, bool]] = {
    "sage-sar-4": ("sage", "sar", "fused", "metis", 4, REUSED, True),
    "sage-domain_parallel-2": ("sage", "domain_parallel", "dgl", "random", 2, MASKED, True),
    "sage-one_shot-4": ("sage", "one_shot", "fused", "metis", 4, MASKED, False),
    "gat-sar-4": ("gat", "sar", "fused", "random", 4, MASKED, True),
    "gatv2-no_remat-2": ("gatv2", "no_remat", "dgl", "random", 2, LabelsConfig(), True),
    "gcn-sar-8": ("gcn", "sar", "fused", "empty", 8, MASKED, True),
    "rgcn-sar-4": ("rgcn", "sar", "fused", "by_type", 4, REUSED, True),
    "rgcn-domain_parallel-4": ("rgcn", "domain_parallel", "dgl", "metis", 4, LabelsConfig(), True),
    "sgc-sar-4": ("sgc", "sar", "fused", "metis", 4, REUSED, True),
    "appnp-one_shot-4": ("appnp", "one_shot", "fused", "random", 4, MASKED, True),
    "gcnii-sar-4": ("gcnii", "sar", "fused", "metis", 4, MASKED, True),
    "mlp-sar-4": ("mlp", "sar", "fused", "random", 4, MASKED, True),
    "label_propagation-one_shot-4": ("label_propagation", "one_shot", "fused", "metis", 4, LabelsConfig(), False),
}


FEW = ("sage-sar-4", "sage-domain_parallel-2", "rgcn-sar-4", "appnp-one_shot-4", "mlp-sar-4", "label_propagation-one_shot-4")


def graph(name: str) -> Dataset:
    return GRAPHS[name] if name in GRAPHS else GRAPHS["sage"]


@cache
def single(name: str, labels: LabelsConfig, mfg: bool) -> dict[str, Any]:
    config = cases.run_config(cases.model_config(name), kernel="reference", labels=labels, mfg=mfg)
    return cases.curve(Group.single(), config, graph(name))


@pytest.mark.parametrize("case", only(FEW, CURVES))
def test_curve(case: str) -> None:
    """With dropout, batch norm and label draws, and the last evaluation, on any number of workers."""
    name, mode, kernel, partitioner, world, labels, mfg = CURVES[case]
    config = cases.run_config(
        cases.model_config(name), mode=mode, kernel=kernel, partitioner=partitioner, world=world, labels=labels, mfg=mfg
    )
    want = single(name, labels, mfg)
    for answer in pool(world)(cases.curve, config, graph(name)):
        assert_same_curve(answer["losses"], want["losses"], "fp64")
        assert answer["scores"] == want["scores"]


@pytest.mark.parametrize(
    ("name", "mode", "reuse", "norm"),
    cases.spread_models(["sar", "one_shot", "domain_parallel"], [None, REUSED.reuse], ["none", "layer"]),
)
def test_without_batch_norm_message_flow_changes_nothing(name: str, mode: str, reuse: int | None, norm: str) -> None:
    runs, labels = [], LabelsConfig() if reuse is None else REUSED
    for mfg in (False, True):
        model = cases.model_config(name, **cases.known(name, norm=norm))
        config = cases.run_config(model, mode=mode, world=2, epochs=2, labels=labels, mfg=mfg)
        runs.append(pool(2)(cases.curve, config, GRAPHS[f"few {name}"])[0])
    np.testing.assert_allclose(runs[1]["losses"], runs[0]["losses"], rtol=1e-8)
    assert runs[1]["scores"] == runs[0]["scores"]
    epoch = 0 if name == "sgc" and reuse is None else 1  # then nothing travels after the first
    assert runs[1]["epoch_bytes"][epoch] < runs[0]["epoch_bytes"][epoch]


def _rows(group: Group, config: RunConfig, dataset: Dataset) -> list[list[np.ndarray]]:
    trainer = cases.trainer_of(group, config, dataset)
    return [[plan.node_ids.numpy(), plan.self_rows(plan.node_ids).numpy()] for plan in trainer.training.flow.plans]


@pytest.mark.parametrize("name", ["sage", "gat", "rgcn"])
@pytest.mark.parametrize("world", [1, 4])
def test_each_layer_computes_what_reaches_a_training_node(world: int, name: str) -> None:
    dataset = GRAPHS[f"few {name}"]
    config = cases.run_config(cases.model_config(name), world=world, partitioner="random", mfg=True)
    answers = pool(world)(_rows, config, dataset)
    needed = needed_rows(config, dataset, [True] * 4)
    for layer in range(3):
        for which, wanted in ((0, needed[layer]), (1, needed[layer + 1])):
            ids = np.concatenate([answer[layer][which] for answer in answers])
            assert np.array_equal(np.sort(ids), np.flatnonzero(wanted.numpy()))
    assert len(needed[3].nonzero()) < len(needed[2].nonzero()) < len(needed[1].nonzero())


def _edges_by_source(group: Group, config: RunConfig, dataset: Dataset) -> list[list[bool]]:
    """Of training and of the evaluation, per layer, whether all edges are also in the order of their sources."""
    trainer = cases.trainer_of(group, config, dataset)
    trainer.loop.train_epoch(0)
    trainer.evaluator.evaluate()

    def blocks(plan: LayerPlan) -> list[EdgeBlock]:
        return [part.block for shard in (plan.shards or {}).values() for part in shard.relations]

    views = trainer.training, trainer.evaluation
    return [[all("_by_source" in vars(block) for block in blocks(plan)) for plan in view.flow.plans] for view in views]


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize(("name", "first"), [("sage", False), ("gat", True)])
def test_edges_are_ordered_for_gradients_where_there_are_any(name: str, first: bool, world: int) -> None:
    """Not those of an evaluation, nor those over which constant rows are summed."""
    config = cases.run_config(cases.model_config(name), world=world, partitioner="random", mfg=True)
    for training, evaluation in pool(world)(_edges_by_source, config, GRAPHS[f"few {name}"]):
        assert training == [first, True, True] and evaluation == [False] * 3


def _logits(group: Group, config: RunConfig, dataset: Dataset, epoch: int | None) -> tuple[np.ndarray, np.ndarray]:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.engine.epoch = epoch or 0
    trainer.model.train(epoch is not None)
    with torch.no_grad():
        view = trainer.training if epoch is not None else trainer.evaluation
        return view.flow.own_outputs(trainer.ids).numpy(), trainer.forward.logits(view, epoch).numpy()


@pytest.mark.parametrize(
    ("name", "world", "reuse", "mfg"), spread(["sage", "gat", "rgcn"], [1, 4], [0, 1], [False, True])
)  # fmt: skip
def test_no_label_leaks(name: str, world: int, reuse: int, mfg: bool) -> None:
    """Flipping the labels of the predicted nodes changes no logit, in training and in evaluation; of a carried one it does."""
    dataset, epoch = GRAPHS[name], 2
    labels = LabelsConfig("masked", 0.4, reuse)
    config = cases.run_config(cases.model_config(name), world=world, labels=labels, partitioner="random", mfg=mfg)
    train = np.asarray(dataset.split) == SPLITS["train"]
    carried = carried_labels(config, dataset, epoch).numpy()
    assert 0 < carried.sum() < train.sum()

    def answers(flipped: np.ndarray, epoch: int | None) -> np.ndarray:
        changed = np.where(flipped, (np.asarray(dataset.labels) + 1) % NUM_CLASSES, dataset.labels)
        parts = pool(world)(_logits, config, dataclasses.replace(dataset, labels=changed), epoch)
        ids, logits = (np.concatenate(one) for one in zip(*parts, strict=True))
        return logits[np.argsort(ids)]

    nothing = np.zeros(len(train), bool)
    predicted, others = train & ~carried, np.asarray(dataset.split) > SPLITS["train"]
    before = answers(nothing, epoch)
    assert np.array_equal(before, answers(predicted | others, epoch))
    assert not np.array_equal(before, answers(carried, epoch))
    before = answers(nothing, None)
    assert np.array_equal(before, answers(others, None))
    assert not np.array_equal(before, answers(train, None))


@pytest.mark.parametrize(("name", "mode"), spread(["sage", "gcn", "max", "sgc"], ["sar", "no_remat", "one_shot"]))
def test_only_label_columns_are_aggregated_every_epoch(name: str, mode: str) -> None:
    """The features' aggregate is kept: less travels from the second epoch on, and nothing else changes."""
    model = cases.model_config("sage", aggregator="max") if name == "max" else cases.model_config(name)
    runs = []
    for cache_static in ("auto", False):
        config = cases.run_config(
            model, mode=mode, world=4, epochs=2, labels=MASKED, cache_static=cache_static, aggregate="post"
        )
        runs.append(pool(4)(cases.curve, config, GRAPHS["sage"])[0])
    assert runs[0]["losses"] == runs[1]["losses"]
    first, second = runs[0]["epoch_bytes"][:2]
    halo = sum(
        answer["halo_rows"]
        for answer in pool(4)(cases.step, cases.run_config(model, world=4, aggregate="post"), GRAPHS["sage"])
    )
    assert first - second == halo * 8 * 11 * (2 if name == "sgc" else 1)  # the features' rows, in each step
    assert set(runs[1]["epoch_bytes"]) == {first}
