// What every kernel includes: the language (nvcc's, or the emulation's stand-ins for it), the argument structs and the inline PTX.
//
// A kernel takes one struct by value and is entered in the emulation's table below its definition:
//
//     extern "C" __global__ void __launch_bounds__(128) gather(const __grid_constant__ GatherArguments a) { ... }
//     KERNEL(gather, GatherArguments)
//
// Shared memory is had through SHARED and DYNAMIC_SHARED alone, so that the emulation can give every block its own, poisoned.
#pragma once
#include "abi.h"

#ifdef __CUDACC__

// Groups that are compiled when a model is loaded do not need this, and their compiler has only what it is given.
#ifndef __CUDACC_RTC__
#include <cuda_bf16.h>
#endif

// Nothing under nvcc: the driver finds a kernel by its name.
#define KERNEL(name, Arguments)
// The same for a kernel whose blocks wait for one another: all of them must be resident at once (a cooperative launch).
#define KERNEL_COOPERATIVE(name, Arguments)
// An array in shared memory whose size is known when compiled.
#define SHARED(Type, name, count) __shared__ alignas(16) Type name[count]
// The launch's own shared memory, as bytes.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]

#else

#include "emulation/language.h"

#endif

#include "ptx.cuh"

// What a kernel begins with that reads nothing before the launch in front of it has ended. In a graph every launch but the first may begin earlier, and waits by
// itself (`launch_wait`). Until then it may read what no launch of the graph writes: weights, tables, and (`uploaded`) what was uploaded for the graph. A block with
// nothing to do may leave without waiting, but not all blocks of a launch: it would end before the one in front of it, and the one behind it would wait for too little.
static __device__ __forceinline__ void begin_launch() {
    launch_next();
    launch_wait();
}

// A structure of words of 64 bits that was uploaded for this launch, past the processor's own cache: the one before it that lay there may still be in that, while
// the launch in front runs.
template <class T>
static __device__ __forceinline__ T uploaded(uint64_t address) {
    static_assert(sizeof(T) % 8 == 0, "it is words");
    uint64_t words[sizeof(T) / 8];
#pragma unroll
    for (uint32_t i = 0; i < sizeof(T) / 8; ++i) words[i] = __ldcg(reinterpret_cast<const uint64_t*>(address) + i);
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
}

// Whether a row lies beyond those that there are. Of a launch whose arguments never change (a graph's) the device says how many that is, in the word at
// `rows_at`: it has blocks for more rows, and those leave at once. At 0 no word lies: there are as many rows as the launch was made for.
static __device__ __forceinline__ bool is_beyond(uint64_t rows_at, uint64_t row) {
    return rows_at != 0 && row >= __ldcg(reinterpret_cast<const uint32_t*>(rows_at));
}
