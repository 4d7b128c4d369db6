// The 32-bit instruction descriptor of tcgen05.mma: PTX ISA 9.7.16.4.2, and the shapes that each
// kind allows: 9.7.16.2.1.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/tensor/number_formats.h"
#include "emulator/tensor/smem_descriptor.h"

namespace bwgemm::emulator {

enum class MmaKind : uint8_t { kF16, kTF32, kF8F6F4, kI8, kMXF8F6F4, kMXF4, kMXF4NVF4 };

const char* kind_name(MmaKind kind);
bool is_block_scaled(MmaKind kind);

// Elements of K that share a scale, as the instruction says it; 0: it does not.
// False where `kind` has no such blocks.
bool resolve_block(MmaKind kind, int stated, int* block);

// Elements of the K extent of one dense instruction.
int instruction_k(MmaKind kind);

struct InstrDescriptor {
  int m = 0;
  int n = 0;
  int k = 0;
  NumberFormat a = NumberFormat::kBF16;
  NumberFormat b = NumberFormat::kBF16;
  NumberFormat d = NumberFormat::kF32;  // kF32, kF16 or kS32
  Major a_major = Major::kK;
  Major b_major = Major::kK;
  bool negate_a = false;
  bool negate_b = false;
  bool saturate = false;
  // Block-scaled kinds: format of the scales, and which bytes of a 32-bit cell hold them, from the
  // given one on.
  NumberFormat scale = NumberFormat::kUE8M0;
  int scale_a_id = 0;
  int scale_b_id = 0;
  int max_shift = 0;  // rows; only concerns operand reuse of .ws, which has no effect on values
};

// Decodes and checks `bits` for a dense instruction of `kind` run by `cta_group` CTAs; `weight
// stationary` is the .ws form. Returns false with the reason in `error`.
bool decode_instr_descriptor(uint32_t bits, MmaKind kind, int cta_group, bool weight_stationary,
                             InstrDescriptor* out, std::string* error);

// The same of a block-scaled kind, whose scales are shared by `block` elements of K each.
bool decode_scaled_descriptor(uint32_t bits, MmaKind kind, int cta_group, int block,
                              InstrDescriptor* out, std::string* error);

}  // namespace bwgemm::emulator
