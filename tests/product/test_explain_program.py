"""`explain_program`: every product of a program, with what it would run on."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from linked_cases import requires_linker

import jax_bwgemm as bw
from jax_bwgemm import runtime

M, N, K, G = 4096, 1024, 768, 8


def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


ROWS, MATRICES, SIZES = struct(M, K), struct(G, K, N), struct(G, dtype=jnp.int32)


@pytest.fixture(autouse=True)
def _built_for_both() -> None:
    if {k.arch for k in runtime.grouped_kernels()} != {"sm90", "sm100"}:
        pytest.skip("this build lacks the kernels of an architecture")


def lowered_kernels(f: Any, *args: Any, arch: str) -> list[str]:
    """The kernels in the program that JAX lowers for that GPU, in order."""
    with bw.config.target(arch):
        text = jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    return [part.split('"')[0] for part in text.split('kernel = "')[1:]]


def loss(x: jax.Array, w: jax.Array, v: jax.Array, sizes: jax.Array) -> jax.Array:
    hidden = bw.matmul(bw.ragged_dot(x, w, sizes), v)
    return jnp.sum(hidden.astype(jnp.float32) ** 2)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_names_the_kernels_that_lowering_takes(arch: str) -> None:
    args = (ROWS, MATRICES, struct(N, 512), SIZES)
    step = jax.grad(loss, (0, 1, 2))
    got = bw.explain_program(step, *args, device=arch)
    names = [found.kernel for found, times in got.products for _ in range(times)]
    assert None not in names
    assert sorted(names) == sorted(lowered_kernels(step, *args, arch=arch))
    assert len(names) == 6  # three of each kind
    kinds = {found.problem.split()[0] for found, _ in got.products}
    assert kinds == {"GEMM", "m-grouped", "k-grouped"}


def square(y: jax.Array) -> jax.Array:
    return jnp.sum(y.astype(jnp.float32) ** 2)


ROUTED = struct(M, 2, dtype=jnp.int32), struct(M, 2)
# Layers whose backward pass is one equation, and their operands.
LAYERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mlp": (lambda x, w, v: square(bw.mlp(x, w, v, activation="gelu")), ()),
    "pair": (lambda x, w, v: square(bw.mlp(x, (w, w), v, activation="silu")), ()),
    "blocks": (lambda x, w, v: square(bw.mlp(x, w, v, activation="gelu", recompute=2)), ()),
    "experts": (
        lambda x, w, v, e, p: square(bw.moe_mlp(x, jnp.stack([w] * 4), jnp.stack([v] * 4), e, p)),
        ROUTED,
    ),
    "loss": (
        lambda x, w, v, e, p: bw.linear_softmax_cross_entropy_loss(
            bw.matmul(x, w), e[:, 0], v, logits="recomputed"
        ),
        ROUTED,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_names_the_kernels_of_layers_and_of_their_gradients(name: str, arch: str) -> None:
    f, more = LAYERS[name]
    args = (struct(M, K), struct(K, N), struct(N, K), *more)
    step = jax.value_and_grad(f, (0, 1, 2))
    with bw.config.linked_epilogues(False):
        got = bw.explain_program(step, *args, device=arch)
        want = lowered_kernels(step, *args, arch=arch)
    assert sorted(x.kernel for x, times in got.products for _ in range(times)) == sorted(want)


def test_counts_products_of_gradients_under_shard_map() -> None:
    f, _ = LAYERS["mlp"]
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    step = jax.grad(f, (0, 1, 2))
    args = (struct(M, K), struct(K, N), struct(N, K))
    split = jax.shard_map(
        step, mesh=mesh, in_specs=(P("rows"), P(), P()), out_specs=(P("rows"), P(), P())
    )
    whole = 6 * 2 * M * N * K
    assert bw.explain_program(step, *args, device="sm90").flops == whole
    assert bw.explain_program(split, *args, device="sm90").flops == whole // 2


@requires_linker
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_decides_for_the_device_what_is_decided_while_tracing(arch: str) -> None:
    """Whether the product of gate and up has an epilogue."""

    def f(x: jax.Array, ups: jax.Array, downs: jax.Array, e: jax.Array, p: jax.Array) -> jax.Array:
        return bw.moe_mlp(x, ups, downs, e, p)

    args = (struct(M, 512), struct(G, 512, 2, 1024), struct(G, 1024, 512), *ROUTED)
    got = bw.explain_program(f, *args, device=arch)
    with bw.config.target(arch):
        want = bw.explain_program(f, *args)
    assert str(got) == str(want)
    assert ("an epilogue of 1 operand" in str(got)) == (arch == "sm90")


def test_reads_well() -> None:
    text = str(bw.explain_program(bw.ragged_dot, ROWS, MATRICES, SIZES, device="sm90"))
    first, *rest = text.splitlines()
    assert first == (
        "1 x m-grouped GEMM bfloat16 x bfloat16 -> bfloat16, majors kn, "
        f"M={M} N={N} K={K} E={G} G={G}"
    )
    assert [line.split()[0] for line in rest] == ["implementation", "kernel", "tile", "why"]
    assert f"{M // G} rows per group assumed" in text


def test_says_what_else_was_considered() -> None:
    ((found, _),) = bw.explain_program(bw.ragged_dot, ROWS, MATRICES, SIZES, device="sm90").products
    assert len(found.rejected) == len(runtime.grouped_kernels()) - 1
    assert "kernels: for sm100" in str(found)


def test_expects_the_representative_sizes() -> None:
    typical = (M - 7, *[1] * 7)
    call = functools.partial(bw.ragged_dot, representative_group_sizes=typical)
    text = str(bw.explain_program(call, ROWS, MATRICES, SIZES, device="sm90"))
    assert "rows per group expected" in text


def test_a_loops_body_counts_as_often_as_it_runs() -> None:
    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(lambda x, _: (bw.matmul(x, w), None), x, length=5)
        return bw.matmul(x, w)

    ((found, times),) = bw.explain_program(
        f, struct(512, 512), struct(512, 512), device="sm90"
    ).products
    assert times == 6
    assert found == bw.explain(struct(512, 512), struct(512, 512), device="sm90")


@pytest.mark.parametrize("implementation", [None, ("emulator", "cutlass")])
def test_a_sum_over_a_batch_is_explained_by_what_replaces_it(implementation: Any) -> None:
    """The gradient of matrices that a batch shares: on one device, rows of all become one."""
    ragged_dot = functools.partial(bw.ragged_dot, implementation=implementation)

    def f(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(ragged_dot, (0, None, 0))(x, w, sizes).astype(jnp.float32))

    args = (struct(3, M, K), MATRICES, struct(3, G, dtype=jnp.int32))
    step = jax.value_and_grad(f, 1)
    got = bw.explain_program(step, *args, device="sm90")
    names = [found.kernel for found, _ in got.products]
    assert names == lowered_kernels(step, *args, arch="sm90")
    summed = [found for found, _ in got.products if "summed over the batch" in found.problem]
    # Chosen for all rows of the batch in G groups, not for those of one element.
    assert [f"{3 * M // G} rows per group" in found.reason for found in summed] == [True]


def test_what_is_left_to_xla_is_listed() -> None:
    f32 = struct(64, 64, dtype=jnp.float32)
    ((found, times),) = bw.explain_program(bw.matmul, f32, f32, device="sm90").products
    assert (found.implementation, found.kernel, times) == ("xla", None, 1)
    assert found.problem == "dot_general float32[64,64] x float32[64,64] -> float32[64,64]"
    assert found.reason.startswith("precision=None of float32 operands is left to XLA; kernels")
    assert found.reason.endswith("(an operation of JAX's own, or left to XLA while tracing)")
    ((found, _),) = bw.explain_program(
        jax.lax.ragged_dot, ROWS, MATRICES, SIZES, device="sm90"
    ).products
    assert found.implementation == "xla"


def test_a_grouped_product_that_no_kernel_multiplies_says_why() -> None:
    f32 = (struct(M, K, dtype=jnp.float32), struct(G, K, N, dtype=jnp.float32), SIZES)
    ((found, _),) = bw.explain_program(bw.ragged_dot, *f32, device="sm90").products
    assert found.implementation == "xla"
    assert "kernels exist for" in found.reason
    call = functools.partial(bw.ragged_dot, implementation="xla")
    ((found, _),) = bw.explain_program(call, ROWS, MATRICES, SIZES, device="sm90").products
    assert found.reason == "asked for"
    ((found, _),) = bw.explain_program(
        bw.ragged_dot, ROWS, MATRICES, SIZES, device=jax.devices("cpu")[0]
    ).products
    assert "lowered for cpu" in found.reason


def test_says_where_the_reasons_are() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jax.lax.dot(x, x)  # too small to be rewritten

    x = struct(8, 8)
    for program, where in (
        (f, "(the log, jax_bwgemm, INFO, says why)"),
        (bw.accelerate(f), "(the decisions below say why)"),
    ):
        ((found, _),) = bw.explain_program(program, x, device="sm90").products
        assert found.reason.endswith(where)


def test_an_empty_product_runs_no_kernel() -> None:
    args = (struct(0, K), MATRICES, SIZES)
    ((found, _),) = bw.explain_program(bw.ragged_dot, *args, device="sm90").products
    assert (found.implementation, found.kernel) == ("cutlass", None)
    assert "empty problem runs no kernel" in found.reason


def test_takes_traced_programs() -> None:
    args = (ROWS, MATRICES, SIZES)
    want = bw.explain_program(bw.ragged_dot, *args, device="sm90")
    assert want.products
    traced = jax.jit(bw.ragged_dot).trace(*args)
    assert bw.explain_program(traced, device="sm90") == want
    assert bw.explain_program(jax.make_jaxpr(bw.ragged_dot)(*args), device="sm90") == want
    assert bw.explain_program(jax.jit(bw.ragged_dot), *args, device="sm90") == want
    assert bw.explain_program(bw.ragged_dot, *args[:2], group_sizes=SIZES, device="sm90") == want


def test_a_program_without_products() -> None:
    assert str(bw.explain_program(jnp.sin, struct(8))) == "no matrix products"


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"takes a function with its arguments.*got int"):
        bw.explain_program(3)
    with pytest.raises(TypeError, match=r"takes a function with its arguments.*got Compiled"):
        bw.explain_program(jax.jit(jnp.sin).lower(1.0).compile())
    with pytest.raises(TypeError, match="explain_program: a Traced takes no arguments"):
        bw.explain_program(jax.jit(jnp.sin).trace(1.0), 1.0)
    with pytest.raises(ValueError, match="unknown device 'sm80'"):
        bw.explain_program(bw.ragged_dot, ROWS, MATRICES, SIZES, device="sm80")
    with pytest.raises(ValueError, match="unknown device 'sm80'"):
        bw.explain_program(jnp.sin, struct(8), device="sm80")
    only = functools.partial(bw.ragged_dot, implementation="cutlass")
    with pytest.raises(NotImplementedError, match="lowered for cpu"):
        bw.explain_program(only, ROWS, MATRICES, SIZES, device="cpu")


def test_flops() -> None:
    """Of our products, with epilogues or not, and of JAX's: all as often as they run."""
    one = 2 * M * N * K
    w = struct(K, N)
    assert bw.explain(ROWS, w, device="sm90").flops == one
    assert bw.explain(ROWS, w, implementation="xla").flops == one
    matrices = lambda x, y: bw.matmul(x[None], jnp.stack([y, y]))  # noqa: E731
    layer = lambda x, w: bw.linear(x, w, activation="gelu")  # noqa: E731
    ours = (bw.matmul, layer, jnp.matmul)
    for f in ours:
        assert bw.explain_program(f, ROWS, w, device="sm90").flops == one
        step = jax.grad(lambda x, w, f=f: jnp.sum(f(x, w).astype(jnp.float32) ** 2), (0, 1))
        assert bw.explain_program(step, ROWS, w, device="sm90").flops == 3 * one
    assert bw.explain_program(matrices, ROWS, w, device="sm90").flops == 2 * one
    pair = lambda x, y: bw.gated_linear_unit(x, (y, y))  # noqa: E731
    stacked = lambda x, y: bw.gated_linear_unit(x, jnp.stack([y, y], 1))  # noqa: E731
    for f in (pair, stacked):
        for linked in (False, True):
            with bw.config.linked_epilogues(linked):
                assert bw.explain_program(f, ROWS, w, device="sm90").flops == 2 * one
    for f in (bw.ragged_dot, jax.lax.ragged_dot):
        assert bw.explain_program(f, ROWS, MATRICES, SIZES, device="sm90").flops == one
        step = jax.grad(lambda x, w, s, f=f: jnp.sum(f(x, w, s).astype(jnp.float32) ** 2), (0, 1))
        assert bw.explain_program(step, ROWS, MATRICES, SIZES, device="sm90").flops == 3 * one

    scaled = bw.fp8_dot_general("blockwise")
    product = lambda x, w: scaled(x, w, (((1,), (0,)), ((), ())))  # noqa: E731
    step = jax.grad(lambda x, w: jnp.sum(product(x, w).astype(jnp.float32) ** 2), (0, 1))
    assert bw.explain_program(step, ROWS, w, device="sm90").flops == 3 * one
    a = bw.quantize(jnp.ones((M, K), jnp.bfloat16), "1x128")
    b = bw.quantize(jnp.ones((N, K), jnp.bfloat16), "128x128")
    assert bw.explain_scaled_matmul(a, b, device="sm90").flops == one


