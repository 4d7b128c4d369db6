"""Configurations, builds and machines that cannot run a product: types and full messages."""

from __future__ import annotations

import builtins
import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_bwgemm as bw
from jax_bwgemm import config, runtime
from jax_bwgemm.dense.explain import refusal_of_equation
from jax_bwgemm.dense.spec import GemmSpec, gemm_dims

# numpy arrays: importing this file must not touch a device.
X = np.ones((16, 16), jnp.bfloat16)
F32 = np.ones((16, 16), np.float32)
KERNEL = "sm90_bf16_bf16_kn_64x128x64_1x1_pingpong"
PROBLEM = "GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M=16 N=16 K=16"

CONFIG_CASES = [
    ({"tile_m": 100}, "tile_m must be a positive multiple of 8, got 100"),
    ({"tile_n": 0}, "tile_n must be a positive multiple of 8, got 0"),
    ({"tile_k": -8}, "tile_k must be a positive multiple of 8, got -8"),
    ({"tile_m": 64.0}, "tile_m must be an int or None, got 64.0"),
    ({"stages": True}, "stages must be an int or None, got True"),
    ({"stages": 0}, "stages must be positive, got 0"),
    ({"splits": 0}, "splits must be positive, got 0"),
    ({"cluster_m": 3}, "cluster_m must be one of 1, 2, 4, 8, 16, got 3"),
    (
        {"cluster_m": 8, "cluster_n": 4},
        "a cluster has at most 16 CTAs, got cluster_m=8 times cluster_n=4",
    ),
    ({"swizzle": 3}, "swizzle must be one of 1, 2, 4, 8, 16, got 3"),
    ({"raster_order": "k"}, "raster_order must be one of 'heuristic', 'm', 'n', got 'k'"),
    (
        {"schedule": "3sm"},
        "schedule must be one of 'cooperative', 'pingpong', 'clusterk', '1sm', '2sm', got '3sm'",
    ),
    (
        {"scheduler": "static"},
        "scheduler must be one of 'persistent', 'clc', 'stream_k', got 'static'",
    ),
    (
        {"decomposition": "k"},
        "decomposition must be one of 'heuristic', 'data_parallel', 'split_k', 'stream_k', got 'k'",
    ),
    (
        {"decomposition": "stream_k", "splits": 2},
        "splits=2 contradicts decomposition='stream_k'",
    ),
    (
        {"two_cta": True, "schedule": "1sm"},
        "two_cta=True contradicts schedule='1sm': two CTAs cooperate in exactly the '2sm' kernels",
    ),
    (
        {"two_cta": True, "cluster_m": 1},
        "two_cta=True needs an even cluster_m (the CTA pair lies along M), got cluster_m=1",
    ),
]


@pytest.mark.parametrize(("fields", "message"), CONFIG_CASES, ids=lambda c: str(c)[:40])
def test_impossible_config(fields: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        bw.TuningConfig(**fields)
    assert str(caught.value) == f"TuningConfig: {message}"


def test_messages_name_every_kernel_and_what_is_wrong_with_it() -> None:
    with pytest.raises(NotImplementedError) as caught:
        bw.matmul(X, X, config=bw.TuningConfig(tile_m=512))
    fitting = [
        k for k in runtime.kernels() if k.in_dtype == k.out_dtype == "bfloat16" and k.majors == "kn"
    ]
    for kernel in fitting:
        assert f"{kernel.name}: tile_m is {kernel.tile_m}, not 512" in str(caught.value)


def test_all_of_a_sequence_failing_is_a_group() -> None:
    with pytest.raises(builtins.ExceptionGroup) as caught:
        bw.matmul(F32, F32, implementation=("cutlass", "emulator"))
    what = "GEMM float32 x float32 -> float32, majors kn, M=16 N=16 K=16"
    assert caught.value.message == f"no implementation can run {what}"
    first, second = caught.value.exceptions
    assert isinstance(first, NotImplementedError)
    assert isinstance(second, NotImplementedError)
    assert str(first).startswith(f"implementation='cutlass' cannot run {what}: precision=None")
    assert str(second).startswith(f"implementation='emulator' cannot run {what}: ")


def test_without_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "emulated_kernels", lambda: ())
    jax.clear_caches()
    with pytest.raises(NotImplementedError) as caught:
        bw.matmul(X, X, implementation="emulator")
    assert str(caught.value) == (
        f"implementation='emulator' cannot run {PROBLEM}: jax_bwgemm was installed without its "
        "emulator"
    )


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "kernels", lambda: ())
    jax.clear_caches()
    reason = "jax_bwgemm was installed without its compiled kernels"
    with pytest.raises(NotImplementedError) as caught:
        bw.matmul(X, X, implementation="cutlass")
    assert str(caught.value) == f"implementation='cutlass' cannot run {PROBLEM}: {reason}"
    with pytest.raises(NotImplementedError) as caught:
        bw.matmul(X, X, config=KERNEL)
    assert str(caught.value) == (f"TuningConfig(kernel='{KERNEL}') cannot be satisfied: {reason}")
    assert (bw.matmul(X, X) == 16).all()


