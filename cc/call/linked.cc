#include "call/linked.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/ceil_div.h"
#include "core/cuda_status.h"
#include "core/launch.h"

namespace bwgemm::call {
namespace {

// Code, and its text for comparison.
struct Loaded {
  std::string text;
  // Addresses of texts that were found equal: comparing the text in every call would take longer
  // than a small product. Another text of the same length, form, kernel and digest at such an
  // address is not noticed.
  std::vector<const char*> compared;
  std::string form, symbol;
  std::mutex loading;
  std::string code;                            // kept for the library
  std::atomic<const void*> function{nullptr};  // null until it is loaded
  OncePerDevice prepared;
};

// What is loaded stays: a graph that XLA captured may launch a kernel at any time.
struct Cache {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Loaded>, std::less<>> by_digest;
  std::vector<std::shared_ptr<Loaded>> others;  // loaded, while their digest was another's
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

// The linked kernel's name in the epilogue's code.
std::string SymbolOf(const Kernel& kernel, std::string_view form) {
  std::string name = kernel.info.name;
  if (form == "gated") name.replace(name.find("rows"), 4, form);
  if (form == "split_k") {
    name = name.substr(0, name.find('_')) + "_split_k_" + Name(kernel.info.out_dtype);
  }
  return name;
}

// Launches pass one parameter: for a second one, CUDA would read beyond the list. It reads as many
// bytes of the first one as the code says. No kernel of any version has more than these.
constexpr size_t kMostParameterBytes = 4096;
Status CheckOneParameter(cudaKernel_t kernel, const std::string& name) {
  size_t offset, bytes;
  const auto ask = [&](size_t index) {
    return cudaFuncGetParamInfo(reinterpret_cast<const void*>(kernel), index, &offset, &bytes);
  };
  BWGEMM_RETURN_IF_CUDA_ERROR(ask(0));
  if (bytes > kMostParameterBytes) {
    return Status::InvalidArgument("the epilogue's kernel '" + name + "' takes " +
                                   std::to_string(bytes) + " bytes of parameters, at most " +
                                   std::to_string(kMostParameterBytes) + " are possible");
  }
  const bool one = ask(1) != cudaSuccess;
  (void)cudaGetLastError();
  if (one) return Status::Ok();
  return Status::InvalidArgument("the epilogue's kernel '" + name +
                                 "' has not exactly one parameter");
}

// Unless it is loaded. Not under the cache's lock: loading may take long, and wait for a GPU.
Status Load(Loaded* loaded) {
  std::lock_guard lock(loaded->loading);
  if (loaded->function != nullptr) return Status::Ok();
  std::string code;
  BWGEMM_RETURN_IF_ERROR(Decode(loaded->text, &code));
  loaded->code = std::move(code);
  cudaLibrary_t library;
  BWGEMM_RETURN_IF_ERROR(BWGEMM_CUDA_STATUS(cudaLibraryLoadData(
      &library, loaded->code.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0)));
  cudaKernel_t function;
  Status found =
      BWGEMM_CUDA_STATUS(cudaLibraryGetKernel(&function, library, loaded->symbol.c_str()));
  if (found.ok()) found = CheckOneParameter(function, loaded->symbol);
  if (found.ok()) {
    loaded->function = reinterpret_cast<const void*>(function);
  } else {
    (void)cudaLibraryUnload(library);
  }
  return found;
}

// Whether the epilogue is the one that was loaded.
bool IsSame(const LinkedEpilogue& epilogue, const std::string& symbol, Loaded* loaded) {
  if (loaded->text.size() != epilogue.code.size() || loaded->form != epilogue.form ||
      loaded->symbol != symbol) {
    return false;
  }
  auto& compared = loaded->compared;
  if (std::find(compared.begin(), compared.end(), epilogue.code.data()) != compared.end()) {
    return true;
  }
  if (loaded->text != epilogue.code) return false;
  constexpr size_t kMostPrograms = 64;
  if (compared.size() == kMostPrograms) compared.clear();
  compared.push_back(epilogue.code.data());
  return true;
}

// The entry of a digest, or a new one. symbol: the kernel's name in the code.
Status Entry(const LinkedEpilogue& epilogue, const std::string& symbol,
             std::shared_ptr<Loaded>* found) {
  Cache& cache = TheCache();
  std::lock_guard lock(cache.mutex);
  auto it = cache.by_digest.find(epilogue.digest);
  if (it == cache.by_digest.end()) {
    auto loaded = std::make_shared<Loaded>();
    loaded->text = epilogue.code;
    loaded->form = epilogue.form;
    loaded->symbol = symbol;
    it = cache.by_digest.emplace(std::string(epilogue.digest), std::move(loaded)).first;
  } else if (!IsSame(epilogue, symbol, it->second.get())) {
    return Status::InvalidArgument("epilogue_digest '" + std::string(epilogue.digest) +
                                   "' belongs to other code");
  }
  *found = it->second;
  return Status::Ok();
}

// The epilogue's code, loaded before or now. What cannot be loaded has no claim to its digest.
Status Find(const LinkedEpilogue& epilogue, const std::string& symbol,
            std::shared_ptr<Loaded>* found) {
  BWGEMM_RETURN_IF_ERROR(Entry(epilogue, symbol, found));
  if ((*found)->function != nullptr) return Status::Ok();
  const Status status = Load(found->get());
  Cache& cache = TheCache();
  std::lock_guard lock(cache.mutex);
  const auto it = cache.by_digest.find(epilogue.digest);
  const bool there = it != cache.by_digest.end() && it->second == *found;
  if (status.ok() && !there) cache.others.push_back(*found);  // another thread failed meanwhile
  if (!status.ok() && there) cache.by_digest.erase(it);
  return status;
}

// Notes an array that TMA moves, which has D's type and, if `whole`, its shape. staged: the indices
// of at most `most` arrays.
Status Stage(std::string_view word, std::string_view dtype, int index, DType d, bool whole,
             int most, int32_t* staged) {
  if (word.empty()) return Status::Ok();
  for (int i = 0; whole && i < most && word == "staged" && dtype == Name(d); ++i) {
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
  if (bwgemm::Name(buffer.dtype) == dtype && buffer.elements() == elements) {
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

// What prepares the kernel with an epilogue for a device; null if the kernel can have none.
auto PrepareLinkedOf(const Kernel& kernel) -> Status (*)(const void*, int) {
  return kernel.dense     ? kernel.dense->prepare_linked
         : kernel.grouped ? kernel.grouped->prepare_linked
         : kernel.scaled  ? kernel.scaled->prepare_linked
                          : kernel.scaled_grouped->prepare_linked;
}

// How many operands of the kernel's epilogue, or results, TMA may move.
int MostStaged(const KernelInfo& kernel, bool results) {
  if (kernel.contraction == Contraction::kMGrouped) return kernel.swap_ab ? kMaxStaged : 0;
  const bool two = kernel.contraction == Contraction::kDense && kernel.arch == Arch::kSm90 &&
                   kernel.schedule == Schedule::kPingpong && !kernel.swap_ab;
  return two && !results ? 2 : 1;
}

// Elements of a result that is not summed, or of the partial sums of one that is.
int64_t ResultElements(const KernelInfo& kernel, const EpilogueSizes& sizes, bool summed) {
  const int64_t m = sizes.m, n = sizes.n;
  if (kernel.contraction == Contraction::kMGrouped) {
    return summed ? CeilDiv(n, kPartColumns) * m : m * n;
  }
  return sizes.matrices * (summed ? SumRows(kernel, m) : m) * n;
}

Status ReadOperands(const ProductCall& call, const KernelInfo& kernel, const EpilogueSizes& sizes,
                    EpilogueArguments* arguments) {
  std::string_view words = call.epilogue.operands;
  for (int i = 0; i < kMaxEpilogueOperands; ++i) {
    const Role role = EpilogueOperand(i);
    const Buffer& buffer = call.buffers[role];
    if (words.empty()) {
      if (!buffer.present()) continue;
      return Status::InvalidArgument("the epilogue takes no " + std::string(Name(role)));
    }
    std::string_view word = Take(&words, ' ');
    const std::string_view dtype = Take(&word, ':'), along = Take(&word, ':');
    int64_t elements = 1;
    if (along.find('m') != along.npos) elements *= sizes.m;
    if (along.find('n') != along.npos) elements *= sizes.n;
    if (along.find('g') != along.npos) elements *= sizes.matrices;
    BWGEMM_RETURN_IF_ERROR(CheckArray(role, buffer, dtype, elements));
    const bool whole = elements == ResultElements(kernel, sizes, /*summed=*/false);
    BWGEMM_RETURN_IF_ERROR(Stage(word, dtype, i, kernel.out_dtype, whole,
                                 MostStaged(kernel, /*results=*/false),
                                 arguments->staged_operands));
    arguments->operands[i] = buffer.data;
  }
  if (words.empty()) return Status::Ok();
  return Status::InvalidArgument("the epilogue has too many operands");
}

Status ReadResults(const ProductCall& call, const KernelInfo& kernel, const EpilogueSizes& sizes,
                   EpilogueArguments* arguments) {
  const DType d = kernel.out_dtype;
  const int most = MostStaged(kernel, /*results=*/true);
  const bool halves = call.epilogue.form == "halves";
  const bool can_sum = kernel.contraction == Contraction::kMGrouped
                           ? kernel.arch == Arch::kSm90 && kernel.swap_ab
                           : !kernel.swap_ab && call.epilogue.form.empty();
  bool half = false;
  std::string_view words = call.epilogue.results;
  for (int i = 0; i < kMaxEpilogueResults; ++i) {
    const Role role = EpilogueResult(i);
    const Buffer& buffer = call.buffers[role];
    if (words.empty()) {
      if (!buffer.present()) continue;
      return Status::InvalidArgument("the epilogue has no " + std::string(Name(role)));
    }
    std::string_view word = Take(&words, ' ');
    const std::string_view dtype = Take(&word, ':');
    if (word == "half") {  // lies behind D's columns
      if (buffer.present() || i != 0 || !halves) {
        return Status::InvalidArgument("the epilogue's result 0 cannot be a half of d");
      }
      BWGEMM_RETURN_IF_ERROR(
          Stage("staged", dtype, i, d, /*whole=*/true, most, arguments->staged_results));
      arguments->results[i] =
          static_cast<char*>(call.buffers[Role::kD].data) + int64_t{sizes.n} * SizeOf(d);
      half = true;
      continue;
    }
    const bool summed = can_sum && word == "summed" && dtype == Name(DType::kF32);
    BWGEMM_RETURN_IF_ERROR(CheckArray(role, buffer, dtype, ResultElements(kernel, sizes, summed)));
    if (!summed) {
      BWGEMM_RETURN_IF_ERROR(
          Stage(word, dtype, i, d, /*whole=*/true, most, arguments->staged_results));
    }
    arguments->results[i] = buffer.data;
  }
  if (half != halves) {
    return Status::InvalidArgument("the epilogue has no second half of d");
  }
  if (words.empty()) return Status::Ok();
  return Status::InvalidArgument("the epilogue has too many results");
}

}  // namespace

Status CheckLinkable(const Kernel& kernel, std::string_view form) {
  const bool grouped = kernel.info.contraction == Contraction::kMGrouped;
  const bool gated = form == "gated" && kernel.info.schedule == Schedule::kPingpong &&
                     kernel.info.b_major == BMajor::kN;
  const bool split = form == "split_k";
  const bool dense = kernel.info.contraction == Contraction::kDense;
  const bool halves = form == "halves" && kernel.info.arch == Arch::kSm90 && kernel.info.swap_ab;
  if (!form.empty() && !(grouped && (gated || halves)) && !(split && dense)) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                   "' can have no epilogue of the form '" + std::string(form) +
                                   "'");
  }
  if (split || PrepareLinkedOf(kernel)) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                 "' can have no epilogue");
}

Status FindLinked(const Kernel& kernel, const LinkedEpilogue& epilogue, int device,
                  const void** function) {
  BWGEMM_RETURN_IF_ERROR(CheckLinkable(kernel, epilogue.form));
  std::shared_ptr<Loaded> loaded;
  BWGEMM_RETURN_IF_ERROR(Find(epilogue, SymbolOf(kernel, epilogue.form), &loaded));
  *function = loaded->function;
  return loaded->prepared.Run(device, [&] {
    return epilogue.form == "split_k" ? LoadKernel(loaded->function)
                                      : PrepareLinkedOf(kernel)(loaded->function, device);
  });
}

Status FindLinked(std::string_view kernel, const LinkedEpilogue& epilogue, int device,
                  const void** function) {
  std::shared_ptr<Loaded> loaded;
  BWGEMM_RETURN_IF_ERROR(Find(epilogue, std::string(kernel), &loaded));
  *function = loaded->function;
  return loaded->prepared.Run(device, [&] { return LoadKernel(loaded->function); });
}

Status CheckEpilogueVersion(const LinkedEpilogue& epilogue) {
  if (epilogue.version < kOldestEpilogueVersion || epilogue.version > kEpilogueVersion) {
    return Status::Unimplemented("the epilogue was linked by another version of jax_bwgemm (" +
                                 std::to_string(epilogue.version) + ", this is " +
                                 std::to_string(kEpilogueVersion) + "): compile the program again");
  }
  return Status::Ok();
}

Status ReadEpilogue(const ProductCall& call, const KernelInfo& kernel, const EpilogueSizes& sizes,
                    EpilogueArguments* arguments) {
  BWGEMM_RETURN_IF_ERROR(CheckEpilogueVersion(call.epilogue));
  arguments->m = sizes.m;
  arguments->n = sizes.n;
  for (int i = 0; i < kMaxStaged; ++i) {
    arguments->staged_operands[i] = arguments->staged_results[i] = -1;
  }
  BWGEMM_RETURN_IF_ERROR(ReadOperands(call, kernel, sizes, arguments));
  return ReadResults(call, kernel, sizes, arguments);
}

}  // namespace bwgemm::call
