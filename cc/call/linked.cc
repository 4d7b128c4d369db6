#include "call/linked.h"

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/cuda_status.h"
#include "core/launch.h"

namespace bwgemm::call {
namespace {

// Loaded code, and its text for comparison.
struct Loaded {
  std::string text;
  std::string code;
  std::string form, symbol;
  cudaLibrary_t library = nullptr;
  const void* function = nullptr;
  OncePerDevice prepared;
};

// Never unloaded: a graph that XLA captured may launch a kernel at any time.
struct Cache {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Loaded>, std::less<>> by_digest;
};

Cache& TheCache() {
  static Cache* cache = new Cache;
  return *cache;
}

// Base64, padded, without white space.
Status Decode(std::string_view text, std::string* code) {
  const Status invalid = Status::InvalidArgument("the epilogue is not base64");
  if (text.size() % 4 != 0) return invalid;
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t bits = 0;
    int padding = 0;
    for (const char c : text.substr(i, 4)) {
      const size_t digit =
          std::string_view("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
              .find(c);
      if (c == '=') ++padding;
      if ((c != '=' && (digit == std::string_view::npos || padding > 0)) || padding > 2 ||
          (padding > 0 && i + 4 != text.size())) {
        return invalid;
      }
      bits = bits << 6 | (c == '=' ? 0 : static_cast<uint32_t>(digit));
    }
    for (int byte = 0; byte < 3 - padding; ++byte) {
      code->push_back(static_cast<char>(bits >> (16 - 8 * byte) & 0xff));
    }
  }
  return Status::Ok();
}

// Name of the kernel in the code.
std::string SymbolOf(const Kernel& kernel, std::string_view form) {
  std::string name = kernel.info.name;
  if (form == "gated") name.replace(name.find("rows"), 4, form);
  if (form == "split_k") {
    name = name.substr(0, name.find('_')) + "_split_k_" + Name(kernel.info.out_dtype);
  }
  return name;
}

Status Load(const std::string& symbol, const LinkedEpilogue& epilogue, Loaded* loaded) {
  loaded->text = epilogue.code;
  loaded->form = epilogue.form;
  loaded->symbol = symbol;
  BWGEMM_RETURN_IF_ERROR(Decode(epilogue.code, &loaded->code));
  BWGEMM_RETURN_IF_ERROR(BWGEMM_CUDA_STATUS(cudaLibraryLoadData(
      &loaded->library, loaded->code.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0)));
  cudaKernel_t function;
  BWGEMM_RETURN_IF_ERROR(
      BWGEMM_CUDA_STATUS(cudaLibraryGetKernel(&function, loaded->library, symbol.c_str())));
  loaded->function = reinterpret_cast<const void*>(function);
  return Status::Ok();
}

// symbol: its name of the kernel, asked for when code is loaded or compared: not on every
// execution.
template <class Symbol>
Status Find(const LinkedEpilogue& epilogue, bool compare, const Symbol& symbol, Loaded** found) {
  Cache& cache = TheCache();
  std::lock_guard lock(cache.mutex);
  auto it = cache.by_digest.find(epilogue.digest);
  if (it == cache.by_digest.end()) {
    auto loaded = std::make_unique<Loaded>();
    BWGEMM_RETURN_IF_ERROR(Load(symbol(), epilogue, loaded.get()));
    it = cache.by_digest.emplace(std::string(epilogue.digest), std::move(loaded)).first;
  } else if (it->second->text.size() != epilogue.code.size() || it->second->form != epilogue.form ||
             (compare && (it->second->symbol != symbol() || it->second->text != epilogue.code))) {
    return Status::InvalidArgument("epilogue_digest '" + std::string(epilogue.digest) +
                                   "' belongs to other code");
  }
  *found = it->second.get();
  return Status::Ok();
}

// The part of `text` before the next `separator`; `text` then loses both.
std::string_view Take(std::string_view* text, char separator) {
  const std::string_view part = text->substr(0, text->find(separator));
  text->remove_prefix(part.size() == text->size() ? part.size() : part.size() + 1);
  return part;
}

// Notes an array that TMA moves, which has D's type. staged: the indices of at most `most` arrays.
Status Stage(std::string_view word, std::string_view dtype, int index, DType d, int most,
             int32_t* staged) {
  if (word.empty()) return Status::Ok();
  for (int i = 0; i < most && word == "staged" && dtype == Name(d); ++i) {
    if (staged[i] >= 0) continue;
    staged[i] = index;
    return Status::Ok();
  }
  return Status::InvalidArgument("the epilogue's array " + std::to_string(index) + " of " +
                                 std::string(dtype) + " cannot be '" + std::string(word) + "'");
}

Status CheckArray(Role role, const Buffer& buffer, std::string_view dtype, int64_t elements) {
  const std::string what = (IsResult(role) ? "result " : "operand ") + std::string(Name(role));
  if (!buffer.present()) return Status::InvalidArgument("the epilogue needs " + what);
  int64_t count = 1;
  for (int i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  if (bwgemm::Name(buffer.dtype) == dtype && count == elements) {
    // Up to 16 bytes are read at once; XLA aligns at least to that.
    if (reinterpret_cast<uintptr_t>(buffer.data) % 16 == 0) return Status::Ok();
    return Status::InvalidArgument(what + " is not aligned to 16 bytes");
  }
  return Status::InvalidArgument(what + " is " + ShapeString(buffer) + ", expected " +
                                 std::to_string(elements) + " elements of " + std::string(dtype));
}

int64_t SumRows(const KernelInfo& kernel, int64_t m) {
  const bool two = kernel.schedule == Schedule::kCooperative || kernel.schedule == Schedule::k2Sm;
  return PartialSumRows(m, kernel.tile_m, two ? 2 : 1);
}

// Null if the kernel can have no epilogue.
auto PrepareLinkedOf(const Kernel& kernel) -> Status (*)(const void*, int) {
  return kernel.dense     ? kernel.dense->prepare_linked
         : kernel.grouped ? kernel.grouped->prepare_linked
         : kernel.scaled  ? kernel.scaled->prepare_linked
                          : nullptr;
}

}  // namespace

Status CheckLinkable(const Kernel& kernel, std::string_view form) {
  const bool grouped = kernel.info.contraction == Contraction::kMGrouped;
  const bool gated = form == "gated" && kernel.info.schedule == Schedule::kPingpong &&
                     kernel.info.b_major == BMajor::kN;
  const bool split = form == "split_k";
  const bool dense = kernel.info.contraction == Contraction::kDense;
  const bool halves = form == "halves" && kernel.info.arch == Arch::kSm90;
  if (!form.empty() && !(grouped && (gated || halves)) && !(split && dense)) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                   "' can have no epilogue of the form '" + std::string(form) +
                                   "'");
  }
  if (split || PrepareLinkedOf(kernel)) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                 "' can have no epilogue");
}

