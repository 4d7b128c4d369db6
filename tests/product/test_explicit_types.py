"""Explicit mesh axes: results, gradients and refusals have the types that JAX's own products have.

Nothing is compiled: types are decided while tracing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_bwgemm as bw

B, M, N, K, E = 8, 16, 24, 32, 4
SIZES = np.full(E, M // E, np.int32)
NUMBERS = (((2,), (0,)), ((), ()))


def mesh_of(devices: Sequence[jax.Device], x: int, y: int) -> jax.sharding.Mesh:
    return jax.make_mesh((x, y), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=devices)


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    return mesh_of(cpu_devices, 2, 4)


def shardings(rank: int, axes: Sequence[Any] = ("x", "y")) -> Iterator[P]:
    """Every way to shard an array of that rank over these axes."""
    for entries in itertools.product((None, *axes), repeat=rank):
        used = [a for e in entries if e for a in (e if isinstance(e, tuple) else (e,))]
        if len(set(used)) == len(used):
            yield P(*entries)


def types_or_error(f: Callable, args: Sequence[Any]) -> Any:
    try:
        return [str(aval) for aval in jax.make_jaxpr(f)(*args).out_avals]
    except Exception as error:  # JAX has types of its own for these
        return type(error)


def with_gradients(f: Callable) -> Callable:
    """The result and the cotangents of both operands for it."""

    def run(a: Any, b: Any) -> Any:
        out, back = jax.vjp(f, a, b)
        return out, *back(out)

    return run


def differences(
    mesh: Any, ours: Callable, jaxs: Callable, shapes: Sequence[tuple], cases: Any
) -> list[Any]:
    """Cases whose types, with gradients, or refusals are not JAX's."""
    found = []
    for specs in cases:
        args = [
            jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
            for shape, spec in zip(shapes, specs, strict=True)
        ]
        with jax.set_mesh(mesh):
            got, expected = (types_or_error(with_gradients(f), args) for f in (ours, jaxs))
        if got != expected:
            found.append((specs, got, expected))
    return found


