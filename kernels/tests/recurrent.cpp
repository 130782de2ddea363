// Steps of an LSTM and of a GRU against f64: ragged batches, batches that change from step to step, padding rows, rows whose state is zeros.
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
    // `slabs`: of as many there is room in shared memory.
    uint32_t rows, units, threads, slabs;
    bool resident = false;
    // Fewer blocks than tiles.
    bool turns = false;
    uint32_t blocks(uint32_t all_rows, uint32_t all_units) const {
        const uint32_t tiles = (all_units + units - 1) / units * ((all_rows + rows - 1) / rows);
        return turns ? tiles / 3 + 1 : tiles;
    }
    const char* of_step() const { return turns ? "turns" : "step"; }
    // Resident ones need `all` slabs of a tile's columns beside.
    uint32_t shared(uint32_t gates, uint32_t all) const { return 128 * (resident ? slabs * rows + all * gates * units : slabs * (rows + gates * units)); }
};
const Kernel STEPS[] = {{64, 8, 256, 16}, {64, 16, 256, 12}, {64, 32, 256, 8}, {128, 32, 384, 6}, {128, 32, 384, 6, false, true}};
const Kernel QUEUES[] = {{64, 32, 256, 8}, {128, 32, 384, 6}, {64, 8, 256, 8, true}, {64, 16, 256, 8, true}};

// What a cell computes with how many gates, and of which 16 bits.
struct Kind {
    const char* name;
    uint32_t gates;
    packing::Format format = packing::BF16;
    // Of a GRU: z says how much is taken of n.
    bool z_takes = false;
    std::string kernel(const char* what, const Kernel& kernel) const {
        return std::string(name) + format.name + "_" + what + "_" + std::to_string(kernel.rows) + "x" + std::to_string(kernel.units);
    }
};
const Kind LSTM{"lstm", 4}, GRU{"gru", 3}, LSTM_F16{"lstm", 4, packing::F16}, GRU_F16{"gru", 3, packing::F16}, TAKING{"gru", 3, packing::BF16, true},
    TAKING_F16{"gru", 3, packing::F16, true};

constexpr uint32_t SLOTS = 150, INPUT_ROWS = 40;

// A cell and the slots of its states. h has two rows for each slot: what it was and what it becomes. What is no row's is NaN. A GRU's c is its state in f32.
struct World {
    const Kind kind;
    uint32_t inputs, units, width;
    std::vector<float> w, u;
    Memory<uint16_t> weights, x, h;
    Memory<float> bias, begin, c, exact;
    // Where the gates begin in the bias and in a row of `begin`: in an order of their own.
    const uint32_t columns[4] = {2 * units, 0, kind.gates == 3 ? units : 3 * units, units};

    World(const Kind& kind, uint32_t inputs, uint32_t units, uint64_t seed)
        : kind(kind), inputs(inputs), units(units), width(kind.gates * units), w(drawn(inputs * width, seed, 0.2f)), u(drawn(units * width, seed + 1, 0.2f)),
          weights(packing::gates(kind.format, kind.gates, w, u, inputs, units)), x(halves(INPUT_ROWS * std::max(inputs, 8u), seed + 2, kind)), h(halves(2 * SLOTS * units, seed + 3, kind)),
          bias(drawn(width, seed + 4, 1.0f)), begin(drawn(INPUT_ROWS * width, seed + 5, 1.0f)), c(drawn(SLOTS * units, seed + 6, 1.0f)),
          exact(2 * SLOTS * units) {}

    static std::vector<float> drawn(size_t count, uint64_t seed, float size) {
        Random random(seed);
        std::vector<float> values(count);
        for (float& v : values) v = size * random.signed_unit();
        return values;
    }
    static std::vector<uint16_t> halves(size_t count, uint64_t seed, const Kind& kind) {
        std::vector<uint16_t> values;
        for (const float v : drawn(count, seed, 1.0f)) values.push_back(kind.format.to(v));
        return values;
    }
};

// A row as slots. One with slot -1 is padding; its input and its state may be missing.
struct Row {
    int slot, from, to, input, begin;
    bool fresh;
};

// Steps one behind the other: rows of both matrices, what each leaves for the next of its slot, and lists.
struct Steps {
    const World& world;
    const std::vector<std::vector<Row>> rows;
    Memory<uint16_t> x, h;
    std::vector<Memory<uint64_t>> lists;
    std::vector<LstmRows> arguments;

