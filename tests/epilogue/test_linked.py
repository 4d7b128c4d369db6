"""Kernels with epilogues linked into them, in the emulator: results, rules, cache, refusals."""

from __future__ import annotations

import base64
import logging
import os
import threading
import types
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from epilogue_host import COMPILER, run_on_host
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_cases import EPILOGUES, F32, kernels, operands, product, reference, requires_linker
from numerics import LINKED, assert_exact, normal, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue import call as epilogue_call
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.call import choose_linked
from jax_bwgemm.epilogue.hook import VERSION, Hook
from jax_bwgemm.epilogue.linker import Linker, LinkError, NoLinkerError, linker
from jax_bwgemm.epilogue.primitive import Fused, gemm_with_epilogue
from jax_bwgemm.epilogue.program import FLOATS
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product import targets
from jax_bwgemm.product.spec import Policy

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator")


@pytest.fixture(autouse=True)
def _linked(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Linking is on, for an SM90; one cache for all tests, so that each kernel is linked once."""
    folder = tmp_path_factory.getbasetemp() / "linked"
    monkeypatch.setenv("BWGEMM_LINK_CACHE", str(folder))
    with config.target("sm90", 4), config.linked_epilogues(True):
        yield


def run(f: Any, a: Any, b: Any, arrays: Any, **more: Any) -> Any:
    """An epilogue by a kernel that it is linked into: anything else is an error."""

    def call(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.matmul(
            a, b, epilogue=f, epilogue_operands=arrays, implementation="emulator", **more
        )

    lowered = jax.jit(call).lower(a, b, *arrays)
    assert lowered.as_text().count("epilogue_digest") == 1
    return lowered.compile()(a, b, *arrays)


def close(got: Any, want: Any) -> None:
    for ours, theirs in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        if jnp.issubdtype(ours.dtype, jnp.integer):
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours.astype(F32), theirs.astype(F32), **LINKED)


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
    z = jnp.dot(a.astype(F32), (b.T if kernel.b_major == "k" else b).astype(F32))
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
                target=config.explicit_target(),
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
    close(lowered.compile()(a, b, *arrays), jax.tree.leaves(f(z, *arrays)))


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
        with config.target("sm90", 2):
            close(run(f, a, b, arrays, config=kernel.name), reference(f, a, b, arrays))


@pytest.mark.parametrize(("m", "n"), [(1, 8), (3, 16), (64, 8), (70, 72)])
def test_smaller_than_a_tile(m: int, n: int) -> None:
    rng = np.random.default_rng(1)
    for kernel in KERNELS:
        if kernel.b_major != "n" or kernel.a_dtype != "bfloat16":
            continue
        a, b = product(rng, kernel, m, n, 64)
        f, arrays = operands(rng, "every kind of result", m, n)
        close(run(f, a, b, arrays, config=kernel.name), reference(f, a, b, arrays))


def test_chooses_a_kernel_that_takes_the_epilogue() -> None:
    rng = np.random.default_rng(2)
    a, b = product(rng, KERNELS[0], 96, 64, 64)
    f, arrays = operands(rng, "bias, gelu", 96, 64)
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


@st.composite
def functions(draw: Any) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
    """Random functions whose operations are exact on small integers."""
    types = st.sampled_from(["float32", "bfloat16", "float16", "int32"])
    shapes = st.sampled_from([(), (40,), (1, 40), (13, 1), (13, 40)])
    arrays = draw(st.lists(st.tuples(types, shapes), max_size=4))
    choices = draw(st.lists(st.integers(0, 2**30), min_size=3, max_size=12))

    def f(z: jax.Array, *xs: jax.Array) -> list[jax.Array]:
        found = [z, *xs, *(jax.lax.broadcasted_iota(jnp.int32, z.shape, d) for d in (0, 1))]
        for c in choices:
            x, y = (found[i % len(found)] for i in (c, c // 7))
            x, y = jnp.broadcast_arrays(*(v.astype(F32) for v in (x, y)))
            operations = [
                lambda x, y: x + y, lambda x, y: x - y, jnp.maximum, jnp.minimum,
                lambda x, y: jnp.where(x > y, x, y * 2), lambda x, y: jnp.floor(x / 2),
                lambda x, y: (x.astype(jnp.int32) ^ y.astype(jnp.int32)).astype(F32),
                lambda x, y: jnp.abs(x) + jnp.sign(y), lambda x, y: jnp.square(jnp.clip(x, -9, y)),
            ]  # fmt: skip
            found.append(operations[c // 64 % len(operations)](x, y))
        return [jnp.broadcast_to(found[-1], z.shape), jnp.broadcast_to(found[-2], z.shape)]

    return f, arrays


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@settings(max_examples=int(os.environ.get("BWGEMM_RANDOM_EPILOGUES", "20")))
@given(functions(), st.integers(0, 1000), st.booleans())
def test_random_functions(function: Any, seed: int, swapped: bool) -> None:
    """Bit for bit what the host computes of the same program."""
    f, types = function
    kernel = next(k for k in KERNELS if k.swap_ab == swapped and k.b_major == "n" and
                  k.tile_n <= 128 and k.a_dtype == "bfloat16")  # fmt: skip
    rng = np.random.default_rng(seed)
    a, b = (small_integers(rng, s, "bfloat16") for s in ((13, 32), (32, 40)))
    arrays = [np.asarray(small_integers(rng, s, t)) for t, s in types]
    got = run(f, a, b, arrays, config=kernel.name)
    z = a.astype(np.float32) @ b.astype(np.float32)
    program = trace_epilogue(f, z.shape, arrays).program
    want = [x.astype(got[0].dtype) for x in run_on_host(program, z, arrays)]
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, theirs, str(program))


class TestRules:
    """Of JAX, on the fused primitive."""

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

    def test_gradients(self, arrays) -> None:
        def loss(f: Any) -> Any:
            return lambda *xs: jnp.vdot(f(*xs).astype(F32), jnp.sin(arrays[3].astype(F32)))

        for f in (self.layer, jax.checkpoint(self.layer)):
            gradient = jax.jit(jax.grad(loss(f), (0, 1, 2, 3)))
            assert "epilogue_digest" in gradient.lower(*arrays).as_text()
            want = jax.grad(loss(self.formula), (0, 1, 2, 3))(*arrays)
            for ours, theirs in zip(gradient(*arrays), want, strict=True):
                scale = float(jnp.max(jnp.abs(theirs)))
                got, wanted = (x.astype(F32) / scale for x in (ours, theirs))
                np.testing.assert_allclose(got, wanted, **LINKED)

    def test_forward_mode_and_second_order(self, arrays) -> None:
        toward = tuple(jnp.cos(x) for x in arrays)
        got = jax.jit(lambda *xs: jax.jvp(self.layer, xs, toward))(*arrays)
        want = jax.jvp(self.formula, arrays, toward)
        close(got[0], want[0])
        scale = float(jnp.max(jnp.abs(want[1])))  # of a sum of three rounded ones
        close(got[1].astype(F32) / scale, want[1] / scale)

        def scalar(f: Any) -> Any:
            return lambda x: jnp.sum(f(x, *arrays[1:]).astype(F32) ** 2)

        def twice(f: Any) -> Any:
            return jax.jvp(jax.grad(scalar(f)), arrays[:1], toward[:1])[1]

        got, want = twice(self.layer), twice(self.formula)
        scale = float(jnp.max(jnp.abs(want)))
        close(got.astype(F32) / scale, want.astype(F32) / scale)

    def test_derivative_of_one_operand_alone(self, arrays) -> None:
        x, w, b, r = arrays
        got = jax.grad(lambda b: jnp.sum(self.layer(x, w, b, r).astype(F32)))(b)
        want = jax.grad(lambda b: jnp.sum(self.formula(x, w, b, r)))(b)
        np.testing.assert_allclose(got.astype(F32), want.astype(F32), rtol=0.05, atol=0.1)

    def test_vmap(self, arrays) -> None:
        stacked = tuple(jnp.stack([x, -x]) for x in arrays)
        for axes in ((0, None, None, 0), (None, 0, 0, None), (0, 0, 0, 0)):
            xs = [s if a == 0 else x for s, x, a in zip(stacked, arrays, axes, strict=True)]
            close(jax.vmap(self.layer, axes)(*xs), jax.vmap(self.formula, axes)(*xs))

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
    shapes = ((2, 64, 128), (128, 256), (256, 128))
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


class TestFallbacks:
    """Where no kernel takes the epilogue: the same result, and a reason in the log."""

    @staticmethod
    def reason(caplog: pytest.LogCaptureFixture, f: Any, *arrays: Any) -> str:
        a, b = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((64, 24), jnp.bfloat16)

        def call(a: Any, b: Any, *arrays: Any) -> Any:
            return bw.matmul(
                a, b, epilogue=f, epilogue_operands=arrays, implementation=("emulator", "xla")
            )

        epilogue_call_log = logging.getLogger("jax_bwgemm")
        with caplog.at_level(logging.INFO, epilogue_call_log.name):
            from jax_bwgemm.product.implementations import log_once

            log_once.cache_clear()
            lowered = jax.jit(call).lower(a, b, *arrays)
        assert "epilogue_digest" not in lowered.as_text()
        want = f(jnp.full((16, 24), 64.0), *arrays)
        close(lowered.compile()(a, b, *arrays), want)
        return caplog.text

    def test_types(self, caplog) -> None:
        mask = jnp.arange(24) > 3
        text = self.reason(caplog, lambda z, x: jnp.where(x, z, 0), mask)
        assert "an operand is of type bool; kernels read float32" in text
        text = self.reason(caplog, lambda z: (z, z > 0))
        assert "a result is of type bool; kernels write float32" in text
        assert "no result is of the kernels' type bfloat16" in self.reason(
            caplog, lambda z: z.astype(jnp.int32)
        )

    def test_operands_of_two_types(self) -> None:
        """Kernels without an epilogue multiply them: none with one does."""
        operands = [jax.ShapeDtypeStruct((1, 64, 64), t) for t in (jnp.bfloat16, F32)]
        program = types.SimpleNamespace(operands=(), results=(0,), summed=())
        assert (
            choose_linked(
                "emulator", "cpu", GemmSpec(out_dtype="float32"), program, ["float32"], operands
            )
            == "operands are of bfloat16 and float32; epilogues need them of one type"
        )

    def test_too_many(self, caplog) -> None:
        arrays = [jnp.ones(24)] * 9
        text = self.reason(caplog, lambda z, *xs: z + sum(xs), *arrays)
        assert "more than 8 operands or 4 results" in text

    def test_no_linker(self, caplog, monkeypatch) -> None:
        def none() -> Linker:
            raise NoLinkerError("libnvJitLink.so.13 is not installed")

        monkeypatch.setattr(linking, "linker", none)
        linking.forget_linked_kernels()
        text = self.reason(caplog, lambda z: z + 12345.0)
        assert "libnvJitLink.so.13 is not installed" in text

    def test_no_kernels(self, caplog, monkeypatch) -> None:
        monkeypatch.setattr(epilogue_call.LinkableDense, "kernels", lambda *_: ())
        text = self.reason(caplog, lambda z: z + 1.5)
        assert "this installation has no kernels that epilogues are linked into" in text

    def test_a_better_kernel_without(self, caplog, monkeypatch) -> None:
        monkeypatch.setattr(epilogue_call, "pass_cycles", lambda *_: -1e9)
        text = self.reason(caplog, lambda z: z + 2.5)
        assert "without it and a pass over the result are predicted to take" in text

    def test_unaligned_and_empty(self, caplog) -> None:
        for m, k, n in ((5, 7, 9), (0, 16, 16)):
            a, b = jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)
            f = jax.jit(lambda a, b: bw.matmul(a, b, epilogue=jnp.tanh, implementation="emulator"))
            assert "epilogue_digest" not in f.lower(a, b).as_text()
            close(f(a, b), jnp.tanh(jnp.dot(a, b)))

    def test_switched_off(self) -> None:
        a = jnp.ones((16, 16), jnp.bfloat16)
        f = jax.jit(lambda a: bw.matmul(a, a, epilogue=jnp.tanh, implementation="emulator"))
        with config.linked_epilogues(False):
            assert "epilogue_digest" not in f.lower(a).as_text()
        assert "epilogue_digest" in f.lower(a).as_text()


class TestSwitch:
    def test_by_the_environment(self, monkeypatch) -> None:
        for text, want in (("1", True), ("0", False), ("", True)):
            monkeypatch.setenv("BWGEMM_LINKED_EPILOGUES", text)
            with config.linked_epilogues(True):
                assert config.links_epilogues()
            assert jax.jit(lambda: 0)() == 0
            assert config._linked_context(None) is not None
            with config._linked_context(None):
                assert config.links_epilogues() is want
        monkeypatch.setenv("BWGEMM_LINKED_EPILOGUES", "yes")
        with config._linked_context(None), pytest.raises(ValueError, match="expected 0 or 1"):
            config.links_epilogues()


class TestCache:
    """Linked kernels on disk."""

    @pytest.fixture
    def hook(self) -> Hook:
        program = trace_epilogue(lambda z: z + 1, (16, 16), ()).program
        return Hook(program, ("bfloat16",), swapped=KERNELS[0].swap_ab)

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.setenv("BWGEMM_LINK_CACHE", str(tmp_path))
        linking.forget_linked_kernels()
        return tmp_path

    def files(self, folder: Path) -> list[Path]:
        return [p for p in folder.iterdir() if p.suffix == ".txt"]

    def link(self, hook: Hook) -> linking.LinkedKernel:
        linking.forget_linked_kernels()
        return linking.linked_kernel(KERNELS[0].name, hook, ptx=True)

    def test_is_read_again(self, hook, folder, monkeypatch) -> None:
        first = self.link(hook)
        assert len(self.files(folder)) == 1
        monkeypatch.setattr(linking, "linker", None)  # the tools are not even looked for
        assert self.link(hook) == first

    @pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "binary", "folder"])
    def test_damaged_files_are_refused(self, hook, folder, caplog, damage) -> None:
        first = self.link(hook)
        (path,) = self.files(folder)
        text = path.read_text()
        if damage == "folder":
            path.unlink()
            path.mkdir()
        else:
            path.write_bytes(
                {
                    "flipped": text.replace(text[-9], "A" if text[-9] != "A" else "B").encode(),
                    "truncated": text[:-100].encode(),
                    "empty": b"",
                    "binary": b"\xff\xfe" * 50,
                }[damage]
            )
        assert self.link(hook) == first
        assert "is not used" in caplog.text
        if damage != "folder":
            assert path.read_text() == text

    def test_kernels_are_linked_side_by_side(self, folder, monkeypatch) -> None:
        """Tracing begins to link; what is lowered then waits for it."""
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        both = threading.Barrier(2, timeout=60)
        link = Linker.link

        def at_once(*args: Any, **kwargs: Any) -> bytes:
            both.wait()  # for the other link
            return link(*args, **kwargs)

        monkeypatch.setattr(Linker, "link", at_once)
        a = jnp.ones((16, 64), jnp.bfloat16)
        b = jnp.ones((64, 24), jnp.bfloat16)

        @jax.jit
        def two(a: Any, b: Any) -> Any:
            one = bw.matmul(a, b, epilogue=jnp.square, implementation="emulator")
            return one, bw.matmul(a, b, epilogue=jnp.negative, implementation="emulator")

        close(two(a, b), (jnp.full((16, 24), 64.0**2), jnp.full((16, 24), -64.0)))
        assert len(self.files(folder)) == 2

    def test_off_and_unwritable(self, hook, folder, monkeypatch, caplog) -> None:
        monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
        first = self.link(hook)
        assert not self.files(folder)
        (folder / "file").write_text("")
        monkeypatch.setenv("BWGEMM_LINK_CACHE", str(folder / "file"))
        assert self.link(hook) == first
        assert "is not written" in caplog.text

    def test_default_folder(self, folder, monkeypatch) -> None:
        monkeypatch.delenv("BWGEMM_LINK_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
        assert linking.cache_folder() == folder / "jax_bwgemm" / "linked-v1"

    def test_exported_programs_need_no_linker(self, folder, monkeypatch) -> None:
        a = jnp.asarray(normal(np.random.default_rng(5), (16, 64), "bfloat16"))
        b = jnp.asarray(normal(np.random.default_rng(6), (64, 24), "bfloat16"))
        f = jax.jit(lambda a, b: bw.matmul(a, b, epilogue=jnp.abs, implementation="emulator"))
        exported = jax.export.export(f, disabled_checks=bw.DISABLE_EXPORT_CHECKS)(a, b)
        assert "epilogue_digest" in exported.mlir_module()
        data = exported.serialize()
        monkeypatch.setattr(linking, "linker", None)
        linking.forget_linked_kernels()
        jax.clear_caches()
        got = jax.export.deserialize(data).call(a, b)
        close(got, jnp.abs(jnp.dot(a.astype(F32), b.astype(F32))))


class TestLinker:
    def test_errors_of_the_tools(self) -> None:
        tools = linker()
        with pytest.raises(LinkError, match=r"(?s)nvrtcCompileProgram.*nonsense"):
            tools.compile("nonsense;")
        with pytest.raises(LinkError, match="nvJitLinkAddData"):
            tools.link(b"no fat binary", "kernel", tools.compile(""), ptx=False)
        kernel = KERNELS[0].name
        fat = linking.linkable_kernels()[kernel].read_bytes()
        nothing = tools.compile("")
        with pytest.raises(LinkError, match=r"(?s)nvJitLinkComplete.*bwgemm_epilogue"):
            tools.link(fat, kernel, nothing, ptx=False)

    def test_cubins_are_linked_without_a_gpu(self, monkeypatch) -> None:
        monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
        program = trace_epilogue(jax.nn.gelu, (16, 16), ()).program
        hook = Hook(program, ("bfloat16",), swapped=KERNELS[0].swap_ab)
        linked = linking.linked_kernel(KERNELS[0].name, hook, ptx=False)
        assert base64.b64decode(linked.code).startswith(b"\x7fELF")

    def test_not_installed(self, monkeypatch) -> None:
        from jax_bwgemm.epilogue import linker as module

        with pytest.raises(NoLinkerError, match=r"libnothing.so.1 is not installed: `pip install"):
            module._library("libnothing.so.1")
        monkeypatch.setenv("BWGEMM_LINKER", "0")
        linker.cache_clear()
        with pytest.raises(NoLinkerError, match="BWGEMM_LINKER=0 forbids linking"):
            linker()
        monkeypatch.delenv("BWGEMM_LINKER")
        linker.cache_clear()


class TestCalls:
    """The FFI call as an exported program may have it."""

    KERNEL = next((k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"), None)

    @pytest.fixture
    def linked(self) -> linking.LinkedKernel:
        program = trace_epilogue(lambda z, x: (z + x, z), (16, 24), [jnp.ones(24)]).program
        hook = Hook(program, ("bfloat16", "float32"), swapped=self.KERNEL.swap_ab)
        return linking.linked_kernel(self.KERNEL.name, hook, ptx=True)

    def call(self, linked: Any, **changes: Any) -> Any:
        config = {
            "kernel": self.KERNEL.name,
            "operands": "a b x0",
            "results": "d workspace y1",
            "epilogue": linked.code,
            "epilogue_digest": linked.digest,
            "epilogue_version": np.int64(VERSION),
            "epilogue_operands": "float32:n",
            "epilogue_results": "float32",
        }
        arrays = {
            "a": np.ones((1, 16, 64), "bfloat16"),
            "b": np.ones((1, 64, 24), "bfloat16"),
            "x0": np.ones(24, np.float32),
            "x1": np.ones(24, np.float32),
        }
        results = {
            "d": ((1, 16, 24), "bfloat16"),
            "workspace": ((0,), "uint8"),
            "y1": ((1, 16, 24), "float32"),
            "y2": ((1, 16, 24), "float32"),
        }
        for name, change in changes.items():
            if name in arrays:
                arrays[name] = change
            elif name in results:
                results[name] = change
            else:
                config[name] = change
        config = {key: value for key, value in config.items() if value is not None}
        shapes = [jax.ShapeDtypeStruct(*results[name]) for name in config["results"].split()]
        given = [arrays[name] for name in config["operands"].split()]
        return jax.ffi.ffi_call(targets.TARGETS["emulator"], shapes)(*given, config=config)

    def test_runs(self, linked) -> None:
        d, _, y1 = self.call(linked)
        assert_exact(d, np.full((1, 16, 24), 65, "bfloat16"))
        assert_exact(y1, np.full((1, 16, 24), 64, np.float32))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"epilogue": "AAA", "epilogue_digest": "u"}, "the epilogue is not base64"),
            ({"epilogue": "A=AA", "epilogue_digest": "v"}, "the epilogue is not base64"),
            ({"epilogue": "A!AA", "epilogue_digest": "x"}, "the epilogue is not base64"),
            ({"epilogue": base64.b64encode(b"no PTX").decode(), "epilogue_digest": "a"},
             "INTERNAL.*linked.cc"),
            ({"kernel": "sm90_of_no_build"}, "is not in this build"),
            ({"splits": np.int64(2)}, "with an epilogue has no splits and no batch"),
            ({"x0": np.ones(23, np.float32)}, r"x0 is float32\[23\], expected 24 elements of"),
            ({"x0": np.ones(24, np.int32)}, r"x0 is int32\[24\], expected 24 elements of float32"),
            ({"y1": ((1, 16, 23), "float32")}, r"y1 is float32\[1,16,23\], expected 384 elements"),
            ({"operands": "a b"}, "the epilogue needs operand x0"),
            ({"results": "d workspace"}, "the epilogue needs result y1"),
            ({"operands": "a b x0 x1"}, "the epilogue takes no x1"),
            ({"results": "d workspace y1 y2"}, "the epilogue has no y2"),
            ({"epilogue_operands": " ".join(["float32:n"] * 9)}, "needs operand x1"),
            ({"epilogue": None}, "the call has x0 and no epilogue"),
            ({"epilogue_version": None}, r"linked by another version of jax_bwgemm \(0, this is 3"),
            ({"epilogue_operands": "float32:n:staged"}, "array 0 of float32 cannot be 'staged'"),
            ({"epilogue_results": "float32:loud"}, "array 0 of float32 cannot be 'loud'"),
            ({"epilogue_results": "bfloat16:summed"}, "y1 is float32.*elements of bfloat16"),
            ({"epilogue_results": "float32:summed"},
             r"y1 is float32\[1,16,24\], expected 192 elements|cannot be 'summed'"),
        ],
    )  # fmt: skip
    def test_refusals(self, linked, changes, message) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(linked, **changes))

    def test_a_digest_belongs_to_one_text(self, linked) -> None:
        self.call(linked)
        # Of another length: that is compared in every call, the text when a program is prepared.
        other = base64.b64encode(base64.b64decode(linked.code) + b"\n\n\n").decode()
        with pytest.raises(jax.errors.JaxRuntimeError, match="belongs to other code"):
            jax.block_until_ready(self.call(linked, epilogue=other))

    def test_the_code_must_have_the_kernel(self, linked) -> None:
        others = [k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"]
        with pytest.raises(jax.errors.JaxRuntimeError, match="the PTX has no kernel"):
            jax.block_until_ready(
                self.call(linked, kernel=others[-1].name, epilogue_digest="of another")
            )
