// Attention over a row's edges: what gat, gatv2 and products have in common, and how the scores of each come about.
//
//     gat        x_ji = LeakyReLU(el_j + er_i + A f_ji)                      (Velickovic et al., 2018)
//     gatv2      x_ji = <att, LeakyReLU(z_j + x_i + W f_ji)>                 (Brody et al., 2022)
//     products   x_ji = factor (<q_i, k_j> + <p_i, f_ji>)                    (Vaswani et al., 2017)
//
//     a_ji = exp(x_ji - m_i) / s_i       out_i = sum over j -> i of r_ji a_ji z_j       t_i = sum of r_ji a_ji f_ji (products)
//
// all per head. r_ji is attention dropout's factor, drawn by the original ids of the edge's ends, times the edge's weight. It
// stands outside the softmax, so gradients hold for any r:
//
//     d x_ji = a_ji (r_ji <g_i, z_j> - delta_i), delta_i = <g_i, out_i>       d z_j = sum of r_ji a_ji g_i, and
//
//     gat        d el_j = sum of h, d er_i = sum of h, d A = sum of h f^T, where h = d x LeakyReLU'
//     gatv2      d z_j += sum of h, d x_i = sum of h, d W = sum of h f^T, d att = sum of d x LeakyReLU(u), h = d x att LeakyReLU'(u)
//     products   d q_i = factor sum of d x k_j, d k_j = factor sum of d x q_i, likewise p, f and t
//
// Nothing of size edges x heads is stored, unless scores are kept: a batch of one row's edges at a time is weighed again. A score
// is summed in one order whichever end the batch belongs to, so that its weight is the same, bit for bit.
#pragma once
#include "features.hpp"
#include "philox.hpp"
#include "pieces.hpp"

namespace sargnn {

enum Kind { GAT, GATV2, PRODUCTS };

// What every walk reads. Letters: S source rows, M destination rows, E edges, K heads, D columns of a head, C features.
struct Attention {
    Word kind;
    Edges edges;
    Word heads;
    double scaling;           // the slope of LeakyReLU, or the factor
    Tables values, keys;      // z or v [S, K D]; el [S, K], or k
    Table queries;            // er [M, K], x [M, K D], or q
    Table att;                // [K D]
    Features features;
    Table map;                // A^T [C + 1, K] or W^T [C + 1, K D], the last row of which says nothing
    Table edge_rows;          // f [E, F]
    Table edge_queries;       // p [M, K F]
    Draw draw;
    Table source_ids, destination_ids;  // int64
    Table weight;             // [E], in the order in which edges are walked
    Table scores;             // [E, K] that are kept

