// What a block does whose tiles two warpgroups have by turns: while one of them leaves what came of a tile, the other multiplies the next one.
//
// What a tile takes besides its products, to read what is known of it and to put its sums through the gates, is as long as these: a block that has one tile after
// the other keeps its tensor cores waiting half of the time. Here each of the two warpgroups multiplies all rows of a tile, and the ring brings one tile's slabs
// behind the other's, so that whose turn it is finds them there.
#pragma once
#include "recurrent.cuh"

namespace recurrent {

constexpr int CREWS = 2;

template <class Gates, int Units, int Stages>
class Turns : public Tiles<Gates, 2, Units, 1, Stages, TURNS> {
    using Base = Tiles<Gates, 2, Units, 1, Stages, TURNS>;
    using Base::COLUMNS, Base::cell_, Base::place_, Base::released_;
    // Of 64 rows each, which one product has; and of 8 units each.
    static constexpr int BLOCKS = 2, PIECES = Units / UNITS;

public:
    __device__ __forceinline__ Turns(const Cell& cell, uint8_t* shared, uint64_t* full, uint64_t* empty, Turn<CREWS> turn) : Base(cell, shared, full, empty), turn_(turn) {}

    __device__ __forceinline__ void initialise() {
        if (threadIdx.x == 0) turn_.initialise();
        Base::initialise();
    }

    // What a warpgroup that multiplies does of the block's tiles.
    __device__ __forceinline__ void multiply(const LstmRows& rows) {
        const uint32_t crew = threadIdx.x / GROUP;
        launch_wait();
        uint32_t number = 0;
        for (uint32_t tile = blockIdx.x; tile < this->tiles(rows); tile += gridDim.x, ++number) {
            if (Turn<CREWS>::is_of(number, crew)) {
                one(rows, tile, number);
            } else {
                // Its slabs are the other's.
                for (uint32_t k = 0; k < cell_.slabs(); ++k) place_.advance(), released_.advance();
            }
        }
    }

private:
    // A row of the four that a thread has of a tile: where it goes, and what is read of it beside its sums.
    struct Part {
        Gates leaving;
        uint64_t own;
        float2 known[PIECES][Gates::GATES];
        typename Gates::Read read[PIECES];
    };

    __device__ __forceinline__ void find(Part& part, const LstmRows& rows, uint32_t row) const {
        part.leaving.find(cell_, rows, row);
        part.own = listed(rows.begin, row, rows.rows);
    }
    __device__ __forceinline__ void look(Part& part, uint32_t unit) const {
#pragma unroll
        for (int g = 0; g < PIECES; ++g) {
            const bool there = this->is_unit(unit, g);
#pragma unroll
            for (int gate = 0; gate < Gates::GATES; ++gate) part.known[g][gate] = Gates::added(cell_, part.own, gate, unit + UNITS * g, there);
            part.read[g] = part.leaving.read(cell_, unit + UNITS * g, there);
        }
    }

    // Multiplies the block's tile of that number, from 0, and leaves its h and c.
    __device__ __forceinline__ void one(const LstmRows& rows, uint32_t tile, uint32_t number) {
        const int t = threadIdx.x % GROUP, lane = t % 32;
        const uint32_t row = this->first_row(tile) + t / 32 * 16 + lane / 4, unit = tile % this->across() * Units + lane % 4 * 2;
        const auto row_of = [&](int part) { return row + part / 2 * 64 + part % 2 * 8; };
        // What is read of the first row, and where the second's lies, is on its way while the other multiplies.
        Part parts[2];
        find(parts[0], rows, row_of(0));
        find(parts[1], rows, row_of(1));
        look(parts[0], unit);
        float sums[BLOCKS][COLUMNS / 2];
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
            for (int i = 0; i < COLUMNS / 2; ++i) sums[block][i] = 0.0f;
        }
        turn_.await(number);
        const auto multiply = [&](uint32_t k) {
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) this->multiply_slab(sums[block], block, k, 0);
            place_.advance();
        };
        multiply_in_turn(turn_, number, cell_.slabs(), sums, [&] { this->await(); }, multiply, [&] { this->release(); });
#pragma unroll
        for (int part = 0; part < 2 * BLOCKS; ++part) {
            Part &own = parts[part % 2], &next = parts[(part + 1) % 2];
            float* const s = &sums[part / 2][part % 2 * 2];
#pragma unroll
            for (int g = 0; g < PIECES; ++g) {
#pragma unroll
                for (int gate = 0; gate < Gates::GATES; ++gate) {
                    s[(g * Gates::GATES + gate) * 4] += own.known[g][gate].x;
                    s[(g * Gates::GATES + gate) * 4 + 1] += own.known[g][gate].y;
                }
            }
            if (part + 1 < 2 * BLOCKS) look(next, unit);
#pragma unroll
            for (int g = 0; g < PIECES; ++g) {
                if (this->is_unit(unit, g)) own.leaving.gates(cell_, own.read[g], &s[g * Gates::GATES * 4], unit + UNITS * g);
            }
            if (part + 2 < 2 * BLOCKS) find(own, rows, row_of(part + 2));
        }
    }

    const Turn<CREWS> turn_;
};

}  // namespace recurrent
