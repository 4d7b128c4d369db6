"""Which quantizations `accelerate` joins with what computes their operand, and their rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_exact, normal

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue.source_primitive import bw_quantize_source_p
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.rewriting import fuse, sources

BOTH = ("cutlass", "xla")
NUMBERS = (((1,), (0,)), ((), ()))


@pytest.fixture(autouse=True)
def _linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The primitives are bound as for an SM90, and computed by XLA."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    monkeypatch.setattr(sources, "source_refusal", lambda *_: None)
    monkeypatch.setattr(
        "jax_bwgemm.scaled.quantize_primitive.refusal", lambda *_: None
    )  # as with kernels
    with config.target("sm90"), config.linked_epilogues(True):
        yield


def found(f: Any, *args: Any) -> list[Any]:
    """Of every such equation: what it computes."""
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    return [e.params["source"] for e, _ in equations(jaxpr) if e.primitive is bw_quantize_source_p]


def windows(source: Any) -> list[list[tuple[int, int, int]]]:
    return [[(w.array, w.pitch, w.offset) for w in part.windows] for part in source.parts]


def check(f: Any, *args: Any) -> None:
    """The same as without: on a CPU both are XLA's."""
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        assert np.linalg.norm(ours - theirs) <= 0.02 * np.linalg.norm(theirs) + 1e-6


def arrays(*shapes: tuple[int, ...], dtype: str = "bfloat16") -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(normal(rng, s, dtype)) for s in shapes]


def quantize(x: Any, **options: Any) -> Any:
    return bw.quantize(x, "1x128", implementation=BOTH, **options)


def step_of(recipe: str, sliced: bool = False, normed: bool = False) -> Any:
    """A SwiGLU layer, forward and backward."""
    dot = bw.fp8_dot_general(recipe, implementation=BOTH)

    def layer(x: Any, scale: Any, w1: Any, w2: Any, *history: Any) -> Any:
        first, second = ({"amax_history": h} for h in history) if history else ({}, {})
        if normed:
            wide = x.astype(jnp.float32)
            rms = jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
            x = (wide * rms).astype(x.dtype) * scale
        y = dot(x, w1, NUMBERS, **first)
        half = y.shape[1] // 2
        gate, up = (y[:, :half], y[:, half:]) if sliced else jnp.split(y, 2, axis=1)
        return dot(jax.nn.silu(gate) * up, w2, NUMBERS, **second)

    def step(g: Any, *args: Any) -> Any:
        out, back = jax.vjp(layer, *args)
        return out, *back(g)

    return step


SHAPES = ((128, 256), (128, 256), (256,), (256, 1024), (512, 256))


@pytest.mark.parametrize("sliced", [False, True])
def test_swiglu(sliced: bool) -> None:
    step, args = step_of("blockwise", sliced), arrays(*SHAPES)
    forward, backward = found(step, *args)
    assert windows(forward) == [[(0, 1024, 512), (0, 1024, 0)]]
    assert [part.columns for part in backward.parts] == [512, 512]
    assert {w.pitch for part in backward.parts for w in part.windows} == {512, 1024}
    check(step, *args)


def test_a_norm_ahead_of_the_layer() -> None:
    step, args = step_of("blockwise", normed=True), arrays(*SHAPES)
    first, *_ = found(step, *args)
    axes = sorted(x.axes for x in first.parts[0].program.operands)
    assert axes == [(0,), (0, 1), (1,)]
    assert len(found(step, *args)) == 3
    check(step, *args)


def test_delayed_scaling_is_fused_and_current_scaling_needs_the_array() -> None:
    history = bw.fp8_dot_general("per_tensor_delayed").new_history() + 4
    args = [*arrays(*SHAPES), history, history]
    step = step_of("per_tensor_delayed")
    assert [x.spec.amax for x in found(step, *args)] == [True, True]
    check(step, *args)
    assert found(step_of("per_tensor"), *arrays(*SHAPES)) == []


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        pytest.param(lambda x: quantize(x), [(64, 128)], id="nothing to fuse"),
        pytest.param(lambda x: quantize(x.T), [(128, 64)], id="a transpose"),
        pytest.param(lambda x: quantize(jnp.sin(x).T * 2), [(128, 64)], id="transposed before"),
        pytest.param(lambda x: quantize(x * 2), [(64, 132)], id="K not a multiple of 8"),
        pytest.param(lambda x: quantize(x * 2), [(2, 64, 128)], id="a batch"),
        pytest.param(
            lambda x: (lambda y: (quantize(y), y))(jnp.exp(x)), [(64, 128)], id="needed besides"
        ),
        pytest.param(lambda x: quantize(jnp.cumsum(x, 1)), [(64, 128)], id="not elementwise"),
        pytest.param(lambda *xs: quantize(sum(xs[1:], xs[0])), [(64, 128)] * 9, id="nine operands"),
    ],
)
def test_not_fused(f: Any, shapes: list[tuple[int, ...]]) -> None:
    args = arrays(*shapes)
    assert found(f, *args) == []
    check(f, *args)


