// Linear layers with 8-bit weights, for x86 processors with AVX-512 VNNI. Weights have one scale for
// each output channel; the inputs are brought to 8 bits here, with one scale for each row.
//
// The products and sums are integers, so their order changes nothing: a row's result is the same bits
// in any batch, and the same as in any other implementation of these formulas.
//
// Weights are packed as [channel block, input / 4, 16 channels, 4 inputs].

#include <cstdint>
#include <cstring>
#include <vector>

extern "C" int tandem_int8_supported() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

#include "blocked_product.h"
#include "vector.h"
#pragma GCC target("avx512vnni")

namespace {

constexpr int GROUP = 4;

// What is done with the product. The numbers are those of int8_linear.py.
enum Epilogue { NONE = 0, MUL = 1, ADD = 2 };

struct Layer {
    const int8_t* weight;
    const float* scales;
    const int32_t* offsets;  // 128 times the sum of each channel's weights
    const float* bias;       // may be null
    int32_t in_features, out_features;
};

// As _mm512_dpbusd_epi32, of whose results GCC 12 keeps copies, more than there are registers.
inline void add_products(__m512i& sums, __m512i inputs, __m512i weights) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(inputs), "v"(weights));
}

// Round(x * 127 / largest) + 128 for each input; returns the scale.
template <typename T>
float quantize(const T* x, int num, uint8_t* quantized) {
    __m512 largest = _mm512_setzero_ps();
    for (int i = 0; i < num; i += LANES)
        largest = _mm512_max_ps(largest, _mm512_abs_ps(load(x + i, lanes(num - i))));
    const float most = _mm512_reduce_max_ps(largest);
    const __m512 factor = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    for (int i = 0; i < num; i += LANES) {
        __m512i rounded =
            _mm512_cvtps_epi32(_mm512_mul_ps(load(x + i, lanes(num - i)), factor));
        __m128i bytes = _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, _mm512_set1_epi32(128)));
        _mm_mask_storeu_epi8(quantized + i, lanes(num - i), bytes);
    }
    return most / 127.0f;
}

template <typename T>
struct Call {
    const Layer& layer;
    Epilogue epilogue;
    const T* other;
    T* output;
    const uint8_t* inputs;
    const float* input_scales;
    int num_groups;  // of four inputs

    int64_t block_size() const { return int64_t(num_groups) * GROUP * LANES; }

    const int8_t* block_begin(int block) const { return layer.weight + block * block_size(); }

    // Rows [row, row + NR) of the channel blocks [block, block + NB).
    template <int NR, int NB>
    void run(int row, int block, Soon soon) const {
        __m512i sums[NR][NB];
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
            for (int b = 0; b < NB; ++b) sums[r][b] = _mm512_setzero_si512();
        const int8_t* weight = block_begin(block);
        const uint8_t* input = inputs + int64_t(row) * num_groups * GROUP;
        for (int group = 0; group < num_groups; ++group) {
            const int64_t place = int64_t(group) * GROUP * LANES;
            __m512i weights[NB];
#pragma GCC unroll 8
            for (int b = 0; b < NB; ++b)
                weights[b] = _mm512_loadu_si512(weight + b * block_size() + place);
            for (int s = 0; s < soon.num; ++s)
                _mm_prefetch(soon.begin + s * block_size() + place, _MM_HINT_T1);
#pragma GCC unroll 8
            for (int r = 0; r < NR; ++r) {
                int32_t four;
                std::memcpy(&four, input + (int64_t(r) * num_groups + group) * GROUP, sizeof four);
                const __m512i spread = _mm512_set1_epi32(four);
#pragma GCC unroll 8
                for (int b = 0; b < NB; ++b) add_products(sums[r][b], spread, weights[b]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < NR; ++r)
#pragma GCC unroll 8
            for (int b = 0; b < NB; ++b) finish(sums[r][b], row + r, (block + b) * LANES);
    }

    void finish(__m512i sums, int row, int channel) const {
        const __mmask16 mask = lanes(layer.out_features - channel);
        sums = _mm512_sub_epi32(sums, _mm512_loadu_si512(layer.offsets + channel));
        __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(input_scales[row]));
        y = _mm512_mul_ps(y, _mm512_loadu_ps(layer.scales + channel));
        if (layer.bias) y = _mm512_add_ps(y, load(layer.bias + channel, mask));
        const int64_t place = int64_t(row) * layer.out_features + channel;
        if (epilogue == MUL) y = _mm512_mul_ps(y, load(other + place, mask));
        if (epilogue == ADD) y = _mm512_add_ps(y, load(other + place, mask));
        store(output + place, y, mask);
    }
};

template <typename T>
void linear(const Layer& layer, const T* x, int num_rows, Epilogue epilogue, const T* other,
            T* output) {
    static thread_local std::vector<uint8_t> inputs;
    static thread_local std::vector<float> scales;
    const int num_groups = (layer.in_features + GROUP - 1) / GROUP;
    const int64_t row_size = int64_t(num_groups) * GROUP;
    inputs.resize(num_rows * row_size);
    scales.resize(num_rows);
    uint8_t* quantized = inputs.data();
    float* row_scales = scales.data();
    const Call<T> call{layer, epilogue, other, output, quantized, row_scales, num_groups};
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int row = 0; row < num_rows; ++row)
            row_scales[row] = quantize(x + int64_t(row) * layer.in_features, layer.in_features,
                                       quantized + row * row_size);
        run_blocked(call, num_rows, (layer.out_features + LANES - 1) / LANES);
    }
}

}  // namespace

// `x` and `other` are contiguous, [num_rows, in_features] and [num_rows, out_features].
extern "C" void tandem_linear_int8(const void* layer, int is_bfloat16, const void* x, int num_rows,
                                   int epilogue, const void* other, void* output) {
    const Layer& shape = *static_cast<const Layer*>(layer);
    if (is_bfloat16)
        linear(shape, static_cast<const bfloat16*>(x), num_rows, Epilogue(epilogue),
               static_cast<const bfloat16*>(other), static_cast<bfloat16*>(output));
    else
        linear(shape, static_cast<const float*>(x), num_rows, Epilogue(epilogue),
               static_cast<const float*>(other), static_cast<float*>(output));
}
