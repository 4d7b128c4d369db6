// KernelOps for one SM90 kernel of two f32 operands: a launch that splits Q into planes, then one
// that splits P on its way to the MMA.
#pragma once

#include "dense/planes.h"
#include "dense/sm90/launcher.h"

namespace bwgemm::dense::sm90 {

// The kernel sees planes of Q, whose k is contiguous: those of either major share it.
template <class Spec>
using PlanesSpec =
    KernelSpec<Spec::kA, Spec::kB, Spec::kOut, Spec::kSwapAb ? AMajor::kK : Spec::kAMajor,
               Spec::kSwapAb ? Spec::kBMajor : BMajor::kK, Spec::kTileM, Spec::kTileN, Spec::kTileK,
               Spec::kClusterM, Spec::kClusterN, Spec::kSchedule, Spec::kSwapAb, Spec::kStreamK,
               Spec::kTerms, Spec::kTermType>;

template <class Spec>
struct PlanesLauncher {
  using C = Config<PlanesSpec<Spec>>;
  using Dense = Launcher<C>;
  static constexpr size_t kAlignment = 128;  // of the planes, in the workspace

  static PlanesProblem Planes(const GemmProblem& p) {
    const GemmOperand& q = Spec::kSwapAb ? p.a : p.b;
    const bool k_major = Spec::kSwapAb ? Spec::kAMajor == AMajor::kK : Spec::kBMajor == BMajor::kK;
    const int64_t matrices = q.batch_pitch ? p.batch : 1;
    return {{q, k_major, Spec::kSwapAb ? p.m : p.n, p.k, matrices}, Spec::kTerms};
  }

  static size_t WorkspaceBytes(const GemmProblem& p) { return Planes(p).bytes() + kAlignment; }

  static uint8_t* Aligned(void* workspace) {
    const uintptr_t end_of_gap = reinterpret_cast<uintptr_t>(workspace) + kAlignment - 1;
    return reinterpret_cast<uint8_t*>(end_of_gap / kAlignment * kAlignment);
  }

  static Status Launch(const GemmProblem& p, void* workspace, cudaStream_t stream) {
    uint8_t* planes = Aligned(workspace);
    BWGEMM_RETURN_IF_ERROR(SplitIntoPlanes(Planes(p), planes, stream));
    ParamsOf<C> params{};
    return Multiply(p, planes, params, stream);
  }

  // The second launch alone. params: see Dense::Launch.
  static Status Multiply(const GemmProblem& p, const uint8_t* planes, ParamsOf<C>& params,
                         cudaStream_t stream) {
    const PlanesProblem problem = Planes(p);
    GemmProblem split = p;
    GemmOperand& q = Spec::kSwapAb ? split.a : split.b;
    q = {planes, problem.pitch(), q.batch_pitch ? problem.rows * problem.pitch() : 0};
    return Dense::Launch(split, params, stream);
  }
};

template <class Spec>
KernelEntry MakePlanesEntry(const char* name, const char* f32_twin) {
  using L = PlanesLauncher<Spec>;
  using Dense = typename L::Dense;
  return {Spec::Info(name, f32_twin, Arch::kSm90, L::C::kStages, /*uneven_parts=*/true),
          {&Dense::Supports, &L::WorkspaceBytes, &Dense::Prepare, &L::Launch}};
}

}  // namespace bwgemm::dense::sm90
