# A static library of GPU kernels, compiled once per content.
#
# Compiling kernels is the expensive part of the build and depends on neither Python nor XLA, so a finished library is
# kept in BWGEMM_KERNEL_CACHE under a hash of all its inputs: another Python version, or a change outside of the kernels'
# own files, does not compile a kernel again.
#
# The finished library is split by split_fatbin.py: the CUDA module links the machine code, the emulator's module the PTX,
# compressed.

set(bwgemm_sm90_gencode "--generate-code=arch=compute_90a,code=[sm_90a,compute_90a]")
set(bwgemm_sm100_gencode "--generate-code=arch=compute_100f,code=[sm_100f,compute_100f]")
# Code of the CUDA module alone has no PTX.
set(bwgemm_sm90_machine_code "--generate-code=arch=compute_90a,code=sm_90a")
# Kernels without tensor cores: machine code for every architecture in BWGEMM_ARCHS, and one PTX.
set(bwgemm_portable_gencode "--generate-code=arch=compute_90,code=[sm_90,compute_90]")
if("sm100" IN_LIST BWGEMM_ARCHS)
  list(APPEND bwgemm_portable_gencode "--generate-code=arch=compute_100f,code=sm_100f")
endif()

# --no-compress keeps the PTX readable: split_fatbin.py compresses it as the emulator can read it.
# -Og is for the host's part of a unit, which launches kernels; the device's is always optimised.
set(CMAKE_CUDA_FLAGS_RELEASE "-DNDEBUG")
set(bwgemm_nvcc_flags --expt-relaxed-constexpr --no-compress -Xcompiler=-Og,-fPIC,-fvisibility=hidden -DNDEBUG
    -diag-suppress=177 # unused variables inside CUTLASS headers
)
if(BWGEMM_RACECHECK)
  list(APPEND bwgemm_nvcc_flags -DBWGEMM_RACECHECK)
endif()

# (A:B:output) types that a tile is compiled for unless its line leaves some out, and the names in kernel lists as C++
# enumerators.
set(bwgemm_dtypes "bf16:bf16:bf16" "bf16:bf16:f32" "f16:f16:f16" "f16:f16:f32")
set(bwgemm_cxx_bf16 DType::kBF16)
set(bwgemm_cxx_f16 DType::kF16)
set(bwgemm_cxx_f32 DType::kF32)
set(bwgemm_cxx_e4m3 DType::kE4M3)
set(bwgemm_cxx_e5m2 DType::kE5M2)
set(bwgemm_cxx_e2m1 DType::kE2M1)
set(bwgemm_cxx_a_k AMajor::kK)
set(bwgemm_cxx_a_m AMajor::kM)
set(bwgemm_cxx_b_n BMajor::kN)
set(bwgemm_cxx_b_k BMajor::kK)
set(bwgemm_cxx_cooperative Schedule::kCooperative)
set(bwgemm_cxx_pingpong Schedule::kPingpong)
set(bwgemm_cxx_clusterk Schedule::kClusterK)
set(bwgemm_cxx_sums ScaleUse::kSums)
set(bwgemm_cxx_blocks ScaleUse::kBlocks)
set(bwgemm_cxx_rows ScaleUse::kRows)
set(bwgemm_cxx_mma ScaleUse::kMma)
set(bwgemm_cxx_1sm Schedule::k1Sm)
set(bwgemm_cxx_2sm Schedule::k2Sm)

# A library of kernels' sources in one job pool.
function(bwgemm_compiled_kernels target kind pool)
  add_library(${target} ${kind} ${ARGN})
  target_compile_options(${target} PRIVATE ${bwgemm_nvcc_flags})
  target_include_directories(${target} PRIVATE "${CMAKE_SOURCE_DIR}/cc")
  target_include_directories(${target} SYSTEM PRIVATE
    "${bwgemm_cutlass}/include" "${bwgemm_cutlass}/tools/util/include" "${BWGEMM_CUDA_INCLUDE}" "${BWGEMM_CUDA_INCLUDE}/cccl")
  if(BWGEMM_CCACHE)
    set_target_properties(${target} PROPERTIES CUDA_COMPILER_LAUNCHER "${BWGEMM_CCACHE}")
  endif()
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE ${pool})
endfunction()

# Sets `file` to where a static library made of what `key` says is kept. It exists if it was made before.
function(bwgemm_kept target key file)
  string(SHA256 key "${key}")
  string(SUBSTRING ${key} 0 16 key)
  set(${file} "${BWGEMM_KERNEL_CACHE}/${key}/lib${target}.a" PARENT_SCOPE)
endfunction()

# Keeps what `target` becomes. Written under another name first: an interrupted copy must not look like a library.
function(bwgemm_keep target file)
  get_filename_component(folder "${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" -E copy $<TARGET_FILE:${target}> "${file}.part"
    COMMAND "${CMAKE_COMMAND}" -E rename "${file}.part" "${file}"
    COMMENT "Keeping ${file}" VERBATIM)
