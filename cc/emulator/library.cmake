# The library of its sources.
add_library(bwgemm_emulator STATIC
  ptx/lexer.cc
  ptx/declarations.cc
  ptx/constants.cc
  ptx/operands.cc
  ptx/parser.cc
  ptx/statements.cc
  ptx/quoting.cc
  machine/error.cc
  machine/rules.cc
  machine/race.cc
  machine/race_access.cc
  machine/race_grids.cc
  machine/race_lanes.cc
  machine/race_maps.cc
  machine/race_reports.cc
  machine/race_sync.cc
  machine/barrier.cc
  machine/memory.cc
  machine/mbarrier.cc
  machine/decoder.cc
  machine/kernel_builder.cc
  machine/kernel_symbols.cc
  machine/function_pointers.cc
  machine/recursion.cc
  machine/module.cc
  machine/targets.cc
  machine/undefined.cc
  machine/warp.cc
  machine/warp_memory.cc
  machine/warp_registers.cc
  machine/warp_start.cc
  machine/launch.cc
  machine/grid.cc
  machine/livelock.cc
  machine/scheduler.cc
  isa/isa.cc
  isa/forms.cc
  isa/integer.cc
  isa/extended.cc
  isa/float.cc
  isa/functions.cc
  isa/half.cc
  isa/logic.cc
  isa/bits.cc
  isa/compare.cc
  isa/select.cc
  isa/convert.cc
  isa/convert_narrow.cc
  isa/convert_pack.cc
  isa/move.cc
  isa/control.cc
  isa/setmaxnreg.cc
  isa/call.cc
  isa/recursive_call.cc
  isa/extern_call.cc
  isa/memory.cc
  isa/bulk_store.cc
  isa/fence.cc
  isa/atomic.cc
  isa/warp.cc
  isa/barrier.cc
  isa/mbarrier.cc
  isa/async_store.cc
  isa/cp_async.cc
  isa/matrix.cc
  isa/matrix_access.cc
  isa/wmma.cc
  isa/video.cc)
target_compile_features(bwgemm_emulator PUBLIC cxx_std_17)
set_target_properties(bwgemm_emulator PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS ON)
target_include_directories(bwgemm_emulator PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/..)
target_compile_options(bwgemm_emulator PRIVATE ${bwgemm_emulator_options})
# Several files are compiled as one. Not those of isa/, many of which have short names for the same things.
set_target_properties(bwgemm_emulator PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
get_target_property(sources bwgemm_emulator SOURCES)
list(FILTER sources INCLUDE REGEX "^isa/")
set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# What most files include: reading it took half of their time. Not with ccache, which keeps few files that use such a header.
if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  target_precompile_headers(bwgemm_emulator PRIVATE
    <algorithm> <array> <cmath> <cstdint> <cstring> <deque> <exception> <limits> <map> <memory> <mutex> <optional> <set>
    <stdexcept> <string> <string_view> <unordered_map> <utility> <vector>
    isa/isa.h isa/lanes.h machine/launch.h)
endif()
if(BWGEMM_EMULATOR_SANITIZE)
  target_compile_options(bwgemm_emulator PUBLIC -Og -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(bwgemm_emulator PUBLIC -fsanitize=address,undefined)
endif()

add_subdirectory(tensor)
