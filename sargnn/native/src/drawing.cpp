// Samples of the edges into rows (sargnn/plan/drawn.py): of each row those with the smallest Philox numbers.
#include <math.h>

#include "indices.hpp"
#include "philox.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

struct KeptCall {
    Array<const int32_t> rows;
    Word first_row;
    Array<const int64_t> begins;
    Word loops, fanout;
    Array<int64_t> offsets;
};

}  // namespace

ENTRY(count_kept, KeptCall, c) {
    const auto [rows, first_row, begins, loops, fanout, offsets] = c;
    offsets[0] = 0;
    for (int64_t i = 0; i < rows.size; ++i) {
        const int64_t row = rows[i] - first_row, count = begins[row + 1] - begins[row];
        offsets[i + 1] = offsets[i] + (fanout < 0 ? count : smaller(count, fanout + loops));
    }
    return 0;
}

namespace {

constexpr int64_t CHUNK_ROWS = 256;
constexpr int64_t FEW = 64;  // of up to so many smallest numbers the largest is found by counting

// The number that k - 1 are smaller than, by parting them again and again (Hoare's quickselect); they change places.
uint64_t select(uint64_t *keys, int64_t count, int64_t k) {
    int64_t first = 0, last = count - 1;
    while (first < last) {
        const uint64_t pivot = keys[first + (last - first) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (keys[i] < pivot) ++i;
            while (keys[j] > pivot) --j;
            if (i > j) break;
            const uint64_t key = keys[i];
            keys[i++] = keys[j], keys[j--] = key;
        }
        if (k - 1 <= j)
            last = j;
        else if (k - 1 >= i)
            first = i;
        else
            break;
    }
    return keys[k - 1];
}

// The k-th smallest of keys, which are different uniform numbers. Most are ruled out by where it must lie; of the others, the one
// that k - 1 are smaller than is found by counting. Both are loops without branches. few: room for count + 1.
uint64_t kth_smallest(const uint64_t *keys, int64_t count, int64_t k, uint64_t *few) {
    const double share = (double(k) + 1.5 * sqrt(double(k))) / double(count);
    const uint64_t bound = share < 0.999 ? uint64_t(share * 0x1p64) : ~uint64_t(0);
    int64_t held = 0;
    for (int64_t j = 0; j < count; ++j) {
        few[held] = keys[j];
        held += keys[j] <= bound;
    }
    if (held < k) {  // too many were ruled out
        __builtin_memcpy(few, keys, size_t(count) * sizeof(uint64_t));
        return select(few, count, k);
    }
    if (k > FEW) return select(few, held, k);
    for (int64_t a = 0; a < held; ++a) {
        int64_t below = 0;
        for (int64_t b = 0; b < held; ++b) below += few[b] < few[a];
        if (below == k - 1) return few[a];
    }
    return bound;
}

struct ChooseCall {
    Array<const int32_t> rows;
    Word first_row;
    Array<const int64_t> begins;
    Array<const int32_t> sources;
    Array<const uint32_t> ids;
    Word parallel_edges, loops, seed, sample, tag;
    Array<const int64_t> offsets;
    Array<int32_t> chosen, edges;

    int64_t begin(int64_t i) const { return begins[rows[i] - first_row]; }
    int64_t count(int64_t i) const { return begins[rows[i] - first_row + 1] - begin(i); }
};

// Room for a row's numbers, whole vectors of them.
constexpr int64_t EACH = PART_BYTES / 8;
INLINE int64_t padded(int64_t count) { return (count + EACH - 1) / EACH * EACH; }

// Philox numbers of a row's edges. names, numbers: room for their sources' ids, and for their numbers among parallel edges, which
// are 0 where there are none.
void draw_keys(const ChooseCall &c, int64_t row, const int32_t *src, int64_t count, uint64_t *names, uint64_t *numbers, uint64_t *keys) {
    for (int64_t j = 0; j < count; ++j) names[j] = c.ids[src[j]];
    if (c.parallel_edges)
        for (int64_t j = 1; j < count; ++j) numbers[j] = src[j] == src[j - 1] ? numbers[j - 1] + 1 : 0;
    for (int64_t j = 0; j < count; j += EACH) {
        Longs c0, c1 = Longs{} + c.ids[row], c2, c3 = Longs{} + uint64_t(c.tag);
        __builtin_memcpy(&c0, names + j, PART_BYTES);
        __builtin_memcpy(&c2, numbers + j, PART_BYTES);
        philox_rounds(c0, c1, c2, c3, uint64_t(c.seed), uint64_t(c.sample));
        c0 = c0 << 32 | (c1 & 0xFFFFFFFF);
        __builtin_memcpy(keys + j, &c0, PART_BYTES);
    }
    if (c.loops)
        for (int64_t j = 0; j < count; ++j)
            if (src[j] == row) keys[j] = 0;
}

}  // namespace

ENTRY(choose_edges, ChooseCall, c) {
    parallel_runs(c.rows.size, CHUNK_ROWS, [&](int64_t first, int64_t last) {
        int64_t largest = 0;
        for (int64_t i = first; i < last; ++i) largest = larger(largest, c.count(i));
        const int64_t room = padded(largest);
        const Scratch<uint64_t> keys(room), names(room), numbers(room), few(largest + 1);
        const Scratch<int32_t> places(largest + 1);
        for (int64_t j = 0; j < room; ++j) names[j] = numbers[j] = 0;
        for (int64_t i = first; i < last; ++i) {
            const int64_t begin = c.begin(i), count = c.count(i), at = c.offsets[i], kept = c.offsets[i + 1] - at;
            const int32_t *src = c.sources.at + begin;
            int32_t *chosen = c.chosen.at + at, *edges = c.edges.size ? c.edges.at + at : nullptr;
            if (kept == count) {
                for (int64_t j = 0; j < count; ++j) chosen[j] = src[j];
                for (int64_t j = 0; edges && j < count; ++j) edges[j] = int32_t(begin + j);
                continue;
            }
            if (kept == 0) continue;
            draw_keys(c, c.rows[i], src, count, names, numbers, keys);
            const uint64_t threshold = kth_smallest(keys, count, kept, few);
            int64_t held = 0;
            for (int64_t j = 0; j < count; ++j) {
                places[held] = int32_t(j);
                held += keys[j] <= threshold;
            }
            for (int64_t j = 0; j < kept; ++j) chosen[j] = src[places[j]];
            for (int64_t j = 0; edges && j < kept; ++j) edges[j] = int32_t(begin + places[j]);
        }
    });
    return 0;
}
