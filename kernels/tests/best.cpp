// The best few sums of products, against the sums as a product without that writes them down: the same ones in the same order, to the bit, whatever the
// sums are. That the sums are right is the product's own test; that the best of them are the best in f64 too is seen here.
#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>
#include "../abi_best.h"
#include "packing.h"
#include "testing.h"

namespace {

using testing::Memory;

constexpr uint32_t FLAGS[] = {0, FLAG_LAST, FLAG_SMALLEST, FLAG_SMALLEST | FLAG_LAST};

struct Tile {
    uint32_t rows;
    // Of products by warpgroups, and how many slabs are on their way at once.
    uint32_t columns, stages;
    bool turns = false;
};
const std::vector<Tile> NARROW = {{16, 0, 0}, {64, 0, 0}, {128, 0, 0}}, WIDE = {{64, 64, 12}, {128, 64, 8}, {128, 128, 6}, {128, 256, 4}, {128, 128, 6, true}};

// In which format, and by warpgroups or not.
struct Arithmetic {
    std::string format;
    const std::vector<Tile>& tiles;

    bool is_wide() const { return &tiles == &WIDE; }
    bool is_of_halves() const { return format == "bf16_" || format == "f16_"; }
    static WideArguments wide(const ProductArguments& a) { return testing::wide(a); }
    static WideArguments wide(const ProductBestArguments& a) { return testing::wide(a.product, a.k, a.flags); }
    // The kernel that writes all sums down, or the one that keeps the best.
    template <class Arguments>
    void launch(const Tile& tile, const Arguments& a, uint32_t rows, uint32_t n) const {
        const bool is_best = std::is_same_v<Arguments, ProductBestArguments>;
        const uint32_t down = (rows + tile.rows - 1) / tile.rows;
        std::string name = (is_wide() ? "wide_" : "product_") + std::string(is_best ? "best_" : "") + format + (tile.turns ? "turns_" : "") + std::to_string(tile.rows);
        std::array<uint32_t, 3> grid = {(n + 63) / 64, down, 1};
        uint32_t threads = 128, shared = is_of_halves() ? PRODUCT_HALVES_SHARED(tile.rows) : PRODUCT_F32_SHARED(tile.rows);
        if (is_wide()) {
            name.append("x").append(std::to_string(tile.columns));
            // As many blocks as tiles, or some, which have them by turns.
            grid = {(n + tile.columns - 1) / tile.columns * down / 2 + 1, 1, 1};
            threads = 128 + 2 * tile.rows;
            shared = tile.stages * (tile.rows + tile.columns) * 128;
        }
        const std::string said = is_wide() ? testing::launch(name.c_str(), grid, threads, shared, wide(a)) : testing::launch(name.c_str(), grid, threads, shared, a);
        if (!said.empty()) testing::failed(__FILE__, __LINE__, name + ": " + said);
    }
};
const Arithmetic F32{"f32_", NARROW};
const Arithmetic ARITHMETICS[] = {F32, {"tf32_", NARROW}, {"bf16_", NARROW}, {"f16_", NARROW}, {"bf16_", WIDE}, {"f16_", WIDE}};

struct Projection {
    uint32_t rows, n, depth;
    size_t x_stride, y_stride;
    std::vector<float> w;
    Memory<float> x, bias, f32, tf32;
    Memory<uint16_t> bf16, f16;
    // Of products by warpgroups, in both formats: weights, and rows of x rounded.
    std::vector<Memory<uint16_t>> wide, rounded;

    // Columns come several times, so that there are ties; of every seven rows one is zeros, one has a NaN and one an infinity.
    Projection(uint32_t rows, uint32_t n, uint32_t depth, uint64_t seed)
        : rows(rows), n(n), depth(depth), x_stride(packing::padded(depth, 4) + 4), y_stride(packing::padded(n, 4) + 4), w(static_cast<size_t>(depth) * n),
          x(rows * x_stride), bias(n), f32(1), tf32(1), bf16(1), f16(1) {
        testing::Random random(seed);
        const uint32_t different = n / 2 + 1;
        std::vector<float> own(static_cast<size_t>(different) * (depth + 1));
        for (float& v : own) v = random.signed_unit();
        for (uint32_t j = 0; j < n; ++j) {
            const uint32_t of = random.below(different);
            // Of a row of zeros some sums are 0 and some −0, a few −∞, and all others below.
            for (uint32_t i = 0; i < depth; ++i) {
                const float value = own[i * different + of];
                w[static_cast<size_t>(i) * n + j] = j % 10 == 3 ? -std::abs(value) : value;
            }
            bias[j] = j % 10 == 3 ? -0.0f : j % 10 == 7 || j % 64 == 0 ? 0.0f : j % 13 == 5 ? -INFINITY : -std::abs(own[depth * different + of]);
        }
        for (uint32_t r = 0; r < rows; ++r) {
            for (uint32_t i = 0; i < depth; ++i) x[r * x_stride + i] = r % 7 == 2 ? 0.0f : random.signed_unit();
            if (r % 7 == 4) x[r * x_stride + random.below(depth)] = NAN;
            if (r % 7 == 5) x[r * x_stride + random.below(depth)] = r % 2 ? INFINITY : -INFINITY;
        }
        f32 = Memory<float>(packing::f32(w, depth, n));
        tf32 = Memory<float>(packing::tf32(w, depth, n));
        bf16 = Memory<uint16_t>(packing::bf16(w, depth, n));
        f16 = Memory<uint16_t>(packing::f16(w, depth, n));
        for (const packing::Format& format : {packing::BF16, packing::F16}) {
            wide.emplace_back(packing::wide(format, w, depth, n));
            rounded.emplace_back(rows * rounded_stride());
            for (uint32_t r = 0; r < rows; ++r) {
                for (uint32_t i = 0; i < depth; ++i) rounded.back()[r * rounded_stride() + i] = format.to(x[r * x_stride + i]);
            }
        }
    }

