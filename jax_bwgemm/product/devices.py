"""What all lowering rules do: which implementations devices leave, and the first that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.interpreters import mlir

from jax_bwgemm import compat, runtime
from jax_bwgemm.compat import Primitive
from jax_bwgemm.config import Target
from jax_bwgemm.product.implementations import PLATFORMS, log_once, refusal_error, without


def for_devices(
    ctx: mlir.LoweringRuleContext,
    implementations: tuple[str, ...],
    target: Target | None,
    what: Callable[[], str],
) -> tuple[tuple[str, ...], Target | None]:
    """The implementations that a program's devices leave, and the GPU that these are.

    Args:
        ctx: Of the lowering rule.
        implementations: Those left so far, in order.
        target: The GPU asked for; None: the devices', if they are known and alike.
        what: The problem, for messages.

    Raises:
        NotImplementedError: None is left (several refused: an ExceptionGroup).
    """
    if target is None and "cutlass" in implementations:
        found = runtime.common_target(compat.lowering_devices(ctx))
        if found is not None and found.target is None:
            implementations = without(implementations, ("cutlass",), what(), found.reason)
        elif found is not None:
            target = found.target
    if compat.is_manual(ctx) and (automatic := compat.automatic_axes(ctx)):
        # XLA partitions such regions within groups of devices. A custom partitioning in terms of
        # the whole mesh, not of a group, makes XLA abort.
        reason = f"mesh axes {automatic} are automatic inside shard_map"
        implementations = without(implementations, tuple(PLATFORMS), what(), reason)
    return implementations, target


def first_that_runs(
    what: str,
    implementations: Sequence[str],
    attempt: Callable[[str], Any],
    reference: Callable[[], Any],
) -> Any:
    """The result of the first implementation that can run here. Reasons are logged once.

    Args:
        what: The problem, for messages.
        implementations: In order of preference.
        attempt: From the name of one other than XLA, its result, or the reason why it has none.
        reference: XLA's result.

    Raises:
        NotImplementedError: None can (several: an ExceptionGroup of these).
    """
    refusals: list[tuple[str, str]] = []
    for name in implementations:
        if name == "xla":
            for refused, reason in refusals:
                log_once(f"{what}: not {refused} ({reason}), using xla")
            return reference()
        found = attempt(name)
        if not isinstance(found, str):
            return found
        refusals.append((name, found))
    raise refusal_error(what, refusals)


def register_local(primitive: Primitive, rule_of: Callable[[str], Callable[..., Any]]) -> None:
    """Registers the lowering of a primitive of one device.

    Args:
        primitive: The primitive.
        rule_of: From a JAX platform, what the primitive computes there, as a function of JAX's.
    """
    several = primitive.multiple_results

    def rule(platform: str) -> mlir.LoweringRule:
        lowered = mlir.lower_fun(rule_of(platform), multiple_results=several)
        return compat.without_types_of_axes(lowered)

    for platform in sorted(set(PLATFORMS.values())):
        mlir.register_lowering(primitive, rule(platform), platform=platform)
    mlir.register_lowering(primitive, rule("another platform"))
