// Rows into a frame and out of it.
//
// A chain's end is known here before the host knows it: `finish` lowers the chain's word when its stop is true or a row of it is refused, and the
// `gather` of every later step reads it. So steps that were queued beyond a stop leave nothing, and nobody waits for anything. A chain that cannot stop has
// no word: of one of which a row was refused, steps that were queued behind it run on whatever is there, for a request that the host knows to be dead.
#include "heads.cuh"

extern "C" __global__ void __launch_bounds__(128) gather(const __grid_constant__ GatherArguments a) {
    const uint64_t row = blockIdx.x;
    const BatchHead head = head_of(a.head, a.own);
    if (row >= head.rows) return;
    uint8_t* const frame = reinterpret_cast<uint8_t*>(a.frame) + row * a.stride;
    const RowEntry entry = entry_of(head, row);
    begin_launch();
    const uint32_t* const executed = reinterpret_cast<const uint32_t*>(head.executed);
    // Kept for the whole step: another row of it may end the chain while this one is on its way.
    const bool live = runs(executed, entry.own, entry.step) && runs(executed, entry.followed, entry.step);
    if (threadIdx.x == 0) *reinterpret_cast<RowRecord*>(frame) = RowRecord{live ? 1u : 0u, 0, 0, 0, 0};
    const Port* const ports = reinterpret_cast<const Port*>(a.ports);
    const uint64_t* const addresses = reinterpret_cast<const uint64_t*>(head.addresses) + row * a.port_count;
    for (uint32_t port = 0; port < a.port_count; port++) {
        const uint64_t from = live ? addresses[port] : 0;
        uint8_t* const to = frame + ports[port].place;
        if (!(from >> PIECES_BIT)) {
            copy_row(to, reinterpret_cast<const uint8_t*>(from), ports[port].bytes);
            continue;
        }
        const uint64_t* const pieces = reinterpret_cast<const uint64_t*>(from ^ 1ull << PIECES_BIT);
        const uint32_t count = static_cast<uint32_t>(pieces[0]), bytes = ports[port].bytes / count;
        for (uint32_t piece = 0; piece < count; piece++) {
            copy_row(to + piece * bytes, reinterpret_cast<const uint8_t*>(pieces[1 + piece]), bytes);
        }
    }
}
KERNEL(gather, GatherArguments)

extern "C" __global__ void __launch_bounds__(128) finish(const __grid_constant__ FinishArguments a) {
    const uint64_t row = blockIdx.x;
    const BatchHead head = head_of(a.head, a.own);
    if (row >= head.rows) return;
    const uint8_t* const frame = reinterpret_cast<const uint8_t*>(a.frame) + row * a.stride;
    const RowEntry entry = entry_of(head, row);
    begin_launch();
    const RowRecord record = *reinterpret_cast<const RowRecord*>(frame);
    const bool ran = record.live && !record.refused;
    if (threadIdx.x == 0) {
        uint32_t* const executed = reinterpret_cast<uint32_t*>(head.executed);
        const bool stops = ran && entry.stop != NOWHERE && frame[entry.stop] != 0;
        if (entry.own != NOWHERE && stops) atomicMin(&executed[entry.own], entry.step + 1);
        if (entry.own != NOWHERE && record.live && record.refused) atomicMin(&executed[entry.own], entry.step);
        const uint32_t status = !record.live ? ROW_SKIPPED : record.refused ? ROW_REFUSED : stops ? ROW_STOPPED : ROW_RAN;
        reinterpret_cast<RowStatus*>(head.statuses)[row] = RowStatus{status, record.refused, record.index, record.table_rows};
    }
    if (!ran || (a.is_left && !head.deliveries)) return;
    bool held = entry.node != 0;
    if (held && entry.later != NOWHERE) {
        // A later step of the same batch leaves its outputs there, unless its chain has ended.
        const RowRecord later = *reinterpret_cast<const RowRecord*>(reinterpret_cast<const uint8_t*>(a.frame) + (uint64_t)entry.later * a.stride);
        held = !later.live || later.refused;
    }
    const Outlet* const outlets = reinterpret_cast<const Outlet*>(a.outlets);
    const uint32_t* const deliveries = reinterpret_cast<const uint32_t*>(head.deliveries) + row * a.outlet_count;
    for (uint32_t output = 0; output < a.outlet_count; output++) {
        const Outlet outlet = outlets[output];
        const uint8_t* from = frame + outlet.place;
        uint8_t* const node = reinterpret_cast<uint8_t*>(entry.node) + outlet.node_offset;
        if (a.is_left && entry.node) from = node;
        if (held && !a.is_left) copy_row(node, from, outlet.bytes);
        if (!head.deliveries || deliveries[output] == NOWHERE) continue;
        copy_row(reinterpret_cast<uint8_t*>(head.delivered) + deliveries[output], from, outlet.bytes);
    }
}
KERNEL(finish, FinishArguments)

extern "C" __global__ void __launch_bounds__(128) begin_words(const __grid_constant__ WordsArguments a) {
    begin_launch();
    const WordEntry* const entries = reinterpret_cast<const WordEntry*>(a.entries);
    for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < a.count; at += gridDim.x * blockDim.x) {
        reinterpret_cast<uint32_t*>(a.words)[entries[at].word] = entries[at].value;
    }
}
KERNEL(begin_words, WordsArguments)
