"""The inner loops of attention, in vector code: scores and softmax of one destination's edges, and rows weighted per head.

A row of K heads x D features is cut into tiles of up to ``TILE`` vectors, each of whole heads or of a part of one; a tile's
accumulators stay in registers while it walks the edges once. A head's last vector is masked, so any D will do. Scores are
handled all heads of an edge at a time, masked likewise.

What is held per edge of a batch has rows of whole vectors, ``row_of(K)`` numbers each: a vector read back right after it was
stored whole comes from the store buffer, one stored under a mask waits for the cache.

Letters: K heads, D head width, B edges of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir

from sargnn.backends.cpu.vector_code import AHEAD, VECTOR_BYTES, RowFormat, VectorCode, const, row_intrinsic, vector_intrinsic

TILE = 8
RECORD = 4
"""What backward reads of a destination, side by side: its score, its maximum, 1 / its denominator, delta; K numbers each."""


@numba.njit(inline="always")
def row_of(heads: Any, itemsize: Any) -> Any:
    """Numbers in a row of what is held per edge: K, rounded up to whole vectors."""
    lanes = VECTOR_BYTES // itemsize
    return -(-heads // lanes) * lanes


def _padded(v: VectorCode, heads: Any) -> Any:
    """``row_of`` in code."""
    return v.b.mul(v.b.sdiv(v.b.add(heads, const(v.lanes - 1)), const(v.lanes)), const(v.lanes))


class _Tile:
    """A tile: heads ``first`` .. ``first + heads - 1``, ``vectors`` vectors of each, from vector ``part`` of the head on."""

    def __init__(self, v: VectorCode, first: Any, heads: int, part: Any, vectors: int, width: Any) -> None:
        self.first, self.heads, self.vectors, self._v = first, heads, vectors, v
        self._start = start = v.b.mul(part, const(v.lanes))
        last = v.b.add(start, const((vectors - 1) * v.lanes))
        self._mask = v.lanes_below(v.b.sub(width, last))
        self.elements = [
            [v.b.add(v.at(start, v.b.add(first, const(q)), width), const(r * v.lanes)) for r in range(vectors)]
            for q in range(heads)
        ]

    def load(self, rows: RowFormat, row: Any, head: int, vector: int) -> Any:
        return rows.load(row, self.elements[head][vector], self._mask if vector == self.vectors - 1 else None)

    def load_of_edge(self, rows: RowFormat, row: Any, vector: int) -> Any:
        """Of a row that all heads have alike."""
        element = self._v.b.add(self._start, const(vector * self._v.lanes))
        return rows.load(row, element, self._mask if vector == self.vectors - 1 else None)

    def store(self, rows: RowFormat, value: Any, row: Any, head: int, vector: int) -> None:
        rows.store(value, row, self.elements[head][vector], self._mask if vector == self.vectors - 1 else None)

    def prefetch(self, rows: RowFormat, row: Any) -> None:
        for elements in self.elements:
            rows.prefetch(row, elements)

    def each(self) -> list[tuple[int, int]]:
        """(head, vector) of every vector."""
        return [(q, r) for q in range(self.heads) for r in range(self.vectors)]


def _tiles(v: VectorCode, heads: Any, width: Any, emit: Callable[[_Tile, Any], None]) -> None:
    """A loop over the tiles of a row; ``emit(tile, part)`` is called once for each of their shapes."""
    b = v.b
    vectors = b.sdiv(b.add(width, const(v.lanes - 1)), const(v.lanes))
    together = b.select(
        b.icmp_signed("<=", vectors, const(TILE)), b.sdiv(const(TILE), v.smaller(vectors, const(TILE))), const(1)
    )
    first, part = v.variable(const(0)), v.variable(const(0))
    head, last, done = (b.append_basic_block(name) for name in ("tile", "tile.next", "tile.done"))
    b.branch(head)
    b.position_at_end(head)
    here, start = first.get(), part.get()
    of_heads = v.smaller(together, b.sub(heads, here))
    of_vectors = v.smaller(b.sub(vectors, start), const(TILE))
    switch = b.switch(v.at(of_heads, of_vectors, TILE + 1), done)
    for k in range(1, TILE + 1):
        for n in range(1, TILE // k + 1):
            block = b.append_basic_block(f"tile.{n}x{k}")
            switch.add_case(const(k * (TILE + 1) + n), block)
            b.position_at_end(block)
            emit(_Tile(v, here, n, start, k, width), start)
            b.branch(last)
    b.position_at_end(last)
    following = b.add(start, of_vectors)
    finished = b.icmp_signed(">=", following, vectors)
    part.set(b.select(finished, const(0), following))
    first.set(b.select(finished, b.add(here, of_heads), here))
    b.cbranch(b.icmp_signed("<", first.get(), heads), head, done)
    b.position_at_end(done)


def _rows(v: VectorCode, base: Any, stride: Any, indices: Any, edge: Any, limit: Any, by: int = AHEAD) -> tuple[Any, Any]:
    """Addresses of an edge's row and of the row to prefetch."""
    return v.at(base, v.index(indices, edge), stride), v.row_ahead(base, stride, indices, edge, limit, by)


