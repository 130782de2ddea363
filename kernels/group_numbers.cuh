// Elements of the group kernel: how they are loaded and stored, and what the operations of one element compute.
//
// Floats are computed in 32 bits, integers in 64 and cut to their datatype when they are stored, which is what wrapping is. The meaning of each
// operation is that of `host/conformance/src/reference/operators.rs`; functions are CUDA's accurate ones (a few units in the last place; denormal numbers are zeros).
#pragma once
#include "abi_group.h"
#include "abi_transfer.h"
#include "kernel.cuh"

// An element of any type.
struct Number {
    float f;
    int64_t i;
};

static __device__ __forceinline__ uint32_t type_bytes(uint32_t type) {
    return type == TYPE_I64 ? 8 : type == TYPE_F32 || type == TYPE_I32 ? 4 : type == TYPE_BF16 || type == TYPE_F16 ? 2 : 1;
}

static __device__ __forceinline__ uint8_t* operand_base(const GroupOperand& operand, uint8_t* row) {
    return operand.is_address ? reinterpret_cast<uint8_t*>(operand.at) : row + operand.at;
}

static __device__ __forceinline__ Number load_number(const uint8_t* base, uint32_t type, int64_t element) {
    switch (type) {
        case TYPE_F32: return {reinterpret_cast<const float*>(base)[element], 0};
        case TYPE_I64: return {0, reinterpret_cast<const int64_t*>(base)[element]};
        case TYPE_I32: return {0, reinterpret_cast<const int32_t*>(base)[element]};
        case TYPE_BOOL: return {0, base[element] != 0};
        default: return {0, base[element]};
    }
}

static __device__ __forceinline__ void store_number(uint8_t* base, uint32_t type, int64_t element, Number number) {
    switch (type) {
        case TYPE_F32: reinterpret_cast<float*>(base)[element] = number.f; break;
        case TYPE_I64: reinterpret_cast<int64_t*>(base)[element] = number.i; break;
        case TYPE_I32: reinterpret_cast<int32_t*>(base)[element] = static_cast<int32_t>(number.i); break;
        case TYPE_BOOL: base[element] = number.i != 0; break;
        case TYPE_BF16:
        case TYPE_F16: reinterpret_cast<uint16_t*>(base)[element] = static_cast<uint16_t>(number.i); break;
        default: base[element] = static_cast<uint8_t>(number.i); break;
    }
}

// Copies an element as it lies.
static __device__ __forceinline__ void move_number(uint8_t* to, int64_t to_element, const uint8_t* from, int64_t from_element, uint32_t bytes) {
    switch (bytes) {
        case 8: reinterpret_cast<uint64_t*>(to)[to_element] = reinterpret_cast<const uint64_t*>(from)[from_element]; break;
        case 4: reinterpret_cast<uint32_t*>(to)[to_element] = reinterpret_cast<const uint32_t*>(from)[from_element]; break;
        default: to[to_element] = from[from_element]; break;
    }
}

static __device__ __forceinline__ bool is_unary_op(uint32_t op) { return op >= OP_NEG && op <= OP_NOT; }

