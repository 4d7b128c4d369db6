"""What a kernel says of splits that it, or the problem, cannot have: the C++ layer's own checks.

Selection refuses most of them earlier; exported programs and tuning tables reach these.
"""

from __future__ import annotations

import pytest

from jax_bwgemm import runtime
from jax_bwgemm.product.kernels import Kernel

pytestmark = pytest.mark.emulator

MOST = 2**31 - 8


def kernel(**fields: object) -> Kernel:
    """The first kernel of the build with these fields, of SM90 if they do not say."""
    fields = {"arch": "sm90"} | fields
    for k in runtime.emulated_kernels():
        if all(getattr(k, name) == value for name, value in fields.items()):
            return k
    pytest.skip("the emulator was not built with such a kernel")


def refusal(k: Kernel, m: int, n: int, kk: int, batch: int, splits: int) -> str:
    with pytest.raises(ValueError) as caught:
        runtime.emulated_workspace_bytes(k.name, m, n, kk, batch, splits, 132)
    return str(caught.value)


def test_a_tile_without_f32_output() -> None:
    k = kernel(splits_k=False)
    assert refusal(k, 64, 64, 512, 1, 2) == (
        f"kernel '{k.name}' cannot split K: this build has no kernel that computes its parts in f32"
    )


@pytest.mark.parametrize(
    ("schedule", "splits", "asked"),
    [
        ("1sm", 3, "splits 3"),
        ("clusterk", 9, "splits 9 (clusters of 3 leave 3)"),
        ("clusterk", 11, "splits 11"),
    ],
)
def test_a_batch_and_a_k_that_does_not_divide(schedule: str, splits: int, asked: str) -> None:
    arch = "sm100" if schedule == "1sm" else "sm90"
    k = kernel(arch=arch, schedule=schedule, splits_k=True, stream_k=False)
    apart = 3 if splits == 9 else splits
    assert f"a batch of 2 cannot be combined with {asked}" in refusal(k, 64, 64, 792, 2, splits)
    text = refusal(k, 64, 64, 80, 1, splits)
    assert f"K=80 is not a multiple of {8 * apart}: {asked}" in text
    assert "[B=1, M=64, N=64, K=80]" in text


def test_a_batch_in_uneven_parts() -> None:
    """Any K has any number of them, but a batch has none."""
    k = kernel(schedule="cooperative", splits_k=True, stream_k=False)
    assert "a batch of 2 cannot be combined with splits 3" in refusal(k, 64, 64, 792, 2, 3)
    assert runtime.emulated_workspace_bytes(k.name, 64, 64, 80, 1, 3, 132) >= 3 * 64 * 64 * 4


def test_parts_that_no_memory_holds() -> None:
    text = refusal(
        kernel(schedule="cooperative", splits_k=True, stream_k=False), MOST, MOST, 512, 1, 2
    )
    assert f"the parts of M={MOST}, N={MOST} do not fit in memory: splits 2" in text


@pytest.mark.parametrize(
    ("one", "most"),
    [({"schedule": "clusterk"}, "2^31 - 1"), ({"arch": "sm90", "stream_k": True}, "65535")],
    ids=["cluster-K", "stream-K"],
)
def test_parts_whose_launch_would_have_too_many_tiles(one: dict[str, object], most: str) -> None:
    text = refusal(kernel(**one), 8192, MOST, 512, 1, 64)
    assert f"has more than {most} tiles times parts of K" in text


def test_a_result_of_too_many_tiles() -> None:
    text = refusal(kernel(schedule="cooperative", stream_k=False), MOST, MOST, 8, 1, 1)
    assert "has more than 2^31 - 1 tiles (kernel" in text
