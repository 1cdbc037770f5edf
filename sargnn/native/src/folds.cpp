// Messages of edges folded into rows, and partial results merged into running ones.
//
// Messages come in runs of edges whose destinations ascend; a run is cut where another destination begins, so that threads write
// to different rows. A partial result, a row that a peer sends, counts like one edge.
//
// Letters: E edges, M destination rows, A arriving rows, W columns, K heads, D columns of a head.
#include "columns.hpp"
#include "philox.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

constexpr int64_t CHUNK_EDGES = 1024, CHUNK_ROWS = 64;
constexpr int32_t NO_RANK = 0x7FFFFFFF;


// f(e) for all edges, those of a destination on one thread and in their order. rows: int32 [E], ascending.
template <class F> void each_edge(const Table &rows, const F &f) {
    const int32_t *ends = rows.as<const int32_t>();
    const auto begin_of_destination = [&](int64_t edge) {
        int64_t low = 0, high = edge;
        if (edge < rows.rows) {
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (ends[middle] < ends[edge]) low = middle + 1;
                else high = middle;
            }
        }
        return high;
    };
    parallel_runs(rows.rows, CHUNK_EDGES, [&](int64_t first, int64_t last) {
        const int64_t end = begin_of_destination(last);
        for (int64_t e = begin_of_destination(first); e < end; ++e) f(e);
    });
}

struct AddCall {
    Table values;  // [E, W]
    Table rows;    // int32 [E]
    Table out;     // [M, W]
};

}  // namespace

// out[rows[e]] += values[e], of rows that ascend
ENTRY(add_to_ends, AddCall, c) {
    return for_numbers(c.out.type, [&]<class T>() INLINED {
        each_edge(c.rows, [&](int64_t e) {
            T *into = c.out.row<T>(c.rows.as<const int32_t>()[e]);
            const T *value = c.values.row<const T>(e);
            each_column(c.out.width, [&](int64_t f) INLINED { into[f] += value[f]; });
        });
    });
}

// The same for rows in any order: each thread has columns of its own.
ENTRY(add_to_starts, AddCall, c) {
    return for_numbers(c.out.type, [&]<class T>() INLINED {
        const int64_t width = c.out.width;
        const int64_t slabs = larger(smaller(num_threads(), width / LANES<T>), int64_t(1));
        parallel(slabs, [&](int64_t slab) {
            const int64_t first = width * slab / slabs, last = width * (slab + 1) / slabs;
            for (int64_t e = 0; e < c.rows.rows; ++e) {
                T *into = c.out.row<T>(c.rows.as<const int32_t>()[e]) + first;
                const T *value = c.values.row<const T>(e) + first;
                each_column(last - first, [&](int64_t f) INLINED { into[f] += value[f]; });
            }
        });
    });
}

namespace {

struct MaxCall {
    Table values;  // [E, W]
    Table rows;    // int32 [E]
    Word first;    // number of the run's first edge
    Table rank;    // int32, by the number of the edge
    Table best;    // [M, W]
    Table winner;  // int32 [M, W], numbers of edges; below 0: none yet
};

}  // namespace

// Of equal values that of the smallest rank wins, then the first edge. Not a number wins over all.
ENTRY(fold_max, MaxCall, c) {
    return for_numbers(c.best.type, [&]<class T>() INLINED {
        const int32_t *rank = c.rank.as<const int32_t>();
        each_edge(c.rows, [&](int64_t e) {
            const int32_t i = c.rows.as<const int32_t>()[e], edge = int32_t(c.first + e), mine = rank[edge];
            T *best = c.best.row<T>(i);
            int32_t *winner = c.winner.row<int32_t>(i);
            const T *values = c.values.row<const T>(e);
            for (int64_t f = 0; f < c.best.width; ++f) {
                const T value = values[f];
                if (value != value || value > best[f] || winner[f] < 0) {
                    best[f] = value, winner[f] = edge;
                } else if (value == best[f]) {
                    const int32_t other = rank[winner[f]];
                    if (mine < other || (mine == other && edge < winner[f])) winner[f] = edge;
                }
            }
        });
    });
}

