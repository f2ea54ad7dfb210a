// A product of each type beside sums in double precision: a llama.cpp whose blocks mean something else is found out.
//
// SPDX-License-Identifier: MIT

#pragma once

#include "products.h"

#include <vector>

namespace row_kernels {

// Activations of whole numbers with 127 in each block are quantised without loss: what is left are roundings of floats.
constexpr float TOLERANCE = 1e-5f; // of the greatest result

// N rows times M weight rows of K values
template <typename T> bool is_right(ggml_type type, int M = ROWS + 3, int K = 512, int N = 3, uint32_t seed = 1) {
    const auto           next = [&] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
    std::vector<float>   weights(M * K), unpacked(M * K), x(N * K), y(N * M);
    std::vector<uint8_t> packed(M * ggml_row_size(type, K));
    for (float & w : weights) {
        w = (float) (next() % 2001) / 1000.0f - 1.0f;
    }
    for (int i = 0; i < N * K; i++) {
        x[i] = i % 32 ? (float) (next() % 255) - 127.0f : 127.0f;
    }
    ggml_quantize_chunk(type, weights.data(), packed.data(), 0, M, K, nullptr);
    ggml_get_type_traits(type)->to_float(packed.data(), unpacked.data(), M * K);

    const int    blocks = K / T::SPAN;
    const auto   rows   = [&](int i) { return row{ x.data() + i * K, y.data() + i * M }; };
    const matrix w{ (const char *) packed.data(), ggml_row_size(type, K), M, blocks };
    std::vector<typename T::act> act(N * blocks);
    ggml_compute_params          alone{};
    alone.nth = 1;
    quantize_rows<T>(&alone, N, blocks, act.data(), rows);
    rows_times<T>(w, N, act.data(), 0, groups_of(M), rows);

    double greatest = 0, error = 0;
    for (int i = 0; i < N * M; i++) {
        double sum = 0;
        for (int k = 0; k < K; k++) {
            sum += (double) unpacked[i % M * K + k] * x[i / M * K + k];
        }
        greatest = std::max(greatest, std::abs(sum));
        error    = std::abs(sum - y[i]) <= error ? error : std::abs(sum - y[i]); // also if it is NaN
    }
    return error <= TOLERANCE * greatest;
}

} // namespace row_kernels
