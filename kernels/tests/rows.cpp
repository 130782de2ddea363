// Rows through a frame: gathered, computed by a group, left in their nodes and delivered; and each way to walk a stretch against f64. What every
// operation means is tested from the host, where cells are (`host/backend-cuda/tests/suite/conformance.rs`); here the sanitizers look on.
#include <algorithm>
#include <cmath>
#include "../abi_group.h"
#include "../abi_transfer.h"
#include "instructions.h"
#include "testing.h"

namespace {

using testing::in_row;
using testing::instruction;
using testing::Memory;

constexpr uint32_t PORT_PLACE = sizeof(RowRecord);

void run_group(Memory<uint8_t>& frame, const std::vector<GroupInstruction>& list, uint32_t stride, uint32_t rows, uint32_t threads) {
    const Memory<GroupInstruction> instructions(list);
    const GroupArguments a{frame.address(), instructions.address(), stride, static_cast<uint32_t>(list.size()), 0};
    const std::string said = testing::launch("group", {rows, 1, 1}, threads, 0, a);
    CHECK(said.empty());
    if (!said.empty()) std::printf("    %s\n", said.c_str());
}

float& number(Memory<uint8_t>& frame, size_t at) { return *reinterpret_cast<float*>(&frame[at]); }

// Softmax along the first of two axes, of which the second says which stretch, so that nothing lies where it is easy.
void stretches_are_walked_by_threads_warps_and_blocks() {
    testing::Random random(1);
    for (const uint32_t flags : {0u, FLAG_BY_WARP, FLAG_BY_BLOCK}) {
        for (const uint32_t length : {1u, 2u, 31u, 33u, 300u}) {
            for (const uint32_t threads : {32u, 64u, 256u}) {
                const uint32_t rows = 1 + random.below(4), stretches = 1 + random.below(9);
                const uint32_t result = PORT_PLACE + length * stretches * 4, stride = (result + length * stretches * 4 + 15) / 16 * 16;
                Memory<uint8_t> frame(rows * stride);
                for (uint32_t r = 0; r < rows; ++r) {
                    for (uint32_t e = 0; e < length * stretches; ++e) number(frame, r * stride + PORT_PLACE + e * 4) = random.signed_unit() * 9;
                }
                GroupInstruction in = instruction(OP_SOFTMAX, 0, {stretches, length}, 1);
                in.flags = flags;
                const int32_t far = static_cast<int32_t>(stretches);
                in.source[0] = in_row(PORT_PLACE, TYPE_F32, {1, far});
                in.result[0] = in_row(result, TYPE_F32, {1, far});
                emulate_seed(random.next());
                run_group(frame, {in}, stride, rows, threads);
                for (uint32_t r = 0; r < rows; ++r) {
                    for (uint32_t s = 0; s < stretches; ++s) {
                        const auto x = [&](uint32_t e) { return static_cast<double>(number(frame, r * stride + PORT_PLACE + (e * stretches + s) * 4)); };
                        double sum = 0;
                        for (uint32_t e = 0; e < length; ++e) sum += std::exp(x(e));
                        for (uint32_t e = 0; e < length; ++e) {
                            const double got = number(frame, r * stride + result + (e * stretches + s) * 4);
                            CHECK(std::abs(got - std::exp(x(e)) / sum) < 1e-5);
                        }
                    }
                }
            }
        }
    }
}

void the_first_few_are_in_order_whoever_looks() {
    testing::Random random(2);
    for (const uint32_t flags : {0u, FLAG_BY_WARP, FLAG_BY_BLOCK, FLAG_SMALLEST, FLAG_SMALLEST | FLAG_BY_WARP}) {
        const uint32_t length = 77, k = 5, values = PORT_PLACE + length * 4, positions = (values + 39) / 16 * 16, stride = positions + k * 8 + 8;
        Memory<uint8_t> frame(stride);
        // Ties, and a NaN, which is the largest.
        for (uint32_t e = 0; e < length; ++e) number(frame, PORT_PLACE + e * 4) = static_cast<float>(random.below(6)) - 3;
        number(frame, PORT_PLACE + 40 * 4) = NAN;
        GroupInstruction in = instruction(OP_TOP, 0, {length}, 0);
        in.flags = flags;
        in.k = k;
        in.results = 3;
        in.source[0] = in_row(PORT_PLACE, TYPE_F32, {1});
        in.result[0] = in_row(values, TYPE_F32, {1});
        in.result[1] = in_row(positions, TYPE_I64, {1});
        run_group(frame, {in}, stride, 1, 64);
        const auto key = [&](uint32_t e) {
            const double x = number(frame, PORT_PLACE + e * 4), larger = std::isnan(x) ? 1e9 : x;
            return flags & FLAG_SMALLEST ? larger : -larger;
        };
        std::vector<uint32_t> order(length);
        for (uint32_t e = 0; e < length; ++e) order[e] = e;
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
        for (uint32_t at = 0; at < k; ++at) {
            CHECK(*reinterpret_cast<int64_t*>(&frame[positions + at * 8]) == order[at]);
            CHECK(std::memcmp(&frame[values + at * 4], &frame[PORT_PLACE + order[at] * 4], 4) == 0);
        }
    }
}

// Rows of a batch at their places: some have ended, one ends its chain, one looks up what is in no table.
void rows_leave_what_they_should_and_nothing_else() {
    constexpr uint32_t WIDTH = 19, ROW = WIDTH * 4, STRIDE = PORT_PLACE + 80 + 16 + 80 + 16, TOKEN = PORT_PLACE + 80, RESULT = TOKEN + 16, STOP = RESULT + 80;
    testing::Random random(3);
    for (const uint32_t rows : {1u, 6u, 37u}) {
        Memory<uint8_t> frame(rows * STRIDE), nodes(rows * 128), delivered(rows * 80);
        Memory<float> inputs(rows * WIDTH), table(4 * WIDTH);
        Memory<int64_t> tokens(rows);
        Memory<uint32_t> executed(rows), deliveries(rows);
        Memory<RowEntry> entries(rows);
        Memory<RowStatus> statuses(rows);
        std::vector<uint64_t> addresses;
        for (size_t e = 0; e < table.size(); ++e) table[e] = random.signed_unit();
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t e = 0; e < WIDTH; ++e) inputs[r * WIDTH + e] = random.signed_unit();
            tokens[r] = r % 5 == 3 ? -5 : static_cast<int64_t>(r % 4);
            executed[r] = r % 3 == 1 ? 2 : 9;
            entries[r] = {nodes.address() + r * 128, r, r, 2, STOP, NOWHERE, NOWHERE, NOWHERE, 0};
            deliveries[r] = r % 2 ? NOWHERE : r * 80;
            // Every other row's input is zeros, and the others lie as they come.
            addresses.push_back(r % 2 ? 0 : inputs.address() + r * ROW);
            addresses.push_back(tokens.address() + r * 8);
        }
        const Memory<Port> ports({{PORT_PLACE, ROW}, {TOKEN, 8}});
        const Memory<Outlet> outlets({{RESULT, ROW, 0, 0}});
        const Memory<uint64_t> lists(addresses);
        const BatchHead head{rows, 0, lists.address(), entries.address(), executed.address(), deliveries.address(), delivered.address(), statuses.address(), 0};
        const GatherArguments gather{frame.address(), ports.address(), 0, STRIDE, 2, head};
        CHECK(testing::launch("gather", {rows, 1, 1}, 128, 0, gather).empty());
        GroupInstruction look = instruction(OP_LOOKUP, 0, {WIDTH}, 0);
        look.k = WIDTH;
        look.table_rows = 4;
        look.sources = 2;
        look.source[0] = in_row(TOKEN, TYPE_I64, {0});
        look.source[1] = in_row(0, TYPE_F32, {1});
        look.source[1].at = table.address();
        look.source[1].is_address = 1;
        look.result[0] = in_row(RESULT, TYPE_F32, {1});
        GroupInstruction add = instruction(OP_ADD, 0, {WIDTH}, 1);
        add.sources = 2;
        add.source[0] = in_row(RESULT, TYPE_F32, {1});
        add.source[1] = in_row(PORT_PLACE, TYPE_F32, {1});
        add.result[0] = in_row(RESULT, TYPE_F32, {1});
        GroupInstruction stop = instruction(OP_CAST, 0, {}, 0);
        stop.source[0] = in_row(TOKEN, TYPE_I64, {});
        stop.result[0] = in_row(STOP, TYPE_BOOL, {});
        run_group(frame, {look, add, stop}, STRIDE, rows, 64);
        const FinishArguments finish{frame.address(), outlets.address(), 0, STRIDE, 1, 0, 0, head};
        CHECK(testing::launch("finish", {rows, 1, 1}, 128, 0, finish).empty());
        for (uint32_t r = 0; r < rows; ++r) {
            const bool ended = r % 3 == 1, refused = !ended && r % 5 == 3, runs = !ended && !refused, stops = runs && tokens[r] != 0;
            CHECK(statuses[r].status == (ended ? ROW_SKIPPED : refused ? ROW_REFUSED : stops ? ROW_STOPPED : ROW_RAN));
            CHECK(executed[r] == (ended ? 2u : refused ? 2u : stops ? 3u : 9u));
            if (refused) CHECK(statuses[r].index == -5 && statuses[r].table_rows == 4);
            for (uint32_t e = 0; e < WIDTH; ++e) {
                const float* left = reinterpret_cast<const float*>(&nodes[r * 128]);
                if (runs) {
                    const float wanted = table[tokens[r] * WIDTH + e] + (r % 2 ? 0 : inputs[r * WIDTH + e]);
                    CHECK(left[e] == wanted);
                    if (r % 2 == 0) CHECK(reinterpret_cast<const float*>(&delivered[r * 80])[e] == wanted);
                } else {
                    CHECK(std::isnan(left[e]));
                }
            }
            CHECK(nodes[r * 128 + ROW] == 0xff);
            if (r % 2) CHECK(delivered[r * 80] == 0xff);
        }
    }
}

}  // namespace

int main() {
    RUN(stretches_are_walked_by_threads_warps_and_blocks);
    RUN(the_first_few_are_in_order_whoever_looks);
    RUN(rows_leave_what_they_should_and_nothing_else);
    return testing::finish();
}
