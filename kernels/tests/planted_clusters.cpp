// A pipeline of a cluster as the kernels have it, small, with one thing left out or wrong at a time: each must show, and the whole must not.
#define EMULATION_WITHOUT_KERNELS
#include "../emulation/emulation.cpp"
#include <cmath>
#include "packing.h"
#include "testing.h"

// What is wrong with the pipeline.
enum Fault : uint32_t {
    NOTHING,
    NO_FIRST_BARRIER,   // blocks use each other's mbarriers before they are there
    NO_LAST_BARRIER,    // they leave while others still arrive at theirs
    UNREAD,             // one leaves while a copy to it is under way
    RELEASED_AT_HOME,   // a stage is given back to its own block alone, and all copy to it
    TOO_FEW_EXPECTED,   // a stage counts as given back when one block has not done so
    SHARE_FORGOTTEN,    // a block does not copy its share
    LEFT_OUT,           // a block's copies do not go to one of the others
    BARRIER_FORGOTTEN,  // a block that stays does not come to the last barrier
    ARRIVES_TWICE,      // a thread arrives at the cluster's barrier again without having waited
    WAITS_ONLY,         // a thread waits there and has not arrived
    BEYOND,             // a block that the cluster does not have
    FAULTS
};

struct PlantedArguments {
    uint64_t a, b, out;  // a: 64 rows for each block, of 64 · slabs bf16; b: packed columns; out: 32 f32 for each row
    uint32_t slabs;
    uint32_t blocks;  // of each cluster, that there are rows for
    uint32_t fault;
    uint32_t padding;
};

// out = a·b with one feeding and one multiplying warpgroup and two stages in each block; the blocks of a cluster read b together.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256) planted(const __grid_constant__ PlantedArguments p) {
    constexpr uint32_t STAGES = 2, STAGE_BYTES = (64 + 32) * 128, SHARE = 1024;
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, STAGES);
    SHARED(uint64_t, empty, STAGES);
    const uint32_t fault = p.fault, t = threadIdx.x % 128, slabs = p.slabs, rank = blockIdx.x % 4, blocks = p.blocks;
    if (rank >= blocks) return;
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < STAGES; ++s) {
            mbarrier_init(&full[s], 129);
            mbarrier_init(&empty[s], fault == RELEASED_AT_HOME ? 4 : 4 * blocks - (fault == TOO_FEW_EXPECTED ? 4 : 0));
        }
    }
    mbarrier_init_fence();
    if (fault == NO_FIRST_BARRIER) {
        __syncthreads();
    } else {
        if (fault != WAITS_ONLY || threadIdx.x != 7) cluster_arrive();
        if (fault == ARRIVES_TWICE && threadIdx.x == 7) cluster_arrive();
        cluster_wait();
    }
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(p.a) + blockIdx.x * 64 * slabs * 128;
    if (threadIdx.x >= 128) {
        for (uint32_t k = 0; k < slabs; ++k) {
            const uint32_t s = k % STAGES;
            mbarrier_wait(&empty[s], (k / STAGES & 1) ^ 1);
            uint8_t* stage = shared + s * STAGE_BYTES;
            if (t == 0) {
                mbarrier_arrive_expect(&full[s], 4 * SHARE);
                uint32_t ranks = (1u << blocks) - 1;
                if (fault == LEFT_OUT && rank == 1) ranks ^= 1;
                for (uint32_t share = rank; share < 4; share += blocks) {
                    if (fault == SHARE_FORGOTTEN && rank == 1) continue;
                    bulk_copy_to(ranks, stage + 64 * 128 + share * SHARE, reinterpret_cast<const void*>(p.b + k * 4096 + share * SHARE), SHARE, &full[s]);
                }
            }
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t r = t / 8 + 16 * i, chunk = t % 8;
                copy_async(stage + r * 128 + ((chunk ^ (r & 7)) << 4), rows + (r * slabs + k) * 128 + chunk * 16, 16);
            }
            copy_commit();
            copy_wait<0>();
            async_proxy_fence();
            mbarrier_arrive(&full[s]);
        }
    } else {
        float sums[16] = {};
        for (uint32_t k = 0; k < slabs; ++k) {
            const uint32_t s = k % STAGES;
            if (fault == UNREAD && rank == 1 && k == slabs - 1) return;
            mbarrier_wait(&full[s], k / STAGES & 1);
            const uint8_t* stage = shared + s * STAGE_BYTES;
            const uint64_t a = wgmma_descriptor(stage), b = wgmma_descriptor(stage + 64 * 128);
            wgmma_fence();
            for (int i = 0; i < 4; ++i) wgmma_bf16<32>(sums, a + 2 * i, b + 2 * i, true);
            wgmma_commit();
            wgmma_wait<0>();
            if (fault == RELEASED_AT_HOME) {
                if (t % 32 == 0) mbarrier_arrive(&empty[s]);
            } else if (t % 32 < blocks) {
                mbarrier_arrive_at(&empty[s], t % 32 + (fault == BEYOND && t == 0 ? 4 : 0));
            }
        }
        const uint32_t row = blockIdx.x * 64 + t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
        float* out = reinterpret_cast<float*>(p.out);
        for (uint32_t i = 0; i < 16; ++i) out[(row + i / 2 % 2 * 8) * 32 + i / 4 * 8 + column + i % 2] = sums[i];
    }
    if (fault == NO_LAST_BARRIER || (fault == UNREAD && rank == 1)) return;
    // These are still there, and wait for one that waits for them.
    if (fault == BARRIER_FORGOTTEN && rank == 1 && threadIdx.x != 0) return __syncthreads();
    cluster_arrive();
    cluster_wait();
}
KERNEL_CLUSTER(planted, PlantedArguments, 4)

