// KernelOps for one SM90 kernel of two f32 operands that multiplies two f16 terms of each, and
// three of bf16 if a row's exponents differ too much for f16 (dense/row_range.h). Both products are
// launched. The range of the rows, found on the GPU, decides which of them works.
#pragma once

#include "dense/row_range.h"
#include "dense/sm90/planes_launcher.h"
#include "dense/split_k.h"

namespace bwgemm::dense::sm90 {

template <class Spec>
struct F16TermsLauncher {
  using Exact = PlanesLauncher<typename Spec::BF16Terms>;
  using Scaled = PlanesLauncher<Spec>;
  using Dense = typename Scaled::Dense;
  static constexpr size_t kAlignment = Scaled::kAlignment;
  static_assert(Spec::kScalesRows && Spec::BF16Terms::kTerms == 3);

  // Where parts of the workspace begin, each aligned: the planes of either product are the first,
  // then come the rows' exponents and the flag.
  struct Parts {
    size_t p_exponents, q_exponents, wide, end;
  };

  static RowsOfF32 RowsOfP(const GemmProblem& p) {
    constexpr bool kKMajor =
        Spec::kSwapAb ? Spec::kBMajor == BMajor::kK : Spec::kAMajor == AMajor::kK;
    const GemmOperand& x = Spec::kSwapAb ? p.b : p.a;
    return {x, kKMajor, Spec::kSwapAb ? p.n : p.m, p.k, x.batch_pitch ? p.batch : 1};
  }
  static RowsOfF32 RowsOfQ(const GemmProblem& p) { return Scaled::Planes(p); }

  static Parts PartsOf(const GemmProblem& p) {
    const auto after = [](size_t begin, size_t bytes) {
      return (begin + bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    const auto count = [](const RowsOfF32& x) {
      return static_cast<size_t>(x.rows * x.matrices) + kExponentsAfter;
    };
    Parts parts;
    parts.p_exponents = after(0, Exact::Planes(p).bytes());
    parts.q_exponents = after(parts.p_exponents, count(RowsOfP(p)));
    parts.wide = after(parts.q_exponents, count(RowsOfQ(p)));
    parts.end = after(parts.wide, sizeof(uint32_t));
    return parts;
  }

  static size_t WorkspaceBytes(const GemmProblem& p) { return PartsOf(p).end + kAlignment; }

  static Status Prepare(int device) {
    BWGEMM_RETURN_IF_ERROR(Exact::Dense::Prepare(device));
    return Dense::Prepare(device);
  }

  static Status Launch(const GemmProblem& p, void* workspace, cudaStream_t stream) {
    uint8_t* begin = Scaled::Aligned(workspace);
    const Parts parts = PartsOf(p);
    const RowsOfF32 p_rows = RowsOfP(p), q_rows = RowsOfQ(p);
    const auto wide = reinterpret_cast<uint32_t*>(begin + parts.wide);
    BWGEMM_RETURN_IF_ERROR(
        ClearCounters(begin + parts.p_exponents, parts.end - parts.p_exponents, stream));
    BWGEMM_RETURN_IF_ERROR(FindRowExponents(p_rows, begin + parts.p_exponents, wide, stream));
    BWGEMM_RETURN_IF_ERROR(FindRowExponents(q_rows, begin + parts.q_exponents, wide, stream));
    ConditionalParams params{};
    params.p_exponents = {begin + parts.p_exponents, static_cast<int32_t>(p_rows.rows)};
    params.q_exponents = {begin + parts.q_exponents, static_cast<int32_t>(q_rows.rows)};
    BWGEMM_RETURN_IF_ERROR(SplitByRange(Exact::Planes(p), params.q_exponents, wide, begin, stream));
    ConditionalParams exact = params;
    params.condition = {wide, false};
    BWGEMM_RETURN_IF_ERROR(Scaled::Multiply(p, begin, params, stream));
    exact.condition = {wide, true};
    return Exact::Multiply(p, begin, exact, stream);
  }
};

// The kernel of BF16Terms is compiled once if it has an entry in the same unit.
template <class Spec>
KernelEntry MakeF16TermsEntry(const char* name, const char* f32_twin) {
  using L = F16TermsLauncher<Spec>;
  return {Spec::Info(name, f32_twin, Arch::kSm90, L::Scaled::C::kStages, /*uneven_parts=*/true),
          {&L::Dense::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

}  // namespace bwgemm::dense::sm90
