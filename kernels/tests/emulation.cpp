// The emulation itself: that threads meet as they should, and that each fault it claims to catch is caught.
#define EMULATION_WITHOUT_KERNELS
#include "../emulation/emulation.cpp"
#include <sys/wait.h>
#include <unistd.h>
#include "packing.h"
#include "testing.h"

struct SumArguments {
    uint64_t out;
    uint64_t in;
    uint32_t which;
    uint32_t padding;
};

// The sum over a block, by shuffles and through shared memory; `which` = 1 leaves out the barrier between.
extern "C" __global__ void block_sum(const __grid_constant__ SumArguments a) {
    SHARED(uint32_t, sums, 32);
    uint32_t v = threadIdx.x + blockIdx.x;
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffff, v, d);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    if (a.which != 1) __syncthreads();
    uint32_t total = 0;
    for (uint32_t w = 0; w < blockDim.x / 32; ++w) total += sums[w];
    reinterpret_cast<uint32_t*>(a.out)[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
KERNEL(block_sum, SumArguments)

// One thread returns early (which = 0); one waits where the others do not (which = 1).
extern "C" __global__ void early(const __grid_constant__ SumArguments a) {
    if (threadIdx.x == 5) {
        if (a.which == 1) __syncwarp();
        return;
    }
    __syncthreads();
    reinterpret_cast<uint32_t*>(a.out)[threadIdx.x] = threadIdx.x;
}
KERNEL(early, SumArguments)

// Runs off its stack.
extern "C" __global__ void deep(const __grid_constant__ SumArguments a) {
    volatile uint8_t big[emulation::STACK_BYTES - emulation::SLACK_BYTES];
    big[0] = 1;
    for (uint32_t i = 0; i < sizeof(big); ++i) big[i] = static_cast<uint8_t>(i);
    __syncthreads();
    reinterpret_cast<uint32_t*>(a.out)[threadIdx.x] = big[threadIdx.x];
}
KERNEL(deep, SumArguments)

// Writes one word of dynamic shared memory, at index `which`.
extern "C" __global__ void beyond(const __grid_constant__ SumArguments a) {
    DYNAMIC_SHARED(bytes);
    reinterpret_cast<uint32_t*>(bytes)[a.which] = 1;
}
KERNEL(beyond, SumArguments)

// Warp collectives gone wrong, by `which`.
extern "C" __global__ void collectives(const __grid_constant__ SumArguments a) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t v = lane;
    switch (a.which) {
        case 0: v = __shfl_sync(lane < 8 ? 0xff : 0xffffff00, lane, lane < 8 ? 7 : 31); break;  // right: halves of a warp on their own
        case 1: v = __shfl_sync(0xff, lane, 0); break;                                           // lanes 8 to 31 are not in the mask
        case 2: v = lane < 16 ? __shfl_sync(0xffffffff, lane, 0) : __ballot_sync(0xffffffff, true); break;
        case 3: v = __shfl_sync(0xff, lane, 20, 32); break;                                      // from a lane that takes no part
        case 4: group_barrier(1, lane < 16 ? 32 : 64); break;
        case 5: group_barrier(1, 48); break;
    }
    reinterpret_cast<uint32_t*>(a.out)[threadIdx.x] = v;
}
KERNEL(collectives, SumArguments)

// Each block adds one to what the block before it left: right only in the order of their numbers.
extern "C" __global__ void in_order(const __grid_constant__ SumArguments a) {
    uint32_t* out = reinterpret_cast<uint32_t*>(a.out);
    out[blockIdx.x + 1] = out[blockIdx.x] + 1;
}
KERNEL(in_order, SumArguments)

// All blocks wait for one another, in a launch that does and in one that does not keep all of them resident.
static void all_arrive(const SumArguments& a) {
    uint32_t* counter = reinterpret_cast<uint32_t*>(a.out);
    grid_arrive(counter);
    grid_wait(counter, gridDim.x);
}
extern "C" __global__ void together(const __grid_constant__ SumArguments a) { all_arrive(a); }
KERNEL_COOPERATIVE(together, SumArguments)
extern "C" __global__ void apart(const __grid_constant__ SumArguments a) { all_arrive(a); }
KERNEL(apart, SumArguments)

