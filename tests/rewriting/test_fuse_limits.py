"""Operations after a product that stay with XLA, and the reasons that are given."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuse_cases import F32, M, N, check, fused, mlp

import jax_bwgemm as bw
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.contraction import LinkableDense, SplitDense
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.linker import NoLinkerError
from jax_bwgemm.epilogue.primitive import bw_gemm_epilogue_p, link_refusal
from jax_bwgemm.epilogue.tracing import EpilogueError, trace_epilogue
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.rewriting import epilogue_functions, fuse

pytestmark = pytest.mark.usefixtures("functions_link")


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
