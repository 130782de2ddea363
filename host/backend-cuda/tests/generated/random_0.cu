#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in3 = {34u, 0u, 3u, 2u, {5u, 1u, 2u, 0u, 0u, 0u, 0u, 0u}, 5u, 2u, 3u, 1u, 0u, 1e-5f, 0u, {{0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in15 = {35u, 8u, 3u, 2u, {5u, 1u, 2u, 0u, 0u, 0u, 0u, 0u}, 5u, 2u, 2u, 1u, 0u, 1e-5f, 0u, {{0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {4, 4, 2, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in17 = {37u, 16u, 1u, 0u, {33u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 33u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 2u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 2u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};

extern "C" __global__ void __launch_bounds__(32) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint64_t, shared, 16);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    uint8_t* const b1 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[1]);
    uint8_t* const b2 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[2]);
    uint8_t* const b3 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[3]);
    uint8_t* const b4 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[4]);
    for (uint32_t e = threadIdx.x; e < 10u; e += 32u) {
        const int64_t v0 = reinterpret_cast<const int64_t*>(row + 832u)[static_cast<int32_t>(e % 2u) * 1];
        const float v8 = unary_float(4u, reinterpret_cast<const float*>(b0)[e]);
        const int32_t v9 = static_cast<int32_t>(unary_integer(5u, static_cast<int64_t>(reinterpret_cast<const int32_t*>(b1)[0])));
        const float v14 = unary_float(7u, v8);
        const uint8_t v21 = static_cast<uint8_t>(binary_integer(20u, static_cast<int64_t>(v0), static_cast<int64_t>(v0)) != 0);
        reinterpret_cast<float*>(row + 1488u)[e] = v8;
        reinterpret_cast<int32_t*>(row + 1536u)[e] = v9;
        reinterpret_cast<float*>(row + 1952u)[e] = v14;
        reinterpret_cast<uint8_t*>(row + 2256u)[e] = v21;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 3u; e += 32u) {
        const float v1 = unary_float(3u, reinterpret_cast<const float*>(b2)[e]);
        const uint8_t v4 = static_cast<uint8_t>(unary_integer(2u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 752u)[e])));
        const float v6 = unary_float(3u, reinterpret_cast<const float*>(b0)[0]);
        const int64_t v10 = static_cast<int64_t>(unary_integer(5u, static_cast<int64_t>(reinterpret_cast<const int64_t*>(b3)[0])));
        const float v22 = unary_float(11u, reinterpret_cast<const float*>(row + 1952u)[0]);
        const float v23 = unary_float(8u, v22);
        reinterpret_cast<float*>(row + 1072u)[static_cast<int32_t>(e) * 2] = v1;
        reinterpret_cast<uint8_t*>(row + 1168u)[e] = v4;
        reinterpret_cast<float*>(row + 1328u)[e] = v6;
        reinterpret_cast<int64_t*>(row + 1584u)[e] = v10;
        reinterpret_cast<float*>(row + 2272u)[e] = v22;
        reinterpret_cast<float*>(row + 2288u)[static_cast<int32_t>(e) * 2] = v23;
    }
    run_stretches(in3, GroupBases{{row + 784u, row + 784u, row + 784u}, {row + 1120u, row + 0u}}, shared);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 33u; e += 32u) {
        const int32_t v5 = static_cast<int32_t>(binary_integer(15u, static_cast<int64_t>(reinterpret_cast<const int32_t*>(b1)[0]), static_cast<int64_t>(reinterpret_cast<const int32_t*>(b1)[0])));
        const uint8_t v24 = static_cast<uint8_t>(unary_integer(12u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(b4)[0] != 0)) != 0);
        const uint8_t v25 = static_cast<uint8_t>(binary_integer(21u, static_cast<int64_t>(v24 != 0), static_cast<int64_t>(v24 != 0)) != 0);
        reinterpret_cast<int32_t*>(row + 1184u)[e] = v5;
        reinterpret_cast<uint8_t*>(row + 2320u)[e] = v24;
        reinterpret_cast<uint8_t*>(row + 2368u)[e] = v25;
    }
    for (uint32_t e = threadIdx.x; e < 10u; e += 32u) {
        const float v12 = unary_float(6u, reinterpret_cast<const float*>(row + 1120u)[e]);
        const float v16 = unary_float(8u, reinterpret_cast<const float*>(row + 1076u)[0]);
        const float v20 = unary_float(10u, v12);
        reinterpret_cast<float*>(row + 1760u)[e] = v12;
        reinterpret_cast<float*>(row + 2080u)[static_cast<int32_t>(e / 2u) * 4 + static_cast<int32_t>(e % 2u) * 2] = v16;
        reinterpret_cast<float*>(row + 2208u)[e] = v20;
    }
    __syncthreads();
    run_stretches(in15, GroupBases{{row + 1760u, row + 1488u, row + 0u}, {row + 2000u, row + 0u}}, shared);
    run_stretches(in17, GroupBases{{row + 1184u, row + 0u, row + 0u}, {row + 2160u, row + 0u}}, shared);
    for (uint32_t e = threadIdx.x; e < 3u; e += 32u) {
    }
    for (uint32_t e = threadIdx.x; e < 33u; e += 32u) {
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 10u; e += 32u) {
        const float v28 = binary_float(14u, reinterpret_cast<const float*>(row + 1764u)[static_cast<int32_t>(e % 2u) * -1], reinterpret_cast<const float*>(row + 1488u)[e]).f;
        reinterpret_cast<float*>(row + 2832u)[e] = v28;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
