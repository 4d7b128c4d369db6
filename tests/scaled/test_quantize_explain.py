"""What `explain_program` says of quantizations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from linked_cases import requires_linker

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.product.targets import QUANTIZE_TARGETS

X = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
requires_kernels = pytest.mark.skipif(
    not runtime.has_target("cutlass", QUANTIZE_TARGETS["cutlass"]), reason="no kernels were built"
)


def quantized(*args: Any, device: str = "sm90", function: Any = None, **options: Any) -> list[Any]:
    """The decisions for `quantize` of X."""
    f = function or (lambda x, *key: bw.quantize(x, key=key[0] if key else None, **options))
    found = bw.explain_program(f, *(args or (X,)), device=device)
    assert found.products == ()
    assert str(found).startswith("no matrix products")
    return list(found.quantizations)


@requires_kernels
def test_a_kernel() -> None:
    ((found, times),) = quantized(scaling="1x128", transposed=True)
    assert times == 1
    assert found.problem == (
        "quantize bfloat16 -> float8_e4m3fn 1x128, and transposed, [B=1, R=512, K=256]"
    )
    assert found.implementation == "cutlass"
    assert found.reason == "one kernel reads x once and writes values, t_values, scales, t_scales"


@requires_kernels
@pytest.mark.parametrize("shape", [(0, 256), (512, 0)])
def test_an_empty_matrix(shape: tuple[int, int]) -> None:
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    ((found, _),) = quantized(x, scaling="1x128", implementation="cutlass")
    assert found.implementation == "cutlass"
    assert found.reason == "an empty matrix runs no kernel: there are no values to write"


@requires_kernels
def test_random_rounding() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    ((found, _),) = quantized(X, key, scaling="1x128")
    assert "1x128, randomly rounded, [" in found.problem


@requires_kernels
def test_another_platform() -> None:
    ((found, _),) = quantized(device="cpu", scaling="1x128")
    assert (found.implementation, found.reason) == (
        "xla",
        "cutlass runs on cuda, this program is lowered for cpu",
    )
    assert found.rejected == (("cutlass", found.reason),)


def test_xla_while_tracing() -> None:
    assert quantized(scaling="mxfp8") == []
    assert quantized(scaling="1x128", implementation="xla") == []


@requires_kernels
def test_no_implementation() -> None:
    with pytest.raises(NotImplementedError, match="this program is lowered for cpu"):
        quantized(device="cpu", scaling="1x128", implementation="cutlass")


@requires_kernels
def test_a_step_has_both() -> None:
    dot = bw.fp8_dot_general("blockwise")
    w = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)
    found = bw.explain_program(
        lambda x, w: dot(x, w, (((1,), (0,)), ((), ()))), X, w, device="sm90"
    )
    assert len(found.products) == 1
    assert len(found.quantizations) == 2
    text = str(found)
    assert text.index("scaled GEMM") < text.index("1 x quantize bfloat16")


@requires_linker
@requires_kernels
class TestComputed:
    """Quantizations that compute their operand."""

    @pytest.fixture(autouse=True)
    def _linked(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        if "sm90_quantize_bfloat16" not in linkable_kernels():
            pytest.skip("no kernels for SM90 were built")
        with bw.config.target("sm90"), bw.config.linked_epilogues(True):
            yield

    @staticmethod
    def function(x: jax.Array, y: jax.Array) -> Any:
        return bw.quantize(jax.nn.silu(x) * y, "1x128")

    def test_by_the_kernel(self) -> None:
        ((found, _),) = quantized(X, X, function=bw.accelerate(self.function))
        assert found.problem.endswith("K=256], computed from 2 arrays")
        assert found.reason == "sm90_quantize_bfloat16 computes x on its way"

    def test_by_xla(self) -> None:
        ((found, _),) = quantized(X, X, function=bw.accelerate(self.function), device="cpu")
        assert found.implementation == "xla"
        assert found.reason.endswith("x is a pass of XLA's: no kernels for cpu are allowed")
