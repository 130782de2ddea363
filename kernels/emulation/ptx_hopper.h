// What ptx.cuh offers of sm_90, on the CPU: mbarriers, copies in bulk and of tensors, products of a warpgroup, waiting for other blocks and telling the host.
#pragma once
#include "ptx.h"

// ---- mbarriers, and copies that arrive at them ----

namespace emulation {

constexpr uint64_t MBARRIER = 0x6d62617200000000;

inline Mbarrier& mbarrier(const uint64_t* word, const char* file, int line) {
    auto& all = machine().block().mbarriers;
    const uint64_t index = *word ^ MBARRIER;
    if (index >= all.size() || all[index].word != word) machine().fail("an mbarrier that was not initialised at %s:%d", file, line);
    return all[index];
}

// Ends the phase if everyone has arrived and everything announced has landed.
inline void settle(Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    for (Fiber* fiber : barrier.waiting) machine().ready(fiber);
    barrier.waiting.clear();
    barrier.phase ^= 1;
    barrier.pending = barrier.count;
}

// Lands what is under way.
inline void land(Mbarrier& barrier) {
    for (const Copy& copy : barrier.flying) {
        land(copy);
        barrier.bytes -= copy.whole;
    }
    barrier.flying.clear();
    settle(barrier);
}

// Whether to land something at once: others may be at what lay there before, and that would never show if all waited for who waits for them.
inline bool lands_at_once() { return machine().random() % 4 == 0; }

inline void arrive(Mbarrier& barrier, const char* file, int line) {
    if (barrier.pending == 0) {
        machine().fail("an arrival at %s:%d beyond the %ld that the mbarrier expects in a phase", file, line, static_cast<long>(barrier.count));
    }
    --barrier.pending;
    settle(barrier);
}

}  // namespace emulation

inline void mbarrier_init(uint64_t* barrier, uint32_t count, EMULATED_HERE) {
    if (shared_address(barrier, 8, file, line) % 8 != 0) emulation::machine().fail("an mbarrier that is not aligned at %s:%d", file, line);
    auto& all = emulation::machine().block().mbarriers;
    *barrier = emulation::MBARRIER ^ all.size();
    all.push_back({barrier, count, count});
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint64_t* barrier, EMULATED_HERE) { emulation::arrive(emulation::mbarrier(barrier, file, line), file, line); }
inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes, EMULATED_HERE) {
    emulation::Mbarrier& own = emulation::mbarrier(barrier, file, line);
    own.bytes += bytes;
    emulation::arrive(own, file, line);
}
inline void mbarrier_wait(uint64_t* barrier, uint32_t parity, EMULATED_HERE) {
    const emulation::Where where{"a phase of an mbarrier", file, line};
    emulation::Mbarrier& own = emulation::mbarrier(barrier, file, line);
    emulation::Machine& m = emulation::machine();
    if (own.phase == parity) emulation::land(own);
    if (own.phase == parity) {
        own.waiting.push_back(&m.current());
        m.wait(where);
    } else {
        m.yield(where);
    }
}

inline void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier, EMULATED_HERE) {
    const uint32_t at = shared_address(shared, bytes, file, line);
    if ((at | reinterpret_cast<uintptr_t>(global) | bytes) % 16 != 0) {
        emulation::machine().fail("a bulk copy that is not aligned to 16 bytes at %s:%d", file, line);
    }
    emulation::Mbarrier& own = emulation::mbarrier(barrier, file, line);
    own.flying.push_back({shared, global, bytes, bytes});
    // Who waits already is not there to see it land later.
    if (!own.waiting.empty() || emulation::lands_at_once()) emulation::land(own);
}

namespace emulation {

// What a TensorMap of this device says: where a matrix lies, bytes from row to row, and how many columns of 16 bits and rows there are.
struct Matrix {
    uint64_t at, stride, columns, rows;
};

}  // namespace emulation

