// CUDA C++ on the host, for kernels whose special instructions are those of kernels/ptx. The threads of a
// block are coroutines; what a warp or a block does together happens once all of its threads have come there.
//
// It is stricter than a device. A copy that is not waited for is carried out at once or as late as can be, at random;
// shared memory begins as NaN; threads that wait go on in an order of chance; and reading outside of `regions` is a fault,
// which ends the launch.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __fmul_rn(a, b) ((a) * (b))
#define __align__(size) __attribute__((aligned(size)))
#define __launch_bounds__(...)

using std::max;
using std::min;

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
struct Dimensions { unsigned x = 0, y = 0, z = 0; };

namespace emulated {

constexpr int WARP_LANES = 32, STACK = 128 << 10, SHARED = 227 << 10;

[[noreturn]] void fail(const char* what);

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    int size, present;
    void carry_out() const {
        std::memcpy(to, from, present);
        std::memset(to + present, 0, size - present);
    }
};

enum State { READY, AT_WARP, AT_BLOCK, AT_BARRIER, DONE };

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    State state = READY;
    Dimensions index;
    const void* given = nullptr;  // to the warp's operation
    void* taken = nullptr;
    int operation = 0;
    std::vector<std::vector<Copy>> groups{1};
};

inline std::vector<Thread>* threads;
inline Thread* current;
inline ucontext_t scheduler;
inline const std::function<void()>* body;
inline std::mt19937 chance;
inline Dimensions block, grid{1, 1, 1};
inline std::vector<std::pair<const unsigned char*, const unsigned char*>> regions;
inline std::vector<std::function<void()>> flights;  // copies that go on by themselves, and what follows from them

inline long blocks_begun;
inline const char* fault;  // why a launch has ended before its time
inline bool landing;

[[noreturn]] inline void fail(const char* what) {
    fault = what;
    if (landing) throw what;
    setcontext(&scheduler);
    std::abort();
}

inline void pause(State state) {
    current->state = state;
    swapcontext(&current->context, &scheduler);
}

inline const unsigned char* readable(const void* from, int size) {
    const unsigned char* first = static_cast<const unsigned char*>(from);
    for (const auto& region : regions)
        if (first >= region.first && first + size <= region.second) return first;
    fail("a place outside of what was given");
}

// What a warp does together: each lane gives a Given and gets a Taken, which `operation` computes for all 32.
template <class Given, class Taken>
void together(int number, const Given& given, Taken& taken, void (*operation)(const Given* const*, Taken* const*)) {
    current->given = &given;
    current->taken = &taken;
    current->operation = number;
    const int first = (current - threads->data()) / WARP_LANES * WARP_LANES;
    const Given* all[WARP_LANES];
    Taken* results[WARP_LANES];
    bool last = true;
    for (int lane = 0; lane < WARP_LANES; ++lane) {
        Thread& other = (*threads)[first + lane];
        if (&other != current && other.state != AT_WARP) last = false;
        all[lane] = static_cast<const Given*>(other.given);
        results[lane] = static_cast<Taken*>(other.taken);
    }
    if (!last) return pause(AT_WARP);
    for (int lane = 0; lane < WARP_LANES; ++lane)
        if ((*threads)[first + lane].operation != number) fail("lanes of a warp do different things");
    operation(all, results);
    for (int lane = 0; lane < WARP_LANES; ++lane) (*threads)[first + lane].state = READY;
}

inline void start() {
    (*body)();
    current->state = DONE;
    swapcontext(&current->context, &scheduler);
}

// One copy that goes on by itself arrives, of all that are on their way.
inline void land() {
    const size_t which = chance() % flights.size();
    const auto flight = std::move(flights[which]);
    flights.erase(flights.begin() + which);
    landing = true;
    try {
        flight();
    } catch (const char*) {
    }
    landing = false;
}

inline void run_block(int count, unsigned char* shared) {
    std::memset(shared, 0xff, SHARED);
    flights.clear();
    ++blocks_begun;
    std::vector<Thread> all(count);
    threads = &all;
    for (int number = 0; number < count; ++number) {
        Thread& thread = all[number];
        thread.index.x = number;
        thread.stack.reset(new char[STACK]);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = nullptr;
        makecontext(&thread.context, start, 0);
    }
    std::vector<int> order(count / WARP_LANES);
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    while (true) {
        bool moved = false;
        std::shuffle(order.begin(), order.end(), chance);
        for (int warp : order)
            for (int lane = 0; lane < WARP_LANES; ++lane) {
                Thread& thread = all[warp * WARP_LANES + lane];
                if (thread.state != READY) continue;
                moved = true;
                current = &thread;
                swapcontext(&scheduler, &thread.context);
                if (fault) return;
            }
        if (!flights.empty() && (!moved || chance() % 4 == 0)) {
            land();
            if (fault) return;
            continue;
        }
        if (moved) continue;
        int waiting = 0, done = 0;
        for (Thread& thread : all) waiting += thread.state == AT_BLOCK, done += thread.state == DONE;
        if (done == count) return;
        if (waiting != count) {
            fault = "a barrier that some threads never come to";
            return;
        }
        for (Thread& thread : all) thread.state = READY;
    }
}

}  // namespace emulated

