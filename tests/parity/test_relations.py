"""R-GCN on a typed graph: both orders, full weights and bases, where ranks lack types, relations and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sargnn.comm.group import Group
from sargnn.config.run import RunConfig
from sargnn.errors import ConfigError
from sargnn.graph.dataset import Dataset
from sargnn.partition.cut import parts_of
from sargnn.tasks.base import Counted
from tests.graphs import assign, knowledge_graph, typed_graph
from tests.parity import cases
from tests.parity.cases import QUICK
from tests.parity.checks import GRAPHS, check
from tests.parity.covering import spread
from tests.pool import pool

GRAPH = typed_graph()
ORDERS = ["transform_first", "aggregate_first"]


WHERE = [("range", 1), ("random", 2), ("by_type", 4), ("apart", 4)]


@pytest.mark.parametrize(
    ("mode", "kernel", "order", "bases", "partitioner", "world"), spread(QUICK, ORDERS, [None, 1, 3], WHERE)
)
def test_orders_and_bases(mode: str, kernel: str, order: str, bases: int | None, partitioner: str, world: int) -> None:
    model = cases.model_config("rgcn", order=order, bases=bases, residual=bases == 3)
    check(model, mode=mode, kernel=kernel, partitioner=partitioner, world=world)


class _Sizes(TorchDispatchMode):
    """How many numbers each result of an operator has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.seen |= {result.numel() for result in tree_leaves(results) if isinstance(result, torch.Tensor)}
        return results


@pytest.mark.parametrize("bases", [2, None])
@pytest.mark.parametrize("order", ORDERS)
def test_bases_make_no_table_of_all_weights(order: str, bases: int | None) -> None:
    """In forward, backward and the optimizer's step, of 61 relations."""
    config = cases.run_config(cases.model_config("rgcn", order=order, bases=bases))
    trainer = cases.trainer_of(Group.single(), config, knowledge_graph(relations=61, share=0.02))
    with _Sizes() as sizes:
        trainer.loop.train_epoch(0)
    whole = {61 * layer.in_width * layer.out_width for layer in cases.graph_layers(trainer)}
    assert whole <= sizes.seen if bases is None else not whole & sizes.seen


@pytest.mark.parametrize(("kernel", "order", "rows"), spread(["fused", "dgl", "reference"], ORDERS, [1, 7, 30]))
def test_blocks_of_any_size(kernel: str, order: str, rows: int) -> None:
    """Small messages also cut the own blocks, by source and by destination rows."""
    model = cases.model_config("rgcn", order=order, input_dropout=0.3)
    check(model, kernel=kernel, partitioner="metis", world=4, message_rows=rows)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["sar", "one_shot", "domain_parallel"])
def test_embeddings_of_another_width_map_all_features(mode: str, order: str) -> None:
    check(cases.model_config("rgcn", order=order, embedding=6), mode=mode, partitioner="metis", world=2)


@pytest.mark.parametrize(
    ("mode", "kernel", "order", "kind", "layers"),
    spread(QUICK, ["auto", *ORDERS], ["sink", "features", "one_type", "names", "homogeneous"], [1, 3]),
)
def test_graphs_at_the_edge(mode: str, kernel: str, order: str, kind: str, layers: int) -> None:
    """No relation into the labelled type; constant inputs; one type; awkward names; no types at all."""
    check(cases.model_config("rgcn", order=order, num_layers=layers), kind, mode=mode, kernel=kernel, world=2)


@pytest.mark.parametrize("mode", ["sar", "one_shot", "domain_parallel"])
@pytest.mark.parametrize("order", ["auto", *ORDERS])
def test_the_static_sums_change_nothing(order: str, mode: str) -> None:
    runs = []
    for cache_static in ("auto", False):
        config = cases.run_config(
            cases.model_config("rgcn", order=order), mode=mode, world=2, epochs=6, cache_static=cache_static
        )
        runs.append(pool(2)(cases.curve, config, GRAPHS["features"])[0])
    np.testing.assert_allclose(runs[0]["losses"], runs[1]["losses"], rtol=1e-12)
    taken_once = runs[0]["epoch_bytes"][1] < runs[0]["epoch_bytes"][0]
    # By itself it sums a constant input before it maps it.
    assert taken_once == (mode != "domain_parallel" and order in ("aggregate_first", "auto"))
    assert len(set(runs[1]["epoch_bytes"])) == 1


