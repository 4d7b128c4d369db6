"""Which faults in a text change nothing: the paths of each reason, and one step off them."""

from __future__ import annotations

import pytest
from ptx_equivalents import REASONS, equivalent, reasons
from ptx_faults import Fault, faults

LANE_WAITS = "@%p1 bra J;\ncp.async.bulk.wait_group.read 0;\nJ:\n"
WAIT = (
    "{ LAB_WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0;\n@%p2 bra DONE;\n"
    "bra LAB_WAIT;\nDONE: }\n"
)
ARRIVE = "mbarrier.arrive.shared.b64 _, [%r1];\n"
FENCE = "fence.proxy.async.shared::cta;\n"
READ = "ld.shared.u32 %r2, [%r3];\n"
WRITE = "st.shared.u32 [%r3], %r2;\n"
MAKE = "mbarrier.init.shared.b64 [%r1], 1;\n"
INIT = "fence.mbarrier_init.release.cluster;\n"
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2}, %rd1, %rd2, 1, 1, 1;\n"
BEFORE = "tcgen05.fence::before_thread_sync;\n"
LOADED = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r2}, [%r3];\n"
LOADED_WAIT = "tcgen05.wait::ld.sync.aligned;\n"


def first(kind: str, text: str) -> Fault:
    return next(fault for fault in faults(text) if fault.kind == kind)


@pytest.mark.parametrize(
    ("kind", "nothing", "something"),
    [
        (
            "no warp barrier",
            f"{READ}bar.warp.sync -1;\nadd.u32 %r2, %r2, 1;\nbar.sync 0;\n",
            f"{READ}bar.warp.sync -1;\n{WRITE}bar.sync 0;\n",
        ),
        (
            "no warp barrier",
            f"elect.sync %r4|%p1, -1;\n@%p1 bra J;\nJ:\nbar.warp.sync -1;\n{READ}",
            f"elect.sync %r4|%p1, -1;\n{LANE_WAITS}bar.warp.sync -1;\n{READ}",
        ),
        (
            "no warp barrier",
            f"{READ}bar.warp.sync -1;\n{WAIT}{ARRIVE}",
            f"{READ}bar.warp.sync -1;\n{WAIT}@%p1 bra J;\n{ARRIVE}J:\nret;\n",
        ),
        (
            "no relinquish",
            "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\nret;\n",
            "L:\ntcgen05.alloc.cta_group::1.b32 [%r1], 32;\n"
            "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n@%p1 bra L;\nret;\n",
        ),
        (
            "no fence of barriers' initialisation",
            f"{MAKE}{INIT}@%p1 bra J;\n{MAKE}J:\n{INIT}bar.sync 0;\n",
            f"{MAKE}{INIT}@%p1 bra J;\n{INIT}J:\nbar.sync 0;\n",
        ),
        (
            "no fence of barriers' initialisation",
            f"bra J;\nK:\n{INIT}bar.sync 0;\nret;\nJ:\n{MAKE}{INIT}bra K;\n",
            f"bra J;\nK:\n{INIT}bar.sync 0;\nret;\nJ:\n{MAKE}bra K;\n",
        ),
        (
            "no barrier",
            "bar.sync 0;\n@%p1 bra J;\nld.param.u32 %r2, [x];\nJ:\nbar.sync 0;\n",
            f"bar.sync 0;\n@%p1 bra J;\n{READ}J:\nbar.sync 0;\n",
        ),
        ("no barrier", "bar.sync 0;\nbar.sync 0;\n", "bar.sync 0;\n@%p1 bar.sync 0;\nret;\n"),
        (
            "no wgmma fence",
            f"bra J;\nL:\nwgmma.fence.sync.aligned;\n{MMA}ret;\nJ:\n{MMA}bra L;\n",
            f"bra J;\nL:\nwgmma.fence.sync.aligned;\n{MMA}J:\nmov.f32 %f2, 0f00000000;\nbra L;\n",
        ),
        (
            "no tensor memory wait",
            f"bra J;\nK:\n{LOADED_WAIT}ret;\nJ:\n{LOADED}{LOADED_WAIT}bra K;\n",
            f"L:\n{LOADED_WAIT}{LOADED}bra L;\n",
        ),
        (
            "no proxy fence",
            f"L:\n{READ}{FENCE}@%p1 bra L;\nret;\n",
            f"L:\n{READ}{FENCE}{WRITE}@%p1 bra L;\nret;\n",
        ),
        (
            "no tensor memory fence",
            f"tcgen05.alloc.cta_group::1.b32 [%r1], 32;\n{BEFORE}bar.sync 0;\n",
            f"L:\n{BEFORE}bar.sync 0;\n{LOADED}bra L;\n",
        ),
        (
            "no tensor memory fence",
            f"bra J;\nK:\n{BEFORE}ret;\nJ:\n{LOADED}{BEFORE}bra K;\n",
            f"bra J;\nK:\n{BEFORE}ret;\nJ:\n{LOADED}bra K;\n",
        ),
    ],
)
def test_the_same_fault_changes_nothing_or_may_change_something(
    kind: str, nothing: str, something: str
) -> None:
    assert equivalent(nothing, first(kind, nothing)) in [why for why, _ in REASONS[kind]]
    assert equivalent(something, first(kind, something)) is None


def test_a_kind_without_reasons_always_counts() -> None:
    text = f"{WAIT}{ARRIVE}"
    assert equivalent(text, first("no arrival", text)) is None


def test_faults_are_counted_by_kind_and_reason() -> None:
    assert reasons([("b", "x"), ("a", "y"), ("b", "x")]) == ["| a | 1 | y |", "| b | 2 | x |"]
