"""The example training step: its gradients, its step, and how it spreads over devices."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numerics
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.test_util import check_grads

pytest.importorskip("flax")
pytest.importorskip("optax")

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_step.py"
SIZE = 32  # hidden width here: the products are what is tested, not the fit


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_step", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # flax's dataclasses look their annotations up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _data(rows: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 64)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 10, rows).astype(np.int32)}


def _mesh(count: int) -> Mesh:
    return Mesh(jax.devices("cpu")[:count], ("data",))


def _gradient(example, model, params, data):
    return jax.jit(jax.grad(lambda p: example.loss_fn(model.apply, p, data)))(params)


def test_finite_differences(example):
    # float32 and a smooth loss: rectifiers change with no warning between two evaluations.
    model = example.Classifier(hidden=SIZE, dtype=jnp.float32)
    data = _data(8)
    params = model.init(jax.random.key(0), data["x"])["params"]
    with jax.default_matmul_precision("highest"):
        check_grads(lambda p: example.loss_fn(model.apply, p, data), (params,), order=1, **CHECK)


CHECK = {**numerics.CHECK_GRADS, "modes": ("fwd", "rev"), "eps": 1e-3}


def _compare_gradients(example, dtype):
    data = _data()
    ours = example.Classifier(hidden=SIZE, dtype=dtype)
    theirs = ours.clone(dot_general=lax.dot_general)
    params = ours.init(jax.random.key(0), data["x"])["params"]
    exact = ours.clone(dot_general=lax.dot_general, dtype=jnp.float32)
    with jax.default_matmul_precision("highest"):
        want = _gradient(example, exact, params, data)
    trees = (_gradient(example, m, params, data) for m in (ours, theirs))
    for path, got, xla, true in _leaves(*trees, want):
        numerics.assert_as_good_as_xla(got, xla, np.asarray(true, np.float64), path)


def _leaves(first, *others):
    flat, structure = jax.tree.flatten_with_path(first)
    columns = [structure.flatten_up_to(tree) for tree in others]
    for (path, leaf), *rest in zip(flat, *columns, strict=True):
        yield jax.tree_util.keystr(path), leaf, *rest


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_gradients_are_as_good_as_lax(example, dtype):
    _compare_gradients(example, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_through_the_kernels(example, dtype):
    _compare_gradients(example, dtype)


def test_a_step_equals_the_same_step_on_lax(example):
    """Bitwise: on the CPU both are XLA's product, so any difference is in how it was asked for.

    On one device: how partial sums of several devices are rounded before they are added is each
    partitioner's own business.
    """
    mesh = _mesh(1)
    batch = next(example.batches(_data(), 64, 1, mesh))
    ours = example.Classifier(hidden=SIZE)
    results = []
    for model in (ours, ours.clone(dot_general=lax.dot_general)):
        state, loss = example.train_step(example.create_state(model, 0, mesh), batch)
        results.append((state.params, state.opt_state, loss))
    for path, got, want in _leaves(*results):
        numerics.assert_exact(got, want, path)


def test_eight_devices_take_the_step_of_one(example):
    steps = []
    for count in (1, 8):
        mesh = _mesh(count)
        model = example.Classifier(hidden=SIZE, dtype=jnp.float32)
        state = example.create_state(model, 0, mesh)
        state, loss = example.train_step(state, next(example.batches(_data(), 64, 1, mesh)))
        steps.append(jax.device_get((state.params, loss)))
    for path, got, want in _leaves(*steps):
        # adamw divides by the gradient's size: a rounding of a tiny gradient moves a weight by a
        # visible part of the learning rate of 2e-3.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4, err_msg=path)


def test_the_step_is_data_parallel(example):
    mesh = _mesh(8)
    state = example.create_state(example.Classifier(hidden=SIZE), 0, mesh)
    batch = next(example.batches(_data(), 64, 1, mesh))
    text = example.train_step.lower(state, batch).compile().as_text()
    kinds = set(re.findall(r"(all-reduce|all-gather|reduce-scatter|all-to-all|permute)\(", text))
    assert kinds == {"all-reduce"}
    old = jax.tree.leaves(state.params)
    state, _ = example.train_step(state, batch)
    for before, after in zip(old, jax.tree.leaves(state.params), strict=True):
        assert before.is_deleted()  # donated
        assert after.sharding.is_fully_replicated


def test_the_padded_classes_do_not_exist_outside(example):
    model = example.Classifier(hidden=SIZE)
    data = _data(8)
    params = model.init(jax.random.key(0), data["x"])["params"]
    assert params["Dense_2"]["kernel"].shape == (SIZE, 16)
    scores = model.apply({"params": params}, data["x"])
    assert (scores.shape, scores.dtype) == ((8, 10), jnp.float32)
    gradient = _gradient(example, model, params, data)["Dense_2"]["kernel"]
    assert not np.any(np.asarray(gradient[:, 10:]))
    assert np.all(np.any(np.asarray(gradient[:, :10]), axis=0))


def test_it_learns(example, capsys, monkeypatch, cpu_devices):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(jax, "devices", lambda: cpu_devices)
    assert example.main(["--steps", "60", "--batch", "256"]) == 0
    text = capsys.readouterr().out
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", text)]
    assert losses[-1] < 0.1 * losses[0]
    assert float(re.search(r"digits: ([\d.]+)%", text)[1]) > 90


@pytest.mark.gpu
def test_it_learns_through_the_kernels(example, capsys, caplog):
    pytest.importorskip("sklearn")
    jax.clear_caches()  # the choice of kernels is logged when a program is compiled
    with caplog.at_level("INFO", logger="jax_bwgemm"):
        assert example.main(["--steps", "60", "--batch", "256"]) == 0
    assert "using xla" not in caplog.text
    assert float(re.search(r"digits: ([\d.]+)%", capsys.readouterr().out)[1]) > 90


def test_a_batch_that_does_not_divide(example, capsys, monkeypatch, cpu_devices):
    monkeypatch.setattr(jax, "devices", lambda: cpu_devices)
    with pytest.raises(SystemExit) as stop:
        example.main(["--batch", "9", "--steps", "1"])
    assert stop.value.code == 2
    assert "--batch 9 does not divide among 8 devices" in capsys.readouterr().err
