"""The GPUs of this process, as tuning tables know them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.tuning.records import TunedDevice


def local_device(kind: TunedDevice | None = None) -> tuple[Any, Target, TunedDevice]:
    """A CUDA GPU of this process, as JAX, selection and tuning tables know it.

    Args:
        kind: Which; None for the one that `runtime.local_target` speaks of.

    Raises:
        RuntimeError: There is none, no kernels for it, or several kinds and none was named.
    """
    local = runtime.local_target()
    if local.target is None and (kind is None or not any(_gpus())):
        reason = local.reason if runtime.cuda_devices() else "this process has no CUDA GPU"
        raise RuntimeError(f"autotune measures on a GPU: {reason}")
    if not runtime.kernels():
        raise RuntimeError("autotune: jax_bwgemm was installed without its compiled kernels")
    for found in _gpus():
        if found[2] == kind or (kind is None and found[1] == local.target):
            return found
    raise RuntimeError(f"autotune: no {kind} is in this process")


def local_kind(target: Target) -> TunedDevice | None:
    """The first GPU of this process that is what kernels are selected for; None if none is."""
    return next((kind for _, own, kind in _gpus() if own == target), None)


def _gpus() -> Iterator[tuple[Any, Target, TunedDevice]]:
    """The GPUs of this process that kernels exist for: there may be several kinds."""
    for device in runtime.cuda_devices():
        target = runtime.device_target(device).target
        if target is not None:
            yield device, target, TunedDevice(device.device_kind, target.arch, target.sm_count)
