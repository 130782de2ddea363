// Steps of an LSTM and of its like on Hopper: rows are gathered by address, multiplied by W and U, put through the gates and scattered, in one
// kernel. Which cell it is, and of which 16 bits its rows and weights are, is said by `gates.cuh`.
//
// One warpgroup (the last) feeds shared memory: rows of x and h with asynchronous copies, weights with bulk copies. The others multiply, each 64
// rows, and have the sums of all gates of a unit in one thread, because the weights' columns come in that order; so the gates need no exchange. Every sum begins with its beginning and takes x, then h, k ascending, in products of 16: no tile changes a bit.
//
// A queue of steps is one launch that stays: between steps its blocks wait for one another. What does not depend on the step before, the x
// part, is multiplied before that wait. Where the batch is small, a block's weights are most of what it reads: resident ones are read once for
// all steps, and stay in shared memory.
//
// Where it is large, many blocks read the same weights for other rows. Such blocks may be clusters (`lstm_shared_*`): each reads a share of every slab's
// weights, and copies it to all of them at once.
#include "gates.cuh"
#include "ring.cuh"

namespace recurrent {

// UNITS: by which the columns of weights are taken.
constexpr int GROUP = 128, SLAB = Cell::SLAB, ROW_BYTES = 128, UNITS = 8;
// A group of copies is published this many slabs after it was started.
constexpr int LAG = 2;

// Groups: warpgroups that multiply. Units: of a tile, each with a column of W and U for each gate.
// Resident: all tiles of a block have the same columns, whose weights stay behind the ring of stages.
// Cluster: blocks side by side that have the same columns, and rows one behind the other; each of them has one tile.
template <class Gates, int Groups, int Units, int Stages, bool Resident, int Cluster>
class Tiles {
public:
    static constexpr int ROWS = 64 * Groups, PASSES = ROWS / 16, COLUMNS = Gates::GATES * Units, SLAB_BYTES = Gates::GATES * UNITS * ROW_BYTES;
    static constexpr int WEIGHT_BYTES = COLUMNS * ROW_BYTES;
    static constexpr int STAGE_BYTES = ROWS * ROW_BYTES + (Resident ? 0 : WEIGHT_BYTES);

    __device__ __forceinline__ Tiles(const Cell& cell, uint8_t* shared, uint64_t* full, uint64_t* empty)
        : cell_(cell), shared_(shared), full_(full), empty_(empty) {}

    // Shares weights with as many of its cluster's blocks as have some of so many rows: the first ones.
    __device__ __forceinline__ void share(uint32_t tile, uint32_t rows) {
        sharing_ = min(static_cast<uint32_t>(Cluster), (rows - first_row(tile / Cluster * Cluster) + ROWS - 1) / ROWS);
    }

    __device__ __forceinline__ void initialise() {
        if (threadIdx.x == 0) {
            for (int s = 0; s < Stages; ++s) {
                mbarrier_init(&full_[s], GROUP + 1);
                mbarrier_init(&empty_[s], Groups * 4 * sharing_);
            }
        }
        mbarrier_init_fence();
        if (Cluster == 1) {
            __syncthreads();
        } else {
            cluster_arrive();
        }
    }

    __device__ __forceinline__ uint32_t across() const { return (cell_.units + Units - 1) / Units; }
    __device__ __forceinline__ uint32_t tiles(const LstmRows& rows) const { return (rows.rows + ROWS - 1) / ROWS * across(); }

    __device__ __forceinline__ uint32_t first_row(uint32_t tile) const { return (tile / Cluster / across() * Cluster + tile % Cluster) * ROWS; }
    __device__ __forceinline__ uint32_t column(uint32_t tile) const { return tile / Cluster % across(); }

