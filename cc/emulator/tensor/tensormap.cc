// Instructions that change or fence tensor maps: tensormap.replace (PTX ISA 9.7.9.28),
// tensormap.cp_fenceproxy (9.7.13.16), fence.proxy.tensormap (9.7.13.4), prefetch.tensormap
// (9.7.9.17).
#include <algorithm>
#include <cstring>

#include "emulator/tensor/register.h"
#include "emulator/tensor/tma_common.h"

namespace bwgemm::emulator {
namespace {

enum class Field : uint8_t {
  kAddress,
  kRank,
  kBox,
  kDim,
  kStride,
  kElementStride,
  kType,
  kInterleave,
  kSwizzle,
  kAtomicity,
  kFill,
};

constexpr struct {
  std::string_view name;
  Field field;
  bool has_index;
} kFields[] = {{"global_address", Field::kAddress, false},
               {"rank", Field::kRank, false},
               {"box_dim", Field::kBox, true},
               {"global_dim", Field::kDim, true},
               {"global_stride", Field::kStride, true},
               {"element_stride", Field::kElementStride, true},
               {"elemtype", Field::kType, false},
               {"interleave_layout", Field::kInterleave, false},
               {"swizzle_mode", Field::kSwizzle, false},
               {"swizzle_atomicity", Field::kAtomicity, false},
               {"fill_mode", Field::kFill, false}};

// The instruction numbers types differently from the driver's CUtensorMapDataType.
constexpr TensorMapType kReplaceTypes[16] = {
    TensorMapType::kU8,          TensorMapType::kU16,         TensorMapType::kU32,
    TensorMapType::kS32,         TensorMapType::kU64,         TensorMapType::kS64,
    TensorMapType::kF16,         TensorMapType::kF32,         TensorMapType::kF32Ftz,
    TensorMapType::kF64,         TensorMapType::kBF16,        TensorMapType::kTF32,
    TensorMapType::kTF32Ftz,     TensorMapType::k16U4Align8B, TensorMapType::k16U4Align16B,
    TensorMapType::k16U6Align16B};

struct ReplaceArgs {
  Field field = Field::kAddress;
  int index = 0;
  bool in_shared = false;
  Address address;
  Row value = kNoRow;
  int bits = 32;
};

// Swizzle mode and atomicity are separate fields of the instruction, one field of the map.
TensorMapSwizzle with_atomicity(TensorMapSwizzle swizzle, uint64_t atomicity) {
  if (swizzle < TensorMapSwizzle::k128B) return swizzle;
  return static_cast<TensorMapSwizzle>(static_cast<int>(TensorMapSwizzle::k128B) + atomicity);
}

// False where the field cannot hold the value.
bool set_field(TensorMap* map, Field field, int index, uint64_t value) {
  switch (field) {
    case Field::kAddress:
      map->address = value;
      return true;
    case Field::kRank:
      map->rank = static_cast<int>(value) + 1;
      return value < 5;
    case Field::kBox:
      map->box[index] = static_cast<uint32_t>(value);
      return value <= 0xffff;
    case Field::kDim:
      map->dims[index] = value & 0xffffffffu;
      return true;
    case Field::kStride:
      map->strides[index + 1] = value;
      return index < 4;
    case Field::kElementStride:
      map->element_strides[index] = static_cast<uint32_t>(value);
      return value <= 0xff;
    case Field::kType:
      if (value < 16) map->type = kReplaceTypes[value];
      return value < 16;
    case Field::kInterleave:
      map->interleave = static_cast<TensorMapInterleave>(value);
      return value < 3;
    case Field::kSwizzle:
      map->swizzle = static_cast<TensorMapSwizzle>(value);
      return value < 4;
    case Field::kAtomicity:
      map->swizzle = with_atomicity(map->swizzle, value);
      return value < 4;
    case Field::kFill:
      map->fill = static_cast<TensorMapFill>(value);
      return value < 2;
  }
  return false;
}

void replace(Warp& warp, const ReplaceArgs& args, int lane) {
  const uint64_t address = warp.address(args.address, lane);
  uint8_t* bytes;
  if (args.in_shared) {
    const Warp::SharedRef at = warp.shared(address, kTensorMapBytes, kTensorMapAlignment, false);
    at.cta->shared().note_write(warp, at.offset, kTensorMapBytes, warp.proxy_stamp(),
                                lane_flags(lane));
    bytes = at.cta->shared().data(at.offset);
  } else {
    bytes = warp.generic(address, lane, kTensorMapBytes, kTensorMapAlignment, true);
  }
  TensorMap map;
  if (!decode(bytes, &map)) {
    // Kernels may build a map from nothing: zeroed bytes, then every field.
    if (!std::all_of(bytes, bytes + kTensorMapBytes, [](uint8_t b) { return b == 0; })) {
      warp.fault("0x%llx holds neither a tensor map nor zeros",
                 static_cast<unsigned long long>(address));
    }
    map.rank = 1;
  }
  const uint64_t value = args.bits == 64 ? warp.r64(args.value)[lane] : warp.r32(args.value)[lane];
  if (!set_field(&map, args.field, args.index, value)) {
    warp.fault("value %llu does not fit the field", static_cast<unsigned long long>(value));
  }
  encode(map, bytes);
}

Step exec_replace(Warp& warp, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) { replace(warp, *static_cast<const ReplaceArgs*>(in.aux), lane); });
  warp.launch().progress();
  return Step::kNext;
}

