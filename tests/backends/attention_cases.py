"""Two shards for attention, what dense matrices and plain autograd say, and the same through a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sargnn.backends.base import Kernel
from sargnn.backends.block import EdgeBlock, EndIds
from sargnn.backends.operations import Attention, AttentionGradients, AttentionInputs, RunningSoftmax
from sargnn.bf16 import wide
from sargnn.graph.edge_columns import EdgeColumns
from sargnn.rng import Draw, Purpose, edge_mask

SLOPE = 0.2
"""Of LeakyReLU where its input is negative."""
SHAPES = {"small": (6, 9, 20), "one": (1, 1, 1), "no_edges": (5, 7, 0), "no_sources": (0, 4, 0), "no_rows": (4, 0, 0),
          "few_rows": (3, 40, 30), "hub": (700, 3, 2000), "fan": (3, 700, 2000)}  # fmt: skip
"""Sources, destinations, edges of each of two shards. Hub and fan have more edges in a row than kernels hold at a time."""


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
    weights: list[Tensor] | None
    """[E] of each shard's edges, fp64, which coefficients are multiplied with."""
    keys: list[Tensor]
    """Of ``dot``, of the width of ``q``; ``z`` where one table is both."""
    q: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [
            *self.z,
            *self.el,
            self.er,
            self.x,
            self.att,
            *(k for k in self.keys if not any(k is z for z in self.z)),
            self.q,
        ]

    def parts(self, operation: str) -> tuple[list[tuple[Tensor, ...]], Tensor, tuple[Tensor, ...]]:
        """Which leaves an operation reads: the sources' of each shard, the destinations', the parameters."""
        if operation == "gat":
            return list(zip(self.z, self.el, strict=True)), self.er, ()
        if operation == "gatv2":
            return [(z,) for z in self.z], self.x, (self.att,)
        return [(z,) if k is z else (z, k) for z, k in zip(self.z, self.keys, strict=True)], self.q, ()


def make(
    shape: str, heads: int, width: int, p: float = 0.0, scores: float = 1.0, *, weighted: bool = False, one_table: bool = False
) -> Case:
    """A case of random numbers, always the same.

    Args:
        shape: a key of ``SHAPES``.
        p: the probability that an edge is dropped.
        scores: the size of the scores; above 1 they are whole numbers.
        weighted: the edges have weights.
        one_table: ``dot`` has keys that are the values; else they are of another width.
    """
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
        blocks.append(EdgeBlock(src, dst, num_src, num_dst, EndIds(source_ids, ids[2 * num_src :][:num_dst])))
        dense.append(matrix)
    draw = Draw(3, 5, Purpose.ATTENTION_DROPOUT, 2, p) if p else None
    z, of_keys = [normal(num_src, heads * width) for _ in range(2)], heads * (width if one_table else width // 2 + 3)
    case = Case(
        blocks, dense, z,
        # Whole numbers, so that fp32 adds them without rounding whatever their size.
        [(scores * normal(num_src, heads)).round() if scores > 1 else normal(num_src, heads) for _ in range(2)],
        (scores * normal(num_dst, heads)).round() if scores > 1 else normal(num_dst, heads),
        normal(num_dst, heads * width), normal(heads * width), normal(num_dst, heads * width),
        Attention(heads, SLOPE, draw, factor=0.7),
        [normal(num_edges) * (normal(num_edges) > -1) for _ in range(2)] if weighted else None,  # some are 0, some negative
        z if one_table else [normal(num_src, of_keys) for _ in range(2)], normal(num_dst, of_keys),
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
    elif operation == "dot":
        keys, q = torch.cat(case.keys).unflatten(1, (heads, -1)), case.q.unflatten(1, (heads, -1))
        scores = case.attention.factor * torch.einsum("ikd,jkd->ijk", q, keys)
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
    kernel: Kernel,
    case: Case,
    operation: str,
    dtype: torch.dtype,
    order: list[int],
    *,
    keep: bool = False,
    device: str = "cpu",
) -> tuple[Tensor, list[Any]]:
    """The same through a kernel's operation, on a device. keep: scores stay from forward to backward."""
    held = wide(dtype)
    for block in case.blocks:
        block.lay(lambda tensor: tensor.to(device))
    rows = {id(t): t.detach().to(device, dtype) for t in (*case.z, case.x, *case.keys, case.q)}
    # Scores and parameters are fp32 beside bf16 rows.
    cast = rows | {id(t): t.detach().to(device, held) for t in (*case.el, case.er, case.att)}
    sources, local, params = case.parts(operation)
    own, grad, att = cast[id(local)], case.grad.detach().to(device, dtype), cast[id(params[0])] if params else None
    running = RunningSoftmax.empty(rows[id(case.x)], len(own), case.attention.heads)
    running.out.fill_(torch.nan)
    attend: Any = kernel.operation(operation)
    for block, weight in zip(case.blocks, case.weights or (), strict=False):
        block.columns = EdgeColumns.of({"weight": weight.detach().to(device, held)})
        block.__dict__.pop("t_weight", None)
    given: list[dict[str, Any]] = [{} if case.weights is None else {"weight": block.weight} for block in case.blocks]
    for block, arguments in zip(case.blocks, given, strict=True):
        if keep:
            arguments["scores"] = own.new_full((block.num_edges, case.attention.heads), torch.nan, dtype=held)
    inputs = [
        AttentionInputs(tuple(cast[id(t)] for t in tensors), own, att, **arguments)
        for tensors, arguments in zip(sources, given, strict=True)
    ]
    for k in order:
        attend.forward(case.blocks[k], case.attention, inputs[k], running)
    isolated = (torch.cat(case.dense, 1).sum(1) == 0).to(device)
    assert (running.denominator[isolated] == 0).all()
    out = running.out.masked_fill(isolated[:, None], 0)
    finished = RunningSoftmax(out, running.max_score, running.denominator)
    records = attend.destination_records(own if operation == "gat" else None, finished, grad)
    found = {id(t): torch.full_like(cast[id(t)], torch.nan) for tensors in sources for t in tensors}
    both: list[list[Any]] = []
    for wanted in (True, False):  # the sources' gradients, too
        both.append([torch.zeros_like(own, dtype=held), None if att is None else torch.zeros_like(att)])
        for k in order:
            into = AttentionGradients(tuple(found[id(t)] for t in sources[k]) if wanted else None, *both[-1])
            attend.backward(case.blocks[k], case.attention, inputs[k], records, grad, into)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*both, strict=True))
    found |= {id(t): gradient for t, gradient in zip((local, *params), both[0], strict=False)}
    gradients = [found.get(id(leaf)) for leaf in case.leaves]
    return out.cpu(), [None if gradient is None else gradient.cpu() for gradient in gradients]
