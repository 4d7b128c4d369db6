"""Gradients of one element a row: a select in place of a scatter, equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm.product.jaxprs import equations

ROWS, WIDTH = 12, 20


def along_axis(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]


def along_first_axis(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.take_along_axis(logits.T, labels[None], axis=0)[0]


def by_rows(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return logits[jnp.arange(ROWS), labels]


def by_rows_of_two_dimensions(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits, labels = logits.reshape(3, 4, WIDTH), labels.reshape(3, 4)
    return logits[jnp.arange(3)[:, None], jnp.arange(4), labels].reshape(-1)


def by_a_square_of_rows(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Rows and columns of a square are numbered by arrays of one shape."""
    logits, labels = jnp.stack([logits[:3]] * 3), labels[:9].reshape(3, 3)
    at = (lax.broadcasted_iota(jnp.int32, (3, 3), d) for d in (0, 1))
    return (logits * jnp.arange(1.0, 4)[:, None, None])[(*at, labels)].sum()


def mapped(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jax.vmap(lambda row, label: row[label])(logits, labels)


def clipped(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return jax.vmap(lambda row, label: row.at[label].get(mode="clip"))(logits, labels)


def of_whole_rows(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The element chosen is a row of five."""
    parts = logits.reshape(ROWS, 4, 5)
    return jax.vmap(lambda x, label: x.at[label].get(mode="clip"))(parts, labels).sum(-1)


PICKS = (
    along_axis,
    along_first_axis,
    by_rows,
    by_rows_of_two_dimensions,
    by_a_square_of_rows,
    mapped,
    clipped,
    of_whole_rows,
)


def loss(pick: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def mean(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - pick(logits, labels))

    return mean


def count(program: Callable[..., Any], *args: Any) -> int:
    """Scatters that a program has."""
    found = equations(jax.make_jaxpr(program)(*args))
    return sum(times for eqn, times in found if eqn.primitive.name.startswith("scatter"))


def operands(dtype: Any = np.int32, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(seed)
    logits = jnp.asarray(random.standard_normal((ROWS, WIDTH)), np.float32)
    # Some out of range on either side, which picks treat in their different ways.
    low = 0 if np.dtype(dtype).kind == "u" else -WIDTH - 3
    return logits, jnp.asarray(random.integers(low, WIDTH + 3, ROWS), dtype)


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("pick", PICKS, ids=lambda f: f.__name__)
def test_gradients_of_one_element_a_row(pick: Callable[..., jax.Array], dtype: Any) -> None:
    gradient = jax.grad(loss(pick))
    logits, labels = operands(dtype)
    assert count(gradient, logits, labels) == 1
    ours = bw.accelerate(gradient)
    assert count(ours, logits, labels) == 0
    # Promised to be in bounds: what happens otherwise is nobody's promise.
    promised = pick in (by_rows, by_rows_of_two_dimensions, by_a_square_of_rows)
    labels = jnp.clip(labels, 0, WIDTH - 1) if promised else labels
    np.testing.assert_array_equal(
        jax.jit(ours)(logits, labels), jax.jit(gradient)(logits, labels), strict=True
    )


def test_places_beyond_the_type_of_the_index() -> None:
    """300 columns, 8-bit labels: a count of columns in the labels' type would come round."""
    logits, labels = jnp.ones((4, 300)), jnp.array([0, 44, 127, 3], np.int8)
    gradient = jax.grad(loss(along_axis))
    ours = bw.accelerate(gradient)
    assert count(ours, logits, labels) == 0
    np.testing.assert_array_equal(ours(logits, labels), gradient(logits, labels))


def test_a_place_that_the_type_of_the_index_just_lacks() -> None:
    """Column 128 has the bits of -128, where nothing is added."""
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))

    def pick(row: jax.Array, label: jax.Array) -> jax.Array:
        return lax.gather(row, label[None], numbers, (1,), mode="fill", fill_value=0)

    logits, labels = jnp.ones((4, 129)), jnp.array([-128, 127, 0, -1], jnp.int8)
    gradient = jax.grad(loss(jax.vmap(pick)))
    ours = bw.accelerate(gradient)
    assert count(ours, logits, labels) == 0
    np.testing.assert_array_equal(
        jax.jit(ours)(logits, labels), jax.jit(gradient)(logits, labels), strict=True
    )


def test_within_loops_and_checkpoints() -> None:
    def step(logits: jax.Array, labels: jax.Array) -> jax.Array:
        def body(total: jax.Array, scale: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.checkpoint(loss(along_axis))(logits * scale, labels), None

        return lax.scan(body, 0.0, jnp.arange(1.0, 4.0))[0]

    logits, labels = operands()
    gradient = jax.grad(step)
    assert count(gradient, logits, labels) == 3
    ours = bw.accelerate(gradient)
    assert count(ours, logits, labels) == 0
    np.testing.assert_allclose(
        jax.jit(ours)(logits, labels), jax.jit(gradient)(logits, labels), rtol=1e-6, atol=1e-7
    )


def several_in_a_row(x: jax.Array, labels: jax.Array) -> jax.Array:
    pairs = jnp.stack([labels, labels], axis=-1)
    return jnp.sum(jax.nn.logsumexp(x, -1)[:, None] * jnp.take_along_axis(x, pairs, axis=-1))


def rows_may_repeat(x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(x)) + jnp.sum(x[labels % ROWS, labels])


def embedding(x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(x)) + jnp.sum(x[labels] ** 2)


def one_element(x: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(x)) + jnp.sum(x[labels[:1], labels[1:2]])


def rows_in_another_order(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Each row once, but not in the order of the operand's."""
    return jnp.sum(jnp.tanh(x)) + jnp.sum(x[ROWS - 1 - jnp.arange(ROWS), labels])


def rows_that_come_round(x: jax.Array, labels: jax.Array) -> jax.Array:
    """The numbers of 300 rows in 8 bits: the first ones have two updates."""
    rows = jnp.tanh(jnp.broadcast_to(x[0], (300, WIDTH)))
    places = jnp.arange(300).astype(jnp.uint8), jnp.full(300, labels[0])
    return jnp.sum(rows) + jnp.sum(rows[places] * jnp.arange(300.0))


def overlapping_rows(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Each row's update reaches into the next one."""
    x = jnp.tanh(x)
    pick = lambda row, label: lax.dynamic_slice(x, (row, label), (2, 1))  # noqa: E731
    return jnp.sum(x) + jnp.sum(jax.vmap(pick)(jnp.arange(ROWS), labels % WIDTH) ** 2)


def diagonal(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Two parts of each index count along the same dimension."""
    cube = jnp.tanh(jnp.broadcast_to(x, (ROWS, *x.shape)))
    return jnp.sum(cube) + jnp.sum(cube[jnp.arange(ROWS), jnp.arange(ROWS), labels] ** 2)


def parts_of_rows(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Three of the five elements that the row chosen has."""
    numbers = lax.GatherDimensionNumbers((0,), (0,), (0,))

    def pick(row: jax.Array, label: jax.Array) -> jax.Array:
        return lax.gather(row, label[None], numbers, (1, 3), mode="clip")

    parts = jnp.tanh(x.reshape(ROWS, 4, 5))
    return jnp.sum(parts) + jnp.sum(jax.vmap(pick)(parts, labels) ** 2)


def places_in_one_array(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Of three parts of an index the first two come as one array."""
    cube = jnp.tanh(x.reshape(3, 4, WIDTH))
    rows = jnp.stack([labels % 3, labels % 4], 1)
    places = jnp.concatenate([rows, labels[:, None] % WIDTH], 1)
    numbers = lax.GatherDimensionNumbers((), (0, 1, 2), (0, 1, 2))
    picked = lax.gather(cube, places, numbers, (1, 1, 1), mode="promise_in_bounds")
    return jnp.sum(cube) + jnp.sum(picked**2)


@pytest.mark.parametrize(
    "f",
    [
        several_in_a_row,
        rows_may_repeat,
        embedding,
        one_element,
        rows_in_another_order,
        rows_that_come_round,
        overlapping_rows,
        diagonal,
        parts_of_rows,
        places_in_one_array,
    ],
    ids=lambda f: f.__name__,
)
def test_others_stay(f: Callable[..., jax.Array]) -> None:
    logits, labels = operands()
    gradient = jax.grad(f)
    ours = bw.accelerate(gradient)
    assert count(ours, logits, labels) == count(gradient, logits, labels) > 0
    np.testing.assert_array_equal(
        jax.jit(ours)(logits, labels), jax.jit(gradient)(logits, labels), strict=True
    )


def test_one_that_goes_to_memory_stays() -> None:
    logits, labels = operands()

    def gradient(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.zeros_like(logits).at[jnp.arange(ROWS), labels].add(1.0)

    ours = bw.accelerate(gradient)
    assert count(ours, logits, labels) == count(gradient, logits, labels) == 1


def test_a_sum_that_is_carried_keeps_its_scatter() -> None:
    """In a loop a scatter changes the carried array in place; a select would copy it."""

    def step(x: jax.Array, labels: jax.Array) -> jax.Array:
        add = lambda total, _: (total.at[jnp.arange(ROWS), labels].add(1.0), None)  # noqa: E731
        return lax.scan(add, x, length=3)[0]

    logits, labels = operands()
    assert count(bw.accelerate(step), logits, labels) == 3
