#include "group_stretches.cuh"


extern "C" __global__ void __launch_bounds__(256) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    for (uint32_t e = threadIdx.x; e < 300u; e += 256u) {
        const uint16_t v0 = static_cast<uint16_t>(cast_number(Number{reinterpret_cast<const float*>(row + 32u)[e], 0}, 0u, 6u).i);
        reinterpret_cast<uint16_t*>(row + 2432u)[e] = v0;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
