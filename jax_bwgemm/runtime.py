"""The compiled parts: the only importer of ``_ext`` (kernels) and ``_emulator``."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import jax

from jax_bwgemm.compat import jax_backend
from jax_bwgemm.config import Target
from jax_bwgemm.product.kernels import Kernel


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


def check_ffi_version(built: str, headers: Path) -> None:
    """Refuses kernels whose calls the installed jaxlib does not understand.

    JAX would refuse them later, when it initializes a backend, which then does not exist.

    Args:
        built: Version of the XLA FFI that the kernels were compiled for, such as ``"0.3"``.
        headers: Folder of jaxlib's headers.

    Raises:
        ImportError: It is newer than jaxlib's.
    """
    text = (headers / "xla/ffi/api/c_api.h").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^#define XLA_FFI_API_(MAJOR|MINOR) (\d+)$", text, re.MULTILINE))
    known = int(numbers["MAJOR"]), int(numbers["MINOR"])
    if tuple(map(int, built.split("."))) > known:
        raise ImportError(
            f"jax_bwgemm was compiled for version {built} of XLA's FFI, but this jaxlib has "
            f"{known[0]}.{known[1]}: install it again with pip's build isolation (without "
            "--no-build-isolation), or update jaxlib"
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
        check_ffi_version(module.build_info()["xla_ffi_api"], Path(jax.ffi.include_dir()))
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


def compiled_module(implementation: str) -> ModuleType | None:
    """The compiled module of ``"cutlass"`` or ``"emulator"``; None when it was not built."""
    return extension() if implementation == "cutlass" else load_emulator()


@functools.cache
def has_target(implementation: str, target: str) -> bool:
    """Whether ``"cutlass"`` or ``"emulator"`` was built, with an FFI target of that name."""
    module = compiled_module(implementation)
    return module is not None and target in module.registrations()


@functools.cache
def kernel_table(implementation: str) -> tuple[Kernel, ...]:
    """All kernels that ``"cutlass"`` or ``"emulator"`` can run; empty when it was not built.

    In the order of ``kernels.def``, then of ``grouped.def``, ``scaled.def`` and
    ``scaled_grouped.def``.
    """
    return _table(compiled_module(implementation))


def _table(module: ModuleType | None) -> tuple[Kernel, ...]:
    if module is None:
        return ()
    return tuple(Kernel(**row) for row in module.kernels())


def _dense(table: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    return tuple(k for k in table if k.contraction == "dense")


_OF_GROUPS = ("m_grouped", "k_grouped")


def _grouped(table: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    return tuple(k for k in table if k.contraction in _OF_GROUPS and not k.scales)


def _scaled(table: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    return tuple(k for k in table if k.contraction == "scaled")


def _scaled_grouped(table: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    return tuple(k for k in table if k.contraction in _OF_GROUPS and k.scales)


@functools.cache
def gated_kernels(implementation: str) -> tuple[Kernel, ...]:
    """Kernels of two matrices that ``"cutlass"`` or ``"emulator"`` can run; empty when not built.

    They exist with an epilogue linked in alone.
    """
    return tuple(k for k in kernel_table(implementation) if k.contraction == "gated")


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """The dense kernels of this build; empty when not built."""
    return _dense(kernel_table("cutlass"))


@functools.cache
def emulated_kernels() -> tuple[Kernel, ...]:
    """Dense kernels the emulator can run: those built into it; empty when it was not built."""
    return _dense(kernel_table("emulator"))


@functools.cache
def grouped_kernels() -> tuple[Kernel, ...]:
    """The grouped kernels of this build; empty when not built."""
    return _grouped(kernel_table("cutlass"))


@functools.cache
def emulated_grouped_kernels() -> tuple[Kernel, ...]:
    """Grouped kernels the emulator can run; empty when it was not built."""
    return _grouped(kernel_table("emulator"))


@functools.cache
def scaled_kernels() -> tuple[Kernel, ...]:
    """The scaled kernels of this build; empty when not built."""
    return _scaled(kernel_table("cutlass"))


@functools.cache
def emulated_scaled_kernels() -> tuple[Kernel, ...]:
    """Scaled kernels the emulator can run; empty when it was not built."""
    return _scaled(kernel_table("emulator"))


@functools.cache
def scaled_grouped_kernels() -> tuple[Kernel, ...]:
    """The grouped kernels of scaled operands of this build; empty when not built."""
    return _scaled_grouped(kernel_table("cutlass"))


@functools.cache
def emulated_scaled_grouped_kernels() -> tuple[Kernel, ...]:
    """Grouped kernels of scaled operands that the emulator can run; empty when not built."""
    return _scaled_grouped(kernel_table("emulator"))


def kernel_workspace_bytes(implementation: str, name: str, **problem: int | str) -> int:
    """Device scratch memory a kernel needs for a problem, in bytes.

    Args:
        implementation: ``"cutlass"`` or ``"emulator"``.
        name: The kernel.
        **problem: ``m``, ``n``, ``k``, ``batch`` and ``sm_count``; ``groups`` and ``experts`` of a
            grouped kernel; ``splits`` of a dense or scaled one, and what a stream-K kernel's need
            depends on as well: ``raster_order``, ``swizzle`` and ``decomposition``.

    Raises:
        RuntimeError: The implementation was not built.
        ValueError: The kernel is unknown or cannot run the problem.
    """
    module = compiled_module(implementation)
    if module is None:
        what = "kernels" if implementation == "cutlass" else "emulator"
        raise RuntimeError(f"kernel {name!r}: jax_bwgemm was installed without its {what}")
    return module.workspace_bytes(name, **problem)


def workspace_bytes(
    name: str, m: int, n: int, k: int, batch: int, splits: int, sm_count: int, **order: int | str
) -> int:
    """`kernel_workspace_bytes` of a dense kernel."""
    sizes = {"m": m, "n": n, "k": k, "batch": batch, "splits": splits, "sm_count": sm_count}
    return kernel_workspace_bytes("cutlass", name, **sizes, **order)


def emulated_workspace_bytes(
    name: str, m: int, n: int, k: int, batch: int, splits: int, sm_count: int, **order: int | str
) -> int:
    """As `workspace_bytes`, for the emulator's build of the kernel."""
    sizes = {"m": m, "n": n, "k": k, "batch": batch, "splits": splits, "sm_count": sm_count}
    return kernel_workspace_bytes("emulator", name, **sizes, **order)


def grouped_workspace_bytes(
    name: str, m: int, n: int, k: int, groups: int, experts: int, batch: int, sm_count: int
) -> int:
    """`kernel_workspace_bytes` of a grouped kernel."""
    sizes = {"m": m, "n": n, "k": k, "groups": groups, "experts": experts}
    return kernel_workspace_bytes("cutlass", name, **sizes, batch=batch, sm_count=sm_count)


def emulated_grouped_workspace_bytes(
    name: str, m: int, n: int, k: int, groups: int, experts: int, batch: int, sm_count: int
) -> int:
    """As `grouped_workspace_bytes`, for the emulator's build of the kernel."""
    sizes = {"m": m, "n": n, "k": k, "groups": groups, "experts": experts}
    return kernel_workspace_bytes("emulator", name, **sizes, batch=batch, sm_count=sm_count)


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
