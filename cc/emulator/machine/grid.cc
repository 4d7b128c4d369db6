// Launch checks, and CTAs coming and going: clusters start when enough SMs have room, and leave
// when all is done.
#include <algorithm>
#include <cstring>

#include "emulator/machine/launch.h"
#include "emulator/machine/machine.h"

namespace bwgemm::emulator {
namespace {

constexpr uint32_t kMaxThreadsPerSm = 2048;
constexpr uint32_t kMaxCtasPerSm = 32;
constexpr uint64_t kMaxLocalBytesOfLaunch = uint64_t{1} << 32;  // of the CTAs that run at once

}  // namespace

uint32_t ctas_per_sm(const LaunchConfig& config, const Kernel& kernel, Dim3 block,
                     size_t dynamic_shared) {
  const size_t shared = kernel.static_shared_bytes + dynamic_shared;
  const uint64_t threads = block.count();
  if (threads == 0 || threads > 1024 || shared - kSharedReserved > config.shared_per_cta) return 0;
  const size_t rounded = (shared + 127) / 128 * 128;
  const uint32_t threads_rounded = warps_of(static_cast<uint32_t>(threads)) * kWarpSize;
  return std::min({static_cast<uint32_t>(config.shared_per_sm / rounded),
                   kMaxThreadsPerSm / threads_rounded, kMaxCtasPerSm});
}

void Launch::validate() {
  const uint64_t threads = block_.count();
  const auto reject = [](const std::string& message) {
    throw Error(ErrorKind::kLaunch, 0, message);
  };
  if (grid_.count() == 0 || threads == 0 || cluster_dim_.count() == 0)
    reject("grid, block and cluster dimensions must be positive");
  if (threads > 1024 || block_.x > 1024 || block_.y > 1024 || block_.z > 64)
    reject(format("a block of %s has more than 1024 threads", to_string(block_).c_str()));
  if (grid_.x > 0x7FFFFFFF || grid_.y > 65535 || grid_.z > 65535)
    reject(format("grid %s is too large", to_string(grid_).c_str()));
  if (kernel_.max_threads > 0 && threads > static_cast<uint64_t>(kernel_.max_threads)) {
    reject(format("a block of %llu threads, but the kernel allows %d (.maxntid)",
                  static_cast<unsigned long long>(threads), kernel_.max_threads));
  }
  if (kernel_.required_ntid[0] > 0 &&
      (block_.x != static_cast<uint32_t>(kernel_.required_ntid[0]) ||
       block_.y != static_cast<uint32_t>(kernel_.required_ntid[1]) ||
       block_.z != static_cast<uint32_t>(kernel_.required_ntid[2]))) {
    reject(format("block %s, but the kernel requires (%d,%d,%d) (.reqntid)",
                  to_string(block_).c_str(), kernel_.required_ntid[0], kernel_.required_ntid[1],
                  kernel_.required_ntid[2]));
  }
  if (kernel_.required_cluster[0] > 0 &&
      (cluster_dim_.x != static_cast<uint32_t>(kernel_.required_cluster[0]) ||
       cluster_dim_.y != static_cast<uint32_t>(kernel_.required_cluster[1]) ||
       cluster_dim_.z != static_cast<uint32_t>(kernel_.required_cluster[2]))) {
    reject(format("cluster %s, but the kernel requires (%d,%d,%d) (.reqnctapercluster)",
                  to_string(cluster_dim_).c_str(), kernel_.required_cluster[0],
                  kernel_.required_cluster[1], kernel_.required_cluster[2]));
  }
  if (cluster_dim_.count() > 16)
    reject(format("cluster %s has more than 16 CTAs", to_string(cluster_dim_).c_str()));
  if (grid_.x % cluster_dim_.x != 0 || grid_.y % cluster_dim_.y != 0 ||
      grid_.z % cluster_dim_.z != 0) {
    reject(format("grid %s is not a multiple of the cluster %s", to_string(grid_).c_str(),
                  to_string(cluster_dim_).c_str()));
  }
  if (params_.size() != kernel_.param_bytes)
    reject(format("%zu bytes of parameters, the kernel takes %u", params_.size(),
                  kernel_.param_bytes));
  if (config_.sm_count < 1 || config_.sm_count > 4096)
    reject(format("sm_count %d is not between 1 and 4096", config_.sm_count));
  if (cluster_dim_.count() > static_cast<uint64_t>(config_.sm_count)) {
    reject(format("a cluster of %llu CTAs does not fit on %d SMs",
                  static_cast<unsigned long long>(cluster_dim_.count()), config_.sm_count));
  }
  const size_t used = kernel_.static_shared_bytes - kSharedReserved + dynamic_shared_;
  if (dynamic_shared_ > config_.shared_per_cta || used > config_.shared_per_cta) {
    reject(format("%zu bytes of shared memory per CTA, at most %zu allowed", used,
                  config_.shared_per_cta));
  }
  const uint64_t places =
      uint64_t{std::max<uint32_t>(1, ctas_per_sm(config_, kernel_, block_, dynamic_shared_))} *
      static_cast<uint64_t>(config_.sm_count);
  const uint64_t lanes = uint64_t{warps_of(static_cast<uint32_t>(threads))} * kWarpSize;
  const uint64_t local = std::min(grid_.count(), places) * lanes * kernel_.local_bytes;
  if (local > kMaxLocalBytesOfLaunch) {
    reject(
        format("the CTAs that run at once need %llu bytes of local memory, at most %llu are "
               "possible: use fewer threads, or a smaller sm_count",
               static_cast<unsigned long long>(local),
               static_cast<unsigned long long>(kMaxLocalBytesOfLaunch)));
  }
}

void Launch::prepare() {
  const uint32_t threads = static_cast<uint32_t>(block_.count());
  shared_bytes_ = static_cast<uint32_t>(kernel_.static_shared_bytes + dynamic_shared_);
  const uint32_t slots =
      std::max<uint32_t>(1, ctas_per_sm(config_, kernel_, block_, dynamic_shared_));
  const uint32_t sms = static_cast<uint32_t>(config_.sm_count);
  const uint32_t first = sms * worker_ / clusters_.workers;
  sms_.resize(sms * (worker_ + 1) / clusters_.workers - first);
  for (uint32_t i = 0; i < sms_.size(); ++i) {
    sms_[i].index = first + i;
    sms_[i].free_slots = slots;
  }
  stats_.warps.resize(warps_of(threads));
  total_clusters_ = grid_.count() / cluster_dim_.count();
}

bool Launch::cancel_cluster(Dim3* first_cta) {
  const uint64_t index = clusters_.next_cluster++;
  if (index >= total_clusters_) return false;
  const uint64_t nx = grid_.x / cluster_dim_.x, ny = grid_.y / cluster_dim_.y;
  *first_cta = {static_cast<uint32_t>(index % nx) * cluster_dim_.x,
                static_cast<uint32_t>(index / nx % ny) * cluster_dim_.y,
                static_cast<uint32_t>(index / nx / ny) * cluster_dim_.z};
  ++stats_.clusters_cancelled;
  ++clusters_.finished_clusters;
  return true;
}

void Launch::start_clusters() {
  const uint32_t size = static_cast<uint32_t>(cluster_dim_.count());
  while (clusters_.next_cluster < total_clusters_) {
    uint32_t free = 0;
    for (const Sm& sm : sms_) free += sm.free_slots > 0;
    if (free < size) return;
    const uint64_t index = clusters_.next_cluster++;
    if (index >= total_clusters_) return;
    start_cluster(index);
    if (clusters_.shared()) return;  // the others get some too
  }
}

void Launch::start_cluster(uint64_t index) {
  auto owned = std::make_unique<Cluster>();
  Cluster& cluster = *owned;
  const uint64_t nx = grid_.x / cluster_dim_.x, ny = grid_.y / cluster_dim_.y;
  cluster.id_ = {static_cast<uint32_t>(index % nx), static_cast<uint32_t>(index / nx % ny),
                 static_cast<uint32_t>(index / nx / ny)};
  cluster.first_cta_ = {cluster.id_.x * cluster_dim_.x, cluster.id_.y * cluster_dim_.y,
                        cluster.id_.z * cluster_dim_.z};
  resident_.push_back(std::move(owned));
  const uint32_t size = static_cast<uint32_t>(cluster_dim_.count());
  // Distinct SMs, starting at a random one.
  uint32_t sm = random_.below(static_cast<uint32_t>(sms_.size()));
  for (uint32_t rank = 0; rank < size; ++rank) {
    auto cta = std::make_unique<Cta>();
    while (sms_[sm].free_slots == 0) sm = (sm + 1) % static_cast<uint32_t>(sms_.size());
    --sms_[sm].free_slots;
    cta->launch_ = this;
    cta->cluster_ = &cluster;
    cta->sm_ = &sms_[sm];
    sm = (sm + 1) % static_cast<uint32_t>(sms_.size());
    cta->rank_ = rank;
    const uint32_t x = rank % cluster_dim_.x, y = rank / cluster_dim_.x % cluster_dim_.y,
                   z = rank / cluster_dim_.x / cluster_dim_.y;
    cta->id_ = {cluster.first_cta_.x + x, cluster.first_cta_.y + y, cluster.first_cta_.z + z};
    cta->linear_ = cta->id_.x + grid_.x * (cta->id_.y + grid_.y * cta->id_.z);
    cta->threads_ = static_cast<uint32_t>(block_.count());
    cta->shared_.reset(kernel_.uses_reserved_shared ? kSharedSystem : kSharedReserved,
                       shared_bytes_, config_.rules, *cta);
    cluster.ctas_.push_back(std::move(cta));
  }
  cluster.live_ctas_ = size;
  stats_.ctas += size;
  for (uint32_t rank = 0; rank < size; ++rank) {
    Cta& cta = *cluster.ctas_[rank];
    const uint32_t warps = warps_of(cta.threads_);
    cta.live_warps_ = warps;
    for (uint32_t i = 0; i < warps; ++i) start_warp(cta, i);
  }
  races_.start(cluster);
  progress();
}

void Launch::warp_exited(Warp& w) {
  warps_.erase(std::find(warps_.begin(), warps_.end(), &w));
  Cta& cta = *w.cta_;
  progress();
  --cta.live_warps_;
  races_.exited(w);
  // A barrier of all threads may now be complete: its waiters look again.
  for (uint32_t id = 0; id < kNamedBarriers; ++id) wake(wait_key(&cta.barriers_[id]), cta);
  wake(wait_key(cta.cluster_), *cta.cluster_);
  if (cta.live_warps_ > 0) return;
  if (cta_exit_hook != nullptr) cta_exit_hook(cta);
  Cluster& cluster = *cta.cluster_;
  if (--cluster.live_ctas_ == 0 && cluster.pending_async_ == 0) retire(cluster);
}

void Launch::retire(Cluster& cluster) {
  for (auto& cta : cluster.ctas_) {
    ++cta->sm_->free_slots;
    // Not earlier: asynchronous operations of a warp may use its registers after it has exited.
    for (auto& warp : cta->warps_) register_files_.push_back(std::move(warp->storage_));
  }
  ++clusters_.finished_clusters;
  resident_.erase(std::find_if(resident_.begin(), resident_.end(),
                               [&](const auto& c) { return c.get() == &cluster; }));
  report_progress();
}

void Launch::report_progress() {
  next_report_ = now_ + kReportTicks;
  if (config_.progress && !config_.progress(clusters_.finished_clusters, total_clusters_)) {
    throw Error(ErrorKind::kLaunch, 0, "launch stopped by its progress callback");
  }
}

}  // namespace bwgemm::emulator
