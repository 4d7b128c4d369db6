"""Faults injected into a grouped SM100 kernel of a block format, and what notices them.

``python tests/support/block_scaled_mutations.py`` prints them with the reports. The kernel is the
2-CTA one of kind rows: scales come with their stage and are copied to tensor memory, where both
accumulators share columns.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from emulator_mutations import (
    READ_TMEM,
    Mutation,
    NotApplicable,
    Outcome,
    after,
    all_of,
    every_statement,
    first,
    ptx_of,
    report,
    statement,
    substitute_before,
    try_on,
)
from grouped_mutations import BOUND, _coordinate, _last, wait_before

from jax_bwgemm import runtime

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

MMA = "tcgen05.mma.cta_group::2"
COPY = "tcgen05.cp.cta_group::2"
LOAD = "cp.async.bulk.tensor.3d.cta_group::2"  # P's scales, Q's two bands of scales, Q
STORE = "cp.async.bulk.tensor.5d.global"
SMS = 2


@functools.cache
def prepared(
    scales: str, layouts: tuple[str, str]
) -> tuple[Callable[..., jax.Array], dict[str, np.ndarray], np.ndarray]:
    """A kernel's call, its operands and result.

    Many tiles for one pair of SMs: groups that begin anywhere, single rows, empty groups.
    """
    import sanitize_scaled_grouped

    wanted = ("sm100", "m-grouped", scales, "float8_e4m3fn")
    kernel = next(
        k
        for k in runtime.emulated_scaled_grouped_kernels()
        if (k.arch, k.kind, k.scales, k.a_dtype) == wanted
    )
    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    sizes, k = (5, 0, 265, -3, 1, 130, 10000), (kernel.stages + 1) * 128 + 16
    case = sanitize_scaled_grouped.ScaledGroupedCase(
        kernel.name, kernel.kind, types, layouts, 553, 280, k, sizes, 5
    )
    return jax.jit(lambda operands: case.launch("emulator", operands)), *case.operands()


def launch() -> tuple[np.ndarray, np.ndarray]:
    """The product, and what it should be."""
    function, operands, want = prepared("mma", ("mxfp8", "mxfp8"))
    return np.asarray(function(operands)), want


def _in_load(nth: int, index: int, value: str) -> Callable[[str], str]:
    """Another coordinate in the nth copy."""

    def edit(text: str) -> str:
        copies = list(re.finditer(re.escape(LOAD) + r"[^{;]*\{([^}]*)\}", text))
        if len(copies) <= nth:
            raise NotApplicable(LOAD)
        copy = copies[nth]
        coordinates = copy[1].split(", ")
        coordinates[index] = value
        return text[: copy.start(1)] + ", ".join(coordinates) + text[copy.end(1) :]

    return edit


MUTATIONS = (
    Mutation("MMA warp does not wait for its operands", wait_before(COPY, 1)),
    Mutation("MMA warp does not wait for columns that accumulators share", wait_before(COPY, 2)),
    Mutation("MMA warp reads the ring before the scheduler has written", wait_before(COPY, 3)),
    Mutation(
        "producer does not wait for a free stage", wait_before("mbarrier.arrive.expect_tx", 1)
    ),
    Mutation("epilogue does not wait for the accumulator", wait_before(READ_TMEM, 1)),
    Mutation("epilogue does not wait for its registers", statement("tcgen05.wait::ld")),
    Mutation(
        "epilogue never gives shared columns back",
        after("tcgen05.wait::ld", "mbarrier.arrive.shared::cluster.b64 _,", "// arrive"),
    ),
    Mutation(
        "epilogue never gives a place in the ring back", statement("mbarrier.arrive.shared::cta")
    ),
    Mutation("no fence before asynchronous reads", every_statement("fence.proxy.async")),
    Mutation(
        "store buffers reused while TMA reads", every_statement("cp.async.bulk.wait_group.read")
    ),
    Mutation("no commit of the consumed stage", statement("tcgen05.commit")),
    Mutation("no commit of the accumulator", _last("tcgen05.commit")),
    Mutation(
        "first MMA of a tile accumulates onto the last tile but one",
        substitute_before(
            MMA, r"setp\.ne\.b32\s+accumulate, %r\d+, 0;", "setp.eq.b32 accumulate, 0, 0;"
        ),
    ),
    Mutation("scales of P left out", statement(LOAD)),
    Mutation("scales of P of the first band, whatever the group", _in_load(0, 2, "0")),
    Mutation("scales of P of the first stage, whatever the stage", _in_load(0, 1, "0")),
    Mutation("scales of Q of the first matrix, whatever the group", _in_load(1, 2, "0")),
    Mutation("scales of Q's last columns of the first band", _in_load(2, 2, "0")),
    Mutation("scales of Q's last columns not copied to tensor memory", _last(COPY)),
    Mutation("scales copied to tensor memory of one CTA only", all_of(COPY, COPY[:-1] + "1")),
    Mutation("second MMA of a stage with the first one's scales", first("536870928", "0")),
    Mutation(
        "loads of a pair signal their own CTAs", substitute_before(LOAD, r"-1677\d{4};", "-8;")
    ),
    Mutation("a group's last rows are not cut off", _coordinate(STORE, 1, str(BOUND - 32))),
    Mutation("tensor memory never freed", statement("tcgen05.dealloc")),
    Mutation("a pair's CTA leaves before the other", _last("barrier.cluster.wait")),
    Mutation(
        "no cluster barrier after the barriers' initialisation",
        lambda text: statement("barrier.cluster.wait")(statement("barrier.cluster.arrive")(text)),
    ),
)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    return ptx_of(launch, SMS)


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(launch, SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
