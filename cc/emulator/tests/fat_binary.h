// Builds fat binaries for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bwgemm::emulator::testing {

struct FatEntry {
  uint16_t kind;  // 1 = PTX, 2 = machine code
  std::string payload;
  uint32_t compressed = 0;
  uint32_t arch = 100;
};

inline void append(std::string* out, uint64_t value, int bytes) {
  out->append(reinterpret_cast<const char*>(&value), bytes);
}

inline std::string fat_binary(const std::vector<FatEntry>& entries) {
  std::string payload;
  for (const FatEntry& e : entries) {
    append(&payload, e.kind, 2);
    append(&payload, 0x101, 2);
    append(&payload, 64, 4);  // header
    append(&payload, e.payload.size(), 8);
    append(&payload, e.compressed, 4);
    append(&payload, 64, 4);
    append(&payload, 0x90000, 4);
    append(&payload, e.arch, 4);
    payload.append(32, '\0');
    payload += e.payload;
  }
  std::string container;
  append(&container, 0xBA55ED50, 4);
  append(&container, 1, 2);
  append(&container, 16, 2);
  append(&container, payload.size(), 8);
  return container + payload;
}

}  // namespace bwgemm::emulator::testing
