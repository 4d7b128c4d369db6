"""The primitive ``bw_gemm_gated_p``: two products of one lhs, and an elementwise function of both.

Where a kernel computes all of it, it is one call. Stacked matrices may also be two calls, which
read their columns in place. Everywhere else, and for every transformation, it is `separate`: the
products' own primitives, and the function of one of them after it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.interpreters import ad, batching, mlir

from jax_bwgemm import compat, compat_transforms
from jax_bwgemm.compat import Primitive
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.gated_call import GatedProblem, prepare_gated, run_gated
from jax_bwgemm.epilogue.gated_pair import prepare_pair, run_pair
from jax_bwgemm.epilogue.linking import only_platform
from jax_bwgemm.epilogue.primitive import gemm_with_epilogue, one_device
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.product.primitive import EXPLAINED_BY

bw_gemm_gated_p = Primitive("bw_gemm_gated")
bw_gemm_gated_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class Gated:
    """What is computed: hashable, the primitive's only parameter.

    Attributes:
        of_gate: The first product and the function ``f(gate, up, *operands)``, of which the second
            product is an operand of the product's type.
        stacked: Whether the matrices are one array [K, 2, N], else two of [1, K, N].
        keeps_products: Whether both rounded products are returned as well, last.
        config: The kernel of both products to take; None: any, or none.
    """

    of_gate: Fused
    stacked: bool
    keeps_products: bool = False
    config: TuningConfig | None = None

    def with_products(self) -> Gated:
        """The same, which returns the products as well."""
        return dataclasses.replace(self, keeps_products=True)

    @property
    def problem(self) -> GatedProblem:
        """The same for kernels."""
        fused = self.of_gate
        program, types = fused.program, fused.result_types
        if self.keeps_products:
            program = dataclasses.replace(program, results=(*program.results, 0, 1))
            types = (*types, *[fused.spec.out_dtype] * 2)
        spec = fused.spec.with_policy(config=self.config)
        return GatedProblem(spec, program, types, self.stacked)

    @property
    def of_pair(self) -> Fused:
        """What the first product's kernel returns where the second has one of its own."""
        return self.of_gate.with_product() if self.keeps_products else self.of_gate

    def check_may_be_separate(self, why: str) -> None:
        """Asking for a particular kernel never falls back silently.

        Raises:
            NotImplementedError: One was asked for.
        """
        if self.config is not None:
            raise NotImplementedError(f"{self.config} cannot be satisfied: {why}")


def gated_gemm(
    a: jax.Array, weights: Sequence[jax.Array], operands: Sequence[jax.Array], gated: Gated
) -> list[jax.Array]:
    """Binds the primitive.

    Args:
        a: A as `gemm` takes it.
        weights: [K, 2, N], or two of [1, K, N].
        operands: Arrays that broadcast to ``gated.of_gate.shape``.
        gated: What is computed.
    """
    return bw_gemm_gated_p.bind(*compat.match_varying(a, *weights, *operands), gated=gated)


def separate(
    *operands: jax.Array, gated: Gated, partitioned: bool | None = None
) -> list[jax.Array]:
    """The products by their own primitive; the function after the first, or by XLA.

    partitioned: Whether XLA divides them over devices; None: that is not known yet.
    """
    fused = gated.of_gate
    a, weights, rest = _parts(operands, gated)
    if gated.stacked:
        gate, up = _products(a, weights, gated, partitioned)
        results = fused.function(gate, up, *rest)
    else:
        first, second = weights
        up = gemm(a, second, fused.spec).reshape(fused.shape)
        gate = None
        if gated.keeps_products:
            *results, gate = gemm_with_epilogue(a, first, (up, *rest), fused.with_product())
        else:
            results = gemm_with_epilogue(a, first, (up, *rest), fused)
    return [*results, gate, up] if gated.keeps_products else list(results)


def _parts(operands: Sequence[Any], gated: Gated) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """A, the matrices, the function's other operands."""
    count = 1 + gated.problem.matrices
    return operands[0], operands[1:count], operands[count:]


def _products(
    a: jax.Array, weights: Sequence[jax.Array], gated: Gated, partitioned: bool | None = None
) -> tuple[jax.Array, jax.Array]:
    """Both products. partitioned: As of `separate`."""
    fused = gated.of_gate
    if not gated.stacked:
        gate, up = (gemm(a, w, fused.spec).reshape(fused.shape) for w in weights)
        return gate, up
    (stacked,) = weights
    k, _, n = stacked.shape
    if compat.may_be_partitioned() if partitioned is None else partitioned:
        gate, up = (gemm(a, w[None], fused.spec).reshape(fused.shape) for w in halves(stacked))
        return gate, up
    both = gemm(a, stacked.reshape(1, k, 2 * n), fused.spec)
    both = both.reshape(*fused.shape[:-1], 2, n)
    return both[..., 0, :], both[..., 1, :]


