"""Where no kernel takes an epilogue: the same result, and a reason in the log."""

from __future__ import annotations

import logging
import re
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from emulator_cases import requires_emulator
from linked_cases import (  # noqa: F401
    F32,
    close,
    linked_for_sm90,
    requires_linker,
)

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.dense.costs import TYPICAL_GAIN
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue import call as epilogue_call
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.call import choose_linked
from jax_bwgemm.epilogue.costs import Surroundings
from jax_bwgemm.epilogue.linker import Linker, NoLinkerError
from jax_bwgemm.epilogue.tracing import trace_epilogue

pytestmark = [*requires_emulator, requires_linker]


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
        for kind in (epilogue_call.LinkableDense, epilogue_call.SplitDense):
            monkeypatch.setattr(kind, "kernels", lambda *_: ())
        text = self.reason(caplog, lambda z: z + 1.5)
        assert "this installation has no kernels that epilogues are linked into" in text

    def test_a_better_kernel_without(self, caplog, monkeypatch) -> None:
        monkeypatch.setattr(epilogue_call, "pass_cycles", lambda *_: -1e9)
        text = self.reason(caplog, lambda z: z + 2.5)
        assert "without it and a pass over the result are predicted to take" in text

    @pytest.mark.parametrize("count", [1, 5, 6])
    def test_many_matrices(self, count: int) -> None:
        """A kernel loads two matrices; of many more, nothing hides the loads."""
        x, w, y = (
            jax.ShapeDtypeStruct(s, jnp.bfloat16)
            for s in ((8192, 4096), (4096, 1024), (8192, 1024))
        )

        def f(x: jax.Array, w: jax.Array, *matrices: jax.Array) -> jax.Array:
            return bw.matmul(x, w, epilogue=lambda z, *m: sum(m, z), epilogue_operands=matrices)

        explained = str(bw.explain_program(f, x, w, *[y] * count, device="sm90"))
        assert ("the epilogue is linked into the kernel" in explained) == (count <= 5)

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
        with pytest.raises(TypeError, match="enabled must be True or False, got 'no'"):
            config.linked_epilogues("no")


def test_xlas_product_that_takes_the_epilogue_along_is_slower_by_what_kernels_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, cycles in (("linked_cycles", 1e9), ("split_k_cycles", 1e9), ("pass_cycles", 0.0)):
        monkeypatch.setattr(epilogue_call, name, lambda *_, cycles=cycles: cycles)
    x = jax.ShapeDtypeStruct((1, 1024, 1024), jnp.bfloat16)
    program = trace_epilogue(lambda z: z + 1, (1024, 1024), []).program

    def apart(**surroundings: Any) -> int:
        options = program, ("bfloat16",), (x, x), Surroundings(**surroundings)
        found = choose_linked("emulator", "cpu", GemmSpec(), *options)
        return int(re.search(r"predicted to take (\d+) cycles", found)[1])

    assert apart(taken_by_xla=True) == pytest.approx(apart() * (1 + TYPICAL_GAIN), abs=2)


def test_kernels_of_parts_of_k_are_no_choice_where_rows_are_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even where they would be the fastest."""
    monkeypatch.setattr(epilogue_call, "linked_cycles", lambda *_: 1e9)
    monkeypatch.setattr(epilogue_call, "split_k_cycles", lambda *_: 0.0)
    operands = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((1, 128, 16384), (1, 16384, 128))]
    for f, count in ((lambda z: z, 1), (lambda z: (z, z.sum(0)), 2)):
        program = trace_epilogue(f, (128, 128), []).program
        options = program, ("bfloat16",) * count, operands
        with config.target("sm90", 132):
            found = choose_linked("emulator", "cpu", GemmSpec(), *options)
        assert isinstance(found, str) == bool(program.summed)


def test_a_program_for_several_platforms_links_nothing() -> None:
    a, b = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((64, 24), jnp.bfloat16)
    some = ("emulator", "xla")
    f = jax.jit(lambda a, b: bw.matmul(a, b, epilogue=jax.nn.gelu, implementation=some))
    for platforms, linked in ((("cpu",), True), (("cpu", "cuda"), False)):
        text = f.trace(a, b).lower(lowering_platforms=platforms).as_text()
        assert ("epilogue_digest" in text) == linked
