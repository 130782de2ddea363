// What sees whole spans against f64: rows in several runs, none and many, narrow and wide; attention with masks; and refusals that come to a row of a frame.
#include <algorithm>
#include <cmath>
#include <functional>
#include "../abi_group.h"
#include "../abi_spans.h"
#include "../abi_transfer.h"
#include "testing.h"

namespace {

using testing::Memory;

constexpr uint32_t ROWS[] = {0, 1, 33, 150};

// Spans of one operand, of a node each: rows of floats in runs of any length, some rows apart.
struct Spans {
    uint32_t width;
    Memory<float> numbers;
    std::vector<std::vector<uint32_t>> rows;
    std::vector<SpanRun> runs;
    std::vector<SpanRows> list;
    Memory<SpanRun> held_runs{0};
    Memory<SpanRows> held{0};

    Spans(const std::vector<uint32_t>& counts, uint32_t width, testing::Random& random) : width(width), numbers(1000 * width) {
        // Ties among them.
        for (uint32_t i = 0; i < 1000 * width; ++i) numbers[i] = i % 5 ? 2 * random.signed_unit() : static_cast<float>(random.below(3));
        for (const uint32_t count : counts) {
            rows.emplace_back();
            const size_t first_run = runs.size();
            while (rows.back().size() < count) {
                const uint32_t left = count - static_cast<uint32_t>(rows.back().size()), length = 1 + random.below(left), apart = 1 + random.below(3);
                const uint32_t first = random.below(500);
                runs.push_back({numbers.address() + first * width * 4, static_cast<uint64_t>(apart) * width * 4, length, 0});
                for (uint32_t row = 0; row < length; ++row) rows.back().push_back(first + row * apart);
            }
            list.push_back({first_run, count});
        }
        held_runs = Memory<SpanRun>(runs);
        for (SpanRows& rows : list) rows.runs = held_runs.address() + rows.runs * sizeof(SpanRun);
        held = Memory<SpanRows>(list);
    }
    double at(uint32_t node, uint32_t row, uint32_t column) const { return numbers[rows[node][row] * width + column]; }
    uint32_t count(uint32_t node) const { return static_cast<uint32_t>(rows[node].size()); }
};

// One row for each node.
std::vector<uint32_t> ones(size_t nodes) { return std::vector<uint32_t>(nodes, 1); }

// Where results of nodes go, of so many elements each, one behind the other.
template <class T>
struct Results {
    std::vector<uint64_t> first;
    std::vector<size_t> offsets;
    Memory<T> values;
    Memory<uint64_t> held{0};

