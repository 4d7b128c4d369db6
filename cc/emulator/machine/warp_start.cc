// What a warp starts with: registers, special values, memory of its own.
#include <algorithm>
#include <cstring>

#include "emulator/machine/launch.h"
#include "emulator/machine/machine.h"

namespace bwgemm::emulator {

void Launch::start_warp(Cta& cta, uint32_t index) {
  cta.warps_.push_back(std::make_unique<Warp>());
  Warp& w = *cta.warps_.back();
  w.launch_ = this;
  w.cta_ = &cta;
  w.kernel_ = &kernel_;
  w.index_ = index;
  w.cluster_warp_ = cta.rank_ * warps_of(cta.threads_) + index;
  const uint32_t first = index * kWarpSize;
  const uint32_t lanes = std::min<uint32_t>(kWarpSize, cta.threads_ - first);
  w.existing_ = w.live_ = lanes == kWarpSize ? kFullMask : (1u << lanes) - 1;
  const size_t words = size_t{kernel_.rows} * kWarpSize;
  if (!register_files_.empty()) {
    w.storage_ = std::move(register_files_.back());
    register_files_.pop_back();
  } else {
    w.storage_.reset(new uint32_t[words + kernel_.preds]);
  }
  w.regs_ = w.storage_.get();
  w.preds_ = w.regs_ + words;
  // What may be read before it is written holds a pattern, the same in every run. The rest stays as
  // it is: most kernels use a part of their registers, and a launch would mainly fill the others.
  for (const Row row : kernel_.undefined_rows) {
    const size_t rows = std::min<size_t>(kMostRows, kernel_.rows - row);
    std::memset(w.regs_ + size_t{row} * kWarpSize, 0xCD, rows * kWarpSize * sizeof(uint32_t));
  }
  std::memset(w.preds_, 0, kernel_.preds * sizeof(uint32_t));
  if (kernel_.local_bytes > 0) {
    w.local_.reset(new uint8_t[size_t{kernel_.local_bytes} * kWarpSize]);
    std::memset(w.local_.get(), 0xCD, size_t{kernel_.local_bytes} * kWarpSize);
  }
  if (!kernel_.local_variables.empty() && config_.rules.on(Rule::kUninitializedRegister)) {
    w.local_written_.assign(size_t{kernel_.local_bytes} * kWarpSize, 1);
    for (const Kernel::LocalVariable& variable : kernel_.local_variables) {
      for (int lane = 0; lane < kWarpSize; ++lane)
        w.note_local(variable.offset, lane, variable.bytes, false);
    }
  }

  if (kernel_.undefined_slots > 0 && config_.rules.on(Rule::kUninitializedRegister)) {
    w.start_tracking();
    std::fill_n(w.undefined_.begin(), kernel_.undefined_slots, kFullMask);
    w.wholly_ = w.undefined_;
    w.undefined_slots_ = kernel_.undefined_slots;
  }

  const Dim3 c = cta.id_, n = grid_, b = block_, k = cluster_dim_;
  const uint32_t size = static_cast<uint32_t>(k.count());
  const Dim3 in_cluster{c.x % k.x, c.y % k.y, c.z % k.z};
  for (const WarpInit& init : kernel_.inits) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const uint32_t thread = first + static_cast<uint32_t>(lane);
      uint64_t value = init.value;
      switch (init.what) {
        case WarpValue::kConstant:
          break;
        case WarpValue::kSharedAddress:
          value += uint64_t{cta.rank_} << kSharedRankShift;
          break;
        case WarpValue::kGenericShared:
          value += kSharedWindow + (uint64_t{cta.rank_} << kSharedRankShift);
          break;
        case WarpValue::kTidX:
          value = thread % b.x;
          break;
        case WarpValue::kTidY:
          value = thread / b.x % b.y;
          break;
        case WarpValue::kTidZ:
          value = thread / b.x / b.y;
          break;
        case WarpValue::kNtidX:
          value = b.x;
          break;
        case WarpValue::kNtidY:
          value = b.y;
          break;
        case WarpValue::kNtidZ:
          value = b.z;
          break;
        case WarpValue::kCtaidX:
          value = c.x;
          break;
        case WarpValue::kCtaidY:
          value = c.y;
          break;
        case WarpValue::kCtaidZ:
          value = c.z;
          break;
        case WarpValue::kNctaidX:
          value = n.x;
          break;
        case WarpValue::kNctaidY:
          value = n.y;
          break;
        case WarpValue::kNctaidZ:
          value = n.z;
          break;
        case WarpValue::kLaneid:
          value = static_cast<uint64_t>(lane);
          break;
        case WarpValue::kWarpid:
          value = index;
          break;
        case WarpValue::kNwarpid:
          value = warps_of(cta.threads_);
          break;
        case WarpValue::kSmid:
          value = cta.sm_->index;
          break;
        case WarpValue::kNsmid:
          value = static_cast<uint64_t>(config_.sm_count);
          break;
        case WarpValue::kGridid:
          value = 1;
          break;
        case WarpValue::kClusteridX:
          value = cta.cluster_->id_.x;
          break;
        case WarpValue::kClusteridY:
          value = cta.cluster_->id_.y;
          break;
        case WarpValue::kClusteridZ:
          value = cta.cluster_->id_.z;
          break;
        case WarpValue::kNclusteridX:
          value = n.x / k.x;
          break;
        case WarpValue::kNclusteridY:
          value = n.y / k.y;
          break;
        case WarpValue::kNclusteridZ:
          value = n.z / k.z;
          break;
        case WarpValue::kClusterCtaidX:
          value = in_cluster.x;
          break;
        case WarpValue::kClusterCtaidY:
          value = in_cluster.y;
          break;
        case WarpValue::kClusterCtaidZ:
          value = in_cluster.z;
          break;
        case WarpValue::kClusterNctaidX:
          value = k.x;
          break;
        case WarpValue::kClusterNctaidY:
          value = k.y;
          break;
        case WarpValue::kClusterNctaidZ:
          value = k.z;
          break;
        case WarpValue::kClusterCtarank:
          value = cta.rank_;
          break;
        case WarpValue::kClusterNctarank:
          value = size;
          break;
        case WarpValue::kIsExplicitCluster:
          value = size > 1;
          break;
        case WarpValue::kLanemaskEq:
          value = 1u << lane;
          break;
        case WarpValue::kLanemaskLe:
          value = (2u << lane) - 1;
          break;
        case WarpValue::kLanemaskLt:
          value = (1u << lane) - 1;
          break;
        case WarpValue::kLanemaskGe:
          value = ~((1u << lane) - 1);
          break;
        case WarpValue::kLanemaskGt:
          value = ~((2u << lane) - 1);
          break;
        case WarpValue::kGridWorkspaceHigh:
          value = config_.grid_workspace >> 32;
          break;
        case WarpValue::kGridWorkspaceLow:
          value = static_cast<uint32_t>(config_.grid_workspace);
          break;
        case WarpValue::kDynamicSmemSize:
          value = dynamic_shared_;
          break;
        case WarpValue::kTotalSmemSize:
        case WarpValue::kAggrSmemSize:
          value = shared_bytes_;
          break;
        case WarpValue::kReservedSmemBegin:
          value = 0;
          break;
        case WarpValue::kReservedSmemEnd:
          value = kSharedReserved;
          break;
        case WarpValue::kReservedSmem0:
          value = kSharedSystem;
          break;
        case WarpValue::kReservedSmem1:
          value = (kSharedSystem + kSharedReserved) / 2;
          break;
      }
      if (init.bits == 64) {
        w.r64(init.row)[lane] = value;
      } else {
        w.r32(init.row)[lane] = static_cast<uint32_t>(value);
      }
    }
  }
  LaneGroup all;
  all.mask = w.live_;
  w.groups_.push_back(all);
  warps_.push_back(&w);
  add_ready(w);
}

}  // namespace bwgemm::emulator
