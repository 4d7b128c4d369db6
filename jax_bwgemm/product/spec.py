"""What the specifications of all products share, and the `Policy` that they carry. Pure."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Self

from jax_bwgemm.config import Target
from jax_bwgemm.product.kernel_config import KernelConfig

# The largest size: kernels count in 32 bits.
MAX_SIZE = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
    """How a product is to be computed, as opposed to what it is. Hashable.

    Attributes:
        implementations: Names to try in order, as in the public ``implementation=``.
        config: The user's constraints on the kernel.
        precision: The user's ``precision=``. It chooses among kernels that split two f32 operands;
            those of 16 bits multiply exactly and accumulate in f32, which satisfies every value
            that reaches them.
        target: Architecture chosen explicitly; None means that of the device at lowering.
        tuning: `tuning.context.Tuning` in force; None means the defaults.
        partial_sums: Type in which devices exchange the parts of a sum that is sharded; None is the
            result's.
    """

    implementations: tuple[str, ...] = ("cutlass", "xla")
    config: KernelConfig | None = None
    precision: Hashable = None
    target: Target | None = None
    tuning: Hashable = None
    partial_sums: str | None = None

    @property
    def only_kernels(self) -> bool:
        """Whether XLA may not compute the product."""
        return "xla" not in self.implementations


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductSpec(abc.ABC):
    """Everything static about a product except its operands' layout, which each kind adds.

    Hashable; the only parameter of the primitives.

    Attributes:
        out_dtype: Name of the result's dtype.
        reduce_batch: Sum the results over the batch, giving a batch of 1: the gradient of an
            operand that the batch shares.
        out_sharding: Sharding of D in its type, under a mesh with explicit axes; None lets it
            follow from the operands'.
        policy: How it is to be computed.
    """

    out_dtype: str = "bfloat16"
    reduce_batch: bool = False
    out_sharding: Hashable = None
    policy: Policy = Policy()

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What is multiplied, for messages: ``"dense"``, ``"m-grouped"``, ``"k-grouped"`` or
        ``"scaled"``.
        """

    @property
    @abc.abstractmethod
    def majors(self) -> str:
        """Contiguous dimensions of A and B in one word, as kernel names have them: ``"kn"``."""

    def with_policy(self, **changes: Any) -> Self:
        """The same product with another policy."""
        return dataclasses.replace(self, policy=dataclasses.replace(self.policy, **changes))

    def describe(self, dtypes: Sequence[str], dims: object) -> str:
        """The problem in one line, for messages.

        Args:
            dtypes: Names of A's and B's types.
            dims: The product's sizes.
        """
        name = "GEMM" if self.kind == "dense" else f"{self.kind} GEMM"
        types = f"{' x '.join(dtypes)} -> {self.out_dtype}"
        tail = " summed over the batch" if self.reduce_batch else ""
        return f"{name} {types}, majors {self.majors}, {dims}{tail}"

    def __str__(self) -> str:
        parts = [self.kind] if self.kind != "dense" else []
        parts += [self.majors, self.out_dtype]
        if self.reduce_batch:
            parts.append("reduce_batch")
        parts += self._more()
        for field in dataclasses.fields(Policy):
            value = getattr(self.policy, field.name)
            if value != field.default:
                parts.append(f"{field.name}={value}")
        if self.out_sharding is not None:
            parts.append(f"out_sharding={self.out_sharding}")
        return f"<{' '.join(parts)}>"

    def _more(self) -> list[str]:
        """What else the text of a kind shows."""
        return []


def common_batch(batches: Iterable[int]) -> int:
    """The batch of operands of which some are shared, of batch 1; it may be 0, or symbolic."""
    # JAX does not know whether a symbolic size is larger than 1, only that it is another one.
    return next((size for size in batches if size != 1), 1)
