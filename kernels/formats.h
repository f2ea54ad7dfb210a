// How eight plain rows of a quantised type are unpacked. See ggml-common.h for the blocks and ggml-quants.c for what
// their bits mean.
//
// Types with blocks of 256 (`*_k`) have sub-blocks with integer scales. Eight vectors are unpacked at once (a chunk);
// a format says where the values of each stand in the block (`place`), and which sub-block they belong to (`sub`).
//
// SPDX-License-Identifier: MIT

#pragma once

#include "simd.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-impl.h"

#include <cstddef>

namespace row_kernels {

// ---------------------------------------------------------------- blocks of 256

// What eight rows' blocks hold beside their weights. `scales` and `mins`: a row a lane, its byte i of vector k belongs
// to sub-block 4k + i.
template <int SUBS> struct block_scales {
    __m256  d, dmin;
    __m256i scales[SUBS / 4], mins[SUBS / 4];
};

struct whole_sub_blocks { // a chunk: two sub-blocks of 32
    static constexpr int SUB = 32, SUBS = 8, CHUNKS = 4, GROUPS = 2;
    static constexpr int place(int chunk, int group) { return 64 * chunk + 32 * group; }
    static constexpr int sub(int chunk, int group) { return 2 * chunk + group; }
};

struct half_sub_blocks { // a chunk: four sub-blocks of 16, each 32 values behind the other
    static constexpr int SUB = 16, SUBS = 16, CHUNKS = 4, GROUPS = 4;
    static constexpr int place(int chunk, int group) { return 128 * (chunk >> 1) + 32 * group + 16 * (chunk & 1); }
    static constexpr int sub(int chunk, int group) { return 8 * (chunk >> 1) + 2 * group + (chunk & 1); }
};

// low and high nibbles of 16 bytes of each row
INLINE void nibbles(const char * p, size_t step, bytes & low0, bytes & low1, bytes & high0, bytes & high1) {
    const bytes mask = splat(0x0F);
    bytes       a, b;
    interleave(p, step, a, b);
    low0  = both(a, mask);
    low1  = both(b, mask);
    high0 = both(right(a, 4), mask);
    high1 = both(right(b, 4), mask);
}

// the 6-bit scales and minima of Q4_K and Q5_K (get_scale_min_k4), with d and dmin in front of them
INLINE void six_bit_scales(const char * w, size_t step, block_scales<8> & s) {
    __m256i v[4];
    four_dwords([&](int r) { return read16(w + r * step); }, v);
    s.d    = low_halves(v[0]);
    s.dmin = high_halves(v[0]);
    const __m256i six = _mm256_set1_epi8(0x3F), low = _mm256_set1_epi8(0x0F), top = _mm256_set1_epi8(0x30);
    s.scales[0] = _mm256_and_si256(v[1], six);
    s.mins[0]   = _mm256_and_si256(v[2], six);
    s.scales[1] = _mm256_or_si256(_mm256_and_si256(v[3], low), _mm256_and_si256(_mm256_srli_epi16(v[1], 2), top));
    s.mins[1]   = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v[3], 4), low), _mm256_and_si256(_mm256_srli_epi16(v[2], 2), top));
}

struct nothing_kept {};

struct q4_k : whole_sub_blocks {
    using block = block_q4_K;
    static_assert(sizeof(block) == 144 && offsetof(block, scales) == 4 && offsetof(block, qs) == 16);
    static constexpr int  MOST = 15, OFFSET = 0;
    static constexpr bool SIGNED = false, SIGNED_SCALES = false, HAS_MIN = true;
    using kept = nothing_kept;

    static INLINE void scales(const char * w, size_t step, block_scales<8> & s) { six_bit_scales(w, step, s); }
    static INLINE kept keep(const char *, size_t) { return {}; }
    static INLINE void unpack(const char * w, size_t step, int chunk, const kept &, bytes q[8]) {
        const char * p = w + offsetof(block, qs) + 32 * chunk;
        nibbles(p, step, q[0], q[1], q[4], q[5]);
        nibbles(p + 16, step, q[2], q[3], q[6], q[7]);
    }
};

