// Attention forward: a walk over destinations, whose softmax goes on from block to block. Their rows are normalised at all times.
#include "attention.hpp"

using namespace sargnn;

namespace {

struct ForwardCall {
    Attention of;
    Table out;                   // [M, K D], overwritten where the denominator is 0
    Table maximum, denominator;  // [M, K]
    Table edge_out;              // [M, K F], as out
};

// out = factor total, or carry out + factor total
template <class T>
APART void finish(T *out, const T *total, const T *factor, const T *carry, bool adds, int64_t heads, int64_t width) {
    for (int64_t h = 0; h < heads; ++h) {
        const Vector<T> scale = splat(factor[h]), kept = splat(carry[h]);
        each_place<T>(1, width, [&](int64_t at, int64_t, const Tail<T> &there) INLINED {
            T *to = out + h * width + at;
            const Vector<T> sum = load(total + h * whole_of<T>(width) + at) * scale;
            store(adds ? multiply_add(load(to, there), kept, sum) : sum, to, there);
        });
    }
}

template <class R> void forward(const ForwardCall &c) {
    typedef Wide<R> T;
    const Attention &a = c.of;
    parallel(a.edges.chunks(), [&](int64_t chunk) {
        Room<R> room(a, false);
        const Softmax<T> softmax = room.softmax();
        const int64_t edge_width = a.edge_width();
        Scratch<T> edge_total(room.heads * whole_of<T>(edge_width));
        const Ends<R> values = room.ends(Sources<R>(a.values), room.width);
        const Ends<T> numbers = room.number_ends(Sources<T>(a.keys));  // of gat
        const Ends<R> rows = room.ends(Sources<R>(a.kind == GATV2 ? a.values : a.keys), room.score_width);
        for (int64_t l = a.edges.first(chunk); l < a.edges.first(chunk + 1); ++l) {
            const Run run = a.edges.run(l);
            const int64_t i = run.row, bytes = room.heads * int64_t(sizeof(T));
            T *maximum = c.maximum.row<T>(i), *denominator = c.denominator.row<T>(i), *out = c.out.row<T>(i);
            a.edges.fetch_later(c.out, l, sizeof(T));
            if (run.start == run.end) continue;
            room.begin(a.queries.row<const T>(i), a.queries.row<const R>(i));
            if (edge_width) widen_row(a.edge_queries.row<const R>(i), static_cast<T *>(room.edge_own), room.heads, edge_width);
            __builtin_memcpy(room.maximum, maximum, size_t(bytes));
            __builtin_memcpy(room.denominator, denominator, size_t(bytes));
            each_batch(run, room.batch, [&](const Batch &b) {
                const bool adds = room.denominator[0] != 0;
                const Seen<T> seen = room.seen(b, nullptr);
                room.score(numbers, rows, seen, b);
                if (edge_width)
                    write_dots(static_cast<T *>(room.weight), true, room.edge_ends(), b, room.heads, edge_width,
                               static_cast<const T *>(room.edge_own), T(a.scaling));
                if (a.scores.given()) room.keep(a.scores, b, room.weight);
                softmax.fold(room.weight, b.count, room.heads);
                if (a.draw.drops()) room.drop(i, b, false);
                if (a.weight.given()) room.multiply(room.weight, b);
                sum_weighted(static_cast<T *>(room.batch_total), values, b, room.heads, room.width, static_cast<const T *>(room.weight));
                finish<T>(out, room.batch_total, room.factor, room.carry, adds, room.heads, room.width);
                if (edge_width) {
                    sum_weighted(static_cast<T *>(edge_total), room.edge_ends(), b, room.heads, edge_width,
                                 static_cast<const T *>(room.weight));
                    finish<T>(c.edge_out.row<T>(i), edge_total, room.factor, room.carry, adds, room.heads, edge_width);
                }
            });
            __builtin_memcpy(maximum, room.maximum, size_t(bytes));
            __builtin_memcpy(denominator, room.denominator, size_t(bytes));
        }
    });
}

}  // namespace

ENTRY(attention_forward, ForwardCall, c) {
    return for_rows(c.of.values.first().type, [&]<class R>() INLINED { forward<R>(c); });
}
