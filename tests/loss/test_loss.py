"""The loss against its formula, its derivatives of every order, and its errors. On XLA."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numerics import CHECK_GRADS, LOSS, normal

import jax_bwgemm as bw
from jax_bwgemm.dense import windowed
from jax_bwgemm.dense.windowed import bw_gemm_windowed_p
from jax_bwgemm.loss import recomputed, statistics
from jax_bwgemm.product.jaxprs import equations
from jax_bwgemm.product.windows import Window

ROWS, WIDTH, VOCABULARY = 15, 16, 40
LOGITS = ("stored", "recomputed")
EXTRAS = {"label_smoothing": 0.1, "z_loss": 0.01, "logit_softcap": 3.0}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four blocks, the last of which is narrower."""
    monkeypatch.setattr(recomputed, "block_columns", lambda vocabulary: min(vocabulary, 12))


@pytest.fixture
def operands() -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x = jnp.asarray(normal(rng, (ROWS, WIDTH), "float32"))
    weights = jnp.asarray(normal(rng, (WIDTH, VOCABULARY), "float32"))
    return x, jnp.asarray(rng.integers(0, VOCABULARY, ROWS)), weights


def formula(
    x: jax.Array,
    labels: jax.Array,
    weights: jax.Array,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    logit_softcap: float | None = None,
) -> jax.Array:
    """Every row's loss, as the docstring says it."""
    z = x @ weights
    if logit_softcap is not None:
        z = logit_softcap * jnp.tanh(z / logit_softcap)
    lse = jax.nn.logsumexp(z, -1)
    columns = z.shape[-1]
    target = jax.nn.one_hot(labels, columns) * (1 - label_smoothing) + label_smoothing / columns
    return lse - jnp.sum(target * z, -1) + z_loss * lse**2


def close(got: Any, want: Any) -> None:
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, **LOSS), got, want)


@pytest.mark.parametrize("logits", LOGITS)
class TestDerivatives:
    """Against JAX's differentiation of the formula."""

    @pytest.fixture
    def extras(self) -> dict[str, float]:
        return EXTRAS

    @pytest.fixture
    def pair(self, operands, logits, extras) -> Any:
        x, labels, weights = operands

        def ours(x: jax.Array, weights: jax.Array) -> jax.Array:
            return bw.linear_softmax_cross_entropy_loss(x, labels, weights, logits=logits, **extras)

        def theirs(x: jax.Array, weights: jax.Array) -> jax.Array:
            return jnp.sum(formula(x, labels, weights, **extras))

        return jax.jit(ours), jax.jit(theirs), x, weights

    @pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["plain", "extras"])
    def test_value_and_gradients(self, pair) -> None:
        ours, theirs, *at = pair
        close(ours(*at), theirs(*at))
        want = jax.jit(jax.grad(theirs, (0, 1)))(*at)
        for argnums in (0, 1, (0, 1)):
            wanted = want if isinstance(argnums, tuple) else want[argnums]
            close(jax.jit(jax.grad(ours, argnums))(*at), wanted)
        close(jax.jit(jax.grad(jax.checkpoint(ours), (0, 1)))(*at), want)
        close(jax.grad(ours)(*at), want[0])

    def test_forward_mode(self, pair) -> None:
        ours, theirs, *operands = pair
        at = tuple(operands)
        check_grads(ours, at, order=1, modes=["fwd"], **CHECK_GRADS)
        for moving in ((jnp.cos(at[0]), jnp.sin(at[1])), (jnp.cos(at[0]), jnp.zeros_like(at[1]))):
            close(jax.jvp(ours, at, moving)[1], jax.jvp(theirs, at, moving)[1])

    def test_second_order(self, pair) -> None:
        ours, theirs, *operands = pair
        at = tuple(operands)
        toward = (jnp.cos(at[0]), jnp.sin(at[1]))

        def forward_over_reverse(f: Any) -> Any:
            return jax.jvp(jax.grad(f, (0, 1)), at, toward)[1]

        def reverse_over_reverse(f: Any) -> Any:
            inner = lambda x: jnp.vdot(jax.grad(f, 1)(x, at[1]), toward[1])  # noqa: E731
            return jax.grad(inner)(at[0])

        for order in (forward_over_reverse, reverse_over_reverse):
            close(order(ours), order(theirs))

    def test_vmap(self, pair) -> None:
        ours, theirs, x, weights = pair
        stack = jnp.stack([weights, 2 * weights, -weights])
        grads = [jax.vmap(jax.grad(f, (0, 1)), (None, 0))(x, stack) for f in (ours, theirs)]
        close(*grads)
        summed = [
            jax.grad(lambda x, f=f: jnp.sum(jax.vmap(f, (None, 0))(x, stack)))(x)
            for f in (ours, theirs)
        ]
        close(*summed)


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("narrow", ["x", "weights"])
def test_one_operand_in_float64(logits, narrow) -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        x, weights = rng.normal(size=(ROWS, WIDTH)), rng.normal(size=(WIDTH, VOCABULARY))
        types = [jnp.bfloat16 if name == narrow else jnp.float64 for name in ("x", "weights")]
        given = [jnp.asarray(a, t) for a, t in zip((x, weights), types, strict=True)]
        labels = jnp.asarray(rng.integers(0, VOCABULARY, ROWS))
        ours = lambda x, w: bw.linear_softmax_cross_entropy_loss(x, labels, w, logits=logits)  # noqa: E731
        theirs = lambda x, w: jnp.sum(formula(x, labels, w))  # noqa: E731
        got, want = (jax.value_and_grad(f, (0, 1))(*given) for f in (ours, theirs))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=0.02, atol=1e-3), got, want)


