"""Grouped GEMMs that nothing here can run, and impossible configurations: full messages."""

from __future__ import annotations

import builtins
import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from errors import check_error
from jax import lax
from kernel_table import described_grouped_kernels

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.grouped.contraction import GROUPED
from jax_bwgemm.grouped.primitive import grouped
from jax_bwgemm.grouped.spec import GroupedDims, GroupedSpec
from jax_bwgemm.product.kernels import Kernel

# numpy arrays: importing this file must not touch a device.
X, W = np.ones((16, 8), jnp.bfloat16), np.ones((2, 8, 8), jnp.bfloat16)
F32 = np.ones((16, 8), np.float32), np.ones((2, 8, 8), np.float32)
S = np.array([4, 4], np.int32)
KERNEL = next(k.name for k in described_grouped_kernels() if "rows_bf16_bf16_kn" in k.name)
PROBLEM = "m-grouped GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M=16 N=8 K=8 E=2 G=2"
PAIRS = ", ".join(
    f"{a} -> {out}"
    for a, outs in (
        ("bfloat16 x bfloat16", ("bfloat16", "float32")),
        ("bfloat16 x float32", ("bfloat16", "float32")),
        ("float16 x float16", ("float16", "float32")),
        ("float32 x bfloat16", ("bfloat16", "float32")),
    )
    for out in outs
)
CONTRACT, BATCH = (
    lax.RaggedDotDimensionNumbers(*numbers)
    for numbers in (
        ((((0,), (0,)), ((), ())), (0,), ()),
        ((((1,), (1,)), ((0,), (0,))), (0,), ()),
    )
)


def zeros(*shape: int, dtype: Any = jnp.bfloat16) -> np.ndarray:
    return np.zeros(shape, dtype)


def dot(*args: Any, **kwargs: Any) -> Any:
    return lambda: bw.ragged_dot(*args, **kwargs)


def general(lhs: Any, rhs: Any, sizes: Any, numbers: Any, **kwargs: Any) -> Any:
    return lambda: bw.ragged_dot_general(lhs, rhs, sizes, numbers, **kwargs)


