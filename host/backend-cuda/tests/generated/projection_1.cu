#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in0 = {38u, 0u, 1u, 0u, {12u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 12u, 1u, 2u, 1u, 0e0f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 1u, 0u}}};

extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint64_t, shared, 16);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    run_stretches(in0, GroupBases{{row + 64u, row + 0u, row + 0u}, {row + 0u, row + 112u}}, shared);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 1u; e += 32u) {
        const uint8_t v1 = static_cast<uint8_t>(binary_integer(18u, static_cast<int64_t>(reinterpret_cast<const int64_t*>(row + 112u)[e]), static_cast<int64_t>(reinterpret_cast<const int64_t*>(b0)[e])) != 0);
        reinterpret_cast<uint8_t*>(row + 128u)[e] = v1;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
