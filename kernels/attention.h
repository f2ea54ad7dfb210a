// Flash attention: the heads that share keys and values are computed together.
//
// All scores of a few columns (one query of one head each) are held. Whatever else lies in the cache, a column's sums
// have the same bits as long as its own cells stand in the same order: cells that the mask takes out add zeros to the
// sum over values, and the sum of the weights is one of integers, which has no order.
//
// SPDX-License-Identifier: MIT

#pragma once

#include "floats.h"

namespace row_kernels {

constexpr int HEADS = 6;         // columns at once: their sums over values are held in registers
constexpr int CELLS = 16;        // cells are masked, and left out, in blocks of these
constexpr int STRETCH = 4 * CELLS; // cells that all columns take in turn, so that they come from the first-level cache

// e^x for x <= 0, the same in each form: Taylor's series to the seventh power within half a binary order
INLINE __m256 exp_of(__m256 x) {
    x              = _mm256_max_ps(_mm256_set1_ps(-87.0f), x); // smallest normal: e^-87.3; x last, or NaN would be lost
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256       r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145751953125f), x); // ln 2 in two parts
    r              = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860682e-6f), r);
    __m256 p       = _mm256_set1_ps(1.0f / 5040);
    for (float c : { 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f }) {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c));
    }
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}

// A column: a query of a head, its scores and its result.
struct attention_column {
    const float *     q;
    float *           y;
    const ggml_half * mask; // of all cells, or null
    const float *     sink; // of its head, or null
    float             slope; // of the mask (ALiBi)
    float *           scores;
};

INLINE bool all_masked(const ggml_half * mask) {
    const __m256i v = _mm256_loadu_si256((const __m256i *) mask);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi16(v, _mm256_set1_epi16((short) 0xFC00))) == -1; // minus infinity
}

// scores of a column to weights below 1; their sum's inverse is returned, 0 where there is nothing to see
inline float weights_of(const attention_column & c, const uint8_t * seen, int64_t cells, float scale, float cap) {
    __m256 top = _mm256_set1_ps(-INFINITY);
    for (int64_t i = 0; i < cells; i += 8) {
        if (!seen[i / CELLS]) {
            i += CELLS - 8;
            continue;
        }
        __m256 s = _mm256_mul_ps(_mm256_loadu_ps(c.scores + i), _mm256_set1_ps(scale));
        if (cap != 0.0f) {
            alignas(32) float eight[8];
            _mm256_store_ps(eight, s);
            for (float & each : eight) {
                each = cap * tanhf(each);
            }
            s = _mm256_load_ps(eight);
        }
        if (c.mask) {
            s = _mm256_fmadd_ps(_mm256_set1_ps(c.slope), eight_at(c.mask + i), s);
        }
        _mm256_storeu_ps(c.scores + i, s);
        top = _mm256_max_ps(top, s);
    }
    const float most = c.sink && *c.sink > most_of(top) ? *c.sink : most_of(top);
    if (most == -INFINITY) {
        for (int64_t i = 0; i < cells; i++) {
            c.scores[i] = 0.0f;
        }
        return 0.0f;
    }
    constexpr float UNIT = 1 << 30; // a weight of 1
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int64_t i = 0; i < cells; i += 8) {
        if (!seen[i / CELLS]) {
            i += CELLS - 8;
            continue;
        }
        const __m256 s = _mm256_loadu_ps(c.scores + i);
        const __m256 e = _mm256_and_ps(exp_of(_mm256_sub_ps(s, _mm256_set1_ps(most))), _mm256_cmp_ps(s, _mm256_set1_ps(-INFINITY), _CMP_NEQ_UQ));
        _mm256_storeu_ps(c.scores + i, e);
        const __m256i units = _mm256_cvtps_epi32(_mm256_mul_ps(e, _mm256_set1_ps(UNIT)));
        low                 = _mm256_add_epi64(low, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(units)));
        high                = _mm256_add_epi64(high, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(units, 1)));
    }
    alignas(32) int64_t sums[4];
    _mm256_store_si256((__m256i *) sums, _mm256_add_epi64(low, high));
    double sum = (double) (sums[0] + sums[1] + sums[2] + sums[3]) / UNIT;
    if (c.sink) {
        sum += expf(*c.sink - most);
    }
    return (float) (1.0 / sum);
}

// adds D times sixteen values of the cells [from, to), weighted, to C columns' results
template <typename T, int D, int C>
INLINE void weigh(const char * v, size_t step, const attention_column * c, int64_t from, int64_t to, int at) {
    lanes acc[D][C];
    for (int i = 0; i < C; i++) {
        for (int d = 0; d < D; d++) {
            acc[d][i] = lanes_at(c[i].y + at + 16 * d);
        }
    }
    for (int64_t cell = from; cell < to; cell++, v += step) {
        for (int d = 0; d < D; d++) {
            const lanes values = lanes_at((const T *) v + at + 16 * d);
            for (int i = 0; i < C; i++) {
                acc[d][i] = fused(values, all_lanes(c[i].scores[cell]), acc[d][i]);
            }
        }
    }
    for (int i = 0; i < C; i++) {
        for (int d = 0; d < D; d++) {
            put(c[i].y + at + 16 * d, acc[d][i]);
        }
    }
}

