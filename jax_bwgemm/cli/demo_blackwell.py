"""Demo section: the Blackwell 2-CTA kernel, executed instruction by instruction on this CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from jax_bwgemm import runtime
from jax_bwgemm.cli.sections import Check, Options, Section

KERNEL = "sm100_bf16_bf16_kn_256x256x64_2x1_2sm"
# One tile of the kernel, and K of several pipeline stages.
M, N, K = 256, 256, 512


def _missing() -> str | None:
    """Why this build cannot run the section: a smaller build is no failure of the demo."""
    if runtime.load_emulator() is None:
        return "the emulator was not built (BWGEMM_EMULATOR=OFF)"
    if all(k.name != KERNEL for k in runtime.emulated_kernels()):
        return f"this build has no {KERNEL}"
    return None


def _run(options: Options, say: Callable[[str], None]) -> Sequence[Check]:
    if reason := _missing():
        say(f"  left out: {reason}")
        return []
    from jax_bwgemm import emulator
    from jax_bwgemm.emulator.dense import find_kernel, reference, run_gemm

    kernel = find_kernel(KERNEL)
    rng = np.random.default_rng(options.seed)
    a, b = (rng.integers(-2, 3, shape).astype(jnp.bfloat16) for shape in ((1, M, K), (1, K, N)))
    say(f"  {M}x{N}x{K} on {kernel.name}: its PTX, its TMA descriptors, its tensor memory")
    with emulator.configure(seed=options.seed, sm_count=2):
        got = run_gemm(kernel, a, b)
    stats = emulator.last_launch()
    if stats is not None:
        for line in stats.table().splitlines():
            say(f"  {line}")
    want = reference(kernel, a, b).astype(np.float32).astype(jnp.bfloat16)
    return [Check("one tile, integers: elements that differ", float(np.sum(got != want)), None, 0)]


SECTION = Section(
    "blackwell", "A Blackwell tile on this machine's CPU (emulated)", lambda: None, _run
)
