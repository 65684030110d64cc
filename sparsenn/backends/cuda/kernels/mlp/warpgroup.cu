// warpgroup: a chain of layers of any depth by whole warpgroups; rows stay in shared memory, weights stream through it.
//
// Idea      Four warps together multiply 64 neurons' weights by all rows of a block with one instruction that reads both
//           from shared memory by itself (compute capability 9.0, "wgmma"). The rows are what such an instruction has any
//           multiple of 16 of: a block has as many as there is work for a multiprocessor, 80 where 10,000 rows are shared
//           by 132. A float is a number of TF32 and a rest; three of their four products count. Where 11 bits suffice, one
//           product in TF32 does, or half an instruction in half precision.
// Layout    features and outputs row-major, float32 or half (INPUT); the image and the rows as below.
// Needs     compute capability 9.0, built for sm_90a; layers of up to 256 outputs, inputs of the first of any number.
//           Denormal numbers are zero; in half precision, inputs and intermediates beyond 65,504 become infinite.
// Before    tensor_float32, tensor_tf32, tensor_half.
// Changes   weights need not find room in shared memory, and are read there once for all rows of a block instead of once
//           for every 16. A slab of 32 inputs and 128 neurons takes 80 rows 960 clocks at best, three times 320; its 32 KiB
//           come from the cache that all share in about as many. In TF32 it is 320 clocks, and 16 KiB in about 500; in half
//           precision, a slab of 64 inputs takes as long.
//
// A block takes ROWS rows through all layers. A layer's outputs are a product of its weights (neurons down) and the rows
// (across): each of WARPGROUPS warpgroups has 64 neurons of all rows, but for the last IDLE, which only bring rows in. Rows lie in shared memory as the instructions read
// them: units of 16 bytes, that is 8 halves or 4 floats of one row, those of all rows side by side. A layer reads its inputs
// there and leaves its outputs there. Rows of the first layer come in panels of a slab's depth, three of which have room.
//
// Weights come in slabs of STEPS times 32 bytes of depth, whole pieces that are copied without registers into STAGES places,
// ahead of what is multiplied and across the ends of layers. Depth and widths of the chain are numbers that are read: the
// code is as long for one layer as for a thousand.
//
// The image: for each layer {slabs, outputs, activation, clip}; for each layer biases, padded to the block's neurons; then
// for each layer, slab, 64 of the block's neurons, and piece of a number, units of 16 bytes, those of 64 neurons side by side.
// plain: weights row-major, one layer after the other. units: those of the inputs that have a weight, panel by panel, and
// four panels of inputs that are not there.
//
// KIND: of `enum Kind`; numbers of TENSOR_FLOAT32 are split into two of TF32, and sums of a slab are added up in float32,
// because those of the instructions are cut off instead of rounded; rows with a sum that is strange are computed again by
// plain multiply-adds. INPUT: float or half_bits, of features and outputs. VECTOR: rows may be read 16 bytes at a time.
// CURVED: a layer has an activation that is neither ReLU nor the identity.
#include "common.cuh"
#include "products/kinds.cuh"
#include "ptx/barriers.cuh"
#include "ptx/copies.cuh"
#include "ptx/memory.cuh"
#include "ptx/numbers.cuh"
#include "ptx/opaque.cuh"
#include "ptx/warpgroup_products.cuh"
#include "turn.cuh"

