// Counting by keys: how often each occurs, where those of each go, which occur at all. Keys are numbers below a known one.
#include "indices.hpp"

using namespace sargnn;

namespace {

struct CountCall {
    Table keys;
    Word first;
    Table counts;
};

template <class K, class C> int64_t count_each(const CountCall &c) {
    const auto keys = array_of<const K>(c.keys);
    C *counts = c.counts.as<C>();
    for (const K key : keys) ++counts[key - c.first];
    return 0;
}

}  // namespace

// counts[keys[e] - first] += 1
ENTRY(count_each, CountCall, c) {
    return for_indices(c.keys.type, [&]<class K>() {
        return for_indices(c.counts.type, [&]<class C>() { return count_each<K, C>(c); });
    });
}

namespace {

struct AddCall {
    Table keys, numbers, totals;
};

template <class K, class X, class T> int64_t add_each(const AddCall &c) {
    const auto keys = array_of<const K>(c.keys);
    const X *numbers = c.numbers.as<const X>();
    T *totals = c.totals.as<T>();
    for (int64_t e = 0; e < keys.size; ++e) totals[keys[e]] += T(numbers[e]);
    return 0;
}

}  // namespace

// totals[keys[e]] += numbers[e], fp32 or fp64 to fp64, uint32 to int64
ENTRY(add_each, AddCall, c) {
    return for_indices(c.keys.type, [&]<class K>() {
        if (c.numbers.type == FP32 && c.totals.type == FP64) return add_each<K, float, double>(c);
        if (c.numbers.type == FP64 && c.totals.type == FP64) return add_each<K, double, double>(c);
        if (c.numbers.type == UINT32 && c.totals.type == INT64) return add_each<K, uint32_t, int64_t>(c);
        return int64_t(WRONG_TYPE);
    });
}

namespace {

struct PlaceCall {
    Table nodes, places;
};

}  // namespace

// places[nodes[k]] = k
ENTRY(put_places, PlaceCall, c) {
    return for_indices(c.nodes.type, [&]<class K>() {
        return for_indices(c.places.type, [&]<class P>() {
            const auto nodes = array_of<const K>(c.nodes);
            P *places = c.places.as<P>();
            for (int64_t k = 0; k < nodes.size; ++k) places[nodes[k]] = P(k);
            return int64_t(0);
        });
    });
}

namespace {

struct NumberCall {
    Array<int32_t> values, numbers;
};

}  // namespace

// Numbers the values that occur from 0 on, in place, in their order. numbers: of each that does, its own and 1; else 0. Gives how
// many there are.
ENTRY(number_present, NumberCall, c) {
    const auto [values, numbers] = c;
    numbers.fill(0);
    for (const int32_t value : values) numbers[value] = 1;
    int32_t count = 0;
    for (int32_t &number : numbers)
        if (number) number = ++count;
    for (int32_t &value : values) value = numbers[value] - 1;
    return count;
}

namespace {

struct GroupCall {
    Table keys, values, begins, out;
};

template <class K, class T> int64_t group(const GroupCall &c) {
    const auto keys = array_of<const K>(c.keys);
    const auto begins = array_of<T>(c.begins);
    const T *values = c.values.as<const T>();
    T *out = c.out.as<T>();
    begins.fill(0);
    for (const K key : keys) ++begins[key + 1];
    add_up(begins);
    for (int64_t e = 0; e < keys.size; ++e) out[begins[keys[e]]++] = values ? values[e] : T(e);
    for (int64_t k = begins.size - 1; k > 0; --k) begins[k] = begins[k - 1];  // each has been moved to the next one's
    begins[0] = 0;
    return 0;
}

}  // namespace

// Puts values, or the keys' positions, into the order of the keys, equal ones in their order; begins: where those of each are.
ENTRY(group, GroupCall, c) {
    return for_indices(c.keys.type, [&]<class K>() {
        if (c.out.type != c.begins.type) return int64_t(WRONG_TYPE);
        return for_indices(c.begins.type, [&]<class T>() { return group<K, T>(c); });
    });
}

namespace {

struct ListCall {
    Array<const int32_t> dst;
    Array<int32_t> rows, begins;
};

}  // namespace

// The rows that occur in dst, which ascends, and where each begins there. Gives how many there are.
ENTRY(list_rows, ListCall, c) {
    const auto [dst, rows, begins] = c;
    int64_t listed = 0;
    begins[0] = 0;
    for (int64_t e = 0; e < dst.size; ++e) {  // stores the same again where a row goes on, for a branch would be missed
        listed += e == 0 || dst[e] != dst[e - 1];
        rows[listed - 1] = dst[e];
        begins[listed] = int32_t(e + 1);
    }
    return listed;
}

namespace {

struct GatherCall {
    Array<const int32_t> src, rows, begins;
    Array<int32_t> source_begins, destinations;
};

}  // namespace

// The destinations of each source's edges, ascending, and where they begin, of edges that lie by destination: those of the listed
// row a, or of row a where rows are null, are [begins[a], begins[a + 1]).
ENTRY(group_destinations, GatherCall, c) {
    const auto [src, rows, begins, source_begins, destinations] = c;
    source_begins.fill(0);
    for (const int32_t source : src) ++source_begins[source + 1];
    add_up(source_begins);
    for (int64_t a = 0; a + 1 < begins.size; ++a) {
        const int32_t row = rows.at ? rows[a] : int32_t(a);
        for (int32_t e = begins[a]; e < begins[a + 1]; ++e) destinations[source_begins[src[e]]++] = row;
    }
    for (int64_t k = source_begins.size - 1; k > 0; --k) source_begins[k] = source_begins[k - 1];  // as above
    source_begins[0] = 0;
    return 0;
}
