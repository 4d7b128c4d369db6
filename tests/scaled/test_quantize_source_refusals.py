"""Where no kernel computes what it quantizes: the reasons, and the same results by XLA."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numerics import assert_exact, normal

import jax_bwgemm as bw
from jax_bwgemm.config import make_target
from jax_bwgemm.epilogue import linking, source_primitive
from jax_bwgemm.epilogue.linker import NoLinkerError
from jax_bwgemm.epilogue.linking import SEVERAL_DEVICES
from jax_bwgemm.epilogue.source_hook import SourcePart, Window
from jax_bwgemm.epilogue.source_primitive import (
    QuantizedSource,
    kernel_target,
    quantized_source,
    source_refusal,
)
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec

ROWS, K = 16, 256
NO_KERNEL = "this installation has no quantizing kernel that functions are linked into"


def doubled(x: jax.Array) -> jax.Array:
    return (x * 2)[None]


def source(*implementations: str, **options: Any) -> QuantizedSource:
    x = jax.ShapeDtypeStruct((ROWS, K), jnp.bfloat16)
    program = trace_epilogue(lambda _, x: x * 2, (ROWS, K), [x]).program
    part = SourcePart(program, (Window(0, K, 0),), K)
    spec = QuantizeSpec("1x128", "float8_e4m3fn", implementations=implementations, **options)
    return QuantizedSource(spec, doubled, (part,), 1, "bfloat16", (1, ROWS, K))


def no_linker() -> Any:
    raise NoLinkerError("libnvJitLink.so.13 is not installed")


class TestRefusal:
    """What keeps `accelerate` from joining a quantization with what computes its operand."""

    @pytest.fixture(autouse=True)
    def _kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One device, the tools, and SM90's kernel."""
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        monkeypatch.setattr(linking, "linker", lambda: None)
        kernels = {"sm90_quantize_bfloat16": None}
        monkeypatch.setattr(source_primitive, "linkable_kernels", lambda: kernels)

    def test_one_implementation_is_enough(self) -> None:
        assert source_refusal(source("cutlass", "emulator", "xla")) is None
        assert source_refusal(source("cutlass", "xla", target=make_target("sm90"))) is None

    def test_several_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jax, "local_device_count", lambda: 2)
        assert source_refusal(source("emulator")) == SEVERAL_DEVICES

    def test_no_linker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linking, "linker", no_linker)
        assert source_refusal(source("emulator")) == "libnvJitLink.so.13 is not installed"

    def test_no_kernel(self) -> None:
        """Those of SM90 are none of SM100."""
        other = source("cutlass", "emulator", "xla", target=make_target("sm100"))
        assert source_refusal(other) == f"{NO_KERNEL}; {NO_KERNEL}"

    def test_only_xla(self) -> None:
        assert source_refusal(source("xla")) == "only 'xla' is allowed"

    def test_another_platform(self) -> None:
        found = kernel_target("emulator", "cuda", None)
        assert found == "emulator runs on cpu, this program is lowered for cuda"

    @pytest.mark.parametrize(
        ("platform", "implementations", "ptx"),
        [
            ("cpu", ("cutlass", "emulator", "xla"), True),
            ("cuda", ("emulator", "cutlass", "xla"), False),
            ("cpu", ("cutlass", "xla"), None),
            (None, ("cutlass", "emulator", "xla"), None),
        ],
    )
    def test_linking_begins_while_a_program_is_traced(
        self,
        monkeypatch: pytest.MonkeyPatch,
        platform: str | None,
        implementations: tuple[str, ...],
        ptx: bool | None,
    ) -> None:
        """In the form that the only device needs; for several devices, or for XLA, none begins."""
        begun: list[Any] = []
        monkeypatch.setattr(source_primitive, "only_platform", lambda: platform)
        monkeypatch.setattr(
            source_primitive, "start_linking", lambda *args, ptx: begun.append((*args, ptx))
        )
        of = source(*implementations, target=make_target("sm90"))
        # Called as JAX does, which remembers what it was told of these arguments.
        source_primitive._abstract_eval(jax.core.ShapedArray((ROWS, K), jnp.bfloat16), source=of)
        wanted = ("sm90_quantize_bfloat16", of.hook("sm90"), ptx)
        assert begun == ([] if ptx is None else [wanted])


def test_a_partitioned_program_computes_the_operand_by_xla(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_once.cache_clear()
    x = jnp.asarray(normal(np.random.default_rng(0), (ROWS, K), "bfloat16"))
    mesh = jax.make_mesh((2,), ("i",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("i")))
    of = source("emulator", "xla", target=make_target("sm90"))
    with caplog.at_level(logging.INFO, "jax_bwgemm"):
        got = jax.jit(lambda x: quantized_source([x], [], of))(placed)
    assert "the function is a pass of its own: XLA partitions this program" in caplog.text
    want = bw.quantize(doubled(x), "1x128", implementation="xla")
    for ours, theirs in zip(got, (want.values, want.scales), strict=True):
        assert_exact(ours.astype(jnp.float32).ravel(), theirs.astype(jnp.float32).ravel())
