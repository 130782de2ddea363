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

// A launch that follows another in a graph, in two steps, so that it may begin before that one has run. With `early` one block, drawn from all, runs before
// `emulate_begin` returns, as far as it comes while `launch_wait` does not let it pass; a cooperative kernel's never does. The caller then runs what is in
// front, and whatever else it likes, and ends this launch by `begun`, on the same thread: the block goes on, and all others run. Both answer as
// `emulate_launch`; where `emulate_begin` fails there is nothing to end. A launch of which no thread calls `launch_wait` is an error.
int emulate_begin(const char* kernel, const uint32_t grid[3], uint32_t threads, uint32_t shared_bytes, const void* arguments, int early, void** begun,
                  char* error, size_t error_bytes);
int emulate_end(void* begun, char* error, size_t error_bytes);

// Begins another order in which the calling thread's launches let their threads take turns. The same seed gives the same order.
void emulate_seed(uint64_t seed);

#ifdef __cplusplus
}
#endif