def _finish_row(v: VectorCode, tile: _Tile, sums: list[list[Any]], rows: RowFormat, row: Any, adds: Any, carry: Any) -> None:
    """Store a tile's sums, or add them to ``row`` times ``carry`` (address of a number per head; None for 1)."""
    with v.case(adds):
        for q, r in tile.each():
            old = tile.load(rows, row, q, r)
            if carry is None:
                total = v.b.fadd(old, sums[q][r].get())
            else:
                kept = v.splat(v.load_scalar(v.at(carry, v.b.add(tile.first, const(q)), v.item)))
                total = v.multiply_add(old, kept, sums[q][r].get())
            sums[q][r].set(total)
    for q, r in tile.each():
        tile.store(rows, sums[q][r].get(), row, q, r)


def _finish_scaled(v: VectorCode, tile: _Tile, sums: list[list[Any]], rows: RowFormat, where: tuple[Any, ...]) -> None:
    out, factor, carry, adds = where
    for q in range(tile.heads):
        scale = v.splat(v.load_scalar(v.at(factor, v.b.add(tile.first, const(q)), v.item)))
        for r in range(tile.vectors):
            sums[q][r].set(v.b.fmul(sums[q][r].get(), scale))
    _finish_row(v, tile, sums, rows, out, v.b.icmp_signed("!=", adds, const(0)), carry)


@row_intrinsic
def fold_rows(v: VectorCode, integers: Any, scalar: Any, of_sources: RowFormat, of_sums: RowFormat) -> None:
    """``out[h, :] = factor[h] * sum over e in [start, end) of weight[e - start, h] * src[indices[e], h, :]``.

    With ``adds``: ``+ carry[h] * out[h, :]``. Arguments: out, src, stride, indices, start, end, limit, K, D, weight, factor,
    carry, adds; an element of src and one of out.
    """
    out, src, stride, indices, start, end, limit, heads, width, weight, factor, carry, adds = integers

    held = _padded(v, heads)

    def emit(tile: _Tile, part: Any) -> None:
        sums = [[v.variable(v.constant(0.0)) for _ in range(tile.vectors)] for _ in range(tile.heads)]
        with v.loop(start, end) as edge:
            row, ahead = _rows(v, src, stride, indices, edge, limit, of_sources.ahead)
            tile.prefetch(of_sources, ahead)
            weights = v.at(weight, v.at(tile.first, v.b.sub(edge, start), held), v.item)
            for q in range(tile.heads):
                factor_q = v.splat(v.load_scalar(v.b.add(weights, const(q * v.item))))
                for r in range(tile.vectors):
                    sums[q][r].set(v.multiply_add(factor_q, tile.load(of_sources, row, q, r), sums[q][r].get()))
        _finish_scaled(v, tile, sums, of_sums, (out, factor, carry, adds))

    _tiles(v, heads, width, emit)


