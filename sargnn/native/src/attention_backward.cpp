// Attention backward: a walk over sources for the gradients of their rows, in which gat finds those of its scores, too; gatv2 and
// products have one over destinations for the gradients of theirs, so that no two threads add to one row.
//
// Of edges with rows (products) the walk over destinations writes what that over sources reads, instead of computing it again.
#include "attention.hpp"

using namespace sargnn;

namespace {

// Gradients of the map in one lane, fp64 [lanes, C + 1, columns].
template <class T> LongSums<T> map_sums(const Attention &a, const Table &d_map, int64_t lane, int64_t first) {
    const int64_t rows = d_map.given() ? a.map.rows : 0, start = a.edges.run(first).start;
    return LongSums<T>(d_map.as<double>() + lane * rows * a.map.width, rows, a.map.width, start);
}

struct DestinationCall {
    Attention of;
    Table records;         // [M, 4 K]
    Table grad;            // [M, K D]
    Table d_queries;       // of x or q, wide, added to
    Table d_att;           // fp64 [lanes, K D], added to
    Table d_map;           // fp64 [lanes (C + 1), K D], added to
    Table d_edge_out;      // of t [M, K F]
    Table d_edge_queries;  // of p [M, K F], wide, added to
    Table d_edge_rows;     // of f [E, F], overwritten; may be missing
    Table all_dropped, all_d;  // [E, K], written where edges have rows
};

// d f_e = sum over heads of dropped d t_i + d x p_i
template <class R>
APART void write_edge_gradients(const DestinationCall &c, const Batch &b, const Wide<R> *dropped, const Wide<R> *d, const Wide<R> *of_out,
                          const Wide<R> *queries) {
    typedef Wide<R> T;
    const int64_t heads = c.of.heads, width = c.of.edge_width(), held = held_of<T>(heads), whole = whole_of<T>(width);
    for (int64_t e = 0; e < b.count; ++e)
        each_place<T>(1, width, [&](int64_t at, int64_t, const Tail<T> &there) INLINED {
            Vector<T> total = zeros<T>();
            for (int64_t h = 0; h < heads; ++h) {
                const Vector<T> x = splat(dropped[e * held + h]) * load(of_out + h * whole + at);
                total = total + (x + splat(d[e * held + h]) * load(queries + h * whole + at));
            }
            store(total, c.d_edge_rows.row<R>(b.start + e) + at, there);
        });
}

template <class R> void by_destination(const DestinationCall &c) {
    typedef Wide<R> T;
    const Attention &a = c.of;
    const bool pairs = a.kind == GATV2;
    parallel(a.edges.chunks(), [&](int64_t chunk) {
        Room<R> room(a, true);
        const int64_t heads = room.heads, width = room.width, of_edges = a.edge_width(), first = a.edges.first(chunk);
        const int64_t edge_size = heads * whole_of<T>(of_edges);
        const Ends<R> values = room.ends(Sources<R>(a.values), width);
        const Ends<R> keys = room.ends(Sources<R>(pairs ? a.values : a.keys), room.score_width);
        LongSums<T> of_map = map_sums<T>(a, c.d_map, chunk, first);
        Scratch<T> gradient(heads * room.whole), d_own(room.own_size), of_att(pairs ? room.own_size : 0);
        Scratch<T> of_edge_out(edge_size), d_edge_own(edge_size), edge_total(edge_size);
        for (int64_t l = first; l < a.edges.first(chunk + 1); ++l) {
            const Run run = a.edges.run(l);
            const Records<T> record = {c.records.row<const T>(run.row), 0, nullptr};
            room.begin(nullptr, a.queries.row<const R>(run.row));
            widen_row(c.grad.row<const R>(run.row), static_cast<T *>(gradient), heads, width);
            widen_row(c.d_queries.row<const T>(run.row), static_cast<T *>(d_own), heads, room.score_width);
            if (pairs) __builtin_memset(of_att, 0, size_t(room.own_size) * sizeof(T));
            if (of_edges) {
                widen_row(a.edge_queries.row<const R>(run.row), static_cast<T *>(room.edge_own), heads, of_edges);
                widen_row(c.d_edge_out.row<const R>(run.row), static_cast<T *>(of_edge_out), heads, of_edges);
                widen_row(c.d_edge_queries.row<const T>(run.row), static_cast<T *>(d_edge_own), heads, of_edges);
            }
            each_batch(run, room.batch, [&](const Batch &b) {
                const Seen<T> seen = room.seen(b, nullptr);
                if (a.scores.given()) room.take(a.scores, nullptr, b, room.weight);
                else room.score(room.number_ends(Sources<T>(c.records)), keys, seen, b);
                if (of_edges) write_dots<R>(room.weight, true, room.edge_ends(), b, heads, of_edges, room.edge_own, T(a.scaling));
                record.weigh(room.weight, b, heads);
                room.drop_apart(run.row, b, false);
                write_dots<R>(room.dots, false, values, b, heads, width, gradient, T(1));
                if (of_edges) write_dots<R>(room.dots, true, room.edge_ends(), b, heads, of_edges, of_edge_out, T(1));
                record.differentiate(room.weight, room.dropped, room.dots, b, heads, pairs ? T(1) : T(a.scaling));
                if (pairs) {
                    room.add_pair_gradients(d_own, of_att, values, seen, a.featured(), b);
                    if (a.featured())
                        for (int64_t h = 0; h < heads; ++h)
                            room.found.template add_outer<PARTS, T>(of_map.sums + h * width, a.map.width, seen.at + h * room.whole,
                                                                    seen.stride, width);
                } else {
                    sum_weighted<R>(room.batch_total, keys, b, heads, room.score_width, room.dots);
                    add_held<T>(d_own, room.batch_total, room.own_size);
                }
                if (of_edges) {
                    room.keep(c.all_dropped, b, room.dropped);
                    room.keep(c.all_d, b, room.dots);
                    sum_weighted<R>(edge_total, room.edge_ends(), b, heads, of_edges, room.dots);
                    add_held<T>(d_edge_own, edge_total, edge_size);
                    if (c.d_edge_rows.given()) write_edge_gradients<R>(c, b, room.dropped, room.dots, of_edge_out, room.edge_own);
                }
            });
            narrow_row(static_cast<const T *>(d_own), c.d_queries.row<T>(run.row), heads, room.score_width);
            if (of_edges) narrow_row(static_cast<const T *>(d_edge_own), c.d_edge_queries.row<T>(run.row), heads, of_edges);
            if (pairs) {
                double *total = c.d_att.row<double>(chunk);
                for (int64_t h = 0; h < heads; ++h)
                    for (int64_t f = 0; f < width; ++f) total[h * width + f] += double(of_att[h * room.whole + f]);
            }
            of_map.flush_after(run.end);
        }
        of_map.flush(0);
    });
}

struct SourceCall {
    Attention of;
    Table order;           // int32 [E], the place of each edge among those whose scores, features and rows are kept
    Table records;         // [M, 4 K]
    Table grad;            // [M, K D]
    Table all_dropped, all_d;  // as of DestinationCall, read where they are given
    Tables d_values, d_keys;   // like values and keys; d_values may be missing, then no source's gradient is written
    Table d_queries;       // of er [M, K], added to (gat)
    Table lanes;           // [slots M, K], room for that of a lane where there are several
    Table d_map;           // fp64 [lanes (C + 1), K], added to (gat)
    Word one_table;        // d_keys are d_values, which get the sum
    Word adds;
};

// gat: gradients of scores, in place of dots, added to the source's and to each destination's.
template <class T>
APART void add_score_gradients(const SourceCall &c, const Batch &b, const Seen<T> &seen, const T *weight, const T *dropped, T *dots,
                         T *d_own, T *d_er) {
    const int64_t heads = c.of.heads, held = held_of<T>(heads), count = b.count, stride = c.records.stride;
    const int32_t *others = c.of.edges.ends() + b.start;
    const T *const records = c.records.as<const T>();
    const Seen<T> own = seen;
    const Part<T> slope = splat<1>(T(c.of.scaling));
    by_part<T>(heads, [&](int64_t h, const Tail<T, 1> &there) INLINED {
        const Part<T> shared = load<1>(own.at + h);
        Part<T> total = load<1>(d_own + h);
        for (int64_t e = 0; e < count; ++e) {
            const int64_t i = others[e], at = e * held + h;
            const T *record = records + i * stride + h;
            const Part<T> mine = own.stride ? load<1>(own.at + e * own.stride + h) : shared;
            const Part<T> raw = mine + load(record, there), delta = load(record + 3 * heads, there);
            const Part<T> d = load<1>(dropped + at) * load<1>(dots + at) - load<1>(weight + at) * delta;
            const Part<T> through = where_positive(raw, d, d * slope);
            total = total + through;
            store(through, dots + at);
            T *to = d_er + i * heads + h;
            store(load(to, there) + through, to, there);
        }
        store(total, d_own + h);
    });
}

template <class R> void sources(const SourceCall &c, int64_t chunk, Wide<R> *d_er) {
    typedef Wide<R> T;
    const Attention &a = c.of;
    const bool sums = a.kind == GAT, pairs = a.kind == GATV2, products = a.kind == PRODUCTS;
    Room<R> room(a, true);
    const int64_t heads = room.heads, width = room.width, size = heads * room.whole, first = a.edges.first(chunk);
    const int32_t *order = c.order.given() ? c.order.as<const int32_t>() : nullptr;
    const Ends<R> grads = room.ends(Sources<R>(c.grad), width);
    const Ends<T> numbers = room.number_ends(Sources<T>(c.records));  // of gat
    const Ends<R> others = room.ends(Sources<R>(a.queries), room.score_width);
    const Records<T> records = {c.records.as<const T>(), c.records.stride, a.edges.ends()};
    const Sources<R> values(a.values), d_values(c.d_values);
    const Sources<R> keys(pairs ? a.values : a.keys), d_keys(c.d_keys);
    const Sources<T> key_numbers(a.keys), d_key_numbers(c.d_keys);  // of gat
    const bool given = products && c.all_d.given(), writes = c.d_values.given();
    LongSums<T> of_map = map_sums<T>(a, c.d_map, chunk, first);
    Scratch<T> own(size), d_key_room(room.own_size);
    T *total = room.total, *d_own = pairs || c.one_table ? total : static_cast<T *>(d_key_room);
    for (int64_t l = first; l < a.edges.first(chunk + 1); ++l) {
        const Run run = a.edges.run(l);
        const int64_t j = run.row;
        R *to = writes ? const_cast<R *>(d_values[j]) : nullptr;
        R *to_keys = writes && products && !c.one_table ? const_cast<R *>(d_keys[j]) : nullptr;
        T *to_numbers = writes && sums ? const_cast<T *>(d_key_numbers[j]) : nullptr;
        if (c.adds && writes) widen_row(static_cast<const R *>(to), total, heads, width);
        else __builtin_memset(total, 0, size_t(size) * sizeof(T));
        if (d_own != total) __builtin_memset(d_own, 0, size_t(room.own_size) * sizeof(T));
        if (c.adds && to_keys) widen_row(static_cast<const R *>(to_keys), d_own, heads, room.score_width);
        if (c.adds && to_numbers) __builtin_memcpy(d_own, to_numbers, size_t(heads) * sizeof(T));
        const int64_t later = a.edges.later(l);
        fetch(values[later], heads * width * int64_t(sizeof(R)));
        widen_row(values[j], static_cast<T *>(own), heads, width);
        room.begin(sums ? key_numbers[j] : nullptr, keys[j]);
        each_batch(run, room.batch, [&](const Batch &b) {
            if (given) {
                room.take(c.all_dropped, order, b, room.dropped);
                room.take(c.all_d, order, b, room.dots);
                sum_weighted<R>(room.batch_total, grads, b, heads, width, room.dropped);
                add_held<T>(total, room.batch_total, size);
            } else {
                const Seen<T> seen = room.seen(b, order);
                if (a.scores.given()) room.take(a.scores, order, b, room.weight);
                else room.score(numbers, others, seen, b);
                records.weigh(room.weight, b, heads);
                room.drop_apart(j, b, true);
                sum_weighted_and_dots<R>(room.batch_total, grads, b, heads, width, room.dropped, own, room.dots);
                add_held<T>(total, room.batch_total, size);
                if (sums) {
                    add_score_gradients<T>(c, b, seen, room.weight, room.dropped, room.dots, d_own, d_er);
                    if (a.featured()) room.found.template add_outer<1, T>(of_map.sums, heads, room.dots, room.held, heads);
                } else {
                    records.differentiate(room.weight, room.dropped, room.dots, b, heads, pairs ? T(1) : T(a.scaling));
                    if (pairs) room.add_pair_gradients(total, nullptr, others, seen, false, b);
                }
            }
            if (products) {
                sum_weighted<R>(room.batch_total, others, b, heads, room.score_width, room.dots);
                add_held<T>(d_own, room.batch_total, room.own_size);
            }
        });
        if (to) narrow_row(static_cast<const T *>(total), to, heads, width);
        if (to_keys) narrow_row(static_cast<const T *>(d_own), to_keys, heads, room.score_width);
        if (to_numbers) __builtin_memcpy(to_numbers, d_own, size_t(heads) * sizeof(T));
        of_map.flush_after(run.end);
    }
    of_map.flush(0);
}

template <class R> void by_source(const SourceCall &c) {
    typedef Wide<R> T;
    const int64_t chunks = c.of.edges.chunks(), numbers = c.d_queries.rows * c.d_queries.width;
    T *d_er = c.d_queries.as<T>();
    if (c.of.kind != GAT) return parallel(chunks, [&](int64_t chunk) { sources<R>(c, chunk, nullptr); });
    if (chunks == 1) return sources<R>(c, 0, d_er);
    const auto room = [&](int64_t slot) { return c.lanes.as<T>() + slot * numbers; };
    ordered_lanes(
        chunks, c.lanes.rows * c.lanes.width / larger<int64_t>(numbers, 1),
        [&](int64_t lane, int64_t slot) {
            __builtin_memset(room(slot), 0, size_t(numbers) * sizeof(T));
            sources<R>(c, lane, room(slot));
        },
        [&](int64_t, int64_t slot) {
            for (int64_t k = 0; k < numbers; ++k) d_er[k] += room(slot)[k];
        });
}

struct RecordCall {
    Table er, maximum, denominator;  // [M, K]; er may be missing: 0
    Table grad, out;                 // [M, K D]
    Table records;                   // [M, 4 K], written
};

}  // namespace

