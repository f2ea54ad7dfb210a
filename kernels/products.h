// Products of quantised weights with rows of activations, and how they are shared among threads.
//
// A block of eight weight rows is unpacked once for up to eight rows of activations. The sum of an element runs over the
// blocks in order, whatever the number of activation rows, their place among them and the thread.
//
// SPDX-License-Identifier: MIT

#pragma once

#include "activations.h"
#include "formats.h"

#include "ggml-cpu-impl.h"

namespace row_kernels {

constexpr int ROWS = 8; // of weights, in a group
constexpr int TILE = 8; // rows of activations at once: more sums than these would leave the registers

// ---------------------------------------------------------------- one group of eight weight rows

// A weight's bytes of each row spread over the words that a scale is multiplied with.
struct scale_patterns {
    alignas(16) uint8_t of[4][16];
};

constexpr scale_patterns spread_scales(bool is_signed) {
    scale_patterns p{};
    for (int i = 0; i < 4; i++) {
        for (int at = 0; at < 16; at++) {
            const int from = 4 * (at / 8) + i;
#ifdef DOTS
            const int where = at % 4, used = is_signed ? 1 : 0;
#else
            const int where = at % 2, used = is_signed ? 1 : 0;
#endif
            p.of[i][at] = (uint8_t) (where == used ? from : 0x80);
        }
    }
    return p;
}

// words of two neighbouring sub-blocks in each row's dword
template <bool SIGNED> INLINE __m256i two_words(__m256i bytes_of_four, int pair) {
    const __m256i dword = pair ? _mm256_srli_epi32(bytes_of_four, 16) : bytes_of_four;
    const __m256i order = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    if (!SIGNED) {
        return _mm256_shuffle_epi8(dword, order);
    }
    return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_shuffle_epi8(dword, order), 8), 8);
}

// A format with blocks of 256: N rows of activations times one block of eight weight rows.
template <typename W> struct of_256 {
    using format = W;
    using act    = activations<256, W::SUB>;
    static constexpr int SPAN = 256;

    template <int N> static INLINE void multiply(const char * w, size_t step, const act * a, __m256 acc[N]) {
        static constexpr scale_patterns patterns = spread_scales(W::SIGNED_SCALES);
        block_scales<W::SUBS> s;
        W::scales(w, step, s);
        bytes sum[N][PARTS];
        for (int part = 0; part < PARTS; part++) {
            const char * rows = w + 4 * part * step;
            bytes        beside[W::SUBS / 4];
            for (int k = 0; k < W::SUBS / 4; k++) {
                beside[k] = beside_rows(s.scales[k], part);
            }
            for (int j = 0; j < N; j++) {
                sum[j][part] = none();
            }
            const typename W::kept kept = W::keep(rows, step);
#pragma GCC unroll 4
            for (int chunk = 0; chunk < W::CHUNKS; chunk++) {
                bytes q[8], scale[W::GROUPS];
                W::unpack(rows, step, chunk, kept, q);
                for (int g = 0; g < W::GROUPS; g++) {
                    const int sub = W::sub(chunk, g);
                    scale[g]      = EACH(shuffle_epi8)(beside[sub / 4], repeated16(patterns.of[sub % 4]));
                    if (W::SIGNED_SCALES) {
                        scale[g] = EACH(srai_epi16)(scale[g], 8);
                    }
                }
#pragma GCC unroll 1
                for (int j = 0; j < N; j++) {
                    sum[j][part] = add_chunk(sum[j][part], q, scale, a[j].qs, chunk);
                }
            }
        }
        finish<N>(s, sum, a, acc);
    }

    static INLINE bytes add_chunk(bytes sum, const bytes q[8], const bytes * scale, const int8_t * a, int chunk) {
        constexpr int EACH_GROUP = 8 / W::GROUPS, HELD = words_hold(W::MOST), AT_ONCE = HELD < EACH_GROUP ? HELD : EACH_GROUP;
        for (int g = 0; g < W::GROUPS; g++) {
            const int8_t * at = a + W::place(chunk, g);
            if (W::SIGNED) {
                sum = add_signed_scaled(sum, q + EACH_GROUP * g, at, EACH_GROUP, scale[g]);
                continue;
            }
            for (int i = 0; i < EACH_GROUP; i += AT_ONCE > 0 ? AT_ONCE : 1) {
                sum = add_scaled(sum, products(q + EACH_GROUP * g + i, at + 8 * i, AT_ONCE > 0 ? AT_ONCE : 1), scale[g]);
            }
        }
        return sum;
    }

    // minima, offsets and the floating-point steps, with a row a lane
    template <int N> static INLINE void finish(const block_scales<W::SUBS> & s, const bytes sum[N][PARTS], const act * a, __m256 acc[N]) {
        __m256i words[W::SUBS / 2];
        for (int pair = 0; pair < W::SUBS / 2; pair++) {
            words[pair] = two_words<W::SIGNED_SCALES && !W::HAS_MIN>(W::HAS_MIN ? s.mins[pair / 2] : s.scales[pair / 2], pair % 2);
        }
#pragma GCC unroll 1
        for (int j = 0; j < N; j++) {
            __m256i total = by_row(sum[j]), low = _mm256_setzero_si256();
            if (W::HAS_MIN || W::OFFSET) {
                for (int pair = 0; pair < W::SUBS / 2; pair++) {
                    low = _mm256_add_epi32(low, _mm256_madd_epi16(words[pair], _mm256_set1_epi32(read<int>(a[j].sums + 2 * pair))));
                }
            }
            if (!W::HAS_MIN && W::OFFSET) {
                total = _mm256_sub_epi32(total, _mm256_mullo_epi32(low, _mm256_set1_epi32(W::OFFSET)));
            }
            const __m256 d = _mm256_set1_ps(a[j].d);
            acc[j]         = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), _mm256_mul_ps(s.d, d), acc[j]);
            if (W::HAS_MIN) {
                acc[j] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(low), _mm256_mul_ps(s.dmin, d), acc[j]);
            }
        }
    }
};

