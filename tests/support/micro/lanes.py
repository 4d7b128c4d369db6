"""Lanes that name members of their own, what several lanes have read, and fences of one thread that
speak for others."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import ALLOC, BAR

# Tiles of 8 lanes, as cooperative groups have them: %r20, its lanes.
_TILE = "and.b32 %r21, %r6, 24;\nshl.b32 %r20, 0xff, %r21;\n"

# Every CTA writes its words; the last one to count at a flag adds up those of all.
_PUBLISH = "st.global.u32 [%d2+4096], %r0;\n"
_COUNT = "@%p0 atom.relaxed.gpu.global.add.u32 %r20, [%d1], 1;\n"
_LAST = "@%p0 st.shared.u32 [%r3], %r20;\nbar.sync 0;\nld.shared.u32 %r21, [%r3];\nsetp.ne.u32 %p3, %r21, 2;\n@%p3 bra E;\n"
_SUM = (
    "mul.wide.u32 %d6, %r0, 4;\nadd.s64 %d6, %d6, %d1;\nld.global.u32 %r22, [%d6+4096];\n"
    "ld.global.u32 %r23, [%d6+4608];\nld.global.u32 %r24, [%d6+5120];\nadd.u32 %r22, %r22, %r23;\n"
    "add.u32 %r22, %r22, %r24;\nst.global.u32 [%d6+8192], %r22;\nE:\n"
)
_THREE = {"grid": 3}

_FLAG = "@!%p0 bra E;\nsetp.eq.u32 %p3, %r9, 0;\n@!%p3 bra C;\nst.global.u32 [%d1+64], %r0;\n"
_SET = "st.relaxed.gpu.global.u32 [%d1], 1;\nbra E;\nC:\nld.relaxed.gpu.global.u32 %r20, [%d1];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra C;\n"
_SEEN = "ld.global.u32 %r21, [%d1+64];\nst.global.u32 [%d1+128], %r21;\nE:\n"

# Lanes 0 to 19 add up their numbers; those at the end read lanes that are elsewhere.
_TREE = "".join(
    f"shfl.sync.down.b32 %r21, %r20, {step}, 31, 0xfffff;\nadd.u32 %r22, %r6, {step};\nsetp.lt.u32 %p4, %r22, 20;\n{{guard}}add.u32 %r20, %r20, %r21;\n"
    for step in (16, 8, 4, 2, 1)
)

KERNELS = (
    Micro(
        "a sum of a part of a warp with what lies beyond it",
        "setp.lt.u32 %p3, %r6, 20;\n@!%p3 bra E;\nmov.u32 %r20, %r0;\n"
        f"<<{_TREE.format(guard='')}|{_TREE.format(guard='@%p4 ')}>>@%p1 st.global.u32 [%d2], %r20;\nE:\n",
        ("shuffle-source",),
    ),
    Micro(
        "sums of a tree that is used beyond its root",
        "setp.lt.u32 %p3, %r6, 16;\n@!%p3 bra E;\nshfl.sync.down.b32 %r20, %r0, 8, 31, 0xffff;\nadd.u32 %r20, %r20, %r0;\nshfl.sync.down.b32 %r21, %r20, 4, 31, 0xffff;\nadd.u32 %r20, %r20, %r21;\n"
        "setp.lt.u32 %p4, %r6, <<8|4>>;\n@%p4 st.global.u32 [%d2], %r20;\nE:\n",
        ("shuffle-source",),
    ),
    Micro(
        "a predicate of a lane that does not vote",
        "setp.lt.u32 %p3, %r6, 16;\n@!%p3 bra E;\nshfl.sync.down.b32 %r20, %r0, <<16|0>>, 31, 0xffff;\nsetp.lt.u32 %p4, %r20, 8;\n@%p4 st.global.u32 [%d2], %r0;\nE:\n",
        ("shuffle-source",),
    ),
    Micro(
        "a word of another tile of lanes",
        f"{_TILE}st.shared.u32 [%r7], %r0;\nbar.warp.sync %r20;\nxor.b32 %r22, %r0, <<8|4>>;\nshl.b32 %r22, %r22, 2;\nadd.u32 %r22, %r22, %r3;\nld.shared.u32 %r23, [%r22];\nst.global.u32 [%d2], %r23;\n",
        ("shared-race",),
    ),
    Micro(
        "tiles of lanes that meet on two ways",
        f"{_TILE}st.shared.u32 [%r7], %r0;\nand.b32 %r22, %r6, 12;\nsetp.eq.u32 %p3, %r22, 4;\n@%p3 bra B;\nbar.warp.sync %r20;\nbra J;\nB:\nbar.warp.sync %r20;\nJ:\nxor.b32 %r22, %r0, <<16|4>>;\nshl.b32 %r22, %r22, 2;\nadd.u32 %r22, %r22, %r3;\nld.shared.u32 %r23, [%r22];\nst.global.u32 [%d2], %r23;\n",
        ("shared-race",),
    ),
    Micro(
        "a shuffle out of a tile of lanes",
        f"{_TILE}shfl.sync.bfly.b32 %r22, %r0, <<8|4>>, 31, %r20;\nst.global.u32 [%d2], %r22;\n",
        ("shuffle-source",),
    ),
    Micro(
        "a reduction among tiles of lanes without their first lane",
        f"{_TILE}<<shl.b32 %r20, 0xfe, %r21;\n|>>redux.sync.add.u32 %r22, %r0, %r20;\nvote.sync.ballot.b32 %r23, %p1, %r20;\nadd.u32 %r22, %r22, %r23;\nst.global.u32 [%d2], %r22;\n",
        ("member",),
    ),
    Micro(
        "a lane reads a word, its owner reads and writes it",
        f"st.shared.u32 [%r7], %r0;\n{BAR}xor.b32 %r20, %r0, 16;\nshl.b32 %r20, %r20, 2;\nadd.u32 %r20, %r20, %r3;\nld.shared.u32 %r21, [%r20];\nld.shared.u32 %r22, [%r7];\nadd.u32 %r21, %r21, %r22;\n<<|bar.warp.sync -1;\n>>st.shared.u32 [%r7], %r21;\n",
        ("shared-race",),
    ),
    Micro(
        "many lanes read a word, the last one writes it",
        f"st.global.u32 [%d2], %r0;\n{BAR}@!%p2 bra E;\nld.global.u32 %r20, [%d1+124];\n<<|bar.warp.sync -1;\n>>setp.eq.u32 %p3, %r6, 31;\n@%p3 st.global.u32 [%d1+124], %r4;\nE:\n",
        ("global-race",),
    ),
    Micro(
        "a lane's undefined register goes to its neighbour",
        "setp.eq.u32 %p3, %r6, 3;\n<<@!%p3 |>>mov.u32 %r20, %r0;\nshfl.sync.bfly.b32 %r21, %r20, 1, 31, -1;\nst.global.u32 [%d2], %r21;\n",
        ("uninitialized-register",),
    ),
    Micro(
        "a broadcast from the wrong lane",
        "@%p1 mov.u32 %r20, %r0;\nshfl.sync.idx.b32 %r21, %r20, <<1|0>>, 31, -1;\nst.global.u32 [%d2], %r21;\n",
        ("uninitialized-register",),
    ),
    # Fences of all threads, a barrier, one thread counts: fence.sc has one order.
    Micro(
        "fences ahead of the barrier that are no fence.sc",
        f"{_PUBLISH}fence.<<acq_rel|sc>>.gpu;\n{BAR}{_COUNT}{_LAST}fence.sc.gpu;\n{_SUM}",
        ("global-race",),
        **_THREE,
    ),
    Micro(
        "fences ahead of the barrier, none behind it",
        f"{_PUBLISH}membar.gl;\n{BAR}{_COUNT}{_LAST}<<|membar.gl;\n>>{_SUM}",
        ("global-race",),
        **_THREE,
    ),
    Micro(
        "one warp without a fence ahead of the barrier",
        f"{_PUBLISH}setp.ne.u32 %p4, %r1, 2;\n<<@%p4 |>>membar.gl;\n{BAR}{_COUNT}{_LAST}membar.gl;\n{_SUM}",
        ("global-race",),
        **_THREE,
    ),
    Micro(
        "fences ahead of the stores and the barrier",
        f"<<membar.gl;\n{_PUBLISH}|{_PUBLISH}membar.gl;\n>>{BAR}{_COUNT}{_LAST}membar.gl;\n{_SUM}",
        ("global-race",),
        **_THREE,
    ),
    Micro(
        "fences of scope cta ahead of the barrier",
        f"{_PUBLISH}fence.sc.<<cta|gpu>>;\n{BAR}{_COUNT}{_LAST}membar.gl;\n{_SUM}",
        ("global-race",),
        **_THREE,
    ),
    Micro(
        "an acquire fence ahead of a flag",
        f"{_FLAG}fence.<<acquire|release>>.gpu;\n{_SET}fence.acquire.gpu;\n{_SEEN}",
        ("global-race",),
        grid=2,
    ),
    Micro(
        "a release fence behind a flag",
        f"{_FLAG}fence.release.gpu;\n{_SET}fence.<<release|acquire>>.gpu;\n{_SEEN}",
        ("global-race",),
        grid=2,
    ),
    # Instructions of a whole warp, of which lanes have exited.
    Micro(
        "tensor memory freed by one lane",
        f"{ALLOC}{BAR}<<@!%p0|@!%p2>> bra E;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;\nE:\n",
        ("exited-lanes",),
    ),
    Micro(
        "setmaxnreg of half of the lanes",
        "and.b32 %r20, %r0, 1;\nsetp.eq.u32 %p3, %r20, 0;\n<<@%p3 bra E;\n|>>setmaxnreg.dec.sync.aligned.u32 40;\nE:\n",
        ("exited-lanes",),
        target="sm_90a",
    ),
)