@pytest.mark.parametrize(
    ("reduction", "logits"), [("sum", "stored"), ("mean", "recomputed"), ("none", "stored")]
)
def test_reductions_and_ignored_rows(operands, logits, reduction) -> None:
    x, labels, weights = operands
    labels = labels.at[jnp.array([2, 7])].set(-100)
    kept = labels != -100
    rows = jnp.where(kept, formula(x, labels, weights), 0)
    want = {"sum": jnp.sum(rows), "mean": jnp.sum(rows) / jnp.sum(kept), "none": rows}[reduction]
    loss = functools.partial(
        bw.linear_softmax_cross_entropy_loss,
        reduction=reduction,
        ignore_index=-100,
        logits=logits,
        return_logsumexp=True,
    )
    got, lse = loss(x, labels, weights)
    close(got, want)
    close(jax.jit(loss)(x, labels, weights)[0], want)
    close(lse, jax.nn.logsumexp(x @ weights, -1))
    shaped, lse = loss(x.reshape(3, 5, WIDTH), labels.reshape(3, 5), weights)
    close(shaped, want.reshape(3, 5) if reduction == "none" else want)
    assert lse.shape == (3, 5)
    gradient = jax.grad(lambda x: jnp.sum(loss(x, labels, weights)[0]))(x)
    assert not gradient[jnp.array([2, 7])].any()
    assert gradient[0].any()


@pytest.mark.parametrize("logits", LOGITS)
def test_ignored_rows_make_no_nan(operands, logits) -> None:
    x, labels, weights = operands
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, ignore_index=-1, logits=logits)
    with jax.debug_nans(True):
        jax.grad(loss)(x, labels.at[0].set(-1), weights)  # operation by operation