@row_intrinsic
def add_edge_rows(v: VectorCode, integers: Any, scalar: Any, of_edges: RowFormat, of_sums: RowFormat) -> None:
    """``out[h, :] = carry[h] * out[h, :] + factor[h] * sum over e in [start, end) of weight[e - start, h] * edge_rows[e, :]``.

    Arguments: out, edge_rows, stride, start, end, K, F, weight, factor, carry, adds (0: nothing is carried); an element of
    edge_rows and one of out.
    """
    out, edge_rows, stride, start, end, heads, width, weight, factor, carry, adds = integers
    held = _padded(v, heads)

    def emit(tile: _Tile, part: Any) -> None:
        sums = [[v.variable(v.constant(0.0)) for _ in range(tile.vectors)] for _ in range(tile.heads)]
        with v.loop(start, end) as edge:
            row = v.at(edge_rows, edge, stride)
            weights = v.at(weight, v.at(tile.first, v.b.sub(edge, start), held), v.item)
            for q in range(tile.heads):
                factor_q = v.splat(v.load_scalar(v.b.add(weights, const(q * v.item))))
                for r in range(tile.vectors):
                    sums[q][r].set(v.multiply_add(factor_q, tile.load_of_edge(of_edges, row, r), sums[q][r].get()))
        _finish_scaled(v, tile, sums, of_sums, (out, factor, carry, adds))

    _tiles(v, heads, width, emit)


@row_intrinsic
def add_edge_products(v: VectorCode, integers: Any, factor: Any, of_own: RowFormat, of_edges: RowFormat) -> None:
    """``out[e - start, h] += factor <edge_rows[e, :], own[h, :]>`` for e in [start, end).

    Arguments: out, own, edge_rows, stride, start, end, K, F; an element of own and one of edge_rows.
    """
    out, own, edge_rows, stride, start, end, heads, width = integers
    held = _padded(v, heads)

    def emit(tile: _Tile, part: Any) -> None:
        mine = {(q, r): tile.load(of_own, own, q, r) for q, r in tile.each()}
        with v.loop(start, end) as edge:
            row, place = v.at(edge_rows, edge, stride), v.at(tile.first, v.b.sub(edge, start), held)
            for q in range(tile.heads):
                products = v.constant(0.0)
                for r in range(tile.vectors):
                    products = v.multiply_add(tile.load_of_edge(of_edges, row, r), mine[q, r], products)
                slot = v.at(out, v.b.add(place, const(q)), v.item)
                v.store_scalar(v.b.fadd(v.load_scalar(slot), v.b.fmul(v.sum_lanes(products), factor)), slot)

    _tiles(v, heads, width, emit)


@row_intrinsic
def gradient_rows(
    v: VectorCode, integers: Any, scalar: Any, of_own: RowFormat, of_gradients: RowFormat, of_sums: RowFormat
) -> None:
    """One walk over a source's edges, for the gradients of its row and of its scores.

        out[h, :] (+)= sum over e in [start, end) of weight[e - start, h] * grad[indices[e], h, :]
        dots[e - start, h] = <grad[indices[e], h, :], row[h, :]>

    Arguments: out, row, grad, stride, indices, start, end, limit, K, D, weight, dots, adds; an element of row, grad and out.
    """
    out, own, grad, stride, indices, start, end, limit, heads, width, weight, dots, adds = integers

    held = _padded(v, heads)

    def emit(tile: _Tile, part: Any) -> None:
        sums = [[v.variable(v.constant(0.0)) for _ in range(tile.vectors)] for _ in range(tile.heads)]
        mine = {(q, r): tile.load(of_own, own, q, r) for q, r in tile.each()}
        begins = v.b.icmp_signed("==", part, const(0))
        with v.loop(start, end) as edge:
            row, ahead = _rows(v, grad, stride, indices, edge, limit, of_gradients.ahead)
            tile.prefetch(of_gradients, ahead)
            place = v.at(tile.first, v.b.sub(edge, start), held)
            for q in range(tile.heads):
                at = v.b.mul(v.b.add(place, const(q)), const(v.item))
                weight_q = v.splat(v.load_scalar(v.b.add(weight, at)))
                products = v.constant(0.0)
                for r in range(tile.vectors):
                    g = tile.load(of_gradients, row, q, r)
                    sums[q][r].set(v.multiply_add(weight_q, g, sums[q][r].get()))
                    products = v.multiply_add(g, mine[q, r], products)
                slot = v.b.add(dots, at)
                before = v.b.select(begins, ir.Constant(v.scalar, 0.0), v.load_scalar(slot))
                v.store_scalar(v.b.fadd(before, v.sum_lanes(products)), slot)
        _finish_row(v, tile, sums, of_sums, out, v.b.icmp_signed("!=", adds, const(0)), None)

    _tiles(v, heads, width, emit)


