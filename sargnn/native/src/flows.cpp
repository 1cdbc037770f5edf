// Message flows (sargnn/plan/loops.py): which rows edges read, edges by place, by owner, with new numbers.
//
// Edges are given by their sources and destinations; those of one call are sorted by destination. `edges`, where it has entries,
// is told which edge each was.
#include "indices.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

struct MarkCall {
    Array<const int32_t> src, dst;
    Array<const uint8_t> wanted;
    Array<uint8_t> marks;
};

}  // namespace

ENTRY(mark_sources, MarkCall, c) {
    const auto [src, dst, wanted, marks] = c;
    int64_t count = 0;
    for (int64_t e = 0; e < src.size; ++e) {
        if (!wanted[dst[e]]) continue;
        marks[src[e]] = 1;
        ++count;
    }
    return count;
}

namespace {

struct IntoCall {
    Array<const int32_t> dst, places;
    Array<int64_t> begins;
};

}  // namespace

ENTRY(count_into, IntoCall, c) {
    const auto [dst, places, begins] = c;
    begins.fill(0);
    int64_t count = 0;
    for (const int32_t row : dst) {
        if (places[row] < 0) continue;
        ++begins[places[row] + 1];
        ++count;
    }
    add_up(begins);
    return count;
}

namespace {

struct RenumberCall {
    Array<const int32_t> src, dst, source_places, places;
    Array<int64_t> begins;
    Array<int32_t> new_src, new_dst;
    Array<int64_t> edges;
};

}  // namespace

ENTRY(renumber, RenumberCall, c) {
    const auto [src, dst, source_places, places, begins, new_src, new_dst, edges] = c;
    for (int64_t e = 0; e < src.size; ++e) {
        const int32_t place = places[dst[e]];
        if (place < 0) continue;
        const int64_t at = begins[place]++;
        new_src[at] = source_places[src[e]];
        new_dst[at] = place;
        if (edges.size) edges[at] = e;
    }
    return 0;
}

namespace {

struct FromCall {
    Array<const int32_t> src;
    Word first, last;
};

}  // namespace

ENTRY(count_from, FromCall, c) {
    const auto [src, first, last] = c;
    int64_t count = 0;
    for (const int32_t row : src) count += row >= first && row < last;
    return count;
}

namespace {

struct TakeCall {
    Array<const int32_t> src, dst;
    Word first, last;
    Array<int32_t> new_src, new_dst;
    Array<int64_t> edges;
};

}  // namespace

ENTRY(take_from, TakeCall, c) {
    const auto [src, dst, first, last, new_src, new_dst, edges] = c;
    int64_t at = 0;
    for (int64_t e = 0; e < src.size; ++e) {
        if (src[e] < first || src[e] >= last) continue;
        new_src[at] = src[e];
        new_dst[at] = dst[e];
        if (edges.size) edges[at] = e;
        ++at;
    }
    return 0;
}

namespace {

struct InEdgesCall {
    Array<const int32_t> src, dst;
    Word first_row, shift, first_edge;
    Array<int64_t> cursor;
    Array<int32_t> sources, edges;
};

}  // namespace

ENTRY(place_in_edges, InEdgesCall, c) {
    const auto [src, dst, first_row, shift, first_edge, cursor, sources, edges] = c;
    for (int64_t e = 0; e < src.size; ++e) {
        const int64_t at = cursor[dst[e] - first_row]++;
        sources[at] = int32_t(src[e] + shift);
        if (edges.size) edges[at] = int32_t(first_edge + e);
    }
    return 0;
}

namespace {

struct ParallelCall {
    Array<const int64_t> begins;
    Array<const int32_t> sources;
};

}  // namespace

ENTRY(has_parallel_edges, ParallelCall, c) {
    const auto [begins, sources] = c;
    for (int64_t row = 0; row + 1 < begins.size; ++row)
        for (int64_t e = begins[row] + 1; e < begins[row + 1]; ++e)
            if (sources[e] == sources[e - 1]) return 1;
    return 0;
}

namespace {

constexpr int64_t CHUNK = 1 << 14;

struct ChosenCall {
    Array<const int32_t> chosen;
    Array<uint8_t> marks;
};

}  // namespace

ENTRY(mark_chosen, ChosenCall, c) {
    parallel_runs(c.chosen.size, CHUNK, [&](int64_t first, int64_t last) {
        const auto [chosen, marks] = c;
        // Threads may mark the same row, with the same value.
        for (int64_t e = first; e < last; ++e) __atomic_store_n(&marks[chosen[e]], uint8_t(1), __ATOMIC_RELAXED);
    });
    return 0;
}

namespace {

struct PeersCall {
    Array<const int32_t> chosen;
    Word num_own, rank;
    Array<const int32_t> peers;
    Array<int64_t> counts;
};

}  // namespace

ENTRY(count_peers, PeersCall, c) {
    const auto [chosen, num_own, rank, peers, counts] = c;
    int64_t own = 0;
    for (const int32_t source : chosen) {
        if (source < num_own)
            ++own;
        else
            ++counts[peers[source - num_own]];
    }
    counts[rank] += own;
    return 0;
}

namespace {

struct SplitCall {
    Array<const int32_t> chosen, edges;
    Array<const int64_t> offsets;
    Word first_out, num_own, rank;
    Array<const int32_t> peers, in_places, halo_places;
    Array<int64_t> cursor;
    Array<int32_t> src, dst, numbers;
};

}  // namespace

ENTRY(split_by_peer, SplitCall, c) {
    const auto [chosen, edges, offsets, first_out, num_own, rank, peers, in_places, halo_places, cursor, src, dst, numbers] = c;
    for (int64_t i = 0; i + 1 < offsets.size; ++i) {
        for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
            const int64_t source = chosen[e], halo = source - num_own;
            const int64_t at = cursor[halo < 0 ? rank : peers[halo]]++;
            src[at] = halo < 0 ? in_places[source] : halo_places[halo];
            dst[at] = int32_t(first_out + i);
            if (numbers.size) numbers[at] = edges[e];
        }
    }
    return 0;
}
