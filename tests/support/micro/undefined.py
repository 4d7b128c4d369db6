"""Registers that nothing has written, and what their values may reach."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import ALLOC, DEALLOC, READY, ST_WAIT, bulk, expect, wait
from micro.tensor import TAKE_LOAD

UNDEFINED = ("uninitialized-register",)

KERNELS = (
    Micro(
        "an exit guarded by nothing",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>@%p3 exit;\nst.global.u32 [%d2], %r0;\n",
        UNDEFINED,
    ),
    Micro(
        "a ret guarded by nothing",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>@%p3 ret;\nst.global.u32 [%d2], %r0;\n",
        UNDEFINED,
    ),
    Micro(
        "a trap guarded by nothing",
        "<<|setp.ne.u32 %p3, %r0, %r0;\n>>@%p3 trap;\nst.global.u32 [%d2], %r0;\n",
        ("uninit", "trap"),
    ),
    Micro(
        "bytes of a register",
        "<<|mov.u32 %r20, 1;\n>>prmt.b32 %r21, %r20, %r0, 0x1054;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "bytes of two registers",
        "mov.u32 %r20, 1;\n<<|mov.u32 %r22, 1;\n>>prmt.b32 %r21, %r20, %r22, 0x5410;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "a carry",
        "<<|mov.u32 %r20, 1;\n>>add.cc.u32 %r21, %r20, %r0;\naddc.u32 %r22, %r0, 0;\nst.global.u32 [%d2], %r22;\n",
        UNDEFINED,
    ),
    Micro(
        "a carry that nothing sets",
        "<<|add.cc.u32 %r21, %r0, %r0;\n>>addc.u32 %r22, %r0, 0;\nst.global.u32 [%d2], %r22;\n",
        UNDEFINED,
    ),
    Micro(
        "a comparison of a register",
        "<<|mov.u32 %r20, 1;\n>>setp.lt.u32 %p3, %r20, 4;\n@%p3 st.global.u32 [%d2], %r0;\n",
        UNDEFINED,
    ),
    Micro(
        "a float conversion",
        "<<|mov.f32 %f1, 0f3F800000;\n>>cvt.rn.f16.f32 %h1, %f1;\nst.global.u16 [%d2], %h1;\n",
        UNDEFINED,
    ),
    Micro(
        "a packed conversion",
        "mov.f32 %f2, 0f3F800000;\n<<|mov.f32 %f1, 0f3F800000;\n>>cvt.rn.bf16x2.f32 %r20, %f1, %f2;\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "an fma",
        "mov.f32 %f2, 0f3F800000;\n<<|mov.f32 %f1, 0f3F800000;\n>>fma.rn.f32 %f3, %f2, %f2, %f1;\nst.global.f32 [%d2], %f3;\n",
        UNDEFINED,
    ),
    Micro(
        "an address",
        "<<|mov.u64 %d9, %d2;\n>>add.s64 %d9, %d9, 0;\nst.global.u32 [%d9], %r0;\n",
        ("uninit", "outside", "address"),
    ),
    Micro(
        "a store to tensor memory",
        f"{ALLOC}<<|mov.u32 %r40, 1;\n>>tcgen05.st.sync.aligned.32x32b.x1.b32 [%r31], {{%r40}};\n{ST_WAIT}{TAKE_LOAD}{DEALLOC}",
        UNDEFINED,
    ),
    Micro(
        "a shuffle's lane",
        "<<|mov.u32 %r20, 1;\n>>shfl.sync.idx.b32 %r21, %r0, %r20, 31, -1;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "min of a register",
        "<<|mov.u32 %r20, 1;\n>>min.u32 %r21, %r0, %r20;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "and of a register",
        "<<|mov.u32 %r20, 1;\n>>and.b32 %r21, %r0, %r20;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "shift of a register",
        "<<|mov.u32 %r20, 1;\n>>shl.b32 %r21, %r20, %r0;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "a 64-bit sum",
        "<<|mov.u64 %d9, 1;\n>>add.s64 %d9, %d9, %d1;\ncvt.u32.u64 %r20, %d9;\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "half of a pack",
        "mov.b64 %d9, <<{%r20, %r20}|{%r0, %r20}>>;\nmov.b64 {%r21, _}, %d9;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "the low half of a pack, as an integer",
        "mov.b64 %d9, <<{%r20, %r20}|{%r0, %r20}>>;\ncvt.u32.u64 %r21, %d9;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "bits of a pack",
        "cvt.u16.u32 %h1, %r0;\nmov.b32 %r21, <<{%h2, %h2}|{%h1, %h2}>>;\nand.b32 %r22, %r21, 0xffff;\nst.global.u32 [%d2], %r22;\n",
        UNDEFINED,
    ),
    Micro(
        "a word of a local array",
        ".local .align 16 .b8 own[64];\nmov.u64 %d9, own;\nand.b32 %r20, %r0, 15;\nmul.wide.u32 %d10, %r20, 4;\nadd.s64 %d10, %d10, %d9;\n"
        "st.local.v4.u32 [%d9], {%r0, %r0, %r0, %r0};\nst.local.v4.u32 [%d9+16], {%r0, %r0, %r0, %r0};\nst.local.v4.u32 [%d9+32], {%r0, %r0, %r0, %r0};\n"
        "st.local.v2.u32 [%d9+48], {%r0, %r0};\n<<|st.local.u32 [%d9+56], %r0;\n>>st.local.u8 [%d9+60], %r0;\nld.local.u32 %r21, [%d10];\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "a local variable by a generic address",
        ".local .align 8 .b8 own[16];\nmov.u64 %d9, own;\ncvta.local.u64 %d9, %d9;\nst.u32 [%d9<<|+8>>], %r0;\nld.v2.u32 {%r20, %r21}, [%d9+8];\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "the size of a bulk copy",
        f"{READY}<<|mov.u32 %r20, 512;\n>>{expect(512)}{bulk(512).replace('], 512,', '], %r20,')}{wait(0, 0)}",
        ("uninit", "16", "size", "multiple", "deadlock"),
    ),
    Micro(
        "a bar's mask", "<<|mov.u32 %r20, -1;\n>>bar.warp.sync %r20;\n", ("uninit", "mask", "lane")
    ),
    Micro(
        "an mma.sync operand",
        "mov.f32 %f3, 0f00000000;\nmov.f32 %f0, 0f00000000;\nmov.f32 %f1, 0f00000000;\nmov.f32 %f2, 0f00000000;\nmov.u32 %r20, 0;\n<<|mov.u32 %r21, 0;\n>>mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r20, %r20, %r20, %r21}, {%r20, %r20}, {%f0, %f1, %f2, %f3};\nst.global.f32 [%d2], %f3;\n",
        UNDEFINED,
    ),
)
