// Edges and nodes of generated graphs, drawn by Philox (sargnn/sources/generated/lookalike.py, communities.py).
#include <math.h>

#include "indices.hpp"
#include "philox.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

constexpr int64_t CHUNK = 1 << 14;

INLINE double unit(uint32_t word) { return double(word) * 0x1p-32; }

struct EdgesCall {
    Word start, seed, tag, num_nodes, community;  // community: how many nodes one has
    double inside, near, inside_skew, outside_skew;
    Array<const int32_t> id_of;
    Array<int64_t> first, second;

    int64_t communities() const { return larger<int64_t>(1, num_nodes / community); }
    // The latent rank of a community's member; the last community also holds the nodes left over.
    int64_t member(int64_t c, double u, double skew) const {
        const int64_t low = c * community, size = c == communities() - 1 ? num_nodes - low : community;
        return low + smaller(int64_t(double(size) * pow(u, skew)), size - 1);
    }
};

void draw_edge(const EdgesCall &c, int64_t k) {
    const uint64_t number = uint64_t(c.start + k), low = number & 0xFFFFFFFFu, high = (number >> 32) << 1;
    const Words w = philox(low, 0, high, uint64_t(c.tag), uint64_t(c.seed), 0);
    const Words v = philox(low, 0, high | 1, uint64_t(c.tag), uint64_t(c.seed), 0);
    const double kind = unit(w.word[2]), place = unit(w.word[3]);
    const int64_t count = c.communities(), here = smaller(int64_t(unit(w.word[0]) * double(count)), count - 1);
    int64_t there = here;
    double skew = c.inside_skew;
    if (kind >= c.inside) {
        skew = c.outside_skew;
        if (kind < c.inside + c.near) {
            const int64_t distance = int64_t(pow(double(count) / 2.0, fabs(2.0 * place - 1.0)));
            there = (here + (place < 0.5 ? distance : -distance)) % count;
            if (there < 0) there += count;
        } else {
            there = smaller(int64_t(place * double(count)), count - 1);
        }
    }
    c.first[k] = c.id_of[c.member(here, unit(w.word[1]), skew)];
    c.second[k] = c.id_of[c.member(there, unit(v.word[0]), skew)];
}

}  // namespace

// The ends, original ids, of the edges numbered from `start` on.
ENTRY(draw_edges, EdgesCall, c) {
    parallel_runs(c.first.size, CHUNK, [&](int64_t first, int64_t last) {
        for (int64_t k = first; k < last; ++k) draw_edge(c, k);
    });
    return 0;
}

namespace {

struct NodesCall {
    Array<const int64_t> ids;
    Table community;
    Word seed, tag;
    Array<const int32_t> main, minor;
    Array<const double> share, cumulative;
    double noise, clear;
    Array<int64_t> labels, shown;

    // The class whose share a number from [0, 1) falls into.
    int64_t any(double x) const {
        int64_t low = 0, high = cumulative.size;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (cumulative[middle] <= x)
                low = middle + 1;
            else
                high = middle;
        }
        return smaller(low, cumulative.size - 1);
    }
};

}  // namespace

ENTRY(draw_nodes, NodesCall, call) {
    return for_indices(call.community.type, [&]<class I>() {
        const NodesCall &n = call;
        for (int64_t k = 0; k < n.ids.size; ++k) {
            const int64_t c = n.community.as<const I>()[k];
            const Words w = philox(uint64_t(n.ids[k]), 0, 0, uint64_t(n.tag), uint64_t(n.seed), 0);
            const Words v = philox(uint64_t(n.ids[k]), 0, 1, uint64_t(n.tag), uint64_t(n.seed), 0);
            n.labels[k] = unit(w.word[0]) < n.share[c] ? n.minor[c] : n.main[c];
            if (unit(w.word[1]) < n.noise) n.labels[k] = n.any(unit(w.word[2]));
            n.shown[k] = unit(w.word[3]) < n.clear ? n.main[c] : n.any(unit(v.word[0]));
        }
        return int64_t(0);
    });
}
