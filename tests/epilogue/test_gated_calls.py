"""FFI calls of kernels of two products as an exported program may have them."""

from __future__ import annotations

import base64
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gated_cases import (
    BF16,
    F32,
    requires_gated,
)
from linked_cases import linked_for_sm90  # noqa: F401
from numerics import assert_exact

from jax_bwgemm import runtime
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.gated_hook import GatedHook
from jax_bwgemm.epilogue.hook import VERSION
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product import targets

pytestmark = requires_gated


class TestCalls:
    """The FFI call as an exported program may have it."""

    KERNEL = BF16[0] if BF16 else None

    @pytest.fixture
    def linked(self) -> linking.LinkedKernel:
        up = jax.ShapeDtypeStruct((16, 24), F32)
        program = trace_epilogue(lambda g, u, x: (g + u + x, u), (16, 24), [up, jnp.ones(24)])
        hook = GatedHook(program.program, ("bfloat16",) * 2)
        return linking.linked_kernel(self.KERNEL.name, hook, ptx=True)

    def call(self, linked: Any, **changes: Any) -> Any:
        fields = {
            "kernel": self.KERNEL.name,
            "operands": "a b b_up x0",
            "results": "d workspace y1",
            "epilogue": linked.code,
            "epilogue_digest": linked.digest,
            "epilogue_version": np.int64(VERSION),
            "epilogue_operands": "float32:n",
            "epilogue_results": "bfloat16",
        }
        arrays = {
            "a": np.ones((1, 16, 64), "bfloat16"),
            "b": np.ones((1, 64, 24), "bfloat16"),
            "b_up": np.full((1, 64, 24), 2, "bfloat16"),
            "x0": np.ones(24, np.float32),
        }
        results = {
            "d": ((1, 16, 24), "bfloat16"),
            "workspace": ((0,), "uint8"),
            "y1": ((1, 16, 24), "bfloat16"),
        }
        for name, change in changes.items():
            where = arrays if name in arrays else results if name in results else fields
            where[name] = change
        fields = {key: value for key, value in fields.items() if value is not None}
        shapes = [jax.ShapeDtypeStruct(*results[name]) for name in fields["results"].split()]
        given = [arrays[name] for name in fields["operands"].split()]
        return jax.ffi.ffi_call(targets.TARGETS["emulator"], shapes)(*given, config=fields)

    def test_runs(self, linked) -> None:
        d, _, up = self.call(linked)
        assert_exact(d, np.full((1, 16, 24), 193, "bfloat16"))
        assert_exact(up, np.full((1, 16, 24), 128, "bfloat16"))
        both = np.ones((64, 2, 24), "bfloat16")
        d, _, _ = self.call(linked, operands="a b x0", b=both)
        assert_exact(d, np.full((1, 16, 24), 129, "bfloat16"))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"epilogue": None, "operands": "a b b_up", "results": "d workspace"},
             "needs an epilogue"),
            ({"operands": "a b x0"}, r"operand b is bfloat16\[1,64,24\], expected bfloat16\[64,2"),
            ({"operands": "a b x0", "b": np.ones((1, 2, 24), "bfloat16")}, "K is 64"),
            ({"b_up": np.ones((1, 64, 32), "bfloat16")}, r"operand b_up is bfloat16\[1,64,32\]"),
            ({"b": np.ones((1, 64, 32), "bfloat16")}, r"operand b is bfloat16\[1,64,32\]"),
            ({"a": np.ones((2, 16, 64), "bfloat16"), "d": ((2, 16, 24), "bfloat16")},
             "has no batch"),
            ({"y1": ((1, 16, 24), "float32"), "epilogue_results": "float32"},
             r"result y1 is float32\[1,16,24\], a gated kernel's are all of bfloat16"),
            ({"splits": np.int64(2)}, "with an epilogue has no splits"),
            ({"order": "vertical"}, r"\(gated\) has no order"),
        ],
    )  # fmt: skip
    def test_refusals(self, linked, changes, message) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(linked, **changes))

    @pytest.mark.parametrize(
        ("pattern", "other", "message"),
        [  # parameters of the kernel that the launch does not pass
            (r"(\.entry \w+\(\s*\.param[^)]*?)\s*\)", r"\1,\n.param .u64 second)",
             "has not exactly one parameter"),
            (r"(\.entry \w+\(\s*\.param[^\[]*\[)\d+\]", r"\g<1>65536]",
             "takes 65536 bytes of parameters, at most 4096"),
        ],
        ids=["a second one", "a larger one"],
    )  # fmt: skip
    def test_code_with_other_parameters(self, linked, pattern, other, message) -> None:
        """The process would read beyond what it passes."""
        ptx = base64.b64decode(linked.code).decode().rstrip("\0")
        changed = re.sub(pattern, other, ptx)
        assert changed != ptx
        code = base64.b64encode(changed.encode() + b"\0").decode()
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(linked, epilogue=code, epilogue_digest=message))

    def test_other_kernels_take_no_second_matrix(self, linked) -> None:
        dense = next(
            k for k in runtime.emulated_kernels()
            if (k.in_dtype, k.out_dtype, k.majors) == ("bfloat16", "bfloat16", "kn")
        )  # fmt: skip
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"\(dense\) takes no b_up"):
            jax.block_until_ready(self.call(linked, kernel=dense.name))
