// What ptx.cuh offers, on the CPU.
//
// Copies land as late as they may: cp.async when its group is waited for, a bulk copy or a tensor's when someone waits for its mbarrier, so a
// missing wait shows as poisoned data. Now and then those of an mbarrier land at once, so that a stage that is overwritten too early shows too.
#pragma once
#include "language.h"

// A pointer into the block's shared memory as an offset, or the end of the launch.
inline uint32_t shared_address(const void* p, uint32_t bytes = 1, EMULATED_HERE) {
    emulation::Machine& m = emulation::machine();
    const emulation::Block& block = m.block();
    const uint64_t at = static_cast<uint64_t>(static_cast<const uint8_t*>(p) - block.shared);
    const uint64_t declared = emulation::DYNAMIC_SHARED_MOST + emulation::CANARY_BYTES;
    if (at + bytes > block.dynamic_bytes && (at < declared || at + bytes > declared + block.declared)) {
        m.fail("an address outside the block's shared memory at %s:%d", file, line);
    }
    return static_cast<uint32_t>(at);
}

// ---- the launches beside this one ----

// The launch behind may begin: under the emulation it may have done so whether this is called or not.
inline void launch_next() {}
// Waits until the launch in front has ended: before this, nothing may be touched that other launches touch.
inline void launch_wait(EMULATED_HERE) { emulation::machine().wait_for_launch({"the launch in front", file, line}); }

// ---- asynchronous copies of 16 bytes ----

namespace emulation {

inline void land(const Copy& copy) {
    std::memcpy(copy.to, copy.from, copy.bytes);
    std::memset(static_cast<uint8_t*>(copy.to) + copy.bytes, 0, copy.whole - copy.bytes);
}

}  // namespace emulation

inline void copy_async(void* shared, const void* global, uint32_t bytes, EMULATED_HERE) {
    emulation::Machine& m = emulation::machine();
    const uint32_t at = shared_address(shared, 16, file, line);
    if (at % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0) m.fail("a copy that is not aligned to 16 bytes at %s:%d", file, line);
    if (bytes > 16) m.fail("a copy of %u bytes at %s:%d", bytes, file, line);
    m.current().copies.push_back({shared, global, bytes, 16});
}
inline void copy_commit() {
    emulation::Fiber& fiber = emulation::machine().current();
    uint32_t before = 0;
    for (const uint32_t group : fiber.groups) before += group;
    fiber.groups.push_back(static_cast<uint32_t>(fiber.copies.size()) - before);
}
template <int N>
inline void copy_wait() {
    emulation::Fiber& fiber = emulation::machine().current();
    if (fiber.groups.size() <= N) return;
    uint32_t landed = 0;
    const size_t groups = fiber.groups.size() - N;
    for (size_t group = 0; group < groups; ++group) {
        for (uint32_t i = 0; i < fiber.groups[group]; ++i) emulation::land(fiber.copies[landed++]);
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + landed);
    fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + static_cast<long>(groups));
}

// ---- bf16 and f16 ----

inline float flushed(float x) { return fabsf(x) < __FLT_MIN__ ? copysignf(0.0f, x) : x; }
inline uint32_t pack_bf16(float first, float second) {
    return __float2bfloat16_rn(flushed(first)).bits | static_cast<uint32_t>(__float2bfloat16_rn(flushed(second)).bits) << 16;
}
inline uint32_t pack_f16(float first, float second) {
    return emulation::to_f16(first) | static_cast<uint32_t>(emulation::to_f16(second)) << 16;
}

// ---- tensor cores, one warp ----

namespace emulation {

struct Mma {
    float* d;
    const uint32_t *a, *b;
};

inline void unpack_bf16(uint32_t pair, float* two) {
    two[0] = std::bit_cast<float>(pair << 16);
    two[1] = std::bit_cast<float>(pair & 0xffff0000);
}
inline void unpack_f16(uint32_t pair, float* two) {
    two[0] = from_f16(static_cast<uint16_t>(pair));
    two[1] = from_f16(static_cast<uint16_t>(pair >> 16));
}

// The products of a k of 16 are added up first and then onto the sum.
template <void (*unpack)(uint32_t, float*)>
void mma_all(void* operands[], uint64_t) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& own = *static_cast<Mma*>(operands[lane]);
        const int row = lane / 4, k = lane % 4 * 2;
        for (int i = 0; i < 4; ++i) unpack(own.a[i], &a[row + i % 2 * 8][k + i / 2 * 8]);
        for (int i = 0; i < 2; ++i) {
            float two[2];
            unpack(own.b[i], two);
            b[k + i * 8][row] = two[0];
            b[k + i * 8 + 1][row] = two[1];
        }
    }
    float sums[16][8] = {};
    for (int row = 0; row < 16; ++row) {
        for (int k = 0; k < 16; ++k) {
            for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        float* d = static_cast<Mma*>(operands[lane])->d;
        for (int i = 0; i < 4; ++i) d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

// All lanes of a warp bring their operands, and one of them computes.
inline void mma(void (*all)(void**, uint64_t), Mma operands, Where where) {
    Machine& m = machine();
    m.meet(m.warp_meeting(EMULATED_ALL_LANES, where), m.current().thread % 32, reinterpret_cast<const void*>(all), &operands, all, where);
}

}  // namespace emulation

inline void mma_bf16(float (&d)[4], const MmaA& a, const MmaB& b, EMULATED_HERE) {
    emulation::mma(&emulation::mma_all<emulation::unpack_bf16>, {d, a.v, b.v}, {"mma", file, line});
}
inline void mma_f16(float (&d)[4], const MmaA& a, const MmaB& b, EMULATED_HERE) {
    emulation::mma(&emulation::mma_all<emulation::unpack_f16>, {d, a.v, b.v}, {"mma", file, line});
}

// ---- tf32 ----

namespace emulation {

// What the instruction does: to the nearest, ties away from zero, the 13 lowest bits gone. Of infinities and NaNs they are cut off as they are, which
// is the least that it may do.
inline uint32_t cvt_rna_tf32(float x) {
    const uint32_t bits = __float_as_uint(x);
    return (std::isfinite(x) ? bits + 0x1000 : bits) & 0xffffe000;
}

// The 13 lowest bits of the operands are not looked at. The products of a k of 8 are added up first and then onto the sum.
inline void mma_tf32_all(void* operands[], uint64_t) {
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Mma& own = *static_cast<Mma*>(operands[lane]);
        const int row = lane / 4, k = lane % 4;
        for (int i = 0; i < 4; ++i) a[row + i % 2 * 8][k + i / 2 * 4] = __uint_as_float(own.a[i] & 0xffffe000);
        for (int i = 0; i < 2; ++i) b[k + i * 4][row] = __uint_as_float(own.b[i] & 0xffffe000);
    }
    float sums[16][8] = {};
    for (int row = 0; row < 16; ++row) {
        for (int k = 0; k < 8; ++k) {
            for (int column = 0; column < 8; ++column) sums[row][column] += a[row][k] * b[k][column];
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        float* d = static_cast<Mma*>(operands[lane])->d;
        for (int i = 0; i < 4; ++i) d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
}

}  // namespace emulation

inline uint32_t round_tf32(float x) { return x != x ? 0x7fffe000u : emulation::cvt_rna_tf32(flushed(x)); }
inline void mma_tf32(float (&d)[4], const MmaA& a, const MmaB& b, EMULATED_HERE) {
    emulation::mma(&emulation::mma_tf32_all, {d, a.v, b.v}, {"mma", file, line});
}

#include "ptx_hopper.h"
