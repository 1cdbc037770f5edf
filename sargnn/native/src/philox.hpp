// Philox 4x32-10 (Salmon et al., SC 2011); what keys and counters are made of: sargnn/rng.py.
#pragma once
#include "border.hpp"

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

// Dropout of a row of numbers in place; `node`: its original id.
template <class T> INLINE void drop_row(T *row, int64_t width, uint64_t node, const Draw &draw) {
    const T scale = T(draw.scale);
    for (int64_t f = 0; f < width; f += 4) {
        const Words words = philox(node, 0, uint64_t(f / 4), draw.tag, draw.seed, draw.epoch);
        const int64_t count = smaller<int64_t>(4, width - f);
        for (int64_t k = 0; k < count; ++k) row[f + k] = words.word[k] >= draw.threshold ? row[f + k] * scale : T(0);
    }
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
