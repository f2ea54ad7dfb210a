// Products of F16, BF16 and F32 matrices: weights, experts, and the keys and values of attention without flash attention.
//
// An element has one accumulator of sixteen lanes, summed by `sum_of`; what is left of a row behind the last sixteen
// values is added one by one. So it has the same bits whatever is computed at the same time.
//
// SPDX-License-Identifier: MIT

#pragma once

#include "products.h"

namespace row_kernels {

struct bf16 {
    uint16_t bits;
};

INLINE float value(ggml_half h) { return _cvtsh_ss(h); }
INLINE float value(bf16 b) {
    const uint32_t bits = (uint32_t) b.bits << 16;
    return read<float>(&bits);
}
INLINE float value(float f) { return f; }

INLINE __m256 eight_at(const ggml_half * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
INLINE __m256 eight_at(const bf16 * p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16));
}
INLINE __m256 eight_at(const float * p) { return _mm256_loadu_ps(p); }

// sixteen floats, and how many rows and columns of sums of them the registers hold
#ifdef WIDE
using lanes = __m512;
constexpr int PANEL = 4, COLUMNS = 6;
INLINE lanes no_lanes() { return _mm512_setzero_ps(); }
INLINE lanes lanes_at(const ggml_half * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
INLINE lanes lanes_at(const bf16 * p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16));
}
INLINE lanes lanes_at(const float * p) { return _mm512_loadu_ps(p); }
INLINE lanes all_lanes(float v) { return _mm512_set1_ps(v); }
INLINE lanes fused(lanes x, lanes y, lanes z) { return _mm512_fmadd_ps(x, y, z); }
INLINE void  put(float * p, lanes v) { _mm512_storeu_ps(p, v); }
#else
struct lanes {
    __m256 low, high;
};
constexpr int PANEL = 2, COLUMNS = 3;
INLINE lanes no_lanes() { return { _mm256_setzero_ps(), _mm256_setzero_ps() }; }
template <typename T> INLINE lanes lanes_at(const T * p) { return { eight_at(p), eight_at(p + 8) }; }
INLINE lanes all_lanes(float v) { return { _mm256_set1_ps(v), _mm256_set1_ps(v) }; }
INLINE lanes fused(lanes x, lanes y, lanes z) { return { _mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high) }; }
INLINE void  put(float * p, lanes v) { _mm256_storeu_ps(p, v.low), _mm256_storeu_ps(p + 8, v.high); }
INLINE float sum_of(lanes v) { return sum_of(v.low, v.high); }
#endif

// R rows from a on times C rows x[c]: y[c][at + r]
template <typename T, int R, int C>
INLINE void float_tile(const char * a, size_t step, int k, const float * const * x, float * const * y, int64_t at) {
    const int whole = k & ~15;
    lanes     acc[R][C];
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) {
            acc[r][c] = no_lanes();
        }
    }
    for (int i = 0; i < whole; i += 16) {
#ifdef WIDE // registers for all rows, and a column at a time
        lanes v[R];
        for (int r = 0; r < R; r++) {
            v[r] = lanes_at((const T *) (a + r * step) + i);
        }
        for (int c = 0; c < C; c++) {
            const lanes u = lanes_at(x[c] + i);
            for (int r = 0; r < R; r++) {
                acc[r][c] = fused(v[r], u, acc[r][c]);
            }
        }
#else
        for (int r = 0; r < R; r++) {
            const lanes v = lanes_at((const T *) (a + r * step) + i);
            for (int c = 0; c < C; c++) {
                acc[r][c] = fused(v, lanes_at(x[c] + i), acc[r][c]);
            }
        }
#endif
    }
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) {
            float sum = sum_of(acc[r][c]);
            for (int i = whole; i < k; i++) {
                sum = __builtin_fmaf(value(((const T *) (a + r * step))[i]), x[c][i], sum);
            }
            y[c][at + r] = sum;
        }
    }
}

template <typename T, int R>
INLINE void float_rows(int count, const char * a, size_t step, int k, const float * const * x, float * const * y, int64_t at) {
    switch (count) {
        case 1: return float_tile<T, R, 1>(a, step, k, x, y, at);
        case 2: return float_tile<T, R, 2>(a, step, k, x, y, at);
#ifdef WIDE
        case 3: return float_tile<T, R, 3>(a, step, k, x, y, at);
        case 4: return float_tile<T, R, 4>(a, step, k, x, y, at);
        case 5: return float_tile<T, R, 5>(a, step, k, x, y, at);
#endif
        default: return float_tile<T, R, COLUMNS>(a, step, k, x, y, at);
    }
}

// the rows [from, to) of a matrix times up to COLUMNS rows of x
template <typename T>
void float_times(int count, const char * a, size_t step, int k, const float * const * x, float * const * y, int64_t from, int64_t to) {
    int64_t at = from;
    for (; at + PANEL <= to; at += PANEL) {
        float_rows<T, PANEL>(count, a + at * step, step, k, x, y, at);
    }
    for (; at < to; at++) {
        float_rows<T, 1>(count, a + at * step, step, k, x, y, at);
    }
}

