# Builds llama.cpp's library alone, for CMAKE_ARGS=-DCMAKE_PROJECT_INCLUDE=...: without its programs'
# common code and image part, of which nothing is used here. A variable wins over the cache
# (CMP0126), into which llama-cpp-python forces the first.
set(LLAMA_BUILD_COMMON OFF)
set(LLAVA_BUILD OFF)
# And with kernels of our own in its CPU backend: see kernels/README.md.
include("${CMAKE_CURRENT_LIST_DIR}/../kernels/row_kernels.cmake")
