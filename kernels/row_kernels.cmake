# Adds the row kernels to ggml's CPU backend, in each form of it that is built: included by scripts/llama_only.cmake,
# which is given to llama.cpp's build as -DCMAKE_PROJECT_INCLUDE=.... No file of llama.cpp is changed.
if(NOT ROW_KERNELS)
    set(ROW_KERNELS "${CMAKE_CURRENT_LIST_DIR}/row_kernels.cpp")

    function(row_kernels_attach)
        set(targets "")
        # one target, or with GGML_CPU_ALL_VARIANTS one for each kind of processor
        get_property(folder TARGET ggml-base PROPERTY SOURCE_DIR)
        get_property(all DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
        foreach(target ${all})
            get_target_property(sources ${target} SOURCES)
            if("${sources}" MATCHES "ggml-cpu/traits\\.cpp")
                target_sources(${target} PRIVATE "${ROW_KERNELS}")
                target_include_directories(${target} PRIVATE "${folder}" "${folder}/ggml-cpu")
                list(APPEND targets ${target})
            endif()
        endforeach()
        if(NOT targets)
            message(FATAL_ERROR "row kernels: no CPU backend with ggml-cpu/traits.cpp in this llama.cpp")
        endif()
        # GCC takes sums that are set by the first piece of a row for ones that may never be set
        set_source_files_properties("${ROW_KERNELS}" TARGET_DIRECTORY ${targets} PROPERTIES COMPILE_OPTIONS
            "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>")
        message(STATUS "row kernels: in ${targets}")
    endfunction()

    # at the end of the top directory every target is there, and nothing is generated yet
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL row_kernels_attach)
endif()
