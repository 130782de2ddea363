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

// Whose turn it is of some warpgroups that have a block's tiles one after the other, whose slabs the ring brings one tile's behind the other's. A stage has the same
// parity every other time around: who waited for one before another has read what was there in front of it would take that for its own.
template <int Crews>
class Turn {
public:
    __device__ __forceinline__ explicit Turn(uint64_t* barriers) : barriers_(barriers) {}
    // One thread does, before `mbarrier_init_fence`.
    __device__ __forceinline__ void initialise() const {
        for (int crew = 0; crew < Crews; ++crew) mbarrier_init(&barriers_[crew], 4);
    }
    // Of the block's tiles, from 0, which are whose.
    static __device__ __forceinline__ bool is_of(uint32_t number, uint32_t crew) { return number % Crews == crew; }
    // Waits until another has all slabs of the tile before that one.
    __device__ __forceinline__ void await(uint32_t number) const {
        if (number > 0) mbarrier_wait(&barriers_[number % Crews], (number - 1) / Crews % 2);
    }
    // The next one's turn: each warp says so, when the last slab of its tile of that number is there.
    __device__ __forceinline__ void pass(uint32_t number) const {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&barriers_[(number + 1) % Crews]);
    }

private:
    // Of each crew one, at which the warps of the one before it arrive.
    uint64_t* const barriers_;
};
