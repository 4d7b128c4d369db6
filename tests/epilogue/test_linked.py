"""Kernels with epilogues linked into them, in the emulator: results and rules."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from epilogue_host import COMPILER, run_on_host
from epilogue_rules import EpilogueRules
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_cases import (  # noqa: F401
    EPILOGUES,
    F32,
    close,
    kernels,
    linked_for_sm90,
    operands,
    product,
    reference,
    requires_linker,
)
from numerics import LINKED, assert_exact, normal, small_integers
from random_epilogues import functions

import jax_bwgemm as bw
from jax_bwgemm import config, emulator
from jax_bwgemm.config import Target
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue.fused import Fused
from jax_bwgemm.epilogue.primitive import gemm_with_epilogue
from jax_bwgemm.epilogue.program import FLOATS
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.spec import Policy

pytestmark = [*requires_emulator, requires_linker, pytest.mark.usefixtures("no_rule_broken")]

KERNELS = kernels("emulator", ("sm90", "sm100"))


def run(f: Any, a: Any, b: Any, arrays: Any, **more: Any) -> Any:
    """An epilogue by a kernel that it is linked into: anything else is an error."""

    def call(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.matmul(
            a, b, epilogue=f, epilogue_operands=arrays, implementation="emulator", **more
        )

    lowered = jax.jit(call).lower(a, b, *arrays)
    assert lowered.as_text().count("epilogue_digest") == 1
    return lowered.compile()(a, b, *arrays)


def cases() -> list[tuple[Any, str]]:
    """Every epilogue in every tile of one kind of operands, one in all others."""
    first = [k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"]
    rest = [(k, "every kind of result") for k in KERNELS if k not in first]
    return [*((k, name) for k in first for name in EPILOGUES), *rest]


@pytest.mark.parametrize(("kernel", "name"), cases(), ids=lambda x: getattr(x, "name", x))
def test_every_kernel(kernel: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    tile_m, tile_n = (kernel.tile_m, kernel.tile_n)[:: -1 if kernel.swap_ab else 1]
    m, n, k = tile_m + 9, tile_n + 40, 96
    a, b = product(rng, kernel, m, n, k)
    f, arrays = operands(rng, name, m, n)
    traced = trace_epilogue(f, (m, n), arrays)
    types = [traced.program.dtype(x) for x in traced.program.results]
    fused = Fused(
        GemmSpec(
            a_major="k",
            b_major=kernel.b_major,
            out_dtype=kernel.out_dtype,
            policy=Policy(
                implementations=("emulator",),
                config=bw.TuningConfig.of(kernel.name),
                target=Target(kernel.arch, 4),
            ),
        ),
        lambda *xs: jax.tree.leaves(f(*xs)),
        traced.program,
        tuple(kernel.out_dtype if t in FLOATS else t for t in types),
        (m, n),
    )

    def call(a: Any, b: Any, *arrays: Any) -> Any:
        return gemm_with_epilogue(a[None], b[None], arrays, fused)

    lowered = jax.jit(call).lower(a, b, *arrays)
    assert lowered.as_text().count("epilogue_digest") == 1
    want = reference(f, a, b.T if kernel.b_major == "k" else b, arrays)
    close(lowered.compile()(a, b, *arrays), jax.tree.leaves(want))


@pytest.mark.parametrize("name", ["bias, silu, residual", "gelu, its gradient", "two of all"])
def test_many_tiles_of_a_consumer(name: str) -> None:
    """What one tile reads and stores takes the places of what the one before it did."""
    rng = np.random.default_rng(9)
    functions = {
        "gelu, its gradient": lambda z, b: (jax.nn.gelu(z + b), z),
        "two of all": lambda z, b, c, r, s: (r * z + b, s.astype(F32) + z * c),
    }
    for kernel in KERNELS:
        if kernel.b_major != "n" or kernel.a_dtype != "bfloat16":
            continue
        tile_m, tile_n = (kernel.tile_m, kernel.tile_n)[:: -1 if kernel.swap_ab else 1]
        m, n = 3 * tile_m + 64, 4 * tile_n + 8
        a, b = product(rng, kernel, m, n, 64)
        if name in functions:
            f, types = functions[name], ("bfloat16", "float32", "bfloat16", "bfloat16")
            shapes = ((n,), (n,), (m, n), (m, n))[: f.__code__.co_argcount - 1]
            arrays = [jnp.asarray(normal(rng, s, t)) for s, t in zip(shapes, types, strict=False)]
        else:
            f, arrays = operands(rng, name, m, n)
        with config.target(kernel.arch, 2):
            close(run(f, a, b, arrays, config=kernel.name), reference(f, a, b, arrays))


def cluster_k(rng: np.random.Generator, m: int, n: int, k: int, parts: int) -> tuple[Any, ...]:
    """A function of a product by a cluster-K kernel, that of an epilogue, and its operands."""
    kernel = next(k for k in KERNELS if k.cluster_k and k.b_major == "n")
    a, b = product(rng, kernel, m, n, k)
    f, arrays = operands(rng, "every kind of result", m, n)
    chosen = dataclasses.replace(bw.TuningConfig.of(kernel.name), splits=parts)
    return f, a, b, arrays, chosen


@pytest.mark.parametrize("parts", [1, 2, 5, 8])
@pytest.mark.parametrize(("m", "n"), [(7, 8), (70, 136)])
def test_parts_of_k_are_added_before_the_epilogue(parts: int, m: int, n: int) -> None:
    f, a, b, arrays, chosen = cluster_k(np.random.default_rng(4), m, n, 640, parts)
    with config.target("sm90", 16), emulator.configure(sm_count=16):
        close(run(f, a, b, arrays, config=chosen), reference(f, a, b, arrays))


@pytest.mark.parametrize(("m", "n"), [(1, 8), (3, 16), (64, 8), (70, 72)])
def test_smaller_than_a_tile(m: int, n: int) -> None:
    rng = np.random.default_rng(1)
    for kernel in KERNELS:
        if kernel.b_major != "n" or kernel.a_dtype != "bfloat16":
            continue
        a, b = product(rng, kernel, m, n, 64)
        f, arrays = operands(rng, "every kind of result", m, n)
        with config.target(kernel.arch, 4):
            close(run(f, a, b, arrays, config=kernel.name), reference(f, a, b, arrays))


@pytest.mark.parametrize(("arch", "m", "n", "k"), [("sm90", 96, 64, 64), ("sm100", 512, 512, 256)])
def test_chooses_a_kernel_that_takes_the_epilogue(arch: str, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(2)
    a, b = product(rng, next(k for k in KERNELS if k.arch == arch), m, n, k)
    f, arrays = operands(rng, "bias, gelu", m, n)
    with config.target(arch, 4):
        close(run(f, a, b, arrays), reference(f, a, b, arrays))


def test_leading_dimensions_are_rows() -> None:
    rng = np.random.default_rng(3)
    x = jnp.asarray(normal(rng, (2, 3, 5, 64), "bfloat16"))
    w = jnp.asarray(normal(rng, (64, 48), "bfloat16")) * jnp.bfloat16(0.125)
    b, r = (jnp.asarray(normal(rng, s, "bfloat16")) for s in ((48,), (2, 3, 5, 48)))

    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        return bw.linear(x, w, b, activation="gelu", residual=r, implementation="emulator")

    lowered = jax.jit(layer).lower(x, w, b, r)
    assert lowered.as_text().count("epilogue_digest") == 1
    want = jax.nn.gelu(jnp.dot(x.astype(F32), w.astype(F32)) + b.astype(F32)) + r.astype(F32)
    close(lowered.compile()(x, w, b, r), want)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@settings(max_examples=int(os.environ.get("BWGEMM_RANDOM_EPILOGUES", "8")))
@given(
    functions(m=13, n=40, most=12),
    st.integers(0, 1000),
    st.sampled_from(["sm90", "sm90 swapped", "sm100"]),
)
def test_random_functions(function: Any, seed: int, kind: str) -> None:
    """Bit for bit what the host computes of the same program."""
    f, types = function
    kernel = next(k for k in KERNELS if k.arch + " swapped" * k.swap_ab == kind and
                  k.b_major == "n" and k.tile_n <= 128 and k.a_dtype == "bfloat16")  # fmt: skip
    rng = np.random.default_rng(seed)
    a, b = (small_integers(rng, s, "bfloat16") for s in ((13, 32), (32, 40)))
    arrays = [np.asarray(small_integers(rng, s, t)) for t, s in types]
    with config.target(kernel.arch, 4):
        got = run(f, a, b, arrays, config=kernel.name)
    z = a.astype(np.float32) @ b.astype(np.float32)
    program = trace_epilogue(f, z.shape, arrays).program
    want = [x.astype(got[0].dtype) for x in run_on_host(program, z, arrays)]
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, theirs, str(program))


class TestRules(EpilogueRules):
    """Of JAX, on the fused primitive."""

    mapped = ((0, None, None, 0), (None, 0, 0, None), (0, 0, 0, 0))

    @pytest.fixture
    def arrays(self) -> tuple[jax.Array, ...]:
        rng = np.random.default_rng(4)
        shapes = ((24, 64), (64, 48), (48,), (24, 48))
        x, w, b, r = (jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes)
        return x, w * jnp.bfloat16(0.125), b, r

    @staticmethod
    def layer(*arrays: Any) -> Any:
        x, w, b, r = arrays
        # Of the gradients' products a build may have no kernels.
        some = ("emulator", "xla")
        return bw.linear(x, w, b, activation="gelu", residual=r, implementation=some)

    @staticmethod
    def formula(*arrays: Any) -> Any:
        x, w, b, r = (x.astype(F32) for x in arrays)
        return jax.nn.gelu(jnp.dot(x, w) + b) + r

    def test_derivative_of_one_operand_alone(self, arrays) -> None:
        x, w, b, r = arrays
        got = jax.grad(lambda b: jnp.sum(self.layer(x, w, b, r).astype(F32)))(b)
        want = jax.grad(lambda b: jnp.sum(self.formula(x, w, b, r)))(b)
        np.testing.assert_allclose(got.astype(F32), want.astype(F32), rtol=0.05, atol=0.1)

    def test_shard_map_and_automatic_sharding(self, arrays) -> None:
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        p = jax.sharding.PartitionSpec
        specs = (p("i"), p(), p(), p("i"))
        f = jax.jit(jax.shard_map(self.layer, mesh=mesh, in_specs=specs, out_specs=p("i")))
        assert "epilogue_digest" in f.lower(*arrays).as_text()
        close(f(*arrays), self.formula(*arrays))
        placed = [
            jax.device_put(x, jax.sharding.NamedSharding(mesh, s))
            for x, s in zip(arrays, specs, strict=True)
        ]
        f = jax.jit(self.layer)
        assert "epilogue_digest" not in f.lower(*placed).as_text()  # XLA partitions the product
        close(f(*placed), self.formula(*arrays))

    def test_explained(self, arrays) -> None:
        text = str(bw.explain_program(self.layer, *arrays, device="cpu"))
        assert "and an epilogue of 2 operands" in text
        assert "the epilogue is linked into the kernel" in text
        one = lambda x, w: bw.matmul(x, w, epilogue=lambda z: z > 0)  # noqa: E731
        text = str(bw.explain_program(one, *arrays[:2], device="sm90"))
        assert "the epilogue is a pass of XLA's: a result is of type bool" in text
        text = str(bw.explain_program(self.layer, *arrays, device="sm90"))
        assert "the epilogue is a pass of XLA's: no kernels for cuda are allowed" in text

    def test_eager(self, arrays) -> None:
        close(self.layer(*arrays), self.formula(*arrays))


def test_an_accelerated_training_step() -> None:
    """Operations become part of products, the derivative of an activation too."""
    rng = np.random.default_rng(7)
    shapes = ((2, 512, 128), (128, 256), (256, 128))
    x, w, v = (jnp.asarray(normal(rng, s, "bfloat16")) for s in shapes)
    params = {"w": w / 11, "b": jnp.ones(256, jnp.bfloat16) / 3, "v": v / 16}

    def loss(params: Any, x: Any) -> Any:
        h = jax.nn.gelu(x @ params["w"] + params["b"])
        return jnp.mean(jnp.square((h @ params["v"] + x).astype(F32)))

    step = jax.value_and_grad(loss)
    fused = jax.jit(bw.accelerate(step, implementation=("emulator", "xla")))
    assert fused.lower(params, x).as_text().count("epilogue_digest") >= 2
    got, want = fused(params, x), jax.jit(step)(params, x)
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        scale = float(jnp.max(jnp.abs(theirs)))
        # bf16 throughout: some roundings of the largest value.
        np.testing.assert_allclose(
            ours.astype(F32) / scale, theirs.astype(F32) / scale, atol=4 * LINKED["atol"]
        )