    explicit Results(const std::vector<uint32_t>& sizes) : values(total(sizes) + 1) {
        size_t offset = 0;
        for (const uint32_t size : sizes) {
            offsets.push_back(offset);
            first.push_back(values.address() + offset * sizeof(T));
            offset += size;
        }
        held = Memory<uint64_t>(first);
    }
    static size_t total(const std::vector<uint32_t>& sizes) {
        size_t sum = 0;
        for (const uint32_t size : sizes) sum += size;
        return sum;
    }
    const T& at(uint32_t node, size_t element) const { return values[offsets[node] + element]; }
};

void run_span(SpanArguments a, uint32_t nodes) {
    const std::string said = testing::launch("span", {nodes, 1, 1}, 128, 0, a);
    if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
}

bool near(double got, double expected) { return std::isnan(expected) ? std::isnan(got) : got == expected || std::abs(got - expected) < 2e-5 * (1 + std::abs(expected)); }

void columns_are_reduced_and_spread() {
    testing::Random random(1);
    const std::vector<uint32_t> counts(std::begin(ROWS), std::end(ROWS));
    for (const uint32_t width : {1u, 5u, 40u, 200u}) {
        const Spans x(counts, width, random);
        for (uint32_t op = SPAN_SUM; op <= SPAN_CUM_SUM; ++op) {
            for (const uint32_t flags : op == SPAN_CUM_SUM ? std::vector<uint32_t>{0, FLAG_EXCLUSIVE, FLAG_REVERSE, FLAG_EXCLUSIVE | FLAG_REVERSE} : std::vector<uint32_t>{0}) {
                const bool is_spread = op >= SPAN_SOFTMAX;
                std::vector<uint32_t> sizes;
                for (const uint32_t count : counts) sizes.push_back(width * (is_spread ? count : 1));
                const Results<float> y(sizes);
                run_span({{x.held.address(), 0}, {y.held.address(), 0}, 0, {width * 4, 0}, op, flags, width, 1, 1, 0}, static_cast<uint32_t>(counts.size()));
                for (uint32_t node = 0; node < counts.size(); ++node) {
                    for (uint32_t column = 0; column < width; ++column) {
                        const uint32_t rows = counts[node];
                        double sum = 0, most = -INFINITY, weights = 0, before = 0;
                        for (uint32_t row = 0; row < rows; ++row) sum += x.at(node, row, column), most = std::max(most, x.at(node, row, column));
                        for (uint32_t row = 0; row < rows; ++row) weights += std::exp(x.at(node, row, column) - most);
                        if (!is_spread) {
                            CHECK(near(y.at(node, column), op == SPAN_SUM ? sum : op == SPAN_MEAN ? sum / rows : most));
                            continue;
                        }
                        for (uint32_t number = 0; number < rows; ++number) {
                            const uint32_t row = flags & FLAG_REVERSE ? rows - 1 - number : number;
                            const double value = x.at(node, row, column), added = before + value;
                            const double expected = op == SPAN_SOFTMAX       ? std::exp(value - most) / weights
                                                    : op == SPAN_LOG_SOFTMAX ? value - most - std::log(weights)
                                                    : flags & FLAG_EXCLUSIVE ? before
                                                                             : added;
                            before = added;
                            CHECK(near(y.at(node, row * width + column), expected));
                        }
                    }
                }
            }
        }
    }
}

void the_first_few_rows_are_in_order_or_too_few() {
    testing::Random random(2);
    const std::vector<uint32_t> counts = {3, 4, 70};
    for (const uint32_t width : {3u, 40u}) {
        for (const uint32_t flags : {0u, FLAG_SMALLEST, FLAG_LAST}) {
            const Spans x(counts, width, random);
            const Results<float> y({4 * width, 4 * width, 4 * width});
            const Results<int64_t> places({4 * width, 4 * width, 4 * width});
            const Memory<RowStatus> statuses(3);
            run_span({{x.held.address(), 0}, {y.held.address(), places.held.address()}, statuses.address(), {width * 4, width * 8}, SPAN_TOP, flags, width, 1, 4, 0}, 3);
            CHECK(statuses[0].status == ROW_REFUSED && statuses[0].why == REFUSED_TOO_FEW && statuses[0].index == 4 && statuses[0].table_rows == 3);
            CHECK(statuses[1].status == ROW_RAN && statuses[2].status == ROW_RAN);
            for (uint32_t node = 1; node < 3; ++node) {
                for (uint32_t column = 0; column < width; ++column) {
                    std::vector<int64_t> order(counts[node]);
                    for (uint32_t row = 0; row < counts[node]; ++row) order[row] = row;
                    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
                        const double one = x.at(node, static_cast<uint32_t>(a), column), other = x.at(node, static_cast<uint32_t>(b), column);
                        if (one != other) return flags & FLAG_SMALLEST ? one < other : one > other;
                        return flags & FLAG_LAST ? a > b : a < b;
                    });
                    for (uint32_t k = 0; k < 4; ++k) {
                        CHECK(places.at(node, k * width + column) == order[k]);
                        CHECK(y.at(node, k * width + column) == x.at(node, static_cast<uint32_t>(order[k]), column));
                    }
                }
            }
        }
    }
}

