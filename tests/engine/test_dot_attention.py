"""Attention by dot products in every mode, with rows and with partial results, against a loop over nodes in one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.comm.group import Group
from sargnn.engine.aggregate import Engine, EngineSettings
from sargnn.engine.reducers.gat import DotAttention, EdgeDotAttention, edge_queries, edge_values, join_softmaxes
from sargnn.errors import KernelError
from sargnn.graph.dataset import Dataset
from sargnn.partition.cut import parts_of
from sargnn.plan.cover import shares_of
from sargnn.plan.load import PlanSettings, load_plan
from sargnn.plan.partials import load_shared_plan
from sargnn.rng import Draw, Purpose, edge_mask
from tests.graphs import assign, nasty_graph, with_weights
from tests.parity.cases import PAIRS
from tests.parity.covering import spread
from tests.pool import pool

GRAPH = with_weights(nasty_graph(90, seed=4), lowest=-1)
HEADS, OF_VALUES, OF_KEYS, SCALE = 3, 5, 4, 0.5
VARIANTS = {  # one table for keys and values; attention dropout; edges that take no part; edge weights
    "plain": (False, 0.0, 0.0, False),
    "one table": (True, 0.4, 0.0, False),
    "dropped": (False, 0.4, 0.5, True),
    "most edges dropped": (True, 0.0, 0.95, True),
}


def reducer_of(variant: str) -> DotAttention:
    _, p, dropped, weighted = VARIANTS[variant]
    draw = Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, p) if p else None
    edges = Draw(3, 5, Purpose.EDGE_DROPOUT, 2, dropped) if dropped else None
    return DotAttention(HEADS, SCALE, draw, edges, weighted=weighted)


def inputs(variant: str) -> list[Tensor]:
    """v, k unless v is both, q; and the output's gradient."""
    generator = torch.Generator().manual_seed(0)
    one_table = VARIANTS[variant][0]
    widths = [OF_VALUES, OF_VALUES, OF_VALUES] if one_table else [OF_VALUES, OF_KEYS, OF_KEYS, OF_VALUES]
    return [torch.randn(GRAPH.num_nodes, HEADS * w, generator=generator, dtype=torch.float64) for w in widths]


def looped(variant: str, v: Tensor, *others: Tensor) -> Tensor:
    """The definition, node after node."""
    reducer, (*keys, q) = reducer_of(variant), others
    k = keys[0] if keys else v
    indptr, sources = np.asarray(GRAPH.indptr), torch.from_numpy(np.asarray(GRAPH.indices)).long()
    weights = torch.from_numpy(np.asarray(GRAPH.columns.weight)).double()
    rows = []
    for i in range(GRAPH.num_nodes):
        run = slice(int(indptr[i]), int(indptr[i + 1]))
        j, w = sources[run], weights[run]
        if reducer.edges is not None:
            kept = edge_mask(j, torch.full_like(j, i), 1, reducer.edges)[:, 0]
            j, w = j[kept], w[kept]
        scores = SCALE * (k[j].unflatten(1, (HEADS, -1)) * q[i].unflatten(0, (HEADS, -1))).sum(2)
        a = torch.softmax(scores, 0)
        if (draw := reducer.attention.draw) is not None:
            a = a * edge_mask(j, torch.full_like(j, i), HEADS, draw) * draw.scale
        if reducer.weighted:
            a = a * w[:, None]
        rows.append((a[:, :, None] * v[j].unflatten(1, (HEADS, -1))).sum(0).flatten())
    return torch.stack(rows)


def run(
    group: Group, variant: str, mode: str, kernel: str, partitioner: str, aggregate: str, dtype: torch.dtype, keep: str
) -> dict[str, Any]:
    part = list(parts_of(GRAPH, assign(GRAPH, partitioner, group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, keep="all" if keep == "all" else "rows", kernel=kernel, dtype=dtype))
    reducer, (*rows, grad) = reducer_of(variant), inputs(variant)
    widths = tuple(t.shape[1] for t in rows[:-1])
    settings = PlanSettings(group.rank, engine.mode.layout, message_rows=13, dtype=wide(dtype))
    costs = None if engine.why_rows(reducer) else engine.mode.costs(reducer, widths, dtype, exchanged_needs_grad=True)
    (share,) = shares_of(aggregate, [costs])
    plan = load_plan(part, settings) if share is None else load_shared_plan(part, settings, group, share)
    own = plan.node_ids
    leaves = [t[own].to(dtype).requires_grad_() for t in rows]
    group.traffic.reset()
    (out,) = engine.aggregate(plan, reducer, tuple(leaves[:-1]), (leaves[-1],))
    out.backward(grad[own].to(dtype))
    predicted = engine.mode.wire_bytes(plan, reducer, widths, dtype, exchanged_needs_grad=True)
    assert mode == "domain_parallel" or group.traffic.sent_bytes == predicted
    return {
        "ids": own.numpy(),
        "tables": [t.detach().double().numpy() for t in (out, *(leaf.grad for leaf in leaves if leaf.grad is not None))],
        "partials": plan.partials is not None,
    }


def check(variant: str, answers: list[dict[str, Any]], dtype: torch.dtype = torch.float64) -> None:
    *rows, grad = inputs(variant)
    leaves = [t.clone().requires_grad_() for t in rows]
    out = looped(variant, *leaves)
    wanted = [out.detach(), *torch.autograd.grad(out, leaves, grad)]
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2}[dtype]
    for answer in answers:
        for found, want in zip(answer["tables"], wanted, strict=True):
            size = bound * (1 + float(want.abs().max()))
            np.testing.assert_allclose(found, want.numpy()[answer["ids"]], rtol=0, atol=size)