    // Feeds one tile. `known` is called by all threads of the warpgroup before the first row of h is read.
    template <class Known>
    __device__ __forceinline__ void feed(const LstmRows& rows, uint32_t tile, Known known) {
        const int t = threadIdx.x % GROUP, chunk = t % 8;
        const uint32_t input_slabs = cell_.input_slabs(), slabs = cell_.slabs();
        const uint32_t first = first_row(tile) + t / 8;
        const uint64_t weights = cell_.weights + (uint64_t)column(tile) * (Units / UNITS) * slabs * SLAB_BYTES;
        // Both lists at once: reading the second one when x ends would let the ring run dry.
        uint64_t inputs[PASSES], states[PASSES];
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
            inputs[i] = Cluster > 1 ? listed_before(rows.x, first + 16 * i, rows.rows) : listed(rows.x, first + 16 * i, rows.rows);
            states[i] = Cluster > 1 ? listed_before(rows.h, first + 16 * i, rows.rows) : listed(rows.h, first + 16 * i, rows.rows);
        }
        meet();
        const uint32_t ahead = copied_ahead(slabs);
        if (t == 0) {
            for (uint32_t k = 0; k < ahead; ++k) copy_weights(weights, k, k);
        }
        for (uint32_t k = 0; k < slabs + LAG; ++k) {
            if (k < slabs) {
                const bool input = k < input_slabs;
                if (k == input_slabs) known();
                mbarrier_wait(&empty_[place_.stage], place_.parity ^ 1);
                uint8_t* stage = shared_ + place_.stage * STAGE_BYTES;
                if (t == 0 && Resident && loaded_) {
                    mbarrier_arrive(&full_[place_.stage]);
                } else if (t == 0 && k >= ahead) {
                    copy_weights(weights, k, place_.stage);
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
        part();
    }

    // Multiplies one tile and leaves its h and c.
    __device__ __forceinline__ void multiply(const LstmRows& rows, uint32_t tile) {
        const int group = threadIdx.x / GROUP, t = threadIdx.x % GROUP, lane = t % 32;
        const uint32_t row = first_row(tile) + group * 64 + t / 32 * 16 + lane / 4;
        const uint32_t unit = column(tile) * Units + lane % 4 * 2;
        const uint32_t slabs = cell_.slabs();
        float sums[COLUMNS / 2];
        begin(rows, row, unit, sums);
        Gates leaving[2];
        typename Gates::Read read[2][Units / UNITS];
#pragma unroll
        for (int half = 0; half < 2; ++half) leaving[half].find(cell_, rows, row + 8 * half);
        meet();
        for (uint32_t k = 0; k < slabs; ++k) {
            mbarrier_wait(&full_[place_.stage], place_.parity);
            // h is there, so the step before is done, and so is what else it left; that arrives while the rest of the sums is made.
            if (k == cell_.input_slabs()) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
#pragma unroll
                    for (int g = 0; g < Units / UNITS; ++g) read[half][g] = leaving[half].read(cell_, unit + UNITS * g, is_unit(unit, g));
                }
            }
            const uint8_t* stage = shared_ + place_.stage * STAGE_BYTES;
            const uint64_t a = wgmma_descriptor(stage + group * 64 * ROW_BYTES), b = wgmma_descriptor(weights_at(place_.stage, k));
            wgmma_pin(sums);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < SLAB / 16; ++i) Gates::Halves::template multiply<COLUMNS>(sums, a + 2 * i, b + 2 * i);
            wgmma_commit();
            wgmma_pin(sums);
            // While these run, what the ones before read may be overwritten.
            if (k > 0) {
                wgmma_wait<1>();
                release(k - 1);
            }
            place_.advance();
        }
        wgmma_wait<0>();
        wgmma_pin(sums);
        release(slabs - 1);
        part();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int g = 0; g < Units / UNITS; ++g) {
                if (is_unit(unit, g)) leaving[half].gates(cell_, read[half][g], &sums[g * Gates::GATES * 4 + half * 2], unit + UNITS * g);
            }
        }
    }

