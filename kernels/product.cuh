// y = begin + x_0·W_0 + x_1·W_1 + …: products by weights in true f32, in tf32, bf16 and f16, whatever becomes of the sums.
//
// A block computes a tile of y: `Tile` rows by 64 columns, all of k. It walks the terms in slabs of k; slabs come through shared memory with
// asynchronous copies, PRODUCT_STAGES - 1 of them ahead. An element of y is always one thread's sum in one register, so tiles of another height,
// and rows that are not there, change no bit of it. The sums go to a `Leave`, a few neighbouring columns of a row at a time:
//
//     leave.begin()               every thread, once; from then on the block's shared memory is free, for threads that met at a barrier
//     leave(row, column, sums)    V neighbouring sums; both are counted from the tile's first, and `column` is a multiple of V
//     leave.end()                 every thread, once
#pragma once
#include "kernel.cuh"

namespace product {

constexpr int THREADS = 128, COLUMNS = 64, STAGES = PRODUCT_STAGES;
constexpr int PANEL_SLAB_BYTES = 4096;

// Copies slabs of x and W into shared memory, term after term. Slab is k per slab; in all arithmetics 64 columns of it are 4096 bytes.
template <int Tile, int Slab>
class Slabs {
public:
    static constexpr int ROW_BYTES = Slab * 4, CHUNKS = ROW_BYTES / 16;
    static constexpr int STAGE_BYTES = Tile * ROW_BYTES + PANEL_SLAB_BYTES;

    __device__ __forceinline__ Slabs(const ProductArguments& a, uint8_t* shared) : a_(a), shared_(shared) {
        for (uint32_t t = 0; t < a.term_count; ++t) total_ += (a.terms[t].k + Slab - 1) / Slab;
    }

    __device__ __forceinline__ uint32_t total() const { return total_; }

    // Where chunk c of row r of x lies in a stage: neighbouring rows differ in the places' parity, so that reading pairs of chunks of eight
    // rows finds every bank once.
    __device__ static __forceinline__ int place(int r, int c) { return r * ROW_BYTES + ((CHUNKS == 8 ? c ^ (r & 1) : c) << 4); }
    __device__ __forceinline__ const uint8_t* x(uint32_t slab) const { return shared_ + slab % STAGES * STAGE_BYTES; }
    __device__ __forceinline__ const uint8_t* w(uint32_t slab) const { return x(slab) + Tile * ROW_BYTES; }

    // Starts the copies of the next slab, if there is one, and closes their group in any case.
    __device__ __forceinline__ void start() {
        if (started_ < total_) {
            const ProductTerm& term = a_.terms[term_];
            uint8_t* stage = shared_ + started_ % STAGES * STAGE_BYTES;
            const uint32_t slabs = (term.k + Slab - 1) / Slab;
            const uint32_t from = (started_ - before_) * Slab;
#pragma unroll
            for (int i = 0; i < (Tile * CHUNKS + THREADS - 1) / THREADS; ++i) {
                const int chunk = threadIdx.x + i * THREADS, r = chunk / CHUNKS, c = chunk % CHUNKS;
                if (Tile * CHUNKS % THREADS != 0 && r >= Tile) break;
                const uint32_t row = blockIdx.y * Tile + r, k = from + c * 4;
                // Rows and columns that are not there are zeros, and their memory is not touched.
                const bool there = row < a_.rows && k < term.k;
                const uint32_t bytes = there ? min(16u, (term.k - k) * 4) : 0;
                const uint64_t source = there ? term.x + (uint64_t)row * term.x_stride + (uint64_t)k * 4 : term.x;
                copy_async(stage + place(r, c), reinterpret_cast<const void*>(source), bytes);
            }
            const uint64_t panel = term.weights + ((uint64_t)blockIdx.x * slabs + (started_ - before_)) * PANEL_SLAB_BYTES;
#pragma unroll
            for (int i = 0; i < PANEL_SLAB_BYTES / 16 / THREADS; ++i) {
                const int at = (threadIdx.x + i * THREADS) * 16;
                copy_async(stage + Tile * ROW_BYTES + at, reinterpret_cast<const void*>(panel + at), 16);
            }
            if (++started_ == before_ + slabs) {
                before_ = started_;
                ++term_;
            }
        }
        copy_commit();
    }

private:
    const ProductArguments& a_;
    uint8_t* shared_;
    uint32_t total_ = 0, started_ = 0, before_ = 0, term_ = 0;
};

// Calls `multiply(slab)` for every slab in order, each with its data in shared memory.
template <int Tile, int Slab, class Multiply>
__device__ __forceinline__ void walk(Slabs<Tile, Slab>& slabs, Multiply multiply) {
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) slabs.start();
    for (uint32_t slab = 0; slab < slabs.total(); ++slab) {
        // This slab has landed for this thread, then for all; and all are done with the slab whose place the next one takes.
        copy_wait<STAGES - 2>();
        __syncthreads();
        slabs.start();
        multiply(slab);
    }
}

