#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in1 = {24u, 0u, 1u, 0u, {3u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 3u, 2u, 1u, 3u, 0e0f, 8u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 1u, 0u}, {0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};

extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint32_t, first_bad, 4);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    uint8_t* const b1 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[1]);
    uint8_t* const b2 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[2]);
    for (uint32_t e = threadIdx.x; e < 1u; e += 32u) {
        const int64_t v0 = static_cast<int64_t>(binary_integer(14u, static_cast<int64_t>(reinterpret_cast<const int64_t*>(row + 32u)[e]), static_cast<int64_t>(reinterpret_cast<const int64_t*>(b0)[e])));
        const uint8_t v2 = static_cast<uint8_t>(binary_integer(18u, static_cast<int64_t>(v0), static_cast<int64_t>(reinterpret_cast<const int64_t*>(b1)[e])) != 0);
        reinterpret_cast<int64_t*>(row + 48u)[e] = v0;
        reinterpret_cast<uint8_t*>(row + 80u)[e] = v2;
    }
    __syncthreads();
    check_indices(in1, GroupBases{{row + 48u, b2, row + 0u}, {row + 64u, row + 0u}}, row, first_bad);
    for (uint32_t e = threadIdx.x; e < 3u; e += 32u) {
        const float v1 = reinterpret_cast<const float*>(b2)[max(table_row(static_cast<int64_t>(reinterpret_cast<const int64_t*>(row + 48u)[0]), 8ll), static_cast<int64_t>(0)) * 3ll + e];
        reinterpret_cast<float*>(row + 64u)[e] = v1;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
