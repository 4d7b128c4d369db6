"""PTX that many micro-kernels share."""

import itertools

BAR = "bar.sync 0;\n"
CLUSTER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
INIT = (
    "@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n"
    "@%p0 mbarrier.init.shared::cta.b64 [%r4+8], 1;\n"
    "@%p0 mbarrier.init.shared::cta.b64 [%r4+16], 1;\n"
    "fence.mbarrier_init.release.cluster;\n"
)
READY = INIT + BAR
CLUSTER_READY = INIT + CLUSTER
# The last CTA of a pair is 1; %r11: buf of the other one, %r12: its mbarriers.
PEER = (
    "xor.b32 %r13, %r2, 1;\nmapa.shared::cluster.u32 %r11, %r3, %r13;\n"
    "mapa.shared::cluster.u32 %r12, %r4, %r13;\n"
)
# Every thread its own word, of shared memory and of the result.
STORE = "st.shared.u32 [%r7], %r0;\n"
# A word that another warp wrote.
TAKE = "ld.shared.u32 %r20, [%r8];\nst.global.u32 [%d2], %r20;\n"


_LABELS = itertools.count()


def wait(index: int, parity: int) -> str:
    """All threads wait for a phase's end."""
    label = f"W{next(_LABELS)}"
    return (
        f"{label}:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [%r4+{8 * index}], "
        f"{parity};\n@!%p7 bra {label};\n"
    )


def expect(size: int, index: int = 0, guard: str = "@%p0 ") -> str:
    return f"{guard}mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4+{8 * index}], {size};\n"


def bulk(size: int, index: int = 0, to: str = "%r3", source: str = "%d3", guard="@%p0 ") -> str:
    """A bulk load, counted by mbarrier `index`."""
    return (
        f"{guard}cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{to}], "
        f"[{source}], {size}, [%r4+{8 * index}];\n"
    )


def load(size: int, index: int = 0, to: str = "%r3", source: str = "%d3") -> str:
    return expect(size, index) + bulk(size, index, to, source)


# Allocates tensor memory: its address in %r30, this warp's lanes of it in %r31.
ALLOC = (
    "@!%p2 bra ALLOCED;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 64;\n"
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\nALLOCED:\n"
    "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
    "ld.shared.b32 %r30, [%r5];\nshl.b32 %r31, %r1, 21;\nadd.u32 %r31, %r31, %r30;\n"
)
DEALLOC = (
    "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n"
    "@!%p2 bra FREED;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;\nFREED:\n"
)
FILL = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r31], {%r0, %r0, %r0, %r0};\n"
ST_WAIT = "tcgen05.wait::st.sync.aligned;\n"
LD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r32}, [%r31];\n"
LD_WAIT = "tcgen05.wait::ld.sync.aligned;\n"
USE = "st.global.u32 [%d2], %r32;\n"
# bf16 operands without swizzle, K-major: A of 128 rows at buf, B of 32 rows at buf + 8192.
_NO_SWIZZLE = (1 << 46) | (128 // 16 << 16) | (256 // 16 << 32)
_INSTRUCTION = 1 << 4 | 1 << 7 | 1 << 10 | 32 // 8 << 17 | 128 // 16 << 24
DESCRIPTORS = (
    f"and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d10, %r15;\n"
    f"add.s64 %d11, %d10, {_NO_SWIZZLE};\nadd.s64 %d12, %d11, {8192 // 16};\n"
    f"mov.b32 %r16, {_INSTRUCTION};\nsetp.ne.b32 %p5, %r0, %r0;\nsetp.eq.b32 %p6, %r0, %r0;\n"
)
MMA = "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r30], %d11, %d12, %r16, %p5;\n"
MORE = MMA.replace("%p5", "%p6")
COMMIT = "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4+8];\n"
AFTER = "tcgen05.fence::after_thread_sync;\n"
BEFORE = "tcgen05.fence::before_thread_sync;\n"
OPERANDS = READY + load(16384) + wait(0, 0)

# wgmma of the same operands: m64n16k16 with accumulators %v0 to %v7.
_WG_NO_SWIZZLE = (128 // 16 << 16) | (256 // 16 << 32)
WG_DESCRIPTORS = (
    f"and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d10, %r15;\n"
    f"add.s64 %d11, %d10, {_WG_NO_SWIZZLE};\nadd.s64 %d12, %d11, {8192 // 16};\n"
    f"setp.ne.b32 %p5, %r0, %r0;\nsetp.eq.b32 %p6, %r0, %r0;\n"
)
WG_FENCE = "wgmma.fence.sync.aligned;\n"
_WG = (
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
    "{%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}, %d11, %d12, "
)
WGMMA = _WG + "%p5, 1, 1, 0, 0;\n"
WG_MORE = _WG + "%p6, 1, 1, 0, 0;\n"
WG_A = _WG.replace("%d11", "{%r40, %r41, %r42, %r43}")
WG_COMMIT = "wgmma.commit_group.sync.aligned;\n"
WG_WAIT = "wgmma.wait_group.sync.aligned 0;\n"
WG_USE = "st.global.u32 [%d2], %v0;\n"

BULK_STORE = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 512;\n"
BULK_COMMIT = "@%p0 cp.async.bulk.commit_group;\n"
BULK_WAIT = "@%p0 cp.async.bulk.wait_group 0;\n"
READ_WAIT = "@%p0 cp.async.bulk.wait_group.read 0;\n"
PROXY = "fence.proxy.async.shared::cta;\n"