void rows_are_multiplied_and_mixed() {
    testing::Random random(3);
    const std::vector<uint32_t> counts(std::begin(ROWS), std::end(ROWS));
    const uint32_t nodes = static_cast<uint32_t>(counts.size()), width = 37;
    const Spans x(counts, width, random);
    for (const uint32_t columns : {1u, 6u}) {
        const Spans matrix(ones(nodes), width * columns, random), beside(counts, columns, random);
        std::vector<uint32_t> sizes;
        for (const uint32_t count : counts) sizes.push_back(count * columns);
        const Results<float> y(sizes), mixed(std::vector<uint32_t>(nodes, width * columns));
        run_span({{x.held.address(), matrix.held.address()}, {y.held.address(), 0}, 0, {columns * 4, 0}, SPAN_MAT_MUL, 0, width, columns, 1, 0}, nodes);
        run_span({{x.held.address(), beside.held.address()}, {mixed.held.address(), 0}, 0, {0, 0}, SPAN_MIX, 0, width, columns, 1, 0}, nodes);
        for (uint32_t node = 0; node < nodes; ++node) {
            for (uint32_t row = 0; row < counts[node]; ++row) {
                for (uint32_t column = 0; column < columns; ++column) {
                    double sum = 0;
                    for (uint32_t at = 0; at < width; ++at) sum += x.at(node, row, at) * matrix.at(node, 0, at * columns + column);
                    CHECK(near(y.at(node, row * columns + column), sum));
                }
            }
            for (uint32_t element = 0; element < width * columns; ++element) {
                double sum = 0;
                for (uint32_t row = 0; row < counts[node]; ++row) sum += x.at(node, row, element / columns) * beside.at(node, row, element % columns);
                CHECK(near(mixed.at(node, element), sum));
            }
        }
    }
}

void rows_are_repeated_and_found_by_number() {
    testing::Random random(4);
    const std::vector<uint32_t> counts = {0, 5, 40};
    const uint32_t width = 7;
    const Spans x(counts, width, random), own(ones(3), width, random);
    const Results<float> repeated({0, 5 * width, 40 * width}), found(std::vector<uint32_t>(3, 2 * width));
    run_span({{x.held.address(), own.held.address()}, {repeated.held.address(), 0}, 0, {width * 4, 0}, SPAN_REPEAT, 0, width * 4, 1, 1, 0}, 3);
    const Memory<int64_t> numbers(std::vector<int64_t>{0, 0, -1, 4, 3, 40});
    std::vector<SpanRun> runs;
    std::vector<SpanRows> rows;
    for (uint32_t node = 0; node < 3; ++node) runs.push_back({numbers.address() + node * 16, 16, 1, 0});
    const Memory<SpanRun> held_runs(runs);
    for (uint32_t node = 0; node < 3; ++node) rows.push_back({held_runs.address() + node * sizeof(SpanRun), 1});
    const Memory<SpanRows> held(rows);
    const Memory<RowStatus> statuses(3);
    run_span({{x.held.address(), held.address()}, {found.held.address(), 0}, statuses.address(), {width * 4, 0}, SPAN_GATHER, 0, width * 4, 1, 2, 0}, 3);
    for (uint32_t node = 1; node < 3; ++node) {
        for (uint32_t row = 0; row < counts[node]; ++row) {
            for (uint32_t column = 0; column < width; ++column) CHECK(repeated.at(node, row * width + column) == own.at(node, 0, column));
        }
    }
    for (uint32_t column = 0; column < width; ++column) {
        CHECK(found.at(1, column) == x.at(1, 4, column) && found.at(1, width + column) == x.at(1, 4, column));
        CHECK(found.at(2, column) == x.at(2, 3, column));
    }
    const auto refused = [&](uint32_t node, int64_t index, uint64_t of) {
        return statuses[node].status == ROW_REFUSED && statuses[node].why == REFUSED_SPAN_INDEX && statuses[node].index == index && statuses[node].table_rows == of;
    };
    CHECK(refused(0, 0, 0) && statuses[1].status == ROW_RAN && refused(2, 40, 40));
}