def _leaky(v: VectorCode, x: Any, slope: Any) -> Any:
    """LeakyReLU for a slope in [0, 1]."""
    return v.larger(x, v.b.fmul(x, slope))


def _groups(v: VectorCode, heads: Any, emit: Callable[[Any, Any], None]) -> None:
    """A loop over groups of as many heads as a vector has lanes; ``emit(first head's offset in bytes, mask)``."""
    with v.loop(const(0), heads, v.lanes) as first:
        emit(v.b.mul(first, const(v.item)), v.lanes_below(v.b.sub(heads, first)))


@vector_intrinsic
def edge_softmax(v: VectorCode, integers: Any, slope: Any) -> None:
    """Scores of a destination's edges, folded into its running softmax; see ``_fold_softmax``.

        x = LeakyReLU(source[indices[e], h] + destination[h]) for e in [start, end)

    Arguments: weight, source, indices, start, end, limit, K, destination, its stride in bytes from edge to edge (0: it is one
    for all), scores, maximum, denominator, factor, carry; scores: the address of [E, K], where each x is kept, or 0.
    """
    weight, source, indices, start, end, limit, heads, destination, stride, scores, *softmax = integers
    keeps = v.b.icmp_signed("!=", scores, const(0))
    row_bytes, held_bytes = (v.b.mul(count, const(v.item)) for count in (heads, _padded(v, heads)))
    slopes = v.splat(slope)

    def emit(offset: Any, mask: Any) -> None:
        top = v.variable(v.load(v.b.add(softmax[0], offset), mask))
        with v.loop(start, end) as edge:
            row, ahead = _rows(v, source, row_bytes, indices, edge, limit)
            v.prefetch(v.b.add(ahead, offset))
            own = v.load(v.b.add(v.at(destination, v.b.sub(edge, start), stride), offset), mask)
            x = _leaky(v, v.b.fadd(v.load(v.b.add(row, offset), mask), own), slopes)
            v.store(x, v.b.add(v.at(weight, v.b.sub(edge, start), held_bytes), offset))
            with v.case(keeps):
                v.store(x, v.b.add(v.at(scores, edge, row_bytes), offset), mask)
            top.set(v.larger(x, top.get()))
        _fold_softmax(v, v.b.add(weight, offset), held_bytes, v.b.sub(end, start), top.get(), softmax, offset, mask)

    _groups(v, heads, emit)


