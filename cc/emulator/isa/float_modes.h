// Modifiers of floating-point instructions: rounding modes, .ftz, .sat (PTX ISA 9.7.3).
#pragma once

#include <cfenv>
#include <cmath>

#include "emulator/isa/numbers.h"
#include "emulator/machine/decoder.h"

namespace bwgemm::emulator {

// Flushes subnormal values to zero of the same sign (.ftz).
inline float flush(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
template <typename T>
T saturate(T x) {
  return x > 0 ? (x < 1 ? x : T{1}) : T{0};
}  // NaN gives 0

enum FloatFlags : uint8_t { kFtz = 1, kSat = 2, kNanFlag = 4, kXorSign = 8, kAbsFlag = 16 };

// Other rounding modes than nearest even switch the host's mode around the lane loop. noinline and
// volatile operands keep the compiler from moving the arithmetic across the switch.
inline int host_mode(Rounding r) {
  switch (r) {
    case Rounding::kZero:
      return FE_TOWARDZERO;
    case Rounding::kDown:
      return FE_DOWNWARD;
    case Rounding::kUp:
      return FE_UPWARD;
    default:
      return FE_TONEAREST;
  }
}

class ScopedRounding {
 public:
  explicit ScopedRounding(Rounding r) : before_(std::fegetround()) {
    std::fesetround(host_mode(r));
  }
  ~ScopedRounding() { std::fesetround(before_); }

 private:
  int before_;
};

inline Rounding take_rounding(Decoder& d) {
  const auto mode = d.mod_one_of({"rn", "rz", "rm", "rp"});
  return mode == "rz"   ? Rounding::kZero
         : mode == "rm" ? Rounding::kDown
         : mode == "rp" ? Rounding::kUp
                        : Rounding::kNearestEven;
}

}  // namespace bwgemm::emulator
