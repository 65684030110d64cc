// The three products of training on tiles of the result, with all that follows a product done where it ends.
//
// Idea    : a batch is small, so a product is a matter of latency: it is cut into as many tiles as there are
//           multiprocessors, the sum of a tile is shared by the slices of a block, and a ring of copies in flight
//           (cp.async) brings in the operands; for up to 512 summands all of them are under way from the start.
//           Bias, activation, its slope and the update of weights follow on the finished sums.
// Layout  : as in layer.cuh. In shared memory a stage holds CHUNK summands of both operands; rows are padded so that a
//           warp's reads fall into different banks. Slices leave their sums beside each other, and these are added in
//           the order of the slices, so that results do not depend on timing.
// Needs   : THREADS threads in a block and SHARED_FLOATS of dynamic shared memory.
#pragma once
#include "layer.cuh"
#include "ptx/copies.cuh"

constexpr int THREADS = 256;
constexpr int STAGES = 4;
constexpr int STAGE_FLOATS = 4736;
constexpr int SHARED_FLOATS = STAGES * STAGE_FLOATS;
constexpr int NARROW = 32;  // outputs up to which the last layer is computed a row at a time

// How a block computes a tile of SIZE x SIZE results: each thread 4 x 4 of them, for one slice of the summands.
template <int SIZE>
struct Tile {
    static constexpr int SIDE = SIZE / QUAD;           // threads along a side
    static constexpr int SLICES = THREADS / (SIDE * SIDE);
    static constexpr int CHUNK = 2048 / SIZE;          // summands of a stage
    static constexpr int LONG = CHUNK + (SLICES > 4 ? 8 : 4);  // stride of [result][summand]
    static constexpr int WIDE = SIZE + 4;              // stride of [summand][result]
    static constexpr int RESULTS = SIZE * SIZE / THREADS;  // finished by a thread
    static_assert(SLICES >= 1 && CHUNK % (QUAD * SLICES) == 0, "tiles are 16, 32 or 64 wide");
    static_assert(SIZE * LONG + CHUNK * WIDE <= STAGE_FLOATS && 2 * SIZE * LONG <= STAGE_FLOATS, "a stage is too small");
    static_assert(SLICES * SIZE * SIZE <= SHARED_FLOATS, "the slices' sums take the place of the stages");
    static constexpr bool AHEAD = RESULTS <= 4;  // whether there are registers for what follows the product
};

// ---- Load -------------------------------------------------------------------------------------------------------

// A matrix in global memory, or rows of it by number.
struct Matrix {
    const float* data;
    const int64* order;  // which rows; null for all
    int rows, stride;
};

// Starts to copy ROWS x COLUMNS floats from (row, column) on; what lies outside of the matrix is zero.
template <int ROWS, int COLUMNS, int STRIDE>
__device__ __forceinline__ void copy_block(float* to, const Matrix& matrix, int row, int column) {
    constexpr int QUADS = COLUMNS / QUAD;
#pragma unroll
    for (int item = threadIdx.x; item < ROWS * QUADS; item += THREADS) {
        const int at = item / QUADS, first = QUAD * (item % QUADS);
        const bool there = row + at < matrix.rows && column + first < matrix.stride;
        const int64 from = there && matrix.order ? matrix.order[row + at] : static_cast<int64>(row + at);
        const float* source = there ? matrix.data + from * matrix.stride + column + first : matrix.data;
        copy_later<16>(shared_address(to + at * STRIDE + first), source, there ? 16 : 0);
    }
}

// ---- Compute ----------------------------------------------------------------------------------------------------

typedef float Sums[QUAD][QUAD];

