"""Which kernel of scaled operands has an epilogue: the fastest with it, or none where none pays."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from linked_cases import requires_linker
from ragged_linked_cases import kernels as grouped_kernels
from scaled_linked_cases import kernels

import jax_bwgemm as bw
from jax_bwgemm import config
from jax_bwgemm.epilogue import scaled_call, scaled_grouped_call
from jax_bwgemm.epilogue.costs import Surroundings
from jax_bwgemm.epilogue.hook import MAX_SUMS
from jax_bwgemm.epilogue.scaled_primitive import bw_scaled_epilogue_p, bw_scaled_ragged_epilogue_p
from jax_bwgemm.product.jaxprs import equations

M, N, K, GROUPS = 1024, 2048, 512, 4
FOREVER = 1e12
KERNELS, GROUPED = kernels("emulator"), grouped_kernels("emulator")
# What kernels do with scales of these layouts, where sums are promoted.
CASES = [
    ("sm90", ("tensor", "tensor"), "blocks"),
    ("sm90", ("1x128", "128x128"), "blocks"),
    ("sm100", ("tensor", "tensor"), "sums"),
    ("sm100", ("mxfp8", "mxfp8"), "mma"),
]
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"

pytestmark = [
    requires_linker,
    pytest.mark.skipif(not KERNELS or not GROUPED, reason="no kernels were built to link into"),
]


def choose(
    f: Callable[..., Any] = lambda z: z + 1,
    layouts: tuple[str, str] = ("tensor", "tensor"),
    a_dtype: str = E4M3,
    arch: str = "sm90",
    result: str = "bfloat16",
    grouped: bool = False,
    also_read: int = 0,
    asked: Any = None,
) -> Any:
    """Of an epilogue of the product [M, K] by [N, K], or by one matrix for each group of rows."""
    shapes = (M, K), ((GROUPS, N, K) if grouped else (N, K))
    a, b = (
        jax.eval_shape(
            lambda x, s=s, t=t: bw.quantize(x, s, dtype=t, implementation="xla"),
            jax.ShapeDtypeStruct(shape, jnp.bfloat16),
        )
        for shape, s, t in zip(shapes, layouts, (a_dtype, E4M3), strict=True)
    )

    def product(a: Any, b: Any, sizes: Any) -> Any:
        more = {"epilogue": f, "implementation": ("cutlass", "xla")}
        more["preferred_element_type"] = jnp.dtype(result)
        if grouped:
            return bw.scaled_ragged_dot(a, b, sizes, **more)
        return bw.scaled_matmul(a, b, **more)

    sizes = jax.ShapeDtypeStruct((GROUPS,), jnp.int32)
    with config.target(arch, 132), config.linked_epilogues(True):
        found = equations(jax.make_jaxpr(product)(a, b, sizes))
    primitives = bw_scaled_epilogue_p, bw_scaled_ragged_epilogue_p
    (eqn,) = [e for e, _ in found if e.primitive in primitives]
    fused = dataclasses.replace(eqn.params["fused"], surroundings=Surroundings(also_read=also_read))
    fused = dataclasses.replace(fused, spec=fused.spec.with_policy(config=asked))
    types = [x.aval for x in fused.factors(eqn.invars)[0]]
    return fused.choose("cutlass", "cuda", types)


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Sets what kernels with the epilogue cost, by their names, and a pass; asked, as it is."""

    def of(linked: Callable[[str], float], after: Callable[[int], float]) -> None:
        cost = lambda c, *_: linked(c.kernel.name)  # noqa: E731
        monkeypatch.setattr(scaled_call, "linked_cycles", cost)
        monkeypatch.setattr(scaled_grouped_call, "grouped_linked_cycles", cost)
        for module in (scaled_call, scaled_grouped_call):
            monkeypatch.setattr(module, "pass_cycles", lambda *args: after(args[3]))

    return of