    Steps(const World& world, const std::vector<std::vector<Row>>& steps, bool with_begin, uint32_t sequence = 0)
        : world(world), rows(steps), x(count(steps) * std::max(world.inputs, 8u)), h(count(steps) * world.units) {
        // Where a slot's newest step leaves what the next one reads.
        std::vector<uint64_t*> newest(SLOTS, nullptr);
        uint32_t first = 0;
        for (const std::vector<Row>& step : steps) {
            const size_t size = step.size();
            lists.emplace_back(6 * size);
            Memory<uint64_t>& list = lists.back();
            for (size_t r = 0; r < size; ++r) {
                const Row& row = step[r];
                const bool padding = row.slot < 0;
                uint16_t* const own = &h[(first + r) * world.units];
                const auto at = [&](const auto& memory, int place, uint32_t width, uint64_t bytes) { return memory.address() + static_cast<uint64_t>(place) * width * bytes; };
                for (size_t number = 0; number < 6; ++number) list[number * size + r] = 0;
                for (uint32_t k = 0; !padding && k < world.inputs; ++k) {
                    x[(first + r) * world.inputs + k] = row.input < 0 ? 0 : world.x[static_cast<size_t>(row.input) * world.inputs + k];
                }
                if (padding) continue;
                uint64_t*& before = newest[static_cast<size_t>(row.slot)];
                for (uint32_t k = 0; k < world.units; ++k) {
                    if (row.fresh) own[k] = 0;
                    else if (!before) own[k] = world.h[static_cast<size_t>(row.from) * world.units + k];
                }
                if (before && !row.fresh) *before = reinterpret_cast<uint64_t>(own);
                before = &list[r];
                list[size + r] = row.fresh ? 0 : at(world.c, row.slot, world.units, 4);
                list[2 * size + r] = row.begin < 0 ? 0 : at(world.begin, row.begin, world.width, 4);
                list[3 * size + r] = at(world.h, row.to, world.units, 2);
                list[4 * size + r] = at(world.c, row.slot, world.units, 4);
                list[5 * size + r] = at(world.exact, row.to, world.units, 4);
            }
            const auto of = [&](size_t number) { return list.address() + number * size * 8; };
            arguments.push_back({of(0), of(1), with_begin ? of(2) : 0, of(3), of(4), of(5), first, static_cast<uint32_t>(size), sequence++, 0});
            first += static_cast<uint32_t>(size);
        }
    }

    TensorMap of_x() const { return testing::tensor_map(x.address(), world.inputs, count(rows), world.inputs * 2); }
    TensorMap of_h() const { return testing::tensor_map(h.address(), world.units, count(rows), world.units * 2); }

private:
    static size_t count(const std::vector<std::vector<Row>>& steps) {
        size_t all = 0;
        for (const auto& step : steps) all += step.size();
        return all;
    }
};

// Steps whose batches change: slots drawn anew, so that some states rest for a step. `parity` says which row of a slot holds its state.
std::vector<std::vector<Row>> schedule(const std::vector<uint32_t>& sizes, uint64_t seed, std::vector<int>& parity) {
    Random random(seed);
    std::vector<std::vector<Row>> steps;
    for (const uint32_t size : sizes) {
        std::vector<int> slots(SLOTS);
        for (int i = 0; i < static_cast<int>(SLOTS); ++i) slots[static_cast<size_t>(i)] = i;
        std::vector<Row> rows;
        for (uint32_t r = 0; r < size; ++r) {
            std::swap(slots[r], slots[r + random.below(SLOTS - r)]);
            const int slot = slots[r];
            if (size > 2 && random.below(8) == 0) {
                rows.push_back({-1, 0, 0, 0, 0, false});
                continue;
            }
            int& side = parity[static_cast<size_t>(slot)];
            Row row{slot, 2 * slot + side, 2 * slot + (side ^ 1), static_cast<int>(random.below(INPUT_ROWS + 3)), 0, random.below(6) == 0};
            if (row.input >= static_cast<int>(INPUT_ROWS)) row.input = -1;
            row.begin = random.below(4) == 0 ? -1 : static_cast<int>(random.below(INPUT_ROWS));
            side ^= 1;
            rows.push_back(row);
        }
        steps.push_back(rows);
    }
    return steps;
}

