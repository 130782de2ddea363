// What sees whole spans, for one node after the other: everything else of a cell with ragged inputs is computed row by row, by the other kernels.
//
// The order of every sum depends on the cell and on how many rows the span has. So a node's bits depend neither on its batch nor on where rows lie.
#include "abi_spans.h"
#include "group_stretches.cuh"
#include "heads.cuh"

// Rows that are summed before they are added to others: the error of a long sum grows with the number of blocks.
#define SPAN_BLOCK 64u

static __device__ __forceinline__ const uint8_t* span_row(const SpanRows& span, uint32_t row) {
    const SpanRun* run = reinterpret_cast<const SpanRun*>(span.runs);
    while (row >= run->rows) row -= run++->rows;
    return reinterpret_cast<const uint8_t*>(run->at) + run->stride * row;
}
static __device__ __forceinline__ const float* floats_of(const SpanRows& span, uint32_t row) {
    return reinterpret_cast<const float*>(span_row(span, row));
}

// The larger one; NaN is larger than all.
struct LargerOrNan {
    __device__ float operator()(float a, float b) const { return a != a || a > b ? a : b; }
};

template <class Of>
static __device__ __forceinline__ float sum_of_rows(const Team& team, uint32_t rows, const Of& of) {
    float sum = 0.0f;
    for (uint32_t row = team.rank; row < rows;) {
        float block = 0.0f;
        for (uint32_t n = 0; n < SPAN_BLOCK && row < rows; n++, row += team.size) block += of(row);
        sum += block;
    }
    return together(team, sum, AddFloats{}, nullptr);
}

template <class Of>
static __device__ __forceinline__ float largest_of_rows(const Team& team, uint32_t rows, const Of& of) {
    float most = -INFINITY;
    for (uint32_t row = team.rank; row < rows; row += team.size) most = LargerOrNan{}(of(row), most);
    return together(team, most, LargerOrNan{}, nullptr);
}

// One node's operands and results.
struct SpanNode {
    const SpanArguments& a;
    SpanRows x, y;
    uint8_t* results[SPAN_RESULTS];

    __device__ __forceinline__ float* floats(uint32_t row) const { return reinterpret_cast<float*>(results[0] + static_cast<uint64_t>(row) * a.strides[0]); }
};

static __device__ __forceinline__ void reduce_column(const SpanNode& node, const Team& team, uint32_t column) {
    const SpanArguments& a = node.a;
    const uint32_t rows = static_cast<uint32_t>(node.x.rows);
    const auto x = [&](uint32_t row) { return floats_of(node.x, row)[column]; };
    if (a.op == SPAN_SUM || a.op == SPAN_MEAN) {
        const float sum = sum_of_rows(team, rows, x);
        if (team.rank == 0) node.floats(0)[column] = a.op == SPAN_MEAN ? sum / static_cast<float>(rows) : sum;
        return;
    }
    const float most = largest_of_rows(team, rows, x);
    if (a.op == SPAN_MAX) {
        if (team.rank == 0) node.floats(0)[column] = most;
        return;
    }
    const float sum = sum_of_rows(team, rows, [&](uint32_t row) { return expf(x(row) - most); });
    const float log = logf(sum);
    for (uint32_t row = team.rank; row < rows; row += team.size) {
        const float above = x(row) - most;
        node.floats(row)[column] = a.op == SPAN_SOFTMAX ? expf(above) / sum : above - log;
    }
}

static __device__ __forceinline__ void add_up_column(const SpanNode& node, uint32_t column) {
    const uint32_t rows = static_cast<uint32_t>(node.x.rows);
    float sum = 0.0f;
    for (uint32_t number = 0; number < rows; number++) {
        const uint32_t row = node.a.flags & FLAG_REVERSE ? rows - 1 - number : number;
        const float before = sum;
        sum += floats_of(node.x, row)[column];
        node.floats(row)[column] = node.a.flags & FLAG_EXCLUSIVE ? before : sum;
    }
}

static __device__ __forceinline__ void top_of_column(const SpanNode& node, const Team& team, uint32_t column) {
    const SpanArguments& a = node.a;
    const uint32_t rows = static_cast<uint32_t>(node.x.rows);
    const bool is_smallest = (a.flags & FLAG_SMALLEST) != 0;
    const BetterRanked order = {(a.flags & FLAG_LAST) != 0};
    Ranked before = {0, 0, 0};
    // One pass for each: the best of those that come after the one before.
    for (uint32_t k = 0; k < a.k; k++) {
        Ranked best = {0, 0, 0};
        for (uint32_t row = team.rank; row < rows; row += team.size) {
            const int64_t key = order_key({floats_of(node.x, row)[column], 0}, TYPE_F32);
            const Ranked found = {is_smallest ? ~key : key, row, 1};
            if (!before.is_any || order.better(before, found)) best = order(best, found);
        }
        best = before = together(team, best, order, nullptr);
        if (team.rank != 0) continue;
        if (node.results[0]) node.floats(0)[k * a.width + column] = floats_of(node.x, best.position)[column];
        if (node.results[1]) reinterpret_cast<int64_t*>(node.results[1])[k * a.width + column] = best.position;
    }
}

