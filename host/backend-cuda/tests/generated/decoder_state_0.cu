#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in0 = {24u, 0u, 1u, 0u, {7u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 7u, 2u, 1u, 7u, 0e0f, 12u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 1u, 0u}, {0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};

extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint32_t, first_bad, 4);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    check_indices(in0, GroupBases{{row + 32u, b0, row + 0u}, {row + 112u, row + 0u}}, row, first_bad);
    for (uint32_t e = threadIdx.x; e < 7u; e += 32u) {
        const float v0 = reinterpret_cast<const float*>(b0)[max(table_row(static_cast<int64_t>(reinterpret_cast<const int64_t*>(row + 32u)[0]), 12ll), static_cast<int64_t>(0)) * 7ll + e];
        reinterpret_cast<float*>(row + 112u)[e] = v0;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