def canonical(*shapes: Any, **spec: Any) -> Any:
    dtypes = (jnp.bfloat16, jnp.bfloat16, np.int32, np.int32)
    operands = [zeros(*s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
    return lambda: grouped(*operands, GroupedSpec(**spec))


CASES = [
    # -- valid, but not by the implementation that was named
    (
        dot(*F32, S, implementation="cutlass"),
        NotImplementedError,
        "implementation='cutlass' cannot run m-grouped GEMM float32 x float32 -> float32, majors "
        f"kn, M=16 N=8 K=8 E=2 G=2: kernels exist for {PAIRS}",
    ),
    (
        dot(X.astype(np.float16), F32[1], S, implementation="cutlass"),
        NotImplementedError,
        "implementation='cutlass' cannot run m-grouped GEMM float16 x float32 -> float32, "
        f"majors kn, M=16 N=8 K=8 E=2 G=2: kernels exist for {PAIRS}",
    ),
    (
        dot(X, F32[1], S, "highest", implementation="cutlass"),
        NotImplementedError,
        "implementation='cutlass' cannot run m-grouped GEMM bfloat16 x float32 -> float32, majors "
        "kn, M=16 N=8 K=8 E=2 G=2: precision=HIGHEST asks for float32's accuracy, kernels split "
        "float32 into two terms",
    ),
    (
        dot(X, W, S, lax.DotAlgorithmPreset.BF16_BF16_F32_X3, implementation="cutlass"),
        NotImplementedError,
        f"implementation='cutlass' cannot run {PROBLEM}: precision=BF16_BF16_F32_X3 asks for an "
        "algorithm other than BF16_BF16_F32",
    ),
    (
        dot(X, W, S, implementation="cutlass"),
        NotImplementedError,
        f"implementation='cutlass' cannot run {PROBLEM}: cutlass runs on cuda, this program is "
        "lowered for cpu",
    ),
    # -- implementation and config
    (
        dot(X, W, S, implementation="mosaic"),
        ValueError,
        "unknown implementation 'mosaic'; known names are 'cutlass', 'emulator', 'xla'",
    ),
    (
        dot(X, W, S, config=64),
        TypeError,
        "config must be a GroupedConfig, a kernel name or None, got 64",
    ),
    (
        dot(X, W, S, implementation="xla", config=KERNEL),
        ValueError,
        f"GroupedConfig(kernel='{KERNEL}') is for the kernels; implementation='xla' has none",
    ),
    (
        general(X, X, S, BATCH, config=KERNEL),
        ValueError,
        "ragged_dot_general config has no meaning when the lhs ragged dimension is batch",
    ),
    (
        dot(X, W, S, config="sm90_fast"),
        NotImplementedError,
        "kernel 'sm90_fast' is not in this build; for this problem it has: ",
    ),
    (
        general(X, X, S, CONTRACT, config=KERNEL),
        ValueError,
        f"kernel '{KERNEL}' multiplies bfloat16 into bfloat16 with majors kn, m-grouped, but the "
        "problem is bfloat16 x bfloat16 -> bfloat16 with majors mn, k-grouped",
    ),
    (
        dot(X, W, S, config=bw.GroupedConfig(tile_m=512)),
        NotImplementedError,
        "no kernel of this build satisfies GroupedConfig(tile_m=512): ",
    ),
    # -- the canonical grouped GEMM
    (
        canonical((1, 2, 3), (1, 3, 4), (1, 1), (1,)),
        TypeError,
        "bw_m_grouped operands must have ranks 3, 4, 2, 1, got shapes (1, 2, 3), (1, 3, 4), "
        "(1, 1), (1,)",
    ),
    (
        canonical((1, 2, 3), (1, 1, 4, 5), (1, 1), (1,)),
        TypeError,
        "bw_m_grouped contracts K=3 of lhs (1, 2, 3) with K=4 of rhs (1, 1, 4, 5) (B major n)",
    ),
    (
        canonical((1, 2, 3), (1, 4, 5), (1, 1), (1,), kind="k-grouped"),
        TypeError,
        "bw_k_grouped contracts M=2 of lhs (1, 2, 3) with M=4 of rhs (1, 4, 5)",
    ),
    (
        canonical((2, 2, 3), (1, 1, 3, 5), (3, 1), (1,)),
        TypeError,
        "bw_m_grouped batches 2, 1, 3, 1 of operands (2, 2, 3), (1, 1, 3, 5), (3, 1), (1,) differ",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2][:60])
def test_error(case: Any) -> None:
    check_error(case)


CONFIG_CASES = [
    ({"tile_m": 100}, "tile_m must be a positive multiple of 8, got 100"),
    ({"tile_n": 64.0}, "tile_n must be an int or None, got 64.0"),
    ({"tile_k": 0}, "tile_k must be a positive multiple of 8, got 0"),
    ({"stages": True}, "stages must be an int or None, got True"),
    ({"cluster_n": 3}, "cluster_n must be one of 1, 2, 4, 8, 16, got 3"),
    ({"swap_ab": "yes"}, "swap_ab must be one of False, True, got 'yes'"),
    (
        {"schedule": "2cta"},
        "schedule must be one of 'cooperative', 'pingpong', '1sm', '2sm', got '2cta'",
    ),
    ({"swizzle": 0}, "swizzle must be positive, got 0"),
    ({"swizzle": 65}, "swizzle must be at most 64, got 65"),
    (
        {"raster_order": "diagonal"},
        "raster_order must be one of 'heuristic', 'm', 'n', got 'diagonal'",
    ),
]


@pytest.mark.parametrize(("fields", "message"), CONFIG_CASES, ids=lambda c: str(c)[:40])
def test_impossible_config(fields: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        bw.GroupedConfig(**fields)
    assert str(caught.value) == f"GroupedConfig: {message}"


def test_representative_sizes_may_be_all_rows() -> None:
    sizes = [len(X) - 3, 3]
    expected = bw.ragged_dot(X, W, jnp.array(sizes), representative_group_sizes=sizes)
    np.testing.assert_array_equal(expected, bw.ragged_dot(X, W, jnp.array(sizes)))


def test_representative_sizes_must_be_known_while_tracing() -> None:
    def f(s: Any) -> Any:
        return bw.ragged_dot(X, W, s, representative_group_sizes=s)

    with pytest.raises(TypeError, match="requires representative_group_sizes to be known while"):
        jax.jit(f)(S)


def test_messages_name_every_kernel_and_what_is_wrong_with_it() -> None:
    with pytest.raises(NotImplementedError) as caught:
        bw.ragged_dot(X, W, S, config=bw.GroupedConfig(stages=99))
    for kernel in (k for k in runtime.grouped_kernels() if "_rows_bf16_bf16_kn_" in k.name):
        assert f"{kernel.name}: stages is {kernel.stages}, not 99" in str(caught.value)


def test_all_of_a_sequence_failing_is_a_group() -> None:
    with pytest.raises(builtins.ExceptionGroup) as caught:
        bw.ragged_dot(*F32, S, implementation=("cutlass", "emulator"))
    assert caught.value.message.startswith("no implementation can run m-grouped GEMM float32")
    assert [type(e) for e in caught.value.exceptions] == [NotImplementedError] * 2


@pytest.mark.parametrize(
    ("name", "table"), [("cutlass", "grouped_kernels"), ("emulator", "emulated_grouped_kernels")]
)
def test_without_kernels(name: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, table, lambda: ())
    jax.clear_caches()
    what = "compiled kernels" if name == "cutlass" else "emulator"
    reason = f"jax_bwgemm was installed without its {what} for grouped GEMMs"
    with pytest.raises(NotImplementedError) as caught:
        bw.ragged_dot(X, W, S, implementation=name)
    assert str(caught.value) == f"implementation={name!r} cannot run {PROBLEM}: {reason}"
    with pytest.raises(NotImplementedError) as caught:
        bw.ragged_dot(X, W, S, implementation=name, config=KERNEL)
    assert str(caught.value) == (f"GroupedConfig(kernel='{KERNEL}') cannot be satisfied: {reason}")


def test_sizes_beyond_32_bits_are_refused() -> None:
    lhs, rhs = jax.ShapeDtypeStruct((2**31, 8), jnp.bfloat16), jnp.asarray(W)
    with pytest.raises(NotImplementedError, match="size 2147483648 exceeds 2147483647"):
        jax.eval_shape(lambda a: bw.ragged_dot(a, rhs, S, implementation="cutlass"), lhs)


def test_rows_of_a_summed_batch_are_counted_together() -> None:
    spec = GroupedSpec(kind="k-grouped", experts=4)
    dims = GroupedDims(2**20, 8, 8, 4, 4, 2**12)
    assert GROUPED.largest(spec, dims) == 2**20
    assert GROUPED.largest(dataclasses.replace(spec, reduce_batch=True), dims) == 2**32


def test_runtime_tables_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent modules have no kernels; sizes reach the module by name."""
    row = dataclasses.asdict(runtime.grouped_kernels()[0])
    module = SimpleNamespace(
        kernels=lambda: [row], workspace_bytes=lambda name, **sizes: sum(sizes.values())
    )
    for loader, workspace, what in (
        ("extension", "grouped_workspace_bytes", "kernels"),
        ("load_emulator", "emulated_grouped_workspace_bytes", "emulator"),
    ):
        # The functions of the package, not those that stand in for them in these tests.
        namespace, function = vars(runtime), BUILT[workspace]
        monkeypatch.setitem(namespace, loader, lambda: None)
        with pytest.raises(RuntimeError) as caught:
            function("name", 1, 1, 1, 1, 1, 1, 1)
        assert str(caught.value) == f"kernel 'name': jax_bwgemm was installed without its {what}"
        monkeypatch.setitem(namespace, loader, lambda: module)
        assert function("name", 1, 2, 3, 4, 5, 6, 7) == 28
    assert runtime._table(None) == ()
    assert runtime._table(module) == (Kernel(**row),)


BUILT = {
    name: getattr(runtime, name)
    for name in ("grouped_workspace_bytes", "emulated_grouped_workspace_bytes")
}