// Each block writes 64 words and counts itself in; block 0 then adds up everyone's. `which` = 1: without waiting for its own threads first.
extern "C" __global__ void counted(const __grid_constant__ SumArguments a) {
    uint32_t* counter = reinterpret_cast<uint32_t*>(a.out);
    uint32_t* words = counter + 1;
    group_barrier(1, 64);
    words[blockIdx.x * 64 + threadIdx.x] = 1;
    if (a.which != 1) __syncthreads();
    if (threadIdx.x == 0) {
        grid_arrive(counter);
        grid_wait(counter, gridDim.x);
        uint32_t sum = 0;
        for (uint32_t i = 0; i < gridDim.x * 64; ++i) sum += words[i];
        if (blockIdx.x == 0) *reinterpret_cast<uint32_t*>(a.in) = sum;
    }
}
KERNEL_COOPERATIVE(counted, SumArguments)

// Writes a word at `out`, and reads four at `in`.
extern "C" __global__ void reach(const __grid_constant__ SumArguments a) {
    *reinterpret_cast<uint32_t*>(a.out) = a.in ? reinterpret_cast<const uint4*>(a.in)->x : 1;
}
KERNEL(reach, SumArguments)

// Each thread writes twice what `in` holds for it. By `which`:
enum Following : uint32_t {
    WAITS,               // after it has waited for the launch in front
    READS_BEFORE,        // having read before that
    WRITES_BEFORE,       // having written before that as well
    NEVER_WAITS,
    ONE_WAITS,           // for the block, whose barrier comes behind
    ONE_WAITS_FOR_SELF,  // and the others go on
    WAITS_TWICE,         // some of them
    LEAVES,              // but for half of the blocks, that have nothing to do with other launches
    FAILS_BEFORE,        // it never comes so far
    MISSES_BARRIER,      // a thread leaves others behind
};
extern "C" __global__ void follow(const __grid_constant__ SumArguments a) {
    SHARED(uint32_t, shared, 256);
    const uint32_t t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
    uint32_t* out = reinterpret_cast<uint32_t*>(a.out);
    const volatile uint32_t* in = reinterpret_cast<const uint32_t*>(a.in);
    launch_next();
    shared[t] = t;
    if (a.which == LEAVES && blockIdx.x % 2 != 0) return;
    if (a.which == FAILS_BEFORE) __trap();
    if (a.which == MISSES_BARRIER && t != 3) __syncwarp(0xffffffff);
    __syncthreads();
    const bool is_before = a.which == READS_BEFORE || a.which == WRITES_BEFORE;
    uint32_t read = is_before ? in[at] : 0;
    if (a.which == WRITES_BEFORE) out[at] = read * 2;
    const bool one_waits = a.which == ONE_WAITS || a.which == ONE_WAITS_FOR_SELF;
    if (a.which != NEVER_WAITS && (!one_waits || t == 17)) launch_wait();
    if (a.which != ONE_WAITS_FOR_SELF) __syncthreads();
    if (a.which == WAITS_TWICE && t % 3 == 0) launch_wait();
    if (!is_before) read = in[at];
    out[at] = read * 2 + shared[(t + 1) % blockDim.x] - (t + 1) % blockDim.x;
}
KERNEL(follow, SumArguments)

extern "C" __global__ void follow_together(const __grid_constant__ SumArguments a) {
    launch_wait();
    all_arrive(a);
}
KERNEL_COOPERATIVE(follow_together, SumArguments)

// A launch that follows another, from when it has begun until it ends.
struct Follower {
    void* begun = nullptr;
    std::string said;
    Follower(const char* name, uint32_t blocks, uint32_t threads, const SumArguments& a, bool early) {
        char error[1024] = "";
        const uint32_t grid[3] = {blocks, 1, 1};
        if (emulate_begin(name, grid, threads, 0, &a, early, &begun, error, sizeof(error)) != 0) said = error;
    }
    std::string end() {
        char error[1024] = "";
        return !said.empty() ? said : emulate_end(begun, error, sizeof(error)) == 0 ? "" : error;
    }
};

