// AVX-VNNI and AVX-512 VNNI in plain loops, so that tests run those forms of the kernels on a processor with AVX2.
//
// Given to the compiler by -include, with -DROW_KERNELS_EMULATED=256 (AVX-VNNI) or 512 (AVX-512 VNNI). Each function
// follows the operation in Intel's manual of the instruction with its name; what an instruction leaves undefined is
// filled with a pattern.
//
// SPDX-License-Identifier: MIT

#pragma once

#include <immintrin.h> // before the macros below: the header looks at them

#include <cstdint>
#include <cstring>

#if defined(__AVXVNNI__) || defined(__AVX512F__)
#    error "compile for a processor with AVX2 and no more: real instructions would be mixed with these"
#endif

namespace emulated {

struct alignas(64) int512 {
    uint8_t bytes[64];
};
struct alignas(64) float512 {
    float lanes[16];
};

// the elements of a vector, and back
template <typename T, typename V> struct elements {
    static constexpr int COUNT = sizeof(V) / sizeof(T);
    T at[COUNT];

    elements() : at{} {}
    elements(const V & v) { memcpy(at, &v, sizeof(V)); }
    operator V() const {
        V v;
        memcpy(&v, at, sizeof(V));
        return v;
    }
};

// `call` for each element
template <typename T, typename F> inline int512 each(const int512 & a, F && call) {
    elements<T, int512> v(a);
    for (T & x : v.at) {
        x = (T) call(x);
    }
    return v;
}

// `call` for each element and its counterpart
template <typename T, typename F> inline int512 pairs(const int512 & a, const int512 & b, F && call) {
    elements<T, int512>       v(a);
    const elements<T, int512> u(b);
    for (int i = 0; i < v.COUNT; i++) {
        v.at[i] = (T) call(v.at[i], u.at[i]);
    }
    return v;
}

template <typename T> inline int512 all(T value) {
    elements<T, int512> v;
    for (T & x : v.at) {
        x = value;
    }
    return v;
}

inline int512 set1_epi8(char a) { return all<char>(a); }
inline int512 set1_epi64(long long a) { return all<long long>(a); }
inline int512 setzero_si512() { return all<char>(0); }
inline int512 setr_epi64(long long a, long long b, long long c, long long d, long long e, long long f, long long g, long long h) {
    elements<long long, int512> v;
    const long long             values[] = { a, b, c, d, e, f, g, h };
    memcpy(v.at, values, sizeof(values));
    return v;
}

inline int512 and_si512(const int512 & a, const int512 & b) { return pairs<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x & y; }); }
inline int512 or_si512(const int512 & a, const int512 & b) { return pairs<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x | y; }); }
inline int512 add_epi8(const int512 & a, const int512 & b) { return pairs<uint8_t>(a, b, [](uint8_t x, uint8_t y) { return x + y; }); }
inline int512 add_epi32(const int512 & a, const int512 & b) { return pairs<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x + y; }); }
inline int512 mullo_epi32(const int512 & a, const int512 & b) {
    return pairs<int32_t>(a, b, [](int32_t x, int32_t y) { return (int32_t) (uint32_t) ((int64_t) x * y); });
}

// counts past the last bit clear an element, or fill it with its sign
inline uint64_t count_of(__m128i count) { return (uint64_t) _mm_cvtsi128_si64(count); }
inline int512 srl_epi16(const int512 & a, __m128i count) {
    const uint64_t n = count_of(count);
    return each<uint16_t>(a, [=](uint16_t x) { return n > 15 ? 0 : x >> n; });
}
inline int512 sll_epi16(const int512 & a, __m128i count) {
    const uint64_t n = count_of(count);
    return each<uint16_t>(a, [=](uint16_t x) { return n > 15 ? 0 : x << n; });
}
inline int512 slli_epi32(const int512 & a, unsigned n) {
    return each<uint32_t>(a, [=](uint32_t x) { return n > 31 ? 0 : x << n; });
}
inline int512 srli_epi64(const int512 & a, unsigned n) {
    return each<uint64_t>(a, [=](uint64_t x) { return n > 63 ? 0 : x >> n; });
}
inline int512 srai_epi16(const int512 & a, unsigned n) {
    return each<int16_t>(a, [=](int16_t x) { return x >> (n > 15 ? 15 : n); });
}
inline int512 srai_epi32(const int512 & a, unsigned n) {
    return each<int32_t>(a, [=](int32_t x) { return x >> (n > 31 ? 31 : n); });
}

