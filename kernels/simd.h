// Vectors of eight weight rows, in three forms: AVX2, AVX-VNNI (256 bits), AVX-512 VNNI.
//
// A vector of `bytes` holds eight bytes of each of ROWS weight rows, one row after the other. AVX2 has four rows a
// vector, so that eight rows take two PARTS. Integer sums are exact in each form, and floats are added by the same
// instructions for all, eight rows at once: a result has the same bits in each form.
//
// SPDX-License-Identifier: MIT

#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define INLINE inline __attribute__((always_inline))

// ROW_KERNELS_NARROW: tests compile the AVX2 form for a processor that has more
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__) && !defined(ROW_KERNELS_NARROW)
#    define WIDE 1
#    define DOTS 1
#elif defined(__AVXVNNI__) && !defined(ROW_KERNELS_NARROW)
#    define DOTS 1
#endif

namespace row_kernels {

#if defined(WIDE)
constexpr const char * FORM = "AVX-512 VNNI";
#elif defined(DOTS)
constexpr const char * FORM = "AVX-VNNI";
#else
constexpr const char * FORM = "AVX2";
#endif

template <typename T> INLINE T read(const void * p) {
    T value;
    memcpy(&value, p, sizeof(T));
    return value;
}

INLINE __m128i read16(const char * p) { return _mm_loadu_si128((const __m128i *) p); }

#ifdef WIDE

using bytes = __m512i;
constexpr int PARTS = 1;
#    define EACH(name) _mm512_##name

INLINE bytes both(bytes a, bytes b) { return _mm512_and_si512(a, b); }
INLINE bytes either(bytes a, bytes b) { return _mm512_or_si512(a, b); }
INLINE bytes none() { return _mm512_setzero_si512(); }
INLINE bytes right(bytes v, int n) { return _mm512_srl_epi16(v, _mm_cvtsi32_si128(n)); }
INLINE bytes left(bytes v, int n) { return _mm512_sll_epi16(v, _mm_cvtsi32_si128(n)); }

// 16 bytes at p of rows 0, 2, 4, 6
INLINE bytes every_other(const char * p, size_t step) {
    bytes v = _mm512_castsi128_si512(read16(p));
    v       = _mm512_inserti32x4(v, read16(p + 2 * step), 1);
    v       = _mm512_inserti32x4(v, read16(p + 4 * step), 2);
    return _mm512_inserti32x4(v, read16(p + 6 * step), 3);
}

// a dword of each of eight rows, to the 16 bytes that hold those rows
INLINE bytes beside_rows(__m256i dwords, int) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), _mm512_castsi256_si512(dwords));
}

// eight values of an activation row, for all weight rows
INLINE bytes column(const int8_t * a) { return _mm512_set1_epi64(read<long long>(a)); }

INLINE bytes repeated16(const void * p) { return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *) p)); }

// `value` in the bytes in which a bit of `one` is set
INLINE bytes where_set(bytes v, bytes one, char value) {
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(v, one), _mm512_set1_epi8(value));
}

INLINE __m256i by_row(const bytes sum[PARTS]) {
    return _mm512_cvtepi64_epi32(_mm512_add_epi32(sum[0], _mm512_srli_epi64(sum[0], 32)));
}

#else

using bytes = __m256i;
constexpr int PARTS = 2;
#    define EACH(name) _mm256_##name

INLINE bytes both(bytes a, bytes b) { return _mm256_and_si256(a, b); }
INLINE bytes either(bytes a, bytes b) { return _mm256_or_si256(a, b); }
INLINE bytes none() { return _mm256_setzero_si256(); }
INLINE bytes right(bytes v, int n) { return _mm256_srl_epi16(v, _mm_cvtsi32_si128(n)); }
INLINE bytes left(bytes v, int n) { return _mm256_sll_epi16(v, _mm_cvtsi32_si128(n)); }

// 16 bytes at p of rows 0, 2
INLINE bytes every_other(const char * p, size_t step) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(read16(p)), read16(p + 2 * step), 1);
}

// a dword of each of a part's four rows, to the 16 bytes that hold those rows
INLINE bytes beside_rows(__m256i dwords, int part) {
    return part ? _mm256_permute4x64_epi64(dwords, 0xFA) : _mm256_permute4x64_epi64(dwords, 0x50);
}

INLINE bytes column(const int8_t * a) { return _mm256_set1_epi64x(read<long long>(a)); }

INLINE bytes repeated16(const void * p) { return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *) p)); }

INLINE bytes where_set(bytes v, bytes one, char value) {
    return both(_mm256_cmpeq_epi8(both(v, one), one), _mm256_set1_epi8(value));
}

