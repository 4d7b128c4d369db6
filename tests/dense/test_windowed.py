"""Products of columns of larger arrays: their value everywhere, and what reads them in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact, exact_integers

import jax_bwgemm as bw
from jax_bwgemm.dense.problem import make_options
from jax_bwgemm.dense.windowed import Windowed, windowed_product
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.product.windows import Window

PLAIN = (((1,), (0,)), ((), ()))
# Which operand is a window, its columns, and which dimensions are contracted: every major.
NUMBERS = {
    "kn": PLAIN,
    "kk": (((1,), (1,)), ((), ())),
    "mn": (((0,), (0,)), ((), ())),
}
ROWS, WIDE, DEPTH = 40, 96, 64


def double(product: jax.Array, column: jax.Array) -> jax.Array:
    return 2 * product + column


def windowed(name: Any, arch: str = "sm90", **fields: Any) -> Windowed:
    with bw.config.target(arch):
        options = make_options(implementation=name)
    return Windowed(fields.pop("numbers", PLAIN), options, **fields)


def operand(shape: tuple[int, int], seed: int, window: Window | None) -> Any:
    """Exact integers; with a window an array of more columns, the others NaN."""
    x = exact_integers(np.random.default_rng(seed), shape, "bfloat16")
    if window is None:
        return jnp.asarray(x)
    wide = np.full((shape[0], WIDE + shape[1]), np.nan, np.float32)
    wide[:, window.first : window.first + window.size] = x.astype(np.float32)
    return jnp.asarray(wide, jnp.bfloat16)


CASES = [
    pytest.param(numbers, side, id=f"{majors}-{side}")
    for majors, numbers in NUMBERS.items()
    for side in ("lhs", "rhs", "both")
]


def problem(numbers: Any, side: str, first: int) -> tuple[jax.Array, jax.Array, dict[str, Window]]:
    ((a_k,), (b_k,)), _ = numbers
    shapes = (ROWS, DEPTH) if a_k else (DEPTH, ROWS), (DEPTH, 48) if b_k == 0 else (48, DEPTH)
    windows = {
        name: Window(first, shape[1])
        for name, shape in zip(("lhs", "rhs"), shapes, strict=True)
        if side in (name, "both")
    }
    a, b = (
        operand(shape, seed, windows.get(name))
        for name, shape, seed in zip(("lhs", "rhs"), shapes, (1, 2), strict=True)
    )
    return a, b, windows


def expected(a: jax.Array, b: jax.Array, numbers: Any, windows: dict[str, Window]) -> np.ndarray:
    a, b = (
        np.asarray(x if (w := windows.get(name)) is None else w.of(x)).astype(np.float64)
        for name, x in (("lhs", a), ("rhs", b))
    )
    ((a_k,), (b_k,)), _ = numbers
    return (a if a_k else a.T) @ (b if b_k == 0 else b.T)


def lowered(function: Callable[..., Any], *arrays: Any) -> str:
    return jax.jit(function).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("numbers", "side"), CASES)
def test_kernels_read_windows_in_place(numbers: Any, side: str) -> None:
    a, b, windows = problem(numbers, side, 16)
    what = windowed("cutlass", numbers=numbers, **windows)
    text = lowered(lambda a, b: windowed_product(a, b, what), a, b)
    words = [
        f"{role}:{w.first}:{w.size}"
        for role, w in zip("ab", (windows.get("lhs"), windows.get("rhs")), strict=True)
        if w
    ]
    assert f'windows = "{" ".join(words)}"' in text
    (call,) = [line for line in text.splitlines() if "custom_call @bwgemm" in line]
    for x in (a, b):
        assert f"tensor<1x{x.shape[0]}x{x.shape[1]}xbf16>" in call


@pytest.mark.parametrize("first", [3, 16])
def test_unaligned_windows_are_copied(first: int) -> None:
    a, b, windows = problem(PLAIN, "rhs", first)
    text = lowered(lambda a, b: windowed_product(a, b, windowed("cutlass", **windows)), a, b)
    assert ("windows = " in text) == (first == 16)


def test_windows_of_rows_that_are_not_aligned_are_copied() -> None:
    a, b, windows = problem(PLAIN, "rhs", 16)
    what = windowed("cutlass", **windows)
    assert "windows = " not in lowered(lambda a, b: windowed_product(a, b, what), a, b[:, :-4])


def test_windows_that_are_padded_are_copied() -> None:
    """60 columns are no multiple of 16 bytes; the array's rows are."""
    a, b = jnp.zeros((ROWS, WIDE), jnp.bfloat16), jnp.zeros((60, 48), jnp.bfloat16)
    what = windowed("cutlass", lhs=Window(16, 60))
    text = lowered(lambda a, b: windowed_product(a, b, what), a, b)
    assert "custom_call @bwgemm" in text
    assert "windows = " not in text


def test_windows_of_operands_that_are_rounded_are_copied() -> None:
    """A kernel of bfloat16 cannot read the float32 array."""
    a, b, windows = problem(PLAIN, "both", 16)
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    with bw.config.target("sm90"):
        options = make_options(implementation="cutlass", precision="BF16_BF16_F32")
    what = Windowed(PLAIN, options, **windows)
    text = lowered(lambda a, b: windowed_product(a, b, what), a, b)
    assert "custom_call @bwgemm" in text
    assert "windows = " not in text


def test_a_result_of_another_type_than_its_array_is_converted() -> None:
    a, b, _ = problem(PLAIN, "neither", 0)
    into = jnp.zeros((ROWS, 96), jnp.float32)
    what = windowed("cutlass", into=Window(32, 48))
    text = lowered(lambda *xs: windowed_product(xs[0], xs[1], what, xs[2]), a, b, into)
    assert "windows = " not in text
    assert "dynamic_update_slice" in text


