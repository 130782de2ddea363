// Lists for the steps of an LSTM, a GRU or a tree (`recurrent.cu`), made where the rows lie: the host knows their places before it queues anything, and sends none.
#include "heads.cuh"
#include "tables.cuh"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace lstm {

// A row's token.
__device__ __forceinline__ int64_t token_of(const LstmListArguments& a, uint64_t row) {
    return a.token_bytes == 8 ? *reinterpret_cast<const int64_t*>(row + a.token) : *reinterpret_cast<const int32_t*>(row + a.token);
}

// Which row of the table its token means; -1: none.
__device__ __forceinline__ int64_t looked_up(const LstmListArguments& a, uint64_t row) {
    return table_row(token_of(a, row), static_cast<int64_t>(a.table_rows));
}

// Whether anybody wants what a row leaves. Other blocks may change its record meanwhile, and for reasons that hold as well without that.
__device__ __forceinline__ bool is_wanted(const LstmListArguments& a, uint32_t row) {
    const uint64_t at = a.frame + (uint64_t)row * a.stride;
    const volatile RowRecord* record = reinterpret_cast<const volatile RowRecord*>(at);
    return record->live && !record->refused && (!a.table || looked_up(a, at) >= 0);
}

// Rounds h to where steps read it, and pads it and c from their own values to `units` with zeros. c may be where h is.
__device__ __forceinline__ void pad(uint64_t h_at, uint64_t c_at, uint64_t rounded_at, uint32_t own, uint32_t units, bool is_f16) {
    const float* const h = reinterpret_cast<const float*>(h_at);
    float* const c = reinterpret_cast<float*>(c_at);
    uint32_t* const rounded = reinterpret_cast<uint32_t*>(rounded_at);
    for (uint32_t pair = threadIdx.x; pair < units / 2; pair += blockDim.x) {
        const uint32_t first = 2 * pair;
        const float one = first < own ? h[first] : 0.0f, other = first + 1 < own ? h[first + 1] : 0.0f;
        rounded[pair] = is_f16 ? pack_f16(one, other) : pack_bf16(one, other);
        if (first >= own) c[first] = 0.0f;
        if (first + 1 >= own) c[first + 1] = 0.0f;
    }
}

}  // namespace lstm

extern "C" __global__ void __launch_bounds__(128) lstm_rows(const __grid_constant__ LstmListArguments a) {
    begin_launch();
    const uint32_t row = blockIdx.x, rows = gridDim.x;
    uint64_t* const lists = reinterpret_cast<uint64_t*>(a.lists) + row;
    if (is_beyond(a.head, row)) {
        if (threadIdx.x < 6) lists[threadIdx.x * rows] = 0;
        return;
    }
    const RowEntry* const entries = reinterpret_cast<const RowEntry*>(a.head ? reinterpret_cast<const BatchHead*>(a.head)->entries : a.entries);
    const uint64_t at = a.frame + (uint64_t)row * a.stride;
    const uint32_t before = entries ? entries[row].before : NOWHERE;
    if (threadIdx.x == 0) {
        const uint64_t from = a.frame + (uint64_t)before * a.stride;
        const uint32_t after = entries ? entries[row].after : NOWHERE;
        lists[0] = after == NOWHERE ? 0 : a.frame + (uint64_t)after * a.stride + a.h_from;
        lists[rows] = before == NOWHERE ? at + a.c : from + a.c_out;
        uint64_t begin = a.begin == NOWHERE ? 0 : at + a.begin;
        if (a.table) {
            const int64_t found = lstm::looked_up(a, at);
            if (found < 0) refuse_row(reinterpret_cast<uint8_t*>(at), lstm::token_of(a, at), a.table_rows);
            begin = a.table + static_cast<uint64_t>(found < 0 ? 0 : found) * a.table_stride;
        }
        lists[2 * rows] = begin;
        lists[3 * rows] = a.h_out == NOWHERE ? 0 : at + a.h_out;
        lists[4 * rows] = at + a.c_out;
        lists[5 * rows] = at + a.h_exact;
        if (row == 0) *reinterpret_cast<uint32_t*>(a.counter) = 0;
        bool wanted = true;
        for (uint32_t one = before; one != NOWHERE && wanted; one = entries[one].before) wanted = lstm::is_wanted(a, one);
        if (!wanted) reinterpret_cast<volatile RowRecord*>(at)->live = 0;
    }
    if (before != NOWHERE) return;
    lstm::pad(at + a.h, at + a.c, at + a.h_from, a.own, a.units, a.is_f16 != 0);
}
KERNEL(lstm_rows, LstmListArguments)

namespace lstm {

// A row of a batch whose rows are gathered and listed at once: its entry, and where its inputs are.
struct Row {
    RowEntry entry;
    const uint64_t* ports;
    uint64_t at;

    __device__ __forceinline__ Row(const LstmGatherArguments& a, const BatchHead& head, uint32_t row)
        : entry(entry_of(head, row)),
          ports(reinterpret_cast<const uint64_t*>(head.addresses) + (uint64_t)row * a.port_count),
          at(a.frame + (uint64_t)row * a.stride) {}