// the two sums of each row added, rows in order
INLINE __m256i by_row(const bytes sum[PARTS]) {
    return _mm256_permutevar8x32_epi32(_mm256_hadd_epi32(sum[0], sum[1]), _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
}

#endif

INLINE bytes splat(int byte) { return EACH(set1_epi8)((char) byte); }

// 16 bytes at p of each row: their first and their second eight
INLINE void interleave(const char * p, size_t step, bytes & first, bytes & second) {
    const bytes even = every_other(p, step), odd = every_other(p + step, step);
    first            = EACH(unpacklo_epi64)(even, odd);
    second           = EACH(unpackhi_epi64)(even, odd);
}

#ifdef WIDE
INLINE bytes dot_bytes(bytes sum, bytes w, bytes a) { return _mm512_dpbusd_epi32(sum, w, a); }
INLINE bytes dot_words(bytes sum, bytes w, bytes a) { return _mm512_dpwssd_epi32(sum, w, a); }
#elif defined(DOTS)
INLINE bytes dot_bytes(bytes sum, bytes w, bytes a) { return _mm256_dpbusd_avx_epi32(sum, w, a); }
INLINE bytes dot_words(bytes sum, bytes w, bytes a) { return _mm256_dpwssd_avx_epi32(sum, w, a); }
#endif

// How many vectors of unsigned weights up to `most` may be added up before a sum must leave its 16 bits: a word of the
// AVX2 form takes two products a vector, a dword four.
#ifdef DOTS
constexpr int words_hold(int most) { return 32767 / (4 * most * 127); }
#else
constexpr int words_hold(int most) { return 32767 / (2 * most * 127); }
#endif

// sums of products of `count` vectors of unsigned weights with as many columns
INLINE bytes products(const bytes * w, const int8_t * a, int count) {
#ifdef DOTS
    bytes sum = none();
    for (int i = 0; i < count; i++) {
        sum = dot_bytes(sum, w[i], column(a + 8 * i));
    }
#else
    bytes sum = _mm256_maddubs_epi16(w[0], column(a));
    for (int i = 1; i < count; i++) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], column(a + 8 * i)));
    }
#endif
    return sum;
}

// sum + products * scale, by rows; products fit in words
INLINE bytes add_scaled(bytes sum, bytes products, bytes scale) {
#ifdef DOTS
    return dot_words(sum, products, scale);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(products, scale));
#endif
}

// sum + products
INLINE bytes add_up(bytes sum, bytes products) {
#ifdef DOTS
    return EACH(add_epi32)(sum, products);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
#endif
}

// Signed weights, up to 127: AVX2 moves their signs to the activations; dpbusd takes them with their top bit turned,
// which adds 128 times the sum of the activations (SIGNED_OFFSET).
#ifdef DOTS
constexpr int SIGNED_OFFSET = 128;
INLINE bytes as_unsigned(bytes w) { return EACH(add_epi8)(w, splat(0x80)); }
INLINE bytes add_signed(bytes sum, bytes w, const int8_t * a) { return dot_bytes(sum, as_unsigned(w), column(a)); }
INLINE bytes add_signed_scaled(bytes sum, const bytes * w, const int8_t * a, int count, bytes scale) {
    bytes p = none();
    for (int i = 0; i < count; i++) {
        p = dot_bytes(p, as_unsigned(w[i]), column(a + 8 * i));
    }
    // a word of scale, and zero, in each dword: its sign is wanted
    return EACH(add_epi32)(sum, EACH(mullo_epi32)(p, EACH(srai_epi32)(EACH(slli_epi32)(scale, 16), 16)));
}
#else
constexpr int SIGNED_OFFSET = 0;
INLINE bytes signed_products(bytes w, const int8_t * a) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(column(a), w));
}
INLINE bytes add_signed(bytes sum, bytes w, const int8_t * a) { return add_up(sum, signed_products(w, a)); }
INLINE bytes add_signed_scaled(bytes sum, const bytes * w, const int8_t * a, int count, bytes scale) {
    for (int i = 0; i < count; i++) { // two products fill a word
        sum = add_scaled(sum, signed_products(w[i], a + 8 * i), scale);
    }
    return sum;
}
#endif

// ---- what eight rows hold once: dwords and halves, a row a lane

// the dword at p of each row
INLINE __m256i dwords(const char * p, size_t step) {
    return _mm256_setr_epi32(read<int>(p), read<int>(p + step), read<int>(p + 2 * step), read<int>(p + 3 * step),
                             read<int>(p + 4 * step), read<int>(p + 5 * step), read<int>(p + 6 * step), read<int>(p + 7 * step));
}

// four dwords of each row, given by the 16 bytes that `row` reads
template <typename F> INLINE void four_dwords(F && row, __m256i out[4]) {
    const auto two = [&](int r) { return _mm256_inserti128_si256(_mm256_castsi128_si256(row(r)), row(r + 4), 1); };
    const __m256i a = two(0), b = two(1), c = two(2), d = two(3);
    const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    const __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab0, cd0);
    out[1] = _mm256_unpackhi_epi64(ab0, cd0);
    out[2] = _mm256_unpacklo_epi64(ab1, cd1);
    out[3] = _mm256_unpackhi_epi64(ab1, cd1);
}

// the lower halves of eight dwords as floats
INLINE __m256 low_halves(__m256i v) {
    const __m256i words = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

INLINE __m256 high_halves(__m256i v) { return low_halves(_mm256_srli_epi32(v, 16)); }

// the half at p of each row
INLINE __m256 halves(const char * p, size_t step) {
    const auto at = [&](int r) { return read<short>(p + r * step); };
    return _mm256_cvtph_ps(_mm_setr_epi16(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)));
}

// the same tree of additions for sixteen lanes in each form
INLINE float sum_of(__m256 lo, __m256 hi) {
    const __m256 v = _mm256_add_ps(lo, hi);
    __m128       s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s              = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s              = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

#ifdef WIDE
INLINE float sum_of(__m512 v) { return sum_of(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
#endif

INLINE float most_of(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m        = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m        = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

// Asks for a stretch of memory in the order of its addresses, into the second-level cache: the hardware follows such a
// stream, and it is not held up by the few misses that the first level can have under way.
INLINE void fetch(const char * p, size_t count) {
    for (size_t at = 0; at < count; at += 64) {
        _mm_prefetch(p + at, _MM_HINT_T1);
    }
}

} // namespace row_kernels
