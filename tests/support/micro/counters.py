"""Strong accesses: what comes after a write because a read has seen it, their sizes, and words that
many warps or CTAs read."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.global_memory import TWO
from micro.pieces import BAR

RACE = ("global-race",)
# Thread 0 of every CTA counts: %r20, how many came before.
_COUNT = "@!%p0 bra E;\natom.{order}gpu.global.inc.u32 %r20, [%d1], 99;\n"
# The first CTA sets a flag, those of the second wait for it.
_SET = "setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\n@%p0 {set}.gpu.global{add}.u32 [%d1], 1;\nbra E;\nREAD:\n"
_SPIN = "S:\nld.{order}.gpu.global.u32 %r20, [%d1];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra S;\n"
_OTHER = "setp.eq.u32 %p5, %r0, 64;\n"
_SECOND = "setp.eq.u32 %p3, %r0, 32;\n"

KERNELS = (
    *(
        Micro(
            f"a count set back by {'the first' if not order else 'one'} that counted, {order}",
            f"{_COUNT.format(order=order)}setp.eq.u32 %p3, %r20, <<0|3>>;\n@%p3 st.global.u32 [%d1], 7;\nE:\n",
            RACE,
            grid=4,
        )
        for order in ("relaxed.", "acq_rel.")
    ),
    # The second CTA takes the flag on, the third waits for that.
    *(
        Micro(
            f"a flag taken on by a store, {name}",
            "@!%p0 bra E;\nsetp.eq.u32 %p3, %r9, 0;\nsetp.eq.u32 %p4, %r9, 1;\n@%p3 st.global.u32 [%d1+64], 7;\n@%p3 st.release.gpu.global.u32 [%d1], 1;\n@%p3 bra E;\n"
            "@!%p4 bra LAST;\nS:\nld.relaxed.gpu.global.u32 %r20, [%d1];\nsetp.ne.u32 %p5, %r20, 1;\n@%p5 bra S;\n"
            f"{on}bra E;\nLAST:\nld.relaxed.gpu.global.u32 %r20, [%d1];\nsetp.ne.u32 %p5, %r20, 2;\n@%p5 bra LAST;\n"
            "ld.acquire.gpu.global.u32 %r20, [%d1];\nld.global.u32 %r21, [%d1+64];\nst.global.u32 [%d1+128], %r21;\nE:\n",
            RACE,
            grid=3,
        )
        for name, on in (
            (
                "relaxed",
                "<<st.relaxed.gpu.global.u32 [%d1], 2|red.relaxed.gpu.global.add.u32 [%d1], 1>>;\n",
            ),
            ("released", "<<|fence.acq_rel.gpu;\n>>st.release.gpu.global.u32 [%d1], 2;\n"),
        )
    ),
    Micro(
        "a count in shared memory set back by a warp",
        "@%p0 st.shared.u32 [%r3], 0;\nbar.sync 0;\n@!%p1 bra E;\natom.relaxed.cta.shared.add.u32 %r20, [%r3], 1;\nsetp.eq.u32 %p3, %r20, <<0|3>>;\n@%p3 st.shared.u32 [%r3], 7;\nE:\n",
        ("shared-race",),
    ),
    Micro(
        "a count of all threads in shared memory set back by one of them",
        f"@%p0 st.shared.u32 [%r3], 0;\n{BAR}atom.shared.add.u32 %r20, [%r3], 1;\nsetp.eq.u32 %p3, %r20, <<31|127>>;\n@%p3 st.shared.u32 [%r3], 7;\nst.global.u32 [%d2], %r20;\n",
        ("shared-race",),
    ),
    Micro(
        "a count set back after a reduction that has seen nobody",
        "@!%p0 bra E;\n<<red.relaxed.gpu.global.add.u32 [%d1], 1;\nst.global.u32 [%d1], 7;\n|red.relaxed.gpu.global.add.u32 [%d1], 1;\nS:\nld.relaxed.gpu.global.u32 %r20, [%d1];\nsetp.ne.u32 %p3, %r20, 3;\n@%p3 bra E;\nld.global.u32 %r21, [%d1];\n>>E:\n",
        RACE,
        grid=3,
    ),
    *(
        Micro(
            f"a flag of {name} taken back by a warp that has not seen it",
            f"{_SET.format(set=instruction, add=add)}@!%p2 bra N;\n{_SPIN.format(order=order)}N:\n<<|{BAR}>>{_OTHER}@%p5 st.global.u32 [%d1], 7;\nE:\n",
            RACE,
            grid=2,
        )
        for name, instruction, add, order in (
            ("st.release", "st.release", "", "acquire"),
            ("st.relaxed", "st.relaxed", "", "relaxed"),
            ("red.release", "red.release", ".add", "acquire"),
        )
    ),
    Micro(
        "a flag read plainly by who has not seen it",
        f"{_SET.format(set='st.relaxed', add='')}<<|{_SPIN.format(order='relaxed')}>>@%p0 ld.global.u32 %r21, [%d1];\nE:\n",
        RACE,
        **TWO,
    ),
    # --- sizes
    Micro(
        "atomics of 32 and of 64 bits on one word",
        f"{_SECOND}@%p0 atom.relaxed.gpu.global.add.u32 %r20, [%d1], 1;\n@%p3 atom.relaxed.gpu.global.add.<<u64 %d6, [%d1], %d3|u32 %r21, [%d1], 1>>;\n",
        RACE,
    ),
    Micro(
        "atomics in shared memory of 32 and of 64 bits",
        f"@%p0 st.shared.u64 [%r3], 0;\n{BAR}{_SECOND}@%p0 atom.shared.add.u32 %r20, [%r3], 1;\n<<|{BAR}>>@%p3 atom.shared.add.u64 %d6, [%r3], 5;\n",
        ("shared-race",),
    ),
    Micro(
        "a byte stored into a word that is polled",
        f"{_SECOND}@%p0 st.relaxed.gpu.global.<<u8|u32>> [%d1], %r0;\n@%p3 ld.relaxed.gpu.global.u32 %r20, [%d1];\n",
        RACE,
    ),
    Micro(
        "halves of a pair that another warp reads as one",
        f"{_SECOND}@%p0 st.relaxed.gpu.global.u32 [%d1+4], 1;\n@%p3 ld.relaxed.gpu.global.<<u64 %d6, [%d1]|v2.u32 {{%r20, %r21}}, [%d1]>>;\n",
        RACE,
    ),
    Micro(
        "words of 64 bits for all, of 32 for one CTA",
        "@!%p0 bra E;\natom.relaxed.gpu.global.add.u64 %d6, [%d1], 1;\nsetp.eq.u32 %p3, %r9, 1;\n@%p3 red.relaxed.gpu.global.add.<<u32|u64>> [%d1], 1;\nE:\n",
        RACE,
        grid=3,
    ),
    # --- many readers
    Micro(
        "ten warps read, one writes after hearing of eight",
        f"@%p0 st.shared.u32 [%r3], 1;\n{BAR}ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\nsetp.eq.u32 %p3, %r1, 1;\n<<@%p3 bra E;\n|>>@%p2 bra Z;\nbar.arrive 1, <<288|320>>;\nbra E;\nZ:\nbar.sync 1, <<288|320>>;\n@%p0 st.shared.u32 [%r3], 9;\nE:\n",
        ("shared-race",),
        block=320,
    ),
    Micro(
        "twenty CTAs read, the last to count writes, one has not counted",
        "@!%p0 bra E;\nld.global.u32 %r20, [%d1+2048];\nsetp.eq.u32 %p4, %r9, 3;\n<<@%p4 bra E;\n|>>atom.acq_rel.gpu.global.add.u32 %r21, [%d1], 1;\nsetp.eq.u32 %p3, %r21, <<18|19>>;\n@%p3 st.global.u32 [%d1+2048], 5;\nE:\n",
        RACE,
        grid=20,
        block=32,
    ),
    Micro(
        "a row that thirty warps read and one overwrites",
        f"shl.b32 %r20, %r6, 2;\nadd.u32 %r20, %r20, %r3;\n@%p2 st.shared.u32 [%r20], 1;\n{BAR}ld.shared.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n<<|{BAR}>>@%p2 st.shared.u32 [%r20], 9;\n",
        ("shared-race",),
        block=960,
    ),
)