namespace {

struct SoftmaxCall {
    Table logits;          // [E, K]
    Table values;          // [E, K D]
    Table rows;            // int32 [E]
    Table largest, total;  // [M, K]
    Table out;             // [M, K D]
};

}  // namespace

// out_i: the sum so far of exp(logit - largest_i) value; total_i: of the weights
ENTRY(fold_softmax, SoftmaxCall, c) {
    return for_numbers(c.out.type, [&]<class T>() INLINED {
        const int64_t heads = c.logits.width, width = c.out.width / heads;
        each_edge(c.rows, [&](int64_t e) {
            const int32_t i = c.rows.as<const int32_t>()[e];
            const T *logits = c.logits.row<const T>(e);
            T *largest = c.largest.row<T>(i), *total = c.total.row<T>(i);
            for (int64_t k = 0; k < heads; ++k) {
                const T score = logits[k], most = largest[k];
                T *into = c.out.row<T>(i) + k * width;
                const T *value = c.values.row<const T>(e) + k * width;
                T weight = 1;
                if (score > most) {
                    const T scale = total[k] != 0 ? exp_of(most - score) : T(0);
                    total[k] *= scale;
                    each_column(width, [&](int64_t d) INLINED { into[d] *= scale; });
                    largest[k] = score;
                } else {
                    weight = score == most && __builtin_isinf(score) ? T(0) : exp_of(score - most);  // -inf after -inf has none
                }
                total[k] += weight;
                each_column(width, [&](int64_t d) INLINED { into[d] += weight * value[d]; });
            }
        });
    });
}

namespace {

struct MergeSoftmaxCall {
    Table rows;                    // int32 [A], none twice
    Table values;                  // [A, K D]
    Table log_sum;                 // [A, K]; -inf: over no edges
    Table out;                     // [M, K D]
    Table max_score, denominator;  // [M, K]
};

}  // namespace

// m' = max(m, l), s' = s exp(m - m') + exp(l - m'), out' = (s exp(m - m') out + exp(l - m') v) / s'
ENTRY(merge_softmax, MergeSoftmaxCall, c) {
    return for_rows(c.values.type, [&]<class R>() INLINED {
        typedef Wide<R> T;
        const int64_t heads = c.log_sum.width, width = c.out.width / heads;
        parallel_runs(c.rows.rows, CHUNK_ROWS, [&](int64_t first, int64_t last) {
            for (int64_t a = first; a < last; ++a) {
                const int32_t i = c.rows.as<const int32_t>()[a];
                for (int64_t h = 0; h < heads; ++h) {
                    const T score = c.log_sum.row<const T>(a)[h];
                    T *top = c.max_score.row<T>(i) + h, *sum = c.denominator.row<T>(i) + h;
                    if (score == -T(__builtin_inf())) continue;
                    const bool nothing = *sum == 0;  // what is there is undefined
                    const T highest = *top > score ? *top : score;
                    const T before = nothing ? T(0) : *sum * exp_of(*top - highest), fresh = exp_of(score - highest);
                    const T total = before + fresh, made = fresh / total, kept = before / total;
                    *top = highest, *sum = total;
                    T *into = c.out.row<T>(i) + h * width;
                    const R *value = c.values.row<const R>(a) + h * width;
                    if (nothing) {
                        each_column(width, [&](int64_t d) INLINED { into[d] = widen(value[d]); });
                    } else {
                        each_column(width, [&](int64_t d) INLINED { into[d] = kept * into[d] + made * widen(value[d]); });
                    }
                }
            }
        });
    });
}

