"""Unmodified layers of PyG's on a sharded graph against PyG on the whole graph: outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter
from torch_geometric.utils.num_nodes import maybe_num_nodes

from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.modes import MODES
from sargnn.errors import ConfigError
from sargnn.modules.calls import StockCalls
from sargnn.modules.dgl_typed import GraphMaker
from sargnn.modules.lazy import edge_index, values
from sargnn.modules.session import Places
from sargnn.modules.tag import Rows, tagged
from sargnn.partition.cut import parts_of
from sargnn.plan.load import PlanSettings, load_plan
from tests.graphs import assign, nasty_graph, with_weights
from tests.modules.pyg_layers import CASES, IN, Doubled
from tests.parity.covering import Axis, spread
from tests.pool import pool

GRAPH = with_weights(nasty_graph(150, seed=3), lowest=-1)
TOLERANCE = 1e-9


def rows(width: int = IN, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(GRAPH.num_nodes, width, generator=generator, dtype=torch.float64)


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return CASES[name].make().double()


@cache
def on_the_whole_graph(name: str) -> dict[str, Any]:
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    index = torch.from_numpy(np.stack([np.asarray(GRAPH.indices).astype(np.int64), destination]))
    weight = torch.from_numpy(np.asarray(GRAPH.columns.weight)).double()
    layer, x = made(name), rows().requires_grad_()
    out = CASES[name].call(layer, x, index, weight)
    out.backward(rows(out.shape[1], seed=1))
    assert x.grad is not None
    grads = {key: p.grad.numpy() for key, p in layer.named_parameters() if p.grad is not None}
    buffers = {key: buffer.numpy() for key, buffer in layer.named_buffers() if "running" in key}
    return {"out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads, "buffers": buffers}


Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


def on_a_part(group: Group, name: str, mode: str, kernel: str = "auto") -> dict[str, Any]:
    """Outputs and gradients of own rows, twice."""
    part = list(parts_of(GRAPH, assign(GRAPH, "metis", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel=kernel, dtype=torch.float64))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=17, dtype=engine.dtype))
    layer, own = made(name), plan.node_ids
    maker = GraphMaker()
    maker.prepare(engine, [plan])
    x = tagged(rows()[own].requires_grad_(), Rows("nodes"))

    def forward() -> torch.Tensor:
        calls = StockCalls(engine, Places(group, [plan]), path=None)
        graph = maker.graph(maker.session(engine, calls), [plan])
        with calls:
            out = values(CASES[name].call(layer, x, edge_index(graph), graph.edata["w"]))
        assert isinstance(out, torch.Tensor)
        return out

    out = forward()
    out.backward(rows(out.shape[1], seed=1)[own])
    assert x.grad is not None
    grads = {key: group.sum_(p.grad.clone()).numpy() for key, p in layer.named_parameters() if p.grad is not None}
    buffers = {key: buffer.numpy().copy() for key, buffer in layer.named_buffers() if "running" in key}
    with torch.no_grad():
        again = forward()
    return {
        "ids": own.numpy(), "out": out.detach().numpy(), "dx": x.grad.numpy(), "grads": grads, "notes": maker.report,
        "again": again.numpy(), "buffers": buffers,
    }  # fmt: skip


def close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert np.linalg.norm(got - wanted) <= TOLERANCE * max(float(np.linalg.norm(wanted)), 1e-2)


@pytest.mark.parametrize(("name", "mode", "world"), spread(list(CASES), list(MODES), Axis([1, 2, 4, 7], [1, 2, 4])))
def test_layer(name: str, mode: str, world: int) -> None:
    wanted = on_the_whole_graph(name)
    for answer in pool(world)(on_a_part, name, mode):
        close(answer["out"], wanted["out"][answer["ids"]])
        close(answer["again"], wanted["out"][answer["ids"]])
        close(answer["dx"], wanted["dx"][answer["ids"]])
        assert answer["grads"].keys() <= wanted["grads"].keys()
        for key, grad in wanted["grads"].items():  # a norm's result does not depend on a bias before it, which PyG finds, too
            close(answer["grads"].get(key, np.zeros_like(grad)), grad)
        for key, buffer in wanted["buffers"].items():
            close(answer["buffers"][key], buffer)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.fused])
def test_layers_run_on_fused_operators(name: str) -> None:
    """Their sums of rows do; sums of a number of each edge, which the graph's weights make, need not."""
    (answer,) = pool(1)(on_a_part, name, "sar")
    folds = [line for line in answer["notes"] if "over edges" in line]
    assert f"{CASES[name].fused}, kernel fused" in folds[-1], answer["notes"]
    assert "weighted" in name or all("kernel fused" in line for line in folds), answer["notes"]


