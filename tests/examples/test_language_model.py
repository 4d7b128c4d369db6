"""The example with the loss: it learns, in both forms, and agrees with optax's loss."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import LOSS

pytest.importorskip("flax")
pytest.importorskip("optax")

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "language_model.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("language_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # flax's dataclasses look their annotations up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("logits", ["stored", "recomputed"])
def test_it_learns(example, logits) -> None:
    losses = example.train(40, logits)
    assert losses[0] > 4  # about the logarithm of the number of characters
    assert losses[-1] < 3.2


def test_the_loss_is_that_of_optax(example) -> None:
    model = example.Model(64, width=32, dtype=jnp.float32)
    characters = jnp.asarray(np.random.default_rng(0).integers(0, 64, (4, 17)))
    params = model.init(jax.random.key(0), characters)["params"]
    found = [
        jax.value_and_grad(lambda p, f=f: f(model, p, characters))(params)
        for f in (example.loss_fn, example.optax_loss_fn)
    ]
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, **LOSS), *found)


def test_the_program_prints_its_losses(example, capsys) -> None:
    assert example.main(["--steps", "1"]) == 0
    assert "last step:" in capsys.readouterr().out