namespace {

struct MergeMaximaCall {
    Table rows;    // int32 [A], none twice
    Table values;  // [A, W]
    Table places;  // int32 [A, W], of the winners in `ranks`
    Table ranks;   // int32
    Table best;    // [M, W]
    Table winner;  // int32 [M, W], ranks
};

}  // namespace

// A value whose winner is none of the ranks does not count, unless it is not a number.
ENTRY(merge_maxima, MergeMaximaCall, c) {
    return for_rows(c.best.type, [&]<class R>() INLINED {
        parallel_runs(c.rows.rows, CHUNK_ROWS, [&](int64_t first, int64_t last) {
            for (int64_t a = first; a < last; ++a) {
                const int32_t i = c.rows.as<const int32_t>()[a];
                R *best = c.best.row<R>(i);
                int32_t *winner = c.winner.row<int32_t>(i);
                for (int64_t f = 0; f < c.best.width; ++f) {
                    const R given = c.values.row<const R>(a)[f];
                    const Wide<R> value = widen(given), held = widen(best[f]);
                    const int32_t place = c.places.row<const int32_t>(a)[f];
                    const bool known = (0 <= place) & (place < c.ranks.rows);
                    const int32_t rank = known ? c.ranks.as<const int32_t>()[place] : NO_RANK;
                    const bool wins = (value > held) | ((value == held) & (rank < winner[f]));
                    if ((known & wins) | (value != value)) best[f] = given, winner[f] = rank;
                }
            }
        });
    });
}

namespace {

struct WinnersCall {
    Table winner;  // int32 [M, W], ranks
    Table rows;    // int32 [A]
    Table ranks;   // int32, ascending
    Table out;     // int32 [A, W]
};

}  // namespace

// The places in `ranks` of the winners of some rows; NO_RANK for winners that are not there.
ENTRY(take_winners, WinnersCall, c) {
    const int32_t *ranks = c.ranks.as<const int32_t>();
    parallel_runs(c.rows.rows, CHUNK_ROWS, [&](int64_t first, int64_t last) {
        for (int64_t a = first; a < last; ++a) {
            const int32_t *winner = c.winner.row<const int32_t>(c.rows.as<const int32_t>()[a]);
            int32_t *out = c.out.row<int32_t>(a);
            for (int64_t f = 0; f < c.out.width; ++f) {
                const int32_t *found = ranks, wanted = winner[f];
                for (uint64_t count = uint64_t(c.ranks.rows); count > 0; count /= 2) {  // no branch that nobody can foretell
                    const int32_t *above = found + (count - count / 2);
                    found = found[count / 2] < wanted ? above : found;
                }
                const int64_t low = found - ranks;
                out[f] = low < c.ranks.rows && ranks[low] == winner[f] ? int32_t(low) : NO_RANK;
            }
        }
    });
    return 0;
}

namespace {

struct DropWeightsCall {
    Table weights;                    // [E, K]
    Table source_ids, sources;        // int64 [S], int32 [E]
    Table destination_ids, destinations;  // int64 [M], int32 [E]
    Draw draw;
    Table out;  // [E, K]
};

}  // namespace

// Dropout of edges' weights that stand in memory.
ENTRY(drop_weights, DropWeightsCall, c) {
    return for_numbers(c.out.type, [&]<class T>() INLINED {
        const int64_t heads = c.out.width;
        parallel_runs(c.out.rows, CHUNK_EDGES, [&](int64_t first, int64_t last) {
            for (int64_t e = first; e < last; ++e) {
                const int64_t source = c.source_ids.as<const int64_t>()[c.sources.as<const int32_t>()[e]];
                const int64_t destination = c.destination_ids.as<const int64_t>()[c.destinations.as<const int32_t>()[e]];
                __builtin_memcpy(c.out.row<T>(e), c.weights.row<const T>(e), size_t(heads) * sizeof(T));
                drop_edge(c.out.row<T>(e), uint64_t(source), uint64_t(destination), heads, c.draw);
            }
        });
    });
}
