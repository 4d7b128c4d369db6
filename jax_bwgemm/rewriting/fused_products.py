"""What `fuse.py` knows of each kind of product: dense, of groups along rows, of scaled operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_bwgemm import compat
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import bw_gemm_p
from jax_bwgemm.dense.spec import matrices
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.gated import Gated, gated_gemm
from jax_bwgemm.epilogue.gated_fused import GatedFused, stacked_shape
from jax_bwgemm.epilogue.grouped_primitive import GroupedFused, grouped_with_epilogue
from jax_bwgemm.epilogue.hook import MAX_SUMS
from jax_bwgemm.epilogue.primitive import gemm_with_epilogue
from jax_bwgemm.epilogue.program import as_matrix, batch_dims_of
from jax_bwgemm.epilogue.scaled_primitive import (
    ScaledFused,
    ScaledGroupedFused,
    scaled_ragged_with_epilogue,
    scaled_with_epilogue,
)
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.primitive import bw_m_grouped_p
from jax_bwgemm.rewriting.dataflow import Dataflow
from jax_bwgemm.rewriting.epilogue_functions import Shape, of_shapes, rounding, traced_program
from jax_bwgemm.scaled.layouts import layout_of
from jax_bwgemm.scaled.primitive import bw_scaled_matmul_p
from jax_bwgemm.scaled.ragged_primitive import RAGGED, bw_scaled_ragged_p

# What XLA computes within the pass that reads it, and an elementwise function cannot have.
_MOVING = ("split", "slice", "dynamic_slice", "gather", "concatenate", "pad", "transpose", "rev")


@dataclasses.dataclass(frozen=True)
class Function:
    """The operations after a product as a function of it and of operands.

    Attributes:
        build: From equations and the variables that are returned, a function of arrays.
        eqns: All equations.
        last: Those of them that sum or concatenate results; no operation follows them.
        whole: Returned variables of the product's shape, or two of them concatenated, which come
            first.
        sums: Returned sums.
    """

    build: Callable[[list[Any], list[Any]], Callable[..., list[jax.Array]]]
    eqns: list[Any]
    last: list[Any]
    whole: list[Any]
    sums: list[Any]

    @property
    def results(self) -> Callable[..., list[jax.Array]]:
        """All of it."""
        return self.build(self.eqns, [*self.whole, *self.sums])

    @property
    def terms(self) -> Callable[..., list[jax.Array]]:
        """The same without the last equations: what these read."""
        made = {e.outvars[0]: list(e.invars) for e in self.last}
        last = {id(e) for e in self.last}
        eqns = [e for e in self.eqns if id(e) not in last]
        outs = [x for v in (*self.whole, *self.sums) for x in made.get(v, [v])]
        return self.build(eqns, outs)

    @property
    def halves(self) -> bool:
        """Whether two results are side by side."""
        return any(e.outvars[0] in self.whole for e in self.last)

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the results."""
        return tuple(v.aval.dtype.name for v in (*self.whole, *self.sums))


class Kind:
    """What is the same for all, as it is for dense products.

    Attributes:
        fused: What the primitive computes.
        most_sums: How many sums a kernel can compute.
        normalised: Whether norms may read what is computed from the product: see `materialised`.
        routed: Whether computing small arrays before the product is worth kernels of their own.
    """

    fused: type[Fused] = Fused
    most_sums = MAX_SUMS
    normalised = True
    routed = False

    def fits(self, eqn: Any) -> bool:
        """Whether kernels that compute a product may also compute operations after it."""
        return self.why_not(eqn) is None

    def why_not(self, eqn: Any) -> str | None:
        """Why no kernel computes operations after it, for explanations; None: nothing to say."""
        spec = eqn.params["spec"]
        a, b = (x.aval for x in eqn.invars)
        if spec.reduce_batch:
            return "the product sums a batch of products"
        if spec.out_sharding is not None:
            return "the product has an out_sharding"
        if not a.dtype.name == b.dtype.name == spec.out_dtype:
            return "operands and result are not of one type"
        return None

    def batch_dims(self, product: Any, shape: Shape) -> int | None:
        """How many dimensions of the shape are the batch; None where some are it in part."""
        dims = DENSE.dims(product.params["spec"], *(x.aval.shape for x in product.invars))
        return batch_dims_of(shape, matrices(product.params["spec"], dims))

    def sums(self, product: Any, eqn: Any, shape: Shape) -> bool:
        """Whether it is a sum of an array of the shape over all dimensions but the last, and but
        those of the batch.
        """
        axes = tuple(range(self.batch_dims(product, shape) or 0, len(shape) - 1))
        return bool(axes) and _sums_over(eqn, shape, axes)

    def lays_side_by_side(self, eqn: Any, shape: Shape) -> bool:
        """Whether it makes of two arrays of the shape one that kernels can write."""
        del eqn, shape
        return False

    def halves(self, readers: list[Any], shape: Shape) -> list[Any]:
        """Both halves of the columns, where a kernel has them apart and nothing reads the whole."""
        del readers, shape
        return []

    def reads_badly(
        self, operands: list[Any], flow: Dataflow, stored: Container[Any], shape: Shape
    ) -> bool:
        """Whether an operand would have to be copied for a kernel."""
        del operands, flow, stored, shape
        return False

    def described(
        self, product: Any, shape: Shape, operands: list[Any], function: Function
    ) -> tuple[Fused, list[Shape]] | None:
        """What the primitive is to compute, and shapes of operands; None where kernels cannot.

        Args:
            product: The product's equation.
            shape: The shape in which operations read it.
            operands: Types of what they read besides the product.
            function: The operations.
        """
        spec, results = product.params["spec"], function.results
        batch_dims = self.batch_dims(product, shape)
        if batch_dims is None:
            return None
        found = traced_program(results, spec.out_dtype, shape, [], operands, batch_dims)
        if found is None:
            return None
        program, shapes = found
        program = as_matrix(program, shape, batch_dims)
        if isinstance(program, str):
            return None
        results = of_shapes(results, [x.shape for x in operands], 1)
        types = function.types
        return self.fused(spec, results, program, types, shape, batch_dims=batch_dims), shapes

    def bind(
        self, factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: Any
    ) -> list[jax.Array]:
        """The primitive."""
        return gemm_with_epilogue(*factors, operands, fused)