#ifdef WIDE
constexpr int SLICES = 4; // of sixteen values at once
#else
constexpr int SLICES = 1;
#endif

template <typename T, int C>
void weigh_all(const char * v, size_t step, const attention_column * c, int64_t from, int64_t to, int values) {
    int at = 0;
    for (; at + 16 * SLICES <= values; at += 16 * SLICES) {
        weigh<T, SLICES, C>(v, step, c, from, to, at);
    }
    for (; at < values; at += 16) {
        weigh<T, 1, C>(v, step, c, from, to, at);
    }
}

template <typename T>
void weigh_columns(int count, const char * v, size_t step, const attention_column * c, int64_t from, int64_t to, int values) {
    switch (count) {
        case 1: return weigh_all<T, 1>(v, step, c, from, to, values);
        case 2: return weigh_all<T, 2>(v, step, c, from, to, values);
        case 3: return weigh_all<T, 3>(v, step, c, from, to, values);
        case 4: return weigh_all<T, 4>(v, step, c, from, to, values);
        case 5: return weigh_all<T, 5>(v, step, c, from, to, values);
        default: return weigh_all<T, HEADS>(v, step, c, from, to, values);
    }
}

template <typename T>
void score_columns(int count, const char * k, size_t step, const attention_column * c, int64_t from, int64_t to, int width) {
    for (int first = 0; first < count; first += COLUMNS) {
        const int     now = count - first < COLUMNS ? count - first : COLUMNS;
        const float * x[COLUMNS];
        float *       y[COLUMNS];
        for (int i = 0; i < now; i++) {
            x[i] = c[first + i].q;
            y[i] = c[first + i].scores;
        }
        float_times<T>(now, k - from * step, step, width, x, y, from, to);
    }
}

// Keys or values of one head: cells of `width` values, `step` bytes apart; those of a quantised cache are unpacked
// into `room` piece by piece.
struct cached {
    const char * data;
    size_t       step;
    int          width;
    ggml_type    type;
    float *      room; // STRETCH * width floats

    // call(pointer to the cell `from`, step, from, to) for each stretch of cells that are seen
    template <typename F> void stretches(const uint8_t * seen, int64_t cells, F && call) const {
        for (int64_t from = 0; from < cells;) {
            if (!seen[from / CELLS]) {
                from += CELLS;
                continue;
            }
            int64_t to = from;
            while (to < cells && to - from < STRETCH && seen[to / CELLS]) {
                to += CELLS;
            }
            if (is_float(type)) {
                with_float(type, [&](auto * p) { call(p, data + from * step, step, from, to); });
            } else {
                const auto unpack = ggml_get_type_traits(type)->to_float;
                for (int64_t cell = from; cell < to; cell++) {
                    unpack(data + cell * step, room + (cell - from) * width, width);
                }
                call((const float *) nullptr, (const char *) room, width * sizeof(float), from, to);
            }
            from = to;
        }
    }
};

INLINE bool is_cache(const ggml_tensor * t) {
    return (is_float(t->type) || ggml_get_type_traits(t->type)->to_float) && t->ne[0] % 16 == 0 && t->ne[0] % ggml_blck_size(t->type) == 0 &&
           t->nb[0] == ggml_type_size(t->type) && t->ne[1] % CELLS == 0;
}

inline bool takes_attention(const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3];
    return q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && op->type == GGML_TYPE_F32 && is_cache(k) && is_cache(v) && k->ne[2] == v->ne[2] &&
           q->ne[2] % k->ne[2] == 0 && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] && k->ne[0] == q->ne[0] &&
           (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_half)));
}

// of one thread: scores of the columns, which blocks of cells are seen, unpacked cells
inline size_t attention_room(const ggml_tensor * op) {
    const ggml_tensor * k = op->src[1], * v = op->src[2];
    const int64_t       widest = k->ne[0] > v->ne[0] ? k->ne[0] : v->ne[0];
    return (HEADS * k->ne[1] * sizeof(float) + k->ne[1] / CELLS + STRETCH * widest * sizeof(float) + 127) / 64 * 64;
}

inline size_t attention_bytes(int threads, const ggml_tensor * op) { return 64 + threads * attention_room(op); }

