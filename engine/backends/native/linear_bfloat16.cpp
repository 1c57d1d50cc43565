// Linear layers in bfloat16, for x86 processors with AVX-512 BF16 and without AMX, whose tiles are
// faster.
//
// A result is one chain of additions over the pairs of inputs, in float32, rounded once behind
// everything else: a row's bits depend on that row only.
//
// Weights are packed as [channel block, input / 2, 16 channels, 2 inputs].

#include <cstdint>
#include <cstring>

#include <cpuid.h>

extern "C" int tandem_bfloat16_supported() {
    constexpr unsigned AMX_BF16 = 1u << 22;
    unsigned a, b, c, d = 0;
    const bool has_amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16);
    __builtin_cpu_init();
    return !has_amx && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
}

#include "blocked_product.h"
#include "vector.h"
#pragma GCC target("avx512bf16")

namespace {

constexpr int PAIR = 2;

// What is done with the product. The numbers are those of bfloat16_linear.py.
enum Epilogue { NONE = 0, MUL = 1, ADD = 2 };

struct Layer {
    const bfloat16* weight;
    const bfloat16* bias;  // may be null
    int32_t in_features, out_features;
};

inline __m512bh pairs(__m512i x) { return reinterpret_cast<__m512bh>(x); }

struct Call {
    const Layer& layer;
    Epilogue epilogue;
    const bfloat16* x;
    const bfloat16* other;
    bfloat16* output;
    int num_pairs;

    int64_t block_size() const { return int64_t(num_pairs) * PAIR * LANES; }

    const bfloat16* block_begin(int block) const { return layer.weight + block * block_size(); }

    // Rows [row, row + NR) of the channel blocks [block, block + NB).
    template <int NR, int NB>
    void run(int row, int block, Soon soon) const {
        __m512 sums[NR][NB];
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
            for (int b = 0; b < NB; ++b) sums[r][b] = _mm512_setzero_ps();
        const bfloat16* weight = block_begin(block);
        const bfloat16* input = x + int64_t(row) * layer.in_features;
        for (int pair = 0; pair < num_pairs; ++pair) {
            const int64_t place = int64_t(pair) * PAIR * LANES;
            __m512bh weights[NB];
#pragma GCC unroll 8
            for (int b = 0; b < NB; ++b)
                weights[b] = pairs(_mm512_loadu_si512(weight + b * block_size() + place));
            for (int s = 0; s < soon.num; ++s)
                _mm_prefetch(soon.begin + (s * block_size() + place) * sizeof(bfloat16),
                             _MM_HINT_T1);
#pragma GCC unroll 8
            for (int r = 0; r < NR; ++r) {
                int32_t two;
                std::memcpy(&two, input + int64_t(r) * layer.in_features + pair * PAIR, sizeof two);
                const __m512bh spread = pairs(_mm512_set1_epi32(two));
#pragma GCC unroll 8
                for (int b = 0; b < NB; ++b)
                    sums[r][b] = _mm512_dpbf16_ps(sums[r][b], spread, weights[b]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
            for (int b = 0; b < NB; ++b) finish(sums[r][b], row + r, (block + b) * LANES);
    }

    void finish(__m512 y, int row, int channel) const {
        const __mmask16 mask = lanes(layer.out_features - channel);
        if (layer.bias) y = _mm512_add_ps(y, load(layer.bias + channel, mask));
        const int64_t place = int64_t(row) * layer.out_features + channel;
        if (epilogue == MUL) y = _mm512_mul_ps(y, load(other + place, mask));
        if (epilogue == ADD) y = _mm512_add_ps(y, load(other + place, mask));
        store(output + place, y, mask);
    }
};

}  // namespace

// `x` and `other` are contiguous, [num_rows, in_features] and [num_rows, out_features].
extern "C" void tandem_linear_bfloat16(const void* layer, const void* x, int num_rows,
                                       int epilogue, const void* other, void* output) {
    const Layer& shape = *static_cast<const Layer*>(layer);
    const Call call{shape,
                    Epilogue(epilogue),
                    static_cast<const bfloat16*>(x),
                    static_cast<const bfloat16*>(other),
                    static_cast<bfloat16*>(output),
                    shape.in_features / PAIR};
#pragma omp parallel
    run_blocked(call, num_rows, (shape.out_features + LANES - 1) / LANES);
}
