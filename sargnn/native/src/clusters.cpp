// Clusters of a graph on disk (sargnn/partition/kaminpar.py): nodes join their neighbours', clusters become nodes, nodes move to
// their neighbours' part.
#include "indices.hpp"
#include "sorting.hpp"

using namespace sargnn;

namespace {

// The graph's file: addresses of rows in bytes, the first of which is `base`; weights without entries are all 1.
struct Graph {
    Array<const uint64_t> addresses;
    Word base;
    Array<const uint32_t> neighbours, entry_weights, node_weights;

    INLINE int64_t begin(int64_t v) const { return (int64_t(addresses[v]) - base) / 4; }
    INLINE int64_t entry_weight(int64_t e) const { return entry_weights.size ? entry_weights[e] : 1; }
    INLINE int64_t node_weight(int64_t v) const { return node_weights.size ? node_weights[v] : 1; }
};

// Sums of weights by label, and the labels that have one.
template <class T> struct Tally {
    T *sums;
    int32_t *touched;
    int64_t count = 0;

    INLINE void add(int32_t label, int64_t weight) {
        if (sums[label] == 0) touched[count++] = label;
        sums[label] += T(weight);
    }
    INLINE void add_neighbours(const Graph &graph, int64_t v, const int32_t *label) {
        const int64_t end = graph.begin(v + 1);
        for (int64_t e = graph.begin(v); e < end; ++e) add(label[graph.neighbours[e]], graph.entry_weight(e));
    }
    INLINE void clear() {
        for (int64_t j = 0; j < count; ++j) sums[touched[j]] = 0;
        count = 0;
    }
};

INLINE int64_t dice(int64_t label, int64_t salt) { return (label * 2654435761 + salt * 7919) & 0xFFFF; }

struct JoinCall {
    Word first, last;
    Graph graph;
    Array<int32_t> cluster;
    Array<int64_t> load;
    double cap;
    Array<int32_t> counts, touched;
    Word salt;
};

}  // namespace

// A pass over rows; gives how many nodes moved. Of clusters that are alike a hash decides.
ENTRY(join_clusters, JoinCall, c) {
    const auto [first, last, graph, cluster, load, cap, counts, touched, salt] = c;
    Tally<int32_t> tally = {counts.at, touched.at};
    int64_t moved = 0;
    for (int64_t v = first; v < last; ++v) {
        const int32_t own = cluster[v];
        const int64_t weight = graph.node_weight(v);
        tally.add_neighbours(graph, v, cluster.at);
        int32_t best = own, score = counts[own];
        for (int64_t j = 0; j < tally.count; ++j) {
            const int32_t other = touched[j];
            if (other == own || counts[other] < score || double(load[other] + weight) > cap) continue;
            if (counts[other] > score || dice(other, salt) > dice(best, salt)) best = other, score = counts[other];
        }
        tally.clear();
        if (best == own) continue;
        load[own] -= weight;
        load[best] += weight;
        cluster[v] = best;
        ++moved;
    }
    return moved;
}

namespace {

struct MoveCall {
    Word first, last;
    Graph graph;
    Array<int32_t> part;
    Array<int64_t> load;
    Word cap;
    Array<int64_t> sums;
    Array<int32_t> touched;
};

}  // namespace

// A pass over rows; gives how many nodes moved. Of parts that are alike the lighter one, by more than the node.
ENTRY(move_nodes, MoveCall, c) {
    const auto [first, last, graph, part, load, cap, sums, touched] = c;
    Tally<int64_t> tally = {sums.at, touched.at};
    int64_t moved = 0;
    for (int64_t v = first; v < last; ++v) {
        const int32_t own = part[v];
        const int64_t weight = graph.node_weight(v);
        tally.add_neighbours(graph, v, part.at);
        int32_t best = own;
        int64_t score = sums[own];
        for (int64_t j = 0; j < tally.count; ++j) {
            const int32_t other = touched[j];
            if (other == own || load[other] + weight > cap) continue;
            if (sums[other] > score || (sums[other] == score && load[other] < load[best] - weight)) best = other, score = sums[other];
        }
        tally.clear();
        if (best == own) continue;
        load[own] -= weight;
        load[best] += weight;
        part[v] = best;
        ++moved;
    }
    return moved;
}

namespace {

struct MergeCall {
    Word first;
    Graph graph;
    Array<const int32_t> starts, members, cluster;
    Array<int64_t> sums;
    Array<int32_t> out, out_weights;
    Array<int64_t> degrees;
};

}  // namespace

// Rows of clusters from the first on, as many as there is room for; gives the next one.
ENTRY(merge_clusters, MergeCall, call) {
    const auto [first, graph, starts, members, cluster, sums, out, out_weights, degrees] = call;
    const int64_t count = starts.size - 1;
    Sorter<int32_t, int32_t> sorter;
    int64_t used = 0, c = first;
    for (; c < count; ++c) {
        int64_t bound = 0;
        for (int64_t i = starts[c]; i < starts[c + 1]; ++i) bound += graph.begin(members[i] + 1) - graph.begin(members[i]);
        if (used + smaller(bound, count) > out.size) break;
        Tally<int64_t> tally = {sums.at, out.at + used};
        for (int64_t i = starts[c]; i < starts[c + 1]; ++i) {
            const int64_t end = graph.begin(members[i] + 1);
            for (int64_t e = graph.begin(members[i]); e < end; ++e)
                if (const int32_t other = cluster[graph.neighbours[e]]; other != c) tally.add(other, graph.entry_weight(e));
        }
        sorter.sort(tally.touched, nullptr, tally.count);
        for (int64_t j = 0; j < tally.count; ++j) out_weights[used + j] = int32_t(sums[tally.touched[j]]);
        degrees[c] = tally.count;
        used += tally.count;
        tally.clear();
    }
    return c;
}
