"""The compiled parts: the only importer of ``_ext`` (kernels) and ``_emulator``."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import jax

from jax_bwgemm.compat import jax_backend
from jax_bwgemm.config import Target

# FFI targets are versioned: exported programs outlive library versions.
GEMM_TARGET = "bwgemm.gemm.v1"
EMULATED_GEMM_TARGET = "bwgemm.gemm.emulated.v1"
GROUPED_TARGET = "bwgemm.grouped.v1"
EMULATED_GROUPED_TARGET = "bwgemm.grouped.emulated.v1"


@dataclasses.dataclass(frozen=True)
class KernelInfo:
    """One compiled kernel: one of the up to 16 of a line of ``cc/dense/kernels.def``.

    Attributes:
        name: Stable name derived from the other fields.
        arch: ``"sm90"`` or ``"sm100"``.
        in_dtype: Type of both operands.
        out_dtype: Type of the result.
        lhs_major: ``"k"`` ([B, M, K] in memory) or ``"m"`` ([B, K, M]).
        rhs_major: ``"n"`` ([B, K, N] in memory) or ``"k"`` ([B, N, K]).
        tile_m: Rows of one MMA tile: per CTA pair for schedule ``2sm``, otherwise per CTA.
        tile_n: Columns of one MMA tile.
        tile_k: Elements of K per pipeline stage.
        cluster_m: CTAs of a cluster along M.
        cluster_n: CTAs of a cluster along N.
        schedule: ``cooperative``, ``pingpong`` or ``clusterk`` (sm90), ``1sm`` or ``2sm`` (sm100).
        stages: Depth of the mainloop pipeline.
        alignment_bytes: Required multiple of every operand's contiguous extent.
        swap_ab: Whether the kernel computes the transposed problem: ``tile_m`` then lies along N
            of D and ``tile_n`` along M, and the cluster likewise.
        stream_k: Whether CTAs may share a tile along K, so that none is idle in the last wave.
        has_f32: Whether the same kernel with f32 output is in the build. That one computes the
            parts of a K that is split into several.
    """

    name: str
    arch: str
    in_dtype: str
    out_dtype: str
    lhs_major: str
    rhs_major: str
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    schedule: str
    stages: int
    alignment_bytes: int
    swap_ab: bool = False
    stream_k: bool = False
    has_f32: bool = True

    @property
    def kind(self) -> str:
        """What it multiplies, as `ProductSpec.kind` says it."""
        return "dense"

    @property
    def majors(self) -> str:
        """Contiguous dimensions of A and B, as `ProductSpec.majors` says it."""
        return self.lhs_major + self.rhs_major

    @property
    def cluster_k(self) -> bool:
        """Whether the CTAs of a cluster share one tile along K, as many as the call's splits."""
        return self.schedule == "clusterk"

    @property
    def splits_unevenly(self) -> bool:
        """Whether parts of K may differ by a block, so that any K has any number of parts."""
        return not self.stream_k and self.schedule in ("cooperative", "pingpong")

    @property
    def splits_k(self) -> bool:
        """Whether K can be divided into parts: the kernel adds them, or has a twin for them."""
        return self.stream_k or self.has_f32


@dataclasses.dataclass(frozen=True)
class GroupedKernelInfo:
    """One compiled grouped kernel: described by one line of ``cc/grouped/grouped.def``.

    Attributes:
        name: Stable name derived from the other fields.
        arch: ``"sm90"`` or ``"sm100"``.
        kind: ``"m-grouped"`` (every row times its group's matrix) or ``"k-grouped"`` (one product
            for each group, over its rows).
        in_dtype: Type of both operands.
        out_dtype: Type of the result.
        rhs_major: ``"n"`` ([B, E, K, N] in memory; k-grouped [B, M, N]) or ``"k"``
            ([B, E, N, K]).
        tile_m: Rows of one MMA tile: per CTA pair for 2-CTA kernels, otherwise per CTA.
        tile_n: Columns of one MMA tile.
        tile_k: Elements of the contracted dimension per pipeline stage.
        cluster_m: CTAs of a cluster along M.
        cluster_n: CTAs of a cluster along N.
        swap_ab: Whether the kernel computes the transposed problem: ``tile_m`` then lies along N
            of D and ``tile_n`` along its ragged rows.
        schedule: ``cooperative`` or ``pingpong`` (sm90), ``1sm`` or ``2sm`` (sm100).
        stages: Depth of the mainloop pipeline.
        alignment_bytes: Required multiple of every operand's contiguous extent.
    """

    name: str
    arch: str
    kind: str
    in_dtype: str
    out_dtype: str
    rhs_major: str
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    swap_ab: bool
    schedule: str
    stages: int
    alignment_bytes: int

    @property
    def majors(self) -> str:
        """Contiguous dimensions of A and B, as `ProductSpec.majors` says it."""
        return f"k{self.rhs_major}" if self.kind == "m-grouped" else "mn"


