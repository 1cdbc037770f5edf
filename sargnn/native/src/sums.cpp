// Sums of source rows over a destination's edges, and the gradients of edges' weights.
//
//     sum = sum over e in [start, end) of factor_e * src[others[e], :]        out[:] = sum  or  out[:] += scale * sum
//
// A destination's row is cut into tiles of some vectors, which stay in registers while a tile walks the edges. A width that is
// no multiple of a vector ends in a vector that overlaps the one before: both hold the same sums. A row of less than a vector is
// one that is not all there.
#include "edges.hpp"

using namespace sargnn;

namespace {

// Vectors of a tile: as many as registers hold beside what is read. AVX-512 has room for twice as many: rows of fp32 and fp64 are
// read whole then, where they are long enough and edges have no factors of their own.
constexpr int TILE = 8;
// Calls f.operator()<count>(), for a count from 1 to TILE.
template <int K = TILE, class F> INLINE void for_count(int64_t count, F f) {
    if constexpr (K > 1) {
        if (count < K) return for_count<K - 1>(count, f);
    }
    f.template operator()<K>();
}
// How many edges ahead, in tiles of one or two vectors, is what is read in order: rows come so fast there that it is missed.
constexpr int64_t STREAM = 256;

// What multiplies rows: nothing; a number of the source row; a number of the edge.
enum Factor { NONE, OF_ROW, OF_EDGE };

#if defined(__AVX512F__)
template <class R, Factor F> constexpr int WIDEST = sizeof(R) > 2 && F != OF_EDGE ? 2 * TILE : TILE;
#else
template <class R, Factor F> constexpr int WIDEST = TILE;
#endif
// How many edges ahead rows are fetched, of which a tile has K vectors.
template <class R, Factor F, int K> constexpr int64_t AHEAD_IN =
    F == OF_EDGE ? (K <= 4 ? 32 : 24) : ahead_of(K * LANES<Wide<R>> * int64_t(sizeof(R)));

template <class T> struct Factors {
    const T *of_edge, *of_row;
    const int32_t *places;

    template <Factor F> INLINE T of(int64_t edge, int64_t row) const {
        if constexpr (F == OF_ROW) return of_row[row];
        T factor = of_edge[places ? places[edge] : edge];
        return of_row ? factor * of_row[row] : factor;
    }
};

// Where the sums of a row go, and what they are multiplied by first.
template <class Out> struct Target {
    Out *out;
    bf16 *lower;  // of bf16 rows, the lower halves of fp32 sums whose upper halves `out` holds, or null
    Wide<Out> scale;
    bool adds;

    // out = scale sum, or out += scale sum, of vectors that begin at at(k). Two may overlap: all are read before one is written.
    template <int K, class At> INLINE void write(Vector<Wide<Out>> (&sums)[K], At at) const {
        typedef Wide<Out> T;
        const Vector<T> factor = splat(scale);
        UNROLL for (int k = 0; k < K; ++k) sums[k] = sums[k] * factor;
        if constexpr (sizeof(Out) == 2) {
            if (lower) {
                UNROLL for (int k = 0; k < K; ++k) sums[k] = sums[k] + joined(load(out + at(k)), load(lower + at(k)));
                UNROLL for (int k = 0; k < K; ++k) {
                    const Vector<T> sum = sums[k];
                    store_halves(sum, out + at(k));
                    store_halves(lower_halves(sum), lower + at(k));
                }
                return;
            }
        }
        if (adds) UNROLL for (int k = 0; k < K; ++k) sums[k] = load(out + at(k)) + sums[k];
        UNROLL for (int k = 0; k < K; ++k) store(sums[k], out + at(k));
    }

    // The same of a row that is less than a vector, and has no lower halves.
    INLINE void write(const Vector<Wide<Out>> &sum, const Tail<Wide<Out>> &there) const {
        const Vector<Wide<Out>> scaled = sum * splat(scale);
        store(adds ? load(out, there) + scaled : scaled, out, there);
    }
};

template <class R, class Out> struct Sum {
    typedef Wide<R> T;
    Sources<R> src;
    const int32_t *others;
    int64_t edges, width;
    Factors<T> factors;

    // K vectors that begin at f, the last of which begins at `last`.
    template <Factor F, int K>
    APART void tile(const Run &run, const Target<Out> &to, int64_t f, int64_t last) const {
        Vector<T> sums[K];
        UNROLL for (int k = 0; k < K; ++k) sums[k] = zeros<T>();
        // Copies: the compiler keeps them in registers.
        const Sources<R> rows = src.from(f);
        const Factors<T> all = factors;
        const int32_t *const ends = others;
        const int64_t limit = edges - 1, by = AHEAD_IN<R, F, K>, rest = last - f;
        for (int64_t e = run.start; e < run.end; ++e) {
            const int64_t j = ends[e];
            const R *row = rows[j], *later = rows[ends[smaller(e + by, limit)]];
            UNROLL for (int k = 0; k < K - 1; ++k) if (new_line<R>(k * LANES<T>)) fetch(later + k * LANES<T>);
            fetch(later + rest);
            if constexpr (F == OF_EDGE && K <= 2) {
                fetch(ends + e + STREAM);
                fetch(all.places ? static_cast<const void *>(all.places + e + STREAM) : all.of_edge + e + STREAM);
            }
            Vector<T> factor = zeros<T>();
            if constexpr (F != NONE) factor = splat(all.template of<F>(e, j));
            UNROLL for (int k = 0; k < K; ++k) {
                const Vector<T> value = load(row + (k == K - 1 ? rest : k * LANES<T>));
                if constexpr (F == NONE) sums[k] = sums[k] + value;
                if constexpr (F == OF_ROW) sums[k] = sums[k] + value * factor;
                if constexpr (F == OF_EDGE) sums[k] = multiply_add(value, factor, sums[k]);
            }
        }
        to.template write<K>(sums, [&](int k) INLINED { return k == K - 1 ? last : f + k * LANES<T>; });
    }

    // A row of less than a vector.
    template <Factor F> APART void narrow(const Run &run, const Target<Out> &to) const {
        const Tail<T> there(width);
        Vector<T> sum = zeros<T>();
        for (int64_t e = run.start; e < run.end; ++e) {
            const int64_t j = others[e];
            fetch(src[others[smaller(e + ahead_of(0), edges - 1)]]);
            const Vector<T> value = load(src[j], there);
            if constexpr (F == NONE) sum = sum + value;
            if constexpr (F == OF_ROW) sum = sum + value * splat(factors.template of<F>(e, j));
            if constexpr (F == OF_EDGE) sum = multiply_add(value, splat(factors.template of<F>(e, j)), sum);
        }
        to.write(sum, there);
    }

    template <Factor F> void row(const Run &run, const Target<Out> &to) const {
        if (width < LANES<T>) return narrow<F>(run, to);
        int64_t f = 0;
        while (f < width) {
            const int64_t left = (width - f + LANES<T> - 1) / LANES<T>;
            // Never leaves a single vector to the last tile: it would overlap a tile that is stored already.
            const bool widest = left >= WIDEST<R, F> && left != WIDEST<R, F> + 1;
            const int64_t count = widest ? WIDEST<R, F> : left == TILE + 1 ? TILE - 1 : smaller<int64_t>(left, TILE);
            const int64_t last = smaller(f + (count - 1) * LANES<T>, width - LANES<T>);
            if (widest) tile<F, WIDEST<R, F>>(run, to, f, last);
            else for_count(count, [&]<int K>() INLINED { tile<F, K>(run, to, f, last); });
            f += count * LANES<T>;
        }
    }
};

struct SumCall {
    Edges edges;
    Tables src;   // [S, F]
    Table scale;  // [M], of adding: 1 if not given
    Table of_row, of_edge, places;
    Table out, lower;
    Word adds;
};

template <class R, class Out> void sums(const SumCall &c) {
    typedef Wide<R> T;
    const Factors<T> factors = {c.of_edge.as<const T>(), c.of_row.as<const T>(), c.places.as<const int32_t>()};
    const Sum<R, Out> sum = {Sources<R>(c.src), c.edges.ends(), c.edges.count(), c.out.width, factors};
    parallel(c.edges.chunks(), [&](int64_t chunk) {
        for (int64_t a = c.edges.first(chunk); a < c.edges.first(chunk + 1); ++a) {
            const Run run = c.edges.run(a);
            Out *to = c.out.row<Out>(run.row);
            if (run.start == run.end) {
                if (!c.adds) __builtin_memset(to, 0, size_t(c.out.width) * sizeof(Out));
                continue;
            }
            if (c.adds) c.edges.fetch_later(c.out, a, sizeof(Out));
            if (c.adds && c.lower.given()) c.edges.fetch_later(c.lower, a, 2);
            const T scale = c.scale.given() ? c.scale.as<const T>()[run.row] : T(1);
            const Target<Out> target = {to, c.lower.given() ? c.lower.row<bf16>(run.row) : nullptr, scale, c.adds != 0};
            if (c.of_edge.given()) sum.template row<OF_EDGE>(run, target);
            else if (c.of_row.given()) sum.template row<OF_ROW>(run, target);
            else sum.template row<NONE>(run, target);
        }
    });
}

}  // namespace

