"""Bad input: every raise, with its documented type and its full message."""

from __future__ import annotations

import builtins
import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm import config, runtime
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.spec import GemmSpec, gemm_dims

# numpy arrays: importing this file must not touch a device.
X = np.ones((16, 16), jnp.bfloat16)
F32 = np.ones((16, 16), np.float32)
KERNEL = "sm90_bf16_bf16_kn_64x128x64_1x1_pingpong"
PROBLEM = "GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, M=16 N=16 K=16"
NAMES = "'cutlass', 'emulator', 'xla'"


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, jnp.bfloat16)


def matmul(*args: Any, **kwargs: Any) -> Any:
    return lambda: bw.matmul(*args, **kwargs)


def dot(lhs: Any, rhs: Any, *numbers: Any) -> Any:
    return lambda: bw.dot_general(zeros(*lhs), zeros(*rhs), *numbers)


CASES = [
    # -- operands
    (matmul([1.0], X), TypeError, "matmul requires arrays, got a of type list"),
    (matmul(X, "x"), TypeError, "matmul requires arrays, got b of type str"),
    (
        lambda: bw.dot_general(None, X, (((1,), (0,)), ((), ()))),
        TypeError,
        "dot_general requires arrays, got lhs of type NoneType",
    ),
    (
        matmul(1.0, X),
        ValueError,
        "matmul requires operands of rank 1 or more, got a of rank 0",
    ),
    (
        matmul(X, 2.0),
        ValueError,
        "matmul requires operands of rank 1 or more, got b of rank 0",
    ),
    (
        matmul(zeros(2, 3), zeros(4, 5)),
        TypeError,
        "matmul contracts the last dimension of a (2, 3) with dimension 0 of b (4, 5): "
        "3 and 4 differ",
    ),
    (
        matmul(zeros(3), zeros(7, 4, 5)),
        TypeError,
        "matmul contracts the last dimension of a (3,) with dimension 1 of b (7, 4, 5): "
        "3 and 4 differ",
    ),
    (
        matmul(zeros(2, 4, 4), zeros(3, 4, 4)),
        ValueError,
        "matmul batch dimensions (2,) of a (2, 4, 4) and (3,) of b (3, 4, 4) do not broadcast",
    ),
    # -- dimension numbers
    (
        dot((2, 3), (3, 4), ((1,), (0,))),
        TypeError,
        "dot_general dimension_numbers must be ((lhs_contracting, rhs_contracting), (lhs_batch, "
        "rhs_batch)) with ints or sequences of ints, got ((1,), (0,))",
    ),
    (
        dot((2, 3), (3, 4), (((1.7,), (0,)), ((), ()))),
        TypeError,
        "dot_general dimension_numbers must be ((lhs_contracting, rhs_contracting), (lhs_batch, "
        "rhs_batch)) with ints or sequences of ints, got (((1.7,), (0,)), ((), ()))",
    ),
    (
        dot((2, 3), (3, 4), (("1", "0"), ((), ()))),
        TypeError,
        "dot_general dimension_numbers must be ((lhs_contracting, rhs_contracting), (lhs_batch, "
        "rhs_batch)) with ints or sequences of ints, got (('1', '0'), ((), ()))",
    ),
    (
        dot((2, 3, 4), (4, 5), None),
        ValueError,
        "dot_general dimension_numbers=None is for products of matrices and vectors without "
        "batch dimensions, got shapes (2, 3, 4) and (4, 5)",
    ),
    (
        dot((2, 3), (4, 5), None),
        ValueError,
        "dot_general dimension_numbers=None is for products of matrices and vectors without "
        "batch dimensions, got shapes (2, 3) and (4, 5)",
    ),
    (
        dot((2, 3), (3, 4), (((2,), (0,)), ((), ()))),
        TypeError,
        "dot_general lhs contracting dimensions (2,) are out of range for shape (2, 3)",
    ),
    (
        dot((2, 3), (3, 4), (((1,), (0,)), ((0,), (-1,)))),
        TypeError,
        "dot_general rhs batch dimensions (-1,) are out of range for shape (3, 4)",
    ),
    (
        dot((3, 3), (3, 4), (((1, 1), (0, 1)), ((), ()))),
        TypeError,
        "dot_general lhs dimensions must be distinct, got contracting (1, 1) and batch ()",
    ),
    (
        dot((3, 3), (3, 4), (((1,), (0,)), ((0,), (0,)))),
        TypeError,
        "dot_general rhs dimensions must be distinct, got contracting (0,) and batch (0,)",
    ),
    (
        dot((2, 3), (3, 4), (((1,), ()), ((), ()))),
        TypeError,
        "dot_general requires equal numbers of lhs and rhs contracting dimensions, got (1,) and ()",
    ),
    (
        dot((2, 3), (3, 4), (((1,), (0,)), ((0,), (1,)))),
        TypeError,
        "dot_general requires batch dimensions of equal sizes, got (2,) of lhs (2, 3) and (4,) of "
        "rhs (3, 4)",
    ),
    (
        dot((2, 3), (5, 4), (((1,), (0,)), ((), ()))),
        TypeError,
        "dot_general requires contracting dimensions of equal sizes, got (3,) of lhs (2, 3) and "
        "(5,) of rhs (5, 4)",
    ),
    # -- implementation
    (
        matmul(X, X, implementation="cublas"),
        ValueError,
        f"unknown implementation 'cublas'; known names are {NAMES}",
    ),
    (
        matmul(X, X, implementation=("xla", "triton")),
        ValueError,
        f"unknown implementation 'triton'; known names are {NAMES}",
    ),
    (
        matmul(X, X, implementation=()),
        ValueError,
        f"implementation must not be empty; known names are {NAMES}",
    ),
    (
        matmul(X, X, implementation=3),
        TypeError,
        "implementation must be None, a name or a sequence of names, got 3",
    ),
    (
        matmul(X, X, implementation=["xla", 3]),
        TypeError,
        "implementation must be None, a name or a sequence of names, got ['xla', 3]",
    ),
    # -- valid, but not by the implementation that was named
    (
        matmul(F32, F32, implementation="cutlass"),
        NotImplementedError,
        "implementation='cutlass' cannot run GEMM float32 x float32 -> float32, majors kn, M=16 "
        "N=16 K=16: precision=None of float32 operands is left to XLA; kernels answer HIGH, "
        "BF16_BF16_F32_X3, HIGHEST, BF16_BF16_F32_X6",
    ),
    (
        matmul(F32.astype(np.int8), F32, implementation="cutlass"),
        NotImplementedError,
        "implementation='cutlass' cannot run GEMM int8 x float32 -> float32, majors kn, M=16 "
        "N=16 K=16: kernels exist for bfloat16 x bfloat16 -> bfloat16, bfloat16 x bfloat16 -> "
        "float32, bfloat16 x float32 -> bfloat16, bfloat16 x float32 -> float32, float16 x float16 "
        "-> float16, float16 x float16 -> float32, float32 x bfloat16 -> bfloat16, float32 x "
        "bfloat16 -> float32, float32 x float32 -> float32",
    ),
    (
        matmul(X, X, implementation="cutlass", precision=lax.DotAlgorithmPreset.BF16_BF16_F32_X3),
        NotImplementedError,
        f"implementation='cutlass' cannot run {PROBLEM}: precision=BF16_BF16_F32_X3 asks for an "
        "algorithm other than BF16_BF16_F32",
    ),
    (
        matmul(X, X, implementation="cutlass"),
        NotImplementedError,
        f"implementation='cutlass' cannot run {PROBLEM}: it runs on cuda, this program is lowered "
        "for cpu",
    ),
    # -- config
    (
        matmul(X, X, config=64),
        TypeError,
        "config must be a TuningConfig, a kernel name or None, got 64",
    ),
    (
        matmul(X, X, config="sm90_fast"),
        NotImplementedError,
        "kernel 'sm90_fast' is not in this build; for this problem it has: ",
    ),
    (
        matmul(X, X.T.astype(jnp.float16), config=KERNEL),
        ValueError,
        f"kernel '{KERNEL}' multiplies bfloat16 into bfloat16 with majors kn, but the problem is "
        "bfloat16 x float16 -> float32 with majors kn",
    ),
    (
        lambda: bw.dot_general(X, X, (((1,), (1,)), ((), ())), config=KERNEL),
        ValueError,
        f"kernel '{KERNEL}' multiplies bfloat16 into bfloat16 with majors kn, but the problem is "
        "bfloat16 x bfloat16 -> bfloat16 with majors kk",
    ),
    (
        matmul(X, X, config=bw.TuningConfig(tile_m=512)),
        NotImplementedError,
        "no kernel of this build satisfies TuningConfig(tile_m=512): ",
    ),
    (
        lambda: bw.TuningConfig(splits=65),
        ValueError,
        "TuningConfig: splits must be at most 64, got 65",
    ),
    (
        matmul(X, X, implementation="xla", config=KERNEL),
        ValueError,
        f"TuningConfig(kernel='{KERNEL}') is for the kernels; implementation='xla' has none",
    ),
    # -- the canonical GEMM
    (
        lambda: gemm(X, X, GemmSpec()),
        TypeError,
        "bw_gemm operands must have rank 3, got shapes (16, 16) and (16, 16)",
    ),
    (
        lambda: gemm(zeros(1, 2, 3), zeros(1, 4, 5), GemmSpec()),
        TypeError,
        "bw_gemm contracts K=3 of lhs (1, 2, 3) with K=4 of rhs (1, 4, 5) (majors kn)",
    ),
    (
        lambda: gemm(zeros(2, 2, 4), zeros(3, 4, 5), GemmSpec()),
        TypeError,
        "bw_gemm batches 2 of lhs (2, 2, 4) and 3 of rhs (3, 4, 5) differ",
    ),
    (
        lambda: gemm(zeros(2, 2, 4), zeros(1, 4, 5), GemmSpec(reduce_batch=True)),
        TypeError,
        "bw_gemm batches 2 of lhs (2, 2, 4) and 1 of rhs (1, 4, 5) differ",
    ),
    # -- targets and devices
    (
        lambda: config.target("sm80"),
        ValueError,
        "unknown target architecture 'sm80': known are sm90, sm100",
    ),
    (lambda: config.target("sm90", 0), ValueError, "sm_count must be positive, got 0"),
    (
        lambda: bw.explain(X, X, device="gpu"),
        ValueError,
        "unknown device 'gpu': give a jax.Device or one of cpu, sm90, sm100",
    ),
    (lambda: bw.frobnicate, AttributeError, "module 'jax_bwgemm' has no attribute 'frobnicate'"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2][:60])
def test_error(case: Any) -> None:
    call, kind, message = case
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    # Lists of a build's kernels end some messages.
    assert str(caught.value) == message or (
        message.endswith(": ") and str(caught.value).startswith(message)
    )


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
        ("sm90:0", "sm_count must be positive, got 0"),
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


def test_broken_extension_is_not_mistaken_for_an_absent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
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


def test_gemm_dims_reads_majors() -> None:
    dims = gemm_dims(GemmSpec("m", "k"), (2, 8, 3), (1, 5, 8))
    assert (dims.m, dims.n, dims.k, dims.batch) == (3, 5, 8, 2)
    assert str(dims) == "M=3 N=5 K=8 batch=2 (B shared)"
