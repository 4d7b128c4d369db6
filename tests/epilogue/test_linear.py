"""The layers against their formulas: values, derivatives, mapping, sharding, errors. On XLA."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads
from numerics import CHECK_GRADS, assert_same_layers, normal
from sharded import mesh_of

import jax_bwgemm as bw
from jax_bwgemm.epilogue.activations import ACTIVATIONS

M, K, N = 6, 16, 24


@pytest.fixture
def arrays() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "w": (K, N), "b": (N,), "r": (M, N), "gated": (K, 2, N)}
    found = {name: jnp.asarray(normal(rng, shape, "float32")) for name, shape in shapes.items()}
    return found | {name: found[name] * K**-0.5 for name in ("w", "gated")}


def formula(x: Any, w: Any, b: Any, r: Any, activation: Any = jax.nn.gelu) -> Any:
    return activation(jnp.dot(x, w, precision="highest") + b) + r


def ours(x: Any, w: Any, b: Any, r: Any, activation: Any = "gelu") -> Any:
    return bw.linear(x, w, b, activation=activation, residual=r)


class TestLinear:
    @pytest.mark.parametrize("name", sorted(ACTIVATIONS))
    def test_every_activation(self, arrays, name) -> None:
        x, w, b, r, _ = arrays.values()
        assert_same_layers(ours(x, w, b, r, name), formula(x, w, b, r, ACTIVATIONS[name]))
        assert ACTIVATIONS[name](jnp.float32(0.5)).dtype == jnp.float32

    def test_each_part_may_be_left_out(self, arrays) -> None:
        x, w, b, r, _ = arrays.values()
        assert_same_layers(bw.linear(x, w), x @ w)
        assert_same_layers(bw.linear(x, w, b), x @ w + b)
        assert_same_layers(bw.linear(x, w, residual=r), x @ w + r)
        assert_same_layers(bw.linear(x, w, activation=jnp.sin), jnp.sin(x @ w))
        assert_same_layers(bw.linear(x[0], w, b), x[0] @ w + b)
        assert_same_layers(bw.linear(x.reshape(2, 3, K), w, b).reshape(M, N), x @ w + b)

    def test_rounds_the_product_then_the_result(self, arrays) -> None:
        x, w, b, r = (arrays[name].astype(jnp.bfloat16) for name in "xwbr")
        got = jax.jit(ours)(x, w, b, r)
        z = jnp.dot(x, w).astype(jnp.float32)
        want = jax.nn.gelu(z + b.astype(jnp.float32)) + r.astype(jnp.float32)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))
        wide = bw.linear(x, w, b, preferred_element_type=jnp.float32)
        assert wide.dtype == jnp.float32

    def test_derivatives_of_all_orders(self, arrays) -> None:
        at = tuple(arrays[name] for name in "xwbr")
        # In float32 the differences of the usual step are rounding, of the formula's too.
        check_grads(ours, at, order=2, eps=1e-3, **CHECK_GRADS)
        for f in (ours, jax.checkpoint(ours)):
            got = jax.jit(jax.grad(lambda *a, f=f: jnp.sum(f(*a) ** 2), (0, 1, 2, 3)))(*at)
            assert_same_layers(
                got, jax.grad(lambda *a: jnp.sum(formula(*a) ** 2), (0, 1, 2, 3))(*at)
            )

    def test_vmap_of_every_subset(self, arrays) -> None:
        at = tuple(arrays[name] for name in "xwbr")
        stacked = tuple(jnp.stack([x, 2 * x, -x]) for x in at)
        for mask in range(1, 16):
            axes = tuple(0 if mask >> i & 1 else None for i in range(4))
            operands = [s if a == 0 else x for s, x, a in zip(stacked, at, axes, strict=True)]
            assert_same_layers(jax.vmap(ours, axes)(*operands), jax.vmap(formula, axes)(*operands))

    def test_out_sharding_of_operands_that_are_not_of_the_mesh(self, arrays) -> None:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Explicit,))
        x, w, b = (arrays[name].astype(jnp.bfloat16) for name in "xwb")
        want = bw.linear(x, w, b, activation="gelu")
        with jax.set_mesh(mesh):
            got = jax.jit(
                lambda *a: bw.linear(*a, activation="gelu", out_sharding=PartitionSpec("i"))
            )(x, w, b)
        assert tuple(jax.typeof(got).sharding.spec)[:1] == ("i",)
        np.testing.assert_array_equal(got, want)

    # JAX wants an out_sharding where a contracted dimension is explicitly sharded.
    @pytest.mark.parametrize(
        ("kind", "x", "w"),
        [
            (AxisType.Auto, ("i", None), (None, "j")),
            (AxisType.Explicit, ("i", None), (None, "j")),
            (AxisType.Auto, (None, "i"), ("i", "j")),
            (AxisType.Auto, ("i", "j"), ("j", None)),
        ],
        ids=["m,n", "m,n explicit", "k,n", "m,k"],
    )
    def test_sharded(self, arrays, kind, x, w) -> None:
        mesh = jax.make_mesh((2, 4), ("i", "j"), axis_types=(kind,) * 2)
        at = tuple(arrays[name] for name in "xwbr")
        specs = [x, w, (w[1],), (x[0], w[1])]
        with jax.set_mesh(mesh):
            placed = [
                jax.device_put(a, NamedSharding(mesh, PartitionSpec(*s)))
                for a, s in zip(at, specs, strict=True)
            ]
            got = jax.jit(jax.value_and_grad(lambda *a: jnp.sum(ours(*a) ** 2), (0, 1)))(*placed)
        assert_same_layers(
            got, jax.value_and_grad(lambda *a: jnp.sum(formula(*a) ** 2), (0, 1))(*at)
        )

    def test_within_shard_map(self, arrays) -> None:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
        p = PartitionSpec
        at = tuple(arrays[name] for name in "xwbr")
        f = jax.shard_map(ours, mesh=mesh, in_specs=(p("i"), p(), p(), p("i")), out_specs=p("i"))
        assert_same_layers(f(*at), formula(*at))
        assert_same_layers(jax.grad(lambda w: jnp.sum(f(at[0], w, *at[2:])))(at[1]),
              jax.grad(lambda w: jnp.sum(formula(at[0], w, *at[2:])))(at[1]))  # fmt: skip

    def test_exported_with_a_symbolic_size(self, arrays) -> None:
        rows = jax.export.symbolic_shape("rows")[0]
        types = [jax.ShapeDtypeStruct(arrays[name].shape, jnp.float32) for name in "xwb"]
        types[0] = jax.ShapeDtypeStruct((rows, K), jnp.float32)
        f = functools.partial(bw.linear, activation="gelu")
        x, w, b, _, _ = arrays.values()
        assert_same_layers(jax.export.export(jax.jit(f))(*types).call(x, w, b), formula(x, w, b, 0))

    def test_layers_are_compiled_once(self, arrays) -> None:
        x, w, b, r, _ = arrays.values()
        traced = [str(jax.make_jaxpr(ours)(x, w, b, r)) for _ in "ab"]
        assert traced[0] == traced[1]


@pytest.mark.parametrize(
    ("stacked", "devices"), [(True, 1), (True, 8), (False, 8)], ids=["one product", "two", "pair"]
)
class TestGatedLinearUnit:
    @pytest.fixture(autouse=True)
    def so_many_devices(self, monkeypatch, devices) -> None:
        """Stacked weights are one product where XLA cannot partition it."""
        monkeypatch.setattr(jax, "device_count", lambda: devices)
        jax.clear_caches()

    @staticmethod
    def formula(x: Any, weights: Any, activation: Any = jax.nn.silu) -> Any:
        return activation(x @ weights[:, 0]) * (x @ weights[:, 1])

    @staticmethod
    def ours(x: Any, weights: Any, *, stacked: bool) -> Any:
        form = weights if stacked else (weights[:, 0], weights[:, 1])
        return bw.gated_linear_unit(x, form, activation="silu")

    def test_values_and_derivatives(self, arrays, stacked) -> None:
        x, weights = arrays["x"], arrays["gated"]
        f = functools.partial(self.ours, stacked=stacked)
        assert_same_layers(f(x, weights), self.formula(x, weights))
        assert_same_layers(f(x.reshape(2, 3, K), weights).reshape(M, N), self.formula(x, weights))
        check_grads(f, (x, weights), order=2, **CHECK_GRADS)
        many = jnp.stack([weights, -weights])
        assert_same_layers(
            jax.vmap(f, (None, 0))(x, many), jax.vmap(self.formula, (None, 0))(x, many)
        )

    def test_without_activation(self, arrays, stacked) -> None:
        x, weights = arrays["x"], arrays["gated"]
        form = weights if stacked else [weights[:, 0], weights[:, 1]]
        want = self.formula(x, weights, lambda z: z)
        assert_same_layers(bw.gated_linear_unit(x, form), want)

    def test_rounding(self, arrays, stacked) -> None:
        x, weights = (arrays[n].astype(jnp.bfloat16) for n in ("x", "gated"))
        got = jax.jit(functools.partial(self.ours, stacked=stacked))(x, weights)
        gate, up = (jnp.dot(x, weights[:, i]).astype(jnp.float32) for i in (0, 1))
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(got, (jax.nn.silu(gate) * up).astype(jnp.bfloat16))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_columns_of_stacked_weights_over_devices(arrays, cpu_devices, kind) -> None:
    """Weights stay where they are, and so do their gradients."""
    mesh = mesh_of(cpu_devices, kind)
    x, weights = arrays["x"], arrays["gated"]

    def loss(x: Any, weights: Any) -> Any:
        return jnp.sum(bw.gated_linear_unit(x, weights, activation="silu") ** 2)

    want = jax.grad(loss, (0, 1))(x, weights)
    with jax.set_mesh(mesh):
        spec = PartitionSpec(None, None, "x")
        placed = jax.device_put(weights, NamedSharding(mesh, spec))
        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(x, placed).compile()
        got = compiled(x, placed)
    assert_same_layers(got, want)
    assert got[1].sharding.spec == spec
    assert "all-reduce" in compiled.as_text()
    assert not re.search("all-gather|all-to-all|collective-permute", compiled.as_text())


class TestMatmul:
    def test_several_results_and_operands_of_every_shape(self, arrays) -> None:
        x, w, b, r, _ = arrays.values()
        column, scale = x[:, :1], jnp.float32(3)

        def f(z: Any, *operands: Any) -> dict[str, Any]:
            b, r, column, scale = operands
            y = (z + b) * column + scale * r
            return {"y": y, "positive": y > 0}

        got = bw.matmul(x, w, epilogue=f, epilogue_operands=(b, r, column, scale))
        assert_same_layers(got["y"], (x @ w + b) * column + 3 * r)
        assert got["positive"].dtype == bool
        np.testing.assert_array_equal(got["positive"], got["y"] > 0)

    def test_operands_of_every_type(self, arrays) -> None:
        x, w = arrays["x"], arrays["w"]
        mask = jnp.arange(N) % 2 == 0
        counts = jnp.arange(M, dtype=jnp.int32)[:, None]
        half = jnp.ones((M, N), jnp.float16)

        def f(z: Any, mask: Any, counts: Any, half: Any) -> Any:
            return jnp.where(mask, z, 0) + counts.astype(z.dtype) + half

        got = bw.matmul(x, w, epilogue=f, epilogue_operands=[mask, counts, half])
        assert_same_layers(got, jnp.where(mask, x @ w, 0) + counts + 1)

    def test_batches(self, arrays) -> None:
        x, w, b = (arrays[name] for name in "xwb")
        many = jnp.stack([x, -x, 2 * x])
        got = bw.matmul(many, w, epilogue=lambda z, b: z + b, epilogue_operands=(b,))
        assert_same_layers(got, many @ w + b)

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_reads_an_array_around_it(self, arrays, shape) -> None:
        x, w = arrays["x"], arrays["w"]
        two = jnp.full(shape, 2.0)
        got = bw.matmul(x, w, epilogue=lambda z: z * two)
        np.testing.assert_array_equal(got, 2 * bw.matmul(x, w))

    def test_derivatives_reach_operands(self, arrays) -> None:
        x, w, b = (arrays[name] for name in "xwb")

        def f(x: Any, w: Any, b: Any) -> Any:
            epilogue = lambda z, b: (jnp.tanh(z * b), z)  # noqa: E731
            return bw.matmul(x, w, epilogue=epilogue, epilogue_operands=(b,))

        check_grads(f, (x, w, b), order=2, **CHECK_GRADS)

    def test_results_are_rounded_to_the_products_type(self, arrays) -> None:
        x, w = (arrays[name].astype(jnp.float16) for name in "xw")
        y, n = bw.matmul(x, w, epilogue=lambda z: (z, z.astype(jnp.int32)))
        assert y.dtype == jnp.float16
        assert n.dtype == jnp.int32

    def test_reaches_the_kernels(self, arrays) -> None:
        x, w = (arrays[name].astype(jnp.bfloat16) for name in "xw")
        with pytest.raises(NotImplementedError, match="cutlass"):
            bw.linear(x, w, activation="relu", implementation="cutlass")


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, z: Any) -> Any:
        return z


@dataclasses.dataclass(frozen=True, slots=True)
class Scaled:
    """A function of which there are no weak references."""

    factor: float

    def __call__(self, z: jax.Array) -> jax.Array:
        return self.factor * z


ACTIVATED = ("linear", "gated_linear_unit", "mlp", "moe_mlp")


def with_function(arrays: Any, layer: str) -> Callable[[Any], jax.Array]:
    """A layer by its activation, or a product by its epilogue."""
    x, w, gated = arrays["x"], arrays["w"], arrays["gated"]
    experts, one = jnp.zeros((6, 1), jnp.int32), jnp.ones((6, 1))
    return {
        "linear": lambda f: bw.linear(x, w, activation=f),
        "gated_linear_unit": lambda f: bw.gated_linear_unit(x, gated, activation=f),
        "mlp": lambda f: bw.mlp(x, w, w.T, activation=f),
        "moe_mlp": lambda f: bw.moe_mlp(x, w[None], w.T[None], experts, one, activation=f),
        "matmul": lambda f: bw.matmul(x, w, epilogue=f),
    }[layer]


@pytest.mark.parametrize("layer", ACTIVATED)
def test_activations_of_classes_with_slots(arrays, layer) -> None:
    call = with_function(arrays, layer)
    for _ in range(2):  # jax.jit of such a function fails, and then ends the process
        np.testing.assert_allclose(call(Scaled(2.0)), call(lambda z: 2.0 * z), rtol=1e-6)


class TestErrors:
    def test_of_linear(self, arrays) -> None:
        x, w, b, _, _ = arrays.values()
        i = jnp.ones((4, 4), jnp.int32)
        cases = [
            (lambda: bw.linear(x, w.T), r"x must be \[..., K\] and weights \[K, N\], got"),
            (lambda: bw.linear(x[0, 0], w), r"x must be"),
            (lambda: bw.linear(x, w, b[:3]), r"b must have the shape \(24,\), got \(3,\)"),
            (lambda: bw.linear(x, w, b.astype(jnp.complex64)), "linear: b is complex64; types are"),
            (lambda: bw.linear(x, w, residual=b), r"residual must have the shape \(6, 24\), got"),
            (lambda: bw.linear(x, w, activation=3), "activation must be None, a name or a func"),
            (lambda: bw.linear([1], w), "linear requires arrays, got x of type list"),
            (lambda: bw.linear(x, w, activation=lambda z: (z, z)), "linear: activation must ret"),
            (lambda: bw.linear(i, i, activation="relu"), "linear: .* got int32"),
            (lambda: bw.mlp(x, None, w.T), "mlp requires arrays, got up of type NoneType"),
        ]
        for call, message in cases:
            with pytest.raises(TypeError, match=message):
                call()
        with pytest.raises(ValueError, match="unknown activation 'gleu'; names are 'relu'"):
            bw.linear(x, w, activation="gleu")
        # A line of the user's, or none: not one of the package's.
        with pytest.raises(bw.EpilogueError, match=r"'slice' at .*test_linear.py:\d+ "):
            bw.linear(x, w, activation=lambda z: z[:, :2])
        with pytest.raises(bw.EpilogueError, match=r"cannot have 'reduce_sum': sums are over"):
            bw.linear(x, w, activation=jnp.sum)
        with pytest.raises(bw.EpilogueError, match="reduce_max"):
            bw.linear(x, w, activation=jax.nn.softmax)
        slope = jnp.ones(w.shape[1])
        alone = (
            r"linear: activation: .*array of shape \(24,\): an activation is a function of its a"
        )
        with pytest.raises(bw.EpilogueError, match=alone):
            bw.linear(x, w, activation=lambda z: slope * z)

    @pytest.mark.parametrize("layer", ACTIVATED)
    def test_of_activations(self, arrays, layer) -> None:
        call = with_function(arrays, layer)
        rows = f"{layer}: activation must return one array of its argument's shape"
        with pytest.raises(TypeError, match=rows):
            call(lambda z: jnp.sum(z, 0))
        with pytest.raises((TypeError, bw.EpilogueError), match=f"{layer}: activation.*complex64"):
            call(lambda z: z * (1 + 1j))
        with pytest.raises(TypeError, match=f"{layer}: activation must be hashable, got <.*Unhash"):
            call(Unhashable())

    @pytest.mark.parametrize("layer", ["linear", "matmul", "moe_mlp"])
    def test_names_the_function_that_branches(self, arrays, layer) -> None:
        def branching(z: jax.Array) -> jax.Array:
            return z if z[0, 0] > 0 else -z

        what = "epilogue" if layer == "matmul" else "activation"
        where = rf"branching at \S*test_linear.py:\d+ for {layer}: {what}"
        with pytest.raises(jax.errors.TracerBoolConversionError, match=where):
            with_function(arrays, layer)(branching)

    def test_of_gated_linear_unit(self, arrays) -> None:
        x, w, gated = arrays["x"], arrays["w"], arrays["gated"]
        i = jnp.ones((4, 4), jnp.int32)
        cases = [
            (lambda: bw.gated_linear_unit(x, w), r"weights \[K, 2, N\] or a pair"),
            (lambda: bw.gated_linear_unit(x, (w,)), "weights must be a pair, got 1 arrays"),
            (lambda: bw.gated_linear_unit(x, (w, w[:, :3])), "must have the same shape and type"),
            (
                lambda: bw.gated_linear_unit(x, (w, w.astype(jnp.float16))),
                r"same shape and type, got float32\(16, 24\) and float16\(16, 24\)",
            ),
            (lambda: bw.gated_linear_unit(x, gated[:, :1]), r"\[K, 2, N\] or a pair, got \(16, 1"),
            (lambda: bw.gated_linear_unit(x, gated, activation=1), "gated_linear_unit: activation"),
            (lambda: bw.gated_linear_unit(i, jnp.stack([i, i], 1)), "gated_linear_unit: .* int32"),
            (lambda: bw.gated_linear_unit(i, (i, i)), "gated_linear_unit: .* got int32"),
        ]
        for call, message in cases:
            with pytest.raises(TypeError, match=message):
                call()

    def test_of_matmul(self, arrays) -> None:
        x, w, b = (arrays[name] for name in "xwb")
        integers = jnp.ones((4, 4), jnp.int32)
        cases = [
            (lambda: bw.matmul(x, w, epilogue="gelu"), "epilogue must be a function, got str"),
            (lambda: bw.matmul(x, w, epilogue_operands=[b]), "1 epilogue_operands and no epilogue"),
            (lambda: bw.matmul(x, w, epilogue=Unhashable()), "matmul: epilogue must be hashable"),
            (lambda: bw.matmul(integers, integers, epilogue=lambda z: z), "got int32"),
            (
                lambda: bw.matmul(x, w, epilogue=lambda z, r: z, epilogue_operands=[b[:5]]),
                r"matmul: epilogue operand 0 of shape \(5,\) does not broadcast to \(6, 24\)",
            ),
        ]
        for call, message in cases:
            with pytest.raises(TypeError, match=message):
                call()
