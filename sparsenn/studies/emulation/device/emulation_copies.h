// ptx/copies.cuh, emulated.
#pragma once
#include "emulation_barriers.h"

template <int BYTES>
void copy_later(unsigned to, const void* from, int present) {
    if (present < 0 || present > BYTES || to % BYTES || to + BYTES > emulated::SHARED) emulated::fail("a copy's size or place");
    if (present && reinterpret_cast<uintptr_t>(from) % BYTES) emulated::fail("a copy's source is not aligned");
    if (present) emulated::readable(from, present);
    const emulated::Copy copy{shared + to, static_cast<const unsigned char*>(from), BYTES, present};
    if (emulated::chance() % 2)
        copy.carry_out();
    else
        emulated::current->groups.back().push_back(copy);
}

template <int BYTES>
void copy_later(unsigned to, const void* from) {
    copy_later<BYTES>(to, from, BYTES);
}

inline void barrier_arrive_after_copies(unsigned long long* place) {
    std::vector<std::vector<emulated::Copy>> groups{1};
    groups.swap(emulated::current->groups);
    emulated::flights.push_back([groups, place] {
        for (const auto& group : groups)
            for (const auto& copy : group) copy.carry_out();
        count_at_barrier(existing_barrier(place), 1, 0);
    });
}
inline void barrier_arrive_after_copies(unsigned place) { barrier_arrive_after_copies(barrier_at(place)); }

inline void close_copies() { emulated::current->groups.emplace_back(); }

template <int COUNT>
void await_copies() {
    auto& groups = emulated::current->groups;
    for (size_t i = 0; i + COUNT + 1 < groups.size(); ++i) {
        for (const auto& copy : groups[i]) copy.carry_out();
        groups[i].clear();
    }
}

inline void await_all_copies() {
    for (auto& group : emulated::current->groups) {
        for (const auto& copy : group) copy.carry_out();
        group.clear();
    }
}

inline void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    if (bytes % 16 || to % 16 || to + bytes > emulated::SHARED) emulated::fail("a copy's size or place");
    if (reinterpret_cast<uintptr_t>(from) % 16) emulated::fail("a copy's source is not aligned");
    const unsigned char* source = emulated::readable(from, bytes);
    emulated::flights.push_back([=] {
        std::memcpy(shared + to, source, bytes);
        count_at_barrier(existing_barrier(barrier_at(barrier)), 0, -static_cast<long>(bytes));
    });
}