    size_t rounded_stride() const { return packing::padded(depth, 8) + 8; }

    uint64_t packed(const Arithmetic& in) const {
        if (in.is_wide()) return wide[in.format == "f16_"].address();
        return in.format == "bf16_" ? bf16.address() : in.format == "f16_" ? f16.address() : in.format == "tf32_" ? tf32.address() : f32.address();
    }

    ProductArguments arguments(const Arithmetic& in, uint32_t first, uint32_t count) const {
        ProductArguments a{};
        const size_t stride = in.is_wide() ? rounded_stride() * 2 : x_stride * 4;
        const uint64_t from = in.is_wide() ? rounded[in.format == "f16_"].address() : x.address();
        a.terms[0] = {from + first * stride, packed(in), static_cast<uint32_t>(stride), depth};
        a.bias = bias.address();
        a.term_count = 1;
        a.rows = count;
        a.n = n;
        return a;
    }
    Memory<float> sums(const Arithmetic& in) const {
        Memory<float> y(rows * y_stride);
        ProductArguments a = arguments(in, 0, rows);
        a.y = y.address();
        a.y_stride = static_cast<uint32_t>(y_stride * 4);
        in.launch(in.tiles[0], a, rows, n);
        return y;
    }
};

// Rows of what is left: candidates, values, positions, and something behind each that nobody may touch.
struct Left {
    uint32_t panels, k;
    size_t values, positions, stride;
    Memory<uint8_t> rows;