def test_gpu_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(
        platform="gpu", device_kind="NVIDIA A100", compute_capability="8.0", core_count=108
    )
    found = runtime.device_target(device)
    reason = "no kernels for NVIDIA A100 (compute capability 8.0); kernels exist for 9.0 and 10.x"
    assert (found.target, found.reason) == (None, reason)
    monkeypatch.setattr(runtime, "local_target", lambda: found)
    jax.clear_caches()
    traced = jax.jit(lambda a: bw.matmul(a, a, implementation="cutlass")).trace(X)
    with pytest.raises(NotImplementedError) as caught:
        traced.lower(lowering_platforms=("cuda",))
    assert str(caught.value) == f"implementation='cutlass' cannot run {PROBLEM}: {reason}"


def test_no_gpu_and_no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.jax_backend, "backends", dict)
    jax.clear_caches()
    traced = jax.jit(lambda a: bw.matmul(a, a, implementation="cutlass")).trace(X)
    with pytest.raises(NotImplementedError) as caught:
        traced.lower(lowering_platforms=("cuda",))
    assert str(caught.value) == (
        f"implementation='cutlass' cannot run {PROBLEM}: this process has no CUDA GPU and no "
        "target architecture was given: use jax_bwgemm.config.target('sm90' or 'sm100') or "
        "BWGEMM_TARGET_ARCH"
    )


def test_kernel_of_another_architecture() -> None:
    traced = None
    with bw.config.target("sm100"):
        f = jax.jit(lambda a: bw.matmul(a, a, implementation="cutlass", config=KERNEL))
        traced = f.trace(X)
    with pytest.raises(NotImplementedError, match="no kernel for sm100 fits") as caught:
        traced.lower(lowering_platforms=("cuda",))
    assert f"{KERNEL}: for sm90" in str(caught.value)


def test_too_large_sizes() -> None:
    huge = jax.ShapeDtypeStruct((2**31, 8), jnp.bfloat16)
    small = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    with pytest.raises(NotImplementedError) as caught:
        bw.explain(huge, small, implementation="cutlass", device="sm90")
    assert str(caught.value) == (
        "implementation='cutlass' cannot run GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, "
        "M=2147483648 N=8 K=8: size 2147483648 exceeds 2147483647"
    )
    assert bw.explain(huge, small, device="sm90").implementation == "xla"


def test_target_variable_without_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWGEMM_TARGET_ARCH", "sm90:")
    assert config.explicit_target() == config.make_target("sm90")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sm90:many", "'many' is no number of multiprocessors"),
        ("sm90:-1", "'-1' is no number of multiprocessors"),
        ("sm90:0", "sm_count must be an integer from 1 to 65535, got 0"),
        ("sm80", "unknown target architecture 'sm80': known are sm90, sm100"),
    ],
)
def test_malformed_target_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    monkeypatch.setenv("BWGEMM_TARGET_ARCH", text)
    with pytest.raises(ValueError) as caught:
        config.explicit_target()
    assert str(caught.value) == (
        f"BWGEMM_TARGET_ARCH={text!r}: {why}; expected an architecture, optionally followed by ':' "
        "and a number of multiprocessors, as in 'sm100:148'"
    )


