// The rule of abi.h for packing weights, as code: what hosts mirror.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace packing {

// To bf16, to the nearest, ties to even; a denormal number is zero.
inline uint16_t to_bf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x);
    return std::isnan(x) ? 0x7fff : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// To f16, to the nearest, ties to even. Through a double, which has room for both: no digits of the emulation's own way.
inline uint16_t to_f16(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return 0x7fff;
    if (x == 0) return sign;
    int exponent;
    std::frexp(static_cast<double>(x), &exponent);
    // Below the smallest normal number digits have the size that they have there.
    const int size = std::max(exponent, -13) - 11;
    const double digits = std::isinf(x) ? INFINITY : std::nearbyint(std::ldexp(std::abs(static_cast<double>(x)), -size));
    if (std::ldexp(digits, size) > 65504) return sign | 0x7c00;
    // The digits of a normal number begin with a one, which counts as a step of the exponent.
    return static_cast<uint16_t>(sign + ((size + 24) << 10) + static_cast<int>(digits));
}
inline float from_f16(uint16_t x) {
    const int exponent = x >> 10 & 31, digits = x & 0x3ff;
    const double magnitude = exponent == 31 ? (digits ? NAN : INFINITY) : std::ldexp(exponent ? digits + 1024 : digits, std::max(exponent, 1) - 25);
    return static_cast<float>(x & 0x8000 ? -magnitude : magnitude);
}

// One of both.
struct Format {
    uint16_t (*to)(float);
    float (*from)(uint16_t);
    // How far two neighbouring numbers below 1 are apart, at most.
    double step;
    // In the names of kernels.
    const char* name;
    double rounded(float x) const { return from(to(x)); }
};
constexpr Format BF16{to_bf16, from_bf16, 0x1p-8, ""}, F16{to_f16, from_f16, 0x1p-11, "_f16"};

// To tf32, to the nearest, ties away from zero. Through a double, which has room for both: no digits of the kernel's own way.
inline float to_tf32(float x) {
    if (std::isnan(x)) return std::bit_cast<float>(0x7fffe000);
    if (std::isinf(x) || x == 0) return x;
    if (std::fpclassify(x) == FP_SUBNORMAL) return std::copysign(0.0f, x);
    int exponent;
    const double part = std::frexp(static_cast<double>(x), &exponent);
    // Below the smallest normal number digits have the size that they have there.
    const int size = std::max(exponent, -125) - 11;
    return static_cast<float>(std::ldexp(std::round(std::ldexp(part, exponent - size)), size));
}

inline size_t padded(size_t count, size_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// w is k × n, row-major.
inline std::vector<float> f32(const std::vector<float>& w, size_t k, size_t n) {
    const size_t K = padded(k, 16);
    std::vector<float> packed(K * padded(n, 64));
    for (size_t i = 0; i < k; ++i) {
        for (size_t j = 0; j < n; ++j) packed[((j / 64) * K + i) * 64 + j % 64] = w[i * n + j];
    }
    return packed;
}

inline std::vector<float> tf32(const std::vector<float>& w, size_t k, size_t n) {
    const size_t K = padded(k, 16);
    std::vector<float> packed(K * padded(n, 64));
    for (size_t i = 0; i < k; ++i) {
        for (size_t j = 0; j < n; ++j) packed[((j / 64) * (K / 16) + i / 16) * 1024 + (j % 64) * 16 + i % 16] = to_tf32(w[i * n + j]);
    }
    return packed;
}

inline std::vector<uint16_t> halves(const std::vector<float>& w, size_t k, size_t n, uint16_t (*rounded)(float)) {
    const size_t K = padded(k, 32);
    std::vector<uint16_t> packed(K * padded(n, 64));
    for (size_t i = 0; i < k; ++i) {
        for (size_t j = 0; j < n; ++j) packed[((j / 64) * (K / 32) + i / 32) * 2048 + (j % 64) * 32 + i % 32] = rounded(w[i * n + j]);
    }
    return packed;
}
inline std::vector<uint16_t> bf16(const std::vector<float>& w, size_t k, size_t n) { return halves(w, k, n, to_bf16); }
inline std::vector<uint16_t> f16(const std::vector<float>& w, size_t k, size_t n) { return halves(w, k, n, to_f16); }

// For products by warpgroups.
inline std::vector<uint16_t> wide(const Format& format, const std::vector<float>& w, size_t k, size_t n) {
    const size_t K = padded(k, 64);
    std::vector<uint16_t> packed(K * padded(n, 64));
    for (size_t i = 0; i < k; ++i) {
        for (size_t j = 0; j < n; ++j) {
            packed[((j / 64) * (K / 64) + i / 64) * 4096 + (j % 64) * 64 + (((i % 64 >> 3) ^ (j & 7)) << 3) + i % 8] = format.to(w[i * n + j]);
        }
    }
    return packed;
}

// Weights of a cell of so many gates. w is `inputs` × gates · `units` and u is `units` × gates · `units`, row-major, columns gate after gate.
inline std::vector<uint16_t> gates(const Format& format, size_t gates, const std::vector<float>& w, const std::vector<float>& u, size_t inputs,
                                   size_t units) {
    const size_t before = padded(inputs, 64), slabs = (before + padded(units, 64)) / 64, width = gates * units;
    std::vector<uint16_t> packed(padded(units / 8, 8) * slabs * gates * 512);
    const auto put = [&](size_t k, size_t gate, size_t unit, float value) {
        const size_t j = gate * 8 + unit % 8;
        packed[(unit / 8 * slabs + k / 64) * gates * 512 + j * 64 + (((k % 64 >> 3) ^ (j & 7)) << 3) + k % 8] = format.to(value);
    };
    for (size_t gate = 0; gate < gates; ++gate) {
        for (size_t unit = 0; unit < units; ++unit) {
            for (size_t k = 0; k < inputs; ++k) put(k, gate, unit, w[k * width + gate * units + unit]);
            for (size_t k = 0; k < units; ++k) put(before + k, gate, unit, u[k * width + gate * units + unit]);
        }
    }
    return packed;
}

}  // namespace packing
