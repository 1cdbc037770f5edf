"""Attention of every kernel against dense matrices and plain autograd, folded shard by shard in either order."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.bf16 import wide
from sargnn.kernels import KERNELS
from sargnn.kernels.attention import Attention, RunningSoftmax
from sargnn.kernels.base import Kernel
from sargnn.kernels.block import EdgeBlock
from sargnn.kernels.dispatch import make_kernel
from sargnn.rng import Draw, Purpose, edge_mask

SLOPE = 0.2
SHAPES = {"small": (6, 9, 20), "one": (1, 1, 1), "no_edges": (5, 7, 0), "no_sources": (0, 4, 0), "no_rows": (4, 0, 0),
          "few_rows": (3, 40, 30), "hub": (700, 3, 2000), "fan": (3, 700, 2000)}  # fmt: skip
"""Sources, destinations, edges of each of two shards. Hub and fan have more edges in a row than kernels hold at a time."""
TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5}  # fp32: rounding of some hundred sums


@dataclass
class Case:
    """Two shards with the same destinations."""

    blocks: list[EdgeBlock]
    dense: list[Tensor]
    z: list[Tensor]
    el: list[Tensor]
    er: Tensor
    x: Tensor
    att: Tensor
    grad: Tensor
    attention: Attention
    weights: list[Tensor] | None = None
    """[E] of each shard's edges, fp64, which coefficients are multiplied with."""

    @property
    def leaves(self) -> list[Tensor]:
        return [*self.z, *self.el, self.er, self.x, self.att]


def make(shape: str, heads: int, width: int, p: float = 0.0, scores: float = 1.0, *, weighted: bool = False) -> Case:
    num_src, num_dst, num_edges = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    ids = torch.randperm(100 + 2 * num_src + num_dst, generator=generator)
    blocks, dense = [], []
    for k in range(2):
        src = torch.randint(max(num_src, 1), (num_edges,), generator=generator, dtype=torch.int32)
        dst = torch.randint(max(num_dst, 1), (num_edges,), generator=generator, dtype=torch.int32).sort().values
        matrix = torch.zeros(num_dst, num_src, dtype=torch.float64)
        if num_edges:
            matrix.index_put_((dst.long(), src.long()), torch.ones(()).double(), accumulate=True)
        source_ids = ids[k * num_src : (k + 1) * num_src]
        blocks.append(EdgeBlock(src, dst, num_src, num_dst, src_ids=source_ids, dst_ids=ids[2 * num_src :][:num_dst]))
        dense.append(matrix)
    draw = Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, p) if p else None
    case = Case(
        blocks, dense, [normal(num_src, heads * width) for _ in range(2)],
        # Whole numbers, so that fp32 adds them without rounding whatever their size.
        [(scores * normal(num_src, heads)).round() if scores > 1 else normal(num_src, heads) for _ in range(2)],
        (scores * normal(num_dst, heads)).round() if scores > 1 else normal(num_dst, heads),
        normal(num_dst, heads * width), normal(heads * width), normal(num_dst, heads * width),
        Attention(heads, SLOPE, draw),
        [normal(num_edges) * (normal(num_edges) > -1) for _ in range(2)] if weighted else None,  # some are 0, some negative
    )  # fmt: skip
    for leaf in case.leaves:
        leaf.requires_grad_()
    return case


def expected(case: Case, operation: str) -> tuple[Tensor, list[Tensor | None]]:
    """The output and the gradients of ``case.leaves``, from dense matrices over both shards."""
    heads, matrix = case.attention.heads, torch.cat(case.dense, 1)
    z = torch.cat(case.z).unflatten(1, (heads, -1))
    if operation == "gat":
        scores = F.leaky_relu(torch.cat(case.el)[None] + case.er[:, None], case.attention.negative_slope)
    else:
        u = F.leaky_relu(z[None] + case.x.unflatten(1, (heads, -1))[:, None], case.attention.negative_slope)
        scores = (u * case.att.view(heads, -1)).sum(3)
    connected = matrix[:, :, None] > 0
    scores = scores.masked_fill(~connected, -torch.inf)
    top = scores.detach()
    top = top.amax(1, keepdim=True) if top.shape[1] else top.new_zeros(len(matrix), 1, heads)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = matrix[:, :, None] * torch.exp(scores - top)
    sums = weights.sum(1, keepdim=True)
    weights = weights / torch.where(sums == 0, 1, sums)
    if case.weights is not None:  # parallel edges share a score
        means = []
        for block, own, count in zip(case.blocks, case.weights, case.dense, strict=True):
            ends = block.dst_per_edge(), block.src.long()
            means.append(torch.zeros_like(count).index_put_(ends, own, accumulate=True) / count.clamp(min=1))
        weights = weights * torch.cat(means, 1)[:, :, None]
    if case.attention.draw is not None:
        source_ids = torch.cat([block.src_ids for block in case.blocks])
        pairs = torch.meshgrid(case.blocks[0].dst_ids, source_ids, indexing="ij")
        kept = edge_mask(pairs[1].flatten(), pairs[0].flatten(), heads, case.attention.draw)
        weights = weights * kept.view(*matrix.shape, heads) * case.attention.scale
    out = torch.einsum("ijh,jhk->ihk", weights, z).flatten(1)
    return out.detach(), list(torch.autograd.grad(out, case.leaves, case.grad, allow_unused=True))


