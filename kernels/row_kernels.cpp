// Kernels for passes of few rows on x86: see README.md.
//
// ggml asks each entry in its list of extra buffer types whether it computes an operation. Ours is the first entry; no
// tensor is ever allocated in it, weights keep their plain layout.
//
// SPDX-License-Identifier: MIT

#include "row_kernels.h"

#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "traits.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    define ROW_KERNELS 1
#    include "attention.h"
#    include "check.h"
#endif

namespace row_kernels {

namespace {

std::atomic<bool> enabled{ [] {
    const char * text = getenv("ROW_KERNELS");
    return !text || strcmp(text, "off") != 0;
}() };

// kinds of operations that were left to llama.cpp, one bit for each type
std::atomic<uint64_t> left_products{ 0 }, left_experts{ 0 }, left_attention{ 0 };

std::atomic<uint64_t> * left_of(ggml_op op) {
    switch (op) {
        case GGML_OP_MUL_MAT: return &left_products;
        case GGML_OP_MUL_MAT_ID: return &left_experts;
        case GGML_OP_FLASH_ATTN_EXT: return &left_attention;
        default: return nullptr;
    }
}

#ifdef ROW_KERNELS

static_assert(GGML_TYPE_COUNT <= 64, "left_of needs another form");

// `call` with the kernel of a quantised type; false where there is none
template <typename F> bool with_kernel(ggml_type type, F && call) {
    switch (type) {
        case GGML_TYPE_Q2_K: call(of_256<q2_k>()); return true;
        case GGML_TYPE_Q3_K: call(of_256<q3_k>()); return true;
        case GGML_TYPE_Q4_K: call(of_256<q4_k>()); return true;
        case GGML_TYPE_Q5_K: call(of_256<q5_k>()); return true;
        case GGML_TYPE_Q6_K: call(of_256<q6_k>()); return true;
        case GGML_TYPE_IQ4_XS: call(of_256<iq4_xs>()); return true;
        case GGML_TYPE_Q4_0: call(of_32<q4_0>()); return true;
        case GGML_TYPE_Q4_1: call(of_32<q4_1>()); return true;
        case GGML_TYPE_Q5_0: call(of_32<q5_0>()); return true;
        case GGML_TYPE_Q5_1: call(of_32<q5_1>()); return true;
        case GGML_TYPE_Q8_0: call(of_32<q8_0>()); return true;
        case GGML_TYPE_IQ4_NL: call(of_32<iq4_nl>()); return true;
        case GGML_TYPE_MXFP4: call(of_32<mxfp4>()); return true;
        default: return false;
    }
}

bool is_quantised(ggml_type type) {
    return with_kernel(type, [](auto) {});
}

// Layouts of other buffer types (repacked, AMX) are not ours to read.
bool is_plain(const ggml_tensor * w) {
    return !w->extra && w->nb[0] == ggml_type_size(w->type) && (!w->buffer || ggml_backend_buffer_is_host(w->buffer));
}

bool are_floats(const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float); }

bool takes_quantised(const ggml_tensor * op) {
    const ggml_tensor * w = op->src[0], * x = op->src[1];
    return is_quantised(w->type) && is_plain(w) && are_floats(x) && are_floats(op) && w->ne[1] >= ROWS &&
           (op->op == GGML_OP_MUL_MAT_ID || (x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0));
}

bool takes_floats(const ggml_tensor * op) {
    const ggml_tensor * w = op->src[0], * x = op->src[1];
    return is_float(w->type) && is_plain(w) && are_floats(x) && are_floats(op) &&
           (op->op == GGML_OP_MUL_MAT_ID || (x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0));
}

bool takes(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID: return takes_quantised(op) || takes_floats(op);
        case GGML_OP_FLASH_ATTN_EXT: return takes_attention(op);
        default: return false;
    }
}

size_t work_bytes(int threads, const ggml_tensor * op) {
    if (op->op == GGML_OP_FLASH_ATTN_EXT) {
        return attention_bytes(threads, op);
    }
    size_t bytes = 0;
    const bool is_product = op->op == GGML_OP_MUL_MAT;
    if (!with_kernel(op->src[0]->type, [&](auto kernel) {
            using T = decltype(kernel);
            bytes   = is_product ? product_bytes<T>(op) : expert_product_bytes<T>(op);
        })) {
        bytes = is_product ? 0 : 64 + by_expert::size(op);
    }
    return bytes;
}

void compute(ggml_compute_params * params, ggml_tensor * op) {
    if (op->op == GGML_OP_FLASH_ATTN_EXT) {
        attend(params, op);
        return;
    }
    const bool is_product = op->op == GGML_OP_MUL_MAT;
    if (!with_kernel(op->src[0]->type, [&](auto kernel) {
            using T = decltype(kernel);
            is_product ? multiply<T>(params, op) : multiply_experts<T>(params, op);
        })) {
        is_product ? multiply_floats(params, op) : multiply_float_experts(params, op);
    }
}

struct kernels : ggml::cpu::tensor_traits {
    bool work_size(int threads, const ggml_tensor * op, size_t & size) override {
        if (!takes(op)) {
            return false;
        }
        size = work_bytes(threads, op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (!takes(op)) {
            if (params->ith == 0) {
                *left_of(op->op) |= 1ull << op->src[0]->type;
            }
            return false;
        }
        compute(params, op);
        return true;
    }
};

struct entry : ggml::cpu::extra_buffer_type {
    kernels ours;

    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; } // for no weights

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return enabled && left_of(op->op) ? &ours : nullptr;
    }
};

// The first entry of the list from the start of the library on.
const bool entered = [] {
    static entry                    context;
    static ggml_backend_buffer_type type{};
    type.iface.get_name      = [](ggml_backend_buffer_type_t) { return "ROWS"; };
    type.iface.alloc_buffer  = [](ggml_backend_buffer_type_t, size_t) -> ggml_backend_buffer_t { return nullptr; };
    type.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 64; };
    type.context             = &context;
    auto & list              = ggml_backend_cpu_get_extra_buffer_types();
    list.insert(list.begin(), &type);
    return true;
}();

#endif

} // namespace

} // namespace row_kernels

using namespace row_kernels;

int row_kernels_version(void) { return 1; }

void row_kernels_enable(int on) { enabled = on != 0; }

#ifdef ROW_KERNELS

const char * row_kernels_form(void) { return FORM; }

int row_kernels_takes(int type) { return is_quantised((ggml_type) type) || is_float((ggml_type) type); }

int row_kernels_check(void) {
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        bool right = true;
        with_kernel((ggml_type) type, [&](auto kernel) { right = is_right<decltype(kernel)>((ggml_type) type); });
        if (!right) {
            return type;
        }
    }
    return -1;
}

#else

const char * row_kernels_form(void) { return ""; }

int row_kernels_takes(int) { return 0; }

int row_kernels_check(void) { return -1; }

#endif

int row_kernels_left(int32_t * pairs, int room) {
    int found = 0;
    for (ggml_op op : { GGML_OP_MUL_MAT, GGML_OP_MUL_MAT_ID, GGML_OP_FLASH_ATTN_EXT }) {
        for (int type = 0; type < GGML_TYPE_COUNT; type++) {
            if (*left_of(op) >> type & 1) {
                if (found < room) {
                    pairs[2 * found]     = op;
                    pairs[2 * found + 1] = type;
                }
                found++;
            }
        }
    }
    return found;
}

void row_kernels_reset(void) { left_products = left_experts = left_attention = 0; }
