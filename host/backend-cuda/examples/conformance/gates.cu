// Gates of sums i|f|g|o, two units to a thread, with the functions that the worker's own kernel has. `stride` is the units, `padding` how many rows there are.
#include "group_stretches.cuh"

static __device__ __forceinline__ float fast(float x) {
#ifdef __CUDACC__
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return tanhf(x);
#endif
}
static __device__ __forceinline__ float squashed(float x) { return fmaf(fast(0.5f * x), 0.5f, 0.5f); }
static __device__ __forceinline__ uint32_t half_of(float x) {
    const uint32_t bits = __float_as_uint(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

extern "C" __global__ void __launch_bounds__(128) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    const uint64_t* const at = reinterpret_cast<const uint64_t*>(a.blobs);
    const uint32_t units = a.stride, place = blockIdx.x * 128 + threadIdx.x, row = place / (units / 2), unit = place % (units / 2) * 2;
    if (row >= a.padding) return;
    const float* const sums = reinterpret_cast<const float*>(at[0]) + (uint64_t)row * 4 * units + unit;
    const float* const bias = reinterpret_cast<const float*>(at[1]) + unit;
    const auto list = [&](int which) { return reinterpret_cast<const uint64_t*>(at[which])[row]; };
    const float* const c = reinterpret_cast<const float*>(list(2)) + unit;
    float h[2], next[2];
    for (int e = 0; e < 2; ++e) {
        const auto sum = [&](uint32_t gate) { return sums[gate * units + e] + bias[gate * units + e]; };
        next[e] = fmaf(squashed(sum(1)), c[e], squashed(sum(0)) * fast(sum(2)));
        h[e] = squashed(sum(3)) * fast(next[e]);
    }
    reinterpret_cast<uint32_t*>(list(3))[unit / 2] = half_of(h[0]) | half_of(h[1]) << 16;
    float* const c_out = reinterpret_cast<float*>(list(4)) + unit;
    c_out[0] = next[0];
    c_out[1] = next[1];
}
KERNEL(compiled_group, CompiledGroupArguments)
