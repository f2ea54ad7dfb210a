# Builds llama.cpp's library alone, for CMAKE_ARGS=-DCMAKE_PROJECT_INCLUDE=...: without its programs'
# common code and image part, of which nothing is used here. A variable wins over the cache
# (CMP0126), into which llama-cpp-python forces the first.
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)

# Without AMX kernels: GCC 12 leaves out stores of the tile configuration (ggml_tile_config_init),
# so that they end the process on processors that have AMX. They also hold the weights twice.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mno-amx-int8 HAS_AMX_FLAGS)
if(HAS_AMX_FLAGS)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-mno-amx-tile;-mno-amx-int8;-mno-amx-bf16>")
endif()