// within each 128 bits
inline int512 shuffle_epi8(const int512 & a, const int512 & order) {
    int512 v;
    for (int i = 0; i < 64; i++) {
        v.bytes[i] = order.bytes[i] & 0x80 ? 0 : a.bytes[(i & 0x30) + (order.bytes[i] & 15)];
    }
    return v;
}
inline int512 unpack_epi64(const int512 & a, const int512 & b, int half) {
    int512 v;
    for (int lane = 0; lane < 64; lane += 16) {
        memcpy(v.bytes + lane, a.bytes + lane + 8 * half, 8);
        memcpy(v.bytes + lane + 8, b.bytes + lane + 8 * half, 8);
    }
    return v;
}
inline int512 unpacklo_epi64(const int512 & a, const int512 & b) { return unpack_epi64(a, b, 0); }
inline int512 unpackhi_epi64(const int512 & a, const int512 & b) { return unpack_epi64(a, b, 1); }

// across them
inline int512 permutexvar_epi64(const int512 & order, const int512 & a) {
    const elements<uint64_t, int512> from(a);
    return each<uint64_t>(order, [&](uint64_t i) { return from.at[i & 7]; });
}
inline int512 inserti32x4(const int512 & a, __m128i b, int at) {
    int512 v = a;
    memcpy(v.bytes + 16 * (at & 3), &b, 16);
    return v;
}
inline int512 broadcast_i32x4(__m128i a) {
    int512 v;
    for (int lane = 0; lane < 4; lane++) {
        memcpy(v.bytes + 16 * lane, &a, 16);
    }
    return v;
}
inline __m256i cvtepi64_epi32(const int512 & a) {
    const elements<uint64_t, int512> from(a);
    uint32_t                         v[8];
    for (int i = 0; i < 8; i++) {
        v[i] = (uint32_t) from.at[i];
    }
    return _mm256_loadu_si256((const __m256i *) v);
}
inline int512 cvtepu16_epi32(__m256i a) {
    elements<uint32_t, int512> v;
    uint16_t                   from[16];
    memcpy(from, &a, sizeof(from));
    for (int i = 0; i < 16; i++) {
        v.at[i] = from[i];
    }
    return v;
}

// the upper bits are undefined
template <typename V> inline int512 widened(V a) {
    int512 v = all<char>((char) 0xA5);
    memcpy(v.bytes, &a, sizeof(V));
    return v;
}
inline int512 castsi128_si512(__m128i a) { return widened(a); }
inline int512 castsi256_si512(__m256i a) { return widened(a); }

inline uint64_t test_epi8_mask(const int512 & a, const int512 & b) {
    uint64_t k = 0;
    for (int i = 0; i < 64; i++) {
        k |= (uint64_t) ((a.bytes[i] & b.bytes[i]) != 0) << i;
    }
    return k;
}
inline int512 maskz_mov_epi8(uint64_t k, const int512 & a) {
    int512 v;
    for (int i = 0; i < 64; i++) {
        v.bytes[i] = k >> i & 1 ? a.bytes[i] : 0;
    }
    return v;
}

// sums of four products of unsigned and signed bytes, and of two of signed words; they wrap around
template <typename V> inline V dot_bytes(const V & sum, const V & a, const V & b) {
    elements<uint32_t, V>      v(sum);
    const elements<uint8_t, V> x(a);
    const elements<int8_t, V>  y(b);
    for (int i = 0; i < v.COUNT; i++) {
        for (int j = 4 * i; j < 4 * i + 4; j++) {
            v.at[i] += (uint32_t) ((int32_t) x.at[j] * (int32_t) y.at[j]);
        }
    }
    return v;
}
template <typename V> inline V dot_words(const V & sum, const V & a, const V & b) {
    elements<uint32_t, V>      v(sum);
    const elements<int16_t, V> x(a), y(b);
    for (int i = 0; i < v.COUNT; i++) {
        for (int j = 2 * i; j < 2 * i + 2; j++) {
            v.at[i] += (uint32_t) ((int32_t) x.at[j] * (int32_t) y.at[j]);
        }
    }
    return v;
}
inline int512 dpbusd_epi32(const int512 & sum, const int512 & a, const int512 & b) { return dot_bytes(sum, a, b); }
inline int512 dpwssd_epi32(const int512 & sum, const int512 & a, const int512 & b) { return dot_words(sum, a, b); }
inline __m256i dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return dot_bytes(sum, a, b); }
inline __m256i dpwssd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return dot_words(sum, a, b); }

