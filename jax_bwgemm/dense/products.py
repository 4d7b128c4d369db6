"""From operands to one canonical GEMM, or to XLA: what all functions of dense products call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_bwgemm import compat
from jax_bwgemm.dense.arrangement import arrange_operand, arrange_result
from jax_bwgemm.dense.canonical import dot_labels, matmul_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.problem import Options, make_problem
from jax_bwgemm.dense.validation import check_dot_general, check_matmul
from jax_bwgemm.product.implementations import SYMBOLIC, log_once, refusal_error
from jax_bwgemm.product.support import viable_implementations


def matmul_product(a: jax.Array, b: jax.Array, options: Options) -> jax.Array:
    """`matmul` of arrays, without an epilogue. Raises what that raises."""
    if is_symbolic("matmul", a, b, options):
        return _xla_matmul(a, b, options)
    check_matmul(a.shape, b.shape)
    if options.implementations == ("xla",):
        return _xla_matmul(a, b, options)
    return _matmul(a, b, options)


def dot_product(lhs: jax.Array, rhs: jax.Array, numbers: Any, options: Options) -> jax.Array:
    """`dot_general` of arrays and canonical dimension numbers. Raises what that raises."""
    if is_symbolic("dot_general", lhs, rhs, options):
        return _xla_dot_general(lhs, rhs, numbers, options)
    check_dot_general(lhs.shape, rhs.shape, numbers)
    if options.implementations == ("xla",):
        return _xla_dot_general(lhs, rhs, numbers, options)
    return jitted_dot_general(lhs, rhs, numbers, options)


def is_symbolic(function: str, lhs: jax.Array, rhs: jax.Array, options: Options) -> bool:
    """Whether a size is symbolic (jax.export), which leaves nothing to select a kernel by.

    Raises:
        NotImplementedError: It is, and only kernels were allowed (several: an ExceptionGroup).
    """
    if all(isinstance(size, int) for size in (*lhs.shape, *rhs.shape)):
        return False
    what = symbolic_problem(function, lhs, rhs)
    if "xla" not in options.implementations:
        raise refusal_error(what, [(name, SYMBOLIC) for name in options.implementations])
    log_once(f"{what}: using xla, because {SYMBOLIC}")
    return True


def symbolic_problem(function: str, lhs: Any, rhs: Any) -> str:
    """A product with symbolic sizes in words."""
    return f"{function} of symbolic shapes {lhs.shape} and {rhs.shape}"


def _xla_matmul(a: jax.Array, b: jax.Array, options: Options) -> jax.Array:
    return jnp.matmul(
        a,
        b,
        precision=options.precision,
        preferred_element_type=options.preferred_element_type,
        out_sharding=options.out_sharding,
    )


def _xla_dot_general(lhs: jax.Array, rhs: jax.Array, numbers: Any, options: Options) -> jax.Array:
    out = lax.dot_general(
        lhs,
        rhs,
        numbers,
        precision=options.precision,
        preferred_element_type=options.preferred_element_type,
        out_sharding=options.out_sharding,
    )
    return out if options.rounded_to is None else out.astype(options.rounded_to)


# Jitted as jax.numpy's functions are: eager calls are one dispatch, traced ones leave no trace.


@functools.partial(jax.jit, static_argnums=(2,), inline=compat.INLINE)
def _matmul(a: jax.Array, b: jax.Array, options: Options) -> jax.Array:
    labels = matmul_labels(a.shape, b.shape)
    return _run(a, b, labels, options, lambda: _xla_matmul(a, b, options), promotes=True)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=compat.INLINE)
def jitted_dot_general(lhs: jax.Array, rhs: jax.Array, numbers: Any, options: Options) -> jax.Array:
    """`dot_product` of sizes that are known and fit."""
    labels = dot_labels(lhs.ndim, rhs.ndim, *numbers)
    xla = functools.partial(_xla_dot_general, lhs, rhs, numbers, options)
    return _run(lhs, rhs, labels, options, xla, promotes=False)


def _run(
    lhs: jax.Array,
    rhs: jax.Array,
    labels: Any,
    options: Options,
    xla: Callable[[], jax.Array],
    *,
    promotes: bool,
) -> jax.Array:
    expected = _type_on_mesh(lhs, rhs, options, xla)
    problem = make_problem(lhs, rhs, labels, options, promotes=promotes)
    spec, plan = problem.spec, problem.plan
    viable = viable_implementations(
        DENSE, spec, [lhs.dtype.name, rhs.dtype.name], problem.dims, veto=problem.veto
    )
    if viable[0] == "xla":
        return xla()
    if promotes:  # as jax.numpy's promotion does, whose gradients are weakly typed again
        lhs, rhs = (lax.convert_element_type(x, x.dtype) for x in (lhs, rhs))
    out = gemm(
        arrange_operand(lhs, plan.lhs),
        arrange_operand(rhs, plan.rhs),
        spec.with_policy(implementations=viable),
    )
    out = arrange_result(out, plan)
    # Dimensions of size 1 are dropped on the way, and their sharding with them.
    if expected is not None and jax.typeof(out).sharding != expected.sharding:
        out = jax.sharding.reshard(out, expected.sharding)
    return out


def _type_on_mesh(
    lhs: jax.Array, rhs: jax.Array, options: Options, xla: Callable[[], jax.Array]
) -> Any | None:
    """The type that JAX gives the result under explicit mesh axes; None where types have none.

    Raises:
        TypeError, ValueError: What JAX says of operands or an ``out_sharding`` that do not fit.
    """
    shardings = (compat.explicit_sharding(jax.typeof(x)) for x in (lhs, rhs))
    if options.out_sharding is None and all(sharding is None for sharding in shardings):
        return None
    (aval,) = jax.make_jaxpr(xla)().out_avals
    return aval if compat.explicit_sharding(aval) is not None else None