def _start(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, np.ndarray]:
    trainer = cases.trainer_of(group, config, dataset)
    rows = dict(trainer.model.named_parameters())["inputs.embeddings.00_author"].detach().numpy()
    ids = trainer.training.flow.plans[0].node_ids.numpy()
    return {"ids": ids[ids < GRAPH.schema.offsets[1]], "rows": rows, "table": trainer.rows.numpy()[: len(rows)]}


def test_embeddings_start_by_original_id_and_are_not_replicated() -> None:
    """The same rows wherever they live, each on one rank only, in the memory of the first layer's input."""
    config = cases.run_config(cases.model_config("rgcn"), world=4, partitioner="random")
    whole = _start(Group.single(), config, GRAPH)["rows"]
    assert np.abs(whole).max() <= np.sqrt(6 / (90 + 11)) and 0.5 < np.abs(whole).mean() / (np.sqrt(6 / 101) / 2) < 1.5
    answers = pool(4)(_start, config, GRAPH)
    assert sorted(np.concatenate([a["ids"] for a in answers]).tolist()) == list(range(90))
    for answer in answers:
        assert np.array_equal(answer["rows"], whole[answer["ids"]]) and np.array_equal(answer["rows"], answer["table"])


def _optimizer(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    trainer = cases.trainer_of(group, config, dataset)
    trainer.loop.train_epoch(0)
    assert trainer.optimization.sharded and trainer.optimization.optimizer is not None
    grads = [p.grad.untyped_storage().data_ptr() for p in trainer.optimization.sharded if p.grad is not None]
    return {
        "state_rows": [len(trainer.optimization.optimizer.state[p]["exp_avg"]) for p in trainer.optimization.sharded],
        "own": [len(p) for p in trainer.optimization.sharded],
        "storages": len(set(grads)),
    }


def test_each_rank_has_the_optimizer_state_of_its_own_rows() -> None:
    answers = pool(4)(_optimizer, cases.run_config(cases.model_config("rgcn"), world=4, partitioner="random"), GRAPH)
    assert all(answer["state_rows"] == answer["own"] for answer in answers)
    assert np.sum([answer["own"] for answer in answers], 0).tolist() == [90, 12, 30]  # author, field, venue
    assert all(answer["storages"] == 1 for answer in answers)  # runs of one table: no gradient is copied


def test_the_forced_partition_lacks_types_relations_and_labels() -> None:
    parts = list(parts_of(GRAPH, assign(GRAPH, "by_type", 4), 4))
    assert [np.flatnonzero(np.diff(part.row_bounds)).tolist() for part in parts] == [[0, 4], [1], [2], [3]]
    assert [bool((part.split > 0).any()) for part in parts] == [False, False, False, True]
    empty = [[not any(len(part.edges(q, r)[0]) for q in range(4)) for r in range(8)] for part in parts]
    assert all(any(one) for one in empty) and all(one[4] for one in empty)


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_homogeneous_models_refuse_types(name: str) -> None:
    with pytest.raises(ConfigError, match="homogenize=true"):
        cases.trainer_of(Group.single(), cases.run_config(cases.model_config(name)), GRAPH)


def _loss_and_share(group: Group, config: RunConfig, dataset: Dataset) -> dict[str, float]:
    """The loss over all ranks, and what this rank adds to it."""
    trainer = cases.trainer_of(group, config, dataset)
    trainer.model.train()
    view = trainer.training
    with torch.no_grad():
        share = float(trainer.task.loss(trainer.forward.logits(view, 0), view.targets, Counted()))
    return {"share": share, "loss": float(group.sum_(torch.tensor(share, dtype=torch.float64)))}


def test_a_rank_without_labels_gives_no_share_of_the_loss() -> None:
    """Three of four ranks have none: their shares are 0, and the sum of all is the loss of one process."""
    config = cases.run_config(cases.model_config("rgcn"), world=4, partitioner="by_type")
    (whole,) = pool(1)(_loss_and_share, cases.with_world(config, 1), GRAPH)
    answers = pool(4)(_loss_and_share, config, GRAPH)
    assert [answer["share"] for answer in answers[:3]] == [0.0, 0.0, 0.0]
    for answer in answers:
        assert answer["loss"] == answers[3]["share"] and abs(answer["loss"] - whole["loss"]) <= 1e-10 * whole["loss"]