// A format with blocks of 32.
template <typename W> struct of_32 {
    using format = W;
    using act    = activations<32, 32>;
    static constexpr int SPAN = 32;

    template <int N> static INLINE void multiply(const char * w, size_t step, const act * a, __m256 acc[N]) {
        bytes q[PARTS][4];
        for (int part = 0; part < PARTS; part++) {
            W::unpack(w + 4 * part * step, step, q[part]);
        }
        const __m256 d = W::scale(w, step), m = W::min(w, step);
#pragma GCC unroll 1
        for (int j = 0; j < N; j++) {
            bytes sum[PARTS];
            for (int part = 0; part < PARTS; part++) {
                sum[part] = times(q[part], a[j].qs);
            }
            __m256i total = by_row(sum);
            if (W::OFFSET) {
                total = _mm256_sub_epi32(total, _mm256_set1_epi32(W::OFFSET * a[j].sums[0]));
            }
            acc[j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), _mm256_mul_ps(d, _mm256_set1_ps(a[j].d)), acc[j]);
            if (W::HAS_MIN) {
                acc[j] = _mm256_fmadd_ps(m, _mm256_set1_ps(a[j].d * (float) a[j].sums[0]), acc[j]);
            }
        }
    }

    static INLINE bytes times(const bytes q[4], const int8_t * a) {
        if (W::SIGNED) {
            bytes sum = add_signed(none(), q[0], a);
            for (int i = 1; i < 4; i++) {
                sum = add_signed(sum, q[i], a + 8 * i);
            }
            return sum;
        }
#ifdef DOTS
        return products(q, a, 4); // a dword holds them
#else
        static_assert(W::SIGNED || words_hold(W::MOST) >= 4);
        return add_up(none(), products(q, a, 4));
#endif
    }
};

// ---------------------------------------------------------------- many groups

// A matrix of weights: rows of `blocks` blocks, `step` bytes apart.
struct matrix {
    const char * data;
    size_t       step;
    int64_t      rows;
    int          blocks;
};

// Where the results of rows of activations go.
struct outputs {
    float * of[TILE];
};

constexpr int CACHE = 20 * 1024; // bytes of activations used by several groups in turn: they stay in the first-level cache
constexpr int RUN = 16;          // groups of weight rows that take the same piece of activations in turn, at most

