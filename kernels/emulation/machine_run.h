// How the machine runs: blocks begin, fibers take turns, a launch ends or is given up.
#pragma once
#include <numeric>
#include "machine.h"

namespace emulation {

inline void Machine::change(Fiber& from, Fiber& to) {
    current_ = &to;
#if defined(__SANITIZE_ADDRESS__)
    // A fiber that is done leaves no stack behind: null lets the sanitizer drop what it kept for it.
    const bool home = &to == &main_;
    __sanitizer_start_switch_fiber(from.done ? nullptr : &from.fake, home ? main_stack_ : to.stack, home ? main_stack_bytes_ : STACK_BYTES);
#endif
    Context::change(from.context, to.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(current_->fake, nullptr, nullptr);
#endif
}

inline Fiber* Machine::next() {
    // Now and then while others could go on: or who waits for other blocks would always see all that theirs had left to do.
    if (!polls_.empty() && (ready_.empty() || random() % 16 == 0)) {
        std::vector<Poll> waiting;
        waiting.swap(polls_);
        for (const Poll& poll : waiting) {
            if (poll.holds(poll.state)) {
                ready(poll.fiber);
            } else {
                polls_.push_back(poll);
            }
        }
    }
    if (ready_.empty()) return nullptr;
    size_t chosen = random() % ready_.size();
    for (int again = 0; again < 8 && ready_[chosen]->block == lags_; ++again) chosen = random() % ready_.size();
    Fiber* fiber = ready_[chosen];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    return fiber;
}

// Gives the processor to `fiber`, on a stack of its own if it has none yet.
inline void Machine::go(Fiber* fiber) {
    Fiber& from = *current_;
    if (!fiber->stack) {
        fiber->stack = stacks_.take();
        if (!fiber->stack) fail("no memory for the stack of thread %u", fiber->thread);
        fiber->context.begin(fiber->stack, &Machine::entry);
    }
    if (fiber != &from) change(from, *fiber);
}

inline void Machine::wait(const Where& where) {
    Fiber& self = *current_;
    if (!Stacks::intact(self.stack)) fail("thread %u ran off its stack of %zu bytes before %s:%d", self.thread, STACK_BYTES - SLACK_BYTES, where.file, where.line);
    self.where = where;
    self.waits = true;
    Fiber* fiber = next();
    if (!fiber) fail("%s", deadlock().c_str());
    go(fiber);
}

// What a fiber's stack begins with. Whoever finishes lets the next begin on the same stack, so threads that never wait share one.
inline void Machine::entry() {
    Machine& machine = emulation::machine();
#if defined(__SANITIZE_ADDRESS__)
    const void* stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(machine.current_->fake, &stack, &bytes);
    // The first fiber ever is switched to from the launch's own stack.
    if (!machine.main_stack_) machine.main_stack_ = stack, machine.main_stack_bytes_ = bytes;
#endif
    for (;;) {
        machine.kernel_.run(machine.arguments_);
        machine.finish();
    }
}

// The current fiber is done. Returns, on its stack, as the next fiber if that has not begun; else the next goes on where it waits.
inline void Machine::finish() {
    Fiber& self = *current_;
    self.done = true;
    --unfinished_;
    Block& block = *self.block;
    --block.live;
    if (!Stacks::intact(self.stack)) fail("thread %u ran off its stack of %zu bytes", self.thread, STACK_BYTES - SLACK_BYTES);
    Barrier& all = block.barriers[0];
    if (block.live != 0 && !all.waiting.empty() && all.waiting.size() == block.live) {
        for (Fiber* fiber : all.waiting) ready(fiber);
        all.waiting.clear();
    }
    if (block.live == 0) check_left(block);
    if (unfinished_ == 0) leave();
    if (self.in_cluster && self.cluster_phase == cluster_.phase) --cluster_.arrived;
    settle_cluster();
    Fiber* fiber = next();
    if (!fiber) fail("%s", deadlock().c_str());
    void* stack = self.stack;
    self.stack = nullptr;
    if (!fiber->stack) {
        fiber->stack = stack;
        current_ = fiber;
        return;
    }
    stacks_.give(stack);
    change(self, *fiber);
}

// Back to whoever called `launch`.
inline void Machine::leave() {
    Fiber& from = *current_;
    from.done = true;
    change(from, main_);
    std::abort();  // a fiber that was left is never resumed
}

inline void Machine::fail(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (!failed_) error_ = std::string(kernel_.name) + ": " + text;
    failed_ = true;
    leave();
    std::abort();
}

inline const std::string& Machine::deadlock() {
    // Kept by the machine: the fiber that says it is never resumed, and would keep its own for ever.
    std::string& text = deadlock_;
    text = "deadlock:";
    size_t told = 0;
    for (size_t b = 0; b < resident_ && told < 8; ++b) {
        const Block& block = *blocks_[b];
        std::vector<bool> seen(block.fibers.size());
        for (size_t t = 0; t < block.fibers.size() && told < 8; ++t) {
            const Fiber& fiber = block.fibers[t];
            if (!fiber.waits || seen[t]) continue;
            // Threads that wait at one place are told together, as ranges.
            std::string threads;
            for (size_t u = t; u < block.fibers.size();) {
                const auto same = [&](size_t v) {
                    return v < block.fibers.size() && block.fibers[v].waits && block.fibers[v].where.line == fiber.where.line &&
                           block.fibers[v].where.what == fiber.where.what;
                };
                if (!same(u)) {
                    ++u;
                    continue;
                }
                size_t end = u;
                while (same(end)) seen[end++] = true;
                if (threads.size() < 100) {
                    if (!threads.empty()) threads += ",";
                    threads += std::to_string(u);
                    if (end - u > 1) threads.append("-").append(std::to_string(end - 1));
                }
                u = end;
            }
            const char* file = std::strrchr(fiber.where.file, '/');
            text += told++ ? "; " : " ";
            text += "block (" + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," + std::to_string(block.index.z) +
                    ") threads " + threads + " wait for " + fiber.where.what + " at " + (file ? file + 1 : fiber.where.file) + ":" +
                    std::to_string(fiber.where.line);
        }
    }
    return text;
}

inline Block& Machine::resident(size_t number) {
    while (blocks_.size() <= number) {
        auto block = std::make_unique<Block>();
        block->shared = static_cast<uint8_t*>(std::aligned_alloc(1024, SHARED_BYTES));
        if (!block->shared) std::abort();
        std::memset(block->shared, 0xff, SHARED_BYTES);
        block->proxy.assign(SHARED_BYTES / 16, 0);
        blocks_.push_back(std::move(block));
    }
    return *blocks_[number];
}

inline void Machine::begin_block(Block& block, const Index3& index, uint32_t shared_bytes) {
    block.index = index;
    // All ones are NaN in f32 and bf16, and an index that nothing has.
    std::memset(block.shared, 0xff, shared_bytes);
    std::memset(block.shared + shared_bytes, 0xa5, CANARY_BYTES);
    std::memset(block.shared + DYNAMIC_SHARED_MOST + CANARY_BYTES, 0xff, block.declared);
    block.dynamic_bytes = shared_bytes;
    block.declared = 0;
    block.placed.clear();
    block.live = threads_;
    for (Barrier& barrier : block.barriers) {
        barrier.expected = 0;
        barrier.waiting.clear();
    }
    for (uint32_t warp = 0; warp < (threads_ + 31) / 32; ++warp) block.meetings[warp].clear();
    for (Meeting& meeting : block.groups) meeting.arrived = 0;
    block.mbarriers.clear();
    // What the launch before left unfenced concerns nobody: also that of threads that this one does not have.
    for (Fiber& fiber : block.fibers) {
        for (const uint32_t chunk : fiber.unfenced) block.proxy[chunk] = 0;
        fiber.unfenced.clear();
    }
    block.fibers.resize(threads_);
    for (uint32_t thread = 0; thread < threads_; ++thread) {
        Fiber& fiber = block.fibers[thread];
        fiber.stack = nullptr;
        fiber.block = &block;
        fiber.thread = thread;
        fiber.waits = fiber.done = fiber.in_cluster = false;
        fiber.copies.clear();
        fiber.groups.clear();
        fiber.products.clear();
        fiber.batches.clear();
        ready_.push_back(&fiber);
    }
    unfinished_ += threads_;
}

// Runs the blocks that have begun until all their threads are done.
inline bool Machine::run_resident() {
    failed_ = false;
    Fiber* first = next();
    current_ = &main_;
    main_.done = false;
    first->stack = stacks_.take();
    if (!first->stack) {
        error_ = "no memory for a stack";
        failed_ = true;
    } else {
        first->context.begin(first->stack, &Machine::entry);
        change(main_, *first);
    }
    if (!failed_) {
        for (size_t b = 0; b < resident_; ++b) check_block(*blocks_[b]);
    }
    stacks_.take_back_all();
    ready_.clear();
    polls_.clear();
    unfinished_ = 0;
    cluster_ = {};
    return !failed_;
}

// What is still under way to a block that leaves would land in another's memory.
inline void Machine::check_left(Block& block) {
    for (const Mbarrier& barrier : block.mbarriers) {
        if (!barrier.flying.empty()) fail("block (%u,%u,%u) leaves before a bulk copy to it has landed", block.index.x, block.index.y, block.index.z);
    }
}

inline void Machine::check_block(Block& block) {
    for (uint32_t i = 0; i < CANARY_BYTES; ++i) {
        if (block.shared[block.dynamic_bytes + i] != 0xa5 && !failed_) {
            error_ = std::string(kernel_.name) + ": a write " + std::to_string(i) + " bytes beyond the " + std::to_string(block.dynamic_bytes) +
                     " bytes of shared memory that the launch asked for";
            failed_ = true;
        }
    }
}

inline bool Machine::launch(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments) {
    const uint64_t blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
    kernel_ = kernel;
    arguments_ = arguments;
    grid_ = {grid[0], grid[1], grid[2]};
    threads_ = threads;
    error_ = std::string(kernel.name) + ": ";
    if (blocks == 0 || grid[1] > 65535 || grid[2] > 65535) return error_ += "a grid that no device runs", false;
    if (threads == 0 || threads > THREADS_MOST) return error_ += "a block of " + std::to_string(threads) + " threads", false;
    if (shared_bytes > DYNAMIC_SHARED_MOST) return error_ += std::to_string(shared_bytes) + " bytes of shared memory", false;
    if (grid[0] % kernel.cluster != 0) {
        return error_ += "a grid of " + std::to_string(grid[0]) + " blocks, which are no whole clusters of " + std::to_string(kernel.cluster), false;
    }
    if (kernel.cooperative && blocks > RESIDENT_BLOCKS_MOST) return error_ += "more blocks than can be resident at once", false;

    // Blocks come in an order that is not theirs: a stride that shares no factor with their number, from somewhere.
    // Those of a cluster come together, and are numbered by their rank.
    const uint64_t clusters = blocks / kernel.cluster, offset = random() % clusters;
    uint64_t stride = clusters == 1 ? 1 : 1 + random() % clusters;
    while (std::gcd(stride, clusters) != 1) ++stride;
    resident_ = kernel.cooperative ? blocks : kernel.cluster;
    for (uint64_t done = 0; done < blocks; done += resident_) {
        for (size_t b = 0; b < resident_; ++b) {
            const uint64_t cluster = (offset + (done + b) / kernel.cluster * (stride % clusters)) % clusters;
            const uint64_t number = cluster * kernel.cluster + b % kernel.cluster;
            const Index3 index{static_cast<uint32_t>(number % grid[0]), static_cast<uint32_t>(number / grid[0] % grid[1]),
                               static_cast<uint32_t>(number / grid[0] / grid[1])};
            begin_block(resident(b), index, shared_bytes);
        }
        // Or what the others need of it, and what is still under way to them, would nearly always be there in time.
        lags_ = kernel.cluster > 1 && random() % 2 == 0 ? blocks_[random() % kernel.cluster].get() : nullptr;
        if (!run_resident()) {
            error_ += " (seed state " + std::to_string(first_) + ")";
            return false;
        }
    }
    return true;
}

}  // namespace emulation
