// The NVIDIA driver's library, as far as this crate calls it, without a device: everything runs at once, kernels on the CPU.
//
// It is as strict as the real one where this crate could get it wrong: a call needs the current context of its thread, handles must be its own,
// memory must be allocated, a stream that was destroyed is gone. FAKE_CUDA says what is wrong with it: `no-device`, `old`, `stub`,
// `no-peers`, `no-fetches` (access is allowed, and copies are refused), `no-graphs` (for no reason that is known), `no-pages` (the system pins no megabyte of the host's memory, and says so in a way of its own), `no-stores`, `turing` (compute
// capability 7.5), `ampere` (8.0), `no-cooperation` (no launch whose blocks wait for one another), `crowded` (it says that it has such launches, and has no room for any), `illegal:N` (the N-th launch leaves
// its memory), `illegal-once:FILE` (the first launch after there is such a file does), or `endless:N` (the N-th launch never ends, nor does anything behind it: a call that would wait for
// that ends the process). Built with LACKING it lacks a function. An image may say behind its first four bytes what it is: `refused`, `empty` (it has no kernel), or ` of a group` (it has `compiled_group`, which does nothing).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

#include "emulation/emulation.h"

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, STUB_LIBRARY = 34, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_CONTEXT = 201, PEER_ACCESS_UNSUPPORTED = 217, OPERATING_SYSTEM = 304, INVALID_HANDLE = 400, NOT_FOUND = 500,
       NOT_READY = 600, ILLEGAL_ADDRESS = 700, PEER_ACCESS_ALREADY_ENABLED = 704, PEER_ACCESS_NOT_ENABLED = 705, COOPERATIVE_LAUNCH_TOO_LARGE = 720, NOT_SUPPORTED = 801, UNKNOWN = 999 };

constexpr uint64_t MEMORY = uint64_t{1} << 30;
constexpr uint64_t GRAPH_BYTES = uint64_t{1} << 16;
constexpr int DEVICES = 2, MULTIPROCESSORS = 4;
const std::string GROUP = "compiled_group";

struct Context { int retained = 0; int error = SUCCESS; bool endless = false; };
struct Module { std::string is; };
struct Function { std::string name; };
struct Event { bool recorded = false; };
// As CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNode {
    Function* function;
    unsigned x, y, z, threads, threads_y, threads_z, shared;
    void** parameters;
    void **extra, *kernel, *context;
};
struct Node { KernelNode is; std::vector<char> arguments; std::vector<Node*> after; };
struct Graph { std::vector<Node*> nodes; bool takes_memory = false; };

std::mutex mutex;
bool initialised = false;
Context contexts[DEVICES];
thread_local Context* current = nullptr;
std::map<uint64_t, uint64_t> memory;        // address, bytes
std::map<uint64_t, uint64_t> host_memory;
std::map<uint64_t, Context*> owners;         // of memory
std::set<std::pair<Context*, Context*>> reached;
std::set<void*> streams, events;
std::map<void*, Graph> graphs, executables;
std::map<void*, Module> modules;
std::map<std::string, Function*> functions;
uint64_t allocated = 0;
long launches = 0;
bool was_illegal = false;

std::string wrong() {
    const char* said = std::getenv("FAKE_CUDA");
    return said ? said : "";
}

// What every call needs: the context of its thread, without an error that stays.
int enter() {
    if (!initialised) return NOT_INITIALIZED;
    if (!current || current->retained == 0) return INVALID_CONTEXT;
    return current->error;
}

bool within(const std::map<uint64_t, uint64_t>& all, uint64_t at, uint64_t bytes) {
    auto after = all.upper_bound(at);
    if (after == all.begin()) return false;
    --after;
    return at - after->first <= after->second && bytes <= after->second - (at - after->first);
}

bool is_of(Context* context, uint64_t at, uint64_t bytes) {
    return within(memory, at, bytes) && std::prev(owners.upper_bound(at))->second == context;
}

// A graph that is launched takes it then, unless it was uploaded before.
void take_memory(Graph& executable) {
    if (!executable.takes_memory) allocated += GRAPH_BYTES;
    executable.takes_memory = true;
}

// Whether the current context's work never ends; then none of it happens that comes behind.
bool is_endless() { return current && current->endless; }

// What a real one would do with this call as long as the work takes.
void wait_for_ever(const char* call, Context* context) {
    if (!context || !context->endless) return;
    std::fprintf(stderr, "%s waits for ever\n", call);
    std::_Exit(99);
}

void* made(std::set<void*>& all) {
    void* handle = std::malloc(8);
    all.insert(handle);
    return handle;
}

}  // namespace

