"""mbarriers and bulk copies: loads, stores, reductions, multicast, st.async."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import (
    BAR,
    BULK_COMMIT,
    BULK_STORE,
    BULK_WAIT,
    CLUSTER,
    CLUSTER_READY,
    INIT,
    PEER,
    PROXY,
    READ_WAIT,
    READY,
    STORE,
    bulk,
    expect,
    load,
    wait,
)

HAZARD = ("async-hazard", "shared-race", "lane-release")
PAIR = {"grid": 2, "cluster": 2}
READ = "ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2], %r20;\n"
TILE = (
    "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
    "[%d4, {%r24, %r24}], [%r4];\n"
)
TILE_STORE = (
    "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d5, {%r24, %r24}], [%r3];\n"
)
ZERO = "mov.u32 %r24, 0;\n"
MULTICAST = (
    "@%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%r3], [%d3], 512, [%r4], %h1;\n"
)
FIRST = "setp.eq.u32 %p3, %r2, 0;\nand.pred %p3, %p3, %p0;\nmov.u16 %h1, 3;\n"

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
    # --- stores
    Micro(
        "a bulk store without a proxy fence",
        f"{STORE}<<|{PROXY}>>{BAR}{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a proxy fence ahead of the stores",
        f"<<{PROXY}{STORE}|{STORE}{PROXY}>>{BAR}{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a bulk store without a barrier",
        f"{STORE}{PROXY}<<|{BAR}>>{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("shared-race", "async-hazard", "proxy-fence"),
    ),
    Micro(
        "a bulk store of what is overwritten",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>{BAR}{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "a wait that other threads do not hear of",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}{READ_WAIT}<<|{BAR}>>{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "a bulk store without a commit",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}<<|{BULK_COMMIT}>>{BULK_WAIT}{BAR}{STORE}",
        ("async-hazard", "bulk-exit"),
    ),
    Micro(
        "a commit ahead of the bulk store",
        f"{STORE}{PROXY}{BAR}<<{BULK_COMMIT}{BULK_STORE}|{BULK_STORE}{BULK_COMMIT}>>{BULK_WAIT}{BAR}{STORE}",
        ("async-hazard", "bulk-exit"),
    ),
    Micro(
        "one group of bulk stores too few",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}@%p0 cp.async.bulk.wait_group.read <<1|0>>;\n{BAR}{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "another thread's bulk stores",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}setp.eq.u32 %p3, %r0, <<32|0>>;\n"
        f"@%p3 cp.async.bulk.wait_group.read 0;\n{BAR}{STORE}<<{BULK_WAIT}|>>",
        ("async-hazard",),
    ),
    Micro(
        "an exit with bulk stores in flight",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>",
        ("bulk-exit",),
    ),
    Micro(
        "a result read after wait_group.read",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<{READ_WAIT}|{BULK_WAIT}>>@%p0 ld.global.u32 %r20, [%d1];\n"
        "@%p0 st.global.u32 [%d1+4096], %r20;\n",
        ("async-hazard",),
    ),
    Micro(
        "a result handed over after wait_group.read",
        f"setp.eq.u32 %p3, %r9, 0;\n@!%p3 bra READ;\n{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<{READ_WAIT}|{BULK_WAIT}>>"
        "@%p0 st.release.gpu.global.u32 [%d1+4096], 1;\nbra DONE;\nREAD:\nld.acquire.gpu.global.u32 %r20, [%d1+4096];\n"
        "setp.eq.u32 %p4, %r20, 0;\n@%p4 bra READ;\nld.global.u32 %r21, [%d1+64];\nDONE:\n",
        ("async-hazard", "global-race"),
        grid=2,
    ),
    Micro(
        "a store into what a bulk store writes",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{BULK_WAIT}{BAR}>>st.global.u32 [%d1+64], %r0;\n<<{BULK_WAIT}|>>".replace(
            "st.global.u32 [%d1+64], %r0;", "@%p0 st.global.u32 [%d1+64], %r4;"
        ),
        ("async-hazard", "global-race"),
    ),
    Micro(
        "a tile's store without a proxy fence",
        f"{ZERO}{STORE}<<|{PROXY}>>{BAR}{TILE_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a tile's store of what is overwritten",
        f"{ZERO}{STORE}{PROXY}{BAR}{TILE_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>{BAR}{STORE}{BULK_WAIT}",
        HAZARD,
    ),
    Micro(
        "a bulk reduction without a proxy fence",
        f"{STORE}<<|{PROXY}>>{BAR}@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n"
        f"{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a plain store into what others reduce",
        f"{STORE}{PROXY}{BAR}@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n"
        f"{BULK_COMMIT}{BULK_WAIT}<<setp.eq.u32 %p3, %r9, 1;\n@%p3 st.global.u32 [%d1], %r0;\n|>>",
        ("async-hazard", "global-race"),
        grid=2,
    ),
    Micro(
        "bulk stores of two CTAs to one place",
        f"{STORE}{PROXY}{BAR}<<|shl.b32 %r20, %r9, 9;\ncvt.u64.u32 %d6, %r20;\nadd.s64 %d1, %d1, %d6;\n>>"
        f"{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("same-value", "async-hazard", "global-race"),
        grid=2,
    ),
    # --- clusters
    Micro(
        "a copy to a peer whose mbarrier may not be there",
        f"{INIT}<<{BAR}|{CLUSTER}>>{PEER}{expect(512)}"
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d3], 512, [%r12];\n"
        f"{wait(0, 0)}{CLUSTER}",
        ("mbarrier-init", "initialis"),
        **PAIR,
    ),
    Micro(
        "a copy to a peer that still reads",
        f"{STORE}{PROXY}{CLUSTER_READY}{PEER}ld.shared.u32 %r20, [%r8];\n<<|{CLUSTER}>>{expect(512)}"
        "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d3], 512, [%r12];\n"
        f"{wait(0, 0)}{CLUSTER}st.global.u32 [%d2], %r20;\n",
        ("async-hazard",),
        **PAIR,
    ),
    Micro(
        "a copy from shared memory to a peer without a proxy fence",
        f"{INIT}{STORE}<<|{PROXY}>>{CLUSTER}{PEER}{expect(512)}"
        "add.u32 %r11, %r11, 1024;\n"
        "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r11], [%r3], 512, [%r12];\n"
        f"{wait(0, 0)}ld.shared.u32 %r20, [%r7+1024];\nst.global.u32 [%d2], %r20;\n{CLUSTER}",
        ("proxy-fence",),
        **PAIR,
    ),
    Micro(
        "multicast into a CTA that still reads",
        f"{STORE}{PROXY}{CLUSTER_READY}{FIRST}ld.shared.u32 %r20, [%r8];\n<<{BAR}|{CLUSTER}>>{expect(512)}{MULTICAST}"
        f"{wait(0, 0)}{CLUSTER}st.global.u32 [%d2], %r20;\n",
        ("async-hazard",),
        **PAIR,
    ),
    Micro(
        "multicast that one CTA does not wait for",
        f"{CLUSTER_READY}{FIRST}{expect(512)}{MULTICAST}<<setp.eq.u32 %p4, %r2, 1;\n@%p4 bra OUT;\n|>>{wait(0, 0)}OUT:\n{CLUSTER}",
        ("cta-exit",),
        **PAIR,
    ),
    Micro(
        "multicast that one CTA reads too early",
        f"{CLUSTER_READY}{FIRST}{expect(512)}{MULTICAST}setp.eq.u32 %p4, %r2, 1;\n@%p4 bra OUT;\n{wait(0, 0)}OUT:\n"
        f"<<|{wait(0, 0)}>>{READ}<<{wait(0, 0)}|>>{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "an arrival at a peer's stage ahead of the reads",
        f"{CLUSTER_READY}{FIRST}{expect(512)}{MULTICAST}{wait(0, 0)}mapa.shared::cluster.u32 %r12, %r4, 0;\n"
        f"<<@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12+8];\n|>>{READ}"
        f"<<|{BAR}@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12+8];\n>>"
        f"@!%p3 bra GO;\n{wait(1, 0)}GO:\n{expect(512)}{MULTICAST}{wait(0, 1)}{CLUSTER}".replace(
            "fence.mbarrier_init",
            "@%p0 mbarrier.init.shared::cta.b64 [%r4+8], 2;\nfence.mbarrier_init",
        ).replace("@%p0 mbarrier.init.shared::cta.b64 [%r4+8], 1;\n", ""),
        HAZARD,
        **PAIR,
    ),
    Micro(
        "st.async read before its bytes are counted",
        f"{CLUSTER_READY}{PEER}{expect(4)}@%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r11], %r4, [%r12];\n"
        f"<<ld.shared.u32 %r20, [%r3];\n{wait(0, 0)}|{wait(0, 0)}ld.shared.u32 %r20, [%r3];\n>>st.global.u32 [%d2], %r20;\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "st.async into what the peer still reads",
        f"{STORE}{CLUSTER_READY}{PEER}{expect(4)}ld.shared.u32 %r20, [%r3];\n<<|{CLUSTER}>>"
        "@%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r11], %r4, [%r12];\n"
        f"{wait(0, 0)}st.global.u32 [%d2], %r20;\n{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "red.async ahead of the zeros",
        f"{INIT}<<{CLUSTER}@%p0 st.shared.u32 [%r3], 0;\n|@%p0 st.shared.u32 [%r3], 0;\n{CLUSTER}>>{PEER}{expect(4)}"
        "@%p0 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r11], 1, [%r12];\n"
        f"{wait(0, 0)}ld.shared.u32 %r20, [%r3];\nst.global.u32 [%d2], %r20;\n{CLUSTER}",
        ("async-hazard", "shared-race"),
        **PAIR,
    ),
)
