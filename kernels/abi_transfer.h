// Arguments of the kernels that move rows between a task and a frame (`transfer.cu`).
//
// A frame is one row of working memory for each row of a batch. Every frame row begins with a RowRecord; behind it lie the cell's values at places
// that are the same in every row, aligned to 16 bytes. What depends on the cell alone (Port, Outlet) is uploaded when it is loaded; what depends on
// the task (RowEntry, addresses, deliveries) with the task.
#pragma once
#include <stdint.h>

// No place, no word, no delivery.
#define NOWHERE 0xffffffffu

// An address with this bit is that of a row in pieces: of a list that says how many they are, and where each is (0: zeros). All have as many bytes.
#define PIECES_BIT 63u

// What becomes of a row, as its RowStatus says it.
#define ROW_SKIPPED 0u  // its chain ended before: it was computed on zeros and left nothing
#define ROW_RAN 1u
#define ROW_STOPPED 2u  // it ran, and its chain's stop was true
#define ROW_REFUSED 3u

// Why a row was refused; the first reason is kept. Beside it lie an index, and how many rows there are.
#define REFUSED_INDEX 1u       // the table has no row of that index
#define REFUSED_SPAN_INDEX 2u  // the span has no row of that index
#define REFUSED_TOO_FEW 3u     // the span has fewer rows than the index says

// The beginning of a row of a frame.
typedef struct RowRecord {
    uint32_t live;        // whether anybody wants what it leaves; written by `gather` or `lstm_gather`, and cleared by `lstm_rows`
    uint32_t refused;     // REFUSED_..., or 0
    int64_t index;
    uint64_t table_rows;
    uint64_t padding;
} RowRecord;

// One row of a batch: whose step it is. A batch may hold several steps of a lane, earlier ones first.
typedef struct RowEntry {
    uint64_t node;      // where its outputs are held, or 0
    uint32_t own;       // the word that says how many steps its chain executes, or NOWHERE: all that come, whatever becomes of one
    uint32_t followed;  // the same of the chain whose length it has, or again its own
    uint32_t step;
    uint32_t stop;      // where in the row the BOOL lies that ends the chain, or NOWHERE
    uint32_t before;    // where several steps are one batch: the row of the step before of the same lane, or NOWHERE,
    uint32_t later;     // the next one whose outputs are held where this one's would be, or NOWHERE;
    uint32_t after;     // and the row of the step after of the same lane, or NOWHERE
    uint32_t padding;
} RowEntry;

// An input of the cell in a row of the frame.
typedef struct Port {
    uint32_t place;
    uint32_t bytes;
} Port;

// An output of the cell in a row of the frame, and in a node.
typedef struct Outlet {
    uint32_t place;
    uint32_t bytes;
    uint32_t node_offset;
    uint32_t padding;
} Outlet;

// What is told of a row.
typedef struct RowStatus {
    uint32_t status;
    uint32_t why;  // REFUSED_..., if it was
    int64_t index;
    uint64_t table_rows;
} RowStatus;

// What differs from batch to batch: how many rows it has and where its lists lie. It comes with a launch's arguments; or, where those never change (a
// graph's), it lies on the device, where it is copied before the graph is launched. Kernels that want to know only how many rows there are
// (`rows_at`) are given its address too.
typedef struct BatchHead {
    uint32_t rows;
    uint32_t padding;
    uint64_t addresses;   // uint64_t[rows][port_count]; 0: zeros; with PIECES_BIT: uint64_t[1 + pieces]
    uint64_t entries;     // RowEntry[rows]
    uint64_t executed;    // uint32_t, by word
    uint64_t deliveries;  // uint32_t[rows][outlet_count]: offset from `delivered`, or NOWHERE; 0: nothing is delivered
    uint64_t delivered;
    uint64_t statuses;  // RowStatus[rows]
    uint64_t steps;     // LstmRows of each step, for kernels of one step that are told its number (`abi.h`); or 0
} BatchHead;

// Fills the inputs of every row from the addresses of its ports, and says which rows are live. One block for each row; more leave at once.
typedef struct GatherArguments {
    uint64_t frame;
    uint64_t ports;     // Port[port_count]
    uint64_t head;      // where the batch's head lies; 0: it is `own`
    uint32_t stride;    // bytes from row to row of the frame
    uint32_t port_count;
    BatchHead own;
} GatherArguments;

// Leaves the outputs of live rows in their nodes and among what is delivered, says what became of every row, and notes where chains end. One
// block for each row; more leave at once.
typedef struct FinishArguments {
    uint64_t frame;
    uint64_t outlets;  // Outlet[outlet_count]
    uint64_t head;     // as of GatherArguments
    uint32_t stride;
    uint32_t outlet_count;
    uint32_t is_left;  // whether outputs are where they are held already: only what is delivered is copied
    uint32_t padding;
    BatchHead own;
} FinishArguments;

// A word and what it becomes.
typedef struct WordEntry {
    uint32_t word;
    uint32_t value;
} WordEntry;

// Begins words anew, for chains that a task brings.
typedef struct WordsArguments {
    uint64_t entries;  // WordEntry[count]
    uint64_t words;
    uint32_t count;
    uint32_t padding;
} WordsArguments;

// Gathers rows of an LSTM of which nothing else is computed, and makes their lists: lstm_gather, in place of `gather` and `lstm_rows` (`abi.h`), whose
// lists it makes. What the step reads and leaves does not pass through the frame: c is read where it is, c and h are left where they are held (in the
// frame if they are held nowhere). The frame has the rows' records, and h rounded as the step reads it.
typedef struct LstmGatherArguments {
    uint64_t frame;
    uint64_t head;  // as of GatherArguments; the entries are the head's
    uint64_t lists;
    uint64_t counter;
    uint64_t table;  // as of LstmListArguments, but that the token comes by its port
    uint64_t table_rows;
    uint32_t table_stride;
    uint32_t token_bytes;
    uint32_t port_count;
    uint32_t token_port;
    uint32_t h_port;  // f32 rows of `units`, aligned to 16 bytes
    uint32_t c_port;
    uint32_t h_node;  // where in a node h and c are left
    uint32_t c_node;
    uint32_t stride;
    uint32_t units;  // a multiple of 8
    uint32_t is_f16;
    uint32_t h_exact;  // places in a row of the frame, as of LstmListArguments
    uint32_t c_out;
    uint32_t h_from;
    BatchHead own;
} LstmGatherArguments;
