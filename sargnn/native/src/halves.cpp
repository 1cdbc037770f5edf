// Passes over bf16 rows with fp32 numbers beside them, for which PyTorch would make fp32 copies of the rows.
#include "columns.hpp"
#include "rows.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

constexpr int64_t CHUNK_ROWS = 256, CHUNK_NUMBERS = 1 << 14;

struct HalvesCall {
    Table upper;  // bf16, upper halves of the bits of fp32 sums
    Table lower;  // int16
};

}  // namespace

// Sums become rows, in place.
ENTRY(join_halves, HalvesCall, c) {
    parallel_runs(c.upper.rows, CHUNK_NUMBERS, [&](int64_t first, int64_t last) {
        bf16 *upper = c.upper.as<bf16>() + first;
        const int16_t *lower = c.lower.as<const int16_t>() + first;
        each_column(last - first, [&](int64_t f) INLINED {
            const uint32_t bits = uint32_t(upper[f].bits) << 16 | uint16_t(lower[f]);
            float sum;
            __builtin_memcpy(&sum, &bits, 4);
            put(sum, upper + f);
        });
    });
    return 0;
}

namespace {

struct ScaleCall {
    Table rows;     // bf16 [N, F]
    Table factors;  // fp32 [N]
};

}  // namespace

// rows[i] *= factors[i]
ENTRY(scale_rows, ScaleCall, c) {
    parallel_runs(c.rows.rows, CHUNK_ROWS, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            bf16 *row = c.rows.row<bf16>(i);
            const float factor = c.factors.as<const float>()[i];
            each_column(c.rows.width, [&](int64_t f) INLINED { put(widen(row[f]) * factor, row + f); });
        }
    });
    return 0;
}

namespace {

struct AddCall {
    Table total;  // fp32 [N, F]
    Table rows;   // bf16 [N, F]
};

}  // namespace

// total += rows
ENTRY(add_table, AddCall, c) {
    parallel_runs(c.total.rows, CHUNK_ROWS, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
            float *total = c.total.row<float>(i);
            const bf16 *row = c.rows.row<const bf16>(i);
            each_column(c.total.width, [&](int64_t f) INLINED { total[f] += widen(row[f]); });
        }
    });
    return 0;
}
