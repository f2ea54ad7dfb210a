// Random shapes, with memory exactly as large as they are: to be compiled with -fsanitize=address,undefined.
//
//   kernels/fuzz.sh LLAMA_CPP [SHAPES]     sources of the llama.cpp that is pinned
//
// Each row of a pass must have the bits that it has alone, and products must be right.
//
// SPDX-License-Identifier: MIT

#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <type_traits>

#include "attention.h"
#include "check.h"

// one thread alone neither waits nor shares (`meet`, `share`)
void ggml_barrier(ggml_threadpool *) { abort(); }
void ggml_threadpool_chunk_set(ggml_threadpool *, int) { abort(); }
int  ggml_threadpool_chunk_add(ggml_threadpool *, int) { abort(); }

using namespace row_kernels;

namespace {

std::mt19937 random_numbers;

int up_to(int most) { return 1 + (int) (random_numbers() % most); }

// tensors whose data are allocated one by one
struct tensors {
    std::vector<std::vector<char>> memory;
    std::vector<ggml_tensor>       all{ 8 };

    ggml_tensor * make(ggml_type type, int64_t a, int64_t b, int64_t c = 1) {
        memory.emplace_back(ggml_row_size(type, a) * b * c);
        ggml_tensor & t = all[memory.size() - 1];
        t               = {};
        t.type          = type;
        t.data          = memory.back().data();
        const int64_t ne[4] = { a, b, c, 1 };
        for (int i = 0; i < 4; i++) {
            t.ne[i] = ne[i];
            t.nb[i] = i == 0 ? ggml_type_size(type) : i == 1 ? ggml_row_size(type, a) : t.nb[i - 1] * ne[i - 1];
        }
        return &t;
    }

    ggml_tensor * filled(ggml_type type, int64_t a, int64_t b, int64_t c = 1) {
        ggml_tensor *                   t = make(type, a, b, c);
        std::vector<float>              values(a * b * c);
        std::normal_distribution<float> normal;
        for (float & v : values) {
            v = normal(random_numbers);
        }
        if (type == GGML_TYPE_F32) {
            memcpy(t->data, values.data(), ggml_nbytes(t));
        } else {
            ggml_quantize_chunk(type, values.data(), t->data, 0, b * c, a, nullptr);
        }
        return t;
    }
};

void run(ggml_tensor * op, size_t bytes, void (*compute)(const ggml_compute_params *, ggml_tensor *)) {
    std::vector<char>   work(bytes);
    ggml_compute_params alone{};
    alone.nth   = 1;
    alone.wdata = work.data();
    alone.wsize = bytes;
    compute(&alone, op);
}

// a view of one row of dimension `axis`
ggml_tensor row_of(const ggml_tensor * t, int axis, int64_t i) {
    ggml_tensor one = *t;
    one.ne[axis]    = 1;
    one.data        = (char *) t->data + i * t->nb[axis];
    return one;
}

void fail(const char * what, ggml_type type) {
    fprintf(stderr, "%s in %s\n", what, ggml_type_name(type));
    exit(1);
}

template <typename T> void multiply_alone(const ggml_compute_params * params, ggml_tensor * op) { multiply<T>(params, op); }

void product(ggml_type type, size_t (*bytes)(const ggml_tensor *), void (*compute)(const ggml_compute_params *, ggml_tensor *), int64_t k) {
    tensors     t;
    const int   m = ROWS - 1 + up_to(40), n = up_to(20);
    ggml_tensor op = *t.make(GGML_TYPE_F32, m, n);
    op.op          = GGML_OP_MUL_MAT;
    op.src[0]      = t.filled(type, k, m);
    op.src[1]      = t.filled(GGML_TYPE_F32, k, n);
    run(&op, bytes(&op), compute);
    for (int i = 0; i < n; i++) {
        tensors     other;
        ggml_tensor one = *other.make(GGML_TYPE_F32, m, 1), x = row_of(op.src[1], 1, i);
        one.src[0] = op.src[0];
        one.src[1] = &x;
        run(&one, bytes(&one), compute);
        if (memcmp(one.data, (char *) op.data + i * op.nb[1], m * sizeof(float)) != 0) {
            fail("a row differs from the row alone", type);
        }
    }
}

void attention(ggml_type type) {
    tensors       t;
    const int64_t n = up_to(12), kv = up_to(3), heads = kv * up_to(4), cells = CELLS * up_to(20), dk = 32 * up_to(4), dv = 32 * up_to(4);
    ggml_tensor   op = *t.make(GGML_TYPE_F32, dv, heads, n);
    op.op            = GGML_OP_FLASH_ATTN_EXT;
    op.src[0]        = t.filled(GGML_TYPE_F32, dk, n, heads);
    op.src[1]        = t.filled(type, dk, cells, kv);
    op.src[2]        = t.filled(type, dv, cells, kv);
    op.src[3]        = t.make(GGML_TYPE_F16, cells, n);
    const float parameters[3] = { 0.1f, up_to(4) == 1 ? 8.0f : 0.0f, up_to(4) == 1 ? 30.0f : 0.0f };
    memcpy(op.op_params, parameters, sizeof(parameters));
    const int64_t past = up_to((int) cells);
    for (int64_t i = 0; i < n * cells; i++) {
        ((ggml_half *) op.src[3]->data)[i] = i % cells < past + i / cells ? 0 : 0xFC00;
    }
    if (!takes_attention(&op)) {
        fail("attention is not taken", type);
    }
    run(&op, attention_bytes(1, &op), attend);
    for (int64_t i = 0; i < n; i++) {
        tensors     other;
        ggml_tensor one = op, q = row_of(op.src[0], 1, i), mask = row_of(op.src[3], 1, i);
        const ggml_tensor * to = other.make(GGML_TYPE_F32, dv, heads, 1);
        one.ne[2]  = 1;
        one.data   = to->data;
        one.src[0] = &q;
        one.src[3] = &mask;
        run(&one, attention_bytes(1, &one), attend);
        if (memcmp(one.data, (char *) op.data + i * op.nb[2], dv * heads * sizeof(float)) != 0) {
            fail("attention differs from that of the row alone", type);
        }
    }
}

template <typename T> void shape(ggml_type type) {
    const int k = T::SPAN * up_to(T::SPAN == 32 ? 40 : 12);
    if (!is_right<T>(type, ROWS - 1 + up_to(60), k, up_to(20), random_numbers())) {
        fail("a product is wrong", type);
    }
    product(type, product_bytes<T>, multiply_alone<T>, k);
}

} // namespace