// floats: a lane's result is the one of the instruction for 256 bits
inline float512 of_halves(__m256 low, __m256 high) {
    float512 v;
    _mm256_store_ps(v.lanes, low);
    _mm256_store_ps(v.lanes + 8, high);
    return v;
}
inline __m256 castps512_ps256(const float512 & a) { return _mm256_load_ps(a.lanes); }
inline __m256 extractf32x8_ps(const float512 & a, int at) { return _mm256_load_ps(a.lanes + 8 * (at & 1)); }
inline float512 castsi512_ps(const int512 & a) {
    float512 v;
    memcpy(&v, &a, sizeof(v));
    return v;
}
inline float512 setzero_ps() { return of_halves(_mm256_setzero_ps(), _mm256_setzero_ps()); }
inline float512 set1_ps(float a) { return of_halves(_mm256_set1_ps(a), _mm256_set1_ps(a)); }
inline float512 loadu_ps(const float * p) { return of_halves(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
inline void storeu_ps(float * p, const float512 & a) { memcpy(p, a.lanes, sizeof(a)); }
inline float512 cvtph_ps(__m256i a) { return of_halves(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))); }
inline float512 fmadd_ps(const float512 & a, const float512 & b, const float512 & c) {
    const auto half = [&](int at) { return _mm256_fmadd_ps(extractf32x8_ps(a, at), extractf32x8_ps(b, at), extractf32x8_ps(c, at)); };
    return of_halves(half(0), half(1));
}

} // namespace emulated

#if ROW_KERNELS_EMULATED == 512
#    define __AVX512F__ 1
#    define __AVX512BW__ 1
#    define __AVX512VL__ 1
#    define __AVX512DQ__ 1
#    define __AVX512VNNI__ 1
#    define __m512i emulated::int512
#    define __m512 emulated::float512
// intrinsics that are macros, or become functions of another type
#    undef _mm512_extractf32x8_ps
#    undef _mm512_inserti32x4
#    undef _mm512_setr_epi64
#    undef _mm512_slli_epi32
#    undef _mm512_srai_epi16
#    undef _mm512_srai_epi32
#    undef _mm512_srli_epi64
#    define _mm512_add_epi32 emulated::add_epi32
#    define _mm512_add_epi8 emulated::add_epi8
#    define _mm512_and_si512 emulated::and_si512
#    define _mm512_broadcast_i32x4 emulated::broadcast_i32x4
#    define _mm512_castps512_ps256 emulated::castps512_ps256
#    define _mm512_castsi128_si512 emulated::castsi128_si512
#    define _mm512_castsi256_si512 emulated::castsi256_si512
#    define _mm512_castsi512_ps emulated::castsi512_ps
#    define _mm512_cvtepi64_epi32 emulated::cvtepi64_epi32
#    define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#    define _mm512_cvtph_ps emulated::cvtph_ps
#    define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
#    define _mm512_dpwssd_epi32 emulated::dpwssd_epi32
#    define _mm512_extractf32x8_ps emulated::extractf32x8_ps
#    define _mm512_fmadd_ps emulated::fmadd_ps
#    define _mm512_inserti32x4 emulated::inserti32x4
#    define _mm512_loadu_ps emulated::loadu_ps
#    define _mm512_maskz_mov_epi8 emulated::maskz_mov_epi8
#    define _mm512_mullo_epi32 emulated::mullo_epi32
#    define _mm512_or_si512 emulated::or_si512
#    define _mm512_permutexvar_epi64 emulated::permutexvar_epi64
#    define _mm512_set1_epi64 emulated::set1_epi64
#    define _mm512_set1_epi8 emulated::set1_epi8
#    define _mm512_set1_ps emulated::set1_ps
#    define _mm512_setr_epi64 emulated::setr_epi64
#    define _mm512_setzero_ps emulated::setzero_ps
#    define _mm512_setzero_si512 emulated::setzero_si512
#    define _mm512_shuffle_epi8 emulated::shuffle_epi8
#    define _mm512_sll_epi16 emulated::sll_epi16
#    define _mm512_slli_epi32 emulated::slli_epi32
#    define _mm512_srai_epi16 emulated::srai_epi16
#    define _mm512_srai_epi32 emulated::srai_epi32
#    define _mm512_srl_epi16 emulated::srl_epi16
#    define _mm512_srli_epi64 emulated::srli_epi64
#    define _mm512_storeu_ps emulated::storeu_ps
#    define _mm512_test_epi8_mask emulated::test_epi8_mask
#    define _mm512_unpackhi_epi64 emulated::unpackhi_epi64
#    define _mm512_unpacklo_epi64 emulated::unpacklo_epi64
#elif ROW_KERNELS_EMULATED == 256
#    define __AVXVNNI__ 1
#    undef _mm256_dpbusd_avx_epi32
#    undef _mm256_dpwssd_avx_epi32
#    define _mm256_dpbusd_avx_epi32 emulated::dpbusd_avx_epi32
#    define _mm256_dpwssd_avx_epi32 emulated::dpwssd_avx_epi32
#else
#    error "ROW_KERNELS_EMULATED: 256 or 512"
#endif
