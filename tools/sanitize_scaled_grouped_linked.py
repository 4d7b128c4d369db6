"""The part of sanitize_gpu.py with code linked into grouped scaled kernels.

Groups and layouts are those of sanitize_scaled_grouped.py. On small integers and scales that are
powers of two everything is exact, and XLA computes the same.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any
from unittest import mock

import ml_dtypes  # noqa: F401  (numpy then knows the types by name)
import numpy as np
import sanitize_scaled_grouped
from sanitize_grouped import OFFSET
from sanitize_scaled import equal
from sanitize_scaled_linked import linked_for


def epilogue(z: Any, residual: Any, column: Any, bias: Any, factor: Any) -> tuple[Any, Any, Any]:
    """Every kind of operand, the last two of groups, and three results."""
    import jax.numpy as jnp

    z = z * factor + bias.astype(jnp.float32)
    out = jnp.where(z > 0, z, z * 0.25) * column + residual.astype(jnp.float32)
    return out, z, (out > z).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class ScaledGroupedLinkedCase(sanitize_scaled_grouped.ScaledGroupedCase):
    """One launch of a grouped scaled product with `epilogue` in it."""

    def given(self) -> tuple[dict[str, Any], list[np.ndarray], list[np.ndarray], np.ndarray]:
        """Operands by their roles, the epilogue's, those of groups, and the exact product."""
        a, b, out = self.types
        exact = dataclasses.replace(self, types=(a, b, "float32"))
        operands, product = exact.operands()
        rng = np.random.default_rng(self.seed)

        def integers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return rng.integers(-2, 3, shape).astype(np.dtype(dtype))

        arrays = [integers((self.m, self.n), out), integers((self.m, 1), "float32")]
        of_groups = [
            integers((self.experts, self.n), out),
            integers((self.experts,), "float32"),
        ]
        return operands, arrays, of_groups, product[0]

    def compiled(self, implementation: str, operands: dict[str, Any], *more: Any) -> Any:
        """The results of the kernel, linked.

        Raises:
            ValueError: The kernel does not take the epilogue along.
        """
        import jax

        import jax_bwgemm as bw
        from jax_bwgemm.epilogue import scaled_grouped_call

        a, b = (
            bw.ScaledArray(operands[x][0], operands[f"{x}_scales"][0], scaling)
            for x, scaling in zip("ab", self.scalings, strict=True)
        )
        sizes = operands["group_sizes"][0]

        def call(a: Any, b: Any, sizes: Any, arrays: Any, of_groups: Any) -> Any:
            return bw.scaled_ragged_dot(
                a,
                b,
                sizes,
                group_offset=OFFSET,
                accumulation="fast" if "_sums_" in self.kernel else "promoted",
                implementation=implementation,
                epilogue=epilogue,
                epilogue_operands=arrays,
                epilogue_group_operands=of_groups,
            )

        with (
            linked_for(self.kernel, implementation),
            mock.patch.object(scaled_grouped_call, "pass_cycles", return_value=float("inf")),
        ):
            lowered = jax.jit(call).lower(a, b, sizes, *more)
        if self.kernel not in lowered.as_text() or "epilogue_digest" not in lowered.as_text():
            raise ValueError(f"not linked: {self}")
        return lowered.compile()(a, b, sizes, *more)

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        import jax

        operands, arrays, of_groups, product = self.given()
        got = jax.device_get(self.compiled(implementation, operands, arrays, of_groups))
        ends = np.minimum(np.cumsum(np.maximum(self.sizes, 0)), self.m)
        rows = [np.zeros((self.m, x[0].size), x.dtype) for x in of_groups]
        for found, values in zip(rows, of_groups, strict=True):
            for e, value in enumerate(values):
                found[ends[OFFSET + e - 1] : ends[OFFSET + e]] = value
        wanted = jax.device_get(jax.jit(epilogue)(product, *arrays, *rows))
        pairs = zip(got, wanted, strict=True)
        return all(equal(x, y.astype(x.dtype)) for x, y in pairs)


def cases(arch: str, pattern: str) -> list[ScaledGroupedLinkedCase]:
    """Every kernel whose name the pattern is in that code is linked into.

    They are the cases of sanitize_scaled_grouped.py in the kernels' own order of tiles, but for
    block formats, whose scales these cases have as kernels read them, and for layouts that the
    package multiplies by another kernel.
    """
    from jax_bwgemm import runtime
    from jax_bwgemm.epilogue.linkable import linkable_kernels
    from jax_bwgemm.scaled.fit import scales_whole_sums

    found = []
    kernels = {k.name: k for k in runtime.scaled_grouped_kernels() if k.name in linkable_kernels()}
    for case in sanitize_scaled_grouped.cases(arch, pattern):
        kernel = kernels.get(case.kernel)
        if kernel is None or kernel.scales == "mma" or case.order == "vertical":
            continue
        a, b = case.scalings
        given = types.SimpleNamespace(a_scaling=a, b_scaling=b, accumulation="promoted")
        if kernel.scales != "sums" and scales_whole_sums(given, arch):
            continue
        found.append(ScaledGroupedLinkedCase(**dataclasses.asdict(case) | {"order": "heuristic"}))
    return found