@pytest.mark.parametrize("logits", LOGITS)
def test_all_rows_ignored_or_none(operands, logits) -> None:
    x, labels, weights = operands
    loss = functools.partial(
        bw.linear_softmax_cross_entropy_loss, reduction="mean", ignore_index=-1, logits=logits
    )
    assert loss(x, jnp.full_like(labels, -1), weights) == 0
    assert loss(x[:0], labels[:0], weights) == 0
    assert loss(x[:0], labels[:0], weights, ignore_index=None) == 0


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_hidden_values(operands, logits, dtype) -> None:
    x, labels, weights = operands
    x, weights = x[:, :0].astype(dtype), weights[:0].astype(dtype)
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, logits=logits)
    got, (dx, dw) = jax.value_and_grad(loss, (0, 2))(x, labels, weights)
    close(got, ROWS * jnp.log(VOCABULARY))
    assert (dx.shape, dw.shape) == (x.shape, weights.shape)
    assert (dx.dtype, dw.dtype) == (x.dtype, weights.dtype)


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("extras", [{}, EXTRAS], ids=["plain", "extras"])
def test_exported_with_a_symbolic_vocabulary(operands, logits, extras) -> None:
    x, labels, weights = operands
    (v,) = jax.export.symbolic_shape("v")
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, logits=logits, **extras)
    ours = jax.jit(jax.value_and_grad(loss, (0, 2)))
    exported = jax.export.export(ours, disabled_checks=bw.DISABLE_EXPORT_CHECKS)(
        x, labels, jax.ShapeDtypeStruct((WIDTH, v), weights.dtype)
    )
    theirs = jax.value_and_grad(lambda *args: jnp.sum(formula(*args, **extras)), (0, 2))
    for columns in (5, VOCABULARY):
        given = x, labels % columns, weights[:, :columns]
        close(exported.call(*given), theirs(*given))


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("label", [-1, VOCABULARY])
def test_a_label_that_is_no_column_is_seen(operands, logits, label) -> None:
    x, labels, weights = operands
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, reduction="none", logits=logits)
    found = loss(x, labels.at[3].set(label), weights)
    assert jnp.isnan(found[3])
    close(jnp.delete(found, 3), jnp.delete(formula(x, labels, weights), 3))
    gradient = jax.grad(lambda x: jnp.nansum(loss(x, labels.at[3].set(label), weights)))(x)
    assert not gradient[3].any()


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_operands(operands, logits, dtype) -> None:
    """Logits and their cotangents have the operands' type; nothing else is rounded."""
    x, labels, weights = operands
    x, weights = x.astype(dtype), weights.astype(dtype)
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, logits=logits)
    got, (dx, dw) = jax.value_and_grad(loss, (0, 2))(x, labels, weights)
    assert (got.dtype, dx.dtype, dw.dtype) == (jnp.float32, x.dtype, weights.dtype)
    z = (x @ weights).astype(jnp.float32)
    close(got, jnp.sum(jax.nn.logsumexp(z, -1) - z[jnp.arange(ROWS), labels]))
    bar = (jax.nn.softmax(z) - jax.nn.one_hot(labels, VOCABULARY)).astype(dtype)
    eps = float(jnp.finfo(dtype).eps)
    wide = bar.astype(jnp.float32), x.astype(jnp.float32), weights.astype(jnp.float32)
    for found, want in ((dx, wide[0] @ wide[2].T), (dw, wide[1].T @ wide[0])):
        # Two roundings, and those of bar where exp differs in its last bit.
        assert jnp.max(jnp.abs(found.astype(jnp.float32) - want)) <= 2 * eps * jnp.max(abs(want))


def test_extreme_logits() -> None:
    """Rows far from zero neither overflow nor lose their probabilities."""
    x = jnp.array([[1e4], [-1e4], [0.0]])
    weights = jnp.array([[1.0, 2.0, 3.0]])
    labels = jnp.array([0, 1, 2])
    for logits in LOGITS:
        found = bw.linear_softmax_cross_entropy_loss(
            x, labels, weights, reduction="none", logits=logits
        )
        close(found, jnp.array([2e4, 1e4, jnp.log(3.0)]))


@pytest.mark.parametrize("vocabulary", [1, 1000, 8192, 50257, 50304, 128256, 201088])
def test_blocks(monkeypatch: pytest.MonkeyPatch, vocabulary: int) -> None:
    monkeypatch.undo()
    columns = recomputed.block_columns(vocabulary)
    assert 1 <= columns <= min(vocabulary, recomputed.MOST_COLUMNS)
    assert columns == vocabulary or columns % 256 == 0


def test_the_backward_pass_is_three_products_and_no_scatter(operands) -> None:
    x, labels, weights = operands
    loss = bw.linear_softmax_cross_entropy_loss
    text = str(jax.make_jaxpr(jax.value_and_grad(loss, (0, 2)))(x, labels, weights))
    assert text.count("dot_general") + text.count("bw_gemm[") == 3
    assert "scatter" not in text