// what ALiBi multiplies the mask of a head with
inline float slope_of(const ggml_tensor * op, int64_t head) {
    const float most = read<float>((const float *) op->op_params + 1);
    if (most <= 0.0f) {
        return 1.0f;
    }
    const int64_t half = 1ll << (int) floorf(log2f((float) op->src[0]->ne[2]));
    return head < half ? powf(powf(2.0f, -most / half), (float) (head + 1)) : powf(powf(2.0f, -most / 2.0f / half), (float) (2 * (head - half) + 1));
}

// the column of row r of query head h
inline attention_column column_of(const ggml_tensor * op, int64_t r, int64_t h, int64_t i3, float * scores) {
    const ggml_tensor * q = op->src[0], * mask = op->src[3], * sinks = op->src[4];
    attention_column    c{};
    c.q = (const float *) ((const char *) q->data + r * q->nb[1] + h * q->nb[2] + i3 * q->nb[3]);
    c.y = (float *) ((char *) op->data + h * op->nb[1] + r * op->nb[2] + i3 * op->nb[3]);
    if (mask) {
        c.mask = (const ggml_half *) ((const char *) mask->data + r * mask->nb[1] + h % mask->ne[2] * mask->nb[2] + i3 % mask->ne[3] * mask->nb[3]);
    }
    c.sink   = sinks ? (const float *) sinks->data + h : nullptr;
    c.slope  = slope_of(op, h);
    c.scores = scores;
    return c;
}

// `count` columns with the keys and values of their head
inline void attend_columns(const ggml_tensor * op, int count, const attention_column * c, const cached & k, const cached & v, uint8_t * seen) {
    const int64_t cells = op->src[1]->ne[1];
    for (int64_t block = 0; block < cells / CELLS; block++) {
        seen[block] = 0;
        for (int i = 0; i < count; i++) {
            seen[block] |= !c[i].mask || !all_masked(c[i].mask + block * CELLS);
        }
    }
    const float cap = read<float>((const float *) op->op_params + 2), scale = read<float>(op->op_params);
    k.stretches(seen, cells, [&](auto * type, const char * data, size_t step, int64_t from, int64_t to) {
        score_columns<std::remove_const_t<std::remove_pointer_t<decltype(type)>>>(count, data, step, c, from, to, k.width);
    });
    float factor[HEADS];
    for (int i = 0; i < count; i++) {
        factor[i] = weights_of(c[i], seen, cells, cap != 0.0f ? scale / cap : scale, cap);
        memset(c[i].y, 0, v.width * sizeof(float));
    }
    v.stretches(seen, cells, [&](auto * type, const char * data, size_t step, int64_t from, int64_t to) {
        weigh_columns<std::remove_const_t<std::remove_pointer_t<decltype(type)>>>(count, data, step, c, from, to, v.width);
    });
    for (int i = 0; i < count; i++) {
        for (int at = 0; at < v.width; at += 8) {
            _mm256_storeu_ps(c[i].y + at, _mm256_mul_ps(_mm256_loadu_ps(c[i].y + at), _mm256_set1_ps(factor[i])));
        }
    }
}

inline void attend(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * q = op->src[0], * k = op->src[1], * v = op->src[2];
    const int64_t n = q->ne[1], group = q->ne[2] / k->ne[2], columns = n * group, matrices = k->ne[2] * k->ne[3], cells = k->ne[1];
    // fewer columns at once if there would not be work for every thread
    const int64_t each = (columns * matrices + params->nth - 1) / params->nth, most = each < HEADS ? each : HEADS;
    const int64_t parts = (columns + most - 1) / most;
    meet(params);
    char *    room   = aligned(params->wdata) + params->ith * attention_room(op);
    float *   scores = (float *) room, * unpacked = scores + HEADS * cells;
    const int64_t widest = k->ne[0] > v->ne[0] ? k->ne[0] : v->ne[0];
    uint8_t * seen = (uint8_t *) (unpacked + STRETCH * widest);
    share(params, parts * matrices, 1, [&](int64_t first, int64_t end) {
        for (int64_t t = first; t < end; t++) {
            const int64_t m = t / parts, i2 = m % k->ne[2], i3 = m / k->ne[2];
            const int64_t begin = t % parts * columns / parts, stop = (t % parts + 1) * columns / parts;
            attention_column c[HEADS];
            for (int64_t i = begin; i < stop; i++) { // the heads of a query together: they see the same cells
                c[i - begin] = column_of(op, i / group, i2 * group + i % group, i3, scores + (i - begin) * cells);
            }
            const auto at = [&](const ggml_tensor * t) {
                return cached{ (const char *) t->data + i2 * t->nb[2] + i3 * t->nb[3], t->nb[1], (int) t->ne[0], t->type, unpacked };
            };
            attend_columns(op, (int) (stop - begin), c, at(k), at(v), seen);
        }
    });
}

} // namespace row_kernels
