"""The mixture-of-experts example: its layer against a dense loop, on one device and on several."""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numerics
import numpy as np
import pytest
from emulator_cases import requires_emulator
from jax.sharding import Mesh
from jax.test_util import check_grads

import jax_bwgemm

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="the examples are not part of an installed package"
)


@pytest.fixture(autouse=True)
def _examples_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


def _inputs(tokens=24, width=16, hidden=24, experts=8, dtype=jnp.float32):
    import moe_layer

    keys = jax.random.split(jax.random.key(0), 3)
    params = moe_layer.init_layer(keys[0], width, hidden, experts)
    x = jax.random.normal(keys[1], (tokens, width)).astype(dtype)
    return params, x, jax.random.normal(keys[2], (tokens, width))


def _mesh(count):
    return Mesh(jax.devices("cpu")[:count], ("experts",))


# --- routing ---


def test_route_takes_the_best_experts_and_counts_them():
    import moe_layer

    x = jnp.asarray([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    router = jnp.asarray([[3.0, 2.0, 0.0], [0.0, 1.0, 2.0]])
    weights, experts, sizes, balance = moe_layer.route(router, x, 2)
    np.testing.assert_array_equal(experts, [[0, 1], [2, 1], [2, 1]])
    np.testing.assert_array_equal(sizes, [1, 3, 2])
    ratio = 1 / (1 + np.exp(-1.0))  # scores one apart
    np.testing.assert_allclose(weights, np.full((3, 2), [ratio, 1 - ratio]), rtol=1e-6)
    shares = np.asarray(jax.nn.softmax(x @ router)).mean(axis=0)
    assert float(balance) == pytest.approx(3 * np.sum(np.array([1, 3, 2]) / 6 * shares), rel=1e-6)


def test_balance_is_one_when_even_and_experts_when_all_go_to_one():
    import moe_layer

    x = jnp.eye(4)
    *_, sizes, even = moe_layer.route(100 * jnp.eye(4), x, 1)
    np.testing.assert_array_equal(sizes, [1, 1, 1, 1])
    assert float(even) == pytest.approx(1)
    *_, sizes, skewed = moe_layer.route(jnp.zeros((4, 4)).at[:, 2].set(100), x, 1)
    np.testing.assert_array_equal(sizes, [0, 0, 4, 0])
    assert float(skewed) == pytest.approx(4)


# --- the layer ---


@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("name", ["moe_layer", "fused_layer"])
def test_the_layer_is_the_dense_loop(name, top_k):
    import moe
    import moe_layer

    params, x, dy = _inputs()
    run = jax.jit(moe.value_and_gradients, static_argnums=0)
    got = run(functools.partial(getattr(moe_layer, name), top_k=top_k), params, x, dy)
    want = run(functools.partial(moe_layer.dense_layer, top_k=top_k), params, x, dy)
    for path, value in jax.tree.flatten_with_path(want)[0]:
        assert np.any(np.asarray(value)), path
    for mine, value in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, value, rtol=1e-4, atol=1e-4 * np.max(np.abs(value)))


def test_the_fused_layer_multiplies_tokens_of_16_bits_by_the_router_as_it_is():
    """In float32, not rounded to the tokens' type: its gradient too."""
    import moe
    import moe_layer

    params, x, dy = _inputs(dtype=jnp.bfloat16)
    run = jax.jit(moe.value_and_gradients, static_argnums=0)
    layers = moe_layer.fused_layer, moe_layer.moe_layer
    got, want = (run(functools.partial(f, top_k=2), params, x, dy) for f in layers)
    assert moe.distance(got, want) <= moe.BOUNDS["bfloat16"]
    router = got[1][0]["router"]
    assert router.dtype == jnp.float32
    assert np.any(np.asarray(router))
    fused = functools.partial(moe_layer.fused_layer, top_k=2)
    explained = str(jax_bwgemm.explain_program(fused, params, x, device="sm90"))
    assert "bfloat16 x float32 -> float32" in explained


def test_an_expert_that_nobody_chose_gets_no_gradient():
    import moe
    import moe_layer

    params, x, dy = _inputs()
    params["router"] = params["router"].at[:, 3].set(0).at[0].set(0)
    x = x.at[:, 0].set(1.0)
    params["router"] = params["router"].at[0, 3].set(-1000.0)
    layer = functools.partial(moe_layer.moe_layer, top_k=2)
    run = jax.jit(moe.value_and_gradients, static_argnums=0)
    _, (gradient, _) = run(layer, params, x, dy)
    for name in ("w_in", "w_out"):
        assert not np.any(np.asarray(gradient[name][3])), name
        assert np.any(np.asarray(gradient[name][2])), name


def test_lax_ragged_dot_fits_in_its_place():
    import moe_layer

    params, x, _ = _inputs(dtype=jnp.bfloat16)
    layer = functools.partial(moe_layer.moe_layer, params, x, top_k=2)
    ours, _ = layer(ragged_dot=functools.partial(jax_bwgemm.ragged_dot, implementation="xla"))
    lax, _ = layer(ragged_dot=jax.lax.ragged_dot)
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        *(np.asarray(y, np.float32) for y in (ours, lax)), rtol=0.05, atol=0.02
    )


