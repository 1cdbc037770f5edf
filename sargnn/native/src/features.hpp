// Features of edges: fp32, read from where they lie, mapped by a table with a row for each feature and one for the bias.
#pragma once
#include "edges.hpp"

namespace sargnn {

// After how many edges sums in the rows' own numbers are added to those in fp64.
constexpr int64_t FLUSH_EDGES = 4096;

struct Features {
    Table array;   // fp32 [n, C]
    Table places;  // int32 [E], which of its rows an edge has, -1 for zeros; not given: all, in order

    bool given() const { return array.given() && array.width > 0; }
    int64_t columns() const { return array.width; }
    // The features of an edge; null for zeros.
    INLINE const float *of(int64_t edge) const {
        const int64_t place = places.given() ? places.as<const int32_t>()[edge] : edge;
        return place < 0 ? nullptr : array.row<const float>(place);
    }
    INLINE void fetch_of(int64_t edge) const {
        if (const float *at = of(edge)) fetch(at, columns() * 4);
    }
};

// The features of a batch's edges.
struct FeatureRows {
    const float **at;
    int64_t count, columns;

    // order: where each edge stands among those that have features; null: in their order.
    APART void find(const Features &features, const int32_t *order, int64_t start, int64_t edges, const float *nothing) {
        count = edges, columns = features.columns();
        for (int64_t e = 0; e < edges; ++e) {
            const float *row = features.of(order ? order[start + e] : start + e);
            at[e] = row ? row : nothing;
            fetch(at[e], columns * 4);
        }
    }

    // out[e, :] = own + W f_e, some columns of it in vectors of P parts, which are whole in out and own. table: W^T from the
    // first of these columns on, and numbers from one of its rows to the next.
    template <int P, class T>
    APART void map(T *out, int64_t stride, const T *own, const T *table, int64_t table_stride, int64_t width) const {
        for (int64_t e = 0; e < count; ++e)
            for (int64_t f = 0; f < width; f += Vector<T, P>::LANES) {
                const Tail<T, P> there(width - f);
                Vector<T, P> total = load<P>(own + f);
                for (int64_t c = 0; c < columns; ++c)
                    total = multiply_add(splat<P>(T(at[e][c])), load(table + c * table_stride + f, there), total);
                store(total, out + e * stride + f);
            }
    }

    // sums[c, :] += sum of f_e[c] rows[e, :], some columns of it likewise.
    template <int P, class T>
    APART void add_outer(T *sums, int64_t sums_stride, const T *rows, int64_t stride, int64_t width) const {
        for (int64_t f = 0; f < width; f += Vector<T, P>::LANES) {
            const Tail<T, P> there(width - f);
            for (int64_t c = 0; c < columns; ++c) {
                Vector<T, P> total = load(sums + c * sums_stride + f, there);
                for (int64_t e = 0; e < count; ++e)
                    total = multiply_add(splat<P>(T(at[e][c])), load<P>(rows + e * stride + f), total);
                store(total, sums + c * sums_stride + f, there);
            }
        }
    }
};

// Sums over many edges: in numbers of the rows, and every some thousand edges in fp64.
template <class T> struct LongSums {
    Scratch<T> sums;
    double *totals;
    int64_t rows, width, flushed;

    LongSums(double *into, int64_t rows, int64_t width, int64_t edge)
        : sums(rows * width), totals(into), rows(rows), width(width), flushed(edge) {
        __builtin_memset(static_cast<T *>(sums), 0, size_t(rows * width) * sizeof(T));
    }
    APART void flush(int64_t edge) {
        for (int64_t k = 0; k < rows * width; ++k) totals[k] += double(sums[k]), sums[k] = 0;
        flushed = edge;
    }
    void flush_after(int64_t edge) {
        if (edge - flushed > FLUSH_EDGES) flush(edge);
    }
};

}  // namespace sargnn
