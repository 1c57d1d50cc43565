// Sixteen float32 numbers at a time, from and to memory in float32 or bfloat16.
// Included behind what must run on any processor.

#pragma once

#include <cstdint>

#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma")

namespace {

constexpr int LANES = 16;

using bfloat16 = uint16_t;

inline __mmask16 lanes(int num) { return num >= LANES ? 0xffff : (1u << num) - 1; }

inline __m512 widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

// Rounds to the nearest, ties to even, as torch does.
inline __m256i narrow(__m512 x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

inline __m512 load(const float* p) { return _mm512_loadu_ps(p); }

inline __m512 load(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }

inline __m512 load(const bfloat16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512 load(const bfloat16* p, __mmask16 mask) {
    return widen(_mm256_maskz_loadu_epi16(mask, p));
}

inline void store(float* p, __m512 x) { _mm512_storeu_ps(p, x); }

inline void store(float* p, __m512 x, __mmask16 mask) { _mm512_mask_storeu_ps(p, mask, x); }

inline void store(bfloat16* p, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
}

inline void store(bfloat16* p, __m512 x, __mmask16 mask) {
    _mm256_mask_storeu_epi16(p, mask, narrow(x));
}

}  // namespace
