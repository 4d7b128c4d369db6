"""One lane waits in the place of its warp, and the others do not meet it behind the wait."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    AFTER,
    ALLOC,
    BAR,
    COMMIT,
    DEALLOC,
    DESCRIPTORS,
    LD,
    LD_WAIT,
    MMA,
    OPERANDS,
    READY,
    STORE,
    TAKE,
    USE,
    load,
)

# The first lane of each warp alone waits for the phase of mbarrier 0.
_WAIT = (
    "@!%p1 bra J;\nW:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [%r4], 0;\n@!%p7 bra W;\nJ:\n"
)
_MEET = "<<|bar.warp.sync -1;\n>>"
_REPORT = ("lane-wait",)
# Or the other lanes have run ahead of it.
_AHEAD = ("lane-wait", "shared-race", "async-hazard")
# All threads tell mbarrier 0 of what they did.
_ALL = "@%p0 mbarrier.init.shared::cta.b64 [%r4], 128;\n"
_ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
_SENT = "fence.proxy.async.shared::cta;\nbar.warp.sync -1;\n@!%p1 bra S;\nshl.b32 %r20, %r1, 7;\nadd.u32 %r21, %r3, %r20;\ncvt.u64.u32 %d6, %r20;\nadd.s64 %d6, %d6, %d1;\ncp.async.bulk.global.shared::cta.bulk_group [%d6], [%r21], 128;\ncp.async.bulk.commit_group;\nS:\n"
_FLAG = "setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra C;\nst.global.u32 [%d2+8192], %r0;\nbar.sync 0;\n@%p0 st.release.gpu.global.u32 [%d1], 1;\nbra E;\nC:\n@!%p2 bra E;\n"
_SEEN = "mul.wide.u32 %d6, %r0, 4;\nadd.s64 %d6, %d6, %d1;\nld.global.u32 %r20, [%d6+8192];\nst.global.u32 [%d6+12288], %r20;\nE:\n"
# Each lane copies 16 bytes of its own; %r24: where to.
_COPY = "shl.b32 %r20, %r0, 4;\nadd.u32 %r24, %r3, %r20;\ncvt.u64.u32 %d6, %r20;\nadd.s64 %d6, %d6, %d3;\ncp.async.cg.shared.global [%r24], [%d6], 16;\n"
_NEIGHBOUR = "xor.b32 %r20, %r0, 1;\nshl.b32 %r20, %r20, 4;\nadd.u32 %r20, %r20, %r3;\nld.shared.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n"

KERNELS = (
    Micro(
        "a lane waits for a bulk load, all lanes read it",
        f"{READY}{load(512)}{_WAIT}{_MEET}{TAKE}",
        _AHEAD,
    ),
    Micro(
        "a lane waits for words of other warps, all lanes read them",
        f"{_ALL}{BAR}{STORE}{_ARRIVE}{_WAIT}{_MEET}{TAKE}",
        _AHEAD,
    ),
    Micro(
        "a lane waits for readers in other warps, all lanes write",
        f"{_ALL}{STORE}{BAR}{TAKE}{_ARRIVE}{_WAIT}{_MEET}{STORE}",
        _AHEAD,
    ),
    Micro(
        "a lane waits for its bulk store, all lanes write over it",
        f"{STORE}{_SENT}@%p1 cp.async.bulk.wait_group.read 0;\n{_MEET}{STORE}@%p1 cp.async.bulk.wait_group 0;\n",
        _REPORT,
    ),
    Micro(
        "all lanes wait for bulk stores, each for its own",
        f"{STORE}{_SENT}cp.async.bulk.wait_group.read 0;\n{_MEET}{STORE}@%p1 cp.async.bulk.wait_group 0;\n",
        _REPORT,
    ),
    Micro(
        "a lane waits for readers, another one loads over what they read",
        f"{_ALL}@%p0 mbarrier.init.shared::cta.b64 [%r4+8], 1;\n@%p0 fence.mbarrier_init.release.cluster;\n{STORE}fence.proxy.async.shared::cta;\n{BAR}{TAKE}{_ARRIVE}@!%p2 bra E;\n{_WAIT}{_MEET}setp.eq.u32 %p3, %r6, <<1|0>>;\n{load(512, 1).replace('@%p0', '@%p3')}V:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [%r4+8], 0;\n@!%p7 bra V;\nE:\n",
        _AHEAD,
    ),
    Micro(
        "lanes that meet the one that waited, and a reader that does not",
        f"{READY}{load(512)}{_WAIT}<<setp.lt.u32 %p4, %r6, 16;\n@%p4 bar.warp.sync 0xffff|bar.warp.sync -1>>;\n{TAKE}",
        _REPORT,
    ),
    Micro(
        "a lane acquires a flag, all lanes read what it guards",
        f"{_FLAG}@!%p1 bra J;\nW:\nld.acquire.gpu.global.u32 %r20, [%d1];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra W;\nJ:\n{_MEET}{_SEEN}",
        _REPORT,
        grid=2,
    ),
    Micro(
        "a shuffle behind the wait of one lane",
        f"{READY}{load(512)}{_WAIT}<<shfl.sync.idx.b32 %r22, %r0, 0, 31, -1|bar.warp.sync -1>>;\n{TAKE}",
        _REPORT,
    ),
    Micro(
        "a lane waits for an MMA, its warp loads the accumulators",
        f"{OPERANDS}{ALLOC}{DESCRIPTORS}{MMA}{COMMIT}{_WAIT.replace('[%r4]', '[%r4+8]')}{_MEET}{AFTER}{LD}{LD_WAIT}{USE}{DEALLOC}",
        _REPORT,
    ),
    # Copies of cp.async: each lane waits for its own.
    Micro(
        "a neighbour's copy by cp.async behind the own wait",
        f"{_COPY}cp.async.commit_group;\ncp.async.wait_group 0;\n{_MEET}{_NEIGHBOUR}",
        _REPORT,
    ),
    Micro(
        "the copy of a lane that the wait's tile leaves out",
        f"{_COPY}cp.async.wait_all;\nand.b32 %r21, %r6, 24;\nshl.b32 %r20, 0xff, %r21;\nbar.warp.sync <<%r20|-1>>;\n{_NEIGHBOUR.replace(', 1;', ', 8;')}",
        _REPORT,
    ),
    Micro(
        "a warp's copies by cp.async, taken by ldmatrix",
        f"{_COPY}cp.async.commit_group;\ncp.async.wait_group 0;\n{_MEET}ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r20}}, [%r24];\nst.global.u32 [%d2], %r20;\n",
        _REPORT,
    ),
    # Volatile accesses order no lanes.
    Micro(
        "a sum of a warp by volatile accesses",
        f"st.volatile.shared.u32 [%r7], %r0;\n{BAR}"
        + "".join(
            f"ld.volatile.shared.u32 %r20, [%r7];\nld.volatile.shared.u32 %r21, [%r7+{4 * step}];\nadd.u32 %r20, %r20, %r21;\n<<|bar.warp.sync -1;\n>>setp.lt.u32 %p3, %r6, {step};\n@%p3 st.volatile.shared.u32 [%r7], %r20;\n<<|bar.warp.sync -1;\n>>"
            for step in (16, 8, 4)
        ),
        _REPORT,
        block=32,
    ),
    Micro(
        "a volatile word of the neighbour",
        f"st.volatile.shared.u32 [%r7], %r0;\n{_MEET}xor.b32 %r24, %r7, 4;\nld.volatile.shared.u32 %r20, [%r24];\nst.global.u32 [%d2], %r20;\n",
        _REPORT,
    ),
)
