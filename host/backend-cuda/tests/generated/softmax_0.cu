#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in0 = {32u, 16u, 1u, 0u, {500u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 500u, 1u, 1u, 0u, 0e0f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in1 = {38u, 16u, 1u, 0u, {500u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 500u, 1u, 2u, 1u, 0e0f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 1u, 0u}}};

extern "C" __global__ void __launch_bounds__(256) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint64_t, shared, 16);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    run_stretches(in0, GroupBases{{row + 1232u, row + 0u, row + 0u}, {row + 3232u, row + 0u}}, shared);
    __syncthreads();
    run_stretches(in1, GroupBases{{row + 3232u, row + 0u, row + 0u}, {row + 0u, row + 5232u}}, shared);
}
KERNEL(compiled_group, CompiledGroupArguments)