constexpr int NEURONS = 64, WARPGROUP = 128;  // of an instruction; threads that carry it out
constexpr int WORKERS = WARPGROUP * WARPGROUPS, WARPS = WORKERS / WARP;
constexpr int SUMS = ROWS / 2;
constexpr int SPLITS = KIND == TENSOR_FLOAT32 ? 2 : 1;  // pieces of a number
constexpr int UNIT = 16, TERMS = KIND == TENSOR_HALF ? 8 : 4;  // bytes of a unit, and its numbers
constexpr int SLAB_UNITS = 2 * STEPS;
constexpr int PIECE_BYTES = UNIT * NEURONS * SLAB_UNITS, GROUP_BYTES = SPLITS * PIECE_BYTES;
constexpr int GROUPS = WARPGROUPS - IDLE;  // of neurons
constexpr int STAGE_BYTES = GROUPS * GROUP_BYTES;
constexpr int ACROSS = UNIT * (ROWS + 1);  // from unit to unit of a row: neighbouring neurons are in different banks
constexpr int PANELS = 3;
constexpr int HELD_UNITS = GROUPS * NEURONS / TERMS, PANEL_UNITS = PANELS * SLAB_UNITS;
constexpr int ROW_BYTES = ACROSS * (HELD_UNITS > PANEL_UNITS ? HELD_UNITS : PANEL_UNITS);  // of all rows, one piece
constexpr int ITEMS = (ROWS * SLAB_UNITS + WORKERS - 1) / WORKERS;  // units of a panel that a thread brings

static_assert(ROWS % 16 == 0 && WARPGROUPS >= 1 && WARPGROUPS <= 4 && GROUPS >= 1 && STAGES >= 2, "what the plan chooses from");
static_assert(KIND != TENSOR_FLOAT32 || sizeof(INPUT) == 4, "halves are not split");
static_assert(NEURONS % (SLAB_UNITS * TERMS) == 0, "the neurons of a warpgroup are whole slabs of the next layer");

struct Layer {
    int slabs, outputs, activation;
    float clip;

    __device__ __forceinline__ static Layer read(const unsigned char* image, int number) {
        const uint4 found = __ldg(reinterpret_cast<const uint4*>(image) + number);
        return {of_warp(found.x), of_warp(found.y), of_warp(found.z), __uint_as_float(found.w)};
    }
    __device__ __forceinline__ int groups() const { return (outputs + NEURONS - 1) / NEURONS; }
};

__device__ __forceinline__ const float* biases_of(const unsigned char* image, int layers, int layer) {
    return reinterpret_cast<const float*>(image + 16 * layers) + NEURONS * GROUPS * layer;
}

// Where a block's things lie in shared memory; `strange` has a word for each row.
struct Memory {
    unsigned stages, rows, full, empty, together, strange;

    __device__ __forceinline__ Memory(unsigned char* shared) {
        stages = computed_once(shared_address(shared));
        rows = stages + STAGES * STAGE_BYTES;
        full = rows + SPLITS * ROW_BYTES;
        empty = full + 8 * STAGES;
        together = empty + 8 * STAGES;
        strange = together + 8;
    }
};

// All warps that multiply wait for each other; what they have written is seen, by the instructions, too.
struct Meeting {
    unsigned barrier, parity;

    __device__ __forceinline__ void wait() {
        show_to_engines();
        __syncwarp();
        barrier_arrive_if(barrier, threadIdx.x % WARP == 0);
        barrier_wait(barrier, parity);
        parity ^= 1;
    }
};

// ---- Rows of the first layer --------------------------------------------------------------------------------------

// COUNT neighbouring numbers of a row, zeros where there are none.
template <int COUNT>
__device__ __forceinline__ void read_numbers(const float* __restrict__ row, int column, int inputs, bool there,
                                             float (&numbers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += VECTOR ? 4 : 1) {
        const bool given = there && column + i < inputs;
        if constexpr (VECTOR) {
            const float4 found = given ? __ldg(reinterpret_cast<const float4*>(row + column + i)) : make_float4(0, 0, 0, 0);
            numbers[i] = found.x;
            numbers[i + 1] = found.y;
            numbers[i + 2] = found.z;
            numbers[i + 3] = found.w;
        } else {
            numbers[i] = given ? __ldg(row + column + i) : 0.0f;
        }
    }
}
__device__ __forceinline__ void read_numbers(const half_bits* __restrict__ row, int column, int inputs, bool there,
                                             unsigned (&pairs)[4]) {
    if constexpr (VECTOR) {
        uint4 found{0, 0, 0, 0};
        if (there && column < inputs) found = __ldg(reinterpret_cast<const uint4*>(row + column));
        pairs[0] = found.x;
        pairs[1] = found.y;
        pairs[2] = found.z;
        pairs[3] = found.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = column + 2 * i;
            const unsigned low = there && at < inputs ? __ldg(row + at) : 0;
            const unsigned high = there && at + 1 < inputs ? __ldg(row + at + 1) : 0;
            pairs[i] = low | high << 16;
        }
    }
}

