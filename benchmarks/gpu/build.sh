#!/usr/bin/env bash
# Builds llama.cpp and an environment for localspec out of files that were carried there; no network.
#
#   bash benchmarks/gpu/build.sh WORK [--cpu | --arch NUMBER] [--unpatched]
#
# WORK holds the pinned sdist of llama-cpp-python (*.tar.gz) and wheels of what localspec needs (*.whl).
# It gets bin/, with llama.cpp's libraries and llama-server of the same sources, and venv/, whose
# localspec is this checkout; `. WORK/environment` makes a shell use both. CUDA code is made for the
# card that is there, in more than three minutes on 16 cores; or, with --arch, on a machine without a
# card, as build_cuda.sh does it (90 is an H200): then carry WORK/bin there, and nothing is compiled.
# --cpu builds without CUDA, to try all this elsewhere. What is done is not done again.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(cd "$1" && pwd) && shift
cuda=yes patched=yes arch=()
while [ $# -gt 0 ]; do
  case $1 in
    --cpu) cuda="" ;;
    --arch) arch=(--arch "${2:?must be a number}") && shift ;;
    --unpatched) patched="" ;;
    *) echo "There is no option $1." >&2; exit 2 ;;
  esac
  shift
done
python=${PYTHON:-python3}

unpack() {
  [ ! -d "$work/source" ] || return 0
  mkdir "$work/source.part"
  tar xzf "$work"/llama_cpp_python-*.tar.gz -C "$work/source.part" --strip-components 1
  [ -z "$patched" ] ||
    "$python" "$root/scripts/apply_patch.py" "$root/scripts/kept_graphs.patch" "$work/source.part"
  mv "$work/source.part" "$work/source"
}

install() { # localspec needs the bindings' Python files only: the libraries are those of WORK/bin
  local packages
  [ ! -e "$work/venv/done" ] || return 0
  "$python" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install -q --no-index --no-deps --no-compile "$work"/*.whl
  packages=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -r "$work/source/llama_cpp" "$packages/"
  echo "$root" >"$packages/localspec_checkout.pth"
  touch "$work/venv/done"
}

cuda_arguments() { # one a line, without llama_only.cmake, which leaves llama-server out
  # Another kind of processor may run what is built for a card elsewhere.
  local elsewhere="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
  [ ${#arch[@]} != 0 ] || elsewhere=-DCMAKE_CUDA_ARCHITECTURES=native
  CMAKE_ARGS=${CMAKE_ARGS:-$elsewhere} bash "$root/scripts/build_cuda.sh" \
    --dry-run --unpatched --python "$python" "${arch[@]}" >"$work/cuda.txt"
  "$python" - "$work/cuda.txt" <<'EOF'
import shlex, sys
(command,) = [line for line in open(sys.argv[1]) if line.startswith("env ")]
(found,) = [word for word in shlex.split(command) if word.startswith("CMAKE_ARGS=")]
print("\n".join(shlex.split(found.partition("=")[2])[1:]))
EOF
}

compile() {
  local llama=$work/source/vendor/llama.cpp arguments=()
  [ ! -e "$work/bin/done" ] || return 0
  # Another g++ may link libstdc++ statically, and such libraries crash: docs/internals/devices.md.
  [ ! -x /usr/bin/g++ ] || export CC=/usr/bin/gcc CXX=/usr/bin/g++ CUDAHOSTCXX=/usr/bin/g++
  if [ -n "$cuda" ]; then
    cuda_arguments >"$work/cuda_arguments.txt"
    mapfile -t arguments <"$work/cuda_arguments.txt"
  fi
  cmake -S "$llama" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$work/bin" -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$work/bin" \
    "${arguments[@]}"
  cmake --build "$work/build" --target llama llama-server -j "$(nproc)"
  touch "$work/bin/done"
}

unpack
install
cat >"$work/environment" <<EOF
export PATH=$work/venv/bin:\$PATH LLAMA_CPP_LIB_PATH=$work/bin LOCALSPEC_CACHE=$work/cache
export LLAMA_SERVER=$work/bin/llama-server
EOF
SECONDS=0
compile
echo "compiled in $SECONDS s"
. "$work/environment"
python -c 'from localspec.llama import llama_library as llama
print(llama.build(), *llama.devices(), sep="\n")'
