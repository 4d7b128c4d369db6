"""Faults injected into a grouped ping-pong kernel of SM90, and what notices them.

``python tests/support/pingpong_mutations.py`` prints them with the reports. The kernel is one of
kind contract: groups have any number of blocks, so the consumers skip each other's of any number.
"""

from __future__ import annotations

from emulator_mutations import (
    Mutation,
    Outcome,
    all_of,
    before,
    every_statement,
    ptx_of,
    report,
    statement,
    try_on,
)
from grouped_cases import Problem, emulated, problem
from grouped_mutations import SMS, launch_of, wait_before

from jax_bwgemm.product.kernels import Kernel

MMA = "wgmma.mma_async"
LAST_WAIT = "wgmma.wait_group.sync.aligned 0;"
ARRIVE = "@elected mbarrier.arrive.shared::cta.b64 _,"
RELEASE = "@elected mbarrier.arrive.shared::cluster.b64 _, [remote];"


def kernel() -> Kernel:
    """The kernel that the faults are injected into."""
    return next(k for k in emulated() if (k.kind, k.schedule) == ("k-grouped", "pingpong"))


def case() -> Problem:
    """Many tiles for one cluster: groups of many and few blocks, with tails, and empty ones."""
    return problem(kernel(), 1500, 264, 264, [901, 0, 470, 37, 3, 64])


MUTATIONS = (
    Mutation("MMA does not wait for its operands", wait_before(MMA, 1)),
    Mutation("MMA does not wait for its turn", wait_before(MMA, 2)),
    Mutation("consumer reads the ring before the scheduler has written", wait_before(MMA, 3)),
    Mutation("turn never passed", before(LAST_WAIT, ARRIVE, "// arrive")),
    Mutation(
        "turn of a tile without blocks never passed",
        before("cp.async.bulk.wait_group.read", ARRIVE, "// arrive"),
    ),
    Mutation("one stage of a tile never given back", before(LAST_WAIT, RELEASE, "")),
    Mutation("stages given back while MMAs read", all_of("wgmma.wait_group.sync.aligned 1;", "")),
    Mutation("epilogue reads unfinished results", all_of(LAST_WAIT, "")),
    Mutation("MMAs without a fence before them", every_statement("wgmma.fence")),
    Mutation("no fence before asynchronous reads", every_statement("fence.proxy.async")),
    Mutation("MMA before the tail is zero", statement("bar.sync")),
    Mutation(
        "store buffers reused while TMA reads", every_statement("cp.async.bulk.wait_group.read")
    ),
    Mutation(
        "producer does not wait for a free stage", wait_before("mbarrier.arrive.expect_tx", 1)
    ),
)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    return ptx_of(launch_of(kernel(), case()), SMS)


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(launch_of(kernel(), case()), SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
