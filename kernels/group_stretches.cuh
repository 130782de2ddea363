// What the kernel `group` and the kernels that are generated of groups have in common: where elements lie, indices that are checked, stretches that are
// walked by several threads.
//
// All of it is inlined: where an instruction's numbers are known when this is compiled, nothing is left of them but what they mean.
#pragma once
#include "group_numbers.cuh"
#include "tables.cuh"

// Where an instruction's operands begin, as it says itself: found out again each time, which takes fewer registers than knowing it.
struct SaidBases {
    const GroupInstruction& in;
    uint8_t* row;

    __device__ __forceinline__ uint8_t* source(int which) const { return operand_base(in.source[which], row); }
    __device__ __forceinline__ uint8_t* result(int which) const { return operand_base(in.result[which], row); }
};

// The same where it is known otherwise.
struct GroupBases {
    uint8_t* sources[GROUP_SOURCES];
    uint8_t* results[GROUP_RESULTS];

    __device__ __forceinline__ uint8_t* source(int which) const { return sources[which]; }
    __device__ __forceinline__ uint8_t* result(int which) const { return results[which]; }
};

// Where the operands' elements for one index lie.
struct GroupPlaces {
    int64_t source[GROUP_SOURCES];
    int64_t result[GROUP_RESULTS];
};

// Adds what the index number `index` of the axes from `first` up to `end` means to every place.
static __device__ __forceinline__ void add_places(const GroupInstruction& in, uint32_t first, uint32_t end, uint32_t index, GroupPlaces& places) {
    for (uint32_t axis = end; axis-- > first;) {
        const uint32_t extent = in.extents[axis];
        const uint32_t at = axis == first ? index : index % extent;
        index /= extent;
        for (int s = 0; s < GROUP_SOURCES; s++) places.source[s] += static_cast<int64_t>(at) * in.source[s].strides[axis];
        for (int r = 0; r < GROUP_RESULTS; r++) places.result[r] += static_cast<int64_t>(at) * in.result[r].strides[axis];
    }
}

// ---- tables ----

// Refuses the row if an index is in no row of the table: the first such one in the order of the elements.
template <class Bases>
static __device__ __forceinline__ void check_indices(const GroupInstruction& in, const Bases& bases, uint8_t* row, uint32_t* first_bad) {
    const int64_t rows = static_cast<int64_t>(in.table_rows);
    const uint8_t* const indices = bases.source(0);
    if (in.outer == 1) {
        const int64_t index = load_number(indices, in.source[0].type, 0).i;
        if (threadIdx.x == 0 && table_row(index, rows) < 0) refuse_row(row, index, in.table_rows);
        return;
    }
    if (threadIdx.x == 0) *first_bad = NOWHERE;
    __syncthreads();
    for (uint32_t element = threadIdx.x; element < in.outer; element += blockDim.x) {
        GroupPlaces at = {};
        add_places(in, 0, in.outer_axes, element, at);
        if (table_row(load_number(indices, in.source[0].type, at.source[0]).i, rows) < 0) atomicMin(first_bad, element);
    }
    __syncthreads();
    if (threadIdx.x == 0 && *first_bad != NOWHERE) {
        GroupPlaces at = {};
        add_places(in, 0, in.outer_axes, *first_bad, at);
        refuse_row(row, load_number(indices, in.source[0].type, at.source[0]).i, in.table_rows);
    }
    // The word is used again by the next instruction of this kind.
    __syncthreads();
}

// ---- stretches ----

// Those who walk a stretch together.
struct Team {
    uint32_t rank, size, number, count;
    bool is_warp, is_block;
};

static __device__ __forceinline__ Team team_of(const GroupInstruction& in) {
    if (in.flags & FLAG_BY_BLOCK) return {threadIdx.x, blockDim.x, 0, 1, true, true};
    if (in.flags & FLAG_BY_WARP) return {threadIdx.x % 32, 32, threadIdx.x / 32, blockDim.x / 32, true, false};
    return {0, 1, threadIdx.x, blockDim.x, false, false};
}

