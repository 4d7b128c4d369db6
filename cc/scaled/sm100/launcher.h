// KernelOps for one scaled SM100 kernel.
#pragma once

#include "core/ceil_div.h"
#include "dense/gemm_kernel.h"
#include "dense/launcher.h"
#include "scaled/sm100/config.h"

namespace bwgemm::scaled::sm100 {

template <class C>
struct Launcher {
  using Dense = dense::Launcher<C>;
  using Arguments = typename Dense::Arguments;

  static Status Supports(const ScaledProblem& p) {
    if constexpr (C::kScaleUse != ScaleUse::kMma) return Dense::Supports(p.gemm);
    for (int64_t rows : {p.gemm.m, p.gemm.n}) {
      // CUTLASS counts scales in 32 bits.
      const int64_t tiles = CeilDiv(rows, kScaleTileRows) * CeilDiv(p.gemm.k, ScaleTileK(C::kA));
      if (tiles <= INT32_MAX / kScaleTileBytes) continue;
      return Status::InvalidArgument(p.ToString() + " may have more than 2^31 - 1 scales");
    }
    Arguments args = Dense::MakeArguments(p.gemm);
    SetLayouts(args);
    if (!C::Kernel::can_implement(args)) return dense::NotAligned(p.gemm);
    return Dense::CheckGrid(p.gemm);
  }

  static size_t WorkspaceBytes(const ScaledProblem& p) { return Dense::WorkspaceBytes(p.gemm); }

  static Status Launch(const ScaledProblem& p, void* workspace, cudaStream_t stream) {
    Arguments args = Dense::MakeArguments(p.gemm);
    SetScales(p, args);
    return Dense::Launch(args, workspace, stream);
  }

  // With an epilogue linked in. Of the kernel's own config, with `kLinked`. Without a workspace: it
  // does not split K.
  static Status PrepareLinked(const void* function, int) {
    return SetSharedMemoryLimit(function, Dense::Kernel::SharedStorageSize);
  }
  static Status LaunchLinked(const ScaledProblem& p, const void* function, const void* arguments,
                             void*, cudaStream_t stream) {
    Arguments args = Dense::MakeArguments(p.gemm);
    SetScales(p, args);
    const auto& epilogue = *static_cast<const EpilogueArguments*>(arguments);
    if constexpr (C::kScaleUse == ScaleUse::kMma) {
      args.epilogue.thread = epilogue;
    } else {
      args.epilogue.thread.op_1 = epilogue;
    }
    return Dense::Launch(args, nullptr, stream, function);
  }

 private:
  // Of scales in tiles, every matrix with its own.
  static void SetLayouts(Arguments& args) {
    if constexpr (C::kScaleUse == ScaleUse::kMma) {
      using Blocks = typename C::Mainloop::Sm1xxBlkScaledConfig;
      args.mainloop.layout_SFA = Blocks::tile_atom_to_shape_SFA(args.problem_shape);
      args.mainloop.layout_SFB = Blocks::tile_atom_to_shape_SFB(args.problem_shape);
    }
  }

  static void SetScales(const ScaledProblem& p, Arguments& args) {
    if constexpr (C::kScaleUse == ScaleUse::kMma) {
      using Scale = typename C::Mainloop::ElementSF;
      auto& loop = args.mainloop;
      loop.ptr_SFA = reinterpret_cast<const Scale*>(p.a.tiles);
      loop.ptr_SFB = reinterpret_cast<const Scale*>(p.b.tiles);
      SetLayouts(args);
      SetBatchPitch(loop.layout_SFA, p.a.batch_pitch);
      SetBatchPitch(loop.layout_SFB, p.b.batch_pitch);
      if constexpr (C::kA == DType::kE2M1) {
        args.epilogue.thread = {
            {p.alpha.data, 0.0f, {false, cute::_0{}, p.alpha.batch_pitch}}, {}, {}};
      }
    } else {
      SetFactors(p, args.epilogue.thread);
    }
  }

  // The scales that multiply sums: thread's arguments, or those of the linked function's child.
  template <class Thread>
  static void SetFactors(const ScaledProblem& p, Thread& thread) {
    const auto& [column, row] = std::tie(p.a, p.b);
    if constexpr (C::kLinked) {
      SetFactorsOf(column, row, thread.op_0);
    } else {
      SetFactorsOf(column, row, thread);
    }
  }
  template <class Scales, class Thread>
  static void SetFactorsOf(const Scales& column, const Scales& row, Thread& thread) {
    thread = {{{column.data, 0.0f, {column.row_pitch != 0, cute::_0{}, column.batch_pitch}},
               {row.data, 0.0f, {cute::_0{}, row.row_pitch != 0, row.batch_pitch}},
               {}},
              {},
              {}};
  }

  // 0: all matrices have the same scales.
  template <class Layout>
  static void SetBatchPitch(Layout& layout, int64_t pitch) {
    cute::get<2, 1>(layout.stride()) = static_cast<int32_t>(pitch);
  }
};

template <class Spec>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using C = Config<Spec>;
  using L = Launcher<C>;
  // K is not split where MMAs read the scales: their layout is that of all of K.
  const char* twin = C::kScaleUse == ScaleUse::kMma ? "" : f32_twin;
  KernelEntry entry{C::Info(name, twin, Arch::kSm100, C::kStages, /*uneven_parts=*/false),
                    {&L::Supports, &L::WorkspaceBytes, &L::Dense::Prepare, &L::Launch}};
  if constexpr (C::kLinkable && sizeof(typename C::Out) == 2) {
    using Linked = Launcher<Config<Spec, /*kLinked=*/true>>;
    entry.ops.prepare_linked = &Linked::PrepareLinked;
    entry.ops.launch_linked = &Linked::LaunchLinked;
  }
  return entry;
}

}  // namespace bwgemm::scaled::sm100
