"""`explain`: which implementation and kernel a problem would get, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_bwgemm import runtime
from jax_bwgemm.config import DEFAULT_SM_COUNT, make_target
from jax_bwgemm.gemm import api, lowering
from jax_bwgemm.gemm.canonical import dot_labels, matmul_labels
from jax_bwgemm.gemm.support import describe, viable_implementations
from jax_bwgemm.gemm.tuning_config import TuningConfig
from jax_bwgemm.gemm.validation import as_dimension_numbers, check_dot_general, check_matmul
from jax_bwgemm.implementations import refusal_error

# As many with the same reason are named one by one.
FEW = 2


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The decision for one problem. ``str()`` of it is meant to be read.

    Attributes:
        problem: The canonical GEMM in words.
        implementation: ``"cutlass"``, ``"emulator"`` or ``"xla"``.
        reason: Why this implementation and kernel.
        kernel: Name of the kernel; None for xla, and for an empty problem, which runs none.
        raster_order: Order of the tiles; None without a kernel.
        swizzle: Width of the bands of tiles; None without a kernel.
        splits: Parts that K is split into; None without a kernel.
        decomposition: How a stream-K kernel divides the work; None for other kernels.
        copied_elements: Elements that must be transposed before or after the GEMM.
        padded: Whether operands are padded to satisfy the kernel's alignment.
        rejected: (name, reason) of the implementations and kernels not chosen.
    """

    problem: str
    implementation: str
    reason: str
    kernel: str | None = None
    raster_order: str | None = None
    swizzle: int | None = None
    splits: int | None = None
    decomposition: str | None = None
    copied_elements: int = 0
    padded: bool = False
    rejected: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        lines = [self.problem, f"  implementation  {self.implementation}"]
        if self.kernel is not None:
            lines.append(f"  kernel          {self.kernel}")
            lines.append(
                f"  tile order      raster {self.raster_order}, swizzle {self.swizzle}, "
                f"splits {self.splits}"
            )
        if self.decomposition is not None:
            lines.append(f"  stream-K        {self.decomposition}")
        lines.append(f"  why             {self.reason}")
        if self.copied_elements:
            lines.append(f"  transposes      {self.copied_elements} elements are copied")
        if self.padded:
            lines.append("  padding         row pitches are padded to multiples of 16 bytes")
        return "\n".join(lines + self._rejections())

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


def explain(
    a: Any,
    b: Any,
    dimension_numbers: Any = None,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
    device: jax.Device | str | None = None,
) -> Explanation:
    """Says which implementation and kernel a call would get, without running or compiling it.

    Args:
        a: Left operand: an array or `jax.ShapeDtypeStruct`.
        b: Right operand, likewise.
        dimension_numbers: As in `dot_general`; None means ``matmul(a, b)``.
        precision: As in `matmul`.
        preferred_element_type: As in `matmul`.
        implementation: As in `matmul`.
        config: As in `matmul`.
        device: Where it would run: a JAX device, ``"cpu"``, ``"sm90"`` or ``"sm100"``. None means
            the explicit target (`jax_bwgemm.config.target`) if there is one, else JAX's default
            device.

    Returns:
        The decision with its reasons.

    Raises:
        TypeError, ValueError, NotImplementedError, ExceptionGroup: As the call itself.
    """
    options = api.make_options(precision, preferred_element_type, None, implementation, config)
    if dimension_numbers is None:
        check_matmul(a.shape, b.shape)
        labels = matmul_labels(a.shape, b.shape)
    else:
        numbers = as_dimension_numbers(dimension_numbers)
        check_dot_general(a.shape, b.shape, numbers)
        labels = dot_labels(len(a.shape), len(b.shape), *numbers)
    problem = api.make_problem(a, b, labels, options)
    spec, dims, plan = problem.spec, problem.dims, problem.plan
    lhs_dtype, rhs_dtype = np.dtype(a.dtype).name, np.dtype(b.dtype).name
    what = describe(spec, lhs_dtype, rhs_dtype, dims)
    platform, spec, reason_against_gpu = _place(spec, device)
    rejected: list[tuple[str, str]] = []
    viable = viable_implementations(
        spec, lhs_dtype, rhs_dtype, dims, veto=problem.veto, rejected=rejected
    )
    for name in viable:
        if name == "xla":
            reason = rejected[-1][1] if rejected else "asked for"
            return Explanation(what, "xla", reason, rejected=tuple(rejected))
        if lowering.runs_nothing(name, platform, dims):
            reason = "an empty problem runs no kernel: the result is empty or all zeros"
            return Explanation(what, name, reason, rejected=tuple(rejected))
        call: lowering.KernelCall | str | None = reason_against_gpu
        if call is None:
            call = lowering.choose(
                name,
                platform,
                spec,
                lhs_dtype,
                plan.lhs.shape,
                plan.rhs.shape,
                padding_is_free="xla" not in viable,
            )
        if isinstance(call, str):
            rejected.append((name, call))
            continue
        selected = call.selection
        return Explanation(
            what,
            name,
            selected.reason,
            selected.kernel.name,
            selected.raster_order,
            selected.swizzle,
            selected.splits,
            selected.decomposition if selected.kernel.stream_k else None,
            plan.copied,
            call.padded != call.dims,
            (*rejected, *selected.rejected),
        )
    raise refusal_error(what, rejected)


def _place(spec: Any, device: jax.Device | str | None) -> tuple[str, Any, str | None]:
    """Platform, spec with its target, and the reason if kernels cannot run on that GPU."""
    if isinstance(device, str):
        if device == "cpu":
            return "cpu", spec, None
        if device in DEFAULT_SM_COUNT:
            return "cuda", dataclasses.replace(spec, target=make_target(device)), None
        known = ", ".join(["cpu", *DEFAULT_SM_COUNT])
        raise ValueError(f"unknown device {device!r}: give a jax.Device or one of {known}")
    if device is None:
        if spec.target is not None and spec.implementations[0] != "emulator":
            return "cuda", spec, None
        device = jax.local_devices()[0]
    if device.platform != "gpu":
        return device.platform, spec, None
    found = runtime.device_target(device)
    if found.target is None:
        return "cuda", spec, found.reason
    return "cuda", dataclasses.replace(spec, target=found.target), None
