"""The linked part of sanitize_gpu.py: kernels with epilogues in them, one type of each tile.

    python tools/sanitize_linked.py --random 300   # random epilogues, without a sanitizer
    python tools/sanitize_linked.py --list         # what sanitize_gpu.py launches

Random epilogues are shared out among processes, since most of their time is Python's and XLA's.
Those of grouped kernels are in sanitize_grouped_linked.py.

On small integers every operation of these epilogues is exact, and XLA computes the same.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (numpy then knows the types by name)
import numpy as np
import sanitize_grouped_linked
from linked_functions import KINDS, Composed, random_operands, random_operations


@dataclasses.dataclass(frozen=True)
class LinkedCase:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        arch: Its architecture.
        dtype: Type of A, B and D.
        operands: Kind and type of each operand of the epilogue.
        operations: As of `Composed`.
        results: How many matrices it returns, one of them of D's type.
        sums: How many of them it also sums over rows.
        m, n, k: Sizes.
        seed: Of the operands.
        gated: Whether the kernel computes two products, of which the epilogue is a function.
        splits: Parts that K is divided into, added by the CTAs of a cluster or a second kernel.
        batch: Matrices, each with operands of its own.
    """

    kernel: str
    arch: str
    dtype: str
    operands: tuple[tuple[str, str], ...]
    operations: tuple[int, ...]
    results: int
    sums: int
    m: int
    n: int
    k: int
    seed: int = 0
    gated: bool = False
    splits: int = 1
    batch: int = 1

    def __str__(self) -> str:
        operands = " ".join(f"{dtype}:{kind}" for kind, dtype in self.operands)
        return (
            f"{self.kernel} {self.m}x{self.n}x{self.k} ({operands}) {len(self.operations)} "
            f"operations, {self.results} results, {self.sums} sums, seed {self.seed}"
            f"{f', {self.splits} parts' if self.splits > 1 else ''}"
            f"{f', batch {self.batch}' if self.batch > 1 else ''}"
        )

    @property
    def function(self) -> Composed:
        """The epilogue."""
        types = ("float32", "float32" if self.gated else "int32", "float32")
        return Composed(self.operations, types[: self.results], self.sums)

    def given(self) -> list[np.ndarray]:
        """A, B and the epilogue's operands."""
        rng = np.random.default_rng(self.seed)
        shapes = {"row": (self.n,), "column": (self.m, 1), "scalar": (), "matrix": (self.m, self.n)}
        kinds = [(shapes[kind], dtype) for kind, dtype in self.operands]
        b = (self.k, 2, self.n) if self.gated else (self.k, self.n)
        kinds = [((self.m, self.k), self.dtype), (b, self.dtype), *kinds]
        if self.batch > 1:
            kinds = [((self.batch, *(1, 1, *s)[-2:]), dtype) for s, dtype in kinds]
        return [np.asarray(rng.integers(-2, 3, shape)).astype(dtype) for shape, dtype in kinds]

    def compiled(self, implementation: str) -> Callable[..., Any]:
        """The kernel, linked.

        Raises:
            ValueError: No kernel takes the epilogue along.
        """
        import jax

        import jax_bwgemm as bw
        from jax_bwgemm.epilogue.apply import Epilogue
        from jax_bwgemm.epilogue.gated_layer import gated_product

        def product(a: Any, b: Any, *rest: Any) -> Any:
            if self.gated:
                return gated_product(
                    a, b, Epilogue(self.function, "sanitize_linked"), rest,
                    implementation=implementation, config=config,
                )  # fmt: skip
            return bw.matmul(
                a, b, epilogue=self.function, epilogue_operands=rest,
                implementation=implementation, config=config,
            )  # fmt: skip

        splits = self.splits if self.splits > 1 else None
        config = bw.TuningConfig(kernel=self.kernel, splits=splits)
        given = self.given()
        with bw.config.linked_epilogues(True), self._machine(implementation):
            lowered = jax.jit(product).lower(*given)
            if "epilogue_digest" not in lowered.as_text():
                raise ValueError(f"not linked: {self}")
            return lowered.compile()

    @contextlib.contextmanager
    def _machine(self, implementation: str) -> Iterator[None]:
        """An emulated GPU on which a cluster fits."""
        from jax_bwgemm import config, emulator

        if implementation != "emulator":
            yield
            return
        count = max(4, min(self.splits, 8))
        with config.target(self.arch, count), emulator.configure(sm_count=count):
            yield

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        import jax

        given = self.given()
        a, b = (x.astype(np.float32) for x in given[:2])
        products = [a @ b[:, 0], a @ b[:, 1]] if self.gated else [a @ b]
        wanted = jax.jit(self.function)(*products, *given[2:])
        with self._machine(implementation):
            got = jax.device_get(self.compiled(implementation)(*given))
        pairs = zip(got, jax.device_get(wanted), strict=True)
        return all(np.array_equal(x, y.astype(x.dtype)) for x, y in pairs)


