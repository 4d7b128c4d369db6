"""What the benchmarks compare: this package, XLA's own product, torch and JAX's Pallas kernel.

Every builder takes the operands, compiles, and returns a `timing.Candidate`; a peer that cannot
run a problem raises `Unsupported` with the reason, which becomes the row's status.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import report
from common.timing import Candidate
from dense.shapes import Shape
from jax import lax

Operands = list[tuple[jax.Array, jax.Array]]

# torch is left with its defaults: bf16 split-K partial sums may be reduced in bf16 there, which no
# other column does.
PEERS = ("xla", "xla-cublas", "torch", "pallas")


class Unsupported(Exception):
    """This peer does not do this problem; the text says why."""


def make_operands(shape: Shape, dtype: Any, copies: int, seed: int = 0) -> Operands:
    """`copies` independent pairs of standard normal operands, scaled so that results are O(1)."""

    @jax.jit
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        lhs_key, rhs_key = jax.random.split(key)
        lhs = jax.random.normal(lhs_key, shape.lhs_shape, jnp.float32)
        rhs = jax.random.normal(rhs_key, shape.rhs_shape, jnp.float32) * shape.k**-0.5
        return lhs.astype(dtype), rhs.astype(dtype)

    keys = jax.random.split(jax.random.key(seed), copies)
    return jax.block_until_ready([draw(key) for key in keys])


def from_function(
    name: str,
    function: Callable[..., jax.Array],
    operands: Operands,
    *,
    compiler_options: dict[str, Any] | None = None,
    **info: Any,
) -> Candidate:
    """A candidate that runs a JAX function of one operand pair, compiled here."""
    compiled = jax.jit(function).lower(*operands[0]).compile(compiler_options)
    return Candidate(
        name, lambda i: compiled(*operands[i]), jax.block_until_ready, len(operands), info
    )


def bwgemm(
    shape: Shape, operands: Operands, out_dtype: Any, implementation: str | None, config: Any = None
) -> Candidate:
    """This package. An explicit `implementation` cannot fall back to another one."""
    import jax_bwgemm

    product = functools.partial(
        jax_bwgemm.dot_general,
        dimension_numbers=shape.dimension_numbers,
        preferred_element_type=out_dtype,
        implementation=implementation,
        config=config,
    )
    try:
        chosen = jax_bwgemm.explain(
            *operands[0],
            shape.dimension_numbers,
            preferred_element_type=out_dtype,
            implementation=implementation,
            config=config,
        )
        return from_function(
            "bwgemm",
            product,
            operands,
            implementation=chosen.implementation,
            kernel=chosen.kernel,
            raster_order=chosen.raster_order,
            swizzle=chosen.swizzle,
            splits=chosen.splits,
            decomposition=chosen.decomposition,
            reason=chosen.reason,
        )
    except NotImplementedError as error:
        raise Unsupported(str(error)) from error


def all_kernels(
    shape: Shape, operands: Operands, out_dtype: Any, swizzles: Sequence[int]
) -> dict[str, Callable[[], Candidate]]:
    """Builders for every kernel of this build that could run the problem here, by label.

    Each kernel appears once per raster order and swizzle, and stream-K kernels once per way of
    dividing the work: those are run-time attributes. Cluster-K kernels have one order.
    """
    import jax_bwgemm
    from jax_bwgemm import runtime
    from jax_bwgemm.product.dtypes import operand_types

    target = runtime.local_target().target
    arch = target.arch if target else None
    types = operand_types(*(str(x.dtype) for x in operands[0]))
    wanted = (arch, types, str(jnp.dtype(out_dtype)), *shape.majors)
    made = {}
    for kernel in runtime.kernels():
        have = (kernel.arch, kernel.in_dtype, kernel.out_dtype, kernel.a_major, kernel.b_major)
        if have != wanted:
            continue
        ways = ("heuristic", "stream_k") if kernel.stream_k else (None,)
        orders = [(None, 1)] if kernel.cluster_k else itertools.product(("m", "n"), swizzles)
        for (raster, swizzle), way in itertools.product(orders, ways):
            config = jax_bwgemm.TuningConfig(
                kernel=kernel.name,
                raster_order=raster,
                swizzle=swizzle,
                decomposition=way,
            )
            order = f" {raster}{swizzle}" if raster else ""
            label = f"{kernel.name}{order}" + (f" {way}" if way else "")
            made[label] = functools.partial(bwgemm, shape, operands, out_dtype, "cutlass", config)
    return made


def xla(shape: Shape, operands: Operands, out_dtype: Any, *, cublas: bool = False) -> Candidate:
    """`lax.dot_general`, which is what `jnp.dot` lowers to: XLA autotunes cuBLAS and Triton.

    Args:
      cublas: forbid Triton, so that cuBLAS runs.
    """
    product = functools.partial(
        lax.dot_general,
        dimension_numbers=shape.dimension_numbers,
        preferred_element_type=out_dtype,
    )
    options = {"xla_gpu_enable_triton_gemm": False} if cublas else None
    name = "xla-cublas" if cublas else "xla"
    return from_function(name, product, operands, compiler_options=options)


def torch(shape: Shape, operands: Operands, out_dtype: Any) -> Candidate:
    """`torch.matmul` on the same buffers, into a result that is allocated once."""
    try:
        import torch as th
    except ModuleNotFoundError:
        raise Unsupported("torch is not installed") from None
    platform = operands[0][0].devices().pop().platform
    if platform == "gpu" and not th.cuda.is_available():
        raise Unsupported("this torch has no CUDA")
    if jnp.dtype(out_dtype) != operands[0][0].dtype:
        raise Unsupported(f"torch.matmul of {operands[0][0].dtype} cannot return {out_dtype}")
    tensors = [tuple(th.from_dlpack(x) for x in pair) for pair in operands]
    pairs = [
        (a if shape.majors[0] == "k" else a.mT, b if shape.majors[1] == "n" else b.mT)
        for a, b in tensors
    ]
    out = th.matmul(*pairs[0])
    wait = (lambda _: th.cuda.synchronize()) if platform == "gpu" else (lambda _: None)
    return Candidate(
        "torch", lambda i: th.matmul(*pairs[i], out=out), wait, len(pairs), {"out": out}
    )


def pallas_grid(size: str) -> list[dict[str, Any]]:
    """Configurations of the Hopper Pallas kernel to choose from: "small" (6) or "full" (12).

    Keys are fields of `hopper_matmul_mgpu.TuningConfig`, dimensions by name. Tiles there are per
    warpgroup; two of them make up the CTA tile, side by side along `wg_dimension`.
    """
    base = {"tile_k": 64, "max_concurrent_steps": 4, "grid_tile_width": 8, "epi_tile_n": 64}

    def config(tile_m: int, tile_n: int, wg: str, minor: str, **more: Any) -> dict[str, Any]:
        return {
            **base,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "wg_dimension": wg,
            "grid_minor_dim": minor,
            **more,
        }

    small = [
        config(128, 128, "N", "M"),  # CTA 128x256
        config(128, 128, "M", "N"),  # CTA 256x128
        config(64, 128, "M", "N", max_concurrent_steps=6),  # CTA 128x128
        config(64, 64, "N", "M", max_concurrent_steps=6),  # CTA 64x128
        config(64, 64, "M", "N", max_concurrent_steps=6),  # CTA 128x64
        config(64, 128, "N", "M", max_concurrent_steps=4),  # CTA 64x256
    ]
    more = [
        config(128, 128, "N", "N"),
        config(128, 128, "M", "M"),
        config(128, 128, "N", "M", grid_tile_width=16),
        config(128, 128, "M", "N", cluster_dimension="N"),
        config(128, 128, "N", "M", cluster_dimension="M"),
        config(64, 128, "M", "M", max_concurrent_steps=6, grid_tile_width=4),
    ]
    sizes = {"small": small, "full": small + more}
    if size not in sizes:
        raise ValueError(f"unknown Pallas grid {size!r}; the grids are small and full")
    return sizes[size]


def pallas_fits(shape: Shape, config: dict[str, Any]) -> bool:
    """Whether the kernel accepts this problem: it needs whole tiles, a plain product, no batch."""
    tile = {"M": config["tile_m"], "N": config["tile_n"]}
    for dimension in (config["wg_dimension"], config.get("cluster_dimension")):
        if dimension:
            tile[dimension] *= 2
    return (
        shape.majors == "kn"
        and shape.batch == 1
        and shape.m % tile["M"] == 0
        and shape.n % tile["N"] == 0
        and shape.k % config["tile_k"] == 0
    )


def pallas_function(config: dict[str, Any]) -> Callable[..., jax.Array]:
    """The Pallas kernel that ships in jax, under one configuration."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper

    named = {"wg_dimension", "grid_minor_dim", "cluster_dimension"}
    fields = {k: hopper.MatmulDimension[v] if k in named else v for k, v in config.items()}
    tuning = hopper.TuningConfig(**fields)
    return lambda a, b: hopper.matmul(a, b, None, tuning)


