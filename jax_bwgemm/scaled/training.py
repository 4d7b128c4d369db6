"""`fp8_dot_general`: a `jax.lax.dot_general` whose three products have low precision."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.dense.validation import as_dimension_numbers, check_dot_general
from jax_bwgemm.product.arguments import as_array, as_dtype, as_key
from jax_bwgemm.product.dtypes import dot_dtype
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.scaled.api import OUT_DTYPES
from jax_bwgemm.scaled.layer import Layer, multiply, multiply_delayed
from jax_bwgemm.scaled.recipes import Recipe, as_recipe

_NAME = "fp8_dot_general"


def fp8_dot_general(
    recipe: str | Recipe = "blockwise",
    *,
    implementation: str | Sequence[str] | None = None,
) -> Fp8DotGeneral:
    """A function like `jax.lax.dot_general` that multiplies in 8 or 4 bits, gradients included.

    For ``flax.linen.Dense(dot_general=...)``, ``flax.nnx.Linear(dot_general=...)`` or a direct
    call. The call quantizes the operands, the backward pass the cotangent; both gradients are
    products of quantized operands.

    Args:
        recipe: ``"per_tensor"`` (current scaling: e4m3fn operands, e5m2 gradients),
            ``"per_tensor_delayed"`` (scales from earlier steps: see `Fp8DotGeneral.__call__`),
            ``"blockwise"`` (1x128 activations and gradients, 128x128 weights, scales that are
            powers of two), ``"blockwise_2d"`` (the same with 128x128 activations), ``"mxfp8"``,
            ``"nvfp4"`` (with a key for gradients), or a `Recipe`.
        implementation: As in `jax_bwgemm.matmul`, of the three products.

    Returns:
        A hashable function of lhs, rhs and dimension numbers; see `Fp8DotGeneral.__call__`.

    Raises:
        ValueError: An unknown recipe or implementation.
        TypeError: An implementation that is not a name.
    """
    return Fp8DotGeneral(as_recipe(recipe), as_implementations(implementation))


@dataclasses.dataclass(frozen=True)
class Fp8Function:
    """A recipe's product as a function.

    Attributes:
        recipe: Layouts and types.
        implementations: Names to try in order.
    """

    recipe: Recipe
    implementations: tuple[str, ...]

    def new_history(self) -> jax.Array:
        """The `amax_history` to begin with: [3, steps], of lhs, rhs and the cotangent.

        Raises:
            ValueError: The recipe keeps none.
        """
        if not self.recipe.history:
            raise ValueError(f"{self.recipe} keeps no amax_history")
        return jnp.zeros((3, self.recipe.history), jnp.float32)

    def check_history(self, history: Any) -> jax.Array:
        """Checks an argument ``amax_history``.

        Raises:
            TypeError: None, or another type or shape than `new_history` has.
        """
        shape = (3, self.recipe.history)
        is_array = hasattr(history, "shape") and hasattr(history, "dtype")
        if not is_array or history.shape != shape or history.dtype != jnp.float32:
            found = f"{history.dtype}{history.shape}" if is_array else repr(history)
            raise TypeError(
                f"delayed scaling requires amax_history, float32 {shape}, got {found}: see "
                f"{type(self).__name__}.new_history"
            )
        return history

    def check_key(self, function: str, key: Any) -> jax.Array | None:
        """Checks an argument ``key``.

        Raises:
            TypeError: No key.
            ValueError: The recipe has no use for one.
        """
        if key is not None and not self.recipe.needs_key:
            raise ValueError(f"{function}: {self.recipe} has no use for a key")
        return as_key(function, key)


@dataclasses.dataclass(frozen=True)
class Fp8DotGeneral(Fp8Function):
    """What `fp8_dot_general` returns. Instances are compared by value.

    Attributes:
        recipe: Layouts and types.
        implementations: Names to try in order.
    """

    def __call__(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: DTypeLike | None = None,
        *,
        out_sharding: Any = None,
        amax_history: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """The product, with the dimensions of `jax.lax.dot_general`.

        It has a reverse-mode derivative, once, and no forward-mode one.

        Args:
            lhs: Of any rank, bfloat16, float16 or float32: the activations.
            rhs: Likewise: the weights.
            dimension_numbers: As in `jax.lax.dot_general`.
            precision: None or DEFAULT.
            preferred_element_type: Type of the result, one of these three; None is that of
                `jax.lax.dot_general`. Gradients have their operand's type.
            out_sharding: As in `jax.lax.dot_general`, where mesh axes are explicit; else None.
            amax_history: State of a recipe with delayed scaling, float32 [3, steps]: largest
                magnitudes of lhs, rhs and the cotangent, the latest first. The gradient with
                respect to it is the next history, so that a model is differentiated as usual. Each
                product needs its own: "gradients" of a shared one would add up.
            key: A key of `jax.random` for each step and product, of recipes whose gradients depend
                on random numbers; not needed where nothing is differentiated.

        Returns:
            [*batch, *rows, *columns], as `jax.lax.dot_general`: the batch dimensions, then those
            of lhs and those of rhs that are neither batched nor contracted.

        Raises:
            TypeError: Not arrays, other types, dimensions that do not fit together, or no
                ``amax_history`` or key where the recipe needs one.
            ValueError: Another precision, or an ``amax_history`` or key that the recipe has no use
                for.
            NotImplementedError: An ``out_sharding`` without explicit axes, or an implementation
                that cannot run it.
            ExceptionGroup: Of NotImplementedError: none of several implementations can.
        """
        lhs = as_array(_NAME, "lhs", lhs)
        rhs = as_array(_NAME, "rhs", rhs)
        out_dtype = result_dtype(_NAME, lhs, rhs, preferred_element_type)
        if precision not in (None, lax.Precision.DEFAULT, "default"):
            raise ValueError(
                f"{_NAME}: the recipe says the precision, and precision must be None or DEFAULT, "
                f"got {precision!r}"
            )
        if out_sharding is not None and not compat.has_explicit_axes():
            raise NotImplementedError(
                f"{_NAME} takes an out_sharding only where mesh axes are explicit"
            )
        numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape, _NAME)
        check_dot_general(lhs.shape, rhs.shape, numbers, _NAME)
        key = self.check_key(_NAME, key)
        if self.recipe.history:
            amax_history = self.check_history(amax_history)
        elif amax_history is not None:
            raise ValueError(f"{_NAME}: {self.recipe} keeps no amax_history")

        def like(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
            return lax.dot_general(lhs, rhs, numbers, out_sharding=out_sharding)

        return compat.in_automatic_axes(
            functools.partial(self._product, numbers, out_dtype),
            lambda: compat.spec_of(*compat.result_avals(like, jax.typeof(lhs), jax.typeof(rhs))),
            *(lhs, rhs, amax_history, key),
        )

    def _product(
        self,
        numbers: Any,
        out_dtype: np.dtype,
        lhs: jax.Array,
        rhs: jax.Array,
        history: jax.Array | None,
        key: jax.Array | None,
    ) -> jax.Array:
        """The product of arguments that were checked."""
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
        x, batch, rows, x_transposed = _matrices(lhs, lhs_batch, lhs_contract)
        w, _, columns, w_transposed = _matrices(rhs, rhs_batch, rhs_contract)
        x, w, key, _ = compat.match_varying(x, w, key, history)
        layer = Layer(
            self.recipe,
            self.implementations,
            out_dtype.name,
            x.dtype.name,
            w.dtype.name,
            x_transposed,
            w_transposed,
        )
        delayed = history is not None
        dot = functools.partial(multiply_delayed if delayed else multiply, layer)
        if not batch:
            out = dot(x[0], w[0], history if delayed else key)
        elif delayed:
            out = jax.vmap(dot, (0, 0, None))(x, w, history)
        else:
            keys = None if key is None else jax.random.split(key, x.shape[0])
            out = jax.vmap(dot)(x, w, keys)
        return out.reshape(*batch, *rows, *columns)


def result_dtype(
    function: str, lhs: jax.Array, rhs: jax.Array, preferred: DTypeLike | None
) -> np.dtype:
    """Checks the operands' types; returns the result's."""
    for name, x in (("lhs", lhs), ("rhs", rhs)):
        if x.dtype not in OUT_DTYPES:
            raise TypeError(
                f"{function} requires bfloat16, float16 or float32, got {name}: {x.dtype}"
            )
    if preferred is None:
        out = dot_dtype(lhs.dtype, rhs.dtype)
    else:
        out = as_dtype(function, "preferred_element_type", preferred)
    if out not in OUT_DTYPES:
        raise TypeError(
            f"{function}: preferred_element_type must be bfloat16, float16 or float32, got {out}"
        )
    return out


def _matrices(
    x: jax.Array, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[jax.Array, tuple[int, ...], tuple[int, ...], bool]:
    """An operand as [batch, rows, K] or, if that needs no transpose, [batch, K, rows].

    Returns:
        The operand, the dimensions that batch and rows stand for, and whether K comes first.
    """
    free = tuple(i for i in range(x.ndim) if i not in (*batch, *contract))
    batch_sizes, rows, depth = (tuple(x.shape[i] for i in dims) for dims in (batch, free, contract))
    if free and (*batch, *contract, *free) == tuple(range(x.ndim)):
        shape = (math.prod(batch_sizes), math.prod(depth), math.prod(rows))
        return x.reshape(shape), batch_sizes, rows, True
    x = x.transpose(*batch, *free, *contract)
    x = x.reshape(math.prod(batch_sizes), math.prod(rows), math.prod(depth))
    return x, batch_sizes, rows, False