private:
    // Where the weights of slab k lie.
    __device__ __forceinline__ uint8_t* weights_at(uint32_t stage, uint32_t k) const {
        return Resident ? shared_ + Stages * STAGE_BYTES + k * WEIGHT_BYTES : shared_ + stage * STAGE_BYTES + ROWS * ROW_BYTES;
    }

    // Starts the copies of slab k's weights. In a cluster these are a share of them, for all that share, from whom the rest comes; it may come before this
    // block has said that it expects any.
    __device__ __forceinline__ void copy_weights(uint64_t weights, uint32_t k, uint32_t stage) {
        const uint64_t slab = weights + (uint64_t)k * SLAB_BYTES, group = (uint64_t)cell_.slabs() * SLAB_BYTES;
        uint8_t* to = weights_at(stage, k);
        mbarrier_arrive_expect(&full_[stage], WEIGHT_BYTES);
        if (Cluster == 1) {
#pragma unroll
            for (uint32_t g = 0; g < Units / UNITS; ++g) {
                bulk_copy(to + g * SLAB_BYTES, reinterpret_cast<const void*>(slab + g * group), SLAB_BYTES, &full_[stage]);
            }
        } else {
            for (uint32_t g = blockIdx.x % Cluster; g < Units / UNITS; g += sharing_) {
                bulk_copy_to((1u << sharing_) - 1, to + g * SLAB_BYTES, reinterpret_cast<const void*>(slab + g * group), SLAB_BYTES, &full_[stage]);
            }
        }
    }

    // A warp is done with slab k, the oldest that it has not released. All that share weights are told, because each of them copies to this block. For the
    // last stages nobody waits, so nobody is told: an arrival might find a block that has left.
    __device__ __forceinline__ void release(uint32_t k) {
        const uint32_t lane = threadIdx.x % 32;
        if (Cluster == 1) {
            if (lane == 0) mbarrier_arrive(&empty_[published_.stage]);
        } else if (k + Stages < cell_.slabs()) {
            if (lane < sharing_) mbarrier_arrive_at(&empty_[published_.stage], lane);
        }
        published_.advance();
    }

    // Of how many slabs the weights are under way before it is known where rows lie: the ring is empty at first, and weights wait for nothing.
    __device__ __forceinline__ static uint32_t copied_ahead(uint32_t slabs) { return Cluster == 1 ? 0 : min(static_cast<uint32_t>(Stages), slabs); }

    // Waits until the cluster's mbarriers are there: whoever uses one met the others before.
    __device__ __forceinline__ void meet() const {
        if (Cluster > 1) cluster_wait();
    }

    // Has nothing to do with the cluster's other blocks any more. They leave together, when everything that was copied for them has landed.
    __device__ __forceinline__ void part() const {
        if (Cluster > 1) cluster_arrive();
    }

    // Whether there is the unit of group g.
    __device__ __forceinline__ bool is_unit(uint32_t unit, int g) const { return unit + UNITS * g < cell_.units; }

    // sums[(g * GATES + gate) * 4 + half * 2 + e] belongs to row `row` + 8 · half and unit `unit` + 8 · g + e.
    __device__ __forceinline__ void begin(const LstmRows& rows, uint32_t row, uint32_t unit, float (&sums)[COLUMNS / 2]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint64_t own = listed(rows.begin, row + 8 * half, rows.rows);
#pragma unroll
            for (int g = 0; g < Units / UNITS; ++g) {
#pragma unroll
                for (int gate = 0; gate < Gates::GATES; ++gate) {
                    const float2 pair = Gates::begin(cell_, own, gate, unit + UNITS * g, is_unit(unit, g));
                    sums[(g * Gates::GATES + gate) * 4 + half * 2] = pair.x;
                    sums[(g * Gates::GATES + gate) * 4 + half * 2 + 1] = pair.y;
                }
            }
        }
    }

    const Cell cell_;
    uint8_t* const shared_;
    uint64_t *const full_, *const empty_;
    Place<Stages> place_, published_;
    uint32_t sharing_ = 1;
    bool loaded_ = false;
};

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Gates, int Groups, int Units, int Stages, int Cluster>
__device__ __forceinline__ void step(const Cell& cell, const LstmRows& rows, uint64_t rows_at) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    Tiles<Gates, Groups, Units, Stages, false, Cluster> tiles(cell, shared, full, empty);
    if (Cluster == 1) {
        if (is_beyond(rows_at, tiles.first_row(blockIdx.x))) return;
    } else {
        const uint32_t there = rows_at ? *reinterpret_cast<const uint32_t*>(rows_at) : rows.rows;
        // Of a cluster whose rows end, too: its barrier does not wait for threads that have returned.
        if (tiles.first_row(blockIdx.x) >= there) return;
        tiles.share(blockIdx.x, there);
    }
    tiles.initialise();
    if (threadIdx.x / GROUP == Groups) {
        registers_fewer<72>();
        tiles.feed(rows, blockIdx.x, [] {});
    } else {
        registers_more<Groups == 1 ? 240 : 216>();
        tiles.multiply(rows, blockIdx.x);
    }
    if (Cluster > 1) cluster_wait();
}

template <class Gates, int Groups, int Units, int Stages, bool Resident>
__device__ __forceinline__ void queue(const LstmQueueArguments& a) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    Tiles<Gates, Groups, Units, Stages, Resident, 1> tiles({a.weights, a.bias, a.inputs, a.units, a.columns, 0, a.z_takes}, shared, full, empty);
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

}  // namespace recurrent

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What the compiler is told of a kernel whose blocks are in clusters of so many.
#define CLUSTER_1
#define CLUSTER_4 __cluster_dims__(4, 1, 1)
#define STEP(name, Gates, GROUPS, WIDTH, STAGES, CLUSTER)                                                                                                      \
    extern "C" __global__ void CLUSTER_##CLUSTER __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ LstmStepArguments a) {                  \
        recurrent::step<recurrent::Gates, GROUPS, WIDTH, STAGES, CLUSTER>({a.weights, a.bias, a.inputs, a.units, a.columns, 0, a.z_takes}, a.rows, a.rows_at); \
    }                                                                                                                                                          \
    KERNEL_CLUSTER(name, LstmStepArguments, CLUSTER)
