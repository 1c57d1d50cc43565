// Linear layers with 8-bit weights, for x86 processors with AVX-512 VNNI. Weights have one scale for
// each output channel; the inputs are brought to 8 bits here, with one scale for each row.
//
// The products and sums are integers, so their order changes nothing: a row's result is the same bits
// in any batch, and the same as in any other implementation of these formulas.
//
// Weights are packed as [channel block, input / 4, 16 channels, 4 inputs].

#include <cstdint>
#include <vector>

extern "C" int tandem_int8_supported() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")

namespace {

constexpr int LANES = 16;
constexpr int MAX_ROWS = 8;

using bfloat16 = uint16_t;

// What is done with the product. The numbers are those of int8_linear.py.
enum Epilogue { NONE = 0, MUL = 1, ADD = 2 };

struct Layer {
    const int8_t* weight;
    const float* scales;
    const int32_t* offsets;  // 128 times the sum of each channel's weights
    const float* bias;       // may be null
    int32_t in_features, out_features;
};

inline __m512 load(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }

inline __m512 load(const bfloat16* p, __mmask16 mask) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

inline void store(float* p, __m512 x, __mmask16 mask) { _mm512_mask_storeu_ps(p, mask, x); }

// Rounds to the nearest, ties to even, as torch does.
inline void store(bfloat16* p, __m512 x, __mmask16 mask) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_mask_storeu_epi16(p, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

inline __mmask16 lanes(int num) { return num >= LANES ? 0xffff : (1u << num) - 1; }

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

    // Rows [row, row + NR) of the channel blocks [block, block + NB).
    template <int NR, int NB>
    void run(int row, int block) const {
        __m512i sums[NR][NB];
        for (int r = 0; r < NR; ++r)
            for (int b = 0; b < NB; ++b) sums[r][b] = _mm512_setzero_si512();
        const int8_t* weight = layer.weight + int64_t(block) * num_groups * 64;
        const uint8_t* input = inputs + int64_t(row) * num_groups * 4;
        for (int group = 0; group < num_groups; ++group) {
            __m512i weights[NB];
            for (int b = 0; b < NB; ++b)
                weights[b] =
                    _mm512_loadu_si512(weight + (int64_t(b) * num_groups + group) * 64);
            for (int r = 0; r < NR; ++r) {
                const int32_t* four = reinterpret_cast<const int32_t*>(input) + r * num_groups;
                __m512i spread = _mm512_set1_epi32(four[group]);
                for (int b = 0; b < NB; ++b)
                    sums[r][b] = _mm512_dpbusd_epi32(sums[r][b], spread, weights[b]);
            }
        }
        for (int r = 0; r < NR; ++r)
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

    template <int NB>
    void run_rows(int num_rows, int row, int block) const {
        switch (num_rows) {
            case 1: return run<1, NB>(row, block);
            case 2: return run<2, NB>(row, block);
            case 3: return run<3, NB>(row, block);
            case 4: return run<4, NB>(row, block);
            case 5: return run<5, NB>(row, block);
            case 6: return run<6, NB>(row, block);
            case 7: return run<7, NB>(row, block);
            case 8: return run<8, NB>(row, block);
        }
    }
};

template <typename T>
void linear(const Layer& layer, const T* x, int num_rows, Epilogue epilogue, const T* other,
            T* output) {
    static thread_local std::vector<uint8_t> inputs;
    static thread_local std::vector<float> scales;
    const int num_groups = (layer.in_features + 3) / 4;
    inputs.resize(size_t(num_rows) * num_groups * 4);
    scales.resize(num_rows);
    uint8_t* quantized = inputs.data();
    float* row_scales = scales.data();
    const Call<T> call{layer, epilogue, other, output, quantized, row_scales, num_groups};
    const int num_blocks = (layer.out_features + LANES - 1) / LANES;
    // So many blocks side by side hide the latency of the additions.
    const int step = num_rows <= 4 ? 4 : 2;
    const int num_steps = (num_blocks + step - 1) / step;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int row = 0; row < num_rows; ++row)
            row_scales[row] = quantize(x + int64_t(row) * layer.in_features, layer.in_features,
                                       quantized + int64_t(row) * num_groups * 4);
#pragma omp for schedule(static)
        for (int i = 0; i < num_steps; ++i)
            for (int row = 0; row < num_rows; row += MAX_ROWS) {
                const int rows = num_rows - row < MAX_ROWS ? num_rows - row : MAX_ROWS;
                const int block = i * step;
                if (block + step > num_blocks)
                    for (int b = block; b < num_blocks; ++b) call.template run_rows<1>(rows, row, b);
                else if (step == 4)
                    call.template run_rows<4>(rows, row, block);
                else
                    call.template run_rows<2>(rows, row, block);
            }
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
