// A pipeline as the kernels have it, small, with one thing left out or wrong at a time: each must show, and the whole must not.
#define EMULATION_WITHOUT_KERNELS
#include "../emulation/emulation.cpp"
#include <cmath>
#include "packing.h"
#include "testing.h"

// What is wrong with the pipeline.
enum Fault : uint32_t {
    NOTHING,
    NO_COPY_WAIT,            // the feeder publishes rows that have not landed
    NO_COPY_COMMIT,          // it never closes their group
    NO_PROXY_FENCE,          // it publishes them without a fence
    NO_WAIT_FOR_FULL,        // who multiplies does not wait for the stage
    NO_WAIT_FOR_EMPTY,       // the feeder overwrites stages that are being read
    RELEASED_EARLY,          // a stage is given back before its products are done
    NO_PRODUCT_WAIT,         // sums are used while products are under way
    NO_PRODUCT_COMMIT,       // their group is never closed
    TOO_MANY_EXPECTED,       // an mbarrier waits for one arrival that never comes
    TOO_FEW_EXPECTED,        // and for one less than come
    BYTES_FORGOTTEN,         // the bytes of the bulk copy are not announced
    BYTES_WRONG,             // too many are
    WRONG_PARITY,            // who multiplies waits for the other phase
    NO_BARRIER_AFTER_INIT,   // mbarriers are used before they are there
    UNALIGNED_BULK,          // a bulk copy from an odd address
    UNALIGNED_COPY,          // an asynchronous copy to one
    OUTSIDE,                 // an asynchronous copy beyond shared memory
    NO_SWIZZLE,              // a descriptor that does not say how rows are swizzled
    DIFFERENT_OPERANDS,      // a thread names another descriptor than the rest of its warpgroup
    // Where rows arrive at the mbarrier by themselves:
    FENCED_BY_FEEDER,        // who copied them fences, before they have landed, and nobody else does
    FENCE_LEFT_OUT,          // one thread of those that multiply does not fence
    FENCE_TOO_LATE,          // they fence when they have issued the products
    FENCE_TOO_EARLY,         // they fence before they wait
    ARRIVED_AT_ONCE,         // the feeder arrives itself, whether rows have landed or not
    ARRIVED_BEFORE,          // what is to arrive is said before the copies are started
    ARRIVES_TWICE,           // one thread's copies arrive twice
    FAULTS
};

struct PlantedArguments {
    uint64_t a, b, out;  // a: 64 × 64 · slabs of bf16; b: packed columns; out: 64 × 32 f32
    uint32_t slabs;
    uint32_t fault;
    uint32_t by_mbarrier;  // rows arrive there when they land; else the feeder waits for them and arrives
    uint32_t padding;
};

