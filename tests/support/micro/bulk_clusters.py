"""Bulk copies and asynchronous stores between the CTAs of a cluster."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.bulk import HAZARD, READ
from micro.case import Micro
from micro.pieces import (
    BAR,
    CLUSTER,
    CLUSTER_READY,
    INIT,
    PEER,
    PROXY,
    STORE,
    expect,
    wait,
)

PAIR = {"grid": 2, "cluster": 2}
MULTICAST = (
    "@%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%r3], [%d3], 512, [%r4], %h1;\n"
)
FIRST = "setp.eq.u32 %p3, %r2, 0;\nand.pred %p3, %p3, %p0;\nmov.u16 %h1, 3;\n"

KERNELS = (
    Micro(
        "a copy to a peer whose mbarrier may not be there",
        f"{CLUSTER}{INIT}<<{BAR}|{CLUSTER}>>{PEER}{expect(512)}"
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
    # --- CTAs that may not have started
    Micro(
        "a word of a peer stored before it has started",
        f"{PEER}shl.b32 %r20, %r0, 2;\nadd.u32 %r11, %r11, %r20;\n<<|{CLUSTER}>>st.shared::cluster.u32 [%r11], %r0;\n{CLUSTER}{READ}",
        ("cta-start",),
        **PAIR,
    ),
    Micro(
        "an atomic at a peer behind a barrier of the CTA alone",
        f"{PEER}<<{BAR}|barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n>>@%p0 red.relaxed.cluster.shared::cluster.add.u32 [%r11], 1;\n{CLUSTER}",
        ("cta-start",),
        **PAIR,
    ),
)
