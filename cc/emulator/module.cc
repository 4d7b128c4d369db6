// The nanobind module `_emulator`: the emulated FFI target, the general PTX entry, settings and
// statistics.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "call/python.h"
#include "emulator/machine/machine.h"
#include "emulator/runtime/fatbin.h"
#include "emulator/runtime/product_emulated.h"
#include "emulator/runtime/quantize_emulated.h"
#include "emulator/runtime/ranges.h"
#include "emulator/runtime/session.h"
#include "emulator/tensor/tensor_map.h"

namespace nb = nanobind;

namespace bwgemm::emulator {
namespace {

constexpr int kMaxSmCount = 1024;
constexpr uint64_t kMaxCtas = uint64_t{1}
                              << 24;  // of one launch; each pending cluster takes memory

PyObject* error_class = nullptr;      // _emulator.Error(kind, line, message)
PyObject* zlib_decompress = nullptr;  // of Python's standard library

// Called by threads with and without the GIL: XLA's have none.
std::string InflateByPython(std::string_view stream) {
  nb::gil_scoped_acquire gil;
  try {
    const auto text =
        nb::cast<nb::bytes>(nb::handle(zlib_decompress)(nb::bytes(stream.data(), stream.size())));
    return std::string(text.c_str(), text.size());
  } catch (const nb::python_error& e) {
    throw std::runtime_error(std::string("the PTX cannot be unpacked: ") + e.what());
  }
}

nb::dict Registrations() {
  nb::dict targets;
  using call::HandlerCapsule;
  targets["bwgemm.product.emulated.v2"] = HandlerCapsule(BwProductEmulatedExecute);
  targets["bwgemm.quantize.emulated.v1"] = HandlerCapsule(BwQuantizeEmulatedExecute);
  // What earlier versions exported.
  targets["bwgemm.gemm.emulated.v1"] = HandlerCapsule(BwGemmV1EmulatedExecute);
  targets["bwgemm.grouped.emulated.v1"] = HandlerCapsule(BwGroupedV1EmulatedExecute);
  return targets;
}

nb::dict SettingsDict() {
  const Settings s = Session::Get().settings();
  nb::dict d;
  d["seed"] = s.launch.seed;
  d["sm_count"] = s.launch.sm_count;
  d["step_limit"] = s.launch.step_limit;
  nb::dict rules;
  for (size_t i = 0; i < kRuleCount; ++i) {
    const Rule rule = static_cast<Rule>(i);
    rules[info(rule).name] = to_string(s.launch.rules[rule]);
  }
  d["rules"] = rules;
  d["races"] = s.launch.races;
  d["threads"] = s.launch.threads;
  d["relaxed"] = s.launch.relaxed;
  d["poison_outputs"] = s.poison_outputs;
  d["trace"] = s.trace;
  d["trace_limit"] = s.trace_limit;
  return d;
}

nb::list RuleList() {
  nb::list rules;
  for (size_t i = 0; i < kRuleCount; ++i) {
    const RuleInfo& rule = info(static_cast<Rule>(i));
    rules.append(nb::make_tuple(rule.name, to_string(rule.severity), rule.meaning));
  }
  return rules;
}

void Configure(uint64_t seed, int sm_count, uint64_t step_limit,
               const std::vector<std::tuple<std::string, std::string>>& rules, bool races,
               int threads, bool relaxed, bool poison_outputs, bool trace, uint64_t trace_limit) {
  if (sm_count < 1 || sm_count > kMaxSmCount) {
    throw std::invalid_argument("sm_count must be in [1, " + std::to_string(kMaxSmCount) +
                                "], got " + std::to_string(sm_count));
  }
  if (threads < 1) throw std::invalid_argument("threads must be positive");
  if (step_limit < 1) throw std::invalid_argument("step_limit must be positive");
  Settings s;
  s.launch.seed = seed;
  s.launch.sm_count = sm_count;
  s.launch.step_limit = step_limit;
  for (const auto& [name, severity] : rules) {
    if (!s.launch.rules.set(name, severity)) {
      throw std::invalid_argument("no rule '" + name + "' or no severity '" + severity + "'");
    }
  }
  s.launch.races = races;
  s.launch.threads = threads;
  s.launch.relaxed = relaxed;
  s.poison_outputs = poison_outputs;
  s.trace = trace;
  s.trace_limit = trace_limit;
  Session::Get().set_settings(s);
}

nb::tuple Tuple(const Dim3& d) { return nb::make_tuple(d.x, d.y, d.z); }

nb::dict RecordDict(const LaunchRecord& r) {
  const Stats& s = r.result.stats;
  nb::dict d;
  d["kernel"] = r.kernel;
  d["grid"] = Tuple(r.grid);
  d["block"] = Tuple(r.block);
  d["cluster"] = Tuple(r.cluster);
  d["dynamic_shared_bytes"] = r.dynamic_shared;
  d["seed"] = r.seed;
  d["sm_count"] = r.sm_count;
  d["seconds"] = r.seconds;
  d["ok"] = r.result.ok;
  d["kind"] = r.result.ok ? "" : to_string(r.result.kind);
  d["error"] = r.result.error;
  d["line"] = r.result.line;
  d["rule"] = r.result.rule;
  nb::list warnings;
  for (const Warning& w : r.result.warnings) {
    warnings.append(nb::make_tuple(info(w.rule).name, w.line, w.text, w.count));
  }
  d["warnings"] = warnings;
  d["instructions"] = s.instructions;
  d["thread_instructions"] = s.thread_instructions;
  d["ticks"] = s.ticks;
  d["ctas"] = s.ctas;
  d["clusters_cancelled"] = s.clusters_cancelled;
  d["mma_instructions"] = s.mma_instructions;
  d["mma_flops"] = s.mma_flops;
  d["tma_loads"] = s.tma_loads;
  d["tma_load_bytes"] = s.tma_load_bytes;
  d["tma_store_bytes"] = s.tma_store_bytes;
  d["global_load_bytes"] = s.global_load_bytes;
  d["global_store_bytes"] = s.global_store_bytes;
  d["async_operations"] = s.async_operations;
  nb::list warps;
  for (const WarpStats& w : s.warps) {
    nb::dict one;
    one["instructions"] = w.instructions;
    one["waits"] = w.waits;
    one["wait_ticks"] = w.wait_ticks;
    one["mma"] = w.mma;
    one["tma"] = w.tma;
    warps.append(one);
  }
  d["warps"] = warps;
  return d;
}

nb::object LastLaunch() {
  const auto record = Session::Get().last_launch();
  if (!record) return nb::none();
  return RecordDict(*record);
}

nb::object LastTrace() {
  const auto record = Session::Get().last_launch();
  if (!record || !record->trace) return nb::none();
  const TraceRecorder& trace = *record->trace;
  nb::list names;
  for (const std::string& name : trace.names()) names.append(name);
  return nb::make_tuple(nb::bytes(reinterpret_cast<const char*>(trace.rows().data()),
                                  trace.rows().size() * sizeof(TraceRow)),
                        names, trace.dropped());
}

nb::object LastPtx() {
  const auto record = Session::Get().last_launch();
  if (!record || !record->compiled_in) return nb::none();
  return nb::make_tuple(record->kernel, record->compiled_in->ast().text);
}

void Substitute(const std::string& ptx) {
  Session::Get().set_substitute(ptx.empty() ? nullptr : std::shared_ptr<Module>(Module::load(ptx)));
}

nb::tuple CurrentProgress() {
  const Session::Progress p = Session::Get().progress();
  return nb::make_tuple(p.done, p.total);
}

using Dims = std::tuple<uint32_t, uint32_t, uint32_t>;

Dim3 ToDim3(const Dims& d) { return {std::get<0>(d), std::get<1>(d), std::get<2>(d)}; }

std::unique_ptr<Module> LoadModule(std::string text) { return Module::load(std::move(text)); }

std::vector<std::string> ModuleKernels(Module& module) { return module.kernels(); }

// Decodes the kernel if it was not. The lock is only ever taken without the GIL: a running launch
// takes the GIL now and then while it holds the lock.
const Kernel& FindKernel(Module& module, const std::string& name) {
  nb::gil_scoped_release no_gil;
  const auto lock = Session::Get().LockRuns();
  return module.kernel(name);
}

nb::list KernelParams(Module& module, const std::string& name) {
  nb::list params;
  for (const KernelParam& p : FindKernel(module, name).params) {
    params.append(nb::make_tuple(p.name, p.size));
  }
  return params;
}

// (address, bytes, writable, name)
using BufferTuple = std::tuple<uint64_t, uint64_t, bool, std::string>;

nb::dict LaunchModule(Module& module, const std::string& kernel, const std::vector<nb::bytes>& args,
                      const Dims& grid, const Dims& block, const Dims& cluster,
                      uint64_t shared_bytes, bool programmatic,
                      const std::vector<BufferTuple>& buffers) {
  Session& session = Session::Get();
  const Settings settings = session.settings();
  LaunchShape shape{ToDim3(grid), ToDim3(block), ToDim3(cluster), shared_bytes};
  shape.programmatic = programmatic;
  // Each extent first: their product could wrap around.
  if (shape.grid.x > kMaxCtas || shape.grid.y > kMaxCtas || shape.grid.z > kMaxCtas ||
      uint64_t{shape.grid.x} * shape.grid.y > kMaxCtas || shape.grid.count() > kMaxCtas) {
    throw Error(ErrorKind::kLaunch, 0,
                "the grid has more than " + std::to_string(kMaxCtas) + " CTAs");
  }
  GlobalMemory memory;
  std::vector<Buffer> ranges;
  for (const auto& [address, bytes, writable, name] : buffers) {
    ranges.push_back({reinterpret_cast<const void*>(address), bytes, writable, name});
  }
  RegisterBuffers(memory, std::move(ranges));

  const Kernel& k = FindKernel(module, kernel);
  if (args.size() != k.params.size()) {
    throw Error(ErrorKind::kLaunch, 0,
                "kernel '" + kernel + "' takes " + std::to_string(k.params.size()) +
                    " arguments, got " + std::to_string(args.size()));
  }
  std::vector<const void*> pointers;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i].size() != k.params[i].size) {
      throw Error(ErrorKind::kLaunch, 0,
                  "argument " + std::to_string(i) + " ('" + k.params[i].name + "') of kernel '" +
                      kernel + "' has " + std::to_string(args[i].size()) + " bytes, expected " +
                      std::to_string(k.params[i].size));
    }
    pointers.push_back(args[i].c_str());
  }
  const std::vector<uint8_t> params = pack_params(k, pointers.data());

  bool interrupted = false;
  const auto keep_going = [&] {
    nb::gil_scoped_acquire gil;
    interrupted = PyErr_CheckSignals() != 0;
    return !interrupted;
  };
  std::shared_ptr<const LaunchRecord> record;
  {
    nb::gil_scoped_release no_gil;
    record = session.Run(memory, module, kernel, params, shape, settings, keep_going,
                         &session.before_of_modules());
  }
  if (interrupted) throw nb::python_error();
  return RecordDict(*record);
}

