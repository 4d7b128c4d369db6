"""Operations after a product become part of it, where nothing is lost by that."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import assert_defined_once
from numerics import LINKED, normal

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.contraction import LinkableDense, SplitDense
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.linker import NoLinkerError
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p, link_refusal
from jax_bwgemm.epilogue.program import MATRICES
from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue
from jax_bwgemm.product.implementations import DEFAULT_IMPLEMENTATIONS
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.rewriting import epilogue_functions, fuse, slopes
from jax_bwgemm.rewriting.rewrite import rewrite

M, K, N = 128, 192, 256
F32 = jnp.float32


@pytest.fixture(autouse=True)
def _linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel runs: what is traced counts, and is then computed by XLA."""
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: None)
    with config.target("sm90"), config.linked_epilogues(True):
        yield


@pytest.fixture
def arrays() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = {"x": (M, K), "w": (K, N), "b": (N,), "v": (N, K), "c": (K,), "s": (N, N)}
    found = {name: jnp.asarray(normal(rng, s, "bfloat16")) for name, s in shapes.items()}
    for name in "wvs":
        found[name] = found[name] * jnp.bfloat16(found[name].shape[0] ** -0.5)
    return found


def fused(f: Any, *args: Any) -> list[tuple[list[tuple[int, ...]], int]]:
    """Of every fused equation: the axes of its operands, and how many results it has."""
    assert_defined_once(rewrite(jax.make_jaxpr(f)(*args), DEFAULT_IMPLEMENTATIONS)[0])
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
    return [
        ([x.axes for x in eqn.params["fused"].program.operands], len(eqn.outvars))
        for eqn, _ in equations(jaxpr)
        if eqn.primitive is bw_gemm_epilogue_p
    ]


def check(f: Any, *args: Any) -> None:
    """Same results as without. Gradients are compared by their largest value."""
    got, want = jax.jit(bw.accelerate(f))(*args), jax.jit(f)(*args)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        ours, theirs = jnp.asarray(ours), jnp.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        scale = max(float(jnp.max(jnp.abs(theirs.astype(F32)))), 1e-6)
        ours, theirs = (np.asarray(x.astype(F32)) / scale for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=4 * LINKED["rtol"], atol=4 * LINKED["atol"])