endfunction()

# bwgemm_kernel_library(target COUNT kernels UNITS arch/file.cu... HEADERS file...)
#   arch: sm90, sm100 or portable; HEADERS: whatever else of ours the units include. Units with `_cutlass_` in their names are
#   large: memory bounds how many are compiled at a time.
#
# `target` links the PTX into targets whose property BWGEMM_EMULATED is on, and the machine code into all others.
function(bwgemm_kernel_library target)
  cmake_parse_arguments(arg "" "COUNT" "UNITS;HEADERS" ${ARGN})
  string(REGEX REPLACE "-L[^ ]+" "" cuda_flags "${CMAKE_CUDA_FLAGS}") # where libraries are differs from build to build
  set(key "${CMAKE_CUDA_COMPILER_VERSION};${CMAKE_CXX_COMPILER_VERSION};${BWGEMM_CUTLASS_VERSION};${bwgemm_cutlass_key}")
  string(APPEND key ";${bwgemm_nvcc_flags};${cuda_flags};${CMAKE_BUILD_TYPE}")
  set(sources "")
  foreach(unit IN LISTS arg_UNITS)
    string(REGEX MATCH "^[a-z0-9]+" arch "${unit}")
    string(REGEX REPLACE "^[a-z0-9]+/" "" file "${unit}")
    list(APPEND sources "${file}")
    set_source_files_properties("${file}" PROPERTIES COMPILE_OPTIONS "${bwgemm_${arch}_gencode}")
    file(SHA256 "${file}" hash)
    string(APPEND key ";${bwgemm_${arch}_gencode};${hash}")
  endforeach()
  foreach(header IN LISTS arg_HEADERS)
    get_filename_component(header "${header}" ABSOLUTE) # one spelling a file: Ninja minds
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
    file(SHA256 "${header}" hash)
    string(APPEND key ";${hash}")
  endforeach()
  add_library(${target} INTERFACE)
  if(NOT arg_UNITS) # all filtered out
    return()
  endif()
  bwgemm_kept(${target} "${key}" cached)

  if(EXISTS "${cached}")
    message(STATUS "jax_bwgemm: ${arg_COUNT} kernels, already compiled in ${cached}")
    bwgemm_split_library(${target} "${cached}")
    return()
  endif()
  list(LENGTH sources unit_count)
  message(STATUS "jax_bwgemm: ${arg_COUNT} kernels to compile in ${unit_count} translation units, some minutes each")
  set(compiled "${target}_compiled")
  set(large ${sources})
  list(FILTER large INCLUDE REGEX "_cutlass_")
  list(FILTER sources EXCLUDE REGEX "_cutlass_")
  if(large)
    bwgemm_compiled_kernels(${target}_large OBJECT ${bwgemm_large_pool} ${large})
    list(APPEND sources $<TARGET_OBJECTS:${target}_large>)
  endif()
  bwgemm_compiled_kernels(${compiled} STATIC ${CMAKE_JOB_POOL_COMPILE} ${sources})
  set_target_properties(${compiled} PROPERTIES LINKER_LANGUAGE CUDA) # also where all its objects are another target's
  bwgemm_keep(${compiled} "${cached}")
  bwgemm_split_library(${target} "$<TARGET_FILE:${compiled}>")
endfunction()

# Links half of the static library `file` into what links `target`: see bwgemm_kernel_library.
function(bwgemm_split_library target file)
  set(script "${CMAKE_SOURCE_DIR}/cmake/split_fatbin.py")
  set(machine_code "${CMAKE_CURRENT_BINARY_DIR}/lib${target}_machine_code.a")
  set(ptx "${CMAKE_CURRENT_BINARY_DIR}/lib${target}_ptx.a")
  add_custom_command(OUTPUT "${machine_code}" "${ptx}"
    COMMAND "${Python_EXECUTABLE}" "${script}" "${file}" "${machine_code}" "${ptx}"
    DEPENDS "${file}" "${script}"
    COMMENT "Splitting ${target} into machine code and PTX" VERBATIM)
  add_custom_target(${target}_split DEPENDS "${machine_code}" "${ptx}")
  foreach(half machine_code ptx)
    add_library(${target}_${half} STATIC IMPORTED GLOBAL)
    set_target_properties(${target}_${half} PROPERTIES IMPORTED_LOCATION "${${half}}")
    add_dependencies(${target}_${half} ${target}_split)
  endforeach()
  target_link_libraries(${target} INTERFACE
    $<IF:$<BOOL:$<TARGET_PROPERTY:BWGEMM_EMULATED>>,${target}_ptx,${target}_machine_code>)
endfunction()