@pytest.mark.parametrize(
    ("variant", "mode", "kernel", "world", "partitioner", "aggregate"),
    spread(list(VARIANTS), PAIRS, [1, 2, 4], ["random", "empty"], ["post", "pre", "least"]),
)
def test_parity(variant: str, mode: str, kernel: str, world: int, partitioner: str, aggregate: str) -> None:
    answers = pool(world)(run, variant, mode, kernel, partitioner, aggregate, torch.float64, "rows")
    check(variant, answers)
    with_partials = aggregate == "pre" and world > 1 and mode in ("sar", "no_remat")
    assert not with_partials or all(answer["partials"] for answer in answers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("aggregate", "mode", "kernel"), [("pre", "sar", "fused"), ("post", "sar", "fused"), ("post", "one_shot", "dgl")]
)
@pytest.mark.parametrize("variant", ["plain", "one table"])
def test_other_precisions(variant: str, aggregate: str, mode: str, kernel: str, dtype: torch.dtype) -> None:
    check(variant, pool(2)(run, variant, mode, kernel, "random", aggregate, dtype, "rows"), dtype)


@pytest.mark.parametrize(("variant", "aggregate", "kernel"), spread(list(VARIANTS), ["pre", "post"], ["fused", "dgl"]))
def test_kept_scores(variant: str, aggregate: str, kernel: str) -> None:
    """``mode.keep=all``, also on the side of a partial result's sources."""
    check(variant, pool(4)(run, variant, "no_remat", kernel, "random", aggregate, torch.float64, "all"))


def halves() -> list[Dataset]:
    """The graph with every second edge, and with the others."""
    odd = np.arange(GRAPH.num_edges) % 2 == 1
    destination = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    made = []
    for mask in (odd, ~odd):
        indptr = np.concatenate([[0], np.cumsum(np.bincount(destination[mask], minlength=GRAPH.num_nodes))])
        columns = GRAPH.columns.take(np.flatnonzero(mask))
        made.append(dataclasses.replace(GRAPH, indptr=indptr, indices=np.asarray(GRAPH.indices)[mask], columns=columns))
    return made


def run_halves(group: Group, mode: str, kernel: str, aggregate: str, dtype: torch.dtype, keep: str) -> dict[str, Any]:
    """The same attention from two softmaxes, one over each half of the edges."""
    engine = Engine(group, EngineSettings(mode=mode, kernel=kernel, dtype=dtype, keep="all" if keep == "all" else "rows"))
    *rows, grad = inputs("plain")
    reducer = DotAttention(HEADS, SCALE, log_sums=True)
    widths = tuple(t.shape[1] for t in rows[:-1])
    costs = None if engine.why_rows(reducer) else engine.mode.costs(reducer, widths, dtype, exchanged_needs_grad=True)
    (share,) = shares_of(aggregate, [costs])
    settings = PlanSettings(group.rank, engine.mode.layout, message_rows=13, dtype=wide(dtype))
    parts = [list(parts_of(half, assign(GRAPH, "random", group.world), group.world))[group.rank] for half in halves()]
    own = torch.from_numpy(np.array(parts[0].node_ids))
    assert np.array_equal(parts[0].node_ids, parts[1].node_ids)
    leaves = [t[own].to(dtype).requires_grad_() for t in rows]
    found = []
    for part in parts:
        plan = load_shared_plan(part, settings, group, share)
        found.append(engine.aggregate(plan, reducer, tuple(leaves[:-1]), (leaves[-1],)))
    out = join_softmaxes(*zip(*found, strict=True))
    out.backward(grad[own].to(out.dtype))
    tables = [t.detach().double().numpy() for t in (out, *(leaf.grad for leaf in leaves if leaf.grad is not None))]
    return {"ids": own.numpy(), "tables": tables}


