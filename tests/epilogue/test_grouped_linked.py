"""Grouped kernels with epilogues linked into them, in the emulator: results and rules."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from epilogue_host import COMPILER, run_on_host
from epilogue_rules import EpilogueRules
from grouped_cases import families, row_tile
from grouped_linked_cases import EPILOGUES, EXPERTS, F32, kernels, operands, product, reference, run
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_cases import close, linked_for_sm90, requires_linker  # noqa: F401
from numerics import assert_exact, normal, small_integers
from random_epilogues import functions

import jax_bwgemm as bw
from jax_bwgemm import config, emulator
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.grouped_hook import gated_symbol
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.grouped.api import ragged_dot_with_epilogue
from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator")
SOME = ("emulator", "xla")  # of the gradients' products a build may have no kernels


def _name(x: Any) -> Any:
    return getattr(x, "name", x)


def one_of_each_tile() -> list[Any]:
    return [k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"]


def gated() -> list[Any]:
    """Kernels of gate and up."""
    return [k for k in KERNELS if gated_symbol(k.name) in linkable_kernels()]


@pytest.mark.parametrize("kernel", KERNELS, ids=_name)
def test_integers_of_all_group_sizes(kernel: Any) -> None:
    """No row of another group is written: every value is compared, of D and of further results."""
    m, n, k = row_tile(kernel) + 41, 200, 72

    def f(z: Any, w: Any, r: Any, q: Any, b: Any, c: Any) -> Any:
        wide = jnp.maximum(z + b, c) * w + r.astype(F32)
        return wide, z - r.astype(F32), (z * 2).astype(jnp.int32) + q

    rng = np.random.default_rng(0)
    a, b = product(rng, kernel, m, n, k, exact=True)
    shapes = ((m, 1), "float32"), ((m, n), kernel.out_dtype), ((m, n), "int32")
    plain = [jnp.asarray(small_integers(rng, *s)) for s in shapes]
    of_groups = [
        jnp.asarray(small_integers(rng, *s))
        for s in (((EXPERTS, n), kernel.a_dtype), ((EXPERTS,), "float32"))
    ]
    for i, (name, sizes) in enumerate(families(kernel, m).items()):
        with config.target("sm90", 2), emulator.configure(races=i % 3 == 0):
            got = run(
                f, (a, b, jnp.asarray(sizes)), plain, of_groups,
                transposed=kernel.b_major == "k", config=kernel.name,
            )  # fmt: skip
        for ours, theirs in zip(got, reference(f, (a, b, sizes), plain, of_groups), strict=True):
            assert_exact(ours, np.asarray(theirs.astype(ours.dtype)), name)


def cases() -> list[tuple[Any, str]]:
    """Every epilogue in the smallest tile, some in the others."""
    smallest, *others = sorted(one_of_each_tile(), key=lambda k: k.tile_n) or [None]
    some = ("two of all", "activation and product")
    return [
        *((smallest, name) for name in EPILOGUES),
        *((k, name) for k in others for name in some),
    ]


@pytest.mark.parametrize(("kernel", "name"), cases(), ids=_name)
def test_every_epilogue(kernel: Any, name: str) -> None:
    """Several tiles for a consumer: what one reads and stores takes the places of another's."""
    rng = np.random.default_rng(1)
    m, n, k = 2 * row_tile(kernel) + 9, 264, 96
    a, b = product(rng, kernel, m, n, k)
    sizes = jnp.asarray([row_tile(kernel) + 5, 0, 3, row_tile(kernel) - 9, 1, 2], jnp.int32)
    f, plain, of_groups = operands(rng, name, m, n, kernel.out_dtype)
    with config.target("sm90", 2):
        got = run(f, (a, b, sizes), plain, of_groups, config=kernel.name)
    close(got, reference(f, (a, b, sizes), plain, of_groups))


