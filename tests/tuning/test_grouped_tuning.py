"""Tuning of grouped products on a machine without a GPU: what is found, tried and drawn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tuning_fakes import (  # noqa: F401
    BF16,
    GROUPED_KINDS,
    H200,
    SM90,
    array,
    clock,
    gpu,
    grouped_key,
    key,
    own_cache,
    rule,
    without_gpu,
)

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import make_target
from jax_bwgemm.grouped import heuristics, search_space
from jax_bwgemm.grouped.selection import select_by_heuristic
from jax_bwgemm.grouped.tuned import dims_of, key_of, spec_of
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning import problems
from jax_bwgemm.tuning.group_draws import DRAWS, draw_groups
from jax_bwgemm.tuning.keys import GroupedKey, Key, canonical_shares, shares_of
from jax_bwgemm.tuning.problems import Problems
from jax_bwgemm.tuning.records import Choice
from jax_bwgemm.tuning.work import work_of

M, N, K, G = 4096, 1024, 768, 8
X, W, SIZES = array(M, K), array(G, K, N), jax.ShapeDtypeStruct((G,), jnp.int32)


def find(f: Any, *args: Any) -> dict[Key, int]:
    return dict(problems.find(f, SM90, args, {}).counts)


def table_of(kind: str, arch: str = "sm90") -> list[Kernel]:
    return [k for k in runtime.grouped_kernels() if (k.kind, k.arch) == (kind, arch)]


# --- keys ---


def test_expected_sizes_are_a_part_of_the_key_whatever_their_order() -> None:
    def keys_of(*sizes: int) -> list[Key]:
        def f(x: Any, w: Any, s: Any) -> jax.Array:
            return bw.ragged_dot(x, w, s, representative_group_sizes=sizes)

        return list(find(f, array(64, K), array(4, K, N), jax.ShapeDtypeStruct((4,), jnp.int32)))

    (one,) = keys_of(0, 8, 40, 16)
    assert one.shares == ((1, 0), (1, 8), (1, 16), (1, 40))
    assert keys_of(40, 16, 8, 0) == [one]
    assert keys_of(0, 8, 41, 15) != [one]
    assert shares_of(one) == pytest.approx([0, 8 / 64, 16 / 64, 40 / 64])
    assert str(one).endswith("kn bfloat16->bfloat16, groups 0 to 2.5 of the mean")
    (equal,) = keys_of(16, 16, 16, 16)
    assert equal.shares == ((4, 16),)
    assert "groups 1 of the mean" in str(equal)


def test_near_distributions_share_a_key_and_never_exceed_the_rows() -> None:
    assert canonical_shares([0.2501, 0.7499]) == canonical_shares([0.75, 0.25])
    assert canonical_shares(None) == ()
    up = canonical_shares([1 / 3 + 0.01] * 2 + [1 / 3 - 0.02])
    tuned = grouped_key(900, 8, 8, 3, shares=up)
    assert sum(shares_of(tuned)) <= 1


@pytest.mark.parametrize("problem", [*GROUPED_KINDS, grouped_key(M, N, K, 64, experts=8),
                                     grouped_key(M, N, K, G, batch=3, shared="rhs"),
                                     grouped_key(M, N, K, G, batch=3, shared="both")])  # fmt: skip
def test_a_key_is_that_of_the_problem_it_describes(problem: GroupedKey) -> None:
    assert key_of(spec_of(problem), problem.in_dtype, dims_of(problem)) == problem


# --- finding the problems ---


def test_a_layer_and_its_gradients_are_found() -> None:
    def loss(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return bw.matmul(bw.ragged_dot(x, w, sizes), jnp.ones((N, 64), BF16)).sum()

    found = find(jax.grad(loss, (0, 1)), X, W, SIZES)
    assert {k: n for k, n in found.items() if isinstance(k, GroupedKey)} == {
        grouped_key(M, N, K, G): 1,
        grouped_key(M, K, N, G, "kk"): 1,
        grouped_key(M, N, K, G, "mn"): 1,
    }
    assert key(M, 64, N) in found


def test_what_lowering_rewrites_is_found_as_it_is_rewritten() -> None:
    """The gradient of matrices that a batch shares: the rows of the batch are brought together."""

    def loss(w: jax.Array, x: jax.Array, sizes: jax.Array) -> jax.Array:
        return jax.vmap(lambda a, s: bw.ragged_dot(a, w, s))(x, sizes).astype(jnp.float32).sum()

    sizes = jax.ShapeDtypeStruct((3, G), jnp.int32)
    found = find(jax.grad(loss), W, array(3, M, K), sizes)
    assert grouped_key(3 * M, N, K, G, "mn") in found


def test_one_devices_share_of_the_experts(cpu_devices: list[jax.Device]) -> None:
    mesh = Mesh(np.array(cpu_devices[:4]), ("e",))

    def local(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        first = jax.lax.axis_index("e") * w.shape[0]
        return jax.lax.psum(bw.ragged_dot(x, w, sizes, group_offset=first), "e")

    f = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("e"), P()), out_specs=P())
    assert find(f, X, W, SIZES) == {grouped_key(M, N, K, G, experts=2): 1}


def test_lowered_programs_are_read() -> None:
    step = jax.jit(
        jax.grad(lambda x, w, s: bw.ragged_dot(x, w, s).astype(jnp.float32).sum(), (0, 1))
    )
    with bw.config.target("sm90"):
        lowered = step.trace(X, W, SIZES).lower(lowering_platforms=("cuda",))
    assert find(lowered) == {
        grouped_key(M, K, N, G, "kk"): 1,
        grouped_key(M, N, K, G, "mn"): 1,
    }


def test_a_partitioned_programs_expectations_are_kept(
    cpu_devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled program has one device's sizes but not what is expected of the groups."""
    one = grouped_key(M // 4, N, K, 4)
    monkeypatch.setattr(problems, "_in_text", lambda _: Problems({one: 2, key(8, 8, 8): 1}, ()))
    mesh = Mesh(np.array(cpu_devices[:4]), ("x",))
    x = jax.device_put(np.zeros((64, K), BF16), NamedSharding(mesh, P("x")))

    def f(x: jax.Array, w: jax.Array, sizes: jax.Array) -> Any:
        expected = bw.ragged_dot(x, w, sizes, representative_group_sizes=[32, 0, 16, 0])
        return expected, bw.ragged_dot(x, w, sizes)

    assert find(f, x, array(4, K, N), SIZES_OF_4) == {
        one: 2,
        grouped_key(M // 4, N, K, 4, shares=((2, 0), (1, 16), (1, 32))): 2,
        key(8, 8, 8): 1,
    }


def test_groups_of_which_the_program_expects_nothing_are_kept() -> None:
    """Those of a product that only the compiler made, say."""
    nothing = jax.make_jaxpr(lambda x: x)(1.0)
    one = grouped_key(M, N, K, 4)
    assert problems._as_expected({one: 2, key(8, 8, 8): 1}, nothing) == {one: 2, key(8, 8, 8): 1}


@pytest.mark.emulator
@pytest.mark.parametrize("kind", ["m-grouped", "k-grouped"])
def test_compiled_programs_are_read(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    monkeypatch.setattr(runtime, "grouped_kernels", runtime.emulated_grouped_kernels)

    def forward(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return bw.ragged_dot(x * 2, w, sizes, implementation="emulator") + 1

    def backward(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        return jax.grad(lambda v: forward(x, v, sizes).sum())(w) * 2

    f = jax.jit(forward if kind == "m-grouped" else backward)
    with bw.config.target("sm90"):
        compiled = f.lower(array(64, 128), array(4, 128, 256), SIZES_OF_4).compile()
    # The same call, as its CUDA twin appears.
    text = compiled.as_text().replace(".emulated.", ".")
    majors = "kn" if kind == "m-grouped" else "mn"
    assert dict(problems._in_text(text).counts) == {grouped_key(64, 256, 128, 4, majors): 1}


SIZES_OF_4 = jax.ShapeDtypeStruct((4,), jnp.int32)


def test_what_is_not_tuned_is_reported_with_the_reason() -> None:
    def f(x: jax.Array, w: jax.Array, sizes: jax.Array) -> Any:
        config = bw.GroupedConfig(schedule="pingpong")
        return (
            bw.ragged_dot(x, w, sizes, config=config),
            bw.ragged_dot(x.astype(jnp.float32), w.astype(jnp.float32), sizes),
        )

    found = problems.find(f, SM90, (X, W, SIZES), {})
    assert not found.counts
    reasons = [reason for _, reason in found.skipped]
    assert reasons == [
        "it has an explicit GroupedConfig(schedule='pingpong')",
        "implementation is xla",
    ]


# --- what is tried ---


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("problem", GROUPED_KINDS, ids=str)
def test_the_heuristics_choice_comes_first_and_nothing_twice(
    arch: str, problem: GroupedKey
) -> None:
    target = make_target(arch)
    choices = search_space.kernels_to_try(problem, runtime.grouped_kernels(), target, 12)
    want = select_by_heuristic(
        spec_of(problem), "bfloat16", dims_of(problem), target, runtime.grouped_kernels()
    )
    first = choices[0]
    assert (first.kernel, first.raster_order, first.swizzle) == (
        want.kernel, want.raster_order, want.swizzle)  # fmt: skip
    assert len({c.kernel for c in choices}) == len(choices)
    fits = [k for k in table_of(problem.kind, arch)
            if (k.in_dtype, k.out_dtype, k.b_major)
            == (problem.in_dtype, problem.out_dtype, problem.b_major)]  # fmt: skip
    assert {c.kernel for c in choices} <= set(fits)


def test_all_kernels_of_a_large_problem_but_hopeless_ones_are_tried() -> None:
    problem = grouped_key(16384, 4096, 7168, 8)
    choices = search_space.kernels_to_try(problem, runtime.grouped_kernels(), SM90, 12)
    assert {(c.kernel.tile_n, c.kernel.cluster_m) for c in choices} >= {(192, 2), (192, 1)}
    assert search_space.kernels_to_try(problem, runtime.grouped_kernels(), SM90, 1) == choices[:1]


def test_a_problem_without_kernels_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"m-grouped 8x8x8 in 2 kn .*no kernel for sm90 fits"):
        search_space.kernels_to_try(grouped_key(8, 8, 8, 2), [], SM90, 12)


def orders(problem: GroupedKey, **first: Any) -> set[tuple[str, int]]:
    """The orders tried for the kernel of 16-bit operands whose tiles have the most rows."""
    table = [k for k in table_of(problem.kind) if k.terms == 1]
    kernel = max(table, key=lambda k: heuristics.tile_extents(k)[0])
    known = Choice(kernel, **{"raster_order": "heuristic", "swizzle": 1} | first)
    found = search_space.orders_to_try(known, problem, [known])
    assert {c.kernel for c in found} <= {kernel}
    return {(c.raster_order, c.swizzle) for c in found}


def test_orders_differ_from_each_other_and_from_what_is_known() -> None:
    bands = set(search_space.SWIZZLES)
    large = grouped_key(16384, 4096, 7168, 8)
    assert orders(large) == {("n", s) for s in bands - {1}} | {("m", 1)}
    assert orders(large, raster_order="m") == {("n", s) for s in bands}
    # Groups of a tile each, if that is expected: bands make no difference.
    short = grouped_key(16384, 4096, 7168, 128, shares=((128, 16),))
    assert orders(short) == {("m", 1)}
    assert orders(short, swizzle=8) == {("m", 1)}
    # The rows of a k-grouped result are tiles along K; its other order is the same.
    assert orders(grouped_key(16384, 4096, 512, 8, "mn")) == {("n", 2), ("n", 4)}


# --- group sizes ---


@pytest.mark.parametrize("shares", [(), ((60, 3), (4, 211))])
def test_groups_are_drawn_as_they_are_expected(shares: Any) -> None:
    problem = grouped_key(1000, N, K, 64, experts=16, batch=2, shares=shares)
    draws = draw_groups(problem, 20)
    for sizes, offset in draws:
        assert (sizes.shape, sizes.dtype) == ((2, 64), np.int32)
        assert (offset.shape, offset.dtype) == ((1,), np.int32)
        assert sizes.min() >= 0
        assert set(sizes.sum(axis=1)) == {1000}
        if shares:
            assert sorted(sizes[0])[-4:] == pytest.approx([206] * 4, abs=1)
    assert {int(offset[0]) for _, offset in draws} == {0, 16, 32, 48}
    assert len({sizes.tobytes() for sizes, _ in draws}) == 20
    again = draw_groups(problem, 20)
    assert all(np.array_equal(a, b) for one, two in zip(draws, again, strict=True)
               for a, b in zip(one, two, strict=True))  # fmt: skip


def test_rows_that_no_group_is_expected_to_have_are_left_out() -> None:
    problem = grouped_key(1024, N, K, 4, shares=((4, 8),))
    assert all(sizes.sum() == 512 for sizes, _ in draw_groups(problem, 3))


def test_one_group_has_all_rows() -> None:
    ((sizes, offset),) = draw_groups(grouped_key(100, N, K, 1), 1)
    assert (sizes.tolist(), offset.tolist()) == ([[100]], [0])


def test_calls_go_through_copies_and_draws() -> None:
    work = work_of(grouped_key(64, 32, 16, 4), SM90)
    operands = work.operands(2)
    assert [x.shape for x in operands(0)] == [(1, 64, 16), (1, 4, 16, 32), (1, 4), (1,)]
    assert work.bytes == 2 * (64 * 16 + 4 * 16 * 32)
    assert len({id(operands(i)[1]) for i in range(2 * DRAWS)}) == 2
    assert len({id(operands(i)[2]) for i in range(2 * DRAWS)}) == DRAWS
    assert operands(2)[1] is operands(0)[1]
