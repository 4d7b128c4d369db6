"""`accelerate`: what a function keeps when its products are rewritten."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from accelerated import SIZE, counts, square
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_bwgemm as bw


def test_used_as_a_decorator() -> None:
    @bw.accelerate
    def f(x: jax.Array) -> jax.Array:
        """Doc."""
        return x @ x

    @bw.accelerate(implementation=("cutlass", "xla"))
    def g(x: jax.Array) -> jax.Array:
        return x @ x

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    assert counts(f, square()) == counts(g, square()) == (1, 0)
    np.testing.assert_array_equal(f(square()), square() @ square())

    class Layer:
        @bw.accelerate
        def __call__(self, x: jax.Array) -> jax.Array:
            return x @ x

    assert counts(Layer(), square()) == (1, 0)


def test_only_what_is_allowed() -> None:
    def f(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum(x @ x) + jnp.sum(y @ y)

    x, y = square(), square().astype(jnp.int8)
    assert counts(bw.accelerate(f, implementation="xla"), x, y) == (0, 2)
    # Kernels only, where kernels can: the integers are not refused, they stay.
    assert counts(bw.accelerate(f, implementation="cutlass"), x, y) == (1, 1)
    with pytest.raises(NotImplementedError, match="runs on cuda, this program is lowered for cpu"):
        jax.jit(bw.accelerate(f, implementation="cutlass")).lower(x, y)


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def asyncgen() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("f", [coroutine, generator, asyncgen])
@pytest.mark.parametrize("name", ["accelerate", "autocast"])
def test_functions_whose_calls_return_nothing_yet(name: str, f: Any) -> None:
    message = f"{name} takes a function that returns results, got a {f.__name__}"
    called = type("Called", (), {"__call__": f})
    for one in (f, called()):
        with pytest.raises(TypeError, match=message):
            getattr(bw, name)(one)


@pytest.mark.parametrize("name", ["accelerate", "autocast"])
def test_errors_while_tracing_name_the_user_s_function(name: str) -> None:
    def step(params: dict[str, Any], kind: str, batch: jax.Array) -> Any:
        return params["w"] if batch.sum() > 0 else kind

    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        getattr(bw, name)(step)({"w": square()}, "a", batch=square())
    text = str(error.value)
    assert "step at " in text
    assert f"for {name}." in text
    assert "the argument batch" in text


@pytest.mark.parametrize("jit", [False, True])
def test_within_compile_time_evaluation(jit: bool) -> None:
    """JAX then computes zeros and counts while they are traced; they stay part of the program."""
    x = square()
    labels = jnp.arange(len(x))

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        logits = (x @ w).astype(jnp.float32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        mlp = bw.mlp(x, w, w, activation="silu", implementation="xla")
        return mlp.astype(jnp.float32).sum() - picked.sum()

    ours = bw.accelerate(jax.grad(loss, (0, 1)))
    want = jax.jit(jax.grad(loss, (0, 1)))(x, x)
    with jax.ensure_compile_time_eval():
        got = (jax.jit(ours) if jit else ours)(x, x)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=0.05, atol=0.5)


def test_errors() -> None:
    with pytest.raises(TypeError, match="accelerate takes a function, got int"):
        bw.accelerate(3)
    with pytest.raises(ValueError, match="unknown implementation 'cuda'"):
        bw.accelerate(jnp.sin, implementation="cuda")


def test_other_arguments_reach_the_function_as_they_are() -> None:
    seen: list[Any] = []

    def f(x: jax.Array, *rest: Any, flag: bool, tree: dict) -> dict[str, Any]:
        seen.append((rest, flag, tree["name"], type(tree["host"])))
        y = x @ x
        return {"y": y * rest[0] if flag else y, "rest": rest, "none": None, "host": tree["host"]}

    x, host = square(), np.arange(3)
    got = bw.accelerate(f)(x, 2.0, "text", jnp.sin, flag=True, tree={"name": "n", "host": host})
    assert seen == [((2.0, "text", jnp.sin), True, "n", np.ndarray)]
    assert got["y"].dtype == jnp.bfloat16  # a Python scalar's type is weak
    np.testing.assert_array_equal(got["y"], 2 * (x @ x))
    assert got["rest"] == (2.0, "text", jnp.sin)
    assert got["none"] is None
    assert got["host"] is host


def test_types_of_arrays_reach_the_function_as_they_are() -> None:
    like = jax.ShapeDtypeStruct((3,), jnp.float32)
    assert bw.accelerate(lambda x, like: type(like))(jnp.ones(2), like) is jax.ShapeDtypeStruct


def test_eager_results_stay_uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: 1)  # then layouts are pinned under jit
    x, w = jnp.ones((4, 64, 128), jnp.bfloat16), jnp.ones((128, 128), jnp.bfloat16)
    f = lambda x: jnp.tanh(jnp.einsum("btk,kn->btn", x, w)).sum(0)  # noqa: E731
    with bw.config.target("sm90"):
        assert bw.accelerate(f)(x).committed == f(x).committed


def test_products_that_are_not_worth_padding_stay_with_xla() -> None:
    x, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4096, 1024), (1024, 10)))
    sizes, experts = (
        jax.ShapeDtypeStruct((4,), jnp.int32),
        jax.ShapeDtypeStruct((4, 1024, 10), w.dtype),
    )
    dense = lambda x, w: jax.nn.gelu(x @ w)  # noqa: E731
    for f, args in ((dense, (x, w)), (jax.lax.ragged_dot, (x, experts, sizes))):
        found = bw.explain_program(bw.accelerate(f), *args, device="sm90")
        (one,) = found.rewrites
        assert not one.rewritten
        assert "does not pay" in one.reason
        only = bw.accelerate(f, implementation="cutlass")  # at any cost
        (one,) = bw.explain_program(only, *args, device="sm90").rewrites
        assert one.rewritten


def test_a_result_that_only_dead_code_reads_is_not_written() -> None:
    x, w = (jnp.ones((1024, 1024), jnp.bfloat16) for _ in range(2))
    step = jax.grad(lambda x: jnp.tanh(x @ w).sum(dtype=jnp.float32))
    with bw.config.target("sm90"), bw.config.linked_epilogues(True):
        jaxpr = jax.make_jaxpr(bw.accelerate(step))(x)
    ours = [(e.primitive.name, len(e.outvars)) for e in jaxpr.eqns if "bw_" in e.primitive.name]
    assert ours == [("bw_gemm_epilogue", 1), ("bw_gemm", 1)]


def test_arrays_of_numpy_are_explained_as_jit_traces_them() -> None:
    x = np.ones((1024, 1024), jnp.bfloat16)
    found = bw.explain_program(jax.jit(bw.accelerate(lambda x: x @ x)), x, device="sm90")
    assert [one.rewritten for one in found.rewrites] == [True]

    def loop(x: jax.Array, times: int, scale: float) -> jax.Array:
        return jax.lax.fori_loop(0, times, lambda _, c: c @ x, x) * scale

    x = jnp.asarray(x)
    for options, place in (({}, "while body"), ({"static_argnums": 1}, "scan body")):
        step = jax.jit(bw.accelerate(loop), **options)
        (one,) = bw.explain_program(step, x, 3, 2.0, device="sm90").rewrites
        assert one.place == place


def test_static_arguments_of_an_outer_jit() -> None:
    @functools.partial(jax.jit, static_argnames=("times", "mode"))
    @bw.accelerate
    def f(x: jax.Array, times: int, mode: str = "sum") -> jax.Array:
        for _ in range(times):
            x = x @ x
        return x.sum() if mode == "sum" else x

    with bw.config.target("sm90"):
        traced = f.trace(square(), 3, mode="all")
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @bwgemm") == 3
    assert f(square(), 2).shape == ()


def test_weak_types_of_results() -> None:
    def f(x: jax.Array, s: Any) -> Any:
        return jnp.sum(x @ x), s + 1, jnp.asarray(1.0), 3

    for s in (1.5, jnp.asarray(1.5), jnp.asarray(2), np.float32(2)):
        got, want = bw.accelerate(f)(square(), s), f(square(), s)
        assert [getattr(x, "weak_type", type(x)) for x in got] == [
            getattr(x, "weak_type", type(x)) for x in want
        ]


def test_captured_tracers_and_outer_transformations() -> None:
    x = square()

    def outer(w: jax.Array) -> jax.Array:
        return jnp.sum(bw.accelerate(lambda y: y @ w)(x).astype(jnp.float32))

    want = jax.grad(lambda w: jnp.sum((x @ w).astype(jnp.float32)))(x)
    np.testing.assert_array_equal(jax.jit(jax.grad(outer))(x), want)


def test_a_jitted_function_keeps_donation_and_is_compiled_once() -> None:
    traces = []

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        traces.append(None)
        return state + jnp.sum(x @ x).astype(jnp.float32), x @ x

    accelerated = bw.accelerate(step)
    state = jnp.zeros((8, 8))
    for _ in range(3):
        old = state
        state, _ = accelerated(state, square())
        assert old.is_deleted()
    assert len(traces) == 1
    first, second = (_inner(accelerated, jnp.zeros((8, 8)), square()) for _ in range(2))
    assert first.params["jaxpr"] is second.params["jaxpr"]
    assert first.params["donated_invars"] == (True, False)


def _inner(f: Any, *args: Any) -> Any:
    (eqn,) = jax.make_jaxpr(f)(*args).eqns
    return eqn


def test_shardings_and_compiler_options_of_an_inner_jit(cpu_devices: list[jax.Device]) -> None:
    mesh = Mesh(cpu_devices[:2], ("d",))
    rows, columns = NamedSharding(mesh, P("d")), NamedSharding(mesh, P(None, "d"))

    @functools.partial(
        jax.jit, in_shardings=rows, out_shardings=columns, keep_unused=True, inline=False
    )
    def f(x: jax.Array) -> jax.Array:
        y = jax.lax.with_sharding_constraint(x @ x, rows)
        return jnp.tanh(y)

    x = square()
    got, want = bw.accelerate(f)(x), f(x)
    np.testing.assert_array_equal(got, want)
    assert got.sharding.is_equivalent_to(columns, 2)
    kept = ("in_shardings", "out_shardings", "donated_invars", "keep_unused", "inline", "name")
    plain, ours = _inner(f, x), _inner(bw.accelerate(f), x)
    assert {k: plain.params[k] for k in kept} == {k: ours.params[k] for k in kept}
    assert plain.params["jaxpr"] is not ours.params["jaxpr"]


def test_names_stay() -> None:
    def f(x: jax.Array) -> jax.Array:
        with jax.named_scope("block"), jax.named_scope("attention"):
            return jnp.tanh(x @ x)

    with bw.config.target("sm90"):
        lowered = jax.jit(bw.accelerate(f)).trace(square()).lower(lowering_platforms=("cuda",))
    text = lowered.as_text(debug_info=True)
    assert re.search(r"block/attention/(bw_gemm|ffi_call)", text)
    assert "test_accelerate.py" in text


def test_effects_stay_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: jax.Array) -> jax.Array:
        jax.debug.print("first {}", x[0, 0], ordered=True)
        y = x @ x
        jax.debug.print("second {}", y[0, 0], ordered=True)
        return y

    for step in (bw.accelerate(f), jax.jit(bw.accelerate(f)), bw.accelerate(jax.jit(f))):
        step(square())
        jax.effects_barrier()
        assert capfd.readouterr().out == "first 1.0\nsecond 1.0\n"


def test_keys_of_random_numbers() -> None:
    def f(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, used = jax.random.split(key)
        keep = jax.random.bernoulli(used, 0.5, x.shape)
        return key, jax.lax.scan(lambda c, k: (c @ x, k), x * keep, jax.random.split(key, 2))[0]

    key = jax.random.key(3)
    got, want = jax.jit(bw.accelerate(f))(key, square()), jax.jit(f)(key, square())
    assert jnp.array_equal(jax.random.key_data(got[0]), jax.random.key_data(want[0]))
    np.testing.assert_array_equal(got[1], want[1])


def test_integer_arguments_have_float0_gradients() -> None:
    def f(x: jax.Array, i: jax.Array) -> jax.Array:
        return jnp.sum((x @ x)[i]).astype(jnp.float32)

    step = jax.grad(f, argnums=(0, 1), allow_int=True)
    for accelerated in (
        bw.accelerate(step),
        jax.grad(bw.accelerate(f), argnums=(0, 1), allow_int=True),
    ):
        got, want = accelerated(square(), jnp.asarray(3)), step(square(), jnp.asarray(3))
        assert got[1].dtype == want[1].dtype == jax.dtypes.float0
        np.testing.assert_array_equal(got[0], want[0])


def test_symbolic_sizes_stay_with_xla() -> None:
    sizes = jax.export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct((*sizes, SIZE), jnp.bfloat16)
    accelerated = bw.accelerate(lambda x, w: x @ w)
    exported = jax.export.export(jax.jit(accelerated), platforms=("cpu",))(x, square())
    got = exported.call(jnp.ones((8, SIZE), jnp.bfloat16), square())
    np.testing.assert_array_equal(got, jnp.ones((8, SIZE), jnp.bfloat16) @ square())


def loss_of_indexed_labels(w: Any, x: Any, labels: Any) -> Any:
    logits = (x @ w).astype(jnp.float32)
    return jnp.sum(logits[jnp.arange(labels.shape[0]), labels])


def static_rows_times_a_symbolic_sum(w: Any, x: Any, labels: Any) -> Any:
    y = jax.lax.ragged_dot(square(), w[None], jnp.array([SIZE]))
    return jax.nn.silu(y) * jnp.sum(jnp.cumsum(labels)).astype(y.dtype), x


@pytest.mark.parametrize("f", [jax.grad(loss_of_indexed_labels), static_rows_times_a_symbolic_sum])
@pytest.mark.usefixtures("everything_links")
def test_symbolic_sizes_beside_static_ones(f: Any) -> None:
    (size,) = jax.export.symbolic_shape("n")
    x = jax.ShapeDtypeStruct((size, SIZE), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((size,), jnp.int32)
    exported = jax.export.export(jax.jit(bw.accelerate(f)), platforms=("cpu",))(square(), x, labels)
    args = square(), jnp.ones((8, SIZE), jnp.bfloat16), jnp.arange(8)
    for got, want in zip(
        jax.tree.leaves(exported.call(*args)), jax.tree.leaves(f(*args)), strict=True
    ):
        np.testing.assert_allclose(got.astype(jnp.float32), want.astype(jnp.float32), rtol=0.02)


def test_explains_what_precision_f32_needs() -> None:
    x = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)
    for implementation in (None, ("cutlass", "emulator")):
        program = bw.accelerate(lambda x: x @ x, implementation=implementation)
        (found,) = bw.explain_program(program, x, device="sm90").rewrites
        assert not found.rewritten
        assert "like that: precision=None of float32 operands is left to XLA" in found.reason


def test_explains_every_product_with_its_place() -> None:
    def f(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.checkpoint(lambda y: jnp.tanh(y @ x))(c), None

        y, _ = jax.lax.scan(body, x, length=4)
        y = jax.lax.cond(y[0, 0] > 0, lambda y: y @ x, lambda y: y, y)
        return y.astype(jnp.int8) @ y.astype(jnp.int8)

    x = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
    for program in (bw.accelerate(f), jax.jit(bw.accelerate(f))):
        explained = bw.explain_program(program, x, device="sm90")
        places = [(one.place, one.times, one.rewritten) for one in explained.rewrites]
        assert places == [
            ("scan body > checkpoint", 4, True),
            ("cond branch 1", 1, True),
            ("", 1, False),
        ]
        kernels = [times for found, times in explained.products if found.kernel is not None]
        assert sum(kernels) == 5
        assert all("test_accelerate.py:" in one.source for one in explained.rewrites)
    lines = str(explained).splitlines()
    start = lines.index("accelerate, of the products that it found:")
    assert lines[start + 1] == "4 x dot_general bf16[512,512] x bf16[512,512] -> bf16[512,512]"
    assert lines[start + 2] == "  rewritten: a kernel takes it"
    assert lines[start + 3].startswith("  in scan body > checkpoint, ")
    why = "  left to XLA: no kernel multiplies int8 x int8 -> int8 like that: kernels exist for "
    assert why in str(explained)
    assert bw.explain_program(f, x, device="sm90").rewrites == ()

    @functools.wraps(program)  # which copies the attributes by which a decorated function is known
    def around(x: jax.Array) -> jax.Array:
        return program(x @ x) + 1

    outside = bw.explain_program(around, x, device="sm90")
    assert outside.rewrites == explained.rewrites
    # Its own product is part of the program, too.
    assert sum(times for _, times in outside.products) > sum(n for _, n in explained.products)


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @bw.accelerate
    def method(self, x: jax.Array, *, times: int = 1) -> jax.Array:
        return (x * self.scale * times) @ x

    jitted = functools.partial(jax.jit, static_argnums=0)(method)


def test_products_that_only_other_gpus_have_kernels_for_stay() -> None:
    """Products of f32 by HIGHEST have kernels on Hopper alone."""
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)

    def product(x: Any) -> Any:
        return jnp.dot(x, x, precision="highest")

    (one,) = bw.explain_program(bw.accelerate(product), x, device="sm100").rewrites
    assert not one.rewritten
    assert one.reason == "no kernel for sm100 multiplies float32 by float32 with precision HIGHEST"
    with bw.config.target("sm100"):
        lowered = jax.jit(bw.accelerate(product, implementation="cutlass")).lower(x)
    assert "dot_general" in lowered.as_text()
    (one,) = bw.explain_program(bw.accelerate(product), x, device="sm90").rewrites
    assert one.rewritten


def test_products_within_what_is_not_rewritten_are_listed() -> None:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = jnp.dot(x[...], x[...])

    def call(x: Any) -> Any:
        return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    (one,) = bw.explain_program(bw.accelerate(call), jnp.ones((SIZE, SIZE))).rewrites
    assert not one.rewritten
    assert one.reason == "accelerate does not rewrite what it holds"
    assert one.place == "pallas_call"


@pytest.mark.parametrize("name", ["method", "jitted", "partial", "jitted partial"])
def test_explains_methods_and_partial_functions(name: str) -> None:
    found = {"method": Scaled(2).method, "jitted": Scaled(2).jitted}
    found["partial"] = functools.partial(functools.partial(Scaled(2).method, times=3), times=4)
    found["jitted partial"] = jax.jit(functools.partial(Scaled.method, Scaled(2)))
    x = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
    explained = bw.explain_program(found[name], x, device="sm90")
    (one,) = explained.rewrites
    assert one.rewritten
    ((product, times),) = explained.products
    assert (product.implementation, times) == ("cutlass", 1)


def test_attention_reads_heads_through_a_transpose() -> None:
    """Batch, tokens, heads, features: the dimension of heads follows the transpose."""
    q = jax.ShapeDtypeStruct((2, 2048, 8, 64), jnp.bfloat16)

    def scores(q: Any, k: Any) -> Any:
        q, k = (x.transpose(0, 2, 1, 3) for x in (q, k))
        return jax.lax.dot_general(q, k, (((3,), (3,)), ((0, 1), (0, 1))))

    explained = bw.explain_program(bw.accelerate(scores), q, q, device="sm90")
    assert [one.rewritten for one in explained.rewrites] == [True]
