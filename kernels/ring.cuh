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

// What a warpgroup does in its turn with a tile's slabs: each is waited for, multiplied by what `multiply` starts, and released when the next one's products are
// under way; the turn passes on when the last one is there. The sums are those of several products, each of 64 rows.
template <int Crews, int Blocks, int R, class Await, class Multiply, class Release>
__device__ __forceinline__ void multiply_in_turn(const Turn<Crews>& turn, uint32_t number, uint32_t slabs, float (&sums)[Blocks][R], Await await, Multiply multiply,
                                                 Release release) {
    const auto pin = [&] {
#pragma unroll
        for (int block = 0; block < Blocks; ++block) wgmma_pin(sums[block]);
    };
    for (uint32_t k = 0; k < slabs; ++k) {
        await();
        pin();
        wgmma_fence();
        multiply(k);
        wgmma_commit();
        pin();
        if (k + 1 == slabs) turn.pass(number);
        // While these run, what the ones before read may be overwritten.
        if (k > 0) {
            wgmma_wait<1>();
            release();
        }
    }
    wgmma_wait<0>();
    pin();
    release();
}
