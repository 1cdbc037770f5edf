// A loop over a row's columns, as plain code of one number, which compilers turn into vectors.
#pragma once
#include "border.hpp"

#if defined(__clang__)
#define NO_OVERLAP _Pragma("clang loop vectorize(assume_safety)")
#else
#define NO_OVERLAP _Pragma("GCC ivdep")
#endif

namespace sargnn {

// Of the C library, of any number.
INLINE float exp_of(float x) { return __builtin_expf(x); }
INLINE double exp_of(double x) { return __builtin_exp(x); }

// f(column) for each; what it writes for one column no other column reads.
template <class F> INLINE void each_column(int64_t width, const F &f) {
    NO_OVERLAP for (int64_t column = 0; column < width; ++column) f(column);
}

}  // namespace sargnn
