// What an entry of the library is given: addresses and sizes, nothing of Python or PyTorch.
//
// An entry is a C function of one array of 64-bit words, which is laid over a struct of the entry's own (ENTRY). Python checks
// types, strides and lengths before the call (sargnn/native/__init__.py); the number of words is checked here.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace sargnn {

struct bf16 {
    uint16_t bits;
};

// Codes of types, as Python gives them.
enum Type : int64_t { FP32, FP64, BF16, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, NOTHING = -1 };

// A table of rows, or a vector of `rows` numbers (width and stride 1).
struct Table {
    void *at;
    int64_t rows, width, stride;  // stride: numbers from one row to the next
    int64_t type;

    template <class T> T *as() const { return static_cast<T *>(at); }
    template <class T> T *row(int64_t i) const { return static_cast<T *>(at) + i * stride; }
    bool given() const { return at != nullptr; }
};

// Tables of equal width and type whose rows are numbered one after another.
struct Tables {
    const Table *at;
    int64_t count;

    bool given() const { return count > 0; }
    const Table &first() const;
};
inline constexpr Table NO_TABLE = {nullptr, 0, 0, 0, NOTHING};
inline const Table &Tables::first() const { return count > 0 ? at[0] : NO_TABLE; }

// A flag, a count or a number, as a word.
typedef int64_t Word;

enum Error : int64_t { WRONG_WORDS = -1, WRONG_TYPE = -2 };

}  // namespace sargnn

// One copy for each type, however often it is called.
#define APART __attribute__((noinline))
#if defined(SARGNN_CALLS)  // where compiling must be quick, not what is compiled
#define INLINE inline
#define INLINED
#else
#define INLINE inline __attribute__((always_inline))
// Of a lambda.
#define INLINED __attribute__((always_inline))
#endif
#define UNROLL _Pragma("GCC unroll 16")

// ENTRY(name, Struct, c) { ... return 0; }: the function sargnn_<name>, of which c is the struct that it is given.
#define ENTRY(name, Struct, c)                                                                                              \
    static int64_t entry_##name(const Struct &c);                                                                           \
    extern "C" __attribute__((visibility("default"))) int64_t sargnn_##name(const int64_t *words, int64_t count) {         \
        if (count * 8 != int64_t(sizeof(Struct))) return sargnn::WRONG_WORDS;                                                \
        return entry_##name(*reinterpret_cast<const Struct *>(words));                                                      \
    }                                                                                                                       \
    static int64_t entry_##name(const Struct &c)

namespace sargnn {

// Calls f.operator()<R>() for rows of the type with this code; WRONG_TYPE for another.
template <class F> INLINE int64_t for_rows(int64_t type, F f) {
    switch (type) {
        case FP32: return f.template operator()<float>(), 0;
        case FP64: return f.template operator()<double>(), 0;
        case BF16: return f.template operator()<bf16>(), 0;
        default: return WRONG_TYPE;
    }
}

// The same for numbers that are computed with: fp32 and fp64.
template <class F> INLINE int64_t for_numbers(int64_t type, F f) {
    switch (type) {
        case FP32: return f.template operator()<float>(), 0;
        case FP64: return f.template operator()<double>(), 0;
        default: return WRONG_TYPE;
    }
}

// What sums of rows are held in.
template <class R> struct WideOf {
    typedef R type;
};
template <> struct WideOf<bf16> {
    typedef float type;
};
template <class R> using Wide = typename WideOf<R>::type;

template <class T> INLINE T smaller(T x, T y) { return x < y ? x : y; }
template <class T> INLINE T larger(T x, T y) { return x > y ? x : y; }

}  // namespace sargnn
