// Products against sums in f64, and against themselves: no bit may depend on how many rows there are or on which tile computes them.
#include <algorithm>
#include <cmath>
#include "../abi.h"
#include "packing.h"
#include "testing.h"

namespace {

using testing::Memory;

enum class In { F32, Tf32, Bf16, F16, WideBf16, WideF16 };
constexpr const char* NAMES[] = {"product_f32_", "product_tf32_", "product_bf16_", "product_f16_", "wide_bf16_", "wide_f16_"};

struct Kind {
    In in;
    uint32_t tile;
    // Of products by warpgroups, and how many slabs are on their way at once.
    uint32_t columns = 0, stages = 0;
    bool turns = false;
    bool is_wide() const { return columns != 0; }
    std::string name() const {
        std::string name = NAMES[static_cast<int>(in)] + std::string(turns ? "turns_" : "") + std::to_string(tile);
        if (is_wide()) name.append("x").append(std::to_string(columns));
        return name;
    }
    uint32_t threads() const { return is_wide() ? 128 + 2 * tile : 128; }
    uint32_t shared() const {
        if (is_wide()) return stages * (tile + columns) * 128;
        return in == In::Bf16 || in == In::F16 ? PRODUCT_HALVES_SHARED(tile) : PRODUCT_F32_SHARED(tile);
    }
    // As many blocks as tiles, or some, which have them by turns.
    std::array<uint32_t, 3> grid(uint32_t rows, uint32_t n) const {
        const uint32_t down = (rows + tile - 1) / tile;
        if (!is_wide()) return {(n + 63) / 64, down, 1};
        return {(n + columns - 1) / columns * down / (turns ? 4 : 2) + 1, 1, 1};
    }
    // An operand as it is multiplied.
    float rounded(float x) const {
        switch (in) {
            case In::WideBf16:
            case In::Bf16: return packing::from_bf16(packing::to_bf16(x));
            case In::WideF16:
            case In::F16: return packing::from_f16(packing::to_f16(x));
            case In::Tf32: return packing::to_tf32(x);
            default: return x;
        }
    }
};
const Kind KINDS[] = {{In::F32, 16},  {In::F32, 64},   {In::F32, 128}, {In::Tf32, 16}, {In::Tf32, 64},
                      {In::Tf32, 128}, {In::Bf16, 16}, {In::Bf16, 64}, {In::Bf16, 128},
                      {In::F16, 16},   {In::F16, 64},  {In::F16, 128},
                      {In::WideBf16, 64, 64, 12},   {In::WideBf16, 128, 64, 8},
                      {In::WideBf16, 128, 128, 6},  {In::WideBf16, 128, 256, 4},
                      {In::WideBf16, 128, 128, 6, true},
                      {In::WideF16, 64, 64, 12},    {In::WideF16, 128, 64, 8},
                      {In::WideF16, 128, 128, 6},   {In::WideF16, 128, 256, 4},
                      {In::WideF16, 128, 128, 6, true}};

enum class Begins { Nothing, Bias, Row, InPlace };

// A product with all its memory. Rows of x and y are longer than they need be, and what lies beyond is NaN.
struct Case {
    uint32_t rows, n;
    std::vector<uint32_t> ks;
    Begins begins;
    std::vector<std::vector<float>> weights;  // k × n of each term
    std::vector<Memory<float>> xs;
    std::vector<size_t> x_strides;
    std::vector<Memory<float>> f32, tf32;
    std::vector<Memory<uint16_t>> bf16, f16;
    // Of products by warpgroups, in both formats: weights, and rows of x rounded.
    std::vector<std::array<Memory<uint16_t>, 2>> wide, rounded;
    std::vector<size_t> rounded_strides;
    size_t y_stride;
    Memory<float> begin, bias;