// What the sum of (row, column) begins with.
__device__ __forceinline__ float beginning(const ProductArguments& a, uint32_t row, uint32_t column) {
    if (column >= a.n) return 0.0f;
    if (a.begin) return row < a.rows ? reinterpret_cast<const float*>(a.begin + (uint64_t)row * a.begin_stride)[column] : 0.0f;
    return a.bias ? __ldg(reinterpret_cast<const float*>(a.bias) + column) : 0.0f;
}

// Leaves all sums, where y lies.
struct LeaveRows {
    const ProductArguments& a;
    uint32_t tile;

    __device__ __forceinline__ void begin() const {}
    template <int V>
    __device__ __forceinline__ void operator()(uint32_t tile_row, uint32_t tile_column, const float (&sums)[V]) const {
        const uint32_t row = blockIdx.y * tile + tile_row, column = blockIdx.x * COLUMNS + tile_column;
        if (row >= a.rows) return;
        float* y = reinterpret_cast<float*>(a.y + (uint64_t)row * a.y_stride) + column;
        if (column + V <= a.n) {
            if constexpr (V == 4) {
                *reinterpret_cast<float4*>(y) = make_float4(sums[0], sums[1], sums[2], sums[3]);
            } else {
                *reinterpret_cast<float2*>(y) = make_float2(sums[0], sums[1]);
            }
            return;
        }
#pragma unroll
        for (int v = 0; v < V; ++v) {
            if (column + v < a.n) y[v] = sums[v];
        }
    }
    __device__ __forceinline__ void end() const {}
};

// Fused multiply-adds. A thread has `Rows` rows by `Quads` times four columns.
template <int Tile, int Rows, int Quads, class Leave>
__device__ __forceinline__ void f32(const ProductArguments& a, const Leave& leave) {
    constexpr int ACROSS = COLUMNS / (4 * Quads), DOWN = THREADS / ACROSS;
    static_assert(DOWN * Rows == Tile, "the threads' rows are the tile's");
    DYNAMIC_SHARED(shared);
    Slabs<Tile, 16> slabs(a, shared);
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    const uint32_t row0 = blockIdx.y * Tile + down, column0 = blockIdx.x * COLUMNS + across * 4;

    float sums[Rows][Quads][4];
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int q = 0; q < Quads; ++q) {
#pragma unroll
            for (int v = 0; v < 4; ++v) sums[r][q][v] = beginning(a, row0 + r * DOWN, column0 + q * ACROSS * 4 + v);
        }
    }
    walk(slabs, [&](uint32_t slab) {
        const uint8_t *x = slabs.x(slab), *w = slabs.w(slab);
#pragma unroll
        for (int k = 0; k < 16; k += 4) {
            float4 xs[Rows];
#pragma unroll
            for (int r = 0; r < Rows; ++r) xs[r] = *reinterpret_cast<const float4*>(x + slabs.place(down + r * DOWN, k / 4));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int q = 0; q < Quads; ++q) {
                    const float4 ws = *reinterpret_cast<const float4*>(w + (k + i) * 256 + (across + q * ACROSS) * 16);
#pragma unroll
                    for (int r = 0; r < Rows; ++r) {
                        const float value = i == 0 ? xs[r].x : i == 1 ? xs[r].y : i == 2 ? xs[r].z : xs[r].w;
                        sums[r][q][0] = fmaf(value, ws.x, sums[r][q][0]);
                        sums[r][q][1] = fmaf(value, ws.y, sums[r][q][1]);
                        sums[r][q][2] = fmaf(value, ws.z, sums[r][q][2]);
                        sums[r][q][3] = fmaf(value, ws.w, sums[r][q][3]);
                    }
                }
            }
        }
    });
    leave.begin();
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
#pragma unroll
        for (int q = 0; q < Quads; ++q) leave(down + r * DOWN, (across + q * ACROSS) * 4, sums[r][q]);
    }
    leave.end();
}

// Sums that tensor cores make: of a warp `Bands` times 16 rows by `Eights` times 8 columns of the tile.
template <int Tile, int Bands, int Eights>
struct WarpSums {
    static constexpr int DOWN = Tile / (16 * Bands), ACROSS = COLUMNS / (8 * Eights);
    static_assert(DOWN * ACROSS == THREADS / 32, "the warps' tiles are the block's");

    int lane, group, quarter, row0, column0;
    // [..][0..1] are two columns of row `group`, [2..3] those of row `group + 8`.
    float sums[Bands][Eights][4];

    __device__ __forceinline__ explicit WarpSums(const ProductArguments& a) {
        const int warp = threadIdx.x / 32;
        lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
        row0 = warp / ACROSS * 16 * Bands, column0 = warp % ACROSS * 8 * Eights;
        const uint32_t row = blockIdx.y * Tile + row0 + group, column = blockIdx.x * COLUMNS + column0 + quarter * 2;
#pragma unroll
        for (int b = 0; b < Bands; ++b) {
#pragma unroll
            for (int e = 0; e < Eights; ++e) {
#pragma unroll
                for (int v = 0; v < 4; ++v) sums[b][e][v] = beginning(a, row + b * 16 + v / 2 * 8, column + e * 8 + v % 2);
            }
        }
    }
    // Which row of the tile the thread's rows of x are.
    __device__ __forceinline__ int row(int band, int half) const { return row0 + band * 16 + half * 8 + group; }
    template <class Leave>
    __device__ __forceinline__ void left(const Leave& leave) const {
        leave.begin();
#pragma unroll
        for (int b = 0; b < Bands; ++b) {
#pragma unroll
            for (int e = 0; e < Eights; ++e) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float pair[2] = {sums[b][e][half * 2], sums[b][e][half * 2 + 1]};
                    leave(row(b, half), column0 + e * 8 + quarter * 2, pair);
                }
            }
        }
        leave.end();
    }
};

