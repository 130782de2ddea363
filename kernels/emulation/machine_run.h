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
    const size_t chosen = random() % ready_.size();
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
    // Before the launch in front has ended, that is as far as the block comes.
    if (!fiber && gated_) return change(self, main_);
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
        machine.kernel_.run(machine.arguments_.data());
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
    Fiber* fiber = next();
    if (!fiber && gated_) fiber = &main_;
    if (!fiber) fail("%s", deadlock().c_str());
    void* stack = self.stack;
    self.stack = nullptr;
    if (!fiber->stack && fiber != &main_) {
        fiber->stack = stack;
        current_ = fiber;
        return;
    }
    stacks_.give(stack);
    change(self, *fiber);
}

// Back to whoever called `launch`, `begin` or `end`.
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
    give_up(text);
    leave();
    std::abort();
}

inline void Machine::give_up(const std::string& why) {
    if (!failed_) error_ = std::string(kernel_.name) + ": " + why + " (seed state " + std::to_string(first_) + ")";
    failed_ = true;
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
        blocks_.push_back(std::move(block));
    }
    return *blocks_[number];
}

inline void Machine::begin_block(Block& block, const Index3& index) {
    block.index = index;
    // All ones are NaN in f32 and bf16, and an index that nothing has.
    std::memset(block.shared, 0xff, shared_bytes_);
    std::memset(block.shared + shared_bytes_, 0xa5, CANARY_BYTES);
    std::memset(block.shared + DYNAMIC_SHARED_MOST + CANARY_BYTES, 0xff, block.declared);
    block.dynamic_bytes = shared_bytes_;
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
    block.fibers.resize(threads_);
    for (uint32_t thread = 0; thread < threads_; ++thread) {
        Fiber& fiber = block.fibers[thread];
        fiber.stack = nullptr;
        fiber.block = &block;
        fiber.thread = thread;
        fiber.waits = fiber.done = false;
        fiber.copies.clear();
        fiber.groups.clear();
        fiber.products.clear();
        fiber.batches.clear();
        ready_.push_back(&fiber);
    }
    unfinished_ += threads_;
}

// Runs the blocks that have begun until all their threads are done, or, before the launch in front has ended, as far as they come without that.
inline void Machine::run_fibers() {
    current_ = &main_;
    main_.done = false;
    Fiber* first = next();
    if (!first) return give_up(deadlock());
    if (!first->stack) {
        first->stack = stacks_.take();
        if (!first->stack) return give_up("no memory for a stack");
        first->context.begin(first->stack, &Machine::entry);
    }
    change(main_, *first);
}

// After blocks have run to their end, or were given up.
inline bool Machine::end_blocks() {
    for (size_t b = 0; b < resident_ && !failed_; ++b) check_block(*blocks_[b]);
    stacks_.take_back_all();
    ready_.clear();
    polls_.clear();
    at_gate_.clear();
    unfinished_ = 0;
    return !failed_;
}

// What is still under way to a block that leaves would land in the memory of whoever comes after it.
inline void Machine::check_left(Block& block) {
    for (const Mbarrier& barrier : block.mbarriers) {
        if (barrier.flying.empty()) continue;
        fail("block (%u,%u,%u) leaves before a copy that it started has arrived at its mbarrier", block.index.x, block.index.y, block.index.z);
    }
}

inline void Machine::check_block(Block& block) {
    for (uint32_t i = 0; i < CANARY_BYTES; ++i) {
        if (block.shared[block.dynamic_bytes + i] != 0xa5) {
            give_up("a write " + std::to_string(i) + " bytes beyond the " + std::to_string(block.dynamic_bytes) +
                    " bytes of shared memory that the launch asked for");
        }
    }
}

// What a launch is, and the order of its blocks, of which none begins yet.
inline bool Machine::prepare(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments) {
    const uint64_t blocks = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
    kernel_ = kernel;
    grid_ = {grid[0], grid[1], grid[2]};
    threads_ = threads;
    shared_bytes_ = shared_bytes;
    error_ = std::string(kernel.name) + ": ";
    if (blocks == 0 || grid[1] > 65535 || grid[2] > 65535) return error_ += "a grid that no device runs", false;
    if (threads == 0 || threads > THREADS_MOST) return error_ += "a block of " + std::to_string(threads) + " threads", false;
    if (shared_bytes > DYNAMIC_SHARED_MOST) return error_ += std::to_string(shared_bytes) + " bytes of shared memory", false;
    if (kernel.cooperative && blocks > RESIDENT_BLOCKS_MOST) return error_ += "more blocks than can be resident at once", false;
    // A copy, so that arguments need not be aligned, and so that what the caller does with them meanwhile changes nothing.
    arguments_.resize((static_cast<size_t>(kernel.size) + sizeof(Line) - 1) / sizeof(Line));
    std::memcpy(arguments_.data(), arguments, static_cast<size_t>(kernel.size));

    // Blocks come in an order that is not theirs: a stride that shares no factor with their number, from somewhere.
    blocks_of_grid_ = blocks;
    begun_ = 0;
    offset_ = random() % blocks;
    stride_ = blocks == 1 ? 1 : 1 + random() % blocks;
    while (std::gcd(stride_, blocks) != 1) ++stride_;
    resident_ = kernel.cooperative ? blocks : 1;
    failed_ = gated_ = follows_ = waited_ = false;
    return true;
}

// Those that are resident at once.
inline void Machine::begin_blocks() {
    for (size_t b = 0; b < resident_; ++b, ++begun_) {
        const uint64_t number = (offset_ + begun_ * (stride_ % blocks_of_grid_)) % blocks_of_grid_;
        begin_block(resident(b), {static_cast<uint32_t>(number % grid_.x), static_cast<uint32_t>(number / grid_.x % grid_.y),
                                  static_cast<uint32_t>(number / grid_.x / grid_.y)});
    }
}

// Runs all blocks that have not begun.
inline bool Machine::run_blocks() {
    while (begun_ < blocks_of_grid_) {
        begin_blocks();
        run_fibers();
        if (!end_blocks()) return false;
    }
    return true;
}

inline bool Machine::launch(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments) {
    return prepare(kernel, grid, threads, shared_bytes, arguments) && run_blocks();
}

inline bool Machine::begin(const Kernel& kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments, bool early) {
    if (!prepare(kernel, grid, threads, shared_bytes, arguments)) return false;
    follows_ = true;
    if (!early || kernel.cooperative) return true;
    gated_ = true;
    begin_blocks();
    run_fibers();
    follows_ = !failed_ || end_blocks();
    return follows_;
}

inline bool Machine::end() {
    const bool is_early = gated_;
    follows_ = gated_ = false;
    for (Fiber* fiber : at_gate_) ready(fiber);
    at_gate_.clear();
    if (is_early) {
        if (unfinished_ != 0) run_fibers();
        if (!end_blocks()) return false;
    }
    if (!run_blocks()) return false;
    // It could end before the one in front has, and what comes behind it would find that one still at work.
    if (!waited_) give_up("the kernel does not wait for the launch in front of it");
    return !failed_;
}

}  // namespace emulation
