// A block's edges in one direction: listed rows, cut into chunks of about equal edges, and the rows at the edges' other ends.
#pragma once
#include "border.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace sargnn {

// How many listed rows ahead one that is added to is fetched.
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
    // Fetches the row of `out` that will be added to some listed rows later, where they are not all there.
    void fetch_later(const Table &out, int64_t a, int64_t item) const {
        if (!listed.given()) return;
        const int64_t later = row(smaller(a + LATER, listed.rows - 1));
        fetch(static_cast<const char *>(out.at) + later * out.stride * item, out.width * item);
    }
};

// Rows of one or of several tables, by number.
template <class R> struct Sources {
    const R *base;
    int64_t stride, count;
    const Table *tables;

    explicit Sources(const Tables &given)
        : base(given.first().as<const R>()), stride(given.first().stride), count(given.count), tables(given.at) {}
    explicit Sources(const Table &given) : base(given.as<const R>()), stride(given.stride), count(1), tables(nullptr) {}
    INLINE const R *operator[](int64_t i) const {
        if (count == 1) return base + i * stride;
        return find(i);
    }
    __attribute__((noinline)) const R *find(int64_t i) const {
        const Table *table = tables;
        while (i >= table->rows) i -= table->rows, ++table;
        return table->row<const R>(i);
    }
};

}  // namespace sargnn
