"""Whether an epilogue pays in the kernel: predicted cycles with it, and as a separate pass. Pure.

- Ping-pong: the main loop of the other consumer hides an epilogue of the same length. A longer one
  costs half of the excess, since the two take turns. Its instructions also slow that main loop
  down, and nothing hides the last tile's epilogue.
- Cooperative: nothing hides the epilogue of either consumer.
- SM100: the next tile's main loop hides the epilogue, whose warps it does not need. A longer one
  costs the excess.

Memory is shared with the main loop's loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jax_bwgemm.config import Target
from jax_bwgemm.dense.costs import (
    BYTES_PER_CYCLE,
    MACS_PER_CYCLE,
    Candidate,
    round_up,
)
from jax_bwgemm.dense.spec import GemmDims
from jax_bwgemm.epilogue.algebra import in_few_operations
from jax_bwgemm.epilogue.hook import staging_of
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.grouped import heuristics
from jax_bwgemm.grouped.spec import GroupedDims
from jax_bwgemm.product.kernels import Kernel

# Instructions of an operation, in a kernel with 16-bit results and in XLA's passes, which compute
# in full precision. All others are one.
_IN_KERNEL = {"logistic_of_log2": 4, "tanh": 10, "exp": 3, "exp2": 3, "div": 12, "rsqrt": 8}
_IN_KERNEL |= {"erf": 24, "erfc": 16, "sqrt": 10, "log": 14, "expm1": 16, "log1p": 20}
_IN_PASS = {"logistic": 25, "tanh": 30, "exp": 10, "exp2": 10, "div": 12, "rsqrt": 8}
_IN_PASS |= {"erf": 25, "erfc": 45, "sqrt": 10, "log": 14, "expm1": 16, "log1p": 20}
_FREE = ("literal", "iota", "convert_element_type", "reduce_precision", "copy", "select_n")
_LONG = ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh")
_LONG += ("atanh", "pow", "cbrt", "rem", "nextafter")
_MOST = 50
# Cycles of one warp's instruction while the other consumer's MMAs run, and of 64 results of a
# thread, whatever the function. Fitted to times of an H200, by tile and function. Assumed for
# SM100, whose epilogue has one warp for each scheduler and nothing beside it, and for cluster-K
# kernels, whose CTAs share a tile's elements after the main loop.
INSTRUCTION_CYCLES = {"pingpong": 2.5, "cooperative": 3.5, "clusterk": 3.5, "1sm": 2.0, "2sm": 2.0}
ELEMENT_CYCLES = {"pingpong": 20.0, "cooperative": 20.0, "clusterk": 20.0, "1sm": 8.0, "2sm": 8.0}
# What an instruction costs the main loop beside it.
MAIN_LOOP_CYCLES = 0.3
# Where memory bounds all kernels alike, this share of a kernel's own time tells them apart.
UNHIDDEN = 0.1
# Cycles of a thread for each element of a matrix or a further result that the kernel moves for the
# function, of matrices that the function reads itself, by their types' bytes, and of results that
# it writes itself. With swapped operands the elements of a thread do not lie side by side. Fitted
# to times of an H200 (benchmarks/bench_epilogues.py); assumed for SM100.
MOVED_CYCLES = {"pingpong": 13.0, "cooperative": 13.0, "1sm": 4.0, "2sm": 4.0}
READ_CYCLES = {
    "pingpong": {2: 30.0, 4: 30.0},
    "cooperative": {2: 47.0, 4: 47.0},
    "swapped": {2: 24.0, 4: 45.0},
    "clusterk": {2: 12.0, 4: 20.0},
}
READ_CYCLES |= dict.fromkeys(("1sm", "2sm"), READ_CYCLES["pingpong"])
WRITE_CYCLES = {"swapped": 140.0, "clusterk": 140.0}
WRITE_CYCLES |= dict.fromkeys(("pingpong", "cooperative", "1sm", "2sm"), 40.0)
# The share of the memory bandwidth that these readings and writings of its own reach.
OWN_BANDWIDTH = 0.67
# A pass of XLA's: its least cycles, and the share of the memory bandwidth that it reaches.
LEAST_PASS_CYCLES = 4400
PASS_BANDWIDTH = 0.95
# A sum over rows. In a kernel: instructions for each element, the exchange between lanes included.
# Outside, as a pass of two steps: the least cycles of each (assumed) and the share of the memory
# bandwidth that it reaches.
SUM_INSTRUCTIONS = 2.5
LEAST_SUM_CYCLES = 2000
SUM_BANDWIDTH = 0.65
# Rows that one partial sum of a kernel covers; a step after the kernel adds the partial sums.
_PARTIAL_ROWS = 32
# Instructions of threads that a multiprocessor starts in a cycle.
_THREADS_A_CYCLE = 128


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What an epilogue would cost outside a kernel.

    Attributes:
        also_read: How many of its results other passes of XLA's read, which could be part of the
            epilogue's pass.
        taken_by_xla: Whether XLA fuses it into its own product: a bias, a residual, a ReLU.
    """

    also_read: int = 0
    taken_by_xla: bool = False