namespace {

constexpr uint32_t SLABS = 6, CLUSTERS = 6;

// What a run of the pipeline came to: what the emulation said, or "wrong" if it said nothing and the numbers are not right.
std::string outcome(Fault fault, uint32_t blocks, uint64_t seed) {
    testing::Random random(1);
    constexpr size_t ROWS = CLUSTERS * 4 * 64, K = 64 * SLABS;
    std::vector<uint16_t> a(ROWS * K), b(32 * K), packed(b.size());
    for (uint16_t& v : a) v = packing::to_bf16(random.signed_unit());
    for (uint16_t& v : b) v = packing::to_bf16(random.signed_unit());
    for (size_t k = 0; k < K; ++k) {
        for (size_t j = 0; j < 32; ++j) packed[k / 64 * 2048 + j * 64 + (((k % 64 >> 3) ^ (j & 7)) << 3) + k % 8] = b[k * 32 + j];
    }
    const testing::Memory<uint16_t> rows(a), columns(packed);
    testing::Memory<float> out(ROWS * 32);
    emulate_seed(seed);
    const PlantedArguments arguments{rows.address(), columns.address(), out.address(), SLABS, blocks, fault, 0};
    const std::string said = testing::launch("planted", {CLUSTERS * 4, 1, 1}, 256, 2 * (64 + 32) * 128, arguments);
    if (!said.empty()) return said;
    // Rows far from one another, all columns: every block, and every share.
    for (size_t r = 0; r < ROWS; r += 17) {
        for (size_t j = 0; j < 32; ++j) {
            double sum = 0;
            for (size_t k = 0; k < K; ++k) sum += static_cast<double>(packing::from_bf16(a[r * K + k])) * packing::from_bf16(b[k * 32 + j]);
            const bool is_right = r / 64 % 4 < blocks ? std::abs(out[r * 32 + j] - sum) < 1e-3 : std::isnan(out[r * 32 + j]);
            if (!is_right) return "wrong";
        }
    }
    return "";
}

void the_whole_is_right() {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        for (uint32_t blocks = 1; blocks <= 4; ++blocks) CHECK(outcome(NOTHING, blocks, seed) == "");
    }
}

// Every fault shows in each of several orders of the threads, in the words that name it.
void each_fault_shows() {
    const struct {
        Fault fault;
        const char* says;
        const char* or_says = nullptr;  // what comes of it depends on the order
    } faults[] = {
        {NO_FIRST_BARRIER, "not initialised"},
        {NO_LAST_BARRIER, "has left, and another of its cluster reaches for it"},
        {UNREAD, "has left, and another of its cluster reaches for it", "leaves before a bulk copy to it has landed"},
        {RELEASED_AT_HOME, "wrong", "deadlock"},
        {TOO_FEW_EXPECTED, "beyond the 129 that the mbarrier expects", "deadlock"},
        {SHARE_FORGOTTEN, "deadlock"},
        {LEFT_OUT, "deadlock"},
        {BARRIER_FORGOTTEN, "wait for the barrier of the cluster"},
        {ARRIVES_TWICE, "arrives twice at the barrier of its cluster"},
        {WAITS_ONLY, "waits at the barrier of its cluster without having arrived"},
        {BEYOND, "block 4 of a cluster of 4"},
    };
    static_assert(std::size(faults) == FAULTS - 1, "every fault has its line");
    for (const auto& one : faults) {
        for (uint64_t seed = 0; seed < 10; ++seed) {
            const std::string said = outcome(one.fault, 4, seed);
            const auto has = [&](const char* words) { return words && said.find(words) != std::string::npos; };
            if (!has(one.says) && !has(one.or_says)) {
                testing::failed(__FILE__, __LINE__, "fault " + std::to_string(one.fault) + " with seed " + std::to_string(seed) + ": not \"" + one.says +
                                                        "\" but: " + said);
            }
        }
    }
}

void a_grid_is_whole_clusters() {
    const PlantedArguments arguments{0, 0, 0, 0, 0, 0, 0};
    CHECK(testing::launch("planted", {8, 1, 1}, 256, 0, arguments) == "");
    CHECK_HAS(testing::launch("planted", {6, 1, 1}, 256, 0, arguments), "no whole clusters of 4");
    CHECK(emulate_cluster("planted") == 4 && emulate_cluster("nothing") == 1);
}

}  // namespace

int main() {
    RUN(the_whole_is_right);
    RUN(each_fault_shows);
    RUN(a_grid_is_whole_clusters);
    return testing::finish();
}