#define LOCKED std::lock_guard<std::mutex> lock(mutex)
#define ENTER LOCKED; if (int error = enter()) return error
#define WAITS wait_for_ever(__func__, current)
#define RUNS if (is_endless()) return SUCCESS
#define NEED(condition, error) if (!(condition)) return error
#define MAY_BE_DEFAULT(stream) NEED(streams.count(stream), INVALID_HANDLE)

extern "C" {

int cuInit(unsigned) {
    LOCKED;
    if (wrong() == "no-device") return NO_DEVICE;
    if (wrong() == "stub") return STUB_LIBRARY;
    initialised = true;
    return SUCCESS;
}
int cuDriverGetVersion(int* version) { *version = wrong() == "old" ? 12040 : 13000; return SUCCESS; }
int cuGetErrorName(int error, const char** text) { *text = error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return SUCCESS; }
int cuGetErrorString(int error, const char** text) {
    *text = error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "an error";
    return SUCCESS;
}
int cuDeviceGetCount(int* count) { NEED(initialised, NOT_INITIALIZED); *count = DEVICES; return SUCCESS; }
int cuDeviceGet(int* device, int ordinal) {
    NEED(initialised, NOT_INITIALIZED);
    NEED(ordinal >= 0 && ordinal < DEVICES, INVALID_DEVICE);
    *device = ordinal;
    return SUCCESS;
}
int cuDeviceGetName(char* name, int bytes, int) { std::strncpy(name, "Fake H200", bytes); return SUCCESS; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) { std::memset(uuid, 0x10 + device, 16); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = MEMORY; return SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = MULTIPROCESSORS; break;                       // multiprocessors
        case 95: *value = wrong() == "no-cooperation" ? 0 : 1; break;  // cooperative launches
        case 75: *value = wrong() == "turing" ? 7 : wrong() == "ampere" ? 8 : 9; break;  // compute capability
        case 76: *value = wrong() == "turing" ? 5 : 0; break;
        case 97: *value = 227 << 10; break;                             // shared memory of a block
        case 115: *value = 1; break;                                    // memory pools
        case 122: *value = wrong() == "no-stores" ? 0 : 1; break;       // stores from streams
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(Context** context, int device) { LOCKED; contexts[device].retained++; *context = &contexts[device]; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { LOCKED; wait_for_ever(__func__, &contexts[device]); return --contexts[device].retained < 0 ? INVALID_CONTEXT : SUCCESS; }
int cuCtxGetCurrent(Context** context) { *context = current; return SUCCESS; }
int cuCtxSetCurrent(Context* context) { current = context; return SUCCESS; }

int cuMemGetInfo_v2(size_t* free, size_t* total) { ENTER; *free = MEMORY - allocated; *total = MEMORY; return SUCCESS; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    ENTER;
    NEED(bytes != 0, INVALID_VALUE);
    NEED(bytes <= MEMORY - allocated, OUT_OF_MEMORY);
    *address = reinterpret_cast<uint64_t>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    std::memset(reinterpret_cast<void*>(*address), 0xFF, bytes);
    memory[*address] = bytes;
    owners[*address] = current;
    allocated += bytes;
    return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
    ENTER;
    auto found = memory.find(address);
    NEED(found != memory.end(), INVALID_VALUE);
    // On a real device the address alone says whose it is; here a call from another context is a mistake.
    NEED(owners[address] == current, INVALID_VALUE);
    WAITS;
    owners.erase(address);
    allocated -= found->second;
    memory.erase(found);
    std::free(reinterpret_cast<void*>(address));
    return SUCCESS;
}
int cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    ENTER;
    NEED(flags == 3, INVALID_VALUE);  // portable, mapped, not write-combined
    NEED(wrong() != "no-pages" || bytes < 1 << 20, OPERATING_SYSTEM);
    *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    std::memset(*pointer, 0xFF, bytes);
    host_memory[reinterpret_cast<uint64_t>(*pointer)] = bytes;
    return SUCCESS;
}
int cuMemFreeHost(void* pointer) {
    ENTER;
    WAITS;
    NEED(host_memory.erase(reinterpret_cast<uint64_t>(pointer)) == 1, INVALID_VALUE);
    std::free(pointer);
    return SUCCESS;
}
int cuMemHostGetDevicePointer_v2(uint64_t* address, void* pointer, unsigned flags) {
    ENTER;
    NEED(flags == 0 && host_memory.count(reinterpret_cast<uint64_t>(pointer)), INVALID_VALUE);
    *address = reinterpret_cast<uint64_t>(pointer);
    return SUCCESS;
}

int cuStreamCreate(void** stream, unsigned flags) { ENTER; NEED(flags == 1, INVALID_VALUE); *stream = made(streams); return SUCCESS; }
int cuStreamDestroy_v2(void* stream) { ENTER; WAITS; return streams.erase(stream) == 1 ? SUCCESS : INVALID_HANDLE; }
int cuStreamQuery(void* stream) { ENTER; MAY_BE_DEFAULT(stream); return is_endless() ? NOT_READY : SUCCESS; }
int cuStreamSynchronize(void* stream) { ENTER; MAY_BE_DEFAULT(stream); WAITS; return SUCCESS; }
int cuEventCreate(void** event, unsigned flags) { ENTER; NEED(flags == 0, INVALID_VALUE); *event = made(events); std::memset(*event, 0, 8); return SUCCESS; }
int cuEventDestroy_v2(void* event) { ENTER; return events.erase(event) == 1 ? SUCCESS : INVALID_HANDLE; }
int cuEventRecord(void* event, void* stream) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(events.count(event), INVALID_HANDLE);
    static_cast<Event*>(event)->recorded = true;
    return SUCCESS;
}
#ifndef LACKING
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(events.count(event), INVALID_HANDLE);
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}
#endif
int cuEventElapsedTime_v2(float* milliseconds, void* from, void* to) {
    ENTER;
    NEED(events.count(from) && events.count(to), INVALID_HANDLE);
    NEED(static_cast<Event*>(from)->recorded && static_cast<Event*>(to)->recorded, INVALID_HANDLE);
    *milliseconds = 1e-5F;
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(within(memory, to, bytes), INVALID_VALUE);
    // Memory that is not pinned is copied by the call itself.
    if (!within(host_memory, reinterpret_cast<uint64_t>(from), bytes)) WAITS;
    RUNS;
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(within(memory, from, bytes), INVALID_VALUE);
    if (!within(host_memory, reinterpret_cast<uint64_t>(to), bytes)) WAITS;
    RUNS;
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(within(memory, from, bytes) && within(memory, to, bytes), INVALID_VALUE);
    RUNS;
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return SUCCESS;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
    NEED(initialised, NOT_INITIALIZED);
    NEED(device >= 0 && device < DEVICES && peer >= 0 && peer < DEVICES, INVALID_DEVICE);
    *can = device != peer && wrong() != "no-peers";
    return SUCCESS;
}
int cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
    ENTER;
    NEED(flags == 0, INVALID_VALUE);
    NEED(peer && peer != current && peer->retained > 0, INVALID_CONTEXT);
    NEED(wrong() != "no-peers", PEER_ACCESS_UNSUPPORTED);
    if (peer->error) return peer->error;
    return reached.insert({current, peer}).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
}
int cuMemcpyPeerAsync(uint64_t to, Context* to_context, uint64_t from, Context* from_context, size_t bytes, void* stream) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(to_context == current && from_context->retained > 0, INVALID_CONTEXT);
    NEED(wrong() != "no-fetches", PEER_ACCESS_NOT_ENABLED);
    // A real one would go through the host, which is not what was asked for.
    NEED(reached.count({to_context, from_context}), INVALID_VALUE);
    if (from_context->error) return from_context->error;
    NEED(is_of(from_context, from, bytes) && is_of(to_context, to, bytes), INVALID_VALUE);
    RUNS;
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return SUCCESS;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void* stream) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(within(memory, at, bytes), INVALID_VALUE);
    RUNS;
    std::memset(reinterpret_cast<void*>(at), value, bytes);
    return SUCCESS;
}
int cuStreamWriteValue64_v2(void* stream, uint64_t at, uint64_t value, unsigned flags) {
    ENTER;
    MAY_BE_DEFAULT(stream);
    NEED(flags == 0 && at % 8 == 0 && within(host_memory, at, 8), INVALID_VALUE);
    RUNS;
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
    return SUCCESS;
}

