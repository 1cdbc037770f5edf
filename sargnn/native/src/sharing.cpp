// Words in memory that processes share: one that waits for a word sleeps in the kernel until whoever writes it wakes it.
#include "border.hpp"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

using namespace sargnn;

namespace {

// At the beginning of a process's memory, a cache line each.
struct Bell {
    uint32_t rung;  // changes when it is rung
    char apart[60];
    int64_t waits_for;  // rank + 1 of the process that is waited for; 0: none
};

struct SetCall {
    Table words;
    Word at, value;
    Table bell;  // of the process that may wait for it
    Word me;
};

struct WaitCall {
    Table words;
    Word at, value;
    Table bell;  // this process's
    Word peer, nanoseconds;
};

}  // namespace

// The bell is rung only where it is heard. Both sides write before they read, in one order: either the one that waits sees the word
// or it is seen waiting.
ENTRY(set_word, SetCall, c) {
    Bell *bell = c.bell.as<Bell>();
    __atomic_store_n(c.words.as<int64_t>() + c.at, c.value, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&bell->waits_for, __ATOMIC_SEQ_CST) == c.me + 1) {
        __atomic_fetch_add(&bell->rung, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
    return 0;
}

// 1: the word has reached the value; 0: not within this time, or a signal came.
ENTRY(wait_word, WaitCall, c) {
    Bell *bell = c.bell.as<Bell>();
    const int64_t *word = c.words.as<const int64_t>() + c.at;
    const auto there = [&] { return __atomic_load_n(word, __ATOMIC_SEQ_CST) >= c.value; };
    if (there()) return 1;
    const timespec limit = {c.nanoseconds / 1000000000, long(c.nanoseconds % 1000000000)};
    const uint32_t seen = __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST);
    __atomic_store_n(&bell->waits_for, c.peer + 1, __ATOMIC_SEQ_CST);
    if (!there()) syscall(SYS_futex, &bell->rung, FUTEX_WAIT, seen, &limit, nullptr, 0);
    __atomic_store_n(&bell->waits_for, 0, __ATOMIC_SEQ_CST);
    return there();
}
