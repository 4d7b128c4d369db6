"""The part of sanitize_gpu.py with code linked into kernels of low precision.

Scaled products with an epilogue in them, and quantizations that compute their operand. On small
integers and scales that are powers of two everything is exact, and XLA computes the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import ml_dtypes  # noqa: F401  (numpy then knows the types by name)
import numpy as np
import sanitize_scaled


def epilogue(z: Any, bias: Any, residual: Any, column: Any) -> tuple[Any, Any, Any]:
    """Every kind of operand, two results and the sum of one over rows."""
    import jax.numpy as jnp

    z = z + bias.astype(jnp.float32)
    out = jnp.where(z > 0, z, z * 0.25) * column + residual.astype(jnp.float32)
    return out, z, jnp.sum(out, 0)


def operand_of_quantization(gradient: Any, y: Any) -> Any:
    """A gradient of both halves of ``y``, side by side."""
    import jax.numpy as jnp

    gate, up = jnp.split(y, 2, axis=-1)
    return jnp.concatenate([gradient * up, jnp.where(gate > 0, gradient, -gradient)], axis=-1)


@contextlib.contextmanager
def linked_for(kernel: str, implementation: str) -> Iterator[None]:
    """Linking is on, in the emulator for the kernel's architecture."""
    import jax_bwgemm as bw

    with contextlib.ExitStack() as stack:
        stack.enter_context(bw.config.linked_epilogues(True))
        if implementation == "emulator":
            stack.enter_context(bw.config.target(kernel.split("_")[0], 4))
        yield


@dataclasses.dataclass(frozen=True)
class ScaledLinkedCase(sanitize_scaled.ScaledCase):
    """One launch of a scaled product with `epilogue` in it."""

    def given(self) -> tuple[list[Any], list[np.ndarray], np.ndarray]:
        """A and B, the epilogue's operands, and the exact product."""
        import jax_bwgemm as bw

        rng = np.random.default_rng(self.seed)
        shapes = ((1, self.m, self.k), (1, self.n, self.k))
        found, (a, b) = sanitize_scaled.random_operands(rng, shapes, self.scalings, self.types)
        scaled = [
            bw.ScaledArray(found[x][0], found[f"{x}_scales"][0], scaling)
            for x, scaling in zip("ab", self.scalings, strict=True)
        ]
        sizes = ((self.n,), self.types[2]), ((self.m, self.n), self.types[2])
        arrays = [
            rng.integers(-2, 3, shape).astype(np.dtype(dtype))
            for shape, dtype in (*sizes, ((self.m, 1), "float32"))
        ]
        return scaled, arrays, (a[0] @ b[0].T).astype(np.float32)

    def compiled(self, implementation: str) -> Callable[..., Any]:
        """The kernel, linked: a function of A, B and the epilogue's operands.

        Raises:
            ValueError: The kernel does not take the epilogue along.
        """
        import jax

        import jax_bwgemm as bw
        from jax_bwgemm.epilogue import scaled_call
        from jax_bwgemm.epilogue.linkable import linkable_kernels

        table = {self.kernel: linkable_kernels()[self.kernel]}
        (a, b), arrays, _ = self.given()
        sums = "_sums_" in self.kernel

        def call(a: Any, b: Any, *arrays: Any) -> Any:
            return bw.scaled_matmul(
                a, b, accumulation="fast" if sums else "promoted",
                implementation=implementation, epilogue=epilogue, epilogue_operands=arrays,
            )  # fmt: skip

        with (
            linked_for(self.kernel, implementation),
            mock.patch.object(scaled_call, "linkable_kernels", return_value=table),
            mock.patch.object(scaled_call, "pass_cycles", return_value=float("inf")),
        ):
            lowered = jax.jit(call).lower(a, b, *arrays)
        if self.kernel not in lowered.as_text() or "epilogue_digest" not in lowered.as_text():
            raise ValueError(f"not linked: {self}")
        return lowered.compile()

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        import jax

        (a, b), arrays, product = self.given()
        got = jax.device_get(self.compiled(implementation)(a, b, *arrays))
        wanted = jax.device_get(jax.jit(epilogue)(product, *arrays))
        pairs = zip(got, wanted, strict=True)
        return all(sanitize_scaled.equal(x, y.astype(x.dtype)) for x, y in pairs)


@dataclasses.dataclass(frozen=True)
class SourceCase:
    """One quantization of `operand_of_quantization`.

    Attributes:
        kernel: Name of the kernel.
        dtype: Type of what is quantized.
        scaling: Layout of the scales.
        rows, half: Sizes; the operand has twice as many columns.
        random: Whether rounding is stochastic.
    """

    kernel: str
    dtype: str
    scaling: str
    rows: int
    half: int
    random: bool

    def __str__(self) -> str:
        return f"{self.kernel} {self.scaling} {self.rows}x{2 * self.half}"

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares.

        Raises:
            ValueError: The kernel does not compute the operand.
        """
        import jax

        import jax_bwgemm as bw

        rng = np.random.default_rng(0)
        columns = self.half, 2 * self.half
        arrays = [rng.integers(-4, 5, (self.rows, n)).astype(np.dtype(self.dtype)) for n in columns]

        def quantized(*arrays: Any, implementation: str) -> Any:
            x = operand_of_quantization(*arrays)
            key = jax.random.key(3) if self.random else None
            return bw.quantize(
                x, self.scaling, transposed=True, key=key, implementation=implementation
            )

        with linked_for(self.kernel, implementation):
            ours = bw.accelerate(lambda *given: quantized(*given, implementation=implementation))
            lowered = jax.jit(ours).lower(*arrays)
        if f'"{self.kernel}"' not in lowered.as_text():
            raise ValueError(f"not linked: {self}")
        got = jax.device_get(lowered.compile()(*arrays))
        wanted = jax.jit(lambda *given: quantized(*given, implementation="xla"))(*arrays)
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(jax.device_get(wanted)), strict=True)
        return all(sanitize_scaled.equal(x, y) for x, y in pairs)


def cases(arch: str, pattern: str) -> list[ScaledLinkedCase | SourceCase]:
    """Every kernel whose name the pattern is in that code is linked into, with ragged edges."""
    from jax_bwgemm import runtime
    from jax_bwgemm.epilogue.linkable import linkable_kernels

    found: list[ScaledLinkedCase | SourceCase] = []
    for k in runtime.scaled_kernels():
        if k.arch != arch or k.name not in linkable_kernels() or not re.search(pattern, k.name):
            continue
        types = k.a_dtype, k.b_dtype, k.out_dtype
        sizes = k.tile_m + 7, k.tile_n + 24, (k.stages + 2) * k.tile_k + 16
        layouts = sanitize_scaled.layouts_of(k)
        pairs = dict.fromkeys((layouts[0], layouts[-1]))
        found += [ScaledLinkedCase(k.name, types, pair, *sizes) for pair in pairs]
    for dtype in ("bfloat16", "float16"):
        for random in (False, True):
            name = f"{arch}_quantize_{'random_' * random}{dtype}"
            if re.search(pattern, name):
                found.append(SourceCase(name, dtype, "1x128", 140, 136, random))
    return found
