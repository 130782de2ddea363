// Steps of an LSTM and of its like on Hopper: rows are multiplied by W and U, put through the gates and scattered by address, in one kernel. Which cell
// it is, and of which 16 bits its rows and weights are, is said by `gates.cuh`.
//
// One thread of a warpgroup (the last) feeds shared memory: rows of x and h with copies of a tensor's boxes, weights with bulk copies. The other warpgroups
// multiply, each 64 rows, and have the sums of all gates of a unit in one thread, because the weights' columns come in that order; so the gates need no
// exchange. Every sum takes x, then h, k ascending, in products of 16, then what is known besides, which is read meanwhile: no tile changes a bit.
//
// A launch of one step begins before the one in front of it has ended, and copies weights meanwhile: as many as its stages hold, which of the smallest tile,
// up to 1,024 inputs and units, are all. What it reads of rows it reads when that one has ended. To wait for a stage takes as long as to multiply some slabs of a small tile, so its stages
// are of several.
//
// A queue of steps is one launch that stays: between steps its blocks wait for one another. What does not depend on the step before, the x
// part, is multiplied before that wait. Where the batch is small, a block's weights are most of what it reads: resident ones are read once for
// all steps, and stay in shared memory.
#include "recurrent.cuh"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace recurrent {

// Whether those that multiply take registers from those that feed them. A small tile's sums need few; and what a block does not take is there for blocks of the
// launches around a step, which gather its rows and finish them, while shared memory lets no two steps' blocks be on one multiprocessor.
template <class Gates, int Units>
constexpr bool SHIFTS = Gates::GATES * Units >= 96;

template <class Gates, int Groups, int Units, int Deep, int Stages>
__device__ __forceinline__ void step(const Cell& cell, const LstmRows& own, uint64_t rows_at, uint32_t number) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    launch_next();
    Tiles<Gates, Groups, Units, Deep, Stages, STEP> tiles(cell, shared, full, empty);
    const LstmRows rows = number == 0 ? own : uploaded<LstmRows>(uploaded<BatchHead>(rows_at).steps + (number - 1) * sizeof(LstmRows));
    if (number == 0 ? is_beyond(rows_at, tiles.first_row(blockIdx.x)) : tiles.first_row(blockIdx.x) >= rows.rows) return;
    tiles.initialise();
    if (threadIdx.x / GROUP == Groups) {
        if (SHIFTS<Gates, Units>) registers_fewer<24>();
        if (threadIdx.x % GROUP == 0) tiles.feed(rows, blockIdx.x, [] {});
    } else {
        if (SHIFTS<Gates, Units>) registers_more<240>();
        tiles.multiply(rows, blockIdx.x);
    }
}

template <class Gates, int Groups, int Units, int Stages, Work Does>
__device__ __forceinline__ void queue(const LstmQueueArguments& a) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    Tiles<Gates, Groups, Units, 1, Stages, Does> tiles({a.weights, a.bias, a.inputs, a.units, a.columns, a.x, a.h, 0, a.z_takes}, shared, full, empty);
    // Otherwise a block would meet columns whose weights it does not have.
    if (Does == RESIDENT && gridDim.x % tiles.across() != 0) __trap();
    tiles.initialise();
    const LstmRows* steps = reinterpret_cast<const LstmRows*>(a.steps);
    uint32_t* counter = reinterpret_cast<uint32_t*>(a.counter);
    if (threadIdx.x / GROUP == Groups) {
        if (SHIFTS<Gates, Units>) registers_fewer<24>();
        if (threadIdx.x % GROUP != 0) return;
        for (uint32_t s = 0; s < a.step_count; ++s) {
            const LstmRows rows = steps[s];
            bool known = s == 0;
            for (uint32_t tile = blockIdx.x; tile < tiles.tiles(rows); tile += gridDim.x) {
                tiles.feed(rows, tile, [&] {
                    if (known) return;
                    grid_wait(counter, s * gridDim.x);
                    async_proxy_fence();
                    known = true;
                });
            }
        }
    } else {
        if (SHIFTS<Gates, Units>) registers_more<240>();
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

}  // namespace recurrent

