"""`quantize`: from 16-bit or 32-bit matrices to narrow values with scales."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jax_bwgemm import compat
from jax_bwgemm.config import explicit_target
from jax_bwgemm.product.arguments import as_array, as_dtype, as_flag, as_key
from jax_bwgemm.product.implementations import as_implementations
from jax_bwgemm.product.shardings import sharded_first
from jax_bwgemm.scaled import derivatives, random_bits, rounding
from jax_bwgemm.scaled.layouts import FLOAT32, layout_of
from jax_bwgemm.scaled.quantize_partition import granularity
from jax_bwgemm.scaled.quantize_primitive import quantized, viable_implementations
from jax_bwgemm.scaled.quantize_reference import narrow_reference
from jax_bwgemm.scaled.quantize_spec import QuantizeSpec
from jax_bwgemm.scaled.scaled_array import ScaledArray


def quantize(
    x: ArrayLike,
    scaling: str,
    *,
    dtype: DTypeLike | None = None,
    transposed: bool = False,
    power_of_two: bool = False,
    square_blocks: bool = False,
    epsilon: float = 0.0,
    scale: ArrayLike | None = None,
    key: jax.Array | None = None,
    implementation: str | Sequence[str] | None = None,
) -> Any:
    """Rounds a matrix to narrow values with scales.

    Of every block: ``amax = max(|x|, epsilon)``, ``scale = amax * (1 / largest value of dtype)``,
    ``values = round(x * (1 / scale))``, to nearest even. A block of zeros has a scale of 1. Where a
    rounded scale makes a value too large, it saturates. Subnormal float32 numbers count as zeros.
    A block with an infinity or NaN has a scale of 1: its infinities become NaN in e4m3fn and stay
    in e5m2; of ``mxfp4`` and ``nvfp4``, whose values have neither, the scale is NaN.

    Scales of ``mxfp8`` and ``mxfp4`` are powers of two, rounded up. Of ``nvfp4`` the global scale
    is ``max(|x|) / (448 * 6)`` of all finite numbers, and a block's scale, relative to it, is
    rounded to e4m3fn, to nearest: the largest values of a block may saturate.

    Scales of ``mxfp8`` and ``mxfp4`` reach 2^127: within a factor of two of the largest float32 (or
    bfloat16), a rounded number times its scale may be infinite.

    Args:
        x: [..., R, K], floating point. K is what products will contract.
        scaling: A layout of `ScaledArray`. ``"tensor"``: one scale for all of x.
        dtype: Type of the values; None is float8_e4m3fn, of ``mxfp4`` and ``nvfp4``
            float4_e2m1fn.
        transposed: Whether the transposed matrices [..., K, R] are returned too, with scales of
            their own (along R, which other products contract), made from x, not from the result.
        power_of_two: Round f32 scales up to powers of two, but for the global one of ``nvfp4``.
            Dividing by them is exact: only values are rounded.
        square_blocks: Of layouts with scales of 8 bits: as many rows as columns share a scale,
            which is stored for each row. Both copies then stand for the same numbers.
        epsilon: Least amax, which float32 holds.
        scale: One scale, float32, positive and at most 2^126, known before: what it makes too large
            saturates. Only of ``"tensor"``, which then reads x once.
        key: Round stochastically, by this random key: away from zero with the probability of the
            distance to the neighbour nearer to zero, so that the mean of many roundings is the
            number, unless it saturates (about every second block's largest of ``nvfp4``, by up to
            6 %). An element is rounded by the same random number in both copies. Which, depends
            on the key and its place alone, not on devices or shardings.
        implementation: As in `jax_bwgemm.matmul`. Kernels read x once, and write layouts with f32
            scales; results are equal bit by bit.

    Returns:
        A `ScaledArray` [..., R, K]; with ``transposed`` a pair of it and one [..., K, R].

    Raises:
        TypeError: Not an array, not floating point, of rank less than 2, an impossible dtype, a
            scale that is not one float32, or a key that is none. Differentiating also raises it.
        ValueError: An unknown scaling or implementation, a negative epsilon, a scale that is not
            positive, finite and normal (of Python's and NumPy's numbers; those of a device are not
            waited for), for another layout than ``"tensor"``, or together with ``power_of_two`` or
            ``epsilon``, or square blocks of a layout with f32 scales.
        NotImplementedError: The named implementation cannot run it, or x's type says that devices
            share blocks.
        ExceptionGroup: Of NotImplementedError: none of several implementations can.
    """
    how = _specification(x, scaling, dtype, transposed, power_of_two, epsilon, implementation)
    if as_flag("quantize", "square_blocks", square_blocks):
        if how.layout.scale_dtype == FLOAT32:
            raise ValueError(
                f"quantize has square_blocks of layouts with scales of 8 bits, not {scaling!r}"
            )
        how = dataclasses.replace(how, square_blocks=True)
    if scale is not None:
        if scaling != "tensor":
            raise ValueError(f"quantize takes a scale for scaling 'tensor', not {scaling!r}")
        if power_of_two or epsilon:
            raise ValueError("quantize uses a scale as given: power_of_two and epsilon find others")
        scale = _known_scale(scale)
    x = as_array("quantize", "x", x)
    _check_blocks(x, how)
    return _compiled(x, scale, as_key("quantize", key), how)[0]


_MOST_SCALE = 2.0**126  # its reciprocal is a normal number
_SCALE = "quantize requires a positive, normal scale of at most 2^126, got {!r}"


def _known_scale(scale: ArrayLike) -> jax.Array:
    """Checks an argument ``scale``, its value too where that is known."""
    # Of Python's numbers, some are too large for NumPy's types: it would warn, or fail otherwise.
    if isinstance(scale, int) and not isinstance(scale, bool):
        raise TypeError("quantize requires a float32 scale of shape (), got a Python int")
    if isinstance(scale, float) and abs(scale) > float(np.finfo(np.float32).max):
        raise ValueError(_SCALE.format(scale))
    given = np.float32(scale) if isinstance(scale, float) else scale
    found = as_array("quantize", "scale", given)
    if found.shape != () or found.dtype != FLOAT32:
        raise TypeError(
            f"quantize requires a float32 scale of shape (), got {found.dtype}{found.shape}"
        )
    if isinstance(given, (np.generic, np.ndarray)) and not rounding.TINY <= given <= _MOST_SCALE:
        raise ValueError(_SCALE.format(scale))
    return found


def _check_blocks(x: jax.Array, how: QuantizeSpec) -> None:
    """Raises NotImplementedError where explicit mesh axes divide blocks: no type has these."""
    sharding = compat.explicit_sharding(jax.typeof(x))
    if sharding is None:
        return
    least = granularity(how)
    for axis, block in ((-2, least["r"]), (-1, least["k"])):
        axes = compat.spec_of(x)[axis] or ()
        named = axes if isinstance(axes, tuple) else (axes,)
        parts = math.prod(sharding.mesh.shape[name] for name in named)
        if parts > 1 and x.shape[axis] % (parts * block):
            raise NotImplementedError(
                f"quantize: dimension {axis} of {jax.typeof(x)} has blocks of {block}, which "
                f"{parts} devices would share: use jax.reshard before, or fp8_dot_general"
            )


def quantize_with_amax(
    x: jax.Array,
    scale: jax.Array,
    *,
    dtype: DTypeLike,
    transposed: bool = False,
    implementation: Sequence[str] | None = None,
) -> tuple[Any, jax.Array]:
    """What `quantize` to ``"tensor"`` with a scale returns, and max(abs(x)), from one pass."""
    how = _specification(x, "tensor", dtype, transposed, False, 0.0, implementation)
    return _compiled(x, scale, None, dataclasses.replace(how, amax=True))


def _specification(
    x: ArrayLike,
    scaling: str,
    dtype: DTypeLike | None,
    transposed: bool,
    power_of_two: bool,
    epsilon: float,
    implementation: str | Sequence[str] | None,
) -> QuantizeSpec:
    layout = layout_of(scaling)
    x = as_array("quantize", "x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize < 2:
        raise TypeError(f"quantize requires 16-bit floating point or wider, got {x.dtype}")
    if x.ndim < 2:
        raise TypeError(f"quantize requires x [..., R, K], got shape {x.shape}")
    value_dtype = layout.value_dtypes[0] if dtype is None else as_dtype("quantize", "dtype", dtype)
    if value_dtype not in layout.value_dtypes:
        known = ", ".join(str(d) for d in layout.value_dtypes)
        raise TypeError(
            f"quantize to scaling {scaling!r} has values of type {known}, got {value_dtype}"
        )
    numbers = int, float, np.integer, np.floating
    number = isinstance(epsilon, numbers) and not isinstance(epsilon, bool)
    if not (number and 0 <= epsilon <= float(np.finfo(np.float32).max)):
        raise ValueError(f"quantize requires a finite epsilon of at least 0, got {epsilon!r}")
    return QuantizeSpec(
        scaling,
        value_dtype.name,
        as_flag("quantize", "transposed", transposed),
        as_flag("quantize", "power_of_two", power_of_two),
        float(epsilon),
        implementations=as_implementations(implementation),
        target=explicit_target(),
    )


def _quantize(
    x: jax.Array, scale: jax.Array | None, key: jax.Array | None, how: QuantizeSpec
) -> tuple[Any, jax.Array | None]:
    """What `quantize` returns, and x's largest magnitude if `how` says so."""
    batch = x.shape[:-2]
    random = None if key is None else random_bits.origins(key, math.prod(batch))
    dims = len(batch)
    order = sharded_first(x, dims)
    if order == tuple(range(dims)):
        return _quantize_matrices(x, scale, random, how)
    if random is not None:
        words = random.reshape(*batch, random.shape[1]).transpose(*order, dims)
        random = words.reshape(random.shape)
    found, amax = _quantize_matrices(x.transpose(*order, dims, dims + 1), scale, random, how)
    back = np.argsort(order)

    def restored(x: jax.Array) -> jax.Array:
        # Scales of whole tensors have no dimensions.
        return x.transpose(*back, *range(dims, x.ndim)) if x.ndim else x

    return jax.tree.map(restored, found), amax


