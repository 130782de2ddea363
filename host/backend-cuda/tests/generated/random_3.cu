#include "group_stretches.cuh"

static __device__ constexpr GroupInstruction in1 = {34u, 16u, 1u, 0u, {1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 1u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in16 = {24u, 0u, 2u, 1u, {1u, 4u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 4u, 2u, 1u, 4u, 0e0f, 7u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 1u, 0u}, {0u, {0, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {4, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in18 = {32u, 0u, 1u, 0u, {1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 1u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in20 = {33u, 0u, 1u, 0u, {1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 1u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in22 = {34u, 8u, 2u, 1u, {7u, 5u, 0u, 0u, 0u, 0u, 0u, 0u}, 7u, 5u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {5, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in23 = {33u, 16u, 2u, 1u, {7u, 5u, 0u, 0u, 0u, 0u, 0u, 0u}, 7u, 5u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {5, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in24 = {35u, 0u, 2u, 1u, {7u, 5u, 0u, 0u, 0u, 0u, 0u, 0u}, 7u, 5u, 2u, 1u, 0u, 1e-5f, 0u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {5, 1, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in26 = {36u, 0u, 1u, 0u, {1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 1u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 2u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 2u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in28 = {37u, 8u, 1u, 0u, {1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 1u, 1u, 1u, 0u, 1e-5f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 2u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {0, 0, 0, 0, 0, 0, 0, 0}, 2u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}};
static __device__ constexpr GroupInstruction in30 = {38u, 0u, 1u, 0u, {1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}, 1u, 1u, 1u, 3u, 1u, 1e-5f, 0u, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {0, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}}, {{0u, {1, 0, 0, 0, 0, 0, 0, 0}, 0u, 0u}, {0u, {1, 0, 0, 0, 0, 0, 0, 0}, 1u, 0u}}};

extern "C" __global__ void __launch_bounds__(96) compiled_group(const __grid_constant__ CompiledGroupArguments a) {
    SHARED(uint64_t, shared, 16);
    SHARED(uint32_t, first_bad, 4);
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    uint8_t* const b0 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[0]);
    uint8_t* const b1 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[1]);
    uint8_t* const b2 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[2]);
    uint8_t* const b3 = reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.blobs)[3]);
    for (uint32_t e = threadIdx.x; e < 3u; e += 96u) {
        const float v0 = binary_float(16u, reinterpret_cast<const float*>(row + 784u)[e], reinterpret_cast<const float*>(row + 784u)[e]).f;
        const float v5 = unary_float(7u, v0);
        const uint8_t v8 = static_cast<uint8_t>(binary_integer(20u, static_cast<int64_t>(reinterpret_cast<const int32_t*>(b0)[e]), static_cast<int64_t>(reinterpret_cast<const int32_t*>(b0)[e])) != 0);
        reinterpret_cast<float*>(row + 880u)[e] = v0;
        reinterpret_cast<float*>(row + 992u)[e] = v5;
        reinterpret_cast<uint8_t*>(row + 1040u)[e] = v8;
    }
    run_stretches(in1, GroupBases{{row + 32u, row + 0u, row + 0u}, {row + 896u, row + 0u}}, shared);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 1u; e += 96u) {
        const float v2 = binary_float(17u, reinterpret_cast<const float*>(row + 896u)[e], reinterpret_cast<const float*>(row + 896u)[e]).f;
        const uint8_t v4 = static_cast<uint8_t>(binary_integer(18u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 848u)[e]), static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 848u)[e])) != 0);
        const float v7 = unary_float(7u, reinterpret_cast<const float*>(b1)[e]);
        const float v13 = unary_float(4u, v2);
        const uint8_t v17 = v4 != 0 ? reinterpret_cast<const uint8_t*>(row + 80u)[e] : reinterpret_cast<const uint8_t*>(row + 80u)[e];
        const float v19 = unary_float(11u, reinterpret_cast<const float*>(row + 896u)[e]);
        const float v21 = binary_float(17u, v13, v19).f;
        reinterpret_cast<uint8_t*>(row + 976u)[e] = v4;
        reinterpret_cast<float*>(row + 1024u)[e] = v7;
        reinterpret_cast<float*>(row + 1184u)[e] = v13;
        reinterpret_cast<uint8_t*>(row + 1376u)[e] = v17;
        reinterpret_cast<float*>(row + 1408u)[e] = v19;
        reinterpret_cast<float*>(row + 1440u)[e] = v21;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < 35u; e += 96u) {
        const uint8_t v3 = static_cast<uint8_t>(unary_integer(12u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 736u)[e] != 0)) != 0);
        const uint8_t v10 = static_cast<uint8_t>(binary_integer(21u, static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 736u)[e] != 0), static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 976u)[0] != 0)) != 0);
        const uint8_t v12 = static_cast<uint8_t>(binary_integer(22u, static_cast<int64_t>(v10 != 0), static_cast<int64_t>(reinterpret_cast<const uint8_t*>(row + 769u)[0] != 0)) != 0);
        const int32_t v14 = v12 != 0 ? reinterpret_cast<const int32_t*>(b2)[0] : reinterpret_cast<const int32_t*>(b2)[e];
        reinterpret_cast<uint8_t*>(row + 928u)[e] = v3;
        reinterpret_cast<int32_t*>(row + 1200u)[e] = v14;
    }
    check_indices(in16, GroupBases{{row + 800u, b3, row + 0u}, {row + 1360u, row + 0u}}, row, first_bad);
    for (uint32_t e = threadIdx.x; e < 4u; e += 96u) {
    }
    run_stretches(in18, GroupBases{{row + 1184u, row + 0u, row + 0u}, {row + 1392u, row + 0u}}, shared);
    run_stretches(in20, GroupBases{{row + 1408u, row + 0u, row + 0u}, {row + 1424u, row + 0u}}, shared);
    run_stretches(in22, GroupBases{{row + 1184u, row + 0u, row + 0u}, {row + 1456u, row + 0u}}, shared);
    run_stretches(in23, GroupBases{{row + 1408u, row + 0u, row + 0u}, {row + 1600u, row + 0u}}, shared);
    __syncthreads();
    run_stretches(in24, GroupBases{{row + 996u, row + 1392u, row + 0u}, {row + 1744u, row + 0u}}, shared);
    run_stretches(in26, GroupBases{{row + 1308u, row + 0u, row + 0u}, {row + 1904u, row + 0u}}, shared);
    for (uint32_t e = threadIdx.x; e < 3u; e += 96u) {
    }
    __syncthreads();
    run_stretches(in28, GroupBases{{row + 1904u, row + 0u, row + 0u}, {row + 1936u, row + 0u}}, shared);
    run_stretches(in30, GroupBases{{row + 1424u, row + 0u, row + 0u}, {row + 2000u, row + 2016u}}, shared);
    for (uint32_t e = threadIdx.x; e < 1u; e += 96u) {
        const float v31 = unary_float(9u, reinterpret_cast<const float*>(row + 1392u)[e]);
        reinterpret_cast<float*>(row + 2032u)[e] = v31;
    }
}
KERNEL(compiled_group, CompiledGroupArguments)
