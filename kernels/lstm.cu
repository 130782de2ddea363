// Steps of an LSTM on Hopper: rows are gathered by address, multiplied by W and U, put through the gates and scattered, in one kernel.
//
// One warpgroup (the last) feeds shared memory: rows of x and h with asynchronous copies, weights with bulk copies. The others multiply, each 64
// rows, and have the sums of all four gates of a unit in one thread, because the weights' columns come in that order; so the gates need no
// exchange. Every sum begins with its beginning and takes x, then h, k ascending, in products of 16: no tile changes a bit.
//
// A queue of steps is one launch that stays: between steps its blocks wait for one another. What does not depend on the step before, the x
// part, is multiplied before that wait. Where the batch is small, a block's weights are most of what it reads: resident ones are read once for
// all steps, and stay in shared memory.
#include "kernel.cuh"

namespace lstm {

constexpr int GROUP = 128, SLAB = 64, SLAB_BYTES = 4096, ROW_BYTES = 128;
// A group of copies is published this many slabs after it was started.
constexpr int LAG = 2;

// What a launch computes, whichever its arguments.
struct Cell {
    uint64_t weights, bias;
    uint32_t inputs, units;
    const uint32_t* columns;
    __device__ __forceinline__ uint32_t input_slabs() const { return (inputs + SLAB - 1) / SLAB; }
    __device__ __forceinline__ uint32_t slabs() const { return input_slabs() + (units + SLAB - 1) / SLAB; }
};

// A place in the ring of stages, and the parity of its round.
template <int Stages>
struct Place {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == Stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ uint64_t listed(uint64_t list, uint32_t row, uint32_t rows) {
    return list && row < rows ? __ldg(reinterpret_cast<const uint64_t*>(list) + row) : 0;
}

__device__ __forceinline__ float sigmoid(float x) { return fmaf(tanh_fast(0.5f * x), 0.5f, 0.5f); }

// Groups: warpgroups that multiply. Columns: of W and U in a tile, four for each unit.
// Resident: all tiles of a block have the same columns, whose weights stay behind the ring of stages.
template <int Groups, int Columns, int Stages, bool Resident>
class Tiles {
public:
    static constexpr int ROWS = 64 * Groups, UNITS = Columns / 4, PASSES = ROWS / 16;
    static constexpr int WEIGHT_BYTES = Columns * ROW_BYTES;
    static constexpr int STAGE_BYTES = ROWS * ROW_BYTES + (Resident ? 0 : WEIGHT_BYTES);

    __device__ __forceinline__ Tiles(const Cell& cell, uint8_t* shared, uint64_t* full, uint64_t* empty)
        : cell_(cell), shared_(shared), full_(full), empty_(empty) {}

    __device__ __forceinline__ void initialise() {
        if (threadIdx.x == 0) {
            for (int s = 0; s < Stages; ++s) {
                mbarrier_init(&full_[s], GROUP + 1);
                mbarrier_init(&empty_[s], Groups * 4);
            }
        }
        mbarrier_init_fence();
        __syncthreads();
    }

    __device__ __forceinline__ uint32_t across() const { return (cell_.units + UNITS - 1) / UNITS; }
    __device__ __forceinline__ uint32_t tiles(const LstmRows& rows) const { return (rows.rows + ROWS - 1) / ROWS * across(); }

    __device__ __forceinline__ uint32_t first_row(uint32_t tile) const { return tile / across() * ROWS; }