struct q5_k : whole_sub_blocks {
    using block = block_q5_K;
    static_assert(sizeof(block) == 176 && offsetof(block, scales) == 4 && offsetof(block, qh) == 16 && offsetof(block, qs) == 48);
    static constexpr int  MOST = 31, OFFSET = 0;
    static constexpr bool SIGNED = false, SIGNED_SCALES = false, HAS_MIN = true;
    struct kept {
        bytes high[4];
    };

    static INLINE void scales(const char * w, size_t step, block_scales<8> & s) { six_bit_scales(w, step, s); }
    static INLINE kept keep(const char * w, size_t step) {
        kept k;
        interleave(w + offsetof(block, qh), step, k.high[0], k.high[1]);
        interleave(w + offsetof(block, qh) + 16, step, k.high[2], k.high[3]);
        return k;
    }
    static INLINE void unpack(const char * w, size_t step, int chunk, const kept & k, bytes q[8]) {
        const char * p = w + offsetof(block, qs) + 32 * chunk;
        nibbles(p, step, q[0], q[1], q[4], q[5]);
        nibbles(p + 16, step, q[2], q[3], q[6], q[7]);
        const bytes sixteen = splat(16);
        for (int i = 0; i < 4; i++) {
            const bytes two = right(k.high[i], 2 * chunk);
            q[i]            = either(q[i], both(left(two, 4), sixteen));
            q[4 + i]        = either(q[4 + i], both(left(two, 3), sixteen));
        }
    }
};

struct q6_k : half_sub_blocks {
    using block = block_q6_K;
    static_assert(sizeof(block) == 210 && offsetof(block, ql) == 0 && offsetof(block, qh) == 128 && offsetof(block, scales) == 192 && offsetof(block, d) == 208);
    static constexpr int  MOST = 63, OFFSET = 32;
    static constexpr bool SIGNED = false, SIGNED_SCALES = true, HAS_MIN = false;
    using kept = nothing_kept;

    static INLINE void scales(const char * w, size_t step, block_scales<16> & s) {
        four_dwords([&](int r) { return read16(w + r * step + offsetof(block, scales)); }, s.scales);
        s.d = halves(w + offsetof(block, d), step);
    }
    static INLINE kept keep(const char *, size_t) { return {}; }
    static INLINE void unpack(const char * w, size_t step, int chunk, const kept &, bytes q[8]) {
        const char * l = w + offsetof(block, ql) + 64 * (chunk >> 1) + 16 * (chunk & 1);
        const char * h = w + offsetof(block, qh) + 32 * (chunk >> 1) + 16 * (chunk & 1);
        const bytes  two = splat(0x30);
        bytes        a, b;
        interleave(h, step, a, b);
        nibbles(l, step, q[0], q[1], q[4], q[5]);
        nibbles(l + 32, step, q[2], q[3], q[6], q[7]);
        q[0] = either(q[0], both(left(a, 4), two));
        q[1] = either(q[1], both(left(b, 4), two));
        q[2] = either(q[2], both(left(a, 2), two));
        q[3] = either(q[3], both(left(b, 2), two));
        q[4] = either(q[4], both(a, two));
        q[5] = either(q[5], both(b, two));
        q[6] = either(q[6], both(right(a, 2), two));
        q[7] = either(q[7], both(right(b, 2), two));
    }
};

// two bits of each of four groups of 16 values: q[2 * group + half]
INLINE void pairs_of_bits(const char * p, size_t step, bytes q[8]) {
    const bytes three = splat(3);
    bytes       a, b;
    interleave(p, step, a, b);
    for (int group = 0; group < 4; group++) {
        q[2 * group]     = both(right(a, 2 * group), three);
        q[2 * group + 1] = both(right(b, 2 * group), three);
    }
}

struct q2_k : half_sub_blocks {
    using block = block_q2_K;
    static_assert(sizeof(block) == 84 && offsetof(block, scales) == 0 && offsetof(block, qs) == 16 && offsetof(block, data.data.d) == 80 && offsetof(block, data.data.dmin) == 82);
    static constexpr int  MOST = 3, OFFSET = 0;
    static constexpr bool SIGNED = false, SIGNED_SCALES = false, HAS_MIN = true;
    using kept = nothing_kept;

