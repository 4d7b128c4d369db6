#include "emulator/machine/decoder.h"

#include <cstring>

#include "emulator/machine/kernel_builder.h"

namespace bwgemm::emulator {

using ptx::Operand;
using Symbol = KernelBuilder::Symbol;

Type parse_type(std::string_view suffix) {
  static const std::unordered_map<std::string_view, Type> kTypes = [] {
    std::unordered_map<std::string_view, Type> types;
    const auto add = [&](std::string_view name, TypeKind kind, int bits, int lanes = 1) {
      types[name] = Type{kind, bits, lanes, name};
    };
    add("b8", TypeKind::kBits, 8), add("b16", TypeKind::kBits, 16), add("b32", TypeKind::kBits, 32);
    add("b64", TypeKind::kBits, 64), add("b128", TypeKind::kBits, 128);
    add("u8", TypeKind::kUnsigned, 8), add("u16", TypeKind::kUnsigned, 16),
        add("u32", TypeKind::kUnsigned, 32), add("u64", TypeKind::kUnsigned, 64);
    add("s8", TypeKind::kSigned, 8), add("s16", TypeKind::kSigned, 16),
        add("s32", TypeKind::kSigned, 32), add("s64", TypeKind::kSigned, 64);
    add("u16x2", TypeKind::kUnsigned, 32, 2), add("s16x2", TypeKind::kSigned, 32, 2);
    add("f16", TypeKind::kFloat, 16), add("f32", TypeKind::kFloat, 32),
        add("f64", TypeKind::kFloat, 64);
    add("f16x2", TypeKind::kFloat, 32, 2), add("f32x2", TypeKind::kFloat, 64, 2);
    add("bf16", TypeKind::kBfloat, 16), add("bf16x2", TypeKind::kBfloat, 32, 2);
    add("tf32", TypeKind::kTf32, 32);
    add("e4m3", TypeKind::kE4m3, 8), add("e4m3x2", TypeKind::kE4m3, 16, 2),
        add("e4m3x4", TypeKind::kE4m3, 32, 4);
    add("e5m2", TypeKind::kE5m2, 8), add("e5m2x2", TypeKind::kE5m2, 16, 2),
        add("e5m2x4", TypeKind::kE5m2, 32, 4);
    add("e2m3x2", TypeKind::kE2m3, 16, 2), add("e3m2x2", TypeKind::kE3m2, 16, 2);
    add("e2m1x2", TypeKind::kE2m1, 8, 2), add("ue8m0x2", TypeKind::kUe8m0, 16, 2);
    add("pred", TypeKind::kPred, 1);
    return types;
  }();
  const auto it = kTypes.find(suffix);
  return it == kTypes.end() ? Type{} : it->second;
}

Decoder::Decoder(KernelBuilder& builder, const ptx::Statement& statement, size_t prefix_parts,
                 Instr& out)
    : builder_(builder), statement_(statement), out_(out) {
  for (size_t i = prefix_parts; i < statement.parts.size(); ++i) {
    // The end of a modifier may stay empty after a broken mnemonic ("a. b"); such parts are
    // ignored.
    if (!statement.parts[i].empty()) mods_.push_back(statement.parts[i]);
  }
}

bool Decoder::mod(std::string_view name) {
  for (size_t i = 0; i < mods_.size(); ++i) {
    if (mods_[i] == name) {
      mods_.erase(mods_.begin() + static_cast<ptrdiff_t>(i));
      return true;
    }
  }
  return false;
}

std::string_view Decoder::mod_one_of(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) {
    if (mod(name)) return name;
  }
  return {};
}

std::string_view Decoder::mod_prefix(std::string_view prefix) {
  for (size_t i = 0; i < mods_.size(); ++i) {
    if (mods_[i].substr(0, prefix.size()) == prefix) {
      const std::string_view found = mods_[i];
      mods_.erase(mods_.begin() + static_cast<ptrdiff_t>(i));
      return found;
    }
  }
  return {};
}

Type Decoder::maybe_type() {
  for (size_t i = 0; i < mods_.size(); ++i) {
    if (const Type type = parse_type(mods_[i])) {
      mods_.erase(mods_.begin() + static_cast<ptrdiff_t>(i));
      return type;
    }
  }
  return {};
}

Type Decoder::peek_type() const {
  for (std::string_view mod : mods_) {
    if (const Type type = parse_type(mod)) return type;
  }
  return {};
}

Type Decoder::type() {
  const Type found = maybe_type();
  if (!found) error("instruction without a type");
  return found;
}

std::string_view Decoder::next_mod() const {
  return mods_.empty() ? std::string_view{} : mods_.front();
}

void Decoder::ignore_mods(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) mod(name);
}

