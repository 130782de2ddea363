#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in3 = {35u, 8u, 2u, 1u, {3u, 1u, 0u, 0u, 0u, 0u, 0u, 0u}, 3u, 1u, 3u, 1u, 0u, 1e-5f, 0u, {{0u, {0, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {1, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, -1, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {2, 2, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in21 = {33u, 16u, 2u, 1u, {3u, 1u, 0u, 0u, 0u, 0u, 0u, 0u}, 3u, 1u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in25 = {34u, 0u, 3u, 2u, {5u, 1u, 2u, 0u, 0u, 0u, 0u, 0u}, 5u, 2u, 3u, 1u, 0u, 1e-5f, 0u, {{0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, -1, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {2, 2, 1, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {4, 4, 2, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};

extern "C" __global__ void __launch_bounds__(64) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint64_t, shared, 16);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    uint8_t* const b1 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[1]);
    uint8_t* const b2 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[2]);
    for (uint32_t e = threadIdx.x; e < 10u; e += 64u) {
        const int64_t v0 = reinterpret_cast<const int64_t*>(row + 832u)[static_cast<int32_t>(e % 2u) * 1];
        const int32_t v4 = static_cast<int32_t>(unary_integer(2u, static_cast<int64_t>(reinterpret_cast<const int32_t*>(b0)[e])));
        const int64_t v10 = static_cast<int64_t>(unary_integer(5u, static_cast<int64_t>(reinterpret_cast<const int64_t*>(row + 832u)[e])));
        const float v12 = unary_float(6u, reinterpret_cast<const float*>(b1)[0]);
        const float v13 = unary_float(7u, reinterpret_cast<const float*>(b1)[e]);
        const int64_t v23 = static_cast<int64_t>(unary_integer(2u, static_cast<int64_t>(v0)));
        reinterpret_cast<int32_t*>(row + 1152u)[e] = v4;
        reinterpret_cast<int64_t*>(row + 1696u)[e] = v10;
        reinterpret_cast<float*>(row + 1824u)[e] = v12;
        reinterpret_cast<float*>(row + 1872u)[e] = v13;
        reinterpret_cast<int64_t*>(row + 2656u)[e] = v23;
    }
    for (uint32_t e = threadIdx.x; e < 3u; e += 64u) {
        const float v1 = unary_float(3u, reinterpret_cast<const float*>(b2)[e]);
        const float v5 = unary_float(5u, reinterpret_cast<const float*>(row + 796u)[0]);
        const uint8_t v28 = static_cast<uint8_t>(binary_integer(14u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 752u)[0]), static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 752u)[e])));
        reinterpret_cast<float*>(row + 1072u)[static_cast<int32_t>(e) * 2] = v1;
        reinterpret_cast<float*>(row + 1200u)[e] = v5;
        reinterpret_cast<uint8_t*>(row + 3184u)[e] = v28;
    }
    run_stretches(in3, GroupBases{{row + 784u, b2, b2}, {row + 1120u, row + 0u}}, shared);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 3u; e += 64u) {
    }
    for (uint32_t e = threadIdx.x; e < 33u; e += 64u) {
        const int64_t v7 = static_cast<int64_t>(cast_number(Number{0.0f, static_cast<int64_t>(reinterpret_cast<const int64_t*>(row + 176u)[e])}, 1u, 1u).i);
        const float v8 = unary_float(4u, reinterpret_cast<const float*>(row + 1208u)[0]);
        const uint8_t v9 = static_cast<uint8_t>(binary_float(20u, reinterpret_cast<const float*>(row + 1136u)[0], reinterpret_cast<const float*>(row + 1076u)[0]).i != 0);
        const float v14 = unary_float(7u, v8);
        const uint8_t v15 = static_cast<uint8_t>(binary_integer(19u, static_cast<int64_t>(v7), static_cast<int64_t>(v7)) != 0);
        const float v22 = unary_float(11u, v14);
        reinterpret_cast<float*>(row + 1504u)[e] = v8;
        reinterpret_cast<uint8_t*>(row + 1648u)[e] = v9;
        reinterpret_cast<float*>(row + 1920u)[e] = v14;
        reinterpret_cast<uint8_t*>(row + 2064u)[e] = v15;
        reinterpret_cast<float*>(row + 2512u)[e] = v22;
    }
    for (uint32_t e = threadIdx.x; e < 10u; e += 64u) {
        const float v20 = unary_float(10u, reinterpret_cast<const float*>(row + 1824u)[static_cast<int32_t>(e % 2u) * 1]);
        reinterpret_cast<float*>(row + 2448u)[e] = v20;
    }
    run_stretches(in21, GroupBases{{row + 1848u, row + 0u, row + 0u}, {row + 2496u, row + 0u}}, shared);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 33u; e += 64u) {
        const uint8_t v24 = static_cast<uint8_t>(unary_integer(12u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 1676u)[0] != 0)) != 0);
        reinterpret_cast<uint8_t*>(row + 2736u)[static_cast<int32_t>(e) * 2] = v24;
    }
    run_stretches(in25, GroupBases{{row + 1824u, row + 1828u, row + 1872u}, {row + 2816u, row + 0u}}, shared);
}
KERNEL(compiled_group, CompiledGroupArguments)
