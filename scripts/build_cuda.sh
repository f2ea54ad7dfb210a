#!/usr/bin/env bash
# Builds the pinned llama-cpp-python with CUDA and installs it; --help says how and with what.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/scripts/build_common.sh"
FLAGS="--unpatched --dry-run --help" VALUES="--python --arch --jobs --wheel-dir"
CARDS_BY_NUMBER="75 Turing, 80 A100, 86 RTX 30, 89 RTX 40, 90 H100 and H200, 120 RTX 50"

usage() {
  cat <<EOF
Builds the llama-cpp-python that pyproject.toml pins with CUDA, and installs it into the active
virtual environment. Needs nvcc, cuBLAS, a C++ compiler and a network for pip.

  bash scripts/build_cuda.sh [options]

  --python PATH    install for this Python instead of the python3 of \$VIRTUAL_ENV
  --arch LIST      GPU architectures, such as 86, 8.6 or "80;90"; default: this machine's own
                   ($CARDS_BY_NUMBER)
  --jobs N         compile N files at once; default: one per core and 2 GB of free memory
  --wheel-dir DIR  only build a wheel into DIR, install nothing
  --unpatched      leave llama.cpp as it is: see below
  --dry-run        check everything, print what was found and the commands, run none
  --help           print this

nvcc is looked for in \$CUDACXX, \$CUDA_HOME/bin, \$CUDA_PATH/bin, PATH and /usr/local/cuda*/bin;
cuBLAS in nvcc's toolkit, then in the pip package nvidia-cublas (CUDA 12: nvidia-cublas-cu12).
Arguments for cmake in CMAKE_ARGS come after the script's own, so they win; a wheel for another
kind of processor needs CMAKE_ARGS=-DGGML_NATIVE=OFF.

A patch lets llama.cpp keep the graph of each width of pass, where it keeps one and prepares it anew
whenever the width changes, as it does at each draft. If it does not fit the sources, nothing is
built. LLAMA_KEPT_GRAPHS=0 turns it off at run time; localspec doctor says whether a build has it.

At run time libggml-cuda.so finds cuBLAS by its rpath: first in the pip packages beside llama_cpp,
relative to itself, so that a wheel can move to another environment; then in the folders it was
built with. Nothing has to be set or preloaded.
EOF
}

require_arch() {
  local list='^[0-9.]+(;[0-9.]+)*$'
  [[ ${ARCH:-0} =~ $list ]] || misused "--arch takes numbers like 86 or \"80;90\", not $ARCH."
}

find_nvcc() {
  local path says top
  [ -z "${CUDACXX:-}" ] || type -P "$CUDACXX" >/dev/null ||
    fail "CUDACXX says $CUDACXX, which is not a program." "Set it to an nvcc, or unset it."
  for path in "${CUDACXX:-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" \
    "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" nvcc /usr/local/cuda*/bin/nvcc; do
    NVCC=$(type -P "$path") && break
  done
  [ -n "$NVCC" ] || fail "No nvcc, the compiler of the CUDA toolkit, was found." \
    "Install the CUDA toolkit, or say where it is: CUDA_HOME=/usr/local/cuda"
  CUDA=$("$NVCC" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p') || CUDA=""
  [ -n "$CUDA" ] || fail "$NVCC does not tell its release." "Name another nvcc: CUDACXX=PATH"
  MAJOR=${CUDA%%.*}
  # nvcc may be a wrapper far from its toolkit, so ask it; it tells before it rejects the file.
  says=$("$NVCC" -v no-such-file 2>&1) || true
  top=$(sed -n 's/^#\$ TOP=//p' <<<"$says")
  TOOLKIT=$(cd "${top:-$(dirname "$NVCC")/..}" && pwd)
  TOOLKIT_LIBS=$({
    sed -n 's/^#\$ LIBRARIES=//p' <<<"$says" | tr '"' '\n' | sed -n 's/^-L//p' | sed '/stubs$/d'
    printf '%s\n' "$TOOLKIT/lib64" "$TOOLKIT/targets/$(uname -m | sed s/aarch64/sbsa/)-linux/lib"
  } | while read -r path; do [ ! -d "$path" ] || (cd "$path" && pwd -P); done | awk '!seen[$0]++')
}

find_architectures() { # CARDS: what this machine has, nothing without a driver
  local known one
  CARDS=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    grep -E '^[0-9]+\.[0-9]+$' | sort -u) || CARDS=""
  [ -n "${ARCH:-$CARDS}" ] ||
    fail "nvidia-smi names no GPU here to build for." "Give --arch: $CARDS_BY_NUMBER."
  ARCH=$(tr -d . <<<"${ARCH:-${CARDS//$'\n'/;}}")
  known=$("$NVCC" --list-gpu-arch | sed -n 's/^compute_//p' | sort -n | tr '\n' ' ') || known=""
  for one in ${ARCH//;/ }; do
    case " $known" in *" $one "*) continue ;; esac
    fail "nvcc $CUDA cannot compile for architecture $one, only for: ${known% }." \
      "Correct --arch, or take a newer CUDA toolkit for a newer card, an older for an older."
  done
}

first_with_cublas() { # of the folders in $1; with headers, which a toolkit's run-time part lacks
  local folder header
  while read -r folder; do
    [ -f "$folder/libcublas.so.$MAJOR" ] && [ -f "$folder/libcublasLt.so.$MAJOR" ] || continue
    for header in "$folder"/../include/cublas_v2.h "$folder"/../../include/cublas_v2.h; do
      [ ! -f "$header" ] || { echo "$folder"; return; }
    done
  done <<<"$1"
}

