"""`mlp` with a number of blocks for `recompute`: values, memory, sharding, errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numerics import assert_same_layers, normal

import jax_bwgemm as bw
from jax_bwgemm.epilogue.hidden_blocks import MOST_OF_PIECE, HiddenBlocks

M, K, N, H, BLOCKS = 256, 16, 24, 2048, 4
Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    rng = np.random.default_rng(1)
    shapes = {"x": (M, K), "gate": (K, H), "up": (K, H), "down": (H, N)}
    shapes |= {"gate_bias": (H,), "up_bias": (H,), "down_bias": (N,)}
    found = {name: jnp.asarray(normal(rng, shape, "float32")) for name, shape in shapes.items()}
    return found | {"down": found["down"] * H**-0.5, "up": found["up"] * K**-0.5}


def layers(a: Arrays, recompute: bool | int = BLOCKS) -> jax.Array:
    if "gate" not in a:
        return bw.mlp(a["x"], a["up"], a["down"], recompute=recompute)
    ups, biases = (a["gate"], a["up"]), (a["gate_bias"], a["up_bias"])
    more = {"up_bias": biases, "down_bias": a["down_bias"], "activation": "silu"}
    return bw.mlp(a["x"], ups, a["down"], recompute=recompute, **more)


def formula(a: Arrays) -> jax.Array:
    gate = jax.nn.silu(a["x"] @ a["gate"] + a["gate_bias"])
    return (gate * (a["x"] @ a["up"] + a["up_bias"])) @ a["down"] + a["down_bias"]


def gradient(f: Any) -> Any:
    return jax.jit(jax.grad(lambda a: jnp.sum(f(a) ** 2)))


@pytest.mark.parametrize(
    ("hidden", "count", "devices", "piece"),
    [
        (2048, 4, 1, 128),
        (11008, 4, 1, 64),
        (14, 2, 1, 1),
        (6, 6, 1, 1),
        (5, 1, 1, 1),
        (16, 4, 8, 1),
        (48, 4, 8, 1),
    ],
)
def test_blocks_are_a_partition(
    monkeypatch: Any, hidden: int, count: int, devices: int, piece: int
) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    blocks, x = HiddenBlocks.of(hidden, count), jnp.arange(2 * hidden).reshape(2, hidden, 1)
    assert blocks.piece == piece
    whole = None
    for i in range(blocks.count):
        block = blocks.block(x, 1, i)
        assert block.shape == (2, hidden // count, 1)
        whole = blocks.written(whole, block, 1, i)
    np.testing.assert_array_equal(whole, x)


@pytest.mark.parametrize(("dtype", "wide"), [("bfloat16", "float32"), ("float64", "float64")])
def test_parts_of_blocks_are_added_in_float32_at_least(dtype: str, wide: str) -> None:
    blocks, total = HiddenBlocks.of(8, 4), None
    least = 1 if wide == "float32" else 2.0**-40
    with jax.enable_x64(True):
        for part in (256, least, least, least):
            total = blocks.added(total, jnp.asarray(part, dtype))
    assert (total.dtype, float(total)) == (wide, 256 + 3 * least)


@pytest.mark.parametrize(("hidden", "piece"), [(2048, 64), (11008, 8), (96, 1)])
def test_devices_have_equal_parts_of_each_block(hidden: int, piece: int) -> None:
    blocks = HiddenBlocks.of(hidden, 4)
    assert blocks.piece == piece
    owner = np.arange(hidden) // (hidden // 8)
    for i in range(4):
        found = blocks.block(jnp.asarray(owner), 0, i)
        np.testing.assert_array_equal(found, np.repeat(np.arange(8), hidden // 32))


def test_pieces_of_one_devices_part_are_whole() -> None:
    """In a function that `shard_map` calls on each device nothing is divided between devices."""
    found = []

    def local(x: jax.Array) -> jax.Array:
        found.append(HiddenBlocks.of(H, BLOCKS).piece)
        return x

    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    p = PartitionSpec("i")
    jax.eval_shape(jax.shard_map(local, mesh=mesh, in_specs=p, out_specs=p), jnp.ones(8))
    assert set(found) == {MOST_OF_PIECE}


@pytest.mark.parametrize("blocks", [-1, 3, 2 * H])
def test_blocks_that_do_not_divide(arrays: Arrays, blocks: int) -> None:
    with pytest.raises(ValueError, match=f"mlp: recompute .* got {blocks} of {H}"):
        layers(arrays, blocks)


@pytest.mark.parametrize("recompute", [None, 2.0, "4"])
def test_recompute_of_a_wrong_type(arrays: Arrays, recompute: Any) -> None:
    with pytest.raises(TypeError, match="mlp: recompute must be a bool or a number of blocks"):
        layers(arrays, recompute)


def test_gradients_equal_those_of_whole_arrays(arrays: Arrays) -> None:
    assert_same_layers(gradient(layers)(arrays), gradient(lambda a: layers(a, False))(arrays))
    plain = {name: arrays[name] for name in ("x", "up", "down")}
    assert_same_layers(gradient(layers)(plain), gradient(lambda a: layers(a, False))(plain))


def test_gradients_of_some_operands_and_of_a_batch(arrays: Arrays) -> None:
    of_x = lambda f: jax.grad(lambda x: jnp.sum(f(arrays | {"x": x}) ** 2))  # noqa: E731
    batch = arrays["x"].reshape(2, M // 2, K)
    got = jax.jit(jax.vmap(of_x(layers)))(batch)
    assert_same_layers(got.reshape(M, K), of_x(lambda a: layers(a, False))(arrays["x"]))


@pytest.mark.skipif(
    jax.version.__version_info__ < (0, 11),
    reason="XLA of jaxlib 0.10 does not keep to the blocks' order on CPUs",
)
def test_temporary_memory(arrays: Arrays) -> None:
    """XLA holds five arrays of [M, H] at a time."""
    temporary = [
        gradient(f).lower(arrays).compile().memory_analysis().temp_size_in_bytes
        for f in (layers, formula)
    ]
    assert temporary[0] <= 0.6 * temporary[1]


def test_sharded_hidden_values_stay_where_they_are(arrays: Arrays) -> None:
    """Every device has a part of every block: no collective but the sums of products."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    p = PartitionSpec
    specs = dict.fromkeys(("gate", "up"), p(None, "i")) | {"down": p("i")}
    specs |= dict.fromkeys(("gate_bias", "up_bias"), p("i"))
    placed = {
        name: jax.device_put(a, NamedSharding(mesh, specs.get(name, p())))
        for name, a in arrays.items()
    }
    compiled = gradient(layers).lower(placed).compile()
    assert_same_layers(compiled(placed), gradient(lambda a: layers(a, False))(arrays))
    text = compiled.as_text()
    assert "all-reduce" in text
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute"))