// The same steps in f64, on copies of the world's memory as it was before; h is rounded as the kernels leave it.
struct Reference {
    std::vector<double> h, c;
    std::vector<bool> h_written, c_written;

    explicit Reference(const World& world) : h(world.h.size()), c(world.c.size()), h_written(h.size()), c_written(c.size()) {
        for (size_t i = 0; i < h.size(); ++i) h[i] = world.kind.format.from(world.h[i]);
        for (size_t i = 0; i < c.size(); ++i) c[i] = world.c[i];
    }

    void step(const World& world, const std::vector<Row>& rows, bool with_begin) {
        const std::vector<double> h0 = h;
        const packing::Format& format = world.kind.format;
        for (const Row& row : rows) {
            if (row.slot < 0) continue;
            for (uint32_t unit = 0; unit < world.units; ++unit) {
                // What a gate's sum begins with, and what is added to it.
                double begun[4], z[4];
                for (uint32_t gate = 0; gate < world.kind.gates; ++gate) {
                    const size_t column = gate * world.units + unit, width = world.width, place = world.columns[gate] + unit;
                    const bool known = with_begin && row.begin >= 0;
                    begun[gate] = known ? world.begin[static_cast<size_t>(row.begin) * width + place] : 0;
                    z[gate] = world.kind.gates == 3 || !known ? world.bias[place] : 0;
                    for (uint32_t k = 0; row.input >= 0 && k < world.inputs; ++k) {
                        z[gate] += format.from(world.x[static_cast<size_t>(row.input) * world.inputs + k]) * format.rounded(world.w[k * width + column]);
                    }
                    for (uint32_t k = 0; !row.fresh && k < world.units; ++k) {
                        z[gate] += h0[static_cast<size_t>(row.from) * world.units + k] * format.rounded(world.u[k * width + column]);
                    }
                }
                const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
                const size_t at = static_cast<size_t>(row.slot) * world.units + unit, to = static_cast<size_t>(row.to) * world.units + unit;
                const double old = row.fresh ? 0 : c[at];
                if (world.kind.gates == 3) {
                    const double of_z = sigmoid(z[1] + begun[1]), keeps = world.kind.z_takes ? 1 - of_z : of_z, n = std::tanh(begun[2] + sigmoid(z[0] + begun[0]) * z[2]);
                    c[at] = (1 - keeps) * n + keeps * old;
                    h[to] = format.rounded(static_cast<float>(c[at]));
                } else {
                    c[at] = sigmoid(z[1] + begun[1]) * old + sigmoid(z[0] + begun[0]) * std::tanh(z[2] + begun[2]);
                    h[to] = format.rounded(static_cast<float>(sigmoid(z[3] + begun[3]) * std::tanh(c[at])));
                }
                c_written[at] = h_written[to] = true;
            }
        }
    }

    // Values that no step wrote must be untouched to the bit.
    void compare(const std::string& name, const World& world, double most) const {
        const packing::Format& format = world.kind.format;
        for (size_t i = 0; i < c.size(); ++i) {
            const double off = std::abs(world.c[i] - c[i]);
            if (c_written[i] ? !(off <= most) : off != 0) return testing::failed(__FILE__, __LINE__, text(name, "c", i, world.c[i], c[i]));
        }
        for (size_t i = 0; i < h.size(); ++i) {
            const double off = std::abs(format.from(world.h[i]) - h[i]);
            // One rounding apart, where both lie at its edge.
            if (h_written[i] ? !(off <= most + format.step) : off != 0) {
                return testing::failed(__FILE__, __LINE__, text(name, "h", i, format.from(world.h[i]), h[i]));
            }
            // What is left in f32 is what was rounded; a GRU has it in its state.
            if (h_written[i] && world.kind.gates == 4 ? format.to(world.exact[i]) != world.h[i] : !std::isnan(world.exact[i])) {
                return testing::failed(__FILE__, __LINE__, text(name, "exact h", i, world.exact[i], format.from(world.h[i])));
            }
        }
    }
    static std::string text(const std::string& kernel, const char* what, size_t i, double got, double expected) {
        return kernel + ": " + what + "[" + std::to_string(i) + "] is " + std::to_string(got) + ", not " + std::to_string(expected);
    }
};

