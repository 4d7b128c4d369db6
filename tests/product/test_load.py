"""When kernels are loaded: ahead of a program's runs, or late, while XLA records a CUDA graph."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jax_bwgemm import runtime

# A process of its own, in which nothing is loaded. Its target has no stage but the last.
LATE = """
import jax, jax.numpy as jnp, numpy as np
import jax_bwgemm
from jax_bwgemm import runtime
from jax_bwgemm.product import targets

handlers = runtime.extension().registrations()[targets.TARGETS["cutlass"]]
jax.ffi.register_ffi_target("late", {"execute": handlers["execute"]}, platform="CUDA")
targets.TARGETS["cutlass"] = "late"

@jax.jit
def chain(x, w):  # of several products: XLA makes a graph of it
    for i in range(8):
        x = jax_bwgemm.matmul(x, w, epilogue=lambda z: jnp.maximum(z, i), implementation="cutlass")
        x = jax_bwgemm.matmul(x, w, implementation="cutlass")
    return x

x = jnp.asarray(np.arange(256 * 256).reshape(256, 256) % 5 - 2, "bfloat16")
w = jnp.eye(256, dtype="bfloat16")
program = chain.lower(x, w).compile()
assert '"late"' in program.as_text()
for shift in range(3):  # from other buffers each time
    got = program(x + shift, w)
    want = np.asarray(x, np.float32) + shift
    assert (np.asarray(got, np.float32) == np.maximum(want, 7)).all()
print("exact")
"""


def test_xla_prepares_nothing_before_an_execution() -> None:
    if runtime.extension() is None:
        pytest.skip("the kernels were not built")
    for target, handlers in runtime.extension().registrations().items():
        assert set(handlers) == {"instantiate", "execute"}, target


@pytest.mark.gpu
def test_kernels_that_nobody_loaded_ahead() -> None:
    command = [sys.executable, "-P", "-c", LATE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("exact")