@row_intrinsic
def pair_scores(v: VectorCode, integers: Any, slope: Any, of_others: RowFormat, of_own: RowFormat) -> None:
    """GATv2's scores, summed in one order whichever of the two ends is ``own``.

        out[e - start, h] = <att[h, :], LeakyReLU(own_e[h, :] + others[indices[e], h, :])> for e in [start, end)

    Arguments: out, att, own, its stride in bytes from edge to edge (0: it is one for all), others, their stride, indices,
    start, end, limit, K, D; an element of others and one of own.
    """
    out, att, own, own_stride, others, stride, indices, start, end, limit, heads, width = integers
    numbers, held, slopes = RowFormat(v, False), _padded(v, heads), v.splat(slope)

    def emit(tile: _Tile, part: Any) -> None:
        factors = {(q, r): tile.load(numbers, att, q, r) for q, r in tile.each()}
        begins = v.b.icmp_signed("==", part, const(0))
        with v.loop(start, end) as edge:
            row, ahead = _rows(v, others, stride, indices, edge, limit, of_others.ahead)
            tile.prefetch(of_others, ahead)
            number = v.b.sub(edge, start)
            mine, place = v.at(own, number, own_stride), v.at(tile.first, number, held)
            for q in range(tile.heads):
                total = v.constant(0.0)
                for r in range(tile.vectors):
                    u = v.b.fadd(tile.load(of_others, row, q, r), tile.load(of_own, mine, q, r))
                    total = v.multiply_add(factors[q, r], _leaky(v, u, slopes), total)
                slot = v.at(out, v.b.add(place, const(q)), v.item)
                before = v.b.select(begins, ir.Constant(v.scalar, 0.0), v.load_scalar(slot))
                v.store_scalar(v.b.fadd(before, v.sum_lanes(total)), slot)

    _tiles(v, heads, width, emit)


def _add_pair_gradients(
    v: VectorCode, integers: Any, slope: Any, of_others: RowFormat, of_own: RowFormat, *, of_att: bool
) -> None:
    """Of GATv2's scores: with u_e = own_e + others[indices[e]] and h_e = d[e - start, h] att LeakyReLU'(u_e),

        target += sum over e in [start, end) of h_e        d_att += sum of d[e - start, h] LeakyReLU(u_e)

    Arguments: target, d_att (numbers, as att), att, d, own, its stride in bytes from edge to edge (0: it is one for all),
    writes (1: h_e takes own_e's place), others, their stride, indices, start, end, limit, K, D; an element of others and one of
    own.
    """
    target, d_att, att, d_scores, own, own_stride, writes, others, stride, indices, start, end, limit, heads, width = integers
    numbers, held, nothing = RowFormat(v, False), _padded(v, heads), v.constant(0.0)
    written = v.b.icmp_signed("!=", writes, const(0))

    def emit(tile: _Tile, part: Any) -> None:
        sums = {place: v.variable(nothing) for place in tile.each()}
        att_sums = {place: v.variable(nothing) for place in tile.each()} if of_att else {}
        factors = {(q, r): tile.load(numbers, att, q, r) for q, r in tile.each()}
        with v.loop(start, end) as edge:
            row, ahead = _rows(v, others, stride, indices, edge, limit, of_others.ahead)
            tile.prefetch(of_others, ahead)
            number = v.b.sub(edge, start)
            mine, place = v.at(own, number, own_stride), v.at(tile.first, number, held)
            for q in range(tile.heads):
                d = v.load_scalar(v.at(d_scores, v.b.add(place, const(q)), v.item))
                above, below = v.splat(d), v.splat(v.b.fmul(d, slope))
                for r in range(tile.vectors):
                    u = v.b.fadd(tile.load(of_others, row, q, r), tile.load(of_own, mine, q, r))
                    gradient = v.b.select(v.b.fcmp_ordered(">", u, nothing), above, below)
                    if of_att:
                        att_sums[q, r].set(v.multiply_add(gradient, u, att_sums[q, r].get()))
                    h = v.b.fmul(gradient, factors[q, r])
                    sums[q, r].set(v.b.fadd(sums[q, r].get(), h))
                    with v.case(written):
                        tile.store(of_own, h, mine, q, r)
        for into, totals in ((target, sums), (d_att, att_sums)):
            for (q, r), total in totals.items():
                tile.store(numbers, v.b.fadd(tile.load(numbers, into, q, r), total.get()), into, q, r)

    _tiles(v, heads, width, emit)


