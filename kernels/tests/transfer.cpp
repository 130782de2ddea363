// Rows into a frame and out of it: what lives, what stops, what is refused, and that nothing else is touched.
#include "../abi_transfer.h"
#include "testing.h"

namespace {

using testing::Memory;

constexpr uint32_t PLACES[] = {32, 64, 80};  // of the ports, behind the row's record
constexpr uint32_t BYTES[] = {20, 16, 7};
constexpr uint32_t STRIDE = 96;

// Whether heads come with a launch or lie on the device, where a launch has more blocks than there are rows.
bool is_on_device = false;

// A batch of rows over three chains; word c of `executed` is chain c's.
struct Batch {
    uint32_t rows;
    Memory<uint8_t> frame, sources, nodes, delivered;
    Memory<Port> ports;
    Memory<Outlet> outlets;
    Memory<RowEntry> entries;
    Memory<uint32_t> executed, deliveries;
    Memory<uint64_t> addresses;
    Memory<RowStatus> statuses;
    Memory<BatchHead> head{1};

    explicit Batch(uint32_t rows)
        : rows(rows), frame(rows * STRIDE), sources(rows * 64), nodes(rows * 64), delivered(rows * 64), ports(3), outlets(3), entries(rows),
          executed(3), deliveries(rows * 3), addresses(rows * 3), statuses(rows) {
        for (uint32_t p = 0; p < 3; ++p) {
            ports[p] = {PLACES[p], BYTES[p]};
            outlets[p] = {PLACES[p], BYTES[p], p * 20 + 1, 0};
        }
        for (size_t i = 0; i < sources.size(); ++i) sources[i] = static_cast<uint8_t>(i * 7 + 1);
        for (uint32_t r = 0; r < rows; ++r) {
            entries[r] = {nodes.address() + r * 64, r % 3, r % 3, 0, NOWHERE, NOWHERE, NOWHERE, NOWHERE, 0};
            for (uint32_t p = 0; p < 3; ++p) {
                // Some missing, some aligned, some not.
                addresses[r * 3 + p] = (r + p) % 5 == 4 ? 0 : sources.address() + r * 64 + (p == 2 ? 33 : p * 16);
                deliveries[r * 3 + p] = (r + p) % 2 ? NOWHERE : r * 64 + p * 21;
            }
        }
        for (uint32_t c = 0; c < 3; ++c) executed[c] = 10;
    }

