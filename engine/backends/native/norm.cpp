// Root mean square norms of rows, for x86 processors with AVX-512: one pass to sum, one to scale,
// rounded once. A row's bits depend on that row only.

#include <cmath>
#include <cstdint>

#include "vector.h"

namespace {

// Fewer are done before another thread has woken up.
constexpr int MIN_ROWS_FOR_THREADS = 32;

template <typename T>
void norm_row(const T* x, const T* weight, int size, float epsilon, T* output) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < size; i += LANES) {
        __m512 value = load(x + i, lanes(size - i));
        sum = _mm512_fmadd_ps(value, value, sum);
    }
    const float mean = _mm512_reduce_add_ps(sum) / float(size);
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + epsilon));
    for (int i = 0; i < size; i += LANES) {
        const __mmask16 mask = lanes(size - i);
        __m512 scaled = _mm512_mul_ps(load(x + i, mask), scale);
        store(output + i, _mm512_mul_ps(scaled, load(weight + i, mask)), mask);
    }
}

template <typename T>
void norm(const T* x, const T* weight, int num_rows, int size, float epsilon, T* output) {
#pragma omp parallel for schedule(static) if (num_rows >= MIN_ROWS_FOR_THREADS)
    for (int row = 0; row < num_rows; ++row)
        norm_row(x + int64_t(row) * size, weight, size, epsilon, output + int64_t(row) * size);
}

}  // namespace

// `x` is contiguous, [num_rows, size].
extern "C" void tandem_rms_norm(int is_bfloat16, const void* x, const void* weight, int num_rows,
                                int size, float epsilon, void* output) {
    if (is_bfloat16)
        norm(static_cast<const bfloat16*>(x), static_cast<const bfloat16*>(weight), num_rows, size,
             epsilon, static_cast<bfloat16*>(output));
    else
        norm(static_cast<const float*>(x), static_cast<const float*>(weight), num_rows, size,
             epsilon, static_cast<float*>(output));
}
