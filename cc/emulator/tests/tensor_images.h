// Images of matrix operands in shared memory, laid out by the canonical layouts of PTX
// ISA 9.7.15.5.1.2 and 9.7.16.3.3 and independently of the code under test.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "emulator/tensor/number_formats.h"
#include "emulator/tests/tensor_kernel.h"

namespace bwgemm::emulator::testing {

inline int element_bytes(NumberFormat f) { return std::max(8, format_bits(f)) / 8; }
// Small integers, exact in every format.
inline int value_a(int m, int k) { return (m * 5 + k * 3 + m / 16) % 7 - 3; }
inline int value_b(int k, int n) { return (n * 3 + k * 5 + n / 8) % 5 - 2; }

inline uint32_t find_encoding(NumberFormat f, int value) {
  for (uint32_t bits = 0; f != NumberFormat::kTF32 && bits < 65536; ++bits) {
    if (decode(f, bits) == static_cast<float>(value)) return bits;
  }
  return bits_from_float(static_cast<float>(value));
}
inline uint32_t encode(NumberFormat f, int value) {
  static std::map<std::pair<NumberFormat, int>, uint32_t> found;
  const auto [at, is_new] = found.try_emplace({f, value});
  if (is_new) at->second = find_encoding(f, value);
  return at->second;
}

// Byte offset of element (mn, k) in its image, and the offsets a descriptor needs.
struct Layout {
  bool mn_major;
  int span, bytes, mn, k;                               // extents of the image
  int group() const { return span == 0 ? 16 : span; }   // bytes of one contiguous row
  bool wide() const { return mn_major && bytes == 4; }  // 32-byte atoms
  int atom_rows() const { return wide() ? 4 : 8; }
  int stride() const {
    if (mn_major && span == 0) return 128;                  // next 8 elements along MN
    return mn_major ? group() * atom_rows() : group() * 8;  // next 8 along K / MN
  }
  int leading() const {
    if (mn_major && span == 0) return mn * bytes / 16 * 128;  // next 8 along K
    if (mn_major) return k * group();                         // next row of atoms along MN
    return span == 0 ? mn * 16 : 16;
  }
  int offset(int i_mn, int i_k) const {
    const int outer = mn_major ? i_k : i_mn;
    const int inner = (mn_major ? i_mn : i_k) * bytes;
    if (span == 0) {
      const int chunk = inner / 16;
      const int base = mn_major ? chunk * stride() + outer / 8 * leading()
                                : chunk * leading() + outer / 8 * stride();
      return base + outer % 8 * 16 + inner % 16;
    }
    const int rows = atom_rows();
    const int block = inner / group();
    int base = outer / rows * stride() + outer % rows * group();
    base += mn_major ? block * leading() : block * (mn * group());
    const int within = inner % group();
    if (wide()) {
      return base + ((within / 32) ^ (outer % 4)) * 32 + within % 32;
    }
    // 128-byte lines count the pattern: rows narrower than a line share one.
    const int line = outer % rows * group() / 128;
    const int mask = group() / 16 - 1;
    return base + (((within / 16) ^ line) & mask) * 16 + within % 16;
  }
  // Rows take whole multiples of the swizzle width.
  int size() const {
    const int outer = mn_major ? k : mn;
    const int inner = (mn_major ? mn : k) * bytes;
    return outer * ((inner + group() - 1) / group() * group());
  }
  // tcgen05 descriptor of the part that starts at K index `k0`.
  uint64_t descriptor(uint32_t start, int k0) const {
    const uint64_t layout = span == 0 ? 0 : span == 32 ? 6 : span == 64 ? 4 : wide() ? 1 : 2;
    return fields(start, k0) | (uint64_t{1} << 46) | (layout << 61);
  }
  uint64_t wgmma_descriptor(uint32_t start, int k0) const {
    const uint64_t layout = span == 0 ? 0 : span == 32 ? 3 : span == 64 ? 2 : 1;
    return fields(start, k0) | (layout << 62);
  }

 private:
  uint64_t fields(uint32_t start, int k0) const {
    uint32_t at = start;
    if (mn_major) {
      at += span == 0 ? k0 / 8 * leading() : k0 / atom_rows() * stride();
    } else {
      at += span == 0 ? k0 * bytes / 16 * leading()
                      : k0 * bytes % group() + k0 * bytes / group() * mn * group();
    }
    return static_cast<uint64_t>(at >> 4) | (static_cast<uint64_t>(leading() >> 4) << 16) |
           (static_cast<uint64_t>(stride() >> 4) << 32);
  }
};

// Writes CTA number `cta`'s image: rows mn0... of A, or columns mn0... of B.
inline void fill(Buffer& image, int cta, const Layout& layout, NumberFormat format, int mn0,
                 bool is_a) {
  for (int i = 0; i < layout.mn; ++i) {
    for (int k = 0; k < layout.k; ++k) {
      const int value = is_a ? value_a(mn0 + i, k) : value_b(k, mn0 + i);
      uint8_t* to = image.data() + static_cast<size_t>(cta) * layout.size();
      if (format_bits(format) >= 8) {
        const uint32_t bits = encode(format, value);
        std::memcpy(to + layout.offset(i, k), &bits, layout.bytes);
      } else {
        // Sixteen packed elements at the low end of each 16-byte chunk.
        const int bit = k % 16 * format_bits(format);
        uint8_t* chunk = to + layout.offset(i, k / 16 * 16);
        for (int j = 0; j < format_bits(format); ++j) {
          const int at = bit + j;
          if ((encode(format, value) >> j) & 1)
            chunk[at / 8] |= static_cast<uint8_t>(1 << (at % 8));
        }
      }
    }
  }
}

}  // namespace bwgemm::emulator::testing
