"""mbarriers as objects in memory, and relaxed operations on them with fences around."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR, CLUSTER, PEER, STORE, TAKE, wait

PAIR = {"grid": 2, "cluster": 2}
RACE = ("shared-race",)
OBJECT = ("mbarrier-init", "is not initialised")

_ALL = f"@%p0 mbarrier.init.shared::cta.b64 [%r4], 128;\n{BAR}"
_ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
_RELAXED = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r4];\n"
_RELAXED_WAIT = (
    "W:\nmbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 %p7, [%r4], 0;\n@!%p7 bra W;\n"
)
_PEERS = f"@%p0 mbarrier.init.shared::cta.b64 [%r4], 128;\nfence.mbarrier_init.release.cluster;\n{CLUSTER}"
_PEERS_WORD = "shl.b32 %r21, %r0, 2;\nadd.u32 %r11, %r11, %r21;\n"
_TELL_PEER = "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r12];\n"
_HEAR_PEER = (
    "W:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p7, [%r4], 0;\n@!%p7 bra W;\n"
)
_OWN = f"ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n{CLUSTER}"
_INVAL = "@%p0 mbarrier.inval.shared::cta.b64 [%r4];\n"

KERNELS = (
    # --- relaxed operations
    Micro(
        "a relaxed arrival without a fence",
        f"{_ALL}{STORE}<<|fence.acq_rel.cta;\n>>{_RELAXED}{wait(0, 0)}{TAKE}",
        RACE,
    ),
    Micro(
        "data stored between the fence and a relaxed arrival",
        f"{_ALL}<<fence.release.cta;\n{STORE}|{STORE}fence.release.cta;\n>>{_RELAXED}{wait(0, 0)}{TAKE}",
        RACE,
    ),
    Micro(
        "a relaxed wait without a fence",
        f"{_ALL}{STORE}{_ARRIVE}{_RELAXED_WAIT}<<|fence.acq_rel.cta;\n>>{TAKE}",
        RACE,
    ),
    Micro(
        "a relaxed wait behind its fence",
        f"{_ALL}{STORE}{_ARRIVE}<<fence.acquire.cta;\n{_RELAXED_WAIT}|{_RELAXED_WAIT}fence.acquire.cta;\n>>{TAKE}",
        RACE,
    ),
    Micro(
        "a relaxed arrival at a peer after a fence of the CTA",
        f"{_PEERS}{PEER}{_PEERS_WORD}st.shared::cluster.u32 [%r11], %r0;\nfence.acq_rel.<<cta|cluster>>;\n{_TELL_PEER}{_HEAR_PEER}{_OWN}",
        RACE,
        **PAIR,
    ),
    # --- what one counts and is asked for
    Micro(
        "an mbarrier that waits for fewer lanes than arrive",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4], <<31|32>>;\n{BAR}@%p2 {_ARRIVE}{wait(0, 0)}",
        ("mbarrier-overrun",),
    ),
    Micro(
        "a parity that counts on",
        f"{_ALL}{_ARRIVE}{wait(0, 0)}{BAR}{_ARRIVE}{wait(0, 1)}{BAR}{_ARRIVE}W:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [%r4], <<2|0>>;\n@!%p7 bra W;\n",
        ("mbarrier-parity",),
    ),
    # --- the memory that one lies in
    Micro(
        "data stored over an mbarrier that is over",
        f"{_ALL}{_ARRIVE}{wait(0, 0)}{BAR}<<|{_INVAL}>>@%p0 st.shared.u32 [%r4], %r0;\n",
        OBJECT,
    ),
    Micro(
        "a bulk load over an mbarrier that is over",
        f"{_ALL}{_ARRIVE}{wait(0, 0)}{BAR}<<|{_INVAL}>>@%p0 mbarrier.init.shared::cta.b64 [%r4+32], 1;\nfence.proxy.async.shared::cta;\n@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4+32], 16;\n"
        f"@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d3], 16, [%r4+32];\n{BAR}{wait(4, 0)}",
        OBJECT,
    ),
    Micro(
        "a copy of an mbarrier's bits",
        f"{_ALL}<<@%p0 ld.shared.u64 %d6, [%r4];\n@%p0 st.shared.u64 [%r4+16], %d6;\n|@%p0 mbarrier.init.shared::cta.b64 [%r4+16], 128;\n>>{BAR}mbarrier.arrive.shared::cta.b64 _, [%r4+16];\n",
        OBJECT,
    ),
    Micro(
        "an mbarrier invalidated while others may wait for it",
        f"{_ALL}{_ARRIVE}{wait(0, 0)}<<|{BAR}>>{_INVAL}",
        OBJECT,
    ),
)