H, D = 4, 8
MERGED = {
    # name: (dimension numbers, shapes)
    "into heads": ((((2,), (0,)), ((), ())), ((B, M, K), (K, H, D))),
    "out of heads": ((((2, 3), (0, 1)), ((), ())), ((B, M, H, D), (H, D, N))),
    "gradient of a weight": ((((0, 1), (0, 1)), ((), ())), ((B, M, K), (B, M, N))),
    "scores": ((((3,), (3,)), ((0, 2), (0, 2))), ((B, M, H, D), (B, N, H, D))),
}
FORMS = {
    # name: (ours, JAX's, shapes, ranks' mesh axes)
    "matrices": (bw.matmul, jnp.matmul, ((M, K), (K, N)), ("x", "y", ("x", "y"))),
    "activations": (bw.matmul, jnp.matmul, ((B, M, K), (K, N)), ("x", "y")),
    "batch": (bw.matmul, jnp.matmul, ((B, M, K), (B, K, N)), ("x",)),
    "dot_general": (
        lambda a, b: bw.dot_general(a, b, NUMBERS),
        lambda a, b: lax.dot_general(a, b, NUMBERS),
        ((B, M, K), (K, N)),
        ("x",),
    ),
    **{
        name: (
            lambda a, b, numbers=numbers: bw.dot_general(a, b, numbers),
            lambda a, b, numbers=numbers: lax.dot_general(a, b, numbers),
            shapes,
            ("x",),
        )
        for name, (numbers, shapes) in MERGED.items()
    },
    "vmap": (
        jax.vmap(bw.matmul, in_axes=(0, None)),
        jax.vmap(jnp.matmul, in_axes=(0, None)),
        ((B, M, K), (K, N)),
        ("x",),
    ),
    "vmap of both": (
        jax.vmap(bw.matmul, in_axes=(1, 2)),
        jax.vmap(jnp.matmul, in_axes=(1, 2)),
        ((M, B, K), (K, N, B)),
        ("x",),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_sharding_of_both_operands(mesh: Any, name: str) -> None:
    ours, jaxs, shapes, axes = FORMS[name]
    cases = itertools.product(*(shardings(len(shape), axes) for shape in shapes))
    assert not differences(mesh, ours, jaxs, shapes, cases)


INNER = "is sharded along an inner one of dimensions that a kernel takes as one"


@pytest.mark.parametrize(
    ("name", "specs", "out", "refused"),
    [
        ("into heads", (P("x"), P(None, "y")), None, None),
        ("into heads", (P("x"), P(None, "y")), P("x", None, "y"), None),
        ("into heads", (P("x"), P(None, None, "y")), None, "rhs"),
        ("into heads", (P(), P()), P(None, None, None, "y"), "the result"),
        ("out of heads", (P("x", None, "y"), P("y")), P("x"), None),
        ("gradient of a weight", (P("x"), P("x", None, "y")), P(None, "y"), None),
        ("gradient of a weight", (P(None, "x"), P(None, "x")), P(), "lhs"),
        ("scores", (P("x"), P("x")), None, None),
        ("scores", (P("x"), P("x")), P("x", None, "y"), None),
        ("scores", (P("x", None, "y"), P("x", None, "y")), None, "lhs"),
    ],
)
def test_merged_dimensions_may_be_sharded_along_the_outermost(
    mesh: Any, name: str, specs: tuple[P, P], out: P | None, refused: str | None
) -> None:
    numbers, shapes = MERGED[name]
    args = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]

    def products(**options: Any) -> list[Any]:
        def both(a: Any, b: Any) -> Any:
            return [
                product(a, b, numbers, out_sharding=out, **kwargs)
                for product, kwargs in ((bw.dot_general, options), (lax.dot_general, {}))
            ]

        with jax.set_mesh(mesh), bw.config.target("sm90"):
            return jax.make_jaxpr(both)(*args).out_avals

    if refused is None:
        ours, jaxs = products(implementation="cutlass")
        assert ours == jaxs
        return
    with pytest.raises(NotImplementedError) as error:
        products(implementation="cutlass")
    assert re.search(
        rf": {refused}, (explicitly sharded as |with out_sharding=)P\(.*\), {INNER}$",
        str(error.value),
    )


OUT = [
    P(),
    P("x"),
    P(None, "x"),
    P("x", "y"),
    P(("x", "y")),
    P("x", "x"),
    P("x", None, None),
    P("z"),
    "x",
    P(unreduced={"x"}),
    P("y", unreduced={"x"}),
    P(None, "y", unreduced={"x"}),
]


def asked_for(f: Callable, out: Any, *, mapped: bool = False) -> Callable:
    def run(a: Any, b: Any) -> Any:
        return f(a, b, out_sharding=out)

    return jax.vmap(run, in_axes=(0, None)) if mapped else run


@pytest.mark.parametrize("out", OUT, ids=str)
def test_out_sharding(mesh: Any, out: Any) -> None:
    few = [P(), P("x"), P(None, "x"), P("y", "x")]
    ours, jaxs = asked_for(bw.matmul, out), asked_for(jnp.matmul, out)
    cases = itertools.product(few, few)
    assert not differences(mesh, ours, jaxs, ((M, K), (K, N)), cases)


@pytest.mark.parametrize("out", [P(), P("y"), P(None, "y")], ids=str)
def test_out_sharding_under_vmap(mesh: Any, out: Any) -> None:
    ours, jaxs = (asked_for(f, out, mapped=True) for f in (bw.matmul, jnp.matmul))
    cases = itertools.product(shardings(3, ("x",)), shardings(2, ("y",)))
    assert not differences(mesh, ours, jaxs, ((B, M, K), (K, N)), cases)


@pytest.mark.parametrize("shapes", [((1, M, K), (K, N)), ((1, K), (K, N)), ((1, M, K), (1, K, N))])
def test_dimensions_of_size_one_keep_their_sharding(
    cpu_devices: list[jax.Device], shapes: Any
) -> None:
    mesh = mesh_of(cpu_devices, 1, 8)
    cases = itertools.product(*(shardings(len(shape)) for shape in shapes))
    valid = [
        specs
        for specs in cases
        if not any(
            size == 1 and entry == "y"
            for shape, spec in zip(shapes, specs, strict=True)
            for size, entry in zip(shape, spec, strict=True)
        )
    ]
    assert not differences(mesh, bw.matmul, jnp.matmul, shapes, valid)


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(("x", "y"))], ids=str)
def test_gradient_of_a_weight_made_outside_of_the_mesh(mesh: Any, spec: P) -> None:
    w = jnp.ones((K, N), jnp.bfloat16)
    x = jax.device_put(jnp.ones((M, K), jnp.bfloat16), NamedSharding(mesh, spec))

    def gradients(product: Callable) -> tuple[Any, ...]:
        return jax.grad(lambda a, b: jnp.sum(product(a, b).astype(jnp.float32)), argnums=(0, 1))(
            x, w
        )

    with jax.set_mesh(mesh):
        got, expected = gradients(bw.matmul), gradients(jnp.matmul)
    assert list(map(jax.typeof, got)) == list(map(jax.typeof, expected))
    for ours, jaxs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, jaxs)


def test_gradient_of_matrices_made_outside_of_the_mesh(mesh: Any) -> None:
    w = jnp.ones((E, K, N), jnp.bfloat16)
    x = jax.device_put(jnp.ones((M, K), jnp.bfloat16), NamedSharding(mesh, P("x")))
    with jax.set_mesh(mesh):
        back = jax.grad(lambda b: jnp.sum(bw.ragged_dot(x, b, SIZES).astype(jnp.float32)))(w)
    assert jax.typeof(back).sharding.spec == P(None, None, None)
    np.testing.assert_array_equal(back, np.full((E, K, N), M // E))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("x", "out_sharding must be None, a NamedSharding or a PartitionSpec, got str"),
        (P(unreduced={"x"}), "a ragged dot product with sums left open by out_sharding="),
    ],
)
def test_ragged_dot_refuses_what_lax_refuses(mesh: Any, out: Any, message: str) -> None:
    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (E, K, N))]

    def call(product: Callable) -> Callable:
        return lambda a, b: product(a, b, jnp.asarray(SIZES), out_sharding=out)

    with jax.set_mesh(mesh):
        assert types_or_error(call(bw.ragged_dot), args) == types_or_error(
            call(lax.ragged_dot), args
        )
        with pytest.raises((TypeError, NotImplementedError)) as refused:
            jax.make_jaxpr(call(bw.ragged_dot))(*args)
    assert str(refused.value).startswith(message)
