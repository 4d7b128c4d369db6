// What the bulk-copy instructions share: operands, destinations in a cluster, data movement.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "emulator/machine/decoder.h"
#include "emulator/tensor/tensor_state.h"
#include "emulator/tensor/tma_box.h"

namespace bwgemm::emulator {

// "[tensorMap, {c0, c1, ...}]".
struct TensorOperand {
  Address map;
  int rank = 0;
  bool four_rows = false;  // .tile::gather4, .tile::scatter4: column and four rows
  int coordinate_count() const { return four_rows ? 5 : rank; }
  Row coordinates[5] = {kNoRow, kNoRow, kNoRow, kNoRow, kNoRow};
};

// Ahead of the operands, whose number depends on the load mode.
void refuse_im2col(Decoder& decoder);

// Consumes .1d to .5d and the load mode, and decodes operand `operand`. `four_rows`: the mode of
// four rows that the instruction has, "" if it has none.
TensorOperand decode_tensor_operand(Decoder& decoder, const ptx::Operand& operand,
                                    std::string_view four_rows);

// The tensor map that `lane` names; faults where it is none, is invalid or has another rank.
TensorMap read_tensor_map(Warp& warp, const TensorOperand& operand, int lane);
// The box that `lane` names, kept at shared address `shared`, and its size before that is known.
Box read_box(Warp& warp, const TensorOperand& operand, const TensorMap& map, int lane,
             uint32_t shared);
// Faults or reports where the innermost coordinate that `lane` names is not at a multiple of 16
// bytes. read_box calls it.
void check_coordinate(Warp& warp, const TensorOperand& operand, const TensorMap& map, int lane);
uint32_t footprint(const TensorOperand& operand, const TensorMap& map);

// The lanes of `mask` whose operands no lower lane has. Where ptxas knows that a warp is together,
// lanes that name the same copy ask for it once, and kernels rely on it; elsewhere each of them
// does. Taken for the former.
uint32_t distinct_lanes(Warp& warp, const TensorOperand& operand,
                        std::initializer_list<Address> others, uint32_t mask);

// One CTA's copy of the data and the barrier told about it.
struct Delivery {
  Cta* cta = nullptr;
  uint32_t offset = 0;
  Cta* barrier_cta = nullptr;
  uint32_t barrier = 0;
};

// Destinations of a load: the CTA that `to` names, or with a CTA mask the same offset in each CTA
// of the mask. The barrier is at its offset in the destination CTA; with .cta_group::2 in whichever
// CTA of the destination's pair has the parity of the CTA that the barrier address names.
std::vector<Delivery> deliveries(Warp& warp, const Warp::SharedRef& to,
                                 const Warp::SharedRef& barrier, bool multicast, uint32_t cta_mask,
                                 int cta_group);

// Looks for races of an asynchronous access of global memory; memory that cannot be written has
// none.
void note_global(Warp& warp, uint64_t address, uint64_t bytes, const Stamp& stamp, bool write);
void note_global(Warp& warp, const Box& box, const Stamp& stamp, bool write);

// Global memory at [address, address+bytes), or a fault naming the operation.
uint8_t* global_bytes(Launch& launch, const Origin& origin, uint64_t address, uint64_t bytes,
                      bool write);

}  // namespace bwgemm::emulator
