#!/usr/bin/env bash
# Builds a folder that installs localspec without a compiler and without a network; --help says how.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/scripts/build_common.sh"
FLAGS="--vulkan --cuda --dry-run --help" VALUES="--python --include --arch --jobs" OPERAND=OUT

usage() {
  cat <<EOF
Builds a folder of wheels: localspec with the bundled pair, all that it needs in the versions of
constraints.txt, and llama.cpp for every processor of this kind (x86-64, or ARM), which chooses its
kernels when it is loaded. Needs a C++ compiler and a network for pip.

  bash scripts/build_bundle.sh OUT [options]

  --python PATH    build with this Python instead of the python3 of \$VIRTUAL_ENV
  --vulkan         add llama.cpp's Vulkan backend: see build_vulkan.sh --help
  --include DIR    with --vulkan: a folder that holds newer Vulkan headers than the system's
  --cuda           add llama.cpp's CUDA backend: see build_cuda.sh --help
  --arch LIST      with --cuda: GPU architectures; default: this machine's own
  --jobs N         compile N files at once; default: one per core and 2 GB of free memory
  --dry-run        check everything, print what was found and the commands, run none
  --help           print this

Copy the folder to another machine with the same system, the same version of Python and a C library
that is not older, and install from it, in seconds:

  python3 -m venv .venv && . .venv/bin/activate
  pip install --no-index --force-reinstall --find-links OUT 'localspec[serve]'

Arguments for cmake in CMAKE_ARGS come after the script's own, so they win. There, localspec doctor
names the backends that are loaded and why others are not.
EOF
}

read_options "$@"
[ -n "$OUT" ] || misused "Name the folder to build: bash scripts/build_bundle.sh OUT"
[ -n "$VULKAN" ] || [ -z "$INCLUDE" ] || misused "--include is for --vulkan."
[ -n "$CUDA" ] || [ -z "$ARCH" ] || misused "--arch is for --cuda."
ADVICE="If memory ran out: --jobs 1"
# Backends are installed beside llama.cpp's library, where localspec looks for them.
ARGS="-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON"
ARGS="$ARGS -DCMAKE_INSTALL_BINDIR=llama_cpp/lib${CMAKE_ARGS:+ $CMAKE_ARGS}"
find_python
read_version
find_compiler
count_jobs
printf '%s\n' "llama-cpp-python $VERSION for $PYTHON" "compiler: $COMPILER, jobs: $JOBS"
WHEEL_DIR=$OUT
if [ -n "$VULKAN" ] && [ -n "$CUDA" ]; then # one build; each script checks what its backend needs
  bash "$ROOT/scripts/build_vulkan.sh" --dry-run --python "$PYTHON" --jobs "$JOBS" \
    ${INCLUDE:+--include "$INCLUDE"} >/dev/null
  ARGS="-DGGML_VULKAN=ON${INCLUDE:+ -DVulkan_INCLUDE_DIR=$(escaped "$INCLUDE")} $ARGS"
  VULKAN="" INCLUDE=""
fi
if [ -n "$VULKAN$CUDA" ]; then
  CMAKE_ARGS=$ARGS bash "$ROOT/scripts/build_${VULKAN:+vulkan}${CUDA:+cuda}.sh" \
    --python "$PYTHON" --jobs "$JOBS" --wheel-dir "$OUT" ${DRY_RUN:+--dry-run} \
    ${INCLUDE:+--include "$INCLUDE"} ${ARCH:+--arch "$ARCH"}
else
  build_wheel 'libggml-cpu-.*' "a choice of processors"
fi
run "$PYTHON" -m pip wheel --wheel-dir "$OUT" --find-links "$OUT" \
  --constraint "$ROOT/constraints.txt" "$ROOT[serve]"
[ -n "$DRY_RUN" ] || printf '%s\n' "" "Built: $OUT, $(($(du -sk "$OUT" | cut -f1) * 1024 / 1000000)) MB. Install from it:" \
  "$(command_line pip install --no-index --force-reinstall --find-links "$OUT" 'localspec[serve]')"