def test_workspace_without_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "load_emulator", lambda: None)
    with pytest.raises(RuntimeError) as caught:
        runtime.emulated_workspace_bytes("k", 1, 1, 1, 1, 1, 1)
    assert str(caught.value) == "kernel 'k': jax_bwgemm was installed without its emulator"


@pytest.mark.parametrize("missing", ["numpy", "jax_bwgemm._ext"])
def test_broken_extension_is_not_mistaken_for_an_absent_one(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imported(name: str) -> ModuleType:
        if name == "jax_bwgemm":
            return bw
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.setattr(runtime, "_installed_folder", lambda: None)
    if missing == "jax_bwgemm._ext":
        assert runtime._import_optional("jax_bwgemm._ext") is None
    else:
        with pytest.raises(ModuleNotFoundError, match="No module named 'numpy'"):
            runtime._import_optional("jax_bwgemm._ext")


def test_gradient_that_no_kernel_can_run_is_refused_under_cutlass() -> None:
    """The f32 cotangent of an f16 product: only bf16 ones have kernels."""

    def f(a: Any) -> Any:
        out = bw.matmul(a, a, preferred_element_type=jnp.float32, implementation="cutlass")
        return out.sum()

    with pytest.raises(NotImplementedError) as caught:
        jax.make_jaxpr(jax.grad(f))(X.astype(jnp.float16))
    assert str(caught.value).startswith(
        "implementation='cutlass' cannot run GEMM float16 x float32 -> float16, majors mn, M=16 "
        "N=16 K=16: kernels exist for bfloat16 x bfloat16 -> bfloat16, "
    )


def test_truth_is_no_number_of_multiprocessors() -> None:
    with pytest.raises(ValueError, match="sm_count must be an integer from 1 to 65535, got True"):
        config.target("sm90", True)


def test_dimensions_are_counted_from_the_front() -> None:
    for side, kind, numbers in (
        ("lhs", "contracting", (((-1,), (0,)), ((), ()))),
        ("rhs", "contracting", (((0,), (-1,)), ((), ()))),
        ("lhs", "batch", (((1,), (1,)), ((-2,), (0,)))),
        ("rhs", "batch", (((1,), (1,)), ((0,), (-2,)))),
    ):
        with pytest.raises(TypeError, match=f"{side} {kind} dimensions .* are out of range"):
            bw.dot_general(X, X, numbers)


def test_the_dimension_of_a_vector_is_its_first() -> None:
    with pytest.raises(TypeError, match=r"with dimension 0 of b \(8,\): 16 and 8 differ"):
        bw.matmul(X, X[0, :8])


def test_the_product_of_two_weak_types_is_xlas() -> None:
    """As a call of it is, and as a program's own product is."""
    reason = "both operands are weakly typed"
    weak, strong = (
        jax.ShapeDtypeStruct((512, 512), jnp.bfloat16, weak_type=x) for x in (True, False)
    )
    for a, b in ((weak, weak), (weak, strong), (strong, weak)):
        both = a is b
        found = bw.explain(a, b, device="sm90")
        assert (found.implementation == "xla") == both
        assert (("cutlass", reason) in found.rejected) == both
        (eqn,) = jax.make_jaxpr(lambda a, b: jax.lax.dot(a, b))(a, b).eqns
        assert refusal_of_equation(eqn) == (reason if both else None)


def test_gemm_dims_reads_majors() -> None:
    dims = gemm_dims(GemmSpec("m", "k"), (2, 8, 3), (1, 5, 8))
    assert (dims.m, dims.n, dims.k, dims.batch) == (3, 5, 8, 2)
    assert str(dims) == "M=3 N=5 K=8 batch=2 (B shared)"