def _quantize_matrices(
    x: jax.Array, scale: jax.Array | None, random: jax.Array | None, how: QuantizeSpec
) -> tuple[Any, jax.Array | None]:
    """The same, of dimensions in an order that a reshape joins. random: words of each matrix."""
    *batch, rows, k = x.shape
    flat = x.reshape(math.prod(batch), rows, k)
    if how.layout.scale_dtype != FLOAT32:
        narrow = functools.partial(_narrow, batch=tuple(batch), how=how)
        return derivatives.without(derivatives.of_quantization, narrow)(flat, random), None
    how = dataclasses.replace(how, stochastic=random is not None)
    given = {"x": flat, "random": random}
    if how.given_scales:
        given |= _given_scales(flat, scale, how)
    found = quantized([given[name] for name in how.operand_names], how)
    found = given | dict(zip(how.result_names, found, strict=True))

    def made(prefix: str) -> ScaledArray:
        values = found[f"{prefix}values"].reshape(*batch, *found[f"{prefix}values"].shape[1:])
        if how.scaling == "tensor":
            return ScaledArray(values, found["scale"], how.scaling)
        scales = found[f"{prefix}scales"]
        return ScaledArray(values, scales.reshape(*batch, *scales.shape[1:]), how.scaling)

    amax = rounding.largest(found["amax"]).reshape(()) if how.amax else None
    return ((made(""), made("t_")) if how.transposed else made("")), amax