// Each row times the node's matrix: a thread for each sum, or a warp where each row has but one.
static __device__ __forceinline__ void multiply_rows(const SpanNode& node) {
    const uint32_t width = node.a.width, columns = node.a.columns, rows = static_cast<uint32_t>(node.x.rows);
    const float* const matrix = floats_of(node.y, 0);
    if (columns == 1) {
        for (uint32_t row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
            const float* const x = floats_of(node.x, row);
            float sum = 0.0f;
            for (uint32_t at = threadIdx.x % 32; at < width; at += 32) sum = fmaf(x[at], matrix[at], sum);
            for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_value(sum, mask);
            if (threadIdx.x % 32 == 0) node.floats(row)[0] = sum;
        }
        return;
    }
    for (uint64_t number = threadIdx.x; number < static_cast<uint64_t>(rows) * columns; number += blockDim.x) {
        const uint32_t row = static_cast<uint32_t>(number / columns), column = static_cast<uint32_t>(number % columns);
        const float* const x = floats_of(node.x, row);
        float sum = 0.0f;
        for (uint32_t at = 0; at < width; at++) sum = fmaf(x[at], matrix[at * columns + column], sum);
        node.floats(row)[column] = sum;
    }
}

static __device__ __forceinline__ void mix_rows(const SpanNode& node) {
    const uint32_t columns = node.a.columns, rows = static_cast<uint32_t>(node.x.rows);
    for (uint32_t number = threadIdx.x; number < node.a.width * columns; number += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t row = 0; row < rows; row++) {
            sum = fmaf(floats_of(node.x, row)[number / columns], floats_of(node.y, row)[number % columns], sum);
        }
        node.floats(0)[number] = sum;
    }
}

// Copies rows by their numbers; what became of it.
static __device__ __forceinline__ RowStatus gather_rows(const SpanNode& node) {
    const int64_t* const numbers = reinterpret_cast<const int64_t*>(span_row(node.y, 0));
    for (uint32_t at = 0; at < node.a.k; at++) {
        const int64_t row = table_row(numbers[at], static_cast<int64_t>(node.x.rows));
        if (row < 0) return RowStatus{ROW_REFUSED, REFUSED_SPAN_INDEX, numbers[at], node.x.rows};
        copy_row(node.results[0] + static_cast<uint64_t>(at) * node.a.width, span_row(node.x, static_cast<uint32_t>(row)), node.a.width);
    }
    return RowStatus{ROW_RAN, 0, 0, 0};
}

extern "C" __global__ void __launch_bounds__(128) span(const __grid_constant__ SpanArguments a) {
    begin_launch();
    const uint32_t number = blockIdx.x;
    const auto operand = [&](int which) { return a.operands[which] ? uploaded<SpanRows>(a.operands[which] + number * sizeof(SpanRows)) : SpanRows{0, 0}; };
    const auto result = [&](int which) { return a.results[which] ? reinterpret_cast<uint8_t*>(reinterpret_cast<const uint64_t*>(a.results[which])[number]) : nullptr; };
    const SpanNode node = {a, operand(0), operand(1), {result(0), result(1)}};
    RowStatus status = {ROW_RAN, 0, 0, 0};
    switch (a.op) {
        case SPAN_REPEAT:
            for (uint64_t row = 0; row < node.x.rows; row++) copy_row(node.results[0] + row * a.strides[0], span_row(node.y, 0), a.width);
            break;
        case SPAN_COPY:
            for (uint32_t row = 0; row < node.x.rows; row++) copy_row(node.results[0] + static_cast<uint64_t>(row) * a.strides[0], span_row(node.x, row), a.width);
            break;
        case SPAN_GATHER: status = gather_rows(node); break;
        case SPAN_MAT_MUL: multiply_rows(node); break;
        case SPAN_MIX: mix_rows(node); break;
        case SPAN_CUM_SUM:
            for (uint32_t column = threadIdx.x; column < a.width; column += blockDim.x) add_up_column(node, column);
            break;
        default:
            if (a.op == SPAN_TOP && node.x.rows < a.k) {
                status = {ROW_REFUSED, REFUSED_TOO_FEW, a.k, node.x.rows};
                break;
            }
            // A narrow row has fewer columns than there are threads.
            const Team team = a.width < 32 ? Team{threadIdx.x % 32, 32, threadIdx.x / 32, blockDim.x / 32, true, false}
                                           : Team{0, 1, threadIdx.x, blockDim.x, false, false};
            for (uint32_t column = team.number; column < a.width; column += team.count) {
                if (a.op == SPAN_TOP) {
                    top_of_column(node, team, column);
                } else {
                    reduce_column(node, team, column);
                }
            }
    }
    if (a.statuses && threadIdx.x == 0) reinterpret_cast<RowStatus*>(a.statuses)[number] = status;
}
KERNEL(span, SpanArguments)

