// Dropout of rows, and uniform numbers for them: both drawn by the rows' original ids.
#include "columns.hpp"
#include "philox.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

constexpr int64_t CHUNK_ROWS = 256;

// f(i, words) for each row, words [width] being its draws.
template <class F> void each_drawn_row(const Table &ids, int64_t width, const Draw &draw, const F &f) {
    parallel_runs(ids.rows, CHUNK_ROWS, [&](int64_t first, int64_t last) {
        const Scratch<uint32_t> words(padded_draws(width));
        for (int64_t i = first; i < last; ++i) {
            draw_row(words, width, uint64_t(ids.as<const int64_t>()[i]), draw);
            f(i, static_cast<const uint32_t *>(words));
        }
    });
}

struct DropoutCall {
    Table x;    // [N, F]
    Table ids;  // int64 [N]
    Draw draw;
    Table out;  // [N, F], may be x
};

}  // namespace

// out[i, f] = scale * x[i, f] where the draw keeps (i, f), else 0
ENTRY(dropout, DropoutCall, c) {
    return for_rows(c.x.type, [&]<class R>() INLINED {
        typedef Wide<R> T;
        const T scale = T(c.draw.scale);
        const uint32_t threshold = uint32_t(c.draw.threshold);
        each_drawn_row(c.ids, c.x.width, c.draw, [&](int64_t i, const uint32_t *words) {
            const R *row = c.x.row<const R>(i);
            R *out = c.out.row<R>(i);
            each_column(c.x.width, [&](int64_t f) INLINED {
                put(keep(words[f] >= threshold, widen(row[f]) * scale), out + f);
            });
        });
    });
}

namespace {

struct UniformCall {
    Table ids;  // int64 [N]
    Draw draw;
    double bound;
    Table out;  // fp32 [N, F]
};

}  // namespace

// out[i, f] in (-bound, bound)
ENTRY(uniform, UniformCall, c) {
    each_drawn_row(c.ids, c.out.width, c.draw, [&](int64_t i, const uint32_t *words) {
        float *out = c.out.row<float>(i);
        for (int64_t f = 0; f < c.out.width; ++f) out[f] = float(c.bound * (2.0 * ((words[f] + 0.5) * 0x1p-32) - 1.0));
    });
    return 0;
}
