// Arguments of products of which only the best few sums of each row are kept (`best.cu`): a projection of 30,000 columns leaves 469 candidates of a
// row for the best of them, and never its sums.
#pragma once
#include <stdint.h>
#include "abi.h"
#include "abi_group.h"
#include "abi_transfer.h"

// Most that are kept of a panel of 64 columns.
#define BEST_MOST 16

// One that may be among the best of its row.
typedef struct Candidate {
    uint32_t value;   // the sum's bits
    uint32_t column;  // NOWHERE: the panel has no more columns
} Candidate;

// As a product, and launched like it (`product_best_f32_16` and so on; by `WideArguments` `wide_best_bf16_64x64` and so on), with the same sums to the bit; `y` is for each row k candidates of the first
// panel, then of the second, and so on, the best of each first.
typedef struct ProductBestArguments {
    ProductArguments product;
    uint32_t k;      // 1 to BEST_MOST
    uint32_t flags;  // FLAG_SMALLEST, FLAG_LAST: the order is that of OP_TOP
} ProductBestArguments;

// What `wide_*` and `wide_best_*` take: the x of each term as a matrix of `k` columns, its first row the product's first; a term's own `x` and `x_stride` are not looked at.
// Those that keep all sums look at the product alone.
typedef struct WideArguments {
    TensorMap x[PRODUCT_TERMS];
    ProductBestArguments best;
} WideArguments;

// The best of all panels of a row, in order, as OP_TOP gives them. One block of 128 threads for each row; `k` is at most the number of columns.
typedef struct BestArguments {
    uint64_t candidates;  // Candidate[panels][k] of the first row
    uint64_t values;      // float[k] of the first row, or 0
    uint64_t positions;   // int64_t[k] of the first row, or 0
    uint32_t stride;      // bytes from row to row of all three
    uint32_t panels;
    uint32_t k;
    uint32_t flags;
    uint64_t rows_at;     // a word that says how many rows there are, at most as many as blocks; or 0
} BestArguments;
