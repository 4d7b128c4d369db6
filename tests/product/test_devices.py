"""Which GPU a kernel is selected for, where a machine or a program has several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_bwgemm as bw
from jax_bwgemm import compat, runtime
from jax_bwgemm.config import Target
from jax_bwgemm.product.devices import for_devices

HOPPER = SimpleNamespace(
    platform="gpu", device_kind="NVIDIA H200", compute_capability="9.0", core_count=132
)
BLACKWELL = SimpleNamespace(
    platform="gpu", device_kind="NVIDIA B200", compute_capability="10.0", core_count=148
)
CPU = SimpleNamespace(platform="cpu", device_kind="cpu")
BOTH = (
    "GPUs of different kinds (NVIDIA H200 with 132 multiprocessors, NVIDIA B200 with 148 "
    "multiprocessors) would need different kernels: use GPUs of one kind (jax.default_device, a "
    "mesh), jax_bwgemm.config.target or BWGEMM_TARGET_ARCH"
)
X = np.ones((64, 64), jnp.bfloat16)


def test_devices_of_one_kind_have_a_target() -> None:
    found = runtime.common_target([HOPPER, HOPPER, CPU])
    assert found == runtime.DeviceTarget(
        Target("sm90", 132), "NVIDIA H200 with 132 multiprocessors"
    )
    assert runtime.common_target([CPU]) is None
    assert runtime.common_target([]) is None


def test_devices_of_two_names_may_be_one_target() -> None:
    """As of an H100 and an H200: what a kernel is chosen for is the same."""
    other = SimpleNamespace(**{**vars(HOPPER), "device_kind": "NVIDIA H100 80GB HBM3"})
    assert runtime.common_target([HOPPER, other]).target == Target("sm90", 132)


def test_devices_of_different_kinds_have_none() -> None:
    assert runtime.common_target([HOPPER, BLACKWELL]) == runtime.DeviceTarget(None, BOTH)
    fewer = SimpleNamespace(**{**vars(HOPPER), "core_count": 114})
    assert runtime.common_target([HOPPER, fewer]).target is None


def test_devices_of_different_kinds_have_the_target_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "lowering_devices", lambda ctx: [HOPPER, BLACKWELL])
    monkeypatch.setattr(compat, "is_manual", lambda ctx: False)
    both, asked = ("cutlass", "xla"), Target("sm90", 132)
    assert for_devices(None, both, asked, lambda: "a product") == (both, asked)
    assert for_devices(None, both, None, lambda: "a product") == (("xla",), None)


def test_this_process_has_two_kinds_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "cuda_devices", lambda: [HOPPER, BLACKWELL])
    with jax.default_device(None):
        assert runtime.local_target() == runtime.DeviceTarget(None, BOTH)
    monkeypatch.setattr(runtime, "cuda_devices", lambda: [BLACKWELL, BLACKWELL])
    assert runtime.local_target().target == Target("sm100", 148)


@pytest.fixture
def mixed_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first four CPU devices pass for Hopper GPUs, the others for Blackwell ones."""
    known = runtime.common_target

    def common_target(devices: Sequence[Any]) -> Any:
        return known([HOPPER if d.id < 4 else BLACKWELL for d in devices])

    monkeypatch.setattr(runtime, "common_target", common_target)
    monkeypatch.setattr(runtime, "local_target", lambda: pytest.fail("the device is known"))
    jax.clear_caches()


def lowered(f: Any, *args: Any) -> str:
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.usefixtures("mixed_machine")
@pytest.mark.parametrize(("index", "arch"), [(0, "sm90"), (5, "sm100")])
def test_the_device_of_the_operands_decides(
    cpu_devices: list[jax.Device], index: int, arch: str
) -> None:
    x = jax.device_put(X, cpu_devices[index])
    assert f'kernel = "{arch}_' in lowered(lambda a: bw.matmul(a, a), x)
    sizes = jax.device_put(np.array([32, 32], np.int32), cpu_devices[index])
    w = jax.device_put(np.ones((2, 64, 64), jnp.bfloat16), cpu_devices[index])
    assert f'kernel = "{arch}_' in lowered(bw.ragged_dot, x, w, sizes)


@pytest.mark.usefixtures("mixed_machine")
def test_a_default_device_decides(cpu_devices: list[jax.Device]) -> None:
    for device, arch in ((cpu_devices[1], "sm90"), (cpu_devices[7], "sm100")):
        with jax.default_device(device):
            assert f'kernel = "{arch}_' in lowered(lambda a: bw.matmul(a, a), X)


@pytest.mark.usefixtures("mixed_machine")
@pytest.mark.parametrize("manual", [False, True])
def test_a_mesh_of_both_kinds_is_left_to_xla(cpu_devices: list[jax.Device], manual: bool) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=cpu_devices)
    x = jax.device_put(X, NamedSharding(mesh, P("x")))

    def f(implementation: Any) -> Any:
        def product(a: Any) -> Any:
            return bw.matmul(a, a.T, implementation=implementation)

        if not manual:
            return product
        return jax.shard_map(product, mesh=mesh, in_specs=P("x"), out_specs=P("x"))

    text = lowered(f(None), x)
    assert "stablehlo.dot_general" in text or "CustomSPMDPartitioning" in text
    assert 'kernel = "' not in text
    with pytest.raises(NotImplementedError) as refused:
        lowered(f("cutlass"), x)
    assert str(refused.value).endswith(BOTH)


def test_default_device(cpu_devices: list[jax.Device]) -> None:
    with jax.default_device(cpu_devices[3]):
        assert compat.default_device() == cpu_devices[3]
        assert bw.explain(X, X).implementation == "xla"
    with jax.default_device("cpu"):
        assert compat.default_device().platform == "cpu"