Status FindLinked(const Kernel& kernel, const LinkedEpilogue& epilogue, int device, bool compare,
                  const void** function) {
  BWGEMM_RETURN_IF_ERROR(CheckLinkable(kernel, epilogue.form));
  Loaded* loaded = nullptr;
  BWGEMM_RETURN_IF_ERROR(
      Find(epilogue, compare, [&] { return SymbolOf(kernel, epilogue.form); }, &loaded));
  *function = loaded->function;
  if (epilogue.form == "split_k") return Status::Ok();
  return loaded->prepared.Run(device,
                              [&] { return PrepareLinkedOf(kernel)(loaded->function, device); });
}

Status FindLinked(std::string_view kernel, const LinkedEpilogue& epilogue, bool compare,
                  const void** function) {
  Loaded* loaded = nullptr;
  BWGEMM_RETURN_IF_ERROR(Find(epilogue, compare, [&] { return std::string(kernel); }, &loaded));
  *function = loaded->function;
  return Status::Ok();
}

Status CheckEpilogueVersion(const LinkedEpilogue& epilogue) {
  if (epilogue.version != kEpilogueVersion) {
    return Status::Unimplemented("the epilogue was linked by another version of jax_bwgemm (" +
                                 std::to_string(epilogue.version) + ", this is " +
                                 std::to_string(kEpilogueVersion) + "): compile the program again");
  }
  return Status::Ok();
}

