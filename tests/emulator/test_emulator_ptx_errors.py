"""The general PTX entry: text, tensor maps and settings that are refused."""

from __future__ import annotations

import functools
import itertools
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from ptx_samples import AXPB, HEADER, SPIN, axpb_arguments
from signals import signalled_within_a_launch

import jax_bwgemm as bw
from jax_bwgemm import emulator

pytestmark = requires_emulator


# --- Errors: each with its type, line and text


@pytest.mark.parametrize(
    ("ptx", "line", "text"),
    [
        (AXPB.replace("mad.lo.s32 %r4", "frobnicate.s32 %r4"), 15, "frobnicate.s32 %r4, %r1"),
        (AXPB.replace("%r4, %r5;", "%r4, %r55;"), 17, "setp.ge.u32 %p1, %r4, %r55;"),
        (AXPB.replace("bra DONE", "bra NOWHERE"), 18, "@%p1 bra NOWHERE;"),
        (AXPB.replace("fma.rn.f32", "fma.rn.f33"), 27, "fma.rn.f33"),
    ],
    ids=["instruction", "register", "label", "type"],
)
def test_bad_instruction_names_line_and_text(ptx: str, line: int, text: str) -> None:
    module = emulator.Module(ptx)
    with pytest.raises(emulator.PtxError) as caught:
        module.launch("axpb", *axpb_arguments(), block=32)
    assert caught.value.line == line
    assert caught.value.text.startswith(text)
    assert f"line {line}" in str(caught.value)


@pytest.mark.parametrize("ptx", ["", "int main() {}", AXPB[:-3], HEADER + ".visible .entry ("])
def test_malformed_text(ptx: str) -> None:
    with pytest.raises(emulator.PtxError) as caught:
        emulator.Module(ptx)
    assert caught.value.kind == "parse error"


def test_the_last_line_is_named_like_the_others() -> None:
    with pytest.raises(emulator.PtxError) as caught:
        emulator.Module(HEADER + "  bogus")
    assert (caught.value.line, caught.value.text) == (4, "bogus")


# --- Tensor maps and settings that are refused


@pytest.mark.parametrize(
    ("array", "box", "options", "error", "message"),
    [
        ([1.0], (1,), {}, TypeError, "needs a NumPy array, got list"),
        (np.zeros(4, np.complex64), (4,), {}, TypeError, "no tensor map type for .* complex64"),
        (np.zeros(4, ">f4"), (4,), {}, TypeError, r"the array is big-endian \(dtype >f4\)"),
        (np.zeros((4, 4), np.float32), (4,), {}, ValueError, "box has 1 extents, .* 2 dimensions"),
        (np.zeros((4, 4), np.float32), (4, -1), {}, ValueError, "box .* outside"),
        (np.zeros((4, 4), np.float32)[:, ::2], (1, 1), {}, ValueError, "must be contiguous"),
        (np.zeros((4, 4), np.float32)[::-1], (1, 4), {}, ValueError, "negative strides"),
        (np.zeros((4, 4), np.float32), (1, 4), {"swizzle": "96B"}, ValueError, "swizzle must be"),
        (np.zeros((4, 4), np.float32), (1, 4), {"fill": "one"}, ValueError, "fill must be"),
        (np.zeros((4, 4), np.float16), (1, 4), {"tf32": True}, TypeError, "needs a float32 array"),
        (np.zeros((), np.float32), (), {}, ValueError, "1 to 5 dimensions, got 0"),
        (np.zeros((4, 5), np.float32), (1, 4), {}, ValueError, "globalStrides"),
        (np.zeros((4, 512), np.float32), (1, 512), {}, ValueError, "boxDim"),
        (np.zeros((4, 64), np.float32), (4, 64), {"swizzle": "128B"}, ValueError, "128"),
        (np.zeros((0, 4), np.float32), (1, 4), {}, ValueError, r"elements, .* shape \(0, 4\)"),
        (np.zeros((4, 4), object), (1, 4), {}, TypeError, "no tensor map type for .* object"),
        (np.zeros((4, 4), np.float32), 4, {}, TypeError, "box must be a sequence of ints, got 4"),
        (np.zeros((4, 4), np.float32), "44", {}, TypeError, "box must be a sequence of ints"),
        (np.zeros((4, 4), np.float32), (1, 1.5), {}, TypeError, r"box must be .* got \(1, 1.5\)"),
        (np.zeros((4, 4), np.float32), (1, True), {}, TypeError, "box must be a sequence of ints"),
        (
            np.zeros((4, 4), np.float32),
            (1, 4),
            {"element_strides": 1},
            TypeError,
            "element_strides must be a sequence of ints, got 1",
        ),
        (np.zeros((4, 4), np.float32), (1, 4), {"swizzle": []}, ValueError, "swizzle must be"),
        (np.zeros((4, 4), np.float32), (1, 4), {"fill": {}}, ValueError, "fill must be"),
        (np.zeros(16, np.float32), (1, 4), {"shape": (4, 4)}, ValueError, "go together"),
        (np.zeros(16, np.float32), (1, 4), {"strides": (16, 4)}, ValueError, "go together"),
        (
            np.zeros(16, np.float32),
            (1, 4),
            {"shape": (4, 4), "strides": (1 << 40, 4)},
            ValueError,
            "strides .* outside",
        ),
        (
            np.zeros(16, np.float32),
            (1, 4),
            {"shape": (4, 4), "strides": (16, 8)},
            ValueError,
            "must be contiguous",
        ),
        (
            np.zeros(16, np.float32),
            (1, 4),
            {"shape": (4, 4), "strides": (4,)},
            ValueError,
            "strides has 1 extents, .* 2 dimensions",
        ),
    ],
)
def test_refused_tensor_maps(
    array: object, box: tuple[int, ...], options: dict[str, object], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        emulator.TensorMap(array, box, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sm_count": 0}, ValueError, r"sm_count must be in \[1, 1024\], got 0"),
        ({"seed": -1}, ValueError, "seed must be in"),
        ({"seed": True}, TypeError, "seed must be an int, got True"),
        ({"step_limit": 1.0}, TypeError, "step_limit must be an int, got 1.0"),
        ({"speed": 1}, TypeError, "speed"),
        ({"trace": "no"}, TypeError, "trace must be True or False, got 'no'"),
        ({"poison_outputs": 1}, TypeError, "poison_outputs must be True or False, got 1"),
        ({"relaxed": 1}, TypeError, "relaxed must be True or False, got 1"),
        ({"rules": "off"}, TypeError, "rules must be a mapping of names to severities, got 'off'"),
        ({"rules": {"race": "off"}}, ValueError, "no rule 'race': there are shared-race,"),
        (
            {"rules": {"load-wait": "loud"}},
            ValueError,
            "the severity of rule 'load-wait' must be one of off, warning, error, got 'loud'",
        ),
        ({"proxy_fences": 0}, TypeError, "proxy_fences must be True or False, got 0"),
    ],
)
def test_refused_settings(changes: dict[str, object], error: type, message: str) -> None:
    before = emulator.settings()
    with pytest.raises(error, match=message), emulator.configure(**changes):
        pass
    assert emulator.settings() == before


