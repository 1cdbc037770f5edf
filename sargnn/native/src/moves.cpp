// Rows on their way between tables and messages: one call takes rows of many tables.
//
// Letters: R rows that are moved, F features. A: type of tables, B: that of messages.
#include "columns.hpp"
#include "rows.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

constexpr int64_t CHUNK_NUMBERS = 1 << 14;

struct MovesCall {
    Tables tables;   // [N_k, F] each
    Table ends;      // int64: where the rows of each table end
    Table rows;      // int32 [R], those of the first table, then those of the next
    Table messages;  // [R, F]
};

// move(row of a table, row of messages) for all of them.
template <class A, class B, class F> void each_row(const MovesCall &c, const F &move) {
    const int64_t *ends = c.ends.as<const int64_t>();
    const int32_t *rows = c.rows.as<const int32_t>();
    const int64_t each = larger(CHUNK_NUMBERS / larger(c.messages.width, int64_t(1)), int64_t(1));
    parallel_runs(c.rows.rows, each, [&](int64_t first, int64_t last) {
        int64_t table = 0;
        for (int64_t r = first; r < last; ++r) {
            while (r >= ends[table]) ++table;
            move(c.tables.at[table].template row<A>(rows[r]), c.messages.row<B>(r));
        }
    });
}

// Calls f.operator()<A, B>() for tables and messages of these types.
template <class F> INLINE int64_t for_moves(const MovesCall &c, const F &f) {
    const int64_t of = c.tables.first().type, to = c.messages.type;
    if (of == to) return for_rows(of, [&]<class R>() INLINED { f.template operator()<R, R>(); });
    if (of == FP32 && to == BF16) return f.template operator()<float, bf16>(), 0;
    if (of == BF16 && to == FP32) return f.template operator()<bf16, float>(), 0;
    return WRONG_TYPE;
}

}  // namespace

// messages[r] = table[rows[r]], rounded
ENTRY(take_rows, MovesCall, c) {
    return for_moves(c, [&]<class A, class B>() INLINED {
        each_row<const A, B>(c, [&](const A *row, B *message) {
            if constexpr (sizeof(A) == sizeof(B)) {
                __builtin_memcpy(message, row, size_t(c.messages.width) * sizeof(B));
            } else {
                each_column(c.messages.width, [&](int64_t f) INLINED { put(widen(row[f]), message + f); });
            }
        });
    });
}

// table[rows[r]] += messages[r]; no row twice
ENTRY(add_rows, MovesCall, c) {
    return for_moves(c, [&]<class A, class B>() INLINED {
        each_row<A, const B>(c, [&](A *row, const B *message) {
            each_column(c.messages.width, [&](int64_t f) INLINED { put(widen(row[f]) + widen(message[f]), row + f); });
        });
    });
}

namespace {

struct ScaledCall {
    Table source;   // [S, F]
    Table rows;     // int32 [R]
    Table weights;  // [R], wide
    Table to;       // int32 [R]
    Table target;   // [M, F], wide
};

}  // namespace

// target[to[r]] += weights[r] source[rows[r]]; rows may repeat, so each thread has columns of its own
ENTRY(add_scaled_rows, ScaledCall, c) {
    return for_rows(c.source.type, [&]<class R>() INLINED {
        typedef Wide<R> T;
        const int32_t *rows = c.rows.as<const int32_t>(), *to = c.to.as<const int32_t>();
        const T *weights = c.weights.as<const T>();
        const int64_t width = c.target.width;
        const int64_t slabs = larger(smaller(num_threads(), width / LANES<T>), int64_t(1));
        parallel(slabs, [&](int64_t slab) {
            const int64_t first = width * slab / slabs, last = width * (slab + 1) / slabs;
            for (int64_t r = 0; r < c.to.rows; ++r) {
                T *row = c.target.row<T>(to[r]) + first;
                const R *x = c.source.row<const R>(rows[r]) + first;
                const T weight = weights[r];
                each_column(last - first, [&](int64_t f) INLINED { row[f] += weight * widen(x[f]); });
            }
        });
    });
}
