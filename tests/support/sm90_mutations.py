"""Faults injected into a dense ping-pong kernel of SM90, and what notices them.

``python tests/support/sm90_mutations.py`` prints them with the reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from emulator_cases import Problem, emulated, expected, operands
from emulator_mutations import (
    Mutation,
    NotApplicable,
    Outcome,
    all_of,
    before,
    every_statement,
    first,
    ptx_of,
    report,
    statement,
    substitute_before,
    try_on,
)
from grouped_mutations import wait_before

from jax_bwgemm.emulator.dense import run_gemm
from jax_bwgemm.product.kernels import Kernel

# Edges both ways and along K, several tiles for each of two clusters, the pipeline several times
# around, a last band that is lower.
PROBLEM = Problem(712, 392, 64 * 14 + 8)
SMS = 4

EXPECT = "mbarrier.arrive.expect_tx"
MMA = "wgmma.mma_async"
LAST_WAIT = "wgmma.wait_group.sync.aligned 0;"
ARRIVE = "@elected mbarrier.arrive.shared::cta.b64 _,"
RELEASE = "@elected mbarrier.arrive.shared::cluster.b64 _, [remote];"


def kernel() -> Kernel:
    """The kernel that the faults are injected into: pairs of CTAs share an operand."""
    return next(
        k
        for k in emulated("sm90")
        if (k.schedule, k.tile_m, k.tile_n, k.cluster_m) == ("pingpong", 128, 128, 2)
    )


def expecting(count: int) -> Callable[[str], str]:
    """All barriers of the pipeline expect so many bytes."""

    def edit(text: str) -> str:
        wrong, found = re.subn(rf"({EXPECT}[^;]*\], )[^,;]*;", rf"\g<1>{count};", text)
        if not found:
            raise NotApplicable(EXPECT)
        return wrong

    return edit


def _multicast_to(mask: int) -> Callable[[str], str]:
    """The shared operand's boxes go to these CTAs of the cluster."""

    def edit(text: str) -> str:
        registers = set(re.findall(r"multicast::cluster[^;]*\], (%rs\d+)", text))
        if not registers:
            raise NotApplicable("multicast")
        for register in registers:
            text = re.sub(rf"(mov\.[bu]16\s+{register}), \d+;", rf"\1, {mask};", text)
        return text

    return edit


MUTATIONS = (
    Mutation("MMA does not wait for its operands", wait_before(MMA, 1)),
    Mutation("MMA does not wait for its turn", wait_before(MMA, 2)),
    Mutation("turn never passed", before(LAST_WAIT, ARRIVE, "// arrive")),
    Mutation("one stage of a tile never given back", before(LAST_WAIT, RELEASE, "")),
    Mutation("stages given back while MMAs read", all_of("wgmma.wait_group.sync.aligned 1;", "")),
    Mutation("epilogue reads unfinished results", all_of(LAST_WAIT, "")),
    Mutation("MMAs without a fence before them", every_statement("wgmma.fence")),
    Mutation("MMAs never committed", every_statement("wgmma.commit_group")),
    Mutation("no fence before asynchronous reads", every_statement("fence.proxy.async")),
    Mutation(
        "store buffers reused while TMA reads", every_statement("cp.async.bulk.wait_group.read")
    ),
    Mutation("producer does not wait for a free stage", wait_before(EXPECT, 1)),
    Mutation("bytes expected are 16 short", expecting(32768 - 16)),
    Mutation("one of the boxes left out", statement("cp.async.bulk.tensor.3d")),
    Mutation("shared boxes only for oneself", _multicast_to(1)),
    Mutation("a neighbour's barriers used before their initialisation",
             first("barrier.cluster.wait.aligned;", "")),
    Mutation(
        "consumer's barrier phase never flips",
        substitute_before(LAST_WAIT, r"xor\.b32\s+(%r\d+), %r\d+, %r\d+;", r"mov.b32 \1, \1;"),
    ),
)  # fmt: skip


def _launch() -> tuple[np.ndarray, np.ndarray]:
    a, b = operands(kernel(), PROBLEM)
    return run_gemm(kernel(), a, b, raster_order="n", swizzle=2), expected(kernel(), a, b)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    return ptx_of(_launch, SMS)


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(_launch, SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
