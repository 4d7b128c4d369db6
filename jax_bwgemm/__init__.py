"""CUTLASS matrix multiplications for JAX on NVIDIA Blackwell and Hopper GPUs."""

from __future__ import annotations

from typing import Any

from jax_bwgemm import config as config
from jax_bwgemm import runtime as _runtime
from jax_bwgemm.gemm.api import dot_general as dot_general
from jax_bwgemm.gemm.api import matmul as matmul
from jax_bwgemm.gemm.explain import explain as explain
from jax_bwgemm.gemm.tuning_config import TuningConfig as TuningConfig

__version__ = "0.1.0"

# Registers the FFI targets, so that exported programs run wherever this package was imported.
_runtime.extension()

__all__ = ["DISABLE_EXPORT_CHECKS", "TuningConfig", "config", "dot_general", "explain", "matmul"]


def __getattr__(name: str) -> Any:
    # jax.export is slow to import and few programs need it.
    if name == "DISABLE_EXPORT_CHECKS":
        from jax_bwgemm.gemm.export import DISABLE_EXPORT_CHECKS

        return DISABLE_EXPORT_CHECKS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