@row_intrinsic
def add_source_gradient(v: VectorCode, integers: Any, slope: Any, of_others: RowFormat, of_own: RowFormat) -> None:
    """See ``_add_pair_gradients``; without those of att."""
    _add_pair_gradients(v, integers, slope, of_others, of_own, of_att=False)


@row_intrinsic
def add_destination_gradient(v: VectorCode, integers: Any, slope: Any, of_others: RowFormat, of_own: RowFormat) -> None:
    """See ``_add_pair_gradients``."""
    _add_pair_gradients(v, integers, slope, of_others, of_own, of_att=True)


@vector_intrinsic
def score_softmax(v: VectorCode, integers: Any, scalar: Any) -> None:
    """B given scores, folded into a destination's running softmax; see ``_fold_softmax``.

    Arguments: weight, B, K, maximum, denominator, factor, carry.
    """
    weight, count, heads, *softmax = integers
    held_bytes = v.b.mul(_padded(v, heads), const(v.item))

    def emit(offset: Any, mask: Any) -> None:
        top = v.variable(v.load(v.b.add(softmax[0], offset), mask))
        with v.loop(const(0), count) as edge:
            top.set(v.larger(v.load(v.b.add(v.at(weight, edge, held_bytes), offset)), top.get()))
        _fold_softmax(v, v.b.add(weight, offset), held_bytes, count, top.get(), softmax, offset, mask)

    _groups(v, heads, emit)


def _fold_softmax(
    v: VectorCode, weight: Any, held_bytes: Any, count: Any, top: Any, softmax: list[Any], offset: Any, mask: Any
) -> None:
    """Scores x of ``count`` edges, in ``weight``, become ``exp(x - m)``, m = ``top`` their and the former maximum.

    The destination's row so far then counts ``carry = s exp(m_old - m) / s_new``, the new sum ``factor = 1 / s_new``.
    ``softmax``: addresses of maximum, denominator (both replaced), factor, carry.
    """
    total = v.variable(v.constant(0.0))
    with v.loop(const(0), count) as edge:
        address = v.at(weight, edge, held_bytes)
        value = v.exp(v.b.fsub(v.load(address), top))
        v.store(value, address)
        total.set(v.b.fadd(total.get(), value))
    maximum, denominator, factor, carry = (v.b.add(address, offset) for address in softmax)
    kept = v.b.fmul(v.load(denominator, mask), v.exp(v.b.fsub(v.load(maximum, mask), top)))
    new_sum = v.b.fadd(kept, total.get())
    v.store(top, maximum, mask)
    v.store(new_sum, denominator, mask)
    v.store(v.b.fdiv(v.constant(1.0), new_sum), factor, mask)
    v.store(v.b.fdiv(kept, new_sum), carry, mask)


@vector_intrinsic
def edge_weights(v: VectorCode, integers: Any, slope: Any) -> None:
    """Attention weights of a source's edges again: ``out[e - start, h] = exp(LeakyReLU(own[h] + score_i) - m_i) / s_i``.

    i = indices[e]; ``records`` holds (score, m, 1 / s, delta) of each destination, [RECORD, K]. Arguments: out, own, its stride
    in bytes from edge to edge (0: it is one for all), records, indices, start, end, limit, K.
    """
    out, own, stride, records, indices, start, end, limit, heads = integers
    row_bytes, held_bytes = (v.b.mul(count, const(v.item)) for count in (heads, _padded(v, heads)))
    record_bytes = v.b.mul(row_bytes, const(RECORD))
    slopes = v.splat(slope)

    def emit(offset: Any, mask: Any) -> None:
        with v.loop(start, end) as edge:
            record, ahead = _rows(v, records, record_bytes, indices, edge, limit)
            for k in range(0, RECORD, 2):
                v.prefetch(v.b.add(v.at(ahead, row_bytes, k), offset))
            mine = v.load(v.b.add(v.at(own, v.b.sub(edge, start), stride), offset), mask)
            score, top, inverse = (v.load(v.b.add(v.at(record, row_bytes, k), offset), mask) for k in range(3))
            x = _leaky(v, v.b.fadd(mine, score), slopes)
            weight = v.b.fmul(v.exp(v.b.fsub(x, top)), inverse)
            v.store(weight, v.b.add(v.at(out, v.b.sub(edge, start), held_bytes), offset))

    _groups(v, heads, emit)


