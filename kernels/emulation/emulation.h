// What the emulation offers to whoever links it.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Runs a kernel by name, to its end, on the calling thread. Device addresses in `arguments` are addresses of this process. 0 if it ran;
// otherwise `error` holds a sentence: an unknown kernel, a deadlock with who waits for what, a misaligned copy, and the like.
int emulate_launch(const char* kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments, char* error,
                   size_t error_bytes);

// Bytes of a kernel's argument struct, or -1 if there is no such kernel.
int emulate_size_of(const char* kernel);

// 1 if a kernel's blocks wait for one another, so that all of them must be resident at once; 0 if not, or if there is no such kernel.
int emulate_is_cooperative(const char* name);

// How many blocks a kernel's clusters have, of which its grid must be whole ones; 1 where it has none, or if there is no such kernel.
uint32_t emulate_cluster(const char* name);

// Begins another order in which the calling thread's launches let their threads take turns. The same seed gives the same order.
void emulate_seed(uint64_t seed);

#ifdef __cplusplus
}
#endif