    static INLINE void scales(const char * w, size_t step, block_scales<16> & s) {
        const __m256i d = dwords(w + offsetof(block, data.data.d), step), low = _mm256_set1_epi8(0x0F);
        s.d    = low_halves(d);
        s.dmin = high_halves(d);
        __m256i v[4];
        four_dwords([&](int r) { return read16(w + r * step); }, v);
        for (int k = 0; k < 4; k++) {
            s.scales[k] = _mm256_and_si256(v[k], low);
            s.mins[k]   = _mm256_and_si256(_mm256_srli_epi16(v[k], 4), low);
        }
    }
    static INLINE kept keep(const char *, size_t) { return {}; }
    static INLINE void unpack(const char * w, size_t step, int chunk, const kept &, bytes q[8]) {
        pairs_of_bits(w + offsetof(block, qs) + 32 * (chunk >> 1) + 16 * (chunk & 1), step, q);
    }
};

struct q3_k : half_sub_blocks {
    using block = block_q3_K;
    static_assert(sizeof(block) == 110 && offsetof(block, hmask) == 0 && offsetof(block, qs) == 32 && offsetof(block, scales) == 96 && offsetof(block, d) == 108);
    static constexpr int  MOST = 7, OFFSET = 4;
    static constexpr bool SIGNED = false, SIGNED_SCALES = true, HAS_MIN = false;
    struct kept {
        bytes high[4];
    };

    static INLINE void scales(const char * w, size_t step, block_scales<16> & s) {
        __m256i v[4];
        // from two bytes before the scales on: behind the block may be the end of the file
        four_dwords([&](int r) { return _mm_srli_si128(read16(w + r * step + offsetof(block, scales) - 2), 2); }, v);
        s.d = low_halves(v[3]);
        const __m256i low = _mm256_set1_epi8(0x0F), top = _mm256_set1_epi8(0x30), half = _mm256_set1_epi8(32);
        const auto    six = [&](__m256i nibble, __m256i bits) {
            return _mm256_sub_epi8(_mm256_or_si256(_mm256_and_si256(nibble, low), _mm256_and_si256(bits, top)), half);
        };
        s.scales[0] = six(v[0], _mm256_slli_epi16(v[2], 4));
        s.scales[1] = six(v[1], _mm256_slli_epi16(v[2], 2));
        s.scales[2] = six(_mm256_srli_epi16(v[0], 4), v[2]);
        s.scales[3] = six(_mm256_srli_epi16(v[1], 4), _mm256_srli_epi16(v[2], 2));
    }
    static INLINE kept keep(const char * w, size_t step) {
        kept k;
        interleave(w, step, k.high[0], k.high[1]);
        interleave(w + 16, step, k.high[2], k.high[3]);
        return k;
    }
    static INLINE void unpack(const char * w, size_t step, int chunk, const kept & k, bytes q[8]) {
        pairs_of_bits(w + offsetof(block, qs) + 32 * (chunk >> 1) + 16 * (chunk & 1), step, q);
        const bytes four = splat(4);
        for (int i = 0; i < 2; i++) { // bit 4 * (chunk >> 1) + group of the mask is the third bit
            const bytes bits = right(k.high[2 * (chunk & 1) + i], 4 * (chunk >> 1));
            q[i]             = either(q[i], both(left(bits, 2), four));
            q[2 + i]         = either(q[2 + i], both(left(bits, 1), four));
            q[4 + i]         = either(q[4 + i], both(bits, four));
            q[6 + i]         = either(q[6 + i], both(right(bits, 1), four));
        }
    }
};

// the values that the nibbles of IQ4_NL and IQ4_XS stand for (kvalues_iq4nl)
INLINE bytes nonlinear(bytes nibble) {
    alignas(16) static const int8_t values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
    return EACH(shuffle_epi8)(repeated16(values), nibble);
}

struct iq4_xs : whole_sub_blocks {
    using block = block_iq4_xs;
    static_assert(sizeof(block) == 136 && offsetof(block, scales_h) == 2 && offsetof(block, scales_l) == 4 && offsetof(block, qs) == 8);
    static constexpr int  MOST = 127, OFFSET = SIGNED_OFFSET;
    static constexpr bool SIGNED = true, SIGNED_SCALES = true, HAS_MIN = false;
    using kept = nothing_kept;

