"""What outlives a process, and what spans several: export, the compilation cache, multi-host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_exact, small_integers

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.product import targets

HERE = Path(__file__).parents[1] / "support"
# jax_bwgemm as this process has it (installed or a checkout), and the helpers of the tests.
PATHS = [str(Path(bw.__file__).parent.parent), str(HERE)]


def start(code: str, *args: str, devices: int = 1, **env: str) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": flags,
            "PYTHONPATH": os.pathsep.join(PATHS),
            **env,
        },
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes: subprocess.Popen) -> list[str]:
    """Output of processes that must succeed."""
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate()[0])
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    return outputs


RUN_EXPORTED = """
import sys
import jax, jax.export, jax.numpy as jnp
import numpy as np
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
a, b = (jnp.asarray(x, jnp.bfloat16) for x in np.load(sys.argv[2]).values())
forward = exported.call(a, b)
backward = exported.vjp().call(a, b, jnp.ones_like(forward))
np.savez(sys.argv[3], *(np.asarray(x, np.float32) for x in (forward, *backward)))
assert "jax_bwgemm" not in sys.modules
"""


def test_export_runs_in_another_process(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (4, 16, 32), "bfloat16"), small_integers(rng, (32, 24), "bfloat16")
    with bw.config.target("sm90"):
        exported = jax.export.export(
            jax.jit(lambda x, y: bw.matmul(x, y)),
            platforms=("cpu", "cuda"),
            disabled_checks=bw.DISABLE_EXPORT_CHECKS,
        )(a, b)
    assert "bwgemm.product.v2" in exported.mlir_module()
    program, inputs, outputs = (tmp_path / name for name in ("p.bin", "in.npz", "out.npz"))
    program.write_bytes(exported.serialize(vjp_order=1))
    np.savez(inputs, np.asarray(a, np.float32), np.asarray(b, np.float32))
    finish(start(RUN_EXPORTED, str(program), str(inputs), str(outputs)))
    out, vjp = jax.vjp(jnp.matmul, a, b)
    want = (out, *vjp(jnp.ones_like(out)))
    for got, expected in zip(np.load(outputs).values(), want, strict=True):
        assert_exact(got, np.asarray(expected, np.float32))


EMULATE_EXPORTED = """
import sys
import jax, jax.export, jax.numpy as jnp
import numpy as np
import jax_bwgemm
exported = jax.export.deserialize(open(sys.argv[1], "rb").read())
a, b = (jnp.asarray(x, jnp.bfloat16) for x in np.load(sys.argv[2]).values())
np.savez(sys.argv[3], np.asarray(exported.call(a, b), np.float32))
assert "jax_bwgemm.emulator" not in sys.modules
"""


@pytest.mark.emulator
def test_exported_emulated_program_needs_the_import_only(tmp_path: Path) -> None:
    kernel = next(iter(runtime.emulated_kernels()), None)
    if kernel is None:
        pytest.skip("the emulator was not built")
    rng = np.random.default_rng(0)
    a, b = small_integers(rng, (16, 32), "bfloat16"), small_integers(rng, (32, 24), "bfloat16")
    with bw.config.target(kernel.arch):
        exported = jax.export.export(
            jax.jit(lambda x, y: bw.matmul(x, y, implementation="emulator")),
            platforms=("cpu",),
            disabled_checks=bw.DISABLE_EXPORT_CHECKS,
        )(a, b)
    assert targets.TARGETS["emulator"] in exported.mlir_module()
    program, inputs, outputs = (tmp_path / name for name in ("p.bin", "in.npz", "out.npz"))
    program.write_bytes(exported.serialize())
    np.savez(inputs, np.asarray(a, np.float32), np.asarray(b, np.float32))
    finish(start(EMULATE_EXPORTED, str(program), str(inputs), str(outputs)))
    (got,) = np.load(outputs).values()
    assert_exact(got, np.asarray(jnp.matmul(a, b), np.float32))


def test_export_without_the_disabled_checks_says_which_target() -> None:
    x = jax.ShapeDtypeStruct((16, 16), jnp.bfloat16)
    with (
        bw.config.target("sm90"),
        pytest.raises(ValueError, match=r"bwgemm\.product\.v2"),
    ):
        jax.export.export(jax.jit(lambda a: bw.matmul(a, a)), platforms=("cuda",))(x)


def test_symbolic_shapes_are_left_to_xla() -> None:
    a = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, m, 16"), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((16, 8), jnp.bfloat16)
    numbers = (((2,), (0,)), ((), ()))
    x = np.ones((2, 3, 16), jnp.bfloat16)
    for f in (
        lambda p, q: bw.matmul(p, q),
        lambda p, q: bw.dot_general(p, q, numbers),
    ):
        exported = jax.export.export(jax.jit(f), platforms=["cpu"])(a, w)
        assert (np.asarray(exported.call(x, np.ones(w.shape, w.dtype))) == 16).all()
    with pytest.raises(NotImplementedError) as caught:
        jax.export.export(jax.jit(lambda p, q: bw.matmul(p, q, implementation="cutlass")))(a, w)
    assert str(caught.value) == (
        "implementation='cutlass' cannot run matmul of symbolic shapes (b, m, 16) and (16, 8): a "
        "kernel is selected by sizes"
    )


CACHED = """
import sys
import jax, jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax_bwgemm import runtime
if runtime.extension() is None:
    from kernel_table import described_kernels
    runtime.kernels = described_kernels