Status ReadEpilogue(const ProductCall& call, const KernelInfo& kernel, const EpilogueSizes& sizes,
                    EpilogueArguments* arguments) {
  const auto [m, n, matrices] = sizes;
  const DType d = kernel.out_dtype;
  BWGEMM_RETURN_IF_ERROR(CheckEpilogueVersion(call.epilogue));
  arguments->m = m;
  arguments->n = n;
  for (int i = 0; i < kMaxStaged; ++i) {
    arguments->staged_operands[i] = arguments->staged_results[i] = -1;
  }
  const bool grouped = kernel.contraction == Contraction::kMGrouped;
  const int most = grouped ? kMaxStaged : 1;
  const int64_t batch = grouped ? 1 : matrices;
  bool half = false;
  std::string_view operands = call.epilogue.operands, results = call.epilogue.results;
  for (int i = 0; i < kMaxEpilogueOperands; ++i) {
    const Role role = EpilogueOperand(i);
    const Buffer& buffer = call.buffers[role];
    if (operands.empty()) {
      if (!buffer.present()) continue;
      return Status::InvalidArgument("the epilogue takes no " + std::string(Name(role)));
    }
    std::string_view word = Take(&operands, ' ');
    const std::string_view dtype = Take(&word, ':'), along = Take(&word, ':');
    int64_t elements = 1;
    if (along.find('m') != along.npos) elements *= m;
    if (along.find('n') != along.npos) elements *= n;
    if (along.find('g') != along.npos) elements *= matrices;
    BWGEMM_RETURN_IF_ERROR(CheckArray(role, buffer, dtype, elements));
    BWGEMM_RETURN_IF_ERROR(Stage(word, dtype, i, d, most, arguments->staged_operands));
    arguments->operands[i] = buffer.data;
  }
  for (int i = 0; i < kMaxEpilogueResults; ++i) {
    const Role role = EpilogueResult(i);
    const Buffer& buffer = call.buffers[role];
    if (results.empty()) {
      if (!buffer.present()) continue;
      return Status::InvalidArgument("the epilogue has no " + std::string(Name(role)));
    }
    std::string_view word = Take(&results, ' ');
    const std::string_view dtype = Take(&word, ':');
    if (word == "half") {  // lies behind D's columns
      if (buffer.present() || i != 0 || call.epilogue.form != "halves") {
        return Status::InvalidArgument("the epilogue's result 0 cannot be a half of d");
      }
      BWGEMM_RETURN_IF_ERROR(Stage("staged", dtype, i, d, most, arguments->staged_results));
      arguments->results[i] = static_cast<char*>(call.buffers[Role::kD].data) + n * SizeOf(d);
      half = true;
      continue;
    }
    const bool sums =
        grouped ? kernel.arch == Arch::kSm90 : !kernel.swap_ab && call.epilogue.form.empty();
    const bool summed = word == "summed" && dtype == bwgemm::Name(DType::kF32) && sums;
    const int64_t parts = (int64_t{n} + kPartColumns - 1) / kPartColumns;
    const int64_t elements = !summed   ? int64_t{m} * n
                             : grouped ? parts * m
                                       : SumRows(kernel, m) * n;
    BWGEMM_RETURN_IF_ERROR(CheckArray(role, buffer, dtype, batch * elements));
    if (!summed) BWGEMM_RETURN_IF_ERROR(Stage(word, dtype, i, d, most, arguments->staged_results));
    arguments->results[i] = buffer.data;
  }
  if (half != (call.epilogue.form == "halves")) {
    return Status::InvalidArgument("the epilogue has no second half of d");
  }
  if (operands.empty() && results.empty()) return Status::Ok();
  return Status::InvalidArgument("the epilogue has too many operands or results");
}

}  // namespace bwgemm::call
