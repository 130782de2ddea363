// What fibers wait for one another with: barriers, meetings of a warp's or a warpgroup's threads, and memory that kernels declare.
#pragma once
#include "machine.h"

namespace emulation {

// Barrier 0 with count 0 is `__syncthreads`: it waits for all threads that have not returned.
inline void Machine::barrier(uint32_t id, uint32_t count, const Where& where) {
    Block& block = *current_->block;
    if (id >= 16) fail("barrier %u at %s:%d: a block has 16", id, where.file, where.line);
    if (count % 32 != 0) fail("barrier %u at %s:%d expects %u threads, which is no multiple of 32", id, where.file, where.line, count);
    Barrier& barrier = block.barriers[id];
    if (barrier.waiting.empty()) barrier.expected = count;
    if (barrier.expected != count) {
        fail("barrier %u at %s:%d expects %u threads, and %u elsewhere", id, where.file, where.line, count, barrier.expected);
    }
    const size_t expected = count == 0 ? block.live : count;
    if (barrier.waiting.size() + 1 < expected) {
        barrier.waiting.push_back(current_);
        wait(where);
        return;
    }
    for (Fiber* fiber : barrier.waiting) ready(fiber);
    barrier.waiting.clear();
    // The last does not run on at once every time, or it would always be the first.
    yield(where);
}

inline void Machine::wait_for_launch(const Where& where) {
    waited_ = true;
    if (!gated_) return yield(where);
    at_gate_.push_back(current_);
    wait(where);
}

inline Meeting& Machine::warp_meeting(uint64_t mask, const Where& where) {
    const uint32_t lane = current_->thread % 32;
    if (!(mask >> lane & 1)) fail("lane %u takes part at %s:%d, and its mask %08lx leaves it out", lane, where.file, where.line, (unsigned long)mask);
    auto& meetings = current_->block->meetings[current_->thread / 32];
    Meeting* unused = nullptr;
    for (Meeting& meeting : meetings) {
        if (meeting.arrived != 0 && meeting.mask == mask) return meeting;
        if (meeting.arrived == 0) unused = &meeting;
    }
    if (!unused) unused = &meetings.emplace_back();
    unused->mask = mask;
    unused->expected = static_cast<uint32_t>(__builtin_popcountll(mask));
    return *unused;
}

inline Meeting& Machine::group_meeting() {
    Meeting& meeting = current_->block->groups[current_->thread / 128];
    meeting.mask = 0;
    meeting.expected = 128;
    return meeting;
}

inline void Machine::meet(Meeting& meeting, uint32_t place, const void* kind, void* operands, void (*all)(void* operands[], uint64_t mask),
                          const Where& where) {
    if (meeting.arrived == 0) {
        meeting.kind = kind;
        meeting.where = where;
    } else if (meeting.kind != kind) {
        fail("threads of one warp meet at different operations: %s at %s:%d and %s at %s:%d", meeting.where.what, meeting.where.file,
             meeting.where.line, where.what, where.file, where.line);
    }
    meeting.operands[place] = operands;
    meeting.waiting[meeting.arrived++] = current_;
    if (meeting.arrived < meeting.expected) {
        wait(where);
        return;
    }
    all(meeting.operands, meeting.mask);
    const uint32_t arrived = meeting.arrived;
    meeting.arrived = 0;
    for (uint32_t i = 0; i < arrived; ++i) ready(meeting.waiting[i]);
    wait(where);
}

inline void* Machine::declared(const void* site, uint32_t bytes) {
    Block& block = *current_->block;
    for (const auto& [known, offset] : block.placed) {
        if (known == site) return block.shared + offset;
    }
    const uint32_t from = DYNAMIC_SHARED_MOST + CANARY_BYTES;
    const uint32_t offset = from + block.declared;
    const uint32_t rounded = (bytes + 127) / 128 * 128;
    if (offset + rounded > SHARED_BYTES) fail("the kernel declares more shared memory than the emulation has");
    block.declared += rounded;
    block.placed.emplace_back(site, offset);
    return block.shared + offset;
}

// ---- collectives of a warp ----

struct Shuffle {
    uint64_t value;
    uint32_t from;
};

inline void shuffle_all(void* operands[], uint64_t mask) {
    uint64_t values[32] = {};
    for (uint32_t lane = 0; lane < 32; ++lane) {
        // What comes from a lane that does not take part is undefined: all ones shows it.
        values[lane] = mask >> lane & 1 ? static_cast<Shuffle*>(operands[lane])->value : ~0ull;
    }
    for (uint32_t lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1) {
            Shuffle* shuffle = static_cast<Shuffle*>(operands[lane]);
            shuffle->value = values[shuffle->from];
        }
    }
}

template <class Value>
Value shuffle(uint64_t mask, Value value, uint32_t from, const Where& where) {
    static_assert(sizeof(Value) <= 8);
    Shuffle operands{0, from};
    std::memcpy(&operands.value, &value, sizeof(Value));
    Machine& m = machine();
    m.meet(m.warp_meeting(mask, where), m.current().thread % 32, reinterpret_cast<const void*>(&shuffle_all), &operands, &shuffle_all, where);
    std::memcpy(&value, &operands.value, sizeof(Value));
    return value;
}

// Values of a warp's threads brought together into one that all of them get.
template <class Value, class Fold>
Value fold(uint64_t mask, Value value, const Where& where) {
    Machine& m = machine();
    const auto all = [](void* operands[], uint64_t mask) {
        Value folded{};
        bool first = true;
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (!(mask >> lane & 1)) continue;
            const Value& own = *static_cast<Value*>(operands[lane]);
            folded = first ? own : Fold()(folded, own);
            first = false;
        }
        for (uint32_t lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1) *static_cast<Value*>(operands[lane]) = folded;
        }
    };
    static const char kind = 0;
    m.meet(m.warp_meeting(mask, where), m.current().thread % 32, &kind, &value, +all, where);
    return value;
}

}  // namespace emulation