void decode_replace(Decoder& d) {
  auto* args = d.make_aux<ReplaceArgs>();
  if (!d.mod("tile")) d.error("needs .tile");
  bool has_index = false, found = false;
  for (const auto& known : kFields) {
    if (found || !d.mod(known.name)) continue;
    args->field = known.field;
    has_index = known.has_index;
    found = true;
  }
  if (!found) d.error("needs a field such as .global_address");
  args->in_shared = d.mod("shared::cta");
  d.ignore_mods({"global", "b1024"});
  args->bits = d.mod("b64") ? 64 : 32;
  d.mod("b32");
  d.expect_operands(has_index ? 3 : 2, has_index ? 3 : 2);
  args->address = d.address(0, args->in_shared ? ptx::Space::kShared : ptx::Space::kGlobal);
  if (has_index) {
    args->index = static_cast<int>(d.int_constant(1));
    if (args->index < 0 || args->index > 4) d.error("the dimension must be 0 to 4");
  }
  args->value = d.src(has_index ? 2 : 1, args->bits);
  d.out().exec = exec_replace;
}

struct FenceCopyArgs {
  Address to;
  Address from;
};

Step exec_fence_copy(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const FenceCopyArgs*>(in.aux);
  const int lane = first_lane(mask);
  const Warp::SharedRef from =
      warp.shared(warp.address(args.from, lane), kTensorMapBytes, kTensorMapAlignment, false);
  from.cta->shared().check_read(warp, from.offset, kTensorMapBytes, kAllLanes);
  const uint64_t target = warp.address(args.to, lane);
  uint8_t* to = warp.global(target, kTensorMapBytes, kTensorMapAlignment, true);
  warp.note_global(target, kTensorMapBytes, true, 0);  // each lane may use it as its own write
  std::memcpy(to, from.cta->shared().data(from.offset), kTensorMapBytes);
  warp.launch().races().release_tensor_maps(warp);
  warp.launch().progress();
  return Step::kNext;
}

void decode_fence_copy(Decoder& d) {
  auto* args = d.make_aux<FenceCopyArgs>();
  d.ignore_mods({"global", "shared::cta", "tensormap::generic", "release", "acquire", "cta",
                 "cluster", "gpu", "sys", "sync", "aligned"});
  d.out().flags |= kConverge | kWholeWarp;
  d.expect_operands(3, 3);
  args->to = d.address(0, ptx::Space::kGlobal);
  args->from = d.address(1, ptx::Space::kShared);
  if (d.int_constant(2) != kTensorMapBytes) d.error("the size must be 128");
  d.out().exec = exec_fence_copy;
}

// Maps are read at issue from memory that is always coherent.
Step exec_release_fence(Warp& warp, const Instr&, uint32_t) {
  warp.launch().races().release_tensor_maps(warp);
  return Step::kNext;
}

// A fence accesses nothing: CUTLASS fences maps of operands that are not there, by null pointers.
Step exec_acquire_fence(Warp& warp, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t address = warp.address(in.addr, lane);
    const GlobalMemory& memory = warp.launch().memory();
    if (address % kTensorMapAlignment == 0 &&
        memory.find(address, kTensorMapBytes, true) != nullptr)
      warp.launch().races().fence_tensor_map(warp, address);
  });
  return Step::kNext;
}

void decode_fence(Decoder& d) {
  const bool acquire = d.mod("acquire");
  d.ignore_mods({"release", "cta", "cluster", "gpu", "sys"});
  d.expect_operands(acquire ? 2 : 0, 2);
  if (d.count() > 0) d.out().addr = d.address(0);
  if (d.count() > 1 && d.int_constant(1) != kTensorMapBytes) d.error("the size must be 128");
  d.out().exec = acquire ? exec_acquire_fence : exec_release_fence;
}

Step exec_prefetch_map(Warp& warp, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    warp.generic(warp.address(in.addr, lane), lane, kTensorMapBytes, kTensorMapAlignment, false);
  });
  return Step::kNext;
}

void decode_prefetch_map(Decoder& d) {
  const Decoder::SpaceMod space = d.space();
  d.ignore_mods({"tensormap"});
  d.expect_operands(1, 1);
  d.out().addr = d.address(0, space.space);
  d.out().exec = exec_prefetch_map;
}

}  // namespace

void register_tensormap(IsaTable& table) {
  table.add({"tensormap.replace", decode_replace, "9.7.9.28"});
  table.add({"tensormap.cp_fenceproxy", decode_fence_copy, "9.7.13.16"});
  table.add({"fence.proxy.tensormap::generic", decode_fence, "9.7.13.4"});
  table.add({"prefetch.tensormap", decode_prefetch_map, "9.7.9.17"});
}

}  // namespace bwgemm::emulator
