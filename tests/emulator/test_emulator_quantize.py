"""The kernel that quantizes, in the emulator, against the reference; and the errors of its call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from numerics import assert_exact
from quantize_cases import QuantizeCase, grid, special

import jax_bwgemm as bw
from jax_bwgemm import emulator
from jax_bwgemm.product.targets import QUANTIZE_TARGETS
from jax_bwgemm.scaled.quantization import quantize_with_amax

pytestmark = requires_emulator


def assert_equal_to_reference(case: QuantizeCase) -> None:
    x = case.x()
    before = emulator.launch_count()
    got = case.run("emulator", x)
    assert emulator.launch_count() == before + 1
    stats = emulator.last_launch()
    assert stats is not None
    assert stats.ok
    assert not stats.warnings
    for ours, want in zip(got, case.run("xla", x), strict=True):
        assert_exact(ours, want, str(case))


@pytest.mark.parametrize("case", [*grid((130, 200))], ids=str)
def test_equal_to_the_reference_with_edges(case: QuantizeCase) -> None:
    assert_equal_to_reference(case)


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize("shape", [(0, 128), (128, 0), (0, 4, 128)])
def test_an_empty_matrix_runs_no_kernel(shape: tuple[int, ...], scaling: str) -> None:
    case, before = QuantizeCase(shape, scaling), emulator.launch_count()
    x = case.x()
    for ours, want in zip(case.run("emulator", x), case.run("xla", x), strict=True):
        assert_exact(ours, want, str(case))
    assert emulator.launch_count() == before


@pytest.mark.parametrize("case", [*special()], ids=str)
def test_special_numbers(case: QuantizeCase) -> None:
    assert_equal_to_reference(case)


@pytest.mark.parametrize("scaling", ["tensor", "row", "1x128", "128x128"])
@pytest.mark.parametrize(
    "shape",
    [
        (256, 256),  # all vectors
        (1, 3),
        (3, 37, 129),  # a batch, and no aligned row
        (24, 130),  # the transposed copy alone is aligned
        (1160, 136),  # more than a band of tiles, the last one lower
    ],
)
def test_shapes(shape: tuple[int, ...], scaling: str) -> None:
    assert_equal_to_reference(QuantizeCase(shape, scaling))


@pytest.mark.parametrize("shape", [(130, 200), (3, 5, 130)])
@pytest.mark.parametrize("largest", [-300.0, np.inf, np.nan])
def test_the_largest_magnitude(shape: tuple[int, ...], largest: float) -> None:
    """The kernel finds it for each of its tiles; it is in the last one."""
    x = np.ones(shape, np.float32)
    x[..., -1, -1] = largest
    results = []
    for name in ("emulator", "xla"):
        before = emulator.launch_count()
        options = {"dtype": "float8_e4m3fn", "transposed": True, "implementation": (name,)}
        copies, amax = quantize_with_amax(jnp.asarray(x), jnp.float32(2), **options)
        results.append(jax.tree.leaves((copies, amax)))
        assert emulator.launch_count() == before + (name == "emulator")
        np.testing.assert_array_equal(amax, abs(largest))
    for ours, want in zip(*results, strict=True):
        np.testing.assert_array_equal(ours.astype(jnp.float32), want.astype(jnp.float32))


@pytest.mark.parametrize("scaling", ["tensor", "1x128"])
def test_vmap_joins_the_batch(scaling: str) -> None:
    x = jnp.asarray(QuantizeCase((3, 2, 40, 144), scaling).x())
    keys = jax.random.split(jax.random.key(0), 3)

    def quantize(x: jax.Array, key: jax.Array, implementation: str) -> Any:
        return bw.quantize(x, scaling, key=key, implementation=implementation)

    before = emulator.launch_count()
    got = jax.vmap(lambda x, key: quantize(x, key, "emulator"))(x, keys)
    assert emulator.launch_count() == before + 1
    for i in range(3):
        want = jax.jit(lambda x, key: quantize(x, key, "xla"))(x[i], keys[i])
        for ours, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_exact(ours[i], expected)


@pytest.mark.parametrize("scaling", ["mxfp8", "mxfp4", "nvfp4"])
def test_a_layout_without_a_kernel_is_refused(scaling: str) -> None:
    message = f"kernels write f32 scales, not those of {scaling}"
    with pytest.raises(NotImplementedError, match=message):
        bw.quantize(jnp.ones((8, 32)), scaling, implementation="emulator")


def test_f64_is_refused() -> None:
    with jax.enable_x64(True):
        x = jnp.ones((8, 32), jnp.float64)
        with pytest.raises(NotImplementedError, match="kernels read bfloat16, float16 and float32"):
            bw.quantize(x, "row", implementation="emulator")


def call(operands: dict[str, Any], results: dict[str, Any], config: dict[str, Any]) -> None:
    names = {"operands": " ".join(operands), "results": " ".join(results)}
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results.values()]
    values = [np.zeros(shape, dtype) for shape, dtype in operands.values()]
    attributes = {**names, "scaling": "1x128", **config}
    target = QUANTIZE_TARGETS["emulator"]
    jax.block_until_ready(jax.ffi.ffi_call(target, shapes)(*values, config=attributes))


X = {"x": ((1, 8, 16), jnp.float32)}
VALUES = {"values": ((1, 8, 16), "float8_e4m3fn")}
SCALES = {"scales": ((1, 1, 8), jnp.float32)}


@pytest.mark.parametrize(
    ("operands", "results", "config", "message"),
    [
        (X, VALUES | SCALES, {"scaling": "2x2"}, "scaling '2x2' is none of 'tensor', 'row'"),
        (X, VALUES | SCALES, {"tile": np.int64(1)}, "config member 'tile' is not known"),
        (X | {"y": ((1,), jnp.float32)}, VALUES, {}, "buffer 'y' among the operands is not known"),
        (X, VALUES, {"results": "values scales"}, "has 1 results, their roles are 'values scales'"),
        (X, VALUES, {"operands": ""}, "has 1 operands, their roles are ''"),
        (X | {"values": X["x"]}, VALUES, {}, "the call has values twice"),
        (X, VALUES, {}, "quantize to '1x128' needs the result scales"),
        (X | SCALES, VALUES, {}, "quantize to '1x128' needs the result scales"),
        (X, VALUES | SCALES, {"scaling": "row"}, "quantize to 'row' needs the operand scales"),
        (
            {"x": ((8, 16), jnp.float32)},
            VALUES | SCALES,
            {},
            r"must be bfloat16, float16 or float32 \[B, R, K\], got float32\[8,16\]",
        ),
        (
            X,
            {"values": ((1, 8, 8), "float8_e5m2")} | SCALES,
            {},
            r"values is float8_e5m2\[1,8,8\], expected float8_e5m2\[1,8,16\]",
        ),
        (
            X,
            VALUES | {"t_values": ((1, 16, 8), "float8_e5m2")} | SCALES,
            {},
            r"t_values is float8_e5m2\[1,16,8\], expected float8_e4m3fn\[1,16,8\]",
        ),
        (
            X | {"random": ((1, 4), jnp.int32)},
            VALUES | SCALES,
            {},
            r"operand random is int32\[1,4\], expected int32\[1,5\]",
        ),
        (
            X,
            VALUES | SCALES | {"amax": ((1, 2), jnp.float32)},
            {},
            r"result amax is float32\[1,2\], expected float32\[1,1\]",
        ),
    ],
)
def test_a_wrong_call(operands: Any, results: Any, config: Any, message: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        call(operands, results, config)
