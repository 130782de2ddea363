#include "group_stretches.cuh"


extern "C" __global__ void __launch_bounds__(256) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    for (uint32_t e = threadIdx.x; e < 300u; e += 256u) {
        const float v0 = unary_float(4u, reinterpret_cast<const float*>(row + 1232u)[e]);
        const uint16_t v1 = static_cast<uint16_t>(cast_number(Number{v0, 0}, 0u, 5u).i);
        reinterpret_cast<uint16_t*>(row + 5440u)[e] = v1;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
