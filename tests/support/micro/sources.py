"""Copies whose source or target is written by something that nothing orders after or before them."""

# ruff: noqa: E501 (statements of PTX are not broken)

from micro.case import Micro
from micro.pieces import BAR, BULK_COMMIT, BULK_STORE, BULK_WAIT, PROXY, STORE

_COPY = "cp.async.ca.shared.global [%r7], [%d2], 4;\n"
_COMMIT = "cp.async.commit_group;\n"
_WAIT = "cp.async.wait_group 0;\n"
_TAKE = "ld.shared.u32 %r20, [%r7];\nst.global.u32 [%d2+4096], %r20;\n"

KERNELS = (
    Micro(
        "the source of cp.async written ahead of its wait",
        f"{_COPY}{_COMMIT}<<|{_WAIT}>>st.global.u32 [%d2], %r0;\n{_WAIT}{_TAKE}",
        ("async-hazard",),
    ),
    Micro(
        "the source of cp.async written by another warp",
        f"{_COPY}{_COMMIT}<<|{_WAIT}>>{BAR}xor.b32 %r20, %r0, 32;\nmul.wide.u32 %d6, %r20, 4;\nadd.s64 %d6, %d6, %d1;\nst.global.u32 [%d6], %r0;\n{_WAIT}{_TAKE}",
        ("async-hazard",),
    ),
    Micro(
        "two bulk stores of one thread to one place",
        f"{STORE}{PROXY}{BAR}{BULK_STORE}{BULK_COMMIT}<<|{BULK_WAIT}>>{BULK_STORE}{BULK_COMMIT}{BULK_WAIT}",
        ("same-value",),
    ),
)
