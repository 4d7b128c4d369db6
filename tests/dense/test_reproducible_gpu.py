"""The same bits every time, on the GPU: each scheduler, a hundred runs, alone and in company.

In company means that other kernels hold multiprocessors at the same time, so that CTAs start in
other orders and wait for one another: other GEMMs in concurrent branches of one CUDA graph, and
fills of memory on a stream of their own beside GEMMs that other threads dispatch.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import normal

from jax_bwgemm import runtime
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.spec import Policy

pytestmark = pytest.mark.gpu

RUNS = 100
# Neither tiles nor waves come out even: edges, an unfilled last wave, and a long K to share.
M, N, K = 1160, 1544, 4104
# Other GEMMs, of several sizes and durations.
# K divides into as many chunks as any scheduler here cuts it in.
COMPANY = ((512, 512, 576), (256, 2048, 1008), (2048, 256, 504), (64, 4096, 504))


def schedulers() -> list[Any]:
    """(kernel, run-time options) of every way to compute: one kernel of each schedule."""
    marks = {"sm90": pytest.mark.sm90, "sm100": pytest.mark.sm100}
    kinds: dict[tuple, Kernel] = {}
    for k in runtime.kernels() if runtime.extension() is not None else ():
        if (k.in_dtype, k.out_dtype, k.a_major + k.b_major) == ("bfloat16", "bfloat16", "kn"):
            size = "wide" if k.tile_n >= 256 else ""
            kinds.setdefault((k.arch, k.schedule, k.swap_ab, k.stream_k, size), k)
    found = []
    for k in kinds.values():
        options: list[dict[str, Any]] = [{"splits": 1}] + [{"splits": 9}] * k.splits_k
        if k.stream_k:
            ways = ("heuristic", "stream_k", "data_parallel")
            options = [{"decomposition": d} for d in ways]
            options.append({"decomposition": "split_k", "splits": 3})
        for chosen in options:
            text = " ".join(f"{name}={value}" for name, value in chosen.items())
            found.append(pytest.param(k, chosen, id=f"{k.name} {text}", marks=marks[k.arch]))
    if not found:  # collected, so that the skip (or failure) is reported
        return [pytest.param(None, {}, id="no kernels")]
    return found


def operands(m: int, n: int, k: int, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    return jnp.asarray(normal(rng, (1, m, k), "bfloat16")), jnp.asarray(
        normal(rng, (1, k, n), "bfloat16")
    )


def spec_of(kernel: Kernel, options: dict[str, Any]) -> GemmSpec:
    config = TuningConfig(kernel=kernel.name, **options)
    return GemmSpec(
        "k",
        "n",
        out_dtype=kernel.out_dtype,
        policy=Policy(implementations=("cutlass",), config=config),
    )


@jax.jit
def different(x: jax.Array, y: jax.Array) -> jax.Array:
    """How many elements differ in a bit."""
    as_bits = jnp.uint16 if x.dtype.itemsize == 2 else jnp.uint32
    a, b = (jax.lax.bitcast_convert_type(v, as_bits) for v in (x, y))
    return jnp.sum(a != b)


def assert_same_bits(run: Any, runs: int = RUNS) -> None:
    first = run()
    assert bool(jnp.isfinite(first.astype(jnp.float32)).all())
    counts = [different(run(), first) for _ in range(runs - 1)]
    assert [int(c) for c in counts] == [0] * (runs - 1)


@contextlib.contextmanager
def memory_fills() -> Iterator[None]:
    """Keeps a stream of its own busy with kernels that fill memory, through the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    stop, failures = threading.Event(), []

    def check(code: int) -> None:
        if code:
            raise RuntimeError(f"the CUDA driver returned {code}")

    def fill() -> None:
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        memory, size = ctypes.c_uint64(), 16 * 2**20
        try:
            check(driver.cuInit(0))
            check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
            check(driver.cuCtxSetCurrent(context))
            check(driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)))
            check(driver.cuStreamCreate(ctypes.byref(stream), 1))  # waits for no other stream
            while not stop.is_set():
                for value in range(50):
                    words = ctypes.c_size_t(size // 4)
                    check(driver.cuMemsetD32Async(memory, ctypes.c_uint(value), words, stream))
                check(driver.cuStreamSynchronize(stream))
            check(driver.cuStreamDestroy_v2(stream))
            check(driver.cuMemFree_v2(memory))
            check(driver.cuDevicePrimaryCtxRelease_v2(0))
        except RuntimeError as error:
            failures.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


@pytest.mark.parametrize(("kernel", "options"), schedulers())
def test_alone(kernel: Kernel, options: dict[str, Any]) -> None:
    a, b = operands(M, N, K)
    run = jax.jit(lambda x, y: gemm(x, y, spec_of(kernel, options)))
    assert_same_bits(lambda: run(a, b))


@pytest.mark.parametrize(("kernel", "options"), schedulers())
def test_beside_other_streams_and_threads(kernel: Kernel, options: dict[str, Any]) -> None:
    a, b = operands(M, N, K)
    run = jax.jit(lambda x, y: gemm(x, y, spec_of(kernel, options)))
    expected = run(a, b)
    others = [(run, operands(*sizes, seed=1)) for sizes in COMPANY]
    firsts = [f(*args) for f, args in others]

    def dispatch(index: int) -> list[jax.Array]:
        if index == 0:
            return [different(run(a, b), expected) for _ in range(RUNS)]
        f, args = others[index - 1]
        return [different(f(*args), firsts[index - 1]) for _ in range(RUNS)]

    with memory_fills(), concurrent.futures.ThreadPoolExecutor(1 + len(others)) as pool:
        counts = [pool.submit(dispatch, i) for i in range(1 + len(others))]
        for count in counts:
            assert [int(c) for c in count.result()] == [0] * RUNS


@pytest.mark.parametrize(("kernel", "options"), schedulers())
def test_in_concurrent_branches_of_a_graph(kernel: Kernel, options: dict[str, Any]) -> None:
    pairs = [operands(M, N, K), *(operands(*sizes, seed=1) for sizes in COMPANY)]
    spec = spec_of(kernel, options)
    together = jax.jit(lambda args: [gemm(x, y, spec) for x, y in args])
    # XLA makes the graph of the finished executable: nothing of it shows in the HLO.
    compiled = together.lower(pairs).compile(
        compiler_options={
            "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
            "xla_gpu_graph_min_graph_size": "1",
            "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
        }
    )
    firsts = [jax.jit(lambda x, y: gemm(x, y, spec))(*pair) for pair in pairs]
    counts = []
    for _ in range(RUNS):
        counts += [different(x, y) for x, y in zip(compiled(pairs), firsts, strict=True)]
    assert [int(c) for c in counts] == [0] * len(counts)