@dataclasses.dataclass
class PallasCompiler:
    """Compiles the Pallas grid of many shapes in background threads.

    Compiling is most of this peer's cost and needs no GPU, so it overlaps with everything else.
    """

    grid: Sequence[dict[str, Any]]
    threads: int

    def __post_init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(self.threads)
        self._jobs: dict[str, list[tuple[dict, concurrent.futures.Future]]] = {}

    def submit(self, shape: Shape, dtype: Any) -> None:
        """Starts compiling every configuration that accepts `shape`."""
        args = [jax.ShapeDtypeStruct(s, dtype) for s in (shape.lhs_shape, shape.rhs_shape)]

        def compile_one(config: dict[str, Any]) -> Any:
            return jax.jit(pallas_function(config)).lower(*args).compile()

        self._jobs[shape.name] = [
            (config, self._pool.submit(compile_one, config))
            for config in self.grid
            if pallas_fits(shape, config)
        ]

    def candidates(self, shape: Shape, operands: Operands, out_dtype: Any) -> list[Candidate]:
        """One candidate per configuration that compiled.

        Raises:
          Unsupported: none did, with the first reason.
        """
        if jnp.dtype(out_dtype) != operands[0][0].dtype:
            raise Unsupported("the Pallas kernel returns its input type")
        jobs = self._jobs.get(shape.name, [])
        if not jobs:
            raise Unsupported("no configuration of the Pallas grid divides this problem")
        found, reasons = [], []
        for config, job in jobs:
            # The kernel refuses configurations that exceed shared memory or registers with
            # several exception types; whatever they are, they are reported, not hidden.
            if error := job.exception():
                reasons.append(report.one_line(error))
                continue
            compiled = job.result()
            call = functools.partial(lambda f, i: f(*operands[i]), compiled)
            found.append(
                Candidate("pallas", call, jax.block_until_ready, len(operands), {"config": config})
            )
        if not found:
            raise Unsupported(reasons[0])
        return found

    def forget(self, shape: Shape) -> None:
        """Frees the executables of a shape."""
        self._jobs.pop(shape.name, None)

    def close(self) -> None:
        """Drops what has not started."""
        self._pool.shutdown(wait=True, cancel_futures=True)