def test_settings_are_restored() -> None:
    before = emulator.settings()
    with emulator.configure(seed=5, sm_count=9) as inside:
        assert emulator.settings() == inside
        assert (inside.seed, inside.sm_count) == (5, 9)
    assert emulator.settings() == before


def kernel(body: str, params: str = "", declarations: str = "") -> emulator.Module:
    return emulator.Module(
        HEADER + declarations + f".visible .entry k({params}) {{\n.reg .b64 %d<4>;\n"
        f".reg .b32 %r<4>;\n.local .align 4 .b8 loc[16];\n{body}\nret;\n}}\n"
    )


@pytest.mark.parametrize(
    "load",
    [
        "ld.param.b32 %r1, [loc];",
        "ld .local.b32 %r1, [loc];",
        "mov.u64 %d1, loc; cvta.local.u64 %d1, %d1; ldu.b32 %r1, [%d1];",
    ],
)
def test_every_load_of_an_unwritten_local_variable(load: str) -> None:
    kernel(load).launch("k", block=32)
    out = np.zeros(1, np.uint32)
    store = "ld.param.b64 %d3, [x];\nadd.u32 %r2, %r1, 1;\nst.global.b32 [%d3], %r2;"
    with emulator.configure(rules={"uninitialized-register": "warning"}):
        stats = kernel(f"{load}\n{store}", ".param .b64 x").launch("k", out, block=32)
    assert [w.rule for w in stats.warnings] == ["uninitialized-register"]


def test_a_wide_special_register_is_stored() -> None:
    out = np.zeros(32, np.uint32)
    body = (
        "ld.param.b64 %d1, [x];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %d2, %r1, 4;\n"
        "add.u64 %d1, %d1, %d2;\nst.global.b32 [%d1], %gridid;"
    )
    kernel(body, ".param .b64 x").launch("k", out, block=32)
    np.testing.assert_array_equal(out, out[0])


@pytest.mark.parametrize(
    ("variable", "count"), [(".b8 g{}[268435456]", 17), (".align 65536 .b8 g{}[1]", 65536)]
)
def test_variables_have_a_limit_together(variable: str, count: int) -> None:
    many = "".join(f".global {variable.format(i)};\n" for i in range(count))
    with pytest.raises(emulator.EmulatorError, match="variables of a module take more than"):
        kernel("", declarations=many)


def test_extents_without_an_end() -> None:
    with pytest.raises(emulator.EmulatorError, match="grid has 1 to 3 extents"):
        kernel("").launch("k", grid=itertools.count(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["params", "launch"])
def test_a_signal_handler_cannot_launch(what: str) -> None:
    """It runs while a launch asks for signals, which would wait for itself."""
    module, spin, raised = kernel(""), emulator.Module(SPIN), []

    def handler(*_: object) -> None:
        try:
            module.params("k") if what == "params" else module.launch("k")
        except emulator.EmulatorError as error:
            raised.append(str(error))
        raise InterruptedError

    with (
        pytest.raises(InterruptedError),
        signalled_within_a_launch(signal.SIGUSR1, handler),
    ):
        spin.launch("spin", block=32)
    (message,) = raised
    assert "a signal handler cannot use it" in message


def test_a_cluster_larger_than_the_gpu() -> None:
    x = jnp.ones((64, 64), jnp.bfloat16)
    product = functools.partial(bw.matmul, implementation="emulator")
    with bw.config.target("sm90"), emulator.configure(sm_count=1):
        config = bw.TuningConfig(cluster_m=2)
        with pytest.raises(jax.errors.JaxRuntimeError, match="cluster of 2 CTAs does not fit on a"):
            product(x, x, config=config).block_until_ready()


def test_lines_are_quoted_short_and_in_ascii() -> None:
    """A character is not cut in two, which no text could hold."""
    with pytest.raises(emulator.PtxError) as caught:
        emulator.Module(HEADER + "  bogus " + "é" * 1000)
    assert str(caught.value).isascii()
    assert "bogus ??" in str(caught.value)
    assert len(str(caught.value)) < 400
