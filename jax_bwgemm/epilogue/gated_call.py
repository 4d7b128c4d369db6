"""The call of a kernel of two products and a function of both, or why there is none.

To selection and costs the product is one of twice the columns: a tile has half its columns of
either matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from jax_bwgemm import runtime
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.contraction import DENSE, Dense
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.epilogue.call import emit_linked, refused_arrays
from jax_bwgemm.epilogue.contraction import LINKABLE_DENSE
from jax_bwgemm.epilogue.costs import linked_cycles, pass_cycles
from jax_bwgemm.epilogue.gated_hook import GatedHook
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.linking import first_linked, linked_kernel, only_platform, start_linking
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.lowering import choose


@dataclasses.dataclass(frozen=True)
class GatedProblem:
    """Two products of one lhs and a function of both.

    Attributes:
        spec: Either product.
        program: The function, of rank 2; its first operand is the second product, of the product's
            type.
        result_types: Types of its results.
        stacked: Whether the matrices are one array [K, 2, N], else two of [1, K, N].
    """

    spec: GemmSpec
    program: Program
    result_types: tuple[str, ...]
    stacked: bool

    @property
    def of_sums(self) -> Program:
        """The function of both sums, which are float32."""
        up, *rest = self.program.operands
        return dataclasses.replace(
            self.program, operands=(dataclasses.replace(up, dtype="float32"), *rest)
        )

    @property
    def hook(self) -> GatedHook:
        """The function to link into a kernel."""
        return GatedHook(self.of_sums, self.result_types)

    @property
    def matrices(self) -> int:
        """How many arrays the matrices are."""
        return 1 if self.stacked else 2


@dataclasses.dataclass(frozen=True)
class _Both(Dense):
    """The dense product of both matrices' columns by the kernels of two.

    Attributes:
        only: The only kernel; None: all.
    """

    only: str | None = None

    def kernels(self, implementation: str) -> tuple[Kernel, ...]:
        found = linkable_kernels()
        return tuple(
            kernel
            for kernel in runtime.gated_kernels(implementation)
            if kernel.name in found and self.only in (None, kernel.name)
        )


def run_gated(
    operands: Sequence[jax.Array], problem: GatedProblem, shape: tuple[int, ...], platform: str
) -> list[jax.Array] | str:
    """Emits one device's products with the function, or says why no kernel computes both.

    Args:
        operands: A, the matrices and the function's other operands.
        problem: What is computed.
        shape: Shape of the results.
        platform: JAX platform being lowered for.
    """
    factors, rest = operands[: 1 + problem.matrices], operands[1 + problem.matrices :]

    def attempt(name: str) -> list[jax.Array] | str:
        call = choose_gated(name, platform, problem, factors)
        if isinstance(call, str):
            return call
        code = linked_kernel(call.selection.kernel.name, problem.hook, ptx=name == "emulator")
        a, *weights = factors
        roles = {"a": a.reshape(call.folded.shapes[0])}
        roles |= dict(zip(("b", "b_up"), weights, strict=False))
        dims = dataclasses.replace(call.dims, n=call.dims.n // 2)
        results = emit_linked(call, problem.hook, code, roles, rest, dims)
        return [x.reshape(shape) for x in results]

    return first_linked(problem.spec.policy.implementations, platform, attempt)


def prepare_gated(factors: Sequence[Any], problem: GatedProblem) -> bool:
    """Begins to link what `run_gated` will need if the program runs on this process's only device.

    Returns whether it will need something.

    Args:
        factors: A and the matrices, or their types.
        problem: What is computed.
    """
    platform = only_platform()
    for name in problem.spec.policy.implementations:
        if platform is not None and PLATFORMS.get(name) == platform:
            call = choose_gated(name, platform, problem, factors)
            if not isinstance(call, str):
                start_linking(call.selection.kernel.name, problem.hook, ptx=name == "emulator")
                return True
    return False


def choose_gated(
    name: str, platform: str, problem: GatedProblem, factors: Sequence[Any]
) -> KernelCall | str:
    """The kernel, or why none computes both products.

    Args:
        name: ``"cutlass"`` or ``"emulator"``.
        platform: JAX platform being lowered for.
        problem: What is computed.
        factors: A and the matrices, or their types.
    """
    spec = problem.spec
    if reason := refused_arrays(problem.program.operands[1:], problem.result_types, factors):
        return reason
    for dtype in problem.result_types:
        if dtype != spec.out_dtype:
            return f"a result is of type {dtype}; kernels of two products write {spec.out_dtype}"
    if not _Both().kernels(name):
        return "this installation has no kernels of two products"
    k, n = factors[1].shape[0 if problem.stacked else 1], factors[1].shape[-1]
    dtype = factors[0].dtype.name
    if n * factors[0].dtype.itemsize % 16 != 0:
        return "row pitches are not multiples of 16 bytes"

    def chosen(contraction: Dense) -> KernelCall | str:
        shapes = (factors[0].shape, (1, k, 2 * n))
        try:
            return choose(contraction, name, platform, spec, (dtype, dtype), shapes)
        except NotImplementedError as error:
            return str(error)

    call = chosen(_Both())
    if isinstance(call, str):
        return call
    if call.padded != call.dims or call.dims.batch != 1 or any(call.folded.perms):
        return "row pitches are not multiples of 16 bytes, or the product is a batch"
    if spec.policy.config is not None:
        return call
    usable, _ = heuristics.rank(
        _Both().kernels(name), call.folded.spec, dtype, call.dims, call.target
    )
    types, dims, target = problem.result_types, call.dims, call.target
    cycles = {
        c.kernel.name: linked_cycles(c, problem.of_sums, types, dims, target, products=2)
        for c in usable
    }
    best = min(cycles, key=cycles.__getitem__)
    apart = _apart(name, problem, call, dtype)
    if apart < cycles[best]:
        return (
            f"products of their own and a pass over both are predicted to take {apart:.0f} "
            f"cycles, {best} {cycles[best]:.0f}"
        )
    return call if best == call.selection.kernel.name else chosen(_Both(best))


def _apart(name: str, problem: GatedProblem, call: KernelCall, dtype: str) -> float:
    """Predicted cycles without a kernel of two products: see `gated.separate`."""
    spec, target, both = call.folded.spec, call.target, call.dims
    one = dataclasses.replace(both, n=both.n // 2)
    # What is a product itself is there already.
    results = [(x, t) for x, t in zip(problem.program.results, problem.result_types, strict=True)]
    computed = [(x, t) for x, t in results if x not in (0, 1)]
    program = dataclasses.replace(problem.program, results=tuple(x for x, _ in computed))
    types = tuple(t for _, t in computed)
    after = pass_cycles(program, types, spec.out_dtype, 0, one, target)

    def plain(dims: GemmDims) -> float:
        usable, _ = heuristics.rank(DENSE.kernels(name), spec, dtype, dims, target)
        return usable[0].cycles if usable else float("inf")

    if problem.stacked:
        return plain(both) + after
    usable, _ = heuristics.rank(LINKABLE_DENSE.kernels(name), spec, dtype, one, target)
    linked = [linked_cycles(c, program, types, one, target) for c in usable]
    return plain(one) + min([plain(one) + after, *linked])
