"""Which implementation and kernel a product would get, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm import compat, runtime
from jax_bwgemm.config import DEFAULT_SM_COUNT, Target, make_target
from jax_bwgemm.product import lowering
from jax_bwgemm.product.contraction import Contraction, KernelCall
from jax_bwgemm.product.flops import flops_of
from jax_bwgemm.product.implementations import PLATFORMS, refusal_error, rounded_types
from jax_bwgemm.product.spec import ProductSpec

# Up to this many kernels with the same reason are named one by one.
FEW = 2
ASKED_FOR = "asked for"
EMPTY = "an empty problem runs no kernel: the result is empty or all zeros"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The decision for one problem. ``str()`` of it is meant to be read.

    Attributes:
        problem: The canonical product in words.
        implementation: ``"cutlass"``, ``"emulator"`` or ``"xla"``.
        reason: Why this implementation and kernel.
        kernel: Name of the kernel; None for xla, and for an empty problem, which runs none.
        padded: Whether operands are padded to satisfy the kernel's alignment.
        rejected: (name, reason) of the implementations and kernels not chosen.
        raster_order: ``"m"`` or ``"n"``, along which consecutive tiles run; ``"heuristic"`` if the
            kernel decides; None without a kernel.
        swizzle: Height of the bands of tiles, as in `Selection`; None without a kernel.
        splits: Parts that K is split into; None without a kernel.
        decomposition: How a stream-K kernel divides the work; None for other kernels.
        copied_elements: Elements that must be transposed before or after the product.
        flops: Floating-point operations: two for each element of A times one of B. Of a grouped
            product as if every row were in a group.
    """

    problem: str
    implementation: str
    reason: str
    kernel: str | None = None
    padded: bool = False
    rejected: tuple[tuple[str, str], ...] = ()
    raster_order: str | None = None
    swizzle: int | None = None
    splits: int | None = None
    decomposition: str | None = None
    copied_elements: int = 0
    flops: int = 0

    def __str__(self) -> str:
        return "\n".join([self.problem, *self.decision(), *self._rejections()])

    def decision(self) -> list[str]:
        """What was decided, a line each."""
        lines = [f"  implementation  {self.implementation}"]
        if self.kernel is not None:
            lines += [f"  kernel          {self.kernel}", *self._launch()]
        lines.append(f"  why             {self.reason}")
        if self.padded:
            lines.append("  padding         row pitches are padded to multiples of 16 bytes")
        if self.copied_elements:
            lines.append(f"  transposes      {self.copied_elements} elements are copied")
        return lines

    def _launch(self) -> list[str]:
        """How the kernel is launched, a line each."""
        lines = [
            f"  tile order      raster {self.raster_order}, swizzle {self.swizzle}, "
            f"splits {self.splits}"
        ]
        if self.decomposition is not None:
            lines.append(f"  stream-K        {self.decomposition}")
        return lines

    def _rejections(self) -> list[str]:
        """A line for each of `rejected`, in its order; one for many with the same reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.rejected:
            names.setdefault(reason, []).append(name)
        few = {reason for reason, those in names.items() if len(those) <= FEW}
        lines = [f"  not {name}: {reason}" for name, reason in self.rejected if reason in few]
        return lines + [
            f"  not {len(those)} kernels: {reason}"
            for reason, those in names.items()
            if reason not in few
        ]


def locate(
    device: jax.Device | str | None, explicit: Target | None, *, emulated: bool = False
) -> tuple[str, Target | None, str | None]:
    """Where a problem would run.

    Args:
        device: A JAX device, ``"cpu"``, an architecture, or None: the explicit target if there is
            one, else JAX's default device.
        explicit: The GPU asked for, if one was.
        emulated: Whether the emulator is asked for first: an explicit target is then its GPU.

    Returns:
        Platform, the GPU if it is known, and the reason if kernels cannot run on that GPU.

    Raises:
        TypeError: No device, name or None.
        ValueError: An unknown name.
    """
    if isinstance(device, str):
        if device == "cpu":
            return "cpu", explicit, None
        if device in DEFAULT_SM_COUNT:
            return "cuda", make_target(device), None
        known = ", ".join(["cpu", *DEFAULT_SM_COUNT])
        raise ValueError(f"unknown device {device!r}: give a jax.Device or one of {known}")
    if device is None:
        if explicit is not None and not emulated:
            return "cuda", explicit, None
        device = compat.default_device()
    if not isinstance(device, jax.Device):
        raise TypeError(f"device must be a jax.Device, a name or None, got {device!r}")
    if device.platform != "gpu":
        return device.platform, explicit, None
    found = runtime.device_target(device)
    return "cuda", found.target or explicit, None if found.target else found.reason


def place(
    spec: ProductSpec, device: jax.Device | str | None
) -> tuple[str, ProductSpec, str | None]:
    """Where a product would run, as `locate` says it, with the target in the spec."""
    emulated = spec.policy.implementations[0] == "emulator"
    platform, target, reason = locate(device, spec.policy.target, emulated=emulated)
    return platform, spec.with_policy(target=target), reason


def explain_product(
    contraction: Contraction,
    spec: ProductSpec,
    operands: Sequence[Any],
    device: jax.Device | str | None,
    rejected: Sequence[tuple[str, str]] = (),
    *,
    copied_elements: int = 0,
) -> Explanation:
    """The decision for a canonical product: the implementation that lowering would take.

    Args:
        contraction: The family of products.
        spec: The product.
        operands: Anything with shape and dtype.
        device: As in `jax_bwgemm.explain`.
        rejected: (name, reason) of the implementations that ``spec`` no longer has.
        copied_elements: What is transposed before or after it.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        ValueError: An unknown device.
    """
    dims = contraction.dims(spec, *(x.shape for x in operands))
    what = spec.describe([np.dtype(x.dtype).name for x in operands[:2]], dims)
    platform, spec, reason_against_gpu = place(spec, device)
    against = list(rejected)
    for name in spec.policy.implementations:
        if name == "xla":
            reason = against[-1][1] if against else ASKED_FOR
            return Explanation(what, name, reason, rejected=tuple(against), flops=flops_of(dims))
        if dims.empty and platform == PLATFORMS[name]:
            return Explanation(what, name, EMPTY, rejected=tuple(against))
        call = reason_against_gpu or _choose(contraction, name, platform, spec, operands)
        if isinstance(call, str):
            against.append((name, call))
            continue
        selected = call.selection
        return Explanation(
            what,
            name,
            call.reason,
            selected.kernel.name,
            call.padded != call.dims,
            (*against, *selected.rejected),
            selected.raster_order,
            selected.swizzle,
            selected.splits,
            selected.decomposition if getattr(selected.kernel, "stream_k", False) else None,
            copied_elements,
            flops_of(dims),
        )
    raise refusal_error(what, against)


def _choose(
    contraction: Contraction,
    name: str,
    platform: str,
    spec: ProductSpec,
    operands: Sequence[Any],
) -> KernelCall | str:
    """The call that lowering would emit, of the product that it would rewrite this one into."""
    if platform == PLATFORMS[name]:
        spec, operands = rewritten(contraction, spec, operands)
    shapes = [x.shape for x in operands]
    dtypes = rounded_types([np.dtype(x.dtype).name for x in operands[:2]], spec.policy.precision)
    return lowering.choose(contraction, name, platform, spec, dtypes, shapes)


def rewritten(
    contraction: Contraction, spec: ProductSpec, operands: Sequence[Any]
) -> tuple[ProductSpec, Sequence[Any]]:
    """The product that one device computes instead of this one."""
    found: list[tuple[ProductSpec, Sequence[Any]]] = []

    def run(*operands_and_spec: Any) -> jax.Array:
        *inner, one = operands_and_spec
        found.append((one, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inner]))
        dims = contraction.dims(one, *(x.shape for x in inner))
        return jnp.zeros(contraction.out_shape(one, dims), one.out_dtype)

    def rewrite(*arrays: jax.Array) -> jax.Array | None:
        return contraction.rewrite(run, arrays, spec)

    plain = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
    jax.eval_shape(rewrite, *plain)
    return found[0] if found else (spec, operands)
