// Shapes of wgmma and which matrix element each register of each lane holds: PTX ISA 9.7.15.2 and
// 9.7.15.5.1.1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/tensor/mma_core.h"
#include "emulator/tensor/number_formats.h"

namespace bwgemm::emulator {

constexpr int kWgmmaRows = 16;  // of the 64, in each warp

struct WgmmaShape {
  int n = 0;
  int k = 0;
  NumberFormat d = NumberFormat::kF32;
  NumberFormat a = NumberFormat::kBF16;
  NumberFormat b = NumberFormat::kBF16;

  // f16 accumulators come two to a register.
  int accumulator_registers() const { return d == NumberFormat::kF16 ? n / 4 : n / 2; }
};

// From the parts of a mnemonic: "m64n256k16", then the types of D, A and B. False with the reason
// in `error`.
bool parse_wgmma_shape(const std::vector<std::string_view>& parts, WgmmaShape* shape,
                       std::string* error);

// `rows` rows of the tile from row `first`; both multiples of the rows in one chunk.
TileChunks slice_rows(const TileChunks& tile, int first, int rows);

// A from four registers of 32 lanes, as [16][k].
void load_a_fragment(const WgmmaShape& shape, const uint32_t* const registers[4], bool negate,
                     float* rows);

// Accumulators between registers and n cells in each of 16 rows, so many cells apart.
void load_accumulators(const WgmmaShape& shape, const std::vector<uint32_t*>& registers,
                       uint32_t* cells, int stride);
void store_accumulators(const WgmmaShape& shape, const uint32_t* cells, int stride,
                        const std::vector<uint32_t*>& registers);

}  // namespace bwgemm::emulator