nb::bytes EncodeTensorMap(int type, uint64_t address, const std::vector<uint64_t>& dims,
                          const std::vector<uint64_t>& strides, const std::vector<uint32_t>& box,
                          const std::vector<uint32_t>& element_strides, int swizzle, int fill) {
  if (dims.empty() || dims.size() > 5 || strides.size() != dims.size() - 1 ||
      box.size() != dims.size() || element_strides.size() != dims.size()) {
    throw std::invalid_argument(
        "a tensor map has 1 to 5 dimensions, as many box extents and "
        "element strides, and one stride less");
  }
  if (type < 0 || type > 15 || swizzle < 0 || swizzle > 6 || fill < 0 || fill > 1) {
    throw std::invalid_argument("unknown tensor map type, swizzle or fill mode");
  }
  TensorMap map;
  map.type = static_cast<TensorMapType>(type);
  map.rank = static_cast<int>(dims.size());
  map.address = address;
  map.swizzle = static_cast<TensorMapSwizzle>(swizzle);
  map.fill = static_cast<TensorMapFill>(fill);
  map.strides[0] = static_cast<uint64_t>(element_bits(map.type)) / 8;
  for (size_t i = 0; i < dims.size(); ++i) {
    map.dims[i] = dims[i];
    map.box[i] = box[i];
    map.element_strides[i] = element_strides[i];
    if (i > 0) map.strides[i] = strides[i - 1];
  }
  if (const std::string why = validate(map); !why.empty()) throw std::invalid_argument(why);
  uint8_t bytes[kTensorMapBytes];
  encode(map, bytes);
  return nb::bytes(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

void TranslateError(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const Error& e) {
    nb::object args = nb::make_tuple(to_string(e.kind), e.line, e.what());
    PyErr_SetObject(error_class, args.ptr());
  }
}

}  // namespace
}  // namespace bwgemm::emulator