// out (+)= scale * sum over edges of of_edge[places[e]] * of_row[j] * src[j]
ENTRY(sums, SumCall, c) {
    const int64_t type = c.src.first().type;
    if (type == BF16 && c.out.type == FP32) return sums<bf16, float>(c), 0;
    if (type != c.out.type) return WRONG_TYPE;
    return for_rows(type, [&]<class R>() INLINED { sums<R, R>(c); });
}

namespace {

struct DotCall {
    Edges edges;
    Tables src;  // [S, F]
    Table grad;  // [M, F]
    Table scale;  // [M]; not given: 1
    Table out;  // [E]
};

// K vectors of a row from f on, the last of them perhaps not all there.
template <int K, class R> APART void add_dots(const DotCall &c, const Run &run, const R *own, int64_t f, Wide<R> scale) {
    typedef Wide<R> T;
    const Sources<R> src = Sources<R>(c.src).from(f);
    const int32_t *others = c.edges.ends();
    T *out = c.out.as<T>();
    const int64_t limit = c.edges.count() - 1, last = f + (K - 1) * LANES<T>;
    const Tail<T> there(c.grad.width - last);
    Vector<T> mine[K];
    UNROLL for (int k = 0; k < K - 1; ++k) mine[k] = load(own + f + k * LANES<T>);
    mine[K - 1] = load(own + last, there);
    for (int64_t e = run.start; e < run.end; ++e) {
        const R *row = src[others[e]];
        fetch_vectors<R, K>(src[others[smaller(e + AHEAD<R>, limit)]]);
        Vector<T> products = zeros<T>();
        UNROLL for (int k = 0; k < K - 1; ++k) products = multiply_add(load(row + k * LANES<T>), mine[k], products);
        products = multiply_add(load(row + (K - 1) * LANES<T>, there), mine[K - 1], products);
        out[e] = (f == 0 ? T(0) : out[e]) + sum_lanes(products) * scale;
    }
}

}  // namespace

// out[e] = scale[i] * <grad[i], src[j]> for the edges e from j to i
ENTRY(edge_dots, DotCall, c) {
    return for_rows(c.grad.type, [&]<class R>() INLINED {
        typedef Wide<R> T;
        parallel(c.edges.chunks(), [&](int64_t chunk) {
            for (int64_t a = c.edges.first(chunk); a < c.edges.first(chunk + 1); ++a) {
                const Run run = c.edges.run(a);
                const R *own = c.grad.row<const R>(run.row);
                const T scale = c.scale.given() ? c.scale.as<const T>()[run.row] : T(1);
                for (int64_t f = 0; f < c.grad.width; f += TILE * LANES<T>) {
                    const int64_t count = smaller<int64_t>((c.grad.width - f + LANES<T> - 1) / LANES<T>, TILE);
                    for_count(count, [&]<int K>() INLINED { add_dots<K>(c, run, own, f, scale); });
                }
            }
        });
    });
}
