"""Which products a scaled kernel fits: their types, and where they have scales. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_bwgemm.config import Target
from jax_bwgemm.product.kernel_config import KernelConfig
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.selection import none_fits
from jax_bwgemm.scaled.layouts import LAYOUTS, layout_of

_WHOLE_K = tuple(name for name, layout in LAYOUTS.items() if layout.block_k is None)
_OF_ROWS = ("row", "1x128")


def kernel_dtype(out_dtype: str) -> str:
    """What kernels write for a result: there are none for float16, which XLA makes of float32."""
    return "float32" if out_dtype == "float16" else out_dtype


def types_fit(kernel: Kernel, spec: Any, dims: Any) -> bool:
    """Whether a kernel has the types of a dense or grouped product."""
    types = (kernel.a_dtype, kernel.b_dtype, kernel.out_dtype)
    return types == (dims.a_dtype, dims.b_dtype, kernel_dtype(spec.out_dtype))


def scales_fit(kernel: Kernel, spec: Any) -> bool:
    """Whether a kernel applies a specification's layouts, with the accumulation asked for.

    SM100's accumulators are as precise as promoted sums.
    """
    if by_mma(spec) or kernel.scales == "mma":
        return by_mma(spec) and kernel.scales == "mma"
    whole = scales_whole_sums(spec, kernel.arch)
    if whole or kernel.scales == "sums":
        return whole and kernel.scales == "sums"
    along_n = spec.a_scaling if kernel.swap_ab else spec.b_scaling
    return (along_n in _OF_ROWS) == (kernel.scales == "rows")


def satisfying(
    fitting: Sequence[Kernel], config: KernelConfig | None, target: Target
) -> list[Kernel] | str:
    """The kernels that satisfy a user's configuration, or what is against each."""
    if config is None:
        return list(fitting)
    against = {k.name: config.mismatch(k) for k in fitting}
    found = [k for k in fitting if against[k.name] is None]
    rejected = [(name, reason) for name, reason in against.items() if reason is not None]
    return found or none_fits(fitting, rejected, config, target)


def scales_whole_sums(spec: Any, arch: str) -> bool:
    """Whether scales multiply sums over all of K, as the accumulation asked for allows."""
    whole_k = all(name in _WHOLE_K for name in (spec.a_scaling, spec.b_scaling))
    return whole_k and (spec.accumulation == "fast" or arch == "sm100")


def by_mma(spec: Any) -> bool:
    """Whether an operand has scales that MMA instructions read."""
    return any(layout_of(name).read_by_mma for name in (spec.a_scaling, spec.b_scaling))
