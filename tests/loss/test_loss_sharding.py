"""The loss on several devices: equal to one device's, and only vectors of rows between devices."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import LOSS, assert_same_loss, normal

import jax_bwgemm as bw
from jax_bwgemm.loss import recomputed

ROWS, WIDTH, VOCABULARY = 32, 16, 64
SPECS = (P("data"), P("data"), P(None, "vocabulary"))
LOSS_OF = functools.partial(bw.linear_softmax_cross_entropy_loss, label_smoothing=0.1)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most five or six, whatever the vocabulary."""
    monkeypatch.setattr(recomputed, "block_columns", lambda v: min(v, max(12, v // 4 - 4)))


@pytest.fixture
def operands() -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    x = jnp.asarray(normal(rng, (ROWS, WIDTH), "float32"))
    labels = jnp.asarray(rng.integers(0, VOCABULARY, ROWS))
    return x, labels, jnp.asarray(normal(rng, (WIDTH, VOCABULARY), "float32"))


def mesh_of(devices: list[jax.Device], kind: AxisType) -> jax.sharding.Mesh:
    """Two devices along the rows where there are more than two, the others along the vocabulary."""
    axes = ("data", "vocabulary")
    rows = 2 if len(devices) > 2 else 1
    shape = (rows, len(devices) // rows)
    return jax.make_mesh(shape, axes, axis_types=(kind, kind), devices=devices)


def place(mesh: jax.sharding.Mesh, operands: tuple[jax.Array, ...]) -> list[jax.Array]:
    return [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(operands, SPECS, strict=True)]


def check_collectives(f: Any, placed: list[jax.Array], rows: int) -> None:
    """No collective of the forward pass is larger than a device's rows."""
    text = jax.jit(f).lower(*placed).compile().as_text()
    results = re.findall(r"= (.+) (?:all-|reduce-scatter|collective-permute)[\w-]*\(", text)
    assert results
    for shape in re.findall(r"\[([\d,]*)\]", " ".join(results)):
        assert math.prod(map(int, filter(None, shape.split(",")))) <= rows, shape


def check(f: Any, placed: list[jax.Array], operands: tuple[jax.Array, ...]) -> None:
    """Value and gradients as on one device; no collective larger than a device's rows forward."""
    want = jax.value_and_grad(LOSS_OF, (0, 2))(*operands)
    got = jax.jit(jax.value_and_grad(f, (0, 2)))(*placed)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, **LOSS), got, want)
    check_collectives(f, placed, ROWS // 2)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_sharded_arrays(cpu_devices, operands, kind) -> None:
    mesh = mesh_of(cpu_devices, kind)
    with jax.set_mesh(mesh):
        check(LOSS_OF, place(mesh, operands), operands)


@pytest.mark.parametrize(
    ("logits", "columns"), [("stored", None), ("stored", "data"), ("recomputed", None)]
)
def test_labels_get_the_sharding_of_rows(cpu_devices, operands, logits, columns) -> None:
    """Where types have shardings: also where the labels' one is not that of x, or of columns."""
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    f = functools.partial(LOSS_OF, logits=logits)
    with jax.set_mesh(mesh):
        specs = (P(), P("data"), P(None, columns))
        placed = [
            jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(operands, specs, strict=True)
        ]
        got = jax.jit(jax.value_and_grad(f, (0, 2)))(*placed)
        rows = jax.eval_shape(functools.partial(f, reduction="none"), *placed)
        assert rows.sharding.spec == P(None)
    want = jax.value_and_grad(LOSS_OF, (0, 2))(*operands)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, **LOSS), got, want)


def test_rows_have_an_axis_that_columns_have_too(cpu_devices, operands) -> None:
    """Where both operands' types also divide what is contracted, the logits' one has to be told."""
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    specs = (P("data", "vocabulary"), P("data"), P("vocabulary", "data"))
    with jax.set_mesh(mesh):
        placed = [
            jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(operands, specs, strict=True)
        ]
        got = jax.jit(LOSS_OF)(*placed)
    np.testing.assert_allclose(got, LOSS_OF(*operands), **LOSS)


def test_rows_of_three_dimensions_are_returned_in_their_order(cpu_devices, operands) -> None:
    """The last of them is the one that is sharded."""
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    f = functools.partial(LOSS_OF, reduction="none")
    x, labels, weights = operands
    x, labels = x.reshape(2, 4, 4, WIDTH), labels.reshape(2, 4, 4)
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, P(None, None, "data", None))
        got = jax.jit(f)(jax.device_put(x, sharding), labels, weights)
        assert got.sharding.spec == P(None, None, "data")
    np.testing.assert_allclose(got, f(x, labels, weights), **LOSS)


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
@pytest.mark.parametrize("checked", [True, False])
def test_shard_map(cpu_devices, operands, logits, checked) -> None:
    mesh = mesh_of(cpu_devices, AxisType.Auto)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=checked)
    def loss(x: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
        part = LOSS_OF(x, labels, weights, logits=logits, axis_name="vocabulary")
        return lax.psum(part, "data")

    check(loss, place(mesh, operands), operands)


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
@pytest.mark.parametrize("infinite", [jnp.inf, -jnp.inf])
def test_infinite_logits_of_sharded_columns(cpu_devices, logits, infinite: float) -> None:
    """Some columns of one device, or all columns of all, as on one device."""
    mesh = mesh_of(cpu_devices, AxisType.Auto)
    loss = functools.partial(
        bw.linear_softmax_cross_entropy_loss, reduction="none", return_logsumexp=True, logits=logits
    )
    ours = functools.partial(loss, axis_name="vocabulary")
    sharded = jax.shard_map(ours, mesh=mesh, in_specs=SPECS, out_specs=P("data"))
    x, labels = jnp.ones((2, 1)), jnp.array([0, VOCABULARY - 1])
    for columns in (slice(1, 3), slice(None)):
        weights = jnp.ones((1, VOCABULARY)).at[:, columns].set(infinite)
        for got, want in zip(
            jax.jit(sharded)(x, labels, weights), loss(x, labels, weights), strict=True
        ):
            np.testing.assert_allclose(got, want, **LOSS)


@pytest.mark.multigpu
@pytest.mark.parametrize("logits", ["stored", "recomputed"])
def test_two_gpus(logits) -> None:
    rows, width, vocabulary = 256, 512, 4096
    rng = np.random.default_rng(0)
    x = jnp.asarray(normal(rng, (rows, width), "bfloat16"))
    weights = jnp.asarray(normal(rng, (width, vocabulary), "float32") * width**-0.5, jnp.bfloat16)
    operands = (x, jnp.asarray(rng.integers(0, vocabulary, rows)), weights)
    of_one = functools.partial(LOSS_OF, logits=logits, implementation="cutlass")
    mesh = mesh_of(jax.devices("gpu")[:2], AxisType.Auto)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=SPECS, out_specs=P(), check_vma=False)
    def of_two(x: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.psum(of_one(x, labels, weights, axis_name="vocabulary"), "data")

    placed = place(mesh, operands)
    want = jax.jit(jax.value_and_grad(of_one, (0, 2)))(*operands)
    got = jax.jit(jax.value_and_grad(of_two, (0, 2)))(*placed)
    jax.tree.map(assert_same_loss, got, want)
    check_collectives(of_two, placed, 3 * rows)  # XLA joins vectors into one


def test_recomputed_blocks_need_whole_columns(cpu_devices, operands) -> None:
    mesh = mesh_of(cpu_devices, AxisType.Explicit)
    with (
        jax.set_mesh(mesh),
        pytest.raises(NotImplementedError, match=r"use jax.shard_map and axis_name"),
    ):
        LOSS_OF(*place(mesh, operands), logits="recomputed")
