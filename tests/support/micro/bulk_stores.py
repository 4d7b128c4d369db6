"""Bulk stores and reductions."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.bulk import HAZARD, ZERO
from micro.case import Micro
from micro.pieces import (
    BAR,
    BULK_COMMIT,
    BULK_STORE,
    BULK_WAIT,
    PROXY,
    READ_WAIT,
    STORE,
)

TILE_STORE = (
    "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d5, {%r24, %r24}], [%r3];\n"
)

KERNELS = (
    Micro(
        "a bulk store without a proxy fence",
        f"{STORE}<<|{PROXY}>>{BAR}{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a proxy fence ahead of the stores",
        f"<<{PROXY}{STORE}|{STORE}{PROXY}>>{BAR}{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a bulk store without a barrier",
        f"{STORE}{PROXY}<<|{BAR}>>{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("shared-race", "async-hazard", "proxy-fence"),
    ),
    Micro(
        "a bulk store of what is overwritten",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>{BAR}{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "a wait that other threads do not hear of",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}{READ_WAIT}<<|{BAR}>>{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "a bulk store without a commit",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}<<|{BULK_COMMIT}>>{BULK_WAIT}{BAR}{STORE}",
        ("async-hazard", "bulk-exit"),
    ),
    Micro(
        "a commit ahead of the bulk store",
        f"{STORE}{PROXY}{BAR}<<{BULK_COMMIT}{BULK_STORE}|{BULK_STORE}{BULK_COMMIT}>>{BULK_WAIT}{BAR}{STORE}",
        ("async-hazard", "bulk-exit"),
    ),
    Micro(
        "one group of bulk stores too few",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}@%p0 cp.async.bulk.wait_group.read <<1|0>>;\n{BAR}{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "another thread's bulk stores",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}setp.eq.u32 %p3, %r0, <<32|0>>;\n"
        f"@%p3 cp.async.bulk.wait_group.read 0;\n{BAR}{STORE}<<{BULK_WAIT}|>>",
        ("async-hazard",),
    ),
    Micro(
        "an exit with bulk stores in flight",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>",
        ("bulk-exit",),
    ),
    Micro(
        "a result read after wait_group.read",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<{READ_WAIT}|{BULK_WAIT}>>@%p0 ld.global.u32 %r20, [%d1];\n"
        "@%p0 st.global.u32 [%d1+4096], %r20;\n",
        ("async-hazard",),
    ),
    Micro(
        "a result handed over after wait_group.read",
        f"setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\n{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<{READ_WAIT}|{BULK_WAIT}>>"
        "@%p0 st.release.gpu.global.u32 [%d1+4096], 1;\nbra DONE;\nREAD:\nld.acquire.gpu.global.u32 %r20, [%d1+4096];\n"
        "setp.eq.u32 %p4, %r20, 0;\n@%p4 bra READ;\nld.global.u32 %r21, [%d1+64];\nDONE:\n",
        ("async-hazard", "global-race"),
        grid=2,
    ),
    Micro(
        "a store into what a bulk store writes",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{BULK_WAIT}{BAR}>>st.global.u32 [%d1+64], %r0;\n<<{BULK_WAIT}|>>".replace(
            "st.global.u32 [%d1+64], %r0;", "@%p0 st.global.u32 [%d1+64], %r4;"
        ),
        ("async-hazard", "global-race"),
    ),
    Micro(
        "a tile's store without a proxy fence",
        f"{ZERO}{STORE}<<|{PROXY}>>{BAR}{TILE_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a tile's store of what is overwritten",
        f"{ZERO}{STORE}{PROXY}{BAR}{TILE_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>{BAR}{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "a bulk reduction without a proxy fence",
        f"{STORE}<<|{PROXY}>>{BAR}@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n"
        f"{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a plain store into what others reduce",
        f"{STORE}{PROXY}{BAR}@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n"
        f"{BULK_COMMIT}{BULK_WAIT}<<setp.eq.u32 %p3, %r9, 1;\n@%p3 st.global.u32 [%d1], %r0;\n|>>",
        ("async-hazard", "global-race"),
        grid=2,
    ),
    Micro(
        "bulk stores of two CTAs to one place",
        f"{STORE}{PROXY}{BAR}<<|shl.b32 %r20, %r9, 9;\ncvt.u64.u32 %d6, %r20;\nadd.s64 %d1, %d1, %d6;\n>>"
        f"{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("same-value", "async-hazard", "global-race"),
        grid=2,
    ),
)
