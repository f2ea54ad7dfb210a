#!/usr/bin/env bash
# Builds the pinned llama-cpp-python with RPC, and the server; --help says how and with what.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/scripts/build_common.sh"
SERVER=ggml-rpc-server
FLAGS="--server-only --dry-run --help" VALUES="--python --jobs --wheel-dir"

usage() {
  cat <<EOF
Builds the llama-cpp-python that pyproject.toml pins with llama.cpp's RPC backend, and of the same
llama.cpp the program $SERVER, which lends a machine's devices; installs both into the
active virtual environment. Needs a C++ compiler and a network for pip.

  bash scripts/build_rpc.sh [options]

  --python PATH    install for this Python instead of the python3 of \$VIRTUAL_ENV
  --jobs N         compile N files at once; default: one per core and 2 GB of free memory
  --wheel-dir DIR  only build a wheel into DIR, install nothing, build no $SERVER
  --server-only    only build $SERVER, for the llama-cpp-python that is installed with RPC
  --dry-run        check everything, print what was found and the commands, run none
  --help           print this

The compiler is \$CXX, or else c++. Arguments for cmake in CMAKE_ARGS come after the script's own, so
they win; a wheel for another kind of processor needs CMAKE_ARGS=-DGGML_NATIVE=OFF.

For RPC and CUDA in one build:

  CMAKE_ARGS=-DGGML_RPC=ON bash scripts/build_cuda.sh && bash scripts/build_rpc.sh --server-only

All machines need the same version of llama.cpp: run this script on each.
EOF
}

find_folders() {
  PLACES=$("$PYTHON" -c 'import os, sysconfig
packages, programs = sysconfig.get_path("platlib"), sysconfig.get_path("scripts")
libraries = os.path.join(packages, "llama_cpp", "lib")
print(libraries, programs, os.path.relpath(libraries, programs), sep="\n")')
  { read -r LIBRARIES; read -r PROGRAMS; read -r BETWEEN; } <<<"$PLACES"
  [ -z "$SERVER_ONLY" ] || [ -f "$LIBRARIES/libggml-rpc.so" ] ||
    fail "The llama-cpp-python of $PYTHON has no RPC." "Leave --server-only out."
}

build_server() { # its rpath is relative, so that the whole environment can move
  local llama=$SOURCE/vendor/llama.cpp
  run "$COMPILER" -O2 -std=c++17 -pthread "-I$llama/ggml/include" \
    "$llama/tools/rpc/rpc-server.cpp" "-L$LIBRARIES" -lggml -lggml-base \
    "-Wl,-rpath,\$ORIGIN/$BETWEEN" -o "$PROGRAMS/$SERVER"
}

check_server() {
  "$PROGRAMS/$SERVER" --help >/dev/null 2>&1 ||
    fail "$PROGRAMS/$SERVER was built, but does not start." "Run it to see why."
  echo "Built: $PROGRAMS/$SERVER"
}

read_options "$@"
[ -z "$SERVER_ONLY" ] || [ -z "$WHEEL_DIR" ] ||
  misused "--wheel-dir and --server-only exclude each other."
ADVICE="If memory ran out: --jobs 1"
ARGS="-DGGML_RPC=ON${CMAKE_ARGS:+ $CMAKE_ARGS}"
find_python
read_version
find_compiler
find_folders
count_jobs
printf '%s\n' "llama-cpp-python $VERSION for $PYTHON" "compiler: $COMPILER, jobs: $JOBS"
if [ -n "$WHEEL_DIR" ]; then
  build_wheel libggml-rpc RPC
  exit
fi
[ -n "$SERVER_ONLY" ] || build_here libggml-rpc RPC
fetch_source
build_server
[ -n "$DRY_RUN" ] || check_server
