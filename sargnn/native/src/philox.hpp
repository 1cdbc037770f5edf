// Philox 4x32-10 (Salmon et al., SC 2011); what keys and counters are made of: sargnn/rng.py.
#pragma once
#include "rows.hpp"

namespace sargnn {

// A draw: seed and epoch are the key, tag the last word of the counter; below the threshold an element is dropped, a threshold
// of 0 drops nothing; `scale` multiplies what is kept.
struct Draw {
    uint64_t seed, epoch, tag, threshold;
    double scale;

    bool drops() const { return threshold > 0; }
};

struct Words {
    uint32_t word[4];
};

INLINE Words philox(uint64_t source, uint64_t destination, uint64_t group, uint64_t tag, uint64_t seed, uint64_t epoch) {
    uint32_t c0 = uint32_t(source), c1 = uint32_t(destination), c2 = uint32_t(group), c3 = uint32_t(tag);
    uint32_t key0 = uint32_t(seed), key1 = uint32_t(epoch);
    UNROLL for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = uint64_t(c0) * 0xD2511F53u, product1 = uint64_t(c2) * 0xCD9E8D57u;
        const uint32_t before1 = c1, before3 = c3;
        c0 = uint32_t(product1 >> 32) ^ before1 ^ key0;
        c1 = uint32_t(product1);
        c2 = uint32_t(product0 >> 32) ^ before3 ^ key1;
        c3 = uint32_t(product0);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// The same for several counters at a time, each in the lower halves of its lanes; the upper halves of words hold anything.
INLINE void philox_rounds(Longs &c0, Longs &c1, Longs &c2, Longs &c3, uint64_t seed, uint64_t epoch) {
    const Longs by0 = Longs{} + 0xD2511F53u, by1 = Longs{} + 0xCD9E8D57u;
    uint32_t key0 = uint32_t(seed), key1 = uint32_t(epoch);
    UNROLL for (int round = 0; round < 10; ++round) {
        const Longs product0 = product_of_lower(c0, by0), product1 = product_of_lower(c2, by1);
        c0 = (product1 >> 32) ^ c1 ^ uint64_t(key0);
        c1 = product1;
        c2 = (product0 >> 32) ^ c3 ^ uint64_t(key1);
        c3 = product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

constexpr int DRAWN_TOGETHER = PART_BYTES / 8;  // counters, of four words each

// How many words a row's draws take: all that are drawn together.
INLINE int64_t padded_draws(int64_t width) {
    constexpr int64_t WORDS = 4 * DRAWN_TOGETHER;
    return (width + WORDS - 1) / WORDS * WORDS;
}

// The draws of a row's elements, as many as `padded_draws`: several counters at a time, each in a 64-bit lane, whose upper half
// holds anything until it is cut off. `node`: the row's original id.
APART inline void draw_row(uint32_t *words, int64_t width, uint64_t node, const Draw &draw) {
    constexpr int EACH = DRAWN_TOGETHER;
    const Longs lower = Longs{} + 0xFFFFFFFF;
    Longs group = {};
    UNROLL for (int k = 0; k < EACH; ++k) group[k] = uint64_t(k);
    for (int64_t f = 0; f < width; f += 4 * EACH, group += uint64_t(EACH)) {
        Longs c0 = Longs{} + node, c1 = {}, c2 = group, c3 = Longs{} + draw.tag;
        philox_rounds(c0, c1, c2, c3, draw.seed, draw.epoch);
        const Longs first = (c0 & lower) | (c1 << 32), second = (c2 & lower) | (c3 << 32);
        uint64_t pairs[2 * EACH];
        UNROLL for (int k = 0; k < EACH; ++k) pairs[2 * k] = first[k], pairs[2 * k + 1] = second[k];
        __builtin_memcpy(words + f, pairs, sizeof(pairs));
    }
}

// x where it is kept, else 0; by bits, for a choice between numbers is a branch to GCC.
template <class T> INLINE T keep(bool kept, T x) {
    typedef typename IntegerOf<T>::type Integer;
    Integer bits;
    __builtin_memcpy(&bits, &x, sizeof x);
    bits &= -Integer(kept);
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

// Dropout of an edge's weights, one for each head; source, destination: original ids.
template <class T> INLINE void drop_edge(T *weight, uint64_t source, uint64_t destination, int64_t heads, const Draw &draw) {
    const T scale = T(draw.scale);
    for (int64_t h = 0; h < heads; h += 4) {
        const Words words = philox(source, destination, uint64_t(h / 4), draw.tag, draw.seed, draw.epoch);
        const int64_t count = smaller<int64_t>(4, heads - h);
        for (int64_t k = 0; k < count; ++k) weight[h + k] = words.word[k] >= draw.threshold ? weight[h + k] * scale : T(0);
    }
}

}  // namespace sargnn
