// Fills words with one value. Small on purpose: it is what shows that a driver can load and launch anything at all.
#include "kernel.cuh"

extern "C" __global__ void __launch_bounds__(256) fill(const __grid_constant__ FillArguments a) {
    begin_launch();
    uint32_t* words = reinterpret_cast<uint32_t*>(a.words);
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += step) words[i] = a.value;
}
KERNEL(fill, FillArguments)
