# Quantization -> bwgemm_quantize_kernels: machine code for every architecture of the build.
file(GLOB headers CONFIGURE_DEPENDS quantize/*.h ../core/*.h)
bwgemm_kernel_library(bwgemm_quantize_kernels COUNT 24 HEADERS ${headers}
  UNITS "portable/${CMAKE_CURRENT_SOURCE_DIR}/quantize/quantize.cu")

# Kernels that quantize what a linked function computes.
set(units "")
set(index "")
foreach(arch IN LISTS BWGEMM_ARCHS)
  set(unit "${CMAKE_BINARY_DIR}/generated/quantize/linked/${arch}_quantize.cu")
  configure_file(quantize/linked.cu.in "${unit}" @ONLY)
  list(APPEND units "${unit}")
  foreach(type bfloat16 random_bfloat16 float16 random_float16)
    string(APPEND index "${arch}_quantize_${type} ${arch}_quantize.fatbin\n")
  endforeach()
endforeach()
bwgemm_linked_kernels(quantize UNITS ${units} HEADERS ${headers} INDEX "${index}")