@pytest.mark.parametrize("recipe", ["per_tensor", "blockwise"])
def test_products_of_scaled_operands(recipe: str) -> None:
    dense, grouped = bw.fp8_dot_general(recipe), bw.fp8_ragged_dot(recipe)

    def step(x: jax.Array, w: jax.Array, v: jax.Array, sizes: jax.Array) -> Any:
        def loss(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
            hidden = dense(grouped(x, w, sizes), v, (((1,), (0,)), ((), ())))
            return jnp.sum(hidden.astype(jnp.float32) ** 2)

        return jax.grad(loss, (0, 1, 2))(x, w, v)

    args = (ROWS, MATRICES, struct(N, 512), SIZES)
    got = bw.explain_program(step, *args, device="sm90")
    names = [found.kernel for found, times in got.products for _ in range(times)]
    lowered = [x for x in lowered_kernels(step, *args, arch="sm90") if "scaled" in x]
    assert len(names) == 6
    assert sorted(names) == sorted(lowered)
    assert "scaled GEMM" in str(got)


class Scaled:
    """A layer whose method is jitted."""

    @functools.partial(jax.jit, static_argnums=0)
    def product(self, x: jax.Array) -> jax.Array:
        return bw.matmul(x, x)


def test_methods_that_are_jitted() -> None:
    x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    ((product, times),) = bw.explain_program(Scaled().product, x, device="sm90").products
    assert (product.implementation, times) == ("cutlass", 1)


def test_an_empty_product_of_another_platform_is_xlas() -> None:
    args = (struct(0, K), MATRICES, SIZES)
    ((found, _),) = bw.explain_program(bw.ragged_dot, *args, device="cpu").products
    assert found.implementation == "xla"


def test_a_target_is_the_emulators_gpu() -> None:
    with bw.config.target("sm100"):
        found = bw.explain(ROWS, struct(K, N), implementation="emulator")
    assert (found.implementation, "sm100" in found.kernel) == ("emulator", True)


def test_arguments_of_the_call_come_before_those_of_partial() -> None:
    def f(x: jax.Array, *, times: int) -> list[jax.Array]:
        return [x @ (x + i) for i in range(times)]

    bound = functools.partial(bw.accelerate(f), times=1)
    assert len(bw.explain_program(bound, struct(512, 512), times=3, device="sm90").rewrites) == 3


def test_products_of_a_layers_tangent_count_as_often_as_a_loop_runs() -> None:
    """They are not written in the loop's body, but what one of its equations stands for."""
    w = jnp.ones((64, 64), jnp.bfloat16)

    def tangent(x: jax.Array) -> jax.Array:
        return jax.jvp(lambda x: bw.mlp(x, w, w, activation="relu"), (x,), (x,))[1]

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (tangent(x), None), x, length=3)[0]

    once, thrice = (bw.explain_program(f, struct(64, 64), device="sm90") for f in (tangent, loop))
    assert 0 < 3 * once.flops == thrice.flops


def test_static_arguments_that_are_counted_from_the_last() -> None:
    """Of a function of any number of arguments JAX itself does not know which one that is."""

    def f(*args: Any) -> list[jax.Array]:
        x, times = args
        return [x @ (x + i) for i in range(times)]

    jitted = jax.jit(bw.accelerate(f), static_argnums=-1)
    assert len(bw.explain_program(jitted, struct(512, 512), 3, device="sm90").rewrites) == 3


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """A function of which there are no weak references."""

    factor: float

    def __call__(self, a: jax.Array) -> jax.Array:
        return bw.matmul(a, a) * self.factor


def test_functions_of_classes_with_slots() -> None:
    ((found, times),) = bw.explain_program(Layer(2.0), struct(512, 512), device="sm90").products
    assert (found.implementation, times) == ("cutlass", 1)
