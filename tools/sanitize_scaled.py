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
from typing import Any

import ml_dtypes  # noqa: F401  (numpy then knows the types by name)
import numpy as np

WHOLE_K = ("tensor", "row")
LAYOUTS = (*WHOLE_K, "1x128", "128x128")
# Layouts of the operand along tile_n, by what a kernel applies scales to.
ALONG_TILE_N = {"sums": WHOLE_K, "blocks": ("tensor", "128x128"), "rows": ("row", "1x128")}
# Elements of a block of the layouts that MMA instructions read.
MMA = {"mxfp8": 32, "nvfp4": 16}


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

    def operands(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Operands by their roles, and the exact product, rounded once."""
        rng = np.random.default_rng(self.seed)
        shapes = ((self.batch, self.m, self.k), (self.batch, self.n, self.k))
        operands, wide = random_operands(rng, shapes, self.scalings, self.types)
        exact = wide[0] @ wide[1].swapaxes(1, 2)
        return operands, exact.astype(np.dtype(self.types[2]))

    def launch(self, implementation: str, operands: dict[str, Any]) -> Any:
        """Emits the call: D."""
        import jax

        from jax_bwgemm import runtime
        from jax_bwgemm.product import targets

        sizes = {"m": self.m, "n": self.n, "k": self.k, "batch": self.batch, "splits": self.splits}
        return targets.call_kernel(
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

    def run(self, implementation: str) -> tuple[np.ndarray, np.ndarray]:
        """Launches it in this process: the result, and the exact product rounded once."""
        operands, want = self.operands()
        return np.asarray(self.launch(implementation, operands)), want

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        return equal(*self.run(implementation))


def equal(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether two arrays of the same type have the same numbers."""
    return np.array_equal(got.astype(np.float32), want.astype(np.float32))


def random_operands(
    rng: np.random.Generator,
    shapes: Sequence[Sequence[int]],
    scalings: Sequence[str],
    types: Sequence[str],
    a_bands: tuple[np.ndarray, int] | None = None,
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Values and scales of A and B by their roles, and what they stand for: [batch, rows, k].

    ``a_bands``: where rows of A lie in bands of tiles, and how many there are (`tiles_of`).
    """
    operands, wide = {}, []
    for name, shape, scaling, dtype in zip("ab", shapes, scalings, types[:2], strict=True):
        values = rng.integers(-2, 3, shape).astype(np.float32)
        scales = (2.0 ** rng.integers(-1, 2, scales_shape(scaling, shape))).astype(np.float32)
        operands[name] = values.astype(np.dtype(dtype))
        bands = a_bands if name == "a" else None
        tiled = tiles_of(scaling, scales, bands) if scaling in MMA else scales
        operands[f"{name}_scales"] = tiled
        if scaling == "nvfp4":
            codes = operands[name].view(np.uint8) & 15
            operands[name] = codes[..., ::2] | codes[..., 1::2] << 4
            operands["alpha"] = np.full(shape[:1], 0.25, np.float32)
            values *= 0.5
        wide.append(values * of_elements(scaling, scales, shape))
    return operands, wide


def scales_shape(scaling: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of the scales of [batch, rows, k]."""
    batch, rows, k = shape
    blocks = -(-k // 128)
    return {
        "tensor": (batch,),
        "row": (batch, rows),
        "1x128": (batch, blocks, rows),
        "128x128": (batch, -(-rows // 128), blocks),
        "mxfp8": (batch, rows, -(-k // 32)),
        "nvfp4": (batch, rows, -(-k // 16)),
    }[scaling]


def tiles_of(
    scaling: str, scales: np.ndarray, placed: tuple[np.ndarray, int] | None = None
) -> np.ndarray:
    """Scales [batch, rows, blocks] as bytes in the tiles that an MMA reads.

    Past the last row they are NaNs (255), which no result may show, past the last block zeros: the
    MMA multiplies what is beyond K, zeros, by these.

    Args:
        scaling: The format.
        scales: The scales.
        placed: The place of every row in the bands, -1: nowhere; and the number of bands.
    """
    dtype = {"mxfp8": "float8_e8m0fnu", "nvfp4": "float8_e4m3fn"}[scaling]
    batch, rows, count = scales.shape
    places, bands = (np.arange(rows), -(-rows // 128)) if placed is None else placed
    columns = -(-count // 4)
    tiles = np.full((batch, bands, columns, 512), 255, np.uint8)
    coded = np.zeros((batch, rows, 4 * columns), np.uint8)
    coded[:, :, :count] = scales.astype(np.dtype(dtype)).view(np.uint8)
    some = places >= 0
    r, k = places[some][:, None], np.arange(4 * columns)
    tiles[:, r // 128, k // 4, r % 32 * 16 + r % 128 // 32 * 4 + k % 4] = coded[:, some]
    return tiles


def of_elements(scaling: str, scales: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Every element's scale."""
    _, rows, k = shape
    if scaling == "tensor":
        return scales[:, None, None]
    if scaling == "row":
        return scales[:, :, None]
    if scaling == "1x128":
        return np.repeat(scales.swapaxes(1, 2), 128, 2)[:, :, :k]
    if scaling in MMA:
        return np.repeat(scales, MMA[scaling], 2)[:, :, :k]
    return np.repeat(np.repeat(scales, 128, 1), 128, 2)[:, :rows, :k]


def layouts_of(kernel: object) -> list[tuple[str, str]]:
    """Pairs of layouts of A and B that a kernel takes."""
    if kernel.scales == "mma":
        return [("nvfp4",) * 2 if kernel.a_dtype == "float4_e2m1fn" else ("mxfp8",) * 2]
    along_m = WHOLE_K if kernel.scales == "sums" else LAYOUTS
    pairs = itertools.product(along_m, ALONG_TILE_N[kernel.scales])
    return [(q, p) if kernel.swap_ab else (p, q) for p, q in pairs]


def _case(kernel: object, scalings: tuple[str, str], *sizes: int, **more: int) -> ScaledCase:
    types = kernel.a_dtype, kernel.b_dtype, kernel.out_dtype
    return ScaledCase(kernel.name, types, scalings, *sizes, **more)


def k_multiple(kernel: object) -> int:
    """What K must be a multiple of: 16 bytes of a row."""
    return 32 if kernel.a_dtype == "float4_e2m1fn" else 16


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
            found.append(_case(k, scalings, *sizes, k.tile_k + k_multiple(k)))
            if i == 0:
                depth = (k.stages + 2) * k.tile_k + k_multiple(k)
                parts = (1, 3) if k.f32_twin else (1,)
                found += [_case(k, scalings, *sizes, depth, splits=s) for s in parts]
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
        sizes = (
            size(1500, 1),
            size(2000, 8),
            size(1600, k_multiple(kernel)),
            int(rng.integers(1, 4)),
        )
        swizzle = int(2 ** rng.integers(0, 5))
        scalings = pairs[rng.integers(len(pairs))]
        splits = int(rng.integers(1, 6)) if sizes[3] == 1 and kernel.f32_twin else 1
        if not kernel.uneven_parts and sizes[2] % (16 * splits):
            splits = 1
        found.append(_case(kernel, scalings, *sizes, swizzle=swizzle, splits=splits, seed=i))
    return found


def wrong_ones(cases: Sequence[Any], implementation: str, threads: int) -> list[Any]:
    """Those whose results are not exact. Forty problems are one program: a compilation takes longer
    than most of them.
    """
    import jax

    def check(some: Sequence[Any]) -> list[Any]:
        operands, wanted = zip(*(case.operands() for case in some), strict=True)

        def run(operands: Sequence[dict[str, Any]]) -> list[Any]:
            pairs = zip(some, operands, strict=True)
            return [case.launch(implementation, given) for case, given in pairs]

        found = jax.device_get(jax.jit(run)(operands))
        results = zip(some, found, wanted, strict=True)
        return [case for case, got, want in results if not equal(got, want)]

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        chunks = [cases[i : i + 40] for i in range(0, len(cases), 40)]
        return list(itertools.chain(*pool.map(check, chunks)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, count in (("--random", 2000), ("--random-grouped", 500)):
        parser.add_argument(name, type=int, default=count, metavar="COUNT", help="problems")
    parser.add_argument("--implementation", choices=("cutlass", "emulator"), default="cutlass")
    parser.add_argument("--filter", default="", help="regular expression in a kernel's name")
    parser.add_argument("--threads", type=int, default=1, help="programs at a time")
    args = parser.parse_args(argv)
    import sanitize_scaled_grouped

    from jax_bwgemm import runtime
    from jax_bwgemm.scaled.primitive import DENSE
    from jax_bwgemm.scaled.ragged_primitive import RAGGED

    found: list[Any] = []
    for family, draw, count in (
        (DENSE, random_cases, args.random),
        (RAGGED, sanitize_scaled_grouped.random_cases, args.random_grouped),
    ):
        table = family.table_of(args.implementation)
        kernels = [k for k in table if re.search(args.filter, k.name)]
        if args.implementation == "cutlass":
            here = runtime.local_target().target
            kernels = [k for k in kernels if here is None or k.arch == here.arch]
        found += draw(kernels, count) if kernels else []
    if not found:
        print(f"error: no scaled kernel has {args.filter!r} in its name", file=sys.stderr)
        return 2
    wrong = wrong_ones(found, args.implementation, args.threads)
    for case in wrong:
        print("WRONG", case)
    print(f"{len(found)} random problems, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
