"""Every kernel of this build for this GPU, on the GPU: a new line of kernels.def is a new test.

Exact on small integers, and as good as XLA's own dot on normal values, over shape families that
hit tile edges, minimum alignment, batches and both majors.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numerics import (
    F32_LONG_PRODUCTS,
    F32_LONG_PRODUCTS_APART,
    assert_as_good_as_xla,
    assert_exact,
    assert_same_classes,
    exact_factors,
    exact_integers,
    normal,
)

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.dense import tuned as dense_tuned
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import Policy

pytestmark = pytest.mark.gpu

# (batch of A, batch of B, M, N, K) relative to nothing: aligned, one past a tile, minimum
# alignment, tall, wide, deep, batches with and without a shared operand.
FAMILIES = {
    "aligned": (1, 1, 512, 512, 256),
    "past the tile": (1, 1, 264, 520, 136),
    "minimum alignment": (1, 1, 8, 8, 8),
    "one row of a tile": (1, 1, 8, 512, 64),
    "tall": (1, 1, 2056, 72, 64),
    "wide": (1, 1, 72, 2056, 64),
    "deep": (1, 1, 136, 264, 4096),
    "batch of 3": (3, 3, 136, 264, 72),
    "shared A": (1, 3, 136, 264, 72),
    "shared B": (3, 1, 136, 264, 72),
}


def gpu_kernels(which: Callable[[Kernel], bool] = lambda _: True) -> list[Any]:
    """Test parameters: kernels of this build, each marked with its architecture."""
    marks = {"sm90": pytest.mark.sm90, "sm100": pytest.mark.sm100}
    built = [k for k in runtime.kernels() if which(k)] if runtime.extension() is not None else []
    if not built:  # collected, so that the skip (or failure) is reported
        return [pytest.param(None, id="no kernels")]
    return [pytest.param(k, id=k.name, marks=marks[k.arch]) for k in built]


def operands(kernel: Kernel, family: str, make: Any, seed: int = 0) -> tuple[Any, Any]:
    a_batch, b_batch, m, n, k = FAMILIES[family]
    rng = np.random.default_rng(seed)
    a_shape = (a_batch, m, k) if kernel.a_major == "k" else (a_batch, k, m)
    b_shape = (b_batch, k, n) if kernel.b_major == "n" else (b_batch, n, k)
    if kernel.splits_both and make is exact_integers:
        a, b = np.empty(a_shape, np.float32), np.empty(b_shape, np.float32)
        exact_factors(
            rng,
            a,
            b,
            (2 if kernel.a_major == "k" else 1, 2 if kernel.b_major == "k" else 1),
            kernel,
        )
        return a, b
    return make(rng, a_shape, kernel.a_dtype), make(rng, b_shape, kernel.b_dtype)


def precision_of(kernel: Kernel) -> Any:
    """What a kernel answers where the types do not say it."""
    return dense_tuned.precision_of(kernel)


def spec_of(kernel: Kernel, **config: Any) -> GemmSpec:
    return GemmSpec(
        *kernel.majors,
        out_dtype=kernel.out_dtype,
        policy=Policy(
            implementations=("cutlass",),
            config=TuningConfig(kernel=kernel.name, **config),
            precision=precision_of(kernel),
        ),
    )


def numpy_gemm(kernel: Kernel, a: Any, b: Any) -> np.ndarray:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    a = a if kernel.a_major == "k" else np.swapaxes(a, 1, 2)
    b = b if kernel.b_major == "n" else np.swapaxes(b, 1, 2)
    return np.matmul(a, b)


def run_families(kernel: Kernel, families: tuple[str, ...], make: Any) -> list[Any]:
    """Results of one kernel for several shape families, from one compilation."""
    inputs = [operands(kernel, family, make) for family in families]
    return jax.jit(lambda pairs: [gemm(a, b, spec_of(kernel)) for a, b in pairs])(inputs)


@functools.cache
def xla_gemm(
    in_dtype: str, out_dtype: str, majors: str, precision: Any, family: str
) -> tuple[Any, np.ndarray]:
    """XLA's result on normal values (autotuned, so only once) and the exact one."""
    kernel = next(
        k
        for k in runtime.kernels()
        if (k.in_dtype, k.out_dtype, k.a_major + k.b_major) == (in_dtype, out_dtype, majors)
    )
    a, b = operands(kernel, family, normal)
    contract = ((2 if majors[0] == "k" else 1,), (1 if majors[1] == "n" else 2,))
    numbers = contract, ((0,), (0,))
    out = lax.dot_general(a, b, numbers, precision, preferred_element_type=out_dtype)
    return out, numpy_gemm(kernel, a, b)