struct AddFloats {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct LargerFloat {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct AddIntegers {
    __device__ int64_t operator()(int64_t a, int64_t b) const { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
};

// An element of a stretch in its order.
struct Ranked {
    int64_t key;
    uint32_t position;
    uint32_t is_any;
};
struct BetterRanked {
    bool is_last;
    __device__ bool better(Ranked a, Ranked b) const {
        if (!b.is_any || !a.is_any) return a.is_any;
        return a.key != b.key ? a.key > b.key : is_last ? a.position > b.position : a.position < b.position;
    }
    __device__ Ranked operator()(Ranked a, Ranked b) const { return better(b, a) ? b : a; }
};

static __device__ __forceinline__ float shuffle_value(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
static __device__ __forceinline__ int64_t shuffle_value(int64_t x, int mask) {
    const uint64_t bits = static_cast<uint64_t>(x);
    const uint32_t low = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(bits), mask);
    const uint32_t high = __shfl_xor_sync(0xffffffffu, static_cast<uint32_t>(bits >> 32), mask);
    return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
}
static __device__ __forceinline__ Ranked shuffle_value(Ranked x, int mask) {
    return {shuffle_value(x.key, mask), __shfl_xor_sync(0xffffffffu, x.position, mask), __shfl_xor_sync(0xffffffffu, x.is_any, mask)};
}

// What all of a team's values come to, in one order; every thread of the team gets it. `shared` holds a value for each warp.
template <class Value, class Combine>
static __device__ __forceinline__ Value together(const Team& team, Value value, Combine combine, uint64_t* shared_words) {
    if (!team.is_warp) return value;
    for (int mask = 16; mask > 0; mask /= 2) value = combine(value, shuffle_value(value, mask));
    if (!team.is_block || team.size == 32) return value;
    Value* const shared = reinterpret_cast<Value*>(shared_words);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[0];
    for (uint32_t warp = 1; warp < team.size / 32; warp++) value = combine(value, shared[warp]);
    __syncthreads();
    return value;
}

// A stretch of an instruction: its operands, and where it begins.
template <class Bases>
struct Stretch {
    const GroupInstruction& in;
    const Bases& bases;
    GroupPlaces begin;
    // The first source, which is read most: where it lies, and how far it is to its next element if the stretch is one axis.
    const uint8_t* first;
    uint32_t type;
    bool is_flat;
    int32_t step;

    __device__ __forceinline__ Stretch(const GroupInstruction& instruction, const Bases& where, const GroupPlaces& places)
        : in(instruction), bases(where), begin(places), first(where.source(0)), type(instruction.source[0].type) {
        is_flat = in.axes <= in.outer_axes + 1;
        step = in.axes == in.outer_axes + 1 ? in.source[0].strides[in.outer_axes] : 0;
    }

