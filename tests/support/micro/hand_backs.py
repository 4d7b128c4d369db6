"""Tensor memory that warps hand on, registers of wgmma, lanes and warps in shared memory."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.bulk import READ
from micro.case import Micro
from micro.pieces import (
    AFTER,
    ALLOC,
    BAR,
    BEFORE,
    CLUSTER,
    COMMIT,
    DEALLOC,
    FILL,
    LD,
    LD_WAIT,
    MMA,
    PEER,
    READY,
    ST_WAIT,
    STORE,
    TAKE,
    USE,
    WG_A,
    WG_COMMIT,
    WG_FENCE,
    WG_USE,
    WG_WAIT,
    WGMMA,
    load,
    wait,
)
from micro.pipelines import PAIR
from micro.tensor import DONE, HOPPER, START, SYNC, TAKE_LOAD, WG_START

HAZARD = ("async-hazard", "shared-race", "lane-release", "proxy-fence")
UNDEFINED = ("uninitialized-register",)

KERNELS = (
    Micro(
        "two warpgroups, store and load",
        f"{ALLOC}setp.lt.u32 %p3, %r1, 4;\nand.b32 %r34, %r1, 3;\nshl.b32 %r34, %r34, 21;\nadd.u32 %r31, %r34, %r30;\n@!%p3 bra G;\n{FILL}{ST_WAIT}G:\n<<|{SYNC}>>@%p3 bra F;\n{TAKE_LOAD}F:\n{DEALLOC}",
        ("tensor-race", "uninitialized-tensor"),
        block=256,
    ),
    Micro(
        "two warpgroups, no fence",
        f"{ALLOC}setp.lt.u32 %p3, %r1, 4;\nand.b32 %r34, %r1, 3;\nshl.b32 %r34, %r34, 21;\nadd.u32 %r31, %r34, %r30;\n@!%p3 bra G;\n{FILL}{ST_WAIT}G:\n<<|{BEFORE}>>{BAR}<<|{AFTER}>>@%p3 bra F;\n{TAKE_LOAD}F:\n{DEALLOC}",
        ("tensor-fence",),
        block=256,
    ),
    Micro(
        "two warpgroups, no fence after",
        f"{ALLOC}setp.lt.u32 %p3, %r1, 4;\nand.b32 %r34, %r1, 3;\nshl.b32 %r34, %r34, 21;\nadd.u32 %r31, %r34, %r30;\n@!%p3 bra G;\n{FILL}{ST_WAIT}G:\n{BEFORE}{BAR}<<|{AFTER}>>@%p3 bra F;\n{TAKE_LOAD}F:\n{DEALLOC}",
        ("tensor-fence",),
        block=256,
    ),
    Micro(
        "two warpgroups, no fence before",
        f"{ALLOC}setp.lt.u32 %p3, %r1, 4;\nand.b32 %r34, %r1, 3;\nshl.b32 %r34, %r34, 21;\nadd.u32 %r31, %r34, %r30;\n@!%p3 bra G;\n{FILL}{ST_WAIT}G:\n<<|{BEFORE}>>{BAR}{AFTER}@%p3 bra F;\n{TAKE_LOAD}F:\n{DEALLOC}",
        ("tensor-fence",),
        block=256,
    ),
    Micro(
        "two warpgroups, store not waited for",
        f"{ALLOC}setp.lt.u32 %p3, %r1, 4;\nand.b32 %r34, %r1, 3;\nshl.b32 %r34, %r34, 21;\nadd.u32 %r31, %r34, %r30;\n@!%p3 bra G;\n{FILL}<<|{ST_WAIT}>>G:\n{SYNC}@%p3 bra F;\n{TAKE_LOAD}F:\n{ST_WAIT}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
        block=256,
    ),
    Micro(
        "handback by mbarrier without fence",
        f"{START}{MMA}{COMMIT}{DONE}{LD}{LD_WAIT}<<|{BEFORE}>>mbarrier.arrive.shared::cta.b64 _, [%r4+16];\n{USE}@!%p0 bra G;\n{wait(2, 0)}{AFTER}{MMA}{COMMIT}G:\n{wait(1, 1)}{AFTER}{DEALLOC}".replace(
            "[%r4+16], 1;", "[%r4+16], 128;"
        ),
        ("tensor-fence",),
    ),
    Micro(
        "handback by mbarrier without fence after",
        f"{START}{MMA}{COMMIT}{DONE}{LD}{LD_WAIT}{BEFORE}mbarrier.arrive.shared::cta.b64 _, [%r4+16];\n{USE}@!%p0 bra G;\n{wait(2, 0)}<<|{AFTER}>>{MMA}{COMMIT}G:\n{wait(1, 1)}{AFTER}{DEALLOC}".replace(
            "[%r4+16], 1;", "[%r4+16], 128;"
        ),
        ("tensor-fence",),
    ),
    Micro(
        "handback ahead of the load's wait",
        f"{START}{MMA}{COMMIT}{DONE}{LD}<<{BEFORE}mbarrier.arrive.shared::cta.b64 _, [%r4+16];\n{LD_WAIT}|{LD_WAIT}{BEFORE}mbarrier.arrive.shared::cta.b64 _, [%r4+16];\n>>{USE}@!%p0 bra G;\n{wait(2, 0)}{AFTER}{MMA}{COMMIT}G:\n{wait(1, 1)}{AFTER}{DEALLOC}".replace(
            "[%r4+16], 1;", "[%r4+16], 128;"
        ),
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "load of columns beyond the MMA's",
        f"{START}{MMA}{COMMIT}{DONE}add.u32 %r31, %r31, <<32|31>>;\n{TAKE_LOAD}{DEALLOC}",
        ("uninitialized-tensor",),
    ),
    Micro(
        "a sum of a load before its wait",
        f"{ALLOC}{FILL}{ST_WAIT}{LD}<<add.u32 %r33, %r32, 1;\n{LD_WAIT}|{LD_WAIT}add.u32 %r33, %r32, 1;\n>>st.global.u32 [%d2], %r33;\n{DEALLOC}",
        ("load-wait",),
    ),
    Micro(
        "a load of x4, last used before its wait",
        f"{ALLOC}{FILL}{ST_WAIT}tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r32, %r33, %r34, %r35}}, [%r31];\n<<st.shared.u32 [%r7], %r35;\n{LD_WAIT}|{LD_WAIT}st.shared.u32 [%r7], %r35;\n>>{DEALLOC}",
        ("load-wait",),
    ),
    Micro(
        "freed with other number of columns",
        f"{ALLOC}{BEFORE}{BAR}{AFTER}@!%p2 bra FREED;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, <<32|64>>;\nFREED:\n",
        ("column", "alloc"),
    ),
    Micro(
        "tcgen05.wait on only one warp",
        f"{ALLOC}{FILL}<<@%p2 bra W;\nbra V;\nW:\n|>>{ST_WAIT}V:\n{TAKE_LOAD}{ST_WAIT}{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "smem reloaded after another barrier's phase",
        f"{START}{MMA}{COMMIT}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4+16];\n{wait(2, 0)}<<|{DONE}>>{load(16384)}{wait(0, 1)}<<{DONE}|>>{TAKE_LOAD}{DEALLOC}",
        ("async-hazard",),
    ),
    Micro(
        "wgmma fence left out for A fragments",
        f"{WG_START}mov.u32 %r40, 0;\nmov.u32 %r41, 0;\nmov.u32 %r42, 0;\nmov.u32 %r43, 0;\n<<|{WG_FENCE}>>{WG_A.replace(', %d12, ', ', %d12, %p5, 1, 1, 0;')}\n{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma",),
        **HOPPER,
    ),
    Micro(
        "wgmma with a fragment never set",
        f"{WG_START}mov.u32 %r40, 0;\n<<|mov.u32 %r41, 0;\n>>mov.u32 %r42, 0;\nmov.u32 %r43, 0;\n{WG_FENCE}{WG_A.replace(', %d12, ', ', %d12, %p5, 1, 1, 0;')}\n{WG_COMMIT}{WG_WAIT}{WG_USE}",
        UNDEFINED,
        **HOPPER,
    ),
    Micro(
        "wgmma stage freed after wait_group 1",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}wgmma.wait_group.sync.aligned <<1|0>>;\n{BAR}{load(16384)}{WG_WAIT}{wait(0, 1)}{WG_USE}",
        ("async-hazard",),
        **HOPPER,
    ),
    Micro(
        "a shuffle of a lane outside the mask",
        "setp.lt.u32 %p3, %r6, 16;\n@!%p3 bra E;\nshfl.sync.idx.b32 %r21, %r0, <<20|3>>, 31, 0xffff;\nst.global.u32 [%d2], %r21;\nE:\n",
        ("shuffle-source",),
    ),
    Micro(
        "a shuffle down into lanes outside the mask",
        "setp.lt.u32 %p3, %r6, 16;\n@!%p3 bra E;\nshfl.sync.down.b32 %r21, %r0, 8, <<31|0x100f>>, 0xffff;\nst.global.u32 [%d2], %r21;\nE:\n",
        ("shuffle-source",),
    ),
    Micro(
        "a butterfly after half has left",
        "setp.ge.u32 %p3, %r6, 16;\n@%p3 exit;\nshfl.sync.bfly.b32 %r21, %r0, <<16|8>>, 31, <<0xffffffff|0xffff>>;\nst.global.u32 [%d2], %r21;\n",
        ("shuffle-source", "exited-lanes"),
    ),
    Micro(
        "shared words of lanes",
        "st.shared.u32 [%r7], %r0;\n<<|bar.warp.sync -1;\n>>xor.b32 %r20, %r7, 4;\nld.shared.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n",
        ("shared-race",),
    ),
    Micro(
        "warp reduction without sync in steps",
        "st.shared.u32 [%r7], %r0;\nbar.warp.sync -1;\nld.shared.u32 %r20, [%r7];\nxor.b32 %r22, %r7, 64;\nld.shared.u32 %r21, [%r22];\nadd.u32 %r20, %r20, %r21;\n<<|bar.warp.sync -1;\n>>st.shared.u32 [%r7], %r20;\nbar.warp.sync -1;\nxor.b32 %r22, %r7, 32;\nld.shared.u32 %r21, [%r22];\nst.global.u32 [%d2], %r21;\n",
        ("shared-race",),
    ),
    Micro("write-write of two warps", "<<|@%p2 >>st.shared.u32 [%r3], %r1;\n", ("shared-race",)),
    Micro(
        "write-write of byte",
        "setp.eq.u32 %p3, %r0, 33;\n@%p0 st.shared.u8 [%r3+<<1|2>>], 77;\n@%p3 st.shared.u16 [%r3], %r0;\n",
        ("shared-race",),
    ),
    Micro(
        "atomics and a load",
        "@%p0 st.shared.u32 [%r3], 0;\nbar.sync 0;\natom.shared.add.u32 %r20, [%r3], 1;\n<<|bar.sync 0;\n>>ld.shared.u32 %r21, [%r3];\nst.global.u32 [%d2], %r21;\n",
        ("shared-race",),
    ),
    Micro(
        "bar.red in another id",
        f"{STORE}bar.red.popc.u32 %r20, <<1, 64|0>>, %p0;\n".replace("1, 64", "0").replace(
            "bar.red.popc.u32 %r20, <<0|0>>, %p0;\n", "<<|bar.red.popc.u32 %r20, 0, %p0;\n>>"
        )
        + TAKE,
        ("shared-race",),
    ),
    Micro(
        "named barrier for two warps only",
        f"{STORE}setp.lt.u32 %p3, %r1, 2;\n@%p3 bar.sync 1, 64;\n@!%p3 bar.sync 2, 64;\n<<|bar.sync 0;\n>>{TAKE}",
        ("shared-race",),
    ),
    Micro(
        "stmatrix then load",
        f"stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r22], {{%r0}};\n<<|{BAR}>>{TAKE}".join(
            (
                "shl.b32 %r22, %r6, 4;\nshl.b32 %r23, %r1, 7;\nadd.u32 %r22, %r22, %r23;\nadd.u32 %r22, %r22, %r3;\n",
                "",
            )
        ),
        ("shared-race",),
    ),
    Micro(
        "cp.async over what was read by others",
        f"{STORE}{BAR}ld.shared.u32 %r20, [%r8];\n<<|{BAR}>>shl.b32 %r22, %r0, 2;\ncvt.u64.u32 %d6, %r22;\nadd.s64 %d6, %d6, %d3;\ncp.async.ca.shared.global [%r7], [%d6], 4;\ncp.async.wait_all;\n{BAR}",
        ("shared-race", "async-hazard"),
    ),
    Micro(
        "mbarrier.test_wait ignored",
        f"{READY}{load(512)}mbarrier.test_wait.parity.shared::cta.b64 %p7, [%r4], 0;\n<<|@!%p7 bra N;\n>>{READ}<<|N:\n>>{wait(0, 0)}",
        HAZARD,
    ),
    Micro(
        "fence.mbarrier_init left out cluster",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n<<|fence.mbarrier_init.release.cluster;\n>>barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n{PEER}@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];\n{wait(0, 0)}{CLUSTER}",
        ("mbarrier-init",),
        **PAIR,
    ),
    Micro(
        "init then TMA by same thread",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n<<|fence.proxy.async.shared::cta;\n>>{load(512)}{BAR}{wait(0, 0)}{READ}",
        ("mbarrier-init",),
    ),
)