@pytest.mark.parametrize(
    ("mode", "kernel", "aggregate", "dtype", "keep"),
    [
        ("sar", "fused", "pre", torch.float64, "rows"),
        ("sar", "fused", "post", torch.bfloat16, "rows"),
        ("no_remat", "dgl", "least", torch.float64, "all"),
        ("one_shot", "reference", "post", torch.float64, "rows"),
    ],
)
def test_softmaxes_are_joined(mode: str, kernel: str, aggregate: str, dtype: torch.dtype, keep: str) -> None:
    """Log-sums and their gradients; some rows have edges in one half only, some in none."""
    check("plain", pool(2)(run_halves, mode, kernel, aggregate, dtype, keep), dtype)


def test_autograds_operators_have_no_log_sums() -> None:
    engine = Engine(Group.single(), EngineSettings(mode="domain_parallel", dtype=torch.float64))
    part = next(parts_of(GRAPH, assign(GRAPH, "random", 1), 1))
    plan = load_plan(part, PlanSettings(0, engine.mode.layout, dtype=engine.dtype))
    v, k, q, _ = inputs("plain")
    with pytest.raises(KernelError, match="no log-sums"):
        engine.aggregate(plan, DotAttention(HEADS, log_sums=True), (v, k), (q,))


OF_EDGES = 7


def edge_inputs() -> tuple[list[Tensor], Tensor, Tensor]:
    """v, k, q of one width and the output's gradient; W; and a row for each pair of nodes that may have an edge."""
    *rows, grad = inputs("one table")
    generator, n = torch.Generator().manual_seed(1), GRAPH.num_nodes
    k, w = (torch.randn(size, HEADS * OF_VALUES, generator=generator, dtype=torch.float64) for size in (n, OF_EDGES))
    return [rows[0], k, rows[1], grad], w.T.contiguous(), torch.randn(n, n, OF_EDGES, generator=generator, dtype=torch.float64)


def looped_with_edges(p: float, *leaves: Tensor) -> Tensor:
    """Keys k_j + W f_ji and values v_j + W f_ji, node after node."""
    v, k, q, weight, table = leaves
    rows, draw = [], Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, p)
    for i in range(GRAPH.num_nodes):
        j = torch.from_numpy(np.asarray(GRAPH.indices)[GRAPH.indptr[i] : GRAPH.indptr[i + 1]]).long()
        of_edges = table[i, j] @ weight.T
        keys, values = ((t[j] + of_edges).unflatten(1, (HEADS, -1)) for t in (k, v))
        a = torch.softmax(SCALE * (keys * q[i].unflatten(0, (HEADS, -1))).sum(2), 0)
        a = a * edge_mask(j, torch.full_like(j, i), HEADS, draw) * draw.scale
        rows.append((a[:, :, None] * values).sum(0).flatten())
    return torch.stack(rows)


def run_edges(group: Group, p: float, mode: str, kernel: str, learned: bool, dtype: torch.dtype, keep: str) -> dict[str, Any]:
    part = list(parts_of(GRAPH, assign(GRAPH, "random", group.world), group.world))[group.rank]
    engine = Engine(group, EngineSettings(mode=mode, kernel=kernel, dtype=dtype, keep="all" if keep == "all" else "rows"))
    plan = load_plan(part, PlanSettings(group.rank, engine.mode.layout, message_rows=13, dtype=wide(dtype)))
    (*rows, grad), weight, table = edge_inputs()
    own, (source, destination) = plan.node_ids, plan.edge_ends()
    leaves = [t[own].to(dtype).requires_grad_() for t in rows]
    weight = weight.to(dtype).requires_grad_()
    f = table[destination, source].to(dtype).requires_grad_(learned)
    reducer = EdgeDotAttention(HEADS, SCALE, Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, p), learned=learned)
    assert engine.why_rows(reducer) is not None
    v, k, q = leaves
    out, sums = engine.aggregate(plan, reducer, (v, k), (q, edge_queries(q, weight, HEADS), f))
    out = out + edge_values(sums, weight, HEADS)
    out.backward(grad[own].to(dtype))
    assert weight.grad is not None and (f.grad is not None) == learned
    tables = [t.detach().double().numpy() for t in (out, *(leaf.grad for leaf in leaves if leaf.grad is not None))]
    d_f = None if f.grad is None else f.grad.double().numpy()
    ends = source.numpy(), destination.numpy()
    return {"ids": own.numpy(), "tables": tables, "weight": group.sum_(weight.grad.double()).numpy(), "d_f": d_f, "ends": ends}