class _Dense(Kind):
    """Dense products. Kernels of two have both halves of the columns apart."""

    def halves(self, readers: list[Any], shape: Shape) -> list[Any]:
        return _halves(readers, shape)

    def described(
        self, product: Any, shape: Shape, operands: list[Any], function: Function
    ) -> tuple[Any, list[Shape]] | None:
        (result,) = product.outvars
        if result.aval.size != 2 * math.prod(shape):
            return super().described(product, shape, operands, function)
        spec, b = product.params["spec"], product.invars[1].aval
        explicit = any(compat.explicit_sharding(x.aval) for x in product.invars)
        if function.sums or function.halves or explicit or spec.majors != "kn" or b.shape[0] != 1:
            return None
        given = [jax.ShapeDtypeStruct(shape, spec.out_dtype), *operands]
        found = traced_program(function.results, spec.out_dtype, shape, [], given)
        if found is None:
            return None
        program, (_, *shapes) = found
        program = as_matrix(program, shape)
        if isinstance(program, str):
            return None
        results = of_shapes(function.results, [x.shape for x in given], 1)
        gate = Fused(spec, results, program, function.types, shape)
        return GatedFused(Gated(gate, stacked=True)), shapes

    def bind(
        self, factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: Any
    ) -> list[jax.Array]:
        if not isinstance(fused, GatedFused):
            return super().bind(factors, operands, fused)
        a, b = factors
        return gated_gemm(a, [b.reshape(stacked_shape(b.shape))], operands, fused.gated)


class _Grouped(Kind):
    """Products of groups of rows, whose kernels sum over columns."""

    fused: type[GroupedFused] = GroupedFused
    most_sums = 1
    normalised = False  # rows are permuted or added up before norms
    routed = True  # such as rows' weights, which routing gathers

    def fits(self, eqn: Any) -> bool:
        return self.why_not(eqn) is None

    def why_not(self, eqn: Any) -> str | None:
        spec = eqn.params["spec"]
        types = [x.aval for x in eqn.invars]
        if GROUPED.dims(spec, *(x.shape for x in types)).batch != 1 or spec.reduce_batch:
            return "the product is a batch"
        if not types[0].dtype.name == types[1].dtype.name == spec.out_dtype:
            return "operands and result are not of one type"
        if spec.out_sharding or any(compat.explicit_sharding(x) is not None for x in types):
            return "mesh axes are explicit"
        return None

    def sums(self, product: Any, eqn: Any, shape: Shape) -> bool:
        del product
        return len(shape) == 2 and _sums_over(eqn, shape, (1,))

    def lays_side_by_side(self, eqn: Any, shape: Shape) -> bool:
        return (
            eqn.primitive.name == "concatenate"
            and len(shape) == 2
            and eqn.params["dimension"] == 1
            and [x.aval.shape for x in eqn.invars] == [shape] * 2
        )

    def halves(self, readers: list[Any], shape: Shape) -> list[Any]:
        return _halves(readers, shape) if len(shape) == 2 else []

    def reads_badly(
        self, operands: list[Any], flow: Dataflow, stored: Container[Any], shape: Shape
    ) -> bool:
        # XLA's passes read another array's elements where these lie.
        for v in operands:
            eqn = flow.producer(v)
            moved = eqn is not None and eqn.primitive.name in _MOVING
            if moved and v not in stored and v.aval.shape == shape:
                return True
        return False

    def described(
        self, product: Any, shape: Shape, operands: list[Any], function: Function
    ) -> tuple[Fused, list[Shape]] | None:
        spec = product.params["spec"]
        (result,) = product.outvars
        gated = len(shape) == 2 and result.aval.shape[-1] == 2 * shape[1]
        if len(shape) != 2 or (gated and function.halves):
            return None
        second = [jax.ShapeDtypeStruct(shape, jnp.float32)] if gated else []
        found = traced_program(function.terms, spec.out_dtype, shape, second, operands)
        if found is None:
            return None
        program, shapes = found
        whole = len(function.whole) + function.halves
        program = dataclasses.replace(program, summed=tuple(range(whole, len(program.results))))
        types = function.types[:1] * function.halves + function.types
        results = of_shapes(function.results, [x.shape for x in operands], 1 + gated)
        fused = self.fused(
            spec,
            rounding(results, spec.out_dtype, 1 + gated),
            program,
            types,
            shape,
            gated=gated,
            halves=function.halves,
        )
        return fused, shapes

    def bind(
        self, factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: Any
    ) -> list[jax.Array]:
        return grouped_with_epilogue(factors, operands, fused)


