// The few instructions that the compiler does not find by itself. g++ gives them as builtins: its header of all instructions takes
// a second to read, for each source and processor.
#pragma once
#include "border.hpp"
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__clang__)
#include <immintrin.h>
#endif

namespace sargnn {
namespace registers {

template <class T, int Bytes> struct SimdOf {
    typedef T type __attribute__((vector_size(Bytes)));
};
template <class T, int Bytes> using Simd = typename SimdOf<T, Bytes>::type;

typedef Simd<float, 64> F16;
typedef Simd<double, 64> D8;
typedef Simd<float, 32> F8;
typedef Simd<float, 16> F4;
typedef Simd<double, 32> D4;
typedef Simd<short, 32> H16;
typedef Simd<short, 16> H8;
typedef Simd<int, 64> I16;
typedef Simd<int, 32> I8;
typedef Simd<int, 16> I4;
typedef Simd<long long, 64> L8;
typedef Simd<long long, 32> L4;
typedef Simd<long long, 16> L2;

// Of what masks of numbers consist.
template <class T> struct MaskOf {
    typedef int type;
};
template <> struct MaskOf<double> {
    typedef long long type;
};

// fused: x y + z, rounded once. load: numbers where a bit, or the sign of a mask, is set, else 0. widened: without a sign, 16 to 32
// bits. lower_products: of the lower 32 bits of 64.
#if defined(__clang__) && defined(__AVX512F__)
INLINE F16 fused(F16 x, F16 y, F16 z) { return _mm512_fmadd_ps(x, y, z); }
INLINE D8 fused(D8 x, D8 y, D8 z) { return _mm512_fmadd_pd(x, y, z); }
INLINE F16 load(const float *at, unsigned short bits) { return _mm512_maskz_loadu_ps(bits, at); }
INLINE F16 load_few(const float *at, unsigned char bits) { return _mm512_zextps128_ps512(_mm_maskz_loadu_ps(bits, at)); }
INLINE D8 load_few(const double *at, unsigned char bits) { return _mm512_zextpd256_pd512(_mm256_maskz_loadu_pd(bits, at)); }
INLINE D8 load(const double *at, unsigned char bits) { return _mm512_maskz_loadu_pd(bits, at); }
INLINE H16 load(const short *at, unsigned short bits) { return (H16)_mm256_maskz_loadu_epi16(bits, at); }
INLINE I16 widened(H16 x) { return (I16)_mm512_cvtepu16_epi32((__m256i)x); }
INLINE L8 lower_products(I16 x, I16 y) { return (L8)_mm512_mul_epu32((__m512i)x, (__m512i)y); }
#elif defined(__clang__) && defined(__AVX2__)
INLINE F8 fused(F8 x, F8 y, F8 z) { return _mm256_fmadd_ps(x, y, z); }
INLINE D4 fused(D4 x, D4 y, D4 z) { return _mm256_fmadd_pd(x, y, z); }
INLINE F8 load(const float *at, I8 mask) { return _mm256_maskload_ps(at, (__m256i)mask); }
INLINE D4 load(const double *at, L4 mask) { return _mm256_maskload_pd(at, (__m256i)mask); }
INLINE I4 load(const int *at, I4 mask) { return (I4)_mm_maskload_epi32(at, (__m128i)mask); }
INLINE I8 widened(H8 x) { return (I8)_mm256_cvtepu16_epi32((__m128i)x); }
INLINE L4 lower_products(I8 x, I8 y) { return (L4)_mm256_mul_epu32((__m256i)x, (__m256i)y); }
#elif defined(__clang__) && defined(__x86_64__)
INLINE L2 lower_products(I4 x, I4 y) { return (L2)_mm_mul_epu32((__m128i)x, (__m128i)y); }
#elif defined(__AVX512F__)
INLINE F16 fused(F16 x, F16 y, F16 z) { return __builtin_ia32_vfmaddps512_mask(x, y, z, 0xFFFF, 4); }
INLINE D8 fused(D8 x, D8 y, D8 z) { return __builtin_ia32_vfmaddpd512_mask(x, y, z, 0xFF, 4); }
INLINE F16 load(const float *at, unsigned short bits) { return __builtin_ia32_loadups512_mask(at, F16{}, short(bits)); }
INLINE F16 load_few(const float *at, unsigned char bits) {
    const F4 few = __builtin_ia32_loadups128_mask(at, F4{}, char(bits));
    return F16{few[0], few[1], few[2], few[3]};
}
INLINE D8 load_few(const double *at, unsigned char bits) {
    const D4 few = __builtin_ia32_loadupd256_mask(at, D4{}, char(bits));
    return D8{few[0], few[1], few[2], few[3]};
}
INLINE D8 load(const double *at, unsigned char bits) { return __builtin_ia32_loadupd512_mask(at, D8{}, char(bits)); }
INLINE H16 load(const short *at, unsigned short bits) { return __builtin_ia32_loaddquhi256_mask(at, H16{}, bits); }
INLINE I16 widened(H16 x) { return __builtin_ia32_pmovzxwd512_mask(x, I16{}, short(0xFFFF)); }
INLINE L8 lower_products(I16 x, I16 y) { return __builtin_ia32_pmuludq512_mask(x, y, L8{}, char(0xFF)); }
#elif defined(__AVX2__)
INLINE F8 fused(F8 x, F8 y, F8 z) { return __builtin_ia32_vfmaddps256(x, y, z); }
INLINE D4 fused(D4 x, D4 y, D4 z) { return __builtin_ia32_vfmaddpd256(x, y, z); }
INLINE F8 load(const float *at, I8 mask) { return __builtin_ia32_maskloadps256(reinterpret_cast<const F8 *>(at), mask); }
INLINE D4 load(const double *at, L4 mask) { return __builtin_ia32_maskloadpd256(reinterpret_cast<const D4 *>(at), mask); }
INLINE I4 load(const int *at, I4 mask) { return __builtin_ia32_maskloadd(reinterpret_cast<const I4 *>(at), mask); }
INLINE I8 widened(H8 x) { return __builtin_ia32_pmovzxwd256(x); }
INLINE L4 lower_products(I8 x, I8 y) { return __builtin_ia32_pmuludq256(x, y); }
#elif defined(__x86_64__)
INLINE L2 lower_products(I4 x, I4 y) { return __builtin_ia32_pmuludq128(x, y); }
#else
INLINE Simd<float, 16> fused(Simd<float, 16> x, Simd<float, 16> y, Simd<float, 16> z) {
    return (Simd<float, 16>)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
}
INLINE Simd<double, 16> fused(Simd<double, 16> x, Simd<double, 16> y, Simd<double, 16> z) {
    return (Simd<double, 16>)vfmaq_f64((float64x2_t)z, (float64x2_t)x, (float64x2_t)y);
}
INLINE L2 lower_products(I4 x, I4 y) { return (L2)vmull_u32(vmovn_u64((uint64x2_t)x), vmovn_u64((uint64x2_t)y)); }
#endif

}  // namespace registers
}  // namespace sargnn
