"""Tensor maps that kernels edit in shared memory and publish by tensormap.cp_fenceproxy."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR, READY, expect, wait

_EDIT = "@%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r23], %d9;\n"
_PUBLISH = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d8], [%r23], 128;\n"
_ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%d8], 128;\n"
_TILE = f"mov.u32 %r24, 0;\nmov.u32 %r25, 0;\n{expect(2048)}@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d8, {{%r24, %r25}}], [%r4];\n{wait(0, 0)}"
_WORD = "ld.shared.u32 %r26, [%r7];\nst.global.u32 [%d2+8192], %r26;\n"


def edited(after: str = "bar.warp.sync -1;\n", publish: str = _PUBLISH) -> str:
    """The first warp publishes at %d8 a copy of the map of `in` that begins at another row."""
    return (
        f"add.s64 %d8, %d1, 127;\nand.b64 %d8, %d8, -128;\nadd.s64 %d9, %d3, 2048;\n{READY}"
        "@!%p2 bra MADE;\nshl.b32 %r20, %r6, 2;\ncvt.u64.u32 %d6, %r20;\nadd.s64 %d7, %d6, %d4;\n"
        "ld.b32 %r21, [%d7];\nadd.u32 %r22, %r3, %r20;\nst.shared.u32 [%r22+16384], %r21;\n"
        f"bar.warp.sync -1;\nadd.u32 %r23, %r3, 16384;\n{_EDIT}{after}{publish}MADE:\n"
    )


# The first CTA publishes, the second uses it.
_FLAG = "bar.warp.sync -1;\n@%p0 st.{order}.gpu.global.u32 [%d1+16384], 1;\n"
_SPIN = (
    "SP:\nld.{order}.gpu.global.u32 %r20, [%d1+16384];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra SP;\n"
)


def handed_over(flag: str, seen: str) -> str:
    return (
        edited(publish=_PUBLISH + flag)
        .replace("@!%p2 bra MADE;\n", "setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra USE;\n@!%p2 bra E;\n")
        .replace("MADE:\n", f"bra E;\nUSE:\n@!%p2 bra E;\n{seen}{_TILE}E:\n")
    )


KERNELS = (
    Micro(
        "a published map used without a fence of its proxy",
        f"{edited()}<<|{_ACQUIRE}>>{BAR}{_TILE}{_WORD}",
        ("proxy-fence",),
    ),
    Micro(
        "a map in shared memory",
        f"{edited()}{_ACQUIRE}<<cvt.u64.u32 %d8, %r3;\nadd.s64 %d8, %d8, 16384;\ncvta.shared.u64 %d8, %d8;\n|>>{BAR}{_TILE}{_WORD}",
        ("a tensor map lies in",),
    ),
    Micro(
        "a map edited by one lane, published by the warp",
        f"{edited(after='<<|bar.warp.sync -1;' + chr(10) + '>>')}{BAR}{_ACQUIRE}{_TILE}{_WORD}",
        ("shared-race",),
    ),
    Micro(
        "a published map read back by another warp",
        f"{edited()}<<|{BAR}>>setp.eq.u32 %p3, %r0, 64;\n@%p3 ld.global.u32 %r20, [%d8+4];\n@%p3 st.global.u32 [%d1+16384], %r20;\n",
        ("global-race",),
    ),
    Micro(
        "one place for the maps of two CTAs",
        f"{edited()}{BAR}{_ACQUIRE}{_TILE}".replace(
            "add.s64 %d9",
            "<<|mul.wide.u32 %d11, %r9, 128;\nadd.s64 %d8, %d8, %d11;\n>>add.s64 %d9",
            1,
        ),
        ("global-race", "proxy-fence", "same-value"),
        grid=2,
    ),
    Micro(
        "a map of another CTA used without a fence of its proxy",
        handed_over(
            _FLAG.format(order="release"), _SPIN.format(order="acquire") + f"<<|{_ACQUIRE}>>"
        ),
        ("proxy-fence",),
        grid=2,
    ),
    Micro(
        "a map of another CTA behind a relaxed flag",
        handed_over(
            _FLAG.format(order="<<relaxed|release>>"),
            _SPIN.format(order="<<relaxed|acquire>>") + _ACQUIRE,
        ),
        ("proxy-fence", "global-race"),
        grid=2,
    ),
)
