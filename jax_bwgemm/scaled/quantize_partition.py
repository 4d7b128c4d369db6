"""Sharding of quantization: no block of a scale straddles devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from jax_bwgemm import compat
from jax_bwgemm.product import shardings
from jax_bwgemm.product.contraction import Axes
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec
from jax_bwgemm.scaled.random_bits import GROUP, moved

Partition = Callable[..., tuple[jax.Array, ...]]


def granularity(spec: QuantizeSpec) -> dict[str, int]:
    """What a device's rows and columns must be a multiple of, where they are sharded."""
    block = 1 if spec.given_scales else spec.layout.block_k or 1
    rows = block if spec.transposed or spec.layout.block_rows != 1 else 1
    return {"r": rows, "k": math.lcm(block, GROUP) if spec.stochastic else block}


def axes_of(
    spec: QuantizeSpec,
    x_shape: Sequence[int],
    mesh_shape: Mapping[str, int],
    wanted: Sequence[Axes],
) -> dict[str, Axes]:
    """Mesh axes of the dimensions b, r, k: those wanted for x, where all blocks stay whole.

    A dimension that cannot be divided so is gathered.
    """
    least = {"b": 1, **granularity(spec)}
    found = {}
    for dim, size, axes in zip("brk", x_shape, wanted, strict=True):
        parts = math.prod(mesh_shape[axis] for axis in axes)
        found[dim] = axes if size % (parts * least[dim]) == 0 else ()
    return found


def sharding_rule(
    spec: QuantizeSpec, x_shape: Sequence[int], devices: int
) -> tuple[str, dict[str, Any]]:
    """The Shardy rule, for example ``'b r (q j) -> b r (q j), b q r'``, where j is in a block.

    Where blocks cannot be divided over all devices, those of scales are a factor of their own: else
    Shardy would divide a mesh axis, of which JAX knows nothing.
    """
    _, rows, k = x_shape
    block = spec.layout.block_k or 1
    written = {"b": "b", "r": "r", "k": "k", "w": "w", "R": "p", "K": "q"}
    sizes: dict[str, Any] = {}
    if not spec.given_scales:
        for dim, size, inner in (("r", rows, "i"), ("k", k, "j")):
            if dim.upper() in _all_dimensions(spec) and size % (block * max(devices, 2)) == 0:
                written[dim] = f"({written[dim.upper()]} {inner})"
                sizes[inner] = block

    def side(names: Sequence[str]) -> str:
        return ", ".join(" ".join(written[d] for d in spec.dimensions(name)) for name in names)

    rule = f"{side(spec.operand_names)} -> {side(spec.result_names)}"
    return rule, sizes


def _all_dimensions(spec: QuantizeSpec) -> set[str]:
    names = (*spec.operand_names, *spec.result_names)
    return {d for name in names for d in spec.dimensions(name)}


@functools.cache
def partitioned(local: Partition) -> Callable[[QuantizeSpec], Partition]:
    """From a specification to a function of its operands, and it, that the compiler partitions.

    Args:
        local: Computes one device's part; its last argument is the specification.
    """

    def rule(spec: QuantizeSpec, mesh: Any, operands: Sequence[Any], results: Any) -> Any:
        del results
        return sharding_rule(spec, operands[0].shape, mesh.size)

    def partition(
        spec: QuantizeSpec, mesh: Any, operands: tuple[jax.ShapeDtypeStruct, ...], results: Any
    ) -> Any:
        x = operands[0]
        given = (x.sharding for x in (*operands, *results))
        mesh = shardings.mesh_with_axes(mesh, given)
        wanted = shardings.axes_of(x.sharding, mesh, 3)
        if not any(wanted):  # as the values are wanted: nothing to communicate
            wanted = shardings.axes_of(results[0].sharding, mesh, 3)
        axes = axes_of(spec, x.shape, dict(mesh.shape), wanted)

        def on_device(*blocks: jax.Array) -> tuple[jax.Array, ...]:
            with compat.of_no_mesh():
                return of_blocks(blocks)

        def of_blocks(blocks: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            given = dict(zip(spec.operand_names, blocks, strict=True))
            if spec.stochastic:
                _, rows, columns = given["x"].shape
                first = [
                    lax.axis_index(axes[d]) * size if axes[d] else 0
                    for d, size in (("r", rows), ("k", columns))
                ]
                given["random"] = moved(given["random"], *first)
            found = list(local(*given.values(), spec))
            if spec.amax and (over := (*axes["r"], *axes["k"])):
                found[-1] = lax.pmax(found[-1], over)
            return tuple(found)

        def named(name: str) -> NamedSharding:
            entries = (axes.get(d.lower()) or None for d in spec.dimensions(name))
            return NamedSharding(mesh, PartitionSpec(*entries))

        return (
            mesh,
            on_device,
            tuple(map(named, spec.result_names)),
            tuple(map(named, spec.operand_names)),
        )

    @functools.cache
    def of(spec: QuantizeSpec) -> Partition:
        function = custom_partitioning(lambda *operands: local(*operands, spec))
        function.def_partition(
            partition=functools.partial(partition, spec),
            sharding_rule=functools.partial(rule, spec),
            decode_shardings=False,  # JAX cannot decode all of them: see `shardings.axes_of`
        )
        return function

    return of
