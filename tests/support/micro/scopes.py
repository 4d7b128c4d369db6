"""Scopes in clusters, counts of arrivals, flags in global memory."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.bulk import ZERO
from micro.bulk_stores import TILE_STORE
from micro.case import Micro
from micro.global_memory import FLAG, SEEN, TWO, hand_over, spin
from micro.pieces import (
    BAR,
    BULK_COMMIT,
    BULK_WAIT,
    CLUSTER,
    CLUSTER_READY,
    COMMIT,
    DEALLOC,
    MMA,
    PEER,
    PROXY,
    READY,
    STORE,
    wait,
)
from micro.pipelines import PAIR
from micro.tensor import DONE, START, TAKE_LOAD

HAZARD = ("async-hazard", "shared-race", "lane-release", "proxy-fence")

KERNELS = (
    Micro(
        "arrival of cta scope at a peer",
        f"{CLUSTER_READY}{PEER}@%p0 st.shared::cluster.u32 [%r11+4096], %r0;\n@%p0 mbarrier.arrive.release.<<cta|cluster>>.shared::cluster.b64 _, [%r12];\nA1:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p7, [%r4], 0;\n@!%p7 bra A1;\nld.shared.u32 %r20, [%r3+4096];\nst.global.u32 [%d2], %r20;\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "wait of cta scope for a peer",
        f"{CLUSTER_READY}{PEER}@%p0 st.shared::cluster.u32 [%r11+4096], %r0;\n@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\nA1:\nmbarrier.try_wait.parity.acquire.<<cta|cluster>>.shared::cta.b64 %p7, [%r4], 0;\n@!%p7 bra A1;\nld.shared.u32 %r20, [%r3+4096];\nst.global.u32 [%d2], %r20;\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "a flag in peer memory cta scope",
        f"@%p0 st.shared.u32 [%r3+64], 0;\n{CLUSTER_READY}{PEER}@%p0 st.shared::cluster.u32 [%r11+4096], %r4;\n@%p0 st.release.<<cta|cluster>>.shared::cluster.u32 [%r11+64], 1;\n@!%p0 bra E;\nA1:\nld.acquire.cluster.shared::cta.u32 %r20, [%r3+64];\nsetp.eq.u32 %p3, %r20, 0;\n@%p3 bra A1;\nld.shared.u32 %r20, [%r3+4096];\nst.global.u32 [%d2], %r20;\nE:\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "a flag in peer memory fence",
        f"@%p0 st.shared.u32 [%r3+64], 0;\n{CLUSTER_READY}{PEER}@%p0 st.shared::cluster.u32 [%r11+4096], %r4;\n@%p0 fence.acq_rel.<<cta|cluster>>;\n@%p0 st.relaxed.cluster.shared::cluster.u32 [%r11+64], 1;\n@!%p0 bra E;\nA1:\nld.acquire.cluster.shared::cta.u32 %r20, [%r3+64];\nsetp.eq.u32 %p3, %r20, 0;\n@%p3 bra A1;\nld.shared.u32 %r20, [%r3+4096];\nst.global.u32 [%d2], %r20;\nE:\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "a peer's atomic on what is not zero yet",
        f"<<{CLUSTER}@%p0 st.shared.u32 [%r3], 0;\n|@%p0 st.shared.u32 [%r3], 0;\n{CLUSTER}>>{PEER}@%p0 red.shared::cluster.add.u32 [%r11], 1;\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "plain stores of two peers to one word of a third",
        f"{CLUSTER}mapa.shared::cluster.u32 %r11, %r3, 0;\n<<|shl.b32 %r20, %r2, 4;\nadd.u32 %r11, %r11, %r20;\n>>setp.ne.u32 %p3, %r2, 0;\nand.pred %p3, %p3, %p0;\n@%p3 st.shared::cluster.u32 [%r11], %r2;\n{CLUSTER}",
        HAZARD,
        grid=4,
        cluster=4,
    ),
    Micro(
        "cluster barrier crossed by one phase",
        f"{CLUSTER}{STORE}barrier.cluster.arrive.aligned;\n<<|barrier.cluster.wait.aligned;\n>>{PEER}shl.b32 %r20, %r0, 2;\nadd.u32 %r11, %r11, %r20;\nld.shared::cluster.u32 %r21, [%r11];\n<<barrier.cluster.wait.aligned;\n|>>st.global.u32 [%d2], %r21;\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "an arrival of two where one is left",
        f"{READY}{BAR}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4], <<2|1>>;\n{wait(0, 0)}",
        ("mbarrier-overrun", "arrival", "count"),
    ),
    Micro(
        "two warps arrive where one is expected",
        f"{READY}@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}".replace(
            "[%r4], 1;", "[%r4], <<2|4>>;", 1
        ),
        ("mbarrier-overrun", "arrival"),
    ),
    Micro(
        "two commits where one is expected",
        f"{START}{MMA}{COMMIT}<<{COMMIT}|>>{DONE}{TAKE_LOAD}{DEALLOC}",
        ("mbarrier-overrun", "arrival", "tensor", "cta-exit"),
    ),
    Micro(
        "a peer arrives twice",
        f"{CLUSTER_READY}{PEER}@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n<<@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n|>>{wait(0, 0)}{CLUSTER}",
        ("mbarrier-overrun", "arrival"),
        **PAIR,
    ),
    Micro(
        "cp.async arrivals without noinc",
        f"{READY}{BAR}shl.b32 %r22, %r0, 2;\ncvt.u64.u32 %d6, %r22;\nadd.s64 %d6, %d6, %d3;\ncp.async.ca.shared.global [%r7], [%d6], 4;\ncp.async.mbarrier.arrive<<|.noinc>>.shared::cta.b64 [%r4];\n{wait(0, 0)}ld.shared.u32 %r20, [%r8];\nst.global.u32 [%d2], %r20;\n".replace(
            "[%r4], 1;", "[%r4], 128;", 1
        ),
        ("deadlock", "async-hazard", "shared-race"),
    ),
    Micro(
        "a flag without release, volatile",
        hand_over(
            "<<|membar.gl;\n>>st.volatile.global.u32 [%d1], 1;\n",
            spin("ld.volatile.global.u32", "membar.gl;\n"),
        ),
        ("global-race",),
        **TWO,
    ),
    Micro(
        "a flag by red",
        hand_over("red.<<relaxed|release>>.gpu.global.add.u32 [%d1], 1;\n", SEEN),
        ("global-race",),
        **TWO,
    ),
    Micro(
        "a flag by exch",
        hand_over("atom.<<relaxed|acq_rel>>.gpu.global.exch.b32 %r20, [%d1], 1;\n", SEEN),
        ("global-race",),
        **TWO,
    ),
    Micro(
        "a flag by cas loop acquire",
        hand_over(
            FLAG,
            spin("atom.<<relaxed|acquire>>.gpu.global.cas.b32").replace("[%d1];", "[%d1], 1, 1;"),
        ),
        ("global-race",),
        **TWO,
    ),
    Micro(
        "cp.async of what another CTA wrote",
        hand_over("st.<<relaxed|release>>.gpu.global.u32 [%d1], 1;\n", SEEN).replace(
            "ld.global.u32 %r21, [%d1+64];",
            "cp.async.ca.shared.global [%r3], [%d1+64], 4;\ncp.async.wait_all;\nld.shared.u32 %r21, [%r3];",
        ),
        ("global-race", "async-hazard"),
        **TWO,
    ),
    Micro(
        "two warps store one global word",
        "setp.lt.u32 %p3, %r0, <<64|1>>;\n@%p3 st.global.u32 [%d1], %r1;\n",
        ("global-race",),
    ),
    Micro(
        "two warps increment a global word",
        "ld.global.u32 %r20, [%d1];\nadd.u32 %r20, %r20, 1;\nst.global.u32 [%d1], %r20;\n".join(
            ("<<|setp.ne.u32 %p3, %r0, 0;\n@%p3 bra E;\n>>", "E:\n")
        ),
        ("global-race",),
    ),
    Micro(
        "a halo within a CTA",
        f"st.global.u32 [%d2], %r0;\n<<|{BAR}>>setp.eq.u32 %p3, %r0, 127;\n@!%p3 ld.global.u32 %r20, [%d2+4];\n@!%p3 st.global.u32 [%d2+8192], %r20;\n",
        ("global-race",),
    ),
    Micro(
        "vector store over a neighbour's word",
        "mul.wide.u32 %d6, %r0, <<4|8>>;\nadd.s64 %d6, %d6, %d1;\nst.global.v2.u32 [%d6], {%r0, %r0};\n",
        ("global-race", "multiple"),
    ),
    Micro(
        "a cluster flag across the grid",
        hand_over(
            "fence.acq_rel.<<cluster|gpu>>;\nred.relaxed.gpu.global.add.u32 [%d1], 1;\n", SEEN
        ),
        ("global-race",),
        **TWO,
    ),
    Micro(
        "a tile stored, flagged before completion",
        f"{ZERO}setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\n{STORE}{PROXY}{BAR}{TILE_STORE}{BULK_COMMIT}<<|{BULK_WAIT}>>@%p0 st.release.gpu.global.u32 [%d1+32000], 1;\n<<{BULK_WAIT}|>>bra DONE;\nREAD:\nld.acquire.gpu.global.u32 %r20, [%d1+32000];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra READ;\nld.global.u32 %r21, [%d1+64];\nDONE:\n",
        ("async-hazard", "global-race"),
        grid=2,
    ),
)
