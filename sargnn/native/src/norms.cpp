// What happens between two layers, in one pass: normalise, activate, drop; and its gradients.
//
//     v = gamma * xhat + beta        out = drop(act(v))        xhat_i = (x_i - mean) / deviation
//
// A batch norm is given as v = slope * x + shift, and its mean and 1 / deviation as vectors. A layer norm's row has its own,
// which are computed where they are used: the row is in the first-level cache then, and nothing is kept for them. The mean is
// taken of the differences from the row's first entry, so that a row of equal entries is normalised to exact zeros.
//
// Letters: N rows, F features. R: type of rows, T: that of numbers.
#include "philox.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

enum Activation : int64_t { RELU, ELU, NONE };

INLINE float exp_of(float x) { return __builtin_expf(x); }
INLINE double exp_of(double x) { return __builtin_exp(x); }
INLINE float root_of(float x) { return __builtin_sqrtf(x); }
INLINE double root_of(double x) { return __builtin_sqrt(x); }
INLINE float expm1_of(float x) { return __builtin_expm1f(x); }
INLINE double expm1_of(double x) { return __builtin_expm1(x); }

struct NormCall {
    Table grad;                  // [N, F], of out; backward only
    Table x;                     // [N, F]
    Table slope, shift;          // [F]: of a layer norm gamma, beta
    Table mean, inv_std;         // [F], of a batch norm, backward only
    double eps;                  // of a layer norm
    Word by_row;                 // a layer norm
    Word activation;
    Table ids;                   // int64 [N]
    Draw draw;
    Table out;                   // [N, F]; backward: the gradient of v, of a layer norm that of x
    Table sums, products;        // fp64 [chunks, F], backward only: of the gradient g of v, and of g * xhat
    Word chunk_rows;
};

template <class R> struct BatchNorm {
    typedef Wide<R> T;
    const T *slope, *shift, *mean, *inv_std;

    explicit BatchNorm(const NormCall &c)
        : slope(c.slope.as<T>()), shift(c.shift.as<T>()), mean(c.mean.as<T>()), inv_std(c.inv_std.as<T>()) {}
    INLINE void begin(const R *, int64_t) {}
    INLINE T normal(const R *row, int64_t f) const { return (widen(row[f]) - mean[f]) * inv_std[f]; }
    INLINE T value(const R *row, int64_t f) const { return slope[f] * widen(row[f]) + shift[f]; }
    INLINE void end(const R *, int64_t, T *) const {}
};

// A vector or a single number of a row.
template <class V> INLINE V numbers(const auto *at) {
    if constexpr (sizeof(V) == VECTOR_BYTES) return load(at);
    else return widen(*at);
}
template <class V, class T> INLINE V all(T x) {
    if constexpr (sizeof(V) == VECTOR_BYTES) return splat(x);
    else return x;
}

// A sum over a row's features, in vectors, then number by number: add<V>(sum, f) adds to it what belongs to those from f on.
template <class T, class F> INLINE T sum_features(int64_t width, const F &add) {
    Vector<T> sums = zeros<T>();
    int64_t f = 0;
    for (; f + LANES<T> <= width; f += LANES<T>) sums = add(sums, f);
    T sum = sum_lanes(sums);
    for (; f < width; ++f) sum = add(sum, f);
    return sum;
}

template <class R> struct LayerNorm {
    typedef Wide<R> T;
    const T *gamma, *beta;
    T eps, mean, inv_std;

    explicit LayerNorm(const NormCall &c)
        : gamma(c.slope.as<T>()), beta(c.shift.as<T>()), eps(T(c.eps)), mean(0), inv_std(0) {}
    INLINE void begin(const R *row, int64_t width) {
        const T first = widen(row[0]);
        mean = first + sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
                           return sum + (numbers<V>(row + f) - all<V>(first));
                       }) / T(width);
        const T squares = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
            const V deviation = numbers<V>(row + f) - all<V>(mean);
            return multiply_add(deviation, deviation, sum);
        });
        inv_std = T(1) / root_of(squares / T(width) + eps);
    }
    INLINE T normal(const R *row, int64_t f) const { return (widen(row[f]) - mean) * inv_std; }
    INLINE T value(const R *row, int64_t f) const { return gamma[f] * normal(row, f) + beta[f]; }
    // The gradient g of v becomes that of x: inv_std (g gamma - mean(g gamma) - xhat mean(g gamma xhat)).
    INLINE void end(const R *row, int64_t width, T *g) const {
        const T of_grad = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
                              return multiply_add(numbers<V>(g + f), numbers<V>(gamma + f), sum);
                          }) / T(width);
        const T of_product = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
                                 const V xhat = (numbers<V>(row + f) - all<V>(mean)) * all<V>(inv_std);
                                 return multiply_add(numbers<V>(g + f) * numbers<V>(gamma + f), xhat, sum);
                             }) / T(width);
        for (int64_t f = 0; f < width; ++f)
            g[f] = inv_std * (gamma[f] * g[f] - of_grad - (widen(row[f]) - mean) * inv_std * of_product);
    }
};

template <class T> INLINE void drop(T *row, int64_t width, const uint32_t *words, const Draw &draw) {
    const T scale = T(draw.scale);
    const uint32_t threshold = uint32_t(draw.threshold);
    for (int64_t f = 0; f < width; ++f) {
        const T kept = row[f] * scale;
        row[f] = words[f] >= threshold ? kept : T(0);
    }
}

