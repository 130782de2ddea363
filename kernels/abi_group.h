// Arguments and instructions of the kernel `group` (`group.cu`), which computes everything of a cell that is no matrix product.
//
// An instruction walks an index space of up to GROUP_AXES axes, last axis fastest. Each of its operands says where its element for an index lies:
// `at`, and for each axis how many elements further the next index is. Broadcasting is a stride of 0, a slice an offset and a stride that may be
// negative, a concatenation a result that is written in parts.
#pragma once
#include <stdint.h>

#define GROUP_AXES 8
#define GROUP_SOURCES 3
#define GROUP_RESULTS 2

// Element types.
#define TYPE_F32 0u
#define TYPE_I64 1u
#define TYPE_I32 2u
#define TYPE_U8 3u
#define TYPE_BOOL 4u
// Of 16 bits: what floats are cast to for products, to the nearest, ties to even. No operation reads them.
#define TYPE_BF16 5u
#define TYPE_F16 6u

// One element after the other: the result's element is of the sources' elements at the same index.
#define OP_COPY 0u
#define OP_CAST 1u
#define OP_NEG 2u
#define OP_SIGMOID 3u
#define OP_TANH 4u
#define OP_RELU 5u
#define OP_GELU 6u
#define OP_GELU_TANH 7u
#define OP_SILU 8u
#define OP_EXP 9u
#define OP_LOG 10u
#define OP_SQRT 11u
#define OP_NOT 12u
#define OP_ADD 13u
#define OP_SUB 14u
#define OP_MUL 15u
#define OP_DIV 16u
#define OP_POW 17u
#define OP_EQUAL 18u
#define OP_GREATER 19u
#define OP_LESS 20u
#define OP_AND 21u
#define OP_OR 22u
#define OP_WHERE 23u
// Sources: an index, and a table of `table_rows` rows of `k` elements, whose strides are those within a row. The first `outer_axes` axes are the
// index's. A row with an index outside −table_rows..table_rows is refused; it reads row 0.
#define OP_LOOKUP 24u
// Of stretches: the first `outer_axes` axes say which stretch, the others walk it.
#define OP_SOFTMAX 32u
#define OP_LOG_SOFTMAX 33u
// Results are multiplied by the second source and increased by the third, where there are such.
#define OP_STANDARDIZE 34u
#define OP_ROOT_MEAN_SQUARE 35u
#define OP_SUM 36u
#define OP_MEAN 37u
// The `k` largest (or smallest) of each stretch, in order: themselves into the first result, their positions (INT64) into the second; either may be
// missing. Both zeros are equal and NaN is the largest; of equal ones the first comes first, or the last.
#define OP_TOP 38u

// Wait until all threads have done what is before.
#define FLAG_BARRIER 1u
// Of OP_TOP: the smallest; of equal ones the last.
#define FLAG_SMALLEST 2u
#define FLAG_LAST 4u
// Who walks a stretch: a thread, a warp or the block. It says in which order a sum is taken, so it depends on the cell alone.
#define FLAG_BY_WARP 8u
#define FLAG_BY_BLOCK 16u

typedef struct GroupOperand {
    uint64_t at;                 // bytes into the row of the frame, or an address
    int32_t strides[GROUP_AXES];  // in elements
    uint32_t type;
    uint32_t is_address;
} GroupOperand;

typedef struct GroupInstruction {
    uint32_t op;
    uint32_t flags;
    uint32_t axes;
    uint32_t outer_axes;
    uint32_t extents[GROUP_AXES];
    uint32_t outer;  // indices of the first `outer_axes` axes
    uint32_t inner;  // and of the others, for each of those
    uint32_t sources;
    uint32_t results;  // bit r: there is result r
    uint32_t k;
    float epsilon;
    uint64_t table_rows;
    GroupOperand source[GROUP_SOURCES];
    GroupOperand result[GROUP_RESULTS];
} GroupInstruction;

// One block for each row.
typedef struct GroupArguments {
    uint64_t frame;
    uint64_t instructions;  // GroupInstruction[count]
    uint32_t stride;        // bytes from row to row of the frame
    uint32_t count;
    uint64_t rows_at;       // a word that says how many rows there are, at most as many as blocks; or 0
} GroupArguments;

// The same for a kernel that was generated of one group: it knows its instructions, and asks only where things lie. One block for each row.
typedef struct CompiledGroupArguments {
    uint64_t frame;
    uint64_t blobs;  // uint64_t of each blob that the group reads: its address
    uint32_t stride;
    uint32_t padding;
    uint64_t rows_at;  // as above
} CompiledGroupArguments;
