#!/usr/bin/env bash
# Builds the pinned llama-cpp-python with Vulkan and installs it; --help says how and with what.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/.." && pwd)
. "$ROOT/scripts/build_common.sh"
FLAGS="--dry-run --help" VALUES="--python --include --jobs --wheel-dir"
NEEDED="glslc libvulkan-dev spirv-headers"

usage() {
  cat <<EOF
Builds the llama-cpp-python that pyproject.toml pins with Vulkan, for GPUs of AMD, Intel, Qualcomm
and NVIDIA, and installs it into the active virtual environment. Needs a C++ compiler, glslc, the
Vulkan loader with its C++ headers, the SPIR-V headers, and a network for pip:

  Debian, Ubuntu   apt-get install g++ $NEEDED
  Fedora           dnf install gcc-c++ glslc vulkan-loader-devel vulkan-headers spirv-headers-devel
  Arch             pacman -S gcc shaderc vulkan-icd-loader vulkan-headers spirv-headers
  others           LunarG's Vulkan SDK, with VULKAN_SDK set as its setup-env.sh does

  bash scripts/build_vulkan.sh [options]

  --python PATH    install for this Python instead of the python3 of \$VIRTUAL_ENV
  --include DIR    a folder that holds newer headers, vulkan/vulkan.hpp, than the system's
  --jobs N         compile N files at once; default: one per core and 2 GB of free memory
  --wheel-dir DIR  only build a wheel into DIR, install nothing
  --dry-run        check everything, print what was found and the commands, run none
  --help           print this

The headers of Debian 12 are too old (1.3.239). Those of Debian 13 do, unpacked beside them:

  dpkg -x libvulkan-dev_1.4.309.0-1_amd64.deb FOLDER
  bash scripts/build_vulkan.sh --include FOLDER/usr/include

The compiler is \$CXX, or else c++. Arguments for cmake in CMAKE_ARGS come after the script's own, so
they win; a wheel for another kind of processor needs CMAKE_ARGS=-DGGML_NATIVE=OFF. At run time the
GPU's Vulkan driver is needed; localspec doctor names the devices it finds.
EOF
}

find_glslc() {
  GLSLC=$(type -P "${VULKAN_SDK:+$VULKAN_SDK/bin/}glslc") || fail \
    "No glslc, the compiler of Vulkan's shaders, was found." "Debian: apt-get install $NEEDED"
}

find_headers() { # what ggml-vulkan.cpp uses first of what older headers lack
  local version
  INCLUDE=${INCLUDE:-${VULKAN_SDK:+$VULKAN_SDK/include}}
  version=$(printf '#include <vulkan/vulkan_core.h>\nVK_HEADER_VERSION\n' |
    "$COMPILER" -E -P ${INCLUDE:+"-I$INCLUDE"} -x c++ - 2>/dev/null | tail -n 1) || version=""
  [ -n "$version" ] || fail "No Vulkan headers were found${INCLUDE:+ in $INCLUDE}." \
    "Debian: apt-get install $NEEDED"
  printf '#include <vulkan/vulkan.hpp>\nvk::LayerSettingEXT one;\n' |
    "$COMPILER" -std=c++17 -fsyntax-only ${INCLUDE:+"-I$INCLUDE"} -x c++ - 2>/dev/null ||
    fail "Vulkan's headers (version $version) are too old for llama.cpp, or lack vulkan.hpp." \
      "Name a folder with newer ones: --include DIR; --help says where from."
  HEADERS="version $version${INCLUDE:+, $INCLUDE}"
}

read_options "$@"
ADVICE="If cmake lacks SPIRV-Headers (Debian: spirv-headers), install it. If memory ran out: --jobs 1"
find_python
read_version
find_compiler
find_glslc
find_headers
count_jobs
ARGS="-DGGML_VULKAN=ON${INCLUDE:+ -DVulkan_INCLUDE_DIR=$(escaped "$INCLUDE")}"
ARGS="$ARGS${CMAKE_ARGS:+ $CMAKE_ARGS}"
printf '%s\n' "llama-cpp-python $VERSION for $PYTHON" "compiler: $COMPILER, jobs: $JOBS" \
  "glslc: $GLSLC" "Vulkan headers: $HEADERS"
if [ -n "$WHEEL_DIR" ]; then
  build_wheel libggml-vulkan Vulkan
else
  build_here libggml-vulkan Vulkan
fi
