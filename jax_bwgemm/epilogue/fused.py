"""What the primitives of a product and an elementwise function of it compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from jax_bwgemm.config import explicit_target
from jax_bwgemm.dense.contraction import DENSE
from jax_bwgemm.dense.primitive import gemm
from jax_bwgemm.epilogue.call import choose_linked
from jax_bwgemm.epilogue.costs import ALONE, Surroundings
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.product.contraction import Contraction, KernelCall
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.remembered import remembered


@dataclasses.dataclass(frozen=True, repr=False)
class Fused:
    """What is computed: hashable, the primitive's only parameter. Of other products: subclasses.

    Attributes:
        spec: The product.
        function: ``f(product, *operands)`` as a list of arrays, floating-point ones rounded.
        program: The same for kernels, of `as_matrix`.
        result_types: Types of the results.
        shape: Shape of the product that the function sees, and of every result but the sums over
            rows, which have the batch's dimensions and the last one.
        keeps_product: Whether the rounded product is returned as well, last: as `products` arrays.
        surroundings: What the function would cost outside the kernel.
        batch_dims: How many dimensions of ``shape`` are the batch of matrices, each with its own
            operands.
    """

    spec: Any
    function: Callable[..., list[jax.Array]]
    program: Program
    result_types: tuple[str, ...]
    shape: tuple[int, ...]
    keeps_product: bool = False
    surroundings: Surroundings = ALONE
    batch_dims: int = 0

    roles: ClassVar[tuple[str, ...]] = ("a", "b")  # of the product's operands
    sums_rows: ClassVar[bool] = True  # what is summed is summed over rows, not over columns
    contraction: ClassVar[Contraction] = DENSE

    @property
    def form(self) -> str:
        """``epilogue_form`` of a call."""
        return ""

    @property
    def products(self) -> int:
        """How many arrays of ``shape`` the product is, which the function gets."""
        return 1

    def parts(self, product: jax.Array) -> list[jax.Array]:
        """These arrays."""
        return [product]

    def whole(self, parts: Sequence[jax.Array]) -> jax.Array:
        """The product of its parts."""
        return parts[0]

    def factors(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The product's operands, and the epilogue's."""
        return operands[: len(self.roles)], operands[len(self.roles) :]

    def arrange(self, factors: Sequence[jax.Array], kernel: Kernel) -> dict[str, jax.Array]:
        """The product's operands as a kernel reads them, but for their shapes, by their roles."""
        del kernel
        return dict(zip(self.roles, factors, strict=True))

    def product(self, *factors: jax.Array) -> jax.Array:
        """The product by its own primitive."""
        return gemm(*factors, self.spec).reshape(self.shape)

    def apply(
        self, product: jax.Array, factors: Sequence[jax.Array], operands: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """The function by XLA, of a rounded product."""
        del factors
        return self.function(product, *operands)

    def tangents(self, factors: Sequence[Any], moved: Sequence[Any]) -> list[jax.Array]:
        """The product's tangents, by those of its factors: their sum is the whole.

        A product is linear in each of its first two factors, and depends on no others' values.
        """
        return [
            self.product(*factors[:i], tangent, *factors[i + 1 :])
            for i, tangent in enumerate(moved[:2])
            if not isinstance(tangent, ad.Zero)
        ]

    def describe(self, factors: Sequence[Any]) -> tuple[str, Any]:
        """The product in one line, and its sizes."""
        dims = self.contraction.dims(self.spec, *(x.shape for x in factors))
        return self.spec.describe([x.dtype.name for x in factors[:2]], dims), dims

    def choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str:
        """The kernel that computes the function too, or why there is none.

        Args:
            name: ``"cutlass"`` or ``"emulator"``.
            platform: JAX platform being lowered for.
            factors: The product's operands, or their types.
        """
        types = tuple((x.shape, x.dtype) for x in factors)
        what = self.spec, self.program, self.result_types, self.surroundings, self.form
        key = type(self), name, platform, explicit_target(), types, *what
        return remembered(key, lambda: self._choose(name, platform, factors))

    def _choose(self, name: str, platform: str, factors: Sequence[Any]) -> KernelCall | str:
        """What `choose` remembers: it depends on nothing that is not in the key there."""
        more = self.program, self.result_types, factors, self.surroundings
        return choose_linked(name, platform, self.spec, *more)

    def __repr__(self) -> str:
        operands = ", ".join(f"{x.dtype}:{x.axes}" for x in self.program.operands)
        results = " ".join(self.result_types)
        return f"<{self.spec}, {len(self.program.steps)} steps ({operands}) -> {results}>"

    @property
    def outputs(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and types of what is returned."""
        of_sums = (*self.shape[: self.batch_dims], self.shape[-1])
        summed = self.program.summed
        return [
            (of_sums if i in summed else self.shape, t) for i, t in enumerate(self.result_types)
        ]

    def attempts(self) -> tuple[Fused, ...]:
        """What kernels may be asked for, in order: all of it, then all but the sums."""
        values = [self.program.results[i] for i in self._whole]
        sums = {self.program.results[i] for i in self.program.summed}
        if not sums or self.form or not sums <= set(values) or set(values) == {0}:
            return (self,)
        program = dataclasses.replace(self.program, results=tuple(values), summed=())
        types = tuple(self.result_types[i] for i in self._whole)
        return self, dataclasses.replace(self, program=program, result_types=types)

    def completed(self, results: Sequence[jax.Array]) -> list[jax.Array]:
        """The results, of those of the attempt without sums: these are then of rounded values."""
        whole = dict(zip(self._whole, results, strict=True))
        of = {self.program.results[i]: x.astype(jnp.float32) for i, x in whole.items()}
        last = len(self.shape) - 1
        axes = tuple(range(self.batch_dims, last)) if self.sums_rows else (last,)
        return [
            whole[i] if i in whole else jnp.sum(of[self.program.results[i]], axes).astype(t)
            for i, t in enumerate(self.result_types)
        ]

    @property
    def _whole(self) -> list[int]:
        """The results that are not summed."""
        return [i for i in range(len(self.result_types)) if i not in self.program.summed]

    def with_product(self) -> Fused:
        """The same, which returns the product as well."""
        return dataclasses.replace(
            self,
            program=dataclasses.replace(
                self.program, results=(*self.program.results, *range(self.products))
            ),
            result_types=(*self.result_types, *[self.spec.out_dtype] * self.products),
            keeps_product=True,
        )
