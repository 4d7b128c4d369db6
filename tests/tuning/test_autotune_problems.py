"""What autotuning finds in a program: its products, how often they run, what is not tuned."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tuning_fakes import (  # noqa: F401
    BF16,
    SM90,
    array,
    key,
    own_cache,
)

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.tuning import problems
from jax_bwgemm.tuning.keys import DenseKey
from jax_bwgemm.tuning.problems import Problems


def find(f: Any, *args: Any) -> dict[DenseKey, int]:
    return dict(problems.find(f, SM90, args, {}).counts)


def test_gradients_are_found() -> None:
    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        return bw.matmul(a, b).astype(jnp.float32).sum()

    step = jax.value_and_grad(loss, argnums=(0, 1))
    found = find(step, array(512, 1024), array(1024, 768))
    assert found == {
        key(512, 768, 1024): 1,
        key(512, 1024, 768, "kk"): 1,
        key(1024, 768, 512, "mn"): 1,
    }


def test_gradients_of_layers_are_found() -> None:
    def loss(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return bw.mlp(x, up, down, activation="gelu").astype(jnp.float32).sum()

    step = jax.value_and_grad(loss, argnums=(0, 1, 2))
    with bw.config.linked_epilogues(False):
        found = find(step, array(512, 1024), array(1024, 768), array(768, 256))
    assert found == {
        key(512, 768, 1024): 1,
        key(512, 256, 768): 1,
        key(512, 768, 256, "kk"): 1,
        key(768, 256, 512, "mn"): 1,
        key(512, 1024, 768, "kk"): 1,
        key(1024, 768, 512, "mn"): 1,
    }


def test_nested_programs_are_searched_and_loops_counted() -> None:
    @jax.custom_vjp
    def square(x: jax.Array) -> jax.Array:
        return bw.matmul(x, x)

    square.defvjp(lambda x: (square(x), x), lambda x, g: (bw.matmul(g, x),))

    def f(x: jax.Array) -> jax.Array:
        x, _ = lax.scan(lambda c, _: (jax.jit(square)(c), None), x, length=3)
        x = jax.checkpoint(lambda y: bw.matmul(y, y))(x)
        return lax.cond(x[0, 0] > 0, lambda y: bw.matmul(y, y[:, :256]), lambda y: y[:, :256], x)

    assert find(f, array(512, 512)) == {key(512, 512, 512): 4, key(512, 256, 512): 1}


def test_batches_and_vmap_are_folded_as_selection_folds_them() -> None:
    a, b = array(4, 512, 64), array(64, 128)
    assert find(bw.matmul, a, b) == {key(2048, 128, 64): 1}
    shared = functools.partial(bw.matmul, array(64, 64) and jnp.zeros((64, 64), BF16))
    assert find(jax.vmap(shared), array(3, 64, 128)) == {key(64, 128, 64, batch=3, shared="lhs"): 1}


def test_unaligned_problems_are_found_as_they_are_padded() -> None:
    assert find(bw.matmul, array(1000, 1001), array(1001, 1002)) == {key(1000, 1008, 1008): 1}


def test_shard_map_has_the_sizes_of_one_device(cpu_devices: list[jax.Device]) -> None:
    mesh = Mesh(np.array(cpu_devices[:4]), ("x",))
    f = jax.shard_map(bw.matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    assert find(f, array(2048, 256), array(256, 128)) == {key(512, 128, 256): 1}


def test_every_form_of_a_program_gives_the_same() -> None:
    args = array(512, 256), array(256, 128)
    with bw.config.target("sm90"):
        traced = jax.jit(bw.matmul).trace(*args)
        lowered = traced.lower(lowering_platforms=("cuda",))
    want = {key(512, 128, 256): 1}
    assert find(bw.matmul, *args) == want
    assert find(jax.jit(bw.matmul), *args) == want
    assert find(traced) == find(traced.jaxpr) == find(traced.jaxpr.jaxpr) == want
    assert find(lowered) == want


def test_calls_in_lowered_text_that_are_not_understood_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bw.config.target("sm90"):
        traced = jax.jit(bw.matmul).trace(array(512, 256), array(256, 128))
        lowered = traced.lower(lowering_platforms=("cuda",))
    monkeypatch.setattr(runtime, "kernels", lambda: ())
    found = problems.find(lowered, SM90, (), {})
    assert not found.counts
    ((_, reason),) = found.skipped
    assert reason == "not a call of a kernel of this build"


@pytest.mark.emulator
def test_compiled_programs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    monkeypatch.setattr(runtime, "kernels", runtime.emulated_kernels)
    f = jax.jit(lambda a, b: bw.matmul(a * 2, b, implementation="emulator") + 1)
    with bw.config.target("sm90"):
        compiled = f.lower(array(2, 512, 256), array(256, 128)).compile()
    # The same call, as its CUDA twin appears.
    text = compiled.as_text().replace(".emulated.", ".")
    assert dict(problems._in_text(text).counts) == {key(1024, 128, 256): 1}
    # As it is, it is the emulator's, which nobody tunes.
    assert problems._in_text(compiled.as_text()) == Problems({}, ())


def test_what_is_not_tuned_is_reported_with_the_reason() -> None:
    def f(a: jax.Array, b: jax.Array) -> Any:
        return (
            bw.matmul(a, b, config=bw.TuningConfig(schedule="pingpong")),
            bw.matmul(a[:, :3], b[:3]),
            bw.matmul(a.astype(jnp.float32), b.astype(jnp.float32)),  # never reaches a kernel
        )

    found = problems.find(f, SM90, (array(64, 64), array(64, 64)), {})
    assert not found.counts
    reasons = [reason for _, reason in found.skipped]
    assert reasons[0] == "it has an explicit TuningConfig(schedule='pingpong')"
    assert "does not pay" in reasons[1]
    assert len(reasons) == 2


def test_other_programs_and_stray_arguments_are_type_errors() -> None:
    with pytest.raises(TypeError, match=r"autotune takes a function.* got int"):
        find(3)
    traced = jax.jit(bw.matmul).trace(array(8, 8), array(8, 8))
    with pytest.raises(TypeError, match="a Traced takes no arguments"):
        find(traced, array(8, 8))


def test_sharded_arguments_are_compiled_for(
    cpu_devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = Mesh(np.array(cpu_devices[:2]), ("x",))
    a = jax.device_put(np.zeros((1024, 256), BF16), NamedSharding(mesh, P("x")))
    texts = []
    monkeypatch.setattr(problems, "_in_text", lambda text: texts.append(text) or Problems({}, ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problems.find(bw.matmul, SM90, (a, np.zeros((256, 128), BF16)), {})
    assert "HloModule" in texts[0]
    assert "512,128" in texts[0]  # one device's part
