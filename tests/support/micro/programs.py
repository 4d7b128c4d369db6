"""Longer kernels, as people write them: reductions, scans, double buffers, locks, exchanges."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    AFTER,
    ALLOC,
    BAR,
    BEFORE,
    BULK_COMMIT,
    CLUSTER,
    COMMIT,
    DEALLOC,
    DESCRIPTORS,
    LD,
    LD_WAIT,
    MMA,
    OPERANDS,
    PROXY,
    READY,
    ST_WAIT,
    USE,
    expect,
    wait,
)

RACE = ("shared-race",)
HAZARD = ("async-hazard", "shared-race")
_FOUR = {"grid": 4, "cluster": 4}

# A tree over 128 words: %r40 is half of what is left.
_TREE = (
    "st.shared.u32 [%r7], %r0;\n{first}mov.u32 %r40, 64;\nTREE:\nsetp.lt.u32 %p3, %r0, %r40;\n@!%p3 bra SKIP;\n"
    "shl.b32 %r41, %r40, 2;\nadd.u32 %r41, %r41, %r7;\nld.shared.u32 %r42, [%r41];\nld.shared.u32 %r43, [%r7];\n"
    "add.u32 %r43, %r43, %r42;\nst.shared.u32 [%r7], %r43;\nSKIP:\n{each}shr.u32 %r40, %r40, 1;\n"
    "setp.ne.u32 %p4, %r40, 0;\n@%p4 bra TREE;\n{last}ld.shared.u32 %r44, [%r3];\nst.global.u32 [%d2], %r44;\n"
)


def tree(first: str = BAR, each: str = BAR, last: str = "") -> str:
    return _TREE.format(first=first, each=each, last=last)


# A scan in two buffers of 512 bytes, %r40 the distance, %r45 the buffer that is read.
_SCAN = (
    "st.shared.u32 [%r7], %r0;\nmov.u32 %r40, 4;\nmov.u32 %r45, 0;\n{first}SCAN:\nadd.u32 %r46, %r7, %r45;\n"
    "ld.shared.u32 %r41, [%r46];\nsub.u32 %r47, %r46, %r40;\nshl.b32 %r48, %r0, 2;\nsetp.ge.u32 %p3, %r48, %r40;\n"
    "mov.u32 %r42, 0;\n@%p3 ld.shared.u32 %r42, [%r47];\nadd.u32 %r41, %r41, %r42;\nxor.b32 %r45, %r45, {other};\n"
    "add.u32 %r46, %r7, %r45;\n{middle}st.shared.u32 [%r46], %r41;\n{each}shl.b32 %r40, %r40, 1;\n"
    "setp.lt.u32 %p4, %r40, 512;\n@%p4 bra SCAN;\nst.global.u32 [%d2], %r41;\n"
)

# Three tiles of 512 bytes through two buffers by cp.async; each thread reads another thread's word.
_STREAM = (
    "shl.b32 %r22, %r0, 2;\ncvt.u64.u32 %d6, %r22;\nadd.s64 %d6, %d6, %d3;\n"
    "cp.async.ca.shared.global [%r7], [%d6], 4;\ncp.async.commit_group;\nmov.u32 %r40, 0;\nmov.u32 %r44, 0;\n"
    "STREAM:\nand.b32 %r41, %r40, 1;\nshl.b32 %r41, %r41, 9;\nxor.b32 %r42, %r41, 512;\nadd.u32 %r43, %r7, %r42;\n"
    "add.s64 %d6, %d6, 512;\ncp.async.ca.shared.global [%r43], [%d6], 4;\ncp.async.commit_group;\n"
    "cp.async.wait_group {left};\n{arrived}add.u32 %r43, %r8, %r41;\nld.shared.u32 %r45, [%r43];\nadd.u32 %r44, %r44, %r45;\n"
    "{read}add.u32 %r40, %r40, 1;\nsetp.lt.u32 %p3, %r40, 3;\n@%p3 bra STREAM;\ncp.async.wait_all;\nst.global.u32 [%d2], %r44;\n"
)


def stream(left: str = "1", arrived: str = BAR, read: str = BAR) -> str:
    return _STREAM.format(left=left, arrived=arrived, read=read)


# Four tiles stored through two buffers.
_STORES = (
    "mov.u32 %r40, 0;\nSTORES:\nand.b32 %r41, %r40, 1;\nshl.b32 %r41, %r41, 9;\nadd.u32 %r42, %r7, %r41;\n"
    "{free}add.u32 %r43, %r40, %r0;\nst.shared.u32 [%r42], %r43;\n{fence}bar.sync 0;\nadd.u32 %r44, %r3, %r41;\n"
    "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r44], 512;\n"
    f"{BULK_COMMIT}add.s64 %d1, %d1, 512;\nadd.u32 %r40, %r40, 1;\nsetp.lt.u32 %p3, %r40, 4;\n@%p3 bra STORES;\n"
    "{last}"
)
_FREE = "@%p0 cp.async.bulk.wait_group.read {n};\nbar.sync 0;\n"
_LAST = "@%p0 cp.async.bulk.wait_group.read 0;\n"


def stores(free: str = _FREE.format(n=1), fence: str = PROXY, last: str = _LAST) -> str:
    return _STORES.format(free=free, fence=fence, last=last)


_RIGHT = (
    "add.u32 %r13, %r2, 1;\nand.b32 %r13, %r13, 3;\nmapa.shared::cluster.u32 %r11, %r7, %r13;\n"
)
_A_IN_TMEM = (
    "tcgen05.st.sync.aligned.32x32b.x8.b32 [%r33], {%r0, %r0, %r0, %r0, %r0, %r0, %r0, %r0};\n"
)
_MMA_TMEM = "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r30], [%r34], %d12, %r16, %p5;\n"
_SYNC = BEFORE + BAR + AFTER
_DONE = wait(1, 0) + AFTER
_TWO = "add.u32 %r35, %r30, 32;\n" + MMA.replace("[%r30]", "[%r35]")

KERNELS = (
    Micro("a tree without a barrier before it", tree(first=f"<<|{BAR}>>"), RACE),
    Micro(
        "a tree without a barrier in each turn", tree(each=f"<<|{BAR}>>", last=f"<<{BAR}|>>"), RACE
    ),
    Micro(
        "a tree with barriers of each warp",
        tree(each=f"<<bar.warp.sync -1;\n|{BAR}>>", last=f"<<{BAR}|>>"),
        RACE,
    ),
    Micro(
        "a scan in one buffer",
        _SCAN.format(first=BAR, other="<<0|512>>", middle="", each=BAR),
        RACE,
    ),
    Micro(
        "a scan without a barrier in each turn",
        _SCAN.format(first=BAR, other="512", middle="", each=f"<<|{BAR}>>"),
        RACE,
    ),
    Micro(
        "a scan without a barrier before it",
        _SCAN.format(first=f"<<|{BAR}>>", other="512", middle="", each=BAR),
        RACE,
    ),
    Micro(
        "a scan in one buffer, one barrier of two",
        _SCAN.format(first=BAR, other="0", middle=f"<<|{BAR}>>", each=BAR),
        RACE,
    ),
    Micro("a stream that waits for the tile before", stream(left="<<2|1>>"), HAZARD),
    Micro("a stream without a barrier behind the wait", stream(arrived=f"<<|{BAR}>>"), HAZARD),
    Micro("a stream without a barrier behind the reads", stream(read=f"<<|{BAR}>>"), HAZARD),
    Micro(
        "stores through two buffers, three in flight",
        stores(free=_FREE.format(n="<<2|1>>")),
        HAZARD,
    ),
    Micro(
        "stores through two buffers whose writers do not hear of the wait",
        stores(free="@%p0 cp.async.bulk.wait_group.read 1;\n<<|bar.sync 0;\n>>"),
        HAZARD,
    ),
    Micro(
        "stores through two buffers without a wait at the end",
        stores(last=f"<<|{_LAST}>>"),
        ("bulk-exit",),
    ),
    Micro(
        "stores through two buffers without the proxy fence",
        stores(fence=f"<<|{PROXY}>>"),
        ("proxy-fence",),
    ),
    Micro(
        "a histogram without atomics",
        f"st.shared.u32 [%r7], 0;\n{BAR}and.b32 %r20, %r0, 7;\nshl.b32 %r20, %r20, 2;\nadd.u32 %r20, %r20, %r3;\n<<ld.shared.u32 %r21, [%r20];\nadd.u32 %r21, %r21, 1;\nst.shared.u32 [%r20], %r21;\n|red.shared.add.u32 [%r20], 1;\n>>",
        RACE,
    ),
    Micro(
        "a lock that is given back by an ordinary store",
        "@!%p0 bra DONE;\nTAKE:\natom.acquire.gpu.global.cas.b32 %r20, [%d1], 0, 1;\nsetp.ne.u32 %p3, %r20, 0;\n@%p3 bra TAKE;\nld.global.u32 %r21, [%d1+64];\nadd.u32 %r21, %r21, 1;\nst.global.u32 [%d1+64], %r21;\nst.<<|release.gpu.>>global.u32 [%d1], 0;\nDONE:\n",
        ("global-race",),
        grid=4,
    ),
    Micro(
        "a lock that only one side takes",
        "@!%p0 bra DONE;\nsetp.eq.u32 %p4, %r9, 0;\n<<@%p4 bra FREE;\n|>>TAKE:\natom.acquire.gpu.global.cas.b32 %r20, [%d1], 0, 1;\nsetp.ne.u32 %p3, %r20, 0;\n@%p3 bra TAKE;\nFREE:\nld.global.u32 %r21, [%d1+64];\nadd.u32 %r21, %r21, 1;\nst.global.u32 [%d1+64], %r21;\n<<@%p4 bra DONE;\n|>>st.release.gpu.global.u32 [%d1], 0;\nDONE:\n",
        ("global-race",),
        grid=4,
    ),
    Micro(
        "a ring of CTAs that does not wait for the message",
        f"st.shared.u32 [%r7], 0;\n{CLUSTER}{_RIGHT}st.shared::cluster.u32 [%r11], %r0;\n<<|{CLUSTER}>>ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n<<{CLUSTER}|>>",
        RACE,
        **_FOUR,
    ),
    Micro(
        "a ring of CTAs that sends before all have begun",
        f"<<|st.shared.u32 [%r7], 0;\n{CLUSTER}>>{_RIGHT}<<st.shared.u32 [%r7], 0;\n|>>st.shared::cluster.u32 [%r11], %r0;\n{CLUSTER}ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n",
        ("cta-start",),
        **_FOUR,
    ),
    Micro(
        "a sum of CTAs that is read too early",
        f"@%p0 st.shared.u32 [%r3], 0;\n{CLUSTER}mapa.shared::cluster.u32 %r11, %r3, 0;\n@%p0 red.relaxed.cluster.shared::cluster.add.u32 [%r11], 1;\n<<{BAR}|{CLUSTER}>>ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n<<{CLUSTER}|>>",
        RACE,
        **_FOUR,
    ),
    Micro(
        "a sum of the lanes of CTAs that is read too early",
        f"@%p0 st.shared.u32 [%r3], 0;\n{CLUSTER}mapa.shared::cluster.u32 %r11, %r3, 0;\nred.relaxed.cluster.shared::cluster.add.u32 [%r11], 1;\n<<{BAR}|{CLUSTER}>>ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n<<{CLUSTER}|>>",
        RACE,
        **_FOUR,
    ),
    Micro(
        "a sum of CTAs onto what is not zero yet",
        f"<<|@%p0 st.shared.u32 [%r3], 0;\n>>{CLUSTER}<<@%p0 st.shared.u32 [%r3], 0;\n|>>mapa.shared::cluster.u32 %r11, %r3, 0;\n@%p0 red.relaxed.cluster.shared::cluster.add.u32 [%r11], 1;\n{CLUSTER}ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n",
        RACE,
        **_FOUR,
    ),
    Micro(
        "A in tensor memory before its store is done",
        f"{OPERANDS}{ALLOC}{DESCRIPTORS}add.u32 %r33, %r31, 32;\nadd.u32 %r34, %r30, 32;\n{_A_IN_TMEM}<<|{ST_WAIT}>>{_SYNC}{_MMA_TMEM}{COMMIT}{_DONE}<<{ST_WAIT}|>>{LD}{LD_WAIT}{USE}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "A in tensor memory before other warps have stored it",
        f"{OPERANDS}{ALLOC}{DESCRIPTORS}add.u32 %r33, %r31, 32;\nadd.u32 %r34, %r30, 32;\n{_A_IN_TMEM}{ST_WAIT}<<|{_SYNC}>>{_MMA_TMEM}{COMMIT}{_DONE}{LD}{LD_WAIT}{USE}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "A in tensor memory stored over while the MMA reads it",
        f"{OPERANDS}{ALLOC}{DESCRIPTORS}add.u32 %r33, %r31, 32;\nadd.u32 %r34, %r30, 32;\n{_A_IN_TMEM}{ST_WAIT}{_SYNC}{_MMA_TMEM}{COMMIT}<<{_A_IN_TMEM}{ST_WAIT}{_DONE}|{_DONE}{_A_IN_TMEM}{ST_WAIT}>>{LD}{LD_WAIT}{USE}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "the other of two accumulators",
        f"{OPERANDS}{ALLOC}{DESCRIPTORS}{MMA}{COMMIT}{wait(1, 0)}{AFTER}{_TWO}{COMMIT}tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r32}}, [%r31+<<32|0>>];\n{LD_WAIT}{USE}{wait(1, 1)}{AFTER}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "one thread too many in a guard",
        "setp.<<le|lt>>.u32 %p3, %r10, 127;\nadd.s64 %d6, %d2, 32260;\n@%p3 st.global.u32 [%d6], %r0;\n",
        ("past the end", "memory"),
    ),
    Micro(
        "one element past an array, into the mbarriers behind it",
        f"{READY}@%p0 st.shared.u32 [%r3+<<32768|32764>>], %r0;\n{BAR}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}",
        ("mbarrier",),
    ),
    Micro(
        "a barrier in a loop of different lengths",
        "mov.u32 %r40, 0;\nand.b32 %r41, %r1, <<1|0>>;\nadd.u32 %r41, %r41, 2;\nLOOP:\nbar.sync 1, 128;\nadd.u32 %r40, %r40, 1;\nsetp.lt.u32 %p3, %r40, %r41;\n@%p3 bra LOOP;\n",
        ("deadlock", "barrier"),
    ),
    Micro(
        "a load that a guard leaves out",
        "setp.lt.u32 %p3, %r6, 16;\n<<|mov.u32 %r20, 0;\n>>@%p3 ld.global.u32 %r20, [%d2];\nadd.u32 %r20, %r20, 1;\nst.global.u32 [%d2], %r20;\n",
        ("uninitialized-register",),
    ),
    Micro(
        "a loop that may have no turns",
        "mov.u32 %r40, %ctaid.y;\n<<|mov.u32 %r20, 0;\n>>setp.eq.u32 %p3, %r40, 0;\n@%p3 bra OUT;\nLOOP:\nmov.u32 %r20, %r40;\nsub.u32 %r40, %r40, 1;\nsetp.ne.u32 %p3, %r40, 0;\n@%p3 bra LOOP;\nOUT:\nst.global.u32 [%d2], %r20;\n",
        ("uninitialized-register",),
    ),
    Micro(
        "fragments of copies that others make",
        "shl.b32 %r22, %r0, 4;\ncvt.u64.u32 %d6, %r22;\nadd.s64 %d6, %d6, %d3;\nadd.u32 %r23, %r22, %r3;\n"
        "cp.async.cg.shared.global [%r23], [%d6], 16;\ncp.async.wait_all;\n<<bar.warp.sync -1;\n|bar.sync 0;\n>>xor.b32 %r23, %r23, 512;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r24, %r25, %r26, %r27}, [%r23];\nst.global.u32 [%d2], %r24;\n",
        HAZARD,
    ),
    Micro(
        "one mbarrier for two tiles, half of the bytes",
        f"{READY}{expect(1024).replace('1024', '<<512|1024>>')}"
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d3], 512, [%r4];\n"
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+512], [%d3+512], 512, [%r4];\n"
        f"{wait(0, 0)}ld.shared.u32 %r20, [%r7+512];\nst.global.u32 [%d2], %r20;\n",
        ("async-hazard", "tx-count", "pending", "cta-exit"),
    ),
)