def halves(stacked: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Stacked weights as a pair, for where devices may have parts of their columns.

    The columns of both matrices in one dimension cannot be sharded: they would be gathered.
    """
    return stacked[:, 0], stacked[:, 1]


def _abstract_eval(*operands: core.ShapedArray, gated: Gated) -> list[core.ShapedArray]:
    # Linking takes seconds: it begins now, for all of a program's products side by side.
    a, weights, _ = _parts(operands, gated)
    one = prepare_gated((a, *weights), gated.problem)
    platform = only_platform()
    if gated.stacked and not one and platform is not None and gated.config is None:
        prepare_pair((a, *weights), gated.of_pair, platform)
    plain = (core.ShapedArray(x.shape, x.dtype) == x.update(weak_type=False) for x in operands)
    if all(plain):
        types = gated.problem.result_types
        return [core.ShapedArray(gated.of_gate.shape, jnp.dtype(t)) for t in types]
    return compat.result_avals(functools.partial(separate, gated=gated), *operands)


def _jvp(
    primals: Sequence[jax.Array], tangents: Sequence[Any], *, gated: Gated
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The function's derivative at the rounded products, which are then further results."""
    fused = gated.of_gate
    a, weights, operands = _parts(primals, gated)
    da, moved, operand_tangents = _parts(tangents, gated)
    results = gated_gemm(a, weights, operands, gated.with_products())
    *_, gate, up = results
    toward: list[jax.Array] = [jnp.zeros_like(gate), jnp.zeros_like(up)]
    parts: list[list[jax.Array]] = [[], []]
    if not isinstance(da, ad.Zero):
        for found, part in zip(parts, _products(da, weights, gated), strict=True):
            found.append(part)
    if gated.stacked:
        if not isinstance(moved[0], ad.Zero):
            for found, part in zip(parts, _products(a, moved, gated), strict=True):
                found.append(part)
    else:
        for found, dw in zip(parts, moved, strict=True):
            if not isinstance(dw, ad.Zero):
                found.append(gemm(a, dw, fused.spec).reshape(fused.shape))
    toward = [sum(p[1:], p[0]) if p else z for p, z in zip(parts, toward, strict=True)]
    operand_tangents = [ad.instantiate_zeros(t) for t in operand_tangents]
    _, out = jax.jvp(fused.function, (gate, up, *operands), (*toward, *operand_tangents))
    if gated.keeps_products:
        return results, [*out, *toward]
    return results[:-2], list(out)


def _batch(
    operands: Sequence[jax.Array], axes: Sequence[int | None], *, gated: Gated
) -> tuple[list[jax.Array], list[int]]:
    gated.check_may_be_separate("the products are mapped over a batch")
    # vmap passes an operand that is not mapped with axis None.
    results = jax.vmap(functools.partial(separate, gated=gated), in_axes=tuple(axes))(*operands)
    return results, [0] * len(results)


def _apart(*operands: jax.Array, gated: Gated) -> list[jax.Array]:
    gated.check_may_be_separate("checkify and jet look at the products one by one")
    return separate(*operands, gated=gated)


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, gated: Gated) -> Sequence[Any]:
    spec, platform, reason = one_device(ctx, gated.of_gate.spec)
    here = dataclasses.replace(gated, of_gate=dataclasses.replace(gated.of_gate, spec=spec))

    def local(*xs: jax.Array) -> list[jax.Array]:
        why = reason
        if why is None:
            found = run_gated(xs, here.problem, here.of_gate.shape, platform)
            if not isinstance(found, str):
                return found
            why = found
            log_once(f"{spec}: two products and a function are not one kernel: {why}")
        gated.check_may_be_separate(why)
        if gated.stacked and reason is None:
            pair = run_pair(xs, here.of_pair, platform)
            if not isinstance(pair, str):
                return pair
            log_once(f"{spec}: stacked matrices are one product, and a pass over it: {pair}")
        return separate(*xs, gated=gated, partitioned=compat.is_partitioned(ctx))

    return mlir.lower_fun(local, multiple_results=True)(ctx, *operands)


EXPLAINED_BY[bw_gemm_gated_p] = "jax_bwgemm.epilogue.gated_explain"
compat.implement_by_jit(bw_gemm_gated_p, "gated")
bw_gemm_gated_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[bw_gemm_gated_p] = _jvp
batching.primitive_batchers[bw_gemm_gated_p] = _batch
compat_transforms.transform_as(bw_gemm_gated_p, _apart)
compat.lower_with_devices(bw_gemm_gated_p)
mlir.register_lowering(bw_gemm_gated_p, _lower)