@pytest.mark.parametrize("kernel", gpu_kernels())
def test_exact_on_exact_integers(kernel: Kernel) -> None:
    results = run_families(kernel, tuple(FAMILIES), exact_integers)
    for family, got in zip(FAMILIES, results, strict=True):
        want = numpy_gemm(kernel, *operands(kernel, family, exact_integers))
        # Sums of small integers are exact in f32, so the result is rounded once, or not at all.
        assert_exact(got, want.astype(np.float32).astype(got.dtype), f"{kernel.name} {family}")


@pytest.mark.parametrize("kernel", gpu_kernels())
def test_as_good_as_xla_on_normal_values(kernel: Kernel) -> None:
    families = ("aligned", "past the tile", "deep", "batch of 3")
    majors = kernel.a_major + kernel.b_major
    for family, got in zip(families, run_families(kernel, families, normal), strict=True):
        xla, exact = xla_gemm(
            kernel.in_dtype, kernel.out_dtype, majors, precision_of(kernel), family
        )
        depth = FAMILIES[family][-1]
        assert_as_good_as_xla(got, xla, exact, f"{kernel.name} {family}", depth=depth)


@pytest.mark.parametrize("kernel", gpu_kernels(lambda k: k.splits_both))
def test_errors_of_f32_operands(kernel: Kernel) -> None:
    a, b = operands(kernel, "deep", normal)
    got = np.asarray(jax.jit(lambda a, b: gemm(a, b, spec_of(kernel)))(a, b), np.float64)
    want = numpy_gemm(kernel, a, b)
    apart = kernel.terms == 3 and kernel.tile_n <= 64
    most = F32_LONG_PRODUCTS_APART if apart else F32_LONG_PRODUCTS[kernel.term_dtype, kernel.terms]
    assert np.abs(got - want).max() <= most * np.sqrt(np.mean(want**2))


@pytest.mark.parametrize(
    "kernel",
    gpu_kernels(lambda k: k.out_dtype == "float32" and "float32" in (k.a_dtype, k.b_dtype)),
)
def test_infinities_and_the_largest_values_of_f32_operands(kernel: Kernel) -> None:
    a, b = (np.array(x) for x in operands(kernel, "past the tile", normal))
    rows = a[0] if kernel.a_major == "k" else a[0].T
    columns = b[0].T if kernel.b_major == "n" else b[0]
    for x, other, k in ((rows, columns, 0), (columns, rows, 16)):
        if x.dtype == np.float32:
            x[1, k + 2], x[3, k + 4], x[5, k + 6] = np.inf, -np.inf, np.nan
            x[7, k + 8] = np.finfo(x.dtype).max
            other[:, k + 8] /= 8
            other[9, k + 2] = 0  # times infinity: NaN
    with np.errstate(invalid="ignore"):
        want = numpy_gemm(kernel, a, b)
    got = jax.jit(lambda a, b: gemm(a, b, spec_of(kernel)))(jnp.asarray(a), jnp.asarray(b))
    assert_same_classes(got, want)


@pytest.mark.parametrize(
    "kernel",
    gpu_kernels(lambda k: k.out_dtype == "bfloat16" and k.majors == "kn" and not k.cluster_k),
)  # one type and storage order of each tile is enough; cluster-K kernels have one order
def test_tile_orders(kernel: Kernel) -> None:
    """Raster order and swizzle permute the tiles: the result may not change by a bit."""
    rng = np.random.default_rng(0)
    a = normal(rng, (1, 1160, 72), kernel.a_dtype)
    b = normal(rng, (1, 72, 1544), kernel.b_dtype)
    specs = [
        spec_of(kernel, raster_order=order, swizzle=swizzle)
        for order in (None, "m", "n")
        for swizzle in (1, 2, 4, 8, 16)
    ]
    first, *others = jax.jit(lambda x, y: [gemm(x, y, spec) for spec in specs])(a, b)
    for other in others:
        assert_exact(other, first)


