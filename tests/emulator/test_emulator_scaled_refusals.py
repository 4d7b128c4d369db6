"""Calls of scaled kernels that the emulator's call layer refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from emulator_cases import BUILT, requires_emulator

from jax_bwgemm import runtime
from jax_bwgemm.product import targets
from jax_bwgemm.product.kernels import Kernel

pytestmark = requires_emulator

KERNELS = runtime.emulated_scaled_kernels() if BUILT else ()
SMALL = {"a": (1, 8, 16), "b": (1, 8, 16), "a_scales": (1,), "b_scales": (1,), "d": (1, 8, 8)}


def refused(
    kernel: Kernel,
    operands: dict[str, jax.Array],
    shape: tuple[int, ...],
    message: str,
    **options: Any,
) -> None:
    """Calls a kernel for a result of `shape`; the call layer must refuse."""
    out = jax.ShapeDtypeStruct(shape, kernel.out_dtype)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        jax.block_until_ready(
            targets.call_kernel("emulator", kernel.name, operands, out, 0, **options)
        )


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        ({"a": (8, 16)}, {}, r"a is float8_e4m3fn\[8,16\], expected rank 3"),
        ({"b": (1, 8, 32)}, {}, r"operand b is float8_e4m3fn\[1,8,32\], expected .*\[1,8,16\]"),
        ({"a_scales": (2,)}, {}, r"operand a_scales is float32\[2\], expected float32\[1\]"),
        ({}, {"a_scaling": "row"}, r"operand a_scales is float32\[1\], expected float32\[1,8\]"),
        ({}, {"a_scaling": "column"}, "scaling 'column' of a_scales is none of 'tensor', 'row'"),
        ({}, {"a_scaling": ""}, "scaling '' of a_scales is none of"),
        ({}, {"b_scaling": "row"}, "applies scales to blocks, the call has a_scaling 'tensor'"),
        ({}, {"swizzle": 3}, "swizzle 3 is none of 1, 2, 4, 8, 16"),
        ({}, {"raster_order": "k"}, "raster_order 'k' is none of 'heuristic', 'm', 'n'"),
        ({}, {"splits": 65}, r"splits 65 is outside \[1, 64\]"),
        ({}, {"splits": 2}, "needs 512 bytes of workspace for .*, got 0"),
        (
            {"a": (2, 8, 16), "d": (2, 8, 8)},
            {"splits": 2},
            "a batch of 2 cannot be combined with splits 2",
        ),
        ({}, {"decomposition": "stream_k"}, r"\(scaled\) has no decomposition"),
        ({}, {"order": "vertical"}, r"\(scaled\) has no order"),
        (
            {"a": (1, 8, 24), "b": (1, 8, 24)},
            {},
            "the contiguous dimensions of .* must be multiples of 16 bytes",
        ),
    ],
)
def test_calls_that_are_refused(
    shapes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    kernel = next(k for k in KERNELS if k.scales == "blocks" and k.out_dtype == "float32")
    made = {**SMALL, **shapes}
    out = made.pop("d")
    operands = {
        name: jnp.ones(shape, "float32" if "scales" in name else kernel.a_dtype)
        for name, shape in made.items()
    }
    options = {"a_scaling": "tensor", "b_scaling": "tensor", **options}
    refused(kernel, operands, out, message, **options)


@pytest.mark.parametrize(
    ("types", "shapes", "options", "message"),
    [
        (
            "mxfp8",
            {"a_scales": (1, 1, 1, 256)},
            {},
            r"a_scales is uint8\[1,1,1,256\], expected uint8\[1,1,1,512\]",
        ),
        ("mxfp8", {}, {"a_scaling": "row"}, "applies scales to mma, the call has a_scaling 'row'"),
        ("mxfp8", {}, {"b_scaling": "nvfp4"}, "applies scales to mma, the call has a_scaling 'mxf"),
        (
            "mxfp8",
            {"a": (1, 8, 64), "b": (1, 8, 64)},
            {"splits": 2},
            "cannot split K: this build has no",
        ),
        ("mxfp8", {"alpha": (1,)}, {}, r"\(scaled\) takes no alpha"),
        ("nvfp4", {"alpha": None}, {}, r"\(scaled\) needs alpha"),
        ("nvfp4", {"alpha": (2,)}, {}, r"alpha is float32\[2\], expected float32\[1\]"),
        ("nvfp4", {"b": (1, 8, 32)}, {}, r"operand b is uint8\[1,8,32\], expected .*\[1,8,16\]"),
        ("nvfp4", {"a": (1, 8, 8), "b": (1, 8, 8)}, {}, "must be multiples of 16 bytes"),
        (
            "mxfp8",
            {"a": (2**16, 8, 16), "a_scales": (2**16, 1, 1, 512)},
            {},
            "65535 along y and z of a grid",
        ),
    ],
)
def test_calls_of_block_formats_that_are_refused(
    types: str, shapes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    values = "float4_e2m1fn" if types == "nvfp4" else "float8_e4m3fn"
    kernel = next(k for k in KERNELS if k.scales == "mma" and k.a_dtype == values)
    made: dict[str, Any] = {"a": (1, 8, 16), "b": (1, 8, 16)}
    made |= {"a_scales": (1, 1, 1, 512), "b_scales": (1, 1, 1, 512)}
    made |= ({"alpha": (1,)} if types == "nvfp4" else {}) | shapes
    dtypes = {"alpha": "float32"}
    dtypes |= dict.fromkeys(("a", "b"), "uint8" if types == "nvfp4" else values)
    operands = {
        name: jnp.ones(shape, dtypes.get(name, "uint8"))
        for name, shape in made.items()
        if shape is not None
    }
    options = {"a_scaling": types, "b_scaling": types, **options}
    refused(kernel, operands, (made["a"][0], 8, 8), message, **options)


def test_a_dense_kernel_has_no_scales() -> None:
    kernel = next(k for k in runtime.emulated_kernels() if k.arch == "sm90")
    a, b = (jnp.ones((1, 64, 64), kernel.a_dtype) for _ in range(2))
    refused(kernel, {"a": a, "b": b}, (1, 64, 64), r"\(dense\) has no a_scaling", a_scaling="row")
    scaled = {"a": a, "b": b, "a_scales": jnp.ones(1)}
    refused(kernel, scaled, (1, 64, 64), r"\(dense\) takes no a_scales")


def test_a_scaled_kernel_needs_scales() -> None:
    a, b = (jnp.ones((1, 16, 16), KERNELS[0].a_dtype) for _ in range(2))
    refused(KERNELS[0], {"a": a, "b": b}, (1, 16, 16), "needs a_scales")
