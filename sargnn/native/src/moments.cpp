// Sums over the rows of a table, in fp64: chunk by chunk of fixed size, so that they do not depend on the number of threads.
#include "columns.hpp"
#include "rows.hpp"
#include "threads.hpp"

using namespace sargnn;

namespace {

struct MomentsCall {
    Table x;        // [N, F]
    Table counted;  // uint8 [N], 1 for rows that count; not given: all do
    Table means, squares;  // fp64 [chunks, F]
    Table counts;          // fp64 [chunks]
    Word chunk_rows;
};

}  // namespace

// Number, mean and sum of squared deviations of each chunk's rows.
ENTRY(chunk_moments, MomentsCall, c) {
    return for_rows(c.x.type, [&]<class R>() INLINED {
        const int64_t width = c.x.width;
        const uint8_t *counted = c.counted.as<const uint8_t>();
        parallel(c.means.rows, [&](int64_t chunk) {
            const int64_t first = chunk * c.chunk_rows, last = smaller(c.x.rows, first + c.chunk_rows);
            double *mean = c.means.row<double>(chunk), *squares = c.squares.row<double>(chunk);
            for (int64_t f = 0; f < width; ++f) mean[f] = squares[f] = 0;
            int64_t number = 0;
            for (int64_t i = first; i < last; ++i) {
                if (counted && !counted[i]) continue;
                ++number;
                const R *row = c.x.row<const R>(i);
                each_column(width, [&](int64_t f) INLINED { mean[f] += double(widen(row[f])); });
            }
            c.counts.as<double>()[chunk] = double(number);
            for (int64_t f = 0; f < width; ++f) mean[f] /= double(larger(number, int64_t(1)));
            for (int64_t i = first; i < last; ++i) {
                if (counted && !counted[i]) continue;
                const R *row = c.x.row<const R>(i);
                each_column(width, [&](int64_t f) INLINED {
                    const double deviation = double(widen(row[f])) - mean[f];
                    squares[f] += deviation * deviation;
                });
            }
        });
    });
}

namespace {

struct SumsCall {
    Table x;     // [N, F]
    Table sums;  // fp64 [chunks, F]
    Word chunk_rows;
};

}  // namespace

// The sum of each chunk's rows.
ENTRY(chunk_sums, SumsCall, c) {
    return for_rows(c.x.type, [&]<class R>() INLINED {
        parallel(c.sums.rows, [&](int64_t chunk) {
            double *total = c.sums.row<double>(chunk);
            for (int64_t f = 0; f < c.x.width; ++f) total[f] = 0;
            for (int64_t i = chunk * c.chunk_rows; i < smaller(c.x.rows, (chunk + 1) * c.chunk_rows); ++i) {
                const R *row = c.x.row<const R>(i);
                each_column(c.x.width, [&](int64_t f) INLINED { total[f] += double(widen(row[f])); });
            }
        });
    });
}