LstmStepArguments arguments_of(const Steps& steps, const LstmRows& rows, uint64_t there = 0, uint32_t number = 0) {
    const World& world = steps.world;
    return {steps.of_x(), steps.of_h(), rows, world.weights.address(), world.bias.address(), world.inputs, world.units,
            {world.columns[0], world.columns[1], world.columns[2], world.columns[3]}, there, world.kind.z_takes, number, {}};
}

// Runs one of the steps.
void run_step(const Kernel& kernel, const Steps& steps, size_t step) {
    const World& world = steps.world;
    const LstmStepArguments a = arguments_of(steps, steps.arguments[step]);
    const uint32_t blocks = kernel.blocks(a.rows.rows, world.units);
    const std::string name = world.kind.kernel(kernel.of_step(), kernel);
    const std::string said = testing::launch(name.c_str(), {blocks, 1, 1}, kernel.threads, kernel.shared(world.kind.gates, 0), a);
    if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
}

void run_steps(const Kernel& kernel, const Steps& steps) {
    for (size_t step = 0; step < steps.rows.size(); ++step) run_step(kernel, steps, step);
}

// Of a GRU no input is multiplied in a step.
void steps_are_right() {
    const struct {
        Kind kind;
        uint32_t inputs, units;
        std::vector<uint32_t> sizes;
        bool begin;
    } cases[] = {{LSTM, 64, 64, {64, 17}, false},  {LSTM, 584, 64, {20, 10}, false}, {LSTM, 40, 72, {130, 65}, false}, {LSTM, 0, 128, {1, 70}, true},
                 {LSTM, 136, 8, {2}, true},        {LSTM, 1224, 8, {20}, true},        {LSTM, 1104, 16, {3}, false},
                 {LSTM, 1472, 64, {20}, false},    {LSTM, 448, 64, {9}, true},         {GRU, 0, 512, {5}, true},                {GRU, 0, 64, {64, 17}, true},     {GRU, 0, 72, {130, 65}, true},    {GRU, 0, 200, {1, 70}, false},
                 {GRU, 0, 8, {2}, true},           {LSTM_F16, 40, 72, {130, 65}, true}, {GRU_F16, 0, 72, {130, 65}, true},
                 {TAKING, 0, 72, {130, 65}, true},  {TAKING_F16, 0, 64, {64, 17}, true}};
    for (const auto& one : cases) {
        if ((testing::SANITIZED && one.inputs > 1200) || testing::is_left_out(one.kind.format.name)) continue;
        for (const Kernel& kernel : STEPS) {
            World world(one.kind, one.inputs, one.units, 10 + one.units);
            Reference reference(world);
            std::vector<int> parity(SLOTS);
            const Steps steps(world, schedule(one.sizes, 3, parity), one.begin);
            run_steps(kernel, steps);
            for (const auto& rows : steps.rows) reference.step(world, rows, one.begin);
            reference.compare(one.kind.kernel(kernel.of_step(), kernel), world, 1e-3);
        }
    }
}

// The states after a few steps, by any tile and in any order of threads: the same bits.
void no_bit_depends_on_tiles_or_the_order_of_threads() {
    for (const Kind& kind : {LSTM, GRU, LSTM_F16, GRU_F16}) {
        if (testing::is_left_out(kind.format.name)) continue;
        std::vector<Memory<uint16_t>> h;
        std::vector<Memory<float>> c;
        for (uint64_t seed = 0; seed < 3; ++seed) {
            for (const Kernel& kernel : STEPS) {
                emulate_seed(seed);
                World world(kind, kind.gates == 3 ? 0 : 48, 40, 1);
                std::vector<int> parity(SLOTS);
                run_steps(kernel, Steps(world, schedule({70, 30}, 4, parity), kind.gates == 3));
                h.push_back(std::move(world.h));
                c.push_back(std::move(world.c));
                CHECK(h.back().same(h.front()) && c.back().same(c.front()));
            }
        }
    }
}

