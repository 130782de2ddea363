// What kernels read of a batch that differs from task to task, and how rows are copied.
#pragma once
#include "abi_transfer.h"
#include "kernel.cuh"

// The head of a launch's batch: as it lies on the device, or as it came.
static __device__ __forceinline__ BatchHead head_of(uint64_t address, const BatchHead& own) {
    return address ? uploaded<BatchHead>(address) : own;
}

// What is said of a row of it.
static __device__ __forceinline__ RowEntry entry_of(const BatchHead& head, uint64_t row) { return uploaded<RowEntry>(head.entries + row * sizeof(RowEntry)); }

// Whether a chain has a step: one without a word has all that come.
static __device__ __forceinline__ bool runs(const uint32_t* executed, uint32_t word, uint32_t step) { return word == NOWHERE || step < executed[word]; }

// Copies a row's bytes, or zeros from address 0, with all threads of the block. Either side may lie anywhere.
static __device__ __forceinline__ void copy_row(uint8_t* to, const uint8_t* from, uint32_t bytes) {
    const bool aligned = ((reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) & 15) == 0;
    const uint32_t whole = aligned ? bytes / 16 : 0;
    for (uint32_t at = threadIdx.x; at < whole; at += blockDim.x) {
        reinterpret_cast<uint4*>(to)[at] = from ? reinterpret_cast<const uint4*>(from)[at] : make_uint4(0, 0, 0, 0);
    }
    for (uint32_t at = whole * 16 + threadIdx.x; at < bytes; at += blockDim.x) to[at] = from ? from[at] : uint8_t(0);
}
