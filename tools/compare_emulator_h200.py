"""Every SM90 kernel in the emulator against the same kernel on a real Hopper GPU.

    python tools/compare_emulator_h200.py both                           # with an H100 or H200
    python tools/compare_emulator_h200.py emulate --out emulated.npz     # or first on any machine,
    python tools/compare_emulator_h200.py gpu --emulated emulated.npz    # then on one with the GPU

Inputs are made from fixed seeds on both sides, so only results travel. On small integers both must
agree bit for bit. On normal values both are sums of K products in some order; a tensor core
truncates where IEEE addition rounds, so each is within K * 2**-23 * sum |a||b| of the exact value,
and one rounding to the output type is added.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jax_bwgemm import emulator, runtime
from jax_bwgemm.emulator.dense import operand_shapes, reference, run_gemm
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel


def problems(kernel: Kernel) -> Iterator[tuple[int, int, int, int, int]]:
    """M, N, K, batch, splits: one tile; every edge ragged, with K several times around the
    pipeline; a batch; and, where possible, K in two parts.
    """
    tm, tn, tk = kernel.tile_m, kernel.tile_n, kernel.tile_k
    yield tm, tn, 2 * tk, 1, 1
    yield tm + 40, tn + 24, (kernel.stages + 2) * tk + 8, 1, 1
    yield 72, 136, 3 * tk, 3, 1
    if kernel.splits_k:
        yield tm, tn, 6 * tk, 1, 2


def cases(
    kernels: tuple[Kernel, ...],
) -> Iterator[tuple[str, Kernel, np.ndarray, np.ndarray, int]]:
    """Key, kernel, operands and splits of every comparison."""
    for kernel in kernels:
        for m, n, k, batch, splits in problems(kernel):
            for values in ("integers", "normal"):
                key = f"{kernel.name}/{m}x{n}x{k}x{batch}s{splits}/{values}"
                seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
                rng = np.random.default_rng(seed)
                shapes = operand_shapes(kernel, m, n, k, batch)
                a, b = (
                    (rng.integers(-2, 3, s) if values == "integers" else rng.standard_normal(s))
                    .astype(np.float32)
                    .astype(jnp.dtype(dtype))
                    for s, dtype in zip(shapes, (kernel.a_dtype, kernel.b_dtype), strict=True)
                )
                yield key, kernel, a, b, splits


def run_on_gpu(kernel: Kernel, a: np.ndarray, b: np.ndarray, splits: int) -> np.ndarray:
    """The compiled kernel, called as `run_gemm` calls the emulated one."""
    m, k = a.shape[1:] if kernel.a_major == "k" else a.shape[:0:-1]
    n = b.shape[2] if kernel.b_major == "n" else b.shape[1]
    batch = a.shape[0]
    gpu = jax.devices("gpu")[0]
    scratch = runtime.workspace_bytes(kernel.name, m, n, k, batch, splits, gpu.core_count)
    with jax.default_device(gpu):
        out = targets.call_kernel(
            "cutlass",
            kernel.name,
            {"a": jnp.asarray(a), "b": jnp.asarray(b)},
            jax.ShapeDtypeStruct((batch, m, n), kernel.out_dtype),
            scratch,
            splits=splits,
        )
        return np.asarray(out)


def allowed(kernel: Kernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Largest difference of two results on normal values, element by element."""
    k = a.shape[2] if kernel.a_major == "k" else a.shape[1]
    magnitude = reference(kernel, np.abs(a), np.abs(b))
    bound = 2 * k * 2.0**-23 * magnitude
    if kernel.out_dtype != "float32":
        bound += float(jnp.finfo(kernel.out_dtype).eps) * (np.abs(reference(kernel, a, b)) + bound)
    return bound


def emulated_kernels() -> tuple[Kernel, ...]:
    """The Hopper kernels of the emulator's build."""
    return tuple(k for k in runtime.emulated_kernels() if k.arch == "sm90")


def bits(array: np.ndarray) -> np.ndarray:
    """The same bytes as unsigned integers, which compare bit for bit and survive npz."""
    return array.view(f"u{array.dtype.itemsize}")


def emulate(path: str) -> int:
    """Runs every case in the emulator and stores the results."""
    kernels = emulated_kernels()
    started = time.perf_counter()
    with emulator.configure(sm_count=4):
        results = {
            key: bits(run_gemm(kernel, a, b, splits=splits))
            for key, kernel, a, b, splits in cases(kernels)
        }
    np.savez_compressed(path, **results)
    seconds = time.perf_counter() - started
    print(f"{len(results)} results of {len(kernels)} kernels in {seconds:.0f} s, stored in {path}")
    return 0 if kernels else 2


def compare(path: str | None) -> int:
    """Runs every case on the GPU and compares; returns 0 when all agree.

    Args:
        path: Stored results of the emulator; None runs the emulator here.
    """
    kernels = tuple(k for k in runtime.kernels() if k.arch == "sm90")
    if kernels != emulated_kernels():
        print("the emulator was built with other kernels than the GPU module")
        return 2
    stored = None if path is None else np.load(path)
    counts = {"integers": 0, "normal": 0}
    worst = {"float32": 0.0, "float16": 0.0, "bfloat16": 0.0}  # by output type
    bad, identical = 0, 0
    for key, kernel, a, b, splits in cases(kernels):
        values = key.rsplit("/", 1)[1]
        gpu = run_on_gpu(kernel, a, b, splits)
        if stored is None:
            with emulator.configure(sm_count=4):
                emulated = run_gemm(kernel, a, b, splits=splits)
        else:
            emulated = stored[key].view(gpu.dtype)
        counts[values] += 1
        same = np.array_equal(bits(gpu), bits(emulated))
        identical += same
        if values == "integers":
            exact = reference(kernel, a, b).astype(np.float32).astype(gpu.dtype)
            ok = same and np.array_equal(gpu, exact)
        else:
            difference = np.abs(gpu.astype(np.float64) - emulated.astype(np.float64))
            ratio = float(np.max(difference / allowed(kernel, a, b)))
            worst[kernel.out_dtype] = max(worst[kernel.out_dtype], ratio)
            ok = ratio <= 1
        if not ok:
            print(f"DIFFERENT {key}")
            bad += 1
    print(f"GPU: {jax.devices('gpu')[0].device_kind}; {len(kernels)} kernels")
    print(f"integers: {counts['integers']} cases, bitwise equal unless listed above")
    largest = ", ".join(f"{ratio:.3f} ({dtype})" for dtype, ratio in worst.items())
    print(f"normal values: {counts['normal']} cases, largest difference over its bound: {largest}")
    print(f"bitwise equal: {identical} of {sum(counts.values())}; failures: {bad}")
    return 1 if bad or not kernels else 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("both")
    commands.add_parser("emulate").add_argument("--out", required=True)
    commands.add_parser("gpu").add_argument("--emulated", required=True)
    args = parser.parse_args()
    if args.command == "emulate":
        return emulate(args.out)
    return compare(None if args.command == "both" else args.emulated)


if __name__ == "__main__":
    sys.exit(main())
