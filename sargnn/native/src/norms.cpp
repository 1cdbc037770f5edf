// What happens between two layers, in one pass: normalise, activate, drop; and its gradients.
//
//     v = gamma * xhat + beta        out = drop(act(v))        xhat_i = (x_i - mean) / deviation
//
// A batch norm is given as v = slope * x + shift, and its mean and 1 / deviation as vectors. A layer norm's row has its own,
// which are computed where they are used: the row is in the first-level cache then, and nothing is kept for them. The mean is
// taken of the differences from the row's first entry, so that a row of equal entries is normalised to exact zeros.
//
// Letters: N rows, F features. R: type of rows, T: that of numbers.
#include "columns.hpp"
#include "philox.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

enum Activation : int64_t { RELU, ELU, NONE };

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
    INLINE void write_gradient(const R *, int64_t width, const T *g, R *out) const {
        if constexpr (sizeof(R) == 2) each_column(width, [&](int64_t f) INLINED { put(g[f], out + f); });
    }
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

// A sum over a row's features, in vectors, then number by number: add(sum, f) adds to it what belongs to those from f on.
template <class T, class F> INLINE T sum_features(int64_t width, const F &add) {
    Vector<T> even = zeros<T>(), odd = zeros<T>();
    int64_t f = 0;
    for (; f + 2 * LANES<T> <= width; f += 2 * LANES<T>) {
        even = add(even, f);
        odd = add(odd, f + LANES<T>);
    }
    if (f + LANES<T> <= width) even = add(even, f), f += LANES<T>;
    T sum = sum_lanes(even + odd);
    for (; f < width; ++f) sum = add(sum, f);
    return sum;
}

template <class R> struct LayerNorm {
    typedef Wide<R> T;
    const T *gamma, *beta;
    T eps, mean, inv_std;

    explicit LayerNorm(const NormCall &c)
        : gamma(c.slope.as<T>()), beta(c.shift.as<T>()), eps(T(c.eps)), mean(0), inv_std(0) {}
    APART void begin(const R *row, int64_t width) {
        const T first = widen(row[0]);
        const T differences = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
            return sum + (numbers<V>(row + f) - all<V>(first));
        });
        const T center = first + differences / T(width);
        const T squares = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
            const V deviation = numbers<V>(row + f) - all<V>(center);
            return multiply_add(deviation, deviation, sum);
        });
        mean = center, inv_std = T(1) / root_of(squares / T(width) + eps);
    }
    INLINE T normal(const R *row, int64_t f) const { return (widen(row[f]) - mean) * inv_std; }
    INLINE T value(const R *row, int64_t f) const { return gamma[f] * normal(row, f) + beta[f]; }
    // inv_std (g gamma - mean(g gamma) - xhat mean(g gamma xhat))
    APART void write_gradient(const R *row, int64_t width, const T *g, R *out) const {
        const T center = mean, factor = inv_std;
        const T grads = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
            return multiply_add(numbers<V>(g + f), numbers<V>(gamma + f), sum);
        });
        const T products = sum_features<T>(width, [&]<class V>(V sum, int64_t f) INLINED {
            const V xhat = (numbers<V>(row + f) - all<V>(center)) * all<V>(factor);
            return multiply_add(numbers<V>(g + f) * numbers<V>(gamma + f), xhat, sum);
        });
        const T of_grad = grads / T(width), of_product = products / T(width);
        each_column(width, [&](int64_t f) INLINED {
            put(factor * (gamma[f] * g[f] - of_grad - (widen(row[f]) - center) * factor * of_product), out + f);
        });
    }
};

// Dropout of a row, whose elements are drawn first.
template <class T> struct Dropout {
    const Scratch<uint32_t> words;
    const T scale;
    const uint32_t threshold;

    Dropout(const Draw &draw, int64_t width)
        : words(padded_draws(width)), scale(T(draw.scale)), threshold(uint32_t(draw.threshold)) {}
    INLINE T operator()(T x, int64_t f) const { return keep(words[f] >= threshold, x * scale); }
};