// Blocks that have tiles by turns leave the same bits however few they are, and whatever the order of threads: of one slab, and of more than the ring has stages.
void turns_do_not_depend_on_how_many_blocks_there_are() {
    const Kernel& kernel = STEPS[4];
    for (const auto& [kind, units] : {std::pair{LSTM, 64u}, {LSTM, 448u}, {GRU, 128u}}) {
        World alone(kind, 0, units, 30);
        std::vector<int> parity(SLOTS);
        const auto rows = schedule({140}, 6, parity);
        run_steps(STEPS[3], Steps(alone, rows, true));
        const uint32_t tiles = units / kernel.units * 2;
        for (const uint32_t blocks : {1u, 2u, 3u, tiles, tiles + 2}) {
            emulate_seed(blocks);
            World world(kind, 0, units, 30);
            const Steps steps(world, rows, true);
            const LstmStepArguments a = arguments_of(steps, steps.arguments[0]);
            CHECK(testing::launch(kind.kernel("turns", kernel).c_str(), {blocks, 1, 1}, kernel.threads, kernel.shared(kind.gates, 0), a) == "");
            CHECK(world.h.same(alone.h) && world.c.same(alone.c) && world.exact.same(alone.exact));
        }
    }
}

// A launch that is told the number of its step finds its rows by the batch's head, however many more it was made for.
void steps_are_found_by_their_number() {
    for (const auto& [kernel, kind] : {std::pair{STEPS[0], LSTM}, {STEPS[1], LSTM}, {STEPS[2], GRU}, {STEPS[3], LSTM_F16}, {STEPS[4], LSTM}, {STEPS[4], GRU}}) {
        World alone(kind, 0, 40, 40), world(kind, 0, 40, 40);
        std::vector<int> parity(SLOTS);
        const auto rows = schedule({70, 30, 1}, 6, parity);
        run_steps(kernel, Steps(alone, rows, true));
        const Steps steps(world, rows, true);
        const Memory<LstmRows> told(steps.arguments);
        const Memory<BatchHead> head({BatchHead{101, 0, 0, 0, 0, 0, 0, 0, told.address()}});
        for (uint32_t number = 1; number <= rows.size(); ++number) {
            // What it was made with is of no step.
            const LstmStepArguments a = arguments_of(steps, {8, 8, 8, 8, 8, 8, 8, 1000, 0, 0}, head.address(), number);
            const std::string name = kind.kernel(kernel.of_step(), kernel);
            CHECK(testing::launch(name.c_str(), {kernel.blocks(128, world.units), 1, 1}, kernel.threads, kernel.shared(kind.gates, 0), a) == "");
        }
        CHECK(world.h.same(alone.h) && world.c.same(alone.c) && world.exact.same(alone.exact));
    }
}

// A queue leaves the bits that its steps leave one by one, whatever the tiles and the blocks.
void queues_are_right() {
    for (const Kind& kind : {LSTM, GRU, LSTM_F16, GRU_F16, TAKING, TAKING_F16}) {
        if (testing::is_left_out(kind.format.name)) continue;
        const bool begun = kind.gates == 3;
        const uint32_t inputs = begun ? 0 : 72, slabs = begun ? 1 : 3;
        World alone(kind, inputs, 64, 20);
        Reference reference(alone);
        {
            std::vector<int> parity(SLOTS);
            const Steps steps(alone, schedule({20, 140, 1, 70}, 5, parity), begun);
            run_steps(STEPS[2], steps);
            for (const auto& rows : steps.rows) reference.step(alone, rows, begun);
            reference.compare(kind.kernel("step", STEPS[2]), alone, 2e-2);
        }
        for (const Kernel& kernel : QUEUES) {
            for (const uint32_t wanted : {1u, 3u, 5u, 9u}) {
                emulate_seed(wanted);
                World world(kind, inputs, 64, 20);
                const uint32_t across = world.units / kernel.units;
                const uint32_t grid = kernel.resident ? (wanted + across - 1) / across * across : wanted;
                std::vector<int> parity(SLOTS);
                const Steps steps(world, schedule({20, 140, 1, 70}, 5, parity), begun, 100);
                const Memory<LstmRows> queue(steps.arguments);
                Memory<uint32_t> words(2);
                words[0] = 0;
                const LstmQueueArguments a{steps.of_x(),         steps.of_h(),
                                           queue.address(),      words.address(), words.address() + 4, world.weights.address(), world.bias.address(),
                                           static_cast<uint32_t>(steps.rows.size()), world.inputs,    world.units,         kind.z_takes,
                                           {world.columns[0], world.columns[1], world.columns[2], world.columns[3]}, {}};
                const std::string name = kind.kernel(kernel.resident ? "resident" : "queue", kernel);
                const std::string said = testing::launch(name.c_str(), {grid, 1, 1}, kernel.threads, kernel.shared(kind.gates, slabs), a);
                if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
                CHECK(world.h.same(alone.h) && world.c.same(alone.c) && world.exact.same(alone.exact));
                CHECK(words[0] == grid * steps.rows.size() && words[1] == 103);
            }
        }
    }
}

