"""A kernel call in a program: rearrange, pad, FFI call, slice; each only where needed."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jax_bwgemm.product.contraction import Contraction, KernelCall
from jax_bwgemm.product.targets import settled
from jax_bwgemm.product.windows import NONE, Windows


def emit(
    contraction: Contraction,
    call: KernelCall,
    operands: Sequence[jax.Array],
    shape: tuple[int, ...],
    windows: Windows = NONE,
) -> jax.Array:
    """Emits a kernel call.

    Args:
        contraction: The family of products.
        call: The call.
        operands: One device's, before folding and padding.
        shape: Shape of D.
        windows: Larger arrays that operands are copies of, and that D belongs to.

    Returns:
        D, or the whole array that it belongs to.
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
    config, aliases = dict(ffi.config), {}
    named, words = in_place(call, config["operands"].split(), arranged, windows)
    result = contraction.out_shape(folded.spec, call.padded)
    into = windows.into
    if (
        into is not None
        and into.aligned
        and into.whole.dtype.name == folded.spec.out_dtype
        and contraction.writes_windows(call)
    ):
        words.append(into.word("d"))
        aliases[len(named)] = 0
        named["into"] = into.whole[None]
        result = (1, *into.whole.shape)
    config["operands"] = " ".join(named)
    if words:
        config["windows"] = " ".join(words)
    out, _ = jax.ffi.ffi_call(
        ffi.target,
        (
            jax.ShapeDtypeStruct(result, folded.spec.out_dtype),
            jax.ShapeDtypeStruct((ffi.scratch,), jnp.uint8),
        ),
        input_output_aliases=aliases,
    )(*named.values(), config=config)
    if aliases:
        return out[0]
    if folded.spec.majors.startswith("k"):  # nobody else reads a gradient of weights
        out = settled(call.implementation, out)
    kept = contraction.out_shape(folded.spec, call.dims)
    if out.shape != kept:
        out = out[tuple(slice(size) for size in kept)]
    return windows.written(out if kept == shape else out.reshape(shape))


def in_place(
    call: KernelCall, roles: Sequence[str], arranged: Sequence[jax.Array], windows: Windows
) -> tuple[dict[str, jax.Array], list[str]]:
    """Takes whole arrays in the place of operands that a kernel can read within them.

    Args:
        call: The call.
        roles: Of the operands.
        arranged: The operands as the kernel gets them, windows copied.
        windows: Larger arrays that operands are copies of, and what the call follows.

    Returns:
        The call's operands by their roles, and its windows.
    """
    named, words = dict(zip(roles, arranged, strict=True)), []
    for i, (role, x) in enumerate(named.items()):
        within = windows.operands.get(role)
        if within is None or not within.aligned or call.folded.perms[i] is not None:
            continue
        rows = within.whole.shape[0]
        if x.shape == (1, rows, within.window.size):  # neither folded nor padded
            named[role] = within.whole[None]
            words.append(within.word(role))
    if windows.after is not None:
        named["after"] = windows.after
    return named, words


def _arrange(x: jax.Array, perm: tuple[int, ...] | None, shape: tuple[int, ...]) -> jax.Array:
    x = x if perm is None else x.transpose(perm)
    return x if x.shape == shape else x.reshape(shape)


def _pad(x: jax.Array, more: list[int]) -> jax.Array:
    """Appends zeros: so many along each dimension."""
    return jnp.pad(x, [(0, size) for size in more]) if any(more) else x