    static INLINE void scales(const char * w, size_t step, block_scales<8> & s) {
        __m256i v[4];
        four_dwords([&](int r) { return read16(w + r * step); }, v);
        s.d = low_halves(v[0]);
        // scales_l: nibbles of sub-blocks 0 1 | 2 3 | 4 5 | 6 7; scales_h: two bits of each, from the lowest on
        const __m256i low = _mm256_and_si256(v[1], _mm256_set1_epi8(0x0F));
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(v[1], 4), _mm256_set1_epi8(0x0F));
        const __m256i high = _mm256_srli_epi32(v[0], 16);
        const auto    byte = [&](__m256i from, int shift) { return _mm256_and_si256(_mm256_srl_epi32(from, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(0xFF)); };
        const auto    bits = [&](int i) { return _mm256_and_si256(_mm256_srl_epi32(high, _mm_cvtsi32_si128(2 * i)), _mm256_set1_epi32(3)); };
        for (int k = 0; k < 2; k++) {
            __m256i all = _mm256_setzero_si256();
            for (int i = 0; i < 4; i++) {
                const __m256i four = byte(i & 1 ? odd : low, 8 * (2 * k + i / 2));
                const __m256i six  = _mm256_or_si256(four, _mm256_slli_epi32(bits(4 * k + i), 4));
                all                = _mm256_or_si256(all, _mm256_sll_epi32(six, _mm_cvtsi32_si128(8 * i)));
            }
            s.scales[k] = _mm256_sub_epi8(all, _mm256_set1_epi8(32));
        }
    }
    static INLINE kept keep(const char *, size_t) { return {}; }
    static INLINE void unpack(const char * w, size_t step, int chunk, const kept &, bytes q[8]) {
        const char * p = w + offsetof(block, qs) + 32 * chunk;
        nibbles(p, step, q[0], q[1], q[2], q[3]);
        nibbles(p + 16, step, q[4], q[5], q[6], q[7]);
        for (int i = 0; i < 8; i++) {
            q[i] = nonlinear(q[i]);
        }
    }
};

// ---------------------------------------------------------------- blocks of 32
// `unpack`: four vectors of eight values, in order

struct q4_0 {
    using block = block_q4_0;
    static_assert(sizeof(block) == 18 && offsetof(block, qs) == 2);
    static constexpr int  MOST = 15, OFFSET = 8;
    static constexpr bool SIGNED = false, HAS_MIN = false;
    static INLINE __m256 scale(const char * w, size_t step) { return halves(w, step); }
    static INLINE __m256 min(const char *, size_t) { return _mm256_setzero_ps(); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) { nibbles(w + offsetof(block, qs), step, q[0], q[1], q[2], q[3]); }
};

struct q4_1 {
    using block = block_q4_1;
    static_assert(sizeof(block) == 20 && offsetof(block, data.data.m) == 2 && offsetof(block, qs) == 4);
    static constexpr int  MOST = 15, OFFSET = 0;
    static constexpr bool SIGNED = false, HAS_MIN = true;
    static INLINE __m256 scale(const char * w, size_t step) { return halves(w, step); }
    static INLINE __m256 min(const char * w, size_t step) { return halves(w + offsetof(block, data.data.m), step); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) { nibbles(w + offsetof(block, qs), step, q[0], q[1], q[2], q[3]); }
};

// the fifth bits: bit i of byte g of a row belongs to its value 8g + i
INLINE void add_fifth_bits(const char * p, size_t step, bytes q[4]) {
#ifdef WIDE
    const bytes rows = beside_rows(dwords(p, step), 0);
#else
    const bytes rows = _mm256_setr_epi32(read<int>(p), read<int>(p + step), 0, 0, read<int>(p + 2 * step), read<int>(p + 3 * step), 0, 0);
#endif
    alignas(16) static const uint8_t first[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4 };
    alignas(16) static const uint8_t bit[16]   = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const bytes                      one       = repeated16(bit);
    bytes                            spread    = repeated16(first);
    for (int g = 0; g < 4; g++) {
        q[g]   = either(q[g], where_set(EACH(shuffle_epi8)(rows, spread), one, 16));
        spread = EACH(add_epi8)(spread, splat(1));
    }
}