def mlp(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    return jax.nn.gelu(x @ w + b) @ v + c


def test_a_short_k_is_ours_if_a_kernel_takes_more_along(
    arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = arrays["x"][:, :16], arrays["w"][:16]
    assert fused(lambda x, w: jax.nn.gelu(x @ w), x, w) == [([], 1)]
    monkeypatch.setattr(fuse, "link_refusal", lambda *_: "no reason")
    jax.clear_caches()
    assert fused(lambda x, w: jax.nn.gelu(x @ w), x, w) == []


@pytest.mark.parametrize("activation", [jax.nn.silu, jax.jit(jax.nn.gelu)])
def test_a_function_whose_other_results_are_read(arrays: Any, activation: Any) -> None:
    """Of a jitted activation a kernel writes one result: the rest of it computes no other."""

    def loss(a: dict[str, jax.Array]) -> jax.Array:
        hidden = activation(a["x"] @ a["w"] + a["b"])
        return jnp.mean((hidden @ a["v"]).astype(F32) ** 2)

    step = jax.value_and_grad(loss)
    jaxpr = jax.make_jaxpr(bw.accelerate(step))(arrays)
    read = {id(v) for e in jaxpr.eqns for v in e.invars}
    bodies = [e for e in jaxpr.eqns if e.primitive.name in ("jit", "pjit")]
    assert not [v for e in bodies for v in e.outvars if v.aval.shape == (M, N) and id(v) in read]
    check(step, arrays)


def test_a_kernel_is_chosen_once_for_equal_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep the network is: choosing compares predictions of every kernel."""
    choose, chosen = Fused._choose, []

    def counted(self: Fused, *args: Any) -> Any:
        chosen.append(self)
        return choose(self, *args)

    def refusal(operands: Any, one: Fused) -> None:
        one.choose("cutlass", "cuda", operands)

    monkeypatch.setattr(Fused, "_choose", counted)
    monkeypatch.setattr(fuse, "link_refusal", refusal)
    monkeypatch.setattr(slopes, "link_refusal", refusal)
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 128), (128, 128)))

    def step(layers: int) -> int:
        def network(weights: Any, x: Any) -> Any:
            for w in weights:
                x = jax.nn.gelu(x @ w)
            return jnp.sum(x.astype(F32))

        del chosen[:]
        text = str(jax.make_jaxpr(bw.accelerate(jax.grad(network)))([w] * layers, x))
        assert text.count("bw_gemm_epilogue[") >= layers
        return len(chosen)

    assert 0 < step(5) == step(3)


def test_bias_and_activation_between_products(arrays) -> None:
    args = [arrays[name] for name in "xwbvc"]
    # The second layer's result goes to memory too.
    assert fused(mlp, *args) == [([(1,)], 1), ([(1,)], 1)]
    check(mlp, *args)


def test_a_training_step_keeps_the_product_alone(arrays) -> None:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(mlp(x, *params).astype(F32)))

    params = tuple(arrays[name] for name in "wbvc")
    step = jax.value_and_grad(loss)
    # Forward: the activation and the product; then the cotangent of the loss, and the product,
    # which the loss needs, and the second bias's gradient. Backward: the activation's derivative,
    # from product and bias, and the first bias's gradient.
    found = fused(step, params, arrays["x"])
    assert found == [([(1,)], 2), ([(1,)], 3), ([(0, 1), (1,)], 2)]
    check(step, params, arrays["x"])
    check(jax.grad(lambda *a: bw.accelerate(loss)(*a)), params, arrays["x"])


def test_residuals_scales_and_leading_dimensions(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")
    x = x.reshape(2, M // 2, K)
    r, t = jnp.ones((2, M // 2, N), jnp.bfloat16), jnp.ones((2, M // 2, 1), jnp.bfloat16)

    def f(x: Any, w: Any, b: Any, r: Any, t: Any) -> Any:
        return jax.nn.relu(x @ w + b) * t * 0.5 + r

    assert fused(f, x, w, b, r, t) == [([(1,), (0,), (0, 1)], 1)]
    check(f, x, w, b, r, t)


@pytest.mark.parametrize("kind", ["scan", "cond", "while", "jit", "checkpoint", "custom_vjp"])
def test_within_bodies(arrays, kind: str) -> None:
    s, x = arrays["s"], jnp.ones((M, N), jnp.bfloat16)

    def layer(x: Any, s: Any) -> Any:
        return jnp.tanh(x @ s) + x

    custom = jax.custom_vjp(layer)
    custom.defvjp(lambda x, s: (layer(x, s), (x, s)), lambda r, g: jax.vjp(layer, *r)[1](g))

    def f(x: Any, s: Any) -> Any:
        if kind == "scan":
            return jax.lax.scan(lambda x, _: (layer(x, s), None), x, length=3)[0]
        if kind == "cond":
            return jax.lax.cond(jnp.sum(x) > 0, layer, lambda x, s: x, x, s)
        if kind == "while":
            return jax.lax.fori_loop(0, 3, lambda _, x: layer(x, s), x)
        return {"jit": jax.jit(layer), "checkpoint": jax.checkpoint(layer)}.get(kind, custom)(x, s)

    assert fused(f, x, s) == [([(0, 1)], 1)]
    check(f, x, s)
    if kind != "while":
        check(jax.grad(lambda x, s: jnp.sum(f(x, s).astype(F32))), x, s)


def test_what_only_passes_read_stays_with_them(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")
    for f in (
        lambda x, w, b: jnp.sum(jnp.square((x @ w + b).astype(F32)), -1),
        lambda x, w, b: (x @ w + b).astype(F32),
        lambda x, w, b: jax.nn.softmax((x @ w).astype(F32)),
        lambda x, w, b: x @ w,
    ):
        assert fused(f, x, w, b) == []
        check(f, x, w, b)


def test_what_comes_later_is_no_operand(arrays) -> None:
    x, s = jnp.ones((M, N), jnp.bfloat16), arrays["s"]

    def f(x: Any, s: Any) -> Any:
        first = x @ s
        second = jnp.sin(x) @ s
        return jnp.tanh(first) * second

    assert fused(f, x, s) == [([(0, 1)], 1)]  # the second takes the first along
    check(f, x, s)


def test_results_with_other_readers_are_kept(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")

    def f(x: Any, w: Any, b: Any) -> Any:
        z = x @ w
        y = jax.nn.silu(z + b)
        return z, y, jnp.sum(z.astype(F32)), y.T @ y

    assert fused(f, x, w, b) == [([(1,)], 2)]
    check(f, x, w, b)


def test_not_elementwise_not_of_the_shape_or_with_effects(arrays, capfd) -> None:
    x, s, c = jnp.ones((N, N), jnp.bfloat16), arrays["s"], jnp.ones((N, 1), jnp.bfloat16)

    def printing(y: Any) -> Any:
        jax.debug.print("seen")
        return y + 1

    cases = [
        lambda x, s, c: jnp.cumsum(x @ s, axis=0),
        lambda x, s, c: (x @ s)[::-1],
        lambda x, s, c: (x @ s).reshape(2, N // 2, N) + jnp.ones((2, 1, 1), jnp.bfloat16),
        lambda x, s, c: jax.lax.erf_inv(x @ s),
        lambda x, s, c: jax.lax.broadcast_in_dim(c, (N, N, 2), (0, 1))[..., 0] + jnp.sort(x @ s),
    ]
    for f in cases[:2] + cases[3:]:
        assert fused(f, x, s, c) == []
        check(f, x, s, c)
    transposed = lambda x, s, c: (x @ s) + x.T  # noqa: E731
    assert fused(transposed, x, s, c) == []
    check(transposed, x, s, c)
    f = lambda x, s, c: printing(x @ s)  # noqa: E731
    check(f, x, s, c)
    assert "seen" in capfd.readouterr().out


def test_operands_are_computed_again_from_what_is_in_memory(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")
    r = jnp.ones((M, N), jnp.bfloat16)

    def f(x: Any, w: Any, b: Any, r: Any) -> Any:
        gate = jax.nn.sigmoid(jnp.sin(r) + b)  # a pass of its own otherwise
        return (x @ w) * gate

    assert fused(f, x, w, b, r) == [([(0, 1), (1,)], 1)]
    check(f, x, w, b, r)


def test_within_shard_map(arrays) -> None:
    args = [arrays[name] for name in "xwb"]
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec
    specs = {"in_specs": (p("i"), p(), p()), "out_specs": p("i")}

    def layer(x: Any, w: Any, b: Any) -> Any:
        return jnp.tanh(x @ w + b)

    for vma in (True, False):
        f = jax.shard_map(layer, mesh=mesh, check_vma=vma, **specs)
        assert fused(f, *args) == [([(1,)], 1)]
        check(f, *args)
        check(jax.grad(lambda x, w, b, f=f: jnp.sum(f(x, w, b).astype(F32)), (0, 1, 2)), *args)


@pytest.mark.parametrize("activation", [jax.nn.gelu, jax.nn.relu, jax.nn.silu, jax.nn.softplus])
def test_constants_within_shard_map(arrays, activation: Any) -> None:
    """Data parallel steps: constants do not vary over mesh axes until they meet what does."""
    args = [arrays[name] for name in "xwb"]
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(p("i"), p(), p()), out_specs=p())
    def gradients(x: Any, w: Any, b: Any) -> Any:
        def loss(w: Any, b: Any) -> Any:
            y = activation(x @ w + b) @ w.T
            return jnp.mean(jnp.square(y.astype(F32) - 1))

        return jax.lax.pmean(jax.value_and_grad(loss, (0, 1))(w, b), "i")

    assert len(fused(gradients, *args)) == 3
    check(gradients, *args)
    check(jax.grad(lambda x, w, b: gradients(x, w, b)[0]), *args)


def test_custom_derivatives_within_shard_map(arrays) -> None:
    """Their casts are for operands of the types that they were traced with."""

    @jax.custom_jvp
    def layer(y: Any, b: Any) -> Any:
        return jnp.maximum(y + b, 0) * 2.0

    layer.defjvp(lambda primals, tangents: (layer(*primals), tangents[0] * 2.0))
    args = [arrays[name] for name in "xwb"]
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    p = jax.sharding.PartitionSpec
    for split, count in ((p(), 0), (p("i"), 1)):
        x, w, b = args
        b = b if split == p() else jnp.concatenate([b, b])
        specs = {"in_specs": (p("i"), p(), split), "out_specs": p("i")}
        f = jax.shard_map(lambda x, w, b: layer(x @ w, b), mesh=mesh, **specs)
        assert len(fused(f, x, w, b)) == count
        check(f, x, w, b)


def test_explicit_sharding_stays(arrays) -> None:
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
        x, w, b = jax.device_put(arrays["x"], rows), arrays["w"], arrays["b"]
        check(lambda x, w, b: jnp.tanh(x @ w + b), x, w, b)


def test_constant_and_repeated_results(arrays) -> None:
    x, w, b = (arrays[name] for name in "xwb")

    def f(x: Any, w: Any, b: Any) -> Any:
        y = jnp.tanh(x @ w + b)
        return 1.0, y, jnp.float32(2), y

    assert fused(f, x, w, b) == [([(1,)], 1)]
    check(f, x, w, b)


def test_off_by_default(arrays) -> None:
    args = [arrays[name] for name in "xwbvc"]
    with config.linked_epilogues(False):
        assert fused(mlp, *args) == []


def test_products_of_other_types_stay(arrays) -> None:
    x, w = arrays["x"], arrays["w"]

    def wide(x: Any, w: Any) -> Any:
        return jnp.tanh(jax.lax.dot(x, w, preferred_element_type=F32))

    assert fused(wide, x, w) == []
    check(wide, x, w)


def test_batches(arrays) -> None:
    x, b = arrays["x"].reshape(2, M // 2, K), arrays["b"]
    w = jnp.stack([arrays["w"], -arrays["w"]])

    def experts(x: Any, w: Any, b: Any) -> Any:
        return jnp.tanh(jnp.einsum("eij,ejk->eik", x, w) + b)

    def step(x: Any, w: Any, b: Any) -> Any:
        loss = lambda *xs: jnp.sum(experts(*xs).astype(F32) * 0.5)  # noqa: E731
        return jax.grad(loss, (0, 1, 2))(x, w, b)

    own = jnp.stack([b, b + 1])[:, None]
    heads = own.reshape(2, 1, 1, N) * jnp.ones((1, 3, 1, 1), own.dtype)
    assert fused(experts, x, w, b) == [([(1,)], 1)]
    assert fused(experts, x, w, own) == [([(MATRICES, 1)], 1)]
    check(experts, x, w, own)
    check(step, x, w, own)

    def two_dims(x: Any, w: Any, own: Any) -> Any:
        return jnp.tanh(jnp.einsum("bhij,bhjk->bhik", x, w) * own)

    many = [jnp.stack([a] * 3, 1) for a in (x, w)]
    assert fused(two_dims, *many, heads) == [([(MATRICES, 1)], 1)]
    assert fused(two_dims, *many, heads[:, :1]) == []  # along one of the batch's dimensions
    check(two_dims, *many, heads)


def test_sums_of_each_matrix(arrays) -> None:
    x, w = arrays["x"].reshape(2, M // 2, K), jnp.stack([arrays["w"], -arrays["w"]])

    def f(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, jnp.sum(y, 1)

    def whole(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, jnp.sum(y, (0, 1))

    assert fused(f, x, w) == [([], 2)]
    assert fused(whole, x, w) == [([], 1)]
    check(f, x, w)
    check(whole, x, w)


class TestWhatXlaWouldTakeAlong:
    """A bias or a residual is in the kernel, or with the product in XLA's; never a pass."""

    def products(self, f: Any, *args: Any) -> list[str]:
        jaxpr = jax.make_jaxpr(bw.accelerate(f))(*args)
        names = [eqn.primitive.name for eqn, _ in equations(jaxpr)]
        return [n for n in names if n in ("dot_general", "bw_gemm", "bw_gemm_epilogue")]

    def test_in_the_kernel(self, arrays) -> None:
        args = [arrays[name] for name in "xwb"]
        assert self.products(lambda x, w, b: x @ w + b, *args) == ["bw_gemm_epilogue"]

    def test_by_another_kernel(self, arrays) -> None:
        """LoRA; the gradient of what several products read: of two that are added, one adds."""
        x, w, s = (arrays[name] for name in "xws")
        args = x, w, jnp.ones((M, N), jnp.bfloat16), s

        def f(x: Any, w: Any, y: Any, s: Any) -> Any:
            return x @ w + y @ s

        assert self.products(f, *args) == ["bw_gemm", "bw_gemm_epilogue"]
        check(f, *args)
        explained = bw.explain_program(bw.accelerate(f), *args, device="sm90")
        assert all(one.rewritten for one in explained.rewrites)

    def test_with_xla(self, arrays, monkeypatch) -> None:
        monkeypatch.setattr(fuse, "link_refusal", lambda *_: "no reason")
        f = lambda x, w, b: x @ w + b  # noqa: E731
        args = [arrays[name] for name in "xwb"]
        assert self.products(f, *args) == ["dot_general"]
        text = str(bw.explain_program(bw.accelerate(f), *args, device="sm90"))
        assert "XLA takes the bias, residual or ReLU after it into the product" in text
        # What it would not take along is a pass in any case.
        args = [arrays[name] for name in "xwbvc"]
        assert self.products(mlp, *args) == ["bw_gemm_epilogue", "dot_general"]

    def test_within_a_loop(self, arrays, monkeypatch) -> None:
        monkeypatch.setattr(fuse, "link_refusal", lambda *_: "no reason")

        def f(x: Any, s: Any, b: Any) -> Any:
            return jax.lax.scan(lambda h, _: (h @ s + b, None), x @ s, length=3)[0]

        args = arrays["x"] @ arrays["w"], arrays["s"], arrays["b"]
        assert self.products(f, *args) == ["bw_gemm", "dot_general"]
        check(f, *args)


def test_why_nothing_is_linked(monkeypatch) -> None:
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((1, 64, 64), (1, 64, 64))]
    program = trace_epilogue(lambda z: z + 1, (64, 64), ()).program
    spec = GemmSpec(policy=Policy(implementations=("cutlass", "xla")), out_dtype="bfloat16")
    fused = Fused(spec, lambda z: [z + 1], program, ("bfloat16",), (64, 64))
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    assert link_refusal(shapes, fused) == "XLA may partition the program over several devices"
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)

    def none() -> None:
        raise NoLinkerError("no linker")

    monkeypatch.setattr(linking, "linker", none)
    assert link_refusal(shapes, fused) == "no linker"
    monkeypatch.setattr(linking, "linker", lambda: None)
    for kind in (LinkableDense, SplitDense):
        monkeypatch.setattr(kind, "kernels", lambda *_: ())
    assert "no kernels that epilogues are linked into" in str(link_refusal(shapes, fused))
    only_xla = dataclasses.replace(fused, spec=spec.with_policy(implementations=("xla",)))
    assert link_refusal(shapes, only_xla) == "no kernels for cpu are allowed"


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, "shard_map"])
@pytest.mark.parametrize("unread", ["product", "multiple", "mean"])
def test_results_of_bodies_that_nothing_reads(arrays, wrap: Any, unread: str) -> None:
    """Such as a metric: outside of jit they are still results of the body."""
    of = {"product": lambda z: z, "multiple": lambda z: z * 2, "mean": lambda z: jnp.mean(z**2)}

    def layer(x: Any, w: Any, b: Any) -> Any:
        z = x @ w
        return jax.nn.gelu(z + b), of[unread](z)

    if wrap == "shard_map":
        p = jax.sharding.PartitionSpec()
        mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        wrap = functools.partial(jax.shard_map, mesh=mesh, in_specs=p, out_specs=p)
    model = lambda x, w, b, v: wrap(layer)(x, w, b)[0] @ v  # noqa: E731
    args = [arrays[name] for name in "xwbv"]
    assert len(fused(model, *args)) == 1
    check(model, *args)
    got, want = bw.accelerate(model)(*args), model(*args)
    np.testing.assert_allclose(got.astype(F32), want.astype(F32), rtol=0.05, atol=0.05)


