"""Kernels with an epilogue linked into them, for run_emulator_faults.py: dense ones of both
architectures, split-K's second kernel, grouped ones, and those of gate and up. Operands are small
integers and every step is exact."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import grouped_linked_cases as grouped
import jax
import jax.numpy as jnp
import numpy as np
from linked_cases import kernels, unlinkable
from numerics import small_integers

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.contraction import SPLIT_DENSE
from jax_bwgemm.epilogue.grouped_hook import gated_symbol
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.grouped.api import ragged_dot_with_epilogue
from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands
from jax_bwgemm.product.kernels import Kernel

F32 = jnp.float32
SMS = 2  # few: every CTA gets several tiles

LinkedCase = tuple[str, Callable[[], None]]


def _integers(*shapes: tuple[tuple[int, ...], str]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(small_integers(rng, *shape)) for shape in shapes]


def _case(
    name: str, arch: str, call: Callable[..., Any], operands: Any, want: Callable[[], Any]
) -> LinkedCase:
    """``call`` is compiled when it first runs, with linking on."""

    @functools.cache
    def compiled() -> tuple[Any, Any]:
        with config.target(arch, SMS), config.linked_epilogues(True):
            lowered = jax.jit(call).lower(*operands)
        assert "epilogue_digest" in lowered.as_text(), f"{name}: nothing is linked"
        return lowered.compile(), jax.tree.leaves(want())

    def run() -> None:
        program, wanted = compiled()
        for ours, theirs in zip(jax.tree.leaves(program(*operands)), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs.astype(ours.dtype)))

    return f"linked {name}", run


def _after_product(z: Any, b: Any, r: Any, q: Any, s: Any) -> Any:
    wide = jnp.maximum(z + b.astype(F32), 0) * s + r.astype(F32) * q.astype(F32)
    return wide, (z * 2).astype(jnp.int32)


def _dense(
    kernel: Kernel, chosen: Any, k: int, call_name: str = "", *, tiles: tuple[int, int] = (2, 2)
) -> LinkedCase:
    tile_m, tile_n = (kernel.tile_m, kernel.tile_n)[:: -1 if kernel.swap_ab else 1]
    # The last tile has few rows, and columns in every box: it ends with a store.
    m, n = tiles[0] * tile_m + 9, (tiles[1] + 1) * tile_n - 8
    b_shape = (n, k) if kernel.b_major == "k" else (k, n)
    a, b, bias, residual, factor, scale = _integers(
        ((m, k), kernel.a_dtype),
        (b_shape, kernel.b_dtype),
        ((n,), "float32"),
        ((m, n), kernel.out_dtype),
        ((m, n), kernel.out_dtype),
        ((m, 1), "float32"),
    )
    given = bias, residual, factor, scale

    def call(a: Any, b: Any, *given: Any) -> Any:
        b = b.T if kernel.b_major == "k" else b
        more: dict[str, Any] = {"implementation": "emulator", "config": chosen}
        return bw.matmul(a, b, epilogue=_after_product, epilogue_operands=given, **more)

    def want() -> Any:
        right = b.T if kernel.b_major == "k" else b
        return _after_product(a.astype(F32) @ right.astype(F32), *given)

    return _case(call_name or kernel.name, kernel.arch, call, (a, b, *given), want)


def _of_each_schedule(found: list[Kernel]) -> list[Kernel]:
    """The smallest tile of each schedule and architecture, straight and swapped."""
    found = sorted(found, key=lambda k: -k.tile_m * k.tile_n)
    return list({(k.arch, k.schedule, k.swap_ab): k for k in found}.values())


def _grouped(kernel: Kernel, form: str) -> LinkedCase:
    """``form``: what its function computes: "plain", "gated" of two products, "halves" and sums."""
    rows = kernel.tile_n if kernel.swap_ab else kernel.tile_m
    m, k = 4 * rows + 24, 136
    n = 272 if form == "gated" else 200
    columns = n // 2 if form == "gated" else n
    # Three tiles without a tail: two of them meet in one ring of stages.
    sizes = jnp.asarray([3 * rows - 16, 0, 5, rows - 9, 1, 2], jnp.int32)
    a, b, w, r = _integers(
        ((m, k), kernel.a_dtype),
        ((grouped.EXPERTS, k, n), kernel.b_dtype),
        ((m, 1), "float32"),
        ((m, columns), kernel.out_dtype),
    )

    def plain(z: Any, w: Any, r: Any) -> Any:
        return jnp.maximum(z, 0) * w + r.astype(F32), z - r.astype(F32)

    def gated(gate: Any, up: Any, w: Any, r: Any) -> Any:
        return jnp.maximum(gate, 0) * w + up + r.astype(F32), gate, up - gate

    def halves(z: Any, w: Any, r: Any) -> Any:
        first = z * w + r.astype(F32)
        return first, z - r.astype(F32), z * r.astype(F32)

    def whole(z: Any, *given: Any) -> Any:
        *parts, terms = halves(z.astype(F32), *given)
        return [jnp.concatenate(parts, -1).astype(z.dtype), jnp.sum(terms, -1)]

    def after(given: Any) -> After:
        operands = EpilogueOperands(tuple(given))
        if form == "halves":
            return After(Epilogue(halves, "faults"), operands, False, True, True, True, whole)
        function = gated if form == "gated" else plain
        return After(
            Epilogue(function, "faults"), operands, gated=form == "gated", only_linked=True
        )

    def call(a: Any, b: Any, sizes: Any, *given: Any) -> Any:
        more: dict[str, Any] = {"implementation": "emulator", "config": kernel.name}
        return ragged_dot_with_epilogue(a, b, sizes, None, after(given), **more)

    def want() -> Any:
        z = grouped.reference(lambda z: z, (a, b, sizes))
        if form == "gated":
            return gated(z[:, :columns], z[:, columns:], w, r)
        return whole(z, w, r) if form == "halves" else plain(z, w, r)

    return _case(f"{kernel.name} {form}", kernel.arch, call, (a, b, sizes, w, r), want)


def cases() -> Iterator[LinkedCase]:
    """None where nothing can be linked."""
    why = unlinkable()
    if why is not None:
        print(f"no kernels with linked epilogues: {why}")
        return
    dense = [k for k in kernels("emulator", ("sm90", "sm100")) if k.a_dtype == "bfloat16"]
    for kernel in _of_each_schedule([k for k in dense if k.b_major == "n"]):
        if not kernel.cluster_k:
            yield _dense(kernel, kernel.name, (2 * kernel.stages + 1) * kernel.tile_k + 8)
    split = [k for k in SPLIT_DENSE.kernels("emulator") if k.majors == "kn" and k.arch == "sm90"]
    split = [k for k in split if k.a_dtype == k.b_dtype == k.out_dtype and not k.cluster_k]
    for kernel in _of_each_schedule(split)[:1]:
        chosen = dataclasses.replace(bw.TuningConfig.of(kernel.name), splits=3)
        yield _dense(kernel, chosen, kernel.tile_k * 3, f"{kernel.name} split in 3", tiles=(0, 1))
    for arch in ("sm90", "sm100"):
        of_groups = [k for k in grouped.kernels("emulator", arch) if k.a_dtype == "bfloat16"]
        some = _of_each_schedule([k for k in of_groups if k.b_major == "n"])
        for kernel in some:
            yield _grouped(kernel, "plain")
        if arch == "sm90":
            for kernel in some[:1]:
                yield _grouped(kernel, "halves")
            pairs = [k for k in of_groups if gated_symbol(k.name) in linkable_kernels()]
            for kernel in pairs[:1]:
                yield _grouped(kernel, "gated")