// Bytes of a matrix that all columns take in turn, so that it comes from the second-level cache after the first.
constexpr int64_t HELD_BYTES = 128 * 1024;

INLINE int64_t rows_held(const ggml_tensor * w) {
    const int64_t rows = HELD_BYTES / (int64_t) (w->ne[0] * ggml_type_size(w->type) + 1) / PANEL * PANEL;
    return rows < PANEL ? PANEL : rows;
}

// the rows [from, to) of a matrix times `count` rows
template <typename T, typename F>
void float_columns(const ggml_tensor * w, const char * a, int64_t count, int64_t from, int64_t to, F && rows) {
    for (int64_t c = 0; c < count; c += COLUMNS) {
        const int     now = count - c < COLUMNS ? (int) (count - c) : COLUMNS;
        const float * x[COLUMNS];
        float *       y[COLUMNS];
        for (int i = 0; i < now; i++) {
            const row r = rows(c + i);
            x[i]        = r.x;
            y[i]        = r.y;
        }
        float_times<T>(now, a, w->nb[1], (int) w->ne[0], x, y, from, to);
    }
}

template <typename T> void float_product(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * w = op->src[0], * x = op->src[1];
    // the heads that share a matrix: their rows are taken together
    const int64_t n = x->ne[1], shared2 = x->ne[2] / w->ne[2], shared3 = x->ne[3] / w->ne[3], count = n * shared2 * shared3;
    const int64_t held = rows_held(w), parts = (w->ne[1] + held - 1) / held;
    // columns too are divided among the threads where a matrix has few rows
    const int64_t matrices = w->ne[2] * w->ne[3], spans = parts * matrices >= params->nth * 4 ? 1 : (count + 4 * COLUMNS - 1) / (4 * COLUMNS);
    meet(params);
    share(params, parts * matrices * spans, 1, [&](int64_t first, int64_t end) {
        for (int64_t t = first; t < end; t++) {
            const int64_t part = t % parts, span = t / parts % spans, m = t / parts / spans, i2 = m % w->ne[2], i3 = m / w->ne[2];
            const int64_t begin = span * count / spans, stop = (span + 1) * count / spans;
            const char *  a = (const char *) w->data + i2 * w->nb[2] + i3 * w->nb[3];
            const int64_t to = (part + 1) * held < w->ne[1] ? (part + 1) * held : w->ne[1];
            float_columns<T>(w, a, stop - begin, part * held, to, [&](int64_t i) {
                const int64_t c = begin + i, r = c % n, h2 = i2 * shared2 + c / n % shared2, h3 = i3 * shared3 + c / n / shared2;
                return row{ (const float *) ((const char *) x->data + r * x->nb[1] + h2 * x->nb[2] + h3 * x->nb[3]),
                            (float *) ((char *) op->data + r * op->nb[1] + h2 * op->nb[2] + h3 * op->nb[3]) };
            });
        }
    });
}

template <typename T> void float_expert_product(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * w = op->src[0], * x = op->src[1], * ids = op->src[2];
    const int64_t used = ids->ne[0], held = rows_held(w), parts = (w->ne[1] + held - 1) / held;
    by_expert     sorted(aligned(params->wdata), op);
    if (params->ith == 0) {
        sorted.sort(op);
    }
    meet(params);
    share(params, parts * w->ne[2], 1, [&](int64_t first, int64_t end) {
        for (int64_t t = first; t < end; t++) {
            const int64_t   part = t % parts, e = t / parts, to = (part + 1) * held < w->ne[1] ? (part + 1) * held : w->ne[1];
            const int32_t * order = sorted.order + sorted.first[e];
            float_columns<T>(w, (const char *) w->data + e * w->nb[2], sorted.first[e + 1] - sorted.first[e], part * held, to, [&](int64_t i) {
                const int64_t token = order[i] / used, place = order[i] % used;
                return row{ (const float *) ((const char *) x->data + place % x->ne[1] * x->nb[1] + token * x->nb[2]),
                            (float *) ((char *) op->data + place * op->nb[1] + token * op->nb[2]) };
            });
        }
    });
}

INLINE bool is_float(ggml_type type) { return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_F32; }

// `call` with a pointer of the type's values
template <typename F> INLINE void with_float(ggml_type type, F && call) {
    switch (type) {
        case GGML_TYPE_F16: return call((const ggml_half *) nullptr);
        case GGML_TYPE_BF16: return call((const bf16 *) nullptr);
        default: return call((const float *) nullptr);
    }
}

INLINE void multiply_floats(const ggml_compute_params * params, ggml_tensor * op) {
    with_float(op->src[0]->type, [&](auto * p) { float_product<std::remove_const_t<std::remove_pointer_t<decltype(p)>>>(params, op); });
}

INLINE void multiply_float_experts(const ggml_compute_params * params, ggml_tensor * op) {
    with_float(op->src[0]->type, [&](auto * p) { float_expert_product<std::remove_const_t<std::remove_pointer_t<decltype(p)>>>(params, op); });
}

} // namespace row_kernels
