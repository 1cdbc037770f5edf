// What operations on heads do to a batch of one row's edges: a row has K heads x D columns, an edge a number for each head.
//
// Sums go from edge to edge in the edges' order, products from the first vector of a head to the last, whichever end of an edge a
// batch belongs to. Pairs of gatv2 are taken four at a time, a row of zeros where there are fewer.
//
// Numbers of an edge lie in rows of whole parts of a vector (`held`); sums of a row have each head begin with a new vector.
#pragma once
#include "edges.hpp"

namespace sargnn {

// Edges taken at a time by pairs (gatv2).
constexpr int TOGETHER = 4;
// Vectors of a row that stay in registers beside as many of the own one: of 32 registers of 64 bytes, and of 16 of 32.
#if defined(__AVX512F__)
constexpr int ROW_TILE = 8;
#else
constexpr int ROW_TILE = 4;
#endif

// Numbers in a row of what is held per edge: K, rounded up.
template <class T> INLINE int64_t held_of(int64_t heads) {
    constexpr int64_t each = Vector<T>::EACH;
    return (heads + each - 1) / each * each;
}
// Numbers of a head whose last vector is whole.
template <class T> INLINE int64_t whole_of(int64_t width) { return (width + LANES<T> - 1) / LANES<T> * LANES<T>; }

// A row for each edge: that at its other end, or one of its own.
template <class R> struct Ends {
    Sources<R> rows;
    const int32_t *others;  // null: the edge's own number
    int64_t limit;          // the last edge of all
    int64_t apart;          // columns from one head to the next; 0: all heads have the same
    const R *nothing;       // a row of zeros
    int64_t ahead;          // how many edges ahead rows are fetched

    INLINE const R *row(int64_t edge) const { return rows[others ? others[edge] : edge]; }
    INLINE const R *later(int64_t edge) const { return row(smaller(edge + ahead, limit)); }
};

struct Batch {
    int64_t start, count;  // of edges
};

// f(q) for q from 0 on, a constant: what is held for each lies in a register of its own, which g++ does not find by itself where
// a loop is unrolled.
template <int Q> struct Constant {
    constexpr INLINE operator int() const { return Q; }
};
template <int N, class F> INLINE void each(F f) {
    if constexpr (N > 1) each<N - 1>(f);
    f(Constant<N - 1>{});
}

// Four edges of a batch, of which some may not be there: their rows, and those to fetch.
template <class R> struct Four {
    const R *row[TOGETHER], *later[TOGETHER];

    INLINE Four(const Ends<R> &ends, const Batch &b, int64_t e) {
        each<TOGETHER>([&](auto q) INLINED {
            const bool there = e + q < b.count;
            row[q] = there ? ends.row(b.start + e + q) : ends.nothing;
            later[q] = there ? ends.later(b.start + e + q) : ends.nothing;
        });
    }
};

// A number of an edge and head; 0 of one that is not there.
template <class T> INLINE T number_of(const T *held_numbers, const Batch &b, int64_t e, int64_t held, int64_t h) {
    return e < b.count ? held_numbers[e * held + h] : T(0);
}

// One walk over a batch: a sum of its edges' rows, products of each with the batch's own row, or both.
//     total[h, :] = sum of weight[e, h] * row_e[h, :]      dots[e, h] = factor <row_e[h, :], own[h, :]>, with `adds` added
// A row is cut into tiles of some vectors, of several heads or of a part of one. Their sums stay in registers while the edges are
// walked: a store between two loads makes the second wait where their addresses end alike.
// A product is summed in one order whichever of the two ends is `own`.
template <class R, bool Sums, bool Dots> struct Walk {
    typedef Wide<R> T;
    const Ends<R> &ends;
    const Batch &b;
    int64_t width;
    const T *weight;
    T *total;
    const T *own;
    T *dots;
    T factor;
    bool adds;
    int64_t held, whole;

    // H heads from h on, V vectors of each from column `from` on.
    template <int H, int V> APART void tile(int64_t h, int64_t from) const {
        const Ends<R> rows = ends;
        const int64_t start = b.start, count = b.count, stride = held, place = h * rows.apart + from;
        const Tail<T> there(width - from - (V - 1) * LANES<T>);  // of a head's last vector
        const bool all = there.all(), more = adds || from > 0;
        const T *weights = weight + h, scale = factor;
        T *products = dots + h;
        Vector<T> sums[H * V], mine[H * V];
        each<H>([&](auto q) INLINED {
            each<V>([&](auto v) INLINED {
                if constexpr (Sums) sums[q * V + v] = zeros<T>();
                if constexpr (Dots) mine[q * V + v] = load(own + (h + q) * whole + from + v * LANES<T>);
            });
        });
        // Products of four heads and edges are summed together.
        constexpr int G = Dots ? 4 / H : 1;
        const auto add_edge = [&](int64_t e, Vector<T> *found) INLINED {
            const R *row = rows.row(start + e) + place, *later = rows.row(smaller(start + e + AHEAD<R>, rows.limit)) + place;
            each<H>([&](auto q) INLINED {
                const R *at = row + q * rows.apart;
                const Vector<T> w = Sums ? splat(weights[e * stride + q]) : zeros<T>();
                Vector<T> product = zeros<T>();
                each<V>([&](auto v) INLINED {
                    if (new_line<R>((q * V + v) * LANES<T>)) fetch(later + q * rows.apart + v * LANES<T>);
                    const Vector<T> value = v < V - 1 || all ? load(at + v * LANES<T>) : load(at + v * LANES<T>, there);
                    if constexpr (Sums) sums[q * V + v] = multiply_add(w, value, sums[q * V + v]);
                    if constexpr (Dots) product = multiply_add(value, mine[q * V + v], product);
                });
                if constexpr (Dots) found[q] = product;
            });
        };
        int64_t e = 0;
        for (; e + G <= count; e += G) {
            Vector<T> found[G * H];
            each<G>([&](auto g) INLINED { add_edge(e + g, found + g * H); });
            if constexpr (Dots) {
                const FourSums<T> four = sum_lanes(found[0], found[1], found[2], found[3]);
                each<G>([&](auto g) INLINED {
                    each<H>([&](auto q) INLINED {
                        T *to = products + (e + g) * stride + q;
                        *to = (more ? *to : T(0)) + four.sum[g * H + q] * scale;
                    });
                });
            }
        }
        if constexpr (G > 1)
            for (; e < count; ++e) {
                Vector<T> found[H];
                add_edge(e, found);
                each<H>([&](auto q) INLINED {
                    T *to = products + e * stride + q;
                    *to = (more ? *to : T(0)) + sum_lanes(found[q]) * scale;
                });
            }
        if constexpr (Sums)
            each<H>([&](auto q) INLINED {
                each<V>([&](auto v) INLINED { store(sums[q * V + v], total + (h + q) * whole + from + v * LANES<T>); });
            });
    }

    // V vectors of all heads from column `from` on, and so on while there are as many; then fewer.
    template <int V> void tiles(int64_t heads, int64_t from) const {
        constexpr int H = ROW_TILE / V < 4 ? ROW_TILE / V : 4;
        for (; from + V * LANES<T> <= whole; from += V * LANES<T>) {
            int64_t h = 0;
            if constexpr (H > 1)
                for (; h + H <= heads; h += H) tile<H, V>(h, from);
            for (; h < heads; ++h) tile<1, V>(h, from);
        }
        if constexpr (V > 1) tiles<V / 2>(heads, from);
    }
};

// Compiled apart.
template <class R, bool Sums, bool Dots>
APART void walk(const Ends<R> &ends, const Batch &b, int64_t heads, int64_t width, const Wide<R> *weight, Wide<R> *total,
                const Wide<R> *own, Wide<R> *dots, Wide<R> factor, bool adds) {
    typedef Wide<R> T;
    const Walk<R, Sums, Dots> all = {ends, b, width, weight, total, own, dots, factor, adds, held_of<T>(heads), whole_of<T>(width)};
    all.template tiles<ROW_TILE>(heads, 0);
}
template <class R>
void sum_weighted(Wide<R> *total, const Ends<R> &ends, const Batch &b, int64_t heads, int64_t width, const Wide<R> *weight) {
    walk<R, true, false>(ends, b, heads, width, weight, total, nullptr, nullptr, 1, false);
}
template <class R>
void sum_weighted_and_dots(Wide<R> *total, const Ends<R> &ends, const Batch &b, int64_t heads, int64_t width,
                           const Wide<R> *weight, const Wide<R> *own, Wide<R> *dots) {
    walk<R, true, true>(ends, b, heads, width, weight, total, own, dots, 1, false);
}
template <class R>
void write_dots(Wide<R> *dots, bool adds, const Ends<R> &ends, const Batch &b, int64_t heads, int64_t width,
                const Wide<R> *own, Wide<R> factor) {
    walk<R, false, true>(ends, b, heads, width, nullptr, nullptr, own, dots, factor, adds);
}

#define WALK_OF(KEYWORD, R, SUMS, DOTS)                                                                                      \
    KEYWORD template void walk<R, SUMS, DOTS>(const Ends<R> &, const Batch &, int64_t, int64_t, const Wide<R> *, Wide<R> *, \
                                              const Wide<R> *, Wide<R> *, Wide<R>, bool);
#define WALKS_OF(KEYWORD, R) WALK_OF(KEYWORD, R, true, false) WALK_OF(KEYWORD, R, true, true) WALK_OF(KEYWORD, R, false, true)

// f(place in a row whose heads begin with a new vector, place in a row whose heads do not, tail) for each vector.
template <class T, class F> INLINE void each_place(int64_t heads, int64_t width, F f) {
    const int64_t whole = whole_of<T>(width);
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t at = 0; at < width; at += LANES<T>) f(h * whole + at, h * width + at, Tail<T>(width - at));
}
// A row as numbers, each head from a new vector on; what is behind its columns is 0.
template <class R> APART void widen_row(const R *row, Wide<R> *out, int64_t heads, int64_t width) {
    typedef Wide<R> T;
    each_place<T>(heads, width, [&](int64_t to, int64_t from, const Tail<T> &t) INLINED { store(load(row + from, t), out + to); });
}
// The other way, rounded.
template <class R> APART void narrow_row(const Wide<R> *held, R *row, int64_t heads, int64_t width) {
    typedef Wide<R> T;
    each_place<T>(heads, width, [&](int64_t from, int64_t to, const Tail<T> &t) INLINED { store(load(held + from), row + to, t); });
}
// sums += total, as many whole vectors of both
template <class T> APART void add_held(T *sums, const T *total, int64_t count) {
    for (int64_t f = 0; f < count; f += LANES<T>) store(load(sums + f) + load(total + f), sums + f);
}

