// Nodes of binary trees against f64: ragged batches, children that several nodes share, padding rows, children that are missing.
#include <algorithm>
#include <cmath>
#include "../abi.h"
#include "../abi_transfer.h"
#include "packing.h"
#include "testing.h"

namespace {

using testing::Memory;
using testing::Random;

struct Kernel {
    const char* tile;
    uint32_t rows, units, threads, slabs;
};
const Kernel STEPS[] = {{"64x8", 64, 8, 256, 16}, {"64x16", 64, 16, 256, 12}, {"64x32", 64, 32, 256, 6}, {"128x32", 128, 32, 384, 5}};
constexpr uint32_t CHILDREN = 30, GATES = 5;

std::vector<float> drawn(size_t count, uint64_t seed, float size) {
    Random random(seed);
    std::vector<float> values(count);
    for (float& v : values) v = size * random.signed_unit();
    return values;
}

std::vector<uint16_t> halves(const packing::Format& format, const std::vector<float>& values) {
    std::vector<uint16_t> rounded;
    for (const float v : values) rounded.push_back(format.to(v));
    return rounded;
}

// Nodes of a cell, and what became of them. What is no row's is NaN.
struct World {
    packing::Format format;
    uint32_t units, rows;
    bool begun;
    std::vector<float> w, u;
    Memory<uint16_t> weights, h;
    Memory<float> bias, begin, c, c_out, h_out;
    // Left and right child of each row; below 0: it is missing. A row without a slot is padding.
    std::vector<int> left, right;
    std::vector<bool> there;
    const uint32_t columns[6] = {4 * units, 0, 2 * units, units, 3 * units, 0};

    World(const packing::Format& format, uint32_t units, uint32_t rows, bool begun)
        : format(format), units(units), rows(rows), begun(begun), w(drawn(units * GATES * units, 1, 0.2f)), u(drawn(units * GATES * units, 2, 0.2f)),
          weights(packing::gates(format, GATES, w, u, units, units)), h(halves(format, drawn(CHILDREN * units, 3, 1.0f))), bias(drawn(GATES * units, 4, 1.0f)),
          begin(drawn(rows * GATES * units, 5, 1.0f)), c(drawn(CHILDREN * units, 6, 1.0f)), c_out(rows * units), h_out(rows * units) {
        Random random(7 + rows);
        for (uint32_t r = 0; r < rows; ++r) {
            const auto child = [&] { return static_cast<int>(random.below(CHILDREN + 3)) - 3; };
            left.push_back(child());
            right.push_back(child());
            there.push_back(rows < 3 || random.below(8) != 0);
        }
    }

    void run(const Kernel& kernel) {
        Memory<uint64_t> lists(5 * rows);
        // Of padding rows there may be anything in the matrices.
        Memory<uint16_t> of_left(rows * units), of_right(rows * units);
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t k = 0; there[r] && k < units; ++k) {
                const auto of = [&](int child) { return child < 0 ? uint16_t{0} : h[static_cast<size_t>(child) * units + k]; };
                of_left[r * units + k] = of(left[r]);
                of_right[r * units + k] = of(right[r]);
            }
            const auto put = [&](uint32_t list, bool is, const auto& memory, int row, uint64_t width) {
                lists[list * rows + r] = is && there[r] ? memory.address() + static_cast<uint64_t>(row) * width : 0;
            };
            put(0, left[r] >= 0, c, left[r], units * 4);
            put(1, right[r] >= 0, c, right[r], units * 4);
            put(2, begun && r % 3 != 0, begin, static_cast<int>(r), GATES * units * 4);
            put(3, true, c_out, static_cast<int>(r), units * 4);
            put(4, true, h_out, static_cast<int>(r), units * 4);
        }
        const auto list = [&](uint64_t number) { return lists.address() + number * rows * 8; };
        const auto map = [&](const auto& matrix) { return testing::tensor_map(matrix.address(), units, rows, units * 2); };
        const TreeStepArguments a{map(of_left), map(of_right), {0, list(0), list(2), 0, list(3), list(4), 0, rows, 0, 0}, list(1), weights.address(), bias.address(), units, 0,
                                  {columns[0], columns[1], columns[2], columns[3], columns[4], 0}, 0};
        const uint32_t blocks = (units + kernel.units - 1) / kernel.units * ((rows + kernel.rows - 1) / kernel.rows);
        const uint32_t shared = kernel.slabs * (kernel.rows + GATES * kernel.units) * 128;
        const std::string said = testing::launch(name(kernel).c_str(), {blocks, 1, 1}, kernel.threads, shared, a);
        if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
    }

    std::string name(const Kernel& kernel) const { return std::string("tree") + format.name + "_step_" + kernel.tile; }

    void compare(const std::string& name) const {
        const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t unit = 0; unit < units; ++unit) {
                const size_t at = r * units + unit;
                if (!there[r]) {
                    CHECK(std::isnan(c_out[at]) && std::isnan(h_out[at]));
                    continue;
                }
                double z[GATES];
                for (uint32_t gate = 0; gate < GATES; ++gate) {
                    const size_t place = columns[gate] + unit, column = gate * units + unit, width = GATES * units;
                    z[gate] = begun && r % 3 != 0 ? begin[r * width + place] : bias[place];
                    const auto add = [&](int child, const std::vector<float>& by) {
                        for (uint32_t k = 0; child >= 0 && k < units; ++k) {
                            z[gate] += format.from(h[static_cast<size_t>(child) * units + k]) * format.rounded(by[k * width + column]);
                        }
                    };
                    add(left[r], w);
                    add(right[r], u);
                }
                const auto kept = [&](int child) { return child < 0 ? 0.0 : static_cast<double>(c[static_cast<size_t>(child) * units + unit]); };
                const double next = sigmoid(z[0]) * std::tanh(z[4]) + sigmoid(z[1]) * kept(left[r]) + sigmoid(z[2]) * kept(right[r]);
                const double out = sigmoid(z[3]) * std::tanh(next);
                if (!(std::abs(c_out[at] - next) < 1e-3 && std::abs(h_out[at] - out) < 1e-3)) {
                    return testing::failed(__FILE__, __LINE__, name + ": row " + std::to_string(r) + ", unit " + std::to_string(unit));
                }
            }
        }
    }
};

