// The arguments of every kernel: the contract between the kernels and the host, which mirrors it (`host/backend-cuda/src/abi.rs`).
//
// Plain C with fixed widths. An address on the device is a uint64_t; padding is written out, so that both sides agree without knowing each
// other's compiler. Every struct's size is a multiple of 8. The host's test compares sizes and offsets through the emulation.
#pragma once
#include <stdint.h>

// Most terms in one product; longer sums are several products (`cell_graph::sums::TERMS`).
#define PRODUCT_TERMS 8

// One term x·W of a product. W lies packed (see below), x as f32 rows; of `wide_*`, which find it otherwise (`WideArguments`), as rows that are rounded to the format
// that is multiplied.
typedef struct ProductTerm {
    uint64_t x;         // rows, aligned to 16 bytes
    uint64_t weights;   // packed by the rule below, aligned to 16 bytes
    uint32_t x_stride;  // bytes from one row of x to the next, a multiple of 16
    uint32_t k;         // columns of x that take part, at least 1; what lies beyond them in a row is never read
} ProductTerm;

// y = (begin row, or bias, or 0) + x_0·W_0 + x_1·W_1 + …, in f32.
//
// Each element of y is summed in one order at every number of rows and with every kernel of the same arithmetic: what it begins with, then
// the terms as listed, k ascending in each (in bf16 and f16 by slabs of 32, of `wide_*` by 16, in tf32 by slabs of 16, within which the order is fixed
// too). y may lie where `begin` lies; it must not overlap any x.
//
// How the host packs W (k × n, row-major, W[k][n]) for one term, in panels of 64 columns, one panel after another. What is beyond k or n in
// the last ones is zeros. `kernels/tests/packing.h` is this rule as code.
//
//   f32   k is padded to K, a multiple of 16. A panel is its rows k = 0, 1, … one after another, 64 floats each: W[k][n] is float
//         ((n / 64) * K + k) * 64 + n % 64.
//   tf32  k is padded to K, a multiple of 16. A panel is slabs of 16 rows of W, k ascending; a slab is its 64 columns one after another,
//         16 floats each, k ascending, rounded to tf32 (to the nearest, ties away from zero, the 13 lowest bits zeros, a NaN 0x7fffe000):
//         W[k][n] is float ((n / 64) * (K / 16) + k / 16) * 1024 + (n % 64) * 16 + k % 16.
//   bf16  k is padded to K, a multiple of 32. A panel is slabs of 32 rows of W, k ascending; a slab is its 64 columns one after another,
//         32 bf16 each, k ascending: W[k][n] is bf16 ((n / 64) * (K / 32) + k / 32) * 2048 + (n % 64) * 32 + k % 32.
//   f16   as bf16, with the halves of IEEE 754: 10 bits behind the point, to the nearest, ties to even, subnormal ones kept.
//   wide_bf16, wide_f16
//         k is padded to K, a multiple of 64. A panel is slabs of 64 rows of W, k ascending, 8192 bytes each; a slab is its 64 columns one after
//         another, each of 64 numbers in 8 chunks of 8; chunk c of column j lies at place c ^ (j & 7). W[k][n] is number
//         ((n / 64) * (K / 64) + k / 64) * 4096 + (n % 64) * 64 + ((((k % 64) >> 3) ^ (n & 7)) << 3) + k % 8.
//
// A factor of the term (the alpha of ONNX Gemm) is multiplied into W before packing.
//
// The kernels, all of 128 threads, on a grid of (n / 64 rounded up, rows / tile rounded up, 1) blocks:
//
//   kernel            tile   dynamic shared memory in bytes
//   product_f32_16      16   PRODUCT_F32_SHARED(16)
//   product_f32_64      64   PRODUCT_F32_SHARED(64)
//   product_f32_128    128   PRODUCT_F32_SHARED(128)
//   product_tf32_16     16   PRODUCT_F32_SHARED(16)
//   product_tf32_64     64   PRODUCT_F32_SHARED(64)
//   product_tf32_128   128   PRODUCT_F32_SHARED(128)
//   product_bf16_16     16   PRODUCT_HALVES_SHARED(16)
//   product_bf16_64     64   PRODUCT_HALVES_SHARED(64)
//   product_bf16_128   128   PRODUCT_HALVES_SHARED(128)
//   product_f16_16      16   PRODUCT_HALVES_SHARED(16)
//   product_f16_64      64   PRODUCT_HALVES_SHARED(64)
//   product_f16_128    128   PRODUCT_HALVES_SHARED(128)
//
// And on sm_90a, of `WideArguments` (`abi_best.h`), on a grid of any number of blocks, which have the tiles by turns; as many as run at once are enough. In f16 they are wide_f16_64x64
// and so on. Of `begin` and `bias` n is rounded up to an even number, both aligned to 8 bytes; what lies beyond n becomes nothing.
//
//   kernel               rows by columns   threads   dynamic shared memory
//   wide_bf16_64x64         64 by  64        256      12 * (64 + 64) * 128
//   wide_bf16_128x64       128 by  64        384       8 * (128 + 64) * 128
//   wide_bf16_128x128      128 by 128        384       6 * (128 + 128) * 128
//   wide_bf16_128x256      128 by 256        384       4 * (128 + 256) * 128
//   wide_bf16_turns_128x128  as _128x128, whose two warpgroups have tiles by turns
#define PRODUCT_STAGES 4
#define PRODUCT_F32_SHARED(tile) (PRODUCT_STAGES * ((tile)*64 + 4096))
#define PRODUCT_HALVES_SHARED(tile) (PRODUCT_STAGES * ((tile)*128 + 4096))
typedef struct ProductArguments {
    ProductTerm terms[PRODUCT_TERMS];
    uint64_t begin;         // f32 rows of n that the sums begin with, or 0; aligned to 16 bytes
    uint64_t bias;          // f32[n] that the sums begin with if there is no `begin`, or 0; not padded
    uint64_t y;             // f32 rows of n, aligned to 16 bytes; what lies beyond n in a row is not written
    uint64_t rows_at;       // a word that says how many of `rows` there are: tiles beyond are not computed, rows beyond in a tile may be; or 0
    uint32_t begin_stride;  // bytes from row to row, multiples of 16
    uint32_t y_stride;
    uint32_t term_count;    // 1 to PRODUCT_TERMS
    uint32_t rows;
    uint32_t n;
    uint32_t padding;
} ProductArguments;

