"""A GPU and a clock that are invented, for tests of tuning on machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax_bwgemm import runtime
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.tuning import autotuning, on_miss
from jax_bwgemm.tuning.keys import DenseKey, GroupedKey
from jax_bwgemm.tuning.records import Choice, TunedDevice

without_gpu = pytest.mark.skipif(
    runtime.local_target().target is not None, reason="this process has a GPU"
)

SM90 = make_target("sm90")
H200 = TunedDevice("NVIDIA H200", "sm90", 132)
BF16 = jnp.bfloat16


def table_for(target: Target) -> list[Kernel]:
    """This build's kernels for a GPU."""
    return [k for k in runtime.kernels() if k.arch == target.arch]


def key(m: int, n: int, k: int, majors: str = "kn", batch: int = 1, shared: str = "none") -> Any:
    return DenseKey("bfloat16", "bfloat16", majors, m, n, k, batch, shared)


def grouped_key(m: int, n: int, k: int, groups: int, majors: str = "kn", **more: Any) -> GroupedKey:
    kind = "k-grouped" if majors == "mn" else "m-grouped"
    fields = {"groups": groups, "experts": groups} | more
    return GroupedKey(kind, "bfloat16", "bfloat16", majors[1], m, n, k, **fields)


GROUPED_KINDS = [
    grouped_key(4096, 1024, 768, 8),
    grouped_key(4096, 768, 1024, 8, "kk"),
    grouped_key(4096, 1024, 768, 8, "mn"),
    grouped_key(4096, 1024, 768, 8, shares=((6, 0), (2, 64))),
]


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, BF16)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BWGEMM_TUNING_MISS", raising=False)
    monkeypatch.setattr(on_miss, "measured", {})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretends that this process has an H200, as far as selection looks."""
    pretend(monkeypatch, fake_gpu())
    jax.clear_caches()
    yield
    jax.clear_caches()


def fake_gpu(kind: str = H200.kind, capability: str = "9.0", sm_count: int = 132) -> Any:
    return SimpleNamespace(
        device_kind=kind, platform="gpu", compute_capability=capability, core_count=sm_count
    )


def pretend(monkeypatch: pytest.MonkeyPatch, *gpus: Any) -> None:
    """Lets this process have GPUs, as far as selection and tuning look."""
    monkeypatch.setattr(runtime, "cuda_devices", lambda: list(gpus))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    """Times by rule: ping-pong beats cooperative, then raster m, then the wider swizzle."""
    measured: list[Choice] = []

    def measure(choices: Any) -> dict[Choice, float]:
        measured.extend(choices)
        return {c: rule(c) for c in choices}

    invent_times(monkeypatch, measure)
    return measured


def invent_times(
    monkeypatch: pytest.MonkeyPatch, measure: Callable[[Any], dict[Choice, float]]
) -> None:
    """Tuning takes its times from `measure`, of the choices of each pass."""

    class FakeBench:
        failures: tuple = ()

        def __init__(self, *_: Any) -> None:
            pass

        def measure(self, choices: Any, deadline: float) -> dict[Choice, float]:
            del deadline
            return measure(choices)

    timer = SimpleNamespace(method="cupti")
    monkeypatch.setattr(autotuning, "Bench", FakeBench)
    monkeypatch.setattr(autotuning, "make_timer", lambda _: timer)


def rule(choice: Choice) -> float:
    us = 10.0 + (choice.kernel.schedule != "pingpong") + choice.kernel.tile_n / 1000
    return us + (choice.raster_order != "m") / 2 + 1 / choice.swizzle / 4 + choice.splits