def _random(rng: np.random.Generator, kernel: object, m: int, n: int, k: int, seed: int) -> Any:
    if kernel.contraction == "m_grouped":
        return sanitize_grouped_linked.random_case(rng, kernel, m, n, k, seed)
    kinds = random_operands(rng, KINDS, 5)
    operations = random_operations(rng)
    results = int(rng.integers(1, 4))
    sums = 0 if kernel.swap_ab else int(rng.integers(0, min(3, 5 - results)))
    splits = int(rng.integers(1, 9)) if kernel.cluster_k else 1
    gated = kernel.contraction == "gated"
    batch = 1 if gated or sums else (1, 1, 1, 2, 5)[seed % 5]
    return LinkedCase(
        kernel.name, kernel.arch, kernel.a_dtype, tuple(kinds), operations, results, sums, m, n,
        k * splits, seed, gated, splits, batch,
    )  # fmt: skip


def linkable(kernels: Sequence[object], pattern: str = "") -> list[Any]:
    """Of these kernels those that epilogues are linked into."""
    from jax_bwgemm.epilogue.linkable import linkable_kernels

    names = linkable_kernels()
    return [k for k in kernels if k.name in names and re.search(pattern, k.name)]


AnyCase = LinkedCase | sanitize_grouped_linked.GroupedLinkedCase


