// A block's edges in one direction: listed rows, cut into chunks of about equal edges, and the rows at the edges' other ends.
#pragma once
#include "border.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace sargnn {

// How many rows ahead one that is added to is fetched.
constexpr int64_t LATER = 4;

// The edges [start, end) of one listed row.
struct Run {
    int64_t row, start, end;
};

struct Edges {
    Table bounds;   // int64 [chunks + 1], of listed rows
    Table listed;   // int32 [A]; not given: all rows
    Table offsets;  // int32 [A + 1]
    Table others;   // int32 [E]

    int64_t chunks() const { return bounds.rows - 1; }
    int64_t first(int64_t chunk) const { return bounds.as<const int64_t>()[chunk]; }
    int64_t count() const { return others.rows; }
    const int32_t *ends() const { return others.as<const int32_t>(); }
    int64_t row(int64_t a) const { return listed.given() ? listed.as<const int32_t>()[a] : a; }
    Run run(int64_t a) const {
        const int32_t *at = offsets.as<const int32_t>();
        return {row(a), at[a], at[a + 1]};
    }
    // The row that comes so many after the a-th.
    int64_t later(int64_t a) const { return row(smaller(a + LATER, offsets.rows - 2)); }
    // Fetches the row of `out` that will be added to some rows later: between two of them come so many others that the hardware
    // does not see an order.
    void fetch_later(const Table &out, int64_t a, int64_t item) const {
        fetch(static_cast<const char *>(out.at) + later(a) * out.stride * item, out.width * item);
    }
};

// Row i of several tables, numbered one after another.
template <class R> APART const R *find_row(const Table *table, int64_t i) {
    while (i >= table->rows) i -= table->rows, ++table;
    return table->row<const R>(i);
}

// Rows of one or of several tables, by number.
template <class R> struct Sources {
    const R *base;
    int64_t stride;
    const Table *tables;  // null: there is one
    int64_t column = 0;   // with which they begin

    explicit Sources(const Tables &given)
        : base(given.first().as<const R>()), stride(given.first().stride), tables(given.count > 1 ? given.at : nullptr) {}
    explicit Sources(const Table &given) : base(given.as<const R>()), stride(given.stride), tables(nullptr) {}
    // The same from a column on.
    INLINE Sources from(int64_t f) const {
        Sources out = *this;
        out.base += f, out.column += f;
        return out;
    }
    INLINE const R *operator[](int64_t i) const {
        if (__builtin_expect(tables != nullptr, 0)) return find_row<R>(tables, i) + column;
        return base + i * stride;
    }
};

}  // namespace sargnn
