// What a block of the steps in `recurrent.cu` and `turns.cu` does with its tiles: how shared memory is fed, and how a warpgroup multiplies what lies there and leaves what
// comes of it.
#pragma once
#include "abi_transfer.h"
#include "gates.cuh"
#include "ring.cuh"

namespace recurrent {

// UNITS: by which the columns of weights are taken.
constexpr int GROUP = 128, SLAB = Cell::SLAB, ROW_BYTES = 128, UNITS = 8;

// What a block does: one tile of a launch's one step; tiles of such a step, which two warpgroups have by TURNS (`turns.cu`); tiles of several steps; or such of the
// same columns, whose weights are RESIDENT: they are copied once, and stay behind the stages.
enum Work { STEP, TURNS, QUEUE, RESIDENT };

// Groups: warpgroups that multiply, each 64 rows; by turns one multiplies all of them. Units: of a tile, each with a column of W and U for each gate. Deep: slabs of a stage.
template <class Gates, int Groups, int Units, int Deep, int Stages, Work Does>
class Tiles {
public:
    static constexpr int ROWS = 64 * Groups, COLUMNS = Gates::GATES * Units, SLAB_BYTES = Gates::GATES * UNITS * ROW_BYTES;
    static constexpr int ROWS_BYTES = ROWS * ROW_BYTES, WEIGHT_BYTES = COLUMNS * ROW_BYTES;
    static constexpr int STAGE_BYTES = Deep * (ROWS_BYTES + (Does == RESIDENT ? 0 : WEIGHT_BYTES));
    // Who multiplies releases a stage when the next one is there.
    static_assert(Stages >= 2, "the ring would wait for itself");
    static_assert(Deep == 1 || Does == STEP, "where blocks have several tiles, a stage is a slab");

    __device__ __forceinline__ Tiles(const Cell& cell, uint8_t* shared, uint64_t* full, uint64_t* empty)
        : cell_(cell), shared_(shared), full_(full), empty_(empty) {}

    __device__ __forceinline__ void initialise() {
        if (threadIdx.x == 0) {
            for (int s = 0; s < Stages; ++s) {
                // Its rows and its weights.
                mbarrier_init(&full_[s], 2);
                mbarrier_init(&empty_[s], Does == TURNS ? 4 : Groups * 4);
            }
        }
        mbarrier_init_fence();
        __syncthreads();
    }

    __device__ __forceinline__ uint32_t across() const { return (cell_.units + Units - 1) / Units; }
    __device__ __forceinline__ uint32_t tiles(const LstmRows& rows) const { return (rows.rows + ROWS - 1) / ROWS * across(); }
    __device__ __forceinline__ uint32_t first_row(uint32_t tile) const { return tile / across() * ROWS; }

    // Feeds one tile: what one thread does. `known` is called before the first row of h is read.
    template <class Known>
    __device__ __forceinline__ void feed(const LstmRows& rows, uint32_t tile, Known known) {
        const uint32_t slabs = cell_.slabs(), rounds = (slabs + Deep - 1) / Deep;
        const uint64_t weights = cell_.weights + (uint64_t)(tile % across()) * (Units / UNITS) * slabs * SLAB_BYTES;
        const bool is_first = (Does == STEP || Does == TURNS) && !loaded_;
        if (is_first) {
            // Weights are under way before it is known where rows lie.
            for (uint32_t round = 0; round < min(static_cast<uint32_t>(Stages), rounds); ++round) copy_weights(weights, round, round);
            launch_wait();
        }
        for (uint32_t round = 0; round < rounds; ++round) {
            if ((Does == QUEUE || Does == RESIDENT) && round == cell_.input_slabs()) known();
            mbarrier_wait(&empty_[place_.stage], place_.parity ^ 1);
            if (Does == RESIDENT && loaded_) {
                mbarrier_arrive(&full_[place_.stage]);
            } else if (!is_first || round >= Stages) {
                copy_weights(weights, round, place_.stage);
            }
            copy_rows(rows, first_row(tile), round);
            place_.advance();
        }
        loaded_ = true;
    }

    // Multiplies one tile and leaves its h and c.
    __device__ __forceinline__ void multiply(const LstmRows& rows, uint32_t tile) {
        const int group = threadIdx.x / GROUP, t = threadIdx.x % GROUP, lane = t % 32;
        const uint32_t row = first_row(tile) + group * 64 + t / 32 * 16 + lane / 4;
        const uint32_t unit = tile % across() * Units + lane % 4 * 2;
        const uint32_t slabs = cell_.slabs(), rounds = slabs / Deep, rest = slabs % Deep;
        if (Does == STEP) launch_wait();
        float sums[COLUMNS / 2], known[COLUMNS / 2];
        know(rows, row, unit, known);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
        Gates leaving[2];
        typename Gates::Read read[2][Units / UNITS];
#pragma unroll
        for (int half = 0; half < 2; ++half) leaving[half].find(cell_, rows, row + 8 * half);
        // What else the step before left arrives while the sums are made.
        const auto look = [&] {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int g = 0; g < Units / UNITS; ++g) read[half][g] = leaving[half].read(cell_, unit + UNITS * g, is_unit(unit, g));
            }
        };
        if (Does == STEP) look();
        for (uint32_t round = 0; round < rounds; ++round) {
            await();
            // h is there, so the step before is done.
            if (Does != STEP && round == cell_.input_slabs()) look();
            wgmma_pin(sums);
            wgmma_fence();
#pragma unroll
            for (int d = 0; d < Deep; ++d) multiply_slab(sums, group, round, d);
            wgmma_commit();
            wgmma_pin(sums);
            // While these run, what the ones before read may be overwritten.
            if (round > 0) {
                wgmma_wait<1>();
                release();
            }
            place_.advance();
        }
        if (Deep > 1 && rest != 0) {
            await();
            for (uint32_t d = 0; d < rest; ++d) {
                wgmma_pin(sums);
                wgmma_fence();
                multiply_slab(sums, group, rounds, d);
                wgmma_commit();
                wgmma_wait<0>();
                wgmma_pin(sums);
            }
        }
        wgmma_wait<0>();
        wgmma_pin(sums);
        // Of a block's last tile nobody waits for the last stages.
        if (Does != STEP) release();
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[i] += known[i];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int g = 0; g < Units / UNITS; ++g) {
                if (is_unit(unit, g)) leaving[half].gates(cell_, read[half][g], &sums[g * Gates::GATES * 4 + half * 2], unit + UNITS * g);
            }
        }
    }

