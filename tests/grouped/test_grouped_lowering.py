"""What grouped GEMMs emit for CUDA and for the emulator, checked without a GPU."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from traced import operations

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.product.implementations import log_once

BF16 = jnp.bfloat16
M, N, K, G = 4096, 1024, 768, 8
SIZES = jax.ShapeDtypeStruct((G,), jnp.int32)


def struct(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


LHS, RHS, OUT = struct(M, K), struct(G, K, N), struct(M, N)


def cuda_text(f: Callable, *args: Any, arch: str = "sm90", sm_count: int | None = None) -> str:
    """StableHLO of ``f`` lowered for CUDA."""
    with bw.config.target(arch, sm_count):
        return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def calls(text: str, target: str = "bwgemm.product.v2") -> list[str]:
    return re.findall(rf"custom_call @{re.escape(target)}\(.*", text)


def kernel_names(text: str) -> list[str]:
    return re.findall(r'kernel = "(\w+)"', text)


# What may surround a call: nothing that moves an operand.
NOTHING = {"custom_call", "reshape", "broadcast_in_dim", "constant"}


def broadcast_sizes(text: str) -> list[int]:
    """Elements of the results of broadcasts (offsets and sizes get a batch of 1 that way)."""
    shapes = re.findall(r"stablehlo\.broadcast_in_dim .*-> tensor<([\dx]*?)x?\w\d+>", text)
    return [int(np.prod([int(d) for d in shape.split("x") if d])) for shape in shapes]


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_call_has_target_attributes_and_row_major_layouts(arch: str) -> None:
    text = cuda_text(bw.ragged_dot, LHS, RHS, SIZES, arch=arch)
    (call,) = calls(text)
    config = re.search(r"mhlo\.backend_config = \{config = \{(.*?)\}\}", call)[1]
    kernel = re.fullmatch(
        r'kernel = "(\w+)", operands = "a b group_sizes group_offset", results = "d workspace"'
        r"(?:, swizzle = \d+ : i64)?",  # members with their defaults are left out
        config,
    )[1]
    assert kernel.startswith(f"{arch}_grouped_rows_bf16_bf16_kn_")
    assert kernel in {k.name for k in runtime.grouped_kernels()}
    layouts = [f"dense<{list(range(r - 1, -1, -1))}> : tensor<{r}xindex>" for r in (3, 4, 2)]
    offset = "dense<0> : tensor<1xindex>"
    assert f"operand_layouts = [{', '.join(layouts)}, {offset}]" in call
    assert f"result_layouts = [{layouts[0]}, {offset}]" in call
    types = rf"tensor<1x{M}x{K}xbf16>, tensor<1x{G}x{K}x{N}xbf16>, tensor<1x{G}xi32>, tensor<1xi32>"
    assert re.search(rf": \({types}\) -> \(tensor<1x{M}x{N}xbf16>, tensor<\d+xui8>\)", call)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_one_call_each_and_nothing_else_forward_and_backward(arch: str) -> None:
    """No transpose of rhs for dX, none of lhs for dW, no copy, no padding."""
    forward = cuda_text(bw.ragged_dot, LHS, RHS, SIZES, arch=arch)
    assert len(calls(forward)) == 1
    assert operations(forward) <= NOTHING
    for argument, majors in ((0, "rows_bf16_bf16_kk_"), (1, "contract_bf16_bf16_mn_")):

        def backward(a: Any, b: Any, s: Any, ct: Any, argument: int = argument) -> Any:
            return jax.vjp(lambda x, y: bw.ragged_dot(x, y, s), a, b)[1](ct)[argument]

        text = cuda_text(backward, LHS, RHS, SIZES, OUT, arch=arch)
        assert len(calls(text)) == 1
        assert majors in kernel_names(text)[0]
        assert operations(text) <= NOTHING
        assert max(broadcast_sizes(text), default=0) <= G


def test_general_numbers_become_majors_and_batches() -> None:
    """Matrices stored [E, N, K], and a batch outside: flags and extents, nothing moves."""
    numbers = jax.lax.RaggedDotDimensionNumbers((((2,), (3,)), ((0,), (0,))), (1,), (1,))

    def step(a: Any, b: Any, s: Any, ct: Any) -> Any:
        out, vjp = jax.vjp(lambda x, y: bw.ragged_dot_general(x, y, s, numbers), a, b)
        return out, *vjp(ct)

    sizes = struct(2, G, dtype=jnp.int32)
    text = cuda_text(step, struct(2, M, K), struct(2, G, N, K), sizes, struct(2, M, N))
    assert operations(text) <= NOTHING
    assert sorted(
        re.search(r"(rows|contract)\w+_(kn|kk|mn)_", n)[2] for n in kernel_names(text)
    ) == [
        "kk",
        "kn",
        "mn",
    ]
    assert f"tensor<2x{G}x{N}x{K}xbf16>, tensor<2x{G}xi32>, tensor<1xi32>" in text


def test_vmap_is_a_batch_of_the_kernel() -> None:
    mapped = jax.vmap(bw.ragged_dot, in_axes=(0, None, 0))
    text = cuda_text(mapped, struct(3, M, K), RHS, struct(3, G, dtype=jnp.int32))
    (call,) = calls(text)
    assert f"tensor<3x{M}x{K}xbf16>, tensor<1x{G}x{K}x{N}xbf16>, tensor<3x{G}xi32>" in call
    assert operations(text) <= NOTHING


def test_gradient_of_shared_matrices_gathers_rows_for_one_call() -> None:
    """Never a gradient of the matrices for each batch element."""

    def gradient(a: Any, b: Any, s: Any, ct: Any) -> Any:
        mapped = jax.vmap(bw.ragged_dot, in_axes=(0, None, 0))
        return jax.vjp(lambda y: mapped(a, y, s), b)[1](ct)

    args = struct(3, M, K), RHS, struct(3, G, dtype=jnp.int32), struct(3, M, N)
    text = cuda_text(gradient, *args)
    (call,) = calls(text)
    assert f"tensor<1x{3 * M}x{K}xbf16>, tensor<1x{3 * M}x{N}xbf16>, tensor<1x{G}xi32>" in call
    assert "gather" in operations(text)
    assert f"tensor<3x{G}x{K}x{N}" not in text


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("preferred", [None, jnp.float32])
def test_types(dtype: Any, preferred: Any) -> None:
    f = functools.partial(bw.ragged_dot, preferred_element_type=preferred)
    text = cuda_text(f, struct(M, K, dtype=dtype), struct(G, K, N, dtype=dtype), SIZES)
    short = {"bfloat16": "bf16", "float16": "f16"}[jnp.dtype(dtype).name]
    assert kernel_names(text)[0].startswith(
        f"sm90_grouped_rows_{short}_{'f32' if preferred else short}_"
    )


@pytest.mark.parametrize("kind", ["rows", "contract"])
def test_unaligned_pads_when_asked_for_kernels_only(kind: str) -> None:
    if kind == "rows":
        f = functools.partial(bw.ragged_dot, implementation="cutlass")
        text = cuda_text(f, struct(30, 33), struct(G, 33, 50), SIZES)
        assert f"tensor<1x30x40xbf16>, tensor<1x{G}x40x56xbf16>" in calls(text)[0]
    else:
        numbers = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ())
        f = functools.partial(
            bw.ragged_dot_general, ragged_dot_dimension_numbers=numbers, implementation="cutlass"
        )
        text = cuda_text(f, struct(30, 33), struct(30, 50), SIZES)
        assert "tensor<1x30x40xbf16>, tensor<1x30x56xbf16>" in calls(text)[0]
        assert f"tensor<{G}x33x50xbf16>" in text
    assert {"pad", "slice"} <= operations(text)


def test_unaligned_policy_by_size(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        assert calls(cuda_text(bw.ragged_dot, struct(30, 33), struct(G, 33, 50), SIZES)) == []
    (line,) = [r.message for r in caplog.records if "padding" in r.message]
    assert line == (
        "m-grouped GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M=30 N=50 K=33 E=8 G=8: "
        "not cutlass (row pitches are not multiples of 16 bytes, and padding M=30 N=50 K=33 E=8 "
        "G=8 to N=56 K=40 does not pay when M, N or K is below 512), using xla"
    )
    large = cuda_text(bw.ragged_dot, struct(M, 1023), struct(G, 1023, 1022), SIZES)
    assert f"tensor<1x{M}x1024xbf16>, tensor<1x{G}x1024x1024xbf16>" in calls(large)[0]


@pytest.mark.parametrize("zero", ["m", "k", "n", "g"])
def test_empty_problems_call_no_kernel(zero: str) -> None:
    m, k, n, g = (0 if zero == name else 8 for name in "mkng")
    f = functools.partial(bw.ragged_dot, implementation="cutlass")
    text = cuda_text(f, struct(m, k), struct(g, k, n), struct(g, dtype=jnp.int32))
    assert calls(text) == []
    assert operations(text) <= {"constant", "broadcast_in_dim", "reshape"}


def test_workspace_comes_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple] = []

    def workspace(*args: Any) -> int:
        asked.append(args)
        return 1234

    monkeypatch.setattr(runtime, "grouped_workspace_bytes", workspace)
    jax.clear_caches()
    text = cuda_text(
        lambda a, b, s: bw.ragged_dot(a, b, s, group_offset=2),
        LHS,
        struct(4, K, N),
        SIZES,
        sm_count=100,
    )
    assert "tensor<1234xui8>" in text
    assert asked == [(kernel_names(text)[0], M, N, K, G, 4, 1, 100)]


def test_emulator_lowers_to_its_own_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "emulated_grouped_kernels", runtime.grouped_kernels)
    monkeypatch.setattr(runtime, "emulated_grouped_workspace_bytes", lambda *_: 64)
    jax.clear_caches()

    def lowered() -> str:
        f = functools.partial(bw.ragged_dot, implementation="emulator")
        return jax.jit(f).trace(LHS, RHS, SIZES).lower(lowering_platforms=("cpu",)).as_text()

    assert len(calls(lowered(), "bwgemm.product.emulated.v2")) == 1
    assert kernel_names(lowered())[0].startswith("sm100_")
    with bw.config.target("sm90"):
        assert kernel_names(lowered())[0].startswith("sm90_")
    jax.clear_caches()


def test_config_by_name_and_by_field() -> None:
    fitting = [k for k in runtime.grouped_kernels() if "sm90_grouped_rows_bf16_bf16_kn" in k.name]
    for kernel in fitting:
        text = cuda_text(lambda *a, k=kernel: bw.ragged_dot(*a, config=k.name), LHS, RHS, SIZES)
        assert kernel_names(text) == [kernel.name]
        config = bw.GroupedConfig(
            tile_m=kernel.tile_m,
            tile_n=kernel.tile_n,
            cluster_m=kernel.cluster_m,
            swap_ab=kernel.swap_ab,
            schedule=kernel.schedule,
            raster_order="m",
            swizzle=3,
        )
        text = cuda_text(lambda *a, c=config: bw.ragged_dot(*a, config=c), LHS, RHS, SIZES)
        assert kernel_names(text) == [kernel.name]
        assert 'order = "vertical"' in text
        assert "swizzle = 3" in text


def test_one_line_is_logged_per_problem(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        for offset in (1, 2):
            cuda_text(lambda a, b, s, c=offset: bw.ragged_dot(a, b, s) + c, LHS, RHS, SIZES)
    (line,) = [r.message for r in caplog.records]
    assert re.match(
        rf"m-grouped GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M={M} N={N} K={K} "
        rf"E={G} G={G}: cutlass sm90_grouped_rows_bf16_bf16_kn_\w+, raster heuristic, "
        r"swizzle \d+, splits 1; "
        r"chosen by the heuristic: 512 rows per group assumed, about \d+ tiles in \d+ waves on 132 "
        r"multiprocessors, bound by \w+, predicted \d+ cycles$",
        line,
    )


def test_without_gpu_or_target_the_default_is_xla_with_a_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "local_target", lambda: runtime.DeviceTarget(None, "no GPU here"))
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        traced = jax.jit(bw.ragged_dot).trace(LHS, RHS, SIZES)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert calls(text) == []
    assert any("not cutlass (no GPU here), using xla" in r.message for r in caplog.records)


def test_accelerators_without_kernels_get_the_loop() -> None:
    text = jax.jit(bw.ragged_dot).trace(LHS, RHS, SIZES).lower(lowering_platforms=("tpu",))
    assert "while" in operations(text.as_text())


def test_cpu_and_cuda_in_one_lowering() -> None:
    with bw.config.target("sm90"):
        traced = jax.jit(bw.ragged_dot).trace(LHS, RHS, SIZES)
        text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert len(calls(text)) == 1
    assert len(re.findall(r"stablehlo\.dot_general", text)) == 1


def test_spec_repr_is_short() -> None:
    text = str(jax.make_jaxpr(lambda a, b, s: bw.ragged_dot(a, b, s))(LHS, RHS, SIZES))
    assert "bw_m_grouped[spec=<m-grouped kn bfloat16>]" in text


def test_export() -> None:
    """Forward and backward, for both platforms; run where there is no GPU."""

    def f(a: Any, b: Any, s: Any) -> Any:
        return bw.ragged_dot(a, b, s)

    small = struct(6, 8), struct(2, 8, 8), struct(2, dtype=jnp.int32)
    with bw.config.target("sm90"):
        exported = jax.export.export(
            jax.jit(f), platforms=("cpu", "cuda"), disabled_checks=bw.DISABLE_EXPORT_CHECKS
        )(*small)
    assert "bwgemm.product.v2" in exported.mlir_module()
    loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    args = [jnp.ones(x.shape, x.dtype) for x in small]
    out = loaded.call(*args)
    np.testing.assert_array_equal(np.asarray(out, np.float32)[:, 0], [8, 8, 0, 0, 0, 0])
    d_lhs, d_rhs = loaded.vjp().call(*args, jnp.ones_like(out))[:2]
    assert np.asarray(d_rhs, np.float32).sum() == 2 * 8 * 8
    assert np.asarray(d_lhs, np.float32).sum() == 2 * 8 * 8


def test_export_of_symbolic_shapes_is_laxs() -> None:
    (m,) = jax.export.symbolic_shape("m")
    lhs = jax.ShapeDtypeStruct((m, 8), jnp.float32)
    rest = struct(2, 8, 4, dtype=jnp.float32), struct(2, dtype=jnp.int32)
    exported = jax.export.export(jax.jit(bw.ragged_dot), platforms=["cpu"])(lhs, *rest)
    out = exported.call(jnp.ones((5, 8)), jnp.ones((2, 8, 4)), jnp.array([1, 2]))
    np.testing.assert_array_equal(out[:, 0], [8, 8, 8, 0, 0])
    for kwargs, message in (
        ({"implementation": "cutlass"}, "a kernel is selected by sizes"),
        ({"group_offset": 0}, "cannot have a group_offset"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            jax.export.export(jax.jit(functools.partial(bw.ragged_dot, **kwargs)))(lhs, *rest)


def mapped(dot: Callable, lhs: Any, rhs: Any, sizes: Any) -> Any:
    return jax.vmap(dot)(lhs, rhs, sizes)


def twice_mapped(dot: Callable, lhs: Any, rhs: Any, sizes: Any) -> Any:
    """Matrices that depend on one of the two mapped dimensions: rows are merged."""
    return jax.vmap(jax.vmap(dot), (0, None, None))(jnp.stack([lhs, 2 * lhs]), rhs, sizes)


def of_shared_matrices(dot: Callable, lhs: Any, rhs: Any, sizes: Any) -> Any:
    """A gradient that is a sum over a mapped dimension, mapped itself."""

    def matrices_bar(a: Any) -> Any:
        product = jax.vmap(dot, (0, None, None))
        return jax.vjp(lambda b: product(a, b, sizes[0]), rhs[0])[1](product(a, rhs[0], sizes[0]))

    return jax.vmap(matrices_bar)(jnp.stack([lhs, 2 * lhs], 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", [mapped, twice_mapped, of_shared_matrices])
def test_export_of_a_symbolic_mapped_dimension(function: Callable, dtype: str) -> None:
    """One exported program, for several sizes: the numbers of known sizes, and lax's."""
    (b,) = jax.export.symbolic_shape("b")
    types = struct(b, 6, 4, dtype=dtype), struct(b, 3, 4, 5, dtype=dtype)
    types += (struct(b, 3, dtype=jnp.int32),)

    def with_gradients(dot: Callable) -> Callable:
        def loss(*args: Any) -> Any:
            out = jax.tree.leaves(function(dot, *args))[0]
            return jnp.sum(out.astype(jnp.float32)), out

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))

    export = functools.partial(jax.export.export, disabled_checks=bw.DISABLE_EXPORT_CHECKS)
    assert export(with_gradients(bw.ragged_dot), platforms=("cuda",))(*types).out_avals
    exported = export(with_gradients(bw.ragged_dot))(*types)
    rng = np.random.default_rng(0)
    for batch in (1, 2, 5):
        lhs, rhs = (
            jnp.asarray(rng.integers(-2, 3, (batch, *x.shape[1:])), dtype) for x in types[:2]
        )
        args = lhs, rhs, jnp.asarray(rng.integers(0, 3, (batch, 3)), jnp.int32)
        got = exported.call(*args)
        jax.tree.map(np.testing.assert_array_equal, got, with_gradients(bw.ragged_dot)(*args))
        if function is mapped:  # lax has no rules for the others
            want = with_gradients(jax.lax.ragged_dot)(*args)
            jax.tree.map(np.testing.assert_array_equal, got, want)


def test_kernels_alone_of_a_symbolic_mapped_dimension() -> None:
    (b,) = jax.export.symbolic_shape("b")
    types = struct(b, 6, 4), struct(b, 3, 4, 5), struct(b, 3, dtype=jnp.int32)
    for implementation in ("cutlass", "emulator"):
        dot = jax.vmap(functools.partial(bw.ragged_dot, implementation=implementation))
        with pytest.raises(NotImplementedError, match="a kernel is selected by sizes"):
            jax.export.export(jax.jit(dot))(*types)