NB_MODULE(_emulator, m) {
  namespace emu = bwgemm::emulator;
  m.doc() = "The GPU emulator. Import through jax_bwgemm.emulator.";

  emu::error_class = PyErr_NewException("jax_bwgemm._emulator.Error", PyExc_RuntimeError, nullptr);
  m.attr("Error") = nb::borrow(emu::error_class);
  nb::register_exception_translator(&emu::TranslateError);
  emu::zlib_decompress =
      nb::object(nb::module_::import_("zlib").attr("decompress")).release().ptr();
  emu::SetInflate(&emu::InflateByPython);

  m.def("registrations", &emu::Registrations,
        "{target name: capsule} for jax.ffi.register_ffi_target, platform cpu.");
  bwgemm::call::DefineKernelTable(m);

  m.def("configure", &emu::Configure, nb::kw_only(), nb::arg("seed"), nb::arg("sm_count"),
        nb::arg("step_limit"), nb::arg("rules"), nb::arg("races"), nb::arg("threads"),
        nb::arg("relaxed"), nb::arg("poison_outputs"), nb::arg("trace"), nb::arg("trace_limit"),
        "Sets what the following launches use.");
  m.def("rules", &emu::RuleList, "[(name, default severity, meaning)] of all rules.");
  m.def("settings", &emu::SettingsDict, "What `configure` set, as a dict.");
  m.def("last_launch", &emu::LastLaunch, "Statistics of the last launch, None before the first.");
  m.def("last_trace", &emu::LastTrace,
        "(packed TraceRow array, names, events dropped) of the last launch; None if not traced.");
  m.def("progress", &emu::CurrentProgress, "(clusters finished, clusters) of the running launch.");
  m.def("launches", [] { return emu::Session::Get().launches(); }, "Launches so far.");
  m.def("last_ptx", &emu::LastPtx,
        "(kernel, text of its module) of the last launch; None if that was no compiled kernel.");
  m.def("substitute", &emu::Substitute, nb::arg("ptx"),
        "Compiled kernels that this text has run it instead of their own; empty: their own.");
  m.def(
      "encode_tensor_map", &emu::EncodeTensorMap, nb::kw_only(), nb::arg("type"),
      nb::arg("address"), nb::arg("dims"), nb::arg("strides"), nb::arg("box"),
      nb::arg("element_strides"), nb::arg("swizzle"), nb::arg("fill"),
      "The 128 bytes of a tensor map; dimensions innermost first. ValueError says what is wrong.");

  nb::class_<emu::Module>(m, "Module", "A loaded PTX text.")
      .def_static("load", &emu::LoadModule, nb::arg("text"))
      .def("kernels", &emu::ModuleKernels)
      .def("params", &emu::KernelParams, nb::arg("kernel"), "[(name, bytes)] of a kernel.")
      .def("launch", &emu::LaunchModule, nb::arg("kernel"), nb::arg("args"), nb::kw_only(),
           nb::arg("grid"), nb::arg("block"), nb::arg("cluster"), nb::arg("shared_bytes"),
           nb::arg("programmatic"), nb::arg("buffers"));
}
