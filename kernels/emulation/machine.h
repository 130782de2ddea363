// Runs the blocks of a launch: every CUDA thread is a fiber, and the machine decides which of those that can go on does so next.
//
// A fiber runs until it has to wait for others: at a barrier, an mbarrier, a collective of its warp, or until a word in memory changes. Who
// goes on then is drawn from a seeded generator, so that what is right only in one order shows as wrong data, and shows again with the same
// seed. When all wait and nothing can change any more, that is a deadlock, and it is reported at once with who waits where.
//
// A launch of a graph may begin before the one in front of it has run. One block then runs as far as it comes without that: whoever waits for the launch in
// front stands at a gate. The machine keeps the block as it stands until it is told to go on; meanwhile another machine runs the launch in front.
//
// An error ends the launch, never the process: the fibers are dropped where they stand, so nothing on a kernel's stack may own memory.
#pragma once
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include "fiber.h"

namespace emulation {

// Shared memory: what the launch asked for from 0 on, then a canary, then what kernels declare with SHARED.
constexpr uint32_t DYNAMIC_SHARED_MOST = 227 * 1024;
constexpr uint32_t SHARED_BYTES = 256 * 1024;
constexpr uint32_t CANARY_BYTES = 256;
constexpr unsigned THREADS_MOST = 1024;
constexpr unsigned RESIDENT_BLOCKS_MOST = 1024;

// Where in a kernel's source something waits, and for what.
struct Where {
    const char* what = "";
    const char* file = "";
    int line = 0;
};

struct Index3 {
    uint32_t x = 0, y = 0, z = 0;
};

struct Block;

// A copy that was started and has not landed. `bytes` come from `from`, the rest up to `whole` is zeros.
struct Copy {
    void* to;
    const void* from;
    uint32_t bytes, whole;
};

// An operation on the tensor cores that was issued and not yet waited for.
struct Pending {
    float* accumulators;
    uint64_t a, b;  // descriptors
    int columns;
    bool accumulate, is_f16;
};

struct Fiber {
    Context context;
    void* stack = nullptr;  // null until it first runs
    Block* block = nullptr;
    uint32_t thread = 0;
    Where where;  // meaningful while it waits
    bool waits = false, done = false;
    std::vector<Copy> copies;         // cp.async, in order
    std::vector<uint32_t> groups;     // committed groups: how many copies each holds
    std::vector<Pending> products;    // wgmma, in order
    std::vector<uint32_t> batches;    // committed groups of those: how many each holds
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;  // what the sanitizer keeps for a stack that is left for a while
#endif
};

struct Barrier {
    uint32_t expected = 0;  // 0 while nobody waits
    std::vector<Fiber*> waiting;
};

// Threads that meet to do something together; each brings a pointer to its operands, and the last does the work for all.
struct Meeting {
    const void* kind = nullptr;
    uint64_t mask = 0;
    uint32_t expected = 0, arrived = 0;
    Where where;
    void* operands[128];
    Fiber* waiting[128];
};

struct Mbarrier {
    uint64_t* word;
    int64_t count, pending;
    int64_t bytes = 0;  // announced and not arrived (negative: arrived before they were announced)
    uint32_t phase = 0;
    std::vector<Copy> flying = {};
    std::vector<Fiber*> waiting = {};  // for the present phase to end
};

struct Block {
    Index3 index;
    uint8_t* shared = nullptr;
    uint32_t dynamic_bytes = 0, declared = 0, live = 0;
    std::vector<Fiber> fibers;
    Barrier barriers[16];
    std::deque<Meeting> meetings[THREADS_MOST / 32];  // by warp
    Meeting groups[THREADS_MOST / 128];               // by warpgroup
    std::deque<Mbarrier> mbarriers;
    std::vector<std::pair<const void*, uint32_t>> placed;  // declared arrays and where they lie
};

// As aligned as any argument is.
struct alignas(128) Line {
    uint8_t bytes[128];
};

// What a kernel is to the machine.
struct Kernel {
    const char* name;
    int size;
    bool cooperative;
    void (*run)(const void* arguments);
};

class Machine {
public:
    Machine() = default;
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;
    ~Machine() {
        for (auto& block : blocks_) std::free(block->shared);
    }

    void seed(uint64_t seed) { random_ = first_ = seed * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019; }
    // Runs a launch to its end; false if it was given up, with the reason in `error()`.
    bool launch(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments);
    // The same in two steps, of a launch that follows another in a graph. With `early` one block runs at once as far as it comes without the launch in
    // front; not of a cooperative kernel, whose blocks begin together. False if the launch was given up. After `true`, `end` runs the rest.
    bool begin(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments, bool early);
    bool end();
    bool is_begun() const { return follows_; }
    const std::string& error() const { return error_; }