    // Feeds one tile. `known` is called by all threads of the warpgroup before the first row of h is read.
    template <class Known>
    __device__ __forceinline__ void feed(const LstmRows& rows, uint32_t tile, Known known) {
        const int t = threadIdx.x % GROUP, chunk = t % 8;
        const uint32_t input_slabs = cell_.input_slabs(), slabs = cell_.slabs();
        const uint32_t first = tile / across() * ROWS + t / 8;
        const uint64_t weights = cell_.weights + (uint64_t)(tile % across()) * (Columns / 32) * slabs * SLAB_BYTES;
        // Both lists at once: reading the second one when x ends would let the ring run dry.
        uint64_t inputs[PASSES], states[PASSES];
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            inputs[i] = listed(rows.x, first + 16 * i, rows.rows);
            states[i] = listed(rows.h, first + 16 * i, rows.rows);
        }
        for (uint32_t k = 0; k < slabs + LAG; ++k) {
            if (k < slabs) {
                const bool input = k < input_slabs;
                if (k == input_slabs) known();
                mbarrier_wait(&empty_[place_.stage], place_.parity ^ 1);
                uint8_t* stage = shared_ + place_.stage * STAGE_BYTES;
                if (t == 0 && Resident && loaded_) {
                    mbarrier_arrive(&full_[place_.stage]);
                } else if (t == 0) {
                    mbarrier_arrive_expect(&full_[place_.stage], WEIGHT_BYTES);
#pragma unroll
                    for (int g = 0; g < Columns / 32; ++g) {
                        bulk_copy(weights_at(place_.stage, k) + g * SLAB_BYTES,
                                  reinterpret_cast<const void*>(weights + ((uint64_t)g * slabs + k) * SLAB_BYTES), SLAB_BYTES, &full_[place_.stage]);
                    }
                }
                const uint32_t column = (input ? k : k - input_slabs) * SLAB + chunk * 8;
                const bool there = column < (input ? cell_.inputs : cell_.units);
#pragma unroll
                for (int i = 0; i < PASSES; ++i) {
                    const int r = t / 8 + 16 * i;
                    const uint64_t row = input ? inputs[i] : states[i];
                    const bool read = there && row != 0;
                    const uint64_t source = read ? row + column * 2 : cell_.weights;
                    copy_async(stage + r * ROW_BYTES + ((chunk ^ (r & 7)) << 4), reinterpret_cast<const void*>(source), read ? 16 : 0);
                }
                place_.advance();
            }
            copy_commit();
            if (k >= LAG) {
                copy_wait<LAG>();
                async_proxy_fence();
                mbarrier_arrive(&full_[published_.stage]);
                published_.advance();
            }
        }
        loaded_ = true;
    }

    // Multiplies one tile and leaves its h and c.
    __device__ __forceinline__ void multiply(const LstmRows& rows, uint32_t tile) {
        const int group = threadIdx.x / GROUP, t = threadIdx.x % GROUP, lane = t % 32;
        const uint32_t row = tile / across() * ROWS + group * 64 + t / 32 * 16 + lane / 4;
        const uint32_t unit = tile % across() * UNITS + lane % 4 * 2;
        const uint32_t slabs = cell_.slabs();
        float sums[Columns / 2];
        begin(rows, row, unit, sums);
        Leaving leaving[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) leaving[half].find(rows, row + 8 * half);
        for (uint32_t k = 0; k < slabs; ++k) {
            mbarrier_wait(&full_[place_.stage], place_.parity);
            // h is there, so the step before is done, and c is there too; it arrives while the rest of the sums is made.
            if (k == cell_.input_slabs()) {
#pragma unroll
                for (int half = 0; half < 2; ++half) leaving[half].read(unit, cell_.units);
            }
            const uint8_t* stage = shared_ + place_.stage * STAGE_BYTES;
            const uint64_t a = wgmma_descriptor(stage + group * 64 * ROW_BYTES), b = wgmma_descriptor(weights_at(place_.stage, k));
            wgmma_pin(sums);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < SLAB / 16; ++i) wgmma_bf16<Columns>(sums, a + 2 * i, b + 2 * i, true);
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
#pragma unroll
        for (int half = 0; half < 2; ++half) gates(leaving[half], half, unit, sums);
    }

private:
    // Where the weights of slab k lie.
    __device__ __forceinline__ uint8_t* weights_at(uint32_t stage, uint32_t k) const {
        return Resident ? shared_ + Stages * STAGE_BYTES + k * WEIGHT_BYTES : shared_ + stage * STAGE_BYTES + ROWS * ROW_BYTES;
    }

    // A warp is done with the oldest stage that it has not released.
    __device__ __forceinline__ void release() {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty_[published_.stage]);
        published_.advance();
    }

