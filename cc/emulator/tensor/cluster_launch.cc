// clusterlaunchcontrol.try_cancel and .query_cancel: PTX ISA 9.7.13.17. A running cluster takes the
// place of one that has not started, as dynamic persistent schedulers do.
#include <cstring>

#include "emulator/machine/mbarrier.h"
#include "emulator/tensor/register.h"
#include "emulator/tensor/tensor_state.h"

namespace bwgemm::emulator {
namespace {

// The 16-byte response is opaque to kernels. Ours: x, y and z of the first CTA as 32-bit words,
// then a word that says what they are worth.
constexpr uint32_t kTaken = 0x434c4301;
constexpr uint32_t kNoneLeft = 0x434c4300;

struct CancelOp : AsyncOp {
  std::vector<Cta*> ctas;
  std::vector<Stamp> records;  // of each
  uint32_t response = 0;
  uint32_t barrier = 0;

  bool step(Launch& launch) override {
    Dim3 first{0, 0, 0};
    uint32_t words[4] = {0, 0, 0, kNoneLeft};
    if (launch.cancel_cluster(&first)) {
      words[0] = first.x;
      words[1] = first.y;
      words[2] = first.z;
      words[3] = kTaken;
    }
    for (size_t i = 0; i < ctas.size(); ++i) {
      Cta* cta = ctas[i];
      std::memcpy(cta->shared().data(response), words, sizeof(words));
      cta->shared().end_async_write(response, sizeof(words), origin.line);
      launch.races().close(records[i], *cta, *cta, barrier);
      mbarrier_complete_tx(launch, *cta, barrier, sizeof(words), origin);
    }
    return true;
  }
};

struct CancelArgs {
  Address response;
  Address barrier;
  bool multicast = false;
};

Step exec_try_cancel(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const CancelArgs*>(in.aux);
  if (tensor_of(warp).refused)
    warp.fault("another request after one was seen to be refused: what it does is undefined");
  for_lanes(mask, [&](int lane) {
    const Warp::SharedRef response = warp.shared(warp.address(args.response, lane), 16, 16, false);
    const Warp::SharedRef barrier = warp.shared(warp.address(args.barrier, lane), 8, 8, false);
    auto op = std::make_unique<CancelOp>();
    op->response = response.offset;
    op->barrier = barrier.offset;
    if (args.multicast) {
      Cluster& cluster = warp.cta().cluster();
      for (uint32_t rank = 0; rank < cluster.size(); ++rank) op->ctas.push_back(&cluster.cta(rank));
    } else {
      op->ctas.push_back(response.cta);
    }
    for (Cta* cta : op->ctas) {
      Races& races = warp.launch().races();
      op->records.push_back(races.on() ? races.open(warp, *cta, *cta, op->barrier) : Stamp{});
      cta->shared().begin_async_write(warp.launch(), response.offset, 16, warp.origin(),
                                      op->records.back());
    }
    warp.launch().submit(warp, std::move(op));
  });
  return Step::kNext;
}

void decode_try_cancel(Decoder& d) {
  auto* args = d.make_aux<CancelArgs>();
  if (!d.mod("async")) d.error("needs .async");
  if (!d.mod("mbarrier::complete_tx::bytes")) d.error("needs .mbarrier::complete_tx::bytes");
  args->multicast = d.mod("multicast::cluster::all");
  d.ignore_mods({"shared::cta", "b128"});
  d.expect_operands(2, 2);
  args->response = d.address(0, ptx::Space::kShared);
  args->barrier = d.address(1, ptx::Space::kShared);
  d.out().exec = exec_try_cancel;
}

bool taken(Warp& warp, const Instr& in, int lane) {
  const uint32_t tag = static_cast<uint32_t>(warp.r128_hi(in.op[0])[lane] >> 32);
  if (tag != kTaken && tag != kNoneLeft) {
    warp.fault("the operand is not a response of clusterlaunchcontrol.try_cancel");
  }
  if (tag == kNoneLeft) tensor_of(warp).refused = true;
  return tag == kTaken;
}

Step exec_is_canceled(Warp& warp, const Instr& in, uint32_t mask) {
  uint32_t result = 0;
  for_lanes(mask,
            [&](int lane) { result |= static_cast<uint32_t>(taken(warp, in, lane)) << lane; });
  warp.set_pred(in.op[1], mask, result);
  return Step::kNext;
}

void decode_is_canceled(Decoder& d) {
  d.ignore_mods({"pred", "b128"});
  d.expect_operands(2, 2);
  d.out().op[1] = d.pred_dst(0);
  d.out().op[0] = d.src(1, 128);
  d.out().exec = exec_is_canceled;
}

Step exec_first_ctaid(Warp& warp, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    if (!taken(warp, in, lane)) {
      warp.fault("get_first_ctaid of a request that was not granted");
    }
    const uint64_t low = warp.r128_lo(in.op[0])[lane], high = warp.r128_hi(in.op[0])[lane];
    const uint32_t words[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                               static_cast<uint32_t>(high), 0};
    if (in.imm >= 0) {
      warp.r32(in.op[1])[lane] = words[in.imm];
      return;
    }
    for (int i = 0; i < 4; ++i) {
      if (in.op[1 + i] != kNoRow) warp.r32(in.op[1 + i])[lane] = words[i];
    }
  });
  return Step::kNext;
}

void decode_first_ctaid(Decoder& d, int component) {
  d.out().imm = component;
  d.ignore_mods({"v4", "b32", "b128"});
  d.expect_operands(2, 2);
  d.out().op[0] = d.src(1, 128);
  if (component >= 0) {
    d.out().op[1] = d.dst(0, 32);
  } else {
    const std::vector<ptx::Operand>* items = Decoder::vector_items(d.operand(0));
    if (items == nullptr || items->size() != 4) d.error("needs a vector of 4 registers");
    for (size_t i = 0; i < 4; ++i) d.out().op[1 + i] = d.dst((*items)[i], 32, false, true);
  }
  d.out().exec = exec_first_ctaid;
}

void decode_ctaid(Decoder& d) { decode_first_ctaid(d, -1); }
void decode_ctaid_x(Decoder& d) { decode_first_ctaid(d, 0); }
void decode_ctaid_y(Decoder& d) { decode_first_ctaid(d, 1); }
void decode_ctaid_z(Decoder& d) { decode_first_ctaid(d, 2); }

}  // namespace

void register_cluster_launch(IsaTable& table) {
  const std::string_view section = "9.7.13.17";
  table.add({"clusterlaunchcontrol.try_cancel", decode_try_cancel, section});
  table.add({"clusterlaunchcontrol.query_cancel.is_canceled", decode_is_canceled, section});
  table.add({"clusterlaunchcontrol.query_cancel.get_first_ctaid", decode_ctaid, section});
  table.add({"clusterlaunchcontrol.query_cancel.get_first_ctaid::x", decode_ctaid_x, section});
  table.add({"clusterlaunchcontrol.query_cancel.get_first_ctaid::y", decode_ctaid_y, section});
  table.add({"clusterlaunchcontrol.query_cancel.get_first_ctaid::z", decode_ctaid_z, section});
}

}  // namespace bwgemm::emulator
