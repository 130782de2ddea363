// The CUDA language for a C++20 compiler: keywords, vectors, bf16, arithmetic, warp collectives, atomics. No CUDA header is needed.
//
// Only what kernels here use, and as the CUDA manuals define it; a name that is missing is added where its kind stands.
#pragma once
#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include "machine_meet.h"
#include "machine_run.h"

// ---- keywords ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static const
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __shared__ static_assert(false, "shared memory is declared with SHARED or DYNAMIC_SHARED");

#define threadIdx (emulation::Index3{emulation::machine().current().thread, 0, 0})
#define blockIdx (emulation::machine().block().index)
#define blockDim (emulation::Index3{emulation::machine().threads(), 1, 1})
#define gridDim (emulation::machine().grid())
constexpr int warpSize = 32;

// Each place of declaration, and each instance of a template, is an array of its own.
#define SHARED(Type, name, count)                                                                                                        \
    static const char name##_site = 0;                                                                                                   \
    Type(&name)[count] = *static_cast<Type(*)[count]>(emulation::machine().declared(&name##_site, sizeof(Type) * (count)))
#define DYNAMIC_SHARED(name) uint8_t* const name = emulation::machine().block().shared

// Where a call stands in the kernel's source.
#define EMULATED_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// ---- vectors ----

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- bits ----

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }

// ---- arithmetic ----

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;
template <class A, class B, class = std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>>>
inline std::common_type_t<A, B> min(A a, B b) { return static_cast<std::common_type_t<A, B>>(a) < static_cast<std::common_type_t<A, B>>(b) ? a : b; }
template <class A, class B, class = std::enable_if_t<std::is_integral_v<A> && std::is_integral_v<B>>>
inline std::common_type_t<A, B> max(A a, B b) { return static_cast<std::common_type_t<A, B>>(a) > static_cast<std::common_type_t<A, B>>(b) ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
// glibc declares `__expf` and `__logf` itself, so these stand for the fast ones by name.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
// Conversions to integers saturate, and NaN is 0.
inline int __float2int_rz(float x) { return isnan(x) ? 0 : x >= 2147483648.0f ? INT_MAX : x <= -2147483648.0f ? INT_MIN : static_cast<int>(x); }
inline int __float2int_rn(float x) { return __float2int_rz(nearbyintf(x)); }
inline long long __float2ll_rz(float x) {
    return isnan(x) ? 0 : x >= 9223372036854775808.0f ? LLONG_MAX : x <= -9223372036854775808.0f ? LLONG_MIN : static_cast<long long>(x);
}

// ---- bf16 ----

struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
// To the nearest, ties to even; any NaN becomes 0x7fff.
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    const unsigned bits = __float_as_uint(x);
    if (isnan(x)) return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
inline float __low2float(__nv_bfloat162 v) { return __bfloat162float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return __bfloat162float(v.y); }

// ---- f16 ----

namespace emulation {

// To the nearest, ties to even; beyond the largest infinity; any NaN becomes 0x7fff.
inline uint16_t to_f16(float x) {
    if (isnan(x)) return 0x7fff;
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    // Below 2^-14 there are whole steps of 2^-24, the last digit of a float just above a half.
    if (magnitude < 0x38800000) return static_cast<uint16_t>(sign | (__float_as_uint(fabsf(x) + 0.5f) - 0x3f000000));
    const unsigned rounded = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10);
    return static_cast<uint16_t>(sign | (rounded < 0x7c00 ? rounded : 0x7c00));
}
inline float from_f16(uint16_t x) {
    const unsigned sign = (x & 0x8000u) << 16, magnitude = x & 0x7fffu;
    const unsigned bits = magnitude >= 0x7c00 ? 0x7f800000 | (magnitude & 0x3ff) << 13
                          : magnitude >= 0x400 ? (magnitude << 13) + (112u << 23)
                                               : __float_as_uint(static_cast<float>(magnitude) * 0x1p-24f);
    return __uint_as_float(sign | bits);
}

}  // namespace emulation

// ---- memory ----

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcv(const T* p) { return *p; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stwt(T* p, T v) { *p = v; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Memory may be shared with the host, or with a launch on another OS thread, so these are the machine's own atomics.
template <class T> inline T atomicAdd(T* p, std::type_identity_t<T> v) {
    T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &seen, static_cast<T>(seen + v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return seen;
}
template <> inline float atomicAdd(float* p, float v) {
    unsigned* bits = reinterpret_cast<unsigned*>(p);
    unsigned seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(bits, &seen, __float_as_uint(__uint_as_float(seen) + v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return __uint_as_float(seen);
}
template <class T> inline T atomicMin(T* p, std::type_identity_t<T> v) {
    T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < seen && !__atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return seen;
}
template <class T> inline T atomicMax(T* p, std::type_identity_t<T> v) {
    T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return seen;
}
template <class T> inline T atomicExch(T* p, std::type_identity_t<T> v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
template <class T> inline T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}
template <class T> inline T atomicOr(T* p, std::type_identity_t<T> v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
template <class T> inline T atomicAnd(T* p, std::type_identity_t<T> v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }

// ---- threads meeting ----

inline void __syncthreads(EMULATED_HERE) { emulation::machine().barrier(0, 0, {"the barrier of the block", file, line}); }
[[noreturn]] inline void __trap(EMULATED_HERE) { emulation::machine().fail("a trap at %s:%d", file, line); }

namespace emulation {
struct Nothing {
    template <class T> T operator()(const T& a, const T&) const { return a; }
};
struct Or {
    template <class T> T operator()(T a, T b) const { return a | b; }
};
struct And {
    template <class T> T operator()(T a, T b) const { return a & b; }
};
struct Plus {
    template <class T> T operator()(T a, T b) const { return a + b; }
};
struct Least {
    template <class T> T operator()(T a, T b) const { return b < a ? b : a; }
};
struct Most {
    template <class T> T operator()(T a, T b) const { return a < b ? b : a; }
};
inline uint32_t lane() { return machine().current().thread % 32; }
}  // namespace emulation

constexpr unsigned EMULATED_ALL_LANES = 0xffffffff;
inline void __syncwarp(unsigned mask = EMULATED_ALL_LANES, EMULATED_HERE) {
    emulation::fold<int, emulation::Nothing>(mask, 0, {"__syncwarp", file, line});
}
template <class T> inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, EMULATED_HERE) {
    const uint32_t lane = emulation::lane();
    return emulation::shuffle(mask, v, (lane & ~(width - 1)) | (from & (width - 1)), {"__shfl_sync", file, line});
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, EMULATED_HERE) {
    const uint32_t lane = emulation::lane(), from = lane ^ bits;
    return emulation::shuffle(mask, v, from / width > lane / width ? lane : from, {"__shfl_xor_sync", file, line});
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, EMULATED_HERE) {
    const uint32_t lane = emulation::lane();
    return emulation::shuffle(mask, v, lane % width + delta < static_cast<unsigned>(width) ? lane + delta : lane, {"__shfl_down_sync", file, line});
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, EMULATED_HERE) {
    const uint32_t lane = emulation::lane();
    return emulation::shuffle(mask, v, lane % width >= delta ? lane - delta : lane, {"__shfl_up_sync", file, line});
}
inline unsigned __ballot_sync(unsigned mask, bool p, EMULATED_HERE) {
    return emulation::fold<unsigned, emulation::Or>(mask, static_cast<unsigned>(p) << emulation::lane(), {"__ballot_sync", file, line});
}
inline bool __any_sync(unsigned mask, bool p, EMULATED_HERE) { return emulation::fold<unsigned, emulation::Or>(mask, p, {"__any_sync", file, line}); }
inline bool __all_sync(unsigned mask, bool p, EMULATED_HERE) { return emulation::fold<unsigned, emulation::And>(mask, p, {"__all_sync", file, line}); }
template <class T> inline T __reduce_add_sync(unsigned mask, T v, EMULATED_HERE) { return emulation::fold<T, emulation::Plus>(mask, v, {"__reduce_add_sync", file, line}); }
template <class T> inline T __reduce_min_sync(unsigned mask, T v, EMULATED_HERE) { return emulation::fold<T, emulation::Least>(mask, v, {"__reduce_min_sync", file, line}); }
template <class T> inline T __reduce_max_sync(unsigned mask, T v, EMULATED_HERE) { return emulation::fold<T, emulation::Most>(mask, v, {"__reduce_max_sync", file, line}); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, EMULATED_HERE) { return emulation::fold<unsigned, emulation::Or>(mask, v, {"__reduce_or_sync", file, line}); }

// ---- the table of kernels ----

namespace emulation {
inline std::vector<Kernel>& kernels() {
    static std::vector<Kernel> kernels;
    return kernels;
}
struct Entered {
    explicit Entered(const Kernel& kernel) { kernels().push_back(kernel); }
};
}  // namespace emulation

#define EMULATED_KERNEL(name, Arguments, cooperative)                                                                                    \
    static const emulation::Entered name##_entered({#name, static_cast<int>(sizeof(Arguments)), cooperative,                             \
                                                    [](const void* arguments) { name(*static_cast<const Arguments*>(arguments)); }});
#define KERNEL(name, Arguments) EMULATED_KERNEL(name, Arguments, false)
#define KERNEL_COOPERATIVE(name, Arguments) EMULATED_KERNEL(name, Arguments, true)
