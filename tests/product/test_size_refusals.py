"""Sizes that compiled code refuses: the next implementation with a reason, and `explain` agrees."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import Target, target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.tuning.keys import DenseKey

A = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
W = jax.ShapeDtypeStruct((2, 64, 64), jnp.bfloat16)
SIZES = np.array([32, 32], np.int32)
REFUSED = "M=64 has more than 2^31 - 1 tiles"

PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "matmul": (bw.matmul, (A, A), "workspace_bytes"),
    "ragged_dot": (
        lambda a, w, **kw: bw.ragged_dot(a, w, SIZES, **kw),
        (A, W),
        "grouped_workspace_bytes",
    ),
}


def lowered(f: Callable, *args: Any) -> str:
    with target("sm90"):
        return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture(params=PRODUCTS)
def refused(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A product whose kernel's own checks refuse it."""
    product, args, workspace = PRODUCTS[request.param]

    def refuse(*_: Any, **__: Any) -> int:
        raise ValueError(REFUSED)

    monkeypatch.setattr(runtime, workspace, refuse)
    jax.clear_caches()
    log_once.cache_clear()
    return product, args


def test_xla_is_next_and_the_reason_is_logged(
    refused: Any, caplog: pytest.LogCaptureFixture
) -> None:
    product, args = refused
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        text = lowered(product, *args)
    assert "bwgemm" not in text.replace("jit_bwgemm", "")
    (line,) = [r.message for r in caplog.records if "using xla" in r.message]
    assert f"refuses these sizes: {REFUSED}" in line


def test_explanations_agree(refused: Any) -> None:
    product, args = refused
    ((found, _),) = bw.explain_program(product, *args, device="sm90").products
    assert found.implementation == "xla"
    assert found.reason.endswith(f"refuses these sizes: {REFUSED}")


def test_kernels_only_is_an_error_with_the_reason(refused: Any) -> None:
    product, args = refused
    with pytest.raises(NotImplementedError, match="refuses these sizes: M=64"):
        lowered(lambda *xs: product(*xs, implementation="cutlass"), *args)


def test_an_explicit_configuration_never_falls_back(refused: Any) -> None:
    product, args = refused
    kind = bw.TuningConfig if product is bw.matmul else bw.GroupedConfig
    config = kind(schedule="cooperative")
    with pytest.raises(NotImplementedError, match=r"cannot be satisfied: kernel '.*' refuses"):
        lowered(lambda *xs: product(*xs, config=config), *args)


def test_rows_beyond_32_bits_stay_a_batch() -> None:
    # 2^32 rows in all: folded into one matrix they would not fit.
    a = jax.ShapeDtypeStruct((2**16, 2**16, 64), jnp.bfloat16)
    b = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    text = lowered(bw.matmul, a, b)
    assert "tensor<65536x65536x64xbf16>" in text
    assert "4294967296" not in text
    assert text.count("stablehlo.custom_call @bwgemm") == 1
    half = lowered(bw.matmul, jax.ShapeDtypeStruct((2**12, 2**16, 64), jnp.bfloat16), b)
    assert "tensor<1x268435456x64xbf16>" in half


def test_the_largest_batch_of_a_grid() -> None:
    sm90, sm100 = (next(k for k in runtime.kernels() if k.arch == a) for a in ("sm90", "sm100"))
    assert heuristics.grid_refusal(sm100, 2**16 - 1) is None
    assert heuristics.grid_refusal(sm100, 2**16) == "a batch of more than 65535"
    assert heuristics.grid_refusal(sm90, 2**16) is None


def test_terms_of_f16_need_many_sums() -> None:
    most = Target("sm90", 132)
    for k in (248, 256):
        problem = DenseKey("float32highest", "float32", "kn", 256, 256, k)
        asked = spec_of(problem), "float32", dims_of(problem)
        _, rejected = heuristics.rank(runtime.kernels(), *asked, most)
        assert any("too few sums" in reason for _, reason in rejected) == (k < 256)


@pytest.mark.parametrize("count", [1, 2])
def test_a_cluster_may_take_the_whole_gpu(count: int) -> None:
    dims = GemmDims(256, 256, 256, 1, 1, 1)
    gpu = Target("sm90", count)
    usable, rejected = heuristics.rank(runtime.kernels(), GemmSpec(), "bfloat16", dims, gpu)
    assert max(c.kernel.cluster_m * c.kernel.cluster_n for c in usable) == count
    reasons = {reason for _, reason in rejected if "does not fit" in reason}
    assert ("a cluster of 2 CTAs does not fit: 1 multiprocessors" in reasons) == (count == 1)