def test_results_are_written_in_place() -> None:
    a, b, _ = problem(PLAIN, "neither", 0)
    into = jnp.zeros((ROWS, 96), jnp.bfloat16)
    what = windowed("cutlass", into=Window(32, 48))
    text = lowered(lambda *xs: windowed_product(xs[0], xs[1], what, xs[2]), a, b, into)
    assert 'operands = "a b into"' in text
    assert 'windows = "d:32:48"' in text
    assert "output_operand_alias<output_tuple_indices = [0], operand_index = 2" in text
    assert "dynamic_update_slice" not in text


ON_KERNELS = [
    *(pytest.param("emulator", arch, marks=requires_emulator) for arch in ("sm90", "sm100")),
    pytest.param("cutlass", "sm90", marks=pytest.mark.sm90),
]


@pytest.mark.parametrize(("implementation", "arch"), ON_KERNELS)
class TestOnKernels:
    @pytest.mark.parametrize(("numbers", "side"), CASES)
    def test_operands(self, numbers: Any, side: str, implementation: str, arch: str) -> None:
        a, b, windows = problem(numbers, side, 24)
        what = windowed(implementation, arch, numbers=numbers, **windows)
        got = jax.jit(lambda a, b: windowed_product(a, b, what))(a, b)
        assert_exact(got, expected(a, b, numbers, windows).astype(got.dtype))

    def test_results(self, implementation: str, arch: str) -> None:
        a, b, _ = problem(PLAIN, "neither", 0)
        into = jnp.full((ROWS, 96), 7, jnp.bfloat16)
        what = windowed(implementation, arch, into=Window(32, 48))
        got = jax.jit(lambda *xs: windowed_product(xs[0], xs[1], what, xs[2]))(a, b, into)
        want = np.full((ROWS, 96), 7.0)
        want[:, 32:80] = expected(a, b, PLAIN, {})
        assert_exact(got, want.astype(got.dtype))
        assert_exact(into, np.full((ROWS, 96), 7, into.dtype))  # a copy of it was written

    def test_a_call_follows_another(self, implementation: str, arch: str) -> None:
        """The array that it follows is an operand, in whose values it is not interested."""
        a, b, windows = problem(PLAIN, "rhs", 24)
        what = windowed(implementation, arch, follows=True, **windows)
        function = jax.jit(lambda *xs: windowed_product(xs[0], xs[1], what, xs[2]))
        got = function(a, b, jnp.full((3, 5), jnp.nan, jnp.float16))
        assert_exact(got, expected(a, b, PLAIN, windows).astype(got.dtype))
        assert 'operands = "a b after"' in function.lower(a, b, jnp.zeros(3)).as_text()

    def test_an_epilogue_follows(self, implementation: str, arch: str) -> None:
        a, b, windows = problem(PLAIN, "rhs", 24)
        column = jnp.arange(ROWS, dtype=jnp.float32)[:, None]
        what = windowed(implementation, arch, epilogue=Epilogue(double, "test"), **windows)
        got = jax.jit(lambda *xs: windowed_product(xs[0], xs[1], what, xs[2]))(a, b, column)
        want = 2 * expected(a, b, PLAIN, windows) + np.asarray(column)
        assert_exact(got, want.astype(got.dtype))


def test_transformations_are_those_of_the_slices() -> None:
    a, b, windows = problem(PLAIN, "rhs", 16)
    b = jnp.nan_to_num(b)

    def of(name: Any, a: jax.Array, b: jax.Array, wide: jax.Array) -> jax.Array:
        product = windowed_product(a, b, windowed(name, **windows))
        return windowed_product(a.T, product, windowed(name, into=Window(8, 48)), wide)

    both, plain = (functools.partial(of, name) for name in (("cutlass", "xla"), "xla"))

    wide = jnp.ones((DEPTH, 64), jnp.bfloat16)
    stacked = tuple(jnp.stack([x, 2 * x]) for x in (a, b, wide))
    for arguments, mapped in (((a, b, wide), lambda f: f), (stacked, jax.vmap)):
        assert_exact(mapped(both)(*arguments), np.asarray(mapped(plain)(*arguments)))
    gradients = [
        jax.grad(lambda *xs, f=f: jnp.sum(f(*xs).astype(jnp.float32) ** 2), (0, 1, 2))(a, b, wide)
        for f in (both, plain)
    ]
    for got, want in zip(*gradients, strict=True):
        assert_exact(got, np.asarray(want))


def test_xla_too_follows_an_array() -> None:
    a, b, windows = problem(PLAIN, "rhs", 16)
    what = windowed(("cutlass", "xla"), follows=True, **windows)
    text = jax.jit(lambda *xs: windowed_product(*xs[:2], what, xs[2])).lower(a, b, a).as_text()
    assert "optimization_barrier" in text


def test_several_devices_follow_an_array_too(cpu_devices: list[jax.Device]) -> None:
    a, b, windows = problem(PLAIN, "rhs", 16)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=cpu_devices[:2])
    a = jax.device_put(a, NamedSharding(mesh, P("x")))
    what = windowed(("cutlass", "xla"), follows=True, **windows)
    text = jax.jit(lambda *xs: windowed_product(*xs[:2], what, xs[2])).lower(a, b, a).as_text()
    assert "optimization_barrier" in text


def test_programs_are_explained() -> None:
    a, b, windows = problem(PLAIN, "rhs", 16)
    function = functools.partial(windowed_product, windowed=windowed(("cutlass", "xla"), **windows))
    found = bw.explain_program(lambda a, b: function(a, b), a, b, device="sm90")
    assert "M=40 N=48 K=64" in str(found)
    assert found.products[0][0].implementation == "cutlass"
