# padsink's part of libwhisper: included at the end of the upstream tree's src/CMakeLists.txt (patch 0002)
# PADSINK_ROOT is this folder, set by build.sh

target_sources(whisper PRIVATE
    ${PADSINK_ROOT}/src/kv-attn.cpp
    ${PADSINK_ROOT}/src/kv-attn-avx2.cpp
    ${PADSINK_ROOT}/src/kv-attn-avx512.cpp
    ${PADSINK_ROOT}/src/kv-attn-neon.cpp
    ${PADSINK_ROOT}/src/kv-counters.cpp
    ${PADSINK_ROOT}/src/kv-profile.cpp
    ${PADSINK_ROOT}/src/kv-ring.cpp
    ${PADSINK_ROOT}/src/kv-select.cpp
    ${PADSINK_ROOT}/src/kv-times.cpp
    ${PADSINK_ROOT}/src/kv-view.cpp
)

target_include_directories(whisper PUBLIC  ${PADSINK_ROOT}/include)
target_include_directories(whisper PRIVATE ${PADSINK_ROOT}/src ${PROJECT_SOURCE_DIR}/examples) # examples: json.hpp

if (CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64" AND NOT MSVC)
    set_source_files_properties(${PADSINK_ROOT}/src/kv-attn-avx2.cpp   PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    set_source_files_properties(${PADSINK_ROOT}/src/kv-attn-avx512.cpp PROPERTIES COMPILE_OPTIONS "-mavx512f")
endif()

# A portable build: the modules stand beside the libraries, and whatever program loads these gets the best of them.
# AMX: see build.sh, whose flags stand before ggml's and so are undone for the module that has it.
if (GGML_BACKEND_DL)
    target_sources(ggml PRIVATE ${PADSINK_ROOT}/src/ggml-load-modules.cpp)
    set_target_properties(${GGML_AVAILABLE_BACKENDS} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
    if (TARGET ggml-cpu-sapphirerapids)
        target_compile_options(ggml-cpu-sapphirerapids PRIVATE -mno-amx-tile -mno-amx-int8)
    endif()
endif()

# GCC 12 is wrong about what _tile_loadconfig() reads, and leaves out the stores before it: AMX kernels would die (docs/builds.md)
if (CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set_source_files_properties(${PROJECT_SOURCE_DIR}/ggml/src/ggml-cpu/amx/mmq.cpp
        DIRECTORY ${PROJECT_SOURCE_DIR}/ggml/src PROPERTIES COMPILE_OPTIONS "-fno-dse")
endif()

if (WHISPER_BUILD_TESTS)
    enable_testing() # upstream does so too, but only behind this folder
    add_subdirectory(${PADSINK_ROOT}/tests ${CMAKE_BINARY_DIR}/padsink-tests)
endif()
