# A line of scaled.def and scaled_grouped.def.

# Reads `line`: sets `form` and `swap_ab` from both groups of the regular expression `forms`, which follows SCALED_, and `arch`,
# `tile`, `schedule`, `scales` and `suffix`, the end of its kernels' names.
macro(bwgemm_scaled_line list forms)
  # An expression of CMake 3.24 has at most nine groups: the words at the end are taken off first.
  string(REGEX REPLACE "(, (no_e5m2|no_f32|e2m1|linked))*\\)$" ")" plain "${line}")
  if(NOT plain MATCHES "^SCALED_${forms}\\(([a-z0-9]+), ([0-9]+), ([0-9]+), ([0-9]+), ([0-9]+, [0-9]+), ([a-z0-9]+), (sums|blocks|rows|mma)\\)$")
    message(FATAL_ERROR "jax_bwgemm: ${list}: cannot read '${line}'")
  endif()
  set(form "${CMAKE_MATCH_1}")
  set(swapped "${CMAKE_MATCH_2}")
  set(arch ${CMAKE_MATCH_3})
  set(tile "${CMAKE_MATCH_4}, ${CMAKE_MATCH_5}, ${CMAKE_MATCH_6}, ${CMAKE_MATCH_7}")
  set(schedule ${CMAKE_MATCH_8})
  set(scales ${CMAKE_MATCH_9})
  string(REPLACE ", " "x" suffix "${scales}_${CMAKE_MATCH_4}x${CMAKE_MATCH_5}x${CMAKE_MATCH_6}_${CMAKE_MATCH_7}_${schedule}")
  set(swap_ab false)
  if(swapped)
    set(swap_ab true)
    string(APPEND suffix "_swap")
  endif()
endmacro()
