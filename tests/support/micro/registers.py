"""Registers, shuffles, votes, and what a launch or a thread must not do."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro

WARP = {"block": 32}
UNDEFINED = ("uninitialized-register",)
_LEAVE = "setp.ge.u32 %p3, %r0, 16;\n@%p3 exit;\n"

KERNELS = (
    Micro("a register stored", "<<|mov.u32 %r20, 1;\n>>st.global.u32 [%d2], %r20;\n", UNDEFINED),
    Micro(
        "a register stored into shared memory",
        "<<|mov.u32 %r20, 1;\n>>st.shared.u32 [%r7], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "a predicate that selects",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>selp.u32 %r20, 1, 2, %p3;\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "a predicate that guards a store",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>@%p3 st.global.u32 [%d2], %r0;\n",
        UNDEFINED,
    ),
    Micro(
        "a predicate that guards a branch",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>@%p3 bra SKIP;\nst.global.u32 [%d2], %r0;\nSKIP:\n",
        UNDEFINED,
    ),
    Micro(
        "a predicate that guards an assignment",
        "mov.u32 %r20, 1;\n<<|setp.eq.u32 %p3, %r0, 1;\n>>@%p3 mov.u32 %r20, 2;\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "a predicate of predicates",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>and.pred %p4, %p3, %p0;\n@%p4 st.global.u32 [%d2], %r0;\n",
        UNDEFINED,
    ),
    Micro(
        "half of a packed register",
        "mov.u16 %h1, 1;\n<<|mov.u16 %h2, 1;\n>>mov.b32 %r20, {%h1, %h2};\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "one element of a vector store",
        "mov.u32 %r20, 1;\n<<|mov.u32 %r21, 1;\n>>mul.wide.u32 %d6, %r0, 8;\nadd.s64 %d6, %d6, %d1;\n"
        "st.global.v2.u32 [%d6], {%r20, %r21};\n",
        UNDEFINED,
    ),
    Micro(
        "a value handed to another lane",
        "<<|mov.u32 %r20, 1;\n>>shfl.sync.bfly.b32 %r21, %r20, 1, 31, -1;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "a value that lanes reduce",
        "<<|mov.u32 %r20, 1;\n>>redux.sync.add.u32 %r21, %r20, -1;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "a predicate that lanes vote on",
        "<<|setp.eq.u32 %p3, %r0, 1;\n>>vote.sync.ballot.b32 %r21, %p3, -1;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "bits of a register",
        "<<|mov.u32 %r20, 1;\n>>bfe.u32 %r21, %r20, 3, 5;\nst.global.u32 [%d2], %r21;\n",
        UNDEFINED,
    ),
    Micro(
        "a sum in a loop",
        "mov.u32 %r21, 0;\n<<|mov.f32 %f1, 0f00000000;\n>>LOOP:\nadd.f32 %f1, %f1, 0f3F800000;\nadd.u32 %r21, %r21, 1;\n"
        "setp.lt.u32 %p3, %r21, 4;\n@%p3 bra LOOP;\nst.global.f32 [%d2], %f1;\n",
        UNDEFINED,
    ),
    Micro(
        "the accumulator of mma.sync",
        "<<|mov.f32 %f3, 0f00000000;\n>>mov.f32 %f0, 0f00000000;\nmov.f32 %f1, 0f00000000;\nmov.f32 %f2, 0f00000000;\n"
        "mov.u32 %r20, 0;\nmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, "
        "{%r20, %r20, %r20, %r20}, {%r20, %r20}, {%f0, %f1, %f2, %f3};\nst.global.f32 [%d2], %f3;\n",
        UNDEFINED,
    ),
    Micro(
        "one branch that leaves a register out",
        "setp.lt.u32 %p3, %r0, 7;\n@%p3 bra A;\n<<|mov.u32 %r20, 2;\n>>bra B;\nA:\nmov.u32 %r20, 1;\nB:\nst.global.u32 [%d2], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "a register that an earlier turn of a loop should have set",
        "mov.u32 %r21, 0;\nLOOP:\nsetp.eq.u32 %p3, %r21, <<2|0>>;\n@%p3 mov.u32 %r20, 1;\nadd.u32 %r22, %r20, %r21;\n"
        "st.global.u32 [%d2], %r22;\nadd.u32 %r21, %r21, 1;\nsetp.lt.u32 %p4, %r21, 4;\n@%p4 bra LOOP;\n",
        UNDEFINED,
    ),
    Micro(
        "an atomic's operand",
        "<<|mov.u32 %r20, 1;\n>>red.global.add.u32 [%d1], %r20;\n",
        UNDEFINED,
    ),
    Micro(
        "a barrier's number",
        "<<|mov.u32 %r20, 1;\n>>bar.sync %r20, 128;\n",
        (*UNDEFINED, "barrier"),
    ),
    # --- lanes
    Micro(
        "a shuffle from a lane that has left",
        f"{_LEAVE}shfl.sync.bfly.b32 %r20, %r0, <<16|8>>, 31, 0xffff;\nst.global.u32 [%d2], %r20;\n",
        ("shuffle-source",),
        **WARP,
    ),
    Micro(
        "a shuffle of all lanes when half have left",
        f"{_LEAVE}shfl.sync.bfly.b32 %r20, %r0, 8, 31, <<-1|0xffff>>;\nst.global.u32 [%d2], %r20;\n",
        ("exited-lanes",),
        **WARP,
    ),
    Micro(
        "a shuffle of a mask without its own lane",
        "shfl.sync.idx.b32 %r20, %r0, 0, 31, <<0xffff|-1>>;\nst.global.u32 [%d2], %r20;\n",
        ("mask", "lane"),
        **WARP,
    ),
    Micro(
        "a shuffle in one branch for lanes of the other",
        "setp.lt.u32 %p3, %r6, 16;\nmov.u32 %r20, 0;\n@!%p3 bra SKIP;\nshfl.sync.<<down|bfly>>.b32 %r20, %r0, <<16|4>>, 31, <<-1|0xffff>>;\n"
        "SKIP:\nst.global.u32 [%d2], %r20;\n",
        ("deadlock", "shuffle-source", "exited-lanes", "lane"),
        **WARP,
    ),
    Micro(
        "bar.warp.sync of a mask without its own lane",
        "bar.warp.sync <<0xfffffffe|-1>>;\n",
        ("mask", "lane", "deadlock"),
        **WARP,
    ),
    Micro(
        "ldmatrix with an address that is not aligned",
        "shl.b32 %r20, %r0, 4;\nadd.u32 %r20, %r20, %r3;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r21}, [%r20+<<8|16>>];\n",
        ("align",),
        **WARP,
    ),
    Micro(
        "ldmatrix in divergent code",
        "mov.u32 %r21, 0;\nshl.b32 %r20, %r6, 4;\nadd.u32 %r20, %r20, %r3;\nsetp.lt.u32 %p3, %r6, <<16|32>>;\n@!%p3 bra SKIP;\n"
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r21}, [%r20];\nSKIP:\n",
        ("lanes", "aligned", "converged"),
        **WARP,
    ),
    Micro("a trap", "<<trap;\n|>>", ("trap",)),
    Micro(
        "a loop without an end",
        "LOOP:\nadd.u32 %r20, %r6, 1;\nsetp.eq.u32 %p3, %r20, <<77|1>>;\n@!%p3 bra <<LOOP|OUT>>;\nOUT:\n",
        ("livelock",),
    ),
    Micro(
        "a table of branches with an index past its end",
        "mov.u32 %r20, <<2|1>>;\nTS: .branchtargets A, B;\nbrx.idx %r20, TS;\nA:\nB:\n",
        ("brx", "outside", "index", "target"),
    ),
)