int main(int count, char ** arguments) {
    const int shapes = count > 1 ? atoi(arguments[1]) : 10000;
    for (int i = 0; i < shapes; i++) {
        random_numbers.seed(i);
        switch (i % 18) {
            case 0: shape<of_256<q2_k>>(GGML_TYPE_Q2_K); break;
            case 1: shape<of_256<q3_k>>(GGML_TYPE_Q3_K); break;
            case 2: shape<of_256<q4_k>>(GGML_TYPE_Q4_K); break;
            case 3: shape<of_256<q5_k>>(GGML_TYPE_Q5_K); break;
            case 4: shape<of_256<q6_k>>(GGML_TYPE_Q6_K); break;
            case 5: shape<of_256<iq4_xs>>(GGML_TYPE_IQ4_XS); break;
            case 6: shape<of_32<q4_0>>(GGML_TYPE_Q4_0); break;
            case 7: shape<of_32<q4_1>>(GGML_TYPE_Q4_1); break;
            case 8: shape<of_32<q5_0>>(GGML_TYPE_Q5_0); break;
            case 9: shape<of_32<q5_1>>(GGML_TYPE_Q5_1); break;
            case 10: shape<of_32<q8_0>>(GGML_TYPE_Q8_0); break;
            case 11: shape<of_32<iq4_nl>>(GGML_TYPE_IQ4_NL); break;
            case 12: shape<of_32<mxfp4>>(GGML_TYPE_MXFP4); break;
            case 13: attention(GGML_TYPE_F16); break;
            case 14: attention(GGML_TYPE_Q8_0); break;
            case 15: attention(GGML_TYPE_Q4_0); break;
            default: {
                const ggml_type type = i % 18 == 16 ? GGML_TYPE_F16 : GGML_TYPE_F32;
                product(type, [](const ggml_tensor *) -> size_t { return 64; }, [](const ggml_compute_params * p, ggml_tensor * op) { multiply_floats(p, op); }, up_to(300));
            }
        }
    }
    printf("%d shapes: no row differs, every product is right\n", shapes);
}
