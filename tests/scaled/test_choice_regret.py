"""What the choice of 8-bit kernels loses to the best one, on times recorded on one H200."""

from __future__ import annotations

import functools
import math

import pytest
from kernel_table import described_scaled_kernels

from jax_bwgemm.config import make_target
from jax_bwgemm.dense import costs
from jax_bwgemm.scaled.costs import as_dense, parameters_of

pytestmark = pytest.mark.usefixtures("benchmark_programs")


@functools.cache
def regrets() -> tuple[tuple[str, float], ...]:
    """Of every record."""
    import cost_fit
    from scaled import choice

    problems = cost_fit.load(scaled=True)
    return tuple((p.name, cost_fit.regret(p, choice.PARAMETERS)) for p in problems)


def test_the_choice_loses_little_in_the_mean() -> None:
    found = [x for _, x in regrets()]
    assert len(found) >= 938
    assert math.exp(sum(map(math.log, found)) / len(found)) <= 1.005


def test_few_choices_lose_more_than_three_percent() -> None:
    assert sum(x > 1.03 for _, x in regrets()) <= 0.04 * len(regrets())


def test_no_choice_loses_much() -> None:
    assert [(name, x) for name, x in regrets() if x > 1.12] == []


def test_records_are_of_kernels_of_the_build() -> None:
    import cost_fit

    built = {costs.tile_key(as_dense(k)) for k in described_scaled_kernels() if k.arch == "sm90"}
    for problem in cost_fit.load(scaled=True):
        assert {costs.tile_key(x.kernel) for x in problem.launches} <= built, problem.name


@pytest.mark.parametrize("kind", ["tensor", "row", "blockwise", "dW"])
def test_the_recorder_names_launches_as_the_fitter_reads_them(kind: str) -> None:
    """Every kernel of a kind, in one part and in several."""
    import scaled_cost_record
    from scaled import choice

    picked = scaled_cost_record.choices(
        (16, 512, 8192), kind, described_scaled_kernels(), make_target("sm90")
    )
    assert len({c.splits for c in picked}) > 1
    assert len({scaled_cost_record.label(c) for c in picked}) == len(picked)
    for one in picked:
        kernel, splits = choice.read_kernel(scaled_cost_record.label(one))
        assert splits == one.splits
        same = as_dense(one.kernel)
        assert costs.tile_key(kernel) == costs.tile_key(same)
        assert kernel.tile_k == same.tile_k


def test_the_committed_module_is_what_the_fitter_writes() -> None:
    import cost_fit
    from scaled import choice

    text = choice.OUTPUT.read_text(encoding="utf-8")
    assert text == cost_fit.module_text(cost_fit.rounded(choice.PARAMETERS), scaled=True)
    kernel = next(k for k in described_scaled_kernels() if k.arch == "sm90")
    assert parameters_of(kernel) is choice.PARAMETERS
