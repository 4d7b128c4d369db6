"""Finds the GEMMs that kernels would run in a traced, lowered or compiled program."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.dense import tuned
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import bw_gemm_local_p, bw_gemm_p
from jax_bwgemm.dense.spec import GemmSpec, gemm_dims
from jax_bwgemm.product import lowering
from jax_bwgemm.product.jaxprs import equations, is_jaxpr
from jax_bwgemm.runtime import KernelInfo
from jax_bwgemm.tuning.keys import DenseKey


@dataclasses.dataclass(frozen=True)
class Problems:
    """The GEMMs of a program.

    Attributes:
        counts: How often each tunable problem occurs, in order of appearance. A loop's body
            counts as often as the loop runs, where that is known.
        skipped: (problem, reason) of GEMMs that are not tuned.
    """

    counts: Mapping[DenseKey, int]
    skipped: tuple[tuple[str, str], ...]


def find(program: Any, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problems:
    """The GEMMs of a program.

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
    jitted = program if isinstance(program, jax.stages.Wrapped) else jax.jit(program)
    if any(_device_count(leaf) > 1 for leaf in jax.tree.leaves((args, kwargs))):
        return _in_text(jitted.lower(*args, **kwargs).compile().as_text())
    return _in_jaxpr(jitted.trace(*args, **kwargs).jaxpr, target)


def _no_arguments(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args or kwargs:
        raise TypeError(f"autotune: a {type(program).__name__} takes no arguments")


def _device_count(leaf: Any) -> int:
    sharding = getattr(leaf, "sharding", None)
    return len(sharding.device_set) if isinstance(sharding, jax.sharding.Sharding) else 1


def _in_jaxpr(jaxpr: Any, target: Target) -> Problems:
    counts: Counter[DenseKey] = Counter()
    skipped: dict[str, str] = {}
    for eqn, times in equations(jaxpr):
        if eqn.primitive not in (bw_gemm_p, bw_gemm_local_p):
            continue
        lhs, rhs = (x.aval for x in eqn.invars)
        spec: GemmSpec = eqn.params["spec"]
        found = key_of(spec, lhs, rhs, target)
        if isinstance(found, DenseKey):
            counts[found] += times
        else:
            dims = gemm_dims(spec, lhs.shape, rhs.shape)
            skipped[spec.describe([lhs.dtype.name, rhs.dtype.name], dims)] = found
    return Problems(counts, tuple(skipped.items()))


def key_of(spec: GemmSpec, lhs: Any, rhs: Any, target: Target) -> DenseKey | str:
    """The problem as selection will see it, or why there is nothing to tune."""
    if spec.policy.config is not None:
        return f"it has an explicit {spec.policy.config}"
    if "cutlass" not in spec.policy.implementations:
        return f"implementation is {', '.join(spec.policy.implementations)}"
    if gemm_dims(spec, lhs.shape, rhs.shape).empty:
        return "it is empty"
    # Neither tables nor policies of the context may matter for what is to be tuned.
    spec = spec.with_policy(target=target, tuning=None)
    shapes = (lhs.shape, rhs.shape)
    call = lowering.choose(DENSE, "cutlass", "cuda", spec, lhs.dtype.name, shapes)
    if isinstance(call, str):
        return call
    return tuned.key_of(call.folded.spec, lhs.dtype.name, call.padded)


# A custom call of ours in StableHLO: operands, attributes, then operand and result types; and in
# HLO, where the operands' types stand with the layouts that they must have.
_STABLEHLO = re.compile(
    r"custom_call @bwgemm\.gemm\.v1\(.*?kernel = \"(?P<kernel>\w+)\".*?"
    r" : \(tensor<(?P<lhs>[\dx]+)x\w+>, tensor<(?P<rhs>[\dx]+)x\w+>\) ->"
)
_HLO = re.compile(
    r"custom_call_target=\"bwgemm\.gemm\.v1\", "
    r"operand_layout_constraints=\{\w+\[(?P<lhs>[\d,]+)\]\{[^}]*\}, \w+\[(?P<rhs>[\d,]+)\]"
    r".*?kernel = \"(?P<kernel>\w+)\""
)


def _in_text(text: str) -> Problems:
    """The problems of our custom calls in the text of a lowered or compiled program."""
    counts: Counter[DenseKey] = Counter()
    table = {kernel.name: kernel for kernel in runtime.kernels()}
    pattern, separator = (_STABLEHLO, "x") if "stablehlo" in text else (_HLO, ",")
    calls = [line for line in text.splitlines() if "bwgemm.gemm.v1" in line]
    skipped: dict[str, str] = {}
    for line in calls:
        match = pattern.search(line)
        kernel = table.get(match["kernel"]) if match else None
        if match is None or kernel is None:
            skipped[line.strip()[:120]] = "not a call of a kernel of this build"
            continue
        shapes = [tuple(map(int, match[side].split(separator))) for side in ("lhs", "rhs")]
        counts[_kernel_key(kernel, *shapes)] += 1
    return Problems(counts, tuple(skipped.items()))


def _kernel_key(
    kernel: KernelInfo, lhs_shape: tuple[int, ...], rhs_shape: tuple[int, ...]
) -> DenseKey:
    spec = GemmSpec(*kernel.majors, out_dtype=kernel.out_dtype)
    return tuned.key_of(spec, kernel.in_dtype, gemm_dims(spec, lhs_shape, rhs_shape))
