// Runs a kernel body over a buffer of words, for tests of the machine.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/tests/tensor_kernel.h"

namespace bwgemm::emulator::testing {

constexpr int kOut = 4096;

// A kernel with %out (u64, pointer to kOut u32, preset to 0), %thread, %cta, %rank; registers
// %r<32>, %d<16>, %p<8>, %f<8>.
struct Run {
  Dim3 grid, block{32, 1, 1}, cluster;
  LaunchConfig config;
  std::string declarations;  // before the entry
  std::string directives;    // after the parameters
  LaunchResult result;
  uint32_t out[kOut];

  static std::string text(const std::string& declarations, const std::string& directives,
                          const std::string& body) {
    return ".version 8.8\n.target sm_100a\n.address_size 64\n" + declarations +
           "\n.visible .entry k(.param .u64 out) " + directives +
           "{\n.reg .b64 %out, %at, %d<16>;\n.reg .b32 %thread, %cta, %rank, %r<32>;\n.reg .pred "
           "%p<8>;\n.reg .f32 %f<8>;\n"
           "ld.param.u64 %out, [out];\nmov.u32 %thread, %tid.x;\nmov.u32 %cta, %ctaid.x;\nmov.u32 "
           "%rank, %cluster_ctarank;\n" +
           body + "\nret;\n}\n";
  }

  Run& operator()(const std::string& body) {
    Launcher launcher;
    launcher.grid = grid;
    launcher.block = block;
    launcher.cluster = cluster;
    launcher.config = config;
    Buffer buffer(kOut * 4);
    launcher.add(buffer, true, "out");
    result = launcher.run(text(declarations, directives, body), Params().u64(buffer.address()));
    std::memcpy(out, buffer.data(), sizeof out);
    return *this;
  }
  Run& ok() {
    CHECK_TEXT(result.error, "");
    CHECK(result.ok);
    return *this;
  }
  Run& fails(ErrorKind kind, const std::string& message) {
    CHECK(!result.ok);
    CHECK_EQ(static_cast<int>(result.kind), static_cast<int>(kind));
    CHECK_TEXT(result.error, message);
    return *this;
  }
};

// out[global thread] = %r0.
inline const char* const kStore =
    "\nmov.u32 %r30, %ntid.x;\nmad.lo.u32 %r31, %cta, %r30, %thread;\nmul.wide.u32 %at, %r31, "
    "4;\nadd.s64 %at, %at, %out;\nst.global.u32 [%at], %r0;\n";

}  // namespace bwgemm::emulator::testing