def test_types_that_no_kernel_has_end_a_function(arrays) -> None:
    """Fake quantization: what comes before it is fused."""

    def f(x: Any, w: Any, v: Any) -> Any:
        h = jax.nn.gelu(x @ w)
        return h @ v, h.astype(jnp.float8_e4m3fn).astype(h.dtype) @ v

    args = [arrays[name] for name in "xwv"]
    assert len(fused(f, *args)) == 1
    check(f, *args)


def test_why_a_function_stays_with_xla_is_said(arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise EpilogueError("an epilogue cannot have 'such'")

    monkeypatch.setattr(epilogue_functions, "trace_epilogue", refuse)
    args = [arrays[name] for name in "xw"]
    f = bw.accelerate(lambda x, w: jax.nn.gelu(x @ w))
    (one,) = bw.explain_program(f, *args, device="sm90").rewrites
    assert one.reason.endswith("what follows is a pass of XLA's: an epilogue cannot have 'such'")


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (lambda x, w, more: jax.nn.gelu(x @ w) + sum(more), "more than 8 operands"),
        (lambda x, w, more: [jnp.sin(x @ w) * r for r in more[:5]], "more than 4 results"),
        (
            lambda x, w, more: [x @ w, *(jnp.sin(x @ w) * r for r in more[:4])],
            "more than 4 results, the product being one",
        ),
        (
            lambda x, w, more: jax.nn.gelu(jnp.matmul(x, w, preferred_element_type=F32)).astype(
                x.dtype
            ),
            "operands and result are not of one type",
        ),
        (
            lambda x, w, more: jnp.tanh(
                jax.lax.dot(x.astype(F32), w, preferred_element_type=F32)  # one operand is narrower
            ),
            "operands and result are not of one type",
        ),
    ],
)
def test_why_kernels_cannot_take_what_follows_is_said(f: Any, reason: str, arrays: Any) -> None:
    x, w = arrays["x"], arrays["w"]
    more = [jnp.full((M, N), i, x.dtype) for i in range(9)]
    (one,) = bw.explain_program(bw.accelerate(f), x, w, more, device="sm90").rewrites
    assert one.rewritten
    assert one.reason.endswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reduce_batch": True}, "the product sums a batch of products"),
        ({"out_sharding": jax.sharding.PartitionSpec()}, "the product has an out_sharding"),
        ({}, None),
    ],
)
def test_products_that_no_function_follows_in_a_kernel(
    changes: dict[str, Any], reason: str | None, arrays: Any
) -> None:
    jaxpr = jax.make_jaxpr(bw.matmul)(arrays["x"], arrays["w"])
    (product,) = [e for e, _ in equations(jaxpr) if e.primitive in fuse.KINDS]
    spec = dataclasses.replace(product.params["spec"], **changes)
    changed = product.replace(params=product.params | {"spec": spec})
    assert fuse.KINDS[product.primitive].why_not(changed) == reason


