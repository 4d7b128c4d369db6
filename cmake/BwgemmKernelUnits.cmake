# From a list of kernels to translation units and a library: what all lists share.
#
#   bwgemm_read_list(kernels.def dense "^TILE")                   sets `lines`
#   foreach line, type and so on:
#     bwgemm_types(bf16:bf16:f32)                                 sets `a`, `b`, `out` and `in`, the operands' types in names
#     string(APPEND instances "...")                              the kernel as C++
#     bwgemm_count_kernel(1)                                      adds to `in_unit`, the kernels in `instances`; one that takes
#                                                                 as long to compile as several counts as several
#     bwgemm_write_unit(group arch instance.cu.in)                when these are to be compiled together, as when
#                                                                 `in_unit` has reached `bwgemm_kernels_per_unit`
#   bwgemm_compile_list(library HEADERS file...)
#
# Macros, as configure_file() reads the caller's variables. Names of groups are in cache keys: see bwgemm_kernel_library.

# A unit parses the same headers whatever it holds, and kernels of CUTLASS's share most of their instantiations: few large
# units take the least work, many the least time where there are processors for them.
set(bwgemm_kernels_per_unit ${BWGEMM_KERNELS_PER_UNIT})
if(bwgemm_kernels_per_unit EQUAL 0)
  set(bwgemm_kernels_per_unit 16)
  if(bwgemm_processors LESS_EQUAL 4)
    set(bwgemm_kernels_per_unit 64)
  endif()
endif()

macro(bwgemm_read_list list folder regex)
  set(unit_dir "${CMAKE_BINARY_DIR}/generated/${folder}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${list}")
  file(STRINGS ${list} lines REGEX "${regex}")
  set(units "")
  set(groups "")
  set(kernel_count 0)
  set(instances "")
  set(in_unit 0)
  set(linked_files "")
  set(linked_index "")
endmacro()

# A pair of types has no `out`.
macro(bwgemm_types types)
  string(REPLACE ":" ";" type_list "${types}")
  list(GET type_list 0 a)
  list(GET type_list 1 b)
  list(LENGTH type_list type_count)
  if(type_count GREATER 2)
    list(GET type_list 2 out)
  endif()
  set(in ${a})
  if(NOT a STREQUAL b)
    set(in ${a}_${b})
  endif()
endmacro()

macro(bwgemm_count_kernel weight)
  math(EXPR kernel_count "${kernel_count} + 1")
  math(EXPR in_unit "${in_unit} + ${weight}")
endmacro()

# Counts kernel `name`. Its machine code is that of `code`, another kernel of the same line, unless the filter leaves that out.
macro(bwgemm_count_kernel_of_code name code)
  if("${code}" STREQUAL "${name}" OR NOT "${code}" MATCHES "${BWGEMM_KERNEL_FILTER}")
    bwgemm_count_kernel(1)
  else()
    bwgemm_count_kernel(0)
  endif()
endmacro()

# Writes a translation unit with the instances collected so far, if there are any.
macro(bwgemm_write_unit name unit_arch template)
  if(instances)
    set(group "${name}")
    configure_file(${template} "${unit_dir}/${group}.cu" @ONLY)
    list(APPEND units "${unit_arch}/${unit_dir}/${group}.cu")
    string(APPEND groups "BWGEMM_GROUP(${group})\n")
    set(instances "")
    set(in_unit 0)
  endif()
endmacro()

# The same, of several lines: units of a prefix and an architecture are numbered.
macro(bwgemm_write_shared_unit prefix unit_arch template)
  list(LENGTH units unit_number)
  bwgemm_write_unit("${prefix}_${unit_number}" "${unit_arch}" "${template}")
endmacro()

# Sets `kind`, as names say it, and `contraction` of a line of ROWS or CONTRACT.
macro(bwgemm_grouped_kind form)
  if("${form}" STREQUAL "CONTRACT")
    set(kind contract)
    set(contraction Contraction::kKGrouped)
  else()
    set(kind rows)
    set(contraction Contraction::kMGrouped)
  endif()
endmacro()

# bwgemm_compile_list(library UNITS arch/file.cu... HEADERS file...): the units written and those given, which come first.
macro(bwgemm_compile_list library)
  cmake_parse_arguments(list "" "" "UNITS;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT "${unit_dir}/kernel_groups.inc" CONTENT "${groups}")
  bwgemm_kernel_library(${library} COUNT ${kernel_count} UNITS ${list_UNITS} ${units} HEADERS ${list_HEADERS})
endmacro()