// out = a·b with one feeding and one multiplying warpgroup and two stages.
extern "C" __global__ void __launch_bounds__(256) planted(const __grid_constant__ PlantedArguments p) {
    constexpr int STAGES = 2, STAGE_BYTES = (64 + 32) * 128;
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, STAGES);
    SHARED(uint64_t, empty, STAGES);
    const uint32_t fault = p.fault, t = threadIdx.x % 128, slabs = p.slabs;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(&full[s], 129 + (fault == TOO_MANY_EXPECTED) - (fault == TOO_FEW_EXPECTED));
            mbarrier_init(&empty[s], 4);
        }
    }
    mbarrier_init_fence();
    if (fault != NO_BARRIER_AFTER_INIT) __syncthreads();
    if (threadIdx.x >= 128) {
        for (uint32_t k = 0; k < slabs; ++k) {
            const uint32_t s = k % STAGES;
            if (fault != NO_WAIT_FOR_EMPTY) mbarrier_wait(&empty[s], (k / STAGES & 1) ^ 1);
            uint8_t* stage = shared + s * STAGE_BYTES;
            if (t == 0) {
                if (fault == BYTES_FORGOTTEN) {
                    mbarrier_arrive(&full[s]);
                } else {
                    mbarrier_arrive_expect(&full[s], fault == BYTES_WRONG ? 4112 : 4096);
                }
                bulk_copy(stage + 64 * 128, reinterpret_cast<const void*>(p.b + k * 4096 + (fault == UNALIGNED_BULK ? 2 : 0)), 4096, &full[s]);
            }
            if (fault == ARRIVED_BEFORE) copies_arrive(&full[s]);
            for (int i = 0; i < 4; ++i) {
                const uint32_t r = t / 8 + 16 * i, chunk = t % 8;
                uint32_t to = r * 128 + ((chunk ^ (r & 7)) << 4);
                if (fault == UNALIGNED_COPY) to += 8;
                if (fault == OUTSIDE && k == 1 && r == 63) to += STAGE_BYTES;
                copy_async(stage + to, reinterpret_cast<const void*>(p.a + (r * slabs + k) * 128 + chunk * 16), 16);
            }
            if (p.by_mbarrier) {
                if (fault == FENCED_BY_FEEDER) async_proxy_fence();
                if (fault == ARRIVED_AT_ONCE) mbarrier_arrive(&full[s]);
                if (fault != ARRIVED_AT_ONCE && fault != ARRIVED_BEFORE) copies_arrive(&full[s]);
                if (fault == ARRIVES_TWICE && t == 33) copies_arrive(&full[s]);
                continue;
            }
            if (fault != NO_COPY_COMMIT) copy_commit();
            if (fault != NO_COPY_WAIT) copy_wait<0>();
            if (fault != NO_PROXY_FENCE) async_proxy_fence();
            mbarrier_arrive(&full[s]);
        }
    } else {
        float sums[16] = {};
        for (uint32_t k = 0; k < slabs; ++k) {
            const uint32_t s = k % STAGES;
            const bool fences = p.by_mbarrier && fault != NO_PROXY_FENCE && fault != FENCED_BY_FEEDER && (fault != FENCE_LEFT_OUT || t != 77);
            if (fences && fault == FENCE_TOO_EARLY) async_proxy_fence();
            if (fault != NO_WAIT_FOR_FULL) mbarrier_wait(&full[s], (k / STAGES & 1) ^ (fault == WRONG_PARITY));
            if (fences && fault != FENCE_TOO_EARLY && fault != FENCE_TOO_LATE) async_proxy_fence();
            const uint8_t* stage = shared + s * STAGE_BYTES;
            uint64_t a = wgmma_descriptor(stage);
            const uint64_t b = wgmma_descriptor(stage + 64 * 128);
            if (fault == NO_SWIZZLE) a &= ~(3ull << 62);
            if (fault == DIFFERENT_OPERANDS && t == 77) a += 2;
            wgmma_fence();
            for (int i = 0; i < 4; ++i) wgmma_bf16<32>(sums, a + 2 * i, b + 2 * i, true);
            if (fences && fault == FENCE_TOO_LATE) async_proxy_fence();
            if (fault != NO_PRODUCT_COMMIT) wgmma_commit();
            if (fault == RELEASED_EARLY && t % 32 == 0) mbarrier_arrive(&empty[s]);
            if (fault != NO_PRODUCT_WAIT) wgmma_wait<0>();
            if (fault != RELEASED_EARLY && t % 32 == 0) mbarrier_arrive(&empty[s]);
        }
        const uint32_t row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
        float* out = reinterpret_cast<float*>(p.out);
        for (int i = 0; i < 16; ++i) out[(row + i / 2 % 2 * 8) * 32 + i / 4 * 8 + column + i % 2] = sums[i];
    }
}
KERNEL(planted, PlantedArguments)

// Copies what nobody multiplies, where the pipeline has its columns, and so needs no fence.
extern "C" __global__ void __launch_bounds__(256) unfenced(const __grid_constant__ PlantedArguments p) {
    DYNAMIC_SHARED(shared);
    copy_async(shared + 64 * 128 + threadIdx.x * 16, reinterpret_cast<const void*>(p.a), 16);
    copy_commit();
    copy_wait<0>();
}
KERNEL(unfenced, PlantedArguments)

