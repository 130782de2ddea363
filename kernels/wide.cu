// Products by warpgroups, whose sums are all written down or of which the best few of each panel are kept.
#include "best.cuh"
#include "wide.cuh"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace wide {

// Leaves the best of each panel's sums. Four neighbouring threads have a row's, and none of them needs to see another's.
struct LeaveBest {
    const ProductBestArguments& a;

    template <int N>
    __device__ __forceinline__ void operator()(uint32_t rows, uint32_t row, uint32_t column, const float (&sums)[N]) const {
#pragma unroll
        for (int p = 0; p < N * 2 / PANEL; ++p) {
#pragma unroll
            for (int half = 0; half < 2; ++half) panel(rows, row + 8 * half, column + p * PANEL, &sums[p * PANEL / 2 + half * 2]);
        }
    }

private:
    // The thread's sums of a row are some[4 · g + e], of column `column` + 8 · g + e.
    __device__ __forceinline__ void panel(uint32_t rows, uint32_t row, uint32_t column, const float* some) const {
        const uint32_t number = column / PANEL;
        const bool is_there = row < rows && number * PANEL < a.product.n;
        Candidate* const left = reinterpret_cast<Candidate*>(a.product.y + (uint64_t)row * a.product.y_stride) + number * a.k;
        if (a.k == 1 && a.flags == 0 && (number + 1) * PANEL <= a.product.n) return largest(is_there, left, column, some);
        uint64_t before = best::EVERYTHING;
        // One pass for each: the best of those that come after the one before.
        for (uint32_t place = 0; place < a.k; ++place) {
            uint64_t own = best::NOTHING;
            uint32_t value = 0;
#pragma unroll
            for (int g = 0; g < PANEL / 8; ++g) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const uint32_t at = column + 8 * g + e;
                    const uint64_t one = at < a.product.n ? best::rank(some[g * 4 + e], at, a.flags) : best::NOTHING;
                    if (one < before && one > own) own = one, value = __float_as_uint(some[g * 4 + e]);
                }
            }
            uint64_t found = own;
#pragma unroll
            for (int mask = 1; mask <= 2; mask *= 2) found = best::larger(found, __shfl_xor_sync(0xffffffffu, found, mask));
            before = found;
            if (!is_there) continue;
            // No two columns have the same rank.
            if (found != best::NOTHING && own == found) left[place] = {value, best::column_of(found, a.flags)};
            if (found == best::NOTHING && threadIdx.x % 4 == 0) left[place] = {0, NOWHERE};
        }
    }

    // The one largest of a whole panel, which is what most are asked for: in a quarter of the instructions, in which the tensor cores wait.
    __device__ __forceinline__ void largest(bool is_there, Candidate* left, uint32_t column, const float* some) const {
        float value = some[0];
        uint32_t at = column;
#pragma unroll
        for (int i = 1; i < PANEL / 4; ++i) {
            const float other = some[i / 2 * 4 + i % 2];
            // The first NaN is larger than anything, and nothing is larger than that.
            if (!(other <= value) && value == value) value = other, at = column + i / 2 * 8 + i % 2;
        }
        const uint64_t own = best::rank(value, at, 0);
        uint64_t found = own;
#pragma unroll
        for (int mask = 1; mask <= 2; mask *= 2) found = best::larger(found, __shfl_xor_sync(0xffffffffu, found, mask));
        if (is_there && own == found) *left = {__float_as_uint(value), at};
    }
};

}  // namespace wide

#define WIDE(name, Halves, GROUPS, COLUMNS, STAGES)                                                                     \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ WideArguments a) { \
        wide::run<recurrent::Halves, GROUPS, COLUMNS, STAGES>(a, wide::LeaveRows{a.best.product});                      \
    }                                                                                                                   \
    KERNEL(name, WideArguments)
#define WIDE_BEST(name, Halves, GROUPS, COLUMNS, STAGES)                                                                \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(const __grid_constant__ WideArguments a) { \
        wide::run<recurrent::Halves, GROUPS, COLUMNS, STAGES>(a, wide::LeaveBest{a.best});                              \
    }                                                                                                                   \
    KERNEL(name, WideArguments)

#define WIDE_TURNS(name, Halves, COLUMNS, STAGES, Leave)                                                   \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ WideArguments a) { \
        wide::turns<recurrent::Halves, COLUMNS, STAGES>(a, wide::Leave);                                 \
    }                                                                                                    \
    KERNEL(name, WideArguments)

// Every kernel in one format of 16 bits.
#define WIDE_OF(FORMAT, Halves)                                \
    WIDE(wide_##FORMAT##_64x64, Halves, 1, 64, 12)             \
    WIDE(wide_##FORMAT##_128x64, Halves, 2, 64, 8)             \
    WIDE(wide_##FORMAT##_128x128, Halves, 2, 128, 6)           \
    WIDE(wide_##FORMAT##_128x256, Halves, 2, 256, 4)           \
    WIDE_TURNS(wide_##FORMAT##_turns_128x128, Halves, 128, 6, LeaveRows{a.best.product}) \
    WIDE_TURNS(wide_best_##FORMAT##_turns_128x128, Halves, 128, 6, LeaveBest{a.best}) \
    WIDE_BEST(wide_best_##FORMAT##_64x64, Halves, 1, 64, 12)   \
    WIDE_BEST(wide_best_##FORMAT##_128x64, Halves, 2, 64, 8)   \
    WIDE_BEST(wide_best_##FORMAT##_128x128, Halves, 2, 128, 6) \
    WIDE_BEST(wide_best_##FORMAT##_128x256, Halves, 2, 256, 4)

WIDE_OF(bf16, Bf16)
WIDE_OF(f16, F16)

#endif
