"""Tensor memory, tcgen05 and wgmma."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    AFTER,
    ALLOC,
    BAR,
    BEFORE,
    COMMIT,
    DEALLOC,
    DESCRIPTORS,
    FILL,
    LD,
    LD_WAIT,
    MMA,
    MORE,
    OPERANDS,
    PROXY,
    READY,
    ST_WAIT,
    STORE,
    USE,
    WG_A,
    WG_COMMIT,
    WG_DESCRIPTORS,
    WG_FENCE,
    WG_MORE,
    WG_USE,
    WG_WAIT,
    WGMMA,
    load,
    wait,
)

DONE = wait(1, 0) + AFTER
TAKE_LOAD = LD + LD_WAIT + USE
START = OPERANDS + ALLOC + DESCRIPTORS
HOPPER = {"target": "sm_90a"}
WG_START = OPERANDS + WG_DESCRIPTORS
SYNC = BEFORE + BAR + AFTER
# The next warp's lanes.
_OTHER = "xor.b32 %r33, %r31, 0x200000;\n"
# Fills A and B by ordinary stores.
_OWN_OPERANDS = "".join(f"st.shared.u32 [%r7+{512 * i}], 0;\n" for i in range(32))

KERNELS = (
    # --- allocation
    Micro(
        "tensor memory that is never freed",
        f"{ALLOC}<<|{DEALLOC}>>",
        ("still allocated",),
    ),
    Micro(
        "tensor memory freed twice",
        DEALLOC.join((ALLOC, ""))
        + "<<@!%p2 bra TWICE;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;\nTWICE:\n|>>",
        ("allocation",),
    ),
    Micro(
        "tensor memory past its allocation",
        f"{ALLOC}tcgen05.st.sync.aligned.32x32b.x1.b32 [%r31+<<64|63>>], {{%r0}};\n{ST_WAIT}{DEALLOC}",
        ("allocat",),
    ),
    Micro(
        "lanes of another warp",
        f"{ALLOC}<<|shl.b32 %r33, %r1, 21;\nadd.u32 %r30, %r30, %r33;\n>>"
        f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%r30], {{%r0}};\n{ST_WAIT}<<|sub.u32 %r30, %r30, %r33;\n>>{DEALLOC}",
        ("lane",),
    ),
    Micro(
        "tensor memory freed while another warp loads",
        f"{ALLOC}{FILL}{ST_WAIT}{LD}<<{DEALLOC.replace(BAR, '')}{LD_WAIT}{USE}|{LD_WAIT}{USE}{DEALLOC}>>",
        ("tensor-race", "tensor-hazard", "tensor-fence", "in use"),
    ),
    Micro(
        "an allocation's address read too early",
        "@!%p2 bra ALLOCED;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 64;\nALLOCED:\n"
        f"<<|{BAR}>>ld.shared.b32 %r30, [%r5];\nst.global.u32 [%d2], %r30;\n{DEALLOC}",
        ("shared-race", "async-hazard"),
    ),
    Micro(
        "an allocation after the permit is given up",
        "@!%p2 bra ALLOCED;\n<<tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n|>>"
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 64;\nALLOCED:\n"
        f"{BAR}ld.shared.b32 %r30, [%r5];\n{DEALLOC}",
        ("relinquish",),
    ),
    # --- loads and stores
    Micro(
        "a load's register used before its wait",
        f"{ALLOC}{FILL}{ST_WAIT}{LD}<<{USE}{LD_WAIT}|{LD_WAIT}{USE}>>{DEALLOC}",
        ("load-wait",),
    ),
    Micro(
        "a load's register overwritten before its wait",
        f"{ALLOC}{FILL}{ST_WAIT}{LD}<<mov.u32 %r32, 5;\n{LD_WAIT}|{LD_WAIT}mov.u32 %r32, 5;\n>>{USE}{DEALLOC}",
        ("load-wait",),
    ),
    Micro(
        "a load's register as another load's address",
        f"{ALLOC}tcgen05.st.sync.aligned.32x32b.x1.b32 [%r31], {{%r31}};\n{ST_WAIT}{LD}<<|{LD_WAIT}>>"
        f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r33}}, [%r32];\n{LD_WAIT}{DEALLOC}",
        ("load-wait",),
    ),
    Micro(
        "a load ahead of the store's wait",
        f"{ALLOC}{FILL}<<|{ST_WAIT}>>{TAKE_LOAD}<<{ST_WAIT}|>>{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "a store ahead of the load's wait",
        f"{ALLOC}{FILL}{ST_WAIT}{LD}<<{FILL}{LD_WAIT}|{LD_WAIT}{FILL}>>{ST_WAIT}{USE}{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "the wait of the other kind",
        f"{ALLOC}{FILL}<<{LD_WAIT}|{ST_WAIT}>>{TAKE_LOAD}{ST_WAIT}{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "a load of what nothing has written",
        f"{ALLOC}<<|{FILL}{ST_WAIT}>>{TAKE_LOAD}{DEALLOC}",
        ("uninitialized-tensor",),
    ),
    Micro(
        "a load of one column more than is written",
        f"{ALLOC}{FILL}{ST_WAIT}tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r32}}, [%r31+<<4|3>>];\n{LD_WAIT}{USE}{DEALLOC}",
        ("uninitialized-tensor",),
    ),
    Micro(
        "a load in divergent code",
        f"{ALLOC}{FILL}{ST_WAIT}setp.lt.u32 %p3, %r6, <<16|32>>;\n@!%p3 bra SKIP;\n{TAKE_LOAD}SKIP:\n{DEALLOC}",
        ("lanes", "aligned", "converged"),
    ),
    # --- MMAs
    Micro(
        "an accumulator loaded before the MMA is done",
        f"{START}{MMA}{COMMIT}<<{TAKE_LOAD}{DONE}|{DONE}{TAKE_LOAD}>>{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "a commit ahead of the MMA",
        f"{START}<<{COMMIT}{MMA}|{MMA}{COMMIT}>>{DONE}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "a second MMA without a commit",
        f"{START}{MMA}{COMMIT}<<{MORE}|>>{DONE}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "a commit to an mbarrier that nobody waits for",
        f"{START}{MMA}{COMMIT.replace('[%r4+8]', '[%r4+<<16|8>>]')}"
        f"<<@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4+8];\n|>>{DONE}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "a commit by another thread",
        f"{START}{MMA}{COMMIT.replace('@%p0', '@%p3').join(('setp.eq.u32 %p3, %r0, <<32|0>>;' + chr(10), ''))}"
        f"{DONE}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "tcgen05.fence left out after the commit",
        f"{START}{MMA}{COMMIT}{wait(1, 0)}<<|{AFTER}>>{TAKE_LOAD}{DEALLOC}",
        ("tensor-fence",),
    ),
    Micro(
        "tcgen05.fence left out between a store and an MMA",
        f"{START}{FILL}{ST_WAIT}<<|{BEFORE}>>{BAR}<<|{AFTER}>>{MORE}{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}".replace(
            "x4.b32 [%r31], {%r0, %r0, %r0, %r0}", f"x32.b32 [%r31], {{{', '.join(['%r0'] * 32)}}}"
        ),
        ("tensor-fence",),
    ),
    Micro(
        "an MMA on what another warp still stores",
        f"{START}{FILL}{ST_WAIT}<<|{SYNC}>>{MORE}{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}".replace(
            "x4.b32 [%r31], {%r0, %r0, %r0, %r0}", f"x32.b32 [%r31], {{{', '.join(['%r0'] * 32)}}}"
        ),
        ("tensor-race", "tensor-hazard"),
    ),
    Micro(
        "an MMA over an accumulator that is still loaded",
        f"{START}{MMA}{COMMIT}{DONE}{LD}{LD_WAIT}<<|{SYNC}>>{MMA}{COMMIT}{wait(1, 1)}{AFTER}{USE}{DEALLOC}",
        ("tensor-race", "tensor-hazard"),
    ),
    Micro(
        "an MMA over an accumulator whose loads nobody has waited for",
        f"{START}{MMA}{COMMIT}{DONE}{LD}<<{SYNC}{MMA}{COMMIT}{LD_WAIT}|{LD_WAIT}{SYNC}{MMA}{COMMIT}>>{wait(1, 1)}{AFTER}{USE}{DEALLOC}",
        ("tensor-race", "tensor-hazard"),
    ),
    Micro(
        "an accumulator that is never set to zero",
        f"{START}<<{MORE}|{MMA}>>{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}",
        ("uninitialized-tensor",),
    ),
    Micro(
        "an MMA before its operands have come",
        f"{READY}{load(16384)}{ALLOC}{DESCRIPTORS}<<{MMA}{COMMIT}{wait(0, 0)}|{wait(0, 0)}{MMA}{COMMIT}>>{DONE}{TAKE_LOAD}{DEALLOC}",
        ("async-hazard",),
    ),
    Micro(
        "an MMA on operands stored without a proxy fence",
        f"{READY}{_OWN_OPERANDS}<<|{PROXY}>>{ALLOC}{DESCRIPTORS}{MMA}{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}",
        ("proxy-fence",),
    ),
    Micro(
        "an MMA on operands that other warps still store",
        f"{READY}{ALLOC}{_OWN_OPERANDS}{PROXY}<<|{BAR}>>{DESCRIPTORS}{MMA}{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}",
        ("shared-race", "async-hazard", "proxy-fence"),
    ),
    Micro(
        "operands overwritten before the MMA is done",
        f"{START}{MMA}{COMMIT}<<{STORE}{DONE}|{DONE}{STORE}>>{TAKE_LOAD}{DEALLOC}",
        ("async-hazard",),
    ),
    Micro(
        "operands loaded again before the MMA is done",
        f"{START}{MMA}{COMMIT}<<{load(16384)}{DONE}|{DONE}{load(16384)}>>{wait(0, 1)}{TAKE_LOAD}{DEALLOC}",
        ("async-hazard",),
    ),
    Micro(
        "an exit before the MMA is done",
        f"{START}{MMA}<<|{COMMIT}{DONE}>>{DEALLOC}",
        ("tensor-race", "tensor-hazard", "in use", "cta-exit", "deadlock"),
    ),
    Micro(
        "tensor memory freed before the MMA is done",
        f"{START}{MMA}{COMMIT}<<{DEALLOC}{DONE}|{DONE}{DEALLOC}>>",
        ("tensor-race", "tensor-hazard", "in use"),
    ),
    Micro(
        "a copy to tensor memory read before it is done",
        f"{START}@%p0 tcgen05.cp.cta_group::1.128x128b [%r30], %d11;\n{COMMIT}<<{TAKE_LOAD}{DONE}|{DONE}{TAKE_LOAD}>>{DEALLOC}",
        ("tensor-hazard", "tensor-race"),
    ),
    Micro(
        "the source of a copy to tensor memory overwritten",
        f"{START}@%p0 tcgen05.cp.cta_group::1.128x128b [%r30], %d11;\n{COMMIT}<<{STORE}{DONE}|{DONE}{STORE}>>{TAKE_LOAD}{DEALLOC}",
        ("async-hazard",),
    ),
    Micro(
        "a copy to tensor memory of what is stored without a proxy fence",
        f"{READY}{_OWN_OPERANDS}<<|{PROXY}>>{ALLOC}{DESCRIPTORS}@%p0 tcgen05.cp.cta_group::1.128x128b [%r30], %d11;\n"
        f"{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}",
        ("proxy-fence",),
    ),
    Micro(
        "an instruction descriptor without a shape",
        f"{START}<<mov.b32 %r16, 0;\n|>>{MMA}{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}",
        ("descriptor",),
    ),
    Micro(
        "operands past the end of shared memory",
        f"{START}<<add.s64 %d12, %d11, {(32768 - 256) // 16};\n|>>{MMA}{COMMIT}{DONE}{TAKE_LOAD}{DEALLOC}",
        ("shared memory", "outside"),
    ),
    # --- wgmma
    Micro(
        "wgmma's registers read before the wait",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}<<{WG_USE}{WG_WAIT}|{WG_WAIT}{WG_USE}>>",
        ("async-hazard", "wgmma"),
        **HOPPER,
    ),
    Micro(
        "wgmma's registers read after a weaker wait",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}wgmma.wait_group.sync.aligned <<1|0>>;\n{WG_USE}{WG_WAIT}",
        ("async-hazard", "wgmma"),
        **HOPPER,
    ),
    Micro(
        "wgmma without a commit",
        f"{WG_START}{WG_FENCE}{WGMMA}<<|{WG_COMMIT}>>{WG_WAIT}{WG_USE}",
        ("async-hazard", "wgmma"),
        **HOPPER,
    ),
    Micro(
        "wgmma on registers that were just written",
        f"{WG_START}{''.join(f'mov.u32 %v{i}, 0;' + chr(10) for i in range(8))}<<|{WG_FENCE}>>{WG_MORE}{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma",),
        **HOPPER,
    ),
    Micro(
        "wgmma on A in registers that were just written",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}{WG_WAIT}mov.u32 %r40, 0;\nmov.u32 %r41, 0;\nmov.u32 %r42, 0;\nmov.u32 %r43, 0;\n"
        f"<<|{WG_FENCE}>>{WG_A.replace(', %d12, ', ', %d12, %p6, 1, 1, 0;')}\n{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma",),
        **HOPPER,
    ),
    Micro(
        "A's registers written while wgmma reads them",
        "mov.u32 %r40, 0;\nmov.u32 %r41, 0;\nmov.u32 %r42, 0;\nmov.u32 %r43, 0;\n"
        f"{WG_START}{WG_FENCE}{WG_A.replace(', %d12, ', ', %d12, %p5, 1, 1, 0;')}\n{WG_COMMIT}"
        f"<<mov.u32 %r40, 1;\n{WG_WAIT}|{WG_WAIT}mov.u32 %r40, 1;\n>>{WG_USE}",
        ("wgmma", "async-hazard"),
        **HOPPER,
    ),
    Micro(
        "accumulators that are never set to zero",
        f"{WG_START}{WG_FENCE}<<{WG_MORE}|{WGMMA}>>{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("uninitialized-register",),
        **HOPPER,
    ),
    Micro(
        "wgmma before its operands have come",
        f"{READY}{load(16384)}{WG_DESCRIPTORS}{WG_FENCE}<<{WGMMA}{WG_COMMIT}{wait(0, 0)}|{wait(0, 0)}{WGMMA}{WG_COMMIT}>>{WG_WAIT}{WG_USE}",
        ("async-hazard",),
        **HOPPER,
    ),
    Micro(
        "wgmma's operands loaded again before it is done",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}<<{BAR}{load(16384)}{WG_WAIT}|{WG_WAIT}{BAR}{load(16384)}>>{wait(0, 1)}{WG_USE}",
        ("async-hazard",),
        **HOPPER,
    ),
    Micro(
        "wgmma on operands stored without a proxy fence",
        f"{READY}{_OWN_OPERANDS}<<|{PROXY}>>{BAR}{WG_DESCRIPTORS}{WG_FENCE}{WGMMA}{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("proxy-fence",),
        **HOPPER,
    ),
    Micro(
        "wgmma's operands stored over before it is done",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}<<{STORE}{WG_WAIT}|{WG_WAIT}{BAR}{STORE}>>{WG_USE}",
        ("async-hazard", "shared-race"),
        **HOPPER,
    ),
    Micro(
        "wgmma by one warp",
        f"{WG_START}<<@!%p2 bra SKIP;\n|>>{WG_FENCE}{WGMMA}{WG_COMMIT}{WG_WAIT}SKIP:\n",
        ("warp", "deadlock"),
        **HOPPER,
    ),
)