inline void tensor_copy(void* shared, const TensorMap& map, uint32_t column, uint32_t row, uint64_t* barrier, EMULATED_HERE) {
    emulation::Matrix from;
    std::memcpy(&from, map.words, sizeof(from));
    if (shared_address(shared, TENSOR_BOX_BYTES, file, line) % 1024 != 0) emulation::machine().fail("a tensor's copy that is not aligned to 1024 bytes at %s:%d", file, line);
    if (from.at == 0 || (from.at | from.stride) % 16 != 0) emulation::machine().fail("a copy by a map of no matrix at %s:%d", file, line);
    emulation::Mbarrier& own = emulation::mbarrier(barrier, file, line);
    uint8_t* to = static_cast<uint8_t*>(shared);
    for (uint32_t r = row; r < row + TENSOR_BOX; ++r) {
        for (uint32_t chunk = 0; chunk < 8; ++chunk) {
            const uint64_t first = column + chunk * 8, there = r < from.rows && first < from.columns ? std::min<uint64_t>(8, from.columns - first) : 0;
            const uint64_t source = there ? from.at + r * from.stride + first * 2 : from.at;
            // As the swizzle has it, which looks at the address.
            own.flying.push_back({to + ((chunk ^ (r - row) % 8) << 4), reinterpret_cast<const void*>(source), static_cast<uint32_t>(there * 2), 16});
        }
        to += 128;
    }
    // Who waits already is not there to see it land later.
    if (!own.waiting.empty() || emulation::lands_at_once()) emulation::land(own);
}

// ---- the async proxy ----

// Not seen here: what copies read of other blocks without it.
inline void async_proxy_fence() {}

// ---- one warpgroup ----

template <int N> inline void registers_fewer() {}
template <int N> inline void registers_more() {}
inline void group_barrier(uint32_t id, uint32_t threads, EMULATED_HERE) {
    emulation::machine().barrier(id, threads, {"a barrier of some of the block", file, line});
}

