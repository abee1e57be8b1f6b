# In place of CMake's own: the OpenBLAS of the wheel scipy-openblas32, for ggml-blas. PADSINK_PYTHON has the wheel.
# All its functions begin with scipy_, so that they do not clash with those of another OpenBLAS in the process.

execute_process(
    COMMAND ${PADSINK_PYTHON} -c "import scipy_openblas32 as o; print(o.get_include_dir(), o.get_lib_dir() + '/' + o.get_library(fullname=True), sep=';', end='')"
    OUTPUT_VARIABLE wheel COMMAND_ERROR_IS_FATAL ANY)
list(GET wheel 0 BLAS_INCLUDE_DIRS)
list(GET wheel 1 BLAS_LIBRARIES)

foreach (function cblas_sgemm openblas_set_num_threads openblas_get_parallel)
    add_compile_definitions(${function}=scipy_${function})
endforeach()

set(BLAS_FOUND TRUE)