// N rows of activations times the groups [from, to), at most RUN. Long rows are cut so that a piece of the activations
// stays in the first-level cache. `next`: the weights that are wanted afterwards, in the order of their addresses.
template <typename T, int N>
void run_of_groups(const matrix & w, const typename T::act * a, int64_t from, int64_t to, const outputs & out, const char * next) {
    constexpr size_t BLOCK = sizeof(typename T::format::block);
    constexpr int    MOST  = CACHE / (int) sizeof(typename T::act) / N;
    const int        cuts = (w.blocks + MOST - 1) / MOST, size = (w.blocks + cuts - 1) / cuts, count = (int) (to - from);
    alignas(32) float state[RUN][N][ROWS];
    for (int begin = 0; begin < w.blocks; begin += size) {
        const int end = begin + size < w.blocks ? begin + size : w.blocks;
        for (int i = 0; i < count; i++) {
            const char * rows = w.data + ROWS * (from + i) * w.step;
            __m256       acc[N];
            for (int j = 0; j < N; j++) {
                acc[j] = begin ? _mm256_load_ps(state[i][j]) : _mm256_setzero_ps();
            }
            for (int b = begin; b < end; b++) {
                if (next) {
                    fetch(next, ROWS * BLOCK);
                    next += ROWS * BLOCK;
                }
                T::template multiply<N>(rows + b * BLOCK, w.step, a + b * N, acc);
            }
            for (int j = 0; j < N; j++) {
                _mm256_store_ps(state[i][j], acc[j]);
            }
        }
    }
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < N; j++) {
            memcpy(out.of[j] + ROWS * (from + i), state[i][j], sizeof(state[i][j]));
        }
    }
}

// the last rows of a matrix, fewer than eight: the group of the last eight, of which the others are computed elsewhere
template <typename T, int N> void last_rows(const matrix & w, const typename T::act * a, const outputs & out) {
    const int64_t rest = w.rows % ROWS;
    matrix        end  = w;
    end.data += (w.rows - ROWS) * w.step;
    float   results[TILE][ROWS];
    outputs to;
    for (int j = 0; j < N; j++) {
        to.of[j] = results[j];
    }
    run_of_groups<T, N>(end, a, 0, 1, to, nullptr);
    for (int j = 0; j < N; j++) {
        memcpy(out.of[j] + w.rows - rest, results[j] + ROWS - rest, rest * sizeof(float));
    }
}

template <typename T, int N>
void tile_times(const matrix & w, const typename T::act * a, int64_t from, int64_t to, const outputs & out, bool ahead) {
    const int64_t whole = w.rows / ROWS;
    if (from < whole) {
        const int64_t end = to < whole ? to : whole;
        run_of_groups<T, N>(w, a, from, end, out, ahead && end < whole ? w.data + ROWS * end * w.step : nullptr);
    }
    if (to > whole) {
        last_rows<T, N>(w, a, out);
    }
}

// Up to TILE rows of activations times the groups [from, to); `a`: block by block, the rows' side by side.
template <typename T>
void tile_times(int n, const matrix & w, const typename T::act * a, int64_t from, int64_t to, const outputs & out, bool ahead) {
    switch (n) {
        case 1: return tile_times<T, 1>(w, a, from, to, out, ahead);
        case 2: return tile_times<T, 2>(w, a, from, to, out, ahead);
        case 3: return tile_times<T, 3>(w, a, from, to, out, ahead);
        case 4: return tile_times<T, 4>(w, a, from, to, out, ahead);
        case 5: return tile_times<T, 5>(w, a, from, to, out, ahead);
        case 6: return tile_times<T, 6>(w, a, from, to, out, ahead);
        case 7: return tile_times<T, 7>(w, a, from, to, out, ahead);
        default: return tile_times<T, 8>(w, a, from, to, out, ahead);
    }
}

// ---------------------------------------------------------------- sharing

// `count` rows in as few tiles as possible, as even as possible
struct tiles {
    int count, parts;
    explicit tiles(int64_t n) : count((int) n), parts((int) ((n + TILE - 1) / TILE)) {}
    int first(int tile) const { return (int) ((int64_t) count * tile / parts); }
};

