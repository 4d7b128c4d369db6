"""Data of another CTA of the cluster behind an mbarrier: both sides need the scope of the cluster."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR, CLUSTER, CLUSTER_READY, PEER, STORE, wait

PAIR = {"grid": 2, "cluster": 2}
SCOPE = ("wait-scope",)
_ACQUIRE = "<<|acquire.cluster.>>"
_ARRIVE = "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n"
_WORD = "ld.shared.u32 %r20, [%r3+4096];\nst.global.u32 [%d2], %r20;\n"
# The word of the same thread of the other CTA, in global and in shared memory.
_PEERS_GLOBAL = "xor.b32 %r20, %r10, 128;\nmul.wide.u32 %d6, %r20, 4;\nadd.s64 %d6, %d6, %d1;\nld.global.u32 %r21, [%d6];\nst.global.u32 [%d2+4096], %r21;\n"
_PEERS_SHARED = "shl.b32 %r20, %r0, 2;\nadd.u32 %r20, %r20, %r11;\nld.shared::cluster.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n"
_TO_PEER = "@%p0 st.shared::cluster.u32 [%r11+4096], %r0;\n"


def spin(order: str = _ACQUIRE, wait: str = "try_wait") -> str:
    """Threads wait for the first phase of their CTA's mbarrier."""
    return f"A1:\nmbarrier.{wait}.parity.{order}shared::cta.b64 %p7, [%r4], 0;\n@!%p7 bra A1;\n"


KERNELS = (
    *(
        Micro(
            f"a word that a peer stored, behind {instruction} of the default scope",
            f"{CLUSTER_READY}{PEER}{_TO_PEER}{_ARRIVE}{spin(wait=instruction)}{_WORD}{CLUSTER}",
            SCOPE,
            **PAIR,
        )
        for instruction in ("try_wait", "test_wait")
    ),
    Micro(
        "a word that a peer stored, after its arrival of the default scope",
        f"{CLUSTER_READY}{PEER}{_TO_PEER}@%p0 mbarrier.arrive.<<|release.cluster.>>shared::cluster.b64 _, [%r12];\n{spin('acquire.cluster.')}{_WORD}{CLUSTER}",
        SCOPE,
        **PAIR,
    ),
    Micro(
        "global words that a peer stored, behind a wait of the default scope",
        f"{CLUSTER_READY}{PEER}st.global.u32 [%d2], %r0;\n{BAR}{_ARRIVE}{spin()}{_PEERS_GLOBAL}{CLUSTER}",
        SCOPE,
        **PAIR,
    ),
    Micro(
        "global words that a peer stored, behind a wait of cta scope",
        f"{CLUSTER_READY}{PEER}st.global.u32 [%d2], %r0;\n{BAR}{_ARRIVE}{spin('acquire.<<cta|cluster>>.')}{_PEERS_GLOBAL}{CLUSTER}",
        ("global-race",),
        **PAIR,
    ),
    Micro(
        "a peer's own shared memory, behind a wait of the default scope",
        f"{CLUSTER_READY}{PEER}{STORE}{BAR}{_ARRIVE}{spin()}{_PEERS_SHARED}{CLUSTER}",
        SCOPE,
        **PAIR,
    ),
    Micro(
        "one warp waits with the default scope, and all read behind a barrier",
        f"{CLUSTER_READY}{PEER}{_TO_PEER}{_ARRIVE}@!%p2 bra GO;\n{spin()}GO:\n{BAR}{_WORD}{CLUSTER}",
        SCOPE,
        **PAIR,
    ),
    Micro(
        "an atomic's result at a peer, read behind a wait of the default scope",
        f"@%p0 st.shared.u32 [%r3+4096], 0;\n{CLUSTER_READY}{PEER}@%p0 red.relaxed.cluster.shared::cluster.add.u32 [%r11+4096], 1;\n{_ARRIVE}{spin()}{_WORD}{CLUSTER}",
        SCOPE,
        **PAIR,
    ),
    # A buffer that is handed back needs no more than the default scope: its readers' values are
    # not at stake.
    Micro(
        "a peer's buffer stored over ahead of its reads",
        f"{STORE}{CLUSTER_READY}{PEER}<<{BAR}{_ARRIVE}|>>ld.shared.u32 %r20, [%r8];\nst.global.u32 [%d2], %r20;\n<<|{BAR}{_ARRIVE}>>{wait(0, 0)}shl.b32 %r21, %r0, 2;\nadd.u32 %r21, %r21, %r11;\nst.shared::cluster.u32 [%r21], %r0;\n{CLUSTER}",
        ("shared-race",),
        **PAIR,
    ),
)
