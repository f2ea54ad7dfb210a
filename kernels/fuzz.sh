#!/usr/bin/env bash
# Compiles fuzz.cpp with the address and the undefined-behaviour sanitizer, and runs it.
#
#   kernels/fuzz.sh LLAMA_CPP [SHAPES] [BITS]    LLAMA_CPP: a folder with the sources of the pinned llama.cpp
#
# BITS 256 and 512 are the AVX-VNNI and the AVX-512 VNNI form, emulated on a processor that has AVX2 (emulated.h).
set -euo pipefail
cd "$(dirname "$0")"
llama=${1:?must be the folder with the sources of llama.cpp}
ggml=$llama/ggml
build=$(mktemp -d)
trap 'rm -r "$build"' EXIT
cmake -S "$llama" -B "$build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_COMMON=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_APP=OFF >"$build/log"
cmake --build "$build" --target ggml-base >>"$build/log"
include=("-I$ggml/include" "-I$ggml/src" "-I$ggml/src/ggml-cpu" -I.)
library=$(dirname "$(find "$build" -name 'libggml-base.so' | sed 1q)")
form=(-march=native)
[ -z "${3:-}" ] || form=(-march=haswell -include emulated.h "-DROW_KERNELS_EMULATED=$3")
g++ -std=gnu++17 -O1 -g "${form[@]}" -ffp-contract=off -w -fsanitize=address,undefined -fno-sanitize-recover=all "${include[@]}" \
  fuzz.cpp -o "$build/fuzz" "-L$library" "-Wl,-rpath,$library" -lggml-base
"$build/fuzz" "${2:-10000}"
