"""What linking epilogues costs: each link alone, and a model with many different fused products.

    python bench_links.py                   # the budgets are 2.5 s and 12 s

Links of a model run side by side, on all cores, from when it is traced. With a cache on disk there
are none. Without a GPU kernels are linked for the emulator, as PTX: a rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
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
    parser.add_argument("--out", metavar="FILE", help="write JSON lines to FILE")
    parser.add_argument("--products", type=options.positive, default=20, help="of the model")
    parser.add_argument("--budget-link", type=float, default=2.5, metavar="S", help="of each link")
    parser.add_argument("--budget-model", type=float, default=12.0, metavar="S", help="of a model")
    parser.add_argument("--small", action="store_true", help="rehearse: two links, two products")
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


def _both(gate: jax.Array, up: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    return jax.nn.silu(gate) * up * w, gate, up


def _terms(bar: jax.Array, *given: jax.Array) -> tuple[jax.Array, ...]:
    gate, up, w = (x.astype(jnp.float32) for x in given)
    hidden, pull = jax.vjp(lambda g, u: jax.nn.silu(g) * u, gate, up)
    return (*pull(bar * w), bar * hidden)


WEIGHTS, EXPERTS = (ROWS, 1), 8
# name -> form, the function, its operands' shapes, of groups the last ones' how many
GROUPED: dict[str, tuple[str, Callable[..., Any], list[tuple[int, ...]], int]] = {
    "experts' biases, SiLU": ("", lambda z, b: jax.nn.silu(z + b), [(EXPERTS, WIDTH)], 1),
    "rows' weights": ("", lambda z, w: z * w, [WEIGHTS], 0),
    "SiLU, gate, both products": ("gated", _both, [WEIGHTS], 0),
    "gradients of both, of rows' weights": ("halves", _terms, [MATRIX, MATRIX, WEIGHTS], 0),
}  # fmt: skip


def dense_link(kernel: Any, name: str) -> tuple[str, Any]:
    """Entry of a kernel and the function to link into it."""
    from jax_bwgemm.epilogue.hook import Hook, pairs_along_m, staging_of
    from jax_bwgemm.epilogue.tracing import trace_epilogue

    function, shapes, types = EPILOGUES[name]
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    program = trace_epilogue(function, MATRIX, operands).program
    staging = staging_of(kernel, WIDTH)
    return kernel.name, Hook(program, types, kernel.arch, pairs_along_m(kernel), staging)


def grouped_link(kernel: Any, name: str) -> tuple[str, Any]:
    """As `dense_link`, of a kernel of groups."""
    from jax_bwgemm.epilogue.grouped_hook import GatedGroupedHook, GroupedHook, grouped_hook
    from jax_bwgemm.epilogue.tracing import trace_epilogue
    from jax_bwgemm.grouped.with_epilogue import with_groups

    form, function, shapes, count = GROUPED[name]
    groups = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes[len(shapes) - count :]]
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    operands[len(shapes) - count :] = [jax.ShapeDtypeStruct(MATRIX, x.dtype) for x in groups]
    second = [jax.ShapeDtypeStruct(MATRIX, jnp.float32)] if form == "gated" else []
    program = trace_epilogue(function, MATRIX, [*second, *operands]).program
    program = with_groups(program, groups)
    types = [kernel.out_dtype] * len(program.results)
    if form == "halves":
        program = dataclasses.replace(program, summed=(len(types) - 1,))
        types[-1] = "float32"
    if form == "gated":
        hook: GroupedHook = GatedGroupedHook(program, tuple(types))
    else:
        hook = grouped_hook(program, tuple(types), kernel.arch, halves=form == "halves")
    return hook.symbol(kernel.name), hook


def links(kernel: Any) -> list[tuple[str, str, Any]]:
    """Epilogues of a kernel: name, entry, function."""
    from jax_bwgemm.epilogue.linkable import linkable_kernels

    if kernel.contraction == "dense":
        # Only kernels without swapped operands sum rows.
        names = [n for n, x in EPILOGUES.items() if not kernel.swap_ab or x[2][-1] != "float32"]
        return [(name, *dense_link(kernel, name)) for name in names]
    forms = ("", "gated", "halves") if kernel.arch == "sm90" else ("",)
    names = [name for name in GROUPED if GROUPED[name][0] in forms]
    found = [(name, *grouped_link(kernel, name)) for name in names]
    return [one for one in found if one[1] in linkable_kernels()]


def link_seconds(entry: str, hook: Any, *, ptx: bool) -> float:
    """Time of linking one epilogue into one kernel."""
    from jax_bwgemm.epilogue import linking

    begin = time.perf_counter()
    linking.linked_kernel(entry, hook, ptx=ptx)
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
    if args.dry_run:
        print(
            f"links: {', '.join((*EPILOGUES, *GROUPED))}; then a model of {args.products} products"
        )
        return 0
    import jax_bwgemm as bw
    from jax_bwgemm import config, runtime
    from jax_bwgemm.epilogue.linkable import linkable_kernels
    from jax_bwgemm.epilogue.linker import LinkError, linker

    gpu = jax.default_backend() == "gpu"
    implementation = "cutlass" if gpu else "emulator"
    here = runtime.local_target().target or config.make_target("sm90")
    table = runtime.kernel_table(implementation)
    table = [k for k in table if k.name in linkable_kernels() and k.arch == here.arch]
    kernels = [k for k in table if k.majors == "kn" and k.a_dtype == "bfloat16"]
    kernels = [k for k in kernels if k.contraction in ("dense", "m_grouped")]
    # Of dense kernels with swapped operands those of clusters alone: the others are alike.
    grouped = [k for k in kernels if k.contraction == "m_grouped"]
    kernels = [k for k in kernels if k not in grouped and (k.cluster_k or not k.swap_ab)]
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
        most = 1 if args.small else None
        for kernel in (*kernels[:most], *grouped[:most]):
            for name, entry, hook in links(kernel)[:most]:
                seconds = link_seconds(entry, hook, ptx=not gpu)
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