namespace emulation {

// Row r of a matrix that a descriptor describes, 16 values of k.
inline void wgmma_row(uint64_t descriptor, int r, bool is_f16, float* values, const Where& where) {
    Machine& m = machine();
    const Block& block = m.block();
    if (descriptor >> 62 != 1) m.fail("a descriptor without the swizzle of 128 bytes at %s:%d", where.file, where.line);
    const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4, group = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    for (int chunk = 0; chunk < 2; ++chunk) {
        uint32_t at = start + static_cast<uint32_t>(r >> 3) * group + static_cast<uint32_t>(r & 7) * 128 + static_cast<uint32_t>(chunk) * 16;
        at ^= (at >> 7 & 7) << 4;
        if (at + 16 > block.dynamic_bytes) m.fail("a descriptor that leaves the block's shared memory at %s:%d", where.file, where.line);
        uint16_t bits[8];
        std::memcpy(bits, block.shared + at, 16);
        for (int i = 0; i < 8; ++i) values[chunk * 8 + i] = is_f16 ? from_f16(bits[i]) : std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
    }
}

// d (+)= a·b of a warpgroup's 64 rows.
inline void wgmma_run(Fiber* const fibers[], size_t which, const Where& where) {
    const Pending& first = fibers[0]->products[which];
    static thread_local float a[64][16], b[16][256], sums[64][256];
    // A copy: the compiler takes several columns at once only if their number cannot change.
    const int columns = first.columns;
    float row[16];
    for (int r = 0; r < 64; ++r) wgmma_row(first.a, r, first.is_f16, a[r], where);
    for (int n = 0; n < columns; ++n) {
        wgmma_row(first.b, n, first.is_f16, row, where);
        for (int k = 0; k < 16; ++k) b[k][n] = row[k];
    }
    for (int r = 0; r < 64; ++r) {
        float(&sum)[256] = sums[r];
        for (int n = 0; n < columns; ++n) sum[n] = 0.0f;
        for (int k = 0; k < 16; ++k) {
            const float factor = a[r][k];
            for (int n = 0; n < columns; ++n) sum[n] += factor * b[k][n];
        }
    }
    for (int t = 0; t < 128; ++t) {
        const Pending& own = fibers[t]->products[which];
        if (own.a != first.a || own.b != first.b || own.accumulate != first.accumulate || own.columns != first.columns || own.is_f16 != first.is_f16) {
            machine().fail("threads of a warpgroup name different operands at %s:%d", where.file, where.line);
        }
        const int lane = t % 32, r = t / 32 * 16 + lane / 4;
        for (int i = 0; i < own.columns / 2; ++i) {
            const float sum = sums[r + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
            own.accumulators[i] = own.accumulate ? own.accumulators[i] + sum : sum;
        }
    }
}

struct WgmmaWait {
    Fiber* fiber;
    size_t keep;
    Where where;
};

// Runs the groups that all threads wait for, oldest first.
inline void wgmma_all(void* operands[], uint64_t) {
    Fiber* fibers[128];
    const WgmmaWait& first = *static_cast<WgmmaWait*>(operands[0]);
    for (int t = 0; t < 128; ++t) fibers[t] = static_cast<WgmmaWait*>(operands[t])->fiber;
    for (int t = 0; t < 128; ++t) {
        if (fibers[t]->batches != fibers[0]->batches || fibers[t]->products.size() != fibers[0]->products.size()) {
            machine().fail("threads of a warpgroup issued different products before %s:%d", first.where.file, first.where.line);
        }
    }
    size_t done = 0;
    const size_t groups = fibers[0]->batches.size(), run = groups > first.keep ? groups - first.keep : 0;
    for (size_t group = 0; group < run; ++group) {
        for (uint32_t i = 0; i < fibers[0]->batches[group]; ++i) wgmma_run(fibers, done++, first.where);
    }
    for (Fiber* fiber : fibers) {
        fiber->products.erase(fiber->products.begin(), fiber->products.begin() + static_cast<long>(done));
        fiber->batches.erase(fiber->batches.begin(), fiber->batches.begin() + static_cast<long>(run));
    }
}

}  // namespace emulation

template <int N> inline void wgmma_bf16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
    emulation::Fiber& fiber = emulation::machine().current();
    fiber.products.push_back({d, a, b, N, accumulate, false});
}
template <int N> inline void wgmma_f16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
    emulation::Fiber& fiber = emulation::machine().current();
    fiber.products.push_back({d, a, b, N, accumulate, true});
}
template <int R> inline void wgmma_pin(float (&)[R]) {}
inline void wgmma_fence() {}
inline void wgmma_commit() {
    emulation::Fiber& fiber = emulation::machine().current();
    uint32_t before = 0;
    for (const uint32_t batch : fiber.batches) before += batch;
    fiber.batches.push_back(static_cast<uint32_t>(fiber.products.size()) - before);
}
template <int N> inline void wgmma_wait(EMULATED_HERE) {
    emulation::Machine& m = emulation::machine();
    const emulation::Where where{"the products of its warpgroup", file, line};
    emulation::WgmmaWait operands{&m.current(), N, where};
    m.meet(m.group_meeting(), m.current().thread % 128, reinterpret_cast<const void*>(&emulation::wgmma_all), &operands, &emulation::wgmma_all,
           where);
}
inline float tanh_fast(float x) { return tanhf(x); }
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }

// ---- the grid and the host ----

inline uint32_t grid_arrive(uint32_t* counter, EMULATED_HERE) {
    emulation::machine().yield({"its turn", file, line});
    return __atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL);
}
inline void grid_wait(const uint32_t* counter, uint32_t least, EMULATED_HERE) {
    emulation::machine().poll({"other blocks", file, line}, [&] { return __atomic_load_n(counter, __ATOMIC_ACQUIRE) >= least; });
}
inline void store_release_system(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
inline void store_release_system(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