static std::string launch(const char* name, uint32_t blocks, uint32_t threads, uint32_t shared, const SumArguments& a) {
    return testing::launch(name, {blocks, 1, 1}, threads, shared, a);
}

static void threads_meet() {
    std::vector<uint32_t> out(3 * 256);
    for (uint64_t seed = 0; seed < 20; ++seed) {
        emulate_seed(seed);
        std::fill(out.begin(), out.end(), 0);
        CHECK(launch("block_sum", 3, 256, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 0, 0}) == "");
        for (uint32_t i = 0; i < out.size(); ++i) CHECK(out[i] == 255 * 128 + 256 * (i / 256));
    }
}

static void a_missing_barrier_shows() {
    std::vector<uint32_t> out(256);
    int wrong = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        emulate_seed(seed);
        CHECK(launch("block_sum", 1, 256, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 1, 0}) == "");
        wrong += std::any_of(out.begin(), out.end(), [](uint32_t v) { return v != 255 * 128; });
    }
    CHECK(wrong == 20);
}

static void whoever_waits_for_ever_is_named() {
    std::vector<uint32_t> out(256, 7);
    CHECK(launch("early", 1, 64, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 0, 0}) == "");
    CHECK(out[4] == 4 && out[5] == 7 && out[63] == 63);
    const std::string said = launch("early", 1, 64, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 1, 0});
    CHECK_HAS(said, "deadlock");
    CHECK_HAS(said, "threads 5 wait for __syncwarp at emulation.cpp:");
    CHECK_HAS(said, "threads 0-4,6-63 wait for the barrier of the block");
    // What comes after a launch that was given up is as if it had not been.
    CHECK(launch("early", 1, 64, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 0, 0}) == "");
}

static void a_stack_that_is_too_small_is_named() {
#if defined(__SANITIZE_ADDRESS__)
    return;  // the sanitizer ends the process itself
#endif
    std::vector<uint32_t> out(256);
    CHECK_HAS(launch("deep", 1, 2, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 0, 0}), "ran off its stack");
}

static void writes_beyond_shared_memory_are_named() {
    CHECK(launch("beyond", 1, 1, 64, {0, 0, 15, 0}) == "");
    CHECK_HAS(launch("beyond", 1, 1, 64, {0, 0, 16, 0}), "a write 0 bytes beyond the 64 bytes");
}

static void launches_that_no_device_runs_are_refused() {
    CHECK_HAS(launch("nothing", 1, 1, 0, {}), "there is no kernel nothing");
    CHECK_HAS(launch("beyond", 1, 2048, 0, {}), "a block of 2048 threads");
    CHECK_HAS(launch("beyond", 0, 32, 0, {}), "a grid that no device runs");
    CHECK_HAS(launch("beyond", 1, 32, 300000, {}), "300000 bytes of shared memory");
    CHECK(emulate_size_of("beyond") == sizeof(SumArguments) && emulate_size_of("nothing") == -1);
}

static void collectives_gone_wrong_are_named() {
    std::vector<uint32_t> out(64);
    const auto run = [&](uint32_t which, uint32_t threads) {
        return launch("collectives", 1, threads, 0, {reinterpret_cast<uint64_t>(out.data()), 0, which, 0});
    };
    CHECK(run(0, 64) == "");
    CHECK(out[3] == 7 && out[8] == 31 && out[40] == 31);
    CHECK_HAS(run(1, 32), "takes part");
    CHECK_HAS(run(2, 32), "meet at different operations");
    CHECK(run(3, 8) == "");
    CHECK(out[0] == 0xffffffff);
    CHECK_HAS(run(4, 32), "expects");
    CHECK_HAS(run(5, 32), "no multiple of 32");
}

