// What differs among the cells whose steps `recurrent.cu` computes: how many sums a unit has, what is added to them, what else of a row is read,
// and what becomes of all that. And what differs between the two formats of 16 bits.
//
// Everything is done for two units at once, which lie side by side. The sums of gate g of the two are s[4 · g] and s[4 · g + 1].
#pragma once
#include "kernel.cuh"

namespace recurrent {

// What a launch computes, whichever its arguments.
struct Cell {
    uint64_t weights, bias;
    uint32_t inputs, units;
    const uint32_t* columns;
    const TensorMap &x, &h;
    uint64_t c_right;  // of a tree: the list of the right child's cells
    uint32_t z_takes;  // of a GRU: z says how much is taken of n
    static constexpr uint32_t SLAB = 64;
    __device__ __forceinline__ uint32_t input_slabs() const { return (inputs + SLAB - 1) / SLAB; }
    __device__ __forceinline__ uint32_t slabs() const { return input_slabs() + (units + SLAB - 1) / SLAB; }
};

// What another launch leaves, or a step before this one, is not read by `__ldg`, which the compiler may move in front of the wait for it; and past the processor's
// own cache, because a queue's blocks go on from step to step with what is in that.
__device__ __forceinline__ uint64_t listed(uint64_t list, uint32_t row, uint32_t rows) {
    return list && row < rows ? __ldcg(reinterpret_cast<const uint64_t*>(list) + row) : 0;
}

__device__ __forceinline__ float2 zeros() { return make_float2(0.0f, 0.0f); }

// Two values that nothing in this launch writes; zeros where they lie nowhere.
__device__ __forceinline__ float2 constants(uint64_t row, uint32_t column, bool there) {
    return row && there ? __ldcg(reinterpret_cast<const float2*>(reinterpret_cast<const float*>(row) + column)) : zeros();
}

// Two values that another block may have written in the step before: not to be read from this one's cache.
__device__ __forceinline__ float2 states(uint64_t row, uint32_t unit, bool there) {
    return row && there ? __ldcg(reinterpret_cast<const float2*>(row) + unit / 2) : zeros();
}

__device__ __forceinline__ void leave(uint64_t row, uint32_t unit, float2 values) {
    if (row) reinterpret_cast<float2*>(row)[unit / 2] = values;
}

// What rows of x and h, and the weights, are of; and functions of gates to some bits more than these have.
struct Bf16 {
    static __device__ __forceinline__ float tangent(float x) { return tanh_fast(x); }
    static __device__ __forceinline__ float sigmoid(float x) { return fmaf(tanh_fast(0.5f * x), 0.5f, 0.5f); }
    static __device__ __forceinline__ uint32_t pack(float2 values) { return pack_bf16(values.x, values.y); }
    template <int N>
    static __device__ __forceinline__ void multiply(float (&sums)[N / 2], uint64_t a, uint64_t b) {
        wgmma_bf16<N>(sums, a, b, true);
    }
};
struct F16 {
    // That instruction errs by as much as a rounding to f16, which cells would add up step after step; these by about 2^-21 of 1.
    static __device__ __forceinline__ float tangent(float x) { return fmaf(reciprocal_fast(1.0f + exp2_fast(2.885390082f * x)), -2.0f, 1.0f); }
    static __device__ __forceinline__ float sigmoid(float x) { return reciprocal_fast(1.0f + exp2_fast(-1.442695041f * x)); }
    static __device__ __forceinline__ uint32_t pack(float2 values) { return pack_f16(values.x, values.y); }
    template <int N>
    static __device__ __forceinline__ void multiply(float (&sums)[N / 2], uint64_t a, uint64_t b) {
        wgmma_f16<N>(sums, a, b, true);
    }
};

template <class Halves>
__device__ __forceinline__ void leave_rounded(uint64_t row, uint32_t unit, float2 values) {
    if (row) reinterpret_cast<uint32_t*>(row)[unit / 2] = Halves::pack(values);
}

// What is known of a row takes the bias's place.
__device__ __forceinline__ float2 known_or_bias(const Cell& cell, uint64_t own, int gate, uint32_t unit, bool there) {
    return constants(own ? own : cell.bias, cell.columns[gate] + unit, there);
}

// i, f, g, o.
template <class Format>
struct Lstm {
    using Halves = Format;
    static constexpr int GATES = 4;

    // What is added to a row's sums.
    static __device__ __forceinline__ float2 added(const Cell& cell, uint64_t own, int gate, uint32_t unit, bool there) {
        return known_or_bias(cell, own, gate, unit, there);
    }

    // What becomes of a row: where it goes, and where what is read beside its sums lies.
    uint64_t c, c_out, h_next, h_out, h_exact;
    __device__ __forceinline__ void find(const Cell&, const LstmRows& rows, uint32_t row) {
        c = listed(rows.c, row, rows.rows);
        h_next = listed(rows.h_next, row, rows.rows);
        c_out = listed(rows.c_out, row, rows.rows);
        h_out = listed(rows.h_out, row, rows.rows);
        h_exact = listed(rows.h_exact, row, rows.rows);
    }

