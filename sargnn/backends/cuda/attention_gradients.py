"""The backward kernels of ``attention``. Each walks over runs of edges (``runs.Runs``); arrays and letters are as there."""

import triton
import triton.language as tl

from sargnn.backends.cuda.attention_kernels import weight_factors
from sargnn.backends.cuda.launch import WORDS


@triton.jit(do_not_specialize=[*WORDS, "head"])
def attend_backward(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    places,
    z,
    other,
    local,
    att,
    f,
    p,
    d_sums,
    weight,
    records_of,
    grad,
    d_z,
    d_z_stride,
    d_other,
    d_other_stride,
    d_scores,
    kept_weights,
    src_ids,
    dst_ids,
    seed: tl.uint32,
    epoch: tl.uint32,
    tag: tl.uint32,
    threshold: tl.uint32,
    head,
    ALL: tl.constexpr,
    INTO_NEAR: tl.constexpr,
    ADD: tl.constexpr,
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
    """Gradients of a source row j and a head, over its edges to i: a = exp(e - m_i) / s_i, d e = a (r <g_i, z_j> - delta_i),

        d z_j = sum of r a g_i (gatv2: + d e att LeakyReLU'(u); one table: + factor d e q_i)
        d el_j = sum of LeakyReLU'(e) d e        d k_j = sum of factor d e q_i

    and d e, of gat times LeakyReLU'(e), of products times the factor, goes to ``d_scores``, at the edge's place.

    Bytes: D columns of g for each edge (and of x, or C of q, and 2 F of p and ``d_sums`` and F of f); z and its gradient once.
    """
    run = tl.program_id(0)
    near = (run if ALL else tl.load(near_rows + run)).to(tl.int64)
    first, last = tl.load(begin + run), tl.load(end + run)
    target = near if INTO_NEAR else run.to(tl.int64)
    d, c, column = tl.arange(0, D_TILE), tl.arange(0, C_TILE), tl.arange(0, F_TILE)
    values = tl.load(z + near * (K * D) + head * D + d, mask=d < D, other=0).to(HELD)
    if KIND == 0:
        own = tl.load(other + near * K + head).to(HELD)
    elif KIND == 1:
        direction = tl.load(att + head * D + d, mask=d < D, other=0).to(HELD)
    elif KIND == 2:
        keys = tl.load(other + near * (K * C) + head * C + c, mask=c < C, other=0).to(HELD)
    sums = tl.zeros([D_TILE], HELD)
    key_sums = tl.zeros([C_TILE], HELD)
    score_sum = tl.full([], 0, HELD)
    if DROPS:
        source = tl.load(src_ids + near)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        far = tl.load(far_rows + edges, mask=there, other=0).to(tl.int64)
        place = tl.load(places + edges, mask=there, other=0)
        mask = there[:, None] & (d < D)[None, :]
        g = tl.load(grad + far[:, None] * (K * D) + head * D + d[None, :], mask=mask, other=0).to(HELD)
        record = records_of + far * 4
        most, inverse = tl.load(record + 1, mask=there, other=0), tl.load(record + 2, mask=there, other=0)
        delta = tl.load(record + 3, mask=there, other=0)
        dots = tl.sum(g * values[None, :], 1)
        if KIND == 0:
            raw = own + tl.load(record, mask=there, other=0)
            scores = tl.where(raw > 0, raw, raw * SLOPE)
        elif KIND == 1:
            u = tl.load(local + far[:, None] * (K * D) + head * D + d[None, :], mask=mask, other=0).to(HELD) + values[None, :]
            scores = tl.sum(tl.where(u > 0, u, u * SLOPE) * direction[None, :], 1)
        elif KIND == 2:
            mask_c = there[:, None] & (c < C)[None, :]
            queries = tl.load(local + far[:, None] * (K * C) + head * C + c[None, :], mask=mask_c, other=0).to(HELD)
            scores = tl.sum(queries * keys[None, :], 1)
        else:
            queries = tl.load(local + far[:, None] * (K * D) + head * D + d[None, :], mask=mask, other=0).to(HELD)
            scores = tl.sum(queries * values[None, :], 1)
        if F > 0:
            mask_f = there[:, None] & (column < F)[None, :]
            rows = tl.load(f + place.to(tl.int64)[:, None] * F + column[None, :], mask=mask_f, other=0).to(HELD)
            at_far = far[:, None] * (K * F) + head * F + column[None, :]
            scores += tl.sum(rows * tl.load(p + at_far, mask=mask_f, other=0).to(HELD), 1)
            dots += tl.sum(rows * tl.load(d_sums + at_far, mask=mask_f, other=0).to(HELD), 1)
        if KIND >= 2:
            scores *= FACTOR
        weights = tl.where(there, tl.exp(scores - most) * inverse, 0)
        destination = far
        if DROPS:
            destination = tl.load(dst_ids + far, mask=there, other=0)
            dropped = weight_factors(
                weights, weight, edges, there, source, destination, head, seed, epoch, tag, threshold, DROPS, KEEP
            )
        else:
            dropped = weight_factors(weights, weight, edges, there, far, far, head, seed, epoch, tag, threshold, DROPS, KEEP)
        change = dropped * dots - weights * delta
        sums += tl.sum(dropped[:, None] * g, 0)
        if KIND == 0:
            change = tl.where(raw > 0, change, change * SLOPE)
            score_sum += tl.sum(change, 0)
        elif KIND == 1:
            sums += tl.sum(change[:, None] * tl.where(u > 0, direction[None, :], direction[None, :] * SLOPE), 0)
        else:
            change *= FACTOR
            if KIND == 2:
                key_sums += tl.sum(change[:, None] * queries, 0)
            else:
                sums += tl.sum(change[:, None] * queries, 0)
        tl.store(d_scores + place, change, mask=there)
        if F > 0:
            tl.store(kept_weights + place, dropped, mask=there)
    if d_z is not None:
        into = d_z + target * d_z_stride + d
        if ADD:
            sums += tl.load(into, mask=d < D, other=0).to(HELD)
        tl.store(into, sums.to(d_z.dtype.element_ty), mask=d < D)
        if KIND == 0:
            into = d_other + target * d_other_stride
            if ADD:
                score_sum += tl.load(into).to(HELD)
            tl.store(into, score_sum.to(d_other.dtype.element_ty))
        elif KIND == 2:
            into = d_other + target * d_other_stride + c
            if ADD:
                key_sums += tl.load(into, mask=c < C, other=0).to(HELD)
            tl.store(into, key_sums.to(d_other.dtype.element_ty), mask=c < C)


@triton.jit
def edge_sums(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    values,
    out,
    out_stride,
    ALL: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
):
    """``out[near] += sum of values`` [E] over one run's edges."""
    run = tl.program_id(0)
    near = (run if ALL else tl.load(near_rows + run)).to(tl.int64)
    first, last = tl.load(begin + run), tl.load(end + run)
    total = tl.zeros([EDGES], HELD)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        total += tl.load(values + edges, mask=edges < last, other=0)
    target = out + near * out_stride
    tl.store(target, tl.load(target) + tl.sum(total, 0))


@triton.jit
def gatv2_destinations(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    z,
    z_stride,
    x,
    x_stride,
    att,
    d_scores,
    d_x,
    d_x_stride,
    d_att,
    width,
    runs,
    ALL: tl.constexpr,
    INTO_NEAR: tl.constexpr,
    SLOPE: tl.constexpr,
    HELD: tl.constexpr,
    EACH: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """With u = z_j + x_i: ``d x_i += att sum of d e LeakyReLU'(u)``, and the sum of d e LeakyReLU(u) over ``EACH`` runs.

    Bytes: one row of z for each edge; x and its gradient once.
    """
    d = tl.arange(0, COLUMNS)
    inside = d < width
    direction = tl.load(att + d, mask=inside, other=0).to(HELD)
    of_att = tl.zeros([COLUMNS], HELD)
    for number in range(tl.program_id(0) * EACH, tl.minimum((tl.program_id(0) + 1) * EACH, runs)):
        run = tl.cast(number, tl.int64)
        near = run if ALL else tl.load(near_rows + run).to(tl.int64)
        own = tl.load(x + near * x_stride + d, mask=inside, other=0).to(HELD)
        first, last = tl.load(begin + run), tl.load(end + run)
        sums = tl.zeros([COLUMNS], HELD)
        for at in range(first, last, EDGES):
            edges = at + tl.arange(0, EDGES)
            there = edges < last
            far = tl.load(far_rows + edges, mask=there, other=0).to(tl.int64)
            mask = there[:, None] & inside[None, :]
            u = tl.load(z + far[:, None] * z_stride + d[None, :], mask=mask, other=0).to(HELD) + own[None, :]
            change = tl.load(d_scores + edges, mask=there, other=0)[:, None]
            sums += tl.sum(tl.where(u > 0, change, change * SLOPE), 0)
            of_att += tl.sum(tl.where(u > 0, u, u * SLOPE) * change, 0)
        target = d_x + (near if INTO_NEAR else run) * d_x_stride + d
        sums *= direction
        if INTO_NEAR:
            sums += tl.load(target, mask=inside, other=0)
        tl.store(target, sums, mask=inside)
    tl.store(d_att + tl.program_id(0).to(tl.int64) * width + d, of_att, mask=inside)


@triton.jit
def edge_row_gradients(
    near_rows,
    begin,
    end,
    start,
    far_rows,
    p,
    p_stride,
    d_sums,
    d_sums_stride,
    weights,
    d_scores,
    d_f,
    width,
    ALL: tl.constexpr,
    ADD: tl.constexpr,
    HELD: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One head's ``d f_e = r a d_sums_i + factor d e p_i`` of one run's edges; ``ADD`` to what there is."""
    run = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    inside = column < width
    near = (run if ALL else tl.load(near_rows + run)).to(tl.int64)
    first, last = tl.load(begin + run), tl.load(end + run)
    queries = tl.load(p + near * p_stride + column, mask=inside, other=0).to(HELD)
    sums = tl.load(d_sums + near * d_sums_stride + column, mask=inside, other=0).to(HELD)
    for at in range(first, last, EDGES):
        edges = at + tl.arange(0, EDGES)
        there = edges < last
        share = tl.load(weights + edges, mask=there, other=0)[:, None]
        change = tl.load(d_scores + edges, mask=there, other=0)[:, None]
        mask = there[:, None] & inside[None, :]
        target = d_f + edges.to(tl.int64)[:, None] * width + column[None, :]
        total = share * sums[None, :] + change * queries[None, :]
        if ADD:
            total += tl.load(target, mask=mask, other=0).to(HELD)
        tl.store(target, total.to(d_f.dtype.element_ty), mask=mask)
