# Units of kernels that epilogues are linked into -> fat binaries of LTO-IR, which are data of the Python package.
#
# Like kernel libraries they are kept in BWGEMM_KERNEL_CACHE under a hash of all their inputs.
#
#   bwgemm_link_kernel(sm90_grouped NAME kernel HEADER file.h NAMESPACE bwgemm::grouped INSTANCE "C++")
#                                           adds a kernel to the unit of that name, which begins with its architecture
#   bwgemm_write_linked()                   writes the units, and sets `linked_units` and `linked_index`
#
# They follow bwgemm_read_list(). A link takes one kernel out of a unit, in the same time however many kernels that has. Kernels of
# one header share most of what is instantiated, so they are one unit. Exception: nvJitLink also keeps kernels whose names begin
# with the one that is asked for. These are in another unit.

macro(bwgemm_link_kernel unit)
  cmake_parse_arguments(link "" "NAME;HEADER;NAMESPACE;INSTANCE" "" ${ARGN})
  set(file ${unit})
  set(link_apart OFF)
  while(NOT link_apart)
    set(link_apart ON)
    foreach(link_other IN LISTS linked_names_${file})
      string(FIND ${link_NAME} ${link_other} link_place)
      string(FIND ${link_other} ${link_NAME} link_reverse)
      if(link_place EQUAL 0 OR link_reverse EQUAL 0)
        set(link_apart OFF)
      endif()
    endforeach()
    if(NOT link_apart)
      string(APPEND file "_more")
    endif()
  endwhile()
  if(NOT file IN_LIST linked_files)
    list(APPEND linked_files ${file})
    set(linked_instances_${file} "")
    set(linked_header_${file} "${link_HEADER}")
    set(linked_namespace_${file} "${link_NAMESPACE}")
  endif()
  list(APPEND linked_names_${file} ${link_NAME})
  string(APPEND linked_instances_${file} "${link_INSTANCE}\n")
  string(APPEND linked_index "${link_NAME} ${file}.fatbin\n")
endmacro()

macro(bwgemm_write_linked)
  set(linked_units "")
  foreach(file IN LISTS linked_files)
    foreach(what header namespace instances)
      set(linked_${what} "${linked_${what}_${file}}")
    endforeach()
    configure_file("${CMAKE_SOURCE_DIR}/cmake/linked.cu.in" "${unit_dir}/linked/${file}.cu" @ONLY)
    list(APPEND linked_units "${unit_dir}/linked/${file}.cu")
  endforeach()
endmacro()

# bwgemm_linked_kernels(list [OPTIMISED] [LARGE] UNITS file.cu... HEADERS file... INDEX "kernel file" lines), for each list of
# kernels; then bwgemm_linked_index(). OPTIMISED: before they are kept, so that links take less time and compiling takes more.
# LARGE: SM100's are CUTLASS's, and memory bounds how many are compiled at a time.
function(bwgemm_linked_kernels list)
  cmake_parse_arguments(arg "OPTIMISED;LARGE" "INDEX" "UNITS;HEADERS" ${ARGN})
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
  set(files "")
  foreach(unit IN LISTS arg_UNITS)
    file(SHA256 "${unit}" hash)
    string(SHA256 key "${headers_key};${hash}")
    string(SUBSTRING ${key} 0 16 key)
    get_filename_component(name "${unit}" NAME_WE)
    string(REGEX MATCH "^sm[0-9]+" arch "${name}")
    set(pool ${CMAKE_JOB_POOL_COMPILE})
    if(arg_LARGE AND arch STREQUAL "sm100")
      set(pool ${bwgemm_large_pool})
    endif()
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
      DEPENDS "${unit}" ${arg_HEADERS} JOB_POOL ${pool}
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
