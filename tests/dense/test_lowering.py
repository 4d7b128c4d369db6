"""What is emitted for CUDA, checked on a machine without a GPU.

Target, attributes, layouts, and that nothing is transposed or copied around the call for any
storage order, forward and backward.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from traced import operations

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.product.implementations import log_once

BF16 = jnp.bfloat16
M, N, K = 512, 1024, 768


def struct(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def cuda_text(
    f: Callable, *args: Any, arch: str | None = "sm90", sm_count: int | None = None
) -> str:
    """StableHLO of ``f`` lowered for CUDA."""
    if arch is None:
        return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    with bw.config.target(arch, sm_count):
        return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def calls(text: str) -> list[str]:
    return re.findall(r"custom_call @bwgemm\.product\.v2\(.*", text)


def kernel_names(text: str) -> list[str]:
    return re.findall(r'kernel = "(\w+)"', text)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_call_has_target_attributes_and_row_major_layouts(arch: str) -> None:
    text = cuda_text(bw.matmul, struct(4096, K), struct(K, 4096), arch=arch)
    (call,) = calls(text)
    config = re.search(r"mhlo\.backend_config = \{config = \{(.*?)\}\}", call)[1]
    texts = dict(re.findall(r'(\w+) = "([\w ]+)"', config))
    numbers = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+) : i64", config)}
    assert (texts.pop("operands"), texts.pop("results")) == ("a b", "d workspace")
    assert texts.keys() <= {"kernel", "raster_order"}
    assert numbers.keys() <= {"splits", "swizzle"}
    kernel = texts["kernel"]
    assert kernel in {k.name for k in runtime.kernels()}
    assert kernel.startswith(f"{arch}_bf16_bf16_kn_")
    explained = bw.explain(struct(4096, K), struct(K, 4096), device=arch)
    # Members with their defaults are left out.
    assert kernel == explained.kernel
    assert texts.get("raster_order", "heuristic") == explained.raster_order
    assert numbers.get("swizzle", 1) == explained.swizzle
    assert numbers.get("splits", 1) == explained.splits
    rows = "dense<[2, 1, 0]> : tensor<3xindex>"
    assert f"operand_layouts = [{rows}, {rows}]" in call
    assert f"result_layouts = [{rows}, dense<0> : tensor<1xindex>]" in call
    types = r"\(tensor<1x4096x768xbf16>, tensor<1x768x4096xbf16>\)"
    results = r"\(tensor<1x4096x4096xbf16>, tensor<\d+xui8>\)"
    assert re.search(rf": {types} -> {results}", call)


STORED = {"lhs": {"k": (M, K), "m": (K, M)}, "rhs": {"n": (K, N), "k": (N, K)}}


def stored_matmul(majors: str) -> Callable:
    """The product of operands stored in either order, written with dimension numbers."""
    numbers = (((1 if majors[0] == "k" else 0,), (0 if majors[1] == "n" else 1,)), ((), ()))
    return lambda a, b: bw.dot_general(a, b, numbers)


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
def test_no_transpose_or_copy_forward_and_backward(majors: str) -> None:
    f = stored_matmul(majors)
    a, b = struct(*STORED["lhs"][majors[0]]), struct(*STORED["rhs"][majors[1]])
    forward = cuda_text(f, a, b)
    assert len(calls(forward)) == 1
    assert operations(forward) == {"custom_call", "reshape"}
    assert f"bf16_{majors}_" in kernel_names(forward)[0]

    def backward(x: Any, y: Any, ct: Any) -> Any:
        return jax.vjp(f, x, y)[1](ct)

    text = cuda_text(backward, a, b, struct(M, N))
    assert len(calls(text)) == 2  # the forward product is dead code
    assert operations(text) == {"custom_call", "reshape"}


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
def test_transposed_views_become_flags(majors: str) -> None:
    """Batched operands in every storage order: the batch is dimension 0, so nothing moves."""
    numbers = (((2 if majors[0] == "k" else 1,), (1 if majors[1] == "n" else 2,)), ((0,), (0,)))
    a, b = struct(4, *STORED["lhs"][majors[0]]), struct(4, *STORED["rhs"][majors[1]])

    def backward(x: Any, y: Any, ct: Any) -> Any:
        out, vjp = jax.vjp(lambda p, q: bw.dot_general(p, q, numbers), x, y)
        return out, *vjp(ct)

    text = cuda_text(backward, a, b, struct(4, M, N))
    assert len(calls(text)) == 3
    assert operations(text) == {"custom_call"}


def test_results_that_others_read_are_not_joined_with_a_loop() -> None:
    """XLA would make the call twice. Gradients of weights may be written where loops stack them."""

    def step(x: Any, w: Any, ct: Any) -> Any:
        out, vjp = jax.vjp(bw.matmul, x, w)
        return out, *vjp(ct)

    text = cuda_text(step, struct(M, K), struct(K, N), struct(M, N))
    barriers = re.findall(r"optimization_barrier [^:]*: tensor<1x(\d+)x(\d+)xbf16>", text)
    assert barriers == [(str(M), str(N)), (str(M), str(K))]


def test_activations_times_weights_fold_the_batch_into_one_gemm() -> None:
    def step(x: Any, w: Any, ct: Any) -> Any:
        out, vjp = jax.vjp(bw.matmul, x, w)
        return out, *vjp(ct)

    text = cuda_text(step, struct(4, M, K), struct(K, N), struct(4, M, N))
    assert operations(text) == {"custom_call", "reshape"}
    assert {re.search(r"tensor<(\d+)x", c.split(" -> ")[1])[1] for c in calls(text)} == {"1"}


def test_shared_operand_is_not_repeated() -> None:
    """dot of one matrix with a batch of them: stride-0 batch, no broadcast."""
    text = cuda_text(bw.matmul, struct(M, K), struct(4, K, N))
    assert operations(text) == {"custom_call", "reshape"}
    assert f"tensor<1x{M}x{K}xbf16>, tensor<4x{K}x{N}xbf16>" in calls(text)[0]


def test_contraction_that_is_not_contiguous_transposes_only_the_smaller_operand() -> None:
    numbers = (((1, 3), (1, 0)), ((), ()))
    text = cuda_text(
        lambda a, b: bw.dot_general(a, b, numbers), struct(512, 8, 64, 64), struct(64, 8, 1024)
    )
    transposes = re.findall(r"stablehlo\.transpose .*? -> tensor<([\dx]+)xbf16>", text)
    # lhs (m, c, m', k) has to move; rhs (k, c, n) need not, in the order k, c.
    assert transposes == ["512x64x64x8"]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("preferred", [None, jnp.float32])
def test_types(dtype: Any, preferred: Any) -> None:
    text = cuda_text(
        lambda a, b: bw.matmul(a, b, preferred_element_type=preferred),
        struct(M, K, dtype=dtype),
        struct(K, N, dtype=dtype),
    )
    short = {"bfloat16": "bf16", "float16": "f16"}[jnp.dtype(dtype).name]
    out = "f32" if preferred else short
    assert kernel_names(text)[0].startswith(f"sm90_{short}_{out}_kn_")


def test_unaligned_pads_when_asked_for_kernels_only() -> None:
    a, b = struct(30, 33), struct(33, 50)
    text = cuda_text(lambda x, y: bw.matmul(x, y, implementation="cutlass"), a, b)
    assert "tensor<1x30x40xbf16>, tensor<1x40x56xbf16>" in calls(text)[0]
    assert {"pad", "slice"} <= operations(text)


def test_unaligned_policy_by_size(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        small = cuda_text(bw.matmul, struct(30, 33), struct(33, 50))
        assert calls(small) == []
        assert "dot_general" in operations(small)
        cuda_text(lambda x, y: bw.matmul(x, y) + 1, struct(30, 33), struct(33, 50))
    logged = [r.message for r in caplog.records if "padding" in r.message]
    assert len(logged) == 1  # the second lowering of the same problem says nothing
    assert "padding M=30 N=50 K=33 to M=30 N=56 K=40 does not pay" in logged[0]
    large = cuda_text(bw.matmul, struct(2048, 2047), struct(2047, 2046))
    assert "tensor<1x2048x2048xbf16>, tensor<1x2048x2048xbf16>" in calls(large)[0]


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_problems_call_no_kernel(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    text = cuda_text(
        lambda a, b: bw.matmul(a, b, implementation="cutlass"), struct(m, k), struct(k, n)
    )
    assert calls(text) == []
    assert operations(text) <= {"constant", "broadcast_in_dim", "reshape"}


def test_sequence_and_default_fall_back_to_xla_on_cpu() -> None:
    x = jnp.ones((16, 16), BF16)
    for implementation in (None, ("cutlass", "xla")):
        f = jax.jit(lambda a, i=implementation: bw.matmul(a, a, implementation=i))
        text = f.lower(x).as_text()
        assert "dot_general" in operations(text)
        assert calls(text) == []


def test_without_gpu_or_target_the_default_is_xla_with_a_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "local_target", lambda: runtime.DeviceTarget(None, "no GPU here"))
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        text = cuda_text(bw.matmul, struct(M, K), struct(K, N), arch=None)
    assert calls(text) == []
    assert any("not cutlass (no GPU here), using xla" in r.message for r in caplog.records)


def test_target_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWGEMM_TARGET_ARCH", "sm100:148")
    text = cuda_text(lambda a, b: bw.matmul(a, b), struct(M, K), struct(K, N), arch=None)
    assert kernel_names(text)[0].startswith("sm100_")


def test_another_target_is_lowered_again() -> None:
    @jax.jit
    def f(a: Any, b: Any) -> Any:
        return bw.matmul(a, b)

    seen = []
    for arch in ("sm90", "sm100", "sm90"):
        with bw.config.target(arch):
            lowered = f.trace(struct(M, K), struct(K, N)).lower(lowering_platforms=("cuda",))
            seen.append(kernel_names(lowered.as_text())[0].split("_")[0])
    assert seen == ["sm90", "sm100", "sm90"]


def test_config_by_name_and_by_field() -> None:
    name = "sm90_bf16_bf16_kn_64x128x64_1x1_pingpong"
    a, b = struct(4096, K), struct(K, 4096)
    assert kernel_names(cuda_text(lambda x, y: bw.matmul(x, y, config=name), a, b)) == [name]
    config = bw.TuningConfig(
        tile_m=64, tile_n=128, cluster_m=1, swap_ab=False, splits=2, raster_order="n",
        swizzle=16,
    )  # fmt: skip
    text = cuda_text(lambda x, y: bw.matmul(x, y, config=config), a, b)
    assert kernel_names(text) == [name]
    options = 'raster_order = "n", results = "d workspace", splits = 2 : i64, swizzle = 16'
    assert options in text


def test_one_line_is_logged_per_problem(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        for offset in (1, 2):
            cuda_text(lambda a, b, c=offset: bw.matmul(a, b) + c, struct(M, K), struct(K, N))
    (line,) = [r.message for r in caplog.records]
    assert line.startswith(
        f"GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M={M} N={N} K={K}: cutlass sm90_bf16"
    )


def test_cpu_and_cuda_in_one_lowering() -> None:
    with bw.config.target("sm90"):
        traced = jax.jit(bw.matmul).trace(struct(M, K), struct(K, N))
        text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert len(calls(text)) == 1
    assert len(re.findall(r"stablehlo\.dot_general", text)) == 1


def test_workspace_comes_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []

    def workspace(*args: Any, **order: Any) -> int:
        asked.append((*args, *order))
        return 1234

    monkeypatch.setattr(runtime, "workspace_bytes", workspace)
    jax.clear_caches()
    text = cuda_text(bw.matmul, struct(M, K), struct(K, N), sm_count=100)
    assert "tensor<1234xui8>" in text
    order = "raster_order", "swizzle", "decomposition"
    assert asked == [(kernel_names(text)[0], M, N, K, 1, 1, 100, *order)]


def test_accelerators_without_kernels_get_the_dot() -> None:
    text = jax.jit(bw.matmul).trace(struct(M, K), struct(K, N)).lower(lowering_platforms=("tpu",))
    assert calls(text.as_text()) == []


def test_emulator_lowers_to_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    table = runtime.kernels()
    monkeypatch.setattr(runtime, "emulated_kernels", lambda: table)
    monkeypatch.setattr(runtime, "emulated_workspace_bytes", lambda *_, **__: 64)
    jax.clear_caches()

    def f(a: Any, b: Any) -> Any:
        return bw.matmul(a, b, implementation="emulator")

    default = jax.jit(f).trace(struct(M, K), struct(K, N)).lower(lowering_platforms=("cpu",))
    assert "@bwgemm.product.emulated.v2" in default.as_text()
    assert kernel_names(default.as_text())[0].startswith("sm100_")
    with bw.config.target("sm90"):
        chosen = jax.jit(f).trace(struct(M, K), struct(K, N)).lower(lowering_platforms=("cpu",))
    assert kernel_names(chosen.as_text())[0].startswith("sm90_")
    jax.clear_caches()


def test_spec_repr_is_short() -> None:
    text = str(jax.make_jaxpr(lambda a, b: bw.matmul(a, b))(struct(M, K), struct(K, N)))
    assert "bw_gemm[spec=<kn bfloat16>]" in text


def test_table_rows_are_what_the_build_promises() -> None:
    for kernel in runtime.kernels():
        fields = dataclasses.asdict(kernel)
        assert fields["alignment_bytes"] == 16
        assert kernel.a_major in "km"
        assert kernel.b_major in "nk"
        narrow = {kernel.a_dtype, kernel.b_dtype} - {"float32"} or {"float32"}
        assert len(narrow) == 1
        assert kernel.splits_both == (narrow == {"float32"})
        assert {kernel.out_dtype} <= narrow | {"float32"}
        assert kernel.in_dtype in (*narrow, f"{kernel.a_dtype} x {kernel.b_dtype}")
    assert len({k.name for k in runtime.kernels()}) == len(runtime.kernels())


def test_lax_dot_general_is_used_for_types_without_kernels() -> None:
    jaxpr = jax.make_jaxpr(bw.matmul)(jnp.ones((4, 4)), jnp.ones((4, 4)))
    assert "bw_gemm" not in str(jaxpr)
    assert lax.dot_general_p.name in str(jaxpr)