// A number as two of TF32, of which the instructions take as much as TF32 holds. An infinity leaves a rest that is no
// number; see `strange`.
__device__ __forceinline__ void split(float number, unsigned& high, unsigned& low) {
    high = cut_to_tf32(__float_as_uint(number) + 0x1000u);
    low = __float_as_uint(number - __uint_as_float(high));
}

// The numbers of a unit as they are multiplied; `piece` is 0, or 1 for the rests.
__device__ __forceinline__ void prepare(const float (&numbers)[4], int piece, unsigned (&unit)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (KIND == TENSOR_FLOAT32) {
            unsigned high, low;
            split(numbers[i], high, low);
            unit[i] = piece == 0 ? high : low;
        } else {
            unit[i] = to_tf32(__float_as_uint(numbers[i]));
        }
    }
}
__device__ __forceinline__ void prepare(const float (&numbers)[8], int, unsigned (&unit)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) unit[i] = to_halves(numbers[2 * i], numbers[2 * i + 1]);
}
__device__ __forceinline__ void prepare(const unsigned (&pairs)[4], int, unsigned (&unit)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) unit[i] = pairs[i];
}

template <typename Number>
struct Raw {
    typedef float Unit[TERMS];
};
template <>
struct Raw<half_bits> {
    typedef unsigned Unit[4];
};

// The unit that a thread brings of each panel, of every row that it brings.
__device__ __forceinline__ int own_unit() { return threadIdx.x % SLAB_UNITS; }
static_assert(WORKERS % SLAB_UNITS == 0, "a thread's units of a panel are one below the other");

// The rows' numbers that are multiplied: units of them, panel by panel. `unit` is the thread's of the panel that is next,
// `at` where that of the one after it is.
struct Inputs {
    const INPUT* __restrict__ features;
    const int* __restrict__ units;
    int inputs, at, unit;

    __device__ __forceinline__ Inputs(const INPUT* features, const int* units, int inputs)
        : features(features), units(units), inputs(inputs), at(SLAB_UNITS + own_unit()), unit(__ldg(units + own_unit())) {}

    __device__ __forceinline__ int next_column() {
        const int column = unit * TERMS;
        unit = __ldg(units + at);
        at += SLAB_UNITS;
        return column;
    }
};

// A thread's share of a panel, on its way through registers.
struct Share {
    Raw<INPUT>::Unit units[ITEMS];

    __device__ __forceinline__ static int row_of(int item) { return (threadIdx.x + item * WORKERS) / SLAB_UNITS; }
    __device__ __forceinline__ void load(Inputs& from, int64 first, int64 rows) {
        const int column = from.next_column();
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const int64 row = first + row_of(item);
            read_numbers(from.features + row * from.inputs, column, from.inputs, row_of(item) < ROWS && row < rows,
                         units[item]);
        }
    }
    __device__ __forceinline__ void store(const Memory& memory, int place) const {
#pragma unroll
        for (int item = 0; item < ITEMS; ++item) {
            const unsigned to = memory.rows + (place * SLAB_UNITS + own_unit()) * ACROSS + UNIT * row_of(item);
#pragma unroll
            for (int piece = 0; piece < SPLITS; ++piece) {
                unsigned unit[4];
                prepare(units[item], piece, unit);
                write_four_if(to + piece * ROW_BYTES, unit, row_of(item) < ROWS);
            }
        }
    }
};