    // sums[(g * 4 + gate) * 4 + half * 2 + e] belongs to row `row` + 8 · half and unit `unit` + 8 · g + e.
    __device__ __forceinline__ void begin(const LstmRows& rows, uint32_t row, uint32_t unit, float (&sums)[Columns / 2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint64_t own = listed(rows.begin, row + 8 * half, rows.rows);
            const float* from = reinterpret_cast<const float*>(own ? own : cell_.bias);
#pragma unroll
            for (int g = 0; g < Columns / 32; ++g) {
#pragma unroll
                for (int gate = 0; gate < 4; ++gate) {
                    float2 pair = make_float2(0.0f, 0.0f);
                    if (from && unit + 8 * g < cell_.units) pair = __ldg(reinterpret_cast<const float2*>(from + cell_.columns[gate] + unit + 8 * g));
                    sums[(g * 4 + gate) * 4 + half * 2] = pair.x;
                    sums[(g * 4 + gate) * 4 + half * 2 + 1] = pair.y;
                }
            }
        }
    }

    // What becomes of a row: where it goes, and the c that it had.
    struct Leaving {
        uint64_t from, c_out, h_out, h_exact;
        float2 c[Columns / 32];
        __device__ __forceinline__ void find(const LstmRows& rows, uint32_t row) {
            from = listed(rows.c, row, rows.rows);
            c_out = listed(rows.c_out, row, rows.rows);
            h_out = listed(rows.h_out, row, rows.rows);
            h_exact = listed(rows.h_exact, row, rows.rows);
        }
        // Another block may have written c in the step before: not to be read from this one's cache.
        __device__ __forceinline__ void read(uint32_t unit, uint32_t units) {
#pragma unroll
            for (int g = 0; g < Columns / 32; ++g) {
                const bool there = from != 0 && unit + 8 * g < units;
                c[g] = there ? __ldcg(reinterpret_cast<const float2*>(from) + (unit + 8 * g) / 2) : make_float2(0.0f, 0.0f);
            }
        }
    };

    __device__ __forceinline__ void gates(const Leaving& row, int half, uint32_t unit, const float (&sums)[Columns / 2]) const {
#pragma unroll
        for (int g = 0; g < Columns / 32; ++g) {
            const uint32_t u = unit + 8 * g;
            if (u >= cell_.units) continue;
            const float* s = &sums[g * 16 + half * 2];
            float2 c = row.c[g];
            c.x = fmaf(sigmoid(s[4]), c.x, sigmoid(s[0]) * tanh_fast(s[8]));
            c.y = fmaf(sigmoid(s[5]), c.y, sigmoid(s[1]) * tanh_fast(s[9]));
            if (row.c_out) reinterpret_cast<float2*>(row.c_out)[u / 2] = c;
            const float2 h = make_float2(sigmoid(s[12]) * tanh_fast(c.x), sigmoid(s[13]) * tanh_fast(c.y));
            if (row.h_out) reinterpret_cast<uint32_t*>(row.h_out)[u / 2] = pack_bf16(h.x, h.y);
            if (row.h_exact) reinterpret_cast<float2*>(row.h_exact)[u / 2] = h;
        }
    }

    const Cell cell_;
    uint8_t* const shared_;
    uint64_t *const full_, *const empty_;
    Place<Stages> place_, published_;
    bool loaded_ = false;
};

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int Groups, int Columns, int Stages>
__device__ __forceinline__ void step(const LstmStepArguments& a) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    Tiles<Groups, Columns, Stages, false> tiles({a.weights, a.bias, a.inputs, a.units, a.columns}, shared, full, empty);
    if (is_beyond(a.rows_at, tiles.first_row(blockIdx.x))) return;
    tiles.initialise();
    if (threadIdx.x / GROUP == Groups) {
        registers_fewer<72>();
        tiles.feed(a.rows, blockIdx.x, [] {});
    } else {
        registers_more<Groups == 1 ? 240 : 216>();
        tiles.multiply(a.rows, blockIdx.x);
    }
}

