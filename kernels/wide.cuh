// y = begin + x_0·W_0 + x_1·W_1 + …: products in bf16 and f16 by warpgroups, on Hopper, whatever becomes of the sums.
//
// A block computes tiles of y one after another. One thread of a warpgroup (the last) feeds a ring of stages: rows of x with copies of a tensor's boxes, weights
// with bulk copies. The other warpgroups multiply, each 64 rows, or by turns (`Turns`) all of a tile's. The ring goes on from tile to tile, so that slabs of the next one arrive while a tile's sums are left.
// Every sum begins with its beginning and takes the terms in order, k ascending, in products of 16: no tile changes a bit.
//
// x is rounded before it comes here. What a block waits for is what it reads: a tile of 128 by 256 takes the tensor cores 1024 cycles for a slab, and
// reads 48 KiB for it; rows of floats would make that 64 KiB. And a thread that only starts copies hides any latency with few registers.
#pragma once
#include "abi_best.h"
#include "gates.cuh"
#include "product.cuh"
#include "ring.cuh"

namespace wide {

constexpr int CREWS = 2, GROUP = 128, SLAB = 64, ROW_BYTES = 128, PANEL = product::COLUMNS, PANEL_SLAB_BYTES = PANEL * ROW_BYTES;

// Which tiles there are. Those of the same columns follow one another: their weights come from memory once.
template <int Rows, int Columns>
class Tiles {
public:
    __device__ __forceinline__ explicit Tiles(const ProductArguments& a)
        : rows_(a.rows_at ? min(a.rows, __ldcg(reinterpret_cast<const uint32_t*>(a.rows_at))) : a.rows), down_((rows_ + Rows - 1) / Rows),
          count_(down_ * ((a.n + Columns - 1) / Columns)) {}

    __device__ __forceinline__ uint32_t rows() const { return rows_; }
    __device__ __forceinline__ uint32_t count() const { return count_; }
    __device__ __forceinline__ uint32_t row(uint32_t tile) const { return tile % down_ * Rows; }
    __device__ __forceinline__ uint32_t column(uint32_t tile) const { return tile / down_ * Columns; }

private:
    const uint32_t rows_, down_, count_;
};

// Groups: warpgroups that multiply, of 64 rows each; by turns, 64 rows each of which either multiplies. Releases: warps that release a stage.
template <class Halves, int Groups, int Columns, int Stages, int Releases = Groups * 4>
class Block {
public:
    static constexpr int ROWS = 64 * Groups, STAGE_BYTES = (ROWS + Columns) * ROW_BYTES;
    static_assert(Columns % PANEL == 0, "a tile has whole panels");
    static constexpr int PANELS = Columns / PANEL;

    __device__ __forceinline__ Block(const WideArguments& a, uint8_t* shared, uint64_t* full, uint64_t* empty)
        : x_(a.x), a_(a.best.product), tiles_(a_), shared_(shared), full_(full), empty_(empty) {}

    __device__ __forceinline__ bool has_tiles() const { return blockIdx.x < tiles_.count(); }

    __device__ __forceinline__ void initialise() {
        if (threadIdx.x == 0) {
            for (int s = 0; s < Stages; ++s) {
                // Its rows and its weights.
                mbarrier_init(&full_[s], 2);
                mbarrier_init(&empty_[s], Releases);
            }
        }
        mbarrier_init_fence();
        __syncthreads();
    }

    // Feeds all tiles of the block: what one thread does. The weights of its first slabs come while the launch in front has not ended yet.
    __device__ __forceinline__ void feed() {
        const uint32_t first = (a_.terms[0].k + SLAB - 1) / SLAB, ahead = min(static_cast<uint32_t>(Stages), first);
        for (uint32_t k = 0; k < ahead; ++k) copy_weights(a_.terms[0], blockIdx.x, k, first, k);
        launch_wait();
        uint32_t started = 0;
        for (uint32_t tile = blockIdx.x; tile < tiles_.count(); tile += gridDim.x) {
            for (uint32_t t = 0; t < a_.term_count; ++t) {
                const uint32_t slabs = (a_.terms[t].k + SLAB - 1) / SLAB;
                for (uint32_t k = 0; k < slabs; ++k) start(t, tile, k, slabs, started++ >= ahead);
            }
        }
    }