Decoder::SpaceMod Decoder::space() {
  struct Entry {
    std::string_view name;
    ptx::Space space;
    bool cluster;
  };
  static constexpr Entry kEntries[] = {
      {"shared", ptx::Space::kShared, false},         {"shared::cta", ptx::Space::kShared, false},
      {"shared::cluster", ptx::Space::kShared, true}, {"global", ptx::Space::kGlobal, false},
      {"const", ptx::Space::kConst, false},           {"local", ptx::Space::kLocal, false},
      {"param", ptx::Space::kParam, false},           {"param::entry", ptx::Space::kParam, false},
      {"param::func", ptx::Space::kParam, false}};
  for (const Entry& entry : kEntries) {
    if (mod(entry.name)) return {entry.space, entry.cluster};
  }
  return {};
}

bool Decoder::no_mods_left() const { return mods_.empty(); }

std::string Decoder::mods_left() const {
  std::string text;
  for (std::string_view mod : mods_) text += "." + std::string(mod);
  return text;
}

const Operand& Decoder::operand(size_t i) const {
  if (i >= statement_.operands.size()) error("too few operands");
  return statement_.operands[i];
}

void Decoder::expect_operands(size_t least, size_t most) const {
  if (count() < least) error("too few operands");
  if (count() > most) error("too many operands");
}

Row Decoder::src(const Operand& o, int bits, bool loose) {
  const int row_bits = bits <= 32 ? 32 : bits;
  switch (o.kind) {
    case Operand::Kind::kInt:
      if (bits == 128) error("a 128-bit operand must be a register");
      return builder_.constant(bits < 32
                                   ? static_cast<uint64_t>(o.value) & ((uint64_t{1} << bits) - 1)
                                   : static_cast<uint64_t>(o.value),
                               row_bits);
    case Operand::Kind::kFloat: {
      if (bits == 64) {
        uint64_t image;
        std::memcpy(&image, &o.real, 8);
        return builder_.constant(image, 64);
      }
      if (bits == 32) {
        const float single = static_cast<float>(o.real);
        uint32_t image;
        std::memcpy(&image, &single, 4);
        if (o.is_single) image = static_cast<uint32_t>(o.value);
        return builder_.constant(image, 32);
      }
      error("floating-point literal for an operand of this size");
    }
    case Operand::Kind::kName:
      break;
    default:
      error("expected a register or an immediate");
  }
  const Symbol symbol = builder_.resolve(o.name);
  switch (symbol.kind) {
    case Symbol::Kind::kRegister:
      if (o.value != 0) error("a register cannot have an offset here");
      if (symbol.bits == bits || (bits == 8 && symbol.bits <= 32) || (loose && symbol.bits > bits))
        return builder_.reads(symbol.index);
      error(format("register '%s' has %d bits, expected %d", std::string(o.name).c_str(),
                   symbol.bits, bits));
    case Symbol::Kind::kSpecial:
      if (o.value != 0) error("a register cannot have an offset here");
      if (bits == 128) error("special register in a 128-bit operand");
      return builder_.special_row(symbol.special, row_bits);
    case Symbol::Kind::kParam:
    case Symbol::Kind::kLocal:
    case Symbol::Kind::kShared:
    case Symbol::Kind::kGlobal:
      if (bits != 32 && bits != 64)
        error("the address of a variable needs a 32- or 64-bit operand");
      return builder_.symbol_address(symbol, o.value, bits);
    case Symbol::Kind::kPredicate:
      error("'" + std::string(o.name) + "' is a predicate");
    case Symbol::Kind::kFunction:
      if (bits != 64) error("the address of a function needs a 64-bit operand");
      return builder_.constant(symbol.value + static_cast<uint64_t>(o.value), 64);
    case Symbol::Kind::kNone:
      break;
  }
  if (!o.name.empty() && o.name[0] == '%' &&
      builder_.resolve(o.name.substr(0, o.name.find('.'))).kind == Symbol::Kind::kNone) {
    static const char* const kDynamic[] = {"%clock",       "%clock_hi",       "%clock64",
                                           "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"};
    for (const char* name : kDynamic) {
      if (o.name == name) unsupported("special register '" + std::string(o.name) + "' outside mov");
    }
  }
  error("unknown register or variable '" + std::string(o.name) + "'");
}

Row Decoder::src(const Operand& o, Type type, bool loose) {
  if (o.kind == Operand::Kind::kFloat && type.is_float() && type.bits == 16 && type.lanes == 1) {
    unsupported("floating-point literal of a 16-bit type");
  }
  return src(o, type.bits, loose);
}

Row Decoder::dst(const Operand& o, int bits, bool loose, bool sink_allowed) {
  if (o.kind == Operand::Kind::kSink && sink_allowed) return kNoRow;
  if (o.kind != Operand::Kind::kName) error("expected a register as destination");
  const Symbol symbol = builder_.resolve(o.name);
  if (symbol.kind != Symbol::Kind::kRegister)
    error("'" + std::string(o.name) + "' is not a register");
  if (o.value != 0 || o.negated) error("malformed destination");
  if (symbol.bits == bits || (bits == 8 && symbol.bits <= 32) || (loose && symbol.bits > bits))
    return builder_.writes(symbol.index);
  error(format("register '%s' has %d bits, expected %d", std::string(o.name).c_str(), symbol.bits,
               bits));
}