// Of what this crate asks for: a matrix of 16 bits in boxes of 64 by 64, swizzled by 128 bytes.
int cuTensorMapEncodeTiled(uint64_t* map, unsigned type, unsigned rank, void* at, const uint64_t* sizes, const uint64_t* strides, const unsigned* box,
                           const unsigned* steps, unsigned interleave, unsigned swizzle, unsigned promotion, unsigned fill) {
    ENTER;
    NEED(type == 1 && rank == 2 && interleave == 0 && swizzle == 3 && promotion == 0 && fill == 0, INVALID_VALUE);
    NEED(reinterpret_cast<uint64_t>(map) % 64 == 0 && reinterpret_cast<uint64_t>(at) % 16 == 0 && strides[0] % 16 == 0 && sizes[0] && sizes[1], INVALID_VALUE);
    NEED(box[0] == 64 && box[1] == 64 && steps[0] == 1 && steps[1] == 1, INVALID_VALUE);
    const uint64_t words[4] = {reinterpret_cast<uint64_t>(at), strides[0], sizes[0], sizes[1]};
    std::memcpy(map, words, sizeof(words));
    return SUCCESS;
}

int cuModuleLoadData(void** module, const void* image) {
    ENTER;
    // Machine code is an ELF file, intermediate code a text.
    NEED(std::memcmp(image, "\177ELF", 4) == 0 || std::strstr(static_cast<const char*>(image), ".version"), INVALID_IMAGE);
    const Module loaded{static_cast<const char*>(image) + 4};
    NEED(loaded.is != "refused", INVALID_IMAGE);
    *module = std::malloc(8);
    modules[*module] = loaded;
    return SUCCESS;
}
int cuModuleUnload(void* module) { ENTER; WAITS; return modules.erase(module) == 1 ? SUCCESS : INVALID_HANDLE; }
int cuModuleGetFunction(Function** function, void* module, const char* name) {
    ENTER;
    NEED(modules.count(module), INVALID_HANDLE);
    const std::string is = modules[module].is;
    NEED(is == " of a group" ? GROUP == name : is != "empty" && emulate_size_of(name) >= 0, NOT_FOUND);
    Function*& known = functions[name];
    if (!known) known = new Function{name};
    *function = known;
    return SUCCESS;
}
int cuFuncGetAttribute(int* value, int attribute, Function*) { ENTER; NEED(attribute == 1, INVALID_VALUE); *value = 0; return SUCCESS; }
int cuFuncSetAttribute(Function*, int attribute, int value) { ENTER; return attribute == 8 && value <= 227 << 10 ? SUCCESS : INVALID_VALUE; }
int cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* bytes) {
    ENTER;
    NEED(index == 0, INVALID_VALUE);
    *offset = 0;
    *bytes = function->name == GROUP ? 32 : static_cast<size_t>(emulate_size_of(function->name.c_str()));
    return SUCCESS;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int threads, size_t shared) {
    ENTER;
    NEED(threads > 0 && threads <= 1024, INVALID_VALUE);
    *blocks = static_cast<int>((size_t{228} << 10) / (shared + 1024));
    if (*blocks > 2048 / threads) *blocks = 2048 / threads;
    return SUCCESS;
}
}  // extern "C"

