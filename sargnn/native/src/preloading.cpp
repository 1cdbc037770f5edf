// Which nodes a server preloads, and which of its workers has them (sargnn/partition/preload.py).
#include <math.h>

#include "indices.hpp"
#include "philox.hpp"
#include "sorting.hpp"

using namespace sargnn;

namespace {

struct SpreadCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<const int64_t> frontier;
    Word hop, most, seed, tag;
    Array<int16_t> hops;
};

// Calls f(u) for the in-neighbours u of v that are not inner, each of a run of equal ones once, v left out.
template <class I, class F> INLINE void each_outside(const SpreadCall &c, int64_t v, F f) {
    const I *indices = c.indices.as<const I>();
    int64_t before = -1;
    for (int64_t e = c.indptr[v]; e < c.indptr[v + 1]; ++e) {
        const int64_t u = indices[e];
        if (c.hops[u] == 0 || u == before || u == v) continue;
        f(u);
        before = u;
    }
}

}  // namespace

// Marks in-neighbours of the frontier, of each node at most `most` of those that are not inner.
ENTRY(spread_hops, SpreadCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const I *indices = c.indices.as<const I>();
        GrowingRoom<uint64_t> room;
        Sorter<uint64_t, uint64_t> sorter;
        const auto mark = [&](int64_t u) {
            if (c.hops[u] < 0) c.hops[u] = int16_t(c.hop);
        };
        for (const int64_t v : c.frontier) {
            int64_t outside = 0;
            each_outside<I>(c, v, [&](int64_t) { ++outside; });
            if (outside <= c.most) {
                for (int64_t e = c.indptr[v]; e < c.indptr[v + 1]; ++e) mark(indices[e]);
                continue;
            }
            uint64_t *keys = room.of(outside);
            int64_t count = 0;
            each_outside<I>(c, v, [&](int64_t u) {
                const Words words = philox(uint64_t(u), uint64_t(v), 0, uint64_t(c.tag), uint64_t(c.seed), 0);
                keys[count++] = uint64_t(words.word[0]) << 32 | uint64_t(u);  // ids of what is drawn for have 32 bits
            });
            sorter.sort(keys, nullptr, count);
            for (int64_t j = 0; j < c.most; ++j) mark(int64_t(uint32_t(keys[j])));
        }
        return int64_t(0);
    });
}

namespace {

struct VoteCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<const int64_t> rows;
    Array<const int32_t> worker_of;
    Array<const int64_t> place;
    Array<int32_t> votes;  // [rows, G]
};

}  // namespace

// Counts for each source which workers' rows it has edges into.
ENTRY(count_votes, VoteCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const auto [indptr, unused, rows, worker_of, place, votes] = c;
        const I *indices = c.indices.as<const I>();
        for (const int64_t v : rows)
            for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e)
                if (const int64_t row = place[indices[e]]; row >= 0) ++votes.row(row)[worker_of[v]];
        return int64_t(0);
    });
}

namespace {

struct ChooseCall {
    Array<const int64_t> indptr;
    Table indices;
    Array<const int64_t> rows;
    Array<int32_t> worker_of;
    Array<const int64_t> place;
    Array<const int32_t> votes;
    Array<const double> work;
    Array<double> load;
    double share;
};

}  // namespace

// Gives each row to a worker.
ENTRY(choose_workers, ChooseCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const auto [indptr, unused, rows, worker_of, place, votes, work, load, share] = c;
        const I *indices = c.indices.as<const I>();
        const int64_t workers = load.size;
        const Scratch<int64_t> counts(workers);
        for (const int64_t v : rows) {
            for (int64_t g = 0; g < workers; ++g) counts[g] = votes.row(place[v])[g];
            for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e)
                if (worker_of[indices[e]] >= 0) ++counts[worker_of[indices[e]]];
            int64_t best = 0;
            double score = -INFINITY;
            for (int64_t g = 0; g < workers; ++g) {
                const double room = (1 - load[g] / share) * double(1 + counts[g]);
                if (room > score) best = g, score = room;
            }
            worker_of[v] = int32_t(best);
            load[best] += work[v];
        }
        return int64_t(0);
    });
}