// Each thread copies `slabs` bytes of its 16, and stores what came of it; with a fault nobody waits for them, nor (`ARRIVED_AT_ONCE`) for a bulk copy.
extern "C" __global__ void __launch_bounds__(64) parts(const __grid_constant__ PlantedArguments p) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, 1);
    if (threadIdx.x == 0) mbarrier_init(&full[0], 64);
    mbarrier_init_fence();
    __syncthreads();
    copy_async(shared + threadIdx.x * 16, reinterpret_cast<const void*>(p.a + threadIdx.x * 16), p.slabs);
    if (p.fault == ARRIVED_AT_ONCE) {
        if (threadIdx.x == 0) bulk_copy(shared + 64 * 16, reinterpret_cast<const void*>(p.a), 16, &full[0]);
        return;
    }
    copies_arrive(&full[0]);
    if (p.fault == NOTHING) mbarrier_wait(&full[0], 0);
    reinterpret_cast<uint4*>(p.out)[threadIdx.x] = reinterpret_cast<const uint4*>(shared)[threadIdx.x];
}
KERNEL(parts, PlantedArguments)

namespace {

constexpr uint32_t SLABS = 6;

// What a run of the pipeline came to: what the emulation said, or "wrong" if it said nothing and the numbers are not right.
std::string outcome(Fault fault, uint64_t seed, bool by_mbarrier) {
    testing::Random random(1);
    std::vector<uint16_t> a(64 * 64 * SLABS), b(32 * 64 * SLABS), packed(b.size() + 8);
    for (uint16_t& v : a) v = packing::to_bf16(random.signed_unit());
    for (uint16_t& v : b) v = packing::to_bf16(random.signed_unit());
    for (size_t k = 0; k < 64 * SLABS; ++k) {
        for (size_t j = 0; j < 32; ++j) packed[k / 64 * 2048 + j * 64 + (((k % 64 >> 3) ^ (j & 7)) << 3) + k % 8] = b[k * 32 + j];
    }
    const testing::Memory<uint16_t> rows(a), columns(packed);
    testing::Memory<float> out(64 * 32);
    emulate_seed(seed);
    const PlantedArguments arguments{rows.address(), columns.address(), out.address(), SLABS, fault, by_mbarrier, 0};
    const std::string said = testing::launch("planted", {1, 1, 1}, 256, 2 * (64 + 32) * 128, arguments);
    if (!said.empty()) return said;
    for (size_t r = 0; r < 64; ++r) {
        for (size_t j = 0; j < 32; ++j) {
            double sum = 0;
            for (size_t k = 0; k < 64 * SLABS; ++k) sum += static_cast<double>(packing::from_bf16(a[r * 64 * SLABS + k])) * packing::from_bf16(b[k * 32 + j]);
            if (!(std::abs(out[r * 32 + j] - sum) < 1e-3)) return "wrong";
        }
    }
    return "";
}

void the_whole_is_right() {
    for (uint64_t seed = 0; seed < 60; ++seed) CHECK(outcome(NOTHING, seed / 2, seed % 2) == "");
}

// What a copy does not bring is zeros, as where a group of copies is waited for; and all of them must have been waited for at the end.
void copies_arrive_whole() {
    const testing::Memory<uint8_t> from(std::vector<uint8_t>(64 * 16, 7));
    testing::Memory<uint8_t> out(64 * 16);
    const auto run = [&](Fault fault) {
        return testing::launch("parts", {1, 1, 1}, 64, 65 * 16, PlantedArguments{from.address(), 0, out.address(), 12, fault, 1, 0});
    };
    CHECK(run(NOTHING) == "");
    for (uint32_t i = 0; i < 64 * 16; ++i) CHECK(out[i] == (i % 16 < 12 ? 7 : 0));
    CHECK_HAS(run(NO_COPY_WAIT), "leaves before a copy that it started has arrived");
    uint32_t poisoned = 0;
    for (uint32_t i = 0; i < 64; ++i) poisoned += out[i * 16] == 0xff;
    CHECK(poisoned > 32);
    CHECK_HAS(run(ARRIVED_AT_ONCE), "leaves before a copy that it started has arrived");
}

// Every fault shows in each of several orders of the threads, in the words that name it, whether the feeder waits for rows or they arrive by themselves.
void each_fault_shows() {
    enum Rows { EITHER, WAITED_FOR, BY_MBARRIER };
    const struct {
        Fault fault;
        Rows rows;
        const char* says;
        const char* or_says = nullptr;  // what comes of it depends on the order
    } faults[] = {
        {NO_COPY_WAIT, WAITED_FOR, "wrong"},
        {NO_COPY_COMMIT, WAITED_FOR, "wrong"},
        {NO_PROXY_FENCE, EITHER, "did not fence"},
        {NO_WAIT_FOR_FULL, EITHER, "beyond the 129 that the mbarrier expects", "did not fence"},
        {NO_WAIT_FOR_EMPTY, EITHER, "beyond the 129 that the mbarrier expects", "deadlock"},
        {RELEASED_EARLY, EITHER, "wrong", "did not fence"},
        {NO_PRODUCT_WAIT, EITHER, "wrong", "deadlock"},
        {NO_PRODUCT_COMMIT, EITHER, "wrong"},
        {TOO_MANY_EXPECTED, EITHER, "deadlock"},
        {TOO_FEW_EXPECTED, EITHER, "beyond the 128 that the mbarrier expects", "did not fence"},
        {BYTES_FORGOTTEN, EITHER, "deadlock"},
        {BYTES_WRONG, EITHER, "deadlock"},
        {WRONG_PARITY, EITHER, "beyond the 129 that the mbarrier expects", "did not fence"},
        {NO_BARRIER_AFTER_INIT, EITHER, "not initialised"},
        {UNALIGNED_BULK, EITHER, "a bulk copy that is not aligned"},
        {UNALIGNED_COPY, EITHER, "a copy that is not aligned"},
        {OUTSIDE, EITHER, "outside the block's shared memory"},
        {NO_SWIZZLE, EITHER, "without the swizzle"},
        {DIFFERENT_OPERANDS, EITHER, "different operands"},
        {FENCED_BY_FEEDER, BY_MBARRIER, "copied and thread 0 did not fence"},
        {FENCE_LEFT_OUT, BY_MBARRIER, "copied and thread 77 did not fence"},
        {FENCE_TOO_LATE, BY_MBARRIER, "copied and thread 0 did not fence before"},
        {FENCE_TOO_EARLY, BY_MBARRIER, "copied and thread 0 did not fence"},
        {ARRIVED_AT_ONCE, BY_MBARRIER, "wrong"},
        {ARRIVED_BEFORE, BY_MBARRIER, "wrong", "did not fence"},
        {ARRIVES_TWICE, BY_MBARRIER, "beyond the 129 that the mbarrier expects"},
    };
    static_assert(std::size(faults) == FAULTS - 1, "every fault has its line");
    for (const auto& one : faults) {
        for (const bool by_mbarrier : {false, true}) {
            if (one.rows == (by_mbarrier ? WAITED_FOR : BY_MBARRIER)) continue;
            int named = 0;
            std::string last;
            for (uint64_t seed = 0; seed < 10; ++seed) {
                const std::string said = outcome(one.fault, seed, by_mbarrier);
                const auto has = [&](const char* words) { return words && said.find(words) != std::string::npos; };
                const bool is_named = has(one.says) || has(one.or_says);
                named += is_named;
                if (!is_named) last = said;
            }
            if (named != 10) {
                testing::failed(__FILE__, __LINE__, "fault " + std::to_string(one.fault) + (by_mbarrier ? " of rows that arrive" : "") + " showed as \"" +
                                                        one.says + "\" in " + std::to_string(named) + " of 10 orders; else: " + last);
            }
        }
    }
}

// What a launch left unfenced is not held against a later one, even if one with fewer threads came between.
void launches_are_told_apart() {
    const testing::Memory<uint16_t> row(8);
    for (const uint32_t threads : {256u, 32u}) {
        CHECK(testing::launch("unfenced", {1, 1, 1}, threads, 64 * 128 + 256 * 16, PlantedArguments{row.address(), 0, 0, 0, 0, 0, 0}) == "");
    }
    CHECK(outcome(NOTHING, 0, false) == "");
    CHECK(outcome(NOTHING, 0, true) == "");
}

}  // namespace

int main() {
    RUN(the_whole_is_right);
    RUN(copies_arrive_whole);
    RUN(launches_are_told_apart);
    RUN(each_fault_shows);
    return testing::finish();
}