@pytest.mark.parametrize(("arch", "layouts", "scales"), CASES, ids=str)
@pytest.mark.parametrize("a_dtype", [E4M3, E5M2])
def test_the_fastest_of_those_that_fit(
    arch: str, layouts: tuple[str, str], scales: str, a_dtype: str, costs: Callable[..., Any]
) -> None:
    """Others are not even asked for their costs."""
    wanted = arch, a_dtype, E4M3, scales
    names = {k.name for k in KERNELS if (k.arch, k.a_dtype, k.b_dtype, k.scales) == wanted}
    if not names:
        pytest.skip("no such kernel takes an epilogue")
    asked = set()
    for fastest in names:

        def cost(name: str, fastest: str = fastest) -> float:
            asked.add(name)
            return 0.0 if name == fastest else FOREVER

        costs(cost, lambda _: FOREVER)
        chosen = choose(layouts=layouts, a_dtype=a_dtype, arch=arch).selection
        assert chosen.kernel.name == fastest
        assert "predicted 0 cycles with the epilogue" in chosen.reason
    assert asked == names


def test_a_faster_kernel_that_takes_no_epilogue(costs: Callable[..., Any]) -> None:
    """For few rows of each group there is one, with swapped operands."""
    costs(lambda _: FOREVER, lambda _: 0.0)
    found = choose(layouts=("1x128", "128x128"), grouped=True)
    assert found.split()[0] not in {k.name for k in GROUPED}


@pytest.mark.parametrize("grouped", [False, True])
class TestBoth:
    """Of products with groups and without."""

    def test_a_pass_that_takes_less(self, grouped: bool, costs: Callable[..., Any]) -> None:
        costs(lambda _: FOREVER, lambda _: 0.0)
        assert "without it and a pass over the result are predicted to take" in choose(
            grouped=grouped
        )
        costs(lambda _: 0.0, lambda _: FOREVER)
        assert not isinstance(choose(grouped=grouped), str)

    def test_results_that_another_pass_reads(
        self, grouped: bool, costs: Callable[..., Any]
    ) -> None:
        """A pass of the epilogue could be part of that one."""
        costs(lambda _: FOREVER, lambda also_read: FOREVER * (1 - also_read))
        assert not isinstance(choose(grouped=grouped), str)
        assert isinstance(choose(grouped=grouped, also_read=1), str)

    def test_whoever_asks_for_a_kernel_gets_it(
        self, grouped: bool, costs: Callable[..., Any]
    ) -> None:
        """Whatever that costs."""
        costs(lambda _: FOREVER, lambda _: 0.0)
        asked = (bw.GroupedConfig if grouped else bw.TuningConfig)(raster_order="m")
        found = choose(grouped=grouped, asked=asked).selection
        assert found.raster_order == "m"
        assert f"chosen by {asked}" in found.reason

    def test_a_type_that_no_kernel_writes(self, grouped: bool) -> None:
        found = choose(grouped=grouped, result="float32")
        assert re.search("^no .*kernel .*tensor and tensor.*(has|, with) an epilogue$", found)

    def test_no_result_of_the_products_type(self, grouped: bool) -> None:
        found = choose(lambda z: z.astype(jnp.int32), grouped=grouped)
        assert found == "no result is of the product's type bfloat16"

    def test_a_result_of_a_type_that_kernels_do_not_write(self, grouped: bool) -> None:
        assert "a result is of type bool" in choose(lambda z: (z, z > 0), grouped=grouped)


@pytest.mark.parametrize("count", [1, MAX_SUMS, MAX_SUMS + 1])
def test_as_many_sums_as_kernels_have(count: int, costs: Callable[..., Any]) -> None:
    costs(lambda _: 0.0, lambda _: FOREVER)
    found = choose(lambda z: (z, *(jnp.sum(z * i, 0) for i in range(1, count + 1))))
    if count > MAX_SUMS:
        assert found == f"more than {MAX_SUMS} sums over rows"
    else:
        assert not found.selection.kernel.swap_ab


def test_sums_are_of_no_type_of_the_product() -> None:
    """Kernels sum in float32, and need a result to store."""
    found = choose(lambda z: (z.astype(jnp.int32), jnp.sum(z, 0)))
    assert found == "no result is of the product's type bfloat16"