// ---- Products -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply(float (&sums)[SUMS], unsigned left, unsigned right, int keep) {
    if constexpr (KIND == TENSOR_HALF)
        warpgroup_half(sums, left, right, keep);
    else
        warpgroup_tf32(sums, left, right, keep);
}

// sums += left times right over all steps of a slab; or = where `keep` is 0.
__device__ __forceinline__ void multiply_steps(float (&sums)[SUMS], unsigned left, unsigned right, int keep) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        multiply(sums, left + step * 2 * NEURONS, right + step * 2 * (ROWS + 1), step > 0 ? 1 : keep);
}

// A warpgroup on its way through the slabs.
struct Worker {
    const Memory& memory;
    unsigned left, right;  // its weights in the first stage, and the rows, as instructions are told of them
    Meeting meeting;
    const unsigned char* coming;  // the slab that is to be asked for next
    int asked;                    // how many of them there still are
    Turn turn{0, 0}, vacant{STAGES - 1, 1};  // of the slab that is next, and of the one before
    float sums[SUMS];

    // Begin to copy the next slab.
    __device__ __forceinline__ void bring(int stage) {
        if (threadIdx.x == 0 && asked > 0) {
            const unsigned full = memory.full + 8 * stage;
            barrier_expect(full, STAGE_BYTES);
            copy_bulk(memory.stages + stage * STAGE_BYTES, coming, STAGE_BYTES, full);
        }
        coming += STAGE_BYTES;
        --asked;
    }

    // The same to where the slab before lay, once all have multiplied it: the first warp does that, while products are
    // computed.
    __device__ __forceinline__ void refill() {
        if (threadIdx.x < WARP) barrier_wait(memory.empty + 8 * vacant.stage, vacant.parity);
        bring(vacant.stage);
    }

    __device__ __forceinline__ void release(int stage, bool done) const {
        barrier_arrive_if(memory.empty + 8 * stage, done && threadIdx.x % WARP == 0);
    }

    // sums += the products of the slab that is next, with the rows' units of a slab from `place` on. `between` is done
    // while they are computed. `begun`: the slab before is the same layer's, so that it is done only then.
    template <class Between>
    __device__ __forceinline__ void slab(int place, bool busy, bool begun, Between between) {
        barrier_wait(memory.full + 8 * turn.stage, turn.parity);
        const unsigned weights = left + turn.stage * (STAGE_BYTES / UNIT);
        const unsigned inputs = right + place * SLAB_UNITS * (ROWS + 1);
        if constexpr (KIND == TENSOR_FLOAT32) {
            if (busy) {
                float parts[SUMS];
#pragma unroll
                for (int i = 0; i < SUMS; ++i) parts[i] = 0.0f;
                begin_products();
                multiply_steps(parts, weights + PIECE_BYTES / UNIT, inputs, 0);
                multiply_steps(parts, weights, inputs + ROW_BYTES / UNIT, 1);
                multiply_steps(parts, weights, inputs, 1);
                close_products();
                between();
                refill();
                await_sums(parts);
#pragma unroll
                for (int i = 0; i < SUMS; ++i) sums[i] += parts[i];
            } else {
                between();
                refill();
                __syncwarp();  // all of the warp have waited before it arrives for them; above, the products see to that
            }
            release(turn.stage, true);
        } else {
            if (busy) {
                begin_products();
                multiply_steps(sums, weights, inputs, 1);
                close_products();
            }
            between();
            await_products<1>();
            release(vacant.stage, begun);
            refill();
        }
        vacant = turn;
        turn.next(STAGES);
    }

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
    }

    // The layer's products are done, and its last slab's place is free.
    __device__ __forceinline__ void end() {
        if constexpr (KIND != TENSOR_FLOAT32) {
            await_sums(sums);
            release(vacant.stage, true);
        }
    }

    // One slab of the first layer. Its panel is there; the next but one is on its way in `share`, and goes on to shared
    // memory, into the place of the one that all have multiplied two slabs ago.
    __device__ __forceinline__ void first_slab(int number, bool busy, Share& share, Inputs& from, int64 first,
                                               int64 rows) {
        slab(number % PANELS, busy, number > 0, [&] {
            share.store(memory, (number + 1) % PANELS);
            share.load(from, first, rows);
        });
        meeting.wait();
    }

    __device__ __forceinline__ void first_layer(int slabs, bool busy, Inputs from, int64 first, int64 rows) {
        Share even, odd;
        even.load(from, first, rows);
        odd.load(from, first, rows);
        even.store(memory, 0);
        even.load(from, first, rows);
        meeting.wait();
        begin();
        int number = 0;
#pragma unroll 1
        do {
            first_slab(number, busy, odd, from, first, rows);
            if (number + 1 < slabs) first_slab(number + 1, busy, even, from, first, rows);
        } while ((number += 2) < slabs);
        end();
    }

    __device__ __forceinline__ void layer(int slabs, bool busy) {
        begin();
        int number = 0;
#pragma unroll 1
        do {  // at least once, so that the sums stay in their registers
            slab(number, busy, number > 0, [] {});
        } while (++number < slabs);
        end();
    }
};

