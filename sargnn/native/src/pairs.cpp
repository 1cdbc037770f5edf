// Pairs of nodes: their keys and negatives (sargnn/rng.py, sargnn/tasks/negatives.py), and the order in which they are scored
// (sargnn/tasks/pair_scores.py).
//
// Letters: P pairs, K negatives of a pair, M of those that are drawn, R relations, N nodes, S pairs that are scored here, W ranks.
#include "indices.hpp"
#include "philox.hpp"
#include "sorting.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

constexpr int64_t CHUNK = 1 << 13;

struct KeysCall {
    Array<const int64_t> first, second, relation;  // [P]
    Word tag, seed, epoch;
    Array<int64_t> keys;  // [P]
};

}  // namespace

// keys[i]: the first 63 bits of what is drawn for pair i
ENTRY(pair_keys, KeysCall, c) {
    parallel_runs(c.keys.size, CHUNK, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const uint64_t tag = uint64_t(c.tag | c.relation[i]);
            const Words w = philox(uint64_t(c.first[i]), uint64_t(c.second[i]), 0, tag, uint64_t(c.seed), uint64_t(c.epoch));
            c.keys[i] = int64_t((uint64_t(w.word[0]) << 31) | (w.word[1] >> 1));
        }
    });
    return 0;
}

namespace {

enum Corrupt : int64_t { TAIL, HEAD, BOTH, ENDS };  // in the order of sargnn/config/groups.py

struct DrawCall {
    Array<const int64_t> heads, tails, relation;  // [P]
    Array<const int64_t> places;                  // [M], in [P, K]
    Word attempt, step, seed, tag, corrupt, shared;
    Array<const int64_t> sources, destinations;  // [R, 2], the ids of each relation's types
    Array<const int64_t> sums;                   // [N + 1] or none
    Array<int64_t> new_heads, new_tails;         // [P, K]

    // A node among some ids, for 52 bits.
    int64_t node(const int64_t *ids, uint32_t upper, uint32_t lower) const {
        const double u = double(int64_t((uint64_t(upper) << 20) | (lower >> 12))) * 0x1p-52;
        const auto below = [&](int64_t count) { return smaller(int64_t(u * double(count)), count - 1); };
        const int64_t begin = ids[0], end = ids[1];
        if (!sums.at || sums[begin] == sums[end]) return begin + below(end - begin);
        const int64_t wanted = sums[begin] + below(sums[end] - sums[begin]);
        int64_t low = begin, high = end;  // sums[low] <= wanted < sums[high]
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            (sums[middle] <= wanted ? low : high) = middle;
        }
        return low;
    }
};

}  // namespace

ENTRY(draw_negatives, DrawCall, c) {
    const int64_t each = c.new_heads.width;
    parallel_runs(c.places.size, CHUNK, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t place = c.places[i], pair = place / each, relation = c.relation[pair];
            const uint64_t head = uint64_t(c.heads[pair]), tail = uint64_t(c.tails[pair]);
            const uint64_t number = uint64_t(place % each + each * c.attempt), tag = uint64_t(c.tag | relation);
            const Words w =
                philox(c.shared ? 0 : head, c.shared ? 0 : tail, number, tag, uint64_t(c.seed), uint64_t(c.step));
            const bool turns = c.corrupt == BOTH && w.word[3] & 1;
            int64_t new_head = int64_t(head), new_tail = int64_t(tail);
            if (c.corrupt == HEAD || c.corrupt == ENDS || turns)
                new_head = c.node(c.sources.row(relation), w.word[0], w.word[1]);
            if (c.corrupt == ENDS) new_tail = c.node(c.destinations.row(relation), w.word[2], w.word[3]);
            if (c.corrupt == TAIL || (c.corrupt == BOTH && !turns))
                new_tail = c.node(c.destinations.row(relation), w.word[0], w.word[1]);
            c.new_heads[place] = new_head, c.new_tails[place] = new_tail;
        }
    });
    return 0;
}

namespace {

struct NumberCall {
    Array<const int64_t> numbers;  // [M], not negative
    Array<int64_t> distinct;       // [M]
    Array<int32_t> place;          // [M]
};

}  // namespace

// distinct: all numbers once, ascending; place: which of them each is. Gives how many there are.
ENTRY(list_distinct, NumberCall, c) {
    const int64_t count = c.numbers.size;
    const Scratch<int64_t> keys(count);
    const Scratch<int32_t> order(count);
    for (int64_t i = 0; i < count; ++i) keys[i] = c.numbers[i], order[i] = int32_t(i);
    Sorter<int64_t, int32_t>().sort(keys, order, count);
    int64_t listed = 0;
    for (int64_t i = 0; i < count; ++i) {
        listed += i == 0 || keys[i] != keys[i - 1];
        c.distinct[listed - 1] = keys[i];
        c.place[order[i]] = int32_t(listed - 1);
    }
    return listed;
}

namespace {

struct ArrangeCall {
    Array<const int32_t> pairs;  // [S, 4]: a head's row; its tail's rank and row; the relation
    Word rank, by_head;
    Array<int32_t> order, heads, tails;  // [S]
    Array<int64_t> relation;             // [S] or none
    Array<int32_t> wanted;               // [S]
    Array<int64_t> counts;               // [W]
};

}  // namespace

// The pairs in the order of their tails, the rank's own before those of all others; `by_head`: of one tail in that of their heads.
// tails: own rows, then places among what is wanted of other ranks, counts[q] rows of rank q. Gives how many tails are own.
ENTRY(arrange_pairs, ArrangeCall, c) {
    const int64_t count = c.pairs.size;
    const Scratch<int64_t> keys(count);
    int32_t *order = c.order.at;
    Sorter<int64_t, int32_t> sorter;
    for (int64_t i = 0; i < count; ++i) order[i] = int32_t(i);
    if (c.by_head) {
        for (int64_t i = 0; i < count; ++i) keys[i] = c.pairs.row(i)[0];
        sorter.sort(keys, order, count);
    }
    for (int64_t i = 0; i < count; ++i) {
        const int32_t *pair = c.pairs.row(order[i]);
        keys[i] = int64_t(pair[1] == c.rank ? 0 : pair[1] + 1) << 32 | pair[2];
    }
    sorter.sort(keys, order, count);
    c.counts.fill(0);
    int64_t own = 0, listed = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t *pair = c.pairs.row(order[i]);
        c.heads[i] = pair[0], c.tails[i] = pair[2];
        if (c.relation.size) c.relation[i] = pair[3];
        if (pair[1] == c.rank) {
            ++own;
            continue;
        }
        if (i == own || keys[i] != keys[i - 1]) c.wanted[listed++] = pair[2], ++c.counts[pair[1]];
        c.tails[i] = int32_t(listed - 1);
    }
    return own;
}
