"""`scaled_ragged_dot` by XLA: values, transformations, sharding, explanations and errors."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from numerics import assert_exact
from ragged_cases import SIZES, exact_pair, expected
from sharded import collectives

import jax_bwgemm as bw
from jax_bwgemm import runtime

LAYOUTS = ("tensor", "row", "1x128", "128x128")
SHAPE = (304, 56, 208)
KINDS = ("m-grouped", "k-grouped")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("b", LAYOUTS)
@pytest.mark.parametrize("a", LAYOUTS)
def test_every_pair_of_layouts(kind: str, a: str, b: str) -> None:
    pair = exact_pair(kind, (a, b), SHAPE, len(SIZES))
    got = bw.scaled_ragged_dot(*pair, np.array(SIZES), preferred_element_type=jnp.float32)
    assert_exact(got, expected(*pair, SIZES).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", ["mxfp8", "mxfp4", "nvfp4"])
def test_block_formats(kind: str, scaling: str) -> None:
    """Blocks are counted from the first element; matrices may have global scales of their own."""
    a, b = exact_pair(kind, (scaling, scaling), SHAPE, len(SIZES))
    if b.ndim == 3 and scaling == "nvfp4":
        of_each = jnp.asarray(2.0 ** np.arange(-3, 3), jnp.float32)
        b = bw.ScaledArray(b.values, b.scales, scaling, of_each)
    got = bw.scaled_ragged_dot(a, b, np.array(SIZES), preferred_element_type=jnp.float32)
    assert_exact(got, expected(a, b, SIZES).astype(np.float32))
    if b.ndim == 2:
        return
    part = jax.tree.map(lambda leaf: leaf[2:4], b)
    got = bw.scaled_ragged_dot(
        a, part, jnp.array(SIZES), group_offset=2, preferred_element_type=jnp.float32
    )
    assert_exact(got, expected(a, part, SIZES, 2).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtypes", [("float8_e5m2", "float8_e4m3fn"), ("float8_e5m2",) * 2])
def test_any_mix_of_types(kind: str, dtypes: tuple[str, str]) -> None:
    pair = exact_pair(kind, ("tensor", "tensor"), SHAPE, len(SIZES), dtypes)
    got = bw.scaled_ragged_dot(
        *pair, jnp.array(SIZES), preferred_element_type=jnp.float16, accumulation="fast"
    )
    assert_exact(got, expected(*pair, SIZES).astype(np.float16))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaling", ["row", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("mapped", ["values", "scales"])
def test_vmap_over_values_or_scales_alone(kind: str, scaling: str, mapped: str) -> None:
    """As stochastic rounding with many keys makes them: of the same scales."""
    a, b = exact_pair(kind, (scaling, scaling), (32, 24, 64), 2)
    parts = {"values": a.values, "scales": a.scales}

    def product(part: jax.Array) -> jax.Array:
        given = parts | {mapped: part}
        left = bw.ScaledArray(given["values"], given["scales"], scaling, a.global_scale)
        return bw.scaled_ragged_dot(left, b, jnp.array([20, 12]), preferred_element_type="float32")

    variants = jnp.stack([parts[mapped], parts[mapped][::-1]])
    got = jax.vmap(product)(variants)
    assert_exact(got, np.stack([product(part) for part in variants]))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_nobody_checked(kind: str) -> None:
    """Negative ones count as 0, and groups end at the last row."""
    sizes = (5, -3, 200, 10**6, 7)
    pair = exact_pair(kind, ("1x128", "1x128"), SHAPE, len(sizes))
    got = bw.scaled_ragged_dot(*pair, jnp.array(sizes), preferred_element_type=jnp.float32)
    assert_exact(got, expected(*pair, sizes).astype(np.float32))


def test_one_scale_for_all_matrices() -> None:
    a, b = exact_pair("m-grouped", ("tensor", "tensor"), SHAPE, len(SIZES))
    b = bw.ScaledArray(b.values, jnp.float32(0.5), "tensor")
    got = bw.scaled_ragged_dot(a, b, jnp.array(SIZES), preferred_element_type=jnp.float32)
    of_each = bw.ScaledArray(b.values, jnp.full(len(SIZES), 0.5, jnp.float32), "tensor")
    assert_exact(got, expected(a, of_each, SIZES).astype(np.float32))


def test_offsets() -> None:
    a, b = exact_pair("m-grouped", ("1x128", "128x128"), SHAPE, 3)
    got = bw.scaled_ragged_dot(
        a, b, jnp.array(SIZES), group_offset=1, preferred_element_type=jnp.float32
    )
    assert_exact(got, expected(a, b, SIZES, 1).astype(np.float32))
    x, y = exact_pair("k-grouped", ("1x128", "1x128"), SHAPE, 0)
    got = bw.scaled_ragged_dot(
        x, y, jnp.array(SIZES), group_offset=1, num_groups=2, preferred_element_type=jnp.float32
    )
    assert_exact(got, expected(x, y, SIZES, 1)[:2].astype(np.float32))


def test_rows_of_no_group_and_empty_groups_are_zero_whatever_the_scales() -> None:
    a, b = exact_pair("m-grouped", ("row", "row"), SHAPE, len(SIZES))
    b = bw.ScaledArray(b.values, b.scales.at[0].set(jnp.nan), "row")
    got = bw.scaled_ragged_dot(a, b, jnp.array(SIZES), accumulation="fast")
    assert np.all(np.isfinite(np.asarray(got, np.float32)))
    assert not np.any(np.asarray(got, np.float32)[sum(SIZES) :])
    x, y = exact_pair("k-grouped", ("row", "row"), SHAPE, 0)
    x = bw.ScaledArray(x.values, jnp.full_like(x.scales, jnp.inf), "row")
    got = np.asarray(bw.scaled_ragged_dot(x, y, jnp.array(SIZES)), np.float32)
    assert not np.any(got[[0, 4]])


@pytest.mark.parametrize("kind", KINDS)
def test_vmap(kind: str) -> None:
    a, b = exact_pair(kind, ("1x128", "1x128"), SHAPE, len(SIZES))
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), a)
    sizes = jnp.array([SIZES, SIZES[::-1]])

    def product(a: bw.ScaledArray, sizes: jax.Array) -> jax.Array:
        return bw.scaled_ragged_dot(a, b, sizes, preferred_element_type=jnp.float32)

    got = jax.jit(jax.vmap(product))(stacked, sizes)
    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        assert_exact(got[i], expected(one, b, np.asarray(sizes[i])).astype(np.float32))


@pytest.mark.parametrize("scaling", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("columns", [8, 130])
def test_vmap_over_one_operand_of_block_formats(scaling: str, columns: int) -> None:
    """K-grouped, of sizes that XLA pads: its CPU backend lacks some of these in bfloat16."""
    sizes = (45, 33)
    pairs = [exact_pair("k-grouped", (scaling, scaling), (130, columns, 32), 0) for _ in range(2)]
    a = pairs[0][0]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(b for _, b in pairs))

    def product(b: bw.ScaledArray) -> jax.Array:
        return bw.scaled_ragged_dot(a, b, jnp.array(sizes), preferred_element_type=jnp.float32)

    got = jax.jit(jax.vmap(product))(stacked)
    for i, (_, b) in enumerate(pairs):
        assert_exact(got[i], expected(a, b, sizes).astype(np.float32))


@pytest.fixture(scope="module")
def mesh(cpu_devices: list[jax.Device]) -> jax.sharding.Mesh:
    kind = jax.sharding.AxisType.Auto
    return jax.make_mesh((4,), ("x",), axis_types=(kind,), devices=cpu_devices[:4])


def sharded(
    mesh: Any, kind: str, layouts: tuple[str, str], a_axis: int | None, b_axis: int | None
) -> dict[str, int]:
    """The collectives of a product whose values are sharded so, with checked values."""
    sizes = (100, 0, 300, 12, 1, 99, 400, 90)
    a, b = exact_pair(kind, layouts, (1024, 512, 512), len(sizes))

    def placed(x: bw.ScaledArray, axis: int | None) -> bw.ScaledArray:
        spec = P() if axis is None else P(*[None] * axis, "x")
        lead = x.ndim - 2
        # Dimensions of 1x128's scales are exchanged.
        at = axis if axis is None or axis < lead or x.scaling != "1x128" else 2 * lead + 1 - axis
        scales = P() if at is None else P(*[None] * at, "x")
        return bw.ScaledArray(
            jax.device_put(x.values, NamedSharding(mesh, spec)),
            jax.device_put(x.scales, NamedSharding(mesh, scales)),
            x.scaling,
        )

    args = placed(a, a_axis), placed(b, b_axis), jnp.array(sizes)
    function = jax.jit(lambda *x: bw.scaled_ragged_dot(*x, preferred_element_type=jnp.float32))
    compiled = function.lower(*args).compile()
    assert_exact(compiled(*args), expected(a, b, sizes).astype(np.float32))
    return collectives(compiled)


@pytest.mark.parametrize(
    ("kind", "a_axis", "b_axis", "collectives"),
    [
        ("m-grouped", 0, None, {}),  # rows
        ("m-grouped", None, 1, {}),  # columns
        ("m-grouped", None, 0, {"all-reduce": 1}),  # matrices
        ("m-grouped", 1, 2, {"all-reduce": 1}),  # contracted, in whole blocks
        ("k-grouped", 0, None, {}),
        ("k-grouped", None, 0, {}),
        ("k-grouped", 1, 1, {"all-reduce": 1}),  # ragged
    ],
)
@pytest.mark.parametrize("layouts", [("1x128", "128x128"), ("mxfp8", "mxfp8")])
def test_sharding(
    mesh: Any,
    layouts: tuple[str, str],
    kind: str,
    a_axis: int | None,
    b_axis: int | None,
    collectives: dict[str, int],
) -> None:
    assert sharded(mesh, kind, layouts, a_axis, b_axis) == collectives


def test_explain(scaled_grouped_table: Any) -> None:
    assert scaled_grouped_table
    a, b = exact_pair("m-grouped", ("1x128", "128x128"), SHAPE, len(SIZES))
    found = bw.explain_scaled_ragged_dot(a, b, jnp.array(SIZES), device="sm90")
    assert found.kernel == "sm90_scaled_rows_e4m3_e4m3_bf16_rows_128x128x128_1x1_cooperative_swap"
    assert "after every 128 of K; tiles of 128x128, operands swapped" in found.reason
    x, y = exact_pair("k-grouped", ("1x128", "1x128"), SHAPE, 0)
    found = bw.explain_scaled_ragged_dot(x, y, jnp.array(SIZES), device="sm90")
    assert found.kernel == "sm90_scaled_contract_e4m3_e4m3_bf16_rows_128x128x128_2x1_cooperative"
    for columns, tile in ((128, "128x128"), (256, "128x256"), (384, "128x128"), (1000, "128x256")):
        pair = exact_pair("k-grouped", ("1x128", "1x128"), (512, columns, 64), 0)
        found = bw.explain_scaled_ragged_dot(*pair, jnp.full(4, 128), device="sm90")
        assert f"_bf16_rows_{tile}x128_2x1_cooperative" in found.kernel
    for rows, want in ((48, "128x128x128_2x1_pingpong"), (8192, "128x256x128_2x1_cooperative")):
        pair = exact_pair("k-grouped", ("tensor", "tensor"), (rows * 4, 64, 64), 0)
        sizes = jnp.full(4, rows)
        found = bw.explain_scaled_ragged_dot(*pair, sizes, accumulation="fast", device="sm90")
        assert found.kernel == f"sm90_scaled_contract_e4m3_e4m3_bf16_sums_{want}"
    found = bw.explain_scaled_ragged_dot(x, y, jnp.array(SIZES), device="sm100")
    assert found.kernel == "sm100_scaled_contract_e4m3_e4m3_bf16_rows_128x128x128_1x1_1sm"
    found = bw.explain_scaled_ragged_dot(a, b, jnp.array(SIZES), device="sm100")
    assert found.kernel == "sm100_scaled_rows_e4m3_e4m3_bf16_blocks_256x128x128_2x1_2sm"
    for scaling, types in (("mxfp8", "e4m3_e4m3_bf16"), ("nvfp4", "e2m1_e2m1_bf16")):
        for kind, name, tile in (
            ("m-grouped", "rows", "256x256x{}_2x1_2sm"),
            ("k-grouped", "contract", "128x256x{}_1x1_1sm"),
        ):
            pair = exact_pair(kind, (scaling, scaling), (320, 56, 224), len(SIZES))
            found = bw.explain_scaled_ragged_dot(*pair, jnp.array(SIZES), device="sm100")
            line = tile.format(256 if scaling == "nvfp4" else 128)
            assert found.kernel == f"sm100_scaled_{name}_{types}_mma_{line}"
            assert "scales of blocks by the MMA instruction" in found.reason
            found = bw.explain_scaled_ragged_dot(*pair, jnp.array(SIZES), device="sm90")
            assert found.implementation == "xla"
            assert "for sm90 applies scales" in found.rejected[0][1]


@pytest.mark.parametrize(
    ("kind", "shape", "dtypes", "scalings", "message"),
    [
        (
            "m-grouped",
            (304, 56, 200),
            (None, None),
            ("row", "row"),
            "K=200 is not a multiple",
        ),
        ("m-grouped", (304, 52, 208), (None, None), ("row", "row"), "N=52 is not a multiple"),
        (
            "k-grouped",
            (300, 56, 208),
            (None, None),
            ("row", "row"),
            "M=300 is not a multiple",
        ),
        (
            "m-grouped",
            SHAPE,
            ("float8_e4m3fn", "float8_e5m2"),
            ("tensor", "tensor"),
            "m-grouped kernels exist for float4_e2m1fn x float4_e2m1fn, float8_e4m3fn x",
        ),
        (
            "m-grouped",
            (304, 56, 208),
            (None, None),
            ("nvfp4",) * 2,
            "K=208 is not a mult",
        ),
        (
            "k-grouped",
            (304, 56, 208),
            (None, None),
            ("nvfp4",) * 2,
            "M=304 is not a mult",
        ),
        (
            "m-grouped",
            (304, 56, 200),
            (None, None),
            ("mxfp8",) * 2,
            "K=200 is not a mult",
        ),
    ],
)
def test_refusals(
    scaled_grouped_table: Any,
    kind: str,
    shape: tuple[int, int, int],
    dtypes: tuple[str | None, str | None],
    scalings: tuple[str, str],
    message: str,
) -> None:
    assert scaled_grouped_table
    pair = exact_pair(kind, scalings, shape, len(SIZES), dtypes)
    with pytest.raises(NotImplementedError, match=re.escape(message)):
        bw.scaled_ragged_dot(*pair, jnp.array(SIZES), accumulation="fast", implementation="cutlass")


@pytest.mark.parametrize("shape", [(0, 56, 208), (304, 0, 208), (304, 56, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_problem_runs_no_kernel(kind: str, shape: tuple[int, int, int]) -> None:
    a, b = exact_pair(kind, ("row", "row"), shape, len(SIZES))
    how = {"accumulation": "fast", "implementation": "cutlass"}
    found = bw.explain_scaled_ragged_dot(a, b, jnp.array(SIZES), device="sm90", **how)
    assert (found.implementation, found.kernel, found.flops) == ("cutlass", None, 0)
    assert found.reason == "an empty problem runs no kernel: the result is empty or all zeros"
    with bw.config.target("sm90"):
        traced = jax.jit(lambda a, b, s: bw.scaled_ragged_dot(a, b, s, **how)).trace(
            a, b, jnp.array(SIZES)
        )
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "bwgemm" not in text.partition("{")[2]


def test_types_whose_kernels_apply_no_such_scales(
    scaled_grouped_table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper = tuple(k for k in scaled_grouped_table if k.arch == "sm90")
    monkeypatch.setattr(runtime, "scaled_grouped_kernels", lambda: hopper)
    types = ("float8_e5m2", "float8_e4m3fn")
    pair = exact_pair("m-grouped", ("1x128", "1x128"), SHAPE, len(SIZES), types)
    message = "no m-grouped kernel for float8_e5m2 x float8_e4m3fn applies scales of 1x128 and"
    with pytest.raises(NotImplementedError, match=message):
        bw.scaled_ragged_dot(*pair, jnp.array(SIZES), implementation="cutlass")


def test_a_build_without_kernels_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "scaled_grouped_kernels", lambda: ())
    pair = exact_pair("m-grouped", ("row", "row"), SHAPE, len(SIZES))
    with pytest.raises(NotImplementedError, match="without its compiled kernels for scaled"):
        bw.scaled_ragged_dot(*pair, jnp.array(SIZES), implementation="cutlass")


A, B = exact_pair("m-grouped", ("1x128", "128x128"), (32, 16, 128), 2)


@pytest.mark.parametrize(
    ("error", "message", "arguments", "options"),
    [
        (TypeError, "must be a ScaledArray", (A.values, B, np.array([1, 2])), {}),
        (TypeError, "contracts the last dimensions", (A, B.mT, np.array([1, 2])), {}),
        (
            TypeError,
            "requires a [M, K] and b [E, N, K], or a [K, M] and b [N, M]",
            (jax.tree.map(lambda leaf: leaf[None], A), B, np.array([1, 2])),
            {},
        ),
        (TypeError, "one matrix for each group", (A, B, np.array([1, 2, 3])), {}),
        (TypeError, "group_sizes of an integer type", (A, B, np.array([1.0, 2.0])), {}),
        (ValueError, "must not be negative", (A, B, np.array([1, -2])), {}),
        (ValueError, "group_sizes sum to 42", (A, B, np.array([40, 2])), {}),
        (ValueError, "group_offset must be between", (A, B, np.array([1, 2])), {"group_offset": 3}),
        (ValueError, "num_groups has no meaning", (A, B, np.array([1, 2])), {"num_groups": 2}),
        (ValueError, "accumulation must be", (A, B, np.array([1, 2])), {"accumulation": "slow"}),
        (
            TypeError,
            "preferred_element_type must be",
            (A, B, np.array([1, 2])),
            {"preferred_element_type": jnp.int32},
        ),
        (
            TypeError,
            "multiplies f32 scales, or one layout with scales of 8 bits, got scaling 'mxfp8' and",
            (bw.quantize(jnp.ones((32, 128)), "mxfp8"), B, np.array([1, 2])),
            {},
        ),
        (
            TypeError,
            "1 epilogue operands and no epilogue",
            (A, B, np.array([1, 2])),
            {"epilogue_group_operands": (np.ones(2),)},
        ),
        (
            TypeError,
            "epilogue_group_operands are of shape (2,) or (2, 16), operand 0 is (3,)",
            (A, B, np.array([1, 2])),
            {"epilogue": lambda z, x: z + x, "epilogue_group_operands": (np.ones(3),)},
        ),
        (
            ValueError,
            "has an epilogue only where b has a matrix for each group",
            (A, jax.tree.map(lambda leaf: leaf[0], B), np.array([1, 2])),
            {"epilogue": jnp.tanh},
        ),
    ],
)
def test_errors(
    error: type[Exception], message: str, arguments: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        bw.scaled_ragged_dot(*arguments, **options)


@pytest.mark.parametrize("offset", [None, 2])
def test_an_epilogue(offset: int | None) -> None:
    a, b = exact_pair("m-grouped", ("row", "row"), SHAPE, len(SIZES))
    own = b if offset is None else jax.tree.map(lambda leaf: leaf[offset : offset + 3], b)
    experts, n = own.shape[:2]
    rows = jnp.arange(SHAPE[0], dtype=jnp.float32)[:, None] % 3
    bias = jnp.arange(experts * n, dtype=jnp.float32).reshape(experts, n) % 7

    def call(rows: jax.Array, bias: jax.Array) -> Any:
        return bw.scaled_ragged_dot(
            a,
            own,
            jnp.array(SIZES),
            group_offset=offset,
            preferred_element_type=jnp.float32,
            epilogue=lambda z, r, x: ((z + x) * r, z > 0),
            epilogue_operands=(rows,),
            epilogue_group_operands=(bias,),
        )

    z = expected(a, own, SIZES, offset or 0).astype(np.float32)
    of_rows = np.zeros_like(z)
    ends = np.cumsum(SIZES)
    for e in range(experts):
        at = e + (offset or 0)
        of_rows[ends[at] - SIZES[at] : ends[at]] = bias[e]
    for f in (call, jax.jit(call)):
        got, positive = f(rows, bias)
        assert_exact(got, (z + of_rows) * np.asarray(rows))
        assert_exact(positive, z > 0)
    gradient = jax.grad(lambda bias: jnp.sum(call(rows, bias)[0]))(bias)
    want = [
        np.sum(np.asarray(rows)[ends[e] - SIZES[e] : ends[e]])
        for e in range(offset or 0, experts + (offset or 0))
    ]
    np.testing.assert_allclose(gradient[:, 0], want)


def test_it_has_no_derivative() -> None:
    def loss(scales: jax.Array) -> jax.Array:
        a = bw.ScaledArray(A.values, scales, A.scaling)
        return jnp.sum(bw.scaled_ragged_dot(a, B, jnp.array([3, 9])).astype(jnp.float32))

    with pytest.raises(TypeError, match="scaled_ragged_dot is not differentiable"):
        jax.grad(loss)(A.scales)