    // Multiplies all tiles of the block. sums[4 · g + 2 · half + e] is of row `row` + 8 · half and column `column` + 8 · g + e.
    template <class Leave>
    __device__ __forceinline__ void multiply(const Leave& leave) {
        const int group = threadIdx.x / GROUP, t = threadIdx.x % GROUP, lane = t % 32;
        const uint32_t slabs = this->slabs();
        launch_wait();
        for (uint32_t tile = blockIdx.x; tile < tiles_.count(); tile += gridDim.x) {
            const uint32_t row = tiles_.row(tile) + group * 64 + t / 32 * 16 + lane / 4, column = tiles_.column(tile) + lane % 4 * 2;
            float sums[Columns / 2];
            begin(row, column, sums);
            for (uint32_t k = 0; k < slabs; ++k) {
                mbarrier_wait(&full_[place_.stage], place_.parity);
                const uint8_t* stage = shared_ + place_.stage * STAGE_BYTES;
                const uint64_t x = wgmma_descriptor(stage + group * 64 * ROW_BYTES), w = wgmma_descriptor(stage + ROWS * ROW_BYTES);
                wgmma_pin(sums);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < SLAB / 16; ++i) Halves::template multiply<Columns>(sums, x + 2 * i, w + 2 * i);
                wgmma_commit();
                wgmma_pin(sums);
                // While these run, what the ones before read may be overwritten.
                if (k > 0) {
                    wgmma_wait<1>();
                    release();
                }
                place_.advance();
            }
            wgmma_wait<0>();
            wgmma_pin(sums);
            release();
            leave(tiles_.rows(), row, column, sums);
        }
    }

protected:
    // Of all terms.
    __device__ __forceinline__ uint32_t slabs() const {
        uint32_t slabs = 0;
        for (uint32_t i = 0; i < a_.term_count; ++i) slabs += (a_.terms[i].k + SLAB - 1) / SLAB;
        return slabs;
    }

    // Starts the copies of the weights of slab k of a term to a stage.
    __device__ __forceinline__ void copy_weights(const ProductTerm& term, uint32_t tile, uint32_t k, uint32_t slabs, uint32_t to) const {
        uint8_t* const stage = shared_ + to * STAGE_BYTES + ROWS * ROW_BYTES;
        const uint32_t panel = tiles_.column(tile) / PANEL;
        // What is beyond the last panel is multiplied as it lies there, and never left.
        const uint32_t there = min((uint32_t)PANELS, (a_.n + PANEL - 1) / PANEL - panel);
        const uint64_t weights = term.weights + ((uint64_t)panel * slabs + k) * PANEL_SLAB_BYTES;
        mbarrier_arrive_expect(&full_[to], there * PANEL_SLAB_BYTES);
        for (uint32_t p = 0; p < there; ++p) {
            bulk_copy(stage + p * PANEL_SLAB_BYTES, reinterpret_cast<const void*>(weights + (uint64_t)p * slabs * PANEL_SLAB_BYTES), PANEL_SLAB_BYTES, &full_[to]);
        }
    }

    // Starts the copies of slab k of a term, of the weights too unless they are on their way. Of rows that are not there nothing is left.
    __device__ __forceinline__ void start(uint32_t term, uint32_t tile, uint32_t k, uint32_t slabs, bool with_weights) {
        mbarrier_wait(&empty_[place_.stage], place_.parity ^ 1);
        if (with_weights) copy_weights(a_.terms[term], tile, k, slabs, place_.stage);
        uint8_t* const stage = shared_ + place_.stage * STAGE_BYTES;
        const uint32_t row = tiles_.row(tile), groups = Groups == 1 || row + TENSOR_BOX >= tiles_.rows() ? 1 : Groups;
        mbarrier_arrive_expect(&full_[place_.stage], groups * TENSOR_BOX_BYTES);
        for (uint32_t g = 0; g < groups; ++g) {
            tensor_copy(stage + g * TENSOR_BOX_BYTES, x_[term], k * SLAB, row + g * TENSOR_BOX, &full_[place_.stage]);
        }
        place_.advance();
    }

    // A warp is done with the oldest stage that it has not released.
    __device__ __forceinline__ void release() {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty_[released_.stage]);
        released_.advance();
    }

    // Where what a row begins with lies, or nowhere.
    __device__ __forceinline__ const float* beginning(uint32_t row) const {
        if (a_.begin == 0) return reinterpret_cast<const float*>(a_.bias);
        return row < tiles_.rows() ? reinterpret_cast<const float*>(a_.begin + (uint64_t)row * a_.begin_stride) : nullptr;
    }

    // With another case for the last of an odd number of columns the compiler would have the products wait for one another.
    __device__ __forceinline__ void begin(uint32_t row, uint32_t column, float (&sums)[Columns / 2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* const from = beginning(row + 8 * half);
            const uint32_t end = from ? a_.n : 0;
#pragma unroll
            for (int g = 0; g < Columns / 8; ++g) {
                const uint32_t at = column + 8 * g;
                const float2 pair = at < end ? reinterpret_cast<const float2*>(from)[at / 2] : make_float2(0.0f, 0.0f);
                sums[g * 4 + half * 2] = pair.x;
                sums[g * 4 + half * 2 + 1] = pair.y;
            }
        }
    }

    const TensorMap* const x_;
    const ProductArguments& a_;
    const Tiles<ROWS, Columns> tiles_;
    uint8_t* const shared_;
    uint64_t *const full_, *const empty_;
    // Where a slab is filled or read next, and which is the oldest that this thread has not released.
    Place<Stages> place_, released_;
};

