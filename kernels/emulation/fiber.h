// Stacks and the switch between them: what a CUDA thread runs on under the emulation.
//
// A switch saves the registers that the platform's C calls must preserve and nothing else; on x86-64 it is a dozen instructions. Elsewhere
// it is `swapcontext`, which is slower and does the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulation {

// Of a stack the lowest page is not to be touched: words at its end tell that it was.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 256 * 1024;  // frames are larger with what the sanitizer puts around variables
#else
constexpr size_t STACK_BYTES = 64 * 1024;
#endif
constexpr size_t SLACK_BYTES = 4096;
constexpr uint64_t CANARY[4] = {0x5ca1ab1e0ddba115, 0x0ddba1150ddba115, 0x5ca1ab1e5ca1ab1e, 0x0ddba1155ca1ab1e};

#if defined(__x86_64__)

extern "C" void cellwright_emulation_switch(void** save, void* load);
asm(R"(
    .text
    .globl cellwright_emulation_switch
    .hidden cellwright_emulation_switch
    .type cellwright_emulation_switch, @function
cellwright_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cellwright_emulation_switch, .-cellwright_emulation_switch
)");

// Where something stopped running: on x86-64 the top of its stack holds all of it.
struct Context {
    void* top = nullptr;
    void begin(void* stack, void (*entry)()) {
        uintptr_t* words = reinterpret_cast<uintptr_t*>(static_cast<char*>(stack) + STACK_BYTES) - 8;
        // Six saved registers, then where `ret` goes; above it the frame is as after a call: 8 bytes off a multiple of 16.
        std::memset(words, 0, 8 * sizeof(uintptr_t));
        words[6] = reinterpret_cast<uintptr_t>(entry);
        top = words;
    }
    static void change(Context& from, Context& to) { cellwright_emulation_switch(&from.top, to.top); }
};

#else

struct Context {
    ucontext_t saved;
    void begin(void* stack, void (*entry)()) {
        getcontext(&saved);
        saved.uc_stack.ss_sp = stack;
        saved.uc_stack.ss_size = STACK_BYTES;
        saved.uc_link = nullptr;
        makecontext(&saved, entry, 0);
    }
    static void change(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }
};

#endif

// Stacks of one machine, kept for its next launch. The one that was given back last is handed out first: it is warm.
class Stacks {
public:
    Stacks() = default;
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;
    ~Stacks() {
        for (void* stack : all_) munmap(stack, STACK_BYTES);
    }
    // A stack, or null where the machine has no memory for one.
    void* take() {
        if (free_.empty()) {
            void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) return nullptr;
            mark(stack);
            all_.push_back(stack);
            free_.push_back(stack);
        }
        void* stack = free_.back();
        free_.pop_back();
#if defined(__SANITIZE_ADDRESS__)
        // Frames of a launch that was given up never returned.
        __asan_unpoison_memory_region(stack, STACK_BYTES);
#endif
        return stack;
    }
    void give(void* stack) { free_.push_back(stack); }
    // After a launch that was given up: whoever held a stack is gone.
    void take_back_all() {
        free_ = all_;
        for (void* stack : all_) mark(stack);
    }
    // Whether nothing ran off the end of a stack (they grow down).
    static bool intact(const void* stack) {
        return std::memcmp(static_cast<const char*>(stack) + SLACK_BYTES - sizeof(CANARY), CANARY, sizeof(CANARY)) == 0;
    }

private:
    static void mark(void* stack) { std::memcpy(static_cast<char*>(stack) + SLACK_BYTES - sizeof(CANARY), CANARY, sizeof(CANARY)); }
    std::vector<void*> all_, free_;
};

}  // namespace emulation
