// The group kernel against f64: elements, stretches walked by a thread, a warp or the block, and indices that are in no table.
#include <algorithm>
#include <bit>
#include <cmath>
#include "../abi_group.h"
#include "../abi_transfer.h"
#include "instructions.h"
#include "packing.h"
#include "testing.h"

namespace {

using testing::in_row;
using testing::instruction;
using testing::Memory;

constexpr uint32_t WALKS[] = {0, FLAG_BY_WARP, FLAG_BY_BLOCK};

// Rows of a frame whose values begin at 32, NaN where nothing was put.
struct Frame {
    uint32_t rows, stride;
    Memory<uint8_t> bytes;
    Frame(uint32_t rows, uint32_t value_bytes) : rows(rows), stride((32 + value_bytes + 15) / 16 * 16), bytes(rows * stride) {
        for (uint32_t r = 0; r < rows; ++r) record(r) = RowRecord{1, 0, 0, 0, 0};
    }
    RowRecord& record(uint32_t row) { return *reinterpret_cast<RowRecord*>(&bytes[row * stride]); }
    template <class T>
    T* at(uint32_t row, uint32_t place) {
        return reinterpret_cast<T*>(&bytes[row * stride + place]);
    }
    void run(const std::vector<GroupInstruction>& list, uint32_t first = 0, uint32_t count = 0, uint32_t threads = 128) {
        const Memory<GroupInstruction> instructions(list);
        const GroupArguments a{bytes.address() + first * stride, instructions.address(), stride, static_cast<uint32_t>(list.size()), 0};
        const std::string said = testing::launch("group", {count ? count : rows - first, 1, 1}, threads, 0, a);
        if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
    }
};

void elements_are_right() {
    testing::Random random(1);
    Frame frame(3, 4 * (6 + 3 + 12));
    for (uint32_t r = 0; r < 3; ++r) {
        for (uint32_t i = 0; i < 9; ++i) frame.at<float>(r, 32)[i] = 3 * random.signed_unit();
    }
    // tanh(x) of 2 × 3 plus a row of 3 that is broadcast, the columns backwards, into every other place; then σ of that, in place.
    GroupInstruction tanh = instruction(OP_TANH, 0, {2, 3}, 0);
    tanh.sources = 1;
    tanh.source[0] = in_row(32, TYPE_F32, {3, 1});
    tanh.result[0] = in_row(68, TYPE_F32, {6, 2});
    GroupInstruction add = instruction(OP_ADD, FLAG_BARRIER, {2, 3}, 0);
    add.sources = 2;
    add.source[0] = in_row(68, TYPE_F32, {6, 2});
    add.source[1] = in_row(56 + 8, TYPE_F32, {0, -1});
    add.result[0] = in_row(68, TYPE_F32, {6, 2});
    GroupInstruction sigmoid = instruction(OP_SIGMOID, FLAG_BARRIER, {12}, 0);
    sigmoid.sources = 1;
    sigmoid.source[0] = sigmoid.result[0] = in_row(68, TYPE_F32, {1});
    frame.run({tanh, add, sigmoid});
    for (uint32_t r = 0; r < 3; ++r) {
        for (uint32_t i = 0; i < 12; ++i) {
            const float got = frame.at<float>(r, 68)[i];
            if (i % 2) {
                CHECK(std::isnan(got));
                continue;
            }
            const uint32_t row = i / 6, column = i / 2 % 3;
            const double sum = std::tanh(static_cast<double>(frame.at<float>(r, 32)[row * 3 + column])) + frame.at<float>(r, 56)[2 - column];
            CHECK(std::abs(got - 1 / (1 + std::exp(-sum))) < 1e-6);
        }
    }
}

// Casts to 16 bits, for products: ties, ends of ranges, and as many floats of any size as find room.
void floats_are_rounded_as_weights_are() {
    testing::Random random(6);
    std::vector<float> numbers = {0,        -0.0f,         1 + 0x1p-11f, 1 + 0x1.002p-11f,     1 + 0x3p-11f, 1 + 0x1p-8f, 1 + 0x1.01p-8f,       1 + 0x3p-8f, 65504,
                                  65519.9f, 65520,         -65520,       INFINITY,             -INFINITY,    3.4e38f,     0x1p-14f - 0x1p-25f, 0x1p-25f,    0x1.002p-25f,
                                  0x3p-25f, -0x1.4p-23f,   1e-45f,       -1e-45f,              0x1p-126f,    NAN};
    while (numbers.size() < 3000) numbers.push_back(std::bit_cast<float>(random.next()));
    const uint32_t count = static_cast<uint32_t>(numbers.size()), to_bf16 = 32 + 4 * count, to_f16 = to_bf16 + 2 * count;
    Frame frame(1, 8 * count);
    std::copy(numbers.begin(), numbers.end(), frame.at<float>(0, 32));
    std::vector<GroupInstruction> list;
    for (const auto& [type, to] : {std::pair{TYPE_BF16, to_bf16}, std::pair{TYPE_F16, to_f16}}) {
        list.push_back(instruction(OP_CAST, 0, {count}, 0));
        list.back().source[0] = in_row(32, TYPE_F32, {1});
        list.back().result[0] = in_row(to, type, {1});
    }
    frame.run(list);
    for (uint32_t i = 0; i < count; ++i) {
        CHECK(frame.at<uint16_t>(0, to_bf16)[i] == packing::to_bf16(numbers[i]));
        CHECK(frame.at<uint16_t>(0, to_f16)[i] == packing::to_f16(numbers[i]));
    }
}

void stretches_are_right() {
    testing::Random random(2);
    for (const uint32_t walk : WALKS) {
        for (const uint32_t length : {1u, 5u, 31u, 64u, 300u}) {
            constexpr uint32_t OUTER = 3;
            const uint32_t out = 32 + OUTER * length * 4;
            Frame frame(2, 2 * OUTER * length * 4 + OUTER * 4);
            for (uint32_t r = 0; r < 2; ++r) {
                for (uint32_t i = 0; i < OUTER * length; ++i) frame.at<float>(r, 32)[i] = 5 * random.signed_unit();
            }
            GroupInstruction softmax = instruction(OP_SOFTMAX, walk, {OUTER, length}, 1);
            softmax.sources = 1;
            softmax.source[0] = in_row(32, TYPE_F32, {static_cast<int32_t>(length), 1});
            softmax.result[0] = in_row(out, TYPE_F32, {static_cast<int32_t>(length), 1});
            GroupInstruction sum = softmax;
            sum.op = OP_SUM;
            sum.flags |= FLAG_BARRIER;
            sum.result[0] = in_row(out + OUTER * length * 4, TYPE_F32, {1, 0});
            frame.run({softmax, sum});
            for (uint32_t r = 0; r < 2; ++r) {
                for (uint32_t o = 0; o < OUTER; ++o) {
                    const float* x = frame.at<float>(r, 32) + o * length;
                    double most = -1e9, total = 0, plain = 0, size = 0;
                    for (uint32_t i = 0; i < length; ++i) most = std::max<double>(most, x[i]);
                    for (uint32_t i = 0; i < length; ++i) {
                        total += std::exp(x[i] - most);
                        plain += x[i];
                        size += std::abs(x[i]);
                    }
                    for (uint32_t i = 0; i < length; ++i) {
                        CHECK(std::abs(frame.at<float>(r, out)[o * length + i] - std::exp(x[i] - most) / total) < 2e-6);
                    }
                    CHECK(std::abs(frame.at<float>(r, out + OUTER * length * 4)[o] - plain) <= size * length * 0x1p-24);
                }
            }
            // A row alone, and in another order of threads: the same bits.
            const Memory<uint8_t> before(std::vector<uint8_t>(&frame.bytes[0], &frame.bytes[0] + frame.bytes.size()));
            emulate_seed(length);
            frame.run({softmax, sum}, 1, 1);
            CHECK(frame.bytes.same(before));
        }
    }
}

void indices_are_checked() {
    constexpr uint32_t COUNT = 5, WIDTH = 3, TABLE = 4;
    std::vector<float> table(TABLE * WIDTH);
    for (uint32_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
    const Memory<float> device(table);
    const int64_t rows[3][COUNT] = {{0, 3, -4, -1, 2}, {1, 9, 0, -5, 1}, {4, 4, 4, 4, INT64_MIN}};
    Frame frame(3, COUNT * 8 + COUNT * WIDTH * 4);
    for (uint32_t r = 0; r < 3; ++r) std::memcpy(frame.at<int64_t>(r, 32), rows[r], sizeof(rows[r]));
    GroupInstruction lookup = instruction(OP_LOOKUP, 0, {COUNT, WIDTH}, 1);
    lookup.sources = 2;
    lookup.k = WIDTH;
    lookup.table_rows = TABLE;
    lookup.source[0] = in_row(32, TYPE_I64, {1, 0});
    lookup.source[1] = in_row(0, TYPE_F32, {0, 1});
    lookup.source[1].at = device.address();
    lookup.source[1].is_address = 1;
    lookup.result[0] = in_row(32 + COUNT * 8, TYPE_F32, {WIDTH, 1});
    for (uint64_t seed = 0; seed < 5; ++seed) {
        emulate_seed(seed);
        for (uint32_t r = 0; r < 3; ++r) frame.record(r) = RowRecord{1, 0, 0, 0, 0};
        frame.run({lookup});
        CHECK(frame.record(0).refused == 0);
        CHECK(frame.record(1).refused == 1 && frame.record(1).index == 9 && frame.record(1).table_rows == TABLE);
        CHECK(frame.record(2).refused == 1 && frame.record(2).index == 4);
        for (uint32_t r = 0; r < 3; ++r) {
            for (uint32_t i = 0; i < COUNT * WIDTH; ++i) {
                const int64_t index = rows[r][i / WIDTH], row = index < 0 ? index + TABLE : index;
                const uint32_t from = row < 0 || row >= TABLE ? 0 : static_cast<uint32_t>(row);
                CHECK(frame.at<float>(r, 32 + COUNT * 8)[i] == static_cast<float>(from * WIDTH + i % WIDTH));
            }
        }
    }
}

}  // namespace

int main() {
    RUN(elements_are_right);
    RUN(floats_are_rounded_as_weights_are);
    RUN(stretches_are_right);
    RUN(indices_are_checked);
    return testing::finish();
}
