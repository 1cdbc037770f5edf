// A part's in-edges, found, counted, put by (source part, relation), and sorted (sargnn/partition/sort_edges.py, cut.py).
//
// A source is known by its position among all parts' nodes, of which part p has [offsets[p], offsets[p + 1]).
#include "indices.hpp"
#include "rows.hpp"
#include "sorting.hpp"

using namespace sargnn;

namespace {

constexpr int64_t TOGETHER = 64;  // rows at a time
constexpr int64_t LINE = 64;      // bytes that the processor fetches at once

struct GatherCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<const int64_t> nodes;
    Table place, source;
};

// A row lies anywhere in memory, so the processor waits for it; rows are fetched a few at a time first, for it waits for these
// together. Then all places are looked up alone, with nothing that waits for what one of them is.
template <class I, class P> int64_t gather_sources(const GatherCall &c) {
    const auto [indptr, unused, nodes, also_unused, last_unused] = c;
    const I *indices = c.indices.as<const I>();
    const P *place = c.place.as<const P>();
    const auto source = array_of<P>(c.source);
    int64_t starts[TOGETHER], stops[TOGETHER], k = 0;
    for (int64_t first = 0; first < nodes.size; first += TOGETHER) {
        const int64_t count = smaller(TOGETHER, nodes.size - first);
        for (int64_t i = 0; i < count; ++i) starts[i] = indptr[nodes[first + i]], stops[i] = indptr[nodes[first + i] + 1];
        for (int64_t i = 0; i < count; ++i)
            for (int64_t e = starts[i]; e < stops[i]; e += LINE / int64_t(sizeof(I))) __builtin_prefetch(indices + e);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t e = starts[i]; e < stops[i]; ++e) source[k++] = P(indices[e]);
    }
    for (P &x : source) x = place[x];
    return 0;
}

}  // namespace

ENTRY(gather_sources, GatherCall, c) {
    if (c.place.type != c.source.type) return WRONG_TYPE;
    return for_indices(c.indices.type, [&]<class I>() {
        return for_indices(c.place.type, [&]<class P>() { return gather_sources<I, P>(c); });
    });
}

namespace {

struct LeaveCall {
    Array<const int64_t> indptr, nodes;
    Table place;
    Array<const uint8_t> read;
    Table source;
};

}  // namespace

// Marks with -1 the edges, but loops, of nodes that are not read.
ENTRY(leave_out, LeaveCall, c) {
    if (c.place.type != c.source.type) return WRONG_TYPE;
    return for_indices(c.place.type, [&]<class P>() {
        P *source = c.source.as<P>();
        for (const int64_t node : c.nodes) {
            P *end = source + (c.indptr[node + 1] - c.indptr[node]);
            if (c.read[node])
                source = end;
            else
                for (const P own = c.place.as<const P>()[node]; source < end; ++source)
                    if (*source != own) *source = -1;
        }
        return int64_t(0);
    });
}

namespace {

// Which part has a position: `near`, by the position's first bits, is not behind it.
struct Parts {
    Array<const int64_t> offsets, near;
    Word shift;

    INLINE int64_t of(int64_t position) const {
        int64_t part = near[position >> shift];
        while (position >= offsets[part + 1]) ++part;
        return part;
    }
};

struct CountGroupsCall {
    Array<const int64_t> indptr;
    EdgeRelations relation;  // without entries: there is one
    Array<const int64_t> nodes;
    Parts parts;
    Word relations;
    Table source;
    Array<int64_t> counts;
};

}  // namespace

// Counts the edges of each (part, relation); marked ones are left out.
ENTRY(count_groups, CountGroupsCall, c) {
    if (c.relation.wrong()) return WRONG_TYPE;
    return for_indices(c.source.type, [&]<class P>() {
        const auto [indptr, relation, nodes, parts, relations, unused, counts] = c;
        const auto source = array_of<const P>(c.source);
        if (relations == 1) {
            for (const P position : source)
                if (position >= 0) ++counts[parts.of(position)];
            return int64_t(0);
        }
        int64_t k = 0;
        for (const int64_t node : nodes)
            for (int64_t e = indptr[node]; e < indptr[node + 1]; ++e, ++k)
                if (source[k] >= 0) ++counts[parts.of(source[k]) * relations + relation[e]];
        return int64_t(0);
    });
}