@pytest.mark.parametrize("kernel", gated(), ids=_name)
def test_two_products(kernel: Any) -> None:
    """Of gate and up side by side: integers, of all group sizes."""
    m, h, k = row_tile(kernel) + 41, 136, 72

    def f(gate: Any, up: Any, w: Any, r: Any) -> Any:
        return jnp.maximum(gate, 0) * w + up + r.astype(F32), gate, up - gate

    rng = np.random.default_rng(5)
    a, b = product(rng, kernel, m, 2 * h, k, exact=True)
    w = jnp.asarray(small_integers(rng, (m, 1), "float32"))
    r = jnp.asarray(small_integers(rng, (m, h), kernel.out_dtype))

    def call(factors: Any, w: Any, r: Any) -> Any:
        after = After(Epilogue(f, "test"), EpilogueOperands((w, r)), gated=True, only_linked=True)
        more = {"implementation": "emulator", "config": kernel.name}
        return ragged_dot_with_epilogue(*factors, None, after, **more)

    for i, (name, sizes) in enumerate(families(kernel, m).items()):
        factors = (a, b, jnp.asarray(sizes))
        with config.target("sm90", 2), emulator.configure(races=i % 3 == 0):
            lowered = jax.jit(call).lower(factors, w, r)
            assert "epilogue_form" in lowered.as_text()
            got = lowered.compile()(factors, w, r)
        z = reference(lambda z: z, (a, b, sizes))
        for ours, theirs in zip(got, f(z[:, :h], z[:, h:], w, r), strict=True):
            assert_exact(ours, np.asarray(theirs.astype(ours.dtype)), name)


@pytest.mark.parametrize("kernel", one_of_each_tile(), ids=_name)
@pytest.mark.parametrize("halves", [False, True])
def test_halves_and_sums_over_columns(kernel: Any, halves: bool) -> None:
    """What the gradient of a layer of experts has: integers, of all group sizes."""
    m, h, k = row_tile(kernel) + 41, 200, 72
    rng = np.random.default_rng(6)
    a, b = product(rng, kernel, m, h, k, exact=True)
    w = jnp.asarray(small_integers(rng, (m, 1), "float32"))
    r, q = (jnp.asarray(small_integers(rng, (m, h), kernel.out_dtype)) for _ in range(2))

    def f(z: Any, r: Any, q: Any, w: Any) -> Any:
        first = z * w + r.astype(F32)
        return (*((first, z - q.astype(F32)) if halves else (first,)), z * r.astype(F32))

    def whole(z: Any, *given: Any) -> Any:
        *parts, terms = f(z.astype(F32), *given)
        return [jnp.concatenate(parts, -1).astype(z.dtype), jnp.sum(terms, -1)]

    def call(factors: Any, *given: Any) -> Any:
        operands = EpilogueOperands(given)
        after = After(Epilogue(f, "test"), operands, False, True, halves, True, whole)
        more = {"implementation": "emulator", "config": kernel.name}
        return ragged_dot_with_epilogue(*factors, None, after, **more)

    for i, (name, sizes) in enumerate(families(kernel, m).items()):
        factors = (a, b, jnp.asarray(sizes))
        with config.target("sm90", 2), emulator.configure(races=i % 3 == 0):
            lowered = jax.jit(call).lower(factors, r, q, w)
            assert "epilogue_digest" in lowered.as_text()
            got = lowered.compile()(factors, r, q, w)
        want = whole(reference(lambda z: z, (a, b, sizes)), r, q, w)
        for ours, theirs in zip(got, want, strict=True):
            assert_exact(ours, np.asarray(theirs.astype(ours.dtype)), name)
    mapped = jax.vmap(call, (None, 0, None, None))(factors, jnp.stack([r, q]), q, w)
    want = whole(reference(lambda z: z, (a, b, sizes)), q, q, w)
    for ours, theirs in zip(mapped, want, strict=True):
        assert_exact(ours[1], np.asarray(theirs.astype(ours.dtype)))


def test_float16() -> None:
    rng = np.random.default_rng(2)
    for kernel in KERNELS:
        if kernel.a_dtype != "float16" or kernel.b_major != "n":
            continue
        a, b = product(rng, kernel, 50, 72, 64)
        f, plain, of_groups = operands(rng, "two of all", 50, 72, "float16")
        factors = (a, b, jnp.asarray([20, 0, 7, 9, 1, 2], jnp.int32))
        got = run(f, factors, plain, of_groups, config=kernel.name)
        close(got, reference(f, factors, plain, of_groups))


