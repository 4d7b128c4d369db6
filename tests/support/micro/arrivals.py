"""Barriers of a CTA, a cluster and a warp, arrivals that must not complete, requests that must not
be repeated, registers that warpgroups exchange."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR, CLUSTER, PEER, READY, STORE

PAIR = {"grid": 2, "cluster": 2}
HOPPER = {"target": "sm_90a"}
OVERRUN = ("mbarrier-overrun", "threads have arrived")

_RELAXED = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"
_PEERS_WORD = f"{PEER}shl.b32 %r21, %r0, 2;\nadd.u32 %r11, %r11, %r21;\nld.shared::cluster.u32 %r20, [%r11];\nst.global.u32 [%d2], %r20;\n{CLUSTER}"
# The first two warps arrive twice at barrier 1, the others wait at it twice.
_TWICE = "setp.lt.u32 %p3, %r1, 2;\n@!%p3 bra B;\n{first}bar.arrive 1, 128;\n{between}{second}bar.arrive 1, 128;\nbra E;\nB:\nbar.sync 1, 128;\n{heard}bar.sync 1, 128;\nE:\n"
_ASK = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 16;\nclusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r5], [%r4];\n"
_LINE = "add.s64 %d6, %d1, 127;\nand.b64 %d6, %d6, -128;\n"

KERNELS = (
    # --- clusters
    Micro(
        "a relaxed cluster arrival without a fence",
        f"{STORE}<<|fence.acq_rel.cluster;\n>>{_RELAXED}{_PEERS_WORD}",
        ("shared-race",),
        **PAIR,
    ),
    Micro(
        "a relaxed cluster arrival after a fence of the CTA",
        f"{STORE}fence.acq_rel.<<cta|cluster>>;\n{_RELAXED}{_PEERS_WORD}",
        ("shared-race",),
        **PAIR,
    ),
    Micro(
        "data stored between the fence and a relaxed cluster arrival",
        f"<<fence.acq_rel.gpu;\n{STORE}|{STORE}fence.acq_rel.gpu;\n>>{_RELAXED}{_PEERS_WORD}",
        ("shared-race",),
        **PAIR,
    ),
    Micro(
        "global data of a peer behind a relaxed cluster arrival",
        f"st.global.u32 [%d2], %r0;\n<<|fence.release.cluster;\n>>{_RELAXED}xor.b32 %r20, %r10, 128;\nmul.wide.u32 %d6, %r20, 4;\nadd.s64 %d6, %d6, %d1;\nld.global.u32 %r21, [%d6];\nst.global.u32 [%d2+4096], %r21;\n",
        ("global-race",),
        **PAIR,
    ),
    # --- named barriers
    *(
        Micro(
            f"a barrier of bar.red.{name} and of bar.sync",
            f"@%p2 bra A;\nbar.sync 1, 128;\nbra B;\nA:\n<<bar.red.{name} {to}, 1, 128, %p0;\n|bar.sync 1, 128;\n>>B:\n",
            ("reduction",),
        )
        for name, to in (("popc.u32", "%r20"), ("and.pred", "%p3"))
    ),
    Micro(
        "a second arrival before the first has been waited for",
        _TWICE.format(
            first="",
            between="<<|bar.sync 2, 128;\n>>",
            second="",
            heard="<<|bar.arrive 2, 128;\n>>",
        ),
        OVERRUN,
    ),
    Micro(
        "a second stage handed over before the first is taken",
        _TWICE.format(
            first="st.shared.u32 [%r7], %r0;\n",
            between="<<|bar.sync 2, 128;\n>>",
            second="st.shared.u32 [%r7+512], %r0;\n",
            heard="ld.shared.u32 %r20, [%r7+-256];\nst.global.u32 [%d2], %r20;\n<<|bar.arrive 2, 128;\n>>",
        ),
        (*OVERRUN, "shared-race"),
    ),
    Micro(
        "two generations of arrivals at barriers of other warps",
        "setp.lt.u32 %p3, %r1, 2;\n@!%p3 bra B;\nbar.arrive 1, 128;\nbar.arrive <<1|2>>, 128;\nbra E;\nB:\nbar.sync 1, 128;\nbar.sync <<1|2>>, 128;\nE:\n",
        OVERRUN,
    ),
    # --- lanes
    Micro(
        "bar.warp.sync of lanes that have exited",
        "setp.ge.u32 %p3, %r6, 16;\n@%p3 exit;\nst.shared.u32 [%r7], %r0;\nbar.warp.sync <<0xffffffff|0xffff>>;\nxor.b32 %r20, %r7, 4;\nld.shared.u32 %r21, [%r20];\nst.global.u32 [%d2], %r21;\n",
        ("exited-lanes",),
    ),
    Micro(
        "halves of a warp at bar.warp.sync, one of which names all",
        "setp.lt.u32 %p3, %r6, 16;\nmov.u32 %r20, 0xffff0000;\n@%p3 mov.u32 %r20, <<0xffffffff|0x0000ffff>>;\nst.shared.u32 [%r7], %r0;\nbar.warp.sync %r20;\nst.global.u32 [%d2], %r0;\n",
        ("exited-lanes",),
    ),
    # --- what must not complete, or be asked again
    Micro(
        "noComplete of the last arrival",
        "@%p0 mbarrier.init.shared::cta.b64 [%r4], <<1|2>>;\nbar.sync 0;\n@%p0 mbarrier.arrive.noComplete.shared::cta.b64 %d6, [%r4], 1;\n",
        ("noComplete",),
    ),
    Micro(
        "noComplete of all arrivals at once",
        "@%p0 mbarrier.init.shared::cta.b64 [%r4], <<3|4>>;\nbar.sync 0;\n@%p0 mbarrier.arrive.noComplete.shared::cta.b64 %d6, [%r4], 3;\n",
        ("noComplete",),
    ),
    Micro(
        "another request after a refused one",
        f"{READY}@!%p0 bra E;\n.reg .b128 answer;\n.reg .pred more;\nmov.u32 %r40, 0;\nL:\n{_ASK}W:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], %r40;\n@!%p3 bra W;\nxor.b32 %r40, %r40, 1;\nld.shared.b128 answer, [%r5];\nclusterlaunchcontrol.query_cancel.is_canceled.pred.b128 more, answer;\nfence.proxy.async.shared::cta;\n@more bra L;\n<<{_ASK}V:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], %r40;\n@!%p3 bra V;\n|>>E:\n",
        ("refused",),
        grid=8,
    ),
    # --- registers of warpgroups
    Micro(
        "setmaxnreg of one warp",
        f"<<@!%p2 bra A;\n|>>setmaxnreg.dec.sync.aligned.u32 40;\nA:\n{BAR}",
        ("setmaxnreg",),
        **HOPPER,
    ),
    Micro(
        "setmaxnreg of all but one warp",
        f"<<@%p2 bra A;\n|>>setmaxnreg.dec.sync.aligned.u32 40;\nA:\n{BAR}",
        ("setmaxnreg",),
        block=256,
        **HOPPER,
    ),
    Micro(
        "setmaxnreg beyond a multiprocessor's registers",
        f"setmaxnreg.inc.sync.aligned.u32 <<192|160>>;\n{BAR}",
        ("registers",),
        block=384,
        **HOPPER,
    ),
    Micro(
        "setmaxnreg beyond what a launch of 384 threads is given",
        "mov.u32 %r40, %tid.x;\nsetp.lt.u32 %p3, %r40, 128;\n"
        "@%p3 bra A;\nsetmaxnreg.inc.sync.aligned.u32 <<240|232>>;\nbra B;\n"
        f"A:\nsetmaxnreg.dec.sync.aligned.u32 32;\nB:\n{BAR}",
        ("registers",),
        block=384,
        **HOPPER,
    ),
    *(
        Micro(
            f"setmaxnreg.{wrong} in the other direction",
            f"setmaxnreg.{first}.sync.aligned.u32 64;\n{BAR}setmaxnreg.<<{wrong}|{right}>>.sync.aligned.u32 {count};\n",
            ("setmaxnreg",),
            **HOPPER,
        )
        for first, wrong, right, count in (("dec", "dec", "inc", 96), ("inc", "inc", "dec", 40))
    ),
    # --- lines of the cache
    Micro(
        "a discarded line that is not aligned",
        f"{_LINE}add.s64 %d6, %d6, <<64|128>>;\n@%p0 discard.global.L2 [%d6], 128;\n",
        ("multiple",),
    ),
    Micro(
        "a line with a priority that is not aligned",
        f"{_LINE}add.s64 %d6, %d6, <<64|128>>;\n@%p0 applypriority.global.L2::evict_normal [%d6], 128;\n",
        ("multiple",),
    ),
    Micro(
        "a line discarded while another warp reads it",
        f"{_LINE}setp.eq.u32 %p3, %r0, 32;\n@%p3 ld.global.u32 %r20, [%d6+64];\n<<|{BAR}>>@%p0 discard.global.L2 [%d6], 128;\n",
        ("global-race",),
    ),
    Micro(
        "setmaxnreg.inc of two warpgroups, no .dec of the third",
        "mov.u32 %r40, %tid.x;\nsetp.lt.u32 %p3, %r40, 128;\n@%p3 bra A;\nsetmaxnreg.inc.sync.aligned.u32 232;\nbra B;\n"
        f"A:\n<<|setmaxnreg.dec.sync.aligned.u32 40;\n>>B:\n{BAR}",
        ("registers",),
        block=384,
        **HOPPER,
    ),
    Micro(
        "setmaxnreg.inc in the place of .dec",
        "mov.u32 %r40, %tid.x;\nsetp.lt.u32 %p3, %r40, 128;\n@%p3 bra A;\nsetmaxnreg.inc.sync.aligned.u32 232;\nbra B;\n"
        f"A:\nsetmaxnreg.<<inc|dec>>.sync.aligned.u32 40;\nB:\n{BAR}",
        ("registers",),
        block=384,
        **HOPPER,
    ),
    Micro(
        "setmaxnreg.dec to more than a launch gives",
        "mov.u32 %r40, %tid.x;\nsetp.lt.u32 %p3, %r40, 128;\n@%p3 bra A;\nsetmaxnreg.<<dec|inc>>.sync.aligned.u32 232;\nbra B;\n"
        f"A:\nsetmaxnreg.dec.sync.aligned.u32 40;\nB:\n{BAR}",
        ("registers",),
        block=384,
        **HOPPER,
    ),
)
