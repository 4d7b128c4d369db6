"""The call of a kernel with an epilogue in it, or why there is none."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.cluster_k import parts_apart
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.costs import TYPICAL_GAIN, Candidate
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.epilogue.contraction import (
    LINKABLE_DENSE,
    SPLIT_DENSE,
    LinkableDense,
    SplitDense,
)
from jax_bwgemm.epilogue.costs import (
    ALONE,
    UNHIDDEN,
    Surroundings,
    linked_cycles,
    pass_cycles,
    split_k_cycles,
)
from jax_bwgemm.epilogue.grouped_hook import GatedGroupedHook, GroupedRowHook, grouped_hook
from jax_bwgemm.epilogue.hook import (
    MAX_OPERANDS,
    MAX_RESULTS,
    MAX_SUMS,
    OPERAND_TYPES,
    VERSION,
    Hook,
    pairs_along_m,
    staging_of,
)
from jax_bwgemm.epilogue.linking import (
    LinkedKernel,
    first_linked,
    linked_kernel,
    only_platform,
    start_linking,
)
from jax_bwgemm.epilogue.program import Operand, Program
from jax_bwgemm.epilogue.split_k_hook import SplitKHook
from jax_bwgemm.grouped.spec import GroupedDims
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.product.ffi import in_place
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.lowering import choose
from jax_bwgemm.product.targets import settled
from jax_bwgemm.product.windows import NONE, Windows

# (implementation, platform, operands) -> the kernel of the product, or why there is none.
Choose = Callable[[str, str, Sequence[Any]], KernelCall | str]
# (operands, kernel) -> what the kernel reads, by roles.
Arrange = Callable[[Sequence[jax.Array], Kernel], dict[str, jax.Array]]
_NO_SUMS = "kernels with swapped operands or of parts of K sum no rows"


def run_linked(
    choose_for: Choose,
    roles: Sequence[str],
    operands: Sequence[jax.Array],
    implementations: Sequence[str],
    program: Program,
    result_types: Sequence[str],
    shape: tuple[int, ...],
    platform: str,
    form: str = "",
    windows: Windows = NONE,
    batch_dims: int = 0,
    arrange: Arrange | None = None,
) -> list[jax.Array] | str:
    """Emits one device's product with its epilogue, or says why no kernel computes it.

    Args:
        choose_for: Chooses the kernel.
        roles: Of the product's operands.
        operands: These, then the epilogue's operands.
        implementations: Of the product, in order.
        program: The epilogue, of `as_matrix`.
        result_types: Types of its results.
        shape: Their shape; sums have the batch's dimensions of it and the last one.
        platform: JAX platform being lowered for.
        form: ``epilogue_form`` of the call: with "halves" the first two results are one.
        windows: Larger arrays that the product's operands are copies of, and what it follows.
        batch_dims: How many dimensions of the shape are the batch.
        arrange: Gives the product's operands as a kernel reads them, but for their shapes, by their
            roles. None: as they are.
    """
    factors, rest = operands[: len(roles)], operands[len(roles) :]

    def attempt(name: str) -> list[jax.Array] | str:
        call = choose_for(name, platform, factors)
        if isinstance(call, str):
            return call
        hook, order = hook_of(call, program, result_types, form)
        symbol = hook.symbol(call.selection.kernel.name)
        code = linked_kernel(symbol, hook, ptx=name == "emulator")
        shapes = call.folded.shapes
        given = dict(zip(roles, factors, strict=True))
        given = given if arrange is None else arrange(factors, call.selection.kernel)
        folded = [x.reshape(s) for x, s in zip(given.values(), shapes, strict=True)]
        named, words = in_place(call, tuple(given), folded, windows)
        results = emit_linked(call, hook, code, named, rest, call.dims, words)
        there = [i for i in order if form != "halves" or i != 1]
        arranged = dict(zip(there, results, strict=True))
        return [
            jnp.sum(arranged[i], -2).reshape(*shape[:batch_dims], -1).astype(result_types[i])
            if i in program.summed
            else arranged[i].reshape(*shape[:-1], arranged[i].shape[-1])
            for i in range(len(order))
            if i in arranged
        ]

    return first_linked(implementations, platform, attempt)


def hook_of(
    call: KernelCall, program: Program, result_types: Sequence[str], form: str = ""
) -> tuple[Hook, list[int]]:
    """The function to link into a kernel, and which result each of its results is."""
    # D is the first result of the product's type, which the kernel rounds. Sums come last.
    whole = [i for i in range(len(result_types)) if i not in program.summed]
    first = next(i for i in whole if result_types[i] == call.folded.spec.out_dtype)
    order = [first, *(i for i in whole if i != first), *program.summed]
    types = tuple("float32" if i in program.summed else result_types[i] for i in order)
    program = dataclasses.replace(
        program,
        results=tuple(program.results[i] for i in order),
        summed=tuple(range(len(whole), len(order))),
    )
    kernel = call.selection.kernel
    if kernel.contraction == "dense" and parts_apart(kernel, call.selection.splits) > 1:
        return SplitKHook(program, types, kernel.arch), order
    if kernel.contraction == "m_grouped":
        if form == "gated":
            return GatedGroupedHook(program, types), order
        if not kernel.swap_ab:
            return GroupedRowHook(program, types, kernel.arch), order
        return grouped_hook(program, types, kernel.arch, halves=form == "halves"), order
    staging = staging_of(kernel, call.dims.n)
    return Hook(program, types, kernel.arch, pairs_along_m(kernel), staging), order


def prepare_linked(
    choose_for: Choose,
    factors: Sequence[Any],
    implementations: Sequence[str],
    program: Program,
    result_types: Sequence[str],
    form: str = "",
) -> bool:
    """Begins to link what `run_linked` will need if the program runs on this process's only device.

    Returns whether there is a kernel to link into.

    Args:
        choose_for: As in `run_linked`.
        factors: The product's operands, or their types.
        implementations: As in `run_linked`.
        program: The epilogue, of `as_matrix`.
        result_types: Types of its results.
        form: As in `run_linked`.
    """
    platform = only_platform()
    for name in implementations:
        if platform is not None and PLATFORMS.get(name) == platform:
            call = choose_for(name, platform, factors)
            if not isinstance(call, str):
                hook, _ = hook_of(call, program, result_types, form)
                symbol = hook.symbol(call.selection.kernel.name)
                start_linking(symbol, hook, ptx=name == "emulator")
                return True
    return False


def choose_linked(
    name: str,
    platform: str,
    spec: GemmSpec,
    program: Program,
    result_types: Sequence[str],
    operands: Sequence[Any],
    surroundings: Surroundings = ALONE,
) -> KernelCall | str:
    """The kernel, or why none computes the epilogue.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        spec: The product.
        program: The epilogue, of `as_matrix`.
        result_types: Types of its results.
        operands: A and B, or their types.
        surroundings: What the epilogue would cost outside the kernel.
    """
    if reason := refused_arrays(program.operands, result_types, operands):
        return reason
    if len(program.summed) > MAX_SUMS:
        return f"more than {MAX_SUMS} sums over rows"
    types = [t for i, t in enumerate(result_types) if i not in program.summed]
    if spec.out_dtype not in types:
        return f"no result is of the kernels' type {spec.out_dtype}"
    if not LINKABLE_DENSE.kernels(name) and not SPLIT_DENSE.kernels(name):
        return "this installation has no kernels that epilogues are linked into"
    dtype = operands[0].dtype.name

    def chosen(contraction: LinkableDense | SplitDense) -> KernelCall | str:
        try:
            shapes = [x.shape for x in operands]
            return choose(contraction, name, platform, spec, (dtype, dtype), shapes)
        except NotImplementedError as error:
            return str(error)

    whole = chosen(LINKABLE_DENSE)
    call = whole if not isinstance(whole, str) else chosen(SPLIT_DENSE)
    if isinstance(call, str):
        return whole
    if call.padded != call.dims or any(call.folded.perms):
        return "row pitches are not multiples of 16 bytes"
    assert (call.dims.batch == 1) == (program.rank == 2), (
        "the program is that of the folded product"
    )
    if spec.policy.config is not None:
        if isinstance(whole, str) and not _leaves_parts(call):
            return whole
        if program.summed and (call.selection.kernel.swap_ab or _leaves_parts(call)):
            return _NO_SUMS
        return call
    plain, _ = heuristics.rank(DENSE.kernels(name), call.folded.spec, dtype, call.dims, call.target)
    best = _best(name, call, program, result_types, dtype, plain)
    if best is None:
        return _NO_SUMS
    call = chosen(best)
    if isinstance(call, str):
        return call
    return _slower(call, program, result_types, dtype, surroundings, plain[0]) or call


def refused_arrays(
    read: Sequence[Operand], result_types: Sequence[str], factors: Sequence[Any]
) -> str | None:
    """Why no kernel has an epilogue of these arrays; None when one may.

    Args:
        read: The epilogue's operands.
        result_types: Types of its results.
        factors: The product's operands, or their types.
    """
    if len(read) > MAX_OPERANDS or len(result_types) > MAX_RESULTS:
        return f"more than {MAX_OPERANDS} operands or {MAX_RESULTS} results"
    for operand in read:
        if operand.dtype not in OPERAND_TYPES:
            return f"an operand is of type {operand.dtype}; kernels read {', '.join(OPERAND_TYPES)}"
    for dtype in result_types:
        if dtype not in OPERAND_TYPES:
            return f"a result is of type {dtype}; kernels write {', '.join(OPERAND_TYPES)}"
    if math.prod(x.size for x in factors) == 0:
        return "an empty problem runs no kernel"
    types = [x.dtype.name for x in factors]
    for dtype in types[1:]:
        if dtype != types[0]:
            return f"operands are of {types[0]} and {dtype}; epilogues need them of one type"
    return None


def _leaves_parts(call: KernelCall) -> bool:
    """Whether the kernel leaves parts of K, whose sum the epilogue follows."""
    return parts_apart(call.selection.kernel, call.selection.splits) > 1


def _best(
    name: str,
    call: KernelCall,
    program: Program,
    result_types: Sequence[str],
    dtype: str,
    plain: Sequence[Candidate],
) -> LinkableDense | SplitDense | None:
    """The kernel that takes least time with its epilogue; None if none sums over rows.

    plain: All kernels without it, the best first.
    """
    spec, dims, target = call.folded.spec, call.dims, call.target
    more = program, result_types, dims, target
    found: dict[LinkableDense | SplitDense, float] = {}
    for c in heuristics.rank(LINKABLE_DENSE.kernels(name), spec, dtype, dims, target)[0]:
        if not (program.summed and c.kernel.swap_ab):
            found[LinkableDense(c.kernel.name)] = linked_cycles(c, *more) + UNHIDDEN * c.cycles
    after_parts = set() if program.summed else {k.name for k in SPLIT_DENSE.kernels(name)}
    for c in plain:
        if c.kernel.name in after_parts and parts_apart(c.kernel, c.splits) > 1:
            found[SplitDense(c.kernel.name)] = split_k_cycles(c, *more) + UNHIDDEN * c.cycles
    return min(found, key=found.__getitem__, default=None)


def _slower(
    call: KernelCall,
    program: Program,
    result_types: Sequence[str],
    dtype: str,
    surroundings: Surroundings,
    best: Candidate,
) -> str | None:
    """Why the kernel and the epilogue had better be two passes; None when not.

    The best of all kernels may be so much better than those an epilogue can be linked into, or the
    epilogue so long, that reading and writing the result once more costs less.
    """
    spec, dims, target = call.folded.spec, call.dims, call.target
    ours = heuristics.rank([call.selection.kernel], spec, dtype, dims, target)[0]
    if not ours:
        return None
    cost = split_k_cycles if _leaves_parts(call) else linked_cycles
    linked = cost(ours[0], program, result_types, dims, target)
    apart = best.cycles
    if surroundings.taken_by_xla:
        apart *= 1 + TYPICAL_GAIN
    else:
        also_read = surroundings.also_read
        apart += pass_cycles(program, result_types, spec.out_dtype, also_read, dims, target)
    if linked <= apart:
        return None
    without = (
        "XLA's product, which takes it along, is"
        if surroundings.taken_by_xla
        else f"{best.kernel.name} without it and a pass over the result are"
    )
    return (
        f"{without} predicted to take {apart:.0f} cycles, {call.selection.kernel.name} with it "
        f"{linked:.0f}"
    )


def emit_linked(
    call: KernelCall,
    hook: Hook,
    code: LinkedKernel,
    factors: Mapping[str, jax.Array],
    rest: Sequence[jax.Array],
    dims: GemmDims | GroupedDims,
    windows: Sequence[str] = (),
) -> list[jax.Array]:
    """The call: all results, in the hook's order.

    Args:
        call: The kernel's.
        hook: The function that is linked into it.
        code: The kernel.
        factors: The product's operands by their roles.
        rest: The epilogue's operands.
        dims: Sizes of the results.
        windows: Those of the operands, as `in_place` says them.
    """
    assert call.ffi is not None
    config = dict(call.ffi.config)
    if windows:
        config["windows"] = " ".join(windows)
    names = [f"x{i}" for i in range(len(rest))]
    # In the form "halves" the second result is half of d's buffer.
    halves = hook.form == "halves"
    places = [i for i in range(len(hook.result_types)) if not halves or i != 1]
    more = [f"y{i}" for i in places[1:]]
    config["operands"] = " ".join([*factors, *names])
    config["results"] = " ".join(["d", "workspace", *more])
    config["epilogue"] = code.code
    config["epilogue_digest"] = code.digest
    config["epilogue_version"] = np.int64(VERSION)
    if rest:
        config["epilogue_operands"] = hook.operand_roles
    if len(hook.result_types) > 1:
        config["epilogue_results"] = hook.result_roles
    if hook.form:
        config["epilogue_form"] = hook.form
    n = dims.n // hook.products
    whole = dims.batch, dims.m, n
    sums = hook.sums_shape(call.selection.kernel, dims.m, n)
    shapes: dict[int, tuple[int, ...]] = dict.fromkeys(hook.program.summed, (dims.batch, *sums))
    if halves:
        shapes[0] = (1, dims.m, 2 * n)
    results = [
        jax.ShapeDtypeStruct(shapes.get(i, whole), jnp.dtype(hook.result_types[i])) for i in places
    ]
    results.insert(1, jax.ShapeDtypeStruct((call.ffi.scratch,), jnp.uint8))
    call_ffi = jax.ffi.ffi_call(call.ffi.target, results)
    d, _, *others = call_ffi(*factors.values(), *rest, config=config)
    return [settled(call.implementation, d), *others]
