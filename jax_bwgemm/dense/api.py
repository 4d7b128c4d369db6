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
from jax_bwgemm.config import Target, current_partial_sums, explicit_target, links_epilogues
from jax_bwgemm.dense.canonical import CanonicalPlan, canonicalize, dot_labels, matmul_labels
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
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
    rounded_results,
)
from jax_bwgemm.epilogue.primitive import Fused, gemm_with_epilogue
from jax_bwgemm.epilogue.program import FLOATS, as_matrix
from jax_bwgemm.product.dtypes import dot_dtype
from jax_bwgemm.product.implementations import as_implementations, log_once, refusal_error
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.product.support import viable_implementations
from jax_bwgemm.tuning import context as tuning_context


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments shared by the public functions, normalised and hashable.

    ``rounded_to``: see `rounded_dot_general`.
    """

    precision: Any
    preferred_element_type: Any
    out_sharding: Any
    implementations: tuple[str, ...]
    config: TuningConfig | None
    target: Target | None
    tuning: tuning_context.Tuning | None
    partial_sums: str | None
    rounded_to: str | None = None


def make_options(
    precision: Any,
    preferred_element_type: DTypeLike | None,
    out_sharding: Any,
    implementation: str | Sequence[str] | None,
    config: TuningConfig | str | None,
) -> Options:
    """Normalises the shared arguments.

    Raises:
        TypeError: An argument of the wrong type.
        ValueError: An unknown implementation or precision, or a configuration for ``"xla"``.
    """
    implementations = as_implementations(implementation)
    config = TuningConfig.of(config)
    if config is not None and implementations == ("xla",):
        raise ValueError(f"{config} is for the kernels; implementation='xla' has none")
    if preferred_element_type is not None:
        preferred_element_type = jax.dtypes.canonicalize_dtype(preferred_element_type)
    return Options(
        compat.canonical_precision(precision),
        preferred_element_type,
        out_sharding,
        implementations,
        config,
        explicit_target(),
        tuning_context.current(),
        current_partial_sums(),
    )


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

    The kernels multiply bf16 by bf16 or f16 by f16 exactly and accumulate in f32; the result is
    rounded once. Gradients are GEMMs of the same kind. With ``preferred_element_type=float32`` the
    cotangent is f32, which no kernel multiplies with 16-bit operands: that backward pass is XLA's
    (or refused, under ``implementation="cutlass"``). Leave it None to keep gradients on the
    kernels.

    Args:
        a: Array of shape ``(K,)`` or ``(..., M, K)``.
        b: Array of shape ``(K,)`` or ``(..., K, N)``; leading dimensions broadcast with a's.
        precision: As in `jax.numpy.matmul`. The kernels satisfy every `jax.lax.Precision`.
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
        return _with_epilogue(a, b, operands, options, after)
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
        precision: As in `jax.lax.dot_general`. The kernels satisfy every `jax.lax.Precision`.
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
    if _symbolic("dot_general", lhs, rhs, options):
        return _xla_dot_general(lhs, rhs, numbers, options)
    check_dot_general(lhs.shape, rhs.shape, numbers)
    if options.implementations == ("xla",):
        return _xla_dot_general(lhs, rhs, numbers, options)
    return _dot_general(lhs, rhs, numbers, options)


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


@functools.partial(jax.jit, static_argnums=(3, 4), inline=compat.INLINE)
def _with_epilogue(
    a: jax.Array,
    b: jax.Array,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
) -> Any:
    fused = _fused(a, b, operands, options, epilogue) if links_epilogues() else None
    return apply_epilogue(epilogue, _product(a, b, options), operands) if fused is None else fused


def _fused(
    a: jax.Array,
    b: jax.Array,
    operands: tuple[jax.Array, ...],
    options: Options,
    epilogue: Epilogue,
) -> Any | None:
    """Product and epilogue as one primitive; None where they are two."""
    if options.implementations == ("xla",) or _symbolic("matmul", a, b, options):
        return None
    check_matmul(a.shape, b.shape)
    labels = matmul_labels(a.shape, b.shape)
    problem = make_problem(a, b, labels, options, promotes=True)
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
            _flat(epilogue.function),
            program,
            tuple(spec.out_dtype if t in FLOATS else t for t in types),
            plan.shape,
        ),
    )
    return jax.tree.unflatten(traced.tree, results)


@functools.lru_cache(maxsize=256)
def _flat(function: Callable[..., Any]) -> Callable[..., list[jax.Array]]:
    """An epilogue's rounded results as a list; the same function for the same one."""

    def flat(product: jax.Array, *operands: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(rounded_results(function, product, *operands))

    return flat


@functools.partial(jax.jit, static_argnums=(2, 3), inline=compat.INLINE)
def _dot_general(lhs: jax.Array, rhs: jax.Array, numbers: Any, options: Options) -> jax.Array:
    labels = dot_labels(lhs.ndim, rhs.ndim, *numbers)
    xla = functools.partial(_xla_dot_general, lhs, rhs, numbers, options)
    return _run(lhs, rhs, labels, options, xla, promotes=False)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A call as one canonical GEMM.

    Attributes:
        plan: How operands and result are reshaped (and, if need be, transposed).
        spec: The GEMM.
        dims: Its sizes.
        veto: Why no kernel may run the call as a whole, for reasons the GEMM does not show.
    """

    plan: CanonicalPlan
    spec: GemmSpec
    dims: GemmDims
    veto: str | None


def make_problem(lhs: Any, rhs: Any, labels: Any, options: Options, *, promotes: bool) -> Problem:
    """Canonicalises a call.

    Args:
        lhs: Left operand: an array or `jax.ShapeDtypeStruct`.
        rhs: Right operand, likewise.
        labels: A label for each dimension of lhs, rhs and result.
        options: The other arguments.
        promotes: Whether the result's type is by default that of jax.numpy's type promotion, not
            lax's.

    Raises:
        TypeError: Types that JAX does not multiply, or not under the dtype promotion in force.
    """
    sizes = {**dict(zip(labels[0], lhs.shape, strict=True))}
    sizes.update(zip(labels[1], rhs.shape, strict=True))
    plan = canonicalize(*labels, tuple(sorted(sizes.items())))
    preferred = options.preferred_element_type
    if promotes and preferred is None:
        preferred = jnp.result_type(lhs, rhs)
    spec = GemmSpec(
        lhs_major=plan.lhs.major,
        rhs_major=plan.rhs.major,
        out_dtype=options.rounded_to
        or dot_dtype(lhs.dtype, rhs.dtype, preferred, options.precision).name,
        policy=Policy(
            implementations=options.implementations,
            config=options.config,
            precision=options.precision,
            target=options.target,
            tuning=options.tuning,
            partial_sums=options.partial_sums,
        ),
    )
    lhs_batch, m, k = plan.lhs.shape if plan.lhs.major == "k" else _swap(plan.lhs.shape)
    rhs_batch, _, n = plan.rhs.shape if plan.rhs.major == "n" else _swap(plan.rhs.shape)
    batch = rhs_batch if lhs_batch == 1 else lhs_batch
    veto = _sharding_veto(lhs, rhs, plan, options.out_sharding)
    if veto is None and options.out_sharding is not None:
        spec = dataclasses.replace(spec, out_sharding=_rank3(options.out_sharding, plan))
    if getattr(lhs, "weak_type", False) and getattr(rhs, "weak_type", False):
        veto = "both operands are weakly typed"
    return Problem(plan, spec, GemmDims(m, n, k, batch, lhs_batch, rhs_batch), veto)


def _sharding_veto(lhs: Any, rhs: Any, plan: CanonicalPlan, out_sharding: Any) -> str | None:
    """Why sharding in types (explicit mesh axes) leaves a call to XLA; None when it does not.

    Merging dimensions is free in memory but not in sharding types: only the outermost of merged
    dimensions could be sharded, and whether it may be depends on the JAX version.
    """
    if isinstance(out_sharding, NamedSharding | PartitionSpec):
        spec = getattr(out_sharding, "spec", out_sharding)
        if spec.unreduced or spec.reduced:
            return f"the sums that out_sharding={out_sharding} leaves open are XLA's"
    for name, operand, operand_plan in (("lhs", lhs, plan.lhs), ("rhs", rhs, plan.rhs)):
        if isinstance(operand, jax.ShapeDtypeStruct):
            continue
        sharding = compat.explicit_sharding(jax.typeof(operand))
        if sharding is None:
            continue
        if sharding.spec.unreduced or sharding.spec.reduced:
            return f"{name} is sharded as {sharding.spec}, with sums over mesh axes"
        if operand_plan.merges and any(axis is not None for axis in tuple(sharding.spec)):
            return f"dimensions of {name}, explicitly sharded as {sharding.spec}, would be merged"
    if out_sharding is not None and (plan.perm is not None or plan.splits):
        return f"dimensions of a result with out_sharding={out_sharding} would be merged"
    return None


def _rank3(out_sharding: Any, plan: CanonicalPlan) -> NamedSharding:
    """The sharding of [b, m, n] from that of the result, whose dimensions are not merged."""
    if isinstance(out_sharding, PartitionSpec):
        mesh, spec = jax.sharding.get_abstract_mesh(), out_sharding
    else:
        mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec
    entries = [*spec, *[None] * (len(plan.shape) - len(spec))]
    large = iter(e for e, size in zip(entries, plan.shape, strict=True) if size != 1)
    return NamedSharding(mesh, PartitionSpec(*(next(large) if g else None for g in plan.groups)))


def _swap(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return shape[0], shape[2], shape[1]


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