    __device__ __forceinline__ bool is_live(const BatchHead& head) const {
        const uint32_t* const executed = reinterpret_cast<const uint32_t*>(head.executed);
        return runs(executed, entry.own, entry.step) && runs(executed, entry.followed, entry.step);
    }
    __device__ __forceinline__ int64_t token(const LstmGatherArguments& a) const {
        const uint64_t from = ports[a.token_port];
        if (!from) return 0;
        return a.token_bytes == 8 ? *reinterpret_cast<const int64_t*>(from) : *reinterpret_cast<const int32_t*>(from);
    }
    // Where it leaves c and h.
    __device__ __forceinline__ uint64_t c(const LstmGatherArguments& a) const { return entry.node ? entry.node + a.c_node : at + a.c_out; }
    __device__ __forceinline__ uint64_t h(const LstmGatherArguments& a) const { return entry.node ? entry.node + a.h_node : at + a.h_exact; }
};

}  // namespace lstm

extern "C" __global__ void __launch_bounds__(128) lstm_gather(const __grid_constant__ LstmGatherArguments a) {
    const uint32_t row = blockIdx.x, rows = gridDim.x;
    uint64_t* const lists = reinterpret_cast<uint64_t*>(a.lists) + row;
    const BatchHead head = head_of(a.head, a.own);
    if (row >= head.rows) {
        begin_launch();
        if (threadIdx.x < 6) lists[threadIdx.x * rows] = 0;
        return;
    }
    const lstm::Row own(a, head, row);
    begin_launch();
    const uint32_t before = own.entry.before;
    if (threadIdx.x == 0) {
        RowRecord record = {own.is_live(head) ? 1u : 0u, 0, 0, 0, 0};
        const int64_t token = own.token(a), found = table_row(token, static_cast<int64_t>(a.table_rows));
        if (found < 0) record = RowRecord{record.live, 1, token, a.table_rows, 0};
        // A row that comes behind one that ended, or was refused, is wanted by nobody. Other blocks look at those before themselves.
        for (uint32_t one = before; one != NOWHERE && record.live;) {
            const lstm::Row earlier(a, head, one);
            if (!earlier.is_live(head) || table_row(earlier.token(a), static_cast<int64_t>(a.table_rows)) < 0) record.live = 0;
            one = earlier.entry.before;
        }
        *reinterpret_cast<RowRecord*>(own.at) = record;
        const bool leaves = record.live && !record.refused;
        lists[0] = own.entry.after == NOWHERE ? 0 : a.frame + (uint64_t)own.entry.after * a.stride + a.h_from;
        lists[rows] = before == NOWHERE ? own.ports[a.c_port] : lstm::Row(a, head, before).c(a);
        lists[2 * rows] = a.table + static_cast<uint64_t>(found < 0 ? 0 : found) * a.table_stride;
        lists[4 * rows] = leaves ? own.c(a) : 0;
        lists[5 * rows] = leaves ? own.h(a) : 0;
        if (row == 0) *reinterpret_cast<uint32_t*>(a.counter) = 0;
    }
    if (before != NOWHERE) return;
    const float4* const h = reinterpret_cast<const float4*>(own.ports[a.h_port]);
    uint4* const rounded = reinterpret_cast<uint4*>(own.at + a.h_from);
    for (uint32_t eight = threadIdx.x; eight < a.units / 8; eight += blockDim.x) {
        const float4 one = h ? h[2 * eight] : make_float4(0.0f, 0.0f, 0.0f, 0.0f), other = h ? h[2 * eight + 1] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        rounded[eight] = a.is_f16 ? make_uint4(pack_f16(one.x, one.y), pack_f16(one.z, one.w), pack_f16(other.x, other.y), pack_f16(other.z, other.w))
                                  : make_uint4(pack_bf16(one.x, one.y), pack_bf16(one.z, one.w), pack_bf16(other.x, other.y), pack_bf16(other.z, other.w));
    }
}
KERNEL(lstm_gather, LstmGatherArguments)

extern "C" __global__ void __launch_bounds__(128) tree_rows(const __grid_constant__ TreeListArguments a) {
    begin_launch();
    const uint32_t row = blockIdx.x, rows = gridDim.x;
    uint64_t* const lists = reinterpret_cast<uint64_t*>(a.lists) + row;
    if (is_beyond(a.head, row)) {
        if (threadIdx.x < 5) lists[threadIdx.x * rows] = 0;
        return;
    }
    const uint64_t at = a.frame + (uint64_t)row * a.stride;
    if (threadIdx.x == 0) {
        for (uint32_t child = 0; child < 2; ++child) lists[child * rows] = at + a.c[child];
        lists[2 * rows] = a.begin == NOWHERE ? 0 : at + a.begin;
        lists[3 * rows] = at + a.c_out;
        lists[4 * rows] = at + a.h_exact;
    }
    for (uint32_t child = 0; child < 2; ++child) {
        lstm::pad(at + a.h[child], at + a.c[child], at + a.h_from[child], a.own, a.units, a.is_f16 != 0);
    }
}
KERNEL(tree_rows, TreeListArguments)

#endif