#define STEPS(name, Gates, GROUPS, WIDTH, DEEP, STAGES)                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ LstmStepArguments a) {                                                     \
        recurrent::step<recurrent::Gates, GROUPS, WIDTH, DEEP, STAGES>({a.weights, a.bias, a.inputs, a.units, a.columns, a.x, a.h, 0, a.z_takes}, a.rows, a.rows_at, a.number); \
    }                                                                                                                                                                           \
    KERNEL(name, LstmStepArguments)
#define NODES(name, Gates, GROUPS, WIDTH, DEEP, STAGES)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ TreeStepArguments a) {                                                    \
        recurrent::step<recurrent::Gates, GROUPS, WIDTH, DEEP, STAGES>({a.weights, a.bias, a.units, a.units, a.columns, a.left, a.right, a.c_right, 0}, a.rows, a.rows_at, 0); \
    }                                                                                                                                                                          \
    KERNEL(name, TreeStepArguments)
#define QUEUES(name, Gates, GROUPS, WIDTH, STAGES, WORK)                                                                     \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ LstmQueueArguments a) { \
        recurrent::queue<recurrent::Gates, GROUPS, WIDTH, STAGES, recurrent::WORK>(a);                                       \
    }                                                                                                                        \
    KERNEL_COOPERATIVE(name, LstmQueueArguments)

// Every kernel in one format of 16 bits: warpgroups that multiply, units of a tile, slabs of a stage, stages.
#define KERNELS_OF(FORMAT, Halves)                                                     \
    STEPS(lstm##FORMAT##_step_64x8, Lstm<recurrent::Halves>, 1, 8, 8, 2)               \
    STEPS(lstm##FORMAT##_step_64x16, Lstm<recurrent::Halves>, 1, 16, 4, 3)             \
    STEPS(lstm##FORMAT##_step_64x32, Lstm<recurrent::Halves>, 1, 32, 1, 8)             \
    STEPS(lstm##FORMAT##_step_128x32, Lstm<recurrent::Halves>, 2, 32, 1, 6)            \
    QUEUES(lstm##FORMAT##_resident_64x8, Lstm<recurrent::Halves>, 1, 8, 8, RESIDENT)   \
    QUEUES(lstm##FORMAT##_resident_64x16, Lstm<recurrent::Halves>, 1, 16, 8, RESIDENT) \
    QUEUES(lstm##FORMAT##_queue_64x32, Lstm<recurrent::Halves>, 1, 32, 8, QUEUE)       \
    QUEUES(lstm##FORMAT##_queue_128x32, Lstm<recurrent::Halves>, 2, 32, 6, QUEUE)      \
    STEPS(gru##FORMAT##_step_64x8, Gru<recurrent::Halves>, 1, 8, 8, 2)                 \
    STEPS(gru##FORMAT##_step_64x16, Gru<recurrent::Halves>, 1, 16, 4, 3)               \
    STEPS(gru##FORMAT##_step_64x32, Gru<recurrent::Halves>, 1, 32, 1, 8)               \
    STEPS(gru##FORMAT##_step_128x32, Gru<recurrent::Halves>, 2, 32, 1, 6)              \
    QUEUES(gru##FORMAT##_resident_64x8, Gru<recurrent::Halves>, 1, 8, 8, RESIDENT)     \
    QUEUES(gru##FORMAT##_resident_64x16, Gru<recurrent::Halves>, 1, 16, 8, RESIDENT)   \
    QUEUES(gru##FORMAT##_queue_64x32, Gru<recurrent::Halves>, 1, 32, 8, QUEUE)         \
    QUEUES(gru##FORMAT##_queue_128x32, Gru<recurrent::Halves>, 2, 32, 6, QUEUE)        \
    NODES(tree##FORMAT##_step_64x8, Tree<recurrent::Halves>, 1, 8, 4, 4)               \
    NODES(tree##FORMAT##_step_64x16, Tree<recurrent::Halves>, 1, 16, 4, 3)             \
    NODES(tree##FORMAT##_step_64x32, Tree<recurrent::Halves>, 1, 32, 1, 6)             \
    NODES(tree##FORMAT##_step_128x32, Tree<recurrent::Halves>, 2, 32, 1, 5)

KERNELS_OF(, Bf16)
KERNELS_OF(_f16, F16)

#endif