    Case(uint32_t rows, uint32_t n, std::vector<uint32_t> ks, Begins begins, uint64_t seed)
        : rows(rows), n(n), ks(ks), begins(begins), y_stride(packing::padded(n, 4) + 4), begin(rows * y_stride), bias(n) {
        testing::Random random(seed);
        for (const uint32_t k : ks) {
            const size_t stride = packing::padded(k, 4) + 8;
            x_strides.push_back(stride);
            std::vector<float> w(static_cast<size_t>(k) * n);
            for (float& v : w) v = random.signed_unit();
            f32.emplace_back(packing::f32(w, k, n));
            tf32.emplace_back(packing::tf32(w, k, n));
            bf16.emplace_back(packing::bf16(w, k, n));
            f16.emplace_back(packing::f16(w, k, n));
            weights.push_back(w);
            Memory<float> x(rows * stride);
            for (uint32_t r = 0; r < rows; ++r) {
                for (uint32_t i = 0; i < k; ++i) x[r * stride + i] = random.signed_unit();
            }
            xs.push_back(std::move(x));
            wide.push_back({Memory<uint16_t>(packing::wide(packing::BF16, w, k, n)), Memory<uint16_t>(packing::wide(packing::F16, w, k, n))});
            rounded_strides.push_back(packing::padded(k, 8) + 8);
            rounded.push_back({Memory<uint16_t>(rows * rounded_strides.back()), Memory<uint16_t>(rows * rounded_strides.back())});
        }
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t j = 0; j < n; ++j) begin[r * y_stride + j] = random.signed_unit();
        }
        for (uint32_t j = 0; j < n; ++j) bias[j] = random.signed_unit();
        round();
    }

    void round() {
        for (size_t t = 0; t < ks.size(); ++t) {
            for (uint32_t r = 0; r < rows; ++r) {
                for (uint32_t i = 0; i < ks[t]; ++i) {
                    const float x = xs[t][r * x_strides[t] + i];
                    rounded[t][0][r * rounded_strides[t] + i] = packing::to_bf16(x);
                    rounded[t][1][r * rounded_strides[t] + i] = packing::to_f16(x);
                }
            }
        }
    }

    uint64_t packed(In in, size_t term) const {
        switch (in) {
            case In::WideBf16: return wide[term][0].address();
            case In::WideF16: return wide[term][1].address();
            case In::Bf16: return bf16[term].address();
            case In::F16: return f16[term].address();
            case In::Tf32: return tf32[term].address();
            default: return f32[term].address();
        }
    }

    // y of `count` rows from `first` on.
    Memory<float> run(const Kind& kind, uint32_t first, uint32_t count) const {
        Memory<float> y(count * y_stride);
        ProductArguments a{};
        a.term_count = static_cast<uint32_t>(ks.size());
        for (size_t t = 0; t < ks.size(); ++t) {
            const size_t stride = kind.is_wide() ? rounded_strides[t] * 2 : x_strides[t] * 4;
            const uint64_t x = kind.is_wide() ? rounded[t][kind.in == In::WideF16].address() : xs[t].address();
            a.terms[t] = {x + first * stride, packed(kind.in, t), static_cast<uint32_t>(stride), ks[t]};
        }
        if (begins == Begins::InPlace) {
            for (uint32_t r = 0; r < count; ++r) {
                for (uint32_t j = 0; j < n; ++j) y[r * y_stride + j] = begin[(first + r) * y_stride + j];
            }
        }
        a.begin = begins == Begins::Row ? begin.address() + first * y_stride * 4 : begins == Begins::InPlace ? y.address() : 0;
        a.begin_stride = a.y_stride = static_cast<uint32_t>(y_stride * 4);
        a.bias = begins == Begins::Bias ? bias.address() : 0;
        a.y = y.address();
        a.rows = count;
        a.n = n;
        const auto launch = [&](const auto& arguments) { return testing::launch(kind.name().c_str(), kind.grid(count, n), kind.threads(), kind.shared(), arguments); };
        const std::string said = kind.is_wide() ? launch(testing::wide(a)) : launch(a);
        if (!said.empty()) testing::failed(__FILE__, __LINE__, said);
        return y;
    }

    // The same sum in f64, and how far f32 may be from it.
    std::pair<double, double> reference(const Kind& kind, uint32_t r, uint32_t j) const {
        double sum = begins == Begins::Nothing ? 0.0 : begins == Begins::Bias ? bias[j] : begin[r * y_stride + j];
        double size = std::abs(sum);
        uint32_t count = 1;
        for (size_t t = 0; t < ks.size(); ++t) {
            for (uint32_t i = 0; i < ks[t]; ++i) {
                const float x = kind.rounded(xs[t][r * x_strides[t] + i]), w = kind.rounded(weights[t][static_cast<size_t>(i) * n + j]);
                sum += static_cast<double>(x) * w;
                size += std::abs(static_cast<double>(x) * w);
            }
            count += ks[t];
        }
        return {sum, size * count * 0x1p-24};
    }

    void check(const Kind& kind, const Memory<float>& y) const {
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t j = 0; j < y_stride; ++j) {
                const float got = y[r * y_stride + j];
                if (j >= n) {
                    CHECK(std::isnan(got));
                    continue;
                }
                const auto [sum, most] = reference(kind, r, j);
                if (!(std::abs(got - sum) <= most)) {
                    testing::failed(__FILE__, __LINE__, kind.name() + ": row " + std::to_string(r) + " column " + std::to_string(j) + ": " +
                                                            std::to_string(got) + ", not " + std::to_string(sum));
                    return;
                }
            }
        }
    }
};

