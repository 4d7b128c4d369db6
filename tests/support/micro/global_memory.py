"""Global memory: scopes, release and acquire, bounds."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR

RACE = ("global-race", "lane-release")
TWO = {"grid": 2, "block": 32}
FOUR = {"grid": 4, "block": 32}


def hand_over(write: str, read: str, data: str = "st.global.u32 [%d1+64], 5;\n") -> str:
    """CTA 0 stores a word and a flag, CTA 1 spins and loads the word."""
    return (
        f"@!%p0 bra DONE;\nsetp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\n{data}{write}bra DONE;\n"
        f"READ:\n{read}ld.global.u32 %r21, [%d1+64];\nst.global.u32 [%d1+128], %r21;\nDONE:\n"
    )


def spin(load: str, after: str = "", again: str = "READ") -> str:
    return f"{load} %r20, [%d1];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra {again};\n{after}"


FLAG = "st.release.gpu.global.u32 [%d1], 1;\n"
SEEN = spin("ld.acquire.gpu.global.u32")
# The last of four CTAs sums what all have stored.
_LAST = (
    "mul.wide.u32 %d6, %r9, 4;\nadd.s64 %d6, %d6, %d1;\n@%p0 st.global.u32 [%d6+256], %r9;\n"
    "{before}mov.u32 %r20, 0;\n@%p0 atom.{order}global.add.u32 %r20, [%d1], 1;\n{after}"
    "setp.eq.u32 %p3, %r20, 3;\nand.pred %p3, %p3, %p0;\n@%p3 ld.global.u32 %r21, [%d1+256];\n"
    "@%p3 ld.global.u32 %r22, [%d1+260];\n@%p3 st.global.u32 [%d1+512], %r21;\n"
)


def last(before: str, after: str, order: str = "") -> str:
    return _LAST.format(before=before, after=after, order=order)


KERNELS = (
    Micro(
        "a flag without release",
        hand_over("st.<<relaxed|release>>.gpu.global.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag without acquire",
        hand_over(FLAG, spin("ld.<<relaxed|acquire>>.gpu.global.u32")),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag released to the CTA only",
        hand_over("st.release.<<cta|gpu>>.global.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag acquired within the CTA only",
        hand_over(FLAG, spin("ld.acquire.<<cta|gpu>>.global.u32")),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag released to the cluster only",
        hand_over("st.release.<<cluster|gpu>>.global.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a fence of the CTA's scope ahead of a flag",
        hand_over("fence.acq_rel.<<cta|gpu>>;\nst.relaxed.gpu.global.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a membar of the CTA's scope ahead of a flag",
        hand_over("membar.<<cta|gl>>;\nst.volatile.global.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a fence of the CTA's scope behind a flag",
        hand_over(FLAG, spin("ld.relaxed.gpu.global.u32", "fence.acq_rel.<<cta|gpu>>;\n")),
        RACE,
        **TWO,
    ),
    Micro(
        "a fence behind the flag",
        hand_over(
            "<<st.relaxed.gpu.global.u32 [%d1], 1;\nfence.acq_rel.gpu;\n|"
            "fence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%d1], 1;\n>>",
            SEEN,
        ),
        RACE,
        **TWO,
    ),
    Micro(
        "a fence ahead of the load of the flag",
        hand_over(
            FLAG,
            "<<fence.acq_rel.gpu;\n|>>"
            + spin("ld.relaxed.gpu.global.u32", "<<|fence.acq_rel.gpu;\n>>"),
        ),
        RACE,
        **TWO,
    ),
    Micro(
        "data stored after its flag",
        hand_over(f"<<{FLAG}|>>st.global.u32 [%d1+64], 6;\n<<|{FLAG}>>", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag that other lanes' data precede",
        "setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\nmul.wide.u32 %d6, %r6, 4;\nadd.s64 %d6, %d6, %d1;\n"
        "st.global.u32 [%d6+256], %r6;\n<<|bar.warp.sync -1;\n>>@%p0 st.release.gpu.global.u32 [%d1], 1;\nbra DONE;\n"
        f"READ:\n@!%p0 bra DONE;\nSPIN:\n{spin('ld.acquire.gpu.global.u32', again='SPIN')}"
        "ld.global.u32 %r21, [%d1+320];\nDONE:\n",
        RACE,
        **TWO,
    ),
    Micro(
        "a flag that other warps' data precede",
        "setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\nmul.wide.u32 %d6, %r0, 4;\nadd.s64 %d6, %d6, %d1;\n"
        f"st.global.u32 [%d6+256], %r0;\n<<|{BAR}>>@%p0 st.release.gpu.global.u32 [%d1], 1;\nbra DONE;\n"
        f"READ:\n@!%p0 bra DONE;\nSPIN:\n{spin('ld.acquire.gpu.global.u32', again='SPIN')}"
        "ld.global.u32 %r21, [%d1+640];\nDONE:\n",
        RACE,
        grid=2,
    ),
    Micro(
        "one thread acquires for others without a barrier",
        "setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\n@%p0 st.global.u32 [%d1+256], 1;\n"
        "@%p0 st.release.gpu.global.u32 [%d1], 1;\nbra DONE;\n"
        f"READ:\n@!%p0 bra GO;\nSPIN:\n{spin('ld.acquire.gpu.global.u32', again='SPIN')}"
        f"GO:\n<<|{BAR}>>ld.global.u32 %r21, [%d1+256];\nDONE:\n",
        RACE,
        grid=2,
    ),
    Micro(
        "a weak load that spins",
        hand_over(FLAG, spin("ld.<<|acquire.gpu.>>global.u32")),
        RACE,
        **TWO,
    ),
    Micro(
        "a weak store of a flag",
        hand_over("fence.acq_rel.gpu;\nst.<<|relaxed.gpu.>>global.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag by an atomic without fences",
        hand_over("red.<<relaxed|release>>.gpu.global.add.u32 [%d1], 1;\n", SEEN),
        RACE,
        **TWO,
    ),
    Micro(
        "a flag polled by an atomic without acquire",
        hand_over(
            FLAG,
            "atom.<<relaxed|acquire>>.gpu.global.add.u32 %r20, [%d1], 0;\n"
            "setp.eq.u32 %p4, %r20, 0;\n@%p4 bra READ;\n",
        ),
        RACE,
        **TWO,
    ),
    Micro(
        "the last CTA sums without a fence ahead of the count",
        last("<<|fence.acq_rel.gpu;\n>>", "fence.acq_rel.gpu;\n"),
        RACE,
        **FOUR,
    ),
    Micro(
        "the last CTA sums without a fence behind the count",
        last("fence.acq_rel.gpu;\n", "<<|fence.acq_rel.gpu;\n>>"),
        RACE,
        **FOUR,
    ),
    Micro(
        "the last CTA sums behind fences of the CTA's scope",
        last("fence.acq_rel.<<cta|gpu>>;\n", "fence.acq_rel.<<cta|gpu>>;\n"),
        RACE,
        **FOUR,
    ),
    Micro(
        "a count that releases but does not acquire",
        last("", "", "<<release|acq_rel>>.gpu."),
        RACE,
        **FOUR,
    ),
    Micro(
        "a barrier of the grid without release",
        "mul.wide.u32 %d6, %r9, 4;\nadd.s64 %d6, %d6, %d1;\n@!%p0 bra DONE;\nst.global.u32 [%d6+256], %r9;\n"
        "red.<<relaxed|release>>.gpu.global.add.u32 [%d1], 1;\nSPIN:\nld.acquire.gpu.global.u32 %r20, [%d1];\n"
        "setp.lt.u32 %p3, %r20, 4;\n@%p3 bra SPIN;\nxor.b32 %r21, %r9, 1;\nmul.wide.u32 %d7, %r21, 4;\n"
        "add.s64 %d7, %d7, %d1;\nld.global.u32 %r22, [%d7+256];\nst.global.u32 [%d6+512], %r22;\nDONE:\n",
        RACE,
        **FOUR,
    ),
    Micro(
        "a barrier of the grid that is left before all have come",
        "mul.wide.u32 %d6, %r9, 4;\nadd.s64 %d6, %d6, %d1;\n@!%p0 bra DONE;\nst.global.u32 [%d6+256], %r9;\n"
        "red.release.gpu.global.add.u32 [%d1], 1;\nSPIN:\nld.acquire.gpu.global.u32 %r20, [%d1];\n"
        "setp.lt.u32 %p3, %r20, <<1|4>>;\n@%p3 bra SPIN;\nxor.b32 %r21, %r9, 1;\nmul.wide.u32 %d7, %r21, 4;\n"
        "add.s64 %d7, %d7, %d1;\nld.global.u32 %r22, [%d7+256];\nst.global.u32 [%d6+512], %r22;\nDONE:\n",
        RACE,
        **FOUR,
    ),
    Micro(
        "an increment that is no atomic",
        "<<ld.global.u32 %r20, [%d1];\nadd.u32 %r20, %r20, 1;\nst.global.u32 [%d1], %r20;\n|"
        "red.global.add.u32 [%d1], 1;\n>>",
        RACE,
        **FOUR,
    ),
    Micro(
        "a histogram of relaxed loads and stores",
        "@%p0 <<ld.relaxed.gpu.global.u32 %r20, [%d1];\nadd.u32 %r20, %r20, 1;\n@%p0 st.global.u32 [%d1], %r20;\n|"
        "red.relaxed.gpu.global.add.u32 [%d1], 1;\n>>",
        RACE,
        **FOUR,
    ),
    Micro(
        "an atomic of the CTA's scope",
        "@%p0 atom.<<cta|gpu>>.global.add.u32 %r20, [%d1], 1;\n",
        RACE,
        **FOUR,
    ),
    Micro(
        "an atomic of the cluster's scope",
        "@%p0 atom.relaxed.<<cluster|gpu>>.global.add.u32 %r20, [%d1], 1;\n",
        RACE,
        **FOUR,
    ),
    Micro(
        "an atomic of the CTA's scope beside one of the device's",
        "@!%p0 bra DONE;\nsetp.eq.u32 %p3, %r9, 0;\n@%p3 atom.<<cta|gpu>>.global.add.u32 %r20, [%d1], 1;\n"
        "@!%p3 atom.gpu.global.add.u32 %r20, [%d1], 1;\nDONE:\n",
        RACE,
        **TWO,
    ),
    Micro(
        "a plain read of what others count",
        "@%p0 red.global.add.u32 [%d1], 1;\n@%p0 ld.<<|relaxed.gpu.>>global.u32 %r20, [%d1];\n",
        RACE,
        **FOUR,
    ),
    Micro(
        "a halo that the neighbour has not written",
        "st.global.u32 [%d2], %r0;\n<<xor.b32 %r20, %r9, 1;\n|mov.u32 %r20, %r9;\n>>mad.lo.u32 %r20, %r20, 32, %r0;\n"
        "mul.wide.u32 %d6, %r20, 4;\nadd.s64 %d6, %d6, %d1;\nld.global.u32 %r21, [%d6];\n",
        RACE,
        **TWO,
    ),
    Micro(
        "half-words of one word by two CTAs, one of them by a word",
        "@!%p0 bra DONE;\nsetp.eq.u32 %p3, %r9, 0;\nmov.u16 %h1, 7;\n@%p3 st.global.u16 [%d1+<<2|6>>], %h1;\n"
        "@!%p3 st.global.u32 [%d1], %r4;\nDONE:\n",
        RACE,
        **TWO,
    ),
    Micro(
        "ld.global.nc of what another thread writes",
        f"st.global.u32 [%d2], %r0;\n{BAR}xor.b32 %r20, %r0, 32;\nmul.wide.u32 %d6, %r20, 4;\nadd.s64 %d6, %d6, %d1;\n"
        "ld.global<<.nc|>>.u32 %r21, [%d6];\nst.global.u32 [%d2+4096], %r21;\n",
        ("cached-read",),
    ),
    Micro(
        "ld.global.nc of what the same thread has written",
        "st.global.u32 [%d2], %r0;\nld.global<<.nc|>>.u32 %r21, [%d2];\nst.global.u32 [%d2+4096], %r21;\n",
        ("cached-read",),
    ),
    Micro(
        "a store between lanes of one warp",
        "st.global.u32 [%d2], %r0;\n<<|bar.warp.sync -1;\n>>xor.b32 %r20, %r0, 1;\nmul.wide.u32 %d6, %r20, 4;\n"
        "add.s64 %d6, %d6, %d1;\nld.global.u32 %r21, [%d6];\n",
        RACE,
        block=32,
    ),
    Micro(
        "a barrier of the CTA between two CTAs",
        f"@%p0 st.global.u32 [%d2], %r9;\n<<{BAR}|barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n>>"
        "xor.b32 %r20, %r9, 1;\nmul.wide.u32 %d6, %r20, 512;\nadd.s64 %d6, %d6, %d1;\nld.global.u32 %r21, [%d6];\n",
        RACE,
        grid=2,
        cluster=2,
    ),
    Micro(
        "a flag that only the CTA's shared barrier orders",
        "@!%p0 bra DONE;\nsetp.eq.u32 %p3, %r9, 0;\n@%p3 st.global.u32 [%d1+64], 5;\n"
        "<<@%p3 st.relaxed.gpu.global.u32 [%d1], 1;\n|@%p3 st.release.gpu.global.u32 [%d1], 1;\n>>@%p3 bra DONE;\n"
        "SPIN:\nld.relaxed.gpu.global.u32 %r20, [%d1];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra SPIN;\n"
        "fence.acq_rel.gpu;\nld.global.u32 %r21, [%d1+64];\nDONE:\n",
        RACE,
        **TWO,
    ),
    # --- bounds and alignment
    Micro(
        "one word past the end",
        "st.global.u32 [%d1+<<32768|32764>>], %r0;\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
    Micro(
        "one word ahead of the start",
        "ld.global.u32 %r20, [%d1<<-4|>>];\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
    Micro(
        "a vector over the end",
        "ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%d1+<<32764|32752>>];\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
    Micro(
        "a vector that is not aligned",
        "ld.global.v4.u32 {%r20, %r21, %r22, %r23}, [%d1+<<8|16>>];\n",
        ("multiple of",),
        block=1,
    ),
    Micro(
        "a 64-bit atomic that is not aligned",
        "atom.global.add.u64 %d6, [%d1+<<4|8>>], 1;\n",
        ("multiple of",),
        block=1,
    ),
    Micro(
        "shared memory past the end",
        "st.shared.u32 [%r3+<<40960|32764>>], %r0;\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
    Micro(
        "a shared word that is not aligned",
        "st.shared.u32 [%r3+<<2|4>>], %r0;\n",
        ("multiple of",),
        block=1,
    ),
    Micro(
        "a null pointer",
        "<<mov.u64 %d1, 0;\n|>>st.global.u32 [%d1], %r0;\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
    Micro(
        "a shared address taken for a global one",
        "<<cvt.u64.u32 %d1, %r3;\n|>>st.global.u32 [%d1], %r0;\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
    Micro(
        "a sign that is lost in an index",
        "mov.s32 %r20, -1;\nmul.wide.<<u32|s32>> %d6, %r20, 4;\nadd.s64 %d6, %d6, %d1;\nst.global.u32 [%d6+64], %r0;\n",
        ("memory", "past the end", "before", "multiple of"),
        block=1,
    ),
)