#define threadIdx emulated::current->index
#define blockIdx emulated::block
#define gridDim emulated::grid

__align__(128) unsigned char shared[emulated::SHARED];

// Returns nothing, or what went wrong.
inline const char* run_blocks(int blocks, int threads_of_block, unsigned seed, const std::function<void()>& body) {
    emulated::fault = nullptr;
    emulated::chance.seed(seed);
    emulated::body = &body;
    emulated::grid.x = blocks;
    std::vector<int> order(blocks);
    for (int i = 0; i < blocks; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), emulated::chance);
    for (int number : order) {
        emulated::block.x = number;
        emulated::run_block(threads_of_block, shared);
        if (emulated::fault) break;
    }
    return emulated::fault;
}

extern "C" void clear_regions() { emulated::regions.clear(); }
extern "C" void add_region(const void* first, int64_t size) {
    const unsigned char* start = static_cast<const unsigned char*>(first);
    emulated::regions.emplace_back(start, start + size);
}

// ---- What stand-ins share ----------------------------------------------------------------------------------------

inline void check_shared(unsigned place, unsigned size) {
    if (place % size || place + size > emulated::SHARED) emulated::fail("a place outside of shared memory, or not aligned");
}

// Eight places of 16 bytes are read at a time, unless two of them that differ are in the same banks.
inline long conflicts = 0, reads = 0;
inline long raised = 0;  // numbers in global memory
extern "C" long bank_conflicts() { return conflicts; }
extern "C" long bank_reads() { return reads; }
extern "C" long times_raised() { return raised; }

inline void count_conflicts(const unsigned* const* places) {
    int most = 0;
    for (unsigned bank = 0; bank < 8; ++bank) {
        std::vector<unsigned> found;
        for (int i = 0; i < 8; ++i)
            if (*places[i] / 16 % 8 == bank && std::find(found.begin(), found.end(), *places[i]) == found.end())
                found.push_back(*places[i]);
        most = std::max(most, static_cast<int>(found.size()));
    }
    conflicts += most - 1;
    ++reads;
}

// A sum toward zero, as tensor cores do.
inline float cut(double value) {
    if (!std::isfinite(value)) return static_cast<float>(value);
    const float nearest = static_cast<float>(value);
    return std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? std::nextafterf(nearest, 0.0f) : nearest;
}

// ---- What CUDA C++ has built in -----------------------------------------------------------------------------------

template <class To, class From>
To as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To found;
    std::memcpy(&found, &value, sizeof found);
    return found;
}
inline float __uint_as_float(unsigned bits) { return as<float>(bits); }
inline float __int_as_float(int bits) { return as<float>(bits); }
inline unsigned __float_as_uint(float value) { return as<unsigned>(value); }
inline int __float_as_int(float value) { return as<int>(value); }
inline size_t __cvta_generic_to_shared(const void* place) { return static_cast<const unsigned char*>(place) - shared; }
inline void __syncthreads() { emulated::pause(emulated::AT_BLOCK); }
inline int __syncthreads_or(int wanted) {
    static int any;
    any |= wanted;
    __syncthreads();
    const int found = any;
    __syncthreads();
    any = 0;
    __syncthreads();
    return found != 0;
}
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* counter, unsigned value) { return (*counter += value) - value; }
inline unsigned atomicMax(unsigned* place, unsigned value) {
    const unsigned before = *place;
    *place = max(before, value);
    return before;
}
template <class Number>
Number __ldcg(const Number* from) { return *from; }
template <class Number>
Number __ldg(const Number* from) {
    emulated::readable(from, sizeof(Number));
    return *from;
}

template <class Number>
Number __ldcs(const Number* from) {
    emulated::readable(from, sizeof(Number));
    return *from;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline unsigned __vmaxu2(unsigned a, unsigned b) {
    return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
unsigned __ballot_sync(unsigned, bool);
unsigned __match_any_sync(unsigned, int);
template <class Number>
Number __shfl_sync(unsigned, Number, int);
inline unsigned long long atomicAdd(unsigned long long* counter, unsigned long long value) {
    return (*counter += value) - value;
}

inline void __syncwarp() {
    bool none, found;
    emulated::together<bool, bool>(7, none, found, [](const bool* const*, bool* const*) {});
}

template <class Number>
Number __shfl_xor_sync(unsigned, Number value, int distance) {
    struct Given { Number value; int distance; };
    Number found{};
    emulated::together<Given, Number>(1, {value, distance}, found, [](const Given* const* all, Number* const* results) {
        for (int lane = 0; lane < 32; ++lane) *results[lane] = all[lane ^ all[lane]->distance]->value;
    });
    return found;
}

template <class Number>
Number __shfl_up_sync(unsigned, Number value, int distance) {
    struct Given { Number value; int distance; };
    Number found{};
    emulated::together<Given, Number>(8, {value, distance}, found, [](const Given* const* all, Number* const* results) {
        for (int lane = 0; lane < 32; ++lane) *results[lane] = all[max(0, lane - all[lane]->distance)]->value;
    });
    return found;
}
