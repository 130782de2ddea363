#include "group_stretches.cuh"


extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    for (uint32_t e = threadIdx.x; e < 7u; e += 32u) {
        const float v0 = unary_float(3u, reinterpret_cast<const float*>(row + 160u)[e]);
        const float v1 = unary_float(3u, reinterpret_cast<const float*>(row + 188u)[e]);
        const float v2 = unary_float(4u, reinterpret_cast<const float*>(row + 216u)[e]);
        const float v3 = unary_float(3u, reinterpret_cast<const float*>(row + 244u)[e]);
        const float v4 = binary_float(15u, v1, reinterpret_cast<const float*>(row + 128u)[e]).f;
        const float v5 = binary_float(15u, v0, v2).f;
        const float v6 = binary_float(13u, v4, v5).f;
        const float v7 = unary_float(4u, v6);
        const float v8 = binary_float(15u, v3, v7).f;
        reinterpret_cast<float*>(row + 464u)[e] = v6;
        reinterpret_cast<float*>(row + 528u)[e] = v8;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
