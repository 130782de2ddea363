// Arguments of the kernels that see whole spans (`spans.cu`): the rows that a node of a cell reads, of which each node has as many as it has.
#pragma once
#include <stdint.h>

#define SPAN_OPERANDS 2
#define SPAN_RESULTS 2

// Results have a row for each row of the span, or k rows or one row for each node. Unless said otherwise elements are f32, and columns are computed apart.
#define SPAN_REPEAT 0u   // `width` bytes of the second operand, for each row of the first
#define SPAN_GATHER 1u   // `k` rows of `width` bytes, whose numbers (INT64) the second operand has; refused where the span has no such row
#define SPAN_SUM 2u
#define SPAN_MEAN 3u
#define SPAN_MAX 4u
#define SPAN_SOFTMAX 5u
#define SPAN_LOG_SOFTMAX 6u
#define SPAN_CUM_SUM 7u
#define SPAN_TOP 8u      // as OP_TOP of each column; refused where there are fewer than `k` rows
#define SPAN_MAT_MUL 9u  // each row times the node's matrix [width, columns]
#define SPAN_MIX 10u     // the sum over all rows of the products of each element with each of the second operand's row: [width, columns]
#define SPAN_COPY 11u    // rows of `width` bytes

// Beside FLAG_SMALLEST and FLAG_LAST, of SPAN_CUM_SUM.
#define FLAG_EXCLUSIVE 32u
#define FLAG_REVERSE 64u

// Rows at equal distances.
typedef struct SpanRun {
    uint64_t at;
    uint64_t stride;
    uint32_t rows;
    uint32_t padding;
} SpanRun;

// An operand of one node: one row if it is the node's own.
typedef struct SpanRows {
    uint64_t runs;  // SpanRun[..], of which none is empty
    uint64_t rows;  // in all of them
} SpanRows;

// One block for each node.
typedef struct SpanArguments {
    uint64_t operands[SPAN_OPERANDS];  // SpanRows[nodes]
    uint64_t results[SPAN_RESULTS];    // uint64_t[nodes]: where the first row goes; 0: nobody takes it
    uint64_t statuses;                 // RowStatus[nodes]; 0: nothing can be refused
    uint32_t strides[SPAN_RESULTS];    // bytes from row to row of a result
    uint32_t op;
    uint32_t flags;
    uint32_t width;  // elements of a row of the first operand
    uint32_t columns;
    uint32_t k;
    uint32_t padding;
} SpanArguments;

// What is done with scores by a mask: nothing; a number (f32) is added to each; or those count of which it is true (BOOL).
#define MASK_NONE 0u
#define MASK_FLOATS 1u
#define MASK_TRUTHS 2u

// Attention (ONNX, opset 23) with a running softmax. One block for each key head of each node; it has all queries of that head.
typedef struct AttentionArguments {
    uint64_t queries;     // SpanRows[nodes]: f32 [query_count, heads, depth]
    uint64_t keys;        // SpanRows[nodes]: f32 [key_heads, depth] each
    uint64_t values;      // SpanRows[nodes]: f32 [key_heads, size] each
    uint64_t masks;       // SpanRows[nodes]: [mask_heads, mask_queries] each, of which either is 1 or as many as there are
    uint64_t results;     // uint64_t[nodes]: f32 [query_count, heads, size]
    uint32_t query_count;
    uint32_t heads;
    uint32_t key_heads;
    uint32_t depth;
    uint32_t size;
    uint32_t mask;
    uint32_t mask_heads;
    uint32_t mask_queries;
    float scale;
    float softcap;  // 0: there is none
} AttentionArguments;

// What rows of a phase before the rest of a cell came to.
typedef struct SpanCheck {
    uint64_t statuses;  // RowStatus[..]
    uint64_t offsets;   // uint32_t[nodes + 1]: the first of each node; 0: each node has one
} SpanCheck;

// Refuses rows of a frame of which a phase was refused: for the first reason, in the order of phases and rows. One block for each node.
typedef struct SpanCheckArguments {
    uint64_t frame;
    uint64_t checks;  // SpanCheck[count]
    uint32_t stride;
    uint32_t count;
} SpanCheckArguments;
