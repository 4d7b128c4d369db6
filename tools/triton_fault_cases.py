"""Triton's kernels in tests/support, for run_emulator_faults.py, checked as in their tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Name, and what launches and checks it; none without Triton."""
    import pytest

    try:
        import test_emulator_gluon as gluon
        import test_emulator_triton as triton
    except pytest.skip.Exception as why:  # not installed, or another version
        print(f"none of Triton's kernels: {why}")
        return

    for sm in (80, 90, 100):
        yield f"triton_softmax_sm{sm}", lambda sm=sm: triton.test_softmax(sm)
        yield (
            f"triton_matmul_sm{sm}",
            lambda sm=sm: triton.test_matmul_of_integers_is_exact(sm, np.float16, "*fp16"),
        )
        yield f"triton_attention_sm{sm}", lambda sm=sm: triton.test_attention(sm)
    for lhs_in_tmem in (False, True):
        yield (
            f"gluon_small_mma_{lhs_in_tmem}",
            lambda lhs=lhs_in_tmem: gluon.test_small_mma(128, 128, 128, lhs, True, 4),
        )
    yield "gluon_round_trip", lambda: gluon.test_tensor_memory_round_trip(128, 64, 4)
    yield (
        "gluon_blocked_matmul",
        lambda: gluon.check_matmul(
            "blocked_matmul", 208, 416, 304, (64, 64, 64), transpose_b=False, num_warps=4
        ),
    )
    yield (
        "gluon_two_accumulators",
        lambda: gluon.check_matmul(
            "two_accumulator_matmul", 208, 416, 304, (128, 128, 64), num_warps=8
        ),
    )