// f(first head, tail) for as many heads at a time as a part of a vector holds.
template <class T, class F> INLINE void by_part(int64_t heads, F f) {
    for (int64_t h = 0; h < heads; h += Vector<T>::EACH) f(h, Tail<T, 1>(heads - h));
}
template <class T> using Part = Vector<T, 1>;

// LeakyReLU for a slope in [0, 1].
template <class T, int P> INLINE Vector<T, P> leaky(const Vector<T, P> &x, const Vector<T, P> &slope) {
    return larger(x, x * slope);
}

// A destination's running softmax, of K heads: maximum and denominator so far, and for a batch 1 / its new sum and what rows so
// far count in it.
template <class T> struct Softmax {
    T *maximum, *denominator, *factor, *carry;  // held each

    // Scores x of a batch become exp(x - m), m their and the former maximum.
    APART void fold(T *weight, int64_t count, int64_t heads) const {
        const int64_t held = held_of<T>(heads);
        by_part<T>(heads, [&](int64_t h, const Tail<T, 1> &) INLINED {
            const Part<T> before = load<1>(maximum + h);
            Part<T> top = before;
            for (int64_t e = 0; e < count; ++e) top = larger(load<1>(weight + e * held + h), top);
            Part<T> total = zeros<T, 1>();
            for (int64_t e = 0; e < count; ++e) {
                const Part<T> value = exp_below_0(load<1>(weight + e * held + h) - top);
                store(value, weight + e * held + h);
                total = total + value;
            }
            const Part<T> kept = load<1>(denominator + h) * exp_below_0(before - top), sum = kept + total;
            store(top, maximum + h);
            store(sum, denominator + h);
            store(splat<1>(T(1)) / sum, factor + h);
            store(kept / sum, carry + h);
        });
    }
};