@vector_intrinsic
def kept_weights(v: VectorCode, integers: Any, scalar: Any) -> None:
    """``edge_weights`` of scores [E, K] that were kept: ``out[e - start, h] = exp(scores[places[e], h] - m_i) / s_i``.

    Arguments: out, scores, places, records, indices, start, end, limit, K.
    """
    out, scores, places, records, indices, start, end, limit, heads = integers
    row_bytes, held_bytes = (v.b.mul(count, const(v.item)) for count in (heads, _padded(v, heads)))
    record_bytes = v.b.mul(row_bytes, const(RECORD))

    def emit(offset: Any, mask: Any) -> None:
        with v.loop(start, end) as edge:
            record, ahead = _rows(v, records, record_bytes, indices, edge, limit)
            x, kept_ahead = (v.b.add(row, offset) for row in _rows(v, scores, row_bytes, places, edge, limit))
            for k in range(0, RECORD, 2):
                v.prefetch(v.b.add(v.at(ahead, row_bytes, k), offset))
            v.prefetch(kept_ahead)
            top, inverse = (v.load(v.b.add(v.at(record, row_bytes, k), offset), mask) for k in (1, 2))
            weight = v.b.fmul(v.exp(v.b.fsub(v.load(x, mask), top)), inverse)
            v.store(weight, v.b.add(v.at(out, v.b.sub(edge, start), held_bytes), offset))

    _groups(v, heads, emit)


@vector_intrinsic
def score_gradients(v: VectorCode, integers: Any, slope: Any) -> None:
    """Gradients of the scores, added to the source's ``d_own[h]`` and to each destination's ``d_scores[i, h]``.

        d = (dropped[e] dot[e] - weight[e] delta_i) LeakyReLU'(own + score_i)

    They take the place of ``dots``. Arguments: weight, dropped, dots, own, its stride as of ``edge_weights``, records, indices,
    start, end, K, d_own, d_scores.
    """
    weight, dropped, dots, own, stride, records, indices, start, end, heads, d_own, d_scores = integers
    row_bytes, held_bytes = (v.b.mul(count, const(v.item)) for count in (heads, _padded(v, heads)))
    record_bytes = v.b.mul(row_bytes, const(RECORD))
    slopes = v.splat(slope)

    def emit(offset: Any, mask: Any) -> None:
        total = v.variable(v.load(v.b.add(d_own, offset), mask))
        with v.loop(start, end) as edge:
            i = v.index(indices, edge)
            record = v.b.add(v.at(records, i, record_bytes), offset)
            mine = v.load(v.b.add(v.at(own, v.b.sub(edge, start), stride), offset), mask)
            raw = v.b.fadd(mine, v.load(record, mask))
            delta = v.load(v.at(record, row_bytes, RECORD - 1), mask)
            place = v.b.add(v.b.mul(v.b.sub(edge, start), held_bytes), offset)
            a, r, dot = (v.load(v.b.add(base, place)) for base in (weight, dropped, dots))
            d_score = v.b.fsub(v.b.fmul(r, dot), v.b.fmul(a, delta))
            d_score = v.b.select(v.b.fcmp_ordered(">", raw, v.constant(0.0)), d_score, v.b.fmul(d_score, slopes))
            total.set(v.b.fadd(total.get(), d_score))
            v.store(d_score, v.b.add(dots, place))
            target = v.b.add(v.at(d_scores, i, row_bytes), offset)
            v.store(v.b.fadd(v.load(target, mask), d_score), target, mask)
        v.store(total.get(), v.b.add(d_own, offset), mask)

    _groups(v, heads, emit)


