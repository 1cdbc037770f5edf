// Ids of nodes by their keys (sargnn/sources/tables/ids.py): keys of texts and numbers, a hash table of them, ranks of rows.
#include "indices.hpp"

using namespace sargnn;

namespace {

struct Record {
    uint64_t high, low;  // the key
    int64_t row;

    bool same(const Record &other) const { return high == other.high && low == other.low; }
};

// Records, [n, 3] words.
struct Records {
    Table table;

    int64_t count() const { return table.rows; }
    Record &operator[](int64_t i) const { return table.as<Record>()[i]; }
};

INLINE uint64_t turn(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
INLINE uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xFF51AFD7ED558CCDu;
    x ^= x >> 33;
    x *= 0xC4CEB9FE1A85EC53u;
    return x ^ (x >> 33);
}
// Up to eight bytes as a number, the first one lowest.
INLINE uint64_t number_of(const uint8_t *bytes, int64_t count) {
    uint64_t x = 0;
    for (int64_t k = 0; k < count; ++k) x |= uint64_t(bytes[k]) << (8 * k);
    return x;
}

// MurmurHash3 (x64, 128 bits).
INLINE void hash(const uint8_t *text, int64_t length, Record &record) {
    constexpr uint64_t C1 = 0x87C37B91114253D5u, C2 = 0x4CF5AD432745937Fu;
    uint64_t h1 = 0, h2 = 0;
    int64_t left = length;
    for (; left >= 16; left -= 16, text += 16) {
        h1 ^= turn(number_of(text, 8) * C1, 31) * C2;
        h2 ^= turn(number_of(text + 8, 8) * C2, 33) * C1;
        h1 = (turn(h1, 27) + h2) * 5 + 0x52DCE729;
        h2 = (turn(h2, 31) + h1) * 5 + 0x38495AB5;
    }
    h1 ^= turn(number_of(text, smaller<int64_t>(left, 8)) * C1, 31) * C2;
    h2 ^= turn(number_of(text + 8, left - 8) * C2, 33) * C1;
    h1 ^= uint64_t(length);
    h2 ^= uint64_t(length);
    h1 += h2;
    h2 += h1;
    h1 = mix(h1);
    h2 = mix(h2);
    h1 += h2;
    record.high = h1;
    record.low = h2 + h1;
}

struct TextsCall {
    Array<const uint8_t> data;
    Array<const int64_t> ends;
    Records records;
};

}  // namespace

ENTRY(hash_texts, TextsCall, c) {
    for (int64_t i = 0; i + 1 < c.ends.size; ++i) hash(c.data.at + c.ends[i], c.ends[i + 1] - c.ends[i], c.records[i]);
    return 0;
}

namespace {

struct NumbersCall {
    Array<const int64_t> numbers;
    Records records;
};

}  // namespace

ENTRY(hash_numbers, NumbersCall, c) {
    for (int64_t i = 0; i < c.numbers.size; ++i) c.records[i].high = mix(uint64_t(c.numbers[i])), c.records[i].low = 0;
    return 0;
}

namespace {

// The slot of a record with this key, or the free one where it would be. slots: numbers of records, -1: free; a power of 2.
INLINE int64_t find_slot(const Record &wanted, const Records &records, const Array<int32_t> &slots) {
    const uint64_t mask = uint64_t(slots.size - 1);
    uint64_t slot = wanted.high & mask;
    while (slots[int64_t(slot)] >= 0 && !records[slots[int64_t(slot)]].same(wanted)) slot = (slot + 1) & mask;
    return int64_t(slot);
}

struct TableCall {
    Records records;
    Array<int32_t> slots;
    Array<int64_t> again;
};

}  // namespace

// again: of a key's later records the number of its first.
ENTRY(fill_slots, TableCall, c) {
    for (int64_t i = 0; i < c.records.count(); ++i) {
        const int64_t slot = find_slot(c.records[i], c.records, c.slots);
        if (c.slots[slot] < 0)
            c.slots[slot] = int32_t(i);
        else
            c.again[i] = c.slots[slot];
    }
    return 0;
}

namespace {

struct LookUpCall {
    Records wanted, records;
    Array<int32_t> slots;
    Table numbers;
};

}  // namespace

// The row of the record with each wanted key, at the wanted row; -1: there is none.
ENTRY(look_up_ids, LookUpCall, c) {
    return for_indices(c.numbers.type, [&]<class N>() {
        N *numbers = c.numbers.as<N>();
        for (int64_t i = 0; i < c.wanted.count(); ++i) {
            const int32_t there = c.slots[find_slot(c.wanted[i], c.records, c.slots)];
            numbers[c.wanted[i].row] = there < 0 ? N(-1) : N(c.records[there].row);
        }
        return int64_t(0);
    });
}

namespace {

struct RanksCall {
    Array<const uint8_t> kept;
    Array<const int64_t> before;
    Word block;
    Records records;
};

}  // namespace

// In place of each record's row how many rows before it are kept; -1 where it is not kept itself. before: how many are before
// each block of rows.
ENTRY(rank_rows, RanksCall, c) {
    for (int64_t i = 0; i < c.records.count(); ++i) {
        int64_t &row = c.records[i].row;
        if (!c.kept[row]) {
            row = -1;
            continue;
        }
        int64_t rank = c.before[row / c.block];
        for (int64_t other = row / c.block * c.block; other < row; ++other) rank += c.kept[other];
        row = rank;
    }
    return 0;
}
