// Maxima over edges, feature by feature, and their gradients.
//
// A row is cut into tiles of one or two vectors, which stay in registers while a tile walks the edges. Where the width is no
// multiple of a vector, the last vector overlaps the one before it in the same tile; a row of less than a vector is one that is
// not all there.
//
// Letters: S source rows, M destination rows, F features. R: type of rows, T: that of numbers.
#include "edges.hpp"

using namespace sargnn;

namespace {

// As many 32-bit numbers as a vector of T has lanes.
template <class T> struct Ranks {
    typedef Simd<int32_t, Vector<T>::EACH * 4> Half;
    typename Vector<T>::Mask part[PARTS];
};
template <class T> INLINE Ranks<T> load_ranks(const int32_t *at) {
    Ranks<T> out;
    UNROLL for (int p = 0; p < PARTS; ++p) {
        typename Ranks<T>::Half held;
        __builtin_memcpy(&held, at + p * Vector<T>::EACH, sizeof(held));
        out.part[p] = __builtin_convertvector(held, typename Vector<T>::Mask);
    }
    return out;
}
template <class T> INLINE void store_ranks(const Ranks<T> &x, int32_t *at) {
    UNROLL for (int p = 0; p < PARTS; ++p) {
        const auto held = __builtin_convertvector(x.part[p], typename Ranks<T>::Half);
        __builtin_memcpy(at + p * Vector<T>::EACH, &held, sizeof(held));
    }
}

// Vectors of a row that are in memory as a whole.
struct Whole {
    template <class R> INLINE Vector<Wide<R>> numbers(const R *at) const { return load(at); }
    template <class R> INLINE void put(const Vector<Wide<R>> &x, R *at) const { store(x, at); }
    template <class T> INLINE Ranks<T> ranks(const int32_t *at) const { return load_ranks<T>(at); }
    template <class T> INLINE void put_ranks(const Ranks<T> &x, int32_t *at) const { store_ranks(x, at); }
};
// A row of less than a vector.
template <class T> struct Narrow {
    Tail<T> there;
    template <class R> INLINE Vector<T> numbers(const R *at) const { return load(at, there); }
    template <class R> INLINE void put(const Vector<T> &x, R *at) const { store(x, at, there); }
    template <class> INLINE Ranks<T> ranks(const int32_t *at) const {
        int32_t held[LANES<T>] = {};
        for (int k = 0; k < there.count; ++k) held[k] = at[k];
        return load_ranks<T>(held);
    }
    INLINE void put_ranks(const Ranks<T> &x, int32_t *at) const {
        int32_t held[LANES<T>];
        store_ranks(x, held);
        for (int k = 0; k < there.count; ++k) at[k] = held[k];
    }
};

// f.operator()<K>(how vectors are read, first feature, that of the K-th vector) for the tiles of a row. The first one has a
// single vector if their number is odd.
template <class T, class F> INLINE void each_tile(int64_t width, const F &f) {
    if (width < LANES<T>) return f.template operator()<1>(Narrow<T>{Tail<T>(width)}, 0, 0);
    int64_t at = 0;
    if ((width + LANES<T> - 1) / LANES<T> % 2 == 1) f.template operator()<1>(Whole{}, 0, 0), at = LANES<T>;
    for (; at < width; at += 2 * LANES<T>)
        f.template operator()<2>(Whole{}, at, smaller(at + LANES<T>, width - LANES<T>));
}

struct MaxCall {
    Edges edges;
    Tables src;    // [S, F]
    Table ranks;   // int32 [S], of the source rows' original ids among all that this worker sees
    Table best;    // [M, F], starts at -inf
    Table winner;  // int32 [M, F], the winner's rank, starts at 2**31 - 1
};

template <class R, int K, class How>
INLINE void fold(const MaxCall &c, const Sources<R> &src, const Run &run, const How &how, int64_t f, int64_t last) {
    typedef Wide<R> T;
    const int32_t *others = c.edges.ends(), *ranks = c.ranks.as<const int32_t>();
    R *best = c.best.row<R>(run.row);
    int32_t *winner = c.winner.row<int32_t>(run.row);
    Vector<T> most[K];
    Ranks<T> who[K];
    UNROLL for (int k = 0; k < K; ++k) {
        most[k] = how.numbers(best + (k ? last : f));
        who[k] = how.template ranks<T>(winner + (k ? last : f));
    }
    const int64_t limit = c.edges.count() - 1;
    for (int64_t e = run.start; e < run.end; ++e) {
        const int64_t j = others[e];
        const R *row = src[j];
        fetch_vectors<R, K>(src[others[smaller(e + AHEAD<R>, limit)]] + f);
        const typename Vector<T>::Mask rank = ranks[j] - typename Vector<T>::Mask{};
        UNROLL for (int k = 0; k < K; ++k) {
            const Vector<T> values = how.numbers(row + (k ? last : f));
            UNROLL for (int p = 0; p < PARTS; ++p) {
                const auto value = values.part[p], held = most[k].part[p];
                // Not a number wins over all, so that a run that has diverged is not hidden.
                const auto better = (value > held) | ((value == held) & (rank < who[k].part[p])) | (value != value);
                most[k].part[p] = better ? value : held;
                who[k].part[p] = better ? rank : who[k].part[p];
            }
        }
    }
    UNROLL for (int k = 0; k < K; ++k) {
        how.put(most[k], best + (k ? last : f));
        how.put_ranks(who[k], winner + (k ? last : f));
    }
}

}  // namespace

