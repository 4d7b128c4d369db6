"""FFI calls of linked kernels as an exported program may have them: checks and refusals."""

from __future__ import annotations

import base64
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import (  # noqa: F401
    kernels,
    linked_for_sm90,
    operands,
    product,
    requires_linker,
)
from numerics import assert_exact

from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.hook import VERSION, Hook, pairs_along_m, staging_of
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product import targets

pytestmark = [*requires_emulator, requires_linker]

KERNELS = kernels("emulator")


@pytest.mark.parametrize("kernel", kernels("emulator", ("sm90", "sm100")), ids=lambda k: k.name)
def test_what_a_kernel_moves_for_an_epilogue(kernel: Any) -> None:
    """The first matrices and the first result of D's type, besides D."""
    matrices = [jax.ShapeDtypeStruct((16, 64), kernel.out_dtype)] * 3
    program = trace_epilogue(lambda z, *xs: (z, *(z + x for x in xs)), (16, 64), matrices).program
    staging = staging_of(kernel, 64)
    hook = Hook(program, (kernel.out_dtype,) * 4, kernel.arch, pairs_along_m(kernel), staging)
    count = 0 if kernel.swap_ab else 2 if kernel.schedule == "pingpong" else 1
    assert hook.staged_operands == [0, 1][:count]
    assert hook.staged_results == [1][:count]
    assert hook.operand_roles.count("staged") == count