find_cublas() {
  local wheel_libs folder file what="No cuBLAS was found in $TOOLKIT or among pip's packages."
  local package="nvidia-cublas==$MAJOR.*"
  wheel_libs=$("$PYTHON" -c 'import glob, sys
for path in filter(None, sys.path):
    print("\n".join(glob.glob(glob.escape(path) + "/nvidia/*/lib")))')
  INCLUDE="" CUBLAS=$(first_with_cublas "$TOOLKIT_LIBS")
  [ -z "$CUBLAS" ] || return 0
  CUBLAS=$(first_with_cublas "$wheel_libs")
  INCLUDE=${CUBLAS%/lib}/include
  [ -z "$CUBLAS" ] || return 0
  while read -r folder; do
    for file in "$folder"/libcublas.so.[0-9]*; do
      [ ! -f "$file" ] || what="$file is not of nvcc's version $MAJOR, or lacks its headers."
    done
  done <<<"$TOOLKIT_LIBS"$'\n'"$wheel_libs"
  [ "$MAJOR" -ge 13 ] || package=nvidia-cublas-cu$MAJOR
  fail "$what" "Run: $(command_line "$PYTHON" -m pip install "$package")"
}

find_driver() { # libcuda: the driver's own, or the toolkit's stub, which serves the linker as well
  local folder
  DRIVER=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null |
    sed -n '/libcuda\.so\.1 (libc6,/s/.*=> //p' | sed 1q) || DRIVER=""
  while read -r folder; do
    [ -n "$DRIVER" ] || [ ! -f "$folder/stubs/libcuda.so" ] || DRIVER=$folder/stubs/libcuda.so
  done <<<"$TOOLKIT_LIBS"
}

write_cmake_args() {
  local pip="\$ORIGIN/../../nvidia" rpath one
  rpath=$pip/cu$MAJOR/lib
  [ "$MAJOR" -ge 13 ] || rpath=$pip/cublas/lib:$pip/cuda_runtime/lib
  set -- -DGGML_CUDA=ON "-DCMAKE_CUDA_COMPILER=$NVCC" "-DCUDAToolkit_ROOT=$TOOLKIT" \
    "-DCMAKE_CUDA_ARCHITECTURES=$ARCH" "-DCUDA_cublas_LIBRARY=$CUBLAS/libcublas.so.$MAJOR" \
    "-DCUDA_cublasLt_LIBRARY=$CUBLAS/libcublasLt.so.$MAJOR"
  # -isystem is searched after the toolkit: other packages may keep other CUDA headers there.
  [ -z "$INCLUDE" ] || set -- "$@" "-DCMAKE_CUDA_FLAGS=-isystem=$(escaped "$INCLUDE")"
  # Without libcuda ggml can be linked if it leaves the virtual memory calls out.
  set -- "$@" "${DRIVER:+-DCUDA_cuda_driver_LIBRARY=}${DRIVER:--DGGML_CUDA_NO_VMM=ON}"
  # llama-cpp-python sets the rpath property of its targets itself, so this takes a linker flag.
  # cmake adds the folder of pip's cuBLAS of its own accord, but never the toolkit's.
  rpath=$rpath${TOOLKIT_LIBS:+:${TOOLKIT_LIBS//$'\n'/:}}
  set -- "$@" "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath,$(escaped "$rpath")"
  ARGS=""
  for one in "$@"; do ARGS="$ARGS $(escaped "$one")"; done
  ARGS="${ARGS# }${CMAKE_ARGS:+ $CMAKE_ARGS}"
}

patch_source() {
  fetch_source
  ADVICE="Build without the patch: --unpatched"
  run "$PYTHON" "$ROOT/scripts/apply_patch.py" "$ROOT/scripts/kept_graphs.patch" "$SOURCE"
}

show_findings() {
  printf '%s\n' "llama-cpp-python $VERSION for $PYTHON" "nvcc $CUDA: $NVCC, toolkit $TOOLKIT" \
    "cuBLAS $MAJOR: $CUBLAS" "architectures: $ARCH, jobs: $JOBS" \
    "libcuda: ${DRIVER:-none here, so ggml is built without its virtual memory calls}"
}

check_installed() { # by loading the bundled draft
  local answer status=0
  answer=$("$PYTHON" -c 'import llama_cpp, sys
usual = llama_cpp.llama_model_default_params()
model = llama_cpp.llama_model_load_from_file(sys.argv[1].encode(), usual)
print(bool(model) and llama_cpp.llama_supports_gpu_offload())' "$ROOT/models/demo/draft.gguf" 2>&1) ||
    status=$?
  [ "$status" -lt 128 ] ||
    fail "Installed, but llama.cpp dies by signal $((status - 128)) when it loads a model." \
      "A g++ that links libstdc++ statically may be why: CXX=/usr/bin/g++ CUDAHOSTCXX=/usr/bin/g++"
  answer=$(tail -n 1 <<<"$answer")
  case $CARDS/$answer in
    */True) echo "Installed: llama.cpp can use the GPU." ;;
    /False | /*libcuda.so.1*) echo "Installed with CUDA, not tried: here is no NVIDIA driver." ;;
    *) fail "Installed, but llama.cpp cannot use the GPU: $answer" "Run: localspec doctor" ;;
  esac
}

read_options "$@"
require_arch
ADVICE="If nvcc refused g++, name an older one: CUDAHOSTCXX=g++-12. If memory ran out: --jobs 1"
find_python
read_version
find_nvcc
find_architectures
find_cublas
find_driver
count_jobs
write_cmake_args
show_findings
USUAL_ADVICE=$ADVICE
[ -n "$UNPATCHED" ] || patch_source
ADVICE=$USUAL_ADVICE
if [ -n "$WHEEL_DIR" ]; then
  build_wheel libggml-cuda CUDA
else
  build_here libggml-cuda CUDA
  [ -n "$DRY_RUN" ] || check_installed
fi
