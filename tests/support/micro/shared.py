"""Shared memory of a CTA and of a cluster, its barriers, and cp.async."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR, CLUSTER, PEER, STORE, TAKE

RACE = ("shared-race",)
WARP = {"block": 32}
# %r21: the word of the next lane.
_NEXT = (
    "add.u32 %r21, %r6, 1;\nand.b32 %r21, %r21, 31;\nshl.b32 %r21, %r21, 2;\n"
    "add.u32 %r21, %r21, %r3;\n"
)
_COPY = "shl.b32 %r22, %r0, 2;\ncvt.u64.u32 %d6, %r22;\nadd.s64 %d6, %d6, %d3;\n"
_CP = _COPY + "cp.async.ca.shared.global [%r7], [%d6], 4;\n"
_GROUP = "cp.async.commit_group;\n"
HAZARD = ("async-hazard", "shared-race")

KERNELS = (
    Micro(
        "a vector store and a byte load of another warp",
        "shl.b32 %r20, %r0, 4;\nadd.u32 %r20, %r20, %r3;\nst.shared.v4.u32 [%r20], {%r0, %r0, %r0, %r0};\n"
        f"<<|{BAR}>>xor.b32 %r21, %r20, 512;\nld.shared.u8 %r22, [%r21+13];\nst.global.u32 [%d2], %r22;\n",
        RACE,
    ),
    Micro(
        "a store through a generic address",
        f"cvt.u64.u32 %d6, %r7;\ncvta.shared.u64 %d6, %d6;\nst.u32 [%d6], %r0;\n<<|{BAR}>>{TAKE}",
        RACE,
    ),
    Micro(
        "the upper half of a 64-bit word",
        "shl.b32 %r20, %r0, 3;\nadd.u32 %r20, %r20, %r3;\ncvt.u64.u32 %d6, %r0;\nst.shared.u64 [%r20], %d6;\n"
        f"<<|{BAR}>>xor.b32 %r21, %r20, 256;\nld.shared.u16 %h1, [%r21+6];\ncvt.u32.u16 %r22, %h1;\n"
        "st.global.u32 [%d2], %r22;\n",
        RACE,
    ),
    Micro(
        "two named barriers for one hand-over",
        f"{STORE}shr.u32 %r20, %r1, 1;\nadd.u32 %r20, %r20, <<1;\nbar.sync %r20, 64|1;\nbar.sync 3, 128>>;\n{TAKE}",
        RACE,
    ),
    Micro(
        "a producer that arrives before it writes",
        "setp.lt.u32 %p3, %r1, 2;\n@!%p3 bra CONSUME;\n"
        f"<<bar.arrive 1, 128;\n{STORE}|{STORE}bar.arrive 1, 128;\n>>bra DONE;\nCONSUME:\nbar.sync 1, 128;\n"
        "ld.shared.u32 %r20, [%r7-256];\nst.global.u32 [%d2], %r20;\nDONE:\n",
        RACE,
    ),
    Micro(
        "a buffer written again without hearing from its readers",
        "setp.lt.u32 %p3, %r1, 2;\n@!%p3 bra CONSUME;\n"
        f"{STORE}bar.arrive 1, 128;\n<<|bar.sync 2, 128;\n>>{STORE}bra DONE;\nCONSUME:\nbar.sync 1, 128;\n"
        "ld.shared.u32 %r20, [%r7-256];\nst.global.u32 [%d2], %r20;\n<<|bar.arrive 2, 128;\n>>DONE:\n",
        RACE,
    ),
    Micro(
        "a vote in the place of a barrier",
        f"{STORE}<<vote.sync.any.pred %p3, %p0, -1;\n|bar.red.popc.u32 %r20, 0, %p0;\n>>{TAKE}",
        RACE,
    ),
    Micro(
        "a bar.warp.sync in the place of a barrier",
        f"{STORE}<<bar.warp.sync -1;\n|{BAR}>>{TAKE}",
        RACE,
    ),
    Micro(
        "a fence in the place of a barrier",
        f"{STORE}<<membar.cta;\n|{BAR}>>{TAKE}",
        RACE,
    ),
    Micro(
        "a plain read of what atomics count",
        f"@%p0 st.shared.u32 [%r3], 0;\n{BAR}red.shared.add.u32 [%r3], 1;\n<<|{BAR}>>"
        "ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n",
        RACE,
    ),
    Micro(
        "an atomic on what another warp sets to zero",
        f"@%p0 st.shared.u32 [%r3], 0;\n<<|{BAR}>>atom.shared.max.u32 %r20, [%r3], %r0;\n",
        RACE,
    ),
    Micro(
        "a flag in shared memory without release",
        "setp.lt.u32 %p3, %r1, 1;\nsetp.eq.u32 %p4, %r0, 32;\n@%p0 st.relaxed.cta.shared.u32 [%r3+1024], 0;\n"
        f"{BAR}@!%p3 bra READ;\n@%p0 st.shared.u32 [%r3], 5;\n"
        "@%p0 st.<<relaxed|release>>.cta.shared.u32 [%r3+1024], 1;\nbra DONE;\nREAD:\n@!%p4 bra DONE;\n"
        "AGAIN:\nld.acquire.cta.shared.u32 %r20, [%r3+1024];\nsetp.eq.u32 %p5, %r20, 0;\n@%p5 bra AGAIN;\n"
        "ld.shared.u32 %r21, [%r3];\nst.global.u32 [%d2], %r21;\nDONE:\n",
        RACE,
    ),
    Micro(
        "a lock without acquire",
        f"@%p0 st.shared.u32 [%r3], 0;\n@%p0 st.shared.u32 [%r3+1024], 0;\n{BAR}@!%p1 bra DONE;\nTAKE:\n"
        "atom.<<relaxed|acquire>>.cta.shared.cas.b32 %r20, [%r3+1024], 0, 1;\nsetp.ne.u32 %p3, %r20, 0;\n"
        "@%p3 bra TAKE;\nld.shared.u32 %r21, [%r3];\nadd.u32 %r21, %r21, 1;\nst.shared.u32 [%r3], %r21;\n"
        "atom.release.cta.shared.exch.b32 %r20, [%r3+1024], 0;\nDONE:\n",
        RACE,
    ),
    Micro(
        "a lock without release",
        f"@%p0 st.shared.u32 [%r3], 0;\n@%p0 st.shared.u32 [%r3+1024], 0;\n{BAR}@!%p1 bra DONE;\nTAKE:\n"
        "atom.acquire.cta.shared.cas.b32 %r20, [%r3+1024], 0, 1;\nsetp.ne.u32 %p3, %r20, 0;\n"
        "@%p3 bra TAKE;\nld.shared.u32 %r21, [%r3];\nadd.u32 %r21, %r21, 1;\nst.shared.u32 [%r3], %r21;\n"
        "atom.<<relaxed|release>>.cta.shared.exch.b32 %r20, [%r3+1024], 0;\nDONE:\n",
        RACE,
    ),
    Micro(
        "stmatrix read by another warp",
        "shl.b32 %r20, %r0, 4;\nand.b32 %r21, %r20, 127;\nshl.b32 %r22, %r1, 7;\nadd.u32 %r21, %r21, %r22;\n"
        "add.u32 %r21, %r21, %r3;\nstmatrix.sync.aligned.m8n8.x1.shared.b16 [%r21], {%r0};\n"
        f"<<bar.warp.sync -1;\n|{BAR}>>{TAKE}",
        RACE,
    ),
    Micro(
        "ldmatrix of rows that other lanes store",
        f"{STORE}<<|bar.warp.sync -1;\n>>and.b32 %r20, %r6, 7;\nshl.b32 %r20, %r20, 4;\nadd.u32 %r20, %r20, %r3;\n"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r21}, [%r20];\nst.global.u32 [%d2], %r21;\n",
        RACE,
        **WARP,
    ),
    Micro(
        "a transposition within a warp",
        f"{STORE}<<activemask.b32 %r20;\n|bar.warp.sync -1;\n>>{_NEXT}ld.shared.u32 %r20, [%r21];\n"
        "st.global.u32 [%d2], %r20;\n",
        RACE,
        **WARP,
    ),
    Micro(
        "a reduction's last step without bar.warp.sync",
        f"{STORE}bar.warp.sync -1;\nsetp.lt.u32 %p3, %r6, 16;\n@%p3 ld.shared.u32 %r20, [%r7+64];\n"
        "@%p3 ld.shared.u32 %r21, [%r7];\nadd.u32 %r20, %r20, %r21;\n@%p3 st.shared.u32 [%r7], %r20;\n"
        "<<|bar.warp.sync -1;\n>>setp.lt.u32 %p3, %r6, 8;\n@%p3 ld.shared.u32 %r20, [%r7+32];\n"
        "@%p3 st.global.u32 [%d2], %r20;\n",
        RACE,
        **WARP,
    ),
    Micro(
        "bar.warp.sync of half of the lanes",
        f"{STORE}setp.lt.u32 %p3, %r6, 16;\n@!%p3 bra HIGH;\nbar.warp.sync <<0xffff|-1>>;\nbra JOIN;\nHIGH:\n"
        "bar.warp.sync <<0xffff0000|-1>>;\nJOIN:\nxor.b32 %r20, %r6, 16;\nshl.b32 %r20, %r20, 2;\n"
        "add.u32 %r20, %r20, %r3;\nld.shared.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n",
        RACE,
        **WARP,
    ),
    # --- cp.async
    Micro(
        "cp.async read without a wait",
        f"{_CP}{_GROUP}<<|cp.async.wait_group 0;\n>>ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n",
        HAZARD,
    ),
    Micro(
        "cp.async waited for without a commit",
        f"{_CP}<<|{_GROUP}>>cp.async.wait_group 0;\nld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n",
        HAZARD,
    ),
    Micro(
        "cp.async: one group too few",
        f"{_CP}{_GROUP}cp.async.ca.shared.global [%r7+512], [%d6], 4;\n{_GROUP}"
        "cp.async.wait_group <<1|0>>;\nld.shared.u32 %r20, [%r7+512];\nst.global.u32 [%d2], %r20;\n",
        HAZARD,
    ),
    Micro(
        "cp.async of another thread without a barrier",
        f"{_CP}cp.async.wait_all;\n<<|{BAR}>>{TAKE}",
        HAZARD,
    ),
    Micro(
        "cp.async: the barrier ahead of the wait",
        f"{_CP}{_GROUP}<<{BAR}cp.async.wait_group 0;\n|cp.async.wait_group 0;\n{BAR}>>{TAKE}",
        HAZARD,
    ),
    Micro(
        "cp.async into what others still read",
        f"{STORE}{BAR}ld.shared.u32 %r20, [%r8];\n<<|{BAR}>>{_CP}cp.async.wait_all;\nst.global.u32 [%d2], %r20;\n",
        HAZARD,
    ),
    Micro(
        "cp.async.mbarrier.arrive that nobody waits for",
        "@%p0 mbarrier.init.shared::cta.b64 [%r4], 128;\n"
        f"{BAR}{_CP}cp.async.mbarrier.arrive.noinc.shared.b64 [%r4];\n"
        f"<<{BAR}|W:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra W;\n>>{TAKE}"
        "<<W:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra W;\n|>>",
        HAZARD,
    ),
    # --- clusters
    Micro(
        "a peer's memory read before it is written",
        f"{CLUSTER}{STORE}<<|{CLUSTER}>>{PEER}shl.b32 %r20, %r0, 2;\nadd.u32 %r11, %r11, %r20;\n"
        f"ld.shared::cluster.u32 %r21, [%r11];\nst.global.u32 [%d2], %r21;\n{CLUSTER}",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "a barrier of the CTA in the place of the cluster's",
        f"{CLUSTER}{STORE}<<{BAR}|{CLUSTER}>>{PEER}shl.b32 %r20, %r0, 2;\nadd.u32 %r11, %r11, %r20;\n"
        f"ld.shared::cluster.u32 %r21, [%r11];\nst.global.u32 [%d2], %r21;\n{CLUSTER}",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "an arrival at the cluster barrier without a wait",
        f"{CLUSTER}{STORE}barrier.cluster.arrive.aligned;\n<<|barrier.cluster.wait.aligned;\n>>{PEER}shl.b32 %r20, %r0, 2;\n"
        "add.u32 %r11, %r11, %r20;\nld.shared::cluster.u32 %r21, [%r11];\nst.global.u32 [%d2], %r21;\n"
        f"<<barrier.cluster.wait.aligned;\n|>>{CLUSTER}",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "a relaxed arrival at the cluster barrier",
        f"{STORE}barrier.cluster.arrive<<.relaxed|.release>>.aligned;\nbarrier.cluster.wait.aligned;\n{PEER}"
        "shl.b32 %r20, %r0, 2;\n"
        f"add.u32 %r11, %r11, %r20;\nld.shared::cluster.u32 %r21, [%r11];\nst.global.u32 [%d2], %r21;\n{CLUSTER}",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "a peer that stores into memory that is being read",
        f"{STORE}{CLUSTER}{PEER}shl.b32 %r20, %r0, 2;\nadd.u32 %r11, %r11, %r20;\nld.shared.u32 %r21, [%r7];\n"
        f"<<|{CLUSTER}>>st.shared::cluster.u32 [%r11], %r0;\n{CLUSTER}st.global.u32 [%d2], %r21;\n",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "an atomic of the CTA's scope on a peer's word",
        f"@%p0 st.shared.u32 [%r3], 0;\n{CLUSTER}mapa.shared::cluster.u32 %r11, %r3, 0;\n"
        f"red.relaxed.<<cta|cluster>>.shared::cluster.add.u32 [%r11], 1;\n{CLUSTER}",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "a peer that leaves before its memory has been read",
        f"{STORE}{CLUSTER}{PEER}shl.b32 %r20, %r0, 2;\nadd.u32 %r11, %r11, %r20;\n"
        f"ld.shared::cluster.u32 %r21, [%r11];\nst.global.u32 [%d2], %r21;\n<<|{CLUSTER}>>",
        ("cta-exit", "has exited"),
        grid=2,
        cluster=2,
    ),
    Micro(
        "a peer that leaves before an arrival at its mbarrier",
        "@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\nfence.mbarrier_init.release.cluster;\n"
        f"{CLUSTER}{PEER}@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n"
        "<<|W:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra W;\n>>",
        ("cta-exit", "has exited"),
        grid=2,
        cluster=2,
    ),
    Micro(
        "a CTA that the cluster has not",
        f"mapa.shared::cluster.u32 %r11, %r3, <<3|0>>;\nsetp.eq.u32 %p3, %r2, 1;\nand.pred %p3, %p3, %p0;\n"
        f"{CLUSTER}@%p3 st.shared::cluster.u32 [%r11], %r0;\n{CLUSTER}",
        ("cluster",),
        grid=2,
        cluster=2,
    ),
    # --- barriers themselves
    Micro(
        "a barrier that one warp does not come to",
        "<<setp.lt.u32 %p3, %r1, 3;\n@%p3 bra SKIP;\nbar.sync 1, 128;\nSKIP:\n|bar.sync 1, 128;\n>>",
        ("deadlock", "bar"),
    ),
    Micro(
        "a barrier of a number of threads that is no multiple of a warp",
        "bar.sync 1, <<100|128>>;\n",
        ("multiple", "warp"),
    ),
)
