#include "group_stretches.cuh"


extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    for (uint32_t e = threadIdx.x; e < 7u; e += 32u) {
        const float v0 = unary_float(3u, reinterpret_cast<const float*>(row + 224u)[e]);
        const float v1 = unary_float(3u, reinterpret_cast<const float*>(row + 252u)[e]);
        const float v2 = unary_float(3u, reinterpret_cast<const float*>(row + 280u)[e]);
        const float v3 = unary_float(3u, reinterpret_cast<const float*>(row + 308u)[e]);
        const float v4 = unary_float(4u, reinterpret_cast<const float*>(row + 336u)[e]);
        const float v5 = binary_float(15u, v0, v4).f;
        const float v6 = binary_float(15u, v1, reinterpret_cast<const float*>(row + 64u)[e]).f;
        const float v7 = binary_float(15u, v2, reinterpret_cast<const float*>(row + 128u)[e]).f;
        const float v8 = binary_float(13u, v5, v6).f;
        const float v9 = binary_float(13u, v8, v7).f;
        const float v10 = unary_float(4u, v9);
        const float v11 = binary_float(15u, v3, v10).f;
        reinterpret_cast<float*>(row + 656u)[e] = v9;
        reinterpret_cast<float*>(row + 720u)[e] = v11;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