def test_recomputed_logits_become_their_cotangent_within_the_product() -> None:
    """One primitive, so that lowering may link the function into the product's kernel."""
    x, weights = jnp.ones((16, 64), jnp.bfloat16), jnp.ones((64, 24), jnp.bfloat16)
    column = jnp.ones((16, 1), jnp.float32)
    products = recomputed.Products(None, ("cutlass", "xla"))

    def logits_bar(x: Any, w: Any) -> Any:
        options = statistics.Options(softcap=5.0, total=True)
        labels = jnp.zeros((16, 1), jnp.int32)
        block = Window(8, 16)
        return products.logits_bar(x, w, block, options, labels, column, column, column, column)

    eqns = jax.make_jaxpr(logits_bar)(x, weights).eqns
    (eqn,) = (eqn for eqn in eqns if eqn.primitive is bw_gemm_windowed_p)
    inner = functools.partial(windowed.separate, **eqn.params)
    text = str(jax.make_jaxpr(inner)(x, weights, *[column] * 5))
    assert text.count("bw_gemm_epilogue[") == 1
    assert jax.eval_shape(logits_bar, x, weights).dtype == jnp.bfloat16


def test_what_xla_computes_of_blocks_is_a_loop(operands) -> None:
    """Which keeps to one block at a time; a kernel's call has constants that say where it is."""
    x, labels, weights = operands
    for implementation, loops in (("xla", 2), (("cutlass", "xla"), 0)):
        loss = functools.partial(
            bw.linear_softmax_cross_entropy_loss, logits="recomputed", implementation=implementation
        )
        arrays = x.astype(jnp.bfloat16), labels, weights.astype(jnp.bfloat16)
        text = jax.jit(jax.value_and_grad(loss, (0, 2))).lower(*arrays).as_text()
        assert text.count("stablehlo.while") == loops


@pytest.mark.parametrize("infinite", [(), (5,), (20,), (5, 20), (20, 30)])
def test_statistics_of_a_block_of_several_parts(
    monkeypatch: pytest.MonkeyPatch, operands, infinite: tuple[int, ...]
) -> None:
    """Rows of 12 and of 4 columns, reduced by 4; infinite logits in some of the parts."""
    monkeypatch.setattr(statistics, "MOST_REDUCED", 4)
    x, labels, weights = operands
    for column in infinite:
        weights = weights.at[0, column].set(-jnp.inf if column == 5 else jnp.inf)
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, reduction="none")
    for extras in ({}, EXTRAS):
        close(
            loss(jnp.abs(x), labels, weights, logits="recomputed", **extras),
            loss(jnp.abs(x), labels, weights, logits="stored", **extras),
        )


@pytest.mark.parametrize("columns", [29, 37])
def test_a_last_block_without_equal_parts(
    monkeypatch: pytest.MonkeyPatch, operands, columns: int
) -> None:
    """Of 5 columns, or one, where at most 4 are reduced at once."""
    monkeypatch.setattr(statistics, "MOST_REDUCED", 4)
    x, labels, weights = operands
    given = x, labels % columns, weights[:, :columns]
    loss = functools.partial(
        bw.linear_softmax_cross_entropy_loss, reduction="none", logits="recomputed"
    )
    close(loss(*given), formula(*given))


