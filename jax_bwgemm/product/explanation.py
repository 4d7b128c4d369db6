"""What an explanation says, and how the decision that it tells is made: dense and grouped GEMMs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jax_bwgemm import runtime
from jax_bwgemm.config import DEFAULT_SM_COUNT, make_target
from jax_bwgemm.product.implementations import PLATFORMS, refusal_error

# As many with the same reason are named one by one.
FEW = 2
EMPTY = "an empty problem runs no kernel: the result is empty or all zeros"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The decision for one problem. ``str()`` of it is meant to be read.

    Attributes:
        problem: The canonical GEMM in words.
        implementation: ``"cutlass"``, ``"emulator"`` or ``"xla"``.
        reason: Why this implementation and kernel.
        kernel: Name of the kernel; None for xla, and for an empty problem, which runs none.
        padded: Whether operands are padded to satisfy the kernel's alignment.
        rejected: (name, reason) of the implementations and kernels not chosen.
    """

    problem: str
    implementation: str
    reason: str
    kernel: str | None = None
    padded: bool = False
    rejected: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.problem, *self.decision(), *self._rejections()])

    def decision(self) -> list[str]:
        """What was decided, a line each."""
        lines = [f"  implementation  {self.implementation}"]
        if self.kernel is not None:
            lines += [f"  kernel          {self.kernel}", *self._launch()]
        lines.append(f"  why             {self.reason}")
        if self.padded:
            lines.append("  padding         row pitches are padded to multiples of 16 bytes")
        return lines

    def _launch(self) -> list[str]:
        """How the kernel is launched, a line each."""
        return []

    def _rejections(self) -> list[str]:
        """A line for each of `rejected`, in its order; one for many with the same reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.rejected:
            names.setdefault(reason, []).append(name)
        few = {reason for reason, those in names.items() if len(those) <= FEW}
        lines = [f"  not {name}: {reason}" for name, reason in self.rejected if reason in few]
        return lines + [
            f"  not {len(those)} kernels: {reason}"
            for reason, those in names.items()
            if reason not in few
        ]


def place(spec: Any, device: jax.Device | str | None) -> tuple[str, Any, str | None]:
    """Where a problem would run.

    Args:
        spec: A GemmSpec or GroupedSpec.
        device: A JAX device, ``"cpu"``, an architecture, or None: the spec's target if it has one,
            else JAX's default device.

    Returns:
        Platform, spec with its target, and the reason if kernels cannot run on that GPU.

    Raises:
        ValueError: An unknown name.
    """
    if isinstance(device, str):
        if device == "cpu":
            return "cpu", spec, None
        if device in DEFAULT_SM_COUNT:
            return "cuda", dataclasses.replace(spec, target=make_target(device)), None
        known = ", ".join(["cpu", *DEFAULT_SM_COUNT])
        raise ValueError(f"unknown device {device!r}: give a jax.Device or one of {known}")
    if device is None:
        if spec.target is not None and spec.implementations[0] != "emulator":
            return "cuda", spec, None
        device = jax.local_devices()[0]
    if device.platform != "gpu":
        return device.platform, spec, None
    found = runtime.device_target(device)
    if found.target is None:
        return "cuda", spec, found.reason
    return "cuda", dataclasses.replace(spec, target=found.target), None


def decide(
    what: str,
    implementations: Sequence[str],
    rejected: Sequence[tuple[str, str]],
    platform: str,
    choose: Callable[[str], Any],
    *,
    empty: bool,
) -> tuple[dict[str, Any], Any]:
    """The implementation that lowering would take.

    Args:
        what: The problem, for messages.
        implementations: Those left to try, in order.
        rejected: (name, reason) of those skipped before.
        platform: JAX platform.
        choose: The call (KernelCall or GroupedCall) of a kernel implementation, or why it cannot
            run.
        empty: Whether there is nothing to multiply.

    Returns:
        The fields of an `Explanation`, and the selected kernel with its attributes, or None.

    Raises:
        NotImplementedError: None can (several: an ExceptionGroup of these).
    """
    against = list(rejected)

    def without_kernel(reason: str) -> tuple[dict[str, Any], None]:
        fields = {"problem": what, "implementation": name, "reason": reason}
        return fields | {"rejected": tuple(against)}, None

    for name in implementations:
        if name == "xla":
            return without_kernel(against[-1][1] if against else "asked for")
        if empty and platform == PLATFORMS[name]:
            return without_kernel(EMPTY)
        call = choose(name)
        if isinstance(call, str):
            against.append((name, call))
            continue
        selected = call.selection
        fields = {
            "problem": what,
            "implementation": name,
            "reason": selected.reason,
            "kernel": selected.kernel.name,
            "padded": call.padded != call.dims,
            "rejected": (*against, *selected.rejected),
        }
        return fields, selected
    raise refusal_error(what, against)
