// Rows as vectors: load, store, the part of a last vector, fetch ahead; fp64, fp32 and bf16 as one template.
//
// A vector has 64 bytes on every processor, in as many registers as that takes: sums over its lanes are taken in one order
// everywhere. Numbers are rounded together (multiply_add) only where the code says so: it is compiled without contraction.
#pragma once
#include "border.hpp"
#include "registers.hpp"

namespace sargnn {

constexpr int VECTOR_BYTES = 64;
#if defined(__AVX512F__)
constexpr int PART_BYTES = 64;
#elif defined(__AVX2__)
constexpr int PART_BYTES = 32;
#else
constexpr int PART_BYTES = 16;
#endif
constexpr int PARTS = VECTOR_BYTES / PART_BYTES;

template <class T> constexpr int LANES = VECTOR_BYTES / int(sizeof(T));

using registers::Simd;

template <class T> struct IntegerOf;
template <> struct IntegerOf<float> {
    typedef int32_t type;
    typedef uint32_t bits;
};
template <> struct IntegerOf<double> {
    typedef int64_t type;
    typedef uint64_t bits;
};

// 64 bytes of numbers, or P parts of them.
template <class T, int P = PARTS> struct Vector {
    typedef typename IntegerOf<T>::type Integer;
    typedef Simd<T, PART_BYTES> Part;
    typedef Simd<Integer, PART_BYTES> Mask;
    static constexpr int EACH = PART_BYTES / int(sizeof(T));  // lanes of a part
    static constexpr int LANES = P * EACH;
    Part part[P];
};

#define EACH_PART UNROLL for (int p = 0; p < P; ++p)

template <int P = PARTS, class T> INLINE Vector<T, P> splat(T x) {
    Vector<T, P> out;
    EACH_PART out.part[p] = x - typename Vector<T>::Part{};
    return out;
}
template <class T, int P = PARTS> INLINE Vector<T, P> zeros() {
    Vector<T, P> out;
    EACH_PART out.part[p] = typename Vector<T>::Part{};
    return out;
}
template <class T, int P> INLINE Vector<T, P> operator+(const Vector<T, P> &x, const Vector<T, P> &y) {
    Vector<T, P> out;
    EACH_PART out.part[p] = x.part[p] + y.part[p];
    return out;
}
template <class T, int P> INLINE Vector<T, P> operator-(const Vector<T, P> &x, const Vector<T, P> &y) {
    Vector<T, P> out;
    EACH_PART out.part[p] = x.part[p] - y.part[p];
    return out;
}
template <class T, int P> INLINE Vector<T, P> operator*(const Vector<T, P> &x, const Vector<T, P> &y) {
    Vector<T, P> out;
    EACH_PART out.part[p] = x.part[p] * y.part[p];
    return out;
}
template <class T, int P> INLINE Vector<T, P> operator/(const Vector<T, P> &x, const Vector<T, P> &y) {
    Vector<T, P> out;
    EACH_PART out.part[p] = x.part[p] / y.part[p];
    return out;
}

// x y + z, rounded once where the processor can.
template <class T, int P>
INLINE Vector<T, P> multiply_add(const Vector<T, P> &x, const Vector<T, P> &y, const Vector<T, P> &z) {
    Vector<T, P> out;
#if defined(__FMA__) || defined(__aarch64__)
    EACH_PART out.part[p] = registers::fused(x.part[p], y.part[p], z.part[p]);
#else
    EACH_PART out.part[p] = x.part[p] * y.part[p] + z.part[p];
#endif
    return out;
}
#if defined(__FMA__) || defined(__aarch64__)
INLINE float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
INLINE double multiply_add(double x, double y, double z) { return __builtin_fma(x, y, z); }
#else
INLINE float multiply_add(float x, float y, float z) { return x * y + z; }
INLINE double multiply_add(double x, double y, double z) { return x * y + z; }
#endif

// 64-bit lanes, of which the lower halves are multiplied.
typedef Simd<uint64_t, PART_BYTES> Longs;
INLINE Longs product_of_lower(Longs x, Longs y) {
    typedef Simd<int, PART_BYTES> Ints;
    return (Longs)registers::lower_products((Ints)x, (Ints)y);
}

// The larger of two; y where one is not a number.
template <class T, int P> INLINE Vector<T, P> larger(const Vector<T, P> &x, const Vector<T, P> &y) {
    Vector<T, P> out;
    EACH_PART out.part[p] = x.part[p] > y.part[p] ? x.part[p] : y.part[p];
    return out;
}
// `yes` where x > 0, else `no`.
template <class T, int P>
INLINE Vector<T, P> where_positive(const Vector<T, P> &x, const Vector<T, P> &yes, const Vector<T, P> &no) {
    Vector<T, P> out;
    typename Vector<T>::Part zero = {};
    EACH_PART out.part[p] = x.part[p] > zero ? yes.part[p] : no.part[p];
    return out;
}
// `yes` where x <= 0, else `no`: where x is not a number, too.
template <class T, int P>
INLINE Vector<T, P> where_not_above(const Vector<T, P> &x, const Vector<T, P> &yes, const Vector<T, P> &no) {
    Vector<T, P> out;
    typename Vector<T>::Part zero = {};
    EACH_PART out.part[p] = x.part[p] <= zero ? yes.part[p] : no.part[p];
    return out;
}

// The halves of a vector. Taken over its address, whatever holds the vector would lie in memory.
#if defined(__clang__) || __GNUC__ >= 12
template <class V> INLINE auto low_half(V x) {
    if constexpr (sizeof(V) / sizeof(x[0]) == 4) return __builtin_shufflevector(x, x, 0, 1);
    else if constexpr (sizeof(V) / sizeof(x[0]) == 8) return __builtin_shufflevector(x, x, 0, 1, 2, 3);
    else return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
}
template <class V> INLINE auto high_half(V x) {
    if constexpr (sizeof(V) / sizeof(x[0]) == 4) return __builtin_shufflevector(x, x, 2, 3);
    else if constexpr (sizeof(V) / sizeof(x[0]) == 8) return __builtin_shufflevector(x, x, 4, 5, 6, 7);
    else return __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
}
#else
template <class T, class V> INLINE auto half_of(V x, int which) {
    Simd<T, sizeof(V) / 2> half;
    __builtin_memcpy(&half, reinterpret_cast<char *>(&x) + which * sizeof(V) / 2, sizeof(V) / 2);
    return half;
}
template <class V> INLINE auto low_half(V x) { return half_of<__typeof__(+x[0])>(x, 0); }
template <class V> INLINE auto high_half(V x) { return half_of<__typeof__(+x[0])>(x, 1); }
#endif

// The sum of a vector's lanes, halves added pairwise.
template <class T, int Bytes> INLINE T sum_of(Simd<T, Bytes> x) {
    if constexpr (Bytes == 2 * int(sizeof(T))) return x[0] + x[1];
    else return sum_of<T, Bytes / 2>(low_half(x) + high_half(x));
}
template <class T> INLINE T sum_lanes(const Vector<T> &x) {
    if constexpr (PARTS == 4) return sum_of<T, PART_BYTES>((x.part[0] + x.part[2]) + (x.part[1] + x.part[3]));
    if constexpr (PARTS == 2) return sum_of<T, PART_BYTES>(x.part[0] + x.part[1]);
    return sum_of<T, PART_BYTES>(x.part[0]);
}

// The same of four vectors.
template <class T> struct FourSums {
    T sum[4];
};
template <class T>
INLINE FourSums<T> sum_lanes(const Vector<T> &a, const Vector<T> &b, const Vector<T> &c, const Vector<T> &d) {
#if defined(__AVX512F__) && (defined(__clang__) || __GNUC__ >= 12)
    typedef Simd<T, 64> V;
    const V w = a.part[0], x = b.part[0], y = c.part[0], z = d.part[0];
    FourSums<T> out;
    if constexpr (sizeof(T) == 4) {
        const V wx = __builtin_shufflevector(w, x, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                     __builtin_shufflevector(w, x, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        const V yz = __builtin_shufflevector(y, z, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                     __builtin_shufflevector(y, z, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
        const V fours = __builtin_shufflevector(wx, yz, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                        __builtin_shufflevector(wx, yz, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
        const V twos = fours + __builtin_shufflevector(fours, fours, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
        const V ones = twos + __builtin_shufflevector(twos, twos, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
        const Simd<T, 16> found = __builtin_shufflevector(ones, ones, 0, 4, 8, 12);
        __builtin_memcpy(&out, &found, sizeof out);
    } else {
        const V wx = __builtin_shufflevector(w, x, 0, 1, 2, 3, 8, 9, 10, 11) + __builtin_shufflevector(w, x, 4, 5, 6, 7, 12, 13, 14, 15);
        const V yz = __builtin_shufflevector(y, z, 0, 1, 2, 3, 8, 9, 10, 11) + __builtin_shufflevector(y, z, 4, 5, 6, 7, 12, 13, 14, 15);
        const V twos = __builtin_shufflevector(wx, yz, 0, 1, 4, 5, 8, 9, 12, 13) + __builtin_shufflevector(wx, yz, 2, 3, 6, 7, 10, 11, 14, 15);
        const Simd<T, 32> found = __builtin_shufflevector(twos, twos, 0, 2, 4, 6) + __builtin_shufflevector(twos, twos, 1, 3, 5, 7);
        __builtin_memcpy(&out, &found, sizeof out);
    }
    return out;
#else
    return {{sum_lanes(a), sum_lanes(b), sum_lanes(c), sum_lanes(d)}};
#endif
}

// The exponential of x <= 0; 0 where it comes near the smallest normal number; not a number stays so.
//
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its Taylor series, whose remainder is below half a unit in the last place; 2^n by
// shifting n into the exponent. n is rounded by adding 1.5 * 2^(bits of the mantissa).
template <class T> struct ExpOf;
template <> struct ExpOf<float> {
    static constexpr int bits = 23, terms = 8;
    static constexpr double lowest = -87.0, high = 0.693359375, low = 0.6931471805599453 - 0.693359375;
};
template <> struct ExpOf<double> {
    static constexpr int bits = 52, terms = 14;
    static constexpr double lowest = -708.0, high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
};
constexpr double FACTORIALS[] = {1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800.0};
template <class T, int P> INLINE Vector<T, P> exp_below_0(const Vector<T, P> &x) {
    typedef ExpOf<T> E;
    typedef Simd<typename IntegerOf<T>::bits, PART_BYTES> Bits;  // what is far below 0 overflows
    typedef typename Vector<T>::Part Part;
    const Vector<T, P> magic = splat<P>(T(1.5 * double(int64_t(1) << E::bits)));
    const Vector<T, P> shifted = x * splat<P>(T(1.0 / 0.6931471805599453)) + magic, n = shifted - magic;
    const Vector<T, P> r = multiply_add(n, splat<P>(T(-E::low)), multiply_add(n, splat<P>(T(-E::high)), x));
    Vector<T, P> value = splat<P>(T(1.0 / FACTORIALS[E::terms - 1]));
    UNROLL for (int k = E::terms - 2; k >= 0; --k) value = multiply_add(value, r, splat<P>(T(1.0 / FACTORIALS[k])));
    Vector<T, P> out;
    EACH_PART {
        const Part scaled = (Part)((Bits)value.part[p] + ((Bits)shifted.part[p] << E::bits));
        const Part finite = x.part[p] < T(E::lowest) - Part{} ? Part{} : scaled;
        out.part[p] = x.part[p] != x.part[p] ? x.part[p] : finite;
    }
    return out;
}

// bf16 --------------------------------------------------------------------------------------------------------------------
// Half the bytes of fp32, the same range, 8 bits of precision: the upper halves of fp32 numbers. AVX512-BF16's own rounding is
// not used: it takes the smallest numbers for zeros.

INLINE float widen(bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    __builtin_memcpy(&out, &bits, 4);
    return out;
}
INLINE float widen(float x) { return x; }
INLINE double widen(double x) { return x; }

// fp32 rounded to nearest, ties to even; not a number stays so.
INLINE uint16_t narrowed(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1), nothing = -uint32_t(x != x);
    return uint16_t(((rounded & ~nothing) | (0x7FC00000 & nothing)) >> 16);  // GCC would choose among 16-bit numbers
}
INLINE void put(float x, bf16 *to) { to->bits = narrowed(x); }
INLINE void put(float x, float *to) { *to = x; }
INLINE void put(double x, double *to) { *to = x; }

typedef Simd<uint16_t, PART_BYTES / 2> HalfPart;  // as many as fp32 lanes of a part
typedef Simd<uint32_t, PART_BYTES> BitsPart;

INLINE BitsPart extended(HalfPart x) {
#if defined(__AVX2__)
    return (BitsPart)registers::widened((Simd<short, PART_BYTES / 2>)x);
#else
    return __builtin_convertvector(x, BitsPart);
#endif
}
INLINE Simd<float, PART_BYTES> widen(HalfPart x) { return (Simd<float, PART_BYTES>)(extended(x) << 16); }
INLINE HalfPart narrowed(Simd<float, PART_BYTES> x) {
    const BitsPart bits = (BitsPart)x, rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector(x != x ? BitsPart{} + 0x7FC0 : rounded, HalfPart);
}

// fp32 numbers, of the bits of which two vectors of bf16 numbers hold the upper and the lower halves; and the lower ones of such.
INLINE Vector<float> joined(const Vector<float> &upper, const Vector<float> &lower) {
    Vector<float> out;
    UNROLL for (int p = 0; p < PARTS; ++p)
        out.part[p] = (Vector<float>::Part)((BitsPart)upper.part[p] | (BitsPart)lower.part[p] >> 16);
    return out;
}
INLINE Vector<float> lower_halves(const Vector<float> &x) {
    Vector<float> out;
    UNROLL for (int p = 0; p < PARTS; ++p) out.part[p] = (Vector<float>::Part)((BitsPart)x.part[p] << 16);
    return out;
}

// Load and store ----------------------------------------------------------------------------------------------------------

template <int P = PARTS, class T> INLINE Vector<T, P> load(const T *at) {
    Vector<T, P> out;
    EACH_PART __builtin_memcpy(&out.part[p], at + p * Vector<T>::EACH, PART_BYTES);  // as one, GCC copies it over the stack
    return out;
}
template <class T, int P> INLINE void store(const Vector<T, P> &x, T *at) {
    EACH_PART __builtin_memcpy(at + p * Vector<T>::EACH, &x.part[p], PART_BYTES);
}

template <int P = PARTS> INLINE Vector<float, P> load(const bf16 *at) {
    Vector<float, P> out;
    EACH_PART {
        HalfPart half;
        __builtin_memcpy(&half, at + p * Vector<float>::EACH, PART_BYTES / 2);
        out.part[p] = widen(half);
    }
    return out;
}
template <int P> INLINE void store(const Vector<float, P> &x, bf16 *at) {
    EACH_PART {
        const HalfPart half = narrowed(x.part[p]);
        __builtin_memcpy(at + p * Vector<float>::EACH, &half, PART_BYTES / 2);
    }
}

// Copies less than Room bytes, a number of 2-byte words, in a few steps: masked stores are slow on some processors.
template <int Room> INLINE void copy_few(const void *from, void *to, int bytes) {
    const char *in = static_cast<const char *>(from);
    char *out = static_cast<char *>(to);
    UNROLL for (int step = Room / 2; step >= 2; step /= 2)
        if (bytes & step) {
            __builtin_memcpy(out, in, size_t(step));
            in += step, out += step;
        }
}

APART inline void copy_some(const void *from, void *to, int bytes) { copy_few<VECTOR_BYTES>(from, to, bytes); }

// The first lanes of a vector: those that are there. Lanes that are not there are 0 when loaded; they are neither read nor
// written.
template <class T, int P = PARTS> struct Tail {
    int count;  // 1 to all lanes
#if defined(__AVX512F__)
    uint16_t bits;
    explicit INLINE Tail(int64_t left)
        : count(int(smaller<int64_t>(left, Vector<T, P>::LANES))), bits(uint16_t((1u << count) - 1)) {}
#elif defined(__AVX2__)
    typename Vector<T>::Mask mask[P];
    explicit INLINE Tail(int64_t left) : count(int(smaller<int64_t>(left, Vector<T, P>::LANES))) {
        typedef typename Vector<T>::Integer Integer;
        EACH_PART UNROLL for (int k = 0; k < Vector<T>::EACH; ++k)
            mask[p][k] = Integer(p * Vector<T>::EACH + k) < Integer(count) ? Integer(-1) : Integer(0);
    }
#else
    explicit INLINE Tail(int64_t left) : count(int(smaller<int64_t>(left, Vector<T, P>::LANES))) {}
#endif
    bool all() const { return count == Vector<T, P>::LANES; }
};

template <class T, int P> INLINE Vector<T, P> load(const T *at, const Tail<T, P> &t) {
#if defined(__AVX512F__)
    // A load of 64 bytes waits for a second line also where the mask leaves that out.
    if (t.count <= 4) return {{registers::load_few(at, uint8_t(t.bits))}};
    return {{registers::load(at, t.bits)}};
#elif defined(__AVX2__)
    Vector<T, P> out;
    EACH_PART {
        typedef Simd<typename registers::MaskOf<T>::type, PART_BYTES> Mask;
        out.part[p] = registers::load(at + p * Vector<T>::EACH, (Mask)t.mask[p]);
    }
    return out;
#else
    if (t.all()) return load<P>(at);
    Vector<T, P> out = zeros<T, P>();
    copy_some(at, &out, t.count * int(sizeof(T)));
    return out;
#endif
}
template <class T, int P> INLINE void store(const Vector<T, P> &x, T *at, const Tail<T, P> &t) {
    if (t.all()) store(x, at);
    else if constexpr (P == 1) copy_few<sizeof(x)>(&x, at, t.count * int(sizeof(T)));
    else copy_some(&x, at, t.count * int(sizeof(T)));
}
#if defined(__AVX2__) && !defined(__AVX512F__)
// Some numbers by pairs, whose masks there are, and the last one if it has no pair.
template <int P> APART Vector<float, P> load_pairs(const bf16 *at, int count) {
    const int pairs = count / 2;
    const uint16_t odd = count & 1 ? at[count - 1].bits : uint16_t(0);
    const HalfPart last = odd - HalfPart{};
    Vector<float, P> out;
    EACH_PART {
        Simd<int32_t, PART_BYTES / 2> mask;
        HalfPart place;
        UNROLL for (int k = 0; k < 4; ++k) mask[k] = p * 4 + k < pairs ? -1 : 0;
        UNROLL for (int k = 0; k < 8; ++k) place[k] = p * 8 + k == count - 1 ? 0xFFFF : 0;
        const Simd<int, 16> there = registers::load(reinterpret_cast<const int *>(at) + p * 4, mask);
        out.part[p] = widen((HalfPart)there | (last & place));
    }
    return out;
}
#endif
template <int P> INLINE Vector<float, P> load(const bf16 *at, const Tail<float, P> &t) {
#if defined(__AVX512F__)
    return {{widen((HalfPart)registers::load(reinterpret_cast<const short *>(at), t.bits))}};
#elif defined(__AVX2__)
    return load_pairs<P>(at, t.count);
#else
    if (t.all()) return load<P>(at);
    bf16 held[Vector<float, P>::LANES] = {};
    copy_some(at, held, t.count * 2);
    return load<P>(held);
#endif
}
template <int P> INLINE void store(const Vector<float, P> &x, bf16 *at, const Tail<float, P> &t) {
    if (t.all()) return store(x, at);
    bf16 held[Vector<float, P>::LANES];
    store(x, held);
    copy_some(held, at, t.count * 2);
}

// f(load, at) for each vector of so many columns, of which the last may not be all there.
template <class T, class F> INLINE void each_vector(int64_t width, F f) {
    int64_t at = 0;
    for (; at + LANES<T> <= width; at += LANES<T>) f([](auto *row) INLINED { return load(row); }, at);
    if (at < width) {
        const Tail<T> there(width - at);
        f([&](auto *row) INLINED { return load(row, there); }, at);
    }
}

// The upper halves of the bits as they are, not rounded.
INLINE void store_halves(const Vector<float> &x, bf16 *at) {
    UNROLL for (int p = 0; p < PARTS; ++p) {
        const HalfPart half = __builtin_convertvector((BitsPart)x.part[p] >> 16, HalfPart);
        __builtin_memcpy(at + p * Vector<float>::EACH, &half, PART_BYTES / 2);
    }
}

// Fetch ahead -------------------------------------------------------------------------------------------------------------

// How many edges ahead a row is fetched: a random row of a large table comes from far away, and the hardware cannot guess which.
template <class R> constexpr int AHEAD = 8;
template <> inline constexpr int AHEAD<bf16> = 32;
// The same where of each row so many bytes are read: together they have a sixth of the nearest cache.
INLINE constexpr int64_t ahead_of(int64_t bytes) {
    const int64_t rows = 8192 / (bytes > 1 ? bytes : 1);
    return rows < 4 ? 4 : rows > 32 ? 32 : rows;
}

INLINE void fetch(const void *at) { __builtin_prefetch(at, 0, 3); }
// `bytes` that begin here.
INLINE void fetch(const void *at, int64_t bytes) {
    for (int64_t k = 0; k < bytes; k += VECTOR_BYTES) fetch(static_cast<const char *>(at) + k);
}
// Whether a new line of the cache begins with the vector of a row at this column.
template <class R> INLINE constexpr bool new_line(int64_t at) { return at * int64_t(sizeof(R)) % VECTOR_BYTES == 0; }
// K vectors of a row that begin here.
template <class R, int K> INLINE void fetch_vectors(const R *at) {
    constexpr int bytes = K * LANES<Wide<R>> * int(sizeof(R));
    UNROLL for (int k = 0; k < bytes; k += VECTOR_BYTES) fetch(reinterpret_cast<const char *>(at) + k);
}

}  // namespace sargnn
