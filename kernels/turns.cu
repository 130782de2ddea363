// Steps of an LSTM or a GRU of many rows, as in `recurrent.cu`: fewer blocks than tiles, which have them one after the other.
#include "turns.cuh"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace recurrent {

template <class Gates, int Units, int Stages>
__device__ __forceinline__ void turns(const LstmStepArguments& a) {
    DYNAMIC_SHARED(shared);
    SHARED(uint64_t, full, Stages);
    SHARED(uint64_t, empty, Stages);
    SHARED(uint64_t, turn, CREWS);
    launch_next();
    Turns<Gates, Units, Stages> tiles({a.weights, a.bias, a.inputs, a.units, a.columns, a.x, a.h, 0, a.z_takes}, shared, full, empty, Turn<CREWS>(turn));
    LstmRows rows = a.number == 0 ? a.rows : uploaded<LstmRows>(uploaded<BatchHead>(a.rows_at).steps + (a.number - 1) * sizeof(LstmRows));
    if (a.number == 0 && a.rows_at != 0) rows.rows = min(rows.rows, __ldcg(reinterpret_cast<const uint32_t*>(a.rows_at)));
    if (blockIdx.x >= tiles.tiles(rows)) return;
    tiles.initialise();
    if (threadIdx.x / GROUP == CREWS) {
        registers_fewer<40>();
        if (threadIdx.x % GROUP != 0) return;
        for (uint32_t tile = blockIdx.x; tile < tiles.tiles(rows); tile += gridDim.x) tiles.feed(rows, tile, [] {});
    } else {
        registers_more<232>();
        tiles.multiply(rows);
    }
}

}  // namespace recurrent

#define TURNS_OF(name, Gates, WIDTH, STAGES)                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ LstmStepArguments a) { \
        recurrent::turns<recurrent::Gates, WIDTH, STAGES>(a);                                                \
    }                                                                                                        \
    KERNEL(name, LstmStepArguments)

TURNS_OF(lstm_turns_128x32, Lstm<recurrent::Bf16>, 32, 6)
TURNS_OF(lstm_f16_turns_128x32, Lstm<recurrent::F16>, 32, 6)
TURNS_OF(gru_turns_128x32, Gru<recurrent::Bf16>, 32, 6)
TURNS_OF(gru_f16_turns_128x32, Gru<recurrent::F16>, 32, 6)

#endif
