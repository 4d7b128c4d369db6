"""A kernel call in a program: rearrange, pad, FFI call, slice; each only where needed."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_bwgemm.product.contraction import Contraction, KernelCall


def emit(
    contraction: Contraction,
    call: KernelCall,
    operands: Sequence[jax.Array],
    shape: tuple[int, ...],
) -> jax.Array:
    """Emits a kernel call.

    Args:
        contraction: The family of products.
        call: The call.
        operands: One device's, before folding and padding.
        shape: Shape of D.
    """
    folded, dims, padded = call.folded, call.dims.extents, call.padded.extents
    more = {d: padded[d] - dims[d] for d in dims}
    arranged = [
        _pad(_arrange(*each), [more[d] for d in names])
        for *each, names in zip(
            operands,
            folded.perms,
            folded.shapes,
            contraction.operand_names(folded.spec),
            strict=True,
        )
    ]
    ffi = call.ffi or contraction.ffi_call(call)
    out, _ = jax.ffi.ffi_call(
        ffi.target,
        (
            jax.ShapeDtypeStruct(
                contraction.out_shape(folded.spec, call.padded), folded.spec.out_dtype
            ),
            jax.ShapeDtypeStruct((ffi.scratch,), jnp.uint8),
        ),
    )(*arranged, config=ffi.config)
    kept = contraction.out_shape(folded.spec, call.dims)
    if out.shape != kept:
        out = out[tuple(slice(size) for size in kept)]
    return out if kept == shape else out.reshape(shape)


def _arrange(x: jax.Array, perm: tuple[int, ...] | None, shape: tuple[int, ...]) -> jax.Array:
    x = x if perm is None else x.transpose(perm)
    return x if x.shape == shape else x.reshape(shape)


def _pad(x: jax.Array, more: list[int]) -> jax.Array:
    """Appends zeros: so many along each dimension."""
    return jnp.pad(x, [(0, size) for size in more]) if any(more) else x
