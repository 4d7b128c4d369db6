"""Which kernel computes two products and a function of both, by predicted times; and when none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from gated_cases import BF16, requires_gated

from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.dense.spec import GemmSpec
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.epilogue import gated_call
from jax_bwgemm.epilogue.gated_call import GatedProblem, choose_gated, prepare_gated
from jax_bwgemm.epilogue.hook import MAX_OPERANDS
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.contraction import KernelCall
from jax_bwgemm.product.spec import Policy

pytestmark = requires_gated

FOREVER = 1e12


def case(
    f: Callable[..., Any] = lambda gate, up: gate * up,
    sizes: tuple[int, int, int] = (8192, 2048, 1024),
    stacked: bool = True,
    implementations: tuple[str, ...] = ("emulator",),
    rows: int = 0,
    config: TuningConfig | None = None,
) -> tuple[GatedProblem, list[jax.ShapeDtypeStruct]]:
    """A function of both products [M, N], types of A and the matrices.

    rows: How many of [N] the function has besides.
    """
    m, n, k = sizes
    up, row = jax.ShapeDtypeStruct((m, n), jnp.bfloat16), jax.ShapeDtypeStruct((n,), jnp.float32)
    program = trace_epilogue(f, (m, n), [up, *[row] * rows]).program
    target = make_target("sm90")
    policy = Policy(implementations=implementations, config=config, target=target)
    spec = GemmSpec("k", "n", out_dtype="bfloat16", policy=policy)
    problem = GatedProblem(spec, program, program.result_types("bfloat16"), stacked)
    shapes = [(1, m, k), *([(k, 2, n)] if stacked else [(1, k, n)] * 2)]
    return problem, [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]


def choice(*args: Any, **options: Any) -> KernelCall | str:
    """Of a `case`."""
    return choose_gated("emulator", "cpu", *case(*args, **options))


def predicted(*args: Any, **options: Any) -> tuple[int, int]:
    """Cycles apart and together, where the former are fewer."""
    found = choice(*args, **options)
    assert isinstance(found, str)
    apart, together = re.search(r"predicted to take (\d+) cycles, \w+ (\d+)", found).groups()
    return int(apart), int(together)


@pytest.mark.parametrize("kernel", BF16, ids=lambda k: k.name)
def test_the_fastest_with_the_function_is_chosen(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever is the fastest without it."""
    monkeypatch.setattr(
        gated_call, "linked_cycles", lambda c, *_, **__: 1.0 if c.kernel == kernel else 2.0
    )
    monkeypatch.setattr(gated_call, "_apart", lambda *_: FOREVER)
    assert choice().selection.kernel.name == kernel.name


@pytest.mark.parametrize(("m", "k"), [(8192, 1536), (8192, 1600), (128, 4096)])
def test_no_length_of_k_costs_more_than_predicted(
    m: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_call, "linked_cycles", lambda *_, **__: 1000.0)
    monkeypatch.setattr(gated_call, "_apart", lambda *_: 0.0)
    three = lambda gate, up: (gate * up, gate, up)  # noqa: E731
    assert predicted(three, (m, 2048, k)) == (0, 1000)


@pytest.mark.parametrize("rows", [MAX_OPERANDS, MAX_OPERANDS + 1])
def test_the_second_product_is_no_array_that_a_kernel_reads(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_call, "_apart", lambda *_: FOREVER)
    found = choice(lambda gate, up, *xs: sum(xs, gate * up), rows=rows)
    assert isinstance(found, KernelCall) == (rows == MAX_OPERANDS)


@pytest.mark.parametrize(
    ("platform", "implementations", "ptx"),
    [
        ("cpu", ("cutlass", "emulator", "xla"), [True]),
        ("cuda", ("emulator", "cutlass", "xla"), [False]),
        ("cpu", ("cutlass", "xla"), []),
        (None, ("cutlass", "emulator", "xla"), []),
    ],
)
def test_linking_begins_while_a_program_is_traced(
    platform: str | None,
    implementations: tuple[str, ...],
    ptx: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the form that the only device needs; for several devices, or for XLA, none begins."""
    if platform == "cuda" and not runtime.gated_kernels("cutlass"):
        pytest.skip("no such kernels were built for GPUs")
    begun: list[Any] = []
    monkeypatch.setattr(gated_call, "only_platform", lambda: platform)
    monkeypatch.setattr(gated_call, "start_linking", lambda *args, ptx: begun.append((*args, ptx)))
    problem, factors = case(implementations=implementations)
    prepare_gated(factors, problem)
    kernel = choice().selection.kernel.name
    assert begun == [(kernel, problem.hook, form) for form in ptx]


def test_whoever_asks_for_a_kernel_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that costs."""
    monkeypatch.setattr(gated_call, "linked_cycles", lambda *_, **__: FOREVER)
    assert isinstance(choice(), str)
    asked = TuningConfig.of(BF16[-1].name)
    assert choice(config=asked).selection.kernel.name == BF16[-1].name


class TestApart:
    """What the products cost without a kernel of both."""

    @pytest.fixture(autouse=True)
    def _no_kernel_of_both(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A kernel of one product takes a function along at no cost; of both, it takes forever."""

        def cycles(candidate: Any, *_: Any, products: int = 1) -> float:
            return candidate.cycles if products == 1 else FOREVER

        monkeypatch.setattr(gated_call, "linked_cycles", cycles)

    @pytest.mark.parametrize("stacked", [True, False])
    def test_products_that_are_results_are_there_already(self, stacked: bool) -> None:
        alone, with_both = (
            predicted(f, stacked=stacked)[0]
            for f in (lambda gate, up: gate * up, lambda gate, up: (gate * up, gate, up))
        )
        assert alone == with_both

    def test_only_one_of_a_pair_can_take_the_function_along(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Stacked matrices are one product, whose columns a pass of its own takes apart."""
        monkeypatch.setattr(gated_call, "pass_cycles", lambda *_: 1e9)
        assert predicted(stacked=False)[0] < 1e9 < predicted(stacked=True)[0]
        monkeypatch.setattr(gated_call, "pass_cycles", lambda *_: 0.0)
        one, both = (predicted(stacked=stacked)[0] for stacked in (False, True))
        assert one == pytest.approx(both, rel=0.1)