    // ---- what stands behind a kernel's calls: only called on a fiber ----

    Fiber& current() { return *current_; }
    Block& block() { return *current_->block; }
    uint32_t threads() const { return threads_; }
    Index3 grid() const { return grid_; }
    uint32_t random() {
        random_ ^= random_ << 13;
        random_ ^= random_ >> 7;
        random_ ^= random_ << 17;
        return static_cast<uint32_t>(random_ >> 32);
    }
    // Lets others run until someone calls `ready` with this fiber.
    void wait(const Where& where);
    void ready(Fiber* fiber) {
        fiber->waits = false;
        ready_.push_back(fiber);
    }
    // Lets others run, or not, as chance has it.
    void yield(const Where& where) {
        ready(current_);
        wait(where);
    }
    // Lets others run until `holds`, which is asked now and then, and when nobody else can go on.
    template <class Holds>
    void poll(const Where& where, Holds holds) {
        while (!holds()) {
            polls_.push_back({current_, [](void* holds) { return (*static_cast<Holds*>(holds))(); }, &holds});
            wait(where);
        }
    }
    [[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 2, 3)));
    void barrier(uint32_t id, uint32_t count, const Where& where);
    // Waits until the launch in front has ended.
    void wait_for_launch(const Where& where);
    // Meets `expected` threads whose places are those of `mask`; `all` does the work of all of them, called by the last with everyone's operands.
    void meet(Meeting& meeting, uint32_t place, const void* kind, void* operands, void (*all)(void* operands[], uint64_t mask), const Where& where);
    Meeting& warp_meeting(uint64_t mask, const Where& where);
    Meeting& group_meeting();
    // Memory of the block for an array declared at `site`.
    void* declared(const void* site, uint32_t bytes);

private:
    struct Poll {
        Fiber* fiber;
        bool (*holds)(void*);
        void* state;
    };

    bool prepare(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments);
    void begin_blocks();
    void begin_block(Block& block, const Index3& index);
    void run_fibers();
    bool end_blocks();
    bool run_blocks();
    void check_block(Block& block);
    void check_left(Block& block);
    void finish();
    Fiber* next();
    void go(Fiber* fiber);
    void change(Fiber& from, Fiber& to);
    void leave();
    void give_up(const std::string& why);
    const std::string& deadlock();
    Block& resident(size_t number);
    static void entry();

    Stacks stacks_;
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<Fiber*> ready_;
    std::vector<Poll> polls_;
    Fiber main_;
#if defined(__SANITIZE_ADDRESS__)
    const void* main_stack_ = nullptr;
    size_t main_stack_bytes_ = 0;
#endif
    Fiber* current_ = nullptr;
    Kernel kernel_{};
    std::vector<Line> arguments_;
    Index3 grid_;
    uint32_t threads_ = 0, shared_bytes_ = 0;
    size_t resident_ = 0, unfinished_ = 0;
    uint64_t blocks_of_grid_ = 0, begun_ = 0, offset_ = 0, stride_ = 0;  // the order of blocks, and how many have begun
    std::vector<Fiber*> at_gate_;  // who waits for the launch in front
    bool gated_ = false;           // that has not ended
    bool follows_ = false;         // there is one: this was begun, and has not ended
    bool waited_ = false;          // someone has waited for it
    uint64_t random_ = 0x2545f4914f6cdd1d, first_ = random_;
    std::string error_, deadlock_;
    bool failed_ = false;
};

// The machine of this OS thread: launches on several OS threads know nothing of each other. Kernels ask for it all the time, so what they
// ask is a plain pointer that a launch sets, without the check that a thread's own object brings.
inline constinit thread_local Machine* running = nullptr;
inline Machine& machine() { return *running; }
inline Machine& machine_of_this_thread() {
    static thread_local Machine machine;
    running = &machine;
    return machine;
}
// One beside it, for a launch that begins while others stand where they are. Each has stacks and shared memory of its own, and an order that is drawn from the
// thread's.
inline Machine& another_of_this_thread() {
    static thread_local std::vector<std::unique_ptr<Machine>> others;
    Machine& first = machine_of_this_thread();
    const auto is_free = [](const std::unique_ptr<Machine>& machine) { return !machine->is_begun(); };
    auto found = std::find_if(others.begin(), others.end(), is_free);
    if (found == others.end()) found = others.insert(others.end(), std::make_unique<Machine>());
    (*found)->seed(first.random());
    return **found;
}

}  // namespace emulation