namespace {

int launch(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
           void* stream, void** parameters) {
    MAY_BE_DEFAULT(stream);
    NEED(x && y && z && x <= 0x7fffffff && y <= 65535 && z <= 65535 && threads && threads <= 1024, INVALID_VALUE);
    NEED(threads_y == 1 && threads_z == 1 && shared <= 227 << 10, INVALID_VALUE);
    const std::string said = wrong();
    launches++;
    if (said.rfind("illegal:", 0) == 0 && launches == std::atol(said.c_str() + 8)) {
        current->error = ILLEGAL_ADDRESS;  // seen by the calls that come after it
        return SUCCESS;
    }
    if (!was_illegal && said.rfind("illegal-once:", 0) == 0 && access(said.c_str() + 13, F_OK) == 0) {
        was_illegal = true;
        current->error = ILLEGAL_ADDRESS;
        return SUCCESS;
    }
    if (said.rfind("endless:", 0) == 0 && launches == std::atol(said.c_str() + 8)) current->endless = true;
    RUNS;
    if (function->name == GROUP) return SUCCESS;
    if (function->name == "fill" && *static_cast<const uint64_t*>(parameters[0]) < 4096) {
        current->error = ILLEGAL_ADDRESS;  // no memory lies there on any machine
        return SUCCESS;
    }
    const uint32_t grid[3] = {x, y, z};
    char error[512];
    if (emulate_launch(function->name.c_str(), grid, threads, shared, parameters[0], error, sizeof error) != 0) current->error = ILLEGAL_ADDRESS;
    return SUCCESS;
}

int argument_bytes(const Function* function) { return function->name == GROUP ? 32 : emulate_size_of(function->name.c_str()); }

}  // namespace

