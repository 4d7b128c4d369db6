"""Operations of tensor cores that follow each other: tcgen05 of two threads on the same tensor
memory, wgmma on the same registers."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    AFTER,
    BAR,
    BEFORE,
    COMMIT,
    DEALLOC,
    FILL,
    MMA,
    MORE,
    READY,
    ST_WAIT,
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
from micro.tensor import HOPPER, START, SYNC, TAKE_LOAD, WG_START

RACE = ("tensor-race",)
_COPIES = "".join(
    f"@%p0 tcgen05.cp.cta_group::1.128x128b [%r30+{4 * i}], %d11;\n" for i in range(8)
)
_ENDS = wait(1, 0) + wait(2, 0) + AFTER + TAKE_LOAD + DEALLOC


def second(order: str, operation: str = MORE, own_order: str = "") -> str:
    """What a thread of another warp issues, and its commit."""
    own = operation.replace("@%p0 ", "") + COMMIT.replace("@%p0 ", "").replace("%r4+8", "%r4+16")
    return f"{order}setp.eq.u32 %p3, %r0, 32;\n@!%p3 bra NEXT;\n{own_order}{own}NEXT:\n"


_V8 = "{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}"
_WAITED = f"<<|{WG_WAIT}{WG_FENCE}>>"


def narrow(registers: str) -> str:
    """An operation of half the columns."""
    return f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{registers}}}, %d11, %d12, %p6, 1, 1, 0, 0;\n"


_FILLED = "".join(FILL.replace("[%r31]", f"[%r31+{4 * i}]") for i in range(16)) + ST_WAIT

KERNELS = (
    Micro(
        "two threads' MMAs on one accumulator",
        f"{START}{MMA}{COMMIT}{second('', own_order=f'<<|{wait(1, 0)}{AFTER}>>')}{_ENDS}",
        RACE,
    ),
    Micro(
        "two threads' MMAs, ordered by a barrier",
        f"{START}{MMA}{COMMIT}{second(f'<<|{SYNC}>>')}{_ENDS}",
        RACE,
    ),
    Micro(
        "two threads' MMAs, the second without accumulating",
        f"{START}{MMA}{COMMIT}{second(f'<<|{SYNC}>>', MMA)}{_ENDS}",
        RACE,
    ),
    Micro(
        "a thread's MMA on what another one copies",
        f"{START}{_COPIES}{COMMIT}{second(f'<<|{BEFORE}{BAR}{AFTER}>>')}{_ENDS}",
        RACE,
    ),
    Micro(
        "two threads' copies to one place",
        f"{START}{_COPIES}{COMMIT}{second(f'<<|{SYNC}>>', _COPIES)}{_ENDS}",
        RACE,
    ),
    # --- wgmma
    Micro(
        "wgmma of another shape on accumulators in flight",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}{_WAITED}{narrow('%v0, %v1, %v2, %v3')}{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma-registers",),
        **HOPPER,
    ),
    Micro(
        "wgmma on half of the accumulators in flight, uncommitted",
        f"{WG_START}{WG_FENCE}{WGMMA}<<|{WG_COMMIT}{WG_WAIT}{WG_FENCE}>>{narrow('%v4, %v5, %v6, %v7')}{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma-registers",),
        **HOPPER,
    ),
    Micro(
        "wgmma on accumulators in flight in another order",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}{WG_MORE.replace(_V8, '{%v1, %v0, %v2, %v3, %v4, %v5, %v6, %v7}').join(('<<', '|' + WG_MORE + '>>'))}{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma-registers",),
        **HOPPER,
    ),
    Micro(
        "accumulators in flight as A of the next wgmma",
        f"{WG_START}{WG_FENCE}{WGMMA}{WG_COMMIT}{_WAITED}"
        + WG_A.replace(_V8, "{%v8, %v9, %v10, %v11, %v12, %v13, %v14, %v15}").replace(
            "{%r40, %r41, %r42, %r43}", "{%v0, %v1, %v2, %v3}"
        )
        + f"%p5, 1, 1, 0;\n{WG_COMMIT}{WG_WAIT}{WG_USE.replace('%v0', '%v8')}",
        ("wgmma-registers",),
        **HOPPER,
    ),
    Micro(
        "A's registers in flight as the next accumulators",
        "".join(f"mov.u32 %v{i}, 0;\n" for i in range(8, 12))
        + f"{WG_START}{WG_FENCE}"
        + WG_A.replace("{%r40, %r41, %r42, %r43}", "{%v8, %v9, %v10, %v11}")
        + f"%p5, 1, 1, 0;\n{WG_COMMIT}{_WAITED}"
        + narrow("%v8, %v9, %v10, %v11").replace("%p6", "%p5")
        + f"{WG_COMMIT}{WG_WAIT}{WG_USE}",
        ("wgmma-registers",),
        **HOPPER,
    ),
    # --- one thread's MMAs
    Micro(
        "MMAs whose accumulators overlap",
        f"{START}{MMA}{MMA.replace('[%r30]', '[%r33]').join(('add.u32 %r33, %r30, <<16|32>>;' + chr(10), ''))}{COMMIT}{wait(1, 0)}{AFTER}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "MMAs of different shapes on one accumulator",
        f"{START}{MMA}<<|{COMMIT}{wait(1, 0)}{AFTER}>>sub.u32 %r16, %r16, {16 // 8 << 17};\n{MORE}{COMMIT}<<{wait(1, 0)}|{wait(1, 1)}>>{AFTER}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "an MMA whose accumulator overlaps its A in tensor memory",
        f"{START}{_FILLED}{SYNC}add.u32 %r33, %r30, <<28|32>>;\n{MMA.replace('%d11', '[%r33]')}{COMMIT}{wait(1, 0)}{AFTER}{TAKE_LOAD}{DEALLOC}",
        ("tensor-hazard",),
    ),
    Micro(
        "one warp of a warpgroup waits for the operands",
        f"{READY}{load(16384)}<<@!%p2 bra GO;\n|>>{wait(0, 0)}GO:\n{WG_DESCRIPTORS}{WG_FENCE}{WGMMA}{WG_COMMIT}{WG_WAIT}{WG_USE}<<{wait(0, 0)}|>>",
        ("async-hazard",),
        **HOPPER,
    ),
)
