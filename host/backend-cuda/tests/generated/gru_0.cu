#include "group_stretches.cuh"


extern "C" __global__ void __launch_bounds__(64) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    for (uint32_t e = threadIdx.x; e < 45u; e += 64u) {
        const float v0 = binary_float(13u, reinterpret_cast<const float*>(row + 384u)[e], reinterpret_cast<const float*>(row + 928u)[e]).f;
        const float v1 = unary_float(3u, v0);
        const float v2 = binary_float(13u, reinterpret_cast<const float*>(row + 564u)[e], reinterpret_cast<const float*>(row + 1108u)[e]).f;
        const float v3 = unary_float(3u, v2);
        const float v4 = binary_float(15u, v1, reinterpret_cast<const float*>(row + 1288u)[e]).f;
        const float v5 = binary_float(13u, reinterpret_cast<const float*>(row + 744u)[e], v4).f;
        const float v6 = unary_float(4u, v5);
        const float v7 = binary_float(14u, reinterpret_cast<const float*>(b0)[0], v3).f;
        const float v8 = binary_float(15u, v7, v6).f;
        const float v9 = binary_float(15u, v3, reinterpret_cast<const float*>(row + 192u)[e]).f;
        const float v10 = binary_float(13u, v8, v9).f;
        reinterpret_cast<float*>(row + 3392u)[e] = v10;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