def cases(arch: str, pattern: str) -> list[AnyCase]:
    """One kernel of each tile, its operands and a second result staged, sums where it has them.

    Cluster-K kernels with clusters of several sizes; all that can with parts of K that a second
    kernel adds. None where nothing can be linked: no such kernels, no linker.
    """
    from jax_bwgemm import runtime
    from jax_bwgemm.epilogue.linker import LinkError, linker

    try:
        linker()
    except LinkError:
        return []
    found: list[AnyCase] = []
    for k in linkable((*runtime.kernels(), *runtime.gated_kernels("cutlass")), pattern):
        if k.arch != arch or k.majors != "kn" or k.a_dtype != "bfloat16":
            continue
        rows, columns = (k.tile_n, k.tile_m) if k.swap_ab else (k.tile_m, k.tile_n)
        sizes = 3 * rows + 8, 3 * columns + 24, (k.stages + 2) * k.tile_k + 8
        matrices = ("matrix", "bfloat16"), ("matrix", "bfloat16")
        staged = (("row", "bfloat16"), *matrices, ("column", "float32"))
        # The sum of products and the first matrix, minus the second, at least the row, at most the
        # column.
        operations = 14, 64 + 15, 2 * 64 + 6, 3 * 64 + 47
        for results, sums in ((1, 0), (3, 0 if k.swap_ab else 1)):
            case = LinkedCase(k.name, k.arch, k.a_dtype, staged, operations, results, sums, *sizes)
            case = dataclasses.replace(case, gated=k.contraction == "gated")
            found.append(case)
            if not (case.gated or sums):
                found.append(dataclasses.replace(case, batch=3))
            deep = dataclasses.replace(case, k=sizes[2] * 3)
            if k.cluster_k:
                found += [dataclasses.replace(deep, splits=s) for s in (2, 5, 8)]
            if k.f32_twin and not sums:
                splits = 16 if k.cluster_k else 3
                whole = 48 * (sizes[2] * (3 if k.cluster_k else 1) // 48)  # parts are aligned
                found.append(dataclasses.replace(case, k=whole, splits=splits))
    return found + sanitize_grouped_linked.cases(arch, pattern)


def random_cases(kernels: Sequence[object], count: int, seed: int = 0) -> list[AnyCase]:
    """Random epilogues of random sizes, of kernels that epilogues are linked into."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        kernel = kernels[rng.integers(len(kernels))]
        m, n, k = (
            int(rng.integers(1, 500)),
            8 * int(rng.integers(1, 70)),
            8 * int(rng.integers(1, 40)),
        )
        found.append(_random(rng, kernel, m, n, k, i))
    return found


def wrong_cases(found: Sequence[AnyCase], implementation: str, threads: int) -> list[AnyCase]:
    """Those whose results are not exact. Launches all of them in this process."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        exact = list(pool.map(lambda case: case.is_exact(implementation), found))
    return [case for case, ok in zip(found, exact, strict=True) if not ok]


def wrong_by_processes(
    found: Sequence[AnyCase], implementation: str, threads: int, processes: int
) -> list[AnyCase]:
    """The same, each process with a part of them."""
    # Processes share a GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parts = [found[i::processes] for i in range(processes)]
    context = multiprocessing.get_context("spawn")  # threads of JAX do not survive a fork
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        count = len(parts)
        wrong = pool.map(wrong_cases, parts, [implementation] * count, [threads] * count)
        return [case for part in wrong for case in part]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--random", type=int, default=300, metavar="COUNT", help="epilogues")
    parser.add_argument("--implementation", choices=("cutlass", "emulator"), default="cutlass")
    parser.add_argument("--filter", default="", help="regular expression in a kernel's name")
    parser.add_argument("--processes", type=int, default=1, help="that share them out")
    parser.add_argument("--threads", type=int, default=8, help="of a process, a program each")
    parser.add_argument("--list", action="store_true", help="what sanitize_gpu.py launches")
    parser.add_argument("--cases", action="store_true", help="launch that, without a sanitizer")
    args = parser.parse_args(argv)
    from jax_bwgemm import runtime

    here = runtime.local_target().target if args.implementation == "cutlass" else None
    if args.list or args.cases:
        found = [c for arch in ("sm90", "sm100") for c in cases(arch, args.filter)]
        found = [c for c in found if here is None or c.arch == here.arch]
        if not found:
            print(f"error: no kernel for linking has {args.filter!r} in its name", file=sys.stderr)
            return 2
        if args.list:
            print(*found, sep="\n")
            return 0
        return _report(found, wrong_cases(found, args.implementation, args.threads), "launches")
    table = [k for k in runtime.kernel_table(args.implementation) if k.majors == "kn"]
    if here is not None:
        table = [k for k in table if k.arch == here.arch]
    kernels = linkable(table, args.filter)
    if not kernels:
        print(f"error: no kernel for linking has {args.filter!r} in its name", file=sys.stderr)
        return 2
    found = random_cases(kernels, args.random)
    if args.processes > 1:
        wrong = wrong_by_processes(found, args.implementation, args.threads, args.processes)
    else:
        wrong = wrong_cases(found, args.implementation, args.threads)
    return _report(found, wrong, "random epilogues")


def _report(found: Sequence[AnyCase], wrong: Sequence[AnyCase], what: str) -> int:
    """Prints what was wrong; the exit status."""
    for case in wrong:
        print("WRONG", case)
    print(f"{len(found)} {what}, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
