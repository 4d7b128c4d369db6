"""The example of training in low precision: recipes lose what bfloat16 loses, and it draws them."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import numpy as np
import pytest
from numerics import LOW_PRECISION_LOSS

pytest.importorskip("flax")
pytest.importorskip("optax")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def example() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        spec = importlib.util.spec_from_file_location(
            "low_precision_example", EXAMPLES / "low_precision.py"
        )
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def losses(example: Any) -> list[float]:
    return example.train("bfloat16", 60, example.QUICK)


def test_it_learns(losses: list[float]) -> None:
    assert losses[0] > 4  # about the logarithm of the number of characters
    assert np.mean(losses[-20:]) < 3.2


@pytest.mark.parametrize("recipe", ["per_tensor", "per_tensor_delayed", "blockwise"])
def test_the_last_losses_are_those_of_bfloat16(
    example: Any, losses: list[float], recipe: str
) -> None:
    found = example.train(recipe, 60, example.QUICK)
    assert found != losses
    np.testing.assert_allclose(np.mean(found[-20:]), np.mean(losses[-20:]), rtol=LOW_PRECISION_LOSS)


def test_the_program_prints_and_draws(
    example: Any, tmp_path: pathlib.Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(example, "train", lambda name, steps, size: [2.0 + len(name)] * steps)
    picture = tmp_path / "losses.png"
    args = ["--quick", "--steps", "20", "--recipes", "mxfp8", "--picture", str(picture)]
    assert example.main(args) == 0
    assert "mxfp8                7.0000 nats a character, -30.00%" in capsys.readouterr().out
    assert picture.stat().st_size > 1000
