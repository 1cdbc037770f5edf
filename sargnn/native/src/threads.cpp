// The library's threads. They are made at the first call that needs them, and anew in a process that was forked.
#include "threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

namespace sargnn {
namespace {

constexpr int MOST = 256;
constexpr int SPINS = 2000;  // looks, some microseconds, before a thread sleeps: one operation follows another

struct Team {
    pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;  // one call at a time has the others
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t called = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
    int64_t number = 0;  // of the call under way
    int64_t chunks = 0, next = 0, working = 0;
    int helpers = 0, wanted = 0;  // threads there are beside the caller; of them, those that take part
    void (*work)(void *, int64_t) = nullptr;
    void *state = nullptr;
};

Team *team = nullptr;
int threads = 1;
pid_t owner = 0;

void take_chunks(Team *t) {
    const int64_t chunks = t->chunks;
    for (;;) {
        const int64_t c = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (c >= chunks) return;
        t->work(t->state, c);
    }
}

struct Helper {
    Team *team;
    int place;
};

void *help(void *given) {
    const Helper me = *static_cast<Helper *>(given);
    free(given);
    Team *t = me.team;
    int64_t seen = 0;
    for (;;) {
        for (int k = 0; k < SPINS && __atomic_load_n(&t->number, __ATOMIC_ACQUIRE) == seen; ++k) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        pthread_mutex_lock(&t->lock);
        while (t->number == seen) pthread_cond_wait(&t->called, &t->lock);
        seen = t->number;
        const bool takes_part = me.place < t->wanted;
        pthread_mutex_unlock(&t->lock);
        if (!takes_part) continue;
        take_chunks(t);
        pthread_mutex_lock(&t->lock);
        if (--t->working == 0) pthread_cond_signal(&t->done);
        pthread_mutex_unlock(&t->lock);
    }
    return nullptr;
}

// The team of this process, with as many helpers as are wanted or can be had.
Team *this_team(int helpers) {
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&making);
    if (team == nullptr || owner != getpid()) {  // a fork leaves the threads behind
        team = static_cast<Team *>(malloc(sizeof(Team)));
        *team = Team{};
        owner = getpid();
    }
    Team *t = team;
    while (t->helpers < helpers) {
        Helper *mine = static_cast<Helper *>(malloc(sizeof(Helper)));
        *mine = {t, t->helpers};
        pthread_t id;
        if (pthread_create(&id, nullptr, help, mine) != 0) {
            free(mine);
            break;
        }
        pthread_detach(id);
        ++t->helpers;
    }
    pthread_mutex_unlock(&making);
    return t;
}

}  // namespace

void run_chunks(int64_t chunks, void (*work)(void *, int64_t), void *state) {
    Team *t = nullptr;
    if (chunks > 1 && threads > 1) {
        t = this_team(threads - 1);
        if (pthread_mutex_trylock(&t->busy) != 0) t = nullptr;
    }
    if (t == nullptr) {
        for (int64_t c = 0; c < chunks; ++c) work(state, c);
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->work = work, t->state = state, t->chunks = chunks, t->next = 0;
    t->wanted = t->working = int(smaller<int64_t>(smaller(t->helpers, threads - 1), chunks - 1));
    __atomic_store_n(&t->number, t->number + 1, __ATOMIC_RELEASE);
    if (t->wanted) pthread_cond_broadcast(&t->called);
    pthread_mutex_unlock(&t->lock);
    take_chunks(t);
    pthread_mutex_lock(&t->lock);
    while (t->working) pthread_cond_wait(&t->done, &t->lock);
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_unlock(&t->busy);
}

void let_others() { sched_yield(); }

int64_t num_threads() { return threads; }

void *allocate_aligned(int64_t bytes) {
    void *at = nullptr;
    if (posix_memalign(&at, 64, size_t(larger<int64_t>(bytes, 1))) != 0) abort();
    return at;
}

}  // namespace sargnn

extern "C" __attribute__((visibility("default"))) void sargnn_set_threads(int64_t count) {
    sargnn::threads = int(sargnn::smaller<int64_t>(sargnn::larger<int64_t>(count, 1), sargnn::MOST));
}
extern "C" __attribute__((visibility("default"))) int64_t sargnn_threads() { return sargnn::threads; }