// Attention of one query: scores of a block of rows, then what these add to the result. A row's score is the sum of a warp; an element of the result is a
// thread's, where it lies, so that any number of them will do.
extern "C" __global__ void __launch_bounds__(128) attention(const __grid_constant__ AttentionArguments a) {
    SHARED(float, scores, SPAN_BLOCK);
    begin_launch();
    const uint32_t node = blockIdx.x, key_head = blockIdx.y, each = a.heads / a.key_heads, lane = threadIdx.x % 32;
    const auto operand = [&](uint64_t rows) { return rows ? uploaded<SpanRows>(rows + node * sizeof(SpanRows)) : SpanRows{0, 0}; };
    const SpanRows keys = operand(a.keys), values = operand(a.values), masks = operand(a.masks);
    const float* const queries = floats_of(operand(a.queries), 0);
    float* const results = reinterpret_cast<float*>(reinterpret_cast<const uint64_t*>(a.results)[node]);
    const uint32_t rows = static_cast<uint32_t>(keys.rows);
    for (uint32_t number = 0; number < a.query_count * each; number++) {
        const uint32_t row = number / each, head = key_head * each + number % each;
        const float* const q = queries + (row * a.heads + head) * a.depth;
        float* const y = results + (row * a.heads + head) * a.size;
        const uint32_t of_mask = head % a.mask_heads * a.mask_queries + row % a.mask_queries;
        for (uint32_t e = threadIdx.x; e < a.size; e += blockDim.x) y[e] = 0.0f;
        float most = -INFINITY, total = 0.0f;
        for (uint32_t first = 0; first < rows; first += SPAN_BLOCK) {
            const uint32_t count = min(SPAN_BLOCK, rows - first);
            for (uint32_t at = threadIdx.x / 32; at < count; at += blockDim.x / 32) {
                const float* const key = floats_of(keys, first + at) + key_head * a.depth;
                float sum = 0.0f;
                for (uint32_t d = lane; d < a.depth; d += 32) sum = fmaf(q[d], key[d], sum);
                for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_value(sum, mask);
                float score = sum * a.scale;
                if (a.softcap > 0.0f) score = a.softcap * tanhf(score / a.softcap);
                if (a.mask == MASK_FLOATS) score += floats_of(masks, first + at)[of_mask];
                if (a.mask == MASK_TRUTHS && !span_row(masks, first + at)[of_mask]) score = -INFINITY;
                if (lane == 0) scores[at] = score;
            }
            __syncthreads();
            float top = most;
            for (uint32_t at = 0; at < count; at++) top = LargerOrNan{}(scores[at], top);
            // Of rows that do not count there is no largest: the difference of two infinities is no number.
            const float base = top == -INFINITY ? 0.0f : top, factor = expf(most - base);
            most = top;
            __syncthreads();
            if (threadIdx.x < count) scores[threadIdx.x] = expf(scores[threadIdx.x] - base);
            __syncthreads();
            float block = 0.0f;
            for (uint32_t at = 0; at < count; at++) block += scores[at];
            total = total * factor + block;
            for (uint32_t e = threadIdx.x; e < a.size; e += blockDim.x) {
                float sum = y[e] * factor;
                for (uint32_t at = 0; at < count; at++) sum = fmaf(scores[at], floats_of(values, first + at)[key_head * a.size + e], sum);
                y[e] = sum;
            }
            __syncthreads();
        }
        // Where no row counts it is 0.
        for (uint32_t e = threadIdx.x; e < a.size; e += blockDim.x) y[e] = total == 0.0f ? 0.0f : y[e] / total;
    }
}
KERNEL(attention, AttentionArguments)

extern "C" __global__ void __launch_bounds__(128) span_check(const __grid_constant__ SpanCheckArguments a) {
    SHARED(uint32_t, first_bad, 1);
    begin_launch();
    const uint32_t node = blockIdx.x;
    for (uint32_t number = 0; number < a.count; number++) {
        const SpanCheck check = uploaded<SpanCheck>(a.checks + number * sizeof(SpanCheck));
        const RowStatus* const statuses = reinterpret_cast<const RowStatus*>(check.statuses);
        const uint32_t* const offsets = reinterpret_cast<const uint32_t*>(check.offsets);
        const uint32_t begin = offsets ? offsets[node] : node, end = offsets ? offsets[node + 1] : node + 1;
        if (threadIdx.x == 0) *first_bad = NOWHERE;
        __syncthreads();
        for (uint32_t row = begin + threadIdx.x; row < end; row += blockDim.x) {
            if (statuses[row].status == ROW_REFUSED) {
                atomicMin(first_bad, row);
                break;
            }
        }
        __syncthreads();
        const uint32_t bad = *first_bad;
        if (bad != NOWHERE) {
            RowRecord* const record = reinterpret_cast<RowRecord*>(a.frame + static_cast<uint64_t>(node) * a.stride);
            const RowStatus status = statuses[bad];
            if (threadIdx.x == 0) *record = RowRecord{record->live, status.why, status.index, status.table_rows, 0};
            return;
        }
        __syncthreads();
    }
}
KERNEL(span_check, SpanCheckArguments)
