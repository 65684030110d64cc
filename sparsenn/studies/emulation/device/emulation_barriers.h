// ptx/barriers.cuh, emulated: threads and copies that go on by themselves arrive; threads wait for a phase to end.
#pragma once
#include <map>

struct Barrier {
    int arrivals = 0, missing = 0;
    long bytes = 0;  // of copies that have yet to arrive; they may be expected after they have
    unsigned phase = 0;
};

inline std::map<const void*, Barrier>& barriers_of_block() {
    static std::map<const void*, Barrier> barriers;
    static long block;
    if (block != emulated::blocks_begun) barriers.clear();
    block = emulated::blocks_begun;
    return barriers;
}

inline Barrier& existing_barrier(const void* place) {
    const auto found = barriers_of_block().find(place);
    if (found == barriers_of_block().end()) emulated::fail("a barrier that was not made");
    return found->second;
}

inline void count_at_barrier(Barrier& barrier, int arrived, long bytes) {
    barrier.missing -= arrived;
    barrier.bytes += bytes;
    if (barrier.missing < 0) emulated::fail("more arrive at a barrier than it waits for");
    if (barrier.missing || barrier.bytes) return;
    barrier.phase ^= 1;
    barrier.missing = barrier.arrivals;
    for (emulated::Thread& thread : *emulated::threads)
        if (thread.state == emulated::AT_BARRIER) thread.state = emulated::READY;
}

inline void barrier_init(unsigned long long* place, int arrivals) {
    if (reinterpret_cast<uintptr_t>(place) % 8) emulated::fail("a barrier is not aligned");
    barriers_of_block()[place] = {arrivals, arrivals};
}

inline void barrier_arrive(unsigned long long* place) {
    count_at_barrier(existing_barrier(place), 1, 0);
    while (emulated::chance() % 4) emulated::pause(emulated::READY);  // others may go on first
}

inline void barrier_wait(unsigned long long* place, unsigned parity) {
    while (existing_barrier(place).phase == parity) emulated::pause(emulated::AT_BARRIER);
}

inline unsigned long long* barrier_at(unsigned place) { return reinterpret_cast<unsigned long long*>(shared + place); }
inline void barrier_wait(unsigned place, unsigned parity) { barrier_wait(barrier_at(place), parity); }

inline void barrier_arrive(unsigned place) { barrier_arrive(barrier_at(place)); }

inline void barrier_expect(unsigned place, unsigned bytes) {
    count_at_barrier(existing_barrier(barrier_at(place)), 1, bytes);
}

inline void barrier_arrive_if(unsigned place, bool wanted) {
    if (wanted) barrier_arrive(barrier_at(place));
}

inline void show_to_engines() {}