void nodes_are_right_whatever_the_tile() {
    using packing::BF16, packing::F16;
    const struct {
        packing::Format format;
        uint32_t units, rows;
        bool begun;
    } cases[] = {{BF16, 64, 64, false}, {BF16, 72, 130, true}, {BF16, 8, 1, false}, {BF16, 200, 70, true}, {F16, 72, 130, true}, {F16, 64, 64, false}};
    for (const auto& one : cases) {
        if (testing::is_left_out(one.format.name)) continue;
        World first(one.format, one.units, one.rows, one.begun);
        first.run(STEPS[0]);
        first.compare(first.name(STEPS[0]));
        for (const Kernel& kernel : STEPS) {
            emulate_seed(one.rows);
            World world(one.format, one.units, one.rows, one.begun);
            world.run(kernel);
            CHECK(world.c_out.same(first.c_out) && world.h_out.same(first.h_out));
        }
    }
}

// Both children's h are rounded and padded, and their c padded.
void lists_are_made_where_rows_lie() {
    constexpr uint32_t OWN = 5, UNITS = 8, ROWS = 3, STRIDE = 256, H[] = {32, 64}, C[] = {96, 128}, FROM[] = {160, 176}, EXACT = 192, C_OUT = 224;
    for (const uint32_t begin : {uint32_t{16}, NOWHERE}) {
        const bool is_f16 = begin == NOWHERE;
        const packing::Format& format = is_f16 ? packing::F16 : packing::BF16;
        Memory<uint8_t> frame(ROWS * STRIDE);
        Memory<uint64_t> lists(5 * ROWS);
        const auto at = [&](uint32_t row, uint32_t place) { return reinterpret_cast<float*>(&frame[row * STRIDE + place]); };
        for (uint32_t r = 0; r < ROWS; ++r) {
            for (uint32_t e = 0; e < OWN; ++e) {
                for (uint32_t child = 0; child < 2; ++child) {
                    at(r, H[child])[e] = 0.3f * static_cast<float>(r + 1 + child) / static_cast<float>(e + 1);
                    at(r, C[child])[e] = static_cast<float>(r + e + 10 * child);
                }
            }
        }
        const TreeListArguments a{frame.address(), lists.address(), STRIDE, OWN, UNITS, begin, {H[0], H[1]}, {C[0], C[1]}, {FROM[0], FROM[1]}, EXACT, C_OUT,
                                  is_f16, 0, 0};
        CHECK(testing::launch("tree_rows", {ROWS, 1, 1}, 128, 0, a) == "");
        for (uint32_t r = 0; r < ROWS; ++r) {
            const uint32_t places[] = {C[0], C[1], begin, C_OUT, EXACT};
            for (uint32_t list = 0; list < 5; ++list) {
                CHECK(lists[list * ROWS + r] == (places[list] == NOWHERE ? 0 : frame.address() + r * STRIDE + places[list]));
            }
            for (uint32_t child = 0; child < 2; ++child) {
                const uint16_t* rounded = reinterpret_cast<const uint16_t*>(at(r, FROM[child]));
                for (uint32_t e = 0; e < UNITS; ++e) {
                    CHECK(rounded[e] == (e < OWN ? format.to(at(r, H[child])[e]) : 0));
                    CHECK(at(r, C[child])[e] == (e < OWN ? static_cast<float>(r + e + 10 * child) : 0.0f));
                }
            }
        }
    }
}

}  // namespace

int main() {
    RUN(nodes_are_right_whatever_the_tile);
    RUN(lists_are_made_where_rows_lie);
    return testing::finish();
}