    __device__ __forceinline__ GroupPlaces places(uint32_t element) const {
        GroupPlaces at = begin;
        add_places(in, in.outer_axes, in.axes, element, at);
        return at;
    }
    __device__ __forceinline__ Number source(int which, int64_t place) const {
        return load_number(bases.source(which), in.source[which].type, place);
    }
    // An element of the first source.
    __device__ __forceinline__ Number element(uint32_t element) const {
        const int64_t place = is_flat ? begin.source[0] + static_cast<int64_t>(element) * step : places(element).source[0];
        return load_number(first, type, place);
    }
    __device__ __forceinline__ float x(uint32_t number) const { return element(number).f; }
    __device__ __forceinline__ void store(int which, int64_t place, Number number) const {
        store_number(bases.result(which), in.result[which].type, place, number);
    }
};

template <class Bases>
static __device__ __forceinline__ void softmax_stretch(const Stretch<Bases>& stretch, const Team& team, uint64_t* shared) {
    const uint32_t count = stretch.in.inner;
    float most = -INFINITY;
    for (uint32_t e = team.rank; e < count; e += team.size) most = fmaxf(most, stretch.x(e));
    most = together(team, most, LargerFloat{}, shared);
    float sum = 0.0f;
    for (uint32_t e = team.rank; e < count; e += team.size) sum += expf(stretch.x(e) - most);
    sum = together(team, sum, AddFloats{}, shared);
    const float log = logf(sum);
    for (uint32_t e = team.rank; e < count; e += team.size) {
        const GroupPlaces at = stretch.places(e);
        const float x = stretch.source(0, at.source[0]).f - most;
        stretch.store(0, at.result[0], {stretch.in.op == OP_SOFTMAX ? expf(x) / sum : x - log, 0});
    }
}

template <class Bases>
static __device__ __forceinline__ void normalize_stretch(const Stretch<Bases>& stretch, const Team& team, uint64_t* shared) {
    const uint32_t count = stretch.in.inner;
    const float size = static_cast<float>(count);
    float mean = 0.0f;
    if (stretch.in.op == OP_STANDARDIZE) {
        for (uint32_t e = team.rank; e < count; e += team.size) mean += stretch.x(e);
        mean = together(team, mean, AddFloats{}, shared) / size;
    }
    float squares = 0.0f;
    for (uint32_t e = team.rank; e < count; e += team.size) {
        const float x = stretch.x(e) - mean;
        squares += x * x;
    }
    squares = together(team, squares, AddFloats{}, shared);
    const float root = sqrtf(squares / size + stretch.in.epsilon);
    for (uint32_t e = team.rank; e < count; e += team.size) {
        const GroupPlaces at = stretch.places(e);
        float y = (stretch.source(0, at.source[0]).f - mean) / root;
        if (stretch.in.sources > 1) y *= stretch.source(1, at.source[1]).f;
        if (stretch.in.sources > 2) y += stretch.source(2, at.source[2]).f;
        stretch.store(0, at.result[0], {y, 0});
    }
}

template <class Bases>
static __device__ __forceinline__ void sum_stretch(const Stretch<Bases>& stretch, const Team& team, uint64_t* shared) {
    const uint32_t count = stretch.in.inner, type = stretch.type;
    const bool is_mean = stretch.in.op == OP_MEAN;
    Number sum = {0.0f, 0};
    for (uint32_t e = team.rank; e < count; e += team.size) {
        const Number x = stretch.element(e);
        sum.f += x.f;
        sum.i = AddIntegers{}(sum.i, x.i);
    }
    if (type == TYPE_F32) {
        sum.f = together(team, sum.f, AddFloats{}, shared);
        if (is_mean) sum.f /= static_cast<float>(count);
    } else {
        sum.i = together(team, sum.i, AddIntegers{}, shared);
        // The sum wraps before it is divided.
        if (type == TYPE_I32) sum.i = static_cast<int32_t>(sum.i);
        if (type == TYPE_U8) sum.i = static_cast<uint8_t>(sum.i);
        if (is_mean) sum.i /= count;
    }
    if (team.rank == 0) stretch.store(0, stretch.begin.result[0], sum);
}

template <class Bases>
static __device__ __forceinline__ void top_of_stretch(const Stretch<Bases>& stretch, const Team& team, uint64_t* shared) {
    const GroupInstruction& in = stretch.in;
    const uint32_t count = in.inner;
    const bool is_smallest = (in.flags & FLAG_SMALLEST) != 0;
    const BetterRanked order = {(in.flags & FLAG_LAST) != 0};
    Ranked before = {0, 0, 0};
    // One pass for each: the best of those that come after the one before.
    for (uint32_t k = 0; k < in.k; k++) {
        Ranked best = {0, 0, 0};
        for (uint32_t e = team.rank; e < count; e += team.size) {
            const int64_t key = order_key(stretch.element(e), stretch.type);
            const Ranked found = {is_smallest ? ~key : key, e, 1};
            if (!before.is_any || order.better(before, found)) best = order(best, found);
        }
        best = before = together(team, best, order, shared);
        if (team.rank != 0) continue;
        // The axis along which they lie is the first of the stretch's.
        const int64_t axis = in.outer_axes;
        const Number value = stretch.element(best.position);
        if (in.results & 1) stretch.store(0, stretch.begin.result[0] + static_cast<int64_t>(k) * in.result[0].strides[axis], value);
        if (in.results & 2) {
            stretch.store(1, stretch.begin.result[1] + static_cast<int64_t>(k) * in.result[1].strides[axis], {0, best.position});
        }
    }
}

template <class Bases>
static __device__ __forceinline__ void run_stretches(const GroupInstruction& in, const Bases& bases, uint64_t* shared) {
    const Team team = team_of(in);
    for (uint32_t number = team.number; number < in.outer; number += team.count) {
        GroupPlaces begin = {};
        add_places(in, 0, in.outer_axes, number, begin);
        const Stretch<Bases> stretch(in, bases, begin);
        switch (in.op) {
            case OP_SOFTMAX:
            case OP_LOG_SOFTMAX: softmax_stretch(stretch, team, shared); break;
            case OP_STANDARDIZE:
            case OP_ROOT_MEAN_SQUARE: normalize_stretch(stretch, team, shared); break;
            case OP_SUM:
            case OP_MEAN: sum_stretch(stretch, team, shared); break;
            default: top_of_stretch(stretch, team, shared); break;
        }
    }
}