ALONE = Surroundings()


def instructions(program: Program, in_kernel: bool) -> int:
    """About how many instructions compute one element."""
    program = in_few_operations(program) if in_kernel else program
    known = _IN_KERNEL if in_kernel else _IN_PASS
    ops = [step.op for step in program.steps if step.op not in _FREE]
    return sum(known.get(op, _MOST if op in _LONG else 1) for op in ops)


def matrix_bytes(
    program: Program, result_types: Sequence[str], dims: GemmDims | GroupedDims, products: int = 1
) -> int:
    """Of the matrices that it reads and of its results: see `linked_cycles`."""
    types = _matrices(program, products)
    types += [t for i, t in enumerate(result_types) if i not in program.summed]
    return _elements(dims, products) * _bytes_of(types)


def _bytes_of(types: Sequence[str]) -> int:
    return sum(np.dtype(t).itemsize for t in types)


def _matrices(program: Program, products: int) -> list[str]:
    """Types of the matrices that it reads."""
    return [x.dtype for x in program.operands[products - 1 :] if x.axes == program.whole]


def _elements(dims: GemmDims | GroupedDims, products: int) -> int:
    """Of one of its results."""
    return dims.batch * dims.m * dims.n // products


def linked_cycles(
    candidate: Candidate,
    program: Program,
    result_types: Sequence[str],
    dims: GemmDims,
    target: Target,
    products: int = 1,
) -> float:
    """Predicted cycles of a kernel with the epilogue linked in.

    Args:
        candidate: The kernel and what it takes alone.
        program: The epilogue.
        result_types: Types of its results, D's among them.
        dims: Sizes.
        target: The GPU.
        products: How many sums each element of a result has: 2 of a gated kernel, whose columns
            are those of both matrices, and whose program's first operand is the second sum.
    """
    kernel = candidate.kernel
    threads = 128 if kernel.schedule in ("pingpong", "1sm") else 256
    if kernel.cluster_k:
        threads = 128 * candidate.splits
    elements = kernel.tile_m * kernel.tile_n / threads / products
    count = instructions(program, in_kernel=True) + SUM_INSTRUCTIONS * len(program.summed)
    own = elements * INSTRUCTION_CYCLES[kernel.schedule] * count  # of this function
    moving, itself = _moves(kernel, program, result_types, dims, products)
    own += elements * moving
    epilogue = elements * ELEMENT_CYCLES[kernel.schedule] + own
    if kernel.arch == "sm100":
        more = candidate.waves * max(0.0, epilogue - _main_cycles(candidate, dims)) + own
    elif kernel.schedule == "pingpong":
        longer = max(0.0, (epilogue - _main_cycles(candidate, dims)) / 2)
        more = candidate.waves * (longer + elements * MAIN_LOOP_CYCLES * count) + own
    else:
        more = candidate.waves * own
    bandwidth = BYTES_PER_CYCLE[target.arch]
    more += _elements(dims, products) * itself / (OWN_BANDWIDTH * bandwidth)
    operands = 2 * dims.k * (dims.a_batch * dims.m + dims.b_batch * dims.n)
    memory = operands + matrix_bytes(program, result_types, dims, products)
    partial = 8 * dims.batch * dims.m * dims.n / _PARTIAL_ROWS / bandwidth
    after = len(program.summed) * (LEAST_SUM_CYCLES + partial)
    return max(candidate.cycles + more, memory / bandwidth + own) + after


def _moves(
    kernel: Kernel, program: Program, result_types: Sequence[str], dims: GemmDims, products: int
) -> tuple[float, int]:
    """Of the matrices and further results: cycles of a thread, and bytes that the function moves.

    Both for one element. What a kernel moves is what `Hook.staged_operands` and `staged_results`
    are; a gated one moves all results.
    """
    read = _matrices(program, products)
    written = [t for i, t in enumerate(result_types) if i not in program.summed]
    if kernel.out_dtype in written:
        written.remove(kernel.out_dtype)  # D
    staging = staging_of(kernel, dims.n)
    moved = 0
    for types, most in ((read, staging.matrices), (written, 1)) if staging else ():
        for _ in range(min(most, types.count(kernel.out_dtype))):
            types.remove(kernel.out_dtype)
            moved += 1
    if kernel.contraction == "gated":
        written = []
    kind = "swapped" if kernel.swap_ab and not kernel.cluster_k else kernel.schedule
    cycles = WRITE_CYCLES[kind] * len(written)
    if moved:
        cycles += MOVED_CYCLES[kind] * moved
    cycles += sum(READ_CYCLES[kind][np.dtype(t).itemsize] for t in read)
    return cycles, _bytes_of([*read, *written])


