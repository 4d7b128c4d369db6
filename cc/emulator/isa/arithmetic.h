// Decoders of arithmetic mnemonics that exist for several kinds of types; float.cc's entries choose
// among them by the type suffix.
#pragma once

#include "emulator/isa/numbers.h"
#include "emulator/machine/decoder.h"

namespace bwgemm::emulator {

// integer.cc
void decode_integer_add(Decoder& d);
void decode_integer_sub(Decoder& d);
void decode_integer_mul(Decoder& d);
void decode_integer_mad(Decoder& d);
void decode_integer_min(Decoder& d);
void decode_integer_max(Decoder& d);
void decode_integer_abs(Decoder& d);
void decode_integer_neg(Decoder& d);
void decode_integer_div(Decoder& d);
// extended.cc: add.cc, sub.cc, mad.cc
void decode_add_cc(Decoder& d);
void decode_sub_cc(Decoder& d);
void decode_mad_cc(Decoder& d);
// half.cc
void decode_half_add(Decoder& d);
void decode_half_sub(Decoder& d);
void decode_half_mul(Decoder& d);
void decode_half_fma(Decoder& d);
void decode_half_min(Decoder& d);
void decode_half_max(Decoder& d);
void decode_half_abs(Decoder& d);
void decode_half_neg(Decoder& d);
void decode_half_ex2(Decoder& d);
void decode_half_tanh(Decoder& d);
void decode_mixed_add(Decoder& d);
void decode_mixed_sub(Decoder& d);
void decode_mixed_fma(Decoder& d);

// convert_pack.cc
void decode_cvt_pack(Decoder& d);
// convert_narrow.cc: 4- and 6-bit floats and scales
struct CvtModifiers {
  Type to, from;
  Rounding rounding = Rounding::kNearestEven;
  bool satfinite = false, relu = false;
};
bool is_narrow(const Type& type);
void decode_cvt_narrow(Decoder& d, const CvtModifiers& modifiers);
// functions.cc
void decode_float_min(Decoder& d);
void decode_float_max(Decoder& d);
void decode_float_abs(Decoder& d);
void decode_float_neg(Decoder& d);
void decode_float_ex2(Decoder& d);
void decode_float_tanh(Decoder& d);

}  // namespace bwgemm::emulator