extern "C" {

int cuLaunchKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared,
                   void* stream, void** parameters, void** extra) {
    ENTER;
    NEED(extra == nullptr && emulate_is_cooperative(function->name.c_str()) == 0, INVALID_VALUE);
    return launch(function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters);
}
int cuGraphCreate(void** graph, unsigned flags) {
    ENTER;
    NEED(flags == 0, INVALID_VALUE);
    *graph = std::malloc(8);
    graphs[*graph] = {};
    return SUCCESS;
}
int cuGraphDestroy(void* graph) { ENTER; return graphs.erase(graph) == 1 ? SUCCESS : INVALID_VALUE; }
int cuGraphAddKernelNode_v2(Node** node, void* graph, Node* const* after, size_t count, const KernelNode* is) {
    ENTER;
    NEED(graphs.count(graph) && is->function && !is->extra && !is->kernel && !is->context, INVALID_VALUE);
    NEED(is->x && is->y && is->z && is->y <= 65535 && is->z <= 65535 && is->threads && is->threads <= 1024, INVALID_VALUE);
    auto& nodes = graphs[graph].nodes;
    // What its kernel takes is copied now, as of a launch.
    const char* taken = static_cast<const char*>(is->parameters[0]);
    *node = new Node{*is, {taken, taken + argument_bytes(is->function)}, {after, after + count}};
    for (Node* one : (*node)->after) NEED(std::count(nodes.begin(), nodes.end(), one) == 1, INVALID_VALUE);
    nodes.push_back(*node);
    return SUCCESS;
}
// Either an edge that a node waits at until the one in front has ended, or one of kernels that wait by themselves, of devices that begin them earlier.
int cuGraphAddDependencies_v2(void* graph, Node* const* from, Node* const* to, const unsigned char* edges, size_t count) {
    ENTER;
    NEED(graphs.count(graph) && from && to && edges && count == 1, INVALID_VALUE);
    const unsigned char whole[8] = {}, early[8] = {1, 0, 1};
    // Whole launches that are waited for, where this device could begin early, would be seen by nobody: they are refused.
    NEED(std::memcmp(edges, wrong() == "ampere" ? whole : early, 8) == 0, INVALID_VALUE);
    auto& nodes = graphs[graph].nodes;
    NEED(std::count(nodes.begin(), nodes.end(), *from) == 1 && std::count(nodes.begin(), nodes.end(), *to) == 1, INVALID_VALUE);
    (*to)->after.push_back(*from);
    return SUCCESS;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
    ENTER;
    NEED(graphs.count(graph) && flags == 0, INVALID_VALUE);
    NEED(wrong() != "no-graphs", UNKNOWN);
    // In an order that the nodes allow: of those that wait for nothing the one that was added last, which nobody should count on.
    std::vector<Node*> left = graphs[graph].nodes, order;
    const auto is_done = [&](Node* node) { return std::count(order.begin(), order.end(), node) == 1; };
    while (!left.empty()) {
        const auto next = std::find_if(left.rbegin(), left.rend(), [&](Node* node) { return std::all_of(node->after.begin(), node->after.end(), is_done); });
        NEED(next != left.rend(), INVALID_VALUE);
        order.push_back(*next);
        left.erase(std::next(next).base());
    }
    *executable = std::malloc(8);
    executables[*executable] = {order};
    return SUCCESS;
}
int cuGraphExecDestroy(void* executable) {
    ENTER;
    WAITS;
    NEED(executables.count(executable), INVALID_VALUE);
    if (executables[executable].takes_memory) allocated -= GRAPH_BYTES;
    executables.erase(executable);
    return SUCCESS;
}
int cuGraphUpload(void* executable, void* stream) {
    ENTER;
    NEED(executables.count(executable), INVALID_VALUE);
    MAY_BE_DEFAULT(stream);
    take_memory(executables[executable]);
    return SUCCESS;
}
int cuGraphLaunch(void* executable, void* stream) {
    ENTER;
    NEED(executables.count(executable), INVALID_VALUE);
    MAY_BE_DEFAULT(stream);
    take_memory(executables[executable]);
    for (Node* node : executables[executable].nodes) {
        void* parameters[] = {node->arguments.data()};
        const KernelNode& is = node->is;
        if (int error = launch(is.function, is.x, is.y, is.z, is.threads, is.threads_y, is.threads_z, is.shared, stream, parameters)) return error;
    }
    return SUCCESS;
}
int cuLaunchCooperativeKernel(Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
                              unsigned shared, void* stream, void** parameters) {
    NEED(wrong() != "no-cooperation", NOT_SUPPORTED);
    NEED(wrong() != "crowded", COOPERATIVE_LAUNCH_TOO_LARGE);
    int blocks = 0;
    if (int error = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, static_cast<int>(threads), shared)) return error;
    ENTER;
    NEED(uint64_t{x} * y * z <= static_cast<uint64_t>(blocks) * MULTIPROCESSORS, COOPERATIVE_LAUNCH_TOO_LARGE);
    return launch(function, x, y, z, threads, threads_y, threads_z, shared, stream, parameters);
}

}  // extern "C"