protected:
    // Where the weights of a stage lie; of resident ones those of slab `round`.
    __device__ __forceinline__ uint8_t* weights_at(uint32_t round, uint32_t stage) const {
        return Does == RESIDENT ? shared_ + Stages * STAGE_BYTES + round * WEIGHT_BYTES : shared_ + stage * STAGE_BYTES + Deep * ROWS_BYTES;
    }

    // Starts the copies of the weights of a stage.
    __device__ __forceinline__ void copy_weights(uint64_t weights, uint32_t round, uint32_t stage) const {
        const uint64_t group = (uint64_t)cell_.slabs() * SLAB_BYTES;
        const uint32_t first = round * Deep, there = min(static_cast<uint32_t>(Deep), cell_.slabs() - first);
        uint8_t* const to = weights_at(round, stage);
        mbarrier_arrive_expect(&full_[stage], there * WEIGHT_BYTES);
        for (uint32_t d = 0; d < there; ++d) {
            const uint64_t slab = weights + (uint64_t)(first + d) * SLAB_BYTES;
#pragma unroll
            for (uint32_t g = 0; g < Units / UNITS; ++g) {
                bulk_copy(to + d * WEIGHT_BYTES + g * SLAB_BYTES, reinterpret_cast<const void*>(slab + g * group), SLAB_BYTES, &full_[stage]);
            }
        }
    }

    // Starts the copies of the rows of the next stage. A second box of rows is left out if none of them is there: nobody looks at their sums.
    __device__ __forceinline__ void copy_rows(const LstmRows& rows, uint32_t row, uint32_t round) const {
        const uint32_t first = round * Deep, there = min(static_cast<uint32_t>(Deep), cell_.slabs() - first), inputs = cell_.input_slabs();
        const uint32_t groups = Groups == 1 || row + TENSOR_BOX >= rows.rows ? 1 : Groups;
        uint64_t* const full = &full_[place_.stage];
        mbarrier_arrive_expect(full, there * groups * TENSOR_BOX_BYTES);
        for (uint32_t d = 0; d < there; ++d) {
            const uint32_t k = first + d;
            uint8_t* const to = shared_ + place_.stage * STAGE_BYTES + d * ROWS_BYTES;
            for (uint32_t g = 0; g < groups; ++g) {
                const TensorMap& from = k < inputs ? cell_.x : cell_.h;
                tensor_copy(to + g * TENSOR_BOX_BYTES, from, (k < inputs ? k : k - inputs) * SLAB, rows.first + row + g * TENSOR_BOX, full);
            }
        }
    }

    // Waits for a stage.
    __device__ __forceinline__ void await() const { mbarrier_wait(&full_[place_.stage], place_.parity); }
    __device__ __forceinline__ void multiply_slab(float (&sums)[COLUMNS / 2], int group, uint32_t round, uint32_t d) const {
        const uint8_t *const rows = shared_ + place_.stage * STAGE_BYTES + d * ROWS_BYTES, *const weights = weights_at(round, place_.stage) + d * WEIGHT_BYTES;
        const uint64_t a = wgmma_descriptor(rows + group * 64 * ROW_BYTES), b = wgmma_descriptor(weights);
#pragma unroll
        for (int i = 0; i < SLAB / 16; ++i) Gates::Halves::template multiply<COLUMNS>(sums, a + 2 * i, b + 2 * i);
    }
    // A warp is done with the oldest stage that it has not released.
    __device__ __forceinline__ void release() {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty_[released_.stage]);
        released_.advance();
    }

    // Whether there is the unit of group g.
    __device__ __forceinline__ bool is_unit(uint32_t unit, int g) const { return unit + UNITS * g < cell_.units; }

    // What is added to sums, of which [(g * GATES + gate) * 4 + half * 2 + e] belongs to row `row` + 8 · half and unit `unit` + 8 · g + e.
    __device__ __forceinline__ void know(const LstmRows& rows, uint32_t row, uint32_t unit, float (&known)[COLUMNS / 2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint64_t own = listed(rows.begin, row + 8 * half, rows.rows);
#pragma unroll
            for (int g = 0; g < Units / UNITS; ++g) {
#pragma unroll
                for (int gate = 0; gate < Gates::GATES; ++gate) {
                    const float2 pair = Gates::added(cell_, own, gate, unit + UNITS * g, is_unit(unit, g));
                    known[(g * Gates::GATES + gate) * 4 + half * 2] = pair.x;
                    known[(g * Gates::GATES + gate) * 4 + half * 2 + 1] = pair.y;
                }
            }
        }
    }

    const Cell cell_;
    uint8_t* const shared_;
    uint64_t *const full_, *const empty_;
    Place<Stages> place_, released_;
    bool loaded_ = false;
};

}  // namespace recurrent
