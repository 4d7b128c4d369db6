#include "emulator/tensor/tma_common.h"

#include "emulator/machine/targets.h"

namespace bwgemm::emulator {

TensorOperand decode_tensor_operand(Decoder& d, const ptx::Operand& operand,
                                    std::string_view four_rows) {
  static constexpr std::string_view kRanks[5] = {"1d", "2d", "3d", "4d", "5d"};
  TensorOperand result;
  for (int rank = 1; rank <= 5; ++rank) {
    if (d.mod(kRanks[rank - 1])) result.rank = rank;
  }
  if (result.rank == 0) d.error("needs a dimension .1d to .5d");
  d.mod("tile");
  result.four_rows = !four_rows.empty() && d.mod(four_rows);
  if (result.four_rows && result.rank != 2) d.error("." + std::string(four_rows) + " needs .2d");
  for (std::string_view mode : {"tile::gather4", "tile::scatter4"}) {
    if (d.mod(mode)) d.unsupported("load mode ." + std::string(mode) + " is not implemented");
  }
  if (operand.kind != ptx::Operand::Kind::kAddress || operand.items.size() != 2) {
    d.error("needs an operand [tensorMap, {coordinates}]");
  }
  result.map = d.address(operand, ptx::Space::kGeneric, 0);
  const std::vector<ptx::Operand>* items = Decoder::vector_items(operand.items[1]);
  const size_t count = items != nullptr ? items->size() : 1;
  const int needed = result.coordinate_count();
  if (count != static_cast<size_t>(needed)) {
    d.error("needs " + std::to_string(needed) + " coordinates, got " + std::to_string(count));
  }
  for (int i = 0; i < needed; ++i) {
    result.coordinates[i] = d.src(items != nullptr ? (*items)[i] : operand.items[1], 32);
  }
  return result;
}

void refuse_im2col(Decoder& d) {
  for (std::string_view mode : {"im2col", "im2col::w", "im2col::w::128", "im2col_no_offs"}) {
    if (d.mod(mode)) d.unsupported("load mode ." + std::string(mode) + " is not implemented");
  }
}

TensorMap read_tensor_map(Warp& warp, const TensorOperand& operand, int lane) {
  const uint64_t address = warp.address(operand.map, lane);
  const uint64_t window = address & kWindowMask;
  if (window == kSharedWindow || window == kLocalWindow) {
    warp.fault("a tensor map lies in parameters, constant or global memory, not at 0x%llx",
               static_cast<unsigned long long>(address));
  }
  TensorMap map;
  if (!decode(warp.generic(address, lane, kTensorMapBytes, kTensorMapAlignment, false), &map)) {
    warp.fault("0x%llx does not hold a tensor map", static_cast<unsigned long long>(address));
  }
  if ((address & kWindowMask) == 0 && warp.launch().memory().last_found_writable())
    warp.launch().races().read_tensor_map(warp, address, warp.origin());
  const std::string problem = validate(map);
  if (!problem.empty()) warp.fault("tensor map: %s", problem.c_str());
  if (map.rank != operand.rank) {
    warp.fault("tensor map of rank %d used with .%dd", map.rank, operand.rank);
  }
  const uint64_t most = warp.launch().config().shared_per_cta;
  if (const uint64_t bytes = unbounded_box_footprint(map); bytes > most) {
    warp.fault("the box of a tensor map takes %llu bytes, shared memory has %llu",
               static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(most));
  }
  if (operand.four_rows && map.box[1] != 1) {
    warp.fault("four rows are copied by tensor maps whose box has one row, this one has %u",
               map.box[1]);
  }
  return map;
}

// On an H200, tiled loads, stores, reductions and prefetches at another coordinate end the kernel
// with an illegal instruction, negative coordinates and swizzled boxes too. Copies of four rows,
// padded types and other architectures have not been tried.
void check_coordinate(Warp& warp, const TensorOperand& operand, const TensorMap& map, int lane) {
  if (operand.four_rows || is_padded(map.type)) return;
  const auto coordinate = static_cast<int32_t>(warp.r32(operand.coordinates[0])[lane]);
  const int bits = element_bits(map.type);
  if (int64_t{coordinate} * bits % 128 == 0) return;
  const std::string message = format(
      "the innermost coordinate %d, of elements of %d bits (%s), must be at a multiple of 16 bytes",
      coordinate, bits, type_name(map.type));
  const char* trap = "hardware of sm_90 raises an illegal instruction";
  if (is_hopper(warp.launch().kernel().module->target)) warp.fault("%s: %s", message.c_str(), trap);
  warp.report(Rule::kTmaCoordinate, message + ": " + trap + ", other hardware has not been tried");
}

Box read_box(Warp& warp, const TensorOperand& operand, const TensorMap& map, int lane,
             uint32_t shared) {
  check_coordinate(warp, operand, map, lane);
  std::array<int32_t, 5> start{};
  for (int i = 0; i < operand.coordinate_count(); ++i) {
    start[i] = static_cast<int32_t>(warp.r32(operand.coordinates[i])[lane]);
  }
  if (is_padded(map.type) && start[0] % static_cast<int32_t>(kPaddedElements) != 0) {
    warp.fault("tensor map of type %s: the innermost coordinate must be a multiple of 16, got %d",
               type_name(map.type), start[0]);
  }
  return operand.four_rows ? make_row_box(map, start, shared) : make_box(map, start, shared);
}

uint32_t footprint(const TensorOperand& operand, const TensorMap& map) {
  return operand.four_rows ? row_box_footprint(map) : box_footprint(map);
}

uint32_t distinct_lanes(Warp& warp, const TensorOperand& operand,
                        std::initializer_list<Address> others, uint32_t mask) {
  const auto same = [&](int a, int b) {
    if (warp.address(operand.map, a) != warp.address(operand.map, b)) return false;
    for (int i = 0; i < operand.coordinate_count(); ++i) {
      const uint32_t* values = warp.r32(operand.coordinates[i]);
      if (values[a] != values[b]) return false;
    }
    for (const Address& other : others) {
      if (warp.address(other, a) != warp.address(other, b)) return false;
    }
    return true;
  };
  uint32_t distinct = 0;
  for_lanes(mask, [&](int lane) {
    bool repeated = false;
    for_lanes(distinct, [&](int lower) { repeated = repeated || same(lower, lane); });
    if (!repeated) distinct |= 1u << lane;
  });
  return distinct;
}

std::vector<Delivery> deliveries(Warp& warp, const Warp::SharedRef& to,
                                 const Warp::SharedRef& barrier, bool multicast, uint32_t cta_mask,
                                 int cta_group) {
  Cluster& cluster = warp.cta().cluster();
  std::vector<Delivery> all;
  const auto add = [&](Cta& cta) {
    Delivery delivery{&cta, to.offset, &cta, barrier.offset};
    if (cta_group == 2) {
      const uint32_t rank = (cta.rank() & ~1u) | (barrier.cta->rank() & 1u);
      if (rank >= cluster.size()) {
        warp.fault(".cta_group::2 signals CTA rank %u of a cluster of %u", rank, cluster.size());
      }
      delivery.barrier_cta = &cluster.cta(rank);
    }
    all.push_back(delivery);
  };
  if (!multicast) {
    add(*to.cta);
    if (all[0].barrier_cta != barrier.cta) {
      warp.fault(
          "the mbarrier is in CTA rank %u, the destination in rank %u: they must be in the same "
          "CTA%s",
          barrier.cta->rank(), to.cta->rank(), cta_group == 2 ? " pair" : "");
    }
    return all;
  }
  cta_mask &= 0xffffu;
  if (cta_mask == 0) warp.fault("multicast to no CTA");
  for_lanes(cta_mask, [&](int rank) {
    if (static_cast<uint32_t>(rank) >= cluster.size()) {
      warp.fault("CTA mask 0x%x names rank %d of a cluster of %u", cta_mask, rank, cluster.size());
    }
    add(cluster.cta(static_cast<uint32_t>(rank)));
  });
  return all;
}

void note_global(Warp& warp, uint64_t address, uint64_t bytes, const Stamp& stamp, bool write) {
  Launch& launch = warp.launch();
  if (!launch.races().on() || launch.memory().find(address, bytes, true) == nullptr) return;
  launch.races().access_global(warp, address, bytes, stamp, write, warp.origin());
}

void note_global(Warp& warp, const Box& box, const Stamp& stamp, bool write) {
  Launch& launch = warp.launch();
  if (!launch.races().on()) return;
  // Neighbouring spans become one; a tensor lies in one range of memory.
  uint64_t begin = 0, end = 0;
  for (const BoxSpan& span : box.spans) {
    if (!span.inside) continue;
    if (span.global == end) {
      end += span.bytes;
      continue;
    }
    if (end == 0) {
      if (launch.memory().find(span.global, span.bytes, true) == nullptr) return;
    } else {
      launch.races().access_global(warp, begin, end - begin, stamp, write, warp.origin());
    }
    begin = span.global;
    end = begin + span.bytes;
  }
  if (end != 0) launch.races().access_global(warp, begin, end - begin, stamp, write, warp.origin());
}

uint8_t* global_bytes(Launch& launch, const Origin& origin, uint64_t address, uint64_t bytes,
                      bool write) {
  uint8_t* data = launch.memory().find(address, bytes, write);
  if (data == nullptr) {
    launch.fault(origin, format("%s %llu bytes of global memory at 0x%llx: ",
                                write ? "writes" : "reads", static_cast<unsigned long long>(bytes),
                                static_cast<unsigned long long>(address)) +
                             launch.memory().describe(address));
  }
  return data;
}

}  // namespace bwgemm::emulator