def test_numbers_of_numpy(operands) -> None:
    x, labels, weights = operands
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, x, labels, weights)
    got = loss(ignore_index=np.int64(2), z_loss=np.float32(0.5), label_smoothing=np.float64(0.25))
    assert got == loss(ignore_index=2, z_loss=0.5, label_smoothing=0.25)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"x": jnp.ones((3, 4), jnp.int32)}, TypeError, "x must be floating point, got int32"),
        (
            {"weights": jnp.ones((4, 5), bool)},
            TypeError,
            "weights must be floating point, got bool",
        ),
        ({"labels": jnp.ones(3)}, TypeError, "labels must be integers, got float32"),
        ({"weights": jnp.ones((5, 4))}, TypeError, r"x must be \[..., H\] and weights \[H, V\]"),
        ({"weights": jnp.ones((4, 0))}, TypeError, "at least one column"),
        ({"labels": jnp.ones(4, int)}, TypeError, "labels must have the shape"),
        ({"reduction": "max"}, ValueError, "reduction must be one of 'sum', 'mean', 'none'"),
        ({"logits": "fast"}, ValueError, "logits must be one of 'stored', 'recomputed'"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing=1.5 is out of range: 0 to 1"),
        ({"label_smoothing": "a"}, TypeError, "label_smoothing must be a number"),
        ({"z_loss": -1}, ValueError, "z_loss=-1 is out of range"),
        ({"z_loss": float("nan")}, ValueError, "z_loss=nan is out of range"),
        ({"z_loss": 1e300}, ValueError, r"z_loss=1e\+300 is out of range: 0 to 3.40282e\+38"),
        *(
            ({"return_logsumexp": x}, TypeError, "return_logsumexp must be True or False, got")
            for x in ("no", float("nan"), np.ones(2), {})
        ),
        *(
            ({"axis_name": x}, TypeError, "axis_name must be the name of a mesh axis, or names")
            for x in ({}, np.ones(2), ["t", {}])
        ),
        ({"logit_softcap": 0}, ValueError, "logit_softcap=0 is out of range"),
        ({"axis_name": 0}, TypeError, "axis_name must be the name of a mesh axis, or names, got 0"),
        ({"axis_name": ("t", "t")}, ValueError, "axis_name has a name twice, got"),
        ({"axis_name": "t"}, NameError, "axis_name='t' is no mesh axis of a jax.shard_map around"),
        ({"ignore_index": 1.0}, TypeError, "ignore_index must be an int or None"),
        ({"ignore_index": True}, TypeError, "ignore_index must be an int or None"),
        ({"implementation": "cublas"}, ValueError, "unknown implementation 'cublas'"),
        ({"x": "x"}, TypeError, "linear_softmax_cross_entropy_loss"),
    ],
)
def test_errors(change: dict, error: type[Exception], text: str) -> None:
    operands = {"x": jnp.ones((3, 4)), "labels": jnp.zeros(3, int), "weights": jnp.ones((4, 5))}
    with pytest.raises(error, match=text):
        bw.linear_softmax_cross_entropy_loss(**{**operands, **change})


@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_labels_of_8_bits(logits: str, dtype: Any) -> None:
    """Neither the number of columns nor what is ignored need be one of their numbers."""
    x = jnp.asarray(normal(np.random.default_rng(0), (3, WIDTH), "float32"))
    weights = jnp.asarray(normal(np.random.default_rng(1), (WIDTH, 300), "float32"))
    labels = np.array([0, 100, np.iinfo(dtype).max], dtype)
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, reduction="none", logits=logits)
    want = formula(x, labels.astype(int), weights)
    for ignored in (-1 if dtype is np.uint8 else 255, 300):
        close(loss(x, labels, weights, ignore_index=ignored), want)
    close(loss(x, labels, weights, ignore_index=labels[2]), want.at[2].set(0))


def test_more_columns_than_labels_of_16_bits_count() -> None:
    x, weights = jnp.ones((2, 1)), jnp.zeros((1, 40_000)).at[0, 7].set(5)
    labels = jnp.array([7, 32_767], jnp.int16)
    found = bw.linear_softmax_cross_entropy_loss(x, labels, weights, reduction="none")
    close(found, formula(x, labels.astype(int), weights))


def test_gradients_of_blocks_are_added_in_float32() -> None:
    x = jnp.ones((ROWS, WIDTH), jnp.bfloat16)
    weights, labels = jnp.ones((WIDTH, VOCABULARY), jnp.bfloat16), jnp.zeros(ROWS, int)
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, logits="recomputed")
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: loss(x, labels, weights)))(x)
    added = [e.outvars[0].aval for e, _ in equations(jaxpr) if e.primitive.name == "add"]
    assert {a.dtype.name for a in added if a.shape == x.shape} == {"float32"}


def test_blocks_of_kernels_come_one_after_the_other() -> None:
    """Each waits for the gradients of the block before it, or all logits would be in memory."""
    x = jnp.ones((128, 64), jnp.bfloat16)
    weights, labels = jnp.ones((64, 512), jnp.bfloat16), jnp.zeros(128, int)
    loss = functools.partial(bw.linear_softmax_cross_entropy_loss, logits="recomputed")
    with bw.config.target("sm90"):
        jaxpr = jax.make_jaxpr(jax.grad(lambda x, w: loss(x, labels, w), (0, 1)))(x, weights)
    found = [e for e, _ in equations(jaxpr)]
    products = [e.params["windowed"] for e in found if e.primitive is bw_gemm_windowed_p]
    cotangents = [p for p in products if p.epilogue is not None]
    assert all(p.follows for p in cotangents)
    assert len(cotangents) == -(-512 // 12)
    assert [e.primitive.name for e in found].count("optimization_barrier") == len(cotangents)
