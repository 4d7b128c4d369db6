// Tensor maps of matrices and a kernel that copies a box, for tests of tensor copies.
#pragma once

#include <string>

#include "emulator/tensor/tensor_map.h"
#include "emulator/tests/tensor_kernel.h"

namespace bwgemm::emulator::testing {

inline TensorMap matrix_map(Buffer& buffer, TensorMapType type, uint64_t columns, uint64_t rows,
                            uint64_t pitch, uint32_t box_columns, uint32_t box_rows) {
  TensorMap map;
  map.type = type;
  map.rank = 2;
  map.address = buffer.address();
  map.dims = {columns, rows, 0, 0, 0};
  map.strides = {static_cast<uint64_t>(element_bits(type)) / 8, pitch, 0, 0, 0};
  map.box = {box_columns, box_rows, 0, 0, 0};
  map.element_strides = {1, 1, 0, 0, 0};
  return map;
}

inline Params& add_map(Params& params, const TensorMap& map) {
  uint8_t bytes[kTensorMapBytes];
  encode(map, bytes);
  return params.blob(bytes, kTensorMapBytes);
}

constexpr const char* kTwoMaps = ".param .align 64 .b8 a[128], .param .align 64 .b8 b[128]";
constexpr const char* kMapAddresses =
    "mov.b64 %d0, a;\ncvta.param.u64 %d0, %d0;\nmov.b64 %d1, b;\ncvta.param.u64 %d1, %d1;\n";

// Thread 0: load box (%r10, %r11) of map a into buf, wait, store it to box (%r12, %r13) of map b.
inline std::string copy_kernel(
    uint32_t bytes, int x0, int y0, int x1, int y1,
    const std::string& store = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group",
    const char* target = "sm_100a") {
  return kernel(
      kTwoMaps,
      kMapAddresses + init_barriers() + "@!%p0 bra DONE;\n" + "mov.b32 %r10, " +
          std::to_string(x0) + ";\nmov.b32 %r11, " + std::to_string(y0) + ";\nmov.b32 %r12, " +
          std::to_string(x1) + ";\nmov.b32 %r13, " + std::to_string(y1) +
          ";\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], " + std::to_string(bytes) +
          ";\ncp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
          "[%d0, {%r10, %r11}], [%r4];\n" +
          wait(0, 0, "FULL") + store +
          " [%d1, {%r12, %r13}], [%r3];\n"
          "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nDONE:\n",
      65536, target);
}

}  // namespace bwgemm::emulator::testing