class _Scaled(Kind):
    """Products of scaled operands."""

    fused = ScaledFused

    def batch_dims(self, product: Any, shape: Shape) -> int | None:
        (result,) = product.outvars
        return batch_dims_of(shape, result.aval.shape[0])

    def why_not(self, eqn: Any) -> str | None:
        del eqn
        return None

    def fits(self, eqn: Any) -> bool:
        spec = eqn.params["spec"]
        (result,) = eqn.outvars
        return (
            not layout_of(spec.a_scaling).has_global_scale
            and compat.explicit_sharding(result.aval) is None
        )

    def bind(
        self, factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: Any
    ) -> list[jax.Array]:
        return scaled_with_epilogue(factors, operands, fused)


class _ScaledGrouped(_Grouped):
    """Products of groups of rows of scaled operands, whose kernels neither sum nor have halves."""

    fused = ScaledGroupedFused
    most_sums = 0
    lays_side_by_side = Kind.lays_side_by_side
    halves = Kind.halves

    def why_not(self, eqn: Any) -> str | None:
        if RAGGED.dims_of([x.aval for x in eqn.invars], eqn.params["spec"]).batch != 1:
            return "the product is a batch"
        if any(compat.explicit_sharding(x.aval) is not None for x in eqn.invars):
            return "mesh axes are explicit"
        return None

    def fits(self, eqn: Any) -> bool:
        return eqn.params["spec"].m_grouped and self.why_not(eqn) is None

    def bind(
        self, factors: Sequence[jax.Array], operands: Sequence[jax.Array], fused: Any
    ) -> list[jax.Array]:
        return scaled_ragged_with_epilogue(factors, operands, fused)


KINDS: dict[Any, Kind] = {
    bw_gemm_p: _Dense(),
    bw_m_grouped_p: _Grouped(),
    bw_scaled_matmul_p: _Scaled(),
    bw_scaled_ragged_p: _ScaledGrouped(),
}


def _halves(readers: list[Any], shape: Shape) -> list[Any]:
    """Both halves of an array's columns, if its readers are what divides it."""
    if shape[-1] % 2:
        return []
    last, half = len(shape) - 1, shape[-1] // 2
    if [e.primitive.name for e in readers] == ["split"]:
        (eqn,) = readers
        if eqn.params["axis"] == last and tuple(eqn.params["sizes"]) == (half, half):
            return list(eqn.outvars)
    if [e.primitive.name for e in readers] != ["slice"] * 2:
        return []
    by_start = {}
    for eqn in readers:
        *zeros, start = eqn.params["start_indices"]
        *ends, stop = eqn.params["limit_indices"]
        whole = not any(zeros) and tuple(ends) == shape[:-1] and stop - start == half
        if whole and set(eqn.params["strides"] or (1,)) == {1}:
            by_start[start] = eqn.outvars[0]
    return [by_start[0], by_start[half]] if set(by_start) == {0, half} else []


def _sums_over(eqn: Any, shape: Shape, axes: tuple[int, ...]) -> bool:
    return (
        eqn.primitive.name == "reduce_sum"
        and jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
        and eqn.invars[0].aval.shape == shape
        and tuple(eqn.params["axes"]) == axes
    )
