"""The public functions: validate, canonicalise, then one canonical GEMM."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.config import links_epilogues
from jax_bwgemm.dense.canonical import dot_labels, matmul_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.problem import Options, make_options, make_problem
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.dense.validation import (
    as_array,
    as_dimension_numbers,
    check_dot_general,
    check_matmul,
)
from jax_bwgemm.epilogue.apply import (
    Epilogue,
    apply_epilogue,
    check_epilogue,
    flat_results,
)
from jax_bwgemm.epilogue.primitive import Fused, gemm_with_epilogue
from jax_bwgemm.epilogue.program import FLOATS, as_matrix
from jax_bwgemm.product.implementations import log_once, refusal_error
from jax_bwgemm.product.support import viable_implementations


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    *,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
    epilogue: Callable[..., Any] | None = None,
    epilogue_operands: Sequence[ArrayLike] = (),
) -> Any:
    """Matrix product with the semantics of `jax.numpy.matmul`, on the tensor cores.

    The kernels multiply bf16 by bf16, f16 by f16, and on Hopper operands of float32 as sums of
    bf16 terms (docs/accuracy.md), and accumulate in f32; the result is rounded once. Gradients are
    GEMMs of the same kind and precision. With ``preferred_element_type=float32`` the cotangent is
    float32: where no kernel takes it the backward pass is XLA's, or refused under
    ``implementation="cutlass"``.

    Args:
        a: Array of shape ``(K,)`` or ``(..., M, K)``.
        b: Array of shape ``(K,)`` or ``(..., K, N)``; leading dimensions broadcast with a's.
        precision: As in `jax.numpy.matmul`. With 16-bit operands the kernels satisfy every
            `jax.lax.Precision`, with two f32 operands ``HIGH`` and ``HIGHEST``: docs/accuracy.md.
        preferred_element_type: Type of the result; None means the operands' promoted type.
        out_sharding: As in `jax.numpy.matmul`.
        implementation: ``"cutlass"``, ``"emulator"``, ``"xla"``, a sequence of these tried in
            order, or None: cutlass where device and problem are supported, otherwise xla, with
            the reason logged once (logger ``jax_bwgemm``, INFO).
        config: Constraints on the kernel, or a kernel's name. Not applied to gradients.
        epilogue: An elementwise function ``f(product, *epilogue_operands)`` of the product, which
            it gets as float32: docs/epilogues.md. None: the product as it is.
        epilogue_operands: Arrays that broadcast to the product's shape.

    Returns:
        Array of shape ``(..., M, N)``, without M or N for 1-D operands. With an epilogue what that
        returns, a pytree of arrays of this shape, floating-point ones rounded to the product's
        type.

    Raises:
        TypeError: Not arrays, contracted sizes differ, or epilogue operands that do not fit.
        ValueError: Rank 0, batches that do not broadcast, unknown implementation, or a
            configuration that is impossible or for another kind of problem.
        NotImplementedError: The named implementation cannot run the problem, or no kernel of
            this build satisfies ``config``.
        EpilogueError: A NotImplementedError: the epilogue is not elementwise.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    a, b = as_array("matmul", "a", a), as_array("matmul", "b", b)
    options = make_options(precision, preferred_element_type, out_sharding, implementation, config)
    operands = tuple(as_array("matmul", "epilogue_operands", x) for x in epilogue_operands)
    if epilogue is not None:
        after = Epilogue(epilogue, "matmul")
        return _with_epilogue(a, b, None, operands, options, after)
    if operands:
        raise TypeError(f"matmul: {len(operands)} epilogue_operands and no epilogue")
    return _product(a, b, options)


