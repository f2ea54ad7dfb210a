// Activation rows as 8-bit integers, with the sums that offsets and minima of weights are multiplied by.
//
// SPDX-License-Identifier: MIT

#pragma once

#include "simd.h"

#include <cmath>

namespace row_kernels {

// LENGTH values of a row: value = d * qs. `sums`: those of the qs in sub-blocks of SUB.
template <int LENGTH, int SUB> struct activations {
    int8_t  qs[LENGTH];
    int16_t sums[LENGTH / SUB < 2 ? 2 : LENGTH / SUB];
    float   d;
};

// A block whose greatest value is below this counts as zero: 127 divided by it would be infinite.
constexpr float LEAST = 1e-30f;

// A block with a value that is not finite gets a scale that is none, so that all sums of its row are NaN.
INLINE float scale_of(float most, __m256 bad) {
    const bool finite = _mm256_testz_si256(_mm256_castps_si256(bad), _mm256_castps_si256(bad));
    return finite ? most : NAN;
}

template <int LENGTH, int SUB> void quantize(const float * x, activations<LENGTH, SUB> * y) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256       top = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    for (int i = 0; i < LENGTH; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        top            = _mm256_max_ps(top, _mm256_andnot_ps(sign, v));
        bad            = _mm256_or_ps(bad, _mm256_cmp_ps(_mm256_sub_ps(v, v), _mm256_setzero_ps(), _CMP_NEQ_UQ));
    }
    const float   most  = scale_of(most_of(top), bad);
    const __m256  scale = _mm256_set1_ps(most > LEAST ? 127.0f / most : 0.0f);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    y->d                = most > LEAST || most != most ? most / 127.0f : 0.0f;
    y->sums[1]          = 0;
    for (int i = 0; i < LENGTH; i += 32) {
        const auto    at = [&](int j) { return _mm256_cvtps_epi32(_mm256_mul_ps(scale, _mm256_loadu_ps(x + i + j))); };
        const __m256i a  = _mm256_packs_epi32(at(0), at(8)), b = _mm256_packs_epi32(at(16), at(24));
        const __m256i q  = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
        _mm256_storeu_si256((__m256i *) (y->qs + i), q);
        // sums of four values, of which a lane has four
        __m256i s = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
        s         = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4E));
        s         = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xB1));
        const int first = _mm256_extract_epi32(s, 0), second = _mm256_extract_epi32(s, 4);
        if (SUB == 16) {
            y->sums[i / 16]     = (int16_t) first;
            y->sums[i / 16 + 1] = (int16_t) second;
        } else {
            y->sums[i / 32] = (int16_t) (first + second);
        }
    }
}

} // namespace row_kernels