def run(
    kernel: Kernel, case: Case, operation: str, dtype: torch.dtype, order: list[int], *, keep: bool = False
) -> tuple[Tensor, list[Any]]:
    """The same through a kernel's operation. keep: scores stay from forward to backward."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype)

    def number(tensor: Tensor) -> Tensor:  # scores and parameters are fp32 beside bf16 rows
        return tensor.detach().to(wide(dtype))

    z, el, er = [cast(t) for t in case.z], [number(t) for t in case.el], number(case.er)
    x, att, grad = cast(case.x), number(case.att), cast(case.grad)
    running = RunningSoftmax.empty(x, len(x), case.attention.heads)
    running.out.fill_(torch.nan)
    attend: Any = kernel.operation(operation)
    for block, own in zip(case.blocks, case.weights or (), strict=False):
        block.weight = number(own)
        block.__dict__.pop("t_weight", None)
    given: list[dict[str, Any]] = [{} if case.weights is None else {"weight": block.weight} for block in case.blocks]
    for block, arguments in zip(case.blocks, given, strict=True):
        if keep:
            arguments["scores"] = torch.full((block.num_edges, case.attention.heads), torch.nan, dtype=wide(dtype))
    for k in order:
        if operation == "gat":
            attend.forward(case.blocks[k], case.attention, z[k], el[k], er, running, **given[k])
        else:
            attend.forward(case.blocks[k], case.attention, z[k], x, att, running, **given[k])
    isolated = torch.cat(case.dense, 1).sum(1) == 0
    assert (running.denominator[isolated] == 0).all()
    out = running.out.masked_fill(isolated[:, None], 0)
    records = attend.destination_records(
        er if operation == "gat" else None, RunningSoftmax(out, running.max_score, running.denominator), grad
    )
    d_z, d_el = [torch.full_like(t, torch.nan) for t in z], [torch.full_like(t, torch.nan) for t in el]
    d_er, d_x, d_att = torch.zeros_like(er), torch.zeros_like(number(x)), torch.zeros_like(att)
    for k in order:
        block = case.blocks[k]
        if operation == "gat":
            attend.backward(block, case.attention, z[k], el[k], records, grad, d_z[k], d_el[k], d_er, **given[k])
        else:
            attend.backward(block, case.attention, z[k], x, att, records, grad, d_z[k], d_x, d_att, **given[k])
    again = [torch.zeros_like(t) for t in (d_er, d_x, d_att)]
    for k in order:  # the sources' gradients are not wanted
        if operation == "gat":
            attend.backward(case.blocks[k], case.attention, z[k], el[k], records, grad, None, None, again[0], **given[k])
        else:
            attend.backward(case.blocks[k], case.attention, z[k], x, att, records, grad, None, *again[1:], **given[k])
    assert all(torch.equal(a, b) for a, b in zip(again, (d_er, d_x, d_att), strict=True))
    return out, [*d_z, *(d_el if operation == "gat" else [None, None]), d_er, d_x, d_att]


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


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return make_kernel(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_shapes(kernel: Kernel, operation: str, shape: str, p: float, dtype: torch.dtype) -> None:
    check(kernel, make(shape, 3, 7, p), operation, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 8, 16, 33, 100, 128, 130, 300])
@pytest.mark.parametrize("heads", [1, 2, 5, 8, 17, 33])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_heads_and_widths(operation: str, heads: int, width: int, dtype: torch.dtype) -> None:
    """Every shape of tile: several heads in one, one head in several, more heads than a vector has lanes."""
    check(make_kernel("fused"), make("small", heads, width, 0.3), operation, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("shape", ["small", "no_edges", "few_rows", "hub", "fan"])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_edge_weights(kernel: Kernel, operation: str, shape: str, p: float, dtype: torch.dtype) -> None:
    """Positive, zero and negative ones; the softmax does not see them."""
    check(kernel, make(shape, 3, 7, p, weighted=True), operation, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize(("shape", "heads"), [("small", 3), ("hub", 17), ("fan", 3), ("no_edges", 3)])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
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


@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_backward_reads_the_kept_scores(kernel: Kernel, operation: str) -> None:
    """Other scores, other gradients."""
    case = make("small", 3, 7)
    block, heads = case.blocks[0], 3
    z, el, er, x, att, grad = (t.detach() for t in (case.z[0], case.el[0], case.er, case.x, case.att, case.grad))
    ends = (z, el, er) if operation == "gat" else (z, x, att)
    attend: Any = kernel.operation(operation)
    running = RunningSoftmax.empty(z, len(x), heads)
    scores = torch.empty(block.num_edges, heads, dtype=torch.float64)
    attend.forward(block, case.attention, *ends, running, scores=scores)
    source, destination = block.src.long(), block.dst_per_edge()
    if operation == "gat":
        wish = F.leaky_relu(el[source] + er[destination], SLOPE)
    else:
        wish = (F.leaky_relu(z[source] + x[destination], SLOPE) * att).unflatten(1, (heads, -1)).sum(2)
    assert torch.allclose(scores, wish, rtol=1e-12, atol=1e-12)
    records = attend.destination_records(er if operation == "gat" else None, running, grad)

    def gradient(kept: Tensor) -> Tensor:
        d_z, others = torch.empty_like(z), [torch.zeros_like(er if operation == "gat" else x), torch.zeros_like(att)]
        given = (torch.empty_like(el), others[0]) if operation == "gat" else tuple(others)
        tail = (records, grad, d_z, *given)
        attend.backward(block, case.attention, *(ends[:2] if operation == "gat" else ends), *tail, scores=kept)
        return d_z

    assert not torch.allclose(gradient(scores), gradient(scores - 1))


@pytest.mark.parametrize(("heads", "width"), [(1, 128), (5, 33), (17, 8)])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_edge_weights_of_tiles(operation: str, heads: int, width: int) -> None:
    check(make_kernel("fused"), make("hub", heads, width, 0.3, weighted=True), operation, torch.float64)


@pytest.mark.parametrize(("heads", "width"), [(5, 300), (17, 33), (8, 100)])
@pytest.mark.parametrize("shape", ["hub", "fan"])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_several_batches_of_several_tiles(operation: str, shape: str, heads: int, width: int) -> None:
    check(make_kernel("fused"), make(shape, heads, width, 0.3), operation, torch.float64)


@pytest.mark.parametrize("slope", [0.0, 1.0])
@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_slopes(kernel: Kernel, operation: str, slope: float) -> None:
    case = make("small", 3, 7)
    case.attention = Attention(3, slope)
    check(kernel, case, operation, torch.float64)


@pytest.mark.parametrize("operation", ["gat", "gatv2"])
@pytest.mark.parametrize("shape", ["small", "hub", "fan"])
def test_lanes_of_several_threads(shape: str, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.get_num_threads", lambda: 3)
    check(make_kernel("fused"), make(shape, 3, 7, 0.3), operation, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("start", [-10_000.0, 9_990.0])
@pytest.mark.parametrize("shape", ["small", "hub"])
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


def test_threads_change_no_bit_between_runs() -> None:
    """Three real threads, in a process of their own, twice; and against one thread within rounding."""
    program = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from tests.kernels.test_attention import expected, make, make_kernel, run
import numba
assert numba.get_num_threads() == 3
kernel = make_kernel("fused")
for operation in ("gat", "gatv2"):
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
    environment = os.environ | {"NUMBA_NUM_THREADS": "3", "OMP_NUM_THREADS": "3"}
    root = str(Path(__file__).parents[2])
    script = "import tests.conftest as c, os; os.environ.update(NUMBA_NUM_THREADS='3', OMP_NUM_THREADS='3')\n" + program
    done = subprocess.run([sys.executable, "-c", script, root], cwd=root, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.parametrize("operation", ["gat", "gatv2"])
def test_autograd(kernel: Kernel, operation: str) -> None:
    if operation not in kernel.autograd_operations:  # never asked: domain_parallel refuses it
        return
    for shape, weighted in itertools.product(SHAPES, (False, True)):
        case = make(shape, 3, 7, 0.4, weighted=weighted)
        given = {} if case.weights is None else {"weight": case.weights[0]}
        case.weights = None if case.weights is None else case.weights[:1]
        case.blocks, case.dense = case.blocks[:1], case.dense[:1]
        case.z, case.el = case.z[:1], case.el[:1]
        want, wanted = expected(case, operation)
        if operation == "gat":
            out = kernel.autograd_operation("gat")(case.blocks[0], case.attention, case.z[0], case.el[0], case.er, **given)
        else:
            out = kernel.autograd_operation("gatv2")(case.blocks[0], case.attention, case.z[0], case.x, case.att, **given)
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
        arguments = (case.z[k].detach(), case.el[k].detach(), case.er.detach())
        kernel.operation("gat").forward(case.blocks[k], case.attention, *arguments, running)
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