    struct Read {
        float2 c;
    };
    __device__ __forceinline__ Read read(const Cell&, uint32_t unit, bool there) const { return {states(c, unit, there)}; }

    static __device__ __forceinline__ float next(float i, float f, float g, float c) { return fmaf(Halves::sigmoid(f), c, Halves::sigmoid(i) * Halves::tangent(g)); }
    __device__ __forceinline__ void gates(const Cell&, const Read& read, const float* s, uint32_t unit) const {
        const float2 c = make_float2(next(s[0], s[4], s[8], read.c.x), next(s[1], s[5], s[9], read.c.y));
        leave(c_out, unit, c);
        const float2 h = make_float2(Halves::sigmoid(s[12]) * Halves::tangent(c.x), Halves::sigmoid(s[13]) * Halves::tangent(c.y));
        leave_rounded<Halves>(h_next, unit, h);
        leave_rounded<Halves>(h_out, unit, h);
        leave(h_exact, unit, h);
    }
};

// r, z, n, of which the sums of n are those of h alone: what a row has of n besides is added when r is known.
template <class Format>
struct Gru {
    using Halves = Format;
    static constexpr int GATES = 3;

    static __device__ __forceinline__ float2 added(const Cell& cell, uint64_t own, int gate, uint32_t unit, bool there) {
        const uint32_t column = cell.columns[gate] + unit;
        const float2 bias = constants(cell.bias, column, there);
        if (gate == 2) return bias;
        const float2 known = constants(own, column, there);
        return make_float2(bias.x + known.x, bias.y + known.y);
    }

    uint64_t known, state, state_out, h_next, h_out;
    __device__ __forceinline__ void find(const Cell&, const LstmRows& rows, uint32_t row) {
        known = listed(rows.begin, row, rows.rows);
        state = listed(rows.c, row, rows.rows);
        state_out = listed(rows.c_out, row, rows.rows);
        h_next = listed(rows.h_next, row, rows.rows);
        h_out = listed(rows.h_out, row, rows.rows);
    }

    struct Read {
        float2 h, n;
    };
    __device__ __forceinline__ Read read(const Cell& cell, uint32_t unit, bool there) const {
        return {states(state, unit, there), constants(known, cell.columns[2] + unit, there)};
    }

    // 1 − σ(z) is σ(−z), so which of the two z says is a sign.
    static __device__ __forceinline__ float next(const Cell& cell, float r, float z, float of_h, float known, float h) {
        const float n = Halves::tangent(fmaf(Halves::sigmoid(r), of_h, known));
        return fmaf(Halves::sigmoid(cell.z_takes ? -z : z), h - n, n);
    }
    __device__ __forceinline__ void gates(const Cell& cell, const Read& read, const float* s, uint32_t unit) const {
        const float2 h = make_float2(next(cell, s[0], s[4], s[8], read.n.x, read.h.x), next(cell, s[1], s[5], s[9], read.n.y, read.h.y));
        leave(state_out, unit, h);
        leave_rounded<Halves>(h_next, unit, h);
        leave_rounded<Halves>(h_out, unit, h);
    }
};

// i, the f of either child, o, u: a node of a binary tree. x is the left child's h, h and c_right are the right one's.
template <class Format>
struct Tree {
    using Halves = Format;
    static constexpr int GATES = 5;

    static __device__ __forceinline__ float2 added(const Cell& cell, uint64_t own, int gate, uint32_t unit, bool there) {
        return known_or_bias(cell, own, gate, unit, there);
    }

    uint64_t c_left, c_right, c_out, h_exact;
    __device__ __forceinline__ void find(const Cell& cell, const LstmRows& rows, uint32_t row) {
        c_left = listed(rows.c, row, rows.rows);
        c_right = listed(cell.c_right, row, rows.rows);
        c_out = listed(rows.c_out, row, rows.rows);
        h_exact = listed(rows.h_exact, row, rows.rows);
    }

    struct Read {
        float2 left, right;
    };
    __device__ __forceinline__ Read read(const Cell&, uint32_t unit, bool there) const {
        return {states(c_left, unit, there), states(c_right, unit, there)};
    }

    static __device__ __forceinline__ float next(float i, float f_left, float f_right, float u, float left, float right) {
        return fmaf(Halves::sigmoid(f_right), right, fmaf(Halves::sigmoid(f_left), left, Halves::sigmoid(i) * Halves::tangent(u)));
    }
    __device__ __forceinline__ void gates(const Cell&, const Read& read, const float* s, uint32_t unit) const {
        const float2 c = make_float2(next(s[0], s[4], s[8], s[16], read.left.x, read.right.x), next(s[1], s[5], s[9], s[17], read.left.y, read.right.y));
        leave(c_out, unit, c);
        leave(h_exact, unit, make_float2(Halves::sigmoid(s[12]) * Halves::tangent(c.x), Halves::sigmoid(s[13]) * Halves::tangent(c.y)));
    }
};

}  // namespace recurrent
