// Rows of a batch, one behind the other: x in front of h, 16 bytes to a thread. `stride` is the bytes of either, `padding` how many rows there are.
#include "group_stretches.cuh"

extern "C" __global__ void __launch_bounds__(128) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    const uint64_t* const at = reinterpret_cast<const uint64_t*>(a.blobs);
    const uint32_t chunks = a.stride / 16, place = blockIdx.x * 128 + threadIdx.x, row = place / (2 * chunks), chunk = place % (2 * chunks);
    if (row >= a.padding) return;
    const uint64_t from = reinterpret_cast<const uint64_t*>(at[chunk < chunks ? 0 : 1])[row];
    reinterpret_cast<uint4*>(at[2])[place] = reinterpret_cast<const uint4*>(from)[chunk % chunks];
}
KERNEL(compiled_group, CompiledGroupArguments)