int Decoder::reg_bits(const Operand& o) {
  if (o.kind != Operand::Kind::kName) return 0;
  const Symbol symbol = builder_.resolve(o.name);
  return symbol.kind == Symbol::Kind::kRegister || symbol.kind == Symbol::Kind::kSpecial
             ? symbol.bits
             : 0;
}

int Decoder::source_bits(const Operand& o) {
  const bool special =
      o.kind == Operand::Kind::kName && builder_.resolve(o.name).kind == Symbol::Kind::kSpecial;
  return special ? 0 : reg_bits(o);
}

bool Decoder::is_pred(const Operand& o) {
  return o.kind == Operand::Kind::kName &&
         builder_.resolve(o.name).kind == Symbol::Kind::kPredicate;
}

Pred Decoder::pred_src(const Operand& o) {
  if (o.kind == Operand::Kind::kInt) return o.value != 0 ? 0 | kPredNot : 0;
  if (o.kind == Operand::Kind::kName) {
    if (o.name == "%pt" || o.name == "%PT") return 0 | kPredNot;
    const Symbol symbol = builder_.resolve(o.name);
    if (symbol.kind == Symbol::Kind::kPredicate)
      return builder_.reads_pred(o.negated ? symbol.index | kPredNot : symbol.index);
    error("'" + std::string(o.name) + "' is not a predicate");
  }
  error("expected a predicate");
}

Pred Decoder::pred_dst(const Operand& o) {
  if (o.kind == Operand::Kind::kSink) return kNoRow;
  if (o.kind != Operand::Kind::kName || o.negated) error("expected a predicate as destination");
  const Symbol symbol = builder_.resolve(o.name);
  if (symbol.kind != Symbol::Kind::kPredicate)
    error("'" + std::string(o.name) + "' is not a predicate");
  return builder_.writes_pred(symbol.index);
}

const std::vector<Operand>* Decoder::vector_items(const Operand& o) {
  return o.kind == Operand::Kind::kVector ? &o.items : nullptr;
}

Address Decoder::address(const Operand& o, ptx::Space space, size_t item) {
  if (o.kind != Operand::Kind::kAddress) error("expected an address in brackets");
  if (item >= o.items.size()) error("address with too few components");
  const Operand& base = o.items[item];
  Address a;
  if (base.kind == Operand::Kind::kInt) {
    a.offset = base.value;
    return a;
  }
  if (base.kind != Operand::Kind::kName || base.negated) error("malformed address");
  const Symbol symbol = builder_.resolve(base.name);
  a.offset = base.value;
  switch (symbol.kind) {
    case Symbol::Kind::kRegister:
      if (symbol.bits != 32 && symbol.bits != 64)
        error("an address register must have 32 or 64 bits");
      a.row = builder_.reads(symbol.index);
      a.wide = symbol.bits == 64;
      return a;
    case Symbol::Kind::kShared:
      a.row = builder_.symbol_address(symbol, 0, 32);
      if (space == ptx::Space::kGeneric) error("shared variable in a generic address");
      return a;
    case Symbol::Kind::kParam:
    case Symbol::Kind::kLocal:
    case Symbol::Kind::kGlobal:
      a.offset += static_cast<int64_t>(symbol.value);
      if (symbol.framed) {
        a.row = builder_.current().recursive->frame_row;
        a.wide = true;
      }
      if (space == ptx::Space::kGeneric && symbol.kind == Symbol::Kind::kLocal)
        a.offset += static_cast<int64_t>(kLocalWindow);
      if (space == ptx::Space::kGeneric && symbol.kind == Symbol::Kind::kParam)
        a.offset += static_cast<int64_t>(kParamWindow);
      return a;
    default:
      error("'" + std::string(base.name) + "' cannot be an address");
  }
}

int64_t Decoder::int_constant(const Operand& o) {
  if (o.kind != Operand::Kind::kInt) error("expected an integer constant");
  return o.value;
}

uint32_t Decoder::label(const Operand& o) {
  if (o.kind != Operand::Kind::kName || o.value != 0) error("expected a label");
  return builder_.label(o.name, line());
}

Row Decoder::carry_row() { return builder_.carry_row(); }
Row Decoder::constant(uint64_t value, int bits) { return builder_.constant(value, bits); }

void Decoder::unsupported(const std::string& what) const {
  throw Error(ErrorKind::kUnsupported, line(), "unsupported " + what);
}
void Decoder::error(const std::string& what) const { throw Error(ErrorKind::kParse, line(), what); }
void Decoder::keep(std::shared_ptr<void> memory) { builder_.keep(std::move(memory)); }

}  // namespace bwgemm::emulator
