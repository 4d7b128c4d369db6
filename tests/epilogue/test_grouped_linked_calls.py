"""Epilogues in grouped kernels, in the emulator: fallbacks, errors and FFI calls."""

from __future__ import annotations

import base64
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from grouped_linked_cases import kernels
from linked_cases import close, linked_for_sm90, requires_linker  # noqa: F401
from numerics import assert_exact

import jax_bwgemm as bw
from jax_bwgemm import config, runtime
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.grouped_hook import GroupedHook, GroupedRowHook, grouped_hook
from jax_bwgemm.epilogue.hook import VERSION
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.grouped.api import ragged_dot_with_epilogue
from jax_bwgemm.grouped.with_epilogue import After, EpilogueOperands, with_groups
from jax_bwgemm.product import targets
from jax_bwgemm.product.implementations import log_once

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator")
SOME = ("emulator", "xla")


class TestFallbacks:
    """Where no kernel takes the epilogue: the same result, and a reason in the log."""

    @staticmethod
    def reason(caplog: Any, f: Any, plain: Any = (), shape: Any = (16, 64, 24), **more: Any) -> str:
        m, k, n = shape
        a, b = jnp.ones((m, k), jnp.bfloat16), jnp.ones((2, k, n), jnp.bfloat16)
        sizes = jnp.asarray([m, 0], jnp.int32)

        def call(a: Any, b: Any, *plain: Any) -> Any:
            more.setdefault("implementation", SOME)
            return bw.ragged_dot(a, b, sizes, epilogue=f, epilogue_operands=plain, **more)

        with caplog.at_level(logging.INFO, "jax_bwgemm"):
            log_once.cache_clear()
            lowered = jax.jit(call).lower(a, b, *plain)
        assert "epilogue_digest" not in lowered.as_text()
        close(lowered.compile()(a, b, *plain), f(jnp.full((m, n), float(k)), *plain))
        return caplog.text

    def test_types(self, caplog) -> None:
        assert "a result is of type bool" in self.reason(caplog, lambda z: (z, z > 0))
        text = self.reason(caplog, lambda z: z.astype(jnp.int32))
        assert "no result is of the kernels' type bfloat16" in text

    def test_sums(self, caplog) -> None:
        text = self.reason(caplog, lambda z: (z, jnp.sum(z, 0)))
        assert "kernels with swapped operands sum no rows" in text

    def test_alignment(self, caplog) -> None:
        text = self.reason(caplog, lambda z: z + 1, shape=(16, 64, 20))
        assert "row pitches are not multiples of 16 bytes" in text

    def test_alignment_of_half_the_columns(self, caplog) -> None:
        """Those of both products are aligned, those of the result are not."""
        a, b = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((2, 64, 40), jnp.bfloat16)
        epilogue = Epilogue(lambda gate, up: gate * up, "test")
        after = After(epilogue, EpilogueOperands(), gated=True, only_linked=True)
        sizes = jnp.asarray([16, 0], jnp.int32)
        with caplog.at_level(logging.INFO, "jax_bwgemm"):
            log_once.cache_clear()
            found = ragged_dot_with_epilogue(a, b, sizes, None, after, implementation=SOME)
        assert found is None
        assert "row pitches are not multiples of 16 bytes" in caplog.text

    def test_no_rows(self, caplog) -> None:
        text = self.reason(caplog, lambda z: z + 1, shape=(0, 64, 24))
        assert "an empty problem runs no kernel" in text

    def test_another_kernel_is_asked_for(self, caplog) -> None:
        taken = {k.name for k in KERNELS}
        table = [k for k in runtime.kernel_table("emulator") if k.name not in taken]
        names = [k.name for k in table if k.contraction == "m_grouped" and k.b_major == "n"
                 and (k.a_dtype, k.out_dtype) == ("bfloat16", "bfloat16")]  # fmt: skip
        if not names:
            pytest.skip("all grouped kernels of this build take epilogues")
        text = self.reason(caplog, lambda z: z + 1, config=names[0])
        assert "the epilogue is a pass of its own" in text

    def test_what_would_not_pay(self, caplog) -> None:
        def long(z: Any) -> Any:
            for _ in range(40):
                z = jnp.sin(z) / 2
            return z

        assert "predicted to take" in self.reason(caplog, long, shape=(64, 16, 24))

    def test_switched_off(self, caplog) -> None:
        with config.linked_epilogues(False):
            assert self.reason(caplog, lambda z: z + 1) is not None


