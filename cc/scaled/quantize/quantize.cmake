# Quantization -> bwgemm_quantize_kernels: machine code for every architecture of the build.
file(GLOB headers CONFIGURE_DEPENDS quantize/*.h ../core/*.h)
bwgemm_kernel_library(bwgemm_quantize_kernels COUNT 24 HEADERS ${headers}
  UNITS "portable/${CMAKE_CURRENT_SOURCE_DIR}/quantize/quantize.cu")
