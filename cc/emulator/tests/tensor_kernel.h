// Runs a PTX text made of pieces, for tests of tensor instructions.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "emulator/machine/machine.h"
#include "emulator/tests/tensor_check.h"

namespace bwgemm::emulator::testing {

// A buffer aligned for tensor maps and vector accesses.
class Buffer {
 public:
  explicit Buffer(size_t bytes, uint8_t fill = 0) : storage_(bytes + 256, fill), bytes_(bytes) {}
  uint8_t* data() {
    return storage_.data() + (256 - reinterpret_cast<uintptr_t>(storage_.data()) % 256);
  }
  size_t size() const { return bytes_; }
  uint64_t address() { return reinterpret_cast<uintptr_t>(data()); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }

 private:
  std::vector<uint8_t> storage_;
  size_t bytes_;
};

// Parameter block of 64-bit values and tensor maps (each .align 64).
class Params {
 public:
  Params& u64(uint64_t value) { return append(&value, 8, 8); }
  Params& blob(const void* data, size_t bytes) { return append(data, bytes, 64); }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  Params& append(const void* data, size_t bytes, size_t align) {
    const size_t at = (bytes_.size() + align - 1) / align * align;
    bytes_.resize(at + bytes);
    std::memcpy(bytes_.data() + at, data, bytes);
    return *this;
  }
  std::vector<uint8_t> bytes_;
};

struct Launcher {
  Dim3 grid, block{128, 1, 1}, cluster;
  LaunchConfig config;
  GlobalMemory memory;

  void add(Buffer& buffer, bool writable, const char* name) {
    memory.add(buffer.data(), buffer.size(), writable, name);
  }
  // Runs entry "k".
  LaunchResult run(const std::string& ptx, const Params& params) {
    if (config.step_limit == LaunchConfig().step_limit) config.step_limit = 1 << 22;
    try {
      const auto module = Module::load(ptx);
      return launch(memory, *module, "k", params.bytes(), grid, block, cluster, 0, config);
    } catch (const Error& error) {
      LaunchResult result;
      result.ok = false;
      result.kind = error.kind;
      result.error = error.what();
      result.line = error.line;
      return result;
    }
  }
};

// Everything around a kernel body. Registers: %r<64>, %d<64> (64 bits), %p<8>, %h<8> (16 bits),
// %v<256>. Shared: buf (aligned to 1024), bar[4], slot. Before the body: %r0 tid, %r1 warp, %r2 CTA
// rank, %r3 buf, %r4 bar, %r5 slot, %p0 tid == 0.
inline std::string kernel(const std::string& params, const std::string& body,
                          int shared_bytes = 65536, const char* target = "sm_100a") {
  return std::string(".version 8.8\n.target ") + target + "\n.address_size 64\n" +
         ".visible .entry k(" + params + ")\n{\n" +
         ".reg .b32 %r<64>;\n.reg .b64 %d<64>;\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n"
         ".reg .b32 %v<256>;\n.reg .f32 %f<256>;\n" +
         ".shared .align 1024 .b8 buf[" + std::to_string(shared_bytes) +
         "];\n.shared .align 8 .b64 bar[4];\n.shared .align 16 .b8 slot[16];\n" +
         "mov.u32 %r0, %tid.x;\nshr.u32 %r1, %r0, 5;\nmov.u32 %r2, %cluster_ctarank;\n"
         "mov.u32 %r3, buf;\nmov.u32 %r4, bar;\nmov.u32 %r5, slot;\nsetp.eq.u32 %p0, %r0, 0;\n" +
         body + "\nret;\n}\n";
}

// Thread 0 initialises the four barriers for one arrival; everyone, in the whole cluster, waits.
inline std::string init_barriers() {
  return "@!%p0 bra INITED;\n"
         "mbarrier.init.shared::cta.b64 [%r4], 1;\nmbarrier.init.shared::cta.b64 [%r4+8], 1;\n"
         "mbarrier.init.shared::cta.b64 [%r4+16], 1;\nmbarrier.init.shared::cta.b64 [%r4+24], 1;\n"
         "fence.mbarrier_init.release.cluster;\nINITED:\n" +
         std::string("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n");
}

inline std::string cluster_sync() {
  return "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
}

// All executing threads wait until phase `parity` of barrier `index` has completed.
inline std::string wait(int index, int parity, const std::string& label) {
  return label + ":\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [%r4+" +
         std::to_string(8 * index) + "], " + std::to_string(parity) + ";\n@!%p7 bra " + label +
         ";\n";
}

}  // namespace bwgemm::emulator::testing