    int64_t width() const { return values.first().width / heads; }
    int64_t key_width() const { return keys.first().width / heads; }
    bool featured() const { return map.given() && map.rows > 0; }
    int64_t edge_width() const { return edge_rows.width; }
    int64_t score_width() const { return kind == GAT ? 1 : kind == GATV2 ? width() : key_width(); }
    // Edges whose numbers are held at a time: where rows are read more than once, they come from a cache but for the first.
    int64_t batch(bool backward) const {
        if (kind == PRODUCTS) return 64;
        if (kind == GATV2) return featured() ? 32 : backward ? 64 : 256;
        return 256;
    }
};

// A row of one end of an edge as each edge of a batch sees it: stride 0, unless features change it.
template <class T> struct Seen {
    T *at;
    int64_t stride;
};

// A thread's room, and what is done with it for a batch.
template <class R> struct Room {
    typedef Wide<R> T;
    const Attention &a;
    const int64_t heads, width, score_width, held, whole, own_size, batch, rows;
    const bool apart;
    Scratch<T> weight, apart_room, dots, factor, carry, maximum, denominator;
    Scratch<T> own, changed, total, batch_total, edge_own;
    Scratch<const float *> feature_rows;
    Scratch<float> nothing;
    Scratch<R> no_row;  // zeros, as wide as any row
    Scratch<T> no_change;
    FeatureRows found;
    T *dropped;  // weights after dropout and with the edges' own; apart from weights where these are still read

    Room(const Attention &a, bool backward)
        : a(a), heads(a.heads), width(a.width()), score_width(a.score_width()),
          held(held_of<T>(heads)), whole(whole_of<T>(width)),
          own_size(a.kind == GAT ? held : heads * whole_of<T>(score_width)), batch(a.batch(backward)), rows(batch + TOGETHER - 1),
          apart(backward && (a.draw.drops() || a.weight.given())), weight(rows * held), apart_room(apart ? rows * held : 0),
          dots(rows * held), factor(held), carry(held), maximum(held), denominator(held), own(own_size),
          changed(a.featured() ? rows * own_size : 0), total(heads * whole), batch_total(larger(heads * whole, own_size)),
          edge_own(heads * whole_of<T>(a.edge_width())), feature_rows(a.featured() ? batch : 0),
          nothing(a.features.columns()), no_row(row_size()), no_change(own_size), found{feature_rows, 0, 0}, dropped(apart ? apart_room : weight) {
        __builtin_memset(weight, 0, size_t(rows * held) * sizeof(T));
        __builtin_memset(dots, 0, size_t(rows * held) * sizeof(T));
        __builtin_memset(dropped, 0, size_t(rows * held) * sizeof(T));
        // What lies behind the heads is computed with, too: subnormal numbers there would take a hundred times as long.
        __builtin_memset(maximum, 0, size_t(held) * sizeof(T));
        __builtin_memset(denominator, 0, size_t(held) * sizeof(T));
        __builtin_memset(nothing, 0, size_t(a.features.columns()) * 4);
        __builtin_memset(no_row, 0, size_t(row_size()) * sizeof(R));
        __builtin_memset(no_change, 0, size_t(own_size) * sizeof(T));
    }

    int64_t row_size() const { return larger(heads * larger(width, score_width), a.edge_width()) + LANES<T>; }
    Ends<R> ends(const Sources<R> &of, int64_t columns) const {
        return {of, a.edges.ends(), a.edges.count() - 1, columns, no_row, ahead_of(heads * columns * int64_t(sizeof(R)))};
    }
    Ends<T> number_ends(const Sources<T> &of) const {
        return {of, a.edges.ends(), a.edges.count() - 1, 0, nullptr, ahead_of(heads * int64_t(sizeof(T)))};
    }
    Ends<R> edge_ends() const {
        const int64_t ahead = ahead_of(a.edge_width() * int64_t(sizeof(R)));
        return {Sources<R>(a.edge_rows), nullptr, a.edges.count() - 1, 0, no_row, ahead};
    }
    Softmax<T> softmax() const { return {maximum, denominator, factor, carry}; }

    // The row whose edges come: what its scores are made of, numbers of gat, else a row.
    void begin(const T *numbers, const R *row) {
        if (a.kind == GAT) {
            by_part<T>(heads, [&](int64_t h, const Tail<T, 1> &there) INLINED { store(load(numbers + h, there), own + h); });
        } else {
            widen_row(row, static_cast<T *>(own), heads, score_width);
        }
    }
    // The same as each edge sees it. order: as FeatureRows.find takes it.
    APART Seen<T> seen(const Batch &b, const int32_t *order) {
        if (!a.featured()) return {own, 0};
        found.find(a.features, order, b.start, b.count, nothing);
        if (a.kind == GAT) {
            found.template map<1>(static_cast<T *>(changed), held, static_cast<T *>(own), a.map.as<const T>(), a.map.stride, heads);
        } else {
            for (int64_t h = 0; h < heads; ++h)
                found.template map<PARTS>(changed + h * whole, own_size, own + h * whole, a.map.as<const T>() + h * width, a.map.stride, width);
        }
        return {changed, own_size};
    }

    // What an edge of a batch sees; zeros where it is not there.
    INLINE T *of_edge(const Seen<T> &seen, const Batch &b, int64_t e) const {
        return seen.stride && e >= b.count ? static_cast<T *>(no_change) : seen.at + e * seen.stride;
    }
    // Scores of a batch, of what its edges' other ends have: numbers of gat, else rows.
    void score(const Ends<T> &numbers, const Ends<R> &rows, const Seen<T> &seen, const Batch &b) {
        if (a.kind == GAT) score_sums(numbers, seen, b);
        if (a.kind == GATV2) score_pairs(rows, seen, b);
        if (a.kind == PRODUCTS) write_dots<R>(weight, false, rows, b, heads, score_width, seen.at, T(a.scaling));
    }
    APART void score_sums(const Ends<T> &ends, const Seen<T> &seen, const Batch &b) {
        const Ends<T> rows = ends;
        const Seen<T> own_row = seen;
        const int64_t start = b.start, count = b.count, stride = held;
        const Part<T> slope = splat<1>(T(a.scaling));
        by_part<T>(heads, [&](int64_t h, const Tail<T, 1> &there) INLINED {
            const Part<T> shared = load<1>(own_row.at + h);
            T *to = weight + h;
            for (int64_t e = 0; e < count; ++e) {
                fetch(rows.later(start + e) + h);
                const Part<T> mine = own_row.stride ? load<1>(own_row.at + e * own_row.stride + h) : shared;
                store(leaky(load(rows.row(start + e) + h, there) + mine, slope), to + e * stride);
            }
        });
    }
    APART void score_pairs(const Ends<R> &ends, const Seen<T> &seen, const Batch &b) {
        const T *att = a.att.as<const T>();
        const Vector<T> slope = splat(T(a.scaling));
        for (int64_t e = 0; e < b.count; e += TOGETHER) {
            const Four<R> four(ends, b, e);
            T *mine[TOGETHER];
            each<TOGETHER>([&](auto q) INLINED { mine[q] = of_edge(seen, b, e + q); });
            for (int64_t h = 0; h < heads; ++h) {
                Vector<T> sum[TOGETHER];
                each<TOGETHER>([&](auto q) INLINED { sum[q] = zeros<T>(); });
                each_vector<T>(width, [&](auto get, int64_t at) INLINED {
                    const int64_t f = h * width + at;
                    const Vector<T> factor = get(att + f);
                    each<TOGETHER>([&](auto q) INLINED {
                        if (new_line<R>(f)) fetch(four.later[q] + f);
                        const Vector<T> u = get(four.row[q] + f) + load(mine[q] + h * whole + at);
                        sum[q] = multiply_add(factor, leaky(u, slope), sum[q]);
                    });
                });
                each<TOGETHER>([&](auto q) INLINED { weight[(e + q) * held + h] = sum_lanes(sum[q]); });
            }
        }
    }

    // target += sum of h over a batch, whose d x are in `dots`; of_att, if given: += sum of d x LeakyReLU(u); with `writes` an
    // edge's h takes the place of what it sees.
    void add_pair_gradients(T *target, T *of_att, const Ends<R> &ends, const Seen<T> &seen, bool writes, const Batch &b) {
        if (of_att) add_pairs<true>(target, of_att, ends, seen, writes, b);
        else add_pairs<false>(target, nullptr, ends, seen, writes, b);
    }
    template <bool OfAtt>
    APART void add_pairs(T *target, T *of_att, const Ends<R> &ends, const Seen<T> &seen, bool writes, const Batch &b) {
        const T *att = a.att.as<const T>();
        T *sums = batch_total;
        Scratch<T> att_sums(OfAtt ? heads * whole : 0);
        __builtin_memset(sums, 0, size_t(heads * whole) * sizeof(T));
        if (OfAtt) __builtin_memset(att_sums, 0, size_t(heads * whole) * sizeof(T));
        for (int64_t e = 0; e < b.count; e += TOGETHER) {
            const Four<R> four(ends, b, e);
            T *mine[TOGETHER];
            each<TOGETHER>([&](auto q) INLINED { mine[q] = of_edge(seen, b, e + q); });
            for (int64_t h = 0; h < heads; ++h) {
                Vector<T> above[TOGETHER], below[TOGETHER];
                each<TOGETHER>([&](auto q) INLINED {
                    const T d = number_of<T>(dots, b, e + q, held, h);
                    above[q] = splat(d), below[q] = splat(d * T(a.scaling));
                });
                each_vector<T>(width, [&](auto get, int64_t at) INLINED {
                    const int64_t f = h * width + at, p = h * whole + at;
                    const Vector<T> factor = get(att + f);
                    Vector<T> sum = load(sums + p), of = OfAtt ? load(att_sums + p) : zeros<T>();
                    each<TOGETHER>([&](auto q) INLINED {
                        const Vector<T> u = get(four.row[q] + f) + load(mine[q] + p);
                        const Vector<T> gradient = where_positive(u, above[q], below[q]);
                        if constexpr (OfAtt) of = multiply_add(gradient, u, of);
                        const Vector<T> through = gradient * factor;
                        sum = sum + through;
                        if (writes) store(through, mine[q] + p);
                    });
                    store(sum, sums + p);
                    if constexpr (OfAtt) store(of, att_sums + p);
                });
            }
        }
        add_held(target, sums, heads * whole);
        if constexpr (OfAtt) add_held(of_att, static_cast<T *>(att_sums), heads * whole);
    }

    // Numbers that stand in memory by edge, [E, K], and those of a batch. order: where each edge stands; null: in order.
    APART void take(const Table &from, const int32_t *order, const Batch &b, T *to) const {
        for (int64_t e = 0; e < b.count; ++e)
            __builtin_memcpy(to + e * held, from.row<const T>(order ? order[b.start + e] : b.start + e), size_t(heads) * sizeof(T));
    }
    APART void keep(const Table &to, const Batch &b, const T *from) const {
        for (int64_t e = 0; e < b.count; ++e)
            __builtin_memcpy(to.row<T>(b.start + e), from + e * held, size_t(heads) * sizeof(T));
    }

    // Each edge's weights, times its own.
    APART void multiply(const T *from, const Batch &b) {
        const T *factors = a.weight.as<const T>() + b.start;
        for (int64_t e = 0; e < b.count; ++e)
            for (int64_t h = 0; h < held; ++h) dropped[e * held + h] = from[e * held + h] * factors[e];
    }
    // Dropout of `dropped`. row: of the batch; by_source: it is the source.
    APART void drop(int64_t row, const Batch &b, bool by_source) {
        const int64_t *sources = a.source_ids.as<const int64_t>(), *destinations = a.destination_ids.as<const int64_t>();
        const uint64_t mine = uint64_t((by_source ? sources : destinations)[row]);
        const int64_t *ids = by_source ? destinations : sources;
        const int32_t *others = a.edges.ends() + b.start;
        for (int64_t e = 0; e < b.count; ++e) {
            const uint64_t other = uint64_t(ids[others[e]]);
            drop_edge(dropped + e * held, by_source ? mine : other, by_source ? other : mine, heads, a.draw);
        }
    }
    // Weights become `dropped` ones where backward reads both.
    void drop_apart(int64_t row, const Batch &b, bool by_source) {
        if (!apart) return;
        if (a.weight.given()) multiply(weight, b);
        else __builtin_memcpy(dropped, weight, size_t(b.count * held) * sizeof(T));
        if (a.draw.drops()) drop(row, b, by_source);
    }
};

// Compiled once, in attention.cpp.
WALKS_OF(extern, float)
WALKS_OF(extern, double)
WALKS_OF(extern, bf16)
extern template struct Room<float>;
extern template struct Room<double>;
extern template struct Room<bf16>;

// f(batch) for the edges of a row.
template <class F> INLINE void each_batch(const Run &run, int64_t size, F f) {
    for (int64_t start = run.start; start < run.end; start += size) f(Batch{start, smaller(size, run.end - start)});
}

}  // namespace sargnn
