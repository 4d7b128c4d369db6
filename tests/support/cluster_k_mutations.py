"""Faults injected into a cluster-K kernel of SM90, and what notices them.

``python tests/support/cluster_k_mutations.py`` prints them with the reports.

Not among them: the named barrier ahead of laying out the results. Warps of a warpgroup start an MMA
together, and here it ends for all of them together, as CUTLASS too takes for granted where one
thread gives a stage back for its warpgroup; PTX, strictly read, promises only a warp's own quarter.
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
    every_statement,
    first,
    ptx_of,
    report,
    statement,
    substitute_before,
    try_on,
)
from grouped_mutations import wait_before
from sm90_mutations import expecting

from jax_bwgemm.emulator.dense import run_gemm
from jax_bwgemm.product.kernels import Kernel

# Edges both ways; every CTA's part of K goes several times around the pipeline, which is at its
# shallowest where so many CTAs share a multiprocessor, and ends in a stage that results overwrite.
PROBLEM = Problem(88, 136, 64 * 26 + 8)
PARTS = 3
SMS = 4

EXPECT = "mbarrier.arrive.expect_tx"
MMA = "wgmma.mma_async"
LAST_WAIT = "wgmma.wait_group.sync.aligned 0;"
ARRIVE, WAIT = "barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"


def kernel() -> Kernel:
    """The kernel that the faults are injected into."""
    return next(k for k in emulated("sm90") if k.cluster_k)


def _mapped_to(rank: str) -> Callable[[str], str]:
    """All addresses in other CTAs' shared memory are of that CTA."""

    def edit(text: str) -> str:
        wrong, found = re.subn(r"(mapa\.[^;]*, )[^,;]*;", rf"\g<1>{rank};", text)
        if not found:
            raise NotApplicable("mapa")
        return wrong

    return edit


def _without_cluster_barriers(start: int, end: int | None) -> Callable[[str], str]:
    """Removes some, arrival and wait. In the text: the producer's, the consumer's, the last."""

    def edit(text: str) -> str:
        for what in (ARRIVE, WAIT):
            places = [m.start() for m in re.finditer(re.escape(what), text)]
            if len(places) != 3:
                raise NotApplicable(what)
            for place in reversed(places[start:end]):
                text = text[:place] + text[place + len(what) :]
        return text

    return edit


MUTATIONS = (
    Mutation("first MMAs do not wait for their operands", wait_before(MMA, 1)),
    Mutation("MMAs do not wait for their operands", wait_before("wgmma.wait_group", 1)),
    Mutation("producer does not wait for a free stage", wait_before(EXPECT, 1)),
    Mutation("no stage given back", statement("mbarrier.arrive.shared::cta")),
    Mutation("stages given back while MMAs read", statement("wgmma.wait_group.sync.aligned 1")),
    Mutation("MMAs without a fence before them", every_statement("wgmma.fence")),
    Mutation("MMAs never committed", every_statement("wgmma.commit_group")),
    Mutation(
        "consumer's barrier phase never flips",
        substitute_before(LAST_WAIT, r"xor\.b32\s+(%r\d+), %r\d+, %r\d+;", r"mov.b32 \1, \1;"),
    ),
    Mutation("expect_tx 16 bytes short", expecting(16368)),
    Mutation("one of two boxes left out", statement("cp.async.bulk.tensor.3d")),
    Mutation("barriers used before their initialisation", first("bar.sync", "// bar.sync")),
    Mutation("results laid out before they are complete", all_of(LAST_WAIT, "")),
    Mutation("parts added before all are laid out", _without_cluster_barriers(0, 2)),
    Mutation("only the producer waits for the cluster", _without_cluster_barriers(1, 2)),
    Mutation("a CTA leaves while others read its part", _without_cluster_barriers(2, None)),
    Mutation("all parts read from the first CTA", _mapped_to("0")),
    Mutation("parts read from a CTA that is not there", _mapped_to(str(PARTS))),
)


def _launch() -> tuple[np.ndarray, np.ndarray]:
    a, b = operands(kernel(), PROBLEM)
    return run_gemm(kernel(), a, b, splits=PARTS), expected(kernel(), a, b)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    return ptx_of(_launch, SMS)


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(_launch, SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