@pytest.mark.parametrize(
    ("p", "mode", "kernel", "world", "learned", "dtype", "keep"),
    [
        (0.4, "sar", "fused", 1, True, torch.float64, "rows"),
        (0.0, "sar", "fused", 4, False, torch.float64, "rows"),
        (0.4, "no_remat", "fused", 2, True, torch.float64, "all"),
        (0.4, "one_shot", "fused", 2, True, torch.float64, "rows"),
        (0.4, "sar", "fused", 2, True, torch.float32, "rows"),
        (0.4, "sar", "fused", 2, True, torch.bfloat16, "rows"),
        (0.4, "sar", "reference", 2, True, torch.float64, "rows"),
        (0.0, "one_shot", "reference", 4, False, torch.float64, "rows"),
    ],
)
def test_rows_of_edges(p: float, mode: str, kernel: str, world: int, learned: bool, dtype: torch.dtype, keep: str) -> None:
    (*rows, grad), weight, table = edge_inputs()
    leaves = [t.clone().requires_grad_() for t in (*rows, weight, table)]
    out = looped_with_edges(p, *leaves)
    *wanted, d_weight, d_table = (out.detach(), *torch.autograd.grad(out, leaves, grad))
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 6e-2}[dtype]
    counts = torch.zeros(len(table), len(table), dtype=torch.float64)
    for answer in pool(world)(run_edges, p, mode, kernel, learned, dtype, keep):
        source, destination = answer["ends"]
        pairs = [(found, want.numpy()[answer["ids"]]) for found, want in zip(answer["tables"], wanted, strict=True)]
        pairs.append((answer["weight"], d_weight.numpy()))
        if learned:  # parallel edges share what the table has
            counts.zero_().index_put_(
                (torch.from_numpy(destination), torch.from_numpy(source)), torch.ones(()).double(), accumulate=True
            )
            pairs.append((answer["d_f"], (d_table / counts.clamp(min=1)[:, :, None]).numpy()[destination, source]))
        for found, want in pairs:
            np.testing.assert_allclose(found, want, rtol=0, atol=bound * (1 + np.abs(want).max(initial=0)))


def test_kernels_without_rows_of_edges_say_so() -> None:
    part = next(parts_of(GRAPH, assign(GRAPH, "random", 1), 1))
    (v, k, q, _), weight, table = edge_inputs()
    for mode, message in (("sar", "no rows of edges"), ("domain_parallel", "no rows of edges")):
        engine = Engine(Group.single(), EngineSettings(mode=mode, kernel="dgl", dtype=torch.float64))
        plan = load_plan(part, PlanSettings(0, engine.mode.layout, dtype=engine.dtype))
        source, destination = plan.edge_ends()
        local = q, edge_queries(q, weight, HEADS), table[destination, source]
        with pytest.raises(KernelError, match=message):
            engine.aggregate(plan, EdgeDotAttention(HEADS, learned=False), (v, k), local)


def test_gradients_are_slopes() -> None:
    """Along a direction in all inputs; no autograd on the other side."""
    part = next(parts_of(GRAPH, assign(GRAPH, "random", 1), 1))
    engine = Engine(Group.single(), EngineSettings(mode="sar", dtype=torch.float64))
    plan = load_plan(part, PlanSettings(0, engine.mode.layout, dtype=engine.dtype))
    *rows, grad = inputs("dropped")
    directions = [t.flip(0) for t in rows]

    def value(step: float, *, learns: bool = False) -> tuple[Tensor, list[Tensor]]:
        leaves = [(t + step * way).requires_grad_(learns) for t, way in zip(rows, directions, strict=True)]
        (out,) = engine.aggregate(plan, reducer_of("dropped"), tuple(leaves[:-1]), (leaves[-1],))
        return (out * grad).sum(), leaves

    total, leaves = value(0.0, learns=True)
    slope = sum(float((g * way).sum()) for g, way in zip(torch.autograd.grad(total, leaves), directions, strict=True))
    measured = float(value(1e-5)[0] - value(-1e-5)[0]) / 2e-5
    assert abs(slope) > 1 and abs(slope - measured) < 1e-7 * abs(slope)


def test_a_kernel_without_it_says_so() -> None:
    with pytest.raises(KernelError, match="has no operation 'dot'"):
        Engine(Group.single(), EngineSettings(mode="sar", kernel="tests/parity/toys/toy_kernel.py:Dense")).operation("dot")
