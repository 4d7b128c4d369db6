#include "emulator/tensor/wgmma_fragment.h"

namespace bwgemm::emulator {
namespace {

bool parse_format(std::string_view name, NumberFormat* format) {
  static constexpr struct {
    std::string_view name;
    NumberFormat format;
  } kFormats[] = {
      {"f16", NumberFormat::kF16}, {"bf16", NumberFormat::kBF16}, {"tf32", NumberFormat::kTF32},
      {"f32", NumberFormat::kF32}, {"e4m3", NumberFormat::kE4M3}, {"e5m2", NumberFormat::kE5M2},
      {"s8", NumberFormat::kS8},   {"u8", NumberFormat::kU8},     {"s32", NumberFormat::kS32}};
  for (const auto& known : kFormats) {
    if (known.name == name) {
      *format = known.format;
      return true;
    }
  }
  return false;
}

bool is_fp8(NumberFormat f) { return f == NumberFormat::kE4M3 || f == NumberFormat::kE5M2; }
bool is_int8(NumberFormat f) { return f == NumberFormat::kS8 || f == NumberFormat::kU8; }

bool types_allowed(const WgmmaShape& s) {
  switch (s.a) {
    case NumberFormat::kF16:
      return s.b == s.a && (s.d == NumberFormat::kF16 || s.d == NumberFormat::kF32);
    case NumberFormat::kBF16:
    case NumberFormat::kTF32:
      return s.b == s.a && s.d == NumberFormat::kF32;
    default:
      if (is_fp8(s.a)) {
        return is_fp8(s.b) && (s.d == NumberFormat::kF16 || s.d == NumberFormat::kF32);
      }
      return is_int8(s.a) && is_int8(s.b) && s.d == NumberFormat::kS32;
  }
}

int number_after(std::string_view text, char letter) {
  const size_t at = text.find(letter);
  int value = 0;
  for (size_t i = at + 1; at != std::string_view::npos && i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9' || value > 1000) break;
    value = value * 10 + (text[i] - '0');
  }
  return value;
}

}  // namespace

bool parse_wgmma_shape(const std::vector<std::string_view>& parts, WgmmaShape* shape,
                       std::string* error) {
  size_t at = 0;
  while (at < parts.size() && parts[at].substr(0, 3) != "m64") ++at;
  if (at + 3 >= parts.size()) {
    *error = "needs a shape m64nNkK and three types";
    return false;
  }
  shape->n = number_after(parts[at], 'n');
  shape->k = number_after(parts[at], 'k');
  if (!parse_format(parts[at + 1], &shape->d) || !parse_format(parts[at + 2], &shape->a) ||
      !parse_format(parts[at + 3], &shape->b) || !types_allowed(*shape)) {
    *error = "types ." + std::string(parts[at + 1]) + "." + std::string(parts[at + 2]) + "." +
             std::string(parts[at + 3]) + " do not go together";
    return false;
  }
  const bool n_allowed = shape->n >= 8 && shape->n <= 256 && shape->n % 8 == 0;
  if (!n_allowed || shape->k != 256 / format_bits(shape->a)) {
    *error =
        "shape " + std::string(parts[at]) + " does not exist for ." + std::string(parts[at + 2]);
    return false;
  }
  return true;
}

TileChunks slice_rows(const TileChunks& tile, int first, int rows) {
  TileChunks slice{rows, tile.k, tile.major, tile.format, {}};
  const int per_chunk = elements_per_chunk(tile.format);
  if (tile.major == Major::kK) {
    const int chunks = tile.k / per_chunk;
    const auto begin = tile.addresses.begin() + static_cast<long>(first) * chunks;
    slice.addresses.assign(begin, begin + static_cast<long>(rows) * chunks);
    return slice;
  }
  const int chunks = tile.mn / per_chunk;
  for (int k = 0; k < tile.k; ++k) {
    const auto begin = tile.addresses.begin() + static_cast<long>(k) * chunks + first / per_chunk;
    slice.addresses.insert(slice.addresses.end(), begin, begin + rows / per_chunk);
  }
  return slice;
}

void load_a_fragment(const WgmmaShape& s, const uint32_t* const registers[4], bool negate,
                     float* rows) {
  const int bits = format_bits(s.a);
  const int per_register = 32 / bits;
  const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
  for (int r = 0; r < 4; ++r) {
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4 + 8 * (r % 2);
      const int k = r / 2 * (s.k / 2) + lane % 4 * per_register;
      for (int i = 0; i < per_register; ++i) {
        const float value = decode(s.a, (registers[r][lane] >> (i * bits)) & mask);
        rows[row * s.k + k + i] = negate ? -value : value;
      }
    }
  }
}

// Four lanes have eight columns of a row; registers repeat every eight columns: of row g two
// columns, of row g + 8 two. An f32 has a register of its own.
void load_accumulators(const WgmmaShape& s, const std::vector<uint32_t*>& registers,
                       uint32_t* cells, int stride) {
  const bool pairs = s.d == NumberFormat::kF16;
  const size_t columns = pairs ? 1 : 2;  // registers of two columns
  for (size_t r = 0; r < registers.size(); r += columns) {
    const size_t half = r / columns % 2, block = r / columns / 2;
    const uint32_t *low = registers[r], *high = registers[r + columns - 1];
    for (size_t g = 0; g < 8; ++g) {
      uint32_t* cell = cells + (g + 8 * half) * static_cast<size_t>(stride) + block * 8;
      for (size_t lane = 0; lane < 4; ++lane) {
        cell[2 * lane] = pairs ? low[4 * g + lane] & 0xffffu : low[4 * g + lane];
        cell[2 * lane + 1] = pairs ? low[4 * g + lane] >> 16 : high[4 * g + lane];
      }
    }
  }
}

void store_accumulators(const WgmmaShape& s, const uint32_t* cells, int stride,
                        const std::vector<uint32_t*>& registers) {
  const bool pairs = s.d == NumberFormat::kF16;
  const size_t columns = pairs ? 1 : 2;
  for (size_t r = 0; r < registers.size(); r += columns) {
    const size_t half = r / columns % 2, block = r / columns / 2;
    uint32_t *low = registers[r], *high = registers[r + columns - 1];
    for (size_t g = 0; g < 8; ++g) {
      const uint32_t* cell = cells + (g + 8 * half) * static_cast<size_t>(stride) + block * 8;
      for (size_t lane = 0; lane < 4; ++lane) {
        if (pairs) {
          low[4 * g + lane] = (cell[2 * lane] & 0xffffu) | (cell[2 * lane + 1] << 16);
        } else {
          low[4 * g + lane] = cell[2 * lane];
          high[4 * g + lane] = cell[2 * lane + 1];
        }
      }
    }
  }
}

}  // namespace bwgemm::emulator
