// What the row kernels offer to programs: exported by ggml's CPU backend that they are built into.
//
// SPDX-License-Identifier: MIT

#pragma once

#include <stdint.h>

#define ROW_KERNELS_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Version of this interface.
ROW_KERNELS_API int row_kernels_version(void);

// The instructions in use: "AVX2", "AVX-VNNI", "AVX-512 VNNI", or "" where this processor form has no kernels.
ROW_KERNELS_API const char * row_kernels_form(void);

// Switches the kernels of this process on (1) or off (0: llama.cpp's own code). Not while a pass is computed.
// They are on at the start, unless the environment has ROW_KERNELS=off.
ROW_KERNELS_API void row_kernels_enable(int enabled);

// Whether products with weights of a ggml_type, in its plain layout, are computed here.
ROW_KERNELS_API int row_kernels_takes(int type);

// Compares a product of each type with sums in double precision: -1 if all are right, else the first wrong ggml_type.
ROW_KERNELS_API int row_kernels_check(void);

// How many kinds of products and attention were left to llama.cpp's own code since the last reset. Up to `room` of them
// are written as pairs of a ggml_op and the ggml_type of its first source.
ROW_KERNELS_API int row_kernels_left(int32_t * pairs, int room);

ROW_KERNELS_API void row_kernels_reset(void);

#ifdef __cplusplus
}
#endif
