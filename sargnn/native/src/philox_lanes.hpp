// Philox 4x32-10 of several counters at a time (philox.hpp has it for one): each lane has one, in the lower halves of its words.
#pragma once
#include "rows.hpp"

namespace sargnn {

// Counters in, words out. The upper halves of words hold anything.
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

}  // namespace sargnn
