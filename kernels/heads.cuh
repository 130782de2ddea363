// What kernels read of a batch that differs from task to task.
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