#define TREE_STEP(name, Gates, GROUPS, WIDTH, STAGES)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ TreeStepArguments a) {                             \
        recurrent::step<recurrent::Gates, GROUPS, WIDTH, STAGES, 1>({a.weights, a.bias, a.units, a.units, a.columns, a.c_right, 0}, a.rows, a.rows_at); \
    }                                                                                                                                                   \
    KERNEL(name, TreeStepArguments)
#define QUEUE(name, Gates, GROUPS, WIDTH, STAGES, RESIDENT)                                                                  \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ LstmQueueArguments a) { \
        recurrent::queue<recurrent::Gates, GROUPS, WIDTH, STAGES, RESIDENT>(a);                                              \
    }                                                                                                                        \
    KERNEL_COOPERATIVE(name, LstmQueueArguments)

// Every kernel in one format of 16 bits.
#define KERNELS_OF(FORMAT, Halves)                                                \
    STEP(lstm##FORMAT##_step_64x8, Lstm<recurrent::Halves>, 1, 8, 8, 1)           \
    STEP(lstm##FORMAT##_step_64x16, Lstm<recurrent::Halves>, 1, 16, 8, 1)         \
    STEP(lstm##FORMAT##_step_64x32, Lstm<recurrent::Halves>, 1, 32, 8, 1)         \
    STEP(lstm##FORMAT##_step_128x32, Lstm<recurrent::Halves>, 2, 32, 6, 1)        \
    STEP(lstm##FORMAT##_step_128x64, Lstm<recurrent::Halves>, 2, 64, 4, 1)        \
    QUEUE(lstm##FORMAT##_resident_64x8, Lstm<recurrent::Halves>, 1, 8, 8, true)   \
    QUEUE(lstm##FORMAT##_resident_64x16, Lstm<recurrent::Halves>, 1, 16, 8, true) \
    QUEUE(lstm##FORMAT##_queue_64x32, Lstm<recurrent::Halves>, 1, 32, 8, false)   \
    QUEUE(lstm##FORMAT##_queue_128x32, Lstm<recurrent::Halves>, 2, 32, 6, false)  \
    STEP(gru##FORMAT##_step_64x8, Gru<recurrent::Halves>, 1, 8, 8, 1)             \
    STEP(gru##FORMAT##_step_64x16, Gru<recurrent::Halves>, 1, 16, 8, 1)           \
    STEP(gru##FORMAT##_step_64x32, Gru<recurrent::Halves>, 1, 32, 8, 1)           \
    STEP(gru##FORMAT##_step_128x32, Gru<recurrent::Halves>, 2, 32, 6, 1)          \
    STEP(gru##FORMAT##_step_128x64, LateGru<recurrent::Halves>, 2, 64, 4, 1)      \
    QUEUE(gru##FORMAT##_resident_64x8, Gru<recurrent::Halves>, 1, 8, 8, true)     \
    QUEUE(gru##FORMAT##_resident_64x16, Gru<recurrent::Halves>, 1, 16, 8, true)   \
    QUEUE(gru##FORMAT##_queue_64x32, Gru<recurrent::Halves>, 1, 32, 8, false)     \
    QUEUE(gru##FORMAT##_queue_128x32, Gru<recurrent::Halves>, 2, 32, 6, false)    \
    TREE_STEP(tree##FORMAT##_step_64x8, Tree<recurrent::Halves>, 1, 8, 8)         \
    TREE_STEP(tree##FORMAT##_step_64x16, Tree<recurrent::Halves>, 1, 16, 8)       \
    TREE_STEP(tree##FORMAT##_step_64x32, Tree<recurrent::Halves>, 1, 32, 6)       \
    TREE_STEP(tree##FORMAT##_step_128x32, Tree<recurrent::Halves>, 2, 32, 6)

KERNELS_OF(, Bf16)
KERNELS_OF(_f16, F16)

// Whose blocks share weights. No worker takes them before a device has said that they are right, and quicker (`figures-steps` of `tests/gpu/run`).
STEP(lstm_shared_64x32, Lstm<recurrent::Bf16>, 1, 32, 8, 4)
STEP(lstm_shared_128x32, Lstm<recurrent::Bf16>, 2, 32, 6, 4)
STEP(lstm_shared_128x64, Lstm<recurrent::Bf16>, 2, 64, 4, 4)

#endif
