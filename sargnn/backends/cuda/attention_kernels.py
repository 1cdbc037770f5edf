"""The forward kernels of ``attention``. Each walks over runs of edges (``runs.Runs``); arrays and letters are as there.

A program folds one head of one run; tiles are ``EDGES`` edges times all columns of a head. Weights are ``exp(e - m)``.
"""

import triton
import triton.language as tl

from sargnn.backends.cuda.launch import WORDS, drawn

GAT, GATV2, DOT, ONE_TABLE = 0, 1, 2, 3
"""How scores are made; of products, of a table of keys or of the values themselves."""


@triton.jit
def weight_factors(
    weights, weight, at, there, source, destination, head, seed, epoch, tag, threshold, DROPS: tl.constexpr, KEEP: tl.constexpr
):
    """``weights`` [EDGES] after dropout, times the edges' own."""
    if weight is not None:
        weights *= tl.load(weight + at, mask=there, other=0)
    if DROPS:
        words = drawn(source, destination, head, tag, seed, epoch)
        weights = tl.where(words >= threshold, weights * KEEP, 0)
    return weights


@triton.jit(do_not_specialize=WORDS)
def attend(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    z,
    other,
    local,
    att,
    f,
    p,
    weight,
    out,
    top,
    denominator,
    edge_out,
    src_ids,
    dst_ids,
    seed: tl.uint32,
    epoch: tl.uint32,
    tag: tl.uint32,
    threshold: tl.uint32,
    ALL: tl.constexpr,
    INTO_NEAR: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    F: tl.constexpr,
    KIND: tl.constexpr,
    SLOPE: tl.constexpr,
    FACTOR: tl.constexpr,
    DROPS: tl.constexpr,
    KEEP: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    D_TILE: tl.constexpr,
    C_TILE: tl.constexpr,
    F_TILE: tl.constexpr,
):
    """Fold one head of one run into a running softmax: m' = max(m, e), s' = s exp(m - m') + sum of exp(e - m'), and
    out' s' = out s exp(m - m') + sum of r exp(e - m') z.

    Bytes: D columns of z for each edge (and C of the keys, F of the edge); out, m, s once.
    """
    run, head = tl.program_id(0) // K, tl.program_id(0) % K
    near = (run if ALL else tl.load(near_rows + run)).to(tl.int64)
    first, last = tl.load(begin + run), tl.load(end + run)
    target = near if INTO_NEAR else run.to(tl.int64)
    d, c, column = tl.arange(0, D_TILE), tl.arange(0, C_TILE), tl.arange(0, F_TILE)
    if KIND == 0:
        own = tl.load(local + near * K + head).to(HELD)
    elif KIND == 1:
        own = tl.load(local + near * (K * D) + head * D + d, mask=d < D, other=0).to(HELD)
        direction = tl.load(att + head * D + d, mask=d < D, other=0).to(HELD)
    elif KIND == 2:
        own = tl.load(local + near * (K * C) + head * C + c, mask=c < C, other=0).to(HELD)
    else:
        own = tl.load(local + near * (K * D) + head * D + d, mask=d < D, other=0).to(HELD)
    most = tl.full([], -float("inf"), HELD)
    total = tl.full([], 0, HELD)
    summed = tl.zeros([D_TILE], HELD)
    edge_sums = tl.zeros([F_TILE], HELD)
    if F > 0:
        of_edges = tl.load(p + near * (K * F) + head * F + column, mask=column < F, other=0).to(HELD)
    if INTO_NEAR:
        most = tl.load(top + target * K + head)
        total = tl.load(denominator + target * K + head)
        if total > 0:
            summed = tl.load(out + target * (K * D) + head * D + d, mask=d < D, other=0).to(HELD) * total
            if F > 0:
                edge_sums = tl.load(edge_out + target * (K * F) + head * F + column, mask=column < F, other=0).to(HELD) * total
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        far = tl.load(far_rows + edges, mask=there, other=0).to(tl.int64)
        mask = there[:, None] & (d < D)[None, :]
        values = tl.load(z + far[:, None] * (K * D) + head * D + d[None, :], mask=mask, other=0).to(HELD)
        if KIND == 0:
            scores = tl.load(other + far * K + head, mask=there, other=0).to(HELD) + own
            scores = tl.where(scores > 0, scores, scores * SLOPE)
        elif KIND == 1:
            u = values + own[None, :]
            scores = tl.sum(tl.where(u > 0, u, u * SLOPE) * direction[None, :], 1)
        elif KIND == 2:
            mask_c = there[:, None] & (c < C)[None, :]
            keys = tl.load(other + far[:, None] * (K * C) + head * C + c[None, :], mask=mask_c, other=0).to(HELD)
            scores = tl.sum(keys * own[None, :], 1)
        else:
            scores = tl.sum(values * own[None, :], 1)
        if F > 0:
            mask_f = there[:, None] & (column < F)[None, :]
            rows = tl.load(f + edges.to(tl.int64)[:, None] * F + column[None, :], mask=mask_f, other=0).to(HELD)
            scores += tl.sum(rows * of_edges[None, :], 1)
        if KIND >= 2:
            scores *= FACTOR
        scores = tl.where(there, scores, -float("inf"))
        highest = tl.maximum(most, tl.max(scores, 0))
        weights = tl.exp(scores - highest)
        before = tl.where(total == 0, 0.0, tl.exp(most - highest))
        total = total * before + tl.sum(weights, 0)
        source, destination = far, near
        if DROPS:
            source, destination = tl.load(src_ids + far, mask=there, other=0), tl.load(dst_ids + near)
        weights = weight_factors(
            weights, weight, edges, there, source, destination, head, seed, epoch, tag, threshold, DROPS, KEEP
        )
        summed = summed * before + tl.sum(weights[:, None] * values, 0)
        if F > 0:
            edge_sums = edge_sums * before + tl.sum(weights[:, None] * rows, 0)
        most = highest
    inverse = 1 / tl.where(total == 0, 1, total)
    tl.store(out + target * (K * D) + head * D + d, (summed * inverse).to(out.dtype.element_ty), mask=d < D)
    if F > 0:
        place = edge_out + target * (K * F) + head * F + column
        tl.store(place, (edge_sums * inverse).to(edge_out.dtype.element_ty), mask=column < F)
    tl.store(top + target * K + head, most)
    tl.store(denominator + target * K + head, total)


