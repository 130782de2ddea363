// A pipeline as the kernels have it, small, with one thing left out or wrong at a time: each must show, and the whole must not.
#define EMULATION_WITHOUT_KERNELS
#include "../emulation/emulation.cpp"
#include <cmath>
#include "packing.h"
#include "testing.h"

// What is wrong with the pipeline.
enum Fault : uint32_t {
    NOTHING,
    NO_WAIT_FOR_FULL,        // who multiplies does not wait for the stage
    NO_WAIT_FOR_EMPTY,       // the feeder overwrites stages that are being read
    RELEASED_EARLY,          // a stage is given back before its products are done
    NO_PRODUCT_WAIT,         // sums are used while products are under way
    NO_PRODUCT_COMMIT,       // their group is never closed
    TOO_MANY_EXPECTED,       // an mbarrier waits for one arrival that never comes
    TOO_FEW_EXPECTED,        // and for one less than come
    BYTES_FORGOTTEN,         // the bytes of the bulk copy are not announced
    BYTES_WRONG,             // too many are
    ROWS_FORGOTTEN,          // those of the rows are not
    WRONG_PARITY,            // who multiplies waits for the other phase
    NO_BARRIER_AFTER_INIT,   // mbarriers are used before they are there
    UNALIGNED_BULK,          // a bulk copy from an odd address
    UNALIGNED_ROWS,          // rows to one where no swizzled matrix begins
    OUTSIDE,                 // rows beyond shared memory
    NO_MAP,                  // rows of no matrix
    OTHER_SLAB,              // rows from another column on
    NO_SWIZZLE,              // a descriptor that does not say how rows are swizzled
    DIFFERENT_OPERANDS,      // a thread names another descriptor than the rest of its warpgroup
    FAULTS
};

struct PlantedArguments {
    TensorMap a;      // 64 rows by 64 · slabs of bf16
    uint64_t b, out;  // b: packed columns; out: 64 × 32 f32
    uint32_t slabs;
    uint32_t fault;
    uint64_t padding[13];
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
            mbarrier_init(&full[s], 2 + (fault == TOO_MANY_EXPECTED) - (fault == TOO_FEW_EXPECTED));
            mbarrier_init(&empty[s], 4);
        }
    }
    mbarrier_init_fence();
    if (fault != NO_BARRIER_AFTER_INIT) __syncthreads();
    if (threadIdx.x >= 128) {
        if (t != 0) return;
        for (uint32_t k = 0; k < slabs; ++k) {
            const uint32_t s = k % STAGES;
            if (fault != NO_WAIT_FOR_EMPTY) mbarrier_wait(&empty[s], (k / STAGES & 1) ^ 1);
            uint8_t* stage = shared + s * STAGE_BYTES;
            if (fault == BYTES_FORGOTTEN) {
                mbarrier_arrive(&full[s]);
            } else {
                mbarrier_arrive_expect(&full[s], fault == BYTES_WRONG ? 4112 : 4096);
            }
            bulk_copy(stage + 64 * 128, reinterpret_cast<const void*>(p.b + k * 4096 + (fault == UNALIGNED_BULK ? 2 : 0)), 4096, &full[s]);
            if (fault == ROWS_FORGOTTEN) {
                mbarrier_arrive(&full[s]);
            } else {
                mbarrier_arrive_expect(&full[s], TENSOR_BOX_BYTES);
            }
            uint8_t* const to = stage + (fault == UNALIGNED_ROWS ? 512 : fault == OUTSIDE && k == 1 ? STAGE_BYTES : 0);
            tensor_copy(to, fault == NO_MAP ? TensorMap{} : p.a, (fault == OTHER_SLAB && k == 2 ? 1 : k) * 64, 0, &full[s]);
        }
    } else {
        float sums[16] = {};
        for (uint32_t k = 0; k < slabs; ++k) {
            const uint32_t s = k % STAGES;
            if (fault != NO_WAIT_FOR_FULL) mbarrier_wait(&full[s], (k / STAGES & 1) ^ (fault == WRONG_PARITY));
            const uint8_t* stage = shared + s * STAGE_BYTES;
            uint64_t a = wgmma_descriptor(stage);
            const uint64_t b = wgmma_descriptor(stage + 64 * 128);
            if (fault == NO_SWIZZLE) a &= ~(3ull << 62);
            if (fault == DIFFERENT_OPERANDS && t == 77) a += 2;
            wgmma_fence();
            for (int i = 0; i < 4; ++i) wgmma_bf16<32>(sums, a + 2 * i, b + 2 * i, true);
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

// What is wrong with copies of 16 bytes that a group is waited for.
enum CopyFault : uint32_t { NO_FAULT, NO_WAIT, NO_COMMIT, UNALIGNED, BEYOND, NOBODY_WAITS };

struct PartsArguments {
    uint64_t from, out;
    uint32_t bytes, fault;
};

// Each thread copies so many bytes of its 16, and stores what came of it.
extern "C" __global__ void __launch_bounds__(64) parts(const __grid_constant__ PartsArguments p) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, 1);
    if (p.fault == NOBODY_WAITS) {
        if (threadIdx.x != 0) return;
        mbarrier_init(&full[0], 1);
        bulk_copy(shared, reinterpret_cast<const void*>(p.from), 16, &full[0]);
        return;
    }
    const uint32_t to = threadIdx.x * 16 + (p.fault == UNALIGNED ? 8 : 0) + (p.fault == BEYOND ? 16 : 0);
    copy_async(shared + to, reinterpret_cast<const void*>(p.from + threadIdx.x * 16), p.bytes);
    if (p.fault != NO_COMMIT) copy_commit();
    if (p.fault != NO_WAIT) copy_wait<0>();
    reinterpret_cast<uint4*>(p.out)[threadIdx.x] = reinterpret_cast<const uint4*>(shared)[threadIdx.x];
}
KERNEL(parts, PartsArguments)

