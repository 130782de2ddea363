// Launches with blocks for more rows than there are, as those of a graph: the device says how many there are, and what lies beyond is not touched.
#include <algorithm>
#include <array>
#include "../abi_best.h"
#include "../abi_group.h"
#include "../abi_transfer.h"
#include "instructions.h"
#include "packing.h"
#include "testing.h"

namespace {

using testing::in_row;
using testing::instruction;
using testing::Memory;

// Nobody wrote there.
bool is_untouched(const Memory<uint8_t>& bytes, size_t from, size_t to) {
    return std::all_of(&bytes[from], &bytes[from] + (to - from), [](uint8_t byte) { return byte == 0xff; });
}

// The word that says how many rows there are.
Memory<uint32_t> word(uint32_t rows) { return Memory<uint32_t>(std::vector<uint32_t>{rows}); }

// A product of one term, of so many rows by n columns, f32 one behind the other, of which only those are there that the word says.
ProductArguments product(const ProductTerm& term, uint32_t rows, uint32_t n, const Memory<uint32_t>& there) {
    ProductArguments a{};
    a.terms[0] = term;
    a.term_count = 1;
    a.rows = rows;
    a.n = n;
    a.y_stride = n * 4;
    a.rows_at = there.address();
    return a;
}

void groups_leave_them() {
    constexpr uint32_t ROWS = 7, STRIDE = 64;
    for (uint32_t rows = 1; rows <= ROWS; ++rows) {
        Memory<uint8_t> frame(ROWS * STRIDE);
        const auto there = word(rows);
        GroupInstruction zero = instruction(OP_CAST, 0, {4}, 1);
        Memory<uint8_t> zeros(4);
        for (uint32_t i = 0; i < 4; ++i) zeros[i] = 0;
        zero.source[0] = in_row(0, TYPE_BOOL, {1});
        zero.source[0].at = zeros.address();
        zero.source[0].is_address = 1;
        zero.result[0] = in_row(32, TYPE_F32, {1});
        const Memory<GroupInstruction> list({zero});
        const GroupArguments a{frame.address(), list.address(), STRIDE, 1, there.address()};
        CHECK(testing::launch("group", {ROWS, 1, 1}, 32, 0, a) == "");
        for (uint32_t r = 0; r < ROWS; ++r) CHECK((*reinterpret_cast<const float*>(&frame[r * STRIDE + 32]) == 0) == (r < rows));
        if (rows < ROWS) CHECK(is_untouched(frame, rows * STRIDE, ROWS * STRIDE));
    }
}

void panels_leave_them() {
    constexpr uint32_t ROWS = 5, STRIDE = 32;
    Memory<uint8_t> frame(ROWS * STRIDE);
    for (uint32_t r = 0; r < ROWS; ++r) *reinterpret_cast<Candidate*>(&frame[r * STRIDE]) = {r, 40 + r};
    const auto there = word(3);
    const BestArguments a{frame.address(), 0, frame.address() + 16, STRIDE, 1, 1, 0, there.address()};
    CHECK(testing::launch("best_of_panels", {ROWS, 1, 1}, 128, 0, a) == "");
    for (uint32_t r = 0; r < ROWS; ++r) CHECK(*reinterpret_cast<const int64_t*>(&frame[r * STRIDE + 16]) == (r < 3 ? int64_t{40} + r : -1));
}

// Whole tiles of rows that are not there; those that share a tile with others may be computed.
void products_leave_their_tiles() {
    constexpr uint32_t ROWS = 48, TILE = 16, N = 64, K = 32, STRIDE = N * 4;
    const struct {
        const char *kernel, *best;
        uint32_t shared;
    } kinds[] = {{"product_f32_16", "product_best_f32_16", PRODUCT_F32_SHARED(TILE)},
                 {"product_tf32_16", "product_best_tf32_16", PRODUCT_F32_SHARED(TILE)},
                 {"product_bf16_16", "product_best_bf16_16", PRODUCT_HALVES_SHARED(TILE)},
                 {"product_f16_16", "product_best_f16_16", PRODUCT_HALVES_SHARED(TILE)}};
    Memory<float> x(ROWS * K);
    for (uint32_t i = 0; i < ROWS * K; ++i) x[i] = 1;
    // Zeros are zeros however they are packed.
    Memory<float> weights(N * K);
    for (uint32_t i = 0; i < N * K; ++i) weights[i] = 0;
    for (const auto& kind : kinds) {
        for (const uint32_t rows : {1u, 16u, 17u, 48u}) {
            const auto there = word(rows);
            const uint32_t end = (rows + TILE - 1) / TILE * TILE;
            ProductArguments a = product({x.address(), weights.address(), K * 4, K}, ROWS, N, there);
            Memory<uint8_t> sums(ROWS * STRIDE), candidates(ROWS * STRIDE);
            a.y = sums.address();
            CHECK(testing::launch(kind.kernel, {1, ROWS / TILE, 1}, 128, kind.shared, a) == "");
            a.y = candidates.address();
            CHECK(testing::launch(kind.best, {1, ROWS / TILE, 1}, 128, kind.shared, ProductBestArguments{a, 1, 0}) == "");
            for (uint32_t r = 0; r < rows; ++r) {
                CHECK(*reinterpret_cast<const float*>(&sums[r * STRIDE + 4 * (N - 1)]) == 0);
                CHECK(reinterpret_cast<const Candidate*>(&candidates[r * STRIDE])->column == 0);
            }
            if (end < ROWS) CHECK(is_untouched(sums, end * STRIDE, ROWS * STRIDE) && is_untouched(candidates, end * STRIDE, ROWS * STRIDE));
        }
    }
}

// The same of products by warpgroups, whose blocks have tiles by turns: whole ones that are not there are nobody's.
void wide_products_leave_their_tiles() {
    constexpr uint32_t ROWS = 200, TILE = 64, N = 64, K = 32, STRIDE = N * 4, SHARED = 8 * (TILE + N) * 128;
    Memory<uint16_t> x(ROWS * K), weights(N * 64);
    for (uint32_t i = 0; i < ROWS * K; ++i) x[i] = 0;
    for (uint32_t i = 0; i < N * 64; ++i) weights[i] = 0;
    for (const std::string format : {"bf16_64x64", "f16_64x64"}) {
        for (const uint32_t rows : {1u, 64u, 65u, 200u}) {
            for (const uint32_t blocks : {1u, 3u, 5u}) {
                const auto there = word(rows);
                const uint32_t end = (rows + TILE - 1) / TILE * TILE;
                ProductArguments a = product({x.address(), weights.address(), K * 2, K}, ROWS, N, there);
                Memory<uint8_t> sums(ROWS * STRIDE), candidates(ROWS * STRIDE);
                a.y = sums.address();
                CHECK(testing::launch(("wide_" + format).c_str(), {blocks, 1, 1}, 256, SHARED, testing::wide(a)) == "");
                a.y = candidates.address();
                CHECK(testing::launch(("wide_best_" + format).c_str(), {blocks, 1, 1}, 256, SHARED, testing::wide(a, 1, 0)) == "");
                for (uint32_t r = 0; r < rows; ++r) {
                    CHECK(*reinterpret_cast<const float*>(&sums[r * STRIDE + 4 * (N - 1)]) == 0);
                    CHECK(reinterpret_cast<const Candidate*>(&candidates[r * STRIDE])->column == 0);
                }
                if (end < ROWS) CHECK(is_untouched(sums, end * STRIDE, ROWS * STRIDE) && is_untouched(candidates, end * STRIDE, ROWS * STRIDE));
            }
        }
    }
}

// They are padding in every list, whose places are those of as many rows as there are blocks; whose steps the rows are is what the head says.
void lists_have_padding_for_them() {
    constexpr uint32_t ROWS = 5, STRIDE = 128, OWN = 8, H = 32, C = 64, H_FROM = 96;
    for (uint32_t rows = 1; rows <= ROWS; ++rows) {
        Memory<uint8_t> frame(ROWS * STRIDE);
        for (uint32_t r = 0; r < rows; ++r) std::memset(&frame[r * STRIDE], 0, STRIDE);
        Memory<RowEntry> entries(rows);
        for (uint32_t r = 0; r < rows; ++r) entries[r].before = r == 1 ? 0 : NOWHERE, entries[r].after = r == 0 && rows > 1 ? 1 : NOWHERE;
        Memory<uint64_t> lists(6 * ROWS);
        Memory<uint32_t> counter(1);
        const Memory<BatchHead> head({BatchHead{rows, 0, 0, entries.address(), 0, 0, 0, 0, 0}});
        const LstmListArguments a{frame.address(), 8, lists.address(), counter.address(), 0, 0, 0, 0, 0, 0, STRIDE, OWN, OWN, H, C, NOWHERE, 0, 0, H_FROM, 112,
                                  head.address()};
        CHECK(testing::launch("lstm_rows", {ROWS, 1, 1}, 128, 0, a) == "");
        CHECK(counter[0] == 0);
        for (uint32_t r = 0; r < ROWS; ++r) {
            const uint64_t row = frame.address() + r * STRIDE;
            CHECK(lists[r] == (r == 0 && rows > 1 ? row + STRIDE + H_FROM : 0));
            for (uint32_t list = 1; list < 6; ++list) CHECK((lists[list * ROWS + r] == 0) == (r >= rows || list == 2));
        }
        if (rows < ROWS) CHECK(is_untouched(frame, rows * STRIDE, ROWS * STRIDE));
    }
}

void lists_of_trees_have_padding_for_them() {
    constexpr uint32_t ROWS = 5, STRIDE = 256, OWN = 8, NOTHING = 2;
    for (uint32_t rows = 1; rows <= ROWS; ++rows) {
        Memory<uint8_t> frame(ROWS * STRIDE);
        for (uint32_t r = 0; r < rows; ++r) std::memset(&frame[r * STRIDE], 0, STRIDE);
        Memory<uint64_t> lists(5 * ROWS);
        const Memory<BatchHead> head({BatchHead{rows, 0, 0, 0, 0, 0, 0, 0, 0}});
        const TreeListArguments a{frame.address(), lists.address(), STRIDE, OWN, OWN, NOWHERE, {32, 64}, {96, 128}, {160, 176}, 192, 224, 0, 0, head.address()};
        CHECK(testing::launch("tree_rows", {ROWS, 1, 1}, 128, 0, a) == "");
        for (uint32_t r = 0; r < ROWS; ++r) {
            for (uint32_t list = 0; list < 5; ++list) CHECK((lists[list * ROWS + r] == 0) == (r >= rows || list == NOTHING));
        }
        if (rows < ROWS) CHECK(is_untouched(frame, rows * STRIDE, ROWS * STRIDE));
    }
}

void steps_leave_their_tiles() {
    constexpr uint32_t ROWS = 200, UNITS = 8;
    Memory<uint8_t> c(ROWS * UNITS * 4), weights(4096 * 8);
    std::memset(&weights[0], 0, weights.size());
    Memory<uint64_t> nothing(ROWS), out(ROWS);
    for (uint32_t r = 0; r < ROWS; ++r) nothing[r] = 0, out[r] = c.address() + r * UNITS * 4;
    const auto there = word(70);
    const Memory<uint16_t> zeros(std::vector<uint16_t>(ROWS * UNITS, 0));
    const TensorMap h = testing::tensor_map(zeros.address(), UNITS, ROWS, UNITS * 2);
    const LstmRows lists{0, nothing.address(), 0, nothing.address(), out.address(), 0, 0, ROWS, 0, 0};
    const LstmStepArguments a{{}, h, lists, weights.address(), 0, 0, UNITS, {0, 8, 16, 24}, there.address(), 0, 0, {}};
    CHECK(testing::launch("lstm_step_64x8", {4, 1, 1}, 256, 16 * (64 + 32) * 128, a) == "");
    for (uint32_t i = 0; i < 70 * UNITS; ++i) CHECK(reinterpret_cast<const float*>(&c[0])[i] == 0);
    CHECK(is_untouched(c, 128 * UNITS * 4, ROWS * UNITS * 4));

    // By turns nothing is left of any row that is not there.
    Memory<uint8_t> c_by_turns(ROWS * UNITS * 4), of_32_units(4096 * 32);
    std::memset(&of_32_units[0], 0, of_32_units.size());
    for (uint32_t r = 0; r < ROWS; ++r) out[r] = c_by_turns.address() + r * UNITS * 4;
    LstmStepArguments turns = a;
    turns.weights = of_32_units.address();
    CHECK(testing::launch("lstm_turns_128x32", {1, 1, 1}, 384, 6 * (128 + 4 * 32) * 128, turns) == "");
    for (uint32_t i = 0; i < 70 * UNITS; ++i) CHECK(reinterpret_cast<const float*>(&c_by_turns[0])[i] == 0);
    CHECK(is_untouched(c_by_turns, 70 * UNITS * 4, ROWS * UNITS * 4));

    Memory<uint8_t> c_of_trees(ROWS * UNITS * 4);
    for (uint32_t r = 0; r < ROWS; ++r) out[r] = c_of_trees.address() + r * UNITS * 4;
    const TreeStepArguments tree{h, h, lists, nothing.address(), weights.address(), 0, UNITS, 0, {0, 8, 16, 24, 32, 0}, there.address()};
    CHECK(testing::launch("tree_step_64x8", {4, 1, 1}, 256, 16 * (64 + 40) * 128, tree) == "");
    for (uint32_t i = 0; i < 70 * UNITS; ++i) CHECK(reinterpret_cast<const float*>(&c_of_trees[0])[i] == 0);
    CHECK(is_untouched(c_of_trees, 128 * UNITS * 4, ROWS * UNITS * 4));
}

}  // namespace

int main() {
    RUN(groups_leave_them);
    RUN(panels_leave_them);
    RUN(products_leave_their_tiles);
    RUN(wide_products_leave_their_tiles);
    RUN(lists_have_padding_for_them);
    RUN(lists_of_trees_have_padding_for_them);
    RUN(steps_leave_their_tiles);
    return testing::finish();
}