struct q5_0 {
    using block = block_q5_0;
    static_assert(sizeof(block) == 22 && offsetof(block, qh) == 2 && offsetof(block, qs) == 6);
    static constexpr int  MOST = 31, OFFSET = 16;
    static constexpr bool SIGNED = false, HAS_MIN = false;
    static INLINE __m256 scale(const char * w, size_t step) { return halves(w, step); }
    static INLINE __m256 min(const char *, size_t) { return _mm256_setzero_ps(); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) {
        nibbles(w + offsetof(block, qs), step, q[0], q[1], q[2], q[3]);
        add_fifth_bits(w + offsetof(block, qh), step, q);
    }
};

struct q5_1 {
    using block = block_q5_1;
    static_assert(sizeof(block) == 24 && offsetof(block, data.data.m) == 2 && offsetof(block, qh) == 4 && offsetof(block, qs) == 8);
    static constexpr int  MOST = 31, OFFSET = 0;
    static constexpr bool SIGNED = false, HAS_MIN = true;
    static INLINE __m256 scale(const char * w, size_t step) { return halves(w, step); }
    static INLINE __m256 min(const char * w, size_t step) { return halves(w + offsetof(block, data.data.m), step); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) {
        nibbles(w + offsetof(block, qs), step, q[0], q[1], q[2], q[3]);
        add_fifth_bits(w + offsetof(block, qh), step, q);
    }
};

struct q8_0 {
    using block = block_q8_0;
    static_assert(sizeof(block) == 34 && offsetof(block, qs) == 2);
    static constexpr int  MOST = 127, OFFSET = SIGNED_OFFSET;
    static constexpr bool SIGNED = true, HAS_MIN = false;
    static INLINE __m256 scale(const char * w, size_t step) { return halves(w, step); }
    static INLINE __m256 min(const char *, size_t) { return _mm256_setzero_ps(); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) {
        interleave(w + offsetof(block, qs), step, q[0], q[1]);
        interleave(w + offsetof(block, qs) + 16, step, q[2], q[3]);
    }
};

struct iq4_nl {
    using block = block_iq4_nl;
    static_assert(sizeof(block) == 18 && offsetof(block, qs) == 2);
    static constexpr int  MOST = 127, OFFSET = SIGNED_OFFSET;
    static constexpr bool SIGNED = true, HAS_MIN = false;
    static INLINE __m256 scale(const char * w, size_t step) { return halves(w, step); }
    static INLINE __m256 min(const char *, size_t) { return _mm256_setzero_ps(); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) {
        nibbles(w + offsetof(block, qs), step, q[0], q[1], q[2], q[3]);
        for (int i = 0; i < 4; i++) {
            q[i] = nonlinear(q[i]);
        }
    }
};

struct mxfp4 {
    using block = block_mxfp4;
    static_assert(sizeof(block) == 17 && offsetof(block, qs) == 1);
    static constexpr int  MOST = 24, OFFSET = 12; // values of kvalues_mxfp4 from -12 to 12
    static constexpr bool SIGNED = false, HAS_MIN = false;
    static INLINE __m256 scale(const char * w, size_t step) { // powers of two (ggml_e8m0_to_fp32_half)
        const auto at = [&](int r) { return ggml_e8m0_to_fp32_half(read<uint8_t>(w + r * step)); };
        return _mm256_setr_ps(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    }
    static INLINE __m256 min(const char *, size_t) { return _mm256_setzero_ps(); }
    static INLINE void   unpack(const char * w, size_t step, bytes q[4]) {
        alignas(16) static const uint8_t values[16] = { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 };
        nibbles(w + offsetof(block, qs), step, q[0], q[1], q[2], q[3]);
        for (int i = 0; i < 4; i++) {
            q[i] = EACH(shuffle_epi8)(repeated16(values), q[i]);
        }
    }
};

} // namespace row_kernels
