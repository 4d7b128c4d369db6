"""``bw_gemm_windowed_p``: a dense product of columns of larger arrays, or into those of one.

On one device a kernel reads and writes the columns where they lie. Everywhere else, and for every
transformation, it is `separate`: slices, the product as any other, an update of the larger array.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax import core
from jax.interpreters import ad, batching, mlir

from jax_bwgemm import compat, compat_transforms
from jax_bwgemm.compat import Primitive
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.dense.canonical import dot_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.problem import Options, make_problem
from jax_bwgemm.dense.products import dot_product
from jax_bwgemm.dense.with_epilogue import fused_product, product_with_epilogue
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.call import run_linked
from jax_bwgemm.epilogue.primitive import one_device
from jax_bwgemm.product.linear_map import transposed
from jax_bwgemm.product.lowering import run_on_device
from jax_bwgemm.product.primitive import EXPLAINED_BY
from jax_bwgemm.product.support import viable_implementations
from jax_bwgemm.product.windows import Window, Windows, Within

bw_gemm_windowed_p = Primitive("bw_gemm_windowed")


@dataclasses.dataclass(frozen=True)
class Windowed:
    """What is computed: hashable, the primitive's only parameter.

    Operands are lhs and rhs, both of rank 2, the larger array of the result if there is one, the
    epilogue's and, last, what the product follows.

    Attributes:
        numbers: Dimension numbers, canonical.
        options: The other arguments of `dot_general`.
        lhs: Columns of the left operand that take part; None: all.
        rhs: Those of the right operand.
        into: Columns of the larger array that the result is.
        epilogue: A function of the product with one result of its type. None where there is `into`.
        follows: Whether a kernel begins only after the last operand, which it does not read, is
            there: so that a program holds no more than it must.
    """

    numbers: Any
    options: Options
    lhs: Window | None = None
    rhs: Window | None = None
    into: Window | None = None
    epilogue: Epilogue | None = None
    follows: bool = False

    def factors(self, lhs: jax.Array, rhs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The product's operands, sliced."""
        return (
            lhs if self.lhs is None else self.lhs.of(lhs),
            rhs if self.rhs is None else self.rhs.of(rhs),
        )

    def windows(self, lhs: jax.Array, rhs: jax.Array, *rest: jax.Array) -> Windows:
        """The larger arrays of the operands `factors` returns."""
        pairs = {"a": (lhs, self.lhs), "b": (rhs, self.rhs)}
        operands = {role: Within(x, w) for role, (x, w) in pairs.items() if w is not None}
        into = None if self.into is None else Within(rest[0], self.into)
        return Windows(operands, into, rest[-1] if self.follows else None)

    def epilogue_operands(self, *rest: jax.Array) -> tuple[jax.Array, ...]:
        """Of the operands behind lhs and rhs: the epilogue's."""
        return rest[: len(rest) - self.follows]


def windowed_product(
    lhs: jax.Array, rhs: jax.Array, windowed: Windowed, *operands: jax.Array
) -> jax.Array:
    """The product of the windows.

    Args:
        lhs: Rank 2.
        rhs: Rank 2.
        windowed: What is computed. Where XLA alone may, windows can begin at traced columns.
        *operands: The others: see `Windowed`.

    Returns:
        The result, or the larger array with the result in its place.
    """
    if windowed.options.implementations == ("xla",):
        return separate(lhs, rhs, *operands, windowed=windowed)
    return bw_gemm_windowed_p.bind(*compat.match_varying(lhs, rhs, *operands), windowed=windowed)


def separate(lhs: jax.Array, rhs: jax.Array, *rest: jax.Array, windowed: Windowed) -> jax.Array:
    """The same by slices, the product's own primitive, and an update."""
    factors = windowed.factors(lhs, rhs)
    if windowed.epilogue is not None:
        return product_with_epilogue(
            *factors,
            windowed.numbers,
            windowed.epilogue_operands(*rest),
            windowed.options,
            windowed.epilogue,
        )
    product = dot_product(*factors, windowed.numbers, windowed.options)
    return product if windowed.into is None else windowed.into.written(rest[0], product)