// A matrix on the device, of rows of 16 bits, of which kernels of sm_90a copy boxes of 64 rows by 64 columns, swizzled as their products read them. What it
// says is the driver's (`Driver::tensor_map`). What of a box lies beyond the matrix is zeros. A struct that has one is aligned as it is, and so padded to 128 bytes.
#define TENSOR_BOX 64
#define TENSOR_BOX_BYTES (TENSOR_BOX * 128)
typedef struct TensorMap {
    uint64_t words[16];
} __attribute__((aligned(128))) TensorMap;

// One step of an LSTM or a GRU for a batch of rows. Their x and h are rows of two matrices of 16 bits, one behind the other; everything else is lists on the
// device, of one address for each row. An address of 0 reads as zeros where it is read, and nothing is left where it is written; a padding row has 0 in every
// list, and anything in the matrices. h_next and h_out are of 16 bits, c, begin and h_exact f32, all aligned to 16 bytes. No row of a
// matrix that is one of a step's is written in it; those beside them may be, of which nobody looks at what comes. c may be where it was. A GRU's c is its state before it is rounded to h.
typedef struct LstmRows {
    uint64_t h_next;    // where h goes for the step that comes next, a row of that matrix; or 0 for the list: nowhere
    uint64_t c;         // cells of `units` values
    uint64_t begin;     // what is known of the gates before the step, at the arguments' `columns`; 0 for a row, or for the list: nothing
    uint64_t h_out;     // where h goes beside, for whoever multiplies it in the cell; or 0 for the list: nowhere
    uint64_t c_out;     // where c goes
    uint64_t h_exact;   // where h goes as f32, before it is rounded; or 0 for the list: nowhere; not of a GRU
    uint32_t first;     // which row of the matrices is the first one's
    uint32_t rows;      // how many rows
    uint32_t sequence;  // what the host is told when a queue's step is done
    uint32_t padding;
} LstmRows;

