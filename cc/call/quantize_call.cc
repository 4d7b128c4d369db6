#include "call/quantize_call.h"

#include <string>
#include <vector>

#include "call/linked.h"
#include "core/ceil_div.h"
#include "core/device.h"
#include "core/helper_kernels.h"
#include "scaled/quantize/problem.h"

namespace bwgemm::call {
namespace {

using scaled::Blocks;
using scaled::QuantizeProblem;

constexpr std::array<std::string_view, kQuantizeRoles> kNames = {
    "x",  "random", "values", "t_values", "scales", "t_scales", "amax", "x0",
    "x1", "x2",     "x3",     "x4",       "x5",     "x6",       "x7"};
static_assert(kNames.back() == "x7");

int64_t BlocksOf(int64_t extent) { return CeilDiv(extent, kScaleBlock); }

std::string Shape(DType dtype, const std::vector<int64_t>& extents) {
  Buffer expected;
  expected.dtype = dtype;
  expected.rank = static_cast<int>(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) expected.dims[i] = extents[i];
  return ShapeString(expected);
}

// InvalidArgument unless the buffer is there, an operand or a result, with this type and shape.
Status Check(const QuantizeCall& call, QuantizeRole role, bool result, DType dtype,
             const std::vector<int64_t>& extents) {
  const Buffer& buffer = call[role];
  const char* const what = result ? "result" : "operand";
  if (!buffer.present() || call.is_result[static_cast<int>(role)] != result) {
    return Status::InvalidArgument("quantize to '" + std::string(call.scaling) + "' needs the " +
                                   what + " " + std::string(Name(role)));
  }
  bool equal = buffer.dtype == dtype && buffer.rank == static_cast<int>(extents.size());
  for (int i = 0; equal && i < buffer.rank; ++i) equal = buffer.dims[i] == extents[i];
  if (equal) return Status::Ok();
  return Status::InvalidArgument("quantize: " + std::string(what) + " " + std::string(Name(role)) +
                                 " is " + ShapeString(buffer) + ", expected " +
                                 Shape(dtype, extents));
}

Status ToBlocks(std::string_view scaling, Blocks* blocks) {
  if (scaling == "tensor") {
    *blocks = Blocks::kTensor;
  } else if (scaling == "row") {
    *blocks = Blocks::kRow;
  } else if (scaling == "1x128") {
    *blocks = Blocks::k1x128;
  } else if (scaling == "128x128") {
    *blocks = Blocks::kSquare;
  } else {
    return Status::InvalidArgument("quantize: scaling '" + std::string(scaling) +
                                   "' is none of 'tensor', 'row', '1x128', '128x128'");
  }
  return Status::Ok();
}

// Shape of the scales of matrices [batch, rows, columns].
std::vector<int64_t> ScalesShape(Blocks blocks, int64_t batch, int64_t rows, int64_t columns) {
  switch (blocks) {
    case Blocks::kTensor:
      return {batch};
    case Blocks::kRow:
      return {batch, rows};
    case Blocks::k1x128:
      return {batch, BlocksOf(columns), rows};
    case Blocks::kSquare:
      break;
  }
  return {batch, BlocksOf(rows), BlocksOf(columns)};
}

Status MakeProblem(const QuantizeCall& call, QuantizeProblem* problem) {
  QuantizeProblem& p = *problem;
  BWGEMM_RETURN_IF_ERROR(ToBlocks(call.scaling, &p.blocks));
  const bool linked = !call.source.code.empty();
  const Buffer& values = call[QuantizeRole::kValues];
  if (linked == call[QuantizeRole::kX].present()) {
    return Status::InvalidArgument(linked ? "quantize: operand x and a function in its place"
                                          : "quantize needs the operand x");
  }
  // Of a function x has the shape of its values.
  const Buffer& x = linked ? values : call[QuantizeRole::kX];
  if (!x.present() || x.rank != 3 ||
      (!linked && x.dtype != DType::kBF16 && x.dtype != DType::kF16 && x.dtype != DType::kF32)) {
    return Status::InvalidArgument(
        "quantize: operand x must be bfloat16, float16 or float32 [B, R, K]" +
        (x.present() ? ", got " + ShapeString(x) : std::string()));
  }
  const int64_t batch = x.dims[0], rows = x.dims[1], columns = x.dims[2];
  BWGEMM_RETURN_IF_ERROR(CheckExtents("quantize's x", {batch, rows, columns}));
  const DType out = values.dtype == DType::kE5M2 ? DType::kE5M2 : DType::kE4M3;
  BWGEMM_RETURN_IF_ERROR(Check(call, QuantizeRole::kValues, true, out, {batch, rows, columns}));
  const bool given = p.blocks == Blocks::kTensor || p.blocks == Blocks::kRow;
  BWGEMM_RETURN_IF_ERROR(Check(call, QuantizeRole::kScales, !given, DType::kF32,
                               ScalesShape(p.blocks, batch, rows, columns)));
  const Buffer& t_values = call[QuantizeRole::kTValues];
  if (t_values.present()) {
    BWGEMM_RETURN_IF_ERROR(Check(call, QuantizeRole::kTValues, true, out, {batch, columns, rows}));
    BWGEMM_RETURN_IF_ERROR(Check(call, QuantizeRole::kTScales, !given, DType::kF32,
                                 ScalesShape(p.blocks, batch, columns, rows)));
  }
  const Buffer& random = call[QuantizeRole::kRandom];
  if (random.present()) {
    BWGEMM_RETURN_IF_ERROR(
        Check(call, QuantizeRole::kRandom, false, DType::kS32, {batch, scaled::kRandomWords}));
  }
  const Buffer& amax = call[QuantizeRole::kAmax];
  if (amax.present()) {
    BWGEMM_RETURN_IF_ERROR(Check(call, QuantizeRole::kAmax, true, DType::kF32,
                                 {batch, BlocksOf(rows) * BlocksOf(columns)}));
  }
  p.batch = static_cast<int32_t>(batch);
  p.rows = static_cast<int32_t>(rows);
  p.columns = static_cast<int32_t>(columns);
  if (linked && (batch != 1 || columns % 8 != 0)) {
    return Status::InvalidArgument("quantize: the values of a function are " + ShapeString(values) +
                                   ", expected a batch of 1 and K a multiple of 8");
  }
  p.x_dtype = x.dtype;
  p.out_dtype = out;
  p.power_of_two = call.power_of_two;
  p.epsilon = call.epsilon;
  p.x = linked ? nullptr : x.data;
  p.random = static_cast<const int32_t*>(random.data);
  p.values = static_cast<uint8_t*>(values.data);
  p.t_values = static_cast<uint8_t*>(t_values.data);
  p.scales = static_cast<float*>(call[QuantizeRole::kScales].data);
  p.t_scales = static_cast<float*>(call[QuantizeRole::kTScales].data);
  p.amax = static_cast<float*>(amax.data);
  return Status::Ok();
}

// The arrays that the linked function reads, after checking that they are what it was written for.
Status ReadSource(const QuantizeCall& call, const QuantizeProblem& problem,
                  EpilogueArguments* arguments) {
  BWGEMM_RETURN_IF_ERROR(CheckEpilogueVersion(call.source));
  arguments->m = problem.rows;
  arguments->n = problem.columns;
  std::string_view words = call.source.operands;
  for (int i = 0; i < kMaxEpilogueOperands; ++i) {
    const int role = static_cast<int>(QuantizeRole::kX0) + i;
    const Buffer& buffer = call.buffers[role];
    const std::string what = "quantize: operand " + std::string(kNames[role]);
    const std::string_view word = Take(&words, ' ');
    if (word.empty() != !buffer.present() || call.is_result[role]) {
      return Status::InvalidArgument(what + (word.empty() ? " is not expected" : " is missing"));
    }
    if (word.empty()) continue;
    const std::string found =
        std::string(bwgemm::Name(buffer.dtype)) + ":" + std::to_string(buffer.elements());
    if (found != word || reinterpret_cast<uintptr_t>(buffer.data) % 16 != 0) {
      return Status::InvalidArgument(what + " is " + ShapeString(buffer) + ", expected " +
                                     std::string(word) + ", aligned to 16 bytes");
    }
    arguments->operands[i] = buffer.data;
  }
  if (words.empty()) return Status::Ok();
  return Status::InvalidArgument("quantize: the function has too many operands");
}

// Unimplemented unless the build has code for the device.
Status CheckDevice(int device) {
  DeviceProperties properties;
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &properties));
  const Arch arch = properties.major >= 10 ? Arch::kSm100 : Arch::kSm90;
  return CheckArch("quantize", arch, device, properties);
}

}  // namespace

std::string_view Name(QuantizeRole role) { return kNames[static_cast<int>(role)]; }

Status PrepareQuantize(const QuantizeCall& call, int device) {
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  HelperKernels::Load(device);
  if (call.source.code.empty()) return Status::Ok();
  const void* function;
  return FindLinked(call.kernel, call.source, device, &function);
}

Status RunQuantize(const QuantizeCall& call, int device, cudaStream_t stream) {
  BWGEMM_RETURN_IF_ERROR(CheckDevice(device));
  QuantizeProblem problem;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(call, &problem));
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  if (call.source.code.empty()) return scaled::Quantize(problem, stream);
  EpilogueArguments source{};
  BWGEMM_RETURN_IF_ERROR(ReadSource(call, problem, &source));
  const void* function;
  BWGEMM_RETURN_IF_ERROR(FindLinked(call.kernel, call.source, device, &function));
  return scaled::QuantizeLinked(problem, source, function, stream);
}

}  // namespace bwgemm::call
