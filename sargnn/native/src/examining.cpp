// A graph's edges looked over (sargnn/graph/examine_edges.py): degrees, loops, repeats, classes at the ends, inverses.
#include "indices.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

enum Count { ALL, LOOPS, REPEATS };

struct ScanCall {
    Word first;                          // the first destination
    Array<const int64_t> starts;         // of each destination's edges
    Table sources;
    EdgeRelations relation;              // not read where there is one
    Array<const int64_t> labels;         // of all nodes; without entries: they are no classes
    Table out_degree;                    // uint32 or int64
    Array<int64_t> totals, ends;         // [R, 3]; [2, C], by the source's class and the destination's
    Array<int64_t> inside;               // edges inside a class
};

template <class S, class D> int64_t scan(const ScanCall &c) {
    const auto [first, starts, unused, relation, labels, also_unused, totals, ends, inside] = c;
    const S *sources = c.sources.as<const S>();
    D *out_degree = c.out_degree.as<D>();
    const Scratch<int64_t> seen(totals.size);  // per relation: where the run of equal sources began that has it already
    for (int64_t r = 0; r < totals.size; ++r) seen[r] = -1;
    for (int64_t k = 0; k + 1 < starts.size; ++k) {
        const int64_t destination = first + k;
        int64_t last = -1, run = -1;
        for (int64_t e = starts[k]; e < starts[k + 1]; ++e) {
            const int64_t source = sources[e], r = totals.size > 1 ? relation[e] : 0;
            ++out_degree[source];
            ++totals.row(r)[ALL];
            if (source != last) last = source, run = e;
            totals.row(r)[REPEATS] += seen[r] == run;
            seen[r] = run;
            if (source == destination) {
                ++totals.row(r)[LOOPS];
            } else if (labels.size && labels[source] >= 0 && labels[destination] >= 0) {
                ++ends.row(0)[labels[source]];
                ++ends.row(1)[labels[destination]];
                inside[0] += labels[source] == labels[destination];
            }
        }
    }
    return 0;
}

}  // namespace

ENTRY(scan_edges, ScanCall, c) {
    if (c.relation.wrong()) return WRONG_TYPE;
    return for_indices(c.sources.type, [&]<class S>() {
        return c.out_degree.type == UINT32 ? scan<S, uint32_t>(c) : c.out_degree.type == INT64 ? scan<S, int64_t>(c) : WRONG_TYPE;
    });
}

namespace {

struct InversesCall {
    Table sources;
    Array<const int64_t> destinations;
    EdgeRelations relation;
    Array<const int64_t> indptr;
    Table indices;
    Array<int64_t> asked, inverses;  // [R]
};

template <class I> int64_t look_up(const InversesCall &c) {
    const auto [unused, destinations, relation, indptr, also_unused, asked, inverses] = c;
    const I *sources = c.sources.as<const I>(), *indices = c.indices.as<const I>();
    for (int64_t e = 0; e < destinations.size; ++e) {
        const int64_t source = sources[e], destination = destinations[e];
        if (source == destination) continue;
        const int64_t r = asked.size > 1 ? relation[e] : 0, end = indptr[source + 1];
        ++asked[r];
        int64_t low = indptr[source], high = end;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (indices[middle] < destination)
                low = middle + 1;
            else
                high = middle;
        }
        inverses[r] += low < end && indices[low] == destination;
    }
    return 0;
}

}  // namespace

ENTRY(look_up_inverses, InversesCall, c) {
    if (c.sources.type != c.indices.type || c.relation.wrong()) return WRONG_TYPE;
    return for_indices(c.indices.type, [&]<class I>() { return look_up<I>(c); });
}
