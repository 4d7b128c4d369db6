"""The GPUs of this process, as tuning tables know them."""

from __future__ import annotations

from typing import Any

from jax_bwgemm import runtime
from jax_bwgemm.compat import jax_backend
from jax_bwgemm.config import Target
from jax_bwgemm.tuning.records import TunedDevice


def local_device() -> tuple[Any, Target, TunedDevice]:
    """The first CUDA GPU of this process, as JAX, selection and tuning tables know it.

    Raises:
        RuntimeError: There is none, or no kernels for it.
    """
    found = runtime.local_target()
    if found.target is None:
        raise RuntimeError(f"autotune measures on a GPU: {found.reason}")
    if not runtime.kernels():
        raise RuntimeError("autotune: jax_bwgemm was installed without its compiled kernels")
    device = jax_backend.backends()["cuda"].local_devices()[0]
    return device, found.target, _kind(device, found.target)


def local_kind(target: Target) -> TunedDevice | None:
    """This process's first GPU, if it is what kernels are selected for."""
    if runtime.local_target().target != target:
        return None
    return _kind(jax_backend.backends()["cuda"].local_devices()[0], target)


def _kind(device: Any, target: Target) -> TunedDevice:
    return TunedDevice(device.device_kind, target.arch, target.sm_count)