def grouped_linked_cycles(
    candidate: heuristics.Candidate,
    program: Program,
    result_types: Sequence[str],
    dims: GroupedDims,
    target: Target,
    products: int = 1,
) -> float:
    """As `linked_cycles`, for a grouped kernel, which is assumed to take what dense ones take.

    Its tiles have any height, and free CTAs take the next one: waves of the mean tile need not be
    whole.
    """
    kernel = candidate.kernel
    ctas = kernel.cluster_m if kernel.arch == "sm100" else 1  # that share a tile
    threads = 256 if kernel.schedule == "cooperative" else 128 * ctas
    # With swapped operands a tile is computed no wider than its rows need.
    of_tile = dims.m * dims.n / max(candidate.tiles, 1.0)
    sums = of_tile if kernel.swap_ab else kernel.tile_m * kernel.tile_n
    elements = sums / threads / products
    count = instructions(program, in_kernel=True)
    own = elements * INSTRUCTION_CYCLES[kernel.schedule] * count
    epilogue = elements * ELEMENT_CYCLES[kernel.schedule] + own
    rounds = candidate.tiles * ctas / target.sm_count
    if kernel.arch == "sm100":
        main = sums * dims.k / (MACS_PER_CYCLE[kernel.arch] * ctas)
        more = rounds * max(0.0, epilogue - main) + own
    elif kernel.schedule == "pingpong":
        main = sums * dims.k / MACS_PER_CYCLE[kernel.arch]
        longer = max(0.0, (epilogue - main) / 2)
        more = rounds * (longer + elements * MAIN_LOOP_CYCLES * count) + own
    else:
        more = rounds * own
    moved = 2 * dims.k * (dims.m + dims.experts * dims.n)
    moved += matrix_bytes(program, result_types, dims, products)
    return max(candidate.cycles + more, moved / BYTES_PER_CYCLE[target.arch] + own)


def split_k_cycles(
    candidate: Candidate,
    program: Program,
    result_types: Sequence[str],
    dims: GemmDims,
    target: Target,
) -> float:
    """As `linked_cycles`, for split-K: the second kernel, which adds the parts, has the epilogue.

    It then reads and writes more, and computes while it waits for memory.
    """
    own = dims.m * dims.n * np.dtype(candidate.kernel.out_dtype).itemsize  # it writes D anyway
    moved = matrix_bytes(program, result_types, dims) - own
    count = instructions(program, in_kernel=True)
    computing = dims.m * dims.n * count / (_THREADS_A_CYCLE * target.sm_count)
    return candidate.cycles + max(moved / BYTES_PER_CYCLE[target.arch], computing)


def _main_cycles(candidate: Candidate, dims: GemmDims) -> float:
    kernel, cost = candidate.kernel, candidate.cost
    macs = kernel.tile_m * kernel.tile_n * round_up(dims.k, kernel.tile_k)
    macs //= 2 if kernel.schedule == "2sm" else 1  # for each of the tile's multiprocessors
    return macs / (MACS_PER_CYCLE[kernel.arch] * cost.efficiency) + cost.per_wave


def pass_cycles(
    program: Program,
    result_types: Sequence[str],
    product_type: str,
    also_read: int,
    dims: GemmDims | GroupedDims,
    target: Target,
    products: int = 1,
) -> float:
    """What the epilogue adds as a pass of XLA's.

    Args:
        program: The epilogue.
        result_types: Types of its results; one that is the product itself the kernel has stored.
        product_type: The product's type.
        also_read: How many of its results something else reads, which could be part of this pass.
        dims: Sizes.
        target: The GPU.
        products: As in `linked_cycles`.
    """
    size = np.dtype(product_type).itemsize * dims.batch * dims.m * dims.n
    bandwidth = BYTES_PER_CYCLE[target.arch]
    read = size / (SUM_BANDWIDTH * bandwidth)
    sums = len(program.summed) * (2 * LEAST_SUM_CYCLES + read)
    moved = matrix_bytes(program, result_types, dims, products)
    whole = [x for i, x in enumerate(program.results) if i not in program.summed]
    if whole == [0]:  # the sums' passes alone, which read what they need besides the product
        return sums + (moved - size) / (SUM_BANDWIDTH * bandwidth)
    moved += size * (1 - (0 in whole) - also_read)
    memory = moved / (PASS_BANDWIDTH * bandwidth)
    count = 8 + instructions(program, in_kernel=False)
    elements = dims.batch * dims.m * dims.n / products
    computing = elements * count / (_THREADS_A_CYCLE * target.sm_count)
    return sums + max(memory, computing) + LEAST_PASS_CYCLES * (1 - min(also_read, 1))