// ---- What becomes of sums -----------------------------------------------------------------------------------------

// act(sum + bias) of all sums of a thread. Beyond the layer's outputs an infinite input times a weight of 0 has left NaN,
// which must not reach the next layer: there, it is 0.
__device__ __forceinline__ void finish(float (&sums)[SUMS], const float (&bias)[2], const bool (&there)[2],
                                       const Layer& layer) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = there[i / 2 % 2] ? sums[i] + bias[i / 2 % 2] : 0.0f;
    if (layer.activation == RELU) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = clipped_or_nan(sums[i], layer.clip);
    } else if constexpr (CURVED) {
        if (layer.activation != IDENTITY)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                sums[i] = there[i / 2 % 2] ? activate(sums[i], layer.activation, layer.clip) : 0.0f;
    }
}

__device__ __forceinline__ int row_of_sum(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

// Outputs to where the next layer finds its inputs.
__device__ __forceinline__ void keep(const float (&sums)[SUMS], unsigned char* shared, const Memory& memory, int neuron) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int number = neuron + i / 2 % 2 * 8;
        unsigned char* to = shared + (memory.rows - memory.stages) + number / TERMS * ACROSS + UNIT * row_of_sum(i) +
                            number % TERMS * (UNIT / TERMS);
        if constexpr (KIND == TENSOR_HALF) {
            *reinterpret_cast<half_bits*>(to) = to_half(sums[i]);
        } else if constexpr (KIND == TENSOR_TF32) {
            *reinterpret_cast<unsigned*>(to) = to_tf32(__float_as_uint(sums[i]));
        } else {
            unsigned high, low;
            split(sums[i], high, low);
            *reinterpret_cast<unsigned*>(to) = high;
            *reinterpret_cast<unsigned*>(to + ROW_BYTES) = low;
        }
    }
}

__device__ __forceinline__ void put_out(const float (&sums)[SUMS], INPUT* __restrict__ outputs, int64 first, int64 rows,
                                        int width, int neuron) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
        const int number = neuron + i / 2 % 2 * 8;
        const int64 row = first + row_of_sum(i);
        if (row < rows && number < width) store_one(outputs + row * width + number, sums[i]);
    }
}

// Note rows with a sum that float32 itself may not have had.
__device__ __forceinline__ void look(const float (&sums)[SUMS], const Memory& memory) {
    bool any = false;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) any |= strange(sums[i]);
    if (any)
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            if (strange(sums[i])) write_word(memory.strange + 4 * row_of_sum(i), 1);
}

