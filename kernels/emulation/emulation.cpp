// The emulation as one translation unit: the machine, every kernel, and what the outside calls. See `../README.md`.
#ifdef EMULATION_WITHOUT_KERNELS
#include "../kernel.cuh"  // the emulation's own tests bring theirs
#else
#include "../all.cu"
#endif
#include "emulation.h"

namespace {

const emulation::Kernel* find(const char* name) {
    for (const emulation::Kernel& kernel : emulation::kernels()) {
        if (std::strcmp(kernel.name, name) == 0) return &kernel;
    }
    return nullptr;
}

// What a call answers: 0 if there is no error, else 1 and the error, as far as there is room for it.
int answer(const std::string& text, char* error, size_t error_bytes) {
    if (text.empty()) return 0;
    if (error_bytes != 0) {
        const size_t length = std::min(text.size(), error_bytes - 1);
        std::memcpy(error, text.data(), length);
        error[length] = 0;
    }
    return 1;
}

// As long as it lives, this thread takes denormal numbers for zeros, as kernels on a device do. What comes before and after it in the text is a call
// into other code, across which the compiler moves no arithmetic.
class DenormalsAsZeros {
public:
#if defined(__x86_64__)
    DenormalsAsZeros() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(before_ | 0x8040); }
    ~DenormalsAsZeros() { __builtin_ia32_ldmxcsr(before_); }

private:
    unsigned before_;
#endif
};

std::string there_is_no(const char* kernel) { return std::string("there is no kernel ") + kernel; }

}  // namespace

extern "C" int emulate_size_of(const char* name) {
    const emulation::Kernel* kernel = find(name);
    return kernel ? kernel->size : -1;
}

extern "C" int emulate_is_cooperative(const char* name) {
    const emulation::Kernel* kernel = find(name);
    return kernel && kernel->cooperative;
}

extern "C" void emulate_seed(uint64_t seed) { emulation::machine_of_this_thread().seed(seed); }

extern "C" int emulate_launch(const char* name, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments,
                              char* error, size_t error_bytes) {
    const emulation::Kernel* kernel = find(name);
    if (!kernel) return answer(there_is_no(name), error, error_bytes);
    emulation::Machine& machine = emulation::machine_of_this_thread();
    const DenormalsAsZeros zeros;
    const bool ran = machine.launch(*kernel, grid, threads, shared_bytes, arguments);
    return answer(ran ? "" : machine.error(), error, error_bytes);
}

extern "C" int emulate_begin(const char* name, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments, int early,
                             void** begun, char* error, size_t error_bytes) {
    *begun = nullptr;
    const emulation::Kernel* kernel = find(name);
    if (!kernel) return answer(there_is_no(name), error, error_bytes);
    emulation::Machine& machine = emulation::another_of_this_thread();
    emulation::running = &machine;
    const DenormalsAsZeros zeros;
    if (!machine.begin(*kernel, grid, threads, shared_bytes, arguments, early != 0)) return answer(machine.error(), error, error_bytes);
    *begun = &machine;
    return 0;
}

extern "C" int emulate_end(void* begun, char* error, size_t error_bytes) {
    emulation::Machine& machine = *static_cast<emulation::Machine*>(begun);
    emulation::running = &machine;
    const DenormalsAsZeros zeros;
    return answer(machine.end() ? "" : machine.error(), error, error_bytes);
}