@pytest.mark.parametrize(
    "kernel", gpu_kernels(lambda k: k.splits_k and "_bf16_" in k.name and "_kn_" in k.name)
)
@pytest.mark.parametrize(("splits", "k"), [(2, 96), (3, 144), (16, 768), (5, 1000), (11, 568)])
def test_split_k(kernel: Kernel, splits: int, k: int) -> None:
    if k % (8 * splits) and not (kernel.uneven_parts or kernel.stream_k):
        pytest.skip("divides K into equal parts")
    rng = np.random.default_rng(splits)
    a = exact_integers(rng, (1, 200, k), kernel.a_dtype)
    b = exact_integers(rng, (1, k, 264), kernel.b_dtype)
    got = jax.jit(lambda x, y: gemm(x, y, spec_of(kernel, splits=splits)))(a, b)
    want = np.matmul(np.asarray(a, np.float64), np.asarray(b, np.float64))
    assert_exact(got, want.astype(np.float32).astype(got.dtype), f"{kernel.name} /{splits}")


# (M, N, K, batch): a tile for all multiprocessors, a few, a wave and a bit, and a batch.
SHARED = [(136, 264, 8200, 1), (1160, 1544, 4104, 1), (2056, 2312, 1032, 1), (264, 520, 2056, 3)]