// What backward reads of a destination, side by side, K numbers each: its score, its maximum, 1 / its denominator, delta.
constexpr int64_t RECORD = 4;

// Records of the destinations of a batch's edges, or of the one that they share (others: none).
template <class T> struct Records {
    const T *base;
    int64_t stride;
    const int32_t *others;

    INLINE const T *of(int64_t edge) const { return others ? base + others[edge] * stride : base; }

    // Scores, in place, become weights: exp(x - m) / s.
    APART void weigh(T *weight, const Batch &b, int64_t heads) const {
        const int64_t held = held_of<T>(heads), start = b.start, count = b.count;
        const Records<T> all = *this;
        by_part<T>(heads, [&](int64_t h, const Tail<T, 1> &there) INLINED {
            for (int64_t e = 0; e < count; ++e) {
                const T *record = all.of(start + e) + h;
                const Part<T> top = load(record + heads, there), inverse = load(record + 2 * heads, there);
                store(exp_below_0(load<1>(weight + e * held + h) - top) * inverse, weight + e * held + h);
            }
        });
    }

    // Gradients of scores, in place of dots: factor (dropped dot - weight delta).
    APART void differentiate(const T *weight, const T *dropped, T *dots, const Batch &b, int64_t heads, T factor) const {
        const int64_t held = held_of<T>(heads);
        by_part<T>(heads, [&](int64_t h, const Tail<T, 1> &there) INLINED {
            for (int64_t e = 0; e < b.count; ++e) {
                const int64_t at = e * held + h;
                const Part<T> delta = load(of(b.start + e) + h + 3 * heads, there);
                const Part<T> d = load<1>(dropped + at) * load<1>(dots + at) - load<1>(weight + at) * delta;
                store(splat<1>(factor) * d, dots + at);
            }
        });
    }
};

}  // namespace sargnn
