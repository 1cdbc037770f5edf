"""The kernels of ``rows``. Tables have ``rows`` rows of ``width`` columns and are cut in tiles, ``tiles`` of them side by side;
``HELD`` is what is computed with.
"""

import triton
import triton.language as tl

from sargnn.backends.cuda.launch import WORDS

_NOT_SPECIALIZED = ["rows", *WORDS]
"""Numbers that change from call to call: no code of their own for 1 and for multiples of 16."""


@triton.jit
def _kept(
    values, ids, first_column, seed, epoch, tag, threshold, KEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Dropout of a tile: one call of Philox for four neighbouring columns, as ``sargnn.rng`` counts."""
    key = (epoch.to(tl.uint64) << 32) | seed.to(tl.uint64)
    zeros = tl.zeros([ROWS, COLUMNS // 4], tl.uint32)
    groups = (first_column // 4 + tl.arange(0, COLUMNS // 4)).to(tl.uint32)
    node = ids.to(tl.uint32)[:, None] + zeros
    w0, w1, w2, w3 = tl.philox(key, node, zeros, groups[None, :] + zeros, tag.to(tl.uint32) + zeros)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    return tl.where(words >= threshold.to(tl.uint32), values * KEEP, 0)


@triton.jit
def _normal(values, x, row, inside, width, there, EPS: tl.constexpr):
    """xhat of a tile of whole rows, which begins at ``x``, and 1 / sqrt(var + eps). Rows are shifted by their first entry, so
    that one of equal entries is normalised to exact zeros."""
    values -= tl.load(x + row * width, mask=there, other=0).to(values.dtype)[:, None]
    values = tl.where(inside[None, :], values, 0)
    centred = tl.where(inside[None, :], values - (tl.sum(values, 1) / width)[:, None], 0)
    inv = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + EPS)
    return centred * inv[:, None], inv


@triton.jit(do_not_specialize=_NOT_SPECIALIZED)
def norm_act_drop(
    x,
    slope,
    shift,
    ids,
    out,
    seed: tl.uint32,
    epoch: tl.uint32,
    tag: tl.uint32,
    threshold: tl.uint32,
    rows,
    width,
    tiles,
    ACT: tl.constexpr,
    LAYER: tl.constexpr,
    EPS: tl.constexpr,
    DROPS: tl.constexpr,
    KEEP: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``out = drop(act(slope x + shift))`` of a tile; ``LAYER``: of xhat instead of x. Bytes: x and out."""
    first_column = (tl.program_id(0) % tiles) * COLUMNS
    columns = first_column + tl.arange(0, COLUMNS)
    first, row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS, tl.arange(0, ROWS)
    inside, there = columns < width, row < rows - first
    mask = there[:, None] & inside[None, :]
    places = row[:, None] * width + columns[None, :]
    x, out, ids = x + first * width, out + first * width, ids + first
    values = tl.load(x + places, mask=mask, other=0).to(HELD)
    if LAYER:
        values, _inv = _normal(values, x, row, inside, width, there, EPS)
    if slope is not None:
        values *= tl.load(slope + columns, mask=inside, other=0)[None, :]
        values += tl.load(shift + columns, mask=inside, other=0)[None, :]
    if ACT == "relu":
        values = tl.where(values < 0, 0, values)  # keeps what is not a number
    elif ACT == "elu":
        values = tl.where(values > 0, values, tl.exp(values) - 1)  # off by less than the rounding of 1
    if DROPS:
        ids_of = tl.load(ids + row, mask=there, other=0)
        values = _kept(values, ids_of, first_column, seed, epoch, tag, threshold, KEEP, ROWS, COLUMNS)
    tl.store(out + places, values.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_NOT_SPECIALIZED)
def norm_gradients(
    grad,
    x,
    slope,
    shift,
    mean,
    inv_std,
    ids,
    d_x,
    shift_sums,
    slope_sums,
    seed: tl.uint32,
    epoch: tl.uint32,
    tag: tl.uint32,
    threshold: tl.uint32,
    rows,
    width,
    tiles,
    ACT: tl.constexpr,
    LAYER: tl.constexpr,
    EPS: tl.constexpr,
    DROPS: tl.constexpr,
    KEEP: tl.constexpr,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Of a chunk of rows the gradient g of ``v = slope x + shift``, and its sums with and without xhat; ``LAYER``: v is
    ``slope xhat + shift``, and what is written is the gradient of x. Bytes: grad, x and d_x."""
    chunk = tl.program_id(0) // tiles
    first_column = (tl.program_id(0) % tiles) * COLUMNS
    columns = first_column + tl.arange(0, COLUMNS)
    inside = columns < width
    by, to = tl.load(slope + columns, mask=inside, other=0)[None, :], tl.load(shift + columns, mask=inside, other=0)[None, :]
    if not LAYER:
        centre = tl.load(mean + columns, mask=inside, other=0)[None, :]
        unit = tl.load(inv_std + columns, mask=inside, other=0)[None, :]
    gradients, products = tl.zeros([ROWS, COLUMNS], HELD), tl.zeros([ROWS, COLUMNS], HELD)
    first = chunk.to(tl.int64) * (STEPS * ROWS)
    row = tl.arange(0, ROWS)
    places = row[:, None] * width + columns[None, :]
    for at in range(first, tl.minimum(first + STEPS * ROWS, rows), ROWS):
        there, before = row < rows - at, at * width
        mask = there[:, None] & inside[None, :]
        values = tl.load(x + before + places, mask=mask, other=0).to(HELD)
        g = tl.load(grad + before + places, mask=mask, other=0).to(HELD)
        if LAYER:
            xhat, inv = _normal(values, x + before, row, inside, width, there, EPS)
            v = by * xhat + to
        else:
            xhat = (values - centre) * unit
            v = by * values + to
        if DROPS:
            ids_of = tl.load(ids + at + row, mask=there, other=0)
            g = _kept(g, ids_of, first_column, seed, epoch, tag, threshold, KEEP, ROWS, COLUMNS)
        if ACT != "none":
            g *= tl.where(v > 0, 1, tl.exp(v) if ACT == "elu" else tl.zeros_like(v))
        product = g * xhat
        gradients += tl.where(mask, g, 0)
        products += tl.where(mask, product, 0)
        if LAYER:
            shares = by * product
            g = by * g
            g -= (tl.sum(g, 1) / width)[:, None] + xhat * (tl.sum(shares, 1) / width)[:, None]
            g *= inv[:, None]
        tl.store(d_x + before + places, g.to(d_x.dtype.element_ty), mask=mask)
    target = chunk.to(tl.int64) * width + columns
    tl.store(shift_sums + target, tl.sum(gradients, 0).to(tl.float64), mask=inside)
    tl.store(slope_sums + target, tl.sum(products, 0).to(tl.float64), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def norm_backward(
    d_x,
    x,
    slope,
    mean,
    inv_std,
    mean_grad,
    mean_product,
    counted,
    rows,
    width,
    tiles,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``d_x = slope (d_x - mean_grad - xhat mean_product)`` of a tile. Bytes: x, and d_x twice."""
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    first, row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS, tl.arange(0, ROWS)
    inside, there = columns < width, row < rows - first
    mask = there[:, None] & inside[None, :]
    places = row[:, None] * width + columns[None, :]
    x, d_x = x + first * width, d_x + first * width
    xhat = tl.load(x + places, mask=mask, other=0).to(HELD) - tl.load(mean + columns, mask=inside, other=0)[None, :]
    xhat *= tl.load(inv_std + columns, mask=inside, other=0)[None, :]
    share = xhat * tl.load(mean_product + columns, mask=inside, other=0)[None, :]
    share += tl.load(mean_grad + columns, mask=inside, other=0)[None, :]
    if counted is not None:
        share = tl.where((tl.load(counted + first + row, mask=there, other=0) != 0)[:, None], share, 0)
    g = tl.load(d_x + places, mask=mask, other=0).to(HELD) - share
    g *= tl.load(slope + columns, mask=inside, other=0)[None, :]
    tl.store(d_x + places, g.to(d_x.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def moments(
    x,
    counted,
    means,
    squares,
    counts,
    rows,
    width,
    tiles,
    HELD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Number, mean and sum of squared deviations of a chunk of rows: each place of a tile keeps its own as Welford (1962) does,
    of differences from its first entry, then all are combined in fp64. Bytes: x."""
    chunk = tl.program_id(0) // tiles
    columns = (tl.program_id(0) % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < width
    count = tl.zeros([ROWS], HELD)
    origin, mean, square = tl.zeros([ROWS, COLUMNS], HELD), tl.zeros([ROWS, COLUMNS], HELD), tl.zeros([ROWS, COLUMNS], HELD)
    first = chunk.to(tl.int64) * (STEPS * ROWS)
    row = tl.arange(0, ROWS)
    places = row[:, None] * width + columns[None, :]
    for at in range(first, tl.minimum(first + STEPS * ROWS, rows), ROWS):
        counts_here = row < rows - at
        if counted is not None:
            counts_here = tl.load(counted + at + row, mask=counts_here, other=0) != 0
        mask = counts_here[:, None] & inside[None, :]
        values = tl.load(x + at * width + places, mask=mask, other=0).to(HELD)
        count += counts_here.to(HELD)
        origin = tl.where(mask & (count == 1)[:, None], values, origin)
        values -= origin
        before = tl.where(mask, values - mean, 0)
        mean += before * (1 / tl.maximum(count, 1))[:, None]
        square += before * tl.where(mask, values - mean, 0)
    weight, held = count.to(tl.float64)[:, None], origin.to(tl.float64) + mean.to(tl.float64)
    total = tl.sum(weight, 0)
    centre = tl.sum(weight * held, 0) / tl.maximum(total, 1)
    deviation = held - centre[None, :]
    target = chunk.to(tl.int64) * width + columns
    tl.store(means + target, centre, mask=inside)
    tl.store(squares + target, tl.sum(square.to(tl.float64) + weight * deviation * deviation, 0), mask=inside)
    tl.store(counts + chunk + tl.arange(0, 1), total)


@triton.jit
def join_halves(upper, lower, size, TILE: tl.constexpr):
    """bf16 rows from the halves of fp32 numbers, rounded to nearest, ties to even. Bytes: lower, and upper twice."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < size
    high = tl.load(upper + at, mask=mask, other=0).to(tl.int16, bitcast=True).to(tl.int32)
    low = tl.load(lower + at, mask=mask, other=0).to(tl.int32)
    number = ((high << 16) | (low & 0xFFFF)).to(tl.float32, bitcast=True)
    tl.store(upper + at, number.to(tl.bfloat16), mask=mask)
