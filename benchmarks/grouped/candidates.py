"""What bench_grouped.py compares: this package, lax, Pallas kernels of jax, tokamax and torch.

Every builder takes a problem, a mode and operands, compiles, and returns a `timing.Candidate`; one
that cannot run raises `Unsupported` with the reason, which becomes the row's status. Gradients are
what `jax.grad` would run: the transpose of each implementation's own forward product.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import importlib.util
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from common import report
from common.timing import Candidate
from dense.candidates import Unsupported
from grouped.problems import Operands, Problem
from jax import lax

PEERS = ("xla", "pallas", "tokamax", "torch")
Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def transposed(product: Product, problem: Problem, mode: str) -> Product:
    """`mode` of a product that is bilinear in rows and matrices."""
    if mode == "forward":
        return product
    m, n, k, groups = problem.m, problem.n, problem.k, problem.groups

    def dx(dy: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        x = jax.ShapeDtypeStruct((m, k), dy.dtype)
        return jax.linear_transpose(lambda x: product(x, w, sizes), x)(dy)[0]

    def dw(x: jax.Array, dy: jax.Array, sizes: jax.Array) -> jax.Array:
        w = jax.ShapeDtypeStruct((groups, k, n), x.dtype)
        return jax.linear_transpose(lambda w: product(x, w, sizes), w)(dy)[0]

    return {"dx": dx, "dw": dw}[mode]


def differentiated(product: Product, problem: Problem, mode: str) -> Product:
    """`mode` of a product that only has a vjp; its unused forward half is dead code."""
    if mode == "forward":
        return product
    m, n, k, groups = problem.m, problem.n, problem.k, problem.groups

    def dx(dy: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        x = jnp.zeros((m, k), dy.dtype)
        return jax.vjp(lambda x: product(x, w, sizes), x)[1](dy)[0]

    def dw(x: jax.Array, dy: jax.Array, sizes: jax.Array) -> jax.Array:
        w = jnp.zeros((groups, k, n), x.dtype)
        return jax.vjp(lambda w: product(x, w, sizes), w)[1](dy)[0]

    return {"dx": dx, "dw": dw}[mode]


def compiled_candidate(name: str, function: Product, operands: Sequence[Operands]) -> Candidate:
    """A candidate that runs a JAX function, with what its compiled program says of memory."""
    lowered = jax.jit(function).lower(*operands[0])
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    info = {
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        **chosen(compiled.as_text()),
    }
    return Candidate(
        name, lambda i: compiled(*operands[i]), jax.block_until_ready, len(operands), info
    )


def chosen(text: str) -> dict[str, Any]:
    """The first kernel call in an HLO text: its kernel, order and swizzle. XLA's have none.

    A call leaves members out that have their default.
    """
    config = re.search(r'config = \{([^}]*kernel = "\w+"[^}]*)', text)
    if config is None:
        return {"kernel": None}
    members = dict(re.findall(r'(\w+) = "?(\w+)', config[1]))
    order, swizzle = members.get("order", "heuristic"), int(members.get("swizzle", 1))
    return {"kernel": members["kernel"], "order": order, "swizzle": swizzle}


def bwgemm(
    problem: Problem, mode: str, operands: Sequence[Operands], implementation: str | None
) -> Candidate:
    """This package by its default selection. A named implementation cannot fall back."""
    import jax_bwgemm

    product = functools.partial(jax_bwgemm.ragged_dot, implementation=implementation)
    try:
        return compiled_candidate("bwgemm", transposed(product, problem, mode), operands)
    except NotImplementedError as error:
        raise Unsupported(str(error)) from error


# The dimension numbers of each mode as one product, which may have a configuration.
NUMBERS = {
    "forward": lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,)),
    "dx": lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), (0,), (0,)),
    "dw": lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), (0,), ()),
}


def all_kernels(
    mode: str, operands: Sequence[Operands], swizzles: Sequence[int]
) -> dict[str, Callable[[], Candidate]]:
    """Builders for every kernel of this build that fits, under every order and swizzle."""
    import jax_bwgemm
    from jax_bwgemm import runtime

    target = runtime.local_target().target
    dtype = str(operands[0][0].dtype)
    kind, majors = {
        "forward": ("m-grouped", "n"),
        "dx": ("m-grouped", "k"),
        "dw": ("k-grouped", "n"),
    }[mode]
    wanted = (target.arch if target else None, kind, dtype, dtype, majors)
    made = {}
    for kernel in runtime.grouped_kernels():
        have = (kernel.arch, kernel.kind, kernel.in_dtype, kernel.out_dtype, kernel.b_major)
        if have != wanted:
            continue
        for order, swizzle in itertools.product(("horizontal", "vertical"), swizzles):
            config = jax_bwgemm.GroupedConfig(kernel=kernel.name, order=order, swizzle=swizzle)
            function = functools.partial(
                jax_bwgemm.ragged_dot_general,
                ragged_dot_dimension_numbers=NUMBERS[mode],
                implementation="cutlass",
                config=config,
            )
            made[f"{kernel.name} {order}{swizzle}"] = functools.partial(
                compiled_candidate,
                "",
                function,
                operands,
            )
    return made


def xla(problem: Problem, mode: str, operands: Sequence[Operands]) -> Candidate:
    """`jax.lax.ragged_dot` and its transposes."""
    return compiled_candidate("xla", transposed(lax.ragged_dot, problem, mode), operands)


def tokamax(problem: Problem, mode: str, operands: Sequence[Operands]) -> Candidate:
    """`tokamax.ragged_dot` with the implementation that it prefers, and its gradients."""
    if importlib.util.find_spec("tokamax") is None:
        raise Unsupported("tokamax is not installed")
    import tokamax as tk

    return compiled_candidate("tokamax", differentiated(tk.ragged_dot, problem, mode), operands)


def torch(problem: Problem, mode: str, operands: Sequence[Operands]) -> Candidate:
    """`torch._grouped_mm` on the same buffers.

    It takes the ends of the groups, which are computed once here and not timed.
    """
    del problem
    if importlib.util.find_spec("torch") is None:
        raise Unsupported("torch is not installed")
    import torch as th

    grouped = getattr(th, "_grouped_mm", None)
    if grouped is None:
        raise Unsupported(f"torch {th.__version__} has no _grouped_mm")
    platform = operands[0][0].devices().pop().platform
    if platform == "gpu" and not th.cuda.is_available():
        raise Unsupported("this torch has no CUDA")
    tensors = [tuple(th.from_dlpack(x) for x in each) for each in operands]
    ends = tensors[0][2].cumsum(0, dtype=th.int32)
    turned = {
        "forward": lambda a, b: (a, b),
        "dx": lambda a, b: (a, b.mT),
        "dw": lambda a, b: (a.mT, b),
    }[mode]
    pairs = [turned(a, b) for a, b, _ in tensors]
    wait = (lambda _: th.cuda.synchronize()) if platform == "gpu" else (lambda _: None)
    return Candidate("torch", lambda i: grouped(*pairs[i], offs=ends), wait, len(pairs))


def result(candidate: Candidate) -> jax.Array:
    """What a candidate computes from the first copy of the operands, as a JAX array."""
    got = candidate.call(0)
    candidate.wait(got)
    return got if isinstance(got, jax.Array) else jnp.from_dlpack(got)


def pallas_grid(mode: str, size: str) -> list[dict[str, int]]:
    """Configurations to choose the Pallas kernels' best from: "small" or "full".

    Raises:
      ValueError: unknown size.
    """
    names = ("block_m", "block_n", "block_k", "max_concurrent_steps", "grid_block_n")
    if size == "small" and mode == "dw":
        rows = [
            (128, 128, 64, 4, 4),
            (64, 128, 64, 6, 4),
            (128, 64, 64, 6, 4),
            (128, 128, 128, 2, 4),
        ]
    elif size == "small":
        rows = [
            (128, 128, 64, 5, 4),
            (128, 128, 64, 4, 8),
            (64, 128, 64, 6, 4),
            (64, 192, 64, 5, 2),
            (64, 64, 64, 6, 8),
        ]
    elif size == "full":
        blocks_k = (64, 128) if mode == "dw" else (64,)
        blocks_n = (64, 128) if mode == "dw" else (64, 128, 192)
        rows = list(itertools.product((64, 128), blocks_n, blocks_k, (2, 4, 5, 6), (1, 4, 16)))
    else:
        raise ValueError(f"unknown Pallas grid {size!r}; the grids are small and full")
    return [dict(zip(names, row, strict=True)) for row in rows]


def pallas_fits(problem: Problem, mode: str, config: dict[str, int]) -> bool:
    """Whether the kernel takes this problem: whole tiles of the dimensions that are not ragged."""
    m, n, k = problem.m, problem.n, problem.k
    if mode == "dw":
        return k % config["block_m"] == 0 and n % config["block_n"] == 0
    width, contracted = (n, k) if mode == "forward" else (k, n)
    return (
        config["block_m"] <= m
        and width % (config["block_n"] * config["grid_block_n"]) == 0
        and contracted % config["block_k"] == 0
    )


def pallas_function(mode: str, config: dict[str, int]) -> Product:
    """A mode by the SM90 kernels that ship in jax, under one configuration."""
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu, transposed_ragged_dot_mgpu

    def function(left: jax.Array, right: jax.Array, sizes: jax.Array) -> jax.Array:
        if mode == "dw":
            return transposed_ragged_dot_mgpu.transposed_ragged_dot(
                left, right, group_sizes=sizes, **config
            )
        return ragged_dot_mgpu.ragged_dot(
            left, right, group_sizes=sizes, transpose_rhs=mode == "dx", **config
        )

    return function


@dataclasses.dataclass
class PallasCompiler:
    """Compiles the Pallas grid of many problems in background threads, which needs no GPU time."""

    size: str
    threads: int

    def __post_init__(self) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(self.threads)
        self._jobs: dict[tuple[Problem, str], list[tuple[dict, concurrent.futures.Future]]] = {}

    def submit(self, problem: Problem, mode: str, dtype: Any) -> None:
        """Starts compiling every configuration that takes this problem."""
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in problem.shapes(mode)]
        shapes.append(jax.ShapeDtypeStruct((problem.groups,), jnp.int32))
        self._jobs[problem, mode] = [
            (
                config,
                self._pool.submit(
                    lambda config=config: (
                        jax.jit(pallas_function(mode, config)).lower(*shapes).compile()
                    )
                ),
            )
            for config in pallas_grid(mode, self.size)
            if pallas_fits(problem, mode, config)
        ]

    def candidates(
        self, problem: Problem, mode: str, operands: Sequence[Operands]
    ) -> list[Candidate]:
        """One candidate per configuration that compiled.

        Raises:
          Unsupported: none did, with the first reason.
        """
        jobs = self._jobs.pop((problem, mode), [])
        if not jobs:
            raise Unsupported("no configuration of the Pallas grid divides this problem")
        found, reasons = [], []
        for config, job in jobs:
            # The kernel refuses configurations that exceed shared memory or registers with
            # several exception types; whatever they are, they are reported, not hidden.
            if error := job.exception():
                reasons.append(f"{config}: {report.one_line(error)}")
                continue
            call = functools.partial(lambda f, i: f(*operands[i]), job.result())
            info = {
                "config": config,
                "temp_bytes": job.result().memory_analysis().temp_size_in_bytes,
            }
            found.append(Candidate("pallas", call, jax.block_until_ready, len(operands), info))
        if not found:
            raise Unsupported(reasons[0])
        for candidate in found:
            candidate.info["configs_failed"] = reasons
        return found

    def close(self) -> None:
        """Drops what has not started."""
        self._pool.shutdown(wait=True, cancel_futures=True)
