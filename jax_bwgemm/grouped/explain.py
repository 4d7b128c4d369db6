"""Which implementation and kernel a canonical grouped GEMM would get, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm.grouped import lowering
from jax_bwgemm.grouped.batching import reduce_batch
from jax_bwgemm.grouped.spec import GroupedSpec, grouped_dims, out_shape
from jax_bwgemm.grouped.support import describe, refusal
from jax_bwgemm.product.explanation import Explanation, decide, place
from jax_bwgemm.product.implementations import PLATFORMS


@dataclasses.dataclass(frozen=True)
class GroupedExplanation(Explanation):
    """The decision for one grouped product. ``str()`` of it is meant to be read.

    Attributes:
        order: Order of the tiles: ``"heuristic"`` (the kernel decides), ``"horizontal"`` or
            ``"vertical"``; None without a kernel.
        swizzle: Width of the bands of tiles; None without a kernel.
    """

    order: str | None = None
    swizzle: int | None = None

    def _launch(self) -> list[str]:
        return [f"  tile order      {self.order}, swizzle {self.swizzle}"]


def explain_grouped(
    spec: GroupedSpec, operands: Sequence[Any], device: jax.Device | str | None
) -> GroupedExplanation:
    """The decision for a canonical grouped GEMM.

    Args:
        spec: The grouped GEMM.
        operands: A, B, sizes and offset: anything with shape and dtype.
        device: As in `jax_bwgemm.explain`.

    Raises:
        NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        ValueError: An unknown device.
    """
    dims = grouped_dims(spec, *(x.shape for x in operands))
    dtypes = [jnp.dtype(x.dtype).name for x in operands[:2]]
    what = describe(spec, *dtypes, dims)
    platform, spec, reason_against_gpu = place(spec, device)
    against: list[tuple[str, str]] = []
    if spec.implementations == ("xla",) and (reason := refusal("cutlass", spec, *dtypes, dims)):
        against.append(("cutlass", reason))

    def choose(name: str) -> lowering.GroupedCall | str:
        if reason_against_gpu is not None:
            return reason_against_gpu
        one, sizes = spec, dims
        if spec.reduce_batch and platform == PLATFORMS[name]:
            one, inner = _without_batch(spec, operands)
            sizes = grouped_dims(one, *(x.shape for x in inner))
        free = "xla" not in spec.implementations
        return lowering.choose(name, platform, one, dtypes[0], sizes, padding_is_free=free)

    fields, selected = decide(
        what, spec.implementations, against, platform, choose, empty=dims.empty
    )
    if selected is None:
        return GroupedExplanation(**fields)
    return GroupedExplanation(**fields, order=selected.order, swizzle=selected.swizzle)


def _without_batch(spec: GroupedSpec, operands: Sequence[Any]) -> tuple[GroupedSpec, list[Any]]:
    """The grouped GEMM that lowering puts in the place of one that sums over a batch."""
    found: list[tuple[GroupedSpec, list[Any]]] = []

    def bind(*args: Any) -> jax.Array:
        *inner, each = args
        found.append((each, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inner]))
        dims = grouped_dims(each, *(x.shape for x in inner))
        return jnp.zeros(out_shape(each, dims), each.out_dtype)

    jax.eval_shape(lambda *xs: reduce_batch(bind, xs, spec), *operands)
    return found[0]
