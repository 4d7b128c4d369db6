"""Which tuned entry decides: explicit > in force > cache > package > heuristic; and misses."""

# Fixtures are imported and are then names of arguments.
# ruff: noqa: F811

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tuning_fakes import (  # noqa: F401
    BF16,
    H200,
    array,
    clock,
    fake_gpu,
    gpu,
    key,
    own_cache,
    pretend,
)

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.tuned import dims_of, spec_of
from jax_bwgemm.tuning import devices, kernel_timer, on_miss
from jax_bwgemm.tuning import files as tuning_files
from jax_bwgemm.tuning.bench import Bench
from jax_bwgemm.tuning.keys import DenseKey, Key
from jax_bwgemm.tuning.records import Choice, TunedDevice, TunedEntry
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.work import work_of


def entry_for(name: str, **changes: Any) -> TunedEntry:
    fields = {"kernel": name, "raster_order": "m", "swizzle": 2, "splits": 1, "us": 1.0}
    return TunedEntry(**fields | {"heuristic_us": 2.0, "method": "cupti"} | changes)


def tuned_for(problem: DenseKey, device: TunedDevice = H200, **changes: Any) -> TuningTable:
    """A table with a kernel that the heuristic would not choose, which is the last it ranks."""
    target = Target(device.arch, device.sm_count)
    spec = spec_of(problem)
    ranked, _ = heuristics.rank(runtime.kernels(), spec, problem.in_dtype, dims_of(problem), target)
    last = [c.kernel.name for c in ranked if not c.kernel.stream_k][-1]
    return TuningTable(device, {problem: entry_for(last, **changes)})


def explained(m: int, n: int, k: int) -> bw.dense.explain.Explanation:
    return bw.explain(array(m, k), array(k, n), device="sm90")


def test_a_table_in_force_decides_and_the_innermost_first() -> None:
    problem = key(512, 1024, 2048)
    before = explained(512, 1024, 2048)
    outer, inner = tuned_for(problem), tuned_for(problem, swizzle=4)
    with outer:
        got = explained(512, 1024, 2048)
        assert got.kernel == outer.get(problem).kernel != before.kernel
        assert (got.raster_order, got.swizzle) == ("m", 2)
        assert "tuned, from the tuning in force: measured 1 us (cupti)" in got.reason
        with inner:
            assert explained(512, 1024, 2048).swizzle == 4
            with outer:  # the same table twice
                assert explained(512, 1024, 2048).swizzle == 2
            assert explained(512, 1024, 2048).swizzle == 4
        assert explained(512, 1024, 2048).swizzle == 2
        assert explained(512, 1024, 1024).kernel != outer.get(problem).kernel
    assert explained(512, 1024, 2048) == before


def test_threads_that_enter_one_table_leave_it_apart() -> None:
    problem = key(512, 512, 512)
    outer, table = tuned_for(problem, swizzle=8), tuned_for(problem, swizzle=4)
    entered, left = threading.Event(), threading.Event()

    def swizzle_within() -> int:
        with table:
            entered.set()
            left.wait()
            return explained(512, 512, 512).swizzle

    with concurrent.futures.ThreadPoolExecutor(1) as pool, outer:
        with table:
            found = pool.submit(swizzle_within)
            entered.wait()
        left.set()
        assert found.result() == 4
        assert explained(512, 512, 512).swizzle == 8


def lowered_text(f: Any, *args: Any) -> str:
    with bw.config.target("sm90"):
        return f.trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def lowered_text_of(*args: Any) -> str:
    """For the target in force."""
    return jax.jit(bw.matmul).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_jit_traces_again_under_another_tuning_also_for_gradients() -> None:
    problem = key(1024, 512, 512, "mn")  # the gradient of b
    traces = []

    @jax.jit
    def step(a: jax.Array, b: jax.Array) -> Any:
        traces.append(1)
        loss = lambda b: bw.matmul(a, b).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(loss)(b)

    args = array(512, 1024), array(1024, 512)
    tuned = tuned_for(problem)
    plain = lowered_text(step, *args)
    with tuned:
        inside = lowered_text(step, *args)
    assert tuned.get(problem).kernel in inside
    assert tuned.get(problem).kernel not in plain
    assert lowered_text(step, *args) == plain
    assert len(traces) == 2  # leaving the context found the first trace again