void attention_is_right_over_any_rows() {
    testing::Random random(5);
    const std::vector<uint32_t> counts = {0, 1, 64, 65, 150};
    const uint32_t nodes = static_cast<uint32_t>(counts.size()), heads = 4, key_heads = 2, depth = 9, size = 140, queries = 2;
    for (const uint32_t mask : {MASK_NONE, MASK_FLOATS, MASK_TRUTHS}) {
        for (const float softcap : {0.0f, 2.0f}) {
            // Rows of masks are as many bytes as rows of floats: what is true of them is said by the first bytes.
            Spans q(ones(nodes), queries * heads * depth, random), k(counts, key_heads * depth, random), v(counts, key_heads * size, random), m(counts, heads * queries, random);
            if (mask == MASK_TRUTHS) {
                uint8_t* const bytes = reinterpret_cast<uint8_t*>(&m.numbers[0]);
                for (size_t i = 0; i < m.numbers.size() * 4; ++i) bytes[i] = random.below(3) != 0;
            }
            const Results<float> y(std::vector<uint32_t>(nodes, queries * heads * size));
            const AttentionArguments a{q.held.address(), k.held.address(), v.held.address(), mask == MASK_NONE ? 0 : m.held.address(), y.held.address(), queries, heads, key_heads, depth, size, mask, mask == MASK_NONE ? 1 : heads, mask == MASK_NONE ? 1 : queries, 0.4f, softcap};
            const std::string said = testing::launch("attention", {nodes, key_heads, 1}, 128, 0, a);
            if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
            for (uint32_t node = 0; node < nodes; ++node) {
                for (uint32_t at = 0; at < queries * heads; ++at) {
                    const uint32_t query = at / heads, head = at % heads, of = head / (heads / key_heads);
                    std::vector<double> weights;
                    double total = 0;
                    for (uint32_t row = 0; row < counts[node]; ++row) {
                        double score = 0;
                        for (uint32_t d = 0; d < depth; ++d) score += q.at(node, 0, at * depth + d) * k.at(node, row, of * depth + d);
                        score *= 0.4;
                        if (softcap > 0) score = softcap * std::tanh(score / softcap);
                        if (mask == MASK_FLOATS) score += m.at(node, row, head * queries + query);
                        const uint8_t* const truths = reinterpret_cast<const uint8_t*>(&m.numbers[0]) + m.rows[node][row] * m.width * 4;
                        const bool counts_at_all = mask != MASK_TRUTHS || truths[head * queries + query];
                        weights.push_back(counts_at_all ? std::exp(score) : 0);
                        total += weights.back();
                    }
                    for (uint32_t e = 0; e < size; ++e) {
                        double expected = 0;
                        for (uint32_t row = 0; row < counts[node]; ++row) expected += weights[row] * v.at(node, row, of * size + e);
                        CHECK(near(y.at(node, at * size + e), total == 0 ? 0 : expected / total));
                    }
                }
            }
        }
    }
}

void a_row_is_refused_for_the_first_reason() {
    constexpr uint32_t STRIDE = 48;
    Memory<uint8_t> frame(3 * STRIDE);
    const auto record = [&](uint32_t row) { return reinterpret_cast<RowRecord*>(&frame[row * STRIDE]); };
    for (uint32_t row = 0; row < 3; ++row) *record(row) = RowRecord{row == 2 ? 0u : 1u, 0, 0, 0, 0};
    const RowStatus ran = {ROW_RAN, 0, 0, 0};
    const auto bad = [](uint32_t why, int64_t index) { return RowStatus{ROW_REFUSED, why, index, 9}; };
    std::vector<RowStatus> rows(300, ran);
    rows[250] = bad(REFUSED_INDEX, 1);
    rows[299] = bad(REFUSED_INDEX, 2);
    const Memory<RowStatus> of_rows(rows), of_nodes({bad(REFUSED_SPAN_INDEX, 3), bad(REFUSED_SPAN_INDEX, 4), bad(REFUSED_TOO_FEW, 5)});
    const Memory<uint32_t> offsets(std::vector<uint32_t>{0, 0, 300, 300});
    const Memory<SpanCheck> checks({{of_rows.address(), offsets.address()}, {of_nodes.address(), 0}});
    const SpanCheckArguments a{frame.address(), checks.address(), STRIDE, 2};
    CHECK(testing::launch("span_check", {3, 1, 1}, 128, 0, a) == "");
    const auto is = [&](uint32_t row, uint32_t live, uint32_t why, int64_t index) {
        return record(row)->live == live && record(row)->refused == why && record(row)->index == index && record(row)->table_rows == 9;
    };
    CHECK(is(0, 1, REFUSED_SPAN_INDEX, 3) && is(1, 1, REFUSED_INDEX, 1) && is(2, 0, REFUSED_TOO_FEW, 5));
}

}  // namespace

int main() {
    RUN(columns_are_reduced_and_spread);
    RUN(the_first_few_rows_are_in_order_or_too_few);
    RUN(rows_are_multiplied_and_mixed);
    RUN(rows_are_repeated_and_found_by_number);
    RUN(attention_is_right_over_any_rows);
    RUN(a_row_is_refused_for_the_first_reason);
    return testing::finish();
}
