"""Epilogues after split-K: linked into the second kernel, which adds the parts of K."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import (  # noqa: F401
    EPILOGUES,
    close,
    linked_for_sm90,
    operands,
    product,
    reference,
    requires_linker,
)
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm import config, emulator
from jax_bwgemm.epilogue import call as epilogue_call
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.contraction import SPLIT_DENSE
from jax_bwgemm.epilogue.costs import instructions
from jax_bwgemm.epilogue.hook import VERSION
from jax_bwgemm.epilogue.split_k_hook import SplitKHook
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product import targets
from jax_bwgemm.product.implementations import log_once

pytestmark = [*requires_emulator, requires_linker]

F32 = jnp.float32
KERNELS = [k for k in SPLIT_DENSE.kernels("emulator") if k.majors == "kn"]
KERNELS = [k for k in KERNELS if k.arch == "sm90" and k.a_dtype == k.b_dtype == k.out_dtype]
# The smallest tile of each schedule: the second kernel is the same for all.
SOME = list({k.schedule: k for k in sorted(KERNELS, key=lambda k: -k.tile_m * k.tile_n)}.values())

needs_kernels = pytest.mark.skipif(not KERNELS, reason="no kernel that splits K was built")


@pytest.fixture(autouse=True)
def _machine() -> Any:
    with config.target("sm90", 8), emulator.configure(sm_count=8):
        yield


def run(f: Any, a: Any, b: Any, arrays: Any, chosen: Any, linked: int = 1) -> Any:
    def call(a: Any, b: Any, *arrays: Any) -> Any:
        return bw.matmul(
            a, b, epilogue=f, epilogue_operands=arrays, implementation="emulator", config=chosen
        )

    lowered = jax.jit(call).lower(a, b, *arrays)
    assert lowered.as_text().count('epilogue_form = "split_k"') == linked
    return lowered.compile()(a, b, *arrays)


def with_splits(kernel: Any, splits: int) -> Any:
    return dataclasses.replace(bw.TuningConfig.of(kernel.name), splits=splits)


@pytest.mark.parametrize("kernel", SOME, ids=lambda k: k.name)
@pytest.mark.parametrize(("m", "n", "splits"), [(5, 8, 2), (33, 136, 3), (70, 72, 11)])
def test_integers(kernel: Any, m: int, n: int, splits: int) -> None:
    """Every value of all results, of more parts than are on their way at once too."""
    splits = min(8 * splits, 56) if kernel.cluster_k else splits
    k = kernel.tile_k * splits + (8 if kernel.uneven_parts else 0)

    def f(z: Any, r: Any, c: Any, q: Any, b: Any) -> Any:
        wide = jnp.maximum(z * c + r.astype(F32), b)
        return wide, z - r.astype(F32), (z * 2).astype(jnp.int32) + q, z + c

    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(small_integers(rng, s, kernel.a_dtype)) for s in ((m, k), (k, n)))
    kinds = ((m, n), kernel.a_dtype), ((m, 1), "float32"), ((m, n), "int32"), ((n,), "float16")
    arrays = [jnp.asarray(small_integers(rng, *s)) for s in kinds]
    with emulator.configure(races=True):
        got = run(f, a, b, arrays, with_splits(kernel, splits))
    want = f(a.astype(F32) @ b.astype(F32), *arrays)
    for ours, theirs in zip(got, want, strict=True):
        assert_exact(ours, np.asarray(theirs.astype(ours.dtype)))


@needs_kernels
@pytest.mark.parametrize("name", EPILOGUES)
def test_every_epilogue(name: str) -> None:
    kernel, rng = SOME[-1], np.random.default_rng(1)
    a, b = product(rng, kernel, 40, 136, 1024)
    f, arrays = operands(rng, name, 40, 136)
    chosen = with_splits(kernel, 16 if kernel.cluster_k else 4)
    close(run(f, a, b, arrays, chosen), reference(f, a, b, arrays))


@needs_kernels
def test_chosen_where_splitting_pays() -> None:
    """Few tiles and a long K: neither another kernel nor a pass takes as little."""

    def f(x: Any, w: Any, b: Any) -> Any:
        return bw.linear(x, w, b, activation="gelu", implementation="emulator")

    types = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((128, 8192), (8192, 128), (128,))]
    with config.target("sm90", 132):
        text = str(bw.explain_program(f, *types, device="cpu"))
        assert "the epilogue is linked into the kernel" in text
        lowered = jax.jit(f).lower(*types).as_text()
    assert 'epilogue_form = "split_k"' in lowered


@needs_kernels
def test_its_price() -> None:
    """More for what the second kernel reads and computes; D it writes in any case."""
    from jax_bwgemm.dense import heuristics
    from jax_bwgemm.dense.spec import GemmDims, GemmSpec
    from jax_bwgemm.epilogue.costs import split_k_cycles

    dims, target = GemmDims(128, 128, 8192, 1), config.make_target("sm90")
    spec = GemmSpec("k", "n", out_dtype="bfloat16")
    split = heuristics.rank(KERNELS, spec, "bfloat16", dims, target)[0][0]
    row, matrix = jnp.ones(128, jnp.bfloat16), jnp.ones((128, 128), jnp.bfloat16)

    def cycles(f: Any, *arrays: Any) -> float:
        program = trace_epilogue(f, (128, 128), arrays).program
        return split_k_cycles(split, program, ("bfloat16",), dims, target) - split.cycles

    assert cycles(lambda z: z) == 0
    assert 0 < cycles(lambda z, b: jax.nn.gelu(z + b), row) < 100
    assert cycles(lambda z, r: z + r, matrix) > cycles(lambda z, b: z + b, row)
    program = trace_epilogue(lambda z: z + 1, (128, 128), ()).program
    assert instructions(program, in_kernel=True) == 1


@needs_kernels
def test_sums_keep_the_epilogue_apart(caplog: pytest.LogCaptureFixture) -> None:
    log_once.cache_clear()
    caplog.set_level(logging.INFO, "jax_bwgemm")
    kernel = SOME[-1]
    a, b = (jnp.ones(s, kernel.a_dtype) for s in ((16, 1024), (1024, 16)))
    chosen = with_splits(kernel, 16 if kernel.cluster_k else 2)
    z, total = run(lambda z: (z, jnp.sum(z, 0)), a, b, (), chosen, linked=0)
    assert_exact(z, np.full((16, 16), 1024, kernel.a_dtype))
    assert_exact(total, np.full(16, 16384, kernel.a_dtype))
    assert "kernels with swapped operands or of parts of K sum no rows" in caplog.text


@needs_kernels
def test_no_second_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a build from before: splits keep the epilogue apart."""
    monkeypatch.setattr(epilogue_call.SplitDense, "kernels", lambda *_: ())
    kernel = SOME[-1]
    a, b = (jnp.ones(s, kernel.a_dtype) for s in ((16, 1024), (1024, 16)))
    chosen = with_splits(kernel, 16 if kernel.cluster_k else 2)
    assert_exact(run(jnp.negative, a, b, (), chosen, 0), np.full((16, 16), -1024, kernel.a_dtype))


