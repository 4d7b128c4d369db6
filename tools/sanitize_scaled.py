"""The scaled part of sanitize_gpu.py: every kernel of 8-bit operands, with every layout it takes.

    python tools/sanitize_scaled.py --random 2000   # random problems, without a sanitizer

On integers and scales that are powers of two, every sum is exact.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import re
import sys
from collections.abc import Sequence

import numpy as np

WHOLE_K = ("tensor", "row")
LAYOUTS = (*WHOLE_K, "1x128", "128x128")
# Layouts of the operand along tile_n, by what a kernel applies scales to.
ALONG_TILE_N = {"sums": WHOLE_K, "blocks": ("tensor", "128x128"), "rows": ("row", "1x128")}


@dataclasses.dataclass(frozen=True)
class ScaledCase:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        types: Types of A, B and D.
        scalings: Layouts of A and B.
        m, n, k, batch: Sizes.
        swizzle: Tiles in a band.
        splits: Parts of K.
        seed: Of the operands.
    """

    kernel: str
    types: tuple[str, str, str]
    scalings: tuple[str, str]
    m: int
    n: int
    k: int
    batch: int = 1
    swizzle: int = 1
    splits: int = 1
    seed: int = 0

    def __str__(self) -> str:
        layouts = " x ".join(self.scalings)
        return (
            f"{self.kernel} {layouts} {self.m}x{self.n}x{self.k} b{self.batch} "
            f"swizzle {self.swizzle} splits {self.splits}"
        )

    def run(self, implementation: str) -> tuple[np.ndarray, np.ndarray]:
        """Launches it in this process: the result, and the exact product rounded once."""
        import jax
        import jax.numpy as jnp

        from jax_bwgemm import runtime
        from jax_bwgemm.product import targets

        rng = np.random.default_rng(self.seed)
        shapes = ((self.batch, self.m, self.k), (self.batch, self.n, self.k))
        operands, wide = {}, []
        for name, shape, scaling, dtype in zip(
            "ab", shapes, self.scalings, self.types[:2], strict=True
        ):
            values = rng.integers(-2, 3, shape).astype(np.float32)
            scales = (2.0 ** rng.integers(-1, 2, scales_shape(scaling, shape))).astype(np.float32)
            operands[name] = jnp.asarray(values.astype(jnp.dtype(dtype)))  # nothing to compile
            operands[f"{name}_scales"] = jnp.asarray(scales)
            wide.append(values * of_elements(scaling, scales, shape))
        sizes = {"m": self.m, "n": self.n, "k": self.k, "batch": self.batch, "splits": self.splits}
        out = targets.call_kernel(
            implementation,
            self.kernel,
            operands,
            jax.ShapeDtypeStruct((self.batch, self.m, self.n), self.types[2]),
            runtime.kernel_workspace_bytes(implementation, self.kernel, **sizes, sm_count=1),
            a_scaling=self.scalings[0],
            b_scaling=self.scalings[1],
            swizzle=self.swizzle,
            splits=self.splits,
        )
        exact = wide[0] @ wide[1].swapaxes(1, 2)
        return np.asarray(out), exact.astype(jnp.dtype(self.types[2]))

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        got, want = self.run(implementation)
        return np.array_equal(got.astype(np.float32), want.astype(np.float32))


def scales_shape(scaling: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of the scales of [batch, rows, k]."""
    batch, rows, k = shape
    blocks = -(-k // 128)
    return {
        "tensor": (batch,),
        "row": (batch, rows),
        "1x128": (batch, blocks, rows),
        "128x128": (batch, -(-rows // 128), blocks),
    }[scaling]


def of_elements(scaling: str, scales: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Every element's scale."""
    _, rows, k = shape
    if scaling == "tensor":
        return scales[:, None, None]
    if scaling == "row":
        return scales[:, :, None]
    if scaling == "1x128":
        return np.repeat(scales.swapaxes(1, 2), 128, 2)[:, :, :k]
    return np.repeat(np.repeat(scales, 128, 1), 128, 2)[:, :rows, :k]


def layouts_of(kernel: object) -> list[tuple[str, str]]:
    """Pairs of layouts of A and B that a kernel takes."""
    along_m = WHOLE_K if kernel.scales == "sums" else LAYOUTS
    pairs = itertools.product(along_m, ALONG_TILE_N[kernel.scales])
    return [(q, p) if kernel.swap_ab else (p, q) for p, q in pairs]


def _case(kernel: object, scalings: tuple[str, str], *sizes: int, **more: int) -> ScaledCase:
    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    return ScaledCase(kernel.name, types, scalings, *sizes, **more)


def cases(arch: str, pattern: str) -> list[ScaledCase]:
    """Every kernel whose name the pattern is in, with ragged edges, once for each pair of layouts.

    The first pair goes around the pipeline more than once, in as many as three parts.
    """
    from jax_bwgemm import runtime

    found = []
    for k in runtime.scaled_kernels():
        if k.arch != arch or not re.search(pattern, k.name):
            continue
        rows, columns = (k.tile_n, k.tile_m) if k.swap_ab else (k.tile_m, k.tile_n)
        for i, scalings in enumerate(layouts_of(k)):
            sizes = rows + 7, columns + 24
            found.append(_case(k, scalings, *sizes, k.tile_k + 16))
            if i == 0:
                depth = (k.stages + 2) * k.tile_k + 16
                found += [_case(k, scalings, *sizes, depth, splits=s) for s in (1, 3)]
    return found


def random_cases(kernels: Sequence[object], count: int, seed: int = 0) -> list[ScaledCase]:
    """Random kernels, layouts and sizes: tiny, ragged, many tiles, batches or parts of K."""
    rng = np.random.default_rng(seed)

    def size(most: int, multiple: int) -> int:
        return int(np.ceil(2 ** rng.uniform(0, np.log2(most / multiple)))) * multiple

    found = []
    for i in range(count):
        kernel = kernels[rng.integers(len(kernels))]
        pairs = layouts_of(kernel)
        sizes = size(1500, 1), size(2000, 8), size(1600, 16), int(rng.integers(1, 4))
        swizzle = int(2 ** rng.integers(0, 5))
        scalings = pairs[rng.integers(len(pairs))]
        splits = int(rng.integers(1, 6)) if sizes[3] == 1 else 1
        found.append(_case(kernel, scalings, *sizes, swizzle=swizzle, splits=splits, seed=i))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", type=int, default=2000, metavar="COUNT", help="problems")
    parser.add_argument("--implementation", choices=("cutlass", "emulator"), default="cutlass")
    parser.add_argument("--filter", default="", help="regular expression in a kernel's name")
    parser.add_argument("--threads", type=int, default=1, help="problems at a time")
    args = parser.parse_args(argv)
    from jax_bwgemm.scaled.primitive import DENSE

    kernels = [k for k in DENSE.table_of(args.implementation) if re.search(args.filter, k.name)]
    if not kernels:
        print(f"error: no scaled kernel has {args.filter!r} in its name", file=sys.stderr)
        return 2
    found = random_cases(kernels, args.random)
    with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
        exact = list(pool.map(lambda case: case.is_exact(args.implementation), found))
    wrong = exact.count(False)
    for case in itertools.compress(found, [not e for e in exact]):
        print("WRONG", case)
    print(f"{args.random} random problems, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