static void blocks_come_in_no_order() {
    int wrong = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        emulate_seed(seed);
        std::vector<uint32_t> out(9, 0);
        CHECK(launch("in_order", 8, 1, 0, {reinterpret_cast<uint64_t>(out.data()), 0, 0, 0}) == "");
        wrong += out[8] != 8;
    }
    CHECK(wrong > 10);
}

static void blocks_that_wait_for_one_another_must_be_resident() {
    uint32_t counter = 0;
    CHECK(launch("together", 5, 1, 0, {reinterpret_cast<uint64_t>(&counter), 0, 0, 0}) == "");
    counter = 0;
    CHECK_HAS(launch("apart", 5, 1, 0, {reinterpret_cast<uint64_t>(&counter), 0, 0, 0}), "wait for other blocks");
}

static void blocks_that_count_themselves_in_too_early_show() {
    int wrong = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        for (uint32_t which = 0; which < 2; ++which) {
            emulate_seed(seed);
            std::vector<uint32_t> words(1 + 4 * 64, 0);
            uint32_t sum = 0;
            CHECK(launch("counted", 4, 64, 0, {reinterpret_cast<uint64_t>(words.data()), reinterpret_cast<uint64_t>(&sum), which, 0}) == "");
            if (which == 0) CHECK(sum == 256);
            if (which == 1) wrong += sum != 256;
        }
    }
    CHECK(wrong > 10);
}

// One launch that writes words, and two that follow it, each of which doubles what the one in front of it left; all may begin before any has run. What went
// wrong, "wrong" where only the numbers are.
static std::string chain(Following first, Following second, uint64_t seed, bool early) {
    constexpr uint32_t BLOCKS = 4, THREADS = 64;
    std::vector<uint32_t> words(3 * BLOCKS * THREADS, 1000);
    const auto place = [&](uint32_t n) { return reinterpret_cast<uint64_t>(words.data() + n * BLOCKS * THREADS); };
    const auto arguments = [&](uint32_t from, Following which) { return SumArguments{place(from + 1), place(from), which, 0}; };
    emulate_seed(seed);
    SumArguments own = arguments(0, first);
    Follower two("follow", BLOCKS, THREADS, own, early);
    Follower three("follow", BLOCKS, THREADS, arguments(1, second), early);
    own = {};  // the launch has its own
    std::string said = launch("block_sum", BLOCKS, THREADS, 0, {place(0), 0, 0, 0});
    for (Follower* follower : {&two, &three}) {
        const std::string own_said = follower->end();  // also where one in front was given up
        if (said.empty()) said = own_said;
    }
    if (!said.empty()) return said;
    for (uint32_t i = 0; i < BLOCKS * THREADS; ++i) {
        const uint32_t block = i / THREADS, sum = THREADS * (THREADS - 1) / 2 + THREADS * block, got = words[2 * BLOCKS * THREADS + i];
        if (first == LEAVES && block % 2 != 0) continue;
        if (got != (second == LEAVES && block % 2 != 0 ? 1000 : 4 * sum)) return "wrong";
    }
    return "";
}

static void launches_may_begin_before_those_in_front() {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        for (const bool early : {false, true}) {
            for (const Following which : {WAITS, ONE_WAITS, WAITS_TWICE, LEAVES}) {
                CHECK(chain(which, WAITS, seed, early) == "");
                CHECK(chain(WAITS, which, seed, early) == "");
            }
        }
    }
    uint32_t counter = 0;
    Follower together("follow_together", 5, 1, {reinterpret_cast<uint64_t>(&counter), 0, 0, 0}, true);
    CHECK(counter == 0 && together.end() == "" && counter == 5);
}

static void what_does_not_wait_for_the_launch_in_front_shows() {
    for (const Following which : {READS_BEFORE, WRITES_BEFORE, ONE_WAITS_FOR_SELF}) {
        for (uint64_t seed = 0; seed < 10; ++seed) {
            CHECK(chain(which, WAITS, seed, true) == "wrong");
            CHECK(chain(WAITS, which, seed, true) == "wrong");
            // That is in order where nothing begins early.
            CHECK(chain(which, WAITS, seed, false) == "");
        }
    }
    for (const bool early : {false, true}) {
        CHECK_HAS(chain(NEVER_WAITS, WAITS, 0, early), "follow: the kernel does not wait for the launch in front of it");
        CHECK_HAS(chain(WAITS, NEVER_WAITS, 0, early), "follow: the kernel does not wait for the launch in front of it");
    }
}

