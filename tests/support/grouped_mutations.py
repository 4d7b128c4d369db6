"""Faults injected into a grouped SM100 kernel, and what notices them.

``python tests/support/grouped_mutations.py`` prints them with the reports. The kernel is the
2-CTA one of kind contract: it has everything that the dense 2-CTA kernel has, whose faults are in
emulator_mutations.py, and a ring of tiles, bounded tensor maps and cluster launch control by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from emulator_mutations import (
    BLOCKING,
    MMA,
    READ_TMEM,
    Launch,
    Mutation,
    NotApplicable,
    Outcome,
    after,
    before,
    every_statement,
    ptx_of,
    report,
    statement,
    substitute_before,
    try_on,
)
from grouped_cases import Problem, emulated, expected, problem, run

from jax_bwgemm import emulator
from jax_bwgemm.product.kernels import Kernel

LOAD = "cp.async.bulk.tensor.5d.cta_group::2"
STORE = "cp.async.bulk.tensor.5d.global"
ASK = "clusterlaunchcontrol.try_cancel"
SMS = 2
BOUND = 1 << 30  # where the rows of a bounded tensor map end: boxes have 64 and 32 rows


def kernel() -> Kernel:
    """The kernel that the faults are injected into."""
    return next(k for k in emulated() if k.arch == "sm100" and k.kind == "k-grouped")


def case() -> Problem:
    """Many tiles for one pair of SMs: groups of many and few blocks, with tails, and empty ones."""
    return problem(kernel(), 1500, 264, 264, [901, 0, 470, 37, 3, 64])


def wait_before(anchor: str, nth: int) -> Callable[[str], str]:
    """Goes on without the nth last barrier wait before `anchor`, complete or not."""

    def edit(text: str) -> str:
        end = text.find(anchor)
        for _ in range(nth):
            end = text.rfind(BLOCKING, 0, end)
            if end < 0:
                raise NotApplicable(anchor)
        return text[:end] + text[end + len(BLOCKING) :]

    return edit


def _coordinate(start: str, index: int, value: str) -> Callable[[str], str]:
    """Another coordinate in every copy that begins so."""

    def edit(text: str) -> str:
        copies = re.compile(re.escape(start) + r"[^{;]*\{([^}]*)\}")
        if not copies.search(text):
            raise NotApplicable(start)

        def wrong(match: re.Match[str]) -> str:
            coordinates = match[1].split(", ")
            coordinates[index] = value
            return match[0].replace(match[1], ", ".join(coordinates))

        return copies.sub(wrong, text)

    return edit


def _last(start: str) -> Callable[[str], str]:
    """Removes the last statement that begins so."""

    def edit(text: str) -> str:
        position = text.rfind(start)
        if position < 0:
            raise NotApplicable(start)
        return text[:position] + text[text.find(";", position) + 1 :]

    return edit


MUTATIONS = (
    Mutation("MMA does not wait for its operands", wait_before(MMA, 1)),
    Mutation("MMA does not wait for the epilogue of the last tile but one", wait_before(MMA, 2)),
    Mutation("MMA warp reads the ring before the scheduler has written", wait_before(MMA, 3)),
    Mutation(
        "producer does not wait for a free stage", wait_before("mbarrier.arrive.expect_tx", 1)
    ),
    Mutation("epilogue does not wait for the accumulator", wait_before(READ_TMEM, 1)),
    Mutation("epilogue does not wait for its registers", statement("tcgen05.wait::ld")),
    Mutation(
        "epilogue never gives the accumulator back",
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
        substitute_before(MMA, r"setp\.ne\.b32\s+p, %r\d+, 0;", "setp.eq.b32 p, 0, 0;"),
    ),
    Mutation("expect_tx 16 bytes short", before("mbarrier.arrive.expect_tx", "65536;", "65520;")),
    Mutation(
        "loads of a pair signal their own CTAs", substitute_before(LOAD, r"-1677\d{4};", "-8;")
    ),
    Mutation("a group's last box is not cut off", _coordinate(LOAD, 1, str(BOUND - 64))),
    Mutation("a matrix's last rows are not cut off", _coordinate(STORE, 1, str(BOUND - 32))),
    Mutation("one of four boxes left out", statement(LOAD)),
    Mutation("tiles overwritten before they are read", wait_before(ASK, 2)),
    Mutation("the next tile asked for before the last answer is read", wait_before(ASK, 1)),
    Mutation("the answer read before it is there", after(ASK, BLOCKING, "")),
    Mutation("no tile asked for", statement(ASK)),
    Mutation("the answer is expected to be longer", before(ASK, ", 16;", ", 32;")),
    Mutation("tensor memory never freed", statement("tcgen05.dealloc")),
    Mutation("a pair's CTA leaves before the other", _last("barrier.cluster.wait")),
    Mutation(
        "no cluster barrier after the barriers' initialisation",
        lambda text: statement("barrier.cluster.wait")(statement("barrier.cluster.arrive")(text)),
    ),
)


def launch_of(k: Kernel, p: Problem) -> Launch:
    """Runs a kernel on a problem."""
    right = expected(k, p)
    return lambda: (run(k, p), right)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    ptx = ptx_of(launch_of(kernel(), case()), SMS)
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.clusters_cancelled >= 8, "too few tiles to use everything twice"
    return ptx


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(launch_of(kernel(), case()), SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
