"""What linking epilogues costs: each link alone, and a model with many different fused products.

    python bench_links.py                   # the budgets are 2.5 s and 12 s

Links of a model run side by side, on all cores, from when it is traced. With a cache on disk there
are none. Without a GPU kernels are linked for the emulator, as PTX: a rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import options, report

ROWS, WIDTH = 8192, 3072


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", metavar="FILE", help="write JSON lines here (default: nowhere)")
    parser.add_argument("--products", type=options.positive, default=20, help="of the model")
    parser.add_argument("--budget-link", type=float, default=2.5, metavar="S", help="of each link")
    parser.add_argument("--budget-model", type=float, default=12.0, metavar="S", help="of a model")
    parser.add_argument("--small", action="store_true", help="rehearse: three links, two products")
    parser.add_argument("--dry-run", action="store_true", help="print what would run, run nothing")
    return parser.parse_args(argv)


def _derivative(z: jax.Array, kept: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    gradient = jax.vjp(jax.nn.gelu, kept.astype(jnp.float32) + bias)[1](z)[0]
    return gradient, jnp.sum(gradient, 0)


MATRIX, ROW = (ROWS, WIDTH), (WIDTH,)
# name -> the function, its operands' shapes, types of its results
EPILOGUES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], tuple[str, ...]]] = {
    "bias": (lambda z, b: z + b, [ROW], ("bfloat16",)),
    "bias, GELU, its argument": (
        lambda z, b: (jax.nn.gelu(z + b), z), [ROW], ("bfloat16", "bfloat16")),
    "bias, exact GELU, residual": (
        lambda z, b, r: jax.nn.gelu(z + b, approximate=False) + r, [ROW, MATRIX], ("bfloat16",)),
    "SiLU, gate": (lambda z, u: jax.nn.silu(z) * u, [MATRIX], ("bfloat16",)),
    "GELU's derivative, bias's gradient": (
        _derivative, [MATRIX, ROW], ("bfloat16", "float32")),
}  # fmt: skip


def link_seconds(kernel: Any, name: str, *, ptx: bool) -> float:
    """Time of linking one epilogue into one kernel."""
    from jax_bwgemm.epilogue import linking
    from jax_bwgemm.epilogue.hook import Hook, staging_of
    from jax_bwgemm.epilogue.tracing import trace_epilogue

    function, shapes, types = EPILOGUES[name]
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    program = trace_epilogue(function, MATRIX, operands).program
    hook = Hook(program, types, kernel.arch, kernel.swap_ab, staging_of(kernel, WIDTH))
    begin = time.perf_counter()
    linking.linked_kernel(kernel.name, hook, ptx=ptx)
    return time.perf_counter() - begin


def model(products: int, implementation: str) -> Callable[..., jax.Array]:
    """A chain of products, each with a function of its own."""
    import jax_bwgemm as bw

    def run(x: jax.Array, weights: jax.Array, bias: jax.Array) -> jax.Array:
        for i in range(products):

            def f(z: jax.Array, b: jax.Array, scale: float = 1 + i / 64) -> jax.Array:
                return jax.nn.gelu(z * scale + b)

            x = bw.matmul(
                x, weights[i % 2], epilogue=f, epilogue_operands=(bias[: weights.shape[2]],),
                implementation=implementation,
            )  # fmt: skip
        return x

    return run


def compile_seconds(args: argparse.Namespace, implementation: str) -> tuple[float, int]:
    """Time of lowering and compiling the model, and how many of its products are linked."""
    from jax_bwgemm.epilogue.linking import forget_linked_kernels

    forget_linked_kernels()
    jax.clear_caches()
    rows, width = (64, 256) if args.small else (ROWS, 1024)
    types = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((rows, width), (2, width, width), (width,))
    ]
    products = 2 if args.small else args.products
    begin = time.perf_counter()
    lowered = jax.jit(model(products, implementation)).lower(*types)
    lowered.compile()
    return time.perf_counter() - begin, lowered.as_text().count("epilogue_digest")


@contextlib.contextmanager
def cache(folder: str) -> Iterator[None]:
    """Links are kept in that folder ("off": nowhere)."""
    before = os.environ.get("BWGEMM_LINK_CACHE")
    os.environ["BWGEMM_LINK_CACHE"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["BWGEMM_LINK_CACHE"]
        else:
            os.environ["BWGEMM_LINK_CACHE"] = before


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    names = list(EPILOGUES)[:1] if args.small else list(EPILOGUES)
    if args.dry_run:
        print(f"links: {', '.join(names)}; then a model of {args.products} products")
        return 0
    import jax_bwgemm as bw
    from jax_bwgemm import config, runtime
    from jax_bwgemm.epilogue.linkable import linkable_kernels
    from jax_bwgemm.epilogue.linker import LinkError, linker

    gpu = jax.default_backend() == "gpu"
    implementation = "cutlass" if gpu else "emulator"
    table = [k for k in runtime.kernel_table(implementation) if k.name in linkable_kernels()]
    table = [k for k in table if k.contraction == "dense"]
    here = runtime.local_target().target or config.make_target("sm90")
    kernels = [k for k in table if k.majors == "kn" and k.a_dtype == "bfloat16" and not k.swap_ab]
    kernels = [k for k in kernels if k.arch == here.arch]
    try:
        linker()
    except LinkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not kernels:
        print("error: this build has no kernels that epilogues are linked into", file=sys.stderr)
        return 2
    out = report.Report(args.out, "bench_links")
    rows, target = [], contextlib.nullcontext() if gpu else bw.config.target("sm90", 4)
    with cache("off"):
        for kernel in kernels[: 3 if args.small else None]:
            for name in names:
                seconds = link_seconds(kernel, name, ptx=not gpu)
                rows.append(out.add("link", kernel=kernel.name, epilogue=name, seconds=seconds))
    print(report.table(rows, ("kernel", "epilogue", "seconds")))
    with target, tempfile.TemporaryDirectory() as folder, cache(folder):
        # Once without links ahead of it: what XLA loads and tunes at first is no link's.
        with bw.config.linked_epilogues(False):
            compile_seconds(args, implementation)
            plain, _ = compile_seconds(args, implementation)
        cold, linked = compile_seconds(args, implementation)
        warm, _ = compile_seconds(args, implementation)
    out.add("linked_model", linked=linked, plain=plain, cold=cold, warm=warm)
    out.close()
    most = max(row["seconds"] for row in rows)
    print(f"longest link {most:.2f} s on {os.cpu_count()} cores")
    print(
        f"a model with {linked} linked products: {plain:.2f} s to compile without links, "
        f"{cold - plain:.2f} s more with them, {warm - plain:.2f} s with a cache on disk"
    )
    return 1 if most > args.budget_link or cold - plain > args.budget_model else 0


if __name__ == "__main__":
    sys.exit(main())
