// Tables that are looked up by an index of a row.
#pragma once
#include "abi_transfer.h"
#include "kernel.cuh"

// Which row of a table an index means; -1: none.
static __device__ __forceinline__ int64_t table_row(int64_t index, int64_t rows) {
    // No sum overflows: a negative index plus a count of rows lies between both.
    const int64_t row = index < 0 ? index + rows : index;
    return row >= 0 && row < rows ? row : -1;
}

// Notes that an index of a row of a frame is in no table; the first one is kept.
static __device__ void refuse_row(uint8_t* row, int64_t index, uint64_t table_rows) {
    RowRecord* const record = reinterpret_cast<RowRecord*>(row);
    if (record->refused) return;
    record->index = index;
    record->table_rows = table_rows;
    record->refused = REFUSED_INDEX;
}