void every_shape_is_right() {
    const struct {
        uint32_t rows, n;
        std::vector<uint32_t> ks;
        Begins begins;
    } shapes[] = {
        {1, 1, {1}, Begins::Nothing},          {1, 64, {16}, Begins::Bias},           {2, 5, {3}, Begins::Row},
        {15, 70, {31}, Begins::InPlace},       {16, 63, {32}, Begins::Bias},          {17, 65, {33, 1}, Begins::Row},
        {63, 130, {64, 64}, Begins::Bias},     {64, 64, {128}, Begins::Nothing},      {65, 66, {100, 7, 50}, Begins::InPlace},
        {127, 12, {17}, Begins::Row},          {130, 129, {40, 90}, Begins::Bias},    {33, 200, {5, 4, 3, 2, 1, 16, 32, 33}, Begins::Row},
        {129, 270, {600}, Begins::InPlace},
    };
    for (const auto& shape : shapes) {
        const Case one(shape.rows, shape.n, shape.ks, shape.begins, shape.rows * 1000 + shape.n);
        for (const Kind& kind : KINDS) {
            if (!testing::is_left_out(kind.name())) one.check(kind, one.run(kind, 0, one.rows));
        }
    }
}

// Every part of a batch, by every tile: the same bits as the whole.
void no_bit_depends_on_rows_or_tiles() {
    testing::Random random(7);
    for (const Begins begins : {Begins::Nothing, Begins::Bias, Begins::Row, Begins::InPlace}) {
        const Case one(140, 70, {50, 33}, begins, 11);
        for (const In in : {In::F32, In::Tf32, In::Bf16, In::F16, In::WideBf16, In::WideF16}) {
            const auto is_in = [in](const Kind& kind) { return kind.in == in; };
            const Memory<float> whole = one.run(*std::find_if(std::begin(KINDS), std::end(KINDS), is_in), 0, one.rows);
            for (const Kind& kind : KINDS) {
                if (!is_in(kind)) continue;
                CHECK(one.run(kind, 0, one.rows).same(whole));
                for (int part = 0; part < 4; ++part) {
                    const uint32_t first = random.below(one.rows), count = part == 0 ? 1 : 1 + random.below(one.rows - first);
                    const Memory<float> some = one.run(kind, first, count);
                    CHECK(std::memcmp(&some[0], &whole[first * one.y_stride], count * one.y_stride * 4) == 0);
                }
            }
        }
    }
}

// In f32 the sum is one chain of fused multiply-adds, so all its bits are known.
void f32_is_one_chain() {
    const Case one(20, 40, {37, 20}, Begins::Bias, 5);
    const Memory<float> y = one.run({In::F32, 16}, 0, one.rows);
    for (uint32_t r = 0; r < one.rows; ++r) {
        for (uint32_t j = 0; j < one.n; ++j) {
            float sum = one.bias[j];
            for (size_t t = 0; t < one.ks.size(); ++t) {
                for (uint32_t i = 0; i < one.ks[t]; ++i) sum = std::fma(one.xs[t][r * one.x_strides[t] + i], one.weights[t][i * one.n + j], sum);
            }
            CHECK(y[r * one.y_stride + j] == sum);
        }
    }
}