def test_lowering_after_the_context_was_left_keeps_its_tuning() -> None:
    problem = key(512, 512, 512)
    with tuned_for(problem) as tuned, bw.config.target("sm90"):
        traced = jax.jit(bw.matmul).trace(array(512, 512), array(512, 512))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert tuned.get(problem).kernel in text


def test_an_explicit_configuration_comes_before_tuning() -> None:
    with tuned_for(key(512, 512, 512)):
        got = bw.explain(array(512, 512), array(512, 512), device="sm90",
                         config=bw.TuningConfig(swizzle=8))  # fmt: skip
    assert got.swizzle == 8
    assert "heuristic within" in got.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "sm90_no_longer_built"},
        {"kernel": "sm90_f16_f16_kn_128x128x64_2x1_pingpong"},
        {"kernel": "sm90_bf16_bf16_kn_64x96x64_1x1_pingpong_swap", "splits": 3},  # has no f32 twin
        {"kernel": "sm90_bf16_bf16_kn_64x96x64_1x1_pingpong_swap", "decomposition": "stream_k"},
    ],
)
def test_entries_that_cannot_run_are_ignored(changes: dict[str, Any]) -> None:
    before = explained(512, 512, 512)
    with tuned_for(key(512, 512, 512), **changes):
        assert explained(512, 512, 512) == before


def test_a_table_of_another_gpu_is_ignored() -> None:
    before = explained(512, 512, 512)
    with tuned_for(key(512, 512, 512), TunedDevice("smaller", "sm90", 114)):
        assert explained(512, 512, 512) == before


def test_cache_then_packaged_table(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_files, "packaged_path", lambda kind: tmp_path / "packaged.json")
    a, b = key(512, 512, 512), key(512, 512, 1024)
    (tuned_for(a, swizzle=4) | tuned_for(b, swizzle=4)).dump(tmp_path / "packaged.json")
    tuned_for(a, swizzle=2).dump(tmp_path / "cache" / "nvidia_h200.json")
    assert (explained(512, 512, 512).swizzle, explained(512, 512, 1024).swizzle) == (2, 4)
    assert "the package's tuning table" in explained(512, 512, 1024).reason
    with tuned_for(a, swizzle=16):
        assert explained(512, 512, 512).swizzle == 16
    # Kernels for another GPU than this process's are not chosen from its cache.
    with bw.config.target("sm90", 66):
        assert "tun" not in bw.explain(array(512, 512), array(512, 512)).reason


def test_a_cache_file_of_another_gpu_or_a_broken_one_is_ignored(gpu: None, tmp_path: Path) -> None:
    path, before = tmp_path / "cache" / "nvidia_h200.json", explained(512, 512, 512)
    tuned_for(key(512, 512, 512), TunedDevice("NVIDIA H200", "sm90", 66)).dump(path)
    assert explained(512, 512, 512) == before
    path.write_text('{"format": "jax_bwgemm tuning", ')
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert explained(512, 512, 512) == before


