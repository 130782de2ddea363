// What the tests of the kernels share: checks that say where they failed, launches, random numbers.
#pragma once
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>
#include "../abi_best.h"
#include "../emulation/emulation.h"

namespace testing {

// Under sanitizers, which take several times as long and look at memory alone, the largest cases are left out: they have no memory that smaller ones lack.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool SANITIZED = true;
#else
constexpr bool SANITIZED = false;
#endif

// Neither are two formats of one width tried there: their kernels are one template, and reach for the same memory. Which have a twin is what their names say.
inline bool is_left_out(const std::string& format) {
    return SANITIZED && (format.find("tf32") != std::string::npos || (format.find("f16") != std::string::npos && format.find("bf16") == std::string::npos));
}

inline int failures = 0, here = 0;

inline void failed(const char* file, int line, const std::string& what) {
    ++failures;
    if (++here <= 5) std::printf("    %s:%d: %s\n", file, line, what.c_str());
}

// Runs a kernel; what the emulation had to say, or nothing.
template <class Arguments>
std::string launch(const char* kernel, const std::array<uint32_t, 3>& grid, uint32_t threads, uint32_t shared, const Arguments& arguments) {
    char error[1024] = "";
    return emulate_launch(kernel, grid.data(), threads, shared, &arguments, error, sizeof(error)) == 0 ? "" : error;
}

inline void run(const char* name, void (*test)()) {
    const int before = failures;
    here = 0;
    test();
    std::printf("  %s %s\n", failures == before ? "ok  " : "FAIL", name);
    std::fflush(stdout);
}

inline int finish() { return failures != 0; }

// Memory as a device has it: aligned, NaN until it is written, and its own allocation, so that the sanitizer sees what leaves it.
template <class T>
class Memory {
public:
    explicit Memory(size_t count) : count_(count), data_(static_cast<T*>(std::aligned_alloc(256, (count * sizeof(T) + 255) / 256 * 256))) {
        std::memset(static_cast<void*>(data_.get()), 0xff, count * sizeof(T));
    }
    explicit Memory(const std::vector<T>& values) : Memory(values.size()) { std::memcpy(data_.get(), values.data(), count_ * sizeof(T)); }
    T& operator[](size_t i) { return data_.get()[i]; }
    const T& operator[](size_t i) const { return data_.get()[i]; }
    size_t size() const { return count_; }
    uint64_t address() const { return reinterpret_cast<uint64_t>(data_.get()); }
    bool same(const Memory& other) const { return count_ == other.count_ && std::memcmp(data_.get(), other.data_.get(), count_ * sizeof(T)) == 0; }

private:
    struct Free {
        void operator()(void* p) const { std::free(p); }
    };
    size_t count_;
    std::unique_ptr<T, Free> data_;
};

// A map of a matrix of 16 bits, of which each row has `stride` bytes, as the emulated device has it (`emulation/ptx_hopper.h`).
inline TensorMap tensor_map(uint64_t at, uint64_t columns, uint64_t rows, uint64_t stride) { return {{at, stride, columns, rows}}; }

// A product as `wide_*` take it.
inline WideArguments wide(const ProductArguments& product, uint32_t k = 0, uint32_t flags = 0) {
    WideArguments a{{}, {product, k, flags}};
    for (uint32_t t = 0; t < product.term_count; ++t) {
        const ProductTerm& term = product.terms[t];
        a.x[t] = tensor_map(term.x, term.k, product.rows, term.x_stride);
        a.best.product.terms[t].x = a.best.product.terms[t].x_stride = 1;
    }
    return a;
}

// Uniform numbers, the same on every machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
    uint32_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<uint32_t>(state_ >> 32);
    }
    uint32_t below(uint32_t bound) { return next() % bound; }
    float signed_unit() { return static_cast<float>(next()) / 2147483648.0f - 1.0f; }

private:
    uint64_t state_;
};

}  // namespace testing

#define CHECK(holds) ((holds) ? (void)0 : testing::failed(__FILE__, __LINE__, #holds))
#define CHECK_HAS(text, part)                                                                                             \
    do {                                                                                                                  \
        const std::string said_ = (text);                                                                                 \
        if (said_.find(part) == std::string::npos) testing::failed(__FILE__, __LINE__, "not \"" part "\" but: " + said_); \
    } while (false)
#define RUN(test) testing::run(#test, test)
// Of bits alone, by runs whose memory other tests have as well: not under sanitizers.
#define RUN_AS_IT_IS(test)                  \
    do {                                    \
        if (!testing::SANITIZED) RUN(test); \
    } while (false)
