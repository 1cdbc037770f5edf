// The symmetric graph A + A^T without self-loops, of which an entry counts directed edges: of all nodes (sargnn/partition/
// kaminpar.py) and of those of a part (order.py).
#include "indices.hpp"
#include "sorting.hpp"

using namespace sargnn;

namespace {

// A hash of 64 bits (the finaliser of SplitMix64).
INLINE uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

struct HashCall {
    Word first;
    Array<const int64_t> indptr;
    Table indices;
    Array<uint64_t> total;
};

}  // namespace

// Adds up h(v, u) - h(u, v) over edges u -> v.
ENTRY(add_signed_hashes, HashCall, c) {
    return for_indices(c.indices.type, [&]<class I>() {
        const I *indices = c.indices.as<const I>();
        uint64_t total = 0;
        for (int64_t k = 0; k + 1 < c.indptr.size; ++k) {
            const uint64_t own = mix(uint64_t(c.first + k));
            for (int64_t e = c.indptr[k]; e < c.indptr[k + 1]; ++e) {
                const uint64_t other = mix(uint64_t(indices[e]));
                total += mix(own + (other << 1)) - mix(other + (own << 1));
            }
        }
        c.total[0] += total;
        return int64_t(0);
    });
}

namespace {

// Ascending neighbours of one row after another, equal ones counted.
template <class I> struct Entries {
    I *neighbours;
    int32_t *weights;
    int64_t count = 0, begin = 0;  // begin: of the row

    INLINE void add(I neighbour) {
        if (count > begin && neighbours[count - 1] == neighbour) {
            ++weights[count - 1];
        } else {
            neighbours[count] = neighbour;
            weights[count++] = 1;
        }
    }
    // Gives how many the row has.
    INLINE int64_t end_row() {
        const int64_t degree = count - begin;
        begin = count;
        return degree;
    }
};

struct UniteCall {
    Word first;
    Array<const int64_t> indptr;
    Table sources;
    Array<int32_t> weights;
    Array<int64_t> degrees;
};

}  // namespace

// Sorts each row, drops self-loops and counts equal neighbours, in place; gives the number of entries that are left.
ENTRY(unite_rows, UniteCall, c) {
    return for_indices(c.sources.type, [&]<class I>() {
        const auto [first, indptr, unused, weights, degrees] = c;
        I *sources = c.sources.as<I>();
        Entries<I> entries = {sources, weights.at};
        Sorter<I, I> sorter;
        for (int64_t k = 0; k + 1 < indptr.size; ++k) {
            sorter.sort(sources + indptr[k], nullptr, indptr[k + 1] - indptr[k]);
            for (int64_t e = indptr[k]; e < indptr[k + 1]; ++e)
                if (sources[e] != first + k) entries.add(sources[e]);
            degrees[k] = entries.end_row();
        }
        return entries.count;
    });
}

namespace {

struct KeepCall {
    Array<const int64_t> degrees;
    Table source;
    Word first, last;
    Array<int64_t> ends, counts;
};

}  // namespace

// Of each row's sources those in [first, last), ascending, numbered from `first` on, without loops, at the array's front; counts,
// one place on, how often each is one. Gives how many there are.
ENTRY(keep_inside, KeepCall, c) {
    return for_indices(c.source.type, [&]<class P>() {
        const auto [degrees, unused, first, last, ends, counts] = c;
        P *source = c.source.as<P>();
        Sorter<P, P> sorter;
        int64_t count = 0, k = 0;
        for (int64_t row = 0; row < degrees.size; ++row) {
            const int64_t begin = count;
            for (const int64_t stop = k + degrees[row]; k < stop; ++k) {
                const int64_t place = source[k] - first;
                if (source[k] < first || source[k] >= last || place == row) continue;
                source[count++] = P(place);
                ++counts[place + 1];
            }
            sorter.sort(source + begin, nullptr, count - begin);
            ends[row + 1] = count;
        }
        return count;
    });
}

namespace {

struct TurnCall {
    Array<const int64_t> ends;
    Table forward;
    Array<int64_t> cursor;
    Array<int32_t> backward;
};

}  // namespace

// The rows of A^T from those of A.
ENTRY(turn_round, TurnCall, c) {
    return for_indices(c.forward.type, [&]<class P>() {
        const auto [ends, unused, cursor, backward] = c;
        const P *forward = c.forward.as<const P>();
        for (int64_t row = 0; row + 1 < ends.size; ++row)
            for (int64_t e = ends[row]; e < ends[row + 1]; ++e) backward[cursor[forward[e]]++] = int32_t(row);
        return int64_t(0);
    });
}

namespace {

struct MergeCall {
    Array<const int64_t> ends;
    Table forward;
    Array<const int64_t> starts;
    Array<const int32_t> backward;
    Array<int64_t> rows;
    Array<int32_t> neighbours, weights;
};

}  // namespace

// Unites the rows of A and A^T; gives the number of entries.
ENTRY(merge_rows, MergeCall, c) {
    return for_indices(c.forward.type, [&]<class P>() {
        const auto [ends, unused, starts, backward, rows, neighbours, weights] = c;
        const P *forward = c.forward.as<const P>();
        Entries<int32_t> entries = {neighbours.at, weights.at};
        for (int64_t row = 0; row + 1 < ends.size; ++row) {
            int64_t a = ends[row], b = starts[row];
            const int64_t a_end = ends[row + 1], b_end = starts[row + 1];
            while (a < a_end || b < b_end)
                entries.add(b == b_end || (a < a_end && forward[a] <= backward[b]) ? int32_t(forward[a++]) : backward[b++]);
            rows[row + 1] = rows[row] + entries.end_row();
        }
        return entries.count;
    });
}
