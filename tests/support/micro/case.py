"""What a micro-kernel is, and how it is run."""

# ruff: noqa: E501 (statements of PTX are not broken)

from __future__ import annotations

import dataclasses
import re

import numpy as np

from jax_bwgemm import emulator

# Written in a body as <<wrong|right>>.
_CHOICE = re.compile(r"<<(.*?)\|(.*?)>>", re.DOTALL)

_KERNEL = """.version 8.8
.target {target}
.address_size 64
{before}
.visible .entry k(.param .u64 out, .param .u64 in, .param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{{
.reg .b32 %r<64>;
.reg .b64 %d<32>;
.reg .pred %p<8>;
.reg .b16 %h<8>;
.reg .b32 %v<130>;
.reg .f32 %f<16>;
.shared .align 1024 .b8 buf[32768];
.shared .align 8 .b64 bar[8];
.shared .align 16 .b8 slot[16];
mov.u32 %r0, %tid.x;
shr.u32 %r1, %r0, 5;
mov.u32 %r2, %cluster_ctarank;
mov.u32 %r3, buf;
mov.u32 %r4, bar;
mov.u32 %r5, slot;
and.b32 %r6, %r0, 31;
shl.b32 %r7, %r0, 2;
add.u32 %r7, %r7, %r3;
add.u32 %r8, %r0, 32;
rem.u32 %r8, %r8, %ntid.x;
shl.b32 %r8, %r8, 2;
add.u32 %r8, %r8, %r3;
setp.eq.u32 %p0, %r0, 0;
setp.eq.u32 %p1, %r6, 0;
setp.eq.u32 %p2, %r1, 0;
ld.param.u64 %d1, [out];
ld.param.u64 %d3, [in];
mov.b64 %d4, from;
cvta.param.u64 %d4, %d4;
mov.b64 %d5, to;
cvta.param.u64 %d5, %d5;
mov.u32 %r9, %ctaid.x;
mad.lo.u32 %r10, %r9, %ntid.x, %r0;
mul.wide.u32 %d2, %r10, 4;
add.s64 %d2, %d2, %d1;
{body}
ret;
}}
"""


@dataclasses.dataclass(frozen=True)
class Micro:
    """A kernel in two versions.

    Registers before the body: %r0 thread, %r1 warp, %r2 rank in the cluster, %r3 buf, %r4 bar (8
    mbarriers), %r5 slot, %r6 lane, %r7 the thread's word of buf, %r8 that of the thread in the next
    warp, %r9 CTA, %d1 out, %d2 the thread's word of out, %d3 in, %d4 and %d5 tensor maps of boxes
    of 16 rows of 128 bytes of in and out, %p0 first thread, %p1 first lane, %p2 first warp.

    Attributes:
        name: What is wrong.
        body: PTX with ``<<wrong|right>>`` where the versions differ.
        reports: Rules that may report it, or parts of errors.
    """

    name: str
    body: str
    reports: tuple[str, ...]
    grid: int = 1
    block: int = 128
    cluster: int = 1
    target: str = "sm_100a"
    before: str = ""

    def text(self, right: bool) -> str:
        body = _CHOICE.sub(lambda m: m[2 if right else 1], self.body)
        return _KERNEL.format(target=self.target, body=body, before=self.before)

    def launch(self, text: str) -> emulator.LaunchStats:
        """Runs a text in the place of the kernel's."""
        out = np.zeros((256, 32), np.uint32)
        source = np.ones((256, 32), np.uint32)
        return emulator.Module(text).launch(
            "k",
            out,
            source,
            emulator.TensorMap(source, box=(16, 32)),
            emulator.TensorMap(out, box=(16, 32)),
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
        )

    def run(self, right: bool, seed: int) -> str | None:
        """What was reported: a rule, or the text of an error; None: nothing."""
        try:
            with emulator.configure(seed=seed, step_limit=1 << 20):
                stats = self.launch(self.text(right))
        except emulator.LaunchFault as fault:
            return fault.rule or str(fault)
        return stats.warnings[0].rule if stats.warnings else None