// lstm_*:  i, f, g, o = x·W + h·U + begin;  c_out = σ(f)·c + σ(i)·tanh(g);  h_out = σ(o)·tanh(c_out).  Where nothing is known, begin is the bias.
// gru_*:   r, z = h·U + (begin + bias);  n = tanh(begin + σ(r)·(h·U + bias));  c_out = (1 − σ(z))·n + σ(z)·c;  h_out = c_out.  It has no inputs.
//          With `z_takes`, c_out = σ(z)·n + (1 − σ(z))·c.
// On sm_90a, in bf16 with f32 sums: rows of x and h and the weights are of it. Those whose names begin with lstm_f16_ and gru_f16_, and tree_f16_ below, are the same
// in f16, with the same tiles.
//
// The weights are packed for all tiles alike. The columns of W and U are taken in groups of 8 units: those of their first gate, then those of the
// second, and so on, G · 8 columns for G gates. There are `units` / 8 groups, padded with zeros to a multiple of 8. The rows are those of W padded to a
// multiple of 64 with zeros, then those of U likewise. A group is slabs of 64 rows, in order, G * 1024 bytes each; in a slab column after column, each of
// 64 numbers in 8 chunks of 8; chunk c of column j lies at place c ^ (j & 7). With S slabs in all, row k of the padded rows and column j of group g is number
//     (g * S + k / 64) * G * 512 + j * 64 + ((((k % 64) >> 3) ^ (j & 7)) << 3) + k % 8.
//
//   kernel        rows by units   threads   dynamic shared memory
//   *_step_64x8       64 by  8       256      16 * (64 + G * 8) * 128
//   *_step_64x16      64 by 16       256      12 * (64 + G * 16) * 128
//   *_step_64x32      64 by 32       256       8 * (64 + G * 32) * 128
//   *_step_128x32    128 by 32       384       6 * (128 + G * 32) * 128
//
// on a grid of (units / the tile's, rounded up) · (rows / the tile's, rounded up) blocks. All of a cell compute the same bits. So does *_turns_128x32, of an LSTM or
// a GRU, as *_step_128x32 but for its grid: any number of blocks, which have the tiles by turns; as many as run at once are enough.
typedef struct LstmStepArguments {
    TensorMap x;  // of `inputs` columns; not looked at if there are none
    TensorMap h;  // of `units` columns
    LstmRows rows;
    uint64_t weights;
    uint64_t bias;        // f32, laid out like a row of begin; or 0
    uint32_t inputs;      // a multiple of 8; may be 0
    uint32_t units;       // a multiple of 8
    uint32_t columns[4];  // where in a row of begin, and in the bias, the `units` values of each gate begin: even numbers
    uint64_t rows_at;     // a word that says how many rows there are, at most those of `rows`: those beyond are padding; or 0; or see `number`
    uint32_t z_takes;     // of a GRU: whether z says how much is taken of n, not how much is kept of c
    uint32_t number;      // not 0: `rows` is not looked at, and what lies at `rows_at` is a BatchHead whose `steps` has them, of the step of this number, from 1
    uint32_t padding[2];
} LstmStepArguments;

// A node of a binary tree, of two children: tree_step_64x8, _64x16, _64x32 (6 slabs, not 8) and _128x32 (5, not 6), as above with G = 5.
//
// i, f_left, f_right, o, u = h_left·W + h_right·U + begin;  c_out = σ(i)·tanh(u) + σ(f_left)·c_left + σ(f_right)·c_right;  h = σ(o)·tanh(c_out).
// Where nothing is known, begin is the bias. Both matrices are of `units` columns; the rows' `c` is the left child's; h is left as `h_exact` alone.
typedef struct TreeStepArguments {
    TensorMap left;
    TensorMap right;
    LstmRows rows;
    uint64_t c_right;  // like `c`, of the right child
    uint64_t weights;
    uint64_t bias;
    uint32_t units;
    uint32_t padding;
    uint32_t columns[6];  // of five gates
    uint64_t rows_at;     // as above
} TreeStepArguments;

