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

from jax_bwgemm.dense.validation import as_array, as_dimension_numbers, check_dot_general
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.scaled.api import OUT_DTYPES, scaled_matmul
from jax_bwgemm.scaled.quantization import quantize
from jax_bwgemm.scaled.recipes import Recipe, as_recipe
from jax_bwgemm.scaled.scaled_array import ScaledArray


def fp8_dot_general(
    recipe: str | Recipe = "blockwise",
    *,
    implementation: str | Sequence[str] | None = None,
) -> Fp8DotGeneral:
    """A function like `jax.lax.dot_general` that multiplies in 8 bits, gradients included.

    For ``flax.linen.Dense(dot_general=...)``, ``flax.nnx.Linear(dot_general=...)`` or by hand.
    Operands are quantized when it is called, the cotangent in the backward pass; both gradients
    are products of quantized operands.

    Args:
        recipe: ``"per_tensor"`` (current scaling: e4m3fn operands, e5m2 gradients),
            ``"blockwise"`` (1x128 activations and gradients, 128x128 weights, scales that are
            powers of two), ``"mxfp8"``, or a `Recipe`.
        implementation: As in `jax_bwgemm.matmul`, of the three products.

    Returns:
        A hashable function of lhs, rhs and dimension numbers; see `Fp8DotGeneral.__call__`.

    Raises:
        ValueError: An unknown recipe or implementation.
        TypeError: An implementation that is no name.
    """
    return Fp8DotGeneral(as_recipe(recipe), as_implementations(implementation))


@dataclasses.dataclass(frozen=True)
class Fp8DotGeneral:
    """What `fp8_dot_general` returns. Instances are compared by value.

    Attributes:
        recipe: Layouts and types.
        implementations: Names to try in order.
    """

    recipe: Recipe
    implementations: tuple[str, ...]

    def __call__(
        self,
        lhs: ArrayLike,
        rhs: ArrayLike,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: DTypeLike | None = None,
        *,
        out_sharding: Any = None,
    ) -> jax.Array:
        """The product, with the dimensions of `jax.lax.dot_general`.

        It has a reverse-mode derivative, once, and no forward-mode one.

        Args:
            lhs: bfloat16, float16 or float32: the activations.
            rhs: Likewise: the weights.
            dimension_numbers: As in `jax.lax.dot_general`.
            precision: None or DEFAULT.
            preferred_element_type: Type of the result, one of these three; None is the operands'
                promoted type. Gradients have their operand's type.
            out_sharding: None.

        Raises:
            TypeError: Not arrays, other types, or dimensions that do not fit together.
            ValueError: Another precision.
            NotImplementedError: An ``out_sharding``, or an implementation that cannot run it.
        """
        lhs = as_array("fp8_dot_general", "lhs", lhs)
        rhs = as_array("fp8_dot_general", "rhs", rhs)
        out_dtype = _out_dtype(lhs, rhs, preferred_element_type)
        if precision not in (None, lax.Precision.DEFAULT, "default"):
            raise ValueError(f"fp8_dot_general multiplies in 8 bits: precision={precision!r}")
        if out_sharding is not None:
            raise NotImplementedError("fp8_dot_general takes no out_sharding")
        numbers = as_dimension_numbers(dimension_numbers, lhs.shape, rhs.shape)
        check_dot_general(lhs.shape, rhs.shape, numbers)
        (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
        x, batch, rows = _matrices(lhs, lhs_batch, lhs_contract)
        w, _, columns = _matrices(rhs, rhs_batch, rhs_contract)
        how = _How(self.recipe, self.implementations, out_dtype.name, x.dtype.name, w.dtype.name)
        dot = functools.partial(_dot, how)
        out = jax.vmap(dot)(x, w) if batch else dot(x[0], w[0])
        return out.reshape(*batch, *rows, *columns)


def _out_dtype(lhs: jax.Array, rhs: jax.Array, preferred: DTypeLike | None) -> np.dtype:
    for name, x in (("lhs", lhs), ("rhs", rhs)):
        if x.dtype not in OUT_DTYPES:
            raise TypeError(
                f"fp8_dot_general requires bfloat16, float16 or float32, got {name}: {x.dtype}"
            )
    out = np.dtype(jnp.promote_types(lhs.dtype, rhs.dtype) if preferred is None else preferred)
    if out not in OUT_DTYPES:
        raise TypeError(
            "fp8_dot_general: preferred_element_type must be bfloat16, float16 or float32, got "
            f"{out}"
        )
    return out


def _matrices(
    x: jax.Array, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[jax.Array, tuple[int, ...], tuple[int, ...]]:
    """An operand as [batch, rows, K], and the dimensions that batch and rows stand for."""
    free = tuple(i for i in range(x.ndim) if i not in (*batch, *contract))
    sizes = [tuple(x.shape[i] for i in dims) for dims in (batch, free, contract)]
    x = x.transpose(*batch, *free, *contract).reshape(*map(math.prod, sizes))
    return x, sizes[0], sizes[1]


@dataclasses.dataclass(frozen=True)
class _How:
    """What is static about a product of matrices."""

    recipe: Recipe
    implementations: tuple[str, ...]
    out_dtype: str
    lhs_dtype: str
    rhs_dtype: str

    def operand(self, x: jax.Array, scaling: str, transposed: bool) -> Any:
        r = self.recipe
        return quantize(
            x, scaling, dtype=r.dtype, power_of_two=r.power_of_two, transposed=transposed
        )

    def gradient(self, x: jax.Array) -> Any:
        r = self.recipe
        return quantize(
            x,
            r.gradient,
            dtype=r.gradient_dtype,
            power_of_two=r.power_of_two,
            transposed=True,
        )

    def product(self, a: ScaledArray, b: ScaledArray, dtype: str, accumulation: str) -> jax.Array:
        return scaled_matmul(
            a,
            b,
            preferred_element_type=dtype,
            accumulation=accumulation,
            implementation=self.implementations,
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dot(how: _How, x: jax.Array, w: jax.Array) -> jax.Array:
    """[M, K] by [N, K]: [M, N]."""
    a = how.operand(x, how.recipe.lhs, False)
    b = how.operand(w, how.recipe.rhs, False)
    return how.product(a, b, how.out_dtype, how.recipe.forward_accumulation)


def _forward(how: _How, x: jax.Array, w: jax.Array) -> tuple[jax.Array, Any]:
    a, a_transposed = how.operand(x, how.recipe.lhs, True)
    b, b_transposed = how.operand(w, how.recipe.rhs, True)
    out = how.product(a, b, how.out_dtype, how.recipe.forward_accumulation)
    return out, (a_transposed, b_transposed)


def _backward(how: _How, residuals: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is contracted is last: N of both operands of x's cotangent, M of those of w's."""
    x_transposed, w_transposed = residuals  # [K, M] and [K, N]
    g, g_transposed = how.gradient(cotangent)  # [M, N] and [N, M]
    x_bar = how.product(g, w_transposed, how.lhs_dtype, "promoted")
    w_bar = how.product(g_transposed, x_transposed, how.rhs_dtype, "promoted")
    return x_bar, w_bar


_dot.defvjp(_forward, _backward)