def _on_device(
    operands: Sequence[jax.Array], windowed: Windowed, ctx: mlir.LoweringRuleContext
) -> jax.Array | None:
    """One device's product with its windows in place; None where `separate` has to be."""
    lhs, rhs, *rest = operands
    factors, windows = windowed.factors(lhs, rhs), windowed.windows(*operands)
    options = windowed.options
    if windowed.epilogue is not None:
        if not links_epilogues():
            return None
        read = windowed.epilogue_operands(*rest)
        found = fused_product(*factors, windowed.numbers, read, options, windowed.epilogue)
        if found is None:
            return None
        spec, platform, reason = one_device(ctx, found.fused.spec)
        if reason is not None:
            return None
        fused = dataclasses.replace(found.fused, spec=spec)
        results = run_linked(
            fused.choose,
            fused.roles,
            [*found.factors, *read],
            spec.policy.implementations,
            fused.program,
            fused.result_types,
            fused.shape,
            platform,
            windows=windows,
        )
        return None if isinstance(results, str) else results[0]
    labels = dot_labels(2, 2, *windowed.numbers)
    problem = make_problem(*factors, labels, options, promotes=False)
    plan = problem.plan
    if problem.veto or plan.perm or plan.lhs.perm or plan.rhs.perm:
        return None
    dtypes = [x.dtype.name for x in factors]
    viable = viable_implementations(DENSE, problem.spec, dtypes, problem.dims)
    spec, platform, reason = one_device(ctx, problem.spec.with_policy(implementations=viable))
    if reason is not None:
        return None
    shapes = plan.lhs.shape, plan.rhs.shape
    canonical = tuple(x.reshape(shape) for x, shape in zip(factors, shapes, strict=True))
    return run_on_device(DENSE, canonical, spec, platform, windows)


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, windowed: Windowed) -> Sequence[Any]:
    def local(*xs: jax.Array) -> jax.Array:
        found = _on_device(xs, windowed, ctx)
        if found is None:
            return separate(*windowed.windows(*xs).ordered(xs), windowed=windowed)
        return found.reshape(shape)

    shape = ctx.avals_out[0].shape
    return mlir.lower_fun(local, multiple_results=False)(ctx, *operands)


def _abstract_eval(*operands: core.ShapedArray, windowed: Windowed) -> core.ShapedArray:
    (aval,) = compat.result_avals(functools.partial(separate, windowed=windowed), *operands)
    return aval


def _jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], *, windowed: Windowed
) -> tuple[jax.Array, jax.Array]:
    tangents = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(functools.partial(separate, windowed=windowed), primals, tangents)


def _transpose(cotangent: Any, *operands: Any, windowed: Windowed) -> list[Any]:
    function = functools.partial(separate, windowed=windowed)
    return transposed(function, operands, ad.instantiate_zeros(cotangent))


def _batch(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, windowed: Windowed
) -> tuple[jax.Array, int]:
    mapped = jax.vmap(functools.partial(separate, windowed=windowed), in_axes=tuple(axes))
    return mapped(*operands), 0


EXPLAINED_BY[bw_gemm_windowed_p] = "jax_bwgemm.dense.windowed_explain"
compat.implement_by_jit(bw_gemm_windowed_p, "windowed")
bw_gemm_windowed_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[bw_gemm_windowed_p] = _jvp
ad.primitive_transposes[bw_gemm_windowed_p] = _transpose
batching.primitive_batchers[bw_gemm_windowed_p] = _batch
compat_transforms.transform_as(bw_gemm_windowed_p, separate)
compat.lower_with_devices(bw_gemm_windowed_p)
mlir.register_lowering(bw_gemm_windowed_p, _lower)