    Left(const Projection& of, uint32_t count, uint32_t k)
        : panels((of.n + 63) / 64), k(k), values(packing::padded(panels * k * 8 + 8, 16)), positions(packing::padded(values + k * 4 + 4, 16)),
          stride(packing::padded(positions + k * 8 + 8, 16)), rows(count * stride) {}
    float value(uint32_t row, uint32_t place) const { return reinterpret_cast<const float*>(&rows[row * stride + values])[place]; }
    int64_t position(uint32_t row, uint32_t place) const { return reinterpret_cast<const int64_t*>(&rows[row * stride + positions])[place]; }
    bool is_whole(uint32_t row) const {
        const auto untouched = [&](size_t from, size_t to) {
            return std::all_of(&rows[row * stride + from], &rows[row * stride] + to, [](uint8_t byte) { return byte == 0xff; });
        };
        return untouched(panels * k * 8, values) && untouched(values + k * 4, positions) && untouched(positions + k * 8, stride);
    }
};

Left best(const Projection& of, const Arithmetic& in, const Tile& tile, uint32_t k, uint32_t flags, uint32_t first, uint32_t count) {
    Left left(of, count, k);
    ProductBestArguments a{of.arguments(in, first, count), k, flags};
    a.product.y = left.rows.address();
    a.product.y_stride = static_cast<uint32_t>(left.stride);
    in.launch(tile, a, count, of.n);
    const uint64_t at = left.rows.address();
    const BestArguments b{at, at + left.values, at + left.positions, static_cast<uint32_t>(left.stride), left.panels, k, flags, 0};
    CHECK(testing::launch("best_of_panels", {count, 1, 1}, 128, 0, b) == "");
    return left;
}

// Columns in their order.
std::vector<uint32_t> in_order(const float* sums, uint32_t n, uint32_t flags) {
    std::vector<uint32_t> order(n);
    for (uint32_t j = 0; j < n; ++j) order[j] = j;
    const auto comes_first = [&](uint32_t a, uint32_t b) {
        const bool less = std::isnan(sums[b]) ? !std::isnan(sums[a]) : sums[a] < sums[b];
        const bool more = std::isnan(sums[a]) ? !std::isnan(sums[b]) : sums[a] > sums[b];
        if (less || more) return flags & FLAG_SMALLEST ? less : more;
        return flags & FLAG_LAST ? a > b : a < b;
    };
    std::sort(order.begin(), order.end(), comes_first);
    return order;
}

void the_best_are_those_that_would_be_found_in_all_sums() {
    const struct {
        uint32_t rows, n, depth;
    } shapes[] = {{1, 1, 1}, {7, 5, 3}, {17, 63, 20}, {15, 64, 16}, {65, 65, 33}, {129, 200, 24}, {3, 8300, 5}};
    for (const auto& shape : shapes) {
        if (testing::SANITIZED && shape.n > 1000) continue;
        const Projection of(shape.rows, shape.n, shape.depth, shape.n);
        for (const Arithmetic& in : ARITHMETICS) {
            if (testing::is_left_out(in.format)) continue;
            const Memory<float> sums = of.sums(in);
            for (const uint32_t flags : FLAGS) {
                std::vector<std::vector<uint32_t>> orders;
                for (uint32_t r = 0; r < of.rows; ++r) orders.push_back(in_order(&sums[r * of.y_stride], of.n, flags));
                for (const uint32_t wanted : {1, 7, BEST_MOST}) {
                    const uint32_t k = std::min(wanted, shape.n);
                    // One tile by turns; of the one largest, which tiles find in a way of their own, all.
                    for (size_t tile = 0; tile < in.tiles.size(); ++tile) {
                        if ((wanted > 1 || flags != 0) && tile != (wanted + flags + shape.n) % in.tiles.size()) continue;
                        const Left left = best(of, in, in.tiles[tile], k, flags, 0, of.rows);
                        for (uint32_t r = 0; r < of.rows; ++r) {
                            const std::vector<uint32_t>& order = orders[r];
                            CHECK(left.is_whole(r));
                            for (uint32_t place = 0; place < k; ++place) {
                                CHECK(left.position(r, place) == order[place]);
                                CHECK(std::bit_cast<uint32_t>(left.value(r, place)) == std::bit_cast<uint32_t>(sums[r * of.y_stride + order[place]]));
                            }
                        }
                    }
                }
            }
        }
    }
}

// Of plain numbers, in f32: no sum in f64 is larger than the best one by more than f32 may err.
void the_best_is_the_best_in_f64() {
    const Projection of(40, 300, 50, 4);
    const Left left = best(of, F32, NARROW[0], 1, 0, 0, of.rows);
    for (uint32_t r = 0; r < of.rows; ++r) {
        if (r % 7 == 4 || r % 7 == 5) continue;
        const auto sum = [&](size_t column) {
            double sum = of.bias[column];
            for (uint32_t i = 0; i < of.depth; ++i) sum += static_cast<double>(of.x[r * of.x_stride + i]) * of.w[i * of.n + column];
            return sum;
        };
        const double found = sum(static_cast<size_t>(left.position(r, 0)));
        for (uint32_t j = 0; j < of.n; ++j) CHECK(sum(j) <= found + of.depth * of.depth * 0x1p-23);
        CHECK(std::abs(left.value(r, 0) - found) <= of.depth * of.depth * 0x1p-24);
    }
}

void no_bit_depends_on_rows_tiles_or_the_order_of_threads() {
    testing::Random random(9);
    const Projection of(140, 210, 37, 8);
    for (const Arithmetic& in : ARITHMETICS) {
        for (const uint32_t k : {1, 5}) {
            emulate_seed(0);
            const Left whole = best(of, in, in.tiles.back(), k, 0, 0, of.rows);
            for (const Tile& tile : in.tiles) {
                for (uint64_t part = 0; part < 2; ++part) {
                    emulate_seed(part + tile.rows + tile.columns);
                    const uint32_t first = random.below(of.rows), count = part == 0 ? 1 : 1 + random.below(of.rows - first);
                    const Left some = best(of, in, tile, k, 0, first, count);
                    CHECK(std::memcmp(&some.rows[0], &whole.rows[first * whole.stride], count * whole.stride) == 0);
                }
            }
        }
    }
}

// What is left out is not asked for: positions alone, values alone.
void either_result_may_be_missing() {
    const Projection of(3, 100, 8, 2);
    const Left both = best(of, F32, NARROW[0], 3, 0, 0, 3);
    for (const bool values : {false, true}) {
        Left one(of, 3, 3);
        std::memcpy(&one.rows[0], &both.rows[0], one.rows.size());
        for (uint32_t r = 0; r < 3; ++r) std::memset(&one.rows[r * one.stride + one.values], 0xff, one.stride - one.values);
        const uint64_t at = one.rows.address();
        const BestArguments b{at, values ? at + one.values : 0, values ? 0 : at + one.positions, static_cast<uint32_t>(one.stride), one.panels, 3, 0, 0};
        CHECK(testing::launch("best_of_panels", {3, 1, 1}, 128, 0, b) == "");
        for (uint32_t r = 0; r < 3; ++r) {
            for (uint32_t place = 0; place < 3; ++place) {
                CHECK(values ? one.value(r, place) == both.value(r, place) : std::isnan(one.value(r, place)));
                CHECK(one.position(r, place) == (values ? -1 : both.position(r, place)));
            }
        }
    }
}

}  // namespace

int main() {
    RUN(the_best_are_those_that_would_be_found_in_all_sums);
    RUN(the_best_is_the_best_in_f64);
    RUN_AS_IT_IS(no_bit_depends_on_rows_tiles_or_the_order_of_threads);
    RUN(either_result_may_be_missing);
    return testing::finish();
}