import jax_bwgemm as bw
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
# custom_partitioning leaves a pointer in the program, which would be another in each process.
jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
mesh = Mesh(np.array(jax.devices()), ("x",))
x = np.ones((16, 32), jnp.bfloat16)
y = np.ones((32, 8), jnp.bfloat16)
split = jax.device_put(x, NamedSharding(mesh, P(None, "x")))
parts = jax.device_put(y, NamedSharding(mesh, P("x")))
f = jax.jit(lambda a, b: bw.matmul(a, b) * 3)
assert "bw_gemm" in str(jax.make_jaxpr(f)(x, y))
events.clear()
assert (np.asarray(f(x, y)) == 96).all()
assert (np.asarray(f(split, parts)) == 96).all()
for kind in ("hits", "misses"):
    print(kind, sum(name == f"/jax/compilation_cache/cache_{kind}" for name in events))
"""


def test_persistent_compilation_cache(tmp_path: Path) -> None:
    first, second = (finish(start(CACHED, str(tmp_path), devices=4))[0] for _ in range(2))
    assert "hits 0" in first
    assert "misses 0" in second
    assert "hits 2" in second, second  # one device, and sharded (through custom partitioning)


WORKER = """
import sys
import jax
rank, address = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(address, num_processes=2, process_id=rank)
import collections, re
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from jax_bwgemm import runtime
if runtime.extension() is None:
    from kernel_table import described_kernels
    runtime.kernels = described_kernels
import jax_bwgemm as bw
from numerics import assert_exact, small_integers
assert len(jax.devices()) == 8 and len(jax.local_devices()) == 4
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

def place(values, *spec):
    sharding = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

def run(name, f, want, *args):
    compiled = jax.jit(f).lower(*args).compile()
    kinds = r"= \\S+ (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)\\("
    found = dict(collections.Counter(re.findall(kinds, compiled.as_text())))
    for got, expected in zip(jax.tree.leaves(compiled(*args)), want, strict=True):
        for shard in got.addressable_shards:
            assert_exact(shard.data, np.asarray(expected)[shard.index], name)
    print(name, found, flush=True)

rng = np.random.default_rng(0)
a, b = small_integers(rng, (16, 32), "bfloat16"), small_integers(rng, (32, 24), "bfloat16")
product = [np.asarray(jnp.matmul(a, b))]
run("m", lambda x, y: bw.matmul(x, y), product, place(a, "x"), place(b))
run("n", lambda x, y: bw.matmul(x, y), product, place(a), place(b, None, "x"))
run("k", lambda x, y: bw.matmul(x, y), product, place(a, None, "x"), place(b, "x"))

def gradients(matmul):
    def loss(x, w):
        out = matmul(x, w)
        return jnp.sum((jax.lax.stop_gradient(jnp.sign(out)) * out).astype(jnp.float32))
    return lambda x, w: jax.grad(loss, argnums=(0, 1))(x, w)

run("data parallel", gradients(bw.matmul), gradients(jnp.matmul)(a, b), place(a, "x"), place(b))
"""


def test_two_processes(tmp_path: Path) -> None:
    """What a multi-host user runs, on loopback: every process holds half of the devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    workers = [start(WORKER, str(rank), address, devices=4) for rank in (0, 1)]
    for output in finish(*workers):
        lines = [line for line in output.splitlines() if "{" in line and "}" in line]
        assert lines[-4:] == [
            "m {}",
            "n {}",
            "k {'all-reduce': 1}",
            "data parallel {'all-reduce': 1}",
        ], output


IMPORTED = """
import sys
import jax
before = set(sys.modules)
import jax_bwgemm
print(*sorted(set(sys.modules) - before))
"""
# What few programs need, and importing it takes long; benchmarks/bench_import.py has the times.
HEAVY = {
    "jax.export",
    "jax._src.export",
    "jax.experimental.pallas",
    "jax.experimental.mosaic",
    "jax.experimental.sparse",
    "jax.extend",
    "jax._src.pallas",
    "flatbuffers",
    "hypothesis",
    "matplotlib",
    "numpy.testing",
    "scipy",
    "jax_bwgemm.cli",
    "jax_bwgemm.dense.explain",
    "jax_bwgemm.emulator",
    "jax_bwgemm.loss",
    "jax_bwgemm.product.explain",
    "jax_bwgemm.product.export",
    "jax_bwgemm.product.program_explanation",
    "jax_bwgemm.tuning.autotuning",
    "jax_bwgemm.tuning.bench",
}


def test_import_is_cheap() -> None:
    """Only modules that a product needs, and none of another package that JAX does not bring."""
    imported = finish(start(IMPORTED))[0].split()
    assert "jax_bwgemm.dense.api" in imported
    assert [m for m in imported if any(f"{m}.".startswith(f"{h}.") for h in HEAVY)] == []
    roots = {m.split(".")[0] for m in imported}
    assert roots - sys.stdlib_module_names <= {"jax", "jax_bwgemm"}


def test_import_initialises_no_backend() -> None:
    code = """
import jax_bwgemm
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
"""
    finish(start(code))


def test_typed_package() -> None:
    assert (Path(bw.__file__).parent / "py.typed").exists()


def test_public_names() -> None:
    missing: list[Any] = [name for name in bw.__all__ if not hasattr(bw, name)]
    assert missing == []
