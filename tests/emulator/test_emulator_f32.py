"""Two f32 operands through the public functions, on the emulated kernels of their precision."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import emulated, requires_emulator
from jax import lax
from numerics import F32_PRODUCTS, assert_exact, assert_same_classes, small_integers

import jax_bwgemm as bw
from jax_bwgemm.product import terms

pytestmark = [
    *requires_emulator,
    pytest.mark.usefixtures("no_rule_broken"),
    pytest.mark.skipif(
        not any(k.splits_both for k in emulated("sm90")),
        reason="the emulator was not built with kernels of two f32 operands",
    ),
]

SHAPES = (24, 40), (40, 72)


def emulated_product(a: Any, b: Any, precision: str) -> jax.Array:
    with bw.config.target("sm90"):
        return bw.matmul(a, b, precision=precision, implementation="emulator")


def normals(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def assert_close(got: Any, want: np.ndarray, precision: str) -> None:
    assert got.dtype == jnp.float32
    error = np.abs(np.asarray(got, np.float64) - want).max()
    assert error <= F32_PRODUCTS[precision] * np.sqrt(np.mean(want**2))


@pytest.mark.parametrize("precision", F32_PRODUCTS)
def test_sizes_that_are_padded(precision: str) -> None:
    a, b = normals((33, 70), (70, 129))
    assert_close(emulated_product(a, b, precision), np.float64(a) @ np.float64(b), precision)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)], ids=str)
def test_batches_of_which_one_operand_may_be_shared(mapped: tuple[int | None, int | None]) -> None:
    a, b = normals(*(s if m is None else (3, *s) for s, m in zip(SHAPES, mapped, strict=True)))
    got = jax.vmap(lambda x, y: emulated_product(x, y, "highest"), mapped)(a, b)
    assert_close(got, np.float64(a) @ np.float64(b), "highest")


@pytest.mark.parametrize("precision", F32_PRODUCTS)
def test_gradients_have_the_precision_of_the_product(precision: str) -> None:
    a, b, cotangent = normals((24, 40), (40, 72), (24, 72))
    _, transposed = jax.vjp(lambda x, y: emulated_product(x, y, precision), a, b)
    da, db = transposed(jnp.asarray(cotangent))
    assert_close(da, np.float64(cotangent) @ np.float64(b).T, precision)
    assert_close(db, np.float64(a).T @ np.float64(cotangent), precision)


class TestTermsInMemory:
    """SM100, whose kernels multiply 16-bit operands: products with more of K."""

    PRODUCTS = (
        ("float32", "bfloat16", None),
        ("bfloat16", "float32", None),
        ("float32", "float32", "high"),
        ("float32", "float32", lax.DotAlgorithmPreset.BF16_BF16_F32_X6),
    )

    @staticmethod
    def product(a: Any, b: Any, precision: Any, **more: Any) -> jax.Array:
        with bw.config.target("sm100", 4):
            return bw.matmul(a, b, precision=precision, implementation="emulator", **more)

    @pytest.mark.parametrize(("a_type", "b_type", "precision"), PRODUCTS, ids=str)
    def test_random_values(self, a_type: str, b_type: str, precision: Any) -> None:
        a, b = normals((33, 70), (70, 136))
        a, b = (jnp.asarray(x, t) for x, t in ((a, a_type), (b, b_type)))
        got = self.product(a, b, precision)
        three = precision not in (None, "high")
        assert_close(got, np.float64(a) @ np.float64(b), "highest" if three else "high")

    @pytest.mark.parametrize("swapped", [False, True])
    def test_sums_of_two_terms_are_exact_with_gradients(self, swapped: bool) -> None:
        rng = np.random.default_rng(1)
        x = jnp.asarray(small_integers(rng, (24, 40), "float32")) * 257  # 9 bits and more
        w = jnp.asarray(small_integers(rng, (40, 72), "bfloat16"))
        ct = jnp.asarray(small_integers(rng, (24, 72), "float32"))
        a, b, t = (w.T, x.T, ct.T) if swapped else (x, w, ct)

        def run(a: Any, b: Any) -> jax.Array:
            some = ("emulator", "xla")  # of w's gradient: a product of two f32 operands
            with bw.config.target("sm100", 4):
                return bw.matmul(a, b, preferred_element_type=jnp.float32, implementation=some)

        lowered = jax.jit(run).lower(a, b)
        assert lowered.as_text().count("bwgemm.product.emulated") == 1
        out, transposed = jax.vjp(run, a, b)
        assert_exact(out, (np.float64(a) @ np.float64(b)).astype(np.float32))
        of_x = transposed(t)[1 if swapped else 0]
        want = np.float64(ct) @ np.float64(w).T
        assert_exact(of_x, (want.T if swapped else want).astype(np.float32))

    def test_a_cotangent_of_an_f32_result(self) -> None:
        """Both gradients of bf16 operands are products with an f32 one."""
        rng = np.random.default_rng(2)
        a, b = (jnp.asarray(small_integers(rng, s, "bfloat16")) for s in ((24, 40), (40, 72)))
        ct = jnp.asarray(small_integers(rng, (24, 72), "float32")) * 257
        wide = lambda a, b: self.product(a, b, None, preferred_element_type=jnp.float32)  # noqa: E731
        da, db = jax.vjp(wide, a, b)[1](ct)
        assert_exact(da, (np.float64(ct) @ np.float64(b).T).astype(jnp.bfloat16))
        assert_exact(db, (np.float64(a).T @ np.float64(ct)).astype(jnp.bfloat16))

    def test_infinities_are_those_of_the_product(self) -> None:
        a, b = normals((16, 32), (32, 24))
        a[1, 2], a[3, 4], b[5, 6] = np.inf, -np.inf, np.inf
        b[2, 7] = a[7, 5] = 1 + 2**-12  # their low terms are not zero, or of the other sign
        with np.errstate(invalid="ignore"):
            want = np.float64(a) @ np.float64(b)
        assert_same_classes(self.product(a, b, "high"), want)

    def test_what_is_asked_for_and_what_is_left_to_xla(self) -> None:
        x, w = (jax.ShapeDtypeStruct((512, 512), t) for t in ("float32", "bfloat16"))
        found = bw.explain(x, w, device="sm100")
        assert "A in 2 bf16 terms in memory, 2 side by side" in found.reason
        found = bw.explain(x, x, precision="high", device="sm100")
        assert "A in 2 and B in 2 bf16 terms in memory, 3 side by side" in found.reason
        assert bw.explain(x, x, precision="highest", device="sm100").implementation == "xla"
        long = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 2**30), (2**30, 8))]
        found = bw.explain(*long, precision="high", device="sm100")
        assert "size 3221225472 exceeds" in found.reason


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_terms_add_up(count: int, both: bool) -> None:
    (x,) = normals((1000,))
    found = jax.jit(lambda x: terms.split(x, count, both=both))(x)
    left = x - sum(np.float64(t) for t in found)
    assert all(t.dtype == jnp.bfloat16 for t in found)
    assert np.all(np.abs(left) <= (2**-17 if count == 2 else 0) * np.abs(x))


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_terms_of_the_largest_and_of_infinite_values(count: int, both: bool) -> None:
    most = np.finfo(np.float32).max
    x = jnp.asarray([np.inf, -np.inf, most, np.nan], jnp.float32)
    found = [np.float64(t) for t in terms.split(x, count, both=both)]
    first = 1 if both else float(jnp.finfo(jnp.bfloat16).max)
    np.testing.assert_array_equal(found[0][:2], [first, -first])
    np.testing.assert_array_equal(found[-1][:2], [np.inf, -np.inf])
    assert all(np.isfinite(t[:3]).all() for t in found[:-1])
    assert abs(sum(t[2] for t in found) - most) <= most * 2**-17
    assert np.isnan(found[-1][3])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_infinities_and_the_largest_values_beside_bf16(arch: str, swapped: bool) -> None:
    x, w = normals((24, 48), (48, 40))
    x[1, 2], x[3, 4], x[5, 6], x[6, 6] = np.inf, -np.inf, np.nan, np.inf
    x[7], x[8, 9] = 0, np.finfo(np.float32).max
    w[9] /= 8
    w[2, 3] = w[4, 5] = 0  # times infinity: NaN
    w = np.asarray(w, jnp.bfloat16)
    a, b = (w.T, x.T) if swapped else (x, w)
    with np.errstate(invalid="ignore"):
        want = np.float64(a) @ np.float64(b)
    with bw.config.target(arch, 4):
        got = bw.matmul(a, b, preferred_element_type=jnp.float32, implementation="emulator")
    assert_same_classes(got, want)
    finite = np.isfinite(want)
    scale = np.abs(np.float64(np.nan_to_num(a, posinf=0, neginf=0))) @ np.abs(
        np.float64(np.nan_to_num(b, posinf=0, neginf=0))
    )
    error = np.abs(np.float64(got)[finite] - want[finite])
    assert np.all(error <= 1e-5 * scale[finite])