    void gather(uint32_t threads = 128) {
        const auto [address, own, blocks] = told(true);
        const GatherArguments a{frame.address(), ports.address(), address, STRIDE, 3, own};
        CHECK(testing::launch("gather", {blocks, 1, 1}, threads, 0, a) == "");
    }
    void finish(bool deliver = true, uint32_t is_left = 0) {
        const auto [address, own, blocks] = told(deliver);
        const FinishArguments a{frame.address(), outlets.address(), address, STRIDE, 3, is_left, 0, own};
        CHECK(testing::launch("finish", {blocks, 1, 1}, 128, 0, a) == "");
    }
    struct Told {
        uint64_t address;
        BatchHead own;
        uint32_t blocks;
    };
    // What a launch is told of the batch, and the blocks that it has.
    Told told(bool deliver) {
        const BatchHead one{rows, 0, addresses.address(), entries.address(), executed.address(), deliver ? deliveries.address() : 0, delivered.address(),
                            statuses.address(), 0};
        if (!is_on_device) return {0, one, rows};
        head[0] = one;
        return {head.address(), BatchHead{}, 2 * rows + 1};
    }
    RowRecord& record(uint32_t row) { return *reinterpret_cast<RowRecord*>(&frame[row * STRIDE]); }
};

void rows_are_filled_or_zeros() {
    for (uint64_t seed = 0; seed < 4; ++seed) {
        emulate_seed(seed);
        Batch b(17);
        b.entries[3].step = 10;      // beyond its chain
        b.entries[4].followed = 2;   // follows a chain that has ended
        b.executed[2] = 0;
        b.gather();
        for (uint32_t r = 0; r < b.rows; ++r) {
            const bool live = r != 3 && r != 4 && r % 3 != 2;
            CHECK(b.record(r).live == live && b.record(r).refused == 0);
            for (uint32_t at = sizeof(RowRecord); at < STRIDE; ++at) {
                uint8_t expected = 0xff;
                for (uint32_t p = 0; p < 3; ++p) {
                    if (at < PLACES[p] || at >= PLACES[p] + BYTES[p]) continue;
                    const uint64_t from = live ? b.addresses[r * 3 + p] : 0;
                    expected = from ? reinterpret_cast<const uint8_t*>(from)[at - PLACES[p]] : 0;
                }
                CHECK(b.frame[r * STRIDE + at] == expected);
            }
        }
    }
}

void rows_in_pieces_lie_one_behind_the_other() {
    for (uint32_t count : {1u, 4u}) {
        Batch b(5);
        Memory<uint64_t> pieces(b.rows * 5);
        const uint32_t port = 1, bytes = BYTES[port] / count;
        CHECK(bytes * count == BYTES[port]);
        for (uint32_t r = 0; r < b.rows; ++r) {
            pieces[r * 5] = count;
            for (uint32_t i = 0; i < count; ++i) pieces[r * 5 + 1 + i] = (r + i) % 4 == 3 ? 0 : b.sources.address() + (r * 29 + i * 17) % 256;
            b.addresses[r * 3 + port] = (pieces.address() + r * 5 * sizeof(uint64_t)) | 1ull << PIECES_BIT;
        }
        b.executed[2] = 0;
        b.gather();
        for (uint32_t r = 0; r < b.rows; ++r) {
            for (uint32_t at = 0; at < BYTES[port]; ++at) {
                const uint64_t from = r % 3 == 2 ? 0 : pieces[r * 5 + 1 + at / bytes];
                const uint8_t expected = from ? reinterpret_cast<const uint8_t*>(from)[at % bytes] : 0;
                CHECK(b.frame[r * STRIDE + PLACES[port] + at] == expected);
            }
        }
    }
}

void live_rows_leave_everything_and_others_nothing() {
    Batch b(9);
    b.gather();
    b.record(1).live = 0;
    b.record(2).refused = 1;
    b.record(2).index = -7;
    b.record(2).table_rows = 5;
    b.entries[3].stop = PLACES[1];  // a BOOL of the row
    b.frame[3 * STRIDE + PLACES[1]] = 1;
    b.entries[4].stop = PLACES[1];
    b.frame[4 * STRIDE + PLACES[1]] = 0;
    b.entries[5].node = 0;
    b.entries[3].step = 4;
    b.entries[2].step = 6;
    b.finish();
    for (uint32_t r = 0; r < b.rows; ++r) {
        const uint32_t status = r == 1 ? ROW_SKIPPED : r == 2 ? ROW_REFUSED : r == 3 ? ROW_STOPPED : ROW_RAN;
        CHECK(b.statuses[r].status == status);
        const bool leaves = status == ROW_RAN || status == ROW_STOPPED;
        uint8_t node[64], delivered[64];
        std::memset(node, 0xff, 64);
        std::memset(delivered, 0xff, 64);
        for (uint32_t p = 0; p < 3 && leaves; ++p) {
            const uint8_t* from = &b.frame[r * STRIDE + PLACES[p]];
            if (r != 5) std::memcpy(node + p * 20 + 1, from, BYTES[p]);
            if ((r + p) % 2 == 0) std::memcpy(delivered + p * 21, from, BYTES[p]);
        }
        CHECK(std::memcmp(&b.nodes[r * 64], node, 64) == 0);
        CHECK(std::memcmp(&b.delivered[r * 64], delivered, 64) == 0);
    }
    CHECK(b.statuses[2].index == -7 && b.statuses[2].table_rows == 5);
    // Row 3 stopped chain 0 after step 4; row 2 was refused at step 6 of chain 2; chain 1 goes on.
    CHECK(b.executed[0] == 5 && b.executed[1] == 10 && b.executed[2] == 6);
    // Steps that were queued beyond are dead.
    for (uint32_t r = 0; r < b.rows; ++r) b.entries[r].step = r % 3 == 2 ? 5 : 5 + r % 3;
    b.gather();
    for (uint32_t r = 0; r < b.rows; ++r) CHECK(b.record(r).live == (r % 3 != 0));
}

// Several steps of a lane in one batch, whose outputs are held in one place: the last one that runs leaves them.
void a_place_is_left_to_the_last_step_that_runs() {
    for (uint32_t ends = 0; ends < 4; ++ends) {
        Batch b(3);
        for (uint32_t r = 0; r < 3; ++r) {
            b.entries[r].node = b.nodes.address();
            b.entries[r].step = r;
            b.entries[r].own = b.entries[r].followed = 0;
            if (r < 2) b.entries[r].later = r + 1;
        }
        b.executed[0] = ends;
        b.gather();
        if (ends == 3) b.record(2).refused = 1;
        b.finish();
        const uint32_t last = ends == 3 ? 1 : ends - 1;
        for (uint32_t p = 0; p < 3; ++p) {
            const uint8_t* node = &b.nodes[p * 20 + 1];
            if (ends > 0) CHECK(std::memcmp(node, &b.frame[last * STRIDE + PLACES[p]], BYTES[p]) == 0);
            if (ends == 0) CHECK(node[0] == 0xff && node[BYTES[p] - 1] == 0xff);
        }
    }
}

// Chains that run to their end whatever happens have no word: every row that comes is live, and nothing is noted of one that is refused.
void rows_without_words_are_live() {
    Batch b(6);
    for (uint32_t r = 0; r < b.rows; ++r) b.entries[r].own = b.entries[r].followed = NOWHERE;
    for (uint32_t c = 0; c < 3; ++c) b.executed[c] = 0;
    b.entries[5].followed = 1;
    b.gather();
    for (uint32_t r = 0; r < b.rows; ++r) CHECK(b.record(r).live == (r != 5));
    b.record(1).refused = 1;
    b.finish();
    CHECK(b.statuses[0].status == ROW_RAN && b.statuses[1].status == ROW_REFUSED && b.statuses[5].status == ROW_SKIPPED);
    for (uint32_t c = 0; c < 3; ++c) CHECK(b.executed[c] == 0);
}

// Where outputs are held already they stay as they are, and what is delivered is taken from there; of rows that are held nowhere from the frame.
void what_is_left_is_delivered_from_where_it_is() {
    Batch b(7);
    b.gather();
    b.entries[2].node = 0;
    b.record(4).refused = 1;
    for (size_t i = 0; i < b.nodes.size(); ++i) b.nodes[i] = static_cast<uint8_t>(i * 5 + 3);
    b.finish(true, 1);
    for (size_t i = 0; i < b.nodes.size(); ++i) CHECK(b.nodes[i] == static_cast<uint8_t>(i * 5 + 3));
    for (uint32_t r = 0; r < b.rows; ++r) {
        uint8_t delivered[64];
        std::memset(delivered, 0xff, 64);
        for (uint32_t p = 0; p < 3 && r != 4; ++p) {
            const uint8_t* from = r == 2 ? &b.frame[r * STRIDE + PLACES[p]] : &b.nodes[r * 64 + p * 20 + 1];
            if ((r + p) % 2 == 0) std::memcpy(delivered + p * 21, from, BYTES[p]);
        }
        CHECK(b.statuses[r].status == (r == 4 ? ROW_REFUSED : ROW_RAN));
        CHECK(std::memcmp(&b.delivered[r * 64], delivered, 64) == 0);
    }
}

void words_begin() {
    for (const uint32_t count : {0u, 1u, 300u}) {
        Memory<WordEntry> entries(count + 1);
        Memory<uint32_t> words(2 * count + 1);
        for (uint32_t i = 0; i < count; ++i) entries[i] = {2 * i, i + 5};
        const WordsArguments a{entries.address(), words.address(), count, 0};
        CHECK(testing::launch("begin_words", {2, 1, 1}, 128, 0, a) == "");
        for (uint32_t i = 0; i < 2 * count + 1; ++i) CHECK(words[i] == (i % 2 || i == 2 * count ? 0xffffffff : i / 2 + 5));
    }
}

}  // namespace

int main() {
    for (const bool on_device : {false, true}) {
        is_on_device = on_device;
        RUN(rows_are_filled_or_zeros);
    RUN(rows_in_pieces_lie_one_behind_the_other);
        RUN(live_rows_leave_everything_and_others_nothing);
        RUN(a_place_is_left_to_the_last_step_that_runs);
        RUN(rows_without_words_are_live);
        RUN(what_is_left_is_delivered_from_where_it_is);
    }
    RUN(words_begin);
    return testing::finish();
}
