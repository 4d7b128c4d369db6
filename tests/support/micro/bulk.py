"""mbarriers and bulk loads."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    BAR,
    INIT,
    READY,
    STORE,
    bulk,
    expect,
    load,
    wait,
)

HAZARD = ("async-hazard", "shared-race", "lane-release")
READ = "ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n"
TILE = (
    "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
    "[%d4, {%r24, %r24}], [%r4];\n"
)
ZERO = "mov.u32 %r24, 0;\n"

KERNELS = (
    # --- the phase of an mbarrier
    Micro(
        "a bulk load read before its phase ends",
        f"{READY}{load(512)}<<{READ}{wait(0, 0)}|{wait(0, 0)}{READ}>>",
        HAZARD,
    ),
    Micro(
        "only the thread that loads waits",
        f"{READY}{load(512)}@!%p0 bra GO;\n{wait(0, 0)}GO:\n<<|{BAR}>>{READ}",
        HAZARD,
    ),
    Micro(
        "a wait for the phase before",
        f"{READY}{load(512)}{wait(0, 0)}{READ}{BAR}{load(512)}"
        f"<<{wait(0, 0)}|{wait(0, 1)}>>{READ}<<{wait(0, 1)}|>>",
        HAZARD,
    ),
    Micro(
        "a wait for the other stage",
        f"{READY}{load(512)}{load(512, 1, '%r25').replace('%r25', '%r3+1024')}"
        f"<<{wait(0, 0)}|{wait(1, 0)}>>ld.shared.u32 %r20, [%r7+1024];\nst.global.u32 [%d2], %r20;\n"
        f"<<{wait(1, 0)}|{wait(0, 0)}>>",
        HAZARD,
    ),
    Micro(
        "a wait outside of a loop",
        f"{READY}{load(512)}<<mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0;\n|{wait(0, 0)}>>{READ}"
        f"<<{wait(0, 0)}|>>",
        HAZARD,
    ),
    Micro(
        "a test outside of a loop",
        f"{READY}{load(512)}<<mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r4], 0;\n|{wait(0, 0)}>>{READ}"
        f"<<{wait(0, 0)}|>>",
        HAZARD,
    ),
    Micro(
        "a wait by token outside of a loop",
        f"{READY}@!%p0 bra GO;\nmbarrier.arrive.expect_tx.shared::cta.b64 %d6, [%r4], 512;\n"
        f"{bulk(512)}<<|LOOP:\n>>mbarrier.try_wait.shared::cta.b64 %p3, [%r4], %d6;\n<<|@!%p3 bra LOOP;\n>>"
        f"ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d1], %r20;\nGO:\n<<{wait(0, 0)}|>>",
        HAZARD,
    ),
    Micro(
        "a wait whose answer another branch ignores",
        f"{READY}{load(512)}mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0;\n"
        f"<<setp.eq.u32 %p3, %r0, %r0;\n|>>@%p3 bra GO;\n{wait(0, 0)}GO:\n{READ}<<{wait(0, 0)}|>>",
        HAZARD,
    ),
    Micro(
        "a relaxed wait",
        f"{INIT}{BAR}@%p0 st.shared.u32 [%r3], 5;\n@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
        "W:\nmbarrier.try_wait.parity.<<relaxed|acquire>>.cta.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra W;\n"
        "ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n",
        ("shared-race",),
    ),
    Micro(
        "a relaxed arrival",
        f"{INIT}{BAR}@%p0 st.shared.u32 [%r3], 5;\n@%p0 mbarrier.arrive.<<relaxed|release>>.cta.shared::cta.b64 _, [%r4];\n"
        f"{wait(0, 0)}ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n",
        ("shared-race",),
    ),
    Micro(
        "bytes expected too few",
        f"{READY}{expect(512).replace('512', '<<256|512>>')}{bulk(512)}{wait(0, 0)}{READ}",
        ("async-hazard", "tx-count", "pending"),
    ),
    Micro(
        "bytes expected too many",
        f"{READY}{expect(512).replace('512', '<<528|512>>')}{bulk(512)}{wait(0, 0)}{READ}",
        ("deadlock", "waits for mbarrier"),
    ),
    Micro(
        "two copies where one is expected",
        f"{READY}{expect(512)}{bulk(512)}<<{bulk(512).replace('[%r3]', '[%r3+512]')}|>>{wait(0, 0)}{READ}",
        ("async-hazard", "tx-count", "cta-exit", "pending"),
    ),
    Micro(
        "bytes expected after the arrival",
        f"{READY}<<@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
        "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r4], 512;\n|"
        "@%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r4], 512;\n"
        f"@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n>>{bulk(512)}{wait(0, 0)}{READ}",
        ("async-hazard", "mbarrier-overrun", "tx-count", "pending", "deadlock", "cta-exit"),
    ),
    Micro(
        "all threads arrive where one is expected",
        f"{READY}{STORE}<<|@%p0 >>mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}",
        ("mbarrier-overrun", "arrival", "pending"),
    ),
    Micro(
        "an arrival for the next phase too early",
        f"{READY}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n<<|{wait(0, 0)}{BAR}>>"
        "setp.eq.u32 %p3, %r0, 32;\n@%p3 mbarrier.arrive.shared::cta.b64 _, [%r4];\n",
        ("mbarrier-overrun",),
    ),
    Micro(
        "an arrival too few",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4], <<5|4>>;\n{BAR}"
        f"@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}",
        ("deadlock", "waits for mbarrier"),
    ),
    Micro(
        "an mbarrier that is not initialised",
        f"<<|@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n>>{BAR}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}",
        ("not been initialised", "initialis"),
    ),
    Micro(
        "an mbarrier used before others have initialised it",
        "@%p0 mbarrier.init.shared::cta.b64 [%r4], 128;\n<<|bar.sync 0;\n>>mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
        f"{wait(0, 0)}",
        ("initialis", "mbarrier-init"),
    ),
    Micro(
        "an mbarrier after its end",
        f"{READY}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}{BAR}<<@%p0 mbarrier.inval.shared::cta.b64 [%r4];\n|>>"
        "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n",
        ("initialis", "inval"),
    ),
    Micro(
        "an mbarrier ended while others may wait",
        f"{READY}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}<<|{BAR}>>@%p0 mbarrier.inval.shared::cta.b64 [%r4];\n",
        ("initialis", "inval", "shared-race", "mbarrier"),
    ),
    Micro(
        "an mbarrier initialised again and not ended before",
        f"{READY}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}{BAR}<<|@%p0 mbarrier.inval.shared::cta.b64 [%r4];\n>>@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n",
        ("mbarrier-init",),
    ),
    Micro(
        "data over an mbarrier",
        f"{READY}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}{BAR}<<@%p0 st.shared.u64 [%r4], %d1;\n|>>"
        f"{BAR}@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n",
        ("mbarrier",),
    ),
    Micro(
        "an mbarrier initialised again while it counts",
        f"{READY}{load(512)}<<{BAR}@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n|>>{wait(0, 0)}{READ}",
        ("mbarrier", "deadlock", "initialis"),
    ),
    Micro(
        "an mbarrier that is not aligned",
        "@%p0 mbarrier.init.shared::cta.b64 [%r4+<<4|8>>], 1;\n",
        ("multiple of",),
    ),
    Micro(
        "a drop that leaves nobody",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4], 2;\n{BAR}@%p0 mbarrier.arrive<<|_drop>>.shared::cta.b64 _, [%r4];\n"
        f"setp.eq.u32 %p3, %r0, 32;\n@%p3 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 0)}{BAR}"
        f"@%p3 mbarrier.arrive.shared::cta.b64 _, [%r4];\n{wait(0, 1)}",
        ("deadlock", "waits for mbarrier"),
    ),
    # --- loads
    Micro(
        "a stage loaded again while it is read",
        f"{READY}{load(512)}{wait(0, 0)}{READ}<<|{BAR}>>{load(512)}{wait(0, 1)}",
        HAZARD,
    ),
    Micro(
        "a stage loaded again though one reader has not arrived",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4+24], <<3|4>>;\n{READY}{load(512)}{wait(0, 0)}{READ}"
        "bar.warp.sync -1;\n<<setp.ne.u32 %p3, %r1, 3;\nand.pred %p3, %p3, %p1;\n|mov.pred %p3, %p1;\n>>"
        f"@%p3 mbarrier.arrive.shared::cta.b64 _, [%r4+24];\n@!%p0 bra GO;\n{wait(3, 0)}GO:\n{load(512)}{wait(0, 1)}",
        HAZARD,
    ),
    Micro(
        "a stage given back before it is read",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4+24], 4;\n{READY}{load(512)}{wait(0, 0)}"
        f"<<@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4+24];\n{READ}|{READ}bar.warp.sync -1;\n"
        "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4+24];\n>>"
        f"@!%p0 bra GO;\n{wait(3, 0)}GO:\n{load(512)}{wait(0, 1)}",
        HAZARD,
    ),
    Micro(
        "a lane that gives a stage back for others that still read",
        f"@%p0 mbarrier.init.shared::cta.b64 [%r4+24], 4;\n{READY}{load(512)}{wait(0, 0)}{READ}"
        "<<|bar.warp.sync -1;\n>>@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4+24];\n"
        f"@!%p0 bra GO;\n{wait(3, 0)}GO:\n{load(512)}{wait(0, 1)}",
        HAZARD,
    ),
    Micro(
        "two loads of one place",
        f"{READY}{load(512)}<<|{wait(0, 0)}{BAR}>>{load(512, 1)}{wait(1, 0)}<<{wait(0, 0)}|>>",
        HAZARD,
    ),
    Micro(
        "a load over what is stored",
        f"{READY}<<{STORE}|>>{load(512)}{wait(0, 0)}{READ}",
        ("async-hazard", "proxy-fence", "shared-race"),
    ),
    Micro(
        "a store over what a load writes",
        f"{READY}{load(512)}<<{STORE}|>>{wait(0, 0)}{READ}",
        ("async-hazard",),
    ),
    Micro(
        "a load that nobody waits for",
        f"{READY}{load(512)}<<|{wait(0, 0)}>>",
        ("cta-exit",),
    ),
    Micro(
        "a load of global memory that was just stored",
        f"{READY}@%p0 st.global.u32 [%d3], 7;\n<<|@%p0 fence.proxy.async.global;\n>>{load(512)}{wait(0, 0)}{READ}",
        ("proxy-fence",),
    ),
    Micro(
        "a load of global memory that another CTA stored",
        f"{READY}setp.eq.u32 %p3, %r9, 0;\nand.pred %p3, %p3, %p0;\n@%p3 st.global.u32 [%d3], 7;\n"
        "@%p3 st.release.gpu.global.u32 [%d1], 1;\nAGAIN:\nld.acquire.gpu.global.u32 %r20, [%d1];\n"
        "setp.eq.u32 %p4, %r20, 0;\n@%p4 bra AGAIN;\n"
        f"<<|fence.proxy.async.global;\n>>{load(512)}{wait(0, 0)}",
        ("proxy-fence",),
        grid=2,
    ),
    Micro(
        "a tile read before it has come",
        f"{READY}{ZERO}{expect(2048)}{TILE}<<{READ}{wait(0, 0)}|{wait(0, 0)}{READ}>>",
        HAZARD,
    ),
    Micro(
        "a tile's bytes forgotten at the edge",
        f"{READY}{ZERO}mov.u32 %r24, 248;\nmov.u32 %r25, 0;\n{expect(2048).replace('2048', '<<1024|2048>>')}"
        f"{TILE.replace('{%r24, %r24}', '{%r25, %r24}')}{wait(0, 0)}{READ}",
        ("async-hazard", "tx-count", "pending"),
    ),
    Micro(
        "a tile that is not aligned in shared memory",
        f"{READY}{ZERO}{expect(2048)}{TILE.replace('[%r3]', '[%r3+<<64|128>>]')}{wait(0, 0)}",
        ("multiple of",),
    ),
    Micro(
        "a bulk copy of a size that is no multiple of 16",
        f"{READY}{load(512).replace('512', '<<516|512>>')}{wait(0, 0)}",
        ("multiple of 16", "16"),
    ),
    Micro(
        "a bulk copy past the end of an array",
        f"{READY}{load(512, source='%d3+<<32272|32256>>')}{wait(0, 0)}",
        ("byte 32272",),
    ),
    Micro(
        "a bulk copy past the end of shared memory",
        f"{READY}{load(512, to='%r3+<<33024|32256>>')}{wait(0, 0)}",
        ("outside", "bounds", "shared memory", "mbarrier"),
    ),
)