// One row by one warp, with plain multiply-adds; `own` has room for a layer's inputs and outputs.
__device__ __forceinline__ void plain_row(const float* from, const unsigned char* image, const float* __restrict__ plain,
                                          int layers, int inputs, float* own, float* outputs) {
#pragma unroll 1
    for (int number = 0; number < layers; ++number) {
        const Layer layer = Layer::read(image, number);
        const float* biases = biases_of(image, layers, number);
        float* to = number + 1 == layers ? outputs : own + number % 2 * (NEURONS * GROUPS);
#pragma unroll 1
        for (int neuron = threadIdx.x % WARP; neuron < layer.outputs; neuron += WARP) {
            float sum = 0.0f;
#pragma unroll 1
            for (int k = 0; k < inputs; ++k)
                sum = fmaf(from[k], plain[static_cast<int64>(k) * layer.outputs + neuron], sum);
            to[neuron] = activate(sum + biases[neuron], layer.activation, layer.clip);
        }
        plain += static_cast<int64>(inputs) * layer.outputs;
        inputs = layer.outputs;
        from = to;
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(WORKERS, 1)
    mlp(const INPUT* __restrict__ features, INPUT* __restrict__ outputs, const unsigned char* __restrict__ image,
        const float* __restrict__ plain, const int* __restrict__ units, int64 rows, int inputs, int layers, int slabs) {
    extern __shared__ __align__(128) unsigned char shared[];
    const Memory memory(shared);
    if (threadIdx.x == 0) {
        uint64* barriers = reinterpret_cast<uint64*>(shared + (memory.full - memory.stages));
        for (int i = 0; i < 2 * STAGES + 1; ++i) barrier_init(barriers + i, i < STAGES ? 1 : WARPS);
        show_to_engines();
    }
    if (KIND == TENSOR_FLOAT32)
        for (int row = threadIdx.x; row < ROWS; row += WORKERS) write_word(memory.strange + 4 * row, 0);
    __syncthreads();
    const int warp = of_warp(threadIdx.x / WARP), group = warp / 4;
    const int neuron = warp * 16 + threadIdx.x % WARP / 4;  // the thread's first; the other is 8 further
    const int64 first = static_cast<int64>(blockIdx.x) * ROWS;
    Worker worker{memory, matrix_at(memory.stages + group * GROUP_BYTES, UNIT * NEURONS), matrix_at(memory.rows, ACROSS),
                  Meeting{memory.together, 0},
                  reinterpret_cast<const unsigned char*>(biases_of(image, layers, layers)), slabs};
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) worker.bring(stage);
    Layer next = Layer::read(image, 0);
#pragma unroll 1
    for (int number = 0; number < layers; ++number) {
        const Layer layer = next;
        const bool busy = group < layer.groups(), last = number + 1 == layers;
        if (!last) next = Layer::read(image, number + 1);
        const float* biases = biases_of(image, layers, number);
        const float bias[2] = {busy ? __ldg(biases + neuron) : 0.0f, busy ? __ldg(biases + neuron + 8) : 0.0f};
        const bool there[2] = {neuron < layer.outputs, neuron + 8 < layer.outputs};
        if (number == 0)
            worker.first_layer(layer.slabs, busy, Inputs(features, units, inputs), first, rows);
        else
            worker.layer(layer.slabs, busy);
        if (KIND == TENSOR_FLOAT32 && busy) look(worker.sums, memory);
        if (busy) finish(worker.sums, bias, there, layer);
        if (last) {
            if (busy) put_out(worker.sums, outputs, first, rows, layer.outputs, neuron);
        } else {
            __syncthreads();  // all have multiplied what lies there
            if (busy) keep(worker.sums, shared, memory, neuron);
            worker.meeting.wait();
        }
    }
    if constexpr (KIND == TENSOR_FLOAT32) {
        __syncthreads();
        float* own = reinterpret_cast<float*>(shared + (memory.rows - memory.stages)) + warp * 2 * NEURONS * GROUPS;
        const int width = next.outputs;
#pragma unroll 1
        for (int row = warp; row < ROWS && first + row < rows; row += WARPS)
            if (read_word(memory.strange + 4 * row))
                plain_row(reinterpret_cast<const float*>(features) + (first + row) * inputs, image, plain, layers, inputs,
                          own, reinterpret_cast<float*>(outputs) + (first + row) * width);
    }
}
