"""What the benchmark of grouped GEMMs is made of: problems and columns."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulator_cases import requires_emulator

import jax_bwgemm

pytestmark = pytest.mark.usefixtures("benchmark_programs")


# --- problems ---


@pytest.mark.parametrize(("rows", "groups"), [(1000, 64), (7, 3), (5, 16), (0, 4), (9, 1)])
@pytest.mark.parametrize("name", ["random", "uniform", "zipf", "one_hot", "many_empty"])
def test_group_sizes_sum_to_the_rows(name, rows, groups):
    from grouped import problems as grouped_problems

    sizes = grouped_problems.group_sizes(name, rows, groups, seed=3)
    assert sizes.dtype == np.int32
    assert sizes.shape == (groups,)
    assert sizes.min() >= 0
    assert sizes.sum() == rows
    np.testing.assert_array_equal(sizes, grouped_problems.group_sizes(name, rows, groups, seed=3))


def test_distributions_are_what_they_say():
    from grouped.problems import group_sizes

    assert set(group_sizes("uniform", 1000, 64, 0)) == {15, 16}
    assert np.count_nonzero(group_sizes("one_hot", 1000, 64, 0)) == 1
    assert 1 <= np.count_nonzero(group_sizes("many_empty", 1000, 64, 0)) <= 8
    zipf = np.sort(group_sizes("zipf", 100_000, 64, 0))[::-1]
    assert zipf[0] / zipf[9] == pytest.approx(10, rel=0.02)
    assert not np.array_equal(zipf, group_sizes("zipf", 100_000, 64, 0))  # not in order
    assert len(set(group_sizes("random", 100_000, 64, 0))) > 50
    assert not np.array_equal(group_sizes("random", 1000, 8, 0), group_sizes("random", 1000, 8, 1))
    with pytest.raises(ValueError, match="unknown distribution 'even'; there are random, uniform"):
        group_sizes("even", 4, 2, 0)


def test_problem_names_parse_back():
    from grouped import problems as grouped_problems

    every = (*grouped_problems.TABLE, *grouped_problems.HELD_OUT, *grouped_problems.SMALL)
    assert len({p.name for p in every}) == len(every)
    for problem in every:
        assert grouped_problems.parse(problem.name) == problem
    assert len(grouped_problems.TABLE) == 6
    assert max(p.groups for p in grouped_problems.HELD_OUT) == 512
    assert grouped_problems.parse("8,8,8,2", "zipf").distribution == "zipf"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8,8,8", "a grouped shape is m,n,k,groups"),
        ("8,8,8,x", "a grouped shape is m,n,k,groups"),
        ("8,8,8,0", "extents must be positive, got 8,8,8,0"),
        ("8,8,8,2:even", "unknown distribution 'even'"),
    ],
)
def test_bad_problems(text, message):
    from grouped import problems as grouped_problems

    with pytest.raises(ValueError, match=message):
        grouped_problems.parse(text)


def test_bytes_count_matrices_that_are_used():
    from grouped import problems as grouped_problems

    problem = grouped_problems.Problem(8, 16, 32, 4, "one_hot")
    rows = 8 * (16 + 32)
    assert problem.bytes("forward", 2, 0) == 2 * (rows + 16 * 32)
    assert problem.bytes("dw", 2, 0) == 2 * (rows + 4 * 16 * 32)  # zeros are written too
    assert problem.flops == 2 * 8 * 16 * 32


def _exact(mode, left, right, sizes):
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    if mode == "dw":
        return np.stack([left[p].T @ right[p] for p in parts])
    turned = right if mode == "forward" else right.swapaxes(1, 2)
    return np.concatenate([left[p] @ turned[g] for g, p in enumerate(parts)])


@pytest.mark.parametrize("mode", ["forward", "dx", "dw"])
def test_the_reference_is_right(mode):
    from grouped import problems as grouped_problems

    # Longer and shorter than a tile, empty, the last one ending inside of a tile.
    sizes = np.array([130, 0, 1, 128, 0, 41])
    problem = grouped_problems.Problem(300, 24, 16, len(sizes))
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-2, 3, s).astype(np.float32) for s in problem.shapes(mode))
    got = grouped_problems.reference(mode, jnp.asarray(left), jnp.asarray(right), sizes)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, _exact(mode, left, right, sizes))


def test_worst_row():
    from grouped.problems import bound, worst_row

    want = jax.random.normal(jax.random.key(0), (64, 256))
    for dtype in (jnp.bfloat16, jnp.float16):
        rounded = want.astype(dtype)
        assert 0 < float(worst_row(rounded, want)) < bound(dtype)
        one_wrong = rounded.at[7].multiply(1.02)
        assert float(worst_row(one_wrong, want)) > bound(dtype)
    zero = want.at[3].set(0)
    assert float(worst_row(zero, zero)) == 0
    assert np.isinf(worst_row(want, zero))
    assert np.isnan(worst_row(want.at[0, 0].set(jnp.nan), want))


# --- columns ---


@pytest.fixture
def problem():
    from grouped import problems as grouped_problems

    return grouped_problems.Problem(96, 48, 64, 4)


def _operands(problem, mode, dtype="bfloat16"):
    from grouped import problems as grouped_problems

    return grouped_problems.make_operands(problem, mode, dtype, 2, seed=0)


def _off(problem, mode, candidate, operands):
    from grouped import candidates as grouped_candidates
    from grouped import problems as grouped_problems

    want = grouped_problems.reference(mode, *operands[0][:2], problem.sizes(0))
    distance = grouped_problems.worst_row(grouped_candidates.result(candidate), want)
    return float(distance) / grouped_problems.bound(operands[0][0].dtype)


@pytest.mark.parametrize("mode", ["forward", "dx", "dw"])
def test_columns_compute_the_mode(mode, problem):
    from grouped import candidates as grouped_candidates

    operands = _operands(problem, mode)
    assert not np.array_equal(operands[0][0], operands[1][0])
    for candidate in (
        grouped_candidates.bwgemm(problem, mode, operands, "xla"),
        grouped_candidates.xla(problem, mode, operands),
    ):
        assert candidate.copies == 2
        assert candidate.info["kernel"] is None  # XLA's
        assert candidate.info["argument_bytes"] >= sum(x.nbytes for x in operands[0])
        assert _off(problem, mode, candidate, operands) <= 1


def _module(name, **contents):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(contents)
    return module


@pytest.mark.parametrize("mode", ["forward", "dx", "dw"])
def test_torch_gets_the_operands_it_wants(mode, problem, monkeypatch):
    from grouped import candidates as grouped_candidates

    def grouped_mm(a, b, offs):
        parts = [slice(*ends) for ends in zip([0, *offs[:-1]], offs, strict=True)]
        a, b = a.astype(np.float32), b.astype(np.float32)
        if b.ndim == 2:
            return np.stack([a[:, p] @ b[p] for p in parts]).astype(np.float16)
        return np.concatenate([a[p] @ b[g] for g, p in enumerate(parts)]).astype(np.float16)

    torch = _module("torch", from_dlpack=np.asarray, _grouped_mm=grouped_mm, int32=np.int32)
    monkeypatch.setitem(sys.modules, "torch", torch)
    operands = _operands(problem, mode, "float16")
    candidate = grouped_candidates.torch(problem, mode, operands)
    assert _off(problem, mode, candidate, operands) <= 1
    del torch._grouped_mm
    torch.__version__ = "2.0"
    with pytest.raises(grouped_candidates.Unsupported, match=r"torch 2\.0 has no _grouped_mm"):
        grouped_candidates.torch(problem, mode, operands)


@pytest.mark.parametrize("mode", ["forward", "dx", "dw"])
def test_tokamax_needs_nothing_but_a_vjp(mode, problem, monkeypatch):
    from grouped import candidates as grouped_candidates

    @jax.custom_vjp
    def ragged_dot(x, w, sizes):
        return jax.lax.ragged_dot(x, w, sizes)

    def backward(saved, dy):
        dx, dw = jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, saved[2]), *saved[:2])[1](dy)
        return dx, dw, None

    ragged_dot.defvjp(lambda *args: (ragged_dot(*args), args), backward)
    monkeypatch.setitem(sys.modules, "tokamax", _module("tokamax", ragged_dot=ragged_dot))
    operands = _operands(problem, mode)
    candidate = grouped_candidates.tokamax(problem, mode, operands)
    assert _off(problem, mode, candidate, operands) <= 1


def test_the_choice_is_read_from_the_program():
    from grouped import candidates as grouped_candidates

    config = 'kernel = "sm90_grouped_x", operands = "a b", order = "vertical", swizzle = 8 : i64'
    found = {"kernel": "sm90_grouped_x", "order": "vertical", "swizzle": 8}
    assert grouped_candidates.chosen(f"backend_config={{config = {{{config}}}}}") == found
    defaults = 'config = {kernel = "sm90_grouped_x", operands = "a b", results = "d workspace"}'
    found = {"kernel": "sm90_grouped_x", "order": "heuristic", "swizzle": 1}
    assert grouped_candidates.chosen(defaults) == found
    assert grouped_candidates.chosen("dot(a, b)") == {"kernel": None}


@pytest.mark.parametrize(
    "arch",
    [pytest.param("sm90", marks=requires_emulator), pytest.param("sm100", marks=requires_emulator)],
)
def test_the_choice_of_the_emulated_kernels(arch, problem):
    from grouped import candidates as grouped_candidates

    operands = _operands(problem, "forward")
    with jax_bwgemm.config.target(arch):
        candidate = grouped_candidates.bwgemm(problem, "forward", operands, "emulator")
    assert candidate.info["kernel"].startswith(f"{arch}_grouped_rows_bf16_bf16_kn_")
    assert _off(problem, "forward", candidate, operands) <= 1


def test_pallas_grids():
    from grouped import candidates as grouped_candidates
    from grouped import problems as grouped_problems

    for mode in grouped_problems.MODES:
        for problem in grouped_problems.TABLE:
            for size, least in (("small", 3), ("full", 30)):
                grid = grouped_candidates.pallas_grid(mode, size)
                fit = [c for c in grid if grouped_candidates.pallas_fits(problem, mode, c)]
                assert len(fit) >= least
    with pytest.raises(ValueError, match="unknown Pallas grid 'huge'"):
        grouped_candidates.pallas_grid("dw", "huge")
    odd = grouped_problems.Problem(3000, 1160, 1208, 7)
    config = grouped_candidates.pallas_grid("forward", "small")[0]
    assert not grouped_candidates.pallas_fits(odd, "forward", config)


def test_pallas_configurations_that_fail_are_named(monkeypatch):
    from grouped import candidates as grouped_candidates
    from grouped import problems as grouped_problems

    problem = grouped_problems.Problem(128, 1024, 128, 2)
    operands = _operands(problem, "forward")

    def function(mode, config):
        if config["block_m"] == 64:
            return jax.lax.ragged_dot
        raise ValueError("exceeds available shared memory\nby far")

    monkeypatch.setattr(grouped_candidates, "pallas_function", function)
    compiler = grouped_candidates.PallasCompiler("small", 1)
    compiler.submit(problem, "forward", "bfloat16")
    found = compiler.candidates(problem, "forward", operands)
    assert {c.info["config"]["block_m"] for c in found} == {64}
    (reason, *_) = found[0].info["configs_failed"]
    assert "'block_m': 128" in reason
    assert reason.endswith("ValueError: exceeds available shared memory")
    with pytest.raises(grouped_candidates.Unsupported, match="no configuration of the Pallas grid"):
        compiler.candidates(problem, "dw", operands)
    monkeypatch.setattr(grouped_candidates, "pallas_grid", lambda *_: [{"block_m": 128}])
    monkeypatch.setattr(grouped_candidates, "pallas_fits", lambda *_: True)
    compiler.submit(problem, "forward", "bfloat16")
    with pytest.raises(grouped_candidates.Unsupported, match="exceeds available shared memory"):
        compiler.candidates(problem, "forward", operands)
    compiler.close()
