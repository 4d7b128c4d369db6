"""Shardings that XLA gives to what it partitions, as mesh axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding

from jax_bwgemm import compat
from jax_bwgemm.product.contraction import Axes


def mesh_with_axes(mesh: Mesh, shardings: Iterable[Any]) -> Mesh:
    """The mesh itself, or one of the same devices where there is none.

    JAX names no mesh if the arguments of a program have different ones, as one that is sharded and
    one that lies on a single device. Axes are then the prime factors of the number of devices.

    Args:
        mesh: As JAX gives it to a partitioner.
        shardings: Of the arrays; None: it has none.
    """
    given = next((s for s in shardings if s is not None), None)
    if not mesh.empty or given is None:
        return mesh
    devices = np.array(compat.devices_of(given), object)
    sizes = _prime_factors(devices.size)
    return Mesh(devices.reshape(sizes), tuple(f"devices{i}" for i in range(len(sizes))))


def _prime_factors(x: int) -> list[int]:
    found, factor = [], 2
    while x > 1:
        while x % factor == 0:
            found.append(factor)
            x //= factor
        factor += 1
    return found


def axes_of(sharding: Any, mesh: Any, rank: int) -> list[Axes]:
    """Mesh axes of every dimension of an array.

    XLA may divide a mesh axis among several dimensions: of ``[2, 2, ...]`` over 4 devices, which is
    the reshape of a sharded dimension. No `PartitionSpec` says so. Such an array counts as not
    sharded, so that XLA gathers what is asked of it otherwise.

    Args:
        sharding: The array's; None: it has none.
        mesh: The mesh.
        rank: Dimensions of the array.
    """
    if isinstance(sharding, NamedSharding):
        entries = (*sharding.spec, *[None] * (rank - len(sharding.spec)))
        return [() if e is None else e if isinstance(e, tuple) else (e,) for e in entries]
    tiles = None if sharding is None else compat.device_tiles(sharding, rank)
    found = None if tiles is None else _named(tiles, mesh.shape, rank)
    return [()] * rank if found is None else found


def _named(tiles: np.ndarray, sizes: dict[str, int], rank: int) -> list[Axes] | None:
    """The axes along which each of the first `rank` dimensions of tiles runs; None: not whole ones.

    Args:
        tiles: The devices, as places in the mesh, of every tile; further dimensions are replicas.
        sizes: Those of the mesh.
        rank: Dimensions that are divided into tiles.
    """
    places = np.argsort(tiles.reshape(-1))  # of each device, in the order of the mesh
    shape = tuple(sizes.values())
    where = [w.reshape(shape) for w in np.unravel_index(places, tiles.shape)]
    found = []
    for dimension, tile in enumerate(where[:rank]):
        strides = {}
        for axis, name in enumerate(sizes):
            step = [0] * len(sizes)
            step[axis] = min(1, sizes[name] - 1)
            strides[name] = int(tile[tuple(step)])
        axes = tuple(sorted((a for a in strides if strides[a]), key=lambda a: -strides[a]))
        if tiles.shape[dimension] != np.prod([sizes[a] for a in axes], dtype=int):
            return None
        if not np.array_equal(tile, _counted(axes, sizes)):
            return None
        found.append(axes)
    return found


def _counted(axes: Sequence[str], sizes: dict[str, int]) -> np.ndarray:
    """Of each device of a mesh, its place along some axes, the last one running fastest."""
    coordinates = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))
    place = np.zeros(tuple(sizes.values()), int)
    for axis in axes:
        place = place * sizes[axis] + coordinates[axis]
    return place


def sharded_first(x: Any, dims: int) -> tuple[int, ...]:
    """An order of the leading dimensions in which those that x's type says are sharded come first.

    No reshape joins a whole dimension with a sharded one after it.

    Args:
        x: The array.
        dims: How many leading dimensions.
    """
    spec = compat.spec_of(x)[:dims]
    return tuple(sorted(range(dims), key=lambda d: spec[d] is None))
