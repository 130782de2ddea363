// A ring of stages in shared memory: one warpgroup fills them in order, others read them in order, and mbarriers say which is whose.
#pragma once
#include "kernel.cuh"

// A place in the ring, and the parity of its round.
template <int Stages>
struct Place {
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == Stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};