// Two formats of 16 bits. An mma of 16 k takes from a thread two pairs of x and of W that lie 8 apart in k. Which k of the slab go where is free as
// long as x and W agree, so a thread takes 8 neighbouring ones: 16 bytes of W and 32 of x, one and two loads, and two mma.
struct Bf16 {
    static constexpr int SLAB = 32;
    __device__ static __forceinline__ uint32_t pack(float first, float second) { return pack_bf16(first, second); }
    __device__ static __forceinline__ void mma(float (&d)[4], const MmaA& a, const MmaB& b) { mma_bf16(d, a, b); }
};
struct F16 {
    static constexpr int SLAB = 32;
    __device__ static __forceinline__ uint32_t pack(float first, float second) { return pack_f16(first, second); }
    __device__ static __forceinline__ void mma(float (&d)[4], const MmaA& a, const MmaB& b) { mma_f16(d, a, b); }
};
// Both operands rounded to 10 bits behind the point, W when it was packed. An mma of 8 k takes from a thread k that lie 4 apart; as above it takes 4
// neighbouring ones, 16 bytes of each, and two mma.
struct Tf32 {
    static constexpr int SLAB = 16;
    __device__ static __forceinline__ void mma(float (&d)[4], const MmaA& a, const MmaB& b) { mma_tf32(d, a, b); }
};

// What a thread takes of a row of x, of which `chunk(c)` is four neighbouring numbers.
template <class Format, class Chunk>
__device__ __forceinline__ void take(uint32_t (&words)[4], int quarter, Chunk chunk) {
    if constexpr (Format::SLAB == 32) {
        const float4 low = chunk(quarter * 2), high = chunk(quarter * 2 + 1);
        words[0] = Format::pack(low.x, low.y);
        words[1] = Format::pack(low.z, low.w);
        words[2] = Format::pack(high.x, high.y);
        words[3] = Format::pack(high.z, high.w);
    } else {
        const float4 four = chunk(quarter);
        words[0] = round_tf32(four.x);
        words[1] = round_tf32(four.y);
        words[2] = round_tf32(four.z);
        words[3] = round_tf32(four.w);
    }
}

// Tensor cores.
template <class Format, int Tile, int Bands, int Eights, class Leave>
__device__ __forceinline__ void tensor(const ProductArguments& a, const Leave& leave) {
    DYNAMIC_SHARED(shared);
    Slabs<Tile, Format::SLAB> slabs(a, shared);
    WarpSums<Tile, Bands, Eights> own(a);
    walk(slabs, [&](uint32_t slab) {
        const uint8_t *x = slabs.x(slab), *w = slabs.w(slab);
        uint32_t xs[Bands][2][4];
#pragma unroll
        for (int b = 0; b < Bands; ++b) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = own.row(b, half);
                take<Format>(xs[b][half], own.quarter, [&](int c) { return *reinterpret_cast<const float4*>(x + slabs.place(r, c)); });
            }
        }
#pragma unroll
        for (int e = 0; e < Eights; ++e) {
            const uint4 ws = *reinterpret_cast<const uint4*>(w + (own.column0 + e * 8) * 64 + own.lane * 16);
#pragma unroll
            for (int b = 0; b < Bands; ++b) {
                Format::mma(own.sums[b][e], {xs[b][0][0], xs[b][1][0], xs[b][0][1], xs[b][1][1]}, {ws.x, ws.y});
                Format::mma(own.sums[b][e], {xs[b][0][2], xs[b][1][2], xs[b][0][3], xs[b][1][3]}, {ws.z, ws.w});
            }
        }
    });
    own.left(leave);
}

// The arithmetic by the tile's rows: who has which part of a tile.
template <int Tile, class Leave>
__device__ __forceinline__ void in_f32(const ProductArguments& a, const Leave& leave) {
    if (is_beyond(a.rows_at, blockIdx.y * Tile)) return;
    begin_launch();
    f32<Tile, Tile == 16 ? 2 : 8, Tile == 128 ? 2 : 1>(a, leave);
}
template <class Format, int Tile, class Leave>
__device__ __forceinline__ void in_tensor(const ProductArguments& a, const Leave& leave) {
    if (is_beyond(a.rows_at, blockIdx.y * Tile)) return;
    begin_launch();
    tensor<Format, Tile, Tile == 16 ? 1 : 2, Tile == 16 ? 2 : Tile / 16>(a, leave);
}

}  // namespace product
