"""``precision=``: validated and canonicalised as JAX does, for every function that takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_bwgemm as bw
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product.implementations import precision_refusal
from jax_bwgemm.product.spec import Policy
from jax_bwgemm.product.support import refusal
from jax_bwgemm.product.terms import split

X = jnp.ones((16, 16), jnp.bfloat16)
W = jnp.ones((2, 16, 16), jnp.bfloat16)
SIZES = np.array([8, 8], np.int32)
NUMBERS = (((1,), (0,)), ((), ()))
RAGGED = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": lambda **kw: bw.matmul(X, X, **kw),
    "dot_general": lambda **kw: bw.dot_general(X, X, NUMBERS, **kw),
    "ragged_dot": lambda **kw: bw.ragged_dot(X, W, SIZES, **kw),
    "ragged_dot_general": lambda **kw: bw.ragged_dot_general(X, W, SIZES, RAGGED, **kw),
    "explain": lambda **kw: bw.explain(X, X, device="sm90", **kw),
}
ACCEPTED = [
    "high",
    "F16_F16_F32",
    ["high", "default"],
    (lax.Precision.HIGH, lax.Precision.DEFAULT),
    lax.DotAlgorithmPreset.BF16_BF16_F32,
]


@pytest.mark.parametrize("implementation", ["cutlass", None])
@pytest.mark.parametrize("precision", ["bogus", 3, ("high",), ("high", "bogus"), {"high": 1}])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_jax_does_not_know_is_an_error(name: str, precision: Any, implementation: Any) -> None:
    with pytest.raises(ValueError, match="Precision argument must be one of") as jaxs:
        lax.dot_general(X, X, NUMBERS, precision=precision)
    with pytest.raises(ValueError, match="Precision argument must be one of") as ours:
        jax.eval_shape(lambda: FUNCTIONS[name](precision=precision, implementation=implementation))
    assert str(ours.value) == str(jaxs.value)


LAYERS: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "linear": lambda **kw: bw.linear(X, X, **kw),
    "gated_linear_unit": lambda **kw: bw.gated_linear_unit(X, (X, X), **kw),
    "mlp": lambda **kw: bw.mlp(X, X, X, **kw),
    "grouped_mlp": lambda **kw: bw.grouped_mlp(X, W, W, SIZES, **kw),
    "moe_mlp": lambda **kw: bw.moe_mlp(X, W, W, np.zeros((16, 1), int), np.ones((16, 1)), **kw),
    "loss": lambda **kw: bw.linear_softmax_cross_entropy_loss(X, np.zeros(16, int), X, **kw),
}


@pytest.mark.parametrize("precision", [[lax.Precision.HIGHEST] * 2, ["high", "highest"]], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_list_is_a_pair(name: str, precision: list[Any]) -> None:
    found, want = (str(LAYERS[name](precision=p)) for p in (precision, tuple(precision)))
    assert found == want


@pytest.mark.parametrize("precision", [{}, np.ones(2), [1, {}]], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_what_is_not_hashable_is_an_error_of_jax(name: str, precision: Any) -> None:
    with pytest.raises(ValueError, match="Precision argument must be one of"):
        LAYERS[name](precision=precision)


@pytest.mark.parametrize("precision", ["F64_F64_F64", lax.DotAlgorithmPreset.F64_F64_F64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_algorithm_by_name_is_refused_as_its_preset_is(name: str, precision: Any) -> None:
    def call() -> Any:
        return FUNCTIONS[name](precision=precision, implementation="cutlass")

    with pytest.raises(NotImplementedError, match="precision=F64_F64_F64 asks for an algorithm"):
        call() if name == "explain" else jax.eval_shape(call)


@pytest.mark.parametrize("name", ["matmul", "ragged_dot"])
def test_the_default_precision_in_force_counts(name: str) -> None:
    with (
        jax.default_matmul_precision("F64_F64_F64"),
        pytest.raises(NotImplementedError, match="precision=F64_F64_F64 asks for an algorithm"),
    ):
        jax.eval_shape(lambda: FUNCTIONS[name](implementation="cutlass"))


@pytest.mark.parametrize("precision", ACCEPTED, ids=str)
def test_canonical_form_is_that_of_lax(precision: Any) -> None:
    def parameter(f: Callable[..., Any]) -> Any:
        jaxpr = jax.make_jaxpr(f)(X)
        (eqn,) = (e for e in jaxpr.eqns if "precision" in e.params or "spec" in e.params)
        return (
            eqn.params["spec"].policy.precision if "spec" in eqn.params else eqn.params["precision"]
        )

    dtype = jnp.float16 if precision == "F16_F16_F32" else jnp.bfloat16
    lax_form = parameter(
        lambda x: lax.dot_general(x.astype(dtype), x.astype(dtype), NUMBERS, precision=precision)
    )
    ours = jax.make_jaxpr(
        lambda x: bw.matmul(x.astype(dtype), x.astype(dtype), precision=precision)
    )
    assert f"precision={lax_form}" in str(ours(X)).replace("\n", "")


def test_types_without_a_preset_refuse_every_algorithm() -> None:
    preset = lax.DotAlgorithmPreset.BF16_BF16_F32
    assert precision_refusal(preset, "float8_e4m3fn") == (
        "precision=BF16_BF16_F32 asks for an algorithm other than the kernels' for float8_e4m3fn"
    )
    assert precision_refusal(lax.DotAlgorithmPreset.DEFAULT, "float8_e4m3fn") is None


MIXED = [("float32", "bfloat16"), ("bfloat16", "float32")]


@pytest.mark.parametrize("types", MIXED, ids=str)
def test_f32_operands_and_what_two_terms_answer(types: tuple[str, str]) -> None:
    """TF32 and X3 are no more accurate than two terms; float32's own accuracy is."""
    operands = " x ".join(types)
    for precision in (None, "DEFAULT", "TF32_TF32_F32", "BF16_BF16_F32_X3"):
        preset = precision and lax.DotAlgorithmPreset[precision]
        assert precision_refusal(preset, operands) is None
    assert precision_refusal((lax.Precision.HIGH,) * 2, operands) is None
    assert precision_refusal(lax.DotAlgorithmPreset.BF16_BF16_F32_X6, operands) == (
        "precision=BF16_BF16_F32_X6 asks for an algorithm other than BF16_BF16_F32_X3"
    )
    assert precision_refusal((lax.Precision.DEFAULT, lax.Precision.HIGHEST), operands) == (
        "precision=HIGHEST asks for float32's accuracy, kernels split float32 into two terms"
    )
    assert precision_refusal((lax.Precision.HIGHEST,) * 2, "bfloat16") is None


