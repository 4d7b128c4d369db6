"""A function that is linear in some arguments, as a primitive whose transpose is given.

JAX transposes a linear function equation by equation and keeps what each equation needs. Here the
transpose is one function of the same residuals, so that nothing else is kept for it. All other
rules follow from the two functions, which are ordinary JAX.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_bwgemm import compat, compat_transforms
from jax_bwgemm.compat import Primitive
from jax_bwgemm.product.jaxprs import FUNCTIONS

Arrays = tuple[jax.Array, ...]


class LinearMap(abc.ABC):
    """A linear function and its transpose. Instances are static: hashable, compared by value."""

    @abc.abstractmethod
    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """The outputs, linear in ``inputs``."""

    @abc.abstractmethod
    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """The inputs' cotangents from the outputs': the transpose of `forward`."""

    def __call__(self, residuals: Sequence[jax.Array], inputs: Sequence[jax.Array]) -> Arrays:
        """`forward`, by the primitive."""
        return _bind(self, False, tuple(residuals), tuple(inputs))


@dataclasses.dataclass(frozen=True)
class _Mapped(LinearMap):
    """A map over a leading dimension of all inputs and of some residuals."""

    inner: LinearMap
    mapped: tuple[bool, ...]  # of each residual

    def _vmap(self, function: Callable[..., Arrays]) -> Callable[..., Arrays]:
        axes = tuple(0 if mapped else None for mapped in self.mapped)
        return jax.vmap(function, in_axes=(axes, 0))

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        return self._vmap(self.inner.forward)(residuals, inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        return self._vmap(self.inner.backward)(residuals, cotangents)


linear_map_p = Primitive("bw_linear_map")
linear_map_p.multiple_results = True


def _bind(
    linear_map: LinearMap, transposed: bool, residuals: Arrays, inputs: Arrays
) -> tuple[jax.Array, ...]:
    return tuple(
        linear_map_p.bind(
            *residuals, *inputs, map=linear_map, transposed=transposed, residuals=len(residuals)
        )
    )


def _run(*args: jax.Array, map: LinearMap, transposed: bool, residuals: int) -> Arrays:
    function = map.backward if transposed else map.forward
    return tuple(function(args[:residuals], args[residuals:]))


def _abstract_eval(*avals: Any, **params: Any) -> list[Any]:
    return compat.result_avals(lambda *args: _run(*args, **params), *avals)


def _jvp(
    primals: Arrays, tangents: tuple[Any, ...], *, residuals: int, **params: Any
) -> tuple[list[jax.Array], list[Any]]:
    params["residuals"] = residuals
    outs = linear_map_p.bind(*primals, **params)
    parts = []
    moving = [i for i in range(residuals) if not isinstance(tangents[i], ad.Zero)]
    if moving:

        def of_residuals(*values: jax.Array) -> Arrays:
            args = list(primals)
            for i, value in zip(moving, values, strict=True):
                args[i] = value
            return _run(*args, **params)

        parts.append(
            jax.jvp(of_residuals, [primals[i] for i in moving], [tangents[i] for i in moving])[1]
        )
    if not all(isinstance(t, ad.Zero) for t in tangents[residuals:]):
        inputs = map(ad.instantiate_zeros, tangents[residuals:])
        parts.append(linear_map_p.bind(*primals[:residuals], *inputs, **params))
    if not parts:
        return outs, [ad.Zero.from_primal_value(x) for x in outs]
    return outs, [sum(terms[1:], start=terms[0]) for terms in zip(*parts, strict=True)]


def transposed(function: Callable[..., Any], args: Sequence[Any], cotangents: Any) -> list[Any]:
    """A primitive's transpose, as JAX makes it of the function that the primitive stands for.

    Args:
        function: Linear in the arguments that are undefined primals.
        args: Its arguments.
        cotangents: Of its results, none of them a symbolic zero.

    Returns:
        The cotangents of undefined primals; None for other arguments.
    """
    known = {i: x for i, x in enumerate(args) if not ad.is_undefined_primal(x)}
    missing = [i for i in range(len(args)) if i not in known]

    def of_missing(*values: jax.Array) -> Any:
        full = {**known, **dict(zip(missing, values, strict=True))}
        return function(*(full[i] for i in range(len(args))))

    avals = [jax.ShapeDtypeStruct(args[i].aval.shape, args[i].aval.dtype) for i in missing]
    found = jax.linear_transpose(of_missing, *avals)(cotangents)
    results: list[Any] = [None] * len(args)
    for i, value in zip(missing, found, strict=True):
        results[i] = value
    return results


def _transpose(cotangents: Any, *args: Any, residuals: int, **params: Any) -> list[Any]:
    linear = args[residuals:]
    if not all(map(ad.is_undefined_primal, linear)):
        # Some inputs are known. JAX transposes the map of the others itself.
        function = functools.partial(_run, residuals=residuals, **params)
        return transposed(function, args, tuple(map(ad.instantiate_zeros, cotangents)))
    found = linear_map_p.bind(
        *args[:residuals],
        *map(ad.instantiate_zeros, cotangents),
        residuals=residuals,
        **{**params, "transposed": not params["transposed"]},
    )
    return [None] * residuals + list(found)


def _batch(
    args: Arrays, axes: Sequence[int | None], *, residuals: int, map: LinearMap, **params: Any
) -> tuple[list[jax.Array], list[int]]:
    size = next(x.shape[a] for x, a in zip(args, axes, strict=True) if a is not None)
    moved = [
        x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes, strict=True)
    ]
    for i in range(residuals, len(args)):
        if axes[i] is None:
            moved[i] = jnp.broadcast_to(args[i], (size, *args[i].shape))
    mapped = _Mapped(map, tuple(a is not None for a in axes[:residuals]))
    outs = linear_map_p.bind(*moved, residuals=residuals, map=mapped, **params)
    return outs, [0] * len(outs)


compat.implement_by_jit(linear_map_p, "map", "transposed", "residuals")
linear_map_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[linear_map_p] = _jvp
ad.primitive_transposes[linear_map_p] = _transpose
batching.primitive_batchers[linear_map_p] = _batch
compat_transforms.transform_as(linear_map_p, _run)
FUNCTIONS[linear_map_p] = _run
compat.lower_with_devices(linear_map_p)
mlir.register_lowering(linear_map_p, mlir.lower_fun(_run, multiple_results=True))
