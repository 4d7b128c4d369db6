#include "emulator/tensor/instr_descriptor.h"

namespace bwgemm::emulator {
namespace {

bool fail(std::string* error, const std::string& what) {
  *error = "instruction descriptor: " + what;
  return false;
}

// Meaning of a three-bit element-format field.
bool element_format(MmaKind kind, int code, NumberFormat* out) {
  switch (kind) {
    case MmaKind::kF16:
      if (code > 1) return false;
      *out = code == 0 ? NumberFormat::kF16 : NumberFormat::kBF16;
      return true;
    case MmaKind::kTF32:
      *out = NumberFormat::kTF32;
      return code == 2;
    case MmaKind::kI8:
      if (code > 1) return false;
      *out = code == 0 ? NumberFormat::kU8 : NumberFormat::kS8;
      return true;
    case MmaKind::kMXF4:
    case MmaKind::kMXF4NVF4:
      *out = NumberFormat::kE2M1Packed;
      return code == 1;
    case MmaKind::kF8F6F4:
    case MmaKind::kMXF8F6F4: {
      static constexpr NumberFormat kFormats[6] = {NumberFormat::kE4M3, NumberFormat::kE5M2,
                                                   NumberFormat::kE4M3, NumberFormat::kE2M3,
                                                   NumberFormat::kE3M2, NumberFormat::kE2M1};
      if (code > 5 || code == 2) return false;
      *out = kFormats[code];
      return true;
    }
  }
  return false;
}

bool accumulator_format(MmaKind kind, int code, NumberFormat* out) {
  static constexpr NumberFormat kFormats[3] = {NumberFormat::kF16, NumberFormat::kF32,
                                               NumberFormat::kS32};
  if (code > 2) return false;
  *out = kFormats[code];
  switch (kind) {
    case MmaKind::kTF32:
      return code == 1;
    case MmaKind::kI8:
      return code == 2;
    default:
      return code <= 1;
  }
}

// Fields that both descriptor formats have in the same place.
bool decode_common(uint32_t bits, MmaKind kind, InstrDescriptor* out, std::string* error) {
  const std::string name = std::string("kind::") + kind_name(kind);
  if (bits & 4) return fail(error, "sparse A (bit 2) is not implemented");
  out->m = static_cast<int>((bits >> 24) & 31) * 16;
  out->n = static_cast<int>((bits >> 17) & 63) * 8;
  out->k = instruction_k(kind);
  const int a_code = static_cast<int>((bits >> 7) & 7);
  const int b_code = static_cast<int>((bits >> 10) & 7);
  if (!element_format(kind, a_code, &out->a)) {
    return fail(error, "A format " + std::to_string(a_code) + " is not one of " + name);
  }
  if (!element_format(kind, b_code, &out->b)) {
    return fail(error, "B format " + std::to_string(b_code) + " is not one of " + name);
  }
  out->negate_a = (bits >> 13) & 1;
  out->negate_b = (bits >> 14) & 1;
  out->a_major = (bits >> 15) & 1 ? Major::kMN : Major::kK;
  out->b_major = (bits >> 16) & 1 ? Major::kMN : Major::kK;
  if ((out->a_major == Major::kMN && format_bits(out->a) < 8) ||
      (out->b_major == Major::kMN && format_bits(out->b) < 8)) {
    return fail(error, "MN-major operands narrower than 8 bits are not defined");
  }
  return true;
}

bool shape_allowed(MmaKind kind, int cta_group, bool weight_stationary, int m, int n) {
  if (weight_stationary) {
    return (m == 32 || m == 64 || m == 128) && (n == 64 || n == 128 || n == 256);
  }
  if (n > 256) return false;
  if (is_block_scaled(kind)) {
    const int step = 8 * cta_group;
    return m == 128 * cta_group && n >= step && n % step == 0;
  }
  if (cta_group == 2) {
    const int step = kind == MmaKind::kI8 ? 32 : 16;
    return (m == 128 || m == 256) && n >= step && n % step == 0;
  }
  if (kind == MmaKind::kI8) return (m == 64 || m == 128) && (n == 8 || (n >= 16 && n % 16 == 0));
  if (m == 64) return n >= 8 && n % 8 == 0;
  return m == 128 && n >= 16 && n % 16 == 0;
}

}  // namespace

const char* kind_name(MmaKind kind) {
  static constexpr const char* kNames[7] = {"f16",      "tf32", "f8f6f4",  "i8",
                                            "mxf8f6f4", "mxf4", "mxf4nvf4"};
  return kNames[static_cast<int>(kind)];
}

bool is_block_scaled(MmaKind kind) {
  return kind == MmaKind::kMXF8F6F4 || kind == MmaKind::kMXF4 || kind == MmaKind::kMXF4NVF4;
}

int instruction_k(MmaKind kind) {
  switch (kind) {
    case MmaKind::kF16:
      return 16;
    case MmaKind::kTF32:
      return 8;
    case MmaKind::kMXF4:
    case MmaKind::kMXF4NVF4:
      return 64;
    default:
      return 32;
  }
}

bool resolve_block(MmaKind kind, int stated, int* block) {
  *block = stated != 0 ? stated : 32;
  return kind == MmaKind::kMXF4NVF4 ? stated == 16 || stated == 32 : *block == 32;
}

bool decode_instr_descriptor(uint32_t bits, MmaKind kind, int cta_group, bool weight_stationary,
                             InstrDescriptor* out, std::string* error) {
  if (!decode_common(bits, kind, out, error)) return false;
  const std::string name = std::string("kind::") + kind_name(kind);
  const int d_code = static_cast<int>((bits >> 4) & 3);
  if (!accumulator_format(kind, d_code, &out->d)) {
    return fail(error, "D format " + std::to_string(d_code) + " is not one of " + name);
  }
  out->saturate = bits & 8;
  if (out->saturate && kind != MmaKind::kI8) return fail(error, "saturate needs kind::i8");
  if ((out->negate_a || out->negate_b) && kind == MmaKind::kI8) {
    return fail(error, "negation is not defined for kind::i8");
  }
  out->max_shift = (bits >> 30) ? 4 << (bits >> 30) : 0;
  if (!shape_allowed(kind, cta_group, weight_stationary, out->m, out->n)) {
    return fail(error, "shape M=" + std::to_string(out->m) + " N=" + std::to_string(out->n) +
                           " is not allowed for " + name + (weight_stationary ? ".ws" : "") +
                           " with cta_group::" + std::to_string(cta_group));
  }
  return true;
}

bool decode_scaled_descriptor(uint32_t bits, MmaKind kind, int cta_group, int block,
                              InstrDescriptor* out, std::string* error) {
  if (!decode_common(bits, kind, out, error)) return false;
  const std::string name = std::string("kind::") + kind_name(kind);
  if (bits >> 31) return fail(error, "K of 96 elements (bit 31) is not implemented");
  if (!shape_allowed(kind, cta_group, false, out->m, out->n)) {
    return fail(error, "shape M=" + std::to_string(out->m) + " N=" + std::to_string(out->n) +
                           " is not allowed for " + name +
                           " with cta_group::" + std::to_string(cta_group));
  }
  out->d = NumberFormat::kF32;
  out->scale = (bits >> 23) & 1 ? NumberFormat::kUE8M0 : NumberFormat::kUE4M3;
  if (out->scale == NumberFormat::kUE4M3 && block != 16) {
    return fail(error, "scales in UE4M3 (bit 23) need kind::mxf4nvf4 and blocks of 16");
  }
  out->scale_b_id = static_cast<int>((bits >> 4) & 3);
  out->scale_a_id = static_cast<int>((bits >> 29) & 3);
  const int scales = out->k / block;  // bytes of a cell that the instruction reads
  for (const int id : {out->scale_a_id, out->scale_b_id}) {
    if (id % scales != 0) {
      return fail(error, "scale factor id " + std::to_string(id) + " with " +
                             std::to_string(scales) + " scales along K");
    }
  }
  return true;
}

}  // namespace bwgemm::emulator
