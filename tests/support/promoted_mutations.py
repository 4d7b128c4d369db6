"""Faults injected into a grouped SM100 kernel that adds sums of blocks of K in registers.

``python tests/support/promoted_mutations.py`` prints them and what notices them. Every block has an
accumulator of its own there, of four.
"""

from __future__ import annotations

import numpy as np
from block_scaled_mutations import prepared
from emulator_mutations import (
    MMA,
    READ_TMEM,
    Mutation,
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
from grouped_mutations import LOAD, STORE, _coordinate, _last, wait_before

SMS = 2


def launch() -> tuple[np.ndarray, np.ndarray]:
    """The product, and what it should be."""
    function, operands, want = prepared("blocks", ("1x128", "128x128"))
    return np.asarray(function(operands)), want


MUTATIONS = (
    Mutation("MMA does not wait for its operands", wait_before(MMA, 1)),
    Mutation("MMA does not wait for the epilogue of the last block but four", wait_before(MMA, 2)),
    Mutation("MMA warp reads the ring before the scheduler has written", wait_before(MMA, 3)),
    Mutation(
        "producer does not wait for a free stage", wait_before("mbarrier.arrive.expect_tx", 1)
    ),
    Mutation("epilogue does not wait for a block's sums", wait_before(READ_TMEM, 1)),
    Mutation("epilogue does not wait for its registers", every_statement("tcgen05.wait::ld")),
    Mutation(
        "epilogue never gives an accumulator back",
        after("tcgen05.wait::ld", "mbarrier.arrive.shared::cluster.b64 _,", "// arrive"),
    ),
    Mutation("no commit of the consumed stage", statement("tcgen05.commit")),
    Mutation("no commit of a block's sums", _last("tcgen05.commit")),
    Mutation(
        "first MMA of a block accumulates onto the last block but four",
        substitute_before(MMA, r"setp\.ne\.b32\s+p, %r\d+, 0;", "setp.eq.b32 p, 0, 0;"),
    ),
    Mutation("expect_tx 16 bytes short", before("mbarrier.arrive.expect_tx", "49152;", "49136;")),
    Mutation("rows left out", statement(LOAD)),
    Mutation("a group's last rows are not cut off", _coordinate(STORE, 1, "0")),
    Mutation("tensor memory never freed", statement("tcgen05.dealloc")),
    Mutation("a pair's CTA leaves before the other", _last("barrier.cluster.wait")),
)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    return ptx_of(launch, SMS)


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(launch, SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
