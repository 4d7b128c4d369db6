"""The quantizing kernel with functions linked into it, in the emulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from linked_cases import linked_for_sm90, requires_linker  # noqa: F401
from source_cases import FUNCTIONS, OPTIONS, check

import jax_bwgemm as bw
from jax_bwgemm.epilogue.hook import VERSION
from jax_bwgemm.epilogue.linking import linked_kernel
from jax_bwgemm.epilogue.source_hook import SourceHook, SourcePart, Window
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.targets import QUANTIZE_TARGETS

pytestmark = [*requires_emulator, requires_linker, pytest.mark.usefixtures("no_rule_broken")]


@pytest.fixture(autouse=True)
def _one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_exact(name: str, options: dict[str, Any]) -> None:
    check(name, options, 140, 136, "bfloat16", "emulator")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_kernel_of_a_target(name: str) -> None:
    with bw.config.target("sm100"):
        check(name, OPTIONS[0], 140, 136, "float16", "emulator", kernel="sm100_quantize_float16")


@pytest.mark.parametrize(("rows", "half"), [(1, 8), (128, 128), (257, 264)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sizes(rows: int, half: int, dtype: str) -> None:
    check("side by side", OPTIONS[0], rows, half, dtype, "emulator")


@pytest.mark.parametrize(("name", "half"), [("side by side", 136), ("two widths", 128)])
def test_parts_whose_tiles_take_no_turns(name: str, half: int) -> None:
    """Three columns of tiles: of two parts that share one, or of which one has two."""
    check(name, OPTIONS[1], 16, half, "bfloat16", "emulator")


def test_a_step_of_swiglu() -> None:
    """Close to XLA's: an activation may be rounded to the neighbour before it is quantized."""
    rng = np.random.default_rng(0)
    dot = bw.fp8_dot_general("blockwise", implementation="emulator")
    numbers = (((1,), (0,)), ((), ()))

    def layer(x: Any, w1: Any, w2: Any) -> Any:
        gate, up = jnp.split(dot(x, w1, numbers), 2, axis=1)
        return dot(jax.nn.silu(gate) * up, w2, numbers)

    def step(g: Any, *args: Any) -> Any:
        out, back = jax.vjp(layer, *args)
        return out, *back(g)

    shapes = ((192, 128), (192, 128), (128, 512), (256, 128))
    args = [jnp.asarray(rng.standard_normal(s) / 8, jnp.bfloat16) for s in shapes]
    lowered = jax.jit(bw.accelerate(step)).lower(*args)
    assert lowered.as_text().count("source_digest") == 2
    got, want = lowered.compile()(*args), jax.jit(step)(*args)
    for ours, theirs in zip(got, want, strict=True):
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        assert np.linalg.norm(ours - theirs) < 0.02 * np.linalg.norm(theirs)


class TestCalls:
    """The FFI call as an exported program may have it."""

    def call(self, **changes: Any) -> Any:
        program = trace_epilogue(
            lambda _, x: x.astype(jnp.float32) * 2, (16, 128), [jnp.ones((16, 128), jnp.bfloat16)]
        ).program
        part = SourcePart(program, (Window(0, 128, 0),), 128)
        hook = SourceHook((part,), "bfloat16", "sm90", False, False, False)
        code = linked_kernel(hook.kernel, hook, ptx=True)
        config = {
            "scaling": "1x128",
            "kernel": hook.kernel,
            "source": code.code,
            "source_digest": code.digest,
            "source_version": np.int64(VERSION),
            "source_operands": "bfloat16:2048",
            "operands": "x0",
            "results": "values scales",
        }
        arrays = {"x0": jnp.ones((16, 128), jnp.bfloat16), "x": jnp.ones((1, 16, 128))}
        shape = changes.pop("shape", (1, 16, 128))
        config |= changes
        config = {k: v for k, v in config.items() if v is not None}
        blocks = -(-shape[2] // 128)
        results = (
            jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn),
            jax.ShapeDtypeStruct((shape[0], blocks, shape[1]), jnp.float32),
        )
        given = [arrays[name] for name in config["operands"].split()]
        call = jax.ffi.ffi_call(QUANTIZE_TARGETS["emulator"], results)
        return jax.block_until_ready(call(*given, config=config))

    def test_right(self) -> None:
        values, scales = self.call()
        np.testing.assert_array_equal(
            values[0].astype(jnp.float32) * scales[0].T, np.full((16, 128), 2.0)
        )

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"source_operands": "bfloat16:4096"}, "x0 is .*, expected bfloat16:4096, aligned"),
            ({"source_operands": "float32:2048"}, "x0 is .*, expected float32:2048"),
            ({"source_operands": ""}, "operand x0 is not expected"),
            ({"source_operands": "bfloat16:2048 bfloat16:1"}, "operand x1 is missing"),
            ({"source_operands": "x:1 " * 9}, "operand x0 is"),
            ({"source_version": np.int64(1)}, "linked by another version of jax_bwgemm"),
            ({"operands": "x x0"}, "operand x and a function in its place"),
            ({"source": None, "source_digest": None}, "quantize needs the operand x"),
            ({"shape": (2, 8, 128)}, "expected a batch of 1 and K a multiple of 8"),
            ({"shape": (1, 16, 124)}, "expected a batch of 1 and K a multiple of 8"),
            ({"source": "!!!!", "source_digest": "other"}, "not base64"),
        ],
        ids=lambda x: str(x)[:40],
    )
    def test_wrong(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            self.call(**changes)