// The same, step after step, in one launch of blocks that are all resident at once (a cooperative launch). Lists, x and begin of a step are read before
// the step before it is done: nothing that they name may be written by the launch.
//
//   *_queue_64x32, *_queue_128x32      threads and shared memory as *_step_*; any number of blocks
//   *_resident_64x8                    256 threads, 65536 + S * G * 1024 bytes: the weights stay in shared memory
//   *_resident_64x16                   256 threads, 65536 + S * G * 2048 bytes; both: a multiple of (units / 8 or 16, rounded up) blocks
typedef struct LstmQueueArguments {
    TensorMap x;       // as of a step
    TensorMap h;
    uint64_t steps;    // LstmRows of each step
    uint64_t counter;  // a word that is 0
    uint64_t signal;   // a word of 32 bits that the host sees, which becomes each finished step's `sequence`; or 0
    uint64_t weights;
    uint64_t bias;
    uint32_t step_count;
    uint32_t inputs;
    uint32_t units;
    uint32_t z_takes;     // as of a step
    uint32_t columns[4];  // likewise
    uint32_t padding[14];
} LstmQueueArguments;

// Makes the lists of steps whose rows lie in a frame (`abi_transfer.h`), one block for each row, behind whatever computes `begin` and before the
// first step: lstm_rows, on devices that have the steps.
//
// With a table, what is known of a row's sums is not in the row: it is the table's row that its token means, counted from the end if it is negative.
// A row whose token means none is refused, as a lookup refuses it; it reads row 0.
//
// A GRU's c is where its h is, before as after a step: `c` is `h`, with room for `units`, and `c_out` is `h_exact`.
//
// A row whose entry names the row of the step before takes its c from there, and that one leaves its h here, rounded. Any other row takes those that were
// gathered: h rounded, and both padded with zeros to `units`. A row is not live if a step before it is not, or was refused: nobody wants what it leaves.
typedef struct LstmListArguments {
    uint64_t frame;
    uint64_t entries;  // RowEntry[rows]; or 0: every row has what was gathered
    uint64_t lists;    // uint64_t[6][rows]: h_next, c, begin, h_out, c_out, h_exact
    uint64_t counter;  // a word that becomes 0, for a queue
    uint64_t table;    // or 0
    uint64_t table_rows;
    uint32_t table_stride;  // bytes from row to row, a multiple of 16
    uint32_t token;         // place in a row: an integer
    uint32_t token_bytes;   // of 8 bytes, or of 4
    uint32_t is_f16;        // h is rounded to f16, else to bf16
    uint32_t stride;   // bytes from row to row of the frame
    uint32_t own;      // values of h and c that the cell has
    uint32_t units;    // a multiple of 8
    uint32_t h;        // places in a row, of f32: h as gathered,
    uint32_t c;        // c as gathered, with room for `units`,
    uint32_t begin;    // what is known of the sums, or NOWHERE: the bias,
    uint32_t h_exact;  // h as it becomes, with room for `units`,
    uint32_t c_out;    // c likewise;
    uint32_t h_from;   // and rounded, with room for `units`: h before the step,
    uint32_t h_out;    // h as it becomes, or NOWHERE: nobody multiplies it in the cell
    uint64_t head;     // a BatchHead that says what the entries are and how many rows there are: those beyond are padding; or 0
} LstmListArguments;

// The same of a tree, whose rows have no step before: tree_rows.
typedef struct TreeListArguments {
    uint64_t frame;
    uint64_t lists;      // uint64_t[5][rows]: the children's c, begin, c_out, h_exact
    uint32_t stride;     // bytes from row to row of the frame
    uint32_t own;        // values of h and c that the cell has
    uint32_t units;      // a multiple of 8
    uint32_t begin;      // places in a row: what is known of the sums, or NOWHERE: the bias,
    uint32_t h[2];       // h as gathered, of the left child and of the right one,
    uint32_t c[2];       // c as gathered, with room for `units`,
    uint32_t h_from[2];  // h rounded, with room for `units`,
    uint32_t h_exact;    // h as it becomes, with room for `units`,
    uint32_t c_out;      // and c likewise
    uint32_t is_f16;     // as of LstmListArguments
    uint32_t padding;
    uint64_t head;       // as of LstmListArguments
} TreeListArguments;

// Fills words with a value: what the emulation's first test and a driver's self-test launch.
typedef struct FillArguments {
    uint64_t words;
    uint64_t count;
    uint32_t value;
    uint32_t padding;
} FillArguments;
