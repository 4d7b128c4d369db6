# Finds everything the build needs. pyproject.toml's build requirements bring all of it from PyPI,
# the CUDA compiler included; -DCMAKE_CUDA_COMPILER and -DBWGEMM_CUTLASS_DIR choose your own.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module
             OPTIONAL_COMPONENTS Development.SABIModule)

# Runs a Python expression that prints one path, unless -D set the variable; `need` says what provides it.
function(bwgemm_python_path variable need expression)
  if(${variable})
    return()
  endif()
  execute_process(COMMAND "${Python_EXECUTABLE}" -c "${expression}"
                  OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE
                  ERROR_VARIABLE error RESULT_VARIABLE result)
  if(NOT result EQUAL 0 OR NOT EXISTS "${path}")
    message(FATAL_ERROR "jax_bwgemm: ${need} was not found by ${Python_EXECUTABLE}. Install with "
                        "`pip install .` (which brings it), or install it first when you build without isolation.")
  endif()
  set(${variable} "${path}" PARENT_SCOPE)
endfunction()

bwgemm_python_path(nanobind_ROOT "nanobind (build requirement)"
                   "import nanobind; print(nanobind.cmake_dir())")
find_package(nanobind CONFIG REQUIRED)

# The XLA FFI headers of the oldest jaxlib that is supported: newer runtimes accept older handlers.
# SYSTEM: they warn.
bwgemm_python_path(BWGEMM_JAXLIB "jaxlib (build requirement)"
                   "import importlib.util as u, os; print(os.path.dirname(u.find_spec('jaxlib').origin))")
add_library(xla_ffi INTERFACE)
target_include_directories(xla_ffi SYSTEM INTERFACE "${BWGEMM_JAXLIB}/include")

if(BWGEMM_CUTLASS_DIR)
  set(bwgemm_cutlass "${BWGEMM_CUTLASS_DIR}")
  if(NOT EXISTS "${bwgemm_cutlass}/include/cutlass/cutlass.h")
    message(FATAL_ERROR "jax_bwgemm: BWGEMM_CUTLASS_DIR=${bwgemm_cutlass} has no include/cutlass/cutlass.h")
  endif()
  # A checkout may be edited: what is compiled with it is kept by the content of its headers.
  file(GLOB_RECURSE headers "${bwgemm_cutlass}/include/*")
  foreach(header IN LISTS headers)
    file(SHA256 "${header}" hash)
    string(APPEND bwgemm_cutlass_key "${hash}")
  endforeach()
  string(SHA256 bwgemm_cutlass_key "${bwgemm_cutlass_key}")
else()
  bwgemm_python_path(bwgemm_cutlass "nvidia-cutlass==4.2.0.0 (build requirement)"
    "import importlib.util as u, os; print(os.path.join(os.path.dirname(u.find_spec('cutlass_library').origin), 'source'))")
endif()

# The PyPI compiler (nvidia-cuda-nvcc and friends) unpacks to <site-packages>/nvidia/cu13.
if(NOT CMAKE_CUDA_COMPILER)
  bwgemm_python_path(bwgemm_cuda_root "nvcc 13 (build requirement nvidia-cuda-nvcc)"
    "import nvidia, os; print(next(p for p in (os.path.join(d, 'cu13') for d in nvidia.__path__) if os.path.exists(os.path.join(p, 'bin', 'nvcc'))))")
  set(CMAKE_CUDA_COMPILER "${bwgemm_cuda_root}/bin/nvcc" CACHE FILEPATH "nvcc" FORCE)
  # nvcc looks for cudart in lib64; the wheels have lib.
  set(CMAKE_CUDA_FLAGS_INIT "-L${bwgemm_cuda_root}/lib")
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF) # each kernel names its own architecture (cmake/BwgemmKernelLibrary.cmake)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY None) # linked explicitly, statically
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "jax_bwgemm: nvcc ${CMAKE_CUDA_COMPILER_VERSION} at ${CMAKE_CUDA_COMPILER} is too old: "
                      "13.0 or newer is needed (leave CMAKE_CUDA_COMPILER unset to use the one from PyPI).")
endif()

# Headers and the static runtime: beside the compiler, in the wheels' layout or a toolkit's, or where
# the compiler itself looks (nvcc on PATH may be a script).
# (find_package(CUDAToolkit) insists on libcudart.so, which the wheels do not have.)
get_filename_component(bwgemm_nvcc_real "${CMAKE_CUDA_COMPILER}" REALPATH)
get_filename_component(bwgemm_toolkit "${bwgemm_nvcc_real}/../.." ABSOLUTE)
find_path(BWGEMM_CUDA_INCLUDE cuda_runtime.h NO_DEFAULT_PATH
          PATHS "${bwgemm_toolkit}/include" "${bwgemm_toolkit}/targets/x86_64-linux/include"
                ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
find_library(BWGEMM_CUDART cudart_static NO_DEFAULT_PATH
             PATHS "${bwgemm_toolkit}/lib" "${bwgemm_toolkit}/lib64" "${bwgemm_toolkit}/targets/x86_64-linux/lib"
                   ${CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES} ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
if(NOT BWGEMM_CUDA_INCLUDE OR NOT BWGEMM_CUDART)
  message(FATAL_ERROR "jax_bwgemm: no cuda_runtime.h or libcudart_static.a beside ${bwgemm_nvcc_real}: "
                      "the build requirement nvidia-cuda-runtime (or a complete toolkit) is missing.")
endif()
find_package(Threads REQUIRED)
add_library(bwgemm_cudart INTERFACE)
target_link_libraries(bwgemm_cudart INTERFACE "${BWGEMM_CUDART}" Threads::Threads ${CMAKE_DL_LIBS} rt)

find_program(BWGEMM_CCACHE ccache)
if(BWGEMM_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${BWGEMM_CCACHE}")
endif()

message(STATUS "jax_bwgemm: nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${CMAKE_CUDA_COMPILER}), CUTLASS at ${bwgemm_cutlass}")
