#include "call/scales.h"

#include <string>

#include "core/ceil_div.h"

namespace bwgemm::call {
namespace {

bool ReadByMma(std::string_view scaling) { return scaling == "mxfp8" || scaling == "nvfp4"; }

}  // namespace

Status SetScales(Role role, const Buffer& buffer, std::string_view scaling, int64_t batch,
                 int64_t experts, int64_t rows, int64_t k, scaled::Scales* scales, int64_t bands) {
  bool batched = false;
  // The scales of one matrix.
  const auto check = [&](std::initializer_list<int64_t> extents, DType dtype = DType::kF32) {
    std::array<int64_t, kMaxRank> all{batch};
    size_t rank = 1;
    if (experts != 0) all[rank++] = experts;
    for (int64_t extent : extents) all[rank++] = extent;
    return CheckBuffer(role, buffer, dtype, all.data(), rank, &batched);
  };
  const bool tiled = ReadByMma(scaling);
  if (tiled) {
    scales->tiles = static_cast<const uint8_t*>(buffer.data);
  } else {
    scales->data = static_cast<const float*>(buffer.data);
  }
  int64_t count = 1;
  if (scaling == "tensor") {
    BWGEMM_RETURN_IF_ERROR(check({}));
  } else if (scaling == "row") {
    BWGEMM_RETURN_IF_ERROR(check({rows}));
    scales->row_pitch = 1;
    count = rows;
  } else if (scaling == "1x128") {
    BWGEMM_RETURN_IF_ERROR(check({CeilDiv(k, kScaleBlock), rows}));
    scales->row_pitch = 1;
    scales->k_pitch = rows;
    count = CeilDiv(k, kScaleBlock) * rows;
  } else if (scaling == "128x128") {
    BWGEMM_RETURN_IF_ERROR(check({CeilDiv(rows, kScaleBlock), CeilDiv(k, kScaleBlock)}));
    scales->row_pitch = CeilDiv(k, kScaleBlock);
    scales->k_pitch = 1;
    scales->log_rows = 7;
    count = CeilDiv(rows, kScaleBlock) * CeilDiv(k, kScaleBlock);
  } else if (tiled) {
    if (bands == 0) bands = CeilDiv(rows, kScaleTileRows);
    const int64_t tiles = CeilDiv(k, ScaleTileK(scaling == "nvfp4" ? DType::kE2M1 : DType::kE4M3));
    BWGEMM_RETURN_IF_ERROR(check({bands, tiles, kScaleTileBytes}, DType::kU8));
    count = bands * tiles * kScaleTileBytes;
  } else {
    return Status::InvalidArgument("scaling '" + std::string(scaling) + "' of " +
                                   std::string(Name(role)) +
                                   " is none of 'tensor', 'row', '1x128', '128x128', 'mxfp8', "
                                   "'nvfp4'");
  }
  if (experts != 0) {
    scales->expert_pitch = count;
    count *= experts;
  }
  scales->batch_pitch = batched ? count : 0;
  return Status::Ok();
}

Status CheckUse(const KernelInfo& kernel, const Options& options) {
  const std::string_view p = kernel.swap_ab ? options.b_scaling : options.a_scaling;
  const std::string_view q = kernel.swap_ab ? options.a_scaling : options.b_scaling;
  auto along_k = [](std::string_view s) { return s == "1x128" || s == "128x128"; };
  auto of_rows = [](std::string_view s) { return s == "row" || s == "1x128"; };
  const bool of_mma = kernel.scales == ScaleUse::kMma;
  const std::string_view format = kernel.a_dtype == DType::kE2M1 ? "nvfp4" : "mxfp8";
  const bool fits = of_mma || ReadByMma(p) || ReadByMma(q) ? of_mma && p == format && q == format
                    : kernel.scales == ScaleUse::kSums     ? !along_k(p) && !along_k(q)
                    : kernel.scales == ScaleUse::kBlocks   ? !of_rows(q)
                                                           : of_rows(q);
  if (fits) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' applies scales to " +
                                 Name(kernel.scales) + ", the call has a_scaling '" +
                                 std::string(options.a_scaling) + "', b_scaling '" +
                                 std::string(options.b_scaling) + "'");
}

}  // namespace bwgemm::call