def _product(a: jax.Array, b: jax.Array, options: Options) -> jax.Array:
    if _symbolic("matmul", a, b, options):
        return _xla_matmul(a, b, options)
    check_matmul(a.shape, b.shape)
    if options.implementations == ("xla",):
        return _xla_matmul(a, b, options)
    return _matmul(a, b, options)


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
) -> jax.Array:
    """General dot product with the semantics of `jax.lax.dot_general`, on the tensor cores.

    Drops into ``flax.linen.Dense(dot_general=...)`` and ``flax.nnx.Linear(dot_general=...)``.
    Dimensions that already lie as batch, row, column and contracted groups become flags of the
    kernel; others are transposed first, moving as few elements as possible. About types and
    gradients see `matmul`.

    Args:
        lhs: Array.
        rhs: Array.
        dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``, each an
            int or a sequence of ints; or None: the last dimension of lhs with the first of rhs.
        precision: As in `jax.lax.dot_general`; what kernels satisfy: see `matmul`.
        preferred_element_type: Type of the result; None means the operands' promoted type.
        out_sharding: As in `jax.lax.dot_general`.
        implementation: As in `matmul`.
        config: As in `matmul`.

    Returns:
        Array with the batch dimensions, then lhs's free ones, then rhs's.

    Raises:
        TypeError: Not arrays, or dimension numbers that are malformed or do not fit the shapes.
        ValueError: Unknown implementation, or a configuration that is impossible or for another
            kind of problem.
        NotImplementedError: The named implementation cannot run the problem, or no kernel of
            this build satisfies ``config``.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    lhs, rhs = as_array("dot_general", "lhs", lhs), as_array("dot_general", "rhs", rhs)
    numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
    options = make_options(precision, preferred_element_type, out_sharding, implementation, config)
    return _dot_product(lhs, rhs, numbers, options)


def _dot_product(lhs: jax.Array, rhs: jax.Array, numbers: Any, options: Options) -> jax.Array:
    if _symbolic("dot_general", lhs, rhs, options):
        return _xla_dot_general(lhs, rhs, numbers, options)
    check_dot_general(lhs.shape, rhs.shape, numbers)
    if options.implementations == ("xla",):
        return _xla_dot_general(lhs, rhs, numbers, options)
    return _dot_general(lhs, rhs, numbers, options)


def dot_general_with_epilogue(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: Any,
    epilogue: Epilogue,
    operands: Sequence[jax.Array] = (),
    **arguments: Any,
) -> Any:
    """`dot_general` with an epilogue as `matmul` takes one.

    Args:
        lhs: As in `dot_general`.
        rhs: As in `dot_general`.
        dimension_numbers: As in `dot_general`.
        epilogue: The function of the product and of ``operands``.
        operands: Arrays that broadcast to the product's shape.
        **arguments: The other arguments of `dot_general`.

    Returns:
        What the function returns, floating-point arrays rounded to the product's type.
    """
    numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
    defaults = dict.fromkeys(
        ("precision", "preferred_element_type", "out_sharding", "implementation", "config")
    )
    options = make_options(**(defaults | arguments))
    return _with_epilogue(lhs, rhs, numbers, tuple(operands), options, epilogue)


def rounded_dot_general(
    lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, rounded_to: str, **arguments: Any
) -> jax.Array:
    """`dot_general` whose result is rounded once, to a type that may be narrower than an operand's.

    ``dot_general(...).astype(rounded_to)`` has the same values. Devices exchange parts of a sharded
    sum in the type that they have there.

    Args:
        lhs: As in `dot_general`.
        rhs: As in `dot_general`.
        dimension_numbers: As in `dot_general`.
        rounded_to: Name of the result's type.
        **arguments: The other arguments of `dot_general`, ``preferred_element_type`` among them.
    """
    numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
    arguments = {"precision": None, "out_sharding": None, "config": None, **arguments}
    options = make_options(**arguments)
    sums = options.partial_sums or str(options.preferred_element_type)
    options = dataclasses.replace(options, rounded_to=rounded_to, partial_sums=sums)
    return _dot_general(lhs, rhs, numbers, options)


def _symbolic(function: str, lhs: jax.Array, rhs: jax.Array, options: Options) -> bool:
    """Whether a size is symbolic (jax.export), which leaves nothing to select a kernel by.

    Raises:
        NotImplementedError: It is, and only kernels were allowed (several: an ExceptionGroup).
    """
    if all(isinstance(size, int) for size in (*lhs.shape, *rhs.shape)):
        return False
    what = f"{function} of symbolic shapes {lhs.shape} and {rhs.shape}"
    if "xla" not in options.implementations:
        reason = "a kernel is selected by sizes"
        raise refusal_error(what, [(name, reason) for name in options.implementations])
    log_once(f"{what}: using xla, because a kernel is selected by sizes")
    return True


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


@functools.partial(jax.jit, static_argnums=(2, 4, 5), inline=compat.INLINE)
def _with_epilogue(
    a: jax.Array,
    b: jax.Array,
    numbers: Any,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
) -> Any:
    """A product, `matmul`'s where there are no dimension numbers, and its epilogue."""
    if links_epilogues():
        fused = _fused(a, b, numbers, operands, options, epilogue)
        if fused is not None:
            return fused
    if numbers is None:
        product = _product(a, b, options)
    else:
        product = _dot_product(a, b, numbers, options)
    return apply_epilogue(epilogue, product, operands)


