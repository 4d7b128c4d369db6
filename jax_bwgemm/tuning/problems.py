"""Finds the products that kernels would run in a traced, lowered or compiled program."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from jax_bwgemm.config import Target
from jax_bwgemm.dense import tuned as dense_tuned
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.grouped import tuned as grouped_tuned
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.spec import K_GROUPED, GroupedSpec
from jax_bwgemm.product import lowering
from jax_bwgemm.product.contraction import Contraction
from jax_bwgemm.product.dtypes import operand_types
from jax_bwgemm.product.explain import rewritten
from jax_bwgemm.product.implementations import rounded_types
from jax_bwgemm.product.jaxprs import equations, is_jaxpr, jitted
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.primitive import CONTRACTIONS
from jax_bwgemm.product.spec import Policy, ProductSpec
from jax_bwgemm.product.terms import BF16
from jax_bwgemm.scaled import primitive as scaled_primitive
from jax_bwgemm.scaled import ragged_primitive
from jax_bwgemm.scaled import tuned as scaled_tuned
from jax_bwgemm.scaled.family import Family
from jax_bwgemm.tuning.keys import (
    GroupedKey,
    Key,
    ScaledGroupedKey,
    ScaledKey,
    Shares,
    canonical_shares,
)

_FAMILIES: dict[Any, Family] = {
    family.primitive: family for family in (scaled_primitive.DENSE, ragged_primitive.RAGGED)
}
_KEY_OF: dict[Contraction, Callable[[Any, str, Any], Key]] = {
    DENSE: dense_tuned.key_of,
    GROUPED: grouped_tuned.key_of,
}


@dataclasses.dataclass(frozen=True)
class Problems:
    """The products of a program.

    Attributes:
        counts: How often each tunable problem occurs, in order of appearance. A loop's body
            counts as often as the loop runs, where that is known.
        skipped: (problem, reason) of products that are not tuned.
    """

    counts: Mapping[Key, int]
    skipped: tuple[tuple[str, str], ...]


def find(program: Any, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problems:
    """The products of a program.

    Args:
        program: A function, jitted or not, with its arguments, which may be
            `jax.ShapeDtypeStruct`; or a `jax.stages.Traced`, `Lowered` or `Compiled`, or a jaxpr.
            Traced programs are searched with the sizes in them, which within shard_map are one
            device's. Under automatic partitioning only the compiled program knows these: a
            function whose arguments lie on several devices is compiled for that.
        target: The GPU that the problems are to be tuned for.
        args: Arguments of a function.
        kwargs: Keyword arguments of a function.

    Raises:
        TypeError: Not such a program, or arguments for one that takes none.
    """
    if is_jaxpr(program):
        _no_arguments(program, args, kwargs)
        return _in_jaxpr(program, target)
    if isinstance(program, jax.stages.Traced):
        _no_arguments(program, args, kwargs)
        return _in_jaxpr(program.jaxpr, target)
    if isinstance(program, jax.stages.Lowered | jax.stages.Compiled):
        _no_arguments(program, args, kwargs)
        return _in_text(program.as_text())
    if not callable(program):
        raise TypeError(
            "autotune takes a function with its arguments, a jax.stages.Traced, Lowered or "
            f"Compiled, or a jaxpr; got {type(program).__name__}"
        )
    traced = jitted(program).trace(*args, **kwargs)
    if any(_device_count(leaf) > 1 for leaf in jax.tree.leaves((args, kwargs))):
        found = _in_text(traced.lower().compile().as_text())
        return dataclasses.replace(found, counts=_as_expected(found.counts, traced.jaxpr))
    return _in_jaxpr(traced.jaxpr, target)


def _no_arguments(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args or kwargs:
        raise TypeError(f"autotune: a {type(program).__name__} takes no arguments")


def _device_count(leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    return len(sharding.device_set) if isinstance(sharding, jax.sharding.Sharding) else 1


def _in_jaxpr(jaxpr: Any, target: Target) -> Problems:
    counts: Counter[Key] = Counter()
    skipped: dict[str, str] = {}
    for eqn, times in equations(jaxpr):
        contraction, family = CONTRACTIONS.get(eqn.primitive), _FAMILIES.get(eqn.primitive)
        if contraction is None and family is None:
            continue
        avals, spec = [x.aval for x in eqn.invars], eqn.params["spec"]
        if family is not None:
            found = scaled_key_of(family, spec, avals, target)
            what = family.dims_of(avals, spec).describe(spec)
        else:
            found = key_of(contraction, spec, avals, target)
            dims = contraction.dims(spec, *(x.shape for x in avals))
            what = spec.describe([x.dtype.name for x in avals[:2]], dims)
        if isinstance(found, str):
            skipped[what] = found
        else:
            counts[found] += times
    return Problems(counts, tuple(skipped.items()))


def key_of(
    contraction: Contraction, spec: Any, operands: Sequence[Any], target: Target
) -> Key | str:
    """The problem as selection will see it, or why there is nothing to tune.

    Args:
        contraction: The family of products.
        spec: The product.
        operands: Anything with shape and dtype.
        target: The GPU that it is to be tuned for.
    """
    if (refused := _not_ours_to_choose(spec)) is not None:
        return refused
    if contraction.dims(spec, *(x.shape for x in operands)).empty:
        return "it is empty"
    # Neither tables nor policies of the context may matter for what is to be tuned.
    spec = spec.with_policy(target=target, tuning=None)
    spec, operands = rewritten(contraction, spec, operands)
    shapes = [x.shape for x in operands]
    dtypes = rounded_types([x.dtype.name for x in operands[:2]], spec.policy.precision)
    call = lowering.choose(contraction, "cutlass", "cuda", spec, dtypes, shapes)
    if isinstance(call, str):
        return call
    if call.terms is not None:
        dtypes = (BF16, BF16)
    return _KEY_OF[contraction](call.folded.spec, operand_types(*dtypes), call.padded)


def _not_ours_to_choose(spec: ProductSpec) -> str | None:
    """Why the user leaves nothing to choose; None if a kernel is to be chosen."""
    if spec.policy.config is not None:
        return f"it has an explicit {spec.policy.config}"
    if "cutlass" not in spec.policy.implementations:
        return f"implementation is {', '.join(spec.policy.implementations)}"
    return None


def scaled_key_of(family: Family, spec: Any, operands: Sequence[Any], target: Target) -> Key | str:
    """As `key_of`, of a product of scaled operands.

    Args:
        family: The kind of product.
        spec: The product.
        operands: Those of the family's primitive, anything with shape and dtype.
        target: The GPU that it is to be tuned for.
    """
    if (refused := _not_ours_to_choose(spec)) is not None:
        return refused
    spec, dims = spec.with_policy(target=target, tuning=None), family.dims_of(operands, spec)
    refused = family.refusal(family.table_of("cutlass"), spec, dims)
    if refused is not None:
        return refused
    choice = family.choose("cutlass", "cuda", spec, dims, target)
    if isinstance(choice, str):
        return choice
    if family is scaled_primitive.DENSE:
        return scaled_tuned.key_of(spec, dims, target)
    key = scaled_tuned.grouped_key_of(spec, dims, target)
    return "it is a batch of grouped products" if key is None else key


def _as_expected(counts: Mapping[Key, int], jaxpr: Any) -> dict[Key, int]:
    """Problems read in a compiled program, with the group sizes that the traced one expects.

    Partitioning divides everything but the groups: what is expected of as many groups belongs to
    each problem that has them.
    """
    expected: dict[int, set[Shares]] = {}
    for eqn, _ in equations(jaxpr):
        if CONTRACTIONS.get(eqn.primitive) is GROUPED:
            groups = eqn.invars[2].aval.shape[-1]
            shares = canonical_shares(eqn.params["spec"].representative)
            expected.setdefault(groups, set()).add(shares)
    found: dict[Key, int] = {}
    for key, times in counts.items():
        if isinstance(key, GroupedKey):
            for shares in sorted(expected.get(key.groups, {()})):
                found[dataclasses.replace(key, shares=shares)] = times
        else:
            found[key] = times
    return found


# A custom call of ours, of any version of its format; and its operands' types, which in StableHLO
# stand behind the attributes, in HLO with the layouts that they must have.
_CALL = re.compile(r"(?:custom_call @|custom_call_target=\")bwgemm\.(?!\w+\.emulated)[\w.]+")
_KERNEL = re.compile(r"kernel = \"(\w+)\"")
_SCALINGS = re.compile(r"[ab]_scaling = \"(\w+)\"")
_STABLEHLO_OPERANDS = re.compile(r" : \((tensor<[^()]*>)\) ->")
_STABLEHLO_SHAPE = re.compile(r"tensor<((?:\d+x)*)\w+>")
_HLO_OPERANDS = re.compile(r"operand_layout_constraints=\{((?:\w+\[[\d,]*\]\{[^}]*\}(?:, )?)*)\}")
_HLO_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def _in_text(text: str) -> Problems:
    """The problems of our custom calls in the text of a lowered or compiled program.

    Which sizes groups are expected to have is not in there, see `_as_expected`.
    """
    counts: Counter[Key] = Counter()
    skipped: dict[str, str] = {}
    for line in text.splitlines():
        if _CALL.search(line) is None:
            continue
        found = _key_in(line)
        if found is None:
            skipped[line.strip()[:120]] = "not a call of a kernel of this build"
        else:
            counts[found] += 1
    return Problems(counts, tuple(skipped.items()))


def _key_in(line: str) -> Key | None:
    """The problem of a custom call; None if this build cannot have made the call."""
    name, shapes = _KERNEL.search(line), list(_shapes_in(line))
    for contraction in (DENSE, GROUPED):
        kernels = contraction.kernels("cutlass")
        kernel = next((k for k in kernels if name and k.name == name[1]), None)
        if kernel is not None and len(shapes) >= contraction.operands:
            spec = _spec_of(contraction, kernel, line)
            dims = contraction.dims(spec, *shapes[: contraction.operands])
            return _KEY_OF[contraction](spec, kernel.in_dtype, dims)
    for family in _FAMILIES.values():
        kernel = next((k for k in family.table_of("cutlass") if name and k.name == name[1]), None)
        if kernel is not None and len(shapes) >= len(family.roles) - 1:  # alpha may be missing
            return _scaled_key_in(line, kernel, *shapes[:3])
    return None


def _scaled_key_in(
    line: str, kernel: Kernel, a: tuple[int, ...], b: tuple[int, ...], third: tuple[int, ...]
) -> Key | None:
    """The problem of a call with scales, but for those whose operands are packed for the MMA.

    third: Shape of the third operand: group sizes where there are groups.
    """
    scalings = _SCALINGS.findall(line)
    if kernel.scales == "mma" or len(scalings) != 2:
        return None
    accumulation = "fast" if kernel.scales == "sums" else "promoted"
    common = kernel.a_dtype, kernel.b_dtype, *scalings, accumulation, kernel.out_dtype
    batch = max(a[0], b[0])
    if kernel.contraction == "scaled":
        shared = "none" if a[0] == b[0] else "lhs" if a[0] == 1 else "rhs"
        return ScaledKey(*common, a[1], b[1], a[2], batch, shared)
    if batch != 1:
        return None
    if kernel.kind == K_GROUPED:
        experts = _result_shape(line)[1]
        return ScaledGroupedKey(*common, kernel.kind, a[2], b[1], a[1], third[1], experts)
    return ScaledGroupedKey(*common, kernel.kind, a[1], b[2], a[2], third[1], b[1])


def _shapes_in(line: str) -> Iterator[tuple[int, ...]]:
    for operands, shape, separator in (
        (_STABLEHLO_OPERANDS, _STABLEHLO_SHAPE, "x"),
        (_HLO_OPERANDS, _HLO_SHAPE, ","),
    ):
        if match := operands.search(line):
            for sizes in shape.findall(match[1]):
                yield tuple(int(size) for size in sizes.split(separator) if size)


def _spec_of(contraction: Contraction, kernel: Any, line: str) -> Any:
    if contraction is DENSE:
        policy = Policy(precision=dense_tuned.precision_of(kernel))
        return GemmSpec(*kernel.majors, out_dtype=kernel.out_dtype, policy=policy)
    experts = 0
    if kernel.kind == K_GROUPED:  # what no operand shows is the second size of the result
        experts = _result_shape(line)[1]
    return GroupedSpec(
        kind=kernel.kind, b_major=kernel.b_major, out_dtype=kernel.out_dtype, experts=experts
    )


_STABLEHLO_RESULT = re.compile(r"\) -> \(?tensor<((?:\d+x)+)\w+>")
_HLO_RESULT = re.compile(r"= \(?\w+\[([\d,]+)\]")


def _result_shape(line: str) -> tuple[int, ...]:
    """Shape of a custom call's first result."""
    match = _STABLEHLO_RESULT.search(line) or _HLO_RESULT.search(line)
    return tuple(int(size) for size in re.findall(r"\d+", match[1])) if match else ()
