"""Test environment: 8 CPU devices, the kernel table, and what a GPU test needs.

CPU tests run on CPU devices even on a machine with a GPU. Where the extension was not built, the
kernel table is read from cc/gemm/kernels.def, so that everything above the FFI call is tested.
"""

from __future__ import annotations

import os

# Before jax is imported: its CPU client reads the flag once.
_DEVICES_FLAG = "--xla_force_host_platform_device_count=8"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES_FLAG}".strip()

import dataclasses  # noqa: E402
import re  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from jax.extend import backend as jax_backend  # noqa: E402

from jax_bwgemm import runtime  # noqa: E402
from jax_bwgemm.runtime import KernelInfo  # noqa: E402

# The same cases everywhere, every time: a failure is reproduced by running the test again.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")

KERNELS_DEF = Path(__file__).parent.parent / "cc" / "gemm" / "kernels.def"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def kernels_from_def(text: str) -> tuple[KernelInfo, ...]:
    """The kernel table as the build makes it from kernels.def: 16 kernels for each tile."""
    pattern = r"^BWGEMM_TILE\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\w+)\)"
    table = []
    for arch, tm, tn, tk, cm, cn, schedule in re.findall(pattern, text, re.MULTILINE):
        for in_name in ("bf16", "f16"):
            for out_name in (in_name, "f32"):
                for majors in ("kn", "kk", "mn", "mk"):
                    name = (
                        f"{arch}_{in_name}_{out_name}_{majors}_{tm}x{tn}x{tk}_{cm}x{cn}_{schedule}"
                    )
                    table.append(
                        KernelInfo(
                            name,
                            arch,
                            _DTYPES[in_name],
                            _DTYPES[out_name],
                            *majors,
                            *map(int, (tm, tn, tk, cm, cn)),
                            schedule,
                            stages=4,
                            alignment_bytes=16,
                        )
                    )
    return tuple(table)


def _gpu() -> jax.Device | None:
    client = jax_backend.backends().get("cuda")
    return client.local_devices()[0] if client is not None else None


def gpu_skip_reason(marks: set[str]) -> str | None:
    """Why a test with these markers cannot run on this machine; None when it can."""
    if not marks & {"gpu", "sm90", "sm100", "multigpu"}:
        return None
    gpu = _gpu()
    if gpu is None:
        return "no NVIDIA GPU"
    if runtime.extension() is None:
        return "the kernels were not built"
    target = runtime.device_target(gpu).target
    if target is None:
        return f"no kernels for {gpu.device_kind}"
    for arch in ("sm90", "sm100"):
        if arch in marks and target.arch != arch:
            return f"needs {arch}, this GPU is {target.arch}"
    if "multigpu" in marks and len(gpu.client.local_devices()) < 2:
        return "needs two GPUs"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    marks = {mark.name for mark in item.iter_markers()}
    reason = gpu_skip_reason(marks)
    if reason is None:
        return
    # BWGEMM_REQUIRE_GPU=1 turns "could not test" into a failure. Another architecture than this
    # GPU's, or more GPUs than it has, is not something this machine could have tested.
    if os.environ.get("BWGEMM_REQUIRE_GPU") == "1" and not marks & {"sm90", "sm100", "multigpu"}:
        pytest.fail(f"BWGEMM_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """CPU tests run on the CPU, whatever else the machine has."""
    if {m.name for m in request.node.iter_markers()} & {"gpu", "sm90", "sm100", "multigpu"}:
        yield
        return
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(autouse=True)
def _no_target_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BWGEMM_TARGET_ARCH", raising=False)


@pytest.fixture(scope="session", autouse=True)
def kernel_table() -> Iterator[tuple[KernelInfo, ...]]:
    """The kernels of this build, or those that kernels.def describes when there is no build."""
    if runtime.extension() is not None:
        yield runtime.kernels()
        return
    table = kernels_from_def(KERNELS_DEF.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "kernels", lambda: table)
        patch.setattr(runtime, "workspace_bytes", lambda *_: 4096)
        yield table


@pytest.fixture
def wide_kernels(
    kernel_table: tuple[KernelInfo, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Pretends that the bf16 kernels exist for f32 and f64 too.

    The rules then apply to types in which finite differences mean something. On the CPU the
    lowering is XLA's dot anyway, so no kernel is ever asked for.
    """
    wide = tuple(
        dataclasses.replace(k, name=f"{dtype}_{k.name}", in_dtype=dtype, out_dtype=dtype)
        for k in kernel_table
        if k.in_dtype == k.out_dtype == "bfloat16"
        for dtype in ("float32", "float64")
    )
    monkeypatch.setattr(runtime, "kernels", lambda: (*kernel_table, *wide))
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def cpu_devices() -> list[jax.Device]:
    """The 8 CPU devices that sharding tests spread over."""
    devices = jax.devices("cpu")
    assert len(devices) == 8
    return devices
