#include "group_stretches.cuh"


extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    for (uint32_t e = threadIdx.x; e < 21u; e += 32u) {
        const float v0 = reinterpret_cast<const float*>(row + 32u)[e];
        reinterpret_cast<float*>(row + 192u)[e] = v0;
    }
    for (uint32_t e = threadIdx.x; e < 8u; e += 32u) {
        const float v1 = reinterpret_cast<const float*>(row + 128u)[e];
        reinterpret_cast<float*>(row + 276u)[e] = v1;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