__device__ __forceinline__ float4 quad_at(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ __forceinline__ float dot(const float4& a, const float4& b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

__device__ __forceinline__ void add_scaled(float (&sums)[QUAD], float scale, const float4& values) {
    sums[0] = fmaf(scale, values.x, sums[0]);
    sums[1] = fmaf(scale, values.y, sums[1]);
    sums[2] = fmaf(scale, values.z, sums[2]);
    sums[3] = fmaf(scale, values.w, sums[3]);
}

// Which results of the tile are a thread's, and which slice of the summands.
template <int SIZE>
struct Place {
    int slice, down, across;

    __device__ __forceinline__ Place() {
        constexpr int SIDE = Tile<SIZE>::SIDE;
        slice = threadIdx.x / (SIDE * SIDE);
        down = threadIdx.x / SIDE % SIDE;
        across = threadIdx.x % SIDE;
    }
};

// left x right, left [result][summand] and right [summand][result]: Y·W.
template <int SIZE>
struct Forward {
    typedef Tile<SIZE> T;
    Matrix left, right;
    int row, column;  // of the tile in the result

    __device__ __forceinline__ void load(float* stage, int summand) const {
        copy_block<SIZE, T::CHUNK, T::LONG>(stage, left, row, summand);
        copy_block<T::CHUNK, SIZE, T::WIDE>(stage + SIZE * T::LONG, right, summand, column);
    }

    __device__ __forceinline__ void add(const float* stage, const Place<SIZE>& place, Sums& sums) const {
        const float* right_part = stage + SIZE * T::LONG;
#pragma unroll
        for (int step = 0; step < T::CHUNK / (QUAD * T::SLICES); ++step) {
            const int at = QUAD * (place.slice + T::SLICES * step);
            float4 b[QUAD];
#pragma unroll
            for (int k = 0; k < QUAD; ++k) b[k] = quad_at(right_part + (at + k) * T::WIDE + QUAD * place.across);
#pragma unroll
            for (int i = 0; i < QUAD; ++i) {
                const float4 a = quad_at(stage + (place.down + T::SIDE * i) * T::LONG + at);
                add_scaled(sums[i], a.x, b[0]);
                add_scaled(sums[i], a.y, b[1]);
                add_scaled(sums[i], a.z, b[2]);
                add_scaled(sums[i], a.w, b[3]);
            }
        }
    }

    __device__ __forceinline__ static int stored_row(const Place<SIZE>& place, int i) {
        return place.down + T::SIDE * i;
    }
    __device__ __forceinline__ static int column_at(int stored) { return stored; }
};

// left x transposed right, both [result][summand]: G·Wᵀ. Columns are stored in another order, which `column_at` tells.
template <int SIZE>
struct Backward {
    typedef Tile<SIZE> T;
    Matrix left, right;
    int row, column;

    __device__ __forceinline__ void load(float* stage, int summand) const {
        copy_block<SIZE, T::CHUNK, T::LONG>(stage, left, row, summand);
        copy_block<SIZE, T::CHUNK, T::LONG>(stage + SIZE * T::LONG, right, column, summand);
    }

    __device__ __forceinline__ void add(const float* stage, const Place<SIZE>& place, Sums& sums) const {
        const float* right_part = stage + SIZE * T::LONG;
#pragma unroll
        for (int step = 0; step < T::CHUNK / (QUAD * T::SLICES); ++step) {
            const int at = QUAD * (place.slice + T::SLICES * step);
            float4 b[QUAD];
#pragma unroll
            for (int j = 0; j < QUAD; ++j) b[j] = quad_at(right_part + (place.across + T::SIDE * j) * T::LONG + at);
#pragma unroll
            for (int i = 0; i < QUAD; ++i) {
                const float4 a = quad_at(stage + (place.down + T::SIDE * i) * T::LONG + at);
#pragma unroll
                for (int j = 0; j < QUAD; ++j) sums[i][j] = dot(a, b[j], sums[i][j]);
            }
        }
    }

    __device__ __forceinline__ static int stored_row(const Place<SIZE>& place, int i) {
        return place.down + T::SIDE * i;
    }
    __device__ __forceinline__ static int column_at(int stored) { return stored / QUAD + T::SIDE * (stored % QUAD); }
};

// transposed left x right, both [summand][result]: Yᵀ·G.
template <int SIZE>
struct Outer {
    typedef Tile<SIZE> T;
    static_assert(2 * T::CHUNK * T::WIDE <= STAGE_FLOATS, "a stage is too small");
    Matrix left, right;
    int row, column;

    __device__ __forceinline__ void load(float* stage, int summand) const {
        copy_block<T::CHUNK, SIZE, T::WIDE>(stage, left, summand, row);
        copy_block<T::CHUNK, SIZE, T::WIDE>(stage + T::CHUNK * T::WIDE, right, summand, column);
    }

    __device__ __forceinline__ void add(const float* stage, const Place<SIZE>& place, Sums& sums) const {
        const float* right_part = stage + T::CHUNK * T::WIDE;
#pragma unroll 8
        for (int at = place.slice; at < T::CHUNK; at += T::SLICES) {
            const float4 a = quad_at(stage + at * T::WIDE + QUAD * place.down);
            const float4 b = quad_at(right_part + at * T::WIDE + QUAD * place.across);
            add_scaled(sums[0], a.x, b);
            add_scaled(sums[1], a.y, b);
            add_scaled(sums[2], a.z, b);
            add_scaled(sums[3], a.w, b);
        }
    }

    __device__ __forceinline__ static int stored_row(const Place<SIZE>& place, int i) { return QUAD * place.down + i; }
    __device__ __forceinline__ static int column_at(int stored) { return stored; }
};

// Computes a tile: `product` says which, of so many summands. Returns with the slices' sums in `shared`.
template <int SIZE, typename Product>
__device__ __forceinline__ void multiply(const Product& product, int summands, float* shared) {
    typedef Tile<SIZE> T;
    const int chunks = (summands + T::CHUNK - 1) / T::CHUNK;
#pragma unroll 1
    for (int stage = 0; stage < STAGES; ++stage) {
        if (stage < chunks) product.load(shared + stage * STAGE_FLOATS, stage * T::CHUNK);
        close_copies();
    }
    const Place<SIZE> place;
    Sums sums = {};
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        float* stage = shared + chunk % STAGES * STAGE_FLOATS;
        await_copies<STAGES - 1>();
        __syncthreads();
        product.add(stage, place, sums);
        if (chunk + STAGES < chunks) {
            __syncthreads();
            product.load(stage, (chunk + STAGES) * T::CHUNK);
        }
        close_copies();
    }
    __syncthreads();
    float* slice = shared + place.slice * SIZE * SIZE;
#pragma unroll
    for (int i = 0; i < QUAD; ++i) {
        float* to = slice + Product::stored_row(place, i) * SIZE + QUAD * place.across;
        *reinterpret_cast<float4*>(to) = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
    }
    __syncthreads();
}

// The result stored at `at`: its slices added up in order.
template <int SIZE>
__device__ __forceinline__ float finished(const float* shared, int at) {
    float sum = shared[at];
#pragma unroll
    for (int slice = 1; slice < Tile<SIZE>::SLICES; ++slice) sum += shared[slice * SIZE * SIZE + at];
    return sum;
}

__device__ __forceinline__ int tiles_along(int width, int size) { return (width + size - 1) / size; }

// ---- The products with what follows them; `tile` counts the tiles of the result by row, then by column --------------

template <int SIZE>
__device__ __forceinline__ int forward_tiles(const Layer& layer, int rows) {
    return tiles_along(rows, SIZE) * tiles_along(layer.outputs, SIZE);
}

// out = act(in · weights)
template <int SIZE>
__device__ __forceinline__ void forward_tile(const Layer& layer, const Batch& batch, int tile, float* shared) {
    const int across = tiles_along(layer.outputs, SIZE);
    const int64* order = layer.in_gradient == nullptr ? batch.order : nullptr;
    Forward<SIZE> product;
    product.left = Matrix{layer.in, order, batch.rows, layer.in_stride()};
    product.right = Matrix{layer.weights, nullptr, layer.inputs + 1, layer.stride()};
    product.row = tile / across * SIZE;
    product.column = tile % across * SIZE;
    multiply<SIZE>(product, layer.inputs + 1, shared);
#pragma unroll
    for (int item = 0; item < Tile<SIZE>::RESULTS; ++item) {
        const int at = threadIdx.x + item * THREADS;
        const int row = product.row + at / SIZE, column = product.column + at % SIZE;
        if (row >= batch.rows || column >= layer.outputs) continue;
        const float y = activate(finished<SIZE>(shared, at), layer.activation, layer.clip);
        layer.out[static_cast<int64>(row) * layer.out_stride() + column] = y;
    }
    __syncthreads();  // the next tile may overwrite the sums
}

template <int SIZE>
__device__ __forceinline__ int backward_tiles(const Layer& layer, int rows) {
    return tiles_along(rows, SIZE) * tiles_along(layer.inputs, SIZE);
}

// in_gradient = (gradient · weightsᵀ) ⊙ act'(in)
template <int SIZE>
__device__ __forceinline__ void backward_tile(const Layer& layer, const Batch& batch, int tile, float* shared) {
    constexpr int RESULTS = Tile<SIZE>::RESULTS;
    const int across = tiles_along(layer.inputs, SIZE);
    Backward<SIZE> product;
    product.left = Matrix{layer.gradient, nullptr, batch.rows, layer.stride()};
    product.right = Matrix{layer.weights, nullptr, layer.inputs, layer.stride()};
    product.row = tile / across * SIZE;
    product.column = tile % across * SIZE;
    float values[RESULTS];
    const auto read = [&](int item) {
        const int at = threadIdx.x + item * THREADS;
        const int row = product.row + at / SIZE, column = product.column + Backward<SIZE>::column_at(at % SIZE);
        const bool there = row < batch.rows && column < layer.inputs;
        values[item] = there ? __ldcg(&layer.in[static_cast<int64>(row) * layer.in_stride() + column]) : 0.0f;
    };
    if (Tile<SIZE>::AHEAD) {  // the product hides the wait
#pragma unroll
        for (int item = 0; item < RESULTS; ++item) read(item);
    }
    multiply<SIZE>(product, layer.outputs, shared);
#pragma unroll
    for (int item = 0; item < RESULTS; ++item) {
        const int at = threadIdx.x + item * THREADS;
        const int row = product.row + at / SIZE, column = product.column + Backward<SIZE>::column_at(at % SIZE);
        if (row >= batch.rows || column >= layer.inputs) continue;
        if (!Tile<SIZE>::AHEAD) read(item);
        const float factor = slope(values[item], layer.in_activation, layer.in_clip);
        layer.in_gradient[static_cast<int64>(row) * padded(layer.inputs) + column] =
            factor * finished<SIZE>(shared, at);
    }
    __syncthreads();
}

template <int SIZE>
__device__ __forceinline__ int update_tiles(const Layer& layer) {
    return tiles_along(layer.inputs + 1, SIZE) * tiles_along(layer.outputs, SIZE);
}

// velocity and weights, by inᵀ · gradient
template <int SIZE>
__device__ __forceinline__ void update_tile(const Layer& layer, const Batch& batch, int tile, float* shared) {
    constexpr int RESULTS = Tile<SIZE>::RESULTS;
    const int across = tiles_along(layer.outputs, SIZE);
    const int64* order = layer.in_gradient == nullptr ? batch.order : nullptr;
    Outer<SIZE> product;
    product.left = Matrix{layer.in, order, batch.rows, layer.in_stride()};
    product.right = Matrix{layer.gradient, nullptr, batch.rows, layer.stride()};
    product.row = tile / across * SIZE;
    product.column = tile % across * SIZE;
    float weights[RESULTS], velocities[RESULTS];
    const auto read = [&](int item) {
        const int at = threadIdx.x + item * THREADS;
        const int row = product.row + at / SIZE, column = product.column + at % SIZE;
        const int64 place = static_cast<int64>(row) * layer.stride() + column;
        const bool there = row <= layer.inputs && column < layer.outputs;
        weights[item] = there ? __ldcg(&layer.weights[place]) : 0.0f;
        velocities[item] = there ? __ldcg(&layer.velocity[place]) : 0.0f;
    };
    if (Tile<SIZE>::AHEAD) {  // the product hides the wait
#pragma unroll
        for (int item = 0; item < RESULTS; ++item) read(item);
    }
    multiply<SIZE>(product, batch.rows, shared);
#pragma unroll
    for (int item = 0; item < RESULTS; ++item) {
        const int at = threadIdx.x + item * THREADS;
        const int row = product.row + at / SIZE, column = product.column + at % SIZE;
        if (row > layer.inputs || column >= layer.outputs) continue;
        if (!Tile<SIZE>::AHEAD) read(item);
        const int64 place = static_cast<int64>(row) * layer.stride() + column;
        descend(&weights[item], &velocities[item], finished<SIZE>(shared, at), batch);
        layer.weights[place] = weights[item];
        layer.velocity[place] = velocities[item];
    }
    __syncthreads();
}

// The last layer where it has at most NARROW outputs, for one row: its outputs, the loss, and the gradient by its own
// sums and by those of the layer before. `lanes` is the power of two from its outputs on.
__device__ __forceinline__ void head_row(const Layer& layer, const Batch& batch, int row, int lanes, float* shared) {
    const float* inputs = layer.input(batch.order, row);
    const int output = threadIdx.x % lanes;
    float sum = 0.0f;
    if (output < layer.outputs) {
#pragma unroll 4
        for (int k = threadIdx.x / lanes; k <= layer.inputs; k += THREADS / lanes)
            sum = fmaf(__ldcg(&inputs[k]), __ldcg(&layer.weights[k * layer.stride() + output]), sum);
    }
    for (int distance = WARP / 2; distance >= lanes; distance /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (threadIdx.x % WARP < lanes) shared[threadIdx.x / WARP * lanes + output] = sum;
    __syncthreads();
    if (threadIdx.x < layer.outputs) {
        sum = 0.0f;
        for (int warp = 0; warp < THREADS / WARP; ++warp) sum += shared[warp * lanes + output];
        layer.out[static_cast<int64>(row) * layer.out_stride() + output] =
            activate(sum, layer.activation, layer.clip);
    }
    __syncthreads();
    row_loss(layer, batch, row, shared);
    __syncthreads();
    if (layer.in_gradient == nullptr) return;
    const float* gradient = layer.gradient + static_cast<int64>(row) * layer.stride();
    float* in_gradient = layer.in_gradient + static_cast<int64>(row) * padded(layer.inputs);
    for (int k = threadIdx.x; k < layer.inputs; k += THREADS) {
        sum = 0.0f;
        for (int n = 0; n < layer.outputs; ++n)
            sum = fmaf(__ldcg(&gradient[n]), __ldcg(&layer.weights[k * layer.stride() + n]), sum);
        in_gradient[k] = sum * slope(__ldcg(&inputs[k]), layer.in_activation, layer.in_clip);
    }
}