// Folds source rows into running maxima; of equal values the source of the smallest rank wins.
ENTRY(max_rows, MaxCall, c) {
    return for_rows(c.best.type, [&]<class R>() INLINED {
        const Sources<R> src(c.src);
        parallel(c.edges.chunks(), [&](int64_t chunk) {
            for (int64_t a = c.edges.first(chunk); a < c.edges.first(chunk + 1); ++a) {
                const Run run = c.edges.run(a);
                each_tile<Wide<R>>(c.best.width, [&]<int K>(const auto &how, int64_t f, int64_t last) INLINED {
                    fold<R, K>(c, src, run, how, f, last);
                });
            }
        });
    });
}

namespace {

struct GradientsCall {
    Edges edges;  // by source row
    Table grad;   // [M, F]
    Table winner;  // int32 [M, F]
    Table ranks;  // int32 [S]
    Table out;    // [S, F]
    Word adds;
};

template <class R, int K, class How>
INLINE void add_gradients(const GradientsCall &c, const Run &run, const How &how, int64_t f, int64_t last) {
    typedef Wide<R> T;
    const int32_t *others = c.edges.ends();
    R *out = c.out.row<R>(run.row);
    const typename Vector<T>::Mask rank = c.ranks.as<const int32_t>()[run.row] - typename Vector<T>::Mask{};
    Vector<T> sums[K];
    UNROLL for (int k = 0; k < K; ++k) sums[k] = c.adds ? how.numbers(out + (k ? last : f)) : zeros<T>();
    const int64_t limit = c.edges.count() - 1;
    for (int64_t e = run.start; e < run.end; ++e) {
        const int32_t i = others[e], later = others[smaller(e + AHEAD<R>, limit)];
        if (e > run.start && i == others[e - 1]) continue;  // parallel edges count once
        fetch_vectors<R, K>(c.grad.row<const R>(later) + f);
        fetch_vectors<int32_t, K>(c.winner.row<const int32_t>(later) + f);
        UNROLL for (int k = 0; k < K; ++k) {
            const Vector<T> grad = how.numbers(c.grad.row<const R>(i) + (k ? last : f));
            const Ranks<T> who = how.template ranks<T>(c.winner.row<const int32_t>(i) + (k ? last : f));
            UNROLL for (int p = 0; p < PARTS; ++p) sums[k].part[p] += who.part[p] == rank ? grad.part[p] : typename Vector<T>::Part{};
        }
    }
    UNROLL for (int k = 0; k < K; ++k) how.put(sums[k], out + (k ? last : f));
}

}  // namespace

// out[j] (+)= sum of grad[i] over edges j -> i where j won
ENTRY(max_gradients, GradientsCall, c) {
    return for_rows(c.out.type, [&]<class R>() INLINED {
        parallel(c.edges.chunks(), [&](int64_t chunk) {
            for (int64_t a = c.edges.first(chunk); a < c.edges.first(chunk + 1); ++a) {
                const Run run = c.edges.run(a);
                each_tile<Wide<R>>(c.out.width, [&]<int K>(const auto &how, int64_t f, int64_t last) INLINED {
                    add_gradients<R, K>(c, run, how, f, last);
                });
            }
        });
    });
}
