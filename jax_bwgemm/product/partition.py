"""Sharding of a product: `plan` (pure) and its wiring into custom_partitioning."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.product.contraction import Axes, Dims, NamedAxes, Operands
from jax_bwgemm.product.shardings import axes_of, mesh_with_axes
from jax_bwgemm.product.spec import ProductSpec


@dataclasses.dataclass(frozen=True)
class PartitionPlan:
    """What each device computes.

    Attributes:
        operands: Mesh axes of every operand's dimensions, in storage order.
        out: Mesh axes of D's dimensions.
        axes: Mesh axes over which each dimension of the product is sharded.
        reduce_axes: Mesh axes over which the local results are summed, everywhere.
        scatter: (dimension of D, mesh axes) summed with each device keeping its part.
    """

    operands: tuple[tuple[Axes, ...], ...]
    out: tuple[Axes, ...]
    axes: NamedAxes
    reduce_axes: Axes = ()
    scatter: tuple[tuple[int, Axes], ...] = ()

    @property
    def communicates(self) -> bool:
        """Whether local results are parts of sums."""
        return bool(self.reduce_axes or self.scatter)


def plan(
    contraction: Operands,
    spec: ProductSpec,
    dims: Dims,
    mesh_shape: Mapping[str, int],
    a: NamedAxes,
    b: NamedAxes,
    out: NamedAxes,
) -> PartitionPlan:
    """Decides the shardings of one product from those its neighbours would like.

    1. A dimension of D sharded (b, m, n; of k-grouped products also e and k): nothing to
       communicate, each device computes its block of D. Where it is the ragged rows m, each device
       computes which part of each group it has.
    2. A summed dimension (k, of m-grouped products also the matrices e, of k-grouped ones the
       ragged rows m) sharded alike in A and B: local results are partial; all-reduce.
    3. As 2, and D wants one of its dimensions over the same axes: reduce-scatter.
    4. A summed dimension sharded in one operand only: the other is sliced (free); then as 2 or 3.
       But not when those axes shard D: then that operand is gathered (weights sharded over the data
       axis).
    5. e and m over the same axes: the cheaper of bringing all rows to every device and bringing
       all matrices there.
    6. An axis no dimension can use (taken, or not dividing the size): the operand is gathered.

    Args:
        contraction: The family of products.
        spec: The problem.
        dims: Its global sizes.
        mesh_shape: Size of each mesh axis.
        a: Mesh axes A arrives with, by dimension name.
        b: Mesh axes B arrives with.
        out: Mesh axes D is wanted with.
    """
    extents = dims.extents
    taken: set[str] = set()
    chosen: dict[str, Axes] = {}

    def claim(dim: str, axes: Axes) -> None:
        """Gives a dimension the leading axes that are free and divide it evenly."""
        kept: list[str] = []
        for axis in axes:
            parts = math.prod(mesh_shape[x] for x in (*kept, axis))
            if axis in taken or axis in kept or extents[dim] % parts:
                break
            kept.append(axis)
        taken.update(kept)
        chosen[dim] = tuple(kept)

    names, summed = contraction.out_names(spec), contraction.summed(spec)
    kept = [d for d in names if d not in summed]

    def arrives(dim: str) -> Axes:
        return a.get(dim, ()) or b.get(dim, ())

    for dim, axes in contraction.claims_first(spec, dims, b, out).items():
        claim(dim, axes)
    for dim in summed:  # agreed by both operands: cases 2 and 3
        if dim not in chosen and a.get(dim) and a.get(dim) == b.get(dim):
            claim(dim, a[dim])
    for dim in kept:  # D's sharding takes precedence over an operand's
        if dim not in chosen:
            claim(dim, out.get(dim, ()))
    for dim in kept:
        if not chosen[dim]:
            claim(dim, arrives(dim))
    for dim in summed:  # case 4
        if dim not in chosen:
            claim(dim, arrives(dim))

    reduce_axes = [axis for dim in summed for axis in chosen[dim]]
    out_axes = [chosen[d] if d in kept else () for d in names]
    scatter: list[tuple[int, Axes]] = []
    for position, dim in enumerate(names):
        wanted_all = out.get(dim, ())
        wanted = wanted_all[len(out_axes[position]) :]
        parts = math.prod(mesh_shape[x] for x in wanted_all)
        continues = wanted_all[: len(out_axes[position])] == out_axes[position]
        partial = bool(wanted) and set(wanted) <= set(reduce_axes)
        if dim in kept and continues and partial and extents[dim] % parts == 0:
            scatter.append((position, wanted))
            out_axes[position] = wanted_all
            reduce_axes = [axis for axis in reduce_axes if axis not in wanted]

    def of_operand(dimensions: str, batch: int) -> tuple[Axes, ...]:
        never = contraction.whole + ("b" if batch == 1 else "")
        return tuple(() if d in never else chosen[d.lower()] for d in dimensions)

    sides = zip(contraction.operand_names(spec), dims.batches, strict=True)
    return PartitionPlan(
        tuple(of_operand(*side) for side in sides),
        tuple(out_axes),
        chosen,
        tuple(reduce_axes),
        tuple(scatter),
    )


@dataclasses.dataclass(frozen=True)
class Form:
    """What the compiler partitions: a product whose A, B and D have no batch where it would be 1.

    With it a matrix that JAX's own products read too is another array, gathered once more.

    Attributes:
        spec: The product.
        single: Whether A, B and D have no batch.
    """

    spec: ProductSpec
    single: tuple[bool, bool, bool] = (False, False, False)

    @staticmethod
    def of(contraction: Operands, spec: ProductSpec, operands: Sequence[Any]) -> Form:
        """Of operands that all have a batch."""
        dims = contraction.dims(spec, *(x.shape for x in operands))
        a, b, *_ = dims.batches
        return Form(spec, (a == 1, b == 1, dims.batch == 1 or spec.reduce_batch))

    def flags(self, operands: Sequence[Any]) -> tuple[bool, ...]:
        """Of every operand, whether it has no batch."""
        return (*self.single[:2], *[False] * (len(operands) - 2))

    def without(self, operands: Sequence[jax.Array]) -> list[jax.Array]:
        """Operands that all have a batch, as the compiler sees them."""
        return list(map(_without_batch, operands, self.flags(operands)))

    def full(self, operands: Sequence[jax.Array]) -> list[jax.Array]:
        """The opposite of `without`."""
        return list(map(_with_batch, operands, self.flags(operands)))

    def dims(self, contraction: Operands, operands: Sequence[Any]) -> Dims:
        """Sizes of the product of what `without` returns."""
        flags = self.flags(operands)
        shapes = ((1, *x.shape) if f else x.shape for x, f in zip(operands, flags, strict=True))
        return contraction.dims(self.spec, *shapes)


def _without_batch(x: jax.Array, single: bool) -> jax.Array:
    return x.reshape(x.shape[1:]) if single else x


def _with_batch(x: jax.Array, single: bool) -> jax.Array:
    return x.reshape(1, *x.shape) if single else x


def sharding_rule(
    contraction: Operands, form: Form, dims: Dims, devices: int = 1
) -> tuple[str, dict[str, Any]]:
    """The Shardy rule, for example ``'b m k, b k n -> b m n'`` reducing over k.

    A shared batch (size 1) gets a factor of its own, so that sharding b never touches it. A
    dimension that has blocks is a factor of these and one inside of a block, unless blocks cannot
    be divided over all devices: Shardy would then divide a mesh axis, of which JAX knows nothing.

    Args:
        contraction: The family of products.
        form: The problem.
        dims: Its global sizes.
        devices: Devices of the mesh.
    """
    spec = form.spec
    blocked = {d.lower() for names in contraction.operand_names(spec) for d in names if d.isupper()}
    divided = sorted(d for d in blocked if dims.extents[d] % max(devices, 2) == 0)

    def factors_of(dimension: str) -> str:
        if dimension in divided:
            return f"({dimension} {dimension * 2})"
        return dimension.lower() if dimension.lower() in divided else dimension

    def side(dimensions: str, batch: str, *, single: bool) -> str:
        return " ".join([*([] if single else batch), *map(factors_of, dimensions[1:])])

    sides = [
        side(dimensions, "b" if batch == dims.batch else shared, single=single)
        for dimensions, batch, shared, single in zip(
            contraction.operand_names(spec),
            dims.batches,
            "pqstuvw"[: contraction.operands],
            form.flags(dims.batches),
            strict=True,
        )
    ]
    batch = "r" if spec.reduce_batch else "b"
    out = side(contraction.out_names(spec), batch, single=form.single[2])
    rule = f"{', '.join(sides)} -> {out}"
    summed = contraction.summed(spec)
    summed += [d * 2 for d in summed if d in divided]
    # Shardy needs them in the order of their first appearance in the rule.
    order = re.findall(r"\w+", rule).index
    factors: dict[str, Any] = {"reduction_factors": tuple(sorted(summed, key=order))}
    factors |= {d * 2: contraction.block_of(spec) for d in divided}
    if contraction.whole:
        factors["need_replication_factors"] = tuple(contraction.whole)
    return rule, factors


def partitioned(contraction: Operands, local: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function of operands and specification that the compiler partitions by `plan`.

    Args:
        contraction: The family of products.
        local: Computes one device's product; its last argument is the specification.
    """

    def product(form: Form, *operands: jax.Array) -> jax.Array:
        return _without_batch(local(*form.full(operands), form.spec), form.single[2])

    def rule(form: Form, mesh: Any, operands: Sequence[Any], results: Any) -> Any:
        del results
        return sharding_rule(contraction, form, form.dims(contraction, operands), mesh.size)

    def partition(
        form: Form,
        mesh: Any,
        operands: tuple[jax.ShapeDtypeStruct, ...],
        result: jax.ShapeDtypeStruct,
    ) -> Any:
        mesh = mesh_with_axes(mesh, (x.sharding for x in (*operands, result)))
        spec, dims = form.spec, form.dims(contraction, operands)
        a_names, b_names, *_ = contraction.operand_names(spec)
        names = (a_names, b_names, contraction.out_names(spec))
        named = [n[single:] for n, single in zip(names, form.single, strict=True)]
        decided = plan(
            contraction,
            spec,
            dims,
            dict(mesh.shape),
            *(
                dict(zip(n, axes_of(x.sharding, mesh, len(x.shape)), strict=False))
                for x, n in zip((*operands[:2], result), named, strict=True)
            ),
        )

        def on_device(*blocks: jax.Array) -> jax.Array:
            # One device's arrays have no mesh. With the user's explicit mesh in context, the
            # reduction would get a sharding, on which XLA's all-reduce passes abort.
            with compat.of_no_mesh():
                one, blocks = contraction.on_shard(
                    dataclasses.replace(spec, out_sharding=None),
                    dims,
                    decided.axes,
                    mesh.shape,
                    tuple(form.full(blocks)),
                )
                if decided.communicates:
                    one = dataclasses.replace(one, out_dtype=_exchanged(one))
                out = local(*blocks, one)
                for dimension, axes in decided.scatter:
                    out = lax.psum_scatter(out, axes, scatter_dimension=dimension, tiled=True)
                out = lax.psum(out, decided.reduce_axes) if decided.reduce_axes else out
                return _without_batch(out.astype(spec.out_dtype), form.single[2])

        def sharding(axes: tuple[Axes, ...], single: bool = False) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(x or None for x in axes[single:])))

        shardings = tuple(map(sharding, decided.operands, form.flags(operands)))
        return mesh, on_device, sharding(decided.out, form.single[2]), shardings

    # One for each form: with static arguments JAX would keep the traced ones, too.
    @functools.lru_cache(maxsize=4096)
    def of_form(form: Form) -> custom_partitioning:
        function = custom_partitioning(functools.partial(product, form))
        function.def_partition(
            partition=functools.partial(partition, form),
            sharding_rule=functools.partial(rule, form),
            decode_shardings=False,  # JAX cannot decode all of them: see `axes_of`
        )
        return function

    def bind(*operands_and_spec: Any) -> jax.Array:
        *operands, spec = operands_and_spec
        form = Form.of(contraction, spec, operands)
        return _with_batch(of_form(form)(*form.without(operands)), form.single[2])

    return bind


def _exchanged(spec: ProductSpec) -> str:
    """Type of the local results that devices add up."""
    narrow = np.dtype(spec.out_dtype).itemsize < np.dtype(np.float32).itemsize
    return (spec.policy.partial_sums or spec.out_dtype) if narrow else spec.out_dtype
