"""`Contraction`: what a family of products is, for the code that is written once for all.

Partitioning, lowering, support, explanations and the primitives' rules are in this package. They
use operands, named dimensions and sizes. `jax_bwgemm.dense` and `jax_bwgemm.grouped` define these
by one object of this class each. `Operands` is the part that partitioning needs; scaled products
have only that, and their other rules in `scaled/family.py`.

Names of dimensions are one letter: ``b`` batch, ``m`` rows of D, ``n`` its columns, ``k``
contracted; grouped products also have ``e`` matrices and ``g`` groups.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from jax_bwgemm.config import Target
from jax_bwgemm.product.selection import Selection
from jax_bwgemm.product.spec import ProductSpec

Axes = tuple[str, ...]
NamedAxes = Mapping[str, Axes]
# Computes a product: operands, then the specification.
Run = Callable[..., jax.Array]


class Dims(Protocol):
    """Sizes of one product."""

    batch: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply: the result is empty or all zeros."""

    @property
    def extents(self) -> Mapping[str, int]:
        """Size of every dimension, by name; of one that has blocks, how many of these."""

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch of every operand: that of the product, or 1 where it is shared."""


@dataclasses.dataclass(frozen=True)
class Folded:
    """An equivalent product for one device, whose operands are rearranged first.

    Attributes:
        spec: The product as the kernel sees it, before padding.
        shapes: Shape of every operand.
        perms: Transpose (a copy) of every operand before it is reshaped, or None.
    """

    spec: Any
    shapes: tuple[tuple[int, ...], ...]
    perms: tuple[tuple[int, ...] | None, ...]


@dataclasses.dataclass(frozen=True)
class FfiCall:
    """What a kernel call looks like in a program.

    Attributes:
        target: Name of the custom call.
        scratch: Bytes of device memory that the kernel needs besides operands and results.
        config: The call's attributes.
    """

    target: str
    scratch: int
    config: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """One FFI call, fully decided.

    Attributes:
        implementation: ``"cutlass"`` or ``"emulator"``.
        selection: Kernel and run-time attributes, with reasons.
        target: The GPU it was selected for.
        folded: The problem as the kernel sees it, before padding.
        dims: Its sizes before padding.
        padded: Its sizes as the kernel sees them.
        ffi: What is written into the program; None until `Contraction.ffi_call` has made it.
        terms: How the kernel's operands are made of the product's (`product/terms.py`); None: they
            are the same.
    """

    implementation: str
    selection: Selection
    target: Target
    folded: Folded
    dims: Any
    padded: Any
    ffi: FfiCall | None = None
    terms: Any = None

    @property
    def reason(self) -> str:
        """Why this kernel, and which terms it multiplies."""
        return f"{f'{self.terms}; ' if self.terms else ''}{self.selection.reason}"


class Operands(abc.ABC):
    """The operands of a family of products and their dimensions: what partitioning needs to know.

    Attributes:
        operands: How many operands it has.
        whole: Dimensions that are never sharded.
    """

    operands: int
    whole: str = ""

    def block_of(self, spec: Any) -> int:
        """Elements in a block of `operand_names`."""
        del spec
        return 1

    # Shapes.

    @abc.abstractmethod
    def dims(self, spec: Any, *shapes: Sequence[int]) -> Any:
        """Sizes of a product from its operands' shapes.

        Raises:
            TypeError: The operands have the wrong rank or do not fit together.
        """

    @abc.abstractmethod
    def operand_names(self, spec: Any) -> tuple[str, ...]:
        """Names of every operand's dimensions in storage order.

        A capital letter counts blocks of `block_of` elements of the dimension of that name, which
        is only divided between blocks.
        """

    @abc.abstractmethod
    def out_names(self, spec: Any) -> str:
        """Names of D's dimensions."""

    def summed(self, spec: ProductSpec) -> list[str]:
        """Dimensions that are summed, in the order in which they get mesh axes."""
        present, kept = set("".join(self.operand_names(spec))), self.out_names(spec)
        return [
            d
            for d in "bkem"
            if d in present and (d not in kept or (d == "b" and spec.reduce_batch))
        ]

    def claims_first(self, spec: Any, dims: Any, b: NamedAxes, out: NamedAxes) -> NamedAxes:
        """Mesh axes that some dimensions get before any other dimension is considered.

        Args:
            spec: The problem.
            dims: Its global sizes.
            b: Mesh axes of B's sharding, by dimension name.
            out: Mesh axes of the sharding that D is to have.
        """
        del spec, dims, b, out
        return {}

    def on_shard(
        self,
        spec: Any,
        dims: Any,
        axes: NamedAxes,
        mesh_shape: Mapping[str, int],
        operands: tuple[jax.Array, ...],
    ) -> tuple[Any, tuple[jax.Array, ...]]:
        """One device's product: its specification and operands.

        Args:
            spec: The problem.
            dims: Its global sizes.
            axes: Mesh axes over which each dimension is sharded.
            mesh_shape: Size of each mesh axis.
            operands: The device's blocks.
        """
        del dims, axes, mesh_shape
        return spec, operands


class Contraction(Operands):
    """A family of products: dense or grouped.

    Attributes:
        missing: How a build without kernels of this family is described, after "installed without
            its kernels".
    """

    missing: str = ""

    @abc.abstractmethod
    def out_shape(self, spec: Any, dims: Any) -> tuple[int, ...]:
        """Shape of D."""

    # What computes it.

    @abc.abstractmethod
    def reference(self, operands: tuple[jax.Array, ...], spec: Any) -> jax.Array:
        """The product by XLA."""

    @abc.abstractmethod
    def typed_like(self, operands: tuple[jax.Array, ...], spec: Any) -> jax.Array:
        """A computation whose result has D's type. Only traced: for shardings in types."""

    @abc.abstractmethod
    def kernels(self, implementation: str) -> tuple[Any, ...]:
        """The kernels an implementation can run; empty when it was not built."""

    @abc.abstractmethod
    def largest(self, spec: Any, dims: Any) -> int:
        """The largest size that a kernel may have to count."""

    def rewrite(self, run: Run, operands: tuple[jax.Array, ...], spec: Any) -> jax.Array | None:
        """One device's product by other products; None if a kernel computes it as it is."""
        del run, operands, spec
        return None

    def fold(self, spec: Any, shapes: Sequence[Sequence[int]]) -> Folded:
        """The product that a kernel computes instead of one device's."""
        return Folded(spec, tuple(map(tuple, shapes)), (None,) * len(shapes))

    @abc.abstractmethod
    def aligned_dims(self, spec: Any, dims: Any, in_bytes: int, out_bytes: int) -> Any:
        """Sizes padded to what kernels require."""

    @abc.abstractmethod
    def padding_refusal(self, dims: Any, padded: Any) -> str | None:
        """Why an unaligned problem is left to XLA when the choice is free."""

    @abc.abstractmethod
    def select(
        self, spec: Any, in_dtype: str, dims: Any, target: Target, table: Sequence[Any]
    ) -> Selection | str:
        """The kernel for a problem of aligned sizes, or why there is none.

        ``in_dtype``: the operands' types, as `dtypes.operand_types` says them.

        Raises:
            TuningMissError: There is no tuned entry, and the policy on a miss is ``"error"``.
        """

    def writes_windows(self, call: KernelCall) -> bool:
        """Whether a call can write D as columns of a larger array."""
        del call
        return False

    @abc.abstractmethod
    def ffi_call(self, call: KernelCall) -> FfiCall:
        """What is written into the program for a kernel call.

        Raises:
            ValueError: The kernel refuses the sizes.
        """
