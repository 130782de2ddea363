// Everything of a cell that is no matrix product: a block for each row of the batch walks a list of instructions over the row's values.
//
// Each instruction's work is divided among the block's threads by position alone, so that a row's bits do not depend on the batch it is in. It is
// plain on purpose: whatever a cell may say runs here; what is worth more has kernels of its own.
#include "group_stretches.cuh"

// ---- one element after the other ----

// The same for a space of one axis at most, which most are: what a loop needs of it stays in registers.
struct FlatPlaces {
    int32_t source[GROUP_SOURCES], result;

    __device__ explicit FlatPlaces(const GroupInstruction& in) {
        for (int s = 0; s < GROUP_SOURCES; s++) source[s] = in.axes ? in.source[s].strides[0] : 0;
        result = in.axes ? in.result[0].strides[0] : 0;
    }
    __device__ GroupPlaces operator()(uint32_t element) const {
        GroupPlaces at;
        for (int s = 0; s < GROUP_SOURCES; s++) at.source[s] = static_cast<int64_t>(element) * source[s];
        at.result[0] = static_cast<int64_t>(element) * result;
        return at;
    }
};
struct AnyPlaces {
    const GroupInstruction& in;

    __device__ GroupPlaces operator()(uint32_t element) const {
        GroupPlaces at = {};
        add_places(in, 0, in.axes, element, at);
        return at;
    }
};

template <class Places>
static __device__ void run_elements_at(const GroupInstruction& in, uint8_t* row, const Places& places) {
    const uint32_t op = in.op, count = in.outer * in.inner;
    const uint32_t type = in.source[0].type, target = in.result[0].type;
    uint8_t* const result = operand_base(in.result[0], row);
    const uint8_t* const first = operand_base(in.source[0], row);
    const uint8_t* const second = operand_base(in.source[1], row);
    const uint8_t* const third = operand_base(in.source[2], row);
    for (uint32_t element = threadIdx.x; element < count; element += blockDim.x) {
        const GroupPlaces at = places(element);
        const int64_t to = at.result[0];
        if (op == OP_COPY) {
            move_number(result, to, first, at.source[0], type_bytes(type));
        } else if (op == OP_WHERE) {
            const bool is_second = first[at.source[0]] != 0;
            move_number(result, to, is_second ? second : third, is_second ? at.source[1] : at.source[2], type_bytes(target));
        } else if (op == OP_CAST) {
            store_number(result, target, to, cast_number(load_number(first, type, at.source[0]), type, target));
        } else {
            const Number x = load_number(first, type, at.source[0]);
            const bool is_float = type == TYPE_F32;
            Number y;
            if (is_unary_op(op)) {
                y = is_float ? Number{unary_float(op, x.f), 0} : Number{0, unary_integer(op, x.i)};
            } else {
                const Number z = load_number(second, type, at.source[1]);
                y = is_float ? binary_float(op, x.f, z.f) : Number{0, binary_integer(op, x.i, z.i)};
            }
            store_number(result, target, to, y);
        }
    }
}

static __device__ __forceinline__ void run_elements(const GroupInstruction& in, uint8_t* row) {
    if (in.axes <= 1) {
        run_elements_at(in, row, FlatPlaces(in));
    } else {
        run_elements_at(in, row, AnyPlaces{in});
    }
}

// ---- tables ----

static __device__ void run_lookup(const GroupInstruction& in, uint8_t* row, uint32_t* first_bad) {
    const SaidBases bases = {in, row};
    check_indices(in, bases, row, first_bad);
    const uint32_t bytes = type_bytes(in.result[0].type), count = in.outer * in.inner;
    for (uint32_t element = threadIdx.x; element < count; element += blockDim.x) {
        GroupPlaces at = {};
        add_places(in, 0, in.axes, element, at);
        const int64_t found = table_row(load_number(bases.source(0), in.source[0].type, at.source[0]).i, static_cast<int64_t>(in.table_rows));
        move_number(bases.result(0), at.result[0], bases.source(1), (found < 0 ? 0 : found) * in.k + at.source[1], bytes);
    }
}

extern "C" __global__ void __launch_bounds__(256) group(const __grid_constant__ GroupArguments a) {
    if (is_beyond(a.rows_at, blockIdx.x)) return;
    begin_launch();
    SHARED(uint64_t, shared, 16);
    SHARED(uint32_t, first_bad, 4);
    uint8_t* const row = reinterpret_cast<uint8_t*>(a.frame) + static_cast<uint64_t>(blockIdx.x) * a.stride;
    const GroupInstruction* const instructions = reinterpret_cast<const GroupInstruction*>(a.instructions);
    for (uint32_t number = 0; number < a.count; number++) {
        const GroupInstruction& in = instructions[number];
        if (in.flags & FLAG_BARRIER) __syncthreads();
        if (in.op == OP_LOOKUP) {
            run_lookup(in, row, first_bad);
        } else if (in.op >= OP_SOFTMAX) {
            run_stretches(in, SaidBases{in, row}, shared);
        } else {
            run_elements(in, row);
        }
    }
}
KERNEL(group, GroupArguments)
