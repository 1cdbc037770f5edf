// Arrays of node and edge numbers, which have 32 or 64 bits.
#pragma once
#include "border.hpp"

namespace sargnn {

// A Table of numbers of one type: a vector, or rows of `width` numbers.
template <class T> struct Array {
    T *at;
    int64_t size, width, stride, type;

    INLINE T &operator[](int64_t i) const { return at[i]; }
    INLINE T *row(int64_t i) const { return at + i * stride; }
    INLINE T *begin() const { return at; }
    INLINE T *end() const { return at + size; }
    void fill(T value) const {
        for (T &x : *this) x = value;
    }
};
template <class T> INLINE Array<T> array_of(const Table &x) { return {x.as<T>(), x.rows, x.width, x.stride, x.type}; }

// Of each edge its relation, in one byte or two.
struct EdgeRelations {
    Table table;

    INLINE int64_t operator[](int64_t e) const {
        return table.type == UINT8 ? int64_t(table.as<const uint8_t>()[e]) : int64_t(table.as<const uint16_t>()[e]);
    }
    bool wrong() const { return table.type != UINT8 && table.type != UINT16; }
};

// What f.operator()<T>() gives, T being the indices' type; WRONG_TYPE for another.
template <class F> INLINE int64_t for_indices(int64_t type, F f) {
    switch (type) {
        case INT32: return f.template operator()<int32_t>();
        case INT64: return f.template operator()<int64_t>();
        default: return WRONG_TYPE;
    }
}

// Makes of each count, which stands one place on, where what is counted begins.
template <class T> INLINE void add_up(const Array<T> &begins) {
    for (int64_t i = 1; i < begins.size; ++i) begins[i] += begins[i - 1];
}

}  // namespace sargnn
