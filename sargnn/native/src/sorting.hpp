// Sorting of numbers that are not negative, alone or with what stands beside them; equal ones stay in their order.
//
// Few are inserted one after another. More go to 256 places by their last byte, then by the one before it, and so on; bytes in
// which none differ are left out.
#pragma once
#include "border.hpp"
#include "threads.hpp"

namespace sargnn {

// GrowingRoom for numbers; it grows where more are asked for, and what it held is lost then.
template <class T> class GrowingRoom {
  public:
    GrowingRoom() = default;
    ~GrowingRoom() { __builtin_free(at_); }
    GrowingRoom(const GrowingRoom &) = delete;
    GrowingRoom &operator=(const GrowingRoom &) = delete;
    T *of(int64_t count) {
        if (count > count_) {
            __builtin_free(at_);
            count_ = larger(count, 2 * count_);
            at_ = static_cast<T *>(allocate_aligned(count_ * int64_t(sizeof(T))));
        }
        return at_;
    }

  private:
    T *at_ = nullptr;
    int64_t count_ = 0;
};

template <class K, class V> class Sorter {
  public:
    // values: nullptr if nothing stands beside the keys.
    void sort(K *keys, V *values, int64_t count) {
        uint64_t differ = 0;
        bool ascends = true;
        for (int64_t i = 1; i < count; ++i) {
            ascends &= keys[i - 1] <= keys[i];
            differ |= uint64_t(keys[i] ^ keys[0]);
        }
        if (ascends) return;
        if (count <= FEW) return insert(keys, values, count);
        K *from = keys, *to = keys_.of(count);
        V *values_from = values, *values_to = values ? values_.of(count) : nullptr;
        for (int shift = 0; shift < 64; shift += 8) {
            if (!((differ >> shift) & 255)) continue;
            place(from, values_from, to, values_to, count, shift);
            swap(from, to), swap(values_from, values_to);
        }
        if (from == keys) return;
        __builtin_memcpy(keys, from, size_t(count) * sizeof(K));
        if (values) __builtin_memcpy(values, values_from, size_t(count) * sizeof(V));
    }

  private:
    static constexpr int64_t FEW = 48;
    GrowingRoom<K> keys_;
    GrowingRoom<V> values_;

    template <class T> static INLINE void swap(T *&x, T *&y) {
        T *z = x;
        x = y, y = z;
    }
    static INLINE void insert(K *keys, V *values, int64_t count) {
        for (int64_t i = 1; i < count; ++i) {
            const K key = keys[i];
            const V value = values ? values[i] : V();
            int64_t j = i;
            for (; j > 0 && keys[j - 1] > key; --j) {
                keys[j] = keys[j - 1];
                if (values) values[j] = values[j - 1];
            }
            keys[j] = key;
            if (values) values[j] = value;
        }
    }
    static INLINE void place(const K *from, const V *values, K *to, V *values_to, int64_t count, int shift) {
        int64_t begins[257] = {};
        for (int64_t i = 0; i < count; ++i) ++begins[((uint64_t(from[i]) >> shift) & 255) + 1];
        for (int k = 1; k < 256; ++k) begins[k] += begins[k - 1];
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = begins[(uint64_t(from[i]) >> shift) & 255]++;
            to[at] = from[i];
            if (values) values_to[at] = values[i];
        }
    }
};

}  // namespace sargnn