// What tf32 is: 10 bits behind the point, ties away from zero, and hard numbers stay what they are. One product of one term, 1.0 · x.
void tf32_rounds_to_nearest_and_ties_away_from_zero() {
    const struct {
        uint32_t x, rounded;
    } numbers[] = {{0x3f801000, 0x3f802000}, {0xbf801000, 0xbf802000}, {0x3f800fff, 0x3f800000}, {0x3f803000, 0x3f804000}, {0x3f7fffff, 0x3f800000},
                   {0x7f800000, 0x7f800000}, {0xff800000, 0xff800000}, {0x7f7fffff, 0x7f800000}, {0x00801000, 0x00802000}, {0x00000000, 0x00000000}};
    for (const auto& number : numbers) CHECK(std::bit_cast<uint32_t>(packing::to_tf32(std::bit_cast<float>(number.x))) == number.rounded);
    constexpr uint32_t COUNT = std::size(numbers);
    for (const uint32_t tile : {16, 64, 128}) {
        Case one(COUNT + 2, 1, {1}, Begins::Nothing, 1);
        one.tf32[0] = Memory<float>(packing::tf32({1.0f}, 1, 1));
        for (uint32_t r = 0; r < COUNT; ++r) one.xs[0][r * one.x_strides[0]] = std::bit_cast<float>(numbers[r].x);
        // All that says that they are no numbers is in the bits that go.
        const uint32_t no_numbers[] = {0x7f800001, 0xffc00000};
        for (uint32_t r = 0; r < 2; ++r) std::memcpy(&one.xs[0][(COUNT + r) * one.x_strides[0]], &no_numbers[r], 4);
        const Memory<float> y = one.run({In::Tf32, tile}, 0, one.rows);
        for (uint32_t r = 0; r < COUNT; ++r) CHECK(y[r * one.y_stride] == std::bit_cast<float>(numbers[r].rounded));
        CHECK(std::isnan(y[COUNT * one.y_stride]) && std::isnan(y[(COUNT + 1) * one.y_stride]));
    }
}

// What f16 is: 10 bits behind the point, ties to even, subnormal numbers, and infinity beyond 65504. Products 1.0 · x, then x · 1.0: as a row and as a weight.
void f16_rounds_to_nearest_and_ties_to_even() {
    const struct {
        float x, rounded;
    } numbers[] = {{1 + 0x1p-11f, 1},         {1 + 0x1.002p-11f, 1 + 0x1p-10f}, {-1 - 0x1.8p-10f, -1 - 0x1p-9f}, {65519, 65504},        {65520, INFINITY},
                   {-1e30f, -INFINITY},       {INFINITY, INFINITY},             {0x1p-14f - 0x1p-25f, 0x1p-14f}, {0x1.4p-23f, 0x1p-23f}, {-0x1.cp-23f, -0x1p-22f},
                   {0x1p-25f, 0},             {0x1.002p-25f, 0x1p-24f},         {0x1.8p-14f, 0x1.8p-14f},        {-1e-45f, -0.0f},      {0, 0}};
    for (const auto& number : numbers) CHECK(packing::from_f16(packing::to_f16(number.x)) == number.rounded);
    constexpr uint32_t COUNT = std::size(numbers);
    for (const uint32_t tile : {16, 64, 128}) {
        Case rows(COUNT + 1, 1, {1}, Begins::Nothing, 1), columns(1, COUNT + 1, {1}, Begins::Nothing, 1);
        rows.f16[0] = Memory<uint16_t>(packing::f16({1.0f}, 1, 1));
        std::vector<float> w;
        for (uint32_t i = 0; i <= COUNT; ++i) {
            w.push_back(i < COUNT ? numbers[i].x : NAN);
            rows.xs[0][i * rows.x_strides[0]] = w.back();
        }
        columns.f16[0] = Memory<uint16_t>(packing::f16(w, 1, COUNT + 1));
        columns.xs[0][0] = 1.0f;
        const Memory<float> down = rows.run({In::F16, tile}, 0, rows.rows), across = columns.run({In::F16, tile}, 0, 1);
        for (uint32_t i = 0; i < COUNT; ++i) CHECK(down[i * rows.y_stride] == numbers[i].rounded && across[i] == numbers[i].rounded);
        CHECK(std::isnan(down[COUNT * rows.y_stride]) && std::isnan(across[COUNT]));
    }
}

void no_bit_depends_on_the_order_of_threads() {
    const Case one(70, 100, {90, 40}, Begins::Bias, 3);
    for (const Kind& kind : KINDS) {
        emulate_seed(0);
        const Memory<float> first = one.run(kind, 0, one.rows);
        for (uint64_t seed = 1; seed < 6; ++seed) {
            emulate_seed(seed);
            CHECK(one.run(kind, 0, one.rows).same(first));
        }
    }
}

}  // namespace

int main() {
    RUN(every_shape_is_right);
    RUN_AS_IT_IS(no_bit_depends_on_rows_or_tiles);
    RUN(f32_is_one_chain);
    RUN(tf32_rounds_to_nearest_and_ties_away_from_zero);
    RUN(f16_rounds_to_nearest_and_ties_to_even);
    RUN_AS_IT_IS(no_bit_depends_on_the_order_of_threads);
    return testing::finish();
}
