// Constant expressions (PTX ISA 4.5.5): integers of 64 bits, signed or unsigned, and floating-point
// numbers.
#pragma once

#include <cstdint>
#include <string_view>

#include "emulator/ptx/reader.h"

namespace bwgemm::emulator::ptx {

struct Constant {
  enum class Kind : uint8_t { kSigned, kUnsigned, kFloat };
  Kind kind = Kind::kSigned;
  bool is_single = false;  // written 0fXXXXXXXX, then `bits` holds its image
  uint64_t bits = 0;
  double real = 0;
};

class Constants : public Reader {
 public:
  using Reader::Reader;

 protected:
  bool at_constant() const;
  Constant constant() { return conditional(0); }
  // One that must be an integer; `what` names it in the refusal.
  int64_t integer(const char* what);

 private:
  struct Operator {
    std::string_view text;
    int level;  // those of higher levels bind tighter
  };
  bool at_size_of_warp() const { return cur().kind == Kind::kName && cur().text == "WARP_SZ"; }
  const Operator* binary_operator() const;
  Constant conditional(int depth);
  Constant binary(int least_level, int depth);
  Constant unary(int depth);
  Constant primary(int depth);
  Constant apply(std::string_view op, const Constant& a, const Constant& b) const;
  Constant apply_float(std::string_view op, double a, double b) const;
};

}  // namespace bwgemm::emulator::ptx