def test_offset_and_more_groups_than_matrices() -> None:
    """Rows of groups without a matrix here have the function of zero."""
    rng = np.random.default_rng(3)
    kernel = one_of_each_tile()[0]
    a, b = product(rng, kernel, 60, 72, 64)
    sizes = jnp.asarray([5, 9, 0, 12, 3, 8, 7, 11], jnp.int32)
    f, plain, of_groups = operands(rng, "two of all", 60, 72, kernel.out_dtype)
    got = run(f, (a, b, sizes), plain, of_groups, group_offset=jnp.int32(1))
    close(got, reference(f, (a, b, sizes), plain, of_groups, offset=1))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@settings(max_examples=int(os.environ.get("BWGEMM_RANDOM_EPILOGUES", "5")))
@given(
    functions(m=45, n=40, most=9),
    st.integers(0, 1000),
    st.lists(st.integers(0, 20), min_size=6, max_size=6),
)
def test_random_functions(function: Any, seed: int, sizes: list[int]) -> None:
    """Bit for bit what the host computes of the same program."""
    f, types = function
    kernel = one_of_each_tile()[0]
    rng = np.random.default_rng(seed)
    a, b = product(rng, kernel, 45, 40, 32, exact=True)
    arrays = [np.asarray(small_integers(rng, s, t)) for t, s in types]
    factors = (a, b, jnp.asarray(sizes, jnp.int32))
    with config.target("sm90", 4):
        got = run(f, factors, arrays, config=kernel.name)
    z = np.asarray(reference(lambda z: z, factors))
    program = trace_epilogue(f, z.shape, arrays).program
    want = [x.astype(got[0].dtype) for x in run_on_host(program, z, arrays)]
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, theirs, str(program))


class TestRules(EpilogueRules):
    """Of JAX, on the fused primitive."""

    mapped = ((0, None, None, 0, None), (None, 0, 0, None, 0), (0, 0, 0, 0, 0))

    @pytest.fixture
    def arrays(self) -> tuple[jax.Array, ...]:
        rng = np.random.default_rng(4)
        shapes = ((24, 64), (3, 64, 48), (24, 1), (24, 48), (3, 48))
        x, w, s, r, b = (jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes)
        return x, w * jnp.bfloat16(0.125), s, r, b

    SIZES = jnp.asarray([7, 0, 15], jnp.int32)

    @classmethod
    def layer(cls, *arrays: Any, sizes: Any = None) -> Any:
        x, w, s, r, b = arrays
        return bw.ragged_dot(
            x, w, cls.SIZES if sizes is None else sizes,
            epilogue=lambda z, s, r, b: jax.nn.silu(z + b.astype(F32)) * s + r.astype(F32),
            epilogue_operands=(s, r), epilogue_group_operands=(b,), implementation=SOME,
        )  # fmt: skip

    @classmethod
    def formula(cls, *arrays: Any) -> Any:
        x, w, s, r, b = (x.astype(F32) for x in arrays)
        group = jnp.repeat(jnp.arange(4), jnp.asarray([7, 0, 15, 2]), total_repeat_length=24)
        of_group = (group[:, None] == jnp.arange(3)).astype(F32)
        z = jnp.einsum("mk,ekn,me->mn", x, w, of_group)
        return jax.nn.silu(z + of_group @ b) * s + r

    def test_values(self, arrays) -> None:
        f = jax.jit(self.layer)
        assert "epilogue_digest" in f.lower(*arrays).as_text()
        close(f(*arrays), self.formula(*arrays))
        close(self.layer(*arrays), self.formula(*arrays))

    def test_automatic_sharding(self, arrays) -> None:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        p = jax.sharding.PartitionSpec
        specs = (p("i"), p(), p("i"), p("i"), p())
        placed = [
            jax.device_put(x, jax.sharding.NamedSharding(mesh, s))
            for x, s in zip(arrays, specs, strict=True)
        ]
        f = jax.jit(self.layer)
        assert "epilogue_digest" not in f.lower(*placed).as_text()  # XLA partitions the product
        close(f(*placed), self.formula(*arrays))

    def test_explained(self, arrays) -> None:
        text = str(bw.explain_program(self.layer, *arrays, device="cpu"))
        assert "and an epilogue of 3 operands" in text
        assert "the epilogue is linked into the kernel" in text
        text = str(bw.explain_program(self.layer, *arrays, device="sm90"))
        assert "the epilogue is a pass of XLA's: no kernels for cuda are allowed" in text
