"""CUTLASS matrix multiplications for JAX on NVIDIA Blackwell and Hopper GPUs.

- Products: `matmul`, `dot_general`; grouped: `ragged_dot`, `ragged_dot_general`.
- A whole program, unchanged: `accelerate`.
- Layers: `linear`, `gated_linear_unit`, `mlp`, `grouped_mlp`, `moe_mlp`,
  `linear_softmax_cross_entropy_loss`.
- Low precision: `autocast`, `quantize`, `scaled_matmul`, `scaled_ragged_dot`, `fp8_dot_general`,
  `fp8_ragged_dot`.
- What runs, and why: `explain`, `explain_program`. Tuning: `autotune`, `TuningConfig`.
- `config` has the switches, `emulator` runs kernels on a CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from jax_bwgemm import config as config
from jax_bwgemm import runtime as _runtime
from jax_bwgemm.dense.api import dot_general as dot_general
from jax_bwgemm.dense.api import matmul as matmul
from jax_bwgemm.dense.tuning_config import TuningConfig as TuningConfig
from jax_bwgemm.grouped.api import ragged_dot as ragged_dot
from jax_bwgemm.grouped.api import ragged_dot_general as ragged_dot_general
from jax_bwgemm.grouped.grouped_config import GroupedConfig as GroupedConfig
from jax_bwgemm.tuning import on_miss as _on_miss
from jax_bwgemm.tuning.context import TuningMissError as TuningMissError
from jax_bwgemm.tuning.records import TuningFileError as TuningFileError
from jax_bwgemm.tuning.table import TuningTable as TuningTable

__version__ = "0.2.0"

# Registers the FFI targets, so that exported programs run wherever this package was imported. Both
# modules are mapped, not read: their kernels stay on disk until one is used.
_runtime.extension()
_runtime.load_emulator()

__all__ = [
    "DISABLE_EXPORT_CHECKS",
    "EpilogueError",
    "GroupedConfig",
    "Recipe",
    "ScaledArray",
    "TuningConfig",
    "TuningFileError",
    "TuningMissError",
    "TuningTable",
    "accelerate",
    "autocast",
    "autotune",
    "config",
    "dequantize",
    "dot_general",
    "emulator",
    "explain",
    "explain_program",
    "explain_scaled_matmul",
    "explain_scaled_ragged_dot",
    "fp8_dot_general",
    "fp8_ragged_dot",
    "gated_linear_unit",
    "grouped_mlp",
    "linear",
    "linear_softmax_cross_entropy_loss",
    "matmul",
    "mlp",
    "moe_mlp",
    "quantize",
    "ragged_dot",
    "ragged_dot_general",
    "scaled_matmul",
    "scaled_ragged_dot",
]


def _tune_missing(*args: Any) -> TuningTable:
    from jax_bwgemm.tuning.autotuning import tune_missing  # what few programs need

    return tune_missing(*args)


_on_miss.register(_tune_missing)


# What few programs need, and the module that has it: imported when it is first used.
_LAZY = {
    "DISABLE_EXPORT_CHECKS": "product.export",
    "EpilogueError": "epilogue.tracing",
    "Recipe": "scaled.recipes",
    "ScaledArray": "scaled.scaled_array",
    "accelerate": "rewriting.decorator",
    "autocast": "rewriting.autocast",
    "autotune": "tuning.autotuning",
    "dequantize": "scaled.scaled_array",
    "explain": "dense.explain",
    "explain_program": "product.program_explanation",
    "explain_scaled_matmul": "scaled.explain",
    "explain_scaled_ragged_dot": "scaled.explain",
    "fp8_dot_general": "scaled.training",
    "fp8_ragged_dot": "scaled.ragged_training",
    "gated_linear_unit": "epilogue.linear",
    "grouped_mlp": "experts.mlp",
    "linear": "epilogue.linear",
    "mlp": "epilogue.mlp",
    "moe_mlp": "experts.layer",
    "linear_softmax_cross_entropy_loss": "loss.api",
    "quantize": "scaled.quantization",
    "scaled_matmul": "scaled.api",
    "scaled_ragged_dot": "scaled.ragged",
}


def __getattr__(name: str) -> Any:
    if name == "emulator":
        return importlib.import_module(f"{__name__}.emulator")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "emulator"})