_compiled = compat.compiled_outside(_quantize, 3)


def _given_scales(x: jax.Array, known: jax.Array | None, how: QuantizeSpec) -> dict[str, jax.Array]:
    """Scales of what is larger than a kernel's tile: XLA's reductions, in a pass of their own."""
    wide = rounding.widened(x)

    def scale(axes: tuple[int, ...] | None) -> jax.Array:
        amax = rounding.largest(wide, axes)
        return rounding.scale_of(amax, np.dtype(how.dtype), how.power_of_two, how.epsilon)

    if how.scaling == "tensor":
        whole = scale(None).reshape(()) if known is None else known
        return {"scale": whole, "scales": jnp.broadcast_to(whole, x.shape[:1])}
    scales = {"scales": scale((2,))[:, :, 0]}
    return scales | ({"t_scales": scale((1,))[:, 0]} if how.transposed else {})


def _narrow(
    x: jax.Array, random: jax.Array | None, batch: tuple[int, ...], how: QuantizeSpec
) -> Any:
    """Layouts with scales of 8 bits, which no kernel writes."""
    viable_implementations(x, how)  # an error if XLA is not allowed
    bits = None if random is None else random_bits.bits_of(random, *x.shape[1:])
    whole = None
    if how.layout.has_global_scale:
        wide = rounding.widened(x)
        whole = rounding.largest(jnp.where(jnp.isfinite(wide), wide, 0)).reshape(())

    def made(x: jax.Array, bits: jax.Array | None) -> ScaledArray:
        values, scales, global_scale = narrow_reference(
            x,
            bits,
            layout=how.layout,
            dtype=np.dtype(how.dtype),
            epsilon=how.epsilon,
            whole=whole,
            square=how.square_blocks,
        )
        return ScaledArray(
            values.reshape(*batch, *values.shape[1:]),
            scales.reshape(*batch, *scales.shape[1:]),
            how.scaling,
            global_scale,
        )

    q = made(x, bits)
    if not how.transposed:
        return q
    return q, made(jnp.swapaxes(x, 1, 2), None if bits is None else jnp.swapaxes(bits, 1, 2))