def _installed_folder() -> Path | None:
    """The pip-installed package when this is a source folder, which has no compiled modules.

    ``python -m jax_bwgemm`` in a clone imports the Python files beside it; the compiled modules
    are only in site-packages.
    """
    here = Path(__file__).parent
    if not (here.parent / "pyproject.toml").exists():
        return None
    try:
        distribution = importlib.metadata.distribution("jax_bwgemm")
    except importlib.metadata.PackageNotFoundError:
        return None
    installed = Path(str(distribution.locate_file("jax_bwgemm")))
    return installed if installed != here and installed.is_dir() else None


def _import_optional(name: str) -> ModuleType | None:
    """Imports a compiled module; None only when that very module does not exist.

    Raises:
        ImportError: It is broken, or of another version than these Python files.
    """
    package = importlib.import_module("jax_bwgemm")
    installed = _installed_folder()
    if installed is not None and str(installed) not in package.__path__:
        package.__path__.append(str(installed))
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # a broken installation is not "not built"
            raise
        return None
    if installed is not None and Path(str(module.__file__)).parent == installed:
        check_versions(_source_version(), _built_version(module), installed)
    return module


def check_versions(source: str, built: str, installed: Path) -> None:
    """Refuses compiled modules of another version than the Python files.

    Args:
        source: Version of the Python files.
        built: Version that the modules were built as.
        installed: Where the modules are.

    Raises:
        ImportError: They differ: kernels, targets and tables need not fit together.
    """
    if source != built:
        raise ImportError(
            f"the Python files in {Path(__file__).parent} are jax_bwgemm {source}, but the "
            f"compiled modules in {installed} are of {built}: install this source folder (pip "
            "install .), or run in another folder to use the installed version"
        )


def _source_version() -> str:
    """Version of this source folder, which `_installed_folder` has found to be one."""
    import tomllib  # only in source folders

    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    return tomllib.loads(text)["project"]["version"]


def _built_version(module: ModuleType) -> str:
    """Version that a compiled module was built as; one that does not say has its package's."""
    if hasattr(module, "build_info"):
        return module.build_info()["version"]
    return importlib.metadata.version("jax_bwgemm")


@functools.cache
def extension() -> ModuleType | None:
    """Loads the kernels and registers their FFI targets; None when they were not built."""
    module = _import_optional("jax_bwgemm._ext")
    if module is not None:
        for name, handlers in module.registrations().items():
            jax.ffi.register_ffi_target(name, handlers, platform="CUDA")
    return module


@functools.cache
def load_emulator() -> ModuleType | None:
    """Loads the GPU emulator and registers its CPU FFI targets; None when it was not built.

    The module's ``registrations()`` maps target names to handlers, as the kernels' does.
    """
    module = _import_optional("jax_bwgemm._emulator")
    if module is not None:
        for name, handlers in module.registrations().items():
            jax.ffi.register_ffi_target(name, handlers, platform="cpu")
    return module


@functools.cache
def kernels() -> tuple[KernelInfo, ...]:
    """All kernels of this build, in the order of ``kernels.def``; empty when not built."""
    return _table(extension())


def _table(module: ModuleType | None) -> tuple[KernelInfo, ...]:
    rows = module.kernels() if module is not None else ()

    def twins(row: dict) -> tuple[str, ...]:  # the name without its output type
        arch, in_dtype, _, *rest = row["name"].split("_")
        return arch, in_dtype, *rest

    with_f32 = {twins(row) for row in rows if row["out_dtype"] == "float32"}
    return tuple(KernelInfo(**row, has_f32=twins(row) in with_f32) for row in rows)


def workspace_bytes(
    name: str, m: int, n: int, k: int, batch: int, splits: int, sm_count: int, **order: int | str
) -> int:
    """Device scratch memory a kernel needs for a problem, in bytes.

    Args:
        name: The kernel.
        m: Rows of D.
        n: Columns of D.
        k: Contracted size.
        batch: Number of products.
        splits: Parts that K is split into.
        sm_count: Multiprocessors of the GPU.
        **order: What a stream-K kernel's need depends on as well: ``raster_order``, ``swizzle`` and
            ``decomposition``, which the others ignore.

    Raises:
        RuntimeError: The kernels were not built.
        ValueError: The kernel is unknown or cannot run the problem.
    """
    module = extension()
    if module is None:
        raise RuntimeError(f"kernel {name!r}: jax_bwgemm was installed without its kernels")
    return module.workspace_bytes(name, m, n, k, batch, splits, sm_count, **order)


@functools.cache
def emulated_kernels() -> tuple[KernelInfo, ...]:
    """Kernels the emulator can run: those built into it; empty when it was not built."""
    return _table(load_emulator())


