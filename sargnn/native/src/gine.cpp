// Sums of rows changed by their edges' features (GINE, Hu et al., 2020), forward by destination, backward by source.
//
//     u_e = z_j + W f_e + b      out_i += sum of w_e relu(u_e)
//     h_e = w_e g_i where u_e > 0, else 0      d z_j = sum of h_e      d W = sum of h_e f_e^T      d b = sum of h_e
//
// Nothing of size edges x columns is held: some vectors of a row at a time walk its edges, u is computed for each.
#include "features.hpp"

using namespace sargnn;

namespace {

struct Gine {
    Edges edges;
    Tables z;           // [S, F]
    Features features;  // [E, C]
    Table map;          // [C + 1, F]: W^T, and b
    Table weight;       // [E], in the order of the features; not given: 1
};

struct ForwardCall {
    Gine of;
    Table out;  // [M, F], wide, added to
};

struct BackwardCall {
    Gine of;
    Table order;   // int32 [E], the place of each edge among those with features
    Table grad;    // [M, F]
    Table out;     // d z [S, F]; may be missing
    Word adds;
    Table totals;  // fp64 [lanes (C + 1), F], added to
};

// Vectors of a tile.
constexpr int TILE = 4;

// f(at, vectors) for the tiles of a row's vectors; the last vector of each has a tail.
template <class T, class F> INLINE void each_tile(int64_t width, F f) {
    int64_t at = 0;
    for (; at + TILE * LANES<T> <= width; at += TILE * LANES<T>) f.template operator()<TILE>(at);
    for (; at < width; at += LANES<T>) f.template operator()<1>(at);
}

// K vectors from a column on, the last of which is perhaps not all there.
template <class T, int K> struct Vectors {
    Vector<T> at[K];
};
template <int K, class R> INLINE Vectors<Wide<R>, K> load_all(const R *row, const Tail<Wide<R>> &there) {
    typedef Wide<R> T;
    Vectors<T, K> out;
    UNROLL for (int k = 0; k < K; ++k) out.at[k] = k == K - 1 ? load(row + k * LANES<T>, there) : load(row + k * LANES<T>);
    return out;
}
template <int K, class T> INLINE void store_all(const Vectors<T, K> &x, T *row, const Tail<T> &there) {
    UNROLL for (int k = 0; k < K - 1; ++k) store(x.at[k], row + k * LANES<T>);
    store(x.at[K - 1], row + (K - 1) * LANES<T>, there);
}

// u + W f, for some columns
template <int K, class T>
INLINE Vectors<T, K> changed(Vectors<T, K> u, const float *f, const Gine &g, int64_t at, const Tail<T> &there) {
    if (f != nullptr)
        for (int64_t c = 0; c < g.features.columns(); ++c) {
            const Vectors<T, K> row = load_all<K>(g.map.row<const T>(c) + at, there);
            const Vector<T> x = splat(T(f[c]));
            UNROLL for (int k = 0; k < K; ++k) u.at[k] = multiply_add(x, row.at[k], u.at[k]);
        }
    return u;
}

template <class R, int K> APART void fold(const ForwardCall &c, const Run &run, int64_t at) {
    typedef Wide<R> T;
    const Gine &g = c.of;
    const Sources<R> z(g.z);
    const int32_t *others = g.edges.ends();
    const int64_t limit = g.edges.count() - 1;
    const Tail<T> there(c.out.width - at - (K - 1) * LANES<T>);
    T *out = c.out.row<T>(run.row) + at;
    const Vectors<T, K> bias = load_all<K>(g.map.row<const T>(g.map.rows - 1) + at, there);
    Vectors<T, K> total = load_all<K>(out, there);
    for (int64_t e = run.start; e < run.end; ++e) {
        const int64_t later = smaller<int64_t>(e + AHEAD<float>, limit);
        fetch(z[others[later]] + at, K * LANES<T> * int64_t(sizeof(R)));
        g.features.fetch_of(later);
        Vectors<T, K> u = load_all<K>(z[others[e]] + at, there);
        UNROLL for (int k = 0; k < K; ++k) u.at[k] = u.at[k] + bias.at[k];
        u = changed<K, T>(u, g.features.of(e), g, at, there);
        const Vector<T> factor = splat(g.weight.given() ? g.weight.as<const T>()[e] : T(1));
        UNROLL for (int k = 0; k < K; ++k)
            total.at[k] = total.at[k] + where_not_above(u.at[k], zeros<T>(), u.at[k]) * factor;
    }
    store_all<K>(total, out, there);
}

template <class R, int K>
APART void unfold(const BackwardCall &c, const Run &run, int64_t at, Wide<R> *sums) {
    typedef Wide<R> T;
    const Gine &g = c.of;
    const int32_t *others = g.edges.ends(), *order = c.order.as<const int32_t>();
    const int64_t limit = g.edges.count() - 1, width = g.map.width, last = at + (K - 1) * LANES<T>;
    const Tail<T> there(width - last);
    Vectors<T, K> own = load_all<K>(Sources<R>(g.z)[run.row] + at, there), total;
    const Vectors<T, K> bias = load_all<K>(g.map.row<const T>(g.map.rows - 1) + at, there);
    UNROLL for (int k = 0; k < K; ++k) own.at[k] = own.at[k] + bias.at[k], total.at[k] = zeros<T>();
    for (int64_t e = run.start; e < run.end; ++e) {
        const int64_t later = smaller<int64_t>(e + AHEAD<float>, limit);
        fetch(c.grad.row<const R>(others[later]) + at, K * LANES<T> * int64_t(sizeof(R)));
        g.features.fetch_of(order[later]);
        const float *f = g.features.of(order[e]);
        const Vectors<T, K> u = changed<K, T>(own, f, g, at, there);
        Vectors<T, K> h = load_all<K>(c.grad.row<const R>(others[e]) + at, there);
        const Vector<T> factor = splat(g.weight.given() ? g.weight.as<const T>()[order[e]] : T(1));
        UNROLL for (int k = 0; k < K; ++k) {
            h.at[k] = where_not_above(u.at[k], zeros<T>(), h.at[k] * factor);
            total.at[k] = total.at[k] + h.at[k];
        }
        if (f != nullptr)
            for (int64_t d = 0; d < g.features.columns(); ++d) {
                const Vector<T> x = splat(T(f[d]));
                Vectors<T, K> sum = load_all<K>(sums + d * width + at, there);
                UNROLL for (int k = 0; k < K; ++k) sum.at[k] = sum.at[k] + x * h.at[k];
                store_all<K>(sum, sums + d * width + at, there);
            }
    }
    T *of_bias = sums + g.features.columns() * width + at;
    Vectors<T, K> sum = load_all<K>(of_bias, there);
    UNROLL for (int k = 0; k < K; ++k) sum.at[k] = sum.at[k] + total.at[k];
    store_all<K>(sum, of_bias, there);
    if (!c.out.given()) return;
    R *out = c.out.row<R>(run.row) + at;
    if (c.adds) {
        const Vectors<T, K> before = load_all<K>(static_cast<const R *>(out), there);
        UNROLL for (int k = 0; k < K; ++k) total.at[k] = total.at[k] + before.at[k];
    }
    UNROLL for (int k = 0; k < K - 1; ++k) store(total.at[k], out + k * LANES<T>);
    store(total.at[K - 1], out + (K - 1) * LANES<T>, there);
}

}  // namespace

