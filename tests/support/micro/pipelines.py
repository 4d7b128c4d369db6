"""Rings of stages, CTA pairs, cluster launch control, tensor maps that kernels edit."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    AFTER,
    BAR,
    BEFORE,
    BULK_COMMIT,
    BULK_STORE,
    BULK_WAIT,
    CLUSTER,
    CLUSTER_READY,
    DESCRIPTORS,
    INIT,
    LD,
    LD_WAIT,
    PEER,
    PROXY,
    READY,
    STORE,
    USE,
    bulk,
    expect,
    load,
    wait,
)

PAIR = {"grid": 2, "cluster": 2}
HAZARD = ("async-hazard", "shared-race", "lane-release")
STUCK = ("deadlock", "waits for mbarrier")


# A ring of two stages of 512 bytes, four blocks; mbarriers 0 and 1 full, 2 and 3 empty. The first
# thread of warp 0 loads, warps 1 to 3 consume: %r40 stage, %r41 phase, %r42 block.
def ring(
    *,
    empty: str = "3",
    first: str = "1",
    produce: str = "",
    consume: str = "ld.shared.u32 %r20, [%r46];\nadd.u32 %r49, %r49, %r20;\n",
    release: str = "bar.warp.sync -1;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r45+16];\n",
    full: str = "%r41",
    flip: str = "@%p4 xor.b32 %r41, %r41, 1;\n",
    address: str = "%r40",
) -> str:
    step = (
        "add.u32 %r42, %r42, 1;\nadd.u32 %r40, %r40, 1;\nsetp.eq.u32 %p4, %r40, 2;\n"
        f"@%p4 mov.u32 %r40, 0;\n{flip}setp.lt.u32 %p5, %r42, 4;\n"
    )
    where = "shl.b32 %r44, %r40, 3;\nadd.u32 %r45, %r4, %r44;\n"
    place = f"shl.b32 %r46, {address}, 9;\nadd.u32 %r46, %r46, %r3;\n"
    return (
        "@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n@%p0 mbarrier.init.shared::cta.b64 [%r4+8], 1;\n"
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4+16], {empty};\n"
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4+24], {empty};\n"
        "fence.mbarrier_init.release.cluster;\nbar.sync 0;\nmov.u32 %r40, 0;\nmov.u32 %r42, 0;\n"
        "@!%p2 bra CONSUMER;\n@!%p0 bra DONE;\n"
        f"mov.u32 %r41, {first};\nPRODUCE:\n{where}"
        "EMPTY:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r45+16], %r41;\n@!%p3 bra EMPTY;\n"
        f"{place}{produce}mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r45], 512;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r46], [%d3], 512, [%r45];\n"
        f"{step}@%p5 bra PRODUCE;\nbra DONE;\n"
        f"CONSUMER:\nmov.u32 %r41, 0;\nmov.u32 %r49, 0;\nshl.b32 %r47, %r6, 2;\nCONSUME:\n{where}"
        f"FULL:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r45], {full};\n@!%p3 bra FULL;\n"
        f"{place}add.u32 %r46, %r46, %r47;\n{consume}{release}{step}@%p5 bra CONSUME;\n"
        "st.global.u32 [%d2], %r49;\nDONE:\n"
    )


_READ = "ld.shared.u32 %r20, [%r46];\nadd.u32 %r49, %r49, %r20;\n"
_GIVE = "bar.warp.sync -1;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r45+16];\n"

# --- CTA pairs
_PAIR_ALLOC = (
    "@!%p2 bra ALLOCED;\ntcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r5], 64;\n"
    "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\nALLOCED:\n"
    f"{BEFORE}{CLUSTER}{AFTER}ld.shared.b32 %r30, [%r5];\nshl.b32 %r31, %r1, 21;\nadd.u32 %r31, %r31, %r30;\n"
)
_PAIR_DEALLOC = (
    f"{BEFORE}{CLUSTER}{AFTER}@!%p2 bra FREED;\n"
    "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r30, 64;\nFREED:\n"
)
_SHAPE = 1 << 4 | 1 << 7 | 1 << 10 | 32 // 8 << 17 | 256 // 16 << 24
_LEADER = "setp.eq.u32 %p4, %r2, 0;\nand.pred %p4, %p4, %p0;\nmov.u16 %h1, 3;\nmov.u16 %h2, 1;\n"
_PAIR_MMA = "@%p4 tcgen05.mma.cta_group::2.kind::f16 [%r30], %d11, %d12, %r16, %p5;\n"
_PAIR_COMMIT = (
    "@%p4 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
    "[%r4+8], %h1;\n"
)
_PAIR_START = f"{_PAIR_ALLOC}{DESCRIPTORS}mov.b32 %r16, {_SHAPE};\n{_LEADER}"
_PAIR_LOAD = f"{CLUSTER_READY}{load(16384)}{wait(0, 0)}"
_TAKE = LD + LD_WAIT + USE

# --- cluster launch control
_CANCEL = "@%p0 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r5], [%r4];\n"
_ANSWER = (
    ".reg .b128 answer;\n.reg .pred more;\nld.shared.b128 answer, [%r5];\n"
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 more, answer;\n"
)
_WHO = "mov.u32 %r20, 0;\n{guard}clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r20, answer;\nst.global.u32 [%d2], %r20;\n"

# --- tensor maps in global memory: one of %d3 (128 bytes at its end), copied from %d4
_COPY_MAP = (
    "add.s64 %d8, %d3, 30783;\nand.b64 %d8, %d8, -64;\n@!%p2 bra COPIED;\nshl.b32 %r20, %r6, 2;\ncvt.u64.u32 %d6, %r20;\n"
    "add.s64 %d7, %d6, %d4;\nld.b32 %r21, [%d7];\nadd.s64 %d7, %d6, %d8;\nst.global.u32 [%d7], %r21;\nCOPIED:\n"
)
_TILE = (
    "mov.u32 %r24, 0;\n"
    "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
    "[%d8, {%r24, %r24}], [%r4];\n"
)
# CUTLASS fences the maps of operands that are not there, too.
_MAP_RELEASE = "fence.proxy.tensormap::generic.release.gpu;\n"
_MAP_FENCE = (
    "fence.proxy.tensormap::generic.acquire.gpu [%d8], 128;\n"
    "mov.u64 %d9, 0;\nfence.proxy.tensormap::generic.acquire.gpu [%d9], 128;\n"
)

KERNELS = (
    # --- rings
    Micro(
        "a ring whose producer does not wait for the first turn to be over",
        ring(first="<<0|1>>"),
        STUCK,
    ),
    Micro(
        "a ring with a phase that is never turned",
        ring(flip="<<|@%p4 xor.b32 %r41, %r41, 1;\n>>"),
        (*HAZARD, *STUCK, "mbarrier-overrun", "cta-exit", "arrive"),
    ),
    Micro(
        "a ring in which one consumer is not counted",
        ring(empty="<<2|3>>"),
        (*HAZARD, "mbarrier-overrun", *STUCK, "cta-exit"),
    ),
    Micro("a ring that counts a consumer too many", ring(empty="<<4|3>>"), STUCK),
    Micro(
        "a ring in which all lanes give a stage back",
        ring(
            release="bar.warp.sync -1;\n<<|@%p1 >>mbarrier.arrive.shared::cta.b64 _, [%r45+16];\n"
        ),
        ("mbarrier-overrun", "arrival", *HAZARD, *STUCK),
    ),
    Micro(
        "a ring whose stages are given back ahead of their reads",
        ring(consume=f"<<{_GIVE}{_READ}|{_READ}{_GIVE}>>", release=""),
        HAZARD,
    ),
    Micro(
        "a ring whose stages are never given back",
        ring(
            release="<<|bar.warp.sync -1;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r45+16];\n>>"
        ),
        STUCK,
    ),
    Micro(
        "a ring whose lanes have not met when one gives a stage back",
        ring(
            release="<<|bar.warp.sync -1;\n>>@%p1 mbarrier.arrive.shared::cta.b64 _, [%r45+16];\n"
        ),
        HAZARD,
    ),
    Micro(
        "a ring whose consumers write what they have read",
        ring(consume=f"{_READ}<<st.shared.u32 [%r46], 0;\n|>>"),
        (*HAZARD, "proxy-fence"),
    ),
    Micro(
        "a ring that is read one stage ahead",
        ring(consume="<<xor.b32 %r46, %r46, 512;\n|>>" + _READ),
        HAZARD,
    ),
    Micro(
        "a load by every lane of the first warp",
        f"{READY}{expect(512)}<<@%p2 |@%p0 >>{bulk(512, guard='')}{wait(0, 0)}",
        ("tx-count", "async-hazard", "cta-exit", *STUCK),
    ),
    Micro(
        "bytes expected by every lane of the first warp",
        f"{READY}<<@%p2 |@%p0 >>{expect(512, guard='')}{bulk(512)}{wait(0, 0)}",
        ("mbarrier-overrun", "arrival", "tx-count", *STUCK),
    ),
    Micro(
        "a barrier of two teams with one number",
        f"{STORE}setp.lt.u32 %p3, %r1, 2;\nbar.sync 1, 64;\n<<xor.b32 %r20, %r7, 256;\n|xor.b32 %r20, %r7, 128;\n>>ld.shared.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n".replace(
            "bar.sync 1, 64", "@%p3 bar.sync 1, 64;\n@!%p3 bar.sync 2, 64"
        ),
        ("shared-race",),
    ),
    Micro(
        "a barrier with fewer threads than come",
        "bar.sync 1, <<96|128>>;\n",
        ("barrier", "deadlock", "threads"),
    ),
    Micro(
        "a barrier with two numbers of threads",
        "setp.lt.u32 %p3, %r1, 2;\n@%p3 bar.sync 1, 128;\n@!%p3 bar.sync 1, <<96|128>>;\n",
        ("barrier", "threads"),
    ),
    Micro(
        "two arrivals at the cluster barrier",
        "<<barrier.cluster.arrive.aligned;\n|>>barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n",
        ("twice",),
        **PAIR,
    ),
    Micro(
        "a wait for the cluster barrier without an arrival",
        "<<|barrier.cluster.arrive.aligned;\n>>barrier.cluster.wait.aligned;\n",
        ("without an arrive",),
        **PAIR,
    ),
    Micro(
        "the proxy fence of global memory for shared data",
        f"{STORE}fence.proxy.async.<<global|shared::cta>>;\n{BAR}{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "the proxy fence of shared memory for global data",
        f"{READY}@%p0 st.global.u32 [%d3], 7;\n@%p0 fence.proxy.async.<<shared::cta|global>>;\n{load(512)}{wait(0, 0)}",
        ("proxy-fence",),
    ),
    Micro(
        "a relaxed arrival at a peer's mbarrier",
        f"{CLUSTER_READY}{PEER}@%p0 st.shared::cluster.u32 [%r11], 5;\n@%p0 mbarrier.arrive.<<relaxed|release>>.cluster.shared::cluster.b64 _, [%r12];\nW:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra W;\nld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n{CLUSTER}",
        ("shared-race",),
        **PAIR,
    ),
    Micro(
        "an arrival at a peer's mbarrier ahead of the data",
        f"{CLUSTER_READY}{PEER}<<@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n@%p0 st.shared::cluster.u32 [%r11], 5;\n|@%p0 st.shared::cluster.u32 [%r11], 5;\n@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n>>W:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra W;\nld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n{CLUSTER}",
        ("shared-race",),
        **PAIR,
    ),
    Micro(
        "a volatile flag in shared memory without fences",
        f"@%p0 st.volatile.shared.u32 [%r3+1024], 0;\n{BAR}setp.eq.u32 %p3, %r0, 32;\n@%p2 bra GIVE;\n@!%p3 bra DONE;\nSPIN:\nld.volatile.shared.u32 %r20, [%r3+1024];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra SPIN;\n<<|membar.cta;\n>>ld.shared.u32 %r21, [%r3];\nst.global.u32 [%d2], %r21;\nbra DONE;\nGIVE:\n@%p0 st.shared.u32 [%r3], 5;\n<<|membar.cta;\n>>@%p0 st.volatile.shared.u32 [%r3+1024], 1;\nDONE:\n",
        ("shared-race",),
    ),
    Micro(
        "reductions of one CTA and stores of another",
        f"{STORE}{PROXY}{BAR}setp.eq.u32 %p3, %r9, 0;\nand.pred %p4, %p3, %p0;\nnot.pred %p3, %p3;\nand.pred %p3, %p3, %p0;\n@%p4 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n@%p3 cp.async.bulk.global.shared::cta.bulk_group [%d1<<|+512>>], [%r3], 512;\n{BULK_COMMIT}{BULK_WAIT}",
        ("async-hazard", "global-race", "same-value"),
        grid=2,
    ),
    # --- CTA pairs
    Micro(
        "a pair's accumulator read before the commit",
        f"{_PAIR_LOAD}{_PAIR_START}{_PAIR_MMA}{_PAIR_COMMIT}<<{_TAKE}{wait(1, 0)}{AFTER}|{wait(1, 0)}{AFTER}{_TAKE}>>{_PAIR_DEALLOC}",
        ("tensor-hazard", "tensor-race"),
        **PAIR,
    ),
    Micro(
        "a pair's commit that the peer is not told of",
        f"{_PAIR_LOAD}{_PAIR_START}{_PAIR_MMA}{_PAIR_COMMIT.replace('%h1', '<<%h2|%h1>>')}{wait(1, 0)}{AFTER}{_TAKE}{_PAIR_DEALLOC}",
        STUCK,
        **PAIR,
    ),
    Micro(
        "a pair's MMA before the peer's operands have come",
        f"{CLUSTER_READY}{load(16384)}{_PAIR_START}<<|{wait(0, 0)}{CLUSTER}>>{_PAIR_MMA}{_PAIR_COMMIT}{wait(1, 0)}{AFTER}{_TAKE}<<{wait(0, 0)}|>>{_PAIR_DEALLOC}",
        ("async-hazard",),
        **PAIR,
    ),
    Micro(
        "a pair's MMA after the leader's operands alone have come",
        f"{CLUSTER_READY}{load(16384)}{_PAIR_START}{wait(0, 0)}<<|{CLUSTER}>>{_PAIR_MMA}{_PAIR_COMMIT}{wait(1, 0)}{AFTER}{_TAKE}{_PAIR_DEALLOC}",
        ("async-hazard",),
        **PAIR,
    ),
    Micro(
        "a peer's operands loaded again before the pair's MMA is done",
        f"{_PAIR_LOAD}{_PAIR_START}{CLUSTER}{_PAIR_MMA}{_PAIR_COMMIT}<<{load(16384)}{wait(1, 0)}|{wait(1, 0)}{load(16384)}>>{AFTER}{wait(0, 1)}{_TAKE}{_PAIR_DEALLOC}",
        ("async-hazard",),
        **PAIR,
    ),
    Micro(
        "a pair's tensor memory freed by one CTA while the other loads",
        f"{_PAIR_LOAD}{_PAIR_START}{CLUSTER}{_PAIR_MMA}{_PAIR_COMMIT}{wait(1, 0)}{AFTER}{_TAKE}{_PAIR_DEALLOC.replace(CLUSTER, '<<' + BAR + '|' + CLUSTER + '>>')}<<{CLUSTER}|>>",
        ("tensor-race", "tensor-fence"),
        **PAIR,
    ),
    Micro(
        "a pair's tensor memory allocated by one CTA alone",
        f"setp.eq.u32 %p4, %r2, 0;\n<<@!%p4 bra ALLOCED;\n|>>{_PAIR_ALLOC.replace(CLUSTER, BAR)}<<@!%p4 bra FREED;\n|>>{_PAIR_DEALLOC}".replace(
            "FREED:\n", f"FREED:\n{CLUSTER}"
        ),
        ("deadlock", "peer", "allocation"),
        **PAIR,
    ),
    # --- cluster launch control
    Micro(
        "an answer read before it has come",
        f"{READY}{expect(16)}{_CANCEL}<<{_ANSWER}{wait(0, 0)}|{wait(0, 0)}{_ANSWER}>>selp.u32 %r20, 1, 0, more;\nst.global.u32 [%d2], %r20;\n",
        (*HAZARD, "response"),
        grid=2,
    ),
    Micro(
        "an answer asked for again while it is read",
        f"{READY}{expect(16)}{_CANCEL}{wait(0, 0)}ld.shared.u32 %r20, [%r5];\n<<|{BAR}>>{expect(16)}{_CANCEL}{wait(0, 1)}st.global.u32 [%d2], %r20;\n",
        HAZARD,
        grid=2,
    ),
    Micro(
        "an answer that nobody waits for",
        f"{READY}{expect(16)}{_CANCEL}<<|{wait(0, 0)}>>",
        ("cta-exit",),
        grid=2,
    ),
    Micro(
        "no bytes expected of an answer",
        f"{READY}<<@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n|{expect(16)}>>{_CANCEL}{wait(0, 0)}{_ANSWER}selp.u32 %r20, 1, 0, more;\nst.global.u32 [%d2], %r20;\n",
        (*HAZARD, "tx-count", "cta-exit", *STUCK),
        grid=2,
    ),
    Micro(
        "who was canceled, where nobody was",
        f"{READY}{expect(16)}{_CANCEL}{wait(0, 0)}{_ANSWER}{_WHO.replace('{guard}', '<<|@more >>')}",
        ("cancel",),
    ),
    # --- tensor maps
    Micro(
        "a tensor map used without a fence of its proxy",
        f"{READY}{_COPY_MAP}{_MAP_RELEASE}{BAR}<<|{_MAP_FENCE}>>{expect(2048)}{_TILE}{wait(0, 0)}",
        ("tensormap", "proxy-fence", "tensor map"),
    ),
    Micro(
        "a tensor map used before it is written",
        f"{READY}{_COPY_MAP}{_MAP_RELEASE}<<|{BAR}>>{_MAP_FENCE}{expect(2048)}{_TILE}{wait(0, 0)}",
        ("global-race", "proxy-fence", "lane-release", "tensor map"),
    ),
    Micro(
        "a tensor map that its writer does not release",
        f"{READY}{_COPY_MAP}<<|{_MAP_RELEASE}>>{BAR}{_MAP_FENCE}{expect(2048)}{_TILE}{wait(0, 0)}",
        ("proxy-fence",),
    ),
    Micro(
        "a tensor map that another warp releases ahead of the barrier",
        f"{READY}{_COPY_MAP}<<@!%p2 {_MAP_RELEASE}|>>{BAR}<<|{_MAP_RELEASE}>>{_MAP_FENCE}{expect(2048)}{_TILE}{wait(0, 0)}",
        ("proxy-fence",),
    ),
    Micro(
        "a tensor map of zeros",
        f"{READY}add.s64 %d8, %d1, 63;\nand.b64 %d8, %d8, -64;\n<<|mov.b64 %d8, %d4;\n>>\n{expect(2048)}{_TILE}{wait(0, 0)}",
        ("tensor map", "tensormap", "CUtensorMap"),
    ),
    # --- init
    Micro(
        "mbarriers of a ring without a fence for copies",
        f"<<{INIT.replace('fence.mbarrier_init.release.cluster;' + chr(10), '')}|{INIT}>>{BAR}{load(512)}{wait(0, 0)}",
        ("mbarrier-init",),
    ),
)