// What a call keeps of a row: its numbers and draws.
template <class R> struct Held {
    Scratch<Wide<R>> numbers;
    Scratch<uint32_t> words;
    explicit Held(int64_t width) : numbers(width), words(padded_draws(width)) {}
};

template <class R, class Norm> void forward(const NormCall &c) {
    typedef Wide<R> T;
    const int64_t width = c.x.width;
    parallel_runs(c.x.rows, c.chunk_rows, [&](int64_t first, int64_t last) {
        const Held<R> scratch(width);
        T *held = scratch.numbers;
        Norm norm(c);
        for (int64_t i = first; i < last; ++i) {
            const R *row = c.x.row<const R>(i);
            norm.begin(row, width);
            for (int64_t f = 0; f < width; ++f) held[f] = norm.value(row, f);
            if (c.activation == RELU) {
                for (int64_t f = 0; f < width; ++f) held[f] = T(0) > held[f] ? T(0) : held[f];
            } else if (c.activation == ELU) {
                for (int64_t f = 0; f < width; ++f) held[f] = held[f] > T(0) ? held[f] : expm1_of(held[f]);
            }
            if (c.draw.drops()) {
                draw_row(scratch.words, width, uint64_t(c.ids.as<const int64_t>()[i]), c.draw);
                drop(held, width, scratch.words, c.draw);
            }
            R *out = c.out.row<R>(i);
            for (int64_t f = 0; f < width; ++f) put(held[f], out + f);
        }
    });
}

template <class R, class Norm> void backward(const NormCall &c) {
    typedef Wide<R> T;
    const int64_t width = c.x.width;
    parallel(c.sums.rows, [&](int64_t chunk) {
        const Held<R> scratch(width);
        T *held = scratch.numbers;
        double *total = c.sums.row<double>(chunk), *product = c.products.row<double>(chunk);
        for (int64_t f = 0; f < width; ++f) total[f] = product[f] = 0;
        Norm norm(c);
        for (int64_t i = chunk * c.chunk_rows; i < smaller(c.x.rows, (chunk + 1) * c.chunk_rows); ++i) {
            const R *row = c.x.row<const R>(i), *grad = c.grad.row<const R>(i);
            for (int64_t f = 0; f < width; ++f) held[f] = widen(grad[f]);
            if (c.draw.drops()) {
                draw_row(scratch.words, width, uint64_t(c.ids.as<const int64_t>()[i]), c.draw);
                drop(held, width, scratch.words, c.draw);
            }
            norm.begin(row, width);
            if (c.activation == RELU) {
                for (int64_t f = 0; f < width; ++f) held[f] = norm.value(row, f) > T(0) ? held[f] : T(0);
            } else if (c.activation == ELU) {
                for (int64_t f = 0; f < width; ++f) {
                    const T value = norm.value(row, f);
                    held[f] *= value > T(0) ? T(1) : exp_of(value);
                }
            }
            for (int64_t f = 0; f < width; ++f) {
                total[f] += double(held[f]);
                product[f] += double(held[f] * norm.normal(row, f));
            }
            norm.end(row, width, held);
            R *out = c.out.row<R>(i);
            for (int64_t f = 0; f < width; ++f) put(held[f], out + f);
        }
    });
}

}  // namespace

ENTRY(norm_act_drop, NormCall, c) {
    return for_rows(c.x.type, [&]<class R>() INLINED {
        if (c.by_row) forward<R, LayerNorm<R>>(c);
        else forward<R, BatchNorm<R>>(c);
    });
}

ENTRY(norm_act_drop_backward, NormCall, c) {
    return for_rows(c.x.type, [&]<class R>() INLINED {
        if (c.by_row) backward<R, LayerNorm<R>>(c);
        else backward<R, BatchNorm<R>>(c);
    });
}

namespace {

struct BackwardCall {
    Table d_x, x;                              // [N, F]
    Table mean, inv_std, slope;                // [F]
    Table mean_grad, mean_product;             // [F]
    Table counted;                             // uint8 [N], 0 for rows that no statistics are taken of; not given: of all
};

}  // namespace

// d_x = slope * (d_x - mean_grad - xhat * mean_product), of rows that do not count slope * d_x
ENTRY(norm_backward, BackwardCall, c) {
    return for_rows(c.x.type, [&]<class R>() INLINED {
        typedef Wide<R> T;
        const uint8_t *counted = c.counted.as<const uint8_t>();
        const T *mean = c.mean.as<const T>(), *inv_std = c.inv_std.as<const T>(), *slope = c.slope.as<const T>();
        const T *mean_grad = c.mean_grad.as<const T>(), *mean_product = c.mean_product.as<const T>();
        parallel_runs(c.x.rows, 256, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const R *row = c.x.row<const R>(i);
                R *d_x = c.d_x.row<R>(i);
                if (counted && !counted[i]) {
                    for (int64_t f = 0; f < c.x.width; ++f) put(slope[f] * widen(d_x[f]), d_x + f);
                    continue;
                }
                for (int64_t f = 0; f < c.x.width; ++f) {
                    const T normal = (widen(row[f]) - mean[f]) * inv_std[f];
                    put(slope[f] * (widen(d_x[f]) - mean_grad[f] - normal * mean_product[f]), d_x + f);
                }
            }
        });
    });
}