void resident_weights_need_their_blocks() {
    World world(LSTM, 0, 64, 1);
    const LstmQueueArguments a{{}, {}, 0, 0, 0, world.weights.address(), 0, 0, 0, world.units, 0, {}, {}};
    CHECK_HAS(testing::launch("lstm_resident_64x8", {12, 1, 1}, 256, 65536 + 4096, a), "a trap");
}

// Rows of a frame: of the first step what was gathered, rounded and padded; of later ones the row of the step before. What nobody wants any more is
// not wanted later either.
void lists_are_made_where_rows_lie() {
    constexpr uint32_t OWN = 5, UNITS = 8, ROWS = 7, STRIDE = 256, H = 32, C = 64, BEGIN = 96, EXACT = 224 - 32, C_OUT = 224, H_FROM = 112, H_OUT = 128;
    // Rows 0, 2 and 5 are one lane, 1, 3 and 6 another; row 4 is alone.
    const uint32_t before[ROWS] = {NOWHERE, NOWHERE, 0, 1, NOWHERE, 2, 3}, after[ROWS] = {2, 3, 5, 6, NOWHERE, NOWHERE, NOWHERE};
    for (uint64_t seed = 0; seed < 4; ++seed) {
        for (const bool with_entries : {true, false}) {
            const bool is_f16 = seed >= 2;
            const packing::Format& format = is_f16 ? packing::F16 : packing::BF16;
            emulate_seed(seed);
            Memory<uint8_t> frame(ROWS * STRIDE);
            Memory<RowEntry> entries(ROWS);
            Memory<uint64_t> lists(6 * ROWS);
            Memory<uint32_t> counter(2);
            const auto at = [&](uint32_t row, uint32_t place) { return reinterpret_cast<float*>(&frame[row * STRIDE + place]); };
            const auto record = [&](uint32_t row) { return reinterpret_cast<RowRecord*>(&frame[row * STRIDE]); };
            for (uint32_t r = 0; r < ROWS; ++r) {
                entries[r].before = before[r];
                entries[r].after = after[r];
                *record(r) = {1, 0, 0, 0, 0};
                for (uint32_t e = 0; e < OWN; ++e) {
                    at(r, H)[e] = 0.3f * static_cast<float>(r + 1) / static_cast<float>(e + 1);
                    at(r, C)[e] = static_cast<float>(r + e);
                }
            }
            record(0)->refused = 1;
            record(3)->live = 0;
            const LstmListArguments a{frame.address(), with_entries ? entries.address() : 0, lists.address(), counter.address(), 0, 0, 0, 0, 0, is_f16, STRIDE, OWN,
                                      UNITS,           H, C, seed % 2 ? BEGIN : NOWHERE,     EXACT,           C_OUT,             H_FROM, H_OUT, 0};
            CHECK(testing::launch("lstm_rows", {ROWS, 1, 1}, 128, 0, a) == "");
            CHECK(counter[0] == 0 && counter[1] == 0xffffffff);
            for (uint32_t r = 0; r < ROWS; ++r) {
                const uint32_t from = with_entries ? before[r] : NOWHERE;
                const auto place = [&](uint32_t row, uint32_t p) { return frame.address() + row * STRIDE + p; };
                CHECK(lists[r] == (!with_entries || after[r] == NOWHERE ? 0 : place(after[r], H_FROM)));
                CHECK(lists[ROWS + r] == (from == NOWHERE ? place(r, C) : place(from, C_OUT)));
                CHECK(lists[2 * ROWS + r] == (seed % 2 ? place(r, BEGIN) : 0));
                CHECK(lists[3 * ROWS + r] == place(r, H_OUT) && lists[4 * ROWS + r] == place(r, C_OUT) && lists[5 * ROWS + r] == place(r, EXACT));
                const bool dead = r == 3 || (with_entries && (r == 2 || r == 5 || r == 6));
                CHECK(record(r)->live == !dead && record(r)->refused == (r == 0));
                const uint16_t* rounded = reinterpret_cast<const uint16_t*>(at(r, H_FROM));
                for (uint32_t e = 0; e < UNITS && from == NOWHERE; ++e) {
                    CHECK(rounded[e] == (e < OWN ? format.to(at(r, H)[e]) : 0));
                    CHECK(at(r, C)[e] == (e < OWN ? static_cast<float>(r + e) : 0.0f));
                }
                CHECK(from == NOWHERE || (rounded[0] == 0xffff && std::isnan(at(r, C)[OWN])));
            }
        }
    }
}