def _fused(
    a: jax.Array,
    b: jax.Array,
    numbers: Any,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
) -> Any | None:
    """Product and epilogue as one primitive; None where they are two."""
    if options.implementations == ("xla",) or _symbolic(epilogue.caller, a, b, options):
        return None
    if numbers is None:
        check_matmul(a.shape, b.shape)
        labels = matmul_labels(a.shape, b.shape)
    else:
        check_dot_general(a.shape, b.shape, numbers)
        labels = dot_labels(a.ndim, b.ndim, *numbers)
    problem = make_problem(a, b, labels, options, promotes=numbers is None)
    spec, plan, dims = problem.spec, problem.plan, problem.dims
    dtypes = [a.dtype.name, b.dtype.name]
    explicit = (compat.explicit_sharding(jax.typeof(x)) for x in (a, b, *operands))
    # A batch of rows with a shared B is more rows.
    one_matrix = dims.batch == 1 or (dims.rhs_batch == 1 and spec.lhs_major == "k")
    if (
        plan.perm is not None
        or not one_matrix
        or plan.shape[-1:] != (dims.n,)
        or dtypes != [spec.out_dtype] * 2
        or any(sharding is not None for sharding in explicit)
    ):
        return None
    viable = viable_implementations(DENSE, spec, dtypes, dims, veto=problem.veto)
    if viable[0] == "xla":
        return None
    traced = check_epilogue(epilogue, jnp.dtype(spec.out_dtype), plan.shape, operands)
    program = as_matrix(traced.program, plan.shape)
    if isinstance(program, str):
        log_once(f"{spec}: the epilogue is a pass of its own: {program}")
        return None
    types = (program.dtype(x) for x in program.results)
    results = gemm_with_epilogue(
        _arrange(a, plan.lhs.squeezed, plan.lhs.perm, plan.lhs.shape),
        _arrange(b, plan.rhs.squeezed, plan.rhs.perm, plan.rhs.shape),
        operands,
        Fused(
            spec.with_policy(implementations=viable),
            flat_results(epilogue.function),
            program,
            tuple(spec.out_dtype if t in FLOATS else t for t in types),
            plan.shape,
        ),
    )
    return jax.tree.unflatten(traced.tree, results)


@functools.partial(jax.jit, static_argnums=(2, 3), inline=compat.INLINE)
def _dot_general(lhs: jax.Array, rhs: jax.Array, numbers: Any, options: Options) -> jax.Array:
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
    out = gemm(
        _arrange(_unsharded_ones(lhs), plan.lhs.squeezed, plan.lhs.perm, plan.lhs.shape),
        _arrange(_unsharded_ones(rhs), plan.rhs.squeezed, plan.rhs.perm, plan.rhs.shape),
        spec.with_policy(implementations=viable),
    )
    out = _arrange(out, plan.unfolded, plan.perm, plan.shape)
    # Dimensions of size 1 are dropped on the way, and their sharding with them.
    if expected is not None and jax.typeof(out).sharding != expected.sharding:
        out = jax.sharding.reshard(out, expected.sharding)
    return out


def _unsharded_ones(x: jax.Array) -> jax.Array:
    """An operand whose dimensions of size 1, which have no place in the GEMM, are not sharded.

    Under explicit mesh axes they may be, over axes of size 1. Nothing moves.
    """
    sharding = compat.explicit_sharding(jax.typeof(x))
    if sharding is None:
        return x
    entries = tuple(sharding.spec)
    plain = tuple(None if size == 1 else e for e, size in zip(entries, x.shape, strict=True))
    if plain == entries:
        return x
    return jax.sharding.reshard(x, NamedSharding(sharding.mesh, PartitionSpec(*plain)))


def _type_on_mesh(
    lhs: jax.Array, rhs: jax.Array, options: Options, xla: Callable[[], jax.Array]
) -> Any | None:
    """The type that JAX gives the result under explicit mesh axes; None where types have none.

    Raises:
        TypeError, ValueError: What JAX says of operands or an ``out_sharding`` that do not fit.
    """
    explicit = (compat.explicit_sharding(jax.typeof(x)) for x in (lhs, rhs))
    if options.out_sharding is None and all(sharding is None for sharding in explicit):
        return None
    (aval,) = jax.make_jaxpr(xla)().out_avals
    return aval if compat.explicit_sharding(aval) is not None else None


def _arrange(
    x: jax.Array, before: tuple[int, ...], perm: tuple[int, ...] | None, after: tuple[int, ...]
) -> jax.Array:
    """Reshape, transpose, reshape; one reshape when nothing moves, none when nothing changes."""
    if perm is not None:
        x = x.reshape(before).transpose(perm)
    return x if x.shape == after else x.reshape(after)
