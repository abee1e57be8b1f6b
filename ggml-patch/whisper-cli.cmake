# padsink's part of whisper-cli: included at the end of the upstream tree's examples/cli/CMakeLists.txt (patch 0002)

target_sources            (${TARGET} PRIVATE ${PADSINK_ROOT}/src/kv-cli.cpp)
target_include_directories(${TARGET} PRIVATE ${PADSINK_ROOT}/src)