ENTRY(gine_forward, ForwardCall, c) {
    return for_rows(c.of.z.first().type, [&]<class R>() INLINED {
        const Edges &edges = c.of.edges;
        parallel(edges.chunks(), [&](int64_t chunk) {
            for (int64_t a = edges.first(chunk); a < edges.first(chunk + 1); ++a)
                each_tile<Wide<R>>(c.out.width, [&]<int K>(int64_t at) { fold<R, K>(c, edges.run(a), at); });
        });
    });
}

ENTRY(gine_backward, BackwardCall, c) {
    return for_rows(c.of.z.first().type, [&]<class R>() INLINED {
        const Edges &edges = c.of.edges;
        const Table &map = c.of.map;
        parallel(edges.chunks(), [&](int64_t lane) {
            const int64_t first = edges.first(lane);
            LongSums<Wide<R>> sums(c.totals.as<double>() + lane * map.rows * map.width, map.rows, map.width, edges.run(first).start);
            for (int64_t a = first; a < edges.first(lane + 1); ++a) {
                const Run run = edges.run(a);
                each_tile<Wide<R>>(map.width, [&]<int K>(int64_t at) { unfold<R, K>(c, run, at, sums.sums); });
                sums.flush_after(run.end);
            }
            sums.flush(0);
        });
    });
}
