// Sums of rows times a vector of each edge's kind, the same in every block of a row, forward by destination, backward by source.
//
//     out_i[b, d] += sum of z_j[b, d] w_k[d]      d z_j[b, d] = sum of g_i[b, d] w_k[d]      d w_k[d] = sum of z_j[b, d] g_i[b, d]
//
// for the edges e = j -> i of kind k. Nothing of size edges x columns is held: a tile of some blocks' vectors walks a row's edges.
#include "features.hpp"

using namespace sargnn;

namespace {

struct Scaled {
    Edges edges;
    Table z;      // [S, B D]
    Table kinds;  // int32 [E], in the order of the forward edges
    Table w;      // wide [K, D]
};

struct ForwardCall {
    Scaled of;
    Table out;  // [M, B D], wide, added to
};

struct BackwardCall {
    Scaled of;
    Table order;   // int32 [E], the place of each edge among the forward ones
    Table grad;    // [M, B D]
    Table out;     // d z [S, B D]; may be missing
    Word adds;
    Table totals;  // fp64 [lanes K, D], added to
};

// Blocks of a tile.
constexpr int BLOCKS = 8;

// f(first column, that of w, tail) for the tiles of a row.
template <class T, class F> INLINE void each_tile(int64_t width, int64_t part, F f) {
    for (int64_t d = 0; d < part; d += LANES<T>) {
        const Tail<T> there(part - d);
        int64_t at = d;
        for (; at - d + BLOCKS * part <= width; at += BLOCKS * part) f.template operator()<BLOCKS>(at, d, there);
        for (; at < width; at += part) f.template operator()<1>(at, d, there);
    }
}

template <class R, int B>
APART void fold(const ForwardCall &c, const Run &run, int64_t at, int64_t d, const Tail<Wide<R>> &there) {
    typedef Wide<R> T;
    const Scaled &s = c.of;
    const int32_t *others = s.edges.ends(), *kinds = s.kinds.as<const int32_t>();
    const int64_t limit = s.edges.count() - 1, part = s.w.width;
    T *out = c.out.row<T>(run.row) + at;
    Vector<T> total[B];
    UNROLL for (int b = 0; b < B; ++b) total[b] = load(out + b * part, there);
    for (int64_t e = run.start; e < run.end; ++e) {
        const R *far = s.z.row<const R>(others[smaller<int64_t>(e + AHEAD<float>, limit)]) + at;
        UNROLL for (int b = 0; b < B; ++b) fetch(far + b * part, 1);
        const Vector<T> w = load(s.w.row<const T>(kinds[e]) + d, there);
        const R *z = s.z.row<const R>(others[e]) + at;
        UNROLL for (int b = 0; b < B; ++b) total[b] = multiply_add(load(z + b * part, there), w, total[b]);
    }
    UNROLL for (int b = 0; b < B; ++b) store(total[b], out + b * part, there);
}

template <class R, int B>
APART void unfold(const BackwardCall &c, const Run &run, int64_t at, int64_t d, const Tail<Wide<R>> &there, Wide<R> *sums) {
    typedef Wide<R> T;
    const Scaled &s = c.of;
    const int32_t *others = s.edges.ends(), *kinds = s.kinds.as<const int32_t>(), *order = c.order.as<const int32_t>();
    const int64_t limit = s.edges.count() - 1, part = s.w.width;
    const R *z = s.z.row<const R>(run.row) + at;
    Vector<T> own[B], total[B];
    UNROLL for (int b = 0; b < B; ++b) own[b] = load(z + b * part, there), total[b] = zeros<T>();
    for (int64_t e = run.start; e < run.end; ++e) {
        const R *far = c.grad.row<const R>(others[smaller<int64_t>(e + AHEAD<float>, limit)]) + at;
        UNROLL for (int b = 0; b < B; ++b) fetch(far + b * part, 1);
        const int64_t kind = kinds[order[e]];
        const Vector<T> w = load(s.w.row<const T>(kind) + d, there);
        const R *grad = c.grad.row<const R>(others[e]) + at;
        Vector<T> of_kind = load(sums + kind * part + d, there);
        UNROLL for (int b = 0; b < B; ++b) {
            const Vector<T> g = load(grad + b * part, there);
            total[b] = multiply_add(g, w, total[b]);
            of_kind = multiply_add(g, own[b], of_kind);
        }
        store(of_kind, sums + kind * part + d, there);
    }
    if (!c.out.given()) return;
    R *out = c.out.row<R>(run.row) + at;
    UNROLL for (int b = 0; b < B; ++b) {
        if (c.adds) total[b] = total[b] + load(static_cast<const R *>(out) + b * part, there);
        store(total[b], out + b * part, there);
    }
}

}  // namespace

ENTRY(scaled_forward, ForwardCall, c) {
    return for_rows(c.of.z.type, [&]<class R>() INLINED {
        const Edges &edges = c.of.edges;
        parallel(edges.chunks(), [&](int64_t chunk) {
            for (int64_t a = edges.first(chunk); a < edges.first(chunk + 1); ++a)
                each_tile<Wide<R>>(c.out.width, c.of.w.width, [&]<int B>(int64_t at, int64_t d, const Tail<Wide<R>> &there) {
                    fold<R, B>(c, edges.run(a), at, d, there);
                });
        });
    });
}

ENTRY(scaled_backward, BackwardCall, c) {
    return for_rows(c.of.z.type, [&]<class R>() INLINED {
        const Edges &edges = c.of.edges;
        const Table &w = c.of.w;
        parallel(edges.chunks(), [&](int64_t lane) {
            const int64_t first = edges.first(lane);
            LongSums<Wide<R>> sums(c.totals.as<double>() + lane * w.rows * w.width, w.rows, w.width, edges.run(first).start);
            for (int64_t a = first; a < edges.first(lane + 1); ++a) {
                const Run run = edges.run(a);
                each_tile<Wide<R>>(c.grad.width, w.width, [&]<int B>(int64_t at, int64_t d, const Tail<Wide<R>> &there) {
                    unfold<R, B>(c, run, at, d, there, sums.sums);
                });
                sums.flush_after(run.end);
            }
            sums.flush(0);
        });
    });
}
