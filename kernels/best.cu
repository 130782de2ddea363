// Projections of which only the best few sums are wanted: the sums are looked at where they are made, and never leave their block.
#include "best.cuh"
#include "product.cuh"

namespace best {

using product::COLUMNS;
using product::THREADS;

// Leaves the best of a tile's sums. `SHARERS` neighbouring threads look at a row together.
template <int Tile>
struct LeaveBest {
    static constexpr int SHARERS = THREADS / Tile;
    // So that at each look a warp finds every bank once.
    static constexpr int STRIDE = COLUMNS + SHARERS;
    static_assert(Tile * STRIDE * 4 <= PRODUCT_F32_SHARED(Tile), "the sums lie where slabs were");

    const ProductBestArguments& a;
    float* sums;

    // Others may still read the last slab.
    __device__ __forceinline__ void begin() const { __syncthreads(); }
    template <int V>
    __device__ __forceinline__ void operator()(uint32_t row, uint32_t column, const float (&some)[V]) const {
#pragma unroll
        for (int v = 0; v < V; ++v) sums[row * STRIDE + column + v] = some[v];
    }
    __device__ __forceinline__ void end() const {
        __syncthreads();
        const uint32_t own = threadIdx.x / SHARERS, share = threadIdx.x % SHARERS;
        const uint32_t row = blockIdx.y * Tile + own, column = blockIdx.x * COLUMNS, count = min(a.product.n - column, (uint32_t)COLUMNS);
        const float* const mine = sums + own * STRIDE;
        Candidate* const left = reinterpret_cast<Candidate*>(a.product.y + (uint64_t)row * a.product.y_stride) + blockIdx.x * a.k;
        uint64_t before = EVERYTHING;
        // One pass for each: the best of those that come after the one before.
        for (uint32_t place = 0; place < a.k; ++place) {
            uint64_t found = NOTHING;
            for (uint32_t c = share; c < count; c += SHARERS) {
                const uint64_t one = rank(mine[c], column + c, a.flags);
                if (one < before) found = larger(found, one);
            }
#pragma unroll
            for (int mask = SHARERS / 2; mask > 0; mask /= 2) found = larger(found, __shfl_xor_sync(0xffffffffu, found, mask));
            before = found;
            if (share != 0 || row >= a.product.rows) continue;
            const uint32_t at = column_of(found, a.flags);
            left[place] = found == NOTHING ? Candidate{0, NOWHERE} : Candidate{__float_as_uint(mine[at - column]), at};
        }
    }
};

// The largest of all threads' ranks. `warps` is not written by a thread that has not read all of it before.
__device__ __forceinline__ uint64_t largest(uint64_t own, uint64_t* warps) {
    for (int mask = 16; mask > 0; mask /= 2) own = larger(own, __shfl_xor_sync(0xffffffffu, own, mask));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; ++warp) own = larger(own, warps[warp]);
    __syncthreads();
    return own;
}

// The one best of a row, of one candidate of each panel: all are read at once.
__device__ __forceinline__ void of_all(const BestArguments& a, const Candidate* candidates, uint64_t offset, uint64_t* warps) {
    uint64_t own = NOTHING;
    uint32_t value = 0;
#pragma unroll 4
    for (uint32_t panel = threadIdx.x; panel < a.panels; panel += THREADS) {
        const Candidate one = candidates[panel];
        const uint64_t place = one.column == NOWHERE ? NOTHING : rank(__uint_as_float(one.value), one.column, a.flags);
        if (place > own) own = place, value = one.value;
    }
    const uint64_t first = largest(own, warps);
    if (own != first || first == NOTHING) return;
    if (a.values) *reinterpret_cast<uint32_t*>(a.values + offset) = value;
    if (a.positions) *reinterpret_cast<int64_t*>(a.positions + offset) = column_of(first, a.flags);
}

}  // namespace best

extern "C" __global__ void __launch_bounds__(128) best_of_panels(const __grid_constant__ BestArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    SHARED(uint64_t, warps, 4);
    const uint64_t offset = static_cast<uint64_t>(blockIdx.x) * a.stride;
    const Candidate* const candidates = reinterpret_cast<const Candidate*>(a.candidates + offset);
    if (a.k == 1) return best::of_all(a, candidates, offset, warps);
    uint64_t before = best::EVERYTHING, own = best::NOTHING;
    uint32_t value = 0;
    bool is_taken = true;
    for (uint32_t place = 0; place < a.k; ++place) {
        // Of each of its panels, whose candidates are in order, the first that comes after the one before: only where that was this thread's is it another.
        if (is_taken) {
            own = best::NOTHING;
            for (uint32_t panel = threadIdx.x; panel < a.panels; panel += blockDim.x) {
                for (uint32_t number = 0; number < a.k; ++number) {
                    const Candidate one = candidates[panel * a.k + number];
                    if (one.column == NOWHERE) break;
                    const uint64_t rank = best::rank(__uint_as_float(one.value), one.column, a.flags);
                    if (rank >= before) continue;
                    if (rank > own) own = rank, value = one.value;
                    break;
                }
            }
        }
        before = best::largest(own, warps);
        is_taken = own == before;
        if (!is_taken || before == best::NOTHING) continue;
        if (a.values) reinterpret_cast<uint32_t*>(a.values + offset)[place] = value;
        if (a.positions) reinterpret_cast<int64_t*>(a.positions + offset)[place] = best::column_of(own, a.flags);
    }
}
KERNEL(best_of_panels, BestArguments)

extern "C" __global__ void __launch_bounds__(128) product_best_f32_16(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_f32<16>(a.product, best::LeaveBest<16>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_f32_16, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_f32_64(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_f32<64>(a.product, best::LeaveBest<64>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_f32_64, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_f32_128(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_f32<128>(a.product, best::LeaveBest<128>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_f32_128, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_tf32_16(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::Tf32, 16>(a.product, best::LeaveBest<16>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_tf32_16, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_tf32_64(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::Tf32, 64>(a.product, best::LeaveBest<64>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_tf32_64, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_tf32_128(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::Tf32, 128>(a.product, best::LeaveBest<128>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_tf32_128, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_bf16_16(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::Bf16, 16>(a.product, best::LeaveBest<16>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_bf16_16, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_bf16_64(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::Bf16, 64>(a.product, best::LeaveBest<64>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_bf16_64, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_bf16_128(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::Bf16, 128>(a.product, best::LeaveBest<128>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_bf16_128, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_f16_16(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::F16, 16>(a.product, best::LeaveBest<16>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_f16_16, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_f16_64(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::F16, 64>(a.product, best::LeaveBest<64>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_f16_64, ProductBestArguments)
extern "C" __global__ void __launch_bounds__(128) product_best_f16_128(const __grid_constant__ ProductBestArguments a) {
    DYNAMIC_SHARED(shared);
    product::in_tensor<product::F16, 128>(a.product, best::LeaveBest<128>{a, reinterpret_cast<float*>(shared)});
}
KERNEL(product_best_f16_128, ProductBestArguments)