def emulated_workspace_bytes(
    name: str, m: int, n: int, k: int, batch: int, splits: int, sm_count: int, **order: int | str
) -> int:
    """As `workspace_bytes`, for the emulator's build of the kernel.

    Raises:
        RuntimeError: The emulator was not built.
    """
    module = load_emulator()
    if module is None:
        raise RuntimeError(f"kernel {name!r}: jax_bwgemm was installed without its emulator")
    return module.workspace_bytes(name, m, n, k, batch, splits, sm_count, **order)


@functools.cache
def grouped_kernels() -> tuple[GroupedKernelInfo, ...]:
    """All grouped kernels of this build, in the order of ``grouped.def``; empty when not built."""
    return _grouped_table(extension())


@functools.cache
def emulated_grouped_kernels() -> tuple[GroupedKernelInfo, ...]:
    """Grouped kernels the emulator can run; empty when it was not built."""
    return _grouped_table(load_emulator())


def _grouped_table(module: ModuleType | None) -> tuple[GroupedKernelInfo, ...]:
    # Modules built before there were grouped kernels are still loaded.
    rows = module.grouped_kernels() if hasattr(module, "grouped_kernels") else ()
    kinds = {"rows": "m-grouped", "contract": "k-grouped"}
    return tuple(GroupedKernelInfo(**row | {"kind": kinds[row["kind"]]}) for row in rows)


def grouped_workspace_bytes(
    name: str, m: int, n: int, k: int, groups: int, experts: int, batch: int, sm_count: int
) -> int:
    """Device scratch memory a grouped kernel needs for a problem, in bytes.

    Raises:
        RuntimeError: The kernels were not built.
        ValueError: The kernel is unknown or cannot run the problem.
    """
    module = extension()
    if module is None:
        raise RuntimeError(f"kernel {name!r}: jax_bwgemm was installed without its kernels")
    return module.grouped_workspace_bytes(name, m, n, k, groups, experts, batch, sm_count)


def emulated_grouped_workspace_bytes(
    name: str, m: int, n: int, k: int, groups: int, experts: int, batch: int, sm_count: int
) -> int:
    """As `grouped_workspace_bytes`, for the emulator's build of the kernel.

    Raises:
        RuntimeError: The emulator was not built.
    """
    module = load_emulator()
    if module is None:
        raise RuntimeError(f"kernel {name!r}: jax_bwgemm was installed without its emulator")
    return module.grouped_workspace_bytes(name, m, n, k, groups, experts, batch, sm_count)


def architecture(compute_capability: str) -> str | None:
    """Kernel architecture for a compute capability such as ``"9.0"``; None when there is none."""
    major, _, minor = compute_capability.partition(".")
    if (major, minor) == ("9", "0"):
        return "sm90"
    if major == "10":  # the family target covers 10.0 and 10.3
        return "sm100"
    return None


@dataclasses.dataclass(frozen=True)
class DeviceTarget:
    """What the local GPU means for kernel selection: a target, or the reason there is none."""

    target: Target | None
    reason: str


def device_target(device: jax.Device) -> DeviceTarget:
    """The target a JAX device is, with the reason when no kernels exist for it."""
    if device.platform != "gpu":
        return DeviceTarget(None, f"{device.device_kind} is not a CUDA GPU")
    capability = str(device.compute_capability)
    arch = architecture(capability)
    if arch is None:
        return DeviceTarget(
            None,
            f"no kernels for {device.device_kind} (compute capability {capability}); "
            "kernels exist for 9.0 and 10.x",
        )
    count = int(device.core_count)
    return DeviceTarget(Target(arch, count), f"{device.device_kind} with {count} multiprocessors")


def common_target(devices: Sequence[jax.Device]) -> DeviceTarget | None:
    """The target that all of these devices are; None if no GPU is among them.

    A program has one kernel for all its devices, so there is none for different kinds of GPU.
    """
    found = list(dict.fromkeys(device_target(d) for d in devices if d.platform == "gpu"))
    if len({each.target for each in found}) > 1:
        kinds = ", ".join(each.reason for each in found)
        return DeviceTarget(
            None,
            f"GPUs of different kinds ({kinds}) would need different kernels: use GPUs of one kind "
            "(jax.default_device, a mesh), jax_bwgemm.config.target or BWGEMM_TARGET_ARCH",
        )
    return found[0] if found else None


def cuda_devices() -> list[jax.Device]:
    """The CUDA GPUs of this process."""
    client = jax_backend.backends().get("cuda")
    return [] if client is None else client.local_devices()


def local_target() -> DeviceTarget:
    """The target of JAX's default device, if that is a CUDA GPU, or else of all in this process."""
    devices = cuda_devices()
    if not devices:
        return DeviceTarget(
            None,
            "this process has no CUDA GPU and no target architecture was given: use "
            "jax_bwgemm.config.target('sm90' or 'sm100') or BWGEMM_TARGET_ARCH",
        )
    default = jax.config.jax_default_device
    if isinstance(default, jax.Device) and default.platform == "gpu":
        return device_target(default)
    found = common_target(devices)
    assert found is not None  # CUDA devices are GPUs
    return found