namespace {

struct PutCall {
    Array<const int64_t> indptr;
    EdgeRelations relation;
    Array<const int64_t> own, rows;
    Parts parts;
    Word relations;
    Table source;
    Array<int64_t> cursor;
    Array<int32_t> edge_src, edge_dst;
    Table numbers;  // without entries: not asked for
};

template <class P, class N> int64_t put(const PutCall &c) {
    const auto [indptr, relation, own, rows, parts, relations, unused, cursor, edge_src, edge_dst, also_unused] = c;
    const P *source = c.source.as<const P>();
    const auto numbers = array_of<N>(c.numbers);
    for (const int64_t row : rows) {
        const int64_t end = indptr[own[row] + 1];
        for (int64_t e = indptr[own[row]]; e < end; ++e) {
            const int64_t position = *source++;
            if (position < 0) continue;
            const int64_t part = parts.of(position);
            const int64_t slot = cursor[relations == 1 ? part : part * relations + relation[e]]++;
            edge_src[slot] = int32_t(position - parts.offsets[part]);
            edge_dst[slot] = int32_t(row);
            if (numbers.size) numbers[slot] = N(e);
        }
    }
    return 0;
}

}  // namespace

// Puts some rows' edges behind those of the same (part, relation) that were there before.
ENTRY(put_edges, PutCall, c) {
    if (c.relation.wrong()) return WRONG_TYPE;
    return for_indices(c.source.type, [&]<class P>() {
        return for_indices(c.numbers.type, [&]<class N>() { return put<P, N>(c); });
    });
}

namespace {

struct RunsCall {
    Array<const int64_t> offsets;
    Array<int32_t> edge_src, edge_dst;
    Table numbers;
};

}  // namespace

// Sorts the sources of each destination within a (part, relation); numbers of equal sources stay in their order.
ENTRY(sort_runs, RunsCall, c) {
    return for_indices(c.numbers.type, [&]<class N>() {
        const auto [offsets, edge_src, edge_dst, unused] = c;
        N *numbers = c.numbers.rows ? c.numbers.as<N>() : nullptr;
        Sorter<int32_t, N> sorter;
        for (int64_t group = 0; group + 1 < offsets.size; ++group) {
            const int64_t last = offsets[group + 1];
            for (int64_t begin = offsets[group], end; begin < last; begin = end) {
                for (end = begin + 1; end < last && edge_dst[end] == edge_dst[begin];) ++end;
                sorter.sort(edge_src.at + begin, numbers ? numbers + begin : nullptr, end - begin);
            }
        }
        return int64_t(0);
    });
}

namespace {

struct LoopsCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<uint8_t> looped;
};

}  // namespace

// Marks nodes with edges to themselves.
ENTRY(find_loops, LoopsCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const auto [indptr, unused, looped] = c;
        const I *indices = c.indices.as<const I>();
        for (int64_t v = 0; v + 1 < indptr.size; ++v)
            for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e)
                if (indices[e] == v) looped[v] = 1;
        return int64_t(0);
    });
}

namespace {

struct WeightsCall {
    Array<const int64_t> indptr;
    Table weights;
    Array<const int64_t> rows;
    Array<double> totals;
};

}  // namespace

// The sum of each row's weights, in the order of the whole graph's edges: the same however it is cut.
ENTRY(sum_weights, WeightsCall, c) {
    return for_numbers(c.weights.type, [&]<class X>() {
        const auto [indptr, unused, rows, totals] = c;
        const X *weights = c.weights.as<const X>();
        for (int64_t k = 0; k < rows.size; ++k) {
            double total = 0;
            for (int64_t e = indptr[rows[k]]; e < indptr[rows[k] + 1]; ++e) total += double(weights[e]);
            totals[k] = total;
        }
    });
}
