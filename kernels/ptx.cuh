// All inline PTX, and what it promises. Under the emulation the same functions come from emulation/ptx.h.
#pragma once

struct MmaA {
    uint32_t v[4];
};
struct MmaB {
    uint32_t v[2];
};

#ifndef __CUDACC__
#include "emulation/ptx.h"
#else

// ---- launches of a graph (sm_90; elsewhere a launch begins when the one in front of it has ended) ----

// The launch behind this one may begin as soon as all blocks of this one have come here.
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the launch in front of this one, and so all before it, has ended: what they left is seen.
__device__ __forceinline__ void launch_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- denormal numbers ----

// x, or zero where it is denormal. Kernels are compiled so that arithmetic takes denormal numbers for
// zeros; conversions, and what looks at bits, need this.
__device__ __forceinline__ float flushed(float x) {
    float y;
    asm("mul.ftz.f32 %0, %1, 0f3F800000;" : "=f"(y) : "f"(x));
    return y;
}

// Groups that are compiled when a model is loaded need nothing of the rest.
#ifndef __CUDACC_RTC__

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- asynchronous copies of 16 bytes, global to shared (sm_80) ----

// Copies `bytes` (at most 16) and fills up to 16 with zeros. With 0 bytes nothing is read. Both addresses are aligned to 16 bytes.
__device__ __forceinline__ void copy_async(void* shared, const void* global, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
// Closes the group of the copies that this thread started since the last one; a group may be empty.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the N youngest groups of this thread are under way. Other threads see what landed after a barrier.
template <int N>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// ---- bf16 and f16 ----

// Two f32 rounded to bf16, to the nearest, the first in the low half; denormal ones are zeros.
__device__ __forceinline__ uint32_t pack_bf16(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(flushed(second)), "f"(flushed(first)));
    return pair;
}

// The same in f16: beyond its largest number infinity, below its least normal one its subnormal ones.
__device__ __forceinline__ uint32_t pack_f16(float first, float second) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// ---- tensor cores, one warp (sm_80) ----

// d += a·b: 16 × 16 by 16 × 8, bf16, f32 sums. Lane L holds rows L/4 and L/4 + 8, pairs of k 2(L%4) and 2(L%4) + 8 of a; column L/4 and the
// same k of b; rows L/4 and L/4 + 8, columns 2(L%4) and the next of d.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const MmaA& a, const MmaB& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
}

// The same in f16.
__device__ __forceinline__ void mma_f16(float (&d)[4], const MmaA& a, const MmaB& b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
}

// A float rounded to tf32, to the nearest, ties away from zero: 10 bits behind the point, the 13 below them zeros; a denormal one is zero. A NaN stays one: where its
// digits are all in those bits, what the instruction makes of it is nowhere written, and would be an infinity if they were cut off.
__device__ __forceinline__ uint32_t round_tf32(float x) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(flushed(x)));
    return x != x ? 0x7fffe000u : rounded;
}

// d += a·b: 16 × 8 by 8 × 8, tf32, f32 sums. Lane L holds rows L/4 and L/4 + 8 at k L%4, then at k L%4 + 4 of a; column L/4 and the same k of b;
// d as in bf16.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const MmaA& a, const MmaB& b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
}

// ---- memory that others see ----

// Stores a word so that whoever sees it, the host too, sees all that this thread saw or wrote before.
__device__ __forceinline__ void store_release_system(uint32_t* word, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ void store_release_system(uint64_t* word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// Counts this block in; the count before. What this thread saw before is seen by whoever waits for the count.
__device__ __forceinline__ uint32_t grid_arrive(uint32_t* counter) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
// Waits until the count is `least`; for one thread of a block, whose others then wait for it at a barrier.
__device__ __forceinline__ void grid_wait(const uint32_t* counter, uint32_t least) {
    uint32_t now;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < least);
}

// ---- barriers of some threads of a block ----

// Waits until `threads` threads, a multiple of 32, are at barrier `id`, 1 to 15.
__device__ __forceinline__ void group_barrier(uint32_t id, uint32_t threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// tanh to about 2^-11, in one instruction (sm_75).
__device__ __forceinline__ float tanh_fast(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 2^x to about 2^-22 of it, and 1/x to a unit in the last place: one instruction each. Beyond all floats infinity, below the least normal one 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- mbarriers, and copies that arrive at them (sm_90) ----

__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// Makes initialised mbarriers known to copies; a barrier of the block follows for its threads.
__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and says that the phase also needs `bytes` to land.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Waits until the phase of this parity has ended; the first phase's is 0.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    uint32_t ended;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(ended)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!ended);
}
// Copies `bytes`, a multiple of 16, between addresses that are; they count for the mbarrier as they land.
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Copies the box that begins there, swizzled by 128 bytes, to an address that is a multiple of 1024: TENSOR_BOX_BYTES, which count for the mbarrier as they land,
// whatever lies beyond the matrix.
__device__ __forceinline__ void tensor_copy(void* shared, const TensorMap& map, uint32_t column, uint32_t row, uint64_t* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
                 "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

// What other blocks of this launch wrote, and this thread has waited for, may be read by copies of tensors that it starts: a proxy fence on the way from those writes
// to these reads (PTX, memory consistency model, proxies). What earlier launches wrote may when they have ended.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- one warpgroup (sm_90a) ----

// Gives registers back, takes registers: all threads of a warpgroup. N is a multiple of 8.
template <int N>
__device__ __forceinline__ void registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// Keeps the compiler from moving what it does with accumulators across products that are under way.
template <int R>
__device__ __forceinline__ void wgmma_pin(float (&d)[R]) {
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the N youngest groups of products are under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

#include "wgmma.cuh"

#endif

#endif

#endif

#ifndef __CUDACC_RTC__

// A matrix in shared memory for products of a warpgroup: rows of 64 bf16 or f16 (128 bytes), k along them, swizzled by 128 bytes (chunk c of row r lies
// at place c ^ (r & 7)), from an address that is a multiple of 1024. The next 16 of k begin 2 further.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* shared) {
    return static_cast<uint64_t>((shared_address(shared) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#endif
