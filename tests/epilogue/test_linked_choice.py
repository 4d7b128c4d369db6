"""Which kernel has an epilogue: the fastest one with it, of those that it can be linked into."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from emulator_cases import requires_emulator
from linked_cases import kernels, requires_linker

from jax_bwgemm.config import make_target
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.epilogue import call as epilogue_call
from jax_bwgemm.epilogue import contraction, linking
from jax_bwgemm.epilogue.call import choose_linked
from jax_bwgemm.epilogue.contraction import SPLIT_DENSE
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.linker import LinkError
from jax_bwgemm.epilogue.linking import first_linked
from jax_bwgemm.epilogue.split_k_hook import SplitKHook
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.spec import Policy

pytestmark = [*requires_emulator, requires_linker]

FOREVER = 1e12
BF16_KN = [k for k in kernels("emulator") if k.b_major == "n" and k.a_dtype == "bfloat16"]


def chosen(sizes: tuple[int, int, int]) -> Any:
    """Of an epilogue of the product [M, K] by [K, N]."""
    m, n, k = sizes
    spec = GemmSpec("k", "n", out_dtype="bfloat16", policy=Policy(target=make_target("sm90")))
    operands = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((1, m, k), (1, k, n))]
    program = trace_epilogue(lambda z: z + 1, (m, n), []).program
    found = choose_linked("emulator", "cpu", spec, program, ("bfloat16",), operands)
    assert not isinstance(found, str), found
    return found.selection


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All kernels take forever, but for the one whose name is given."""

    def fastest(name: str) -> None:
        cost = lambda c, *_: 0.0 if c.kernel.name == name else FOREVER  # noqa: E731
        for function in ("linked_cycles", "split_k_cycles"):
            monkeypatch.setattr(epilogue_call, function, cost)

    monkeypatch.setattr(epilogue_call, "pass_cycles", lambda *_: FOREVER)
    return fastest


class TestFirstLinked:
    """Which implementation has a linked kernel, in order."""

    @staticmethod
    def attempt(name: str) -> Any:
        if name == "cutlass":
            raise LinkError("no space")
        return "too small" if name == "emulator" else [name]

    def test_reasons_of_all_that_the_platform_has(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linking, "PLATFORMS", dict.fromkeys(("cutlass", "emulator"), "cpu"))
        found = first_linked(("cutlass", "emulator", "xla"), "cpu", self.attempt)
        assert found == "cutlass: no space; emulator: too small"

    def test_the_first_that_has_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("cutlass", "emulator", "third", "fourth")
        monkeypatch.setattr(linking, "PLATFORMS", dict.fromkeys(names, "cpu"))
        assert first_linked(names, "cpu", self.attempt) == ["third"]

    def test_none_of_the_platform(self) -> None:
        found = first_linked(("cutlass", "emulator", "xla"), "rocm", self.attempt)
        assert found == "no kernels for rocm are allowed"

    def test_platforms_as_lowering_names_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jax, "local_device_count", lambda: 1)
        for backend, platform in (("gpu", "cuda"), ("cpu", "cpu")):
            monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
            assert linking.default_platform() == linking.only_platform() == platform
        monkeypatch.setattr(jax, "local_device_count", lambda: 2)
        assert linking.only_platform() is None


@pytest.mark.parametrize("kernel", BF16_KN, ids=lambda k: k.name)
def test_of_kernels_that_have_it_inside(kernel: Any, costs: Any) -> None:
    costs(kernel.name)
    assert chosen((4096, 4096, 1024)).kernel.name == kernel.name


def test_of_kernels_whose_parts_it_follows(costs: Any) -> None:
    """All tiles that split this K, none of which is the fastest without the epilogue alone."""
    splitting = [k for k in SPLIT_DENSE.kernels("emulator") if k.majors == "kn"]
    names = [k.name for k in splitting if (k.arch, k.a_dtype) == ("sm90", "bfloat16")]
    for name in names[:6]:
        costs(name)
        found = chosen((128, 128, 65536))
        assert (found.kernel.name, found.splits > 1) == (name, True)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_of_the_second_kernel_of_a_type(
    arch: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One adds the parts of every kernel with results of its type, whatever these multiply."""
    program = trace_epilogue(lambda z: z + 1, (16, 16), []).program
    symbol = SplitKHook(program, (dtype,), arch).symbol("of any tile")
    if symbol not in linkable_kernels():
        pytest.skip(f"no {symbol} was built")
    splitting = [k for k in DENSE.kernels("emulator") if k.f32_twin]
    monkeypatch.setattr(contraction, "linkable_kernels", lambda: {symbol: None})
    wanted = [k for k in splitting if (k.arch, k.out_dtype) == (arch, dtype)]
    assert SPLIT_DENSE.kernels("emulator") == tuple(wanted)