class TestErrors:
    A, B, SIZES = jnp.ones((4, 8)), jnp.ones((2, 8, 8)), np.asarray([4, 0])

    def test_operands_without_an_epilogue(self) -> None:
        with pytest.raises(TypeError, match="ragged_dot: 2 epilogue operands and no epilogue"):
            bw.ragged_dot(self.A, self.B, self.SIZES, epilogue_operands=(1.0,),
                          epilogue_group_operands=(jnp.ones(2),))  # fmt: skip

    @pytest.mark.parametrize("shape", [(3,), (2, 4), (), (2, 8, 1)])
    def test_operands_of_groups(self, shape) -> None:
        message = r"epilogue_group_operands are of shape \(2,\) or \(2, 8\), operand 0 is"
        with pytest.raises(TypeError, match=message):
            bw.ragged_dot(self.A, self.B, self.SIZES, epilogue=lambda z, x: z * x,
                          epilogue_group_operands=(jnp.ones(shape),))  # fmt: skip

    def test_one_column_is_one_value_for_each_matrix(self) -> None:
        """Not a row, of which a kernel would read as many elements as the result has columns."""
        row = jax.ShapeDtypeStruct((16, 1), jnp.float32)
        program = trace_epilogue(lambda z, x: z + x, (16, 24), (row,)).program
        for shape, axes in (((2,), (2,)), ((2, 1), (2,)), ((2, 24), (2, 1))):
            (operand,) = with_groups(program, [jax.ShapeDtypeStruct(shape, jnp.float32)]).operands
            assert operand.axes == axes

    def test_no_function(self) -> None:
        with pytest.raises(TypeError, match="ragged_dot: epilogue must be a function, got str"):
            bw.ragged_dot(self.A, self.B, self.SIZES, epilogue="gelu")


@pytest.mark.parametrize(
    ("hook", "count"),
    [
        (lambda *args: grouped_hook(*args, "sm90"), 2),
        (lambda *args: grouped_hook(*args, "sm100"), 0),
        (lambda *args: GroupedRowHook(*args, "sm90"), 0),
    ],
    ids=["swapped", "sm100", "not swapped"],
)
def test_what_a_kernel_moves_for_an_epilogue(hook: Any, count: int) -> None:
    """The first matrices and results of its type, besides the one that it stores in any case."""
    matrices = [jax.ShapeDtypeStruct((16, 24), jnp.bfloat16)] * 3
    program = trace_epilogue(lambda z, *xs: (z, *(z + x for x in xs)), (16, 24), matrices).program
    found = hook(program, ("bfloat16",) * 4)
    assert found.staged_operands == [0, 1][:count]
    assert found.staged_results == [1, 2][:count]
    assert found.operand_roles.count("staged") == found.result_roles.count("staged") == count


class TestCalls:
    """The FFI call as an exported program may have it."""

    KERNEL = min(
        (k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"),
        key=lambda k: k.tile_n,
        default=None,
    )

    @pytest.fixture
    def linked(self) -> linking.LinkedKernel:
        program = trace_epilogue(lambda z, x: (z + x, z), (16, 24), [jnp.ones(24)]).program
        hook = GroupedHook(program, ("bfloat16", "float32"))
        return linking.linked_kernel(self.KERNEL.name, hook, ptx=True)

    def call(self, linked: Any, batch: int = 1, columns: int = 24, **changes: Any) -> Any:
        config = {
            "kernel": self.KERNEL.name,
            "operands": "a b group_sizes group_offset x0",
            "results": "d workspace y1",
            "epilogue": linked.code,
            "epilogue_digest": linked.digest,
            "epilogue_version": np.int64(VERSION),
            "epilogue_operands": "float32:n",
            "epilogue_results": "float32",
        }
        given = [
            np.ones((batch, 16, 64), "bfloat16"),
            np.ones((1, 3, 64, 24), "bfloat16"),
            np.asarray([[5, 3, 8]], np.int32),
            np.zeros(1, np.int32),
            np.ones(24, np.float32),
        ]
        config |= changes
        shapes = [((batch, 16, columns), "bfloat16"), ((4,), "uint8"), ((1, 16, 24), "float32")]
        results = [jax.ShapeDtypeStruct(*s) for s in shapes]
        config = {key: value for key, value in config.items() if value is not None}
        return jax.ffi.ffi_call(targets.TARGETS["emulator"], results)(*given, config=config)

    def test_runs(self, linked) -> None:
        d, _, y1 = self.call(linked)
        assert_exact(d, np.full((1, 16, 24), 65, "bfloat16"))
        assert_exact(y1, np.full((1, 16, 24), 64, np.float32))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"batch": 2}, "with an epilogue has no batch"),
            ({"epilogue_form": "wide"}, "can have no epilogue of the form 'wide'"),
            ({"epilogue_form": "split_k"}, "can have no epilogue of the form 'split_k'"),
            ({"epilogue_form": "gated"}, "can have no epilogue of the form 'gated'"),
            ({"epilogue_form": "gated", "epilogue": None}, "an epilogue's form and no epilogue"),
            ({"epilogue_operands": "float32:gn"}, r"x0 is float32\[24\], expected 72 elements of"),
            ({"epilogue_operands": "float32:g"}, r"x0 is float32\[24\], expected 3 elements of"),
            ({"epilogue_results": "float32:summed"}, r"y1 is .*, expected 32 elements of float32"),
            ({"epilogue_form": "halves"}, "operand b is .*, expected"),
            ({"epilogue_form": "halves", "columns": 48}, "has no second half of d"),
            ({"epilogue_form": "halves", "columns": 49}, "49 columns are not those of two results"),
            ({"epilogue_results": "float32:half"}, "result 0 cannot be a half of d"),
            ({"epilogue_version": None}, r"linked by another version of jax_bwgemm \(0, this is"),
            ({"epilogue": None}, "the call has x0 and no epilogue"),
            ({"epilogue": base64.b64encode(b"no PTX").decode(), "epilogue_digest": "a"},
             "INTERNAL.*linked.cc"),
        ],
    )  # fmt: skip
    def test_refusals(self, linked, changes, message) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(linked, **changes))