template <int Groups, int Columns, int Stages, bool Resident>
__device__ __forceinline__ void queue(const LstmQueueArguments& a) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    Tiles<Groups, Columns, Stages, Resident> tiles({a.weights, a.bias, a.inputs, a.units, a.columns}, shared, full, empty);
    // Otherwise a block would meet columns whose weights it does not have.
    if (Resident && gridDim.x % tiles.across() != 0) __trap();
    tiles.initialise();
    const LstmRows* steps = reinterpret_cast<const LstmRows*>(a.steps);
    uint32_t* counter = reinterpret_cast<uint32_t*>(a.counter);
    if (threadIdx.x / GROUP == Groups) {
        registers_fewer<72>();
        for (uint32_t s = 0; s < a.step_count; ++s) {
            const LstmRows rows = steps[s];
            bool known = s == 0;
            for (uint32_t tile = blockIdx.x; tile < tiles.tiles(rows); tile += gridDim.x) {
                tiles.feed(rows, tile, [&] {
                    if (known) return;
                    if (threadIdx.x % GROUP == 0) grid_wait(counter, s * gridDim.x);
                    group_barrier(2, GROUP);
                    known = true;
                });
            }
        }
    } else {
        registers_more<Groups == 1 ? 240 : 216>();
        for (uint32_t s = 0; s < a.step_count; ++s) {
            const LstmRows rows = steps[s];
            for (uint32_t tile = blockIdx.x; tile < tiles.tiles(rows); tile += gridDim.x) tiles.multiply(rows, tile);
            __threadfence();
            group_barrier(1, Groups * GROUP);
            if (threadIdx.x == 0) {
                // A block without a tile must not be counted for this step while others are at the one before.
                grid_wait(counter, s * gridDim.x);
                if (grid_arrive(counter) == (s + 1) * gridDim.x - 1 && a.signal) {
                    store_release_system(reinterpret_cast<uint32_t*>(a.signal), rows.sequence);
                }
            }
        }
    }
}

#endif

}  // namespace lstm

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

extern "C" __global__ void __launch_bounds__(256, 1) lstm_step_64x8(const __grid_constant__ LstmStepArguments a) { lstm::step<1, 32, 8>(a); }
KERNEL(lstm_step_64x8, LstmStepArguments)
extern "C" __global__ void __launch_bounds__(256, 1) lstm_step_64x16(const __grid_constant__ LstmStepArguments a) { lstm::step<1, 64, 8>(a); }
KERNEL(lstm_step_64x16, LstmStepArguments)
extern "C" __global__ void __launch_bounds__(256, 1) lstm_step_64x32(const __grid_constant__ LstmStepArguments a) { lstm::step<1, 128, 8>(a); }
KERNEL(lstm_step_64x32, LstmStepArguments)
extern "C" __global__ void __launch_bounds__(384, 1) lstm_step_128x32(const __grid_constant__ LstmStepArguments a) { lstm::step<2, 128, 6>(a); }
KERNEL(lstm_step_128x32, LstmStepArguments)
extern "C" __global__ void __launch_bounds__(384, 1) lstm_step_128x64(const __grid_constant__ LstmStepArguments a) { lstm::step<2, 256, 4>(a); }
KERNEL(lstm_step_128x64, LstmStepArguments)

extern "C" __global__ void __launch_bounds__(256, 1) lstm_resident_64x8(const __grid_constant__ LstmQueueArguments a) {
    lstm::queue<1, 32, 8, true>(a);
}
KERNEL_COOPERATIVE(lstm_resident_64x8, LstmQueueArguments)
extern "C" __global__ void __launch_bounds__(256, 1) lstm_resident_64x16(const __grid_constant__ LstmQueueArguments a) {
    lstm::queue<1, 64, 8, true>(a);
}
KERNEL_COOPERATIVE(lstm_resident_64x16, LstmQueueArguments)
extern "C" __global__ void __launch_bounds__(256, 1) lstm_queue_64x32(const __grid_constant__ LstmQueueArguments a) {
    lstm::queue<1, 128, 8, false>(a);
}
KERNEL_COOPERATIVE(lstm_queue_64x32, LstmQueueArguments)
extern "C" __global__ void __launch_bounds__(384, 1) lstm_queue_128x32(const __grid_constant__ LstmQueueArguments a) {
    lstm::queue<2, 128, 6, false>(a);
}
KERNEL_COOPERATIVE(lstm_queue_128x32, LstmQueueArguments)

#endif