static __device__ __forceinline__ float unary_float(uint32_t op, float x) {
    switch (op) {
        case OP_NEG: return -x;
        case OP_SIGMOID: return 1.0f / (1.0f + expf(-x));
        case OP_TANH: return tanhf(x);
        case OP_RELU: return x < 0.0f ? 0.0f : x;
        // These three tend to zero where their factors are -infinity and 0.
        case OP_GELU: return x == -INFINITY ? 0.0f : 0.5f * x * erfcf(x * -0.70710678118654752f);
        // x/2 (1 + tanh u) = x / (1 + e^(-2u)), which does not cancel where it is small.
        case OP_GELU_TANH: return x == -INFINITY ? 0.0f : x / (1.0f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
        case OP_SILU: return x == -INFINITY ? 0.0f : x / (1.0f + expf(-x));
        case OP_EXP: return expf(x);
        case OP_LOG: return logf(flushed(x));
        default: return sqrtf(x);
    }
}

static __device__ __forceinline__ int64_t unary_integer(uint32_t op, int64_t x) {
    switch (op) {
        case OP_NEG: return static_cast<int64_t>(0 - static_cast<uint64_t>(x));
        case OP_RELU: return x < 0 ? 0 : x;
        default: return x == 0;
    }
}

static __device__ __forceinline__ Number binary_float(uint32_t op, float a, float b) {
    switch (op) {
        case OP_ADD: return {a + b, 0};
        case OP_SUB: return {a - b, 0};
        case OP_MUL: return {a * b, 0};
        case OP_DIV: return {a / b, 0};
        case OP_POW: return {powf(flushed(a), flushed(b)), 0};
        case OP_EQUAL: return {0, a == b};
        case OP_GREATER: return {0, a > b};
        default: return {0, a < b};
    }
}

static __device__ __forceinline__ int64_t divide_integers(int64_t a, int64_t b) {
    if (b == 0) return 0;
    // The one quotient that does not fit wraps.
    return b == -1 ? static_cast<int64_t>(0 - static_cast<uint64_t>(a)) : a / b;
}

static __device__ __forceinline__ int64_t binary_integer(uint32_t op, int64_t a, int64_t b) {
    const uint64_t left = static_cast<uint64_t>(a), right = static_cast<uint64_t>(b);
    switch (op) {
        case OP_ADD: return static_cast<int64_t>(left + right);
        case OP_SUB: return static_cast<int64_t>(left - right);
        case OP_MUL: return static_cast<int64_t>(left * right);
        case OP_DIV: return divide_integers(a, b);
        case OP_EQUAL: return a == b;
        case OP_GREATER: return a > b;
        case OP_LESS: return a < b;
        case OP_AND: return a & b;
        default: return a | b;
    }
}

// Truncates and saturates; NaN is 0.
static __device__ __forceinline__ int64_t float_to_integer(float x, uint32_t to) {
    if (to == TYPE_BOOL) return x != 0.0f;
    if (x != x) return 0;
    const float end = to == TYPE_U8 ? 256.0f : to == TYPE_I32 ? 2147483648.0f : 9223372036854775808.0f;
    const int64_t most = to == TYPE_U8 ? 255 : to == TYPE_I32 ? INT32_MAX : INT64_MAX;
    const int64_t least = to == TYPE_U8 ? 0 : to == TYPE_I32 ? INT32_MIN : INT64_MIN;
    if (x >= end) return most;
    if (x <= (to == TYPE_U8 ? -1.0f : -end)) return least;
    return static_cast<int64_t>(x);
}

// Bits of the nearest numbers of 16 bits, of two the even one; as integers, for a kernel that is generated has no header with conversions.
static __device__ __forceinline__ uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static __device__ __forceinline__ uint32_t bf16_bits(float x) {
    const uint32_t bits = float_bits(flushed(x));
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static __device__ __forceinline__ uint32_t f16_bits(float x) {
    const uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (x != x) return 0x7fff;
    // From halfway between the largest number and the next on.
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    // Below the least normal number: floats beside a half are as far apart as the least ones of f16, so adding rounds.
    if (magnitude < 0x38800000) return sign | (float_bits(fabsf(x) + 0.5f) - 0x3f000000);
    // The exponent counts from 112 further below.
    return sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10));
}

static __device__ __forceinline__ Number cast_number(Number x, uint32_t from, uint32_t to) {
    if (to == TYPE_BF16) return {0, bf16_bits(x.f)};
    if (to == TYPE_F16) return {0, f16_bits(x.f)};
    if (from == TYPE_F32) return to == TYPE_F32 ? x : Number{0, float_to_integer(x.f, to)};
    return to == TYPE_F32 ? Number{static_cast<float>(x.i), 0} : x;
}

// A number that orders elements of a type: NaN is the largest float, both zeros are equal.
static __device__ __forceinline__ int64_t order_key(Number x, uint32_t type) {
    if (type != TYPE_F32) return x.i;
    if (x.f != x.f) return INT64_MAX;
    if (x.f == 0.0f) return 0;
    int32_t bits;
    memcpy(&bits, &x.f, sizeof bits);
    return bits < 0 ? -static_cast<int64_t>(bits & 0x7fffffff) : bits;
}
