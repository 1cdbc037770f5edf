// Nodes placed into parts by where their in-neighbours are: streamed (sargnn/partition/stream.py), moved until parts are even
// (balance.py), and what a placement costs (quality.py).
#include <math.h>

#include "indices.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

struct StreamCall {
    Word first;
    Array<const int64_t> indptr;
    Table indices;
    Array<int32_t> part;
    Array<const int64_t> weights;  // [N, K]
    Array<double> loads;           // [P, K]
    Array<const double> caps;      // [K]
    double alpha;
    Word favourite;
};

template <class I> int64_t stream(const StreamCall &c) {
    const auto [first, indptr, unused, part, weights, loads, caps, alpha, favourite] = c;
    const I *indices = c.indices.as<const I>();
    const int64_t world = loads.size, kinds = loads.width;
    const Scratch<double> counts(world), price(world);
    const Scratch<int64_t> touched(world);
    const auto set_price = [&](int64_t p) { price[p] = 1.5 * c.alpha * sqrt(c.loads.row(p)[0]); };
    for (int64_t p = 0; p < world; ++p) counts[p] = 0, set_price(p);
    for (int64_t k = 0; k + 1 < indptr.size; ++k) {
        const int64_t v = first + k, old = part[v];
        const int64_t *weight = weights.row(v);
        if (old >= 0) {
            for (int64_t kind = 0; kind < kinds; ++kind) loads.row(old)[kind] -= double(weight[kind]);
            set_price(old);
        }
        int64_t num_touched = 0;
        for (int64_t e = indptr[k]; e < indptr[k + 1]; ++e) {
            const int64_t p = part[indices[e]];
            if (p < 0 || indices[e] == v) continue;
            if (counts[p] == 0) touched[num_touched++] = p;
            counts[p] += 1;
        }
        int64_t best = -1;
        double score = -INFINITY;
        for (int64_t q = 0; q < world; ++q) {  // of parts that are alike the first one, from the favourite on
            const int64_t p = q + favourite < world ? q + favourite : q + favourite - world;
            bool fits = true;
            for (int64_t kind = 0; kind < kinds; ++kind) fits &= !(loads.row(p)[kind] + double(weight[kind]) > caps[kind]);
            if (!fits) continue;
            const double value = counts[p] - price[p] * double(weight[0]);
            if (value > score || (value == score && p == old)) best = p, score = value;
        }
        if (best < 0) {  // heavier than the room that any has: where the first weight is least
            best = 0;
            for (int64_t p = 1; p < world; ++p)
                if (loads.row(p)[0] < loads.row(best)[0]) best = p;
        }
        part[v] = int32_t(best);
        for (int64_t kind = 0; kind < kinds; ++kind) loads.row(best)[kind] += double(weight[kind]);
        set_price(best);
        for (int64_t j = 0; j < num_touched; ++j) counts[touched[j]] = 0;
    }
    return 0;
}

}  // namespace

ENTRY(stream_nodes, StreamCall, c) {
    return for_indices(c.indices.type, [&]<class I>() { return stream<I>(c); });
}

namespace {

// How many in-neighbours of a node each part has.
template <class I> INLINE void count_parts(const Array<const int64_t> &indptr, const I *indices, int64_t v, const int32_t *part,
                                           int64_t *counts, int64_t world) {
    for (int64_t p = 0; p < world; ++p) counts[p] = 0;
    for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) ++counts[part[indices[e]]];
}

struct LossesCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<const int64_t> nodes;
    Array<const int32_t> part;
    Word world;
    Array<int64_t> loss;
};

}  // namespace

// How many more in-neighbours each node has in its own part than in the next best.
ENTRY(find_losses, LossesCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const auto [indptr, unused, nodes, part, world, loss] = c;
        const Scratch<int64_t> counts(world);
        for (int64_t k = 0; k < nodes.size; ++k) {
            const int64_t own = part[nodes[k]];
            count_parts(indptr, c.indices.as<const I>(), nodes[k], part.at, counts, world);
            int64_t next = 0;
            for (int64_t p = 0; p < world; ++p)
                if (p != own) next = larger<int64_t>(next, counts[p]);
            loss[k] = counts[own] - next;
        }
        return int64_t(0);
    });
}

namespace {

struct EvenCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<const int64_t> nodes;
    Array<int32_t> part;
    Array<const int64_t> weights;  // [N, K]
    Array<double> loads;           // [P, K]
    Array<const double> caps;      // [K]
    Word kind;
};

}  // namespace

// Moves nodes, all of one part, until it is light enough, without making weights from `kind` on uneven elsewhere.
ENTRY(even_out, EvenCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const auto [indptr, unused, nodes, part, weights, loads, caps, kind] = c;
        const int64_t world = loads.size, kinds = loads.width;
        const Scratch<int64_t> counts(world);
        for (const int64_t v : nodes) {
            const int64_t old = part[v], *weight = weights.row(v);
            if (loads.row(old)[kind] <= caps[kind]) break;
            count_parts(indptr, c.indices.as<const I>(), v, part.at, counts, world);
            int64_t best = -1;
            for (int64_t p = 0; p < world; ++p) {
                bool fits = p != old;
                for (int64_t k = kind; k < kinds; ++k)
                    fits &= !(weight[k] > 0 && loads.row(p)[k] + double(weight[k]) > caps[k]);
                if (fits && (best < 0 || counts[p] > counts[best])) best = p;
            }
            if (best < 0) continue;
            for (int64_t k = 0; k < kinds; ++k) {
                loads.row(old)[k] -= double(weight[k]);
                loads.row(best)[k] += double(weight[k]);
            }
            part[v] = int32_t(best);
        }
        return int64_t(0);
    });
}

namespace {

struct NeedCall {
    Word first;
    Array<const int64_t> indptr;
    Table indices;
    Array<const int32_t> part;
    Array<uint64_t> needed;  // [N, P / 64]
    Array<int64_t> totals;   // cut edges; rows that parts need of others
};

}  // namespace

// Marks which parts need which nodes' rows, one bit each, and counts them and the edges between parts.
ENTRY(mark_needed, NeedCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const auto [first, indptr, unused, part, needed, totals] = c;
        const I *indices = c.indices.as<const I>();
        int64_t cut = 0, rows = 0;
        for (int64_t k = 0; k + 1 < indptr.size; ++k) {
            const int64_t own = part[first + k];
            const uint64_t bit = uint64_t(1) << (own % 64);
            for (int64_t e = indptr[k]; e < indptr[k + 1]; ++e) {
                if (part[indices[e]] == own) continue;
                uint64_t &word = needed.row(indices[e])[own / 64];
                rows += !(word & bit);
                word |= bit;
                ++cut;
            }
        }
        totals[0] += cut;
        totals[1] += rows;
        return int64_t(0);
    });
}