// Where numbers of a row are until it is written: in the row itself, or beside it if it is bf16.
template <class R> struct Held {
    Scratch<Wide<R>> room;
    explicit Held(int64_t width) : room(sizeof(R) == 2 ? width : 0) {}
    INLINE Wide<R> *of(R *row) const {
        if constexpr (sizeof(R) == 2) return room;
        else return row;
    }
};

template <class R, class Norm> void forward(const NormCall &c) {
    typedef Wide<R> T;
    const int64_t width = c.x.width;
    const T least = c.activation == RELU ? T(0) : -T(__builtin_inf());
    parallel_runs(c.x.rows, c.chunk_rows, [&](int64_t first, int64_t last) {
        const Held<R> room(width);
        const Dropout<T> drop(c.draw, width);
        Norm norm(c);
        for (int64_t i = first; i < last; ++i) {
            const R *row = c.x.row<const R>(i);
            R *out = c.out.row<R>(i);
            T *held = room.of(out);
            norm.begin(row, width);
            if (c.draw.drops()) draw_row(drop.words, width, uint64_t(c.ids.as<const int64_t>()[i]), c.draw);
            if (c.activation != ELU && !c.draw.drops()) {
                each_column(width, [&](int64_t f) INLINED {
                    const T v = norm.value(row, f);
                    put(least > v ? least : v, out + f);
                });
                continue;
            }
            each_column(width, [&](int64_t f) INLINED {
                const T v = norm.value(row, f);
                held[f] = least > v ? least : v;
            });
            if (c.activation == ELU) {
                for (int64_t f = 0; f < width; ++f) held[f] = held[f] > T(0) ? held[f] : expm1_of(held[f]);
            }
            each_column(width, [&](int64_t f) INLINED { put(drop(held[f], f), out + f); });
        }
    });
}

template <class R, class Norm> void backward(const NormCall &c) {
    typedef Wide<R> T;
    const int64_t width = c.x.width;
    const bool all_pass = c.activation != RELU;
    parallel(c.sums.rows, [&](int64_t chunk) {
        const Held<R> room(width);
        const Scratch<T> slopes(c.activation == ELU ? width : 0);
        const Dropout<T> drop(c.draw, width);
        T *slope = slopes;
        double *total = c.sums.row<double>(chunk), *product = c.products.row<double>(chunk);
        for (int64_t f = 0; f < width; ++f) total[f] = product[f] = 0;
        Norm norm(c);
        for (int64_t i = chunk * c.chunk_rows; i < smaller(c.x.rows, (chunk + 1) * c.chunk_rows); ++i) {
            const R *row = c.x.row<const R>(i), *grad = c.grad.row<const R>(i);
            R *out = c.out.row<R>(i);
            T *g = room.of(out);
            norm.begin(row, width);
            if (c.draw.drops()) draw_row(drop.words, width, uint64_t(c.ids.as<const int64_t>()[i]), c.draw);
            each_column(width, [&](int64_t f) INLINED {
                g[f] = keep((norm.value(row, f) > T(0)) | all_pass, drop(widen(grad[f]), f));
            });
            if (c.activation == ELU) {
                // Of all, for half of them would be a branch that nobody foretells.
                each_column(width, [&](int64_t f) INLINED {
                    const T v = norm.value(row, f);
                    slope[f] = v > T(0) ? T(0) : v;
                });
                for (int64_t f = 0; f < width; ++f) slope[f] = exp_of(slope[f]);
                each_column(width, [&](int64_t f) INLINED { g[f] *= slope[f]; });
            }
            each_column(width, [&](int64_t f) INLINED {
                total[f] += double(g[f]);
                product[f] += double(g[f] * norm.normal(row, f));
            });
            norm.write_gradient(row, width, g, out);
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
                    each_column(c.x.width, [&](int64_t f) INLINED { put(slope[f] * widen(d_x[f]), d_x + f); });
                    continue;
                }
                each_column(c.x.width, [&](int64_t f) INLINED {
                    const T normal = (widen(row[f]) - mean[f]) * inv_std[f];
                    put(slope[f] * (widen(d_x[f]) - mean_grad[f] - normal * mean_product[f]), d_x + f);
                });
            }
        });
    });
}