// Hands out pieces of [0, count) to the threads; what a piece is does not change its result.
template <typename F> void share(const ggml_compute_params * params, int64_t count, int64_t grain, F && piece) {
    if (params->nth == 1) {
        if (count) {
            piece(0, count);
        }
        return;
    }
    int64_t size = (count + params->nth * 4 - 1) / (params->nth * 4);
    size         = (size + grain - 1) / grain * grain;
    for (int64_t i = params->ith; i * size < count; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        piece(i * size, i * size + size < count ? i * size + size : count);
    }
}

// all threads, once, between what they prepared and `share`; one alone waits for nobody
INLINE void meet(const ggml_compute_params * params) {
    if (params->nth == 1) {
        return;
    }
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
}

INLINE char * aligned(void * p) { return (char *) (((uintptr_t) p + 63) & ~(uintptr_t) 63); }

// One row of activations and of results.
struct row {
    const float * x;
    float *       y;
};

// The rows that one matrix is multiplied with: `rows(i)` for i below `count`; `a` has room for them.
template <typename T, typename F>
void quantize_rows(const ggml_compute_params * params, int count, int blocks, typename T::act * a, F && rows) {
    const tiles t(count);
    for (int tile = 0; tile < t.parts; tile++) {
        const int first = t.first(tile), n = t.first(tile + 1) - first;
        for (int i = params->ith; i < n * blocks; i += params->nth) {
            quantize(rows(first + i % n).x + T::SPAN * (i / n), a + (int64_t) first * blocks + i);
        }
    }
}

// These rows times the groups [from, to) of a matrix. Few groups at once, so that the weights are in a cache when the
// next tile takes them.
template <typename T, typename F>
void rows_times(const matrix & w, int count, const typename T::act * a, int64_t from, int64_t to, F && rows) {
    const tiles   t(count);
    const int64_t together = t.parts > 1 ? RUN : w.blocks > CACHE / (int) sizeof(typename T::act) / count ? 4 : 1;
    for (int64_t g = from; g < to; g += together) {
        const int64_t end = g + together < to ? g + together : to;
        for (int tile = 0; tile < t.parts; tile++) {
            const int first = t.first(tile), n = t.first(tile + 1) - first;
            outputs   out;
            for (int j = 0; j < n; j++) {
                out.of[j] = rows(first + j).y;
            }
            tile_times<T>(n, w, a + (int64_t) first * w.blocks, g, end, out, tile == 0);
        }
    }
}

INLINE int64_t groups_of(int64_t rows) { return (rows + ROWS - 1) / ROWS; }

// ---------------------------------------------------------------- MUL_MAT

template <typename T> size_t product_bytes(const ggml_tensor * op) {
    return 64 + ggml_nrows(op->src[1]) * (op->src[1]->ne[0] / T::SPAN) * sizeof(typename T::act);
}

// the matrices of src[0] with the rows of src[1] that they are broadcast to
template <typename T> void multiply(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * w = op->src[0], * x = op->src[1];
    const int     blocks = (int) (x->ne[0] / T::SPAN), n = (int) x->ne[1];
    const int64_t matrices = x->ne[2] * x->ne[3], groups = groups_of(w->ne[1]);
    auto *        act = (typename T::act *) aligned(params->wdata);
    const auto    rows_of = [&](int64_t m) {
        const int64_t i2 = m % x->ne[2], i3 = m / x->ne[2];
        return [=](int i) {
            return row{ (const float *) ((const char *) x->data + i * x->nb[1] + i2 * x->nb[2] + i3 * x->nb[3]),
                        (float *) ((char *) op->data + i * op->nb[1] + i2 * op->nb[2] + i3 * op->nb[3]) };
        };
    };
    for (int64_t m = 0; m < matrices; m++) {
        quantize_rows<T>(params, n, blocks, act + m * n * blocks, rows_of(m));
    }
    meet(params);
    share(params, groups * matrices, 4, [&](int64_t from, int64_t to) {
        for (int64_t at = from; at < to;) {
            const int64_t m = at / groups, end = (m + 1) * groups < to ? (m + 1) * groups : to;
            const int64_t i2 = m % x->ne[2] / (x->ne[2] / w->ne[2]), i3 = m / x->ne[2] / (x->ne[3] / w->ne[3]);
            const matrix  a{ (const char *) w->data + i2 * w->nb[2] + i3 * w->nb[3], w->nb[1], w->ne[1], blocks };
            rows_times<T>(a, n, act + m * n * blocks, at - m * groups, end - m * groups, rows_of(m));
            at = end;
        }
    });
}

