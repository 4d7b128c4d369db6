"""`explain`: which implementation and kernel a problem would get, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

from jax_bwgemm.dense import api, lowering
from jax_bwgemm.dense.canonical import dot_labels, matmul_labels
from jax_bwgemm.dense.spec import GemmSpec, gemm_dims
from jax_bwgemm.dense.support import describe, viable_implementations
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.dense.validation import as_dimension_numbers, check_dot_general, check_matmul
from jax_bwgemm.product.explanation import Explanation, decide, place


@dataclasses.dataclass(frozen=True)
class GemmExplanation(Explanation):
    """The decision for one dense product. ``str()`` of it is meant to be read.

    Attributes:
        raster_order: Order of the tiles; None without a kernel.
        swizzle: Width of the bands of tiles; None without a kernel.
        splits: Parts that K is split into; None without a kernel.
        decomposition: How a stream-K kernel divides the work; None for other kernels.
        copied_elements: Elements that must be transposed before or after the GEMM.
    """

    raster_order: str | None = None
    swizzle: int | None = None
    splits: int | None = None
    decomposition: str | None = None
    copied_elements: int = 0

    def decision(self) -> list[str]:
        lines = super().decision()
        if self.copied_elements:
            lines.append(f"  transposes      {self.copied_elements} elements are copied")
        return lines

    def _launch(self) -> list[str]:
        lines = [
            f"  tile order      raster {self.raster_order}, swizzle {self.swizzle}, "
            f"splits {self.splits}"
        ]
        if self.decomposition is not None:
            lines.append(f"  stream-K        {self.decomposition}")
        return lines


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
) -> GemmExplanation:
    """Says which implementation and kernel a call would get, without running or compiling it.

    `jax_bwgemm.explain_program` does so for every product of a function, `ragged_dot` and gradients
    included.

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
        numbers = as_dimension_numbers(dimension_numbers, a.shape, b.shape)
        check_dot_general(a.shape, b.shape, numbers)
        labels = dot_labels(len(a.shape), len(b.shape), *numbers)
    problem = api.make_problem(a, b, labels, options, promotes=dimension_numbers is None)
    spec, plan = problem.spec, problem.plan
    lhs = jax.ShapeDtypeStruct(plan.lhs.shape, a.dtype)
    rhs = jax.ShapeDtypeStruct(plan.rhs.shape, b.dtype)
    rejected: list[tuple[str, str]] = []
    viable = viable_implementations(
        spec, lhs.dtype.name, rhs.dtype.name, problem.dims, veto=problem.veto, rejected=rejected
    )
    spec = dataclasses.replace(spec, implementations=viable)
    return explain_gemm(spec, lhs, rhs, device, rejected, copied_elements=plan.copied)


def explain_gemm(
    spec: GemmSpec,
    lhs: Any,
    rhs: Any,
    device: jax.Device | str | None,
    rejected: Sequence[tuple[str, str]] = (),
    *,
    copied_elements: int = 0,
) -> GemmExplanation:
    """The decision for a canonical GEMM.

    Args:
        spec: The GEMM.
        lhs: A: anything with shape and dtype.
        rhs: B, likewise.
        device: As in `explain`.
        rejected: (name, reason) of the implementations that ``spec`` no longer has.
        copied_elements: What is transposed before or after it.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        ValueError: An unknown device.
    """
    lhs_dtype, rhs_dtype = np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name
    dims = gemm_dims(spec, lhs.shape, rhs.shape)
    what = describe(spec, lhs_dtype, rhs_dtype, dims)
    platform, spec, reason_against_gpu = place(spec, device)

    def choose(name: str) -> lowering.KernelCall | str:
        return reason_against_gpu or lowering.choose(
            name,
            platform,
            spec,
            lhs_dtype,
            lhs.shape,
            rhs.shape,
            padding_is_free="xla" not in spec.implementations,
        )

    fields, selected = decide(
        what, spec.implementations, rejected, platform, choose, empty=dims.empty
    )
    if selected is None:
        return GemmExplanation(**fields)
    return GemmExplanation(
        **fields,
        raster_order=selected.raster_order,
        swizzle=selected.swizzle,
        splits=selected.splits,
        decomposition=selected.decomposition if selected.kernel.stream_k else None,
        copied_elements=copied_elements,
    )
