# Units of kernels that epilogues are linked into -> fat binaries of LTO-IR, which are data of the Python package.
#
# Like kernel libraries they are kept in BWGEMM_KERNEL_CACHE under a hash of all their inputs.

# bwgemm_linked_kernels(list [OPTIMISED] UNITS file.cu... HEADERS file... INDEX "kernel file" lines), for each list of kernels;
# then bwgemm_linked_index(). OPTIMISED: before they are kept, so that links take less time and compiling takes more.
function(bwgemm_linked_kernels list)
  cmake_parse_arguments(arg "OPTIMISED" "INDEX" "UNITS;HEADERS" ${ARGN})
  set(flags -rdc=true -O3 -std=c++17 --expt-relaxed-constexpr -DNDEBUG -diag-suppress=177)
  if(BWGEMM_RACECHECK)
    list(APPEND flags -DBWGEMM_RACECHECK)
  endif()
  set(flags_sm90 --generate-code=arch=compute_90a,code=lto_90a)
  if(arg_OPTIMISED)
    list(APPEND flags_sm90 --gen-opt-lto)
  endif()
  # CUTLASS's templates are large before they are optimised: so are their files, and links take long.
  set(flags_sm100 --generate-code=arch=compute_100f,code=lto_100f --gen-opt-lto)
  set(headers_key "${CMAKE_CUDA_COMPILER_VERSION};${BWGEMM_CUTLASS_VERSION};${bwgemm_cutlass_key};${flags};${flags_sm90};${flags_sm100}")
  foreach(header IN LISTS arg_HEADERS)
    file(SHA256 "${header}" hash)
    string(APPEND headers_key ";${hash}")
  endforeach()
  set(pool "")
  if(BWGEMM_NVCC_JOBS GREATER 0)
    set(pool JOB_POOL nvcc)
  endif()
  set(files "")
  foreach(unit IN LISTS arg_UNITS)
    file(SHA256 "${unit}" hash)
    string(SHA256 key "${headers_key};${hash}")
    string(SUBSTRING ${key} 0 16 key)
    get_filename_component(name "${unit}" NAME_WE)
    string(REGEX MATCH "^sm[0-9]+" arch "${name}")
    set(file "${BWGEMM_KERNEL_CACHE}/${key}/${name}.fatbin")
    list(APPEND files "${file}")
    if(EXISTS "${file}")
      continue()
    endif()
    file(MAKE_DIRECTORY "${BWGEMM_KERNEL_CACHE}/${key}")
    # Written under another name first: an interrupted file must not look like a finished one.
    add_custom_command(OUTPUT "${file}"
      COMMAND "${CMAKE_CUDA_COMPILER}" -fatbin ${flags} ${flags_${arch}} "-I${CMAKE_SOURCE_DIR}/cc" "-I${bwgemm_cutlass}/include"
              "-I${BWGEMM_CUDA_INCLUDE}" "-I${BWGEMM_CUDA_INCLUDE}/cccl" "${unit}" -o "${file}.part"
      COMMAND "${CMAKE_COMMAND}" -E rename "${file}.part" "${file}"
      DEPENDS "${unit}" ${arg_HEADERS} ${pool}
      COMMENT "Compiling ${name} for linking" VERBATIM)
  endforeach()
  add_custom_target(bwgemm_linked_${list} ALL DEPENDS ${files})
  install(FILES ${files} DESTINATION jax_bwgemm/linkable)
  set_property(GLOBAL APPEND_STRING PROPERTY BWGEMM_LINKED_INDEX "${arg_INDEX}")
endfunction()

function(bwgemm_linked_index)
  set(index "${CMAKE_BINARY_DIR}/generated/linkable/index.txt")
  get_property(lines GLOBAL PROPERTY BWGEMM_LINKED_INDEX)
  file(CONFIGURE OUTPUT "${index}" CONTENT "${lines}" @ONLY)
  install(FILES "${index}" DESTINATION jax_bwgemm/linkable)
endfunction()