class TestCalls:
    """The FFI call as an exported program may have it."""

    KERNEL = next((k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"), None)

    @pytest.fixture
    def linked(self) -> linking.LinkedKernel:
        program = trace_epilogue(lambda z, x: (z + x, z), (16, 24), [jnp.ones(24)]).program
        hook = Hook(program, ("bfloat16", "float32"), "sm90", swapped=self.KERNEL.swap_ab)
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
            **{f"x{i}": np.ones(24, np.float32) for i in range(1, 8)},
        }
        results = {
            "d": ((1, 16, 24), "bfloat16"),
            "workspace": ((0,), "uint8"),
            "y1": ((1, 16, 24), "float32"),
            "y2": ((1, 16, 24), "float32"),
            "y3": ((1, 16, 24), "float32"),
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

    @pytest.mark.parametrize("version", [VERSION - 1, VERSION])
    def test_runs(self, linked, version) -> None:
        d, _, y1 = self.call(linked, epilogue_version=np.int64(version))
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
            ({"splits": np.int64(2)}, "with an epilogue has no splits"),
            ({"x0": np.ones(23, np.float32)}, r"x0 is float32\[23\], expected 24 elements of"),
            ({"x0": np.ones(24, np.int32)}, r"x0 is int32\[24\], expected 24 elements of float32"),
            ({"y1": ((1, 16, 23), "float32")}, r"y1 is float32\[1,16,23\], expected 384 elements"),
            ({"operands": "a b"}, "the epilogue needs operand x0"),
            ({"results": "d workspace"}, "the epilogue needs result y1"),
            ({"operands": "a b x0 x1"}, "the epilogue takes no x1"),
            ({"results": "d workspace y1 y2"}, "the epilogue has no y2"),
            ({"epilogue_operands": " ".join(["float32:n"] * 9)}, "needs operand x1"),
            ({"operands": "a b x0 x1 x2 x3 x4 x5 x6 x7",
              "epilogue_operands": " ".join(["float32:n"] * 9)}, "has too many operands"),
            ({"results": "d workspace y1 y2 y3", "epilogue_results": " ".join(["float32"] * 4)},
             "has too many results"),
            ({"epilogue": None}, "the call has x0 and no epilogue"),
            ({"epilogue_version": None}, r"linked by another version of jax_bwgemm \(0, this is 6"),
            ({"epilogue_version": np.int64(3)}, r"another version of jax_bwgemm \(3, this is 6"),
            ({"epilogue_version": np.int64(7)}, r"another version of jax_bwgemm \(7, this is 6"),
            ({"epilogue_operands": "float32:n:staged"}, "array 0 of float32 cannot be 'staged'"),
            ({"x0": np.ones(24, "bfloat16"), "epilogue_operands": "bfloat16:n:staged"},
             "array 0 of bfloat16 cannot be 'staged'"),
            ({"x0": np.ones(1, "bfloat16"), "epilogue_operands": "bfloat16::staged"},
             "array 0 of bfloat16 cannot be 'staged'"),
            ({"epilogue_results": "float32:loud"}, "array 0 of float32 cannot be 'loud'"),
            ({"epilogue_results": "bfloat16:summed"}, "y1 is float32.*elements of bfloat16"),
            ({"epilogue_results": "float32:summed"},
             r"y1 is float32\[1,16,24\], expected 192 elements|cannot be 'summed'"),
        ],
    )  # fmt: skip
    def test_refusals(self, linked, changes, message) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(self.call(linked, **changes))

    @pytest.mark.parametrize("change", [lambda c: c + b"\n\n\n", lambda c: c[:-1] + b" "])
    def test_a_digest_belongs_to_one_text(self, linked, change) -> None:
        self.call(linked)
        other = base64.b64encode(change(base64.b64decode(linked.code))).decode()
        assert other != linked.code
        with pytest.raises(jax.errors.JaxRuntimeError, match="belongs to other code"):
            jax.block_until_ready(self.call(linked, epilogue=other))

    def test_the_code_must_have_the_kernel(self, linked) -> None:
        others = [k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"]
        with pytest.raises(jax.errors.JaxRuntimeError, match="the PTX has no kernel"):
            jax.block_until_ready(
                self.call(linked, kernel=others[-1].name, epilogue_digest="of another")
            )


class TestTwoMatrices:
    """What TMA moves for a ping-pong kernel, as an exported program may ask for it."""

    ARRAYS = "bfloat16:mn:staged"

    def call(
        self,
        schedule: str,
        count: int,
        change: Any = lambda text: text,
        version: int = VERSION,
    ) -> Any:
        """z + x0 + ... by a kernel of 64 columns of ones, K 64."""
        table = [k for k in KERNELS if k.b_major == "n" and k.a_dtype == "bfloat16"]
        kernel = next(k for k in table if k.schedule == schedule and not k.swap_ab)
        shape = (16, 64)
        matrices = [jnp.full(shape, 2**i, jnp.bfloat16) for i in range(count)]
        program = trace_epilogue(lambda z, *xs: z + sum(x.astype(z.dtype) for x in xs), shape,
                                 matrices).program  # fmt: skip
        hook = Hook(program, ("bfloat16",), "sm90", False, staging_of(kernel, 64))
        linked = linking.linked_kernel(kernel.name, hook, ptx=True)
        code = change(base64.b64decode(linked.code).decode())
        config = {
            "kernel": kernel.name,
            "operands": " ".join(["a b", *(f"x{i}" for i in range(count))]),
            "results": "d workspace",
            "epilogue": base64.b64encode(code.encode()).decode(),
            "epilogue_digest": f"{linked.digest}{len(code)}",
            "epilogue_version": np.int64(version),
            "epilogue_operands": " ".join([self.ARRAYS] * count),
        }
        results = [
            jax.ShapeDtypeStruct((1, *shape), jnp.bfloat16),
            jax.ShapeDtypeStruct((0,), jnp.uint8),
        ]
        arrays = [np.ones((1, 16, 64), "bfloat16"), np.ones((1, 64, 64), "bfloat16"), *matrices]
        call = jax.ffi.ffi_call(targets.TARGETS["emulator"], results)
        return jax.block_until_ready(call(*arrays, config=config))[0]

    def test_both(self) -> None:
        assert_exact(self.call("pingpong", 2), np.full((1, 16, 64), 64 + 1 + 2, "bfloat16"))

    def test_of_a_cooperative_kernel(self) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match="array 1 of bfloat16 cannot be 'st"):
            self.call("cooperative", 2)

    def test_a_third(self) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match="array 2 of bfloat16 cannot be 'st"):
            self.call("pingpong", 3)

    def test_code_of_version_5(self) -> None:
        """Its parameters end ahead of the second matrix's tensor map."""

        def shorter(text: str) -> str:
            size = re.search(r"\.param \.align \d+ \.b8 \w+\[(\d+)\]", text)
            assert size is not None
            return text.replace(f"[{size[1]}]", f"[{int(size[1]) - 128}]", 1)

        got = self.call("pingpong", 1, shorter, version=5)
        assert_exact(got, np.full((1, 16, 64), 65, "bfloat16"))