def test_float32_is_not_fused() -> None:
    assert found(lambda x: quantize(x * 2), *arrays((64, 128), dtype="float32")) == []


def test_both_copies_are_of_one_equation() -> None:
    def f(x: Any, b: Any) -> Any:
        return quantize(jnp.maximum(x + b, 0), transposed=True)

    args = arrays((64, 256), (256,))
    (source,) = found(f, *args)
    assert source.spec.transposed
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_exact(a.astype(jnp.float32), b.astype(jnp.float32))


def test_rules() -> None:
    def f(x: Any, b: Any) -> Any:
        return bw.dequantize(quantize(jnp.maximum(x + b, 0)))

    x, b = arrays((3, 64, 256), (256,))
    g = bw.accelerate(f)
    assert len(found(f, x[0], b)) == 1
    got = jax.vmap(g, (0, None))(x, b)
    for i in range(3):
        assert_exact(got[i], f(x[i], b))
    with pytest.raises(TypeError, match="quantize is not differentiable"):
        jax.jvp(g, (x[0], b), (x[0], b))


def test_pads_of_another_value_than_zero_are_added() -> None:
    """Only with zeros a sum of two pads is both side by side."""

    def f(x: Any, y: Any) -> Any:
        one = jnp.bfloat16(1)
        left = jax.lax.pad(x * 2, one, ((0, 0, 0), (0, 128, 0)))
        return quantize(left + jax.lax.pad(y * 2, one, ((0, 0, 0), (128, 0, 0))))

    args = arrays((64, 128), (64, 128))
    check(lambda *xs: bw.dequantize(f(*xs)), *args)
    assert all(len(source.parts) == 1 for source in found(f, *args))


def test_pads_that_leave_columns_free_are_added() -> None:
    """Neither array has the last columns."""

    def f(x: Any, y: Any) -> Any:
        zero = jnp.bfloat16(0)
        left = jax.lax.pad(x * 2, zero, ((0, 0, 0), (0, 256, 0)))
        return quantize(left + jax.lax.pad(y * 2, zero, ((0, 0, 0), (128, 128, 0))))

    args = arrays((64, 128), (64, 128))
    assert found(f, *args) == []
    check(lambda *xs: bw.dequantize(f(*xs)), *args)


def test_parts_of_several_widths_begin_where_those_before_them_end() -> None:
    def f(y: Any) -> Any:
        _, gate, up = jnp.split(y, [256, 384], axis=1)
        return quantize(jax.nn.silu(gate) * up)

    (y,) = arrays((64, 512))
    (source,) = found(f, y)
    assert sorted(windows(source)[0]) == [(0, 512, 256), (0, 512, 384)]
    check(lambda y: bw.dequantize(f(y)), y)


@pytest.mark.parametrize(
    ("dtype", "width", "first", "fused"),
    [
        ("bfloat16", 256, 8, True),
        ("bfloat16", 256, 4, False),
        ("bfloat16", 252, 8, False),
        ("float32", 252, 4, True),
        ("float32", 256, 2, False),
        ("float32", 254, 4, False),
    ],
)
def test_columns_that_are_read_in_place_are_aligned(
    dtype: str, width: int, first: int, fused: bool
) -> None:
    """Eight elements are read as words of 16 bytes, in every row."""

    def f(y: Any) -> Any:
        return quantize(jnp.tanh(y[:, first : first + 128]).astype(jnp.bfloat16))

    (y,) = arrays((64, width), dtype=dtype)
    want = [[[(0, width, first)]]] if fused else []
    assert [windows(source) for source in found(f, y)] == want
    check(lambda y: bw.dequantize(f(y)), y)


def test_columns_of_some_rows_are_no_window() -> None:
    """A kernel reads all rows of an array, from the first one on."""
    (y,) = arrays((128, 256))
    for rows in (slice(64, None), slice(64)):
        f = lambda y, rows=rows: quantize(jnp.tanh(y[rows, 128:]))  # noqa: E731
        assert found(f, y) == []
        check(lambda y, f=f: bw.dequantize(f(y)), y)


def test_what_is_in_memory_is_read_not_computed_again() -> None:
    def f(x: Any, w: Any) -> Any:
        y = jnp.exp(x)
        return quantize(jnp.sin(y) * 2), y @ w

    (source,) = found(f, *arrays((64, 128), (128, 128)))
    assert "exp" not in {step.op for step in source.parts[0].program.steps}