def sum_into(rows: torch.Tensor, index: torch.Tensor, of_edges: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(rows).index_add(0, index[1], of_edges)


def writes_to_a_view(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[index[0]]
    rows.view(-1, 1, IN).mul_(2)
    return sum_into(x, index, rows)


def writes_below_a_view(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[index[0]]
    view = rows.view(-1, 1, IN)
    rows.mul_(2)
    return sum_into(x, index, view[:, 0])


def writes_to_a_column(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[index[0]]
    rows[:, 0].zero_()
    return sum_into(x, index, rows)


def writes_to_a_view_of_zeros(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = x[index[0]].new_zeros(x.shape)
    out.view(x.size(0), IN).index_add_(0, index[1], x[index[0]])
    return out


def writes_to_a_view_of_ones(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(index.size(1), 1, dtype=x.dtype)
    ones.view(-1).mul_(3)
    return sum_into(x, index, x[index[0]] * ones)


def writes_after_reading(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    own = x * 2
    rows = own[index[0]]
    with torch.no_grad():
        own.mul_(0)
    return sum_into(x, index, rows)


def writes_to_a_vector(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    vector = torch.zeros(IN, dtype=x.dtype)
    rows = x[index[0]] + vector
    vector += 1
    return sum_into(x, index, rows)


def writes_to_a_fold(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    degree = torch.zeros_like(x[:, 0]).index_add(0, index[1], weight)
    of_edges = degree[index[1]]
    degree += 1
    return sum_into(x, index, x[index[0]] * of_edges.view(-1, 1))


def writes_to_the_graph(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    weight.mul_(2)
    return sum_into(x, index, x[index[0]] * weight.view(-1, 1))


def reads_other_nodes(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return sum_into(x, index, x[index[0] + 1])


def sends_to_other_nodes(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, index[1] + 1, x[index[0]])


def renumbers_nodes(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    index[0].add_(1)
    return sum_into(x, index, x[index[0]])


def renumbers_what_is_known_by_another_name(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    sources = index[0]
    index[0] += 1
    return sum_into(x, index, x[sources.view(-1)])


def copies_renumbered_nodes(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    index[0] += 1
    other = index.clone().flip(0)
    return torch.zeros_like(x).index_add(0, other[0], x[other[1]])


def adds_to_its_input(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.index_add_(0, index[1], x[index[0]] * 1)


def adds_up_more_than_once(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, index[1], x[index[0]], alpha=2)


def reads_a_column_of_ends(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return sum_into(x, index, x[index[0].view(-1, 1)].sum(1))


def reads_a_view_of_ends(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return sum_into(x, index, x[index[0].view(1, -1)][0])


def reads_an_end(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x + x[index[0][..., 0]]


def reads_an_end_of_an_edge(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[index[0, 1]]


def compares_all_ends(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * (index[0].view(-1, 1) == index[1].view(1, -1)).sum()


def adds_up_some_columns(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).scatter_add(0, index[1].view(-1, 1).expand(-1, 2), x.detach()[index[0]])


def adds_up_into_some_columns(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[index[0]]
    return rows.new_zeros(x.size(0), 2 * IN).scatter_add_(0, index[1].view(-1, 1).expand(-1, IN), rows)


def adds_up_into_more_rows(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[index[0]]
    return x + rows.new_zeros(x.size(0) + 7, IN).index_add_(0, index[1], rows).mean(0)


def adds_loops_beside_loops(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    index, _ = add_self_loops(index, num_nodes=x.size(0))
    return sum_into(x, index, x[index[0]])


def adds_loops_twice(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    index, _ = remove_self_loops(index)
    for _ in range(2):
        index, _ = add_self_loops(index, num_nodes=x.size(0))
    return sum_into(x, index, x[index[0]])


def differentiates_gradients(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> Any:
    own = x * torch.ones(IN, dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(own[index[0]].pow(2).sum(), own, create_graph=True)[0]


def differentiates_ends(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> Any:
    return Doubled.apply(index[0])


def averages_up_to_the_last_edge(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * scatter(x[index[0]], index[1]).mean(0)


def counts_up_to_the_last_edge(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * degree(index[1]).mean()


TWO_SHAPES, WRITTEN, ADDED = "known in two shapes", "was written to before", "that something was added to"
READS, LOOPS = "reads the numbers", "to edges that have some"
WRONG: dict[Forward, str] = {
    writes_to_a_view: TWO_SHAPES, writes_below_a_view: TWO_SHAPES, writes_to_a_column: TWO_SHAPES,
    writes_to_a_view_of_ones: TWO_SHAPES, writes_to_a_view_of_zeros: TWO_SHAPES, writes_after_reading: WRITTEN,
    writes_to_a_fold: WRITTEN, writes_to_a_vector: WRITTEN, writes_to_the_graph: "may not write to its input",
    adds_to_its_input: "may not write to its input",
    adds_up_more_than_once: "'index_add' reads the numbers", differentiates_gradients: "Gradients of gradients",
    differentiates_ends: "reads the numbers", reads_other_nodes: ADDED, sends_to_other_nodes: ADDED, renumbers_nodes: ADDED,
    renumbers_what_is_known_by_another_name: ADDED, copies_renumbered_nodes: ADDED, reads_a_column_of_ends: READS,
    reads_a_view_of_ends: READS, reads_an_end: READS, reads_an_end_of_an_edge: READS, compares_all_ends: READS,
    adds_up_some_columns: READS, adds_up_into_some_columns: READS, adds_up_into_more_rows: READS,
    adds_loops_beside_loops: LOOPS, adds_loops_twice: LOOPS,
    **dict.fromkeys((averages_up_to_the_last_edge, counts_up_to_the_last_edge), "rows up to the last node"),
}  # fmt: skip


@pytest.mark.parametrize("forward", WRONG, ids=lambda forward: forward.__name__)
def test_what_would_be_computed_wrongly_is_refused(forward: Forward) -> None:
    with pytest.raises(ConfigError, match=WRONG[forward]) as raised:
        on_one_worker(forward)
    assert f"{__file__} line" in str(raised.value)


@pytest.mark.parametrize("calculate", [lambda n: n / 2, lambda n: 0.5 * n, lambda n: n**0.5, float])
def test_no_float_is_made_of_a_number_that_stands_for_the_largest(calculate: Callable[[int], float]) -> None:
    """In a library's file; a module is told the number itself."""
    library = eval(compile("lambda index: int(index.max()) + 1", "torch_geometric/utils/x.py", "eval"))
    with pytest.raises(OverflowError):
        on_one_worker(lambda x, index, weight: x * calculate(library(index)))
    told: list[float] = []
    on_one_worker(lambda x, index, weight: told.append(calculate(maybe_num_nodes(index))))
    assert told == [calculate(int(GRAPH.indices.max()) + 1)]


def on_one_worker(forward: Forward) -> None:
    (part,) = parts_of(GRAPH, assign(GRAPH, "metis", 1), 1)
    engine = Engine(Group.single(), EngineSettings(mode="sar", dtype=torch.float64))
    plan = load_plan(part, PlanSettings(0, engine.mode.layout, dtype=engine.dtype))
    maker, x = GraphMaker(), tagged(rows()[plan.node_ids], Rows("nodes"), shared=True)
    maker.prepare(engine, [plan])
    calls = StockCalls(engine, Places(Group.single(), [plan]), path=None)
    graph = maker.graph(maker.session(engine, calls), [plan])
    with calls:
        values(forward(x, edge_index(graph), graph.edata["w"]))
