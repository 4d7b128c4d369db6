#include "call/product_call.h"

#include <string>

#include "call/contractions.h"
#include "call/linked.h"
#include "core/device.h"
#include "core/helper_kernels.h"

namespace bwgemm::call {
namespace {

Status Lookup(std::string_view name, const Kernel** kernel) {
  *kernel = FindKernel(name);
  if (*kernel) return Status::Ok();
  return Status::Unimplemented(
      "kernel '" + std::string(name) +
      "' is not in this build of jax_bwgemm (`python -m jax_bwgemm info --kernels` "
      "lists those that are)");
}

bool OfGroups(const KernelInfo& kernel) {
  return kernel.contraction == Contraction::kMGrouped ||
         kernel.contraction == Contraction::kKGrouped;
}
bool OfScales(const KernelInfo& kernel) { return kernel.scales != ScaleUse::kNone; }

bool Takes(const KernelInfo& kernel, Role role) {
  if (role == Role::kGroupSizes || role == Role::kGroupOffset) return OfGroups(kernel);
  if (role == Role::kBUp) return kernel.contraction == Contraction::kGated;
  if (role == Role::kInto || role == Role::kAfter) {
    return kernel.contraction == Contraction::kDense;
  }
  if (role == Role::kAlpha) return kernel.a_dtype == DType::kE2M1;
  const bool of_scales = role == Role::kAScales || role == Role::kBScales;
  return !of_scales || OfScales(kernel);
}

bool OfEpilogue(Role role) { return (role >= Role::kX0 && role < Role::kD) || role >= Role::kY1; }

// A stream-K plan divides by the number of clusters that run at once.
Status CheckClusterOf(const KernelInfo& kernel, int sm_count) {
  return CheckCluster(kernel.cluster_m * kernel.cluster_n, sm_count);
}

// A kernel without an option refuses all values except the default.
Status CheckOptions(const KernelInfo& kernel, const Options& options) {
  const Options none;
  const bool dense = kernel.contraction == Contraction::kDense;
  const bool grouped = OfGroups(kernel), scaled = OfScales(kernel);
  std::string_view extra;
  if (!grouped && options.order != none.order) extra = "order";
  if (grouped && options.raster_order != none.raster_order) extra = "raster_order";
  if (grouped && options.splits != none.splits) extra = "splits";
  if (!dense && options.decomposition != none.decomposition) extra = "decomposition";
  if (!scaled && options.a_scaling != none.a_scaling) extra = "a_scaling";
  if (!scaled && options.b_scaling != none.b_scaling) extra = "b_scaling";
  if (extra.empty()) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' (" +
                                 Name(kernel.contraction) + ") has no " + std::string(extra));
}

// Without an epilogue there are no buffers of one.
Status CheckNoEpilogue(const ProductCall& call) {
  if (!call.epilogue.form.empty()) {
    return Status::InvalidArgument("the call has an epilogue's form and no epilogue");
  }
  for (int i = 0; i < kRoles; ++i) {
    const Role role = static_cast<Role>(i);
    if (!OfEpilogue(role) || !call.buffers[role].present()) continue;
    return Status::InvalidArgument("the call has " + std::string(Name(role)) + " and no epilogue");
  }
  return Status::Ok();
}

Status CheckBuffers(const KernelInfo& kernel, const Buffers& buffers) {
  for (int i = 0; i < kRoles; ++i) {
    const Role role = static_cast<Role>(i);
    if (OfEpilogue(role)) continue;  // ReadEpilogue knows which there are
    const bool takes = Takes(kernel, role);
    // A kernel that needs no workspace may get none; a gated one may get both matrices in b.
    const bool may_lack = role == Role::kWorkspace || role == Role::kBUp || role == Role::kInto ||
                          role == Role::kAfter;
    if (buffers[role].present() == takes || (takes && may_lack)) continue;
    return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' (" +
                                   Name(kernel.contraction) + ") " +
                                   (takes ? "needs " : "takes no ") + std::string(Name(role)));
  }
  const Buffer &a = buffers[Role::kA], &b = buffers[Role::kB], &d = buffers[Role::kD];
  const bool windows = a.is_window() || b.is_window() || d.is_window();
  if (windows && kernel.contraction != Contraction::kDense) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' (" +
                                   Name(kernel.contraction) + ") takes no windows");
  }
  if (a.dtype != BufferType(kernel.a_dtype) || b.dtype != BufferType(kernel.b_dtype) ||
      d.dtype != kernel.out_dtype) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' computes " +
                                   Name(kernel.a_dtype) + " x " + Name(kernel.b_dtype) + " -> " +
                                   Name(kernel.out_dtype) + ", the call is " + ShapeString(a) +
                                   " x " + ShapeString(b) + " -> " + ShapeString(d));
  }
  for (Role role : {Role::kA, Role::kB, Role::kBUp, Role::kD}) {
    if (reinterpret_cast<uintptr_t>(buffers[role].data) % kernel.alignment_bytes != 0) {
      return Status::InvalidArgument(std::string(Name(role)) + " is not aligned to " +
                                     std::to_string(kernel.alignment_bytes) + " bytes");
    }
  }
  return Status::Ok();
}

