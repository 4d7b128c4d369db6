"""Asynchronous writes over ordinary ones, and exits while something reads."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.bulk import READ, TILE, ZERO
from micro.bulk_clusters import FIRST, MULTICAST
from micro.bulk_stores import TILE_STORE
from micro.case import Micro
from micro.pieces import (
    BAR,
    BULK_COMMIT,
    BULK_STORE,
    BULK_WAIT,
    CLUSTER,
    CLUSTER_READY,
    PEER,
    PROXY,
    READ_WAIT,
    READY,
    STORE,
    expect,
    load,
    wait,
)
from micro.pipelines import PAIR

HAZARD = ("async-hazard", "shared-race", "lane-release", "proxy-fence")

KERNELS = (
    Micro(
        "a load over what was stored",
        f"{READY}{STORE}<<|{PROXY}>>{BAR}{load(512)}{wait(0, 0)}{READ}",
        HAZARD,
    ),
    Micro(
        "a tile over what was stored",
        f"{READY}{STORE}{ZERO}<<|{PROXY}>>{BAR}{expect(2048)}{TILE}{wait(0, 0)}{READ}",
        HAZARD,
    ),
    Micro(
        "a multicast over what the peer stored",
        f"{STORE}<<|{PROXY}>>{CLUSTER_READY}{FIRST}{expect(512)}{MULTICAST}{wait(0, 0)}{READ}{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "a copy to a peer over what it stored",
        f"{STORE}<<|{PROXY}>>{CLUSTER_READY}{PEER}{expect(512)}@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r11], [%d3], 512, [%r12];\n{wait(0, 0)}{READ}{CLUSTER}",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "bulk store over ordinary stores of global memory",
        f"{STORE}@%p0 st.global.u32 [%d1], 77;\n{PROXY}<<|fence.proxy.async.global;\n>>{BAR}{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "bulk reduction onto ordinary zeros of global memory",
        f"{STORE}st.global.u32 [%d2], 0;\n{PROXY}<<|fence.proxy.async.global;\n>>{BAR}@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a tensor reduction onto zeros",
        f"{ZERO}{STORE}@%p0 st.global.u32 [%d1], 0;\n{PROXY}<<|fence.proxy.async.global;\n>>{BAR}@%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%d5, {{%r24, %r24}}], [%r3];\n{BULK_COMMIT}{BULK_WAIT}",
        ("proxy-fence",),
    ),
    Micro(
        "a tile's store in flight at exit",
        f"{ZERO}{STORE}{PROXY}{BAR}{TILE_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>",
        ("bulk-exit",),
    ),
    Micro(
        "a bulk reduction in flight at exit",
        f"{STORE}{PROXY}{BAR}@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 512;\n{BULK_COMMIT}<<|{READ_WAIT}>>",
        ("bulk-exit",),
    ),
    Micro(
        "an early exit with stores in flight",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{READ_WAIT}>>@%p0 exit;\nst.global.u32 [%d2+8192], %r0;\n",
        ("bulk-exit",),
    ),
    Micro(
        "stores of an elected lane in flight",
        f"{STORE}{PROXY}{BAR}@!%p2 bra OUT;\nelect.sync _|%p3, -1;\n@%p3 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 512;\n@%p3 cp.async.bulk.commit_group;\n<<|@%p3 cp.async.bulk.wait_group.read 0;\n>>OUT:\n",
        ("bulk-exit",),
    ),
    Micro(
        "a store of uncommitted group at exit",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}<<|{BULK_COMMIT}>>{READ_WAIT}",
        ("bulk-exit",),
    ),
    Micro(
        "two lanes' stores, one waits",
        f"{STORE}{PROXY}{BAR}setp.lt.u32 %p3, %r0, 2;\nshl.b32 %r20, %r0, 8;\nadd.u32 %r21, %r3, %r20;\ncvt.u64.u32 %d6, %r20;\nadd.s64 %d6, %d6, %d1;\n@%p3 cp.async.bulk.global.shared::cta.bulk_group [%d6], [%r21], 256;\n@%p3 cp.async.bulk.commit_group;\n<<@%p0|@%p3>> cp.async.bulk.wait_group.read 0;\n",
        ("bulk-exit",),
    ),
    Micro(
        "source of a copy to a peer overwritten",
        f"{STORE}{PROXY}{CLUSTER_READY}{PEER}{expect(512)}add.u32 %r11, %r11, 1024;\n@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r11], [%r3], 512, [%r12];\n<<|{wait(0, 0)}{CLUSTER}>>{STORE}<<{wait(0, 0)}{CLUSTER}|>>",
        HAZARD,
        **PAIR,
    ),
    Micro(
        "a CTA that leaves while its copy to a peer is under way",
        f"{STORE}{PROXY}{CLUSTER_READY}{PEER}setp.eq.u32 %p3, %r2, 1;\n@%p3 bra RECV;\nadd.u32 %r11, %r11, 1024;\n@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r11], [%r3], 512, [%r12];\nbra END;\nRECV:\n{expect(512)}{wait(0, 0)}END:\n<<|{CLUSTER}>>",
        ("cta-exit", "bulk-exit"),
        **PAIR,
    ),
)