// ---------------------------------------------------------------- MUL_MAT_ID

// Rows in the order of their experts: those of expert e are `order[first[e]]` up to `order[first[e + 1]]`.
struct by_expert {
    int32_t * first; // of experts + 1
    int32_t * order; // token * used + place

    static size_t size(const ggml_tensor * op) { return (op->src[0]->ne[2] + 1 + ggml_nelements(op->src[2]) + 16) * sizeof(int32_t); }

    by_expert(char * memory, const ggml_tensor * op) : first((int32_t *) memory), order(first + op->src[0]->ne[2] + 1) {}

    static int32_t expert(const ggml_tensor * ids, int64_t i) {
        return read<int32_t>((const char *) ids->data + i / ids->ne[0] * ids->nb[1] + i % ids->ne[0] * ids->nb[0]);
    }

    // counting sort: the rows of an expert stay in the order of their tokens
    void sort(const ggml_tensor * op) {
        const ggml_tensor * ids = op->src[2];
        const int64_t       experts = op->src[0]->ne[2], count = ggml_nelements(ids);
        memset(first, 0, (experts + 1) * sizeof(int32_t));
        for (int64_t i = 0; i < count; i++) {
            GGML_ASSERT(expert(ids, i) >= 0 && expert(ids, i) < experts);
            first[expert(ids, i) + 1]++;
        }
        for (int64_t e = 0; e < experts; e++) {
            first[e + 1] += first[e];
        }
        for (int64_t i = 0; i < count; i++) {
            order[first[expert(ids, i)]++] = (int32_t) i;
        }
        for (int64_t e = experts; e > 0; e--) {
            first[e] = first[e - 1];
        }
        first[0] = 0;
    }
};

template <typename T> size_t expert_product_bytes(const ggml_tensor * op) {
    return 128 + by_expert::size(op) + ggml_nelements(op->src[2]) * (op->src[1]->ne[0] / T::SPAN) * sizeof(typename T::act);
}

template <typename T> void multiply_experts(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * w = op->src[0], * x = op->src[1], * ids = op->src[2];
    const int     blocks = (int) (x->ne[0] / T::SPAN), experts = (int) w->ne[2];
    const int64_t used = ids->ne[0], groups = groups_of(w->ne[1]);
    char *        memory = aligned(params->wdata);
    by_expert     sorted(memory, op);
    auto *        act = (typename T::act *) aligned(memory + by_expert::size(op));
    if (params->ith == 0) {
        sorted.sort(op);
    }
    meet(params);
    const auto rows_of = [&](int e) {
        const int32_t * order = sorted.order + sorted.first[e];
        return [=](int i) {
            const int64_t token = order[i] / used, place = order[i] % used;
            return row{ (const float *) ((const char *) x->data + place % x->ne[1] * x->nb[1] + token * x->nb[2]),
                        (float *) ((char *) op->data + place * op->nb[1] + token * op->nb[2]) };
        };
    };
    const auto count = [&](int e) { return sorted.first[e + 1] - sorted.first[e]; };
    for (int e = 0; e < experts; e++) {
        quantize_rows<T>(params, count(e), blocks, act + (int64_t) sorted.first[e] * blocks, rows_of(e));
    }
    meet(params);
    int64_t busy = 0;
    for (int e = 0; e < experts; e++) {
        busy += count(e) > 0;
    }
    int     at = -1; // the expert that is the `place`th of those in use
    int64_t place = -1;
    share(params, groups * busy, 4, [&](int64_t from, int64_t to) {
        for (int64_t g = from; g < to;) {
            for (; place < g / groups; place++) {
                for (at++; count(at) == 0; at++) {
                }
            }
            const int64_t end = (place + 1) * groups < to ? (place + 1) * groups : to;
            const matrix  a{ (const char *) w->data + at * w->nb[2], w->nb[1], w->ne[1], blocks };
            rows_times<T>(a, count(at), act + (int64_t) sorted.first[at] * blocks, g - place * groups, end - place * groups, rows_of(at));
            g = end;
        }
    });
}

} // namespace row_kernels
