// What ptx.cuh offers of sm_90, on the CPU: mbarriers, bulk copies, products of a warpgroup, waiting for other blocks and telling the host.
#pragma once
#include "ptx.h"

// ---- mbarriers and bulk copies ----

namespace emulation {

constexpr uint64_t MBARRIER = 0x6d62617200000000;

inline Mbarrier& mbarrier(const uint64_t* word, const char* file, int line) {
    auto& all = machine().block().mbarriers;
    const uint64_t index = *word ^ MBARRIER;
    if (index >= all.size() || all[index].word != word) machine().fail("an mbarrier that was not initialised at %s:%d", file, line);
    return all[index];
}

// Tells a thread that waited at an mbarrier of what landed there.
inline void observe(Fiber& fiber, uint64_t landing) {
    if (landing != 0) fiber.observed.push_back(landing);
}

// Ends the phase if everyone has arrived and everything announced has landed.
inline void settle(Mbarrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    for (Fiber* fiber : barrier.waiting) {
        observe(*fiber, barrier.landing[barrier.phase]);
        machine().ready(fiber);
    }
    barrier.waiting.clear();
    barrier.phase ^= 1;
    barrier.landing[barrier.phase] = 0;
    barrier.pending = barrier.count;
}

// Lands what threads copied, with all else of this phase.
inline void land_copies(Mbarrier& barrier, Block& block) {
    if (barrier.copies.empty()) return;
    uint64_t& landing = barrier.landing[barrier.phase];
    if (landing == 0) {
        block.landings.emplace_back();
        landing = block.landings_before + block.landings.size();
    }
    for (const Arriving& one : barrier.copies) block.proxy[land(one.copy, block)] = landing << 16 | (one.thread + 1);
    barrier.copies.clear();
}

// Lands what is under way, of what threads copied only when nobody else is to arrive.
inline void land(Mbarrier& barrier) {
    for (const Copy& copy : barrier.flying) {
        std::memcpy(copy.to, copy.from, copy.bytes);
        barrier.bytes -= copy.bytes;
    }
    barrier.flying.clear();
    if (barrier.pending == barrier.arriving) {
        land_copies(barrier, machine().block());
        barrier.pending -= barrier.arriving;
        barrier.arriving = 0;
    }
    settle(barrier);
}

// Whether to land something at once: others may be at what lay there before, and that would never show if all waited for who waits for them.
inline bool lands_at_once() { return machine().random() % 4 == 0; }

// Counts an arrival that `pending` or, of copies, `arriving` counts; who waits already is not there to see copies land later.
inline void arrive(Mbarrier& barrier, int64_t& counter, int one, const char* file, int line) {
    if (barrier.pending == barrier.arriving) {
        machine().fail("an arrival at %s:%d beyond the %ld that the mbarrier expects in a phase", file, line, static_cast<long>(barrier.count));
    }
    counter += one;
    if (!barrier.waiting.empty() && barrier.pending == barrier.arriving) return land(barrier);
    settle(barrier);
}
inline void arrive(Mbarrier& barrier, const char* file, int line) { arrive(barrier, barrier.pending, -1, file, line); }

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
        emulation::observe(m.current(), own.landing[parity]);
        m.yield(where);
    }
}
// This thread arrives when what it copied has landed. What a thread has handed to an mbarrier lands there, and no more with a group of its copies.
inline void copies_arrive(uint64_t* barrier, EMULATED_HERE) {
    emulation::Fiber& fiber = emulation::machine().current();
    emulation::Mbarrier& own = emulation::mbarrier(barrier, file, line);
    for (const emulation::Copy& copy : fiber.copies) own.copies.push_back({copy, fiber.thread});
    fiber.copies.clear();
    std::fill(fiber.groups.begin(), fiber.groups.end(), 0);
    if (emulation::lands_at_once()) emulation::land_copies(own, *fiber.block);
    emulation::arrive(own, own.arriving, 1, file, line);
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

// ---- the async proxy ----

inline void async_proxy_fence() {
    emulation::Fiber& fiber = emulation::machine().current();
    for (const uint32_t chunk : fiber.unfenced) {
        if (fiber.block->proxy[chunk] == fiber.thread + 1) fiber.block->proxy[chunk] = 0;
    }
    fiber.unfenced.clear();
    for (const uint64_t number : fiber.observed) {
        emulation::Landing& landing = fiber.block->landings[number - fiber.block->landings_before - 1];
        landing.by[fiber.thread / 64] |= 1ull << fiber.thread % 64;
        if (fiber.thread % 128 == 0) landing.as[fiber.thread / 128] = fiber.fenced;
        ++fiber.fenced;
    }
    fiber.observed.clear();
}

// ---- one warpgroup ----

template <int N> inline void registers_fewer() {}
template <int N> inline void registers_more() {}
inline void group_barrier(uint32_t id, uint32_t threads, EMULATED_HERE) {
    emulation::machine().barrier(id, threads, {"a barrier of some of the block", file, line});
}

namespace emulation {

// Fails if what was copied to a chunk is not fenced for a product of this warpgroup: by whoever copied it, or, where that arrived at an mbarrier, by each
// thread that multiplies, after it waited there and before it issued the product.
inline void check_fenced(const Block& block, uint32_t chunk, const Pending& product, const Fiber& first, const Where& where) {
    const uint64_t state = block.proxy[chunk], number = state >> 16;
    if (number != 0 && number <= block.landings_before) return;
    const unsigned copier = static_cast<unsigned>(state & 0xffff) - 1;
    if (number == 0) machine().fail("a product at %s:%d of what thread %u copied and did not fence", where.file, where.line, copier);
    const Landing& landing = block.landings[number - block.landings_before - 1];
    for (uint32_t half = 0; half < 2; ++half) {
        const uint64_t missing = ~landing.by[first.thread / 64 + half];
        if (missing == 0) continue;
        machine().fail("a product at %s:%d of what thread %u copied and thread %u did not fence", where.file, where.line, copier,
                       first.thread + half * 64 + static_cast<uint32_t>(std::countr_zero(missing)));
    }
    if (landing.as[first.thread / 128] < product.fenced) return;
    machine().fail("a product at %s:%d of what thread %u copied and thread %u did not fence before", where.file, where.line, copier, first.thread);
}

// Row r of a matrix that a descriptor describes, 16 values of k.
inline void wgmma_row(uint64_t descriptor, int r, const Pending& product, const Fiber& first, float* values, const Where& where) {
    Machine& m = machine();
    const Block& block = m.block();
    if (descriptor >> 62 != 1) m.fail("a descriptor without the swizzle of 128 bytes at %s:%d", where.file, where.line);
    const uint32_t start = static_cast<uint32_t>(descriptor & 0x3fff) << 4, group = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    for (int chunk = 0; chunk < 2; ++chunk) {
        uint32_t at = start + static_cast<uint32_t>(r >> 3) * group + static_cast<uint32_t>(r & 7) * 128 + static_cast<uint32_t>(chunk) * 16;
        at ^= (at >> 7 & 7) << 4;
        if (at + 16 > block.dynamic_bytes) m.fail("a descriptor that leaves the block's shared memory at %s:%d", where.file, where.line);
        if (block.proxy[at / 16] != 0) check_fenced(block, at / 16, product, first, where);
        uint16_t bits[8];
        std::memcpy(bits, block.shared + at, 16);
        for (int i = 0; i < 8; ++i) values[chunk * 8 + i] = product.is_f16 ? from_f16(bits[i]) : std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
    }
}

// d (+)= a·b of a warpgroup's 64 rows.
inline void wgmma_run(Fiber* const fibers[], size_t which, const Where& where) {
    const Pending& first = fibers[0]->products[which];
    static thread_local float a[64][16], b[16][256], sums[64][256];
    float row[16];
    for (int r = 0; r < 64; ++r) wgmma_row(first.a, r, first, *fibers[0], a[r], where);
    for (int n = 0; n < first.columns; ++n) {
        wgmma_row(first.b, n, first, *fibers[0], row, where);
        for (int k = 0; k < 16; ++k) b[k][n] = row[k];
    }
    for (int r = 0; r < 64; ++r) {
        for (int n = 0; n < first.columns; ++n) sums[r][n] = 0.0f;
        for (int k = 0; k < 16; ++k) {
            for (int n = 0; n < first.columns; ++n) sums[r][n] += a[r][k] * b[k][n];
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
    fiber.products.push_back({d, a, b, N, accumulate, false, fiber.fenced});
}
template <int N> inline void wgmma_f16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
    emulation::Fiber& fiber = emulation::machine().current();
    fiber.products.push_back({d, a, b, N, accumulate, true, fiber.fenced});
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