@pytest.mark.parametrize("types", [*MIXED, ("float32", "float32")], ids=str)
def test_bf16_asked_for_by_name_runs_on_bf16_kernels(types: tuple[str, str]) -> None:
    a, b = (jax.ShapeDtypeStruct((512, 512), dtype) for dtype in types)
    preset = lax.DotAlgorithmPreset.BF16_BF16_F32
    found = bw.explain(a, b, precision=preset, preferred_element_type=jnp.float32, device="sm90")
    assert found.kernel.startswith("sm90_bf16_f32_kn_")


def test_bf16_asked_for_by_name_runs_on_grouped_bf16_kernels() -> None:
    rows, weights = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((512, 512), (2, 512, 512)))

    def f(x: jax.Array, w: jax.Array) -> jax.Array:
        return bw.ragged_dot(x, w, SIZES, precision=lax.DotAlgorithmPreset.BF16_BF16_F32)

    ((found, _),) = bw.explain_program(f, rows, weights, device="sm90").products
    assert found.kernel.startswith("sm90_grouped_rows_bf16_f32_kn_")
    with bw.config.target("sm90"):
        text = jax.jit(f).trace(rows, weights).lower(lowering_platforms=("cuda",)).as_text()
    (call,) = (line for line in text.splitlines() if "@bwgemm.product" in line)
    assert call.count("xbf16>") == 2  # both operands were rounded ahead of it


@pytest.mark.parametrize("types", MIXED, ids=str)
def test_an_f32_operand_beside_a_bf16_one_has_kernels(types: tuple[str, str]) -> None:
    a, b = (jax.ShapeDtypeStruct((512, 512), dtype) for dtype in types)
    names = {"float32": "f32", "bfloat16": "bf16"}
    found = bw.explain(a, b, preferred_element_type=jnp.float32, device="sm90")
    assert found.kernel.startswith(f"sm90_{names[types[0]]}_{names[types[1]]}_f32_kn_")
    for device in ("sm90", "sm100"):
        exact = bw.explain(a, b, precision="highest", device=device)
        assert (exact.implementation, exact.kernel) == ("xla", None)


def test_both_gradients_of_an_f32_result_run_on_kernels() -> None:
    """Logits in f32: the cotangent is f32 and meets bf16 weights and activations."""
    x, w = (jax.ShapeDtypeStruct((512, 512), jnp.bfloat16),) * 2

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(bw.matmul(x, w, preferred_element_type=jnp.float32) ** 2)

    explained = bw.explain_program(jax.grad(loss, (0, 1)), x, w, device="sm90")
    kernels = sorted(found.kernel for found, _ in explained.products)
    assert len(kernels) == 3
    for kernel, types in zip(
        kernels, ("bf16_f32_bf16_mn", "bf16_f32_kn", "f32_bf16_bf16_kk"), strict=True
    ):
        assert kernel.startswith(f"sm90_{types}_")


F32 = jax.ShapeDtypeStruct((512, 512), jnp.float32)
PRESETS = lax.DotAlgorithmPreset