// OK if the call has an epilogue, or the kernel needs none.
Status CheckEpilogue(const Kernel& kernel, const LinkedEpilogue& epilogue) {
  if (!epilogue.code.empty()) return CheckLinkable(kernel, epilogue.form);
  if (!kernel.dense || kernel.dense->launch) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                 "' needs an epilogue");
}

Status (*PrepareOf(const Kernel& kernel))(int) {
  return kernel.dense     ? kernel.dense->prepare
         : kernel.grouped ? kernel.grouped->prepare
         : kernel.scaled  ? kernel.scaled->prepare
                          : kernel.scaled_grouped->prepare;
}

}  // namespace

Status Prepare(const ProductCall& call, int device) {
  const Kernel* kernel;
  BWGEMM_RETURN_IF_ERROR(Lookup(call.kernel, &kernel));
  DeviceProperties properties;
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &properties));
  BWGEMM_RETURN_IF_ERROR(CheckArch(kernel->info.name, kernel->info.arch, device, properties));
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  BWGEMM_RETURN_IF_ERROR(CheckEpilogue(*kernel, call.epilogue));
  HelperKernels::Load(device);
  const Kernel* twin = call.options.splits > 1 ? FindKernel(kernel->info.f32_twin) : nullptr;
  if (twin) BWGEMM_RETURN_IF_ERROR(PrepareOf(*twin)(device));
  if (!call.epilogue.code.empty()) {
    const void* function;
    return FindLinked(*kernel, call.epilogue, device, &function);
  }
  return PrepareOf(*kernel)(device);
}

Status Run(const ProductCall& call, int device, cudaStream_t stream) {
  const Kernel* kernel;
  BWGEMM_RETURN_IF_ERROR(Lookup(call.kernel, &kernel));
  Launch launch{device, {}, stream};
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &launch.properties));
  BWGEMM_RETURN_IF_ERROR(
      CheckArch(kernel->info.name, kernel->info.arch, device, launch.properties));
  BWGEMM_RETURN_IF_ERROR(CheckClusterOf(kernel->info, launch.properties.sm_count));
  BWGEMM_RETURN_IF_ERROR(CheckOptions(kernel->info, call.options));
  BWGEMM_RETURN_IF_ERROR(CheckBuffers(kernel->info, call.buffers));
  if (call.epilogue.code.empty()) BWGEMM_RETURN_IF_ERROR(CheckNoEpilogue(call));
  BWGEMM_RETURN_IF_ERROR(CheckEpilogue(*kernel, call.epilogue));
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  return kernel->dense    ? RunDense(*kernel, call, launch)
         : kernel->scaled ? RunScaled(*kernel, call, launch)
                          : RunGrouped(*kernel, call, launch);
}

Status WorkspaceBytes(std::string_view name, const ProductSizes& sizes, const Options& options,
                      int sm_count, size_t* bytes) {
  const Kernel* kernel;
  BWGEMM_RETURN_IF_ERROR(Lookup(name, &kernel));
  BWGEMM_RETURN_IF_ERROR(CheckOptions(kernel->info, options));
  BWGEMM_RETURN_IF_ERROR(CheckExtents("a product, or sm_count,",
                                      {sizes.m, sizes.n, sizes.k, sizes.batch, int64_t{sm_count}}));
  if (kernel->info.stream_k) BWGEMM_RETURN_IF_ERROR(CheckClusterOf(kernel->info, sm_count));
  return kernel->dense    ? DenseWorkspaceBytes(*kernel, sizes, options, sm_count, bytes)
         : kernel->scaled ? ScaledWorkspaceBytes(*kernel, sizes, options, sm_count, bytes)
                          : GroupedWorkspaceBytes(*kernel, sizes, options, sm_count, bytes);
}

}  // namespace bwgemm::call