static void launches_that_begin_early_are_given_up_alone() {
    for (const bool early : {false, true}) {
        CHECK_HAS(chain(FAILS_BEFORE, WAITS, 0, early), "follow: a trap at");
        CHECK_HAS(chain(WAITS, FAILS_BEFORE, 0, early), "follow: a trap at");
        CHECK_HAS(chain(MISSES_BARRIER, WAITS, 0, early), "threads 0-2,4-31 wait for __syncwarp");
        CHECK(chain(WAITS, WAITS, 0, early) == "");
    }
    Follower unknown("nothing", 1, 1, {}, true), empty("follow", 0, 1, {}, true);
    CHECK_HAS(unknown.end(), "there is no kernel nothing");
    CHECK_HAS(empty.end(), "a grid that no device runs");
}

// Every half is what the tests' own conversion says, both ways, and so is what lies between two: the middle, and the floats beside it.
static void halves_are_those_of_the_format() {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const uint16_t half = static_cast<uint16_t>(bits);
        const float value = emulation::from_f16(half), own = packing::from_f16(half);
        if (std::isnan(own)) {
            CHECK(std::isnan(value) && emulation::to_f16(value) == 0x7fff);
            continue;
        }
        CHECK(std::bit_cast<uint32_t>(value) == std::bit_cast<uint32_t>(own) && emulation::to_f16(value) == half);
        if (std::isinf(value)) continue;
        const float next = (bits & 0x7fff) == 0x7bff ? std::copysign(65536.0f, value) : emulation::from_f16(static_cast<uint16_t>(half + 1));
        const float middle = value + (next - value) / 2;
        for (const float x : {std::nextafter(middle, value), middle, std::nextafter(middle, next)}) CHECK(emulation::to_f16(x) == packing::to_f16(x));
        CHECK(emulation::to_f16(std::nextafter(middle, value)) == half && emulation::to_f16(std::nextafter(middle, next)) == half + 1);
        CHECK(emulation::to_f16(middle) == half + half % 2);
    }
    CHECK(pack_f16(1.0f, -2.0f) == 0xc0003c00);
}

// Only where the sanitizers are: they end the process, so another is lent for it.
static void memory_that_is_not_the_kernels_ends_a_sanitized_process() {
#if defined(__SANITIZE_ADDRESS__)
    const auto dies = [](uint64_t out, uint64_t in) {
        std::fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            std::freopen("/dev/null", "w", stderr);
            launch("reach", 1, 1, 0, {out, in, 0, 0});
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        return status != 0;
    };
    testing::Memory<uint32_t> words(std::vector<uint32_t>(64, 1));
    CHECK(!dies(words.address(), words.address() + 16));
    CHECK(dies(words.address() + 256, 0));
    CHECK(dies(words.address(), words.address() + 4));
#endif
}

int main() {
    RUN(threads_meet);
    RUN(a_missing_barrier_shows);
    RUN(whoever_waits_for_ever_is_named);
    RUN(a_stack_that_is_too_small_is_named);
    RUN(writes_beyond_shared_memory_are_named);
    RUN(launches_that_no_device_runs_are_refused);
    RUN(collectives_gone_wrong_are_named);
    RUN(blocks_come_in_no_order);
    RUN(blocks_that_wait_for_one_another_must_be_resident);
    RUN(blocks_that_count_themselves_in_too_early_show);
    RUN(launches_may_begin_before_those_in_front);
    RUN(what_does_not_wait_for_the_launch_in_front_shows);
    RUN(launches_that_begin_early_are_given_up_alone);
    RUN(halves_are_those_of_the_format);
    RUN(memory_that_is_not_the_kernels_ends_a_sanitized_process);
    return testing::finish();
}