def test_finite_differences():
    import moe_layer

    # With a fixed choice of experts: a step across a border between experts is no small step.
    params, x, _ = _inputs(tokens=6, width=8, hidden=8, experts=4)
    params["router"] *= 20

    def f(w_in, w_out, x):
        return moe_layer.moe_layer(params | {"w_in": w_in, "w_out": w_out}, x, top_k=2)[0]

    operands = (params["w_in"], params["w_out"], x)
    with jax.default_matmul_precision("highest"):
        check_grads(jax.jit(f), operands, order=1, eps=1e-3, **numerics.CHECK_GRADS)


# --- several devices ---


@pytest.mark.parametrize("devices", [8])
def test_expert_parallel_is_the_same_layer(devices, capsys):
    import moe

    argv = ["--check", "--devices", str(devices), "--dtype", "float32", "--batch", "32"]
    assert moe.main([*argv, "--width", "16", "--hidden", "16"]) == 0
    text = capsys.readouterr().out
    assert text.count(": ok") == 2
    found = re.findall(r"collectives, (.+?): (.+)", text)
    # The tokens' parts are added; the gradients of what every device has, too; nothing else.
    assert dict(found)["forward"] == "{'all-reduce': 1}"
    assert set(re.findall(r"'([a-z-]+)'", dict(found)["forward and backward"])) == {"all-reduce"}


def test_expert_parallel_keeps_the_matrices_apart():
    import moe
    import moe_layer

    params, x, dy = _inputs()
    parallel = moe_layer.expert_parallel(_mesh(4), 2, jax_bwgemm.ragged_dot)
    _, (gradient, _) = jax.jit(moe.value_and_gradients, static_argnums=0)(parallel, params, x, dy)
    for name in ("w_in", "w_out"):
        assert gradient[name].sharding.spec[0] == "experts"
        assert gradient[name].addressable_shards[0].data.shape[0] == 2
    assert gradient["router"].sharding.is_fully_replicated


@pytest.mark.multigpu
def test_expert_parallel_on_gpus(capsys):
    import moe

    assert moe.main(["--check", "--devices", "2", "--implementation", "cutlass"]) == 0
    assert "collectives, forward: {'all-reduce': 1}" in capsys.readouterr().out


@pytest.mark.gpu
def test_the_layer_on_the_kernels(capsys):
    import moe

    assert moe.main(["--check", "--implementation", "cutlass", "--width", "256"]) == 0
    assert ": ok" in capsys.readouterr().out


# --- the check and the program ---


def test_the_check_finds_a_wrong_product(capsys, monkeypatch):
    import moe

    right = jax_bwgemm.ragged_dot
    monkeypatch.setattr(jax_bwgemm, "ragged_dot", lambda *a, **k: right(*a, **k) * 1.1)
    assert moe.main(["--check", "--batch", "16"]) == 1
    assert "TOO FAR" in capsys.readouterr().out


def test_the_check_finds_nan(capsys):
    import moe

    one = jnp.ones(3)
    bad = (one * jnp.nan, ({"w": one}, one))
    assert not moe.report("x", bad, (one, ({"w": one}, one)), jnp.dtype("bfloat16"))
    assert "TOO FAR" in capsys.readouterr().out


def test_collectives_are_counted():
    import moe

    text = """
      %all-reduce.1 = (f32[2]{0}, f32[]) all-reduce(%a, %b), replica_groups={}
      %x = f32[8]{0} all-gather-start(f32[4]{0} %all-reduce.1)
      %y = f32[8]{0} all-gather-done(%x)
    """
    assert moe.collectives(text) == {"all-reduce": 1, "all-gather": 1}


@pytest.mark.parametrize("devices", [1, 2])
def test_it_learns(devices, capsys):
    pytest.importorskip("sklearn")
    import moe

    assert moe.main(["--steps", "40", "--batch", "256", "--devices", str(devices)]) == 0
    text = capsys.readouterr().out
    accuracies = [float(a) for a in re.findall(r"accuracy ([\d.]+)\n", text)]
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", text)]
    assert accuracies[0] < 0.3  # chance is 0.1
    assert accuracies[-1] > 0.9
    assert losses[-1] < 0.2 * losses[0]
    assert float(re.search(r"digits: ([\d.]+)%", text)[1]) > 90


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--devices", "4096"], "--devices 4096: this machine has"),
        (["--devices", "3"], "--experts 8 do not divide among 3 devices"),
        (["--devices", "2", "--implementation", "lax"], "lax.ragged_dot has no group_offset"),
        (["--dtype", "float64"], "invalid choice: 'float64'"),
        (["--devices", "0"], "must be at least 1, got 0"),
        (["--top-k", "9"], "--top-k 9 of --experts 8"),
        (["--batch", "4000"], "--batch 4000: there are 1497 digits"),
    ],
)
def test_bad_options(argv, message, capsys, monkeypatch, cpu_devices):
    import moe

    monkeypatch.setattr(jax, "devices", lambda: cpu_devices)
    with pytest.raises(SystemExit) as error:
        moe.main(argv)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_runs_as_a_script_from_elsewhere(tmp_path):
    script = str(EXAMPLES / "moe.py")
    done = subprocess.run(
        [sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--implementation" in done.stdout


@pytest.mark.parametrize("arch", [pytest.param("sm100", marks=requires_emulator)])
def test_the_emulated_kernels_run_the_layer(arch, capsys):
    import moe

    argv = ["--check", "--implementation", "emulator", "--batch", "8", "--width", "16"]
    with jax_bwgemm.config.target(arch):
        assert moe.main([*argv, "--hidden", "16", "--experts", "4"]) == 0
    assert ": ok" in capsys.readouterr().out
