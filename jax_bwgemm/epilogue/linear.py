"""The public layers: a product with what a network puts around it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm.dense.api import matmul
from jax_bwgemm.dense.problem import make_options
from jax_bwgemm.dense.tuning_config import TuningConfig
from jax_bwgemm.dense.with_epilogue import product_with_epilogue
from jax_bwgemm.epilogue.activations import as_activation
from jax_bwgemm.epilogue.apply import Epilogue
from jax_bwgemm.epilogue.gated_layer import gated_product
from jax_bwgemm.epilogue.program import TYPES
from jax_bwgemm.product.arguments import as_array

Activation = str | Callable[[jax.Array], jax.Array] | None


def linear(
    x: ArrayLike,
    w: ArrayLike,
    b: ArrayLike | None = None,
    *,
    activation: Activation = None,
    residual: ArrayLike | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
) -> jax.Array:
    """``activation(x @ w + b) + residual``.

    What follows the product is computed in float32 and rounded once: from the float32 product if
    one kernel computes all of it, else from the product rounded to its type (docs/epilogues.md).
    The activation's derivative is computed from the rounded product.

    Args:
        x: [..., K].
        w: [K, N].
        b: [N], or None.
        activation: None, a name (``"relu"``, ``"squared_relu"``, ``"gelu"``, ``"gelu_exact"``,
            ``"silu"``, ``"swish"``, ``"sigmoid"``, ``"tanh"``, ``"softplus"``, ``"elu"``,
            ``"leaky_relu"``) or an elementwise function of JAX's.
        residual: [..., N], the result's shape, or None.
        precision: As in `matmul`.
        preferred_element_type: Type of product and result, as in `matmul`.
        out_sharding: As in `matmul`; of product and result.
        implementation: As in `matmul`.
        config: As in `matmul`.

    Returns:
        [..., N].

    Raises:
        TypeError: Not arrays, shapes that do not fit together, or an activation of the wrong type.
        ValueError: An unknown activation, or what `matmul` raises.
        EpilogueError: The activation is not elementwise.
        NotImplementedError: What `matmul` raises.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    x, w = as_array("linear", "x", x), as_array("linear", "w", w)
    _check_product("linear", x, w, 2)
    shape = (*x.shape[:-1], w.shape[-1])
    operands = []
    if b is not None:
        operands.append(_of_shape("linear", "b", b, shape[-1:]))
    if residual is not None:
        operands.append(_of_shape("linear", "residual", residual, shape))
    function = as_activation("linear", activation, shape)
    rest = {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
        "implementation": implementation,
        "config": config,
    }
    if function is None and not operands:
        return matmul(x, w, **rest)
    epilogue = Epilogue(_linear_epilogue(function, b is not None, residual is not None), "linear")
    return product_with_epilogue(x, w, None, tuple(operands), make_options(**rest), epilogue)


def gated_linear_unit(
    x: ArrayLike,
    weights: ArrayLike | tuple[ArrayLike, ArrayLike],
    *,
    activation: Activation = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: Any = None,
    implementation: str | Sequence[str] | None = None,
    config: TuningConfig | str | None = None,
) -> jax.Array:
    """``activation(x @ gate) * (x @ up)``: SwiGLU with ``"silu"``, GEGLU with ``"gelu"``.

    On Hopper, both products and what follows are one kernel where that is predicted to take less
    time. Elsewhere a pair of weights is two products, and stacked weights are two that read their
    columns in place or one with 2 N columns, whichever is predicted to take less time. Products of
    other kernels are rounded to their type. What follows is computed in float32 and rounded once.
    Derivatives are computed from the rounded products.

    Args:
        x: [..., K].
        weights: [K, 2, N], gate first, or a pair of [K, N].
        activation: As in `linear`.
        precision: As in `matmul`.
        preferred_element_type: Type of products and result, as in `matmul`.
        out_sharding: As in `matmul`; of products and result.
        implementation: As in `matmul`.
        config: As in `matmul`: constraints on kernels of one product; or the name of one of both
            (``sm90_..._gated``).

    Returns:
        [..., N].

    Raises:
        TypeError: Not arrays, shapes that do not fit together, or an activation of the wrong type.
        ValueError: An unknown activation, or what `matmul` raises.
        EpilogueError: The activation is not elementwise.
        NotImplementedError: What `matmul` raises.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    caller = "gated_linear_unit"
    x = as_array(caller, "x", x)
    rest = {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
        "implementation": implementation,
        "config": config,
    }

    def epilogue(columns: int) -> Epilogue:
        function = as_activation(caller, activation, (*x.shape[:-1], columns))
        return Epilogue(_gate_epilogue(function), caller)

    if isinstance(weights, tuple | list):
        if len(weights) != 2:
            raise TypeError(f"{caller}: weights must be a pair, got {len(weights)} arrays")
        gate, up = (as_array(caller, "weights", w) for w in weights)
        for w in (gate, up):
            _check_product(caller, x, w, 2)
        if gate.shape != up.shape or gate.dtype != up.dtype:
            raise TypeError(
                f"{caller}: weights must have the same shape and type, got {gate.dtype}"
                f"{gate.shape} and {up.dtype}{up.shape}"
            )
        return gated_product(x, (gate, up), epilogue(gate.shape[-1]), **rest)
    stacked = as_array(caller, "weights", weights)
    _check_product(caller, x, stacked, 3)
    if stacked.shape[1] != 2:
        raise TypeError(f"{caller}: weights must be [K, 2, N] or a pair, got {stacked.shape}")
    return gated_product(x, stacked, epilogue(stacked.shape[-1]), **rest)


def _check_product(caller: str, x: jax.Array, w: jax.Array, rank: int) -> None:
    if x.ndim < 1 or w.ndim != rank or x.shape[-1] != w.shape[0]:
        form = "[K, N]" if rank == 2 else "[K, 2, N] or a pair of [K, N]"
        raise TypeError(
            f"{caller}: x must be [..., K] and weights {form}, got {x.shape} and {w.shape}"
        )


def _of_shape(caller: str, name: str, x: Any, shape: tuple[int, ...]) -> jax.Array:
    x = as_array(caller, name, x)
    if x.dtype.name not in TYPES:
        raise TypeError(f"{caller}: {name} is {x.dtype}; types are {', '.join(TYPES)}")
    if x.shape != shape:
        raise TypeError(f"{caller}: {name} must have the shape {shape}, got {x.shape}")
    return x


# One function object for each form of layer, so that equal layers share one compilation.


@functools.lru_cache(maxsize=256)
def _linear_epilogue(
    activation: Callable[[jax.Array], jax.Array] | None, has_bias: bool, has_residual: bool
) -> Callable[..., jax.Array]:
    def epilogue(z: jax.Array, *operands: jax.Array) -> jax.Array:
        rest = [x.astype(jnp.float32) for x in operands]
        if has_bias:
            z = z + jnp.broadcast_to(rest[0], z.shape)
        if activation is not None:
            z = activation(z)
        return z + rest[-1] if has_residual else z

    return epilogue


@functools.lru_cache(maxsize=256)
def _gate_epilogue(
    activation: Callable[[jax.Array], jax.Array] | None,
) -> Callable[..., jax.Array]:
    def epilogue(gate: jax.Array, up: jax.Array) -> jax.Array:
        gate = gate if activation is None else activation(gate)
        return gate * up.astype(jnp.float32)

    return epilogue
