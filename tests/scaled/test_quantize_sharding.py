"""Quantization on 8 CPU devices: the same bytes as on one, no block on two devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact
from sharded import collectives, mesh_of

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.scaled import quantize_partition
from jax_bwgemm.scaled.quantization import quantize_with_amax
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return mesh_of(cpu_devices)


@pytest.fixture(autouse=True)
def _with_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if kernels were installed: the primitive is bound, and runs the reference on a CPU."""
    monkeypatch.setattr(runtime, "has_target", lambda *_: True)
    jax.clear_caches()
    yield
    jax.clear_caches()


def run(mesh: Any, shape: tuple[int, ...], spec: Any, **options: Any) -> tuple[Any, dict[str, int]]:
    """Results against those of one device, their shardings, and the collectives."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    f = jax.jit(lambda x: bw.quantize(x, **options))
    placed = jax.device_put(x, NamedSharding(mesh, P(*spec)))
    compiled = f.lower(placed).compile()
    got = compiled(placed)
    with jax.default_device(jax.devices("cpu")[0]):
        want = jax.jit(lambda x: bw.quantize(x, implementation="xla", **options))(x)
    for ours, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_exact(np.asarray(ours), np.asarray(expected))
    return got, collectives(compiled)


@pytest.mark.parametrize("scaling", ["row", "1x128", "128x128"])
@pytest.mark.parametrize("spec", [("x",), (None, "y"), ("x", "y"), (None, ("y", "x"))])
def test_whole_blocks_stay_where_they_are(mesh: Any, scaling: str, spec: Any) -> None:
    q, found = run(mesh, (1024, 1024), spec, scaling=scaling)
    sums = scaling == "row" and any("y" in (axes or "") for axes in spec[1:])
    assert found == ({"all-reduce": 1} if sums else {})
    assert q.values.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), 2)


@pytest.mark.parametrize("scaling", ["1x128", "128x128"])
def test_transposed_copies_and_random_numbers(mesh: Any, scaling: str) -> None:
    """Devices round by the random numbers of their place in the whole."""
    key = jax.random.key(1)
    (q, t), found = run(
        mesh, (1024, 1024), ("x", "y"), scaling=scaling, transposed=True, key=key, power_of_two=True
    )
    assert found == {}
    assert t.values.sharding.is_equivalent_to(NamedSharding(mesh, P("y", "x")), 2)
    if scaling == "128x128":
        assert q.scales.sharding.is_equivalent_to(NamedSharding(mesh, P("x", "y")), 2)


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("shape", [(0, 1024), (1024, 0)])
def test_empty_matrices(mesh: Any, shape: tuple[int, int], scaling: str) -> None:
    run(mesh, shape, ("x", "y"), scaling=scaling, transposed=True)


def test_one_scale_is_one_all_reduce(mesh: Any) -> None:
    _, found = run(mesh, (64, 96), (("x", "y"),), scaling="tensor", transposed=True)
    assert found == {"all-reduce": 1}


@pytest.mark.parametrize(
    ("scaling", "shape", "spec"),
    [("1x128", (8, 512), (None, ("x", "y"))), ("128x128", (64, 128), ("x",))],
)
def test_a_block_is_not_divided(mesh: Any, scaling: str, shape: Any, spec: Any) -> None:
    _, found = run(mesh, shape, spec, scaling=scaling)
    assert found == {"all-gather": 1}


def test_a_sharded_batch(mesh: Any) -> None:
    _, found = run(mesh, (4, 40, 72), ("x",), scaling="1x128", transposed=True)
    assert found == {}


def test_inside_of_shard_map_blocks_are_a_devices(mesh: Any) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 256)), jnp.float32)
    f = jax.shard_map(
        lambda x: bw.quantize(x, "1x128").values,
        mesh=mesh,
        in_specs=P("x", "y"),
        out_specs=P("x", "y"),
    )
    assert_exact(jax.jit(f)(x), bw.quantize(x, "1x128", implementation="xla").values)


def test_granularity() -> None:
    def of(scaling: str, **more: Any) -> dict[str, int]:
        return quantize_partition.granularity(QuantizeSpec(scaling, "float8_e4m3fn", **more))

    assert of("1x128") == {"r": 1, "k": 128}
    assert of("1x128", transposed=True) == {"r": 128, "k": 128}
    assert of("128x128") == {"r": 128, "k": 128}
    assert of("row", transposed=True) == {"r": 1, "k": 1}
    assert of("tensor", stochastic=True) == {"r": 1, "k": 8}


def test_rules() -> None:
    def rule(scaling: str, shape: tuple[int, ...], devices: int = 2, **more: Any) -> Any:
        spec = QuantizeSpec(scaling, "float8_e4m3fn", **more)
        return quantize_partition.sharding_rule(spec, shape, devices)

    assert rule("1x128", (1, 5, 256)) == ("b r (q j) -> b r (q j), b q r", {"j": 128})
    assert rule("1x128", (1, 5, 256), 4) == ("b r k -> b r k, b q r", {})
    assert rule("1x128", (1, 5, 200)) == ("b r k -> b r k, b q r", {})
    assert rule("row", (1, 5, 200), transposed=True) == (
        "b r k, b r, b k -> b r k, b k r",
        {},
    )
    assert rule("128x128", (1, 128, 256), transposed=True) == (
        "b r (q j) -> b r (q j), b (q j) r, b p q, b q p",
        {"j": 128},
    )


@pytest.mark.parametrize("spec", [("x", "y"), ("x",), (None, "y")])
def test_the_largest_magnitude_is_that_of_all_devices(mesh: Any, spec: Any) -> None:
    x = jnp.ones((64, 256)).at[-1, -1].set(7.0)
    f = jax.jit(lambda x: quantize_with_amax(x, jnp.float32(1), dtype="float8_e4m3fn")[1])
    assert f(jax.device_put(x, NamedSharding(mesh, P(*spec)))) == 7