// What sums begin with is the table's row of the token; a token that means none refuses its row, and what comes behind it is not wanted.
void beginnings_are_looked_up() {
    constexpr uint32_t ROWS = 6, STRIDE = 128, TOKEN = 32, ELSE = 48, TABLE = 1 << 20;
    const int64_t tokens[ROWS] = {3, -4, 4, -5, 0, 2};
    for (const uint32_t bytes : {8u, 4u}) {
        Memory<uint8_t> frame(ROWS * STRIDE);
        Memory<RowEntry> entries(ROWS);
        Memory<uint64_t> lists(6 * ROWS);
        Memory<uint32_t> counter(1);
        const auto record = [&](uint32_t row) { return reinterpret_cast<RowRecord*>(&frame[row * STRIDE]); };
        for (uint32_t r = 0; r < ROWS; ++r) {
            entries[r].before = r < 3 ? NOWHERE : r - 3;
            entries[r].after = NOWHERE;
            *record(r) = {1, 0, 0, 0, 0};
            std::memcpy(&frame[r * STRIDE + TOKEN], &tokens[r], bytes);
        }
        const LstmListArguments a{frame.address(), entries.address(), lists.address(), counter.address(), TABLE, 4, 512, TOKEN, bytes, 0, STRIDE, 0, 0,
                                  ELSE,            ELSE,              NOWHERE,         ELSE,              ELSE,  ELSE, ELSE, 0};
        CHECK(testing::launch("lstm_rows", {ROWS, 1, 1}, 128, 0, a) == "");
        const uint32_t rows[ROWS] = {3, 0, 0, 0, 0, 2};
        for (uint32_t r = 0; r < ROWS; ++r) {
            const bool bad = r == 2 || r == 3;
            CHECK(lists[2 * ROWS + r] == TABLE + rows[r] * 512);
            CHECK(record(r)->refused == bad && record(r)->live == (r != 5));
            CHECK(!bad || (record(r)->index == tokens[r] && record(r)->table_rows == 4));
        }
    }
}

