"""Shardings as mesh axes, also those that no `PartitionSpec` says."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm.product.shardings import _named, axes_of, mesh_with_axes

SPECS = [
    P(), P("x"), P(None, "y"), P("y", "x"), P(("x", "y")), P(("y", "x"), "z"), P(None, ("z", "x")),
    P("z", None, ("y", "x")), P(("x", "y", "z")), P("x", "y", "z"),
]  # fmt: skip


@pytest.fixture
def mesh(cpu_devices: list[jax.Device]) -> Mesh:
    return Mesh(np.array(cpu_devices[:8]).reshape(2, 2, 2), ("x", "y", "z"))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_partition_spec_is_decoded(mesh: Mesh, spec: P) -> None:
    named = NamedSharding(mesh, spec)
    (found,) = jax.jit(lambda x: (x,), out_shardings=(named,)).lower(
        jax.ShapeDtypeStruct((8, 8, 8), "float32")
    ).compile().output_shardings  # fmt: skip
    entries = (*spec, *[None] * (3 - len(spec)))
    want = [() if e is None else e if isinstance(e, tuple) else (e,) for e in entries]
    for sharding in (named, found, _as_xla_has_it(named)):
        assert axes_of(sharding, mesh, 3) == want


def _as_xla_has_it(named: NamedSharding) -> Any:
    class Coded:
        def _to_xla_hlo_sharding(self, rank: int) -> Any:
            return named._to_xla_hlo_sharding(rank)

    return Coded()


def test_no_sharding_has_no_axes(mesh: Mesh) -> None:
    assert axes_of(None, mesh, 2) == [(), ()]


@pytest.mark.parametrize("sizes", [{"a": 4}, {"a": 2, "b": 4}, {"a": 3, "b": 2, "c": 2}])
def test_tiles_of_whole_axes_and_of_parts(sizes: dict[str, int]) -> None:
    """Every division of two dimensions among axes; and of one axis among two dimensions."""
    devices = np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values()))
    for count in range(len(sizes) + 1):
        for order in itertools.permutations(sizes, count):
            for first in range(count + 1):
                axes = order[:first], order[first:]
                rest = [a for a in sizes if a not in order]
                tiles = devices.transpose([list(sizes).index(a) for a in (*order, *rest)])
                shape = [int(np.prod([sizes[a] for a in part], dtype=int)) for part in axes]
                tiles = tiles.reshape(*shape, -1)
                assert _named(tiles, sizes, 2) == list(axes)
    four = {"a": 4}
    assert _named(np.arange(4).reshape(2, 2), four, 2) is None
    assert _named(np.arange(4).reshape(2, 1, 2), four, 2) is None
    assert _named(np.array([0, 2, 1, 3]).reshape(4, 1), four, 2) is None


NUMBERS = (((2,), (2,)), ((1,), (1,)))


def _heads(x: jax.Array) -> jax.Array:
    return x.reshape(64, 2, 32)


def _attention(mm: Any) -> Callable[..., Any]:
    def scores(x: jax.Array, w: jax.Array) -> jax.Array:
        k = mm(x, w).reshape(64, 2, 32).swapaxes(0, 1)
        return mm(k, k.swapaxes(1, 2))

    return scores


CASES: dict[str, tuple[Any, Any]] = {
    "keys of two heads": (_attention(bw.matmul), _attention(jnp.matmul)),
    "dot_general": (
        lambda x, w: bw.dot_general(_heads(x), _heads(w), NUMBERS),
        lambda x, w: lax.dot_general(_heads(x), _heads(w), NUMBERS),
    ),
    "ragged_dot": (
        lambda x, w: bw.ragged_dot(x, w.reshape(2, 64, 32), jnp.array([40, 24])),
        lambda x, w: lax.ragged_dot(x, w.reshape(2, 64, 32), jnp.array([40, 24])),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("spec", [P(None, "a"), P("a", None)], ids=str)
def test_a_sharded_dimension_in_fewer_parts_than_devices(
    cpu_devices: list[jax.Device], name: str, spec: P
) -> None:
    """XLA then divides the mesh axis, as of keys whose heads are fewer than the devices."""
    ours, theirs = CASES[name]
    rng = np.random.default_rng(0)
    operands = [small_integers(rng, (64, 64), "float32") for _ in range(2)]
    want = theirs(*operands)
    for count in (4, 8):
        sharding = NamedSharding(Mesh(np.array(cpu_devices[:count]), ("a",)), spec)
        given = [jax.device_put(x, sharding) for x in operands]
        assert_exact(jax.jit(ours)(*given), np.asarray(want), f"{count} devices")


@pytest.mark.parametrize("scaling", ["mxfp8", "mxfp4", "nvfp4", "1x128", "row"])
@pytest.mark.parametrize("blocks", [2, 3, 6])
def test_blocks_that_do_not_fit_the_devices(
    cpu_devices: list[jax.Device], scaling: str, blocks: int
) -> None:
    """They are gathered, whatever XLA made of the reshape into blocks."""
    rng = np.random.default_rng(1)
    x = small_integers(rng, (64, blocks * 32), "bfloat16")
    sharding = NamedSharding(Mesh(np.array(cpu_devices[:4]), ("a",)), P(None, "a"))

    def product(x: jax.Array) -> jax.Array:
        a = bw.quantize(x, scaling)
        return bw.scaled_matmul(a, a, preferred_element_type="float32")

    got = jax.jit(product)(jax.device_put(x, sharding))
    np.testing.assert_allclose(got, product(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("recipe", ["mxfp8", "per_tensor"])
def test_data_parallel_gradients_of_few_blocks(cpu_devices: list[jax.Device], recipe: str) -> None:
    """Rows over devices are what the weights' gradient contracts, in blocks."""
    rng = np.random.default_rng(2)
    x, w = (small_integers(rng, s, "bfloat16") for s in ((64, 256), (256, 128)))
    dot = bw.fp8_dot_general(recipe)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (dot(x, w, (((1,), (0,)), ((), ()))).astype("float32") ** 2).sum()

    mesh = Mesh(np.array(cpu_devices[:4]), ("a",))
    placed = [jax.device_put(v, NamedSharding(mesh, s)) for v, s in ((w, P()), (x, P("a", None)))]
    got, want = jax.jit(jax.grad(loss))(*placed), jax.grad(loss)(jnp.asarray(w), jnp.asarray(x))
    got, want = (np.asarray(v, np.float32) for v in (got, want))
    assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)  # devices exchange bf16


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("devices", [2, 6])
def test_a_sharded_operand_beside_one_without_a_mesh(
    cpu_devices: list[jax.Device], transposed: bool, devices: int
) -> None:
    """JAX then names no mesh to the partitioner."""
    mesh = jax.make_mesh((devices,), ("a",), (AxisType.Explicit,), devices=cpu_devices[:devices])
    rng = np.random.default_rng(0)
    plain = small_integers(rng, (96, 96), "bfloat16")
    how = {"implementation": ("cutlass", "xla")}  # as for a GPU; XLA computes it here
    with bw.config.target("sm90"), jax.set_mesh(mesh):
        sharded = jax.device_put(plain, NamedSharding(mesh, P("a")))
        product = jax.jit(functools.partial(bw.matmul, **how))

        def total(x: jax.Array, y: jax.Array) -> jax.Array:
            return product(x, y).sum()

        pair = (plain, sharded) if transposed else (sharded, plain)
        assert_exact(product(*pair), jnp.matmul(plain, plain))
        for i, want in enumerate(jax.grad(lambda x, y: jnp.matmul(x, y).sum(), (0, 1))(*pair)):
            assert_exact(jax.jit(jax.grad(total, i))(*pair), want)
        values = jax.jit(lambda x: bw.quantize(x, "row").values)(sharded)
        assert_exact(values, bw.quantize(plain, "row", implementation="xla").values)


def test_a_mesh_of_prime_factors(cpu_devices: list[jax.Device]) -> None:
    empty = Mesh(np.empty((), object), ())
    named = NamedSharding(Mesh(np.array(cpu_devices[:6]).reshape(2, 3), ("x", "y")), P("y", "x"))
    found = mesh_with_axes(empty, [None, named])
    assert dict(found.shape) == {"devices0": 2, "devices1": 3}
    assert axes_of(_as_xla_has_it(named), found, 2) == [("devices1",), ("devices0",)]
    assert mesh_with_axes(empty, [None]) is empty
