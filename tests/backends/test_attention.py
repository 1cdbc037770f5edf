"""Attention of every kernel against dense matrices and plain autograd, folded shard by shard in either order."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.backends.base import Kernel
from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.backends.choose import make_kernel
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, RunningSoftmax
from sargnn.bf16 import wide
from sargnn.graph.edge_columns import ATTR, EdgeColumns
from sargnn.native import num_threads, set_threads
from sargnn.rng import Draw, Purpose, edge_mask
from tests.backends.attention_cases import SHAPES, SLOPE, Case, expected, make, run
from tests.backends.blocks import CPU_KERNELS
from tests.parity.covering import first_of, spread

OPERATIONS = ["gat", "gatv2", "dot"]
TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5}  # fp32: rounding of some hundred sums


def assert_close(found: Tensor, want: Tensor, dtype: torch.dtype, size: float) -> None:
    assert found.dtype == dtype and found.isfinite().all()
    assert (found.double() - want).abs().max() <= TOLERANCE[dtype] * size if want.numel() else True


def check(kernel: Kernel, case: Case, operation: str, dtype: torch.dtype, scale: float = 1.0) -> None:
    want, wanted = expected(case, operation)
    size = scale + max((float(w.abs().max()) for w in wanted if w is not None and w.numel()), default=0.0)
    for order in ([0, 1], [1, 0]):
        out, grads = run(kernel, case, operation, dtype, order)
        assert_close(out, want, dtype, 1 + float(want.abs().max()) if want.numel() else 1.0)
        for found, wish in zip(grads, wanted, strict=True):
            if wish is not None and found is not None:
                assert_close(found, wish, dtype, size)


@pytest.fixture(params=CPU_KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return make_kernel(request.param)


@pytest.mark.parametrize(
    ("operation", "shape", "p", "dtype"),
    spread(OPERATIONS, list(SHAPES), [0.0, 0.4], [torch.float32, torch.float64], strength=2),
)
def test_shapes(kernel: Kernel, operation: str, shape: str, p: float, dtype: torch.dtype) -> None:
    check(kernel, make(shape, 3, 7, p), operation, dtype)


TILES: list[Any] = [OPERATIONS, [1, 2, 5, 8, 17, 33], [1, 8, 16, 33, 100, 128, 130, 300], [torch.float32, torch.float64]]


@pytest.mark.parametrize(
    ("operation", "heads", "width", "dtype"),
    first_of(spread(*TILES), spread(*TILES, strength=2)),
)
def test_heads_and_widths(operation: str, heads: int, width: int, dtype: torch.dtype) -> None:
    """Every shape of tile: several heads in one, one head in several, more heads than a vector has lanes."""
    check(make_kernel("fused"), make("small", heads, width, 0.3), operation, dtype)


@pytest.mark.parametrize(
    ("operation", "shape", "p", "dtype"),
    spread(OPERATIONS, ["small", "no_edges", "few_rows", "hub", "fan"], [0.0, 0.4], [torch.float32, torch.float64], strength=2),
)
def test_edge_weights(kernel: Kernel, operation: str, shape: str, p: float, dtype: torch.dtype) -> None:
    """Positive, zero and negative ones; the softmax does not see them."""
    check(kernel, make(shape, 3, 7, p, weighted=True), operation, dtype)


@pytest.mark.parametrize(
    ("operation", "shape", "heads", "p", "weighted", "dtype"),
    spread(
        OPERATIONS,
        [("small", 3), ("hub", 17), ("fan", 3), ("no_edges", 3)],
        [0.0, 0.4],
        [False, True],
        [torch.float32, torch.float64, torch.bfloat16],
        strength=2,
    ),
)
def test_kept_scores(
    kernel: Kernel, operation: str, shape: str, heads: int, p: float, weighted: bool, dtype: torch.dtype
) -> None:  # fmt: skip
    """Not a bit is another one where backward reads scores that forward has kept."""
    if dtype == torch.bfloat16 and not kernel.reads_bf16:
        return
    case = make(shape, heads, 7, p, weighted=weighted)
    out, grads = run(kernel, case, operation, dtype, [0, 1])
    kept_out, kept_grads = run(kernel, case, operation, dtype, [0, 1], keep=True)
    assert torch.equal(out, kept_out)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(grads, kept_grads, strict=True))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_backward_reads_the_kept_scores(kernel: Kernel, operation: str) -> None:
    """Other scores, other gradients."""
    case = make("small", 3, 7)
    block, heads = case.blocks[0], 3
    (sources, *_), local, params = case.parts(operation)
    (z, *others), own, grad = [t.detach() for t in sources], local.detach(), case.grad.detach()
    att = params[0].detach() if params else None
    inputs = AttentionInputs((z, *others), own, att)
    attend: Any = kernel.operation(operation)
    running = RunningSoftmax.empty(z, len(own), heads)
    scores = torch.empty(block.num_edges, heads, dtype=torch.float64)
    attend.forward(block, case.attention, dataclasses.replace(inputs, scores=scores), running)
    source, destination = block.src.long(), block.dst_per_edge()
    if operation == "gat":
        wish = F.leaky_relu(others[0][source] + own[destination], SLOPE)
    elif att is not None:
        wish = (F.leaky_relu(z[source] + own[destination], SLOPE) * att).unflatten(1, (heads, -1)).sum(2)
    else:
        wish = case.attention.factor * (others[0][source] * own[destination]).unflatten(1, (heads, -1)).sum(2)
    assert torch.allclose(scores, wish, rtol=1e-12, atol=1e-12)
    records = attend.destination_records(own if operation == "gat" else None, running, grad)

    def gradient(kept: Tensor) -> Tensor:
        d_z, d_others = torch.empty_like(z), [torch.empty_like(t) for t in others]
        into = AttentionGradients((d_z, *d_others), torch.zeros_like(own), None if att is None else torch.zeros_like(att))
        attend.backward(block, case.attention, dataclasses.replace(inputs, scores=kept), records, grad, into)
        return d_z

    assert not torch.allclose(gradient(scores), gradient(scores - 1))


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_that_are_keys(kernel: Kernel, shape: str, p: float) -> None:
    """One table, one gradient: both parts of it."""
    case = make(shape, 3, 7, p, weighted=p == 0, one_table=True)
    check(kernel, case, "dot", torch.float64)
    run_once, kept = (run(kernel, case, "dot", torch.float32, [0, 1], keep=keep)[1] for keep in (False, True))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(run_once, kept, strict=True))


SEVERAL: list[Any] = [[(5, 300), (17, 33), (8, 100)], ["hub", "fan"], OPERATIONS]


@pytest.mark.parametrize(("heads", "width", "operation"), spread([(1, 128), (5, 33), (17, 8)], OPERATIONS))
def test_edge_weights_of_tiles(operation: str, heads: int, width: int) -> None:
    check(make_kernel("fused"), make("hub", heads, width, 0.3, weighted=True), operation, torch.float64)


@pytest.mark.parametrize(
    ("heads", "width", "shape", "operation"),
    first_of(spread(*SEVERAL), spread(*SEVERAL, strength=2)),
)
def test_several_batches_of_several_tiles(operation: str, shape: str, heads: int, width: int) -> None:
    check(make_kernel("fused"), make(shape, heads, width, 0.3), operation, torch.float64)


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_slopes(kernel: Kernel, operation: str, slope: float) -> None:
    case = make("small", 3, 7)
    case.attention = Attention(3, slope)
    check(kernel, case, operation, torch.float64)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("shape", ["small", "hub", "fan"])
def test_several_threads(shape: str, operation: str) -> None:
    before = num_threads()
    set_threads(3)
    try:
        check(make_kernel("fused"), make(shape, 3, 7, 0.3), operation, torch.float64)
    finally:
        set_threads(before)


@pytest.mark.parametrize(
    ("dtype", "p", "start", "shape"),
    spread([torch.float32, torch.float64], [0.0, 0.4], [-10_000.0, 9_990.0], ["small", "hub"], strength=3),
)
def test_scores_far_from_zero(kernel: Kernel, shape: str, start: float, p: float, dtype: torch.dtype) -> None:
    """Neighbours whose scores lie close together, far from zero: m and s stay apart, for m + log s would lose s in fp32."""
    case = make(shape, 3, 7, p)
    case.attention = Attention(3, 1.0 if start < 0 else SLOPE, case.attention.draw)
    with torch.no_grad():
        for k, scores in enumerate(case.el):
            scores.copy_((2 * scores).round() + start + k)
        case.er.copy_(case.er.round())
    check(kernel, case, "gat", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("shape", ["small", "hub"])
def test_scores_of_ten_thousands(kernel: Kernel, shape: str, p: float, dtype: torch.dtype) -> None:
    """The maximum changes from shard to shard and from batch to batch; nothing overflows and nothing is lost."""
    case = make(shape, 3, 7, p, scores=4000.0)
    with torch.no_grad():
        case.el[0][0], case.el[1][-1] = 10_000, -10_000
    # LeakyReLU's 0.2 is no binary fraction: a score of -10,000 differs by 6e-4 between fp32 and fp64, and so do weights.
    for scores in (*case.el, case.er):
        with torch.no_grad():
            scores.copy_(scores.abs() if dtype == torch.float32 else scores)
    check(kernel, case, "gat", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", ["small", "hub"])
def test_gatv2_scores_far_from_zero(kernel: Kernel, shape: str, dtype: torch.dtype) -> None:
    """Whole numbers again: <att, LeakyReLU(z + x)> is 9,000 and some, summed without rounding in any order."""
    case = make(shape, 3, 7, 0.4)
    with torch.no_grad():
        for z in case.z:
            z.copy_((2 * z).round())
        case.x.copy_(case.x.round() + 1300)
        case.att.fill_(1.0)
    # The gradient of att sums d e * u, u = 1300, over up to 2000 edges whose d e cancel.
    check(kernel, case, "gatv2", dtype, scale=6000.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", ["small", "hub"])
def test_products_far_from_zero(kernel: Kernel, shape: str, dtype: torch.dtype) -> None:
    """Whole numbers: <q, k> is 7,800 and some, summed without rounding in any order."""
    case = make(shape, 3, 7, 0.4)
    case.attention = Attention(3, draw=case.attention.draw)
    with torch.no_grad():
        for k in case.keys:
            k.copy_((2 * k).round() + 1300)
        case.q.fill_(1.0)
    check(kernel, case, "dot", dtype, scale=6000.0)


def test_threads_change_no_bit_between_runs() -> None:
    """Three real threads, in a process of their own, twice; and against one thread within rounding."""
    program = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.backends.choose import make_kernel
from tests.backends.blocks import CPU_KERNELS
from tests.backends.attention_cases import expected, make, run
from sargnn.native import num_threads
assert num_threads() == 3
kernel = make_kernel("fused")
for operation in ("gat", "gatv2", "dot"):
    for shape in ("small", "hub", "fan"):
        case = make(shape, 3, 7, 0.3)
        runs = [run(kernel, case, operation, torch.float32, [0, 1]) for _ in range(5)]
        for out, grads in runs[1:]:
            assert torch.equal(out, runs[0][0])
            assert all(a is None or torch.equal(a, b) for a, b in zip(grads, runs[0][1]))
        want, wanted = expected(case, operation)
        assert (runs[0][0] - want).abs().max() < 1e-4
        for found, wish in zip(runs[0][1], wanted):
            assert found is None or wish is None or (found - wish).abs().max() < 1e-4 * (1 + wish.abs().max())
print("fine")
"""
    environment = os.environ | {"OMP_NUM_THREADS": "3"}
    root = str(Path(__file__).parents[2])
    script = "import tests.conftest as c, os; os.environ.update(OMP_NUM_THREADS='3')\n" + program
    done = subprocess.run([sys.executable, "-c", script, root], cwd=root, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.parametrize("operation", OPERATIONS)
def test_autograd(kernel: Kernel, operation: str) -> None:
    if operation not in kernel.autograd_operations:  # never asked: domain_parallel refuses it
        return
    for shape, weighted in itertools.product(SHAPES, (False, True)):
        case = make(shape, 3, 7, 0.4, weighted=weighted)
        given = {} if case.weights is None else {"weight": case.weights[0]}
        case.weights = None if case.weights is None else case.weights[:1]
        case.blocks, case.dense = case.blocks[:1], case.dense[:1]
        case.z, case.el, case.keys = case.z[:1], case.el[:1], case.keys[:1]
        want, wanted = expected(case, operation)
        (sources,), local, params = case.parts(operation)
        out = kernel.autograd_operation(operation)(case.blocks[0], case.attention, *sources, local, *params, **given)
        assert_close(out.detach(), want, torch.float64, 1.0)
        grads = torch.autograd.grad(out, case.leaves, case.grad, allow_unused=True)
        for found, wish in zip(grads, wanted, strict=True):
            if found is not None and wish is not None:
                assert_close(found, wish, torch.float64, 100.0)


def test_what_is_not_a_number_is_not_hidden(kernel: Kernel) -> None:
    case = make("small", 2, 5)
    with torch.no_grad():
        case.el[0][0, 0] = torch.nan
    running = RunningSoftmax.empty(case.x.detach(), len(case.x), 2)
    for k in range(2):
        inputs = AttentionInputs((case.z[k].detach(), case.el[k].detach()), case.er.detach())
        kernel.operation("gat").forward(case.blocks[k], case.attention, inputs, running)
    touched = case.dense[0][:, 0] > 0
    assert touched.any() and running.out[touched][:, :5].isnan().all()


def test_draws_of_edges() -> None:
    """By both ends in their direction, the head, and all that a draw consists of; parallel edges share one."""
    draw = Draw(1, 2, Purpose.ATTENTION_DROPOUT, 3, 0.3)
    j, i = torch.arange(20_000), torch.arange(20_000).flip(0) + 7
    mask = edge_mask(j, i, 6, draw)
    assert abs(float(mask.double().mean()) - 0.7) < 0.01
    assert torch.equal(mask, edge_mask(j, i, 6, draw)) and torch.equal(mask[:, :5], edge_mask(j, i, 5, draw))
    others = [edge_mask(i, j, 6, draw), edge_mask(j, i + 1, 6, draw), mask.flip(1)]
    for change in ({"seed": 2}, {"epoch": 3}, {"layer": 4}, {"purpose": Purpose.DROPOUT}):
        others.append(edge_mask(j, i, 6, dataclasses.replace(draw, **change)))
    for other in others:
        assert 0.4 < float((mask == other).double().mean()) < 0.7  # 0.7^2 + 0.3^2 = 0.58 of independent draws agree


FEATURES: list[Any] = [
    [torch.float64, torch.float32, torch.bfloat16],
    ["kept", "computed again", "of dropped edges"],
    ["small", "hub", "fan"],
    ["gat", "gatv2"],
]


@pytest.mark.parametrize(
    ("dtype", "scores", "shape", "operation"), first_of(spread(*FEATURES, strength=2), spread(*FEATURES, strength=3))
)
def test_features_of_edges(kernel: Kernel, operation: str, shape: str, scores: str, dtype: torch.dtype) -> None:
    """Two shards, one whose features lie elsewhere in another order, some edges without any; beside plain autograd on both."""
    heads, held, generator = 3, wide(dtype), torch.Generator().manual_seed(0)
    num_src, num_dst, num_edges = SHAPES[shape]
    attention = Attention(heads, SLOPE, Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, 0.4) if "dropped" in scores else None)

    def normal(*size: int, like: torch.dtype = held) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(like)

    src = torch.randint(num_src, (2, num_edges), generator=generator, dtype=torch.int32) + torch.tensor([[0], [num_src]]).int()
    dst = torch.randint(num_dst, (2, num_edges), generator=generator, dtype=torch.int32).sort().values
    features = [normal(num_edges, 5, like=torch.float32) for _ in range(2)]
    order = torch.randperm(num_edges, generator=generator)
    order[: num_edges // 4] = -1  # edges that were added
    whole = torch.cat([features[0], torch.where(order[:, None] >= 0, features[1][order], 0.0)])
    columns = [EdgeColumns.of({ATTR: features[0]}), EdgeColumns.of({ATTR: features[1].numpy()}).take(order.numpy())]
    ids = EndIds(torch.arange(2 * num_src), torch.arange(num_dst) + 7)
    blocks = [EdgeBlock(a, b, 2 * num_src, num_dst, ids, columns=c) for a, b, c in zip(src, dst, columns, strict=True)]
    by_row = dst.flatten().argsort(stable=True)
    both = EdgeColumns.of({ATTR: whole[by_row].double()})
    joined = EdgeBlock(src.flatten()[by_row], dst.flatten()[by_row], 2 * num_src, num_dst, ids, columns=both)

    width = heads * 7
    z, grad = normal(2 * num_src, width, like=dtype), normal(num_dst, width, like=dtype)
    sources: tuple[Tensor, ...]
    params: tuple[Tensor, ...]
    if operation == "gat":
        sources, local, params = (z, normal(2 * num_src, heads)), normal(num_dst, heads), (normal(heads, 5),)
    else:
        sources, local, params = (z,), normal(num_dst, width, like=dtype), (normal(width), normal(width, 5))
    leaves = [tensor.double().requires_grad_() for tensor in (*sources, local, *params)]
    plain = make_kernel("reference").autograd_operation(f"edge_{operation}")
    want = plain(joined, attention, *leaves)
    wanted = torch.autograd.grad(want, leaves, grad.double())

    attend: Any = kernel.operation(f"edge_{operation}")
    if dtype == torch.bfloat16 and not kernel.reads_bf16:
        pytest.skip("it is given fp32 copies")
    running = RunningSoftmax.empty(z, num_dst, heads)
    kept = [torch.full((num_edges, heads), torch.nan, dtype=held) if scores == "kept" else None for _ in blocks]
    att = params[0] if operation == "gatv2" else None
    inputs = [AttentionInputs(sources, local, att, scores=room, edge_map=params[-1]) for room in kept]
    for block, given in zip(blocks, inputs, strict=True):
        attend.forward(block, attention, given, running)
    running.out[running.denominator[:, 0] == 0] = 0
    records = attend.destination_records(local if operation == "gat" else None, running, grad)
    own, of_params = torch.zeros_like(local, dtype=held), [torch.zeros_like(tensor) for tensor in params]
    of_sources = tuple(torch.zeros_like(tensor) for tensor in sources)
    into = AttentionGradients(of_sources, own, of_params[0] if operation == "gatv2" else None, edge_map=of_params[-1])
    for block, given in zip(blocks, inputs, strict=True):
        attend.backward(block, attention, given, records, grad, into, add=True)
    tolerance = TOLERANCE.get(dtype, 0.03)
    for got, wish in zip((running.out, *of_sources, own, *of_params), (want, *wanted), strict=True):
        assert (got.double() - wish).abs().max() <= tolerance * (1 + wish.abs().max())