// A block whose tiles two warpgroups have by turns, all 128 rows each: one leaves its sums, and reads what its next ones begin with, while the other multiplies.
template <class Halves, int Columns, int Stages>
class Turns : public Block<Halves, 2, Columns, Stages, 4> {
    using Base = Block<Halves, 2, Columns, Stages, 4>;
    using Base::a_, Base::tiles_, Base::shared_, Base::full_, Base::place_, Base::released_;
    // Of 64 rows.
    static constexpr int BLOCKS = 2;

public:
    __device__ __forceinline__ Turns(const WideArguments& a, uint8_t* shared, uint64_t* full, uint64_t* empty, Turn<CREWS> turn) : Base(a, shared, full, empty), turn_(turn) {}

    __device__ __forceinline__ void initialise() {
        if (threadIdx.x == 0) turn_.initialise();
        Base::initialise();
    }

    template <class Leave>
    __device__ __forceinline__ void multiply(const Leave& leave) {
        const uint32_t crew = threadIdx.x / GROUP, t = threadIdx.x % GROUP, lane = t % 32, slabs = this->slabs();
        launch_wait();
        uint32_t number = 0;
        for (uint32_t tile = blockIdx.x; tile < tiles_.count(); tile += gridDim.x, ++number) {
            if (!Turn<CREWS>::is_of(number, crew)) {
                for (uint32_t k = 0; k < slabs; ++k) place_.advance(), released_.advance();
                continue;
            }
            const uint32_t row = tiles_.row(tile) + t / 32 * 16 + lane / 4, column = tiles_.column(tile) + lane % 4 * 2;
            float sums[BLOCKS][Columns / 2];
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) this->begin(row + block * 64, column, sums[block]);
            turn_.await(number);
            const auto await = [&] { mbarrier_wait(&full_[place_.stage], place_.parity); };
            const auto multiply = [&](uint32_t) {
                const uint8_t* const stage = shared_ + place_.stage * Base::STAGE_BYTES;
                const uint64_t w = wgmma_descriptor(stage + Base::ROWS * ROW_BYTES);
#pragma unroll
                for (int block = 0; block < BLOCKS; ++block) {
                    const uint64_t x = wgmma_descriptor(stage + block * 64 * ROW_BYTES);
#pragma unroll
                    for (int i = 0; i < SLAB / 16; ++i) Halves::template multiply<Columns>(sums[block], x + 2 * i, w + 2 * i);
                }
                place_.advance();
            };
            multiply_in_turn(turn_, number, slabs, sums, await, multiply, [&] { this->release(); });
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) leave(tiles_.rows(), row + block * 64, column, sums[block]);
        }
    }

private:
    const Turn<CREWS> turn_;
};

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Halves, int Columns, int Stages, class Leave>
__device__ __forceinline__ void turns(const WideArguments& a, const Leave& leave) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    SHARED(uint64_t, turn, CREWS);
    launch_next();
    Turns<Halves, Columns, Stages> block(a, shared, full, empty, Turn<CREWS>(turn));
    if (!block.has_tiles()) return;
    block.initialise();
    if (threadIdx.x / GROUP == CREWS) {
        registers_fewer<40>();
        if (threadIdx.x % GROUP == 0) block.feed();
    } else {
        registers_more<232>();
        block.multiply(leave);
    }
}

template <class Halves, int Groups, int Columns, int Stages, class Leave>
__device__ __forceinline__ void run(const WideArguments& a, const Leave& leave) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    launch_next();
    Block<Halves, Groups, Columns, Stages> block(a, shared, full, empty);
    if (!block.has_tiles()) return;
    block.initialise();
    if (threadIdx.x / GROUP == Groups) {
        registers_fewer<24>();
        if (threadIdx.x % GROUP == 0) block.feed();
    } else {
        registers_more<240>();
        block.multiply(leave);
    }
}

#endif

// Leaves all sums, where y lies.
struct LeaveRows {
    const ProductArguments& a;

    template <int N>
    __device__ __forceinline__ void operator()(uint32_t rows, uint32_t row, uint32_t column, const float (&sums)[N]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (row + 8 * half >= rows) continue;
            float* const y = reinterpret_cast<float*>(a.y + (uint64_t)(row + 8 * half) * a.y_stride);
#pragma unroll
            for (int g = 0; g < N / 4; ++g) {
                const uint32_t at = column + 8 * g;
                const float first = sums[g * 4 + half * 2], second = sums[g * 4 + half * 2 + 1];
                if (at + 1 < a.n) {
                    *reinterpret_cast<float2*>(y + at) = make_float2(first, second);
                } else if (at < a.n) {
                    y[at] = first;
                }
            }
        }
    }
};

}  // namespace wide
