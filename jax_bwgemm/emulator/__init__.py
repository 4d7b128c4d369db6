"""A functional emulator of Blackwell and Hopper GPUs: run their kernels, tcgen05 included, on any
CPU.

``matmul(..., implementation="emulator")`` executes this package's own SM100 and SM90 kernels here;
`Module` executes anybody's PTX over NumPy arrays. docs/emulator.md says what is modelled and what
is not.
"""

from jax_bwgemm.emulator.errors import EmulatorError, LaunchError, LaunchFault, PtxError
from jax_bwgemm.emulator.patching import last_ptx, substituted_ptx
from jax_bwgemm.emulator.picture import save_picture
from jax_bwgemm.emulator.ptx import Module, Param, TensorMap
from jax_bwgemm.emulator.settings import Rule, Settings, configure, rules, settings
from jax_bwgemm.emulator.stats import (
    LaunchStats,
    LaunchWarning,
    WarpStats,
    last_launch,
    launch_count,
    progress,
)
from jax_bwgemm.emulator.trace import Trace, last_trace

__all__ = [
    "EmulatorError",
    "LaunchError",
    "LaunchFault",
    "LaunchStats",
    "LaunchWarning",
    "Module",
    "Param",
    "PtxError",
    "Rule",
    "Settings",
    "TensorMap",
    "Trace",
    "WarpStats",
    "configure",
    "last_launch",
    "last_ptx",
    "last_trace",
    "launch_count",
    "progress",
    "rules",
    "save_picture",
    "settings",
    "substituted_ptx",
]