def test_each_of_two_kinds_of_gpus_has_its_cache_and_is_measured_itself(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TunedDevice("NVIDIA H100 PCIe", "sm90", 114)
    gpus = fake_gpu(), fake_gpu("Tesla T4", "7.5", 40), fake_gpu(other.kind, "9.0", 114)
    pretend(monkeypatch, *gpus)
    problem = key(512, 512, 512)
    tuned_for(problem, swizzle=2).dump(tmp_path / "cache" / "nvidia_h200.json")
    tuned_for(problem, other, swizzle=4).dump(tmp_path / "cache" / "nvidia_h100_pcie.json")
    assert explained(512, 512, 512).swizzle == 2
    for count, swizzle in ((132, 2), (114, 4)):
        with bw.config.target("sm90", count):
            text = lowered_text_of(array(512, 512), array(512, 512))
        assert f"swizzle = {swizzle} : i64" in text
    with pytest.raises(RuntimeError, match="autotune measures on a GPU: GPUs of different kinds"):
        devices.local_device()
    assert devices.local_device(other) == (gpus[2], Target("sm90", 114), other)
    with pytest.raises(RuntimeError, match=r"no TunedDevice\(kind='B200'.* is in this process"):
        devices.local_device(TunedDevice("B200", "sm100", 148))


def test_the_gpu_that_is_measured_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    other = TunedDevice("NVIDIA H100 PCIe", "sm90", 114)
    gpus = fake_gpu(), fake_gpu(other.kind, "9.0", 114)
    pretend(monkeypatch, *gpus)
    default = runtime.device_target(gpus[1])
    monkeypatch.setattr(runtime, "local_target", lambda: default)
    assert devices.local_device() == (gpus[1], Target("sm90", 114), other)
    assert devices.local_device(H200) == (gpus[0], Target("sm90", 132), H200)


# --- the policy on a miss ---


def test_a_miss_is_an_error_where_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = key(512, 512, 512)
    with bw.config.tuning_miss("error"):
        with pytest.raises(bw.TuningMissError, match=r"no tuned entry for 512x512x512 kn .*sm90"):
            explained(512, 512, 512)
        with tuned_for(problem):
            assert explained(512, 512, 512).swizzle == 2
        with bw.config.tuning_miss("heuristic"):
            assert explained(512, 512, 512).kernel
    monkeypatch.setenv("BWGEMM_TUNING_MISS", "error")
    with pytest.raises(bw.TuningMissError):
        explained(512, 512, 512)


def test_a_miss_is_measured_where_wanted_once_and_kept(
    gpu: None, clock: list[Choice], tmp_path: Path
) -> None:
    before = explained(4096, 4096, 4096)
    with bw.config.tuning_miss("autotune"):
        text = lowered_text(jax.jit(bw.matmul), array(4096, 4096), array(4096, 4096))
        measured = len(clock)
        got = explained(4096, 4096, 4096)
    assert measured == len(clock) > 0
    assert got.kernel in text
    assert got.kernel != before.kernel
    saved = TuningTable.load(tmp_path / "cache" / "nvidia_h200.json")
    assert saved.get(key(4096, 4096, 4096)).kernel == got.kernel
    assert explained(4096, 4096, 4096).kernel == got.kernel  # without the policy: by the cache
    with bw.config.tuning_miss("autotune"):
        assert explained(4096, 4096, 4096).kernel == got.kernel
        assert measured == len(clock)
        explained(4096, 4096, 2048)  # another problem
    assert measured < len(clock)


def test_a_miss_is_measured_with_the_cache_switched_off(
    gpu: None, clock: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "off")
    with bw.config.tuning_miss("autotune"):
        first = explained(4096, 4096, 4096)
        explained(4096, 4096, 2048)  # another problem, beside which the first one is kept
        measured = len(clock)
        assert explained(4096, 4096, 4096) == first
    assert measured == len(clock)


def test_a_miss_is_measured_where_the_cache_cannot_be_written(
    gpu: None, clock: list[Choice], tmp_path: Path
) -> None:
    (tmp_path / "cache" / "nvidia_h200.json").mkdir(parents=True)
    ignored = pytest.warns(RuntimeWarning, match=r"json is ignored: .*json: a folder and not")
    not_kept = pytest.warns(RuntimeWarning, match=r"tuning is not kept: .*json: a folder and not")
    with bw.config.tuning_miss("autotune"):
        with ignored, not_kept:
            first = explained(4096, 4096, 4096)
        measured = len(clock)
        assert explained(4096, 4096, 4096) == first
    assert measured == len(clock) > 0


def test_the_caches_of_versions_before_are_found(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BWGEMM_TUNING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problem = key(512, 512, 512)
    tuned_for(problem, swizzle=4).dump(tmp_path / "jax_bwgemm/tuning-v1/nvidia_h200.json")
    got = explained(512, 512, 512)
    assert got.swizzle == 4
    assert "the tuning cache of an older version" in got.reason
    for version, swizzle in ((2, 8), (3, 16)):  # the latest counts
        path = tmp_path / f"jax_bwgemm/tuning-v{version}/nvidia_h200.json"
        tuned_for(problem, swizzle=swizzle).dump(path)
        assert explained(512, 512, 512).swizzle == swizzle


def test_a_miss_of_a_problem_without_a_kernel_is_left_to_xla(
    clock: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SM100 grid has no room for so many matrices."""
    pretend(monkeypatch, fake_gpu("NVIDIA B200", "10.0", 148))
    many = array(2**16, 64, 64)
    before = bw.explain(many, many, device="sm100")
    with bw.config.tuning_miss("autotune"):
        got = bw.explain(many, many, device="sm100")
    assert got == before
    assert got.implementation == "xla"
    assert not clock


def test_a_miss_without_a_gpu_falls_to_the_heuristic() -> None:
    before = explained(512, 512, 512)
    with bw.config.tuning_miss("autotune"):
        assert explained(512, 512, 512).kernel == before.kernel


def test_unknown_policies_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="tuning_miss: unknown policy 'guess'; known are"):
        bw.config.tuning_miss("guess")
    monkeypatch.setenv("BWGEMM_TUNING_MISS", "guess")
    with pytest.raises(ValueError, match="BWGEMM_TUNING_MISS: unknown policy 'guess'"):
        bw.matmul(jnp.zeros((8, 8), BF16), jnp.zeros((8, 8), BF16))


@pytest.mark.emulator
def test_a_miss_is_measured_in_the_middle_of_a_partitioned_compilation(
    cpu_devices: list[jax.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are compiled and run while XLA waits for the code of one device's part."""
    if runtime.load_emulator() is None:
        pytest.skip("the emulator was not built")
    target, kind, tuned = make_target("sm90", 2), TunedDevice("emulated", "sm90", 2), []

    def tune_one(problem: Key, kind: TunedDevice) -> TuningTable:
        tuned.append(problem)
        spec = spec_of(problem)
        ranked, _ = heuristics.rank(
            runtime.emulated_kernels(), spec, "bfloat16", dims_of(problem), target
        )
        choice, timer = Choice(ranked[1].kernel, "m", 1), kernel_timer.WallTimer()
        bench = Bench(work_of(problem, target, "emulator"), cpu_devices[0], timer)
        assert list(bench.measure([choice], 0.0)) == [choice]
        return TuningTable(kind, {problem: entry_for(choice.kernel.name)})

    monkeypatch.setattr(devices, "local_kind", lambda target: kind)
    monkeypatch.setattr(on_miss, "_tuner", tune_one)
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "off")
    mesh = Mesh(np.array(cpu_devices[:2]), ("x",))
    a = jax.device_put(np.ones((128, 64), BF16), NamedSharding(mesh, P("x")))
    b = jax.device_put(np.ones((64, 128), BF16), NamedSharding(mesh, P()))
    with bw.config.target("sm90", 2), bw.config.tuning_miss("autotune"):
        out = jax.jit(lambda a, b: bw.matmul(a, b, implementation="emulator"))(a, b)
    assert tuned == [key(64, 128, 64)]  # one device's part, once
    assert np.all(np.asarray(out, np.float32) == 64)


def test_a_miss_that_is_measured_keeps_what_the_cache_has(
    gpu: None, clock: list[Choice], tmp_path: Path
) -> None:
    path, other = tmp_path / "cache" / "nvidia_h200.json", key(512, 512, 512)
    tuned_for(other).dump(path)
    with bw.config.tuning_miss("autotune"):
        explained(4096, 4096, 4096)
    assert set(TuningTable.load(path)) == {other, key(4096, 4096, 4096)}
