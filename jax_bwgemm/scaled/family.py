"""What the primitives of scaled products, dense and grouped, have in common."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import core
from jax.interpreters import batching, mlir

from jax_bwgemm import compat, compat_checkpoint, compat_transforms
from jax_bwgemm.compat import Primitive
from jax_bwgemm.config import Target, make_target
from jax_bwgemm.product import targets
from jax_bwgemm.product.contraction import Operands
from jax_bwgemm.product.devices import first_that_runs, for_devices, register_local
from jax_bwgemm.product.implementations import (
    SYMBOLIC,
    check_config,
    log_once,
    missing_kernels,
    target_here,
    viable,
)
from jax_bwgemm.product.kernels import Kernel
from jax_bwgemm.product.local import binder
from jax_bwgemm.product.partition import partitioned
from jax_bwgemm.product.primitive import EXPLAINED_BY
from jax_bwgemm.product.spec import common_batch
from jax_bwgemm.scaled.selection import Choice


class Family(abc.ABC):
    """Scaled products of one kind, and their primitive. It has no derivative.

    Attributes:
        contraction: What partitioning knows of them.
        roles: Of the operands, in order, as `targets.configure` names them.
        primitive: The primitive, bound by `product` alone.
    """

    contraction: Operands
    roles: tuple[str, ...]

    def __init__(self, name: str) -> None:
        self.primitive = Primitive(name)
        # The one-device primitive that partitioning produces.
        local = Primitive(f"{name}_local")
        self._local = binder(local)
        self._partitioned = partitioned(self.contraction, self._local)
        compat.implement_by_jit(self.primitive, "spec")
        self.primitive.def_abstract_eval(self._abstract_eval)
        EXPLAINED_BY[self.primitive] = "jax_bwgemm.scaled.explain"
        local.def_abstract_eval(self._local_abstract_eval)
        batching.primitive_batchers[self.primitive] = self._batch
        compat_checkpoint.checkpoint_as_dot(self.primitive, self.dot_numbers)
        compat_transforms.check_nans(self.primitive)
        compat.lower_with_devices(self.primitive)
        self._compiled_reference = compat.compiled_outside(
            lambda spec, *operands: self.reference(*operands, spec=spec), 0
        )
        mlir.register_lowering(self.primitive, compat.keep_typed_sharding(self._lower))
        register_local(local, lambda platform: functools.partial(self._run_on_device, platform))

    # What each kind defines.

    @abc.abstractmethod
    def dims_of(self, operands: Sequence[Any], spec: Any) -> Any:
        """Sizes from anything with shapes and types."""

    @abc.abstractmethod
    def out_shape(self, dims: Any, spec: Any) -> tuple[int, ...]:
        """Shape of D."""

    @abc.abstractmethod
    def table_of(self, implementation: str) -> tuple[Kernel, ...]:
        """The kernels of an implementation."""

    @abc.abstractmethod
    def fitting(self, table: Sequence[Kernel], spec: Any, dims: Any) -> list[Kernel]:
        """The kernels of any GPU that have a product's kind, types and use of scales."""

    @abc.abstractmethod
    def refusal(self, table: Sequence[Kernel], spec: Any, dims: Any) -> str | None:
        """Why no kernel can run a product on any GPU; None when one may."""

    @abc.abstractmethod
    def select(self, table: Sequence[Kernel], spec: Any, dims: Any, target: Target) -> Choice | str:
        """The kernel for a product that `refusal` has nothing against, or why a GPU has none."""

    @abc.abstractmethod
    def reference(self, *operands: jax.Array, spec: Any) -> jax.Array:
        """The products by XLA."""

    @abc.abstractmethod
    def dot_numbers(self, a: Any, b: Any, *more: Any, spec: Any) -> compat.DimensionNumbers:
        """Dimension numbers of such a product by ``lax.dot_general``, for checkpoint policies."""

    @abc.abstractmethod
    def call_options(self, choice: Choice) -> dict[str, int | str]:
        """Options of the kernel's call."""

    @abc.abstractmethod
    def workspace(self, name: str, choice: Choice, dims: Any) -> int:
        """Bytes of scratch memory that the call needs."""

    def kernel_operands(self, operands: Sequence[jax.Array], spec: Any) -> dict[str, jax.Array]:
        """The operands as kernels read them, by their roles."""
        del spec
        return dict(zip(self.roles, operands, strict=True))

    def call_operands(
        self, operands: Sequence[jax.Array], spec: Any, kernel: Kernel
    ) -> dict[str, jax.Array]:
        """The operands of a kernel's call, by their roles."""
        del kernel
        return self.kernel_operands(operands, spec)

    def emulated_arch(self, spec: Any) -> str:
        """The architecture that the emulator emulates if no GPU is named."""
        del spec
        return "sm90"

    # What all kinds share.

    def product(self, operands: Sequence[jax.Array], spec: Any) -> jax.Array:
        """The products by the first implementation that can.

        Args:
            operands: Of `roles`; the first dimension of each is the batch or 1.
            spec: What to compute.

        Raises:
            NotImplementedError: No implementation can run it (several: an ExceptionGroup of these).
        """
        names = self.viable_implementations(spec, self.dims_of(operands, spec), [])
        spec = spec.with_policy(implementations=names)
        if names[0] == "xla":
            return self._compiled_reference(spec, *operands)
        return self.primitive.bind(*compat.match_varying(*operands), spec=spec)

    def viable_implementations(
        self, spec: Any, dims: Any, rejected: list[tuple[str, str]]
    ) -> tuple[str, ...]:
        """Those left to try, knowing everything but the device. Reasons are logged once.

        Raises:
            NotImplementedError, ValueError: As `check_config`.
        """
        config = spec.policy.config

        def refuse(name: str) -> str | None:
            table = self.table_of(name)
            if not table:
                return missing_kernels(name, config, " for scaled operands")
            if not all(isinstance(x, int) for x in (dims.batch, dims.m, dims.n, dims.k)):
                return SYMBOLIC
            if config is not None:
                check_config(
                    config,
                    table,
                    self.fitting(table, spec, dims),
                    lambda k: f"does not compute {dims.describe(spec)}",
                )
            return self.refusal(table, spec, dims)

        return viable(spec.policy.implementations, dims.describe(spec), refuse, rejected)

    def choose(
        self, name: str, platform: str, spec: Any, dims: Any, target: Target | None
    ) -> Choice | str:
        """The kernel of an implementation on a platform, or why it has none there.

        Args:
            name: ``"cutlass"`` or ``"emulator"``.
            platform: JAX platform being lowered for.
            spec: The product.
            dims: Its sizes.
            target: The GPU, if it is known; the emulator's is else that of `emulated_arch`.
        """
        found = self.gpu(name, platform, spec, target)
        return (
            found if isinstance(found, str) else self.select(self.table_of(name), spec, dims, found)
        )

    def gpu(self, name: str, platform: str, spec: Any, target: Target | None) -> Target | str:
        """The GPU that an implementation's kernel is for, or why it has none: see `choose`."""
        if target is None and name == "emulator":
            target = make_target(self.emulated_arch(spec))
        return target_here(name, platform, target)

    def emit(
        self, name: str, choice: Choice, operands: Sequence[jax.Array], spec: Any
    ) -> jax.Array:
        """The chosen kernel's call."""
        dims = self.dims_of(operands, spec)
        named = self.call_operands(operands, spec, choice.kernel)
        options = self.call_options(choice)
        return self.call(
            name, choice, named, self.workspace(name, choice, dims), dims, spec, **options
        )

    def call(
        self,
        name: str,
        choice: Choice,
        operands: Mapping[str, jax.Array],
        workspace: int,
        dims: Any,
        spec: Any,
        **options: int | str,
    ) -> jax.Array:
        """A call with operands by their roles, and its result as the product's type."""
        out = targets.call_kernel(
            name,
            choice.kernel.name,
            operands,
            jax.ShapeDtypeStruct(self.out_shape(dims, spec), choice.out_dtype),
            workspace,
            a_scaling=spec.a_scaling,
            b_scaling=spec.b_scaling,
            **options,
        )
        return targets.settled(name, out).astype(spec.out_dtype)

    def _abstract_eval(self, *operands: core.ShapedArray, spec: Any) -> core.ShapedArray:
        return compat.result_aval(
            lambda *args: self.reference(*args, spec=spec),
            self.out_shape(self.dims_of(operands, spec), spec),
            spec.out_dtype,
            *operands,
        )

    def _local_abstract_eval(self, *operands: core.ShapedArray, spec: Any) -> core.ShapedArray:
        dims = self.dims_of(operands, spec)
        return core.ShapedArray(self.out_shape(dims, spec), jnp.dtype(spec.out_dtype))

    def _batch(
        self, operands: Sequence[jax.Array], axes: Sequence[int | None], *, spec: Any
    ) -> tuple[jax.Array, int]:
        """Merges the new dimension into the batch; what all share stays of batch 1."""
        size = next(x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None)
        inner = common_batch(
            x.shape[0 if a != 0 else 1] for x, a in zip(operands, axes, strict=True)
        )

        def merged(x: jax.Array, axis: int | None) -> jax.Array:
            if axis is None:
                if x.shape[0] == 1:
                    return x
                x = jnp.broadcast_to(x, (size, *x.shape))
            else:
                x = jnp.moveaxis(x, axis, 0)
                x = jnp.broadcast_to(x, (size, inner, *x.shape[2:]))
            return x.reshape(size * inner, *x.shape[2:])

        out = self.product([merged(x, a) for x, a in zip(operands, axes, strict=True)], spec)
        return out.reshape(size, inner, *out.shape[1:]), 0

    def _lower(self, ctx: mlir.LoweringRuleContext, *operands: Any, spec: Any) -> Any:
        """Partitions over the mesh, unless the operands already are those of one device."""
        names, target = for_devices(
            ctx,
            spec.policy.implementations,
            spec.policy.target,
            lambda: self.dims_of(ctx.avals_in, spec).describe(spec),
        )
        given = spec.with_policy(implementations=names, target=target)
        function: Any = self._local if compat.is_manual(ctx) else self._partitioned
        rule = mlir.lower_fun(lambda *args: function(*args, given), multiple_results=False)
        return compat.without_types_of_axes(rule)(ctx, *operands)

    def _run_on_device(self, platform: str, *operands: jax.Array, spec: Any) -> jax.Array:
        dims = self.dims_of(operands, spec)
        what = dims.describe(spec)

        def attempt(name: str) -> jax.Array | str:
            # A device's part may be one that no kernel computes.
            refused = self.refusal(self.table_of(name), spec, dims)
            if refused is not None:
                return refused
            if dims.empty:  # no kernel has anything to run
                found = self.gpu(name, platform, spec, spec.policy.target)
                if isinstance(found, str):
                    return found
                return jnp.zeros(self.out_shape(dims, spec), spec.out_dtype)
            choice = self.choose(name, platform, spec, dims, spec.policy.target)
            if isinstance(choice, str):
                return choice
            log_once(f"{what}: {name} {choice}")
            return self.emit(name, choice, operands, spec)

        names = spec.policy.implementations
        return first_that_runs(what, names, attempt, lambda: self.reference(*operands, spec=spec))