@pytest.mark.parametrize(
    ("precision", "kernel"),
    [
        ("high", "f32x3"),
        (PRESETS.BF16_BF16_F32_X3, "f32x3"),
        (("default", "high"), "f32x3"),
        ("highest", "f32x6"),
        (("highest", "high"), "f32x6"),
        (PRESETS.BF16_BF16_F32_X6, "f32x6"),
    ],
    ids=str,
)
def test_two_f32_operands_have_the_kernel_of_their_precision(precision: Any, kernel: str) -> None:
    assert bw.explain(F32, F32, precision=precision, device="sm90").kernel.startswith(
        f"sm90_{kernel}_f32_kn_"
    )
    with jax.default_matmul_precision("float32"):  # JAX's name of HIGHEST
        assert bw.explain(F32, F32, device="sm90").kernel.startswith("sm90_f32x6_")
    for rows in (16, 64):
        few = jax.ShapeDtypeStruct((rows, 4096), jnp.float32)
        wide = jax.ShapeDtypeStruct((4096, 14336), jnp.float32)
        found = bw.explain(few, wide, precision=precision, device="sm90").kernel
        assert found == f"sm90_{kernel}_f32_kn_128x{rows}x32_1x1_cooperative_swap"


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        (None, "None"),
        ("default", "DEFAULT"),
        (PRESETS.TF32_TF32_F32, "TF32_TF32_F32"),
        (PRESETS.BF16_BF16_F32_X9, "BF16_BF16_F32_X9"),
        (PRESETS.F32_F32_F32, "F32_F32_F32"),
    ],
    ids=str,
)
def test_what_no_number_of_terms_answers_is_xlas(precision: Any, name: str) -> None:
    found = bw.explain(F32, F32, precision=precision, device="sm90")
    assert (found.implementation, found.reason) == (
        "xla",
        f"precision={name} of float32 operands is left to XLA; kernels answer HIGH, "
        "BF16_BF16_F32_X3, HIGHEST, BF16_BF16_F32_X6",
    )
    with pytest.raises(NotImplementedError, match=f"precision={name} of float32 operands"):
        bw.matmul(jnp.ones((8, 8)), jnp.ones((8, 8)), precision=precision, implementation="cutlass")


def test_a_kernel_of_fewer_terms_than_asked_for_is_refused() -> None:
    found = bw.explain(F32, F32, precision="highest", device="sm90")
    reasons = {reason for name, reason in found.rejected if "f32x3" in name and "_kn_" in name}
    assert reasons == {"splits float32 into 2 terms, too few for the precision"}
    named = next(name for name, _ in found.rejected if "f32x3" in name and "_kn_" in name)
    found = bw.explain(F32, F32, precision="highest", config=named, device="sm90")
    assert found.implementation == "xla"
    assert "too few for the precision" in found.reason
    exact = bw.explain(F32, F32, precision="highest", device="sm90").kernel
    assert bw.explain(F32, F32, precision="high", config=exact, device="sm90").kernel == exact


def test_sm100_leaves_the_accuracy_of_f32_to_xla() -> None:
    found = bw.explain(F32, F32, precision="highest", device="sm100")
    assert found.implementation == "xla"
    assert found.reason == (
        "precision=HIGHEST of float32 operands is left to XLA on sm100, whose kernels' sums have "
        "not been measured against float32's"
    )
    with pytest.raises(NotImplementedError, match="is left to XLA on sm100"):
        bw.explain(F32, F32, precision="highest", device="sm100", implementation="cutlass")


def test_gradients_and_batches_of_f32_keep_their_precision() -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jax.vmap(bw.matmul, (0, None))(x, w) ** 2)

    x = jax.ShapeDtypeStruct((3, 512, 512), jnp.float32)
    with jax.default_matmul_precision("highest"):
        explained = bw.explain_program(jax.grad(loss, (0, 1)), x, F32, device="sm90")
    names = sorted(found.kernel for found, _ in explained.products)
    assert [name[:18] for name in names] == [
        "sm90_f32x6_f32_kk_",
        "sm90_f32x6_f32_kn_",
        "sm90_f32x6_f32_mn_",
    ]


@pytest.mark.usefixtures("wide_kernels")
def test_kernels_of_a_new_type_and_a_preset() -> None:
    spec = GemmSpec(
        out_dtype="float32", policy=Policy(precision=lax.DotAlgorithmPreset.F32_F32_F32)
    )
    reason = refusal(DENSE, "cutlass", spec, ["float32", "float32"], GemmDims(16, 16, 16))
    assert reason == (
        "precision=F32_F32_F32 asks for an algorithm other than the kernels' for float32"
    )


@pytest.mark.parametrize(("count", "both"), [(2, False), (2, True), (3, True)])
def test_terms_of_the_largest_numbers_are_finite(count: int, both: bool) -> None:
    """Rounded to bfloat16, float32's largest would be infinite."""
    x = np.finfo(np.float32).max * np.array([1, -1, 0.999], np.float32)
    terms = [np.asarray(t, np.float64) for t in split(jnp.asarray(x), count, both=both)]
    np.testing.assert_allclose(sum(terms), x.astype(np.float64), rtol=2.0**-16)
