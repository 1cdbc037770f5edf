// The library's threads: work is cut into chunks that do not depend on how many threads there are, nor do results.
#pragma once
#include "border.hpp"

namespace sargnn {

// Calls work(state, c) for every c below `chunks`, on as many threads as were set; one that is called meanwhile from another
// thread of the process does its chunks alone.
void run_chunks(int64_t chunks, void (*work)(void *state, int64_t chunk), void *state);

// Lets another thread go on.
void let_others();

// How many threads were set.
int64_t num_threads();

template <class F> void parallel(int64_t chunks, const F &f) {
    run_chunks(
        chunks, [](void *state, int64_t chunk) { (*static_cast<const F *>(state))(chunk); }, const_cast<F *>(&f));
}

// f(first, last) for runs of about `each` of `count` things.
template <class F> void parallel_runs(int64_t count, int64_t each, const F &f) {
    parallel((count + each - 1) / each, [&](int64_t c) { f(c * each, smaller(count, (c + 1) * each)); });
}

// work(lane, slot) for every lane, as many at a time as there are slots, and then merge(lane, slot), in the order of the lanes: what
// is merged does not depend on how many slots there are.
template <class Work, class Merge> void ordered_lanes(int64_t lanes, int64_t slots, const Work &work, const Merge &merge) {
    int64_t next = 0, merged = 0;
    parallel(slots, [&](int64_t slot) {
        for (;;) {
            const int64_t lane = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (lane >= lanes) return;
            work(lane, slot);
            while (__atomic_load_n(&merged, __ATOMIC_ACQUIRE) != lane) let_others();
            merge(lane, slot);
            __atomic_store_n(&merged, lane + 1, __ATOMIC_RELEASE);
        }
    });
}

// Room for numbers, aligned to whole vectors; a call's own.
template <class T> class Scratch {
  public:
    explicit Scratch(int64_t count) : at_(static_cast<T *>(allocate(count * int64_t(sizeof(T))))) {}
    ~Scratch() { __builtin_free(at_); }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    operator T *() const { return at_; }

  private:
    static void *allocate(int64_t bytes);
    T *at_;
};
void *allocate_aligned(int64_t bytes);
template <class T> void *Scratch<T>::allocate(int64_t bytes) { return allocate_aligned(bytes); }

}  // namespace sargnn