@pytest.mark.parametrize("kernel", gpu_kernels(lambda k: k.stream_k and "_kn_" in k.name))
@pytest.mark.parametrize("shape", SHARED, ids=str)
def test_stream_k(kernel: Kernel, shape: tuple[int, int, int, int]) -> None:
    m, n, k, batch = shape
    rng = np.random.default_rng(0)
    a = exact_integers(rng, (batch, m, k), kernel.a_dtype)
    b = exact_integers(rng, (batch, k, n), kernel.b_dtype)
    want = np.matmul(np.asarray(a, np.float32), np.asarray(b, np.float32))  # exact: integers
    ways: list[dict[str, Any]] = [{"decomposition": d} for d in ("heuristic", "stream_k")]
    ways += [{"splits": 5}, {"decomposition": "stream_k", "swizzle": 4}]
    specs = [spec_of(kernel, **way) for way in ways]
    for way, got in zip(
        ways, jax.jit(lambda x, y: [gemm(x, y, s) for s in specs])(a, b), strict=True
    ):
        assert_exact(got, want.astype(got.dtype), f"{kernel.name} {way}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(33, 35, 37), (1, 1, 1), (129, 1, 64), (600, 601, 602)])
def test_unaligned_shapes_are_padded(dtype: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = exact_integers(rng, (m, k), dtype), exact_integers(rng, (k, n), dtype)
    got = jax.jit(lambda x, y: bw.matmul(x, y, implementation="cutlass"))(a, b)
    want = np.matmul(np.asarray(a, np.float64), np.asarray(b, np.float64))
    assert_exact(got, want.astype(np.float32).astype(got.dtype))


@pytest.mark.parametrize("shape", [(0, 8, 8), (8, 0, 8), (8, 8, 0)])
def test_empty_shapes(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
    assert_exact(bw.matmul(a, b, implementation="cutlass"), np.zeros((m, n), a.dtype))


def _training_step(matmul: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        hidden = jnp.tanh(matmul(x, w[0]))
        return jnp.mean(jnp.square(matmul(hidden, w[1]).astype(jnp.float32)))

    return jax.jit(jax.value_and_grad(loss))


def test_forward_and_backward_run_the_kernels() -> None:
    """A step of a small network: only our kernels, and gradients as good as XLA's."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(normal(rng, (4, 128, 256), "bfloat16"))
    w = [jnp.asarray(normal(rng, s, "bfloat16") / 16) for s in ((256, 512), (512, 128))]
    ours, xla = _training_step(bw.matmul), _training_step(jnp.matmul)
    exact = _training_step(lambda a, b: jnp.matmul(a, b, precision="highest"))
    text = ours.lower(w, x).compile().as_text()
    assert text.count('custom_call_target="bwgemm.product.v2"') == 5
    assert "cublas" not in text
    (_, got), (_, want) = ours(w, x), xla(w, x)
    _, truth = exact([v.astype(jnp.float32) for v in w], x.astype(jnp.float32))
    for g, b, t in zip(got, want, truth, strict=True):
        assert_as_good_as_xla(g, b, np.asarray(t, np.float64))


def test_command_buffer_capture_and_replay_with_new_data() -> None:
    """XLA captures the calls into a CUDA graph on a warm execution and replays it afterwards."""

    def chain(a: Any, b: Any) -> Any:
        for _ in range(6):
            a = jnp.clip(bw.matmul(a, b, implementation="cutlass"), -1, 1)
        return a

    options = {
        "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
        "xla_gpu_graph_min_graph_size": "1",
    }
    rng = np.random.default_rng(0)
    first = [jnp.asarray(exact_integers(rng, (256, 256), "bfloat16")) for _ in range(2)]
    compiled = jax.jit(chain).lower(*first).compile(compiler_options=options)
    assert "command_buffer" in compiled.as_text()

    def want(a: Any, b: Any) -> Any:
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        for _ in range(6):
            a = np.clip(a @ b, -1, 1)
        return a.astype(jnp.bfloat16)

    for _ in range(5):  # capture, then replays, each with other buffers and other values
        operands = [jnp.asarray(exact_integers(rng, (256, 256), "bfloat16")) for _ in range(2)]
        assert_exact(compiled(*operands), want(*operands))


RUN_EXPORTED = """
import sys
import jax, jax.export, jax.numpy as jnp
import numpy as np
import jax_bwgemm  # registers the target
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
a, b = (jnp.asarray(x, jnp.bfloat16) for x in np.load(sys.argv[2]).values())
np.save(sys.argv[3], np.asarray(exported.call(a, b), np.float32))
"""


def test_exported_program_runs_in_another_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = (exact_integers(rng, (256, 256), "bfloat16") for _ in range(2))
    exported = jax.export.export(
        jax.jit(lambda x, y: bw.matmul(x, y, implementation="cutlass")),
        platforms=("cuda",),
        disabled_checks=bw.DISABLE_EXPORT_CHECKS,
    )(a, b)
    program, inputs, output = (tmp_path / n for n in ("program", "in.npz", "out.npy"))
    program.write_bytes(exported.serialize())
    np.savez(inputs, np.asarray(a, np.float32), np.asarray(b, np.float32))
    command = [sys.executable, "-c", RUN_EXPORTED, str(program), str(inputs), str(output)]
    root = Path(bw.__file__).parent.parent
    subprocess.run(command, check=True, cwd=root)
    assert_exact(np.load(output), np.asarray(jnp.matmul(a, b), np.float32))


def test_unknown_kernel_in_an_exported_program_is_unimplemented() -> None:
    """What an old program meets in a build without its kernel: a clear error with the name."""
    x = jnp.ones((64, 64), jnp.bfloat16)[None]
    call = jax.ffi.ffi_call(
        "bwgemm.gemm.v1",
        (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((0,), jnp.uint8)),
    )
    config = {
        "kernel": "sm90_of_the_past",
        "raster_order": "heuristic",
        "swizzle": np.int64(1),
        "splits": np.int64(1),
    }
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"UNIMPLEMENTED.*sm90_of_the_past"):
        jax.block_until_ready(jax.jit(lambda a: call(a, a, config=config)[0])(x))


@pytest.mark.multigpu
def test_every_gpu_of_the_host() -> None:
    rng = np.random.default_rng(0)
    a, b = (exact_integers(rng, (256, 256), "bfloat16") for _ in range(2))
    for device in jax.devices("gpu"):
        got = jax.jit(bw.matmul)(jax.device_put(a, device), jax.device_put(b, device))
        assert got.devices() == {device}
        assert_exact(got, np.asarray(jnp.matmul(a, b)))