// Rows that are gathered and listed at once: states are read and left where they are held, or in the frame if they are held nowhere.
void rows_are_gathered_and_listed_at_once() {
    constexpr uint32_t UNITS = 16, ROWS = 8, BLOCKS = ROWS + 3, STRIDE = 320, EXACT = 32, C_OUT = 96, H_FROM = 160, H_NODE = 64, C_NODE = 0, TABLE = 1 << 20;
    // Rows 0, 2 and 4 are one lane, 1 and 3 another, whose first row is refused; row 5 has ended, row 6 is held nowhere and begins with zeros, and so does 7 behind it.
    const uint32_t before[ROWS] = {NOWHERE, NOWHERE, 0, 1, 2, NOWHERE, NOWHERE, 6}, after[ROWS] = {2, 3, 4, NOWHERE, NOWHERE, NOWHERE, 7, NOWHERE};
    for (uint64_t seed = 0; seed < 8; ++seed) {
        const bool is_f16 = seed % 2, on_device = seed % 4 >= 2;
        const uint32_t token_bytes = seed < 4 ? 8 : 4;
        const packing::Format& format = is_f16 ? packing::F16 : packing::BF16;
        emulate_seed(seed);
        Memory<uint8_t> frame(BLOCKS * STRIDE), nodes(ROWS * 128);
        Memory<float> states(ROWS * 2 * UNITS);
        Memory<int64_t> tokens(ROWS);
        Memory<RowEntry> entries(ROWS);
        Memory<uint64_t> addresses(ROWS * 3), lists(6 * BLOCKS);
        Memory<uint32_t> counter(2), executed(1);
        executed[0] = 3;
        for (size_t e = 0; e < states.size(); ++e) states[e] = 0.01f * static_cast<float>(e) - 1.0f;
        for (uint32_t r = 0; r < ROWS; ++r) {
            const bool held = r < 6, ends = r == 5;
            entries[r] = {held ? nodes.address() + r * 128 : 0, ends ? 0 : NOWHERE, NOWHERE, 3, NOWHERE, before[r], NOWHERE, after[r], 0};
            tokens[r] = r == 1 ? 9 : r == 2 ? -1 : static_cast<int64_t>(r % 4);
            addresses[3 * r] = r == 6 ? 0 : states.address() + r * 2 * UNITS * 4;
            addresses[3 * r + 1] = r == 7 ? 0 : tokens.address() + r * 8;
            addresses[3 * r + 2] = r == 6 ? 0 : states.address() + (r * 2 + 1) * UNITS * 4;
        }
        const BatchHead head{ROWS, 0, addresses.address(), entries.address(), executed.address(), 0, 0, 0, 0};
        Memory<BatchHead> there(1);
        there[0] = head;
        const LstmGatherArguments a{frame.address(), on_device ? there.address() : 0, lists.address(), counter.address(), TABLE, 4, 512, token_bytes, 3, 1, 0, 2, H_NODE, C_NODE,
                                    STRIDE, UNITS, is_f16, EXACT, C_OUT, H_FROM, on_device ? BatchHead{} : head};
        CHECK(testing::launch("lstm_gather", {BLOCKS, 1, 1}, 128, 0, a) == "");
        CHECK(counter[0] == 0 && counter[1] == 0xffffffff);
        const uint32_t found[ROWS] = {0, 0, 3, 3, 0, 1, 2, 0};
        for (uint32_t r = 0; r < ROWS; ++r) {
            const auto place = [&](uint32_t row, uint32_t p) { return frame.address() + row * STRIDE + p; };
            const auto left = [&](uint32_t row, uint32_t in_frame, uint32_t in_node) { return row < 6 ? nodes.address() + row * 128 + in_node : place(row, in_frame); };
            const auto record = reinterpret_cast<const RowRecord*>(&frame[r * STRIDE]);
            const bool refused = r == 1, dead = r == 3 || r == 5;
            CHECK(record->live == !dead && record->refused == refused);
            CHECK(!refused || (record->index == 9 && record->table_rows == 4));
            const uint32_t from = before[r];
            CHECK(lists[r] == (after[r] == NOWHERE ? 0 : place(after[r], H_FROM)));
            CHECK(lists[BLOCKS + r] == (from == NOWHERE ? addresses[3 * r + 2] : left(from, C_OUT, C_NODE)));
            CHECK(lists[2 * BLOCKS + r] == TABLE + found[r] * 512);
            CHECK(lists[4 * BLOCKS + r] == (dead || refused ? 0 : left(r, C_OUT, C_NODE)));
            CHECK(lists[5 * BLOCKS + r] == (dead || refused ? 0 : left(r, EXACT, H_NODE)));
            const uint16_t* rounded = reinterpret_cast<const uint16_t*>(&frame[r * STRIDE + H_FROM]);
            for (uint32_t e = 0; e < UNITS; ++e) {
                CHECK(rounded[e] == (from != NOWHERE ? 0xffff : r == 6 ? 0 : format.to(states[r * 2 * UNITS + e])));
            }
        }
        for (uint32_t r = ROWS; r < BLOCKS; ++r) {
            for (uint32_t list = 0; list < 6; ++list) CHECK(lists[list * BLOCKS + r] == 0);
        }
    }
}

}  // namespace

int main() {
    RUN(steps_are_right);
    RUN(no_bit_depends_on_tiles_or_the_order_of_threads);
    RUN(turns_do_not_depend_on_how_many_blocks_there_are);
    RUN(steps_are_found_by_their_number);
    RUN(queues_are_right);
    RUN(lists_are_made_where_rows_lie);
    RUN(beginnings_are_looked_up);
    RUN(rows_are_gathered_and_listed_at_once);
    RUN(resident_weights_need_their_blocks);
    return testing::finish();
}