def test_a_reshape_of_the_columns_ends_what_a_kernel_takes(arrays: Any) -> None:
    """A bias of one head is no row of the result."""
    x, w, b = arrays["x"], arrays["w"], arrays["b"][: N // 4]
    heads = lambda x, w, b: jax.nn.gelu((x @ w).reshape(M, 4, N // 4) + b)  # noqa: E731
    assert fused(heads, x, w, b) == []
    check(heads, x, w, b)


def test_one_of_two_sums_where_both_are_too_many(
    arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = lambda _, fused: "too many" * (len(fused.program.summed) > 1) or None  # noqa: E731
    monkeypatch.setattr(fuse, "link_refusal", few)

    def f(x: Any, w: Any) -> Any:
        y = jax.nn.gelu(x @ w)
        return y, jnp.sum(y, 0), jnp.sum(y * 2, 0)

    jax.clear_caches()
    assert fused(f, arrays["x"], arrays["w"]) == [([], 2)]


def test_a_jitted_print_of_a_product_stays(arrays: Any, capfd: Any) -> None:
    """It has no results, but an effect."""
    show = jax.jit(lambda z: jax.debug.print("largest {}", jnp.max(z)))

    def f(x: Any, w: Any) -> Any:
        z = x @ w
        show(z)
        return jax.nn.gelu(z)

    jax.block_until_ready(jax.jit(bw.accelerate(f))(arrays["x"], arrays["w"]))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("largest") == 1


def test_a_product_that_a_body_returns_twice_of_which_one_is_read(arrays: Any) -> None:
    def twice(x: Any, w: Any) -> Any:
        z = x @ w
        return jax.nn.gelu(z), z, z

    def f(x: Any, w: Any) -> Any:
        h, z, _ = jax.jit(twice)(x, w)
        return h, jnp.sort(z)

    check(f, arrays["x"], arrays["w"])


@pytest.mark.parametrize("also", [0, 1])
def test_costs_know_whether_a_pass_also_reads_the_result(arrays: Any, also: int) -> None:
    """Then a pass would have computed it on its way."""

    def f(x: Any, w: Any) -> Any:
        y = jax.nn.gelu(x @ w)
        return (y, jnp.sum(jnp.sin(y))) if also else y

    jaxpr = jax.make_jaxpr(bw.accelerate(f))(arrays["x"], arrays["w"])
    (one,) = [e for e, _ in equations(jaxpr) if e.primitive is bw_gemm_epilogue_p]
    assert one.params["fused"].surroundings.also_read == also


@pytest.mark.parametrize("taken", [False, True])
def test_costs_know_whether_xla_takes_the_function(arrays: Any, taken: bool) -> None:
    """A residual into its product; the kernel pays in either case for a K of 32."""
    x, w = arrays["x"][:, :32], arrays["w"][:32]
    f = lambda x, w, r: (x @ w) + r if taken else jax.nn.gelu(x @ w) * r  # noqa: E731
    jaxpr = jax.make_jaxpr(bw.accelerate(f))(x, w, jnp.ones((M, N), x.dtype))
    (one,) = [e for e, _ in equations(jaxpr) if e.primitive is bw_gemm_epilogue_p]
    assert one.params["fused"].surroundings.taken_by_xla is taken


def test_the_second_result_of_what_is_computed_after_the_product(arrays: Any) -> None:
    """It is computed before the kernel that reads it."""
    two = jax.jit(lambda b: (b * 2, b + 1))

    def f(x: Any, w: Any, b: Any) -> Any:
        z = x @ w
        _, second = two(b)
        return jax.nn.gelu(z + second)

    args = [arrays[name] for name in "xwb"]
    assert fused(f, *args) == [([(1,)], 1)]
    check(f, *args)


def test_what_follows_does_not_pay_for_a_transposed_operand(arrays: Any) -> None:
    """Copies cost the same whether a kernel takes more along or not."""
    f = lambda q, k: jax.nn.gelu(jnp.einsum("qhd,khd->hqk", q, k))  # noqa: E731
    q = jnp.ones((256, 8, 64), jnp.bfloat16)
    assert fused(f, q, q) == []
