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

}  // namespace

extern "C" int emulate_size_of(const char* name) {
    const emulation::Kernel* kernel = find(name);
    return kernel ? kernel->size : -1;
}

extern "C" int emulate_is_cooperative(const char* name) {
    const emulation::Kernel* kernel = find(name);
    return kernel && kernel->cooperative;
}

extern "C" uint32_t emulate_cluster(const char* name) {
    const emulation::Kernel* kernel = find(name);
    return kernel ? kernel->cluster : 1;
}

extern "C" void emulate_seed(uint64_t seed) { emulation::machine_of_this_thread().seed(seed); }

extern "C" int emulate_launch(const char* name, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments,
                              char* error, size_t error_bytes) {
    const emulation::Kernel* kernel = find(name);
    std::string text;
    if (!kernel) {
        text = std::string("there is no kernel ") + name;
    } else {
        // A copy, so that arguments need not be aligned, and so that what the caller does with them meanwhile changes nothing.
        std::vector<uint64_t> copy((static_cast<size_t>(kernel->size) + 7) / 8);
        std::memcpy(copy.data(), arguments, static_cast<size_t>(kernel->size));
        emulation::Machine& machine = emulation::machine_of_this_thread();
        if (machine.launch(*kernel, grid, threads, shared_bytes, copy.data())) return 0;
        text = machine.error();
    }
    if (error_bytes != 0) {
        const size_t length = std::min(text.size(), error_bytes - 1);
        std::memcpy(error, text.data(), length);
        error[length] = 0;
    }
    return 1;
}