@row_intrinsic
def dot_rows(v: VectorCode, integers: Any, factor: Any, of_own: RowFormat, of_others: RowFormat) -> None:
    """``out[e - start, h] = factor <others[indices[e], h, :], own[h, :]>`` for e in [start, end), summed in one order whichever
    of the two ends is ``own``.

    Arguments: out, own, others, stride, indices, start, end, limit, K, D; an element of own and one of others.
    """
    out, own, others, stride, indices, start, end, limit, heads, width = integers
    held = _padded(v, heads)

    def emit(tile: _Tile, part: Any) -> None:
        mine = {(q, r): tile.load(of_own, own, q, r) for q, r in tile.each()}
        begins = v.b.icmp_signed("==", part, const(0))
        with v.loop(start, end) as edge:
            row, ahead = _rows(v, others, stride, indices, edge, limit, of_others.ahead)
            tile.prefetch(of_others, ahead)
            place = v.at(tile.first, v.b.sub(edge, start), held)
            for q in range(tile.heads):
                products = v.constant(0.0)
                for r in range(tile.vectors):
                    products = v.multiply_add(tile.load(of_others, row, q, r), mine[q, r], products)
                slot = v.at(out, v.b.add(place, const(q)), v.item)
                before = v.b.select(begins, ir.Constant(v.scalar, 0.0), v.load_scalar(slot))
                v.store_scalar(v.b.fadd(before, v.b.fmul(v.sum_lanes(products), factor)), slot)

    _tiles(v, heads, width, emit)


def _each_record(v: VectorCode, run: Any, emit: Callable[[Any, list[Any]], None]) -> None:
    """A loop over edges: ``emit(offset among what is held per edge, (m, 1 / s, delta) of the destination)``; ``run``: records,
    their stride (0: of one destination), indices, start, end, limit, K."""
    records, stride, indices, start, end, limit, heads = run
    row_bytes, held_bytes = (v.b.mul(count, const(v.item)) for count in (heads, _padded(v, heads)))

    def group(offset: Any, mask: Any) -> None:
        with v.loop(start, end) as edge:
            record, ahead = _rows(v, records, stride, indices, edge, limit)
            for k in range(0, RECORD, 2):
                v.prefetch(v.b.add(v.at(ahead, row_bytes, k), offset))
            numbers = [v.load(v.b.add(v.at(record, row_bytes, k), offset), mask) for k in range(1, RECORD)]
            emit(v.b.add(v.b.mul(v.b.sub(edge, start), held_bytes), offset), numbers)

    _groups(v, heads, group)


@vector_intrinsic
def score_weights(v: VectorCode, integers: Any, scalar: Any) -> None:
    """Weights of scores, in place: ``exp(weight[e - start, h] - m_i) / s_i``. Arguments: weight, then ``_each_record``'s."""
    weight, *run = integers

    def emit(place: Any, record: list[Any]) -> None:
        address = v.b.add(weight, place)
        v.store(v.b.fmul(v.exp(v.b.fsub(v.load(address), record[0])), record[1]), address)

    _each_record(v, run, emit)


@vector_intrinsic
def product_gradients(v: VectorCode, integers: Any, factor: Any) -> None:
    """In place of ``dots``: ``factor (dropped[e] dots[e] - weight[e] delta_i)``. Arguments: weight, dropped, dots, then
    ``_each_record``'s."""
    weight, dropped, dots, *run = integers
    factors = v.splat(factor)

    def emit(place: Any, record: list[Any]) -> None:
        a, r, dot = (v.load(v.b.add(base, place)) for base in (weight, dropped, dots))
        d_score = v.b.fsub(v.b.fmul(r, dot), v.b.fmul(a, record[2]))
        v.store(v.b.fmul(factors, d_score), v.b.add(dots, place))

    _each_record(v, run, emit)