@triton.jit
def join(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    piece_out,
    piece_top,
    piece_sum,
    piece_edges,
    out,
    top,
    denominator,
    edge_out,
    ALL: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    F: tl.constexpr,
    HELD: tl.constexpr,
    D_TILE: tl.constexpr,
    F_TILE: tl.constexpr,
):
    """Merge the softmaxes of a hub's pieces into its running one: weights are s exp(m - m')."""
    run, head = tl.program_id(0) // K, tl.program_id(0) % K
    near = (run if ALL else tl.load(near_rows + run)).to(tl.int64)
    d, column = tl.arange(0, D_TILE), tl.arange(0, F_TILE)
    most = tl.load(top + near * K + head)
    total = tl.load(denominator + near * K + head)
    summed = tl.zeros([D_TILE], HELD)
    edge_sums = tl.zeros([F_TILE], HELD)
    if total > 0:
        summed = tl.load(out + near * (K * D) + head * D + d, mask=d < D, other=0).to(HELD) * total
        if F > 0:
            edge_sums = tl.load(edge_out + near * (K * F) + head * F + column, mask=column < F, other=0).to(HELD) * total
    for piece in range(tl.load(begin + run), tl.load(end + run)):
        row = tl.cast(piece, tl.int64)  # the interpreter's loops count in Python's numbers
        score, count = tl.load(piece_top + row * K + head), tl.load(piece_sum + row * K + head)
        highest = tl.maximum(most, score)
        before = tl.where(total == 0, 0.0, tl.exp(most - highest))
        mine = count * tl.exp(score - highest)
        total = total * before + mine
        values = tl.load(piece_out + row * (K * D) + head * D + d, mask=d < D, other=0).to(HELD)
        summed = summed * before + mine * values
        if F > 0:
            rows = tl.load(piece_edges + row * (K * F) + head * F + column, mask=column < F, other=0).to(HELD)
            edge_sums = edge_sums * before + mine * rows
        most = highest
    tl.store(out + near * (K * D) + head * D + d, (summed / total).to(out.dtype.element_ty), mask=d < D)
    if F > 0:
        place = edge_out + near * (K * F) + head * F + column
        tl.store(place, (edge_sums / total).to(edge_out.dtype.element_ty), mask=column < F)
    tl.store(top + near * K + head, most)
    tl.store(denominator + near * K + head, total)


@triton.jit
def records(
    er,
    out,
    top,
    denominator,
    grad,
    into,
    K: tl.constexpr,
    D: tl.constexpr,
    HELD: tl.constexpr,
    TILE: tl.constexpr,
):
    """``AttentionOperation.destination_records`` of one row and head."""
    row, head = (tl.program_id(0) // K).to(tl.int64), tl.program_id(0) % K
    d = tl.arange(0, TILE)
    place = row * (K * D) + head * D + d
    values = tl.load(out + place, mask=d < D, other=0).to(HELD)
    delta = tl.sum(values * tl.load(grad + place, mask=d < D, other=0).to(HELD), 0)
    total = tl.load(denominator + row * K + head)
    target = into + row * (4 * K) + head
    tl.store(target, tl.full([], 0, HELD) if er is None else tl.load(er + row * K + head).to(HELD))
    tl.store(target + K, tl.load(top + row * K + head))
    tl.store(target + 2 * K, tl.where(total == 0, 0.0, 1 / tl.where(total == 0, 1, total)))
    tl.store(target + 3 * K, tl.where(total == 0, 0.0, delta))
