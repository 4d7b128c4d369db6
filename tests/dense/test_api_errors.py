"""Bad arguments: every raise, with its documented type and its full message."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from errors import check_error
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.spec import GemmSpec

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
    (matmul(X, np.array(["x"])), TypeError, "matmul requires arrays of JAX's types, got b: <U1"),
    (
        matmul(np.array([None]), X),
        TypeError,
        "matmul requires arrays of JAX's types, got a: object",
    ),
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
    (
        lambda: bw.matmul(X, X, preferred_element_type=jax.random.key(0).dtype),
        TypeError,
        "preferred_element_type must be a type of numbers, got key<fry>",
    ),
    *(
        (
            lambda given=given: bw.matmul(X, X, preferred_element_type=given),
            TypeError,
            f"preferred_element_type must be a type of numbers, got {given!r}",
        )
        for given in ([1], (1,), "x", {}, "f4,f4", "S4")
    ),
    *(
        (
            lambda given=given: bw.matmul(X, X, out_sharding=given),
            TypeError,
            "out_sharding must be None, a NamedSharding or a PartitionSpec, got "
            f"{type(given).__name__}",
        )
        for given in ([1], {}, X, "x")
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
        f"implementation='cutlass' cannot run {PROBLEM}: cutlass runs on cuda, this program is "
        "lowered for cpu",
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
    (
        lambda: config.target(["sm90"]),
        ValueError,
        "unknown target architecture ['sm90']: known are sm90, sm100",
    ),
    (
        lambda: config.target("sm90", 0),
        ValueError,
        "sm_count must be an integer from 1 to 65535, got 0",
    ),
    (
        lambda: config.target("sm90", 1.5),
        ValueError,
        "sm_count must be an integer from 1 to 65535, got 1.5",
    ),
    (
        lambda: config.target("sm90", 10**6),
        ValueError,
        "sm_count must be an integer from 1 to 65535, got 1000000",
    ),
    (
        lambda: bw.explain(None, X),
        TypeError,
        "explain requires arrays or types of arrays, got a None",
    ),
    (
        lambda: bw.explain(X, X, device=3),
        TypeError,
        "device must be a jax.Device, a name or None, got 3",
    ),
    (
        lambda: bw.matmul(X, X, epilogue=lambda z: z, epilogue_operands=None),
        TypeError,
        "matmul requires epilogue_operands to be a sequence of arrays, got None",
    ),
    (
        lambda: bw.matmul(X, X, epilogue=lambda z, s: z * s, epilogue_operands=(2**31,)),
        TypeError,
        "matmul requires epilogue_operands that int32 holds, got 2147483648",
    ),
    (
        lambda: bw.TuningConfig(kernel=3),
        ValueError,
        "TuningConfig: kernel must be a kernel's name or None, got 3",
    ),
    (
        lambda: bw.TuningConfig(cluster_m=True),
        ValueError,
        "TuningConfig: cluster_m must be one of 1, 2, 4, 8, 16, got True",
    ),
    (
        lambda: bw.TuningConfig(two_cta="x"),
        ValueError,
        "TuningConfig: two_cta must be one of False, True, got 'x'",
    ),
    (
        lambda: bw.explain(X, X, device="gpu"),
        ValueError,
        "unknown device 'gpu': give a jax.Device or one of cpu, sm90, sm100",
    ),
    (lambda: bw.frobnicate, AttributeError, "module 'jax_bwgemm' has no attribute 'frobnicate'"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2][:60])
def test_error(case: Any) -> None:
    check_error(case)