namespace {

constexpr uint32_t SLABS = 16;

// What a run of the pipeline came to: what the emulation said, or "wrong" if it said nothing and the numbers are not right.
std::string outcome(Fault fault, uint64_t seed) {
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
    const PlantedArguments arguments{testing::tensor_map(rows.address(), 64 * SLABS, 64, 128 * SLABS), columns.address(), out.address(), SLABS, fault, {}};
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
    for (uint64_t seed = 0; seed < 60; ++seed) CHECK(outcome(NOTHING, seed) == "");
}

// What a copy does not bring is zeros; without a wait, or with one for a group that was never closed, nothing has come.
void copies_arrive_whole() {
    const testing::Memory<uint8_t> from(std::vector<uint8_t>(64 * 16, 7));
    testing::Memory<uint8_t> out(64 * 16);
    const auto run = [&](CopyFault fault) { return testing::launch("parts", {1, 1, 1}, 64, 64 * 16, PartsArguments{from.address(), out.address(), 12, fault}); };
    CHECK(run(NO_FAULT) == "");
    for (uint32_t i = 0; i < 64 * 16; ++i) CHECK(out[i] == (i % 16 < 12 ? 7 : 0));
    for (const CopyFault fault : {NO_WAIT, NO_COMMIT}) {
        CHECK(run(fault) == "");
        for (uint32_t i = 0; i < 64; ++i) CHECK(out[i * 16] == 0xff);
    }
    CHECK_HAS(run(UNALIGNED), "a copy that is not aligned");
    CHECK_HAS(run(BEYOND), "outside the block's shared memory");
    // Now and then it lands at once.
    int left = 0;
    for (uint64_t seed = 0; seed < 10; ++seed) {
        emulate_seed(seed);
        left += run(NOBODY_WAITS).find("leaves before a copy that it started has arrived") != std::string::npos;
    }
    CHECK(left >= 3);
}

// Every fault shows in each of several orders of the threads, in words that name it or what comes of it.
void each_fault_shows() {
    const struct {
        Fault fault;
        const char* says;
        const char *or_says = nullptr, *or_else = nullptr;  // what comes of it depends on the order
    } faults[] = {
        {NO_WAIT_FOR_FULL, "wrong", "beyond the 2 that the mbarrier expects"},
        {NO_WAIT_FOR_EMPTY, "beyond the 2 that the mbarrier expects", "wrong"},
        {RELEASED_EARLY, "wrong", "deadlock"},
        {NO_PRODUCT_WAIT, "wrong", "deadlock"},
        {NO_PRODUCT_COMMIT, "wrong"},
        {TOO_MANY_EXPECTED, "deadlock"},
        {TOO_FEW_EXPECTED, "beyond the 1 that the mbarrier expects", "wrong"},
        {BYTES_FORGOTTEN, "deadlock"},
        {BYTES_WRONG, "deadlock"},
        {ROWS_FORGOTTEN, "deadlock"},
        {WRONG_PARITY, "wrong", "beyond the 2 that the mbarrier expects", "deadlock"},
        {NO_BARRIER_AFTER_INIT, "not initialised"},
        {UNALIGNED_BULK, "a bulk copy that is not aligned"},
        {UNALIGNED_ROWS, "not aligned to 1024"},
        {OUTSIDE, "outside the block's shared memory"},
        {NO_MAP, "a map of no matrix"},
        {OTHER_SLAB, "wrong"},
        {NO_SWIZZLE, "without the swizzle"},
        {DIFFERENT_OPERANDS, "different operands"},
    };
    static_assert(std::size(faults) == FAULTS - 1, "every fault has its line");
    for (const auto& one : faults) {
        int named = 0;
        std::string last;
        for (uint64_t seed = 0; seed < 10; ++seed) {
            const std::string said = outcome(one.fault, seed);
            const auto has = [&](const char* words) { return words && said.find(words) != std::string::npos; };
            const bool is_named = has(one.says) || has(one.or_says) || has(one.or_else);
            named += is_named;
            if (!is_named) last = said;
        }
        if (named != 10) {
            testing::failed(__FILE__, __LINE__, "fault " + std::to_string(one.fault) + " showed as \"" + one.says + "\" in " + std::to_string(named) + " of 10 orders; else: " + last);
        }
    }
}

}  // namespace

int main() {
    RUN(the_whole_is_right);
    RUN(copies_arrive_whole);
    RUN(each_fault_shows);
    return testing::finish();
}
