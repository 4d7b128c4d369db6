# kernels.def -> generated translation units, of several lines each -> bwgemm_kernels.
include(BwgemmKernelUnits)
include(BwgemmLinkedKernels)
include(${CMAKE_CURRENT_LIST_DIR}/kernels_line.cmake)

foreach(arch IN LISTS BWGEMM_ARCHS)
  if(NOT arch MATCHES "^sm(90|100)$")
    message(FATAL_ERROR "jax_bwgemm: BWGEMM_ARCHS has '${arch}': the architectures are sm90 and sm100")
  endif()
endforeach()

bwgemm_read_list(kernels.def dense "^BWGEMM_TILE")

set(unit "")

foreach(line IN LISTS lines)
  bwgemm_dense_line()
  if(NOT arch IN_LIST BWGEMM_ARCHS)
    continue()
  endif()
  bwgemm_dense_operands()
  bwgemm_dense_launcher()
  set(full OFF)
  if(unit MATCHES "_cutlass$") # types of a line share kernels, so a line is not divided
    # Memory bounds a unit to 32 kernels; a line has 8 at most.
    if(in_unit GREATER_EQUAL bwgemm_kernels_per_unit OR in_unit GREATER 24)
      set(full ON)
    endif()
  endif()
  if(full OR NOT line_unit STREQUAL unit)
    bwgemm_write_shared_unit("${unit}" "${unit_arch}" instance.cu.in)
    set(unit "${line_unit}")
    set(unit_arch ${arch})
    set(includes "${line_includes}")
  endif()
  foreach(types IN LISTS line_types)
    foreach(majors IN LISTS line_majors)
      bwgemm_dense_kernel("${types}" ${majors})
      if(in_unit GREATER_EQUAL bwgemm_kernels_per_unit AND NOT unit MATCHES "_cutlass$")
        bwgemm_write_shared_unit("${unit}" "${unit_arch}" instance.cu.in)
      endif()
    endforeach()
  endforeach()
endforeach()
bwgemm_write_shared_unit("${unit}" "${unit_arch}" instance.cu.in)
if(kernel_count EQUAL 0)
  message(FATAL_ERROR "jax_bwgemm: BWGEMM_KERNEL_FILTER='${BWGEMM_KERNEL_FILTER}' with BWGEMM_ARCHS='${BWGEMM_ARCHS}' leaves no kernel")
endif()

file(STRINGS "${bwgemm_cutlass}/include/cutlass/version.h" version_lines REGEX "#define CUTLASS_(MAJOR|MINOR|PATCH)")
string(REGEX REPLACE "[^0-9;]" "" version_numbers "${version_lines}")
list(JOIN version_numbers "." BWGEMM_CUTLASS_VERSION)
set(BWGEMM_CUTLASS_VERSION "${BWGEMM_CUTLASS_VERSION}" CACHE INTERNAL "")

file(GLOB kernel_headers CONFIGURE_DEPENDS *.h cluster_k/*.h sm90/*.h sm100/*.h ../core/*.h ../sm90/*.h)
bwgemm_compile_list(bwgemm_kernels HEADERS ${kernel_headers}
  UNITS "portable/${CMAKE_CURRENT_SOURCE_DIR}/split_k.cu" "portable/${CMAKE_CURRENT_SOURCE_DIR}/planes.cu"
  "portable/${CMAKE_CURRENT_SOURCE_DIR}/row_range.cu")

bwgemm_write_linked()
bwgemm_linked_kernels(dense LARGE UNITS ${linked_units} HEADERS ${kernel_headers} INDEX "${linked_index}")

# The second kernel of split-K, which epilogues follow.
set(units "")
set(index "")
foreach(arch IN LISTS BWGEMM_ARCHS)
  configure_file(split_k/linked.cu.in "${unit_dir}/linked/${arch}_split_k.cu" @ONLY)
  list(APPEND units "${unit_dir}/linked/${arch}_split_k.cu")
  foreach(type bfloat16 float16)
    string(APPEND index "${arch}_split_k_${type} ${arch}_split_k.fatbin\n")
  endforeach()
endforeach()
file(GLOB split_k_headers CONFIGURE_DEPENDS split_k/*.h)
bwgemm_linked_kernels(split_k UNITS ${units} INDEX "${index}"
  HEADERS ${split_k_headers} "${CMAKE_CURRENT_SOURCE_DIR}/linked.h" "${CMAKE_SOURCE_DIR}/cc/core/epilogue_arguments.h" "${CMAKE_SOURCE_DIR}/cc/core/epilogue_plan.h")