@needs_kernels
class TestCalls:
    """The FFI call as an exported program may have it."""

    @pytest.fixture
    def kernel(self) -> Any:
        found = [k for k in KERNELS if not k.cluster_k and k.a_dtype == "bfloat16"]
        return found[-1] if found else pytest.skip("no such kernel was built")

    def call(self, kernel: Any, n: int = 24, **changes: Any) -> Any:
        program = trace_epilogue(lambda z, x: (z + x, z), (16, 24), [jnp.ones(24)]).program
        hook = SplitKHook(program, ("bfloat16", "float32"), "sm90")
        linked = linking.linked_kernel(hook.symbol(kernel.name), hook, ptx=True)
        config = {
            "kernel": kernel.name,
            "operands": "a b x0",
            "results": "d workspace y1",
            "splits": np.int64(2),
            "epilogue": linked.code,
            "epilogue_digest": linked.digest,
            "epilogue_version": np.int64(VERSION),
            "epilogue_form": "split_k",
            "epilogue_operands": "float32:n",
            "epilogue_results": "float32",
        }
        config |= changes
        a, b = np.ones((1, 16, 64), "bfloat16"), np.ones((1, 64, n), "bfloat16")
        shapes = [((1, 16, n), "bfloat16"), ((2 * 16 * n * 4,), "uint8"), ((1, 16, n), "float32")]
        results = [jax.ShapeDtypeStruct(*s) for s in shapes]
        ffi = jax.ffi.ffi_call(targets.TARGETS["emulator"], results)
        return ffi(a, b, np.ones(n, np.float32), config=config)

    def test_runs(self, kernel: Any) -> None:
        d, _, y1 = self.call(kernel)
        assert_exact(d, np.full((1, 16, 24), 65, "bfloat16"))
        assert_exact(y1, np.full((1, 16, 24), 64, np.float32))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"splits": np.int64(1)}, "leaves no parts of K for an epilogue to follow"),
            ({"epilogue_results": "float32:summed"}, "array 0 of float32 cannot be 'summed'"),
            ({"n": 23}, "an epilogue after split-K needs an even N, not 23"),
            ({"epilogue_form": ""}, "with an epilogue has no splits"),
            ({"epilogue_form": "split"}, "can have no epilogue of the form 'split'"),
            ({"epilogue_version": np.int64(1)}, "linked by another version"),
        ],
    )
    def test_refusals(self, kernel: Any, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(kernel, **changes))