ENTRY(attention_by_destination, DestinationCall, c) {
    return for_rows(c.of.values.first().type, [&]<class R>() INLINED { by_destination<R>(c); });
}

ENTRY(attention_by_source, SourceCall, c) {
    return for_rows(c.of.values.first().type, [&]<class R>() INLINED { by_source<R>(c); });
}

// (er_i, m_i, 1 / s_i, <grad_i, out_i> per head); 1 / s_i is 0 for a destination without edges
ENTRY(attention_records, RecordCall, c) {
    return for_rows(c.grad.type, [&]<class R>() INLINED {
        typedef Wide<R> T;
        const int64_t heads = c.maximum.width, width = c.grad.width / larger<int64_t>(heads, 1);
        parallel_runs(c.records.rows, 1024, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                T *record = c.records.row<T>(i);
                for (int64_t h = 0; h < heads; ++h) {
                    const T sum = c.denominator.row<const T>(i)[h];
                    record[h] = c.er.given() ? c.er.row<const T>(i)[h] : T(0);
                    record[heads + h] = c.maximum.row<const T>(i)[h];
                    record[2 * heads + h] = sum != 0 ? T(1) / sum : T(0);
                    Vector<T> product = zeros<T>();
                    const R *g = c.grad.row<const R>(i) + h * width;
                    each_place<T>(1, width, [&](int64_t at, int64_t, const Tail<T> &there) INLINED {
                        const Vector<T> row = c.out.type == c.grad.type
                                                  ? load(c.out.row<const R>(i) + h * width + at, there)
                                                  : load(c.out.row<const T>(i) + h * width + at, there);
                        product = multiply_add(load(g + at, there), row, product);
                    });
                    record[3 * heads + h] = sum_lanes(product);
                }
            }
        });
    });
}
