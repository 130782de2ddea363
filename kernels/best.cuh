// Which sums of a row are the best: a sum's place in the order is one number, so that the best of several is the largest, whoever compares what with what.
#pragma once
#include "abi_best.h"
#include "kernel.cuh"

namespace best {

// No rank: it is below all of them, as EVERYTHING is above.
constexpr uint64_t NOTHING = 0, EVERYTHING = ~0ull;

// A larger rank comes first: the larger value (the smaller one), of equal ones the first column (the last). NaN is the largest value and both
// zeros are equal, as `order_key` of the groups has it.
__device__ __forceinline__ uint64_t rank(float value, uint32_t column, uint32_t flags) {
    const uint32_t bits = __float_as_uint(value);
    uint32_t key = static_cast<int32_t>(bits) < 0 ? ~bits : bits | 0x80000000u;
    if (value == 0.0f) key = 0x80000000u;
    // Above infinity, and not the largest number: that would be EVERYTHING.
    if (value != value) key = 0xff800001u;
    if (flags & FLAG_SMALLEST) key = ~key;
    return static_cast<uint64_t>(key) << 32 | (flags & FLAG_LAST ? column + 1 : ~column);
}
__device__ __forceinline__ uint32_t column_of(uint64_t rank, uint32_t flags) {
    const uint32_t low = static_cast<uint32_t>(rank);
    return flags & FLAG_LAST ? low - 1 : ~low;
}

__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a < b ? b : a; }

}  // namespace best
