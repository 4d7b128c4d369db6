"""Settings of the emulated machine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from jax_bwgemm import runtime


def native() -> ModuleType:
    """The compiled emulator.

    Raises:
        RuntimeError: It was not built.
    """
    module = runtime.load_emulator()
    if module is None:
        raise RuntimeError("jax_bwgemm was installed without its emulator (module _emulator)")
    return module


SEVERITIES = ("off", "warning", "error")

# Switches of earlier versions: the rule that each turns on and off.
_OLDER_NAMES = {
    "async_hazards": "async-hazard",
    "proxy_fences": "proxy-fence",
    "uninitialized": "uninitialized-shared",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """Something that a launch is watched for.

    Attributes:
        name: What `Settings.rules`, reports and ``--rule`` call it.
        severity: By default: ``"error"`` ends the launch, ``"warning"`` is kept in
            `LaunchStats.warnings`, ``"off"`` is not looked for.
        meaning: What is reported.
    """

    name: str
    severity: str
    meaning: str


def rules() -> tuple[Rule, ...]:
    """All rules, with their severities by default."""
    return tuple(Rule(*rule) for rule in native().rules())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What emulated launches use.

    Attributes:
        seed: Seed of the scheduler: which warp runs next, which asynchronous operation completes
            next. Everything about a run of one thread is reproducible from it.
        sm_count: Multiprocessors of the machine. Few of them make a persistent kernel loop over
            many tiles.
        step_limit: Warp instructions after which a launch is stopped and reported.
        rules: Severity of each rule by name: ``"error"``, ``"warning"`` or ``"off"``. Rules that
            are not named have the severity that `rules` says.
        races: Keep the history of accesses that the rules about order need: races, copies that
            nobody has waited for, CTAs that exit early. A launch takes about half as long again.
        threads: Threads that run clusters side by side, at most one for each cluster's
            multiprocessors. With more than one, runs are not reproducible, and accesses of global
            memory by different warps are not compared; a launch with `trace` has one.
        relaxed: Loads and stores of tensor memory are done when they are issued, as hardware is
            seen to do for one thread: programs that leave out ``tcgen05.wait`` run.
        poison_outputs: Fill the results of a JAX call with NaN bit patterns before the kernel runs.
        trace: Keep the timeline of each launch (`last_trace`).
        trace_limit: Events kept of one launch; the rest is counted and dropped.
    """

    seed: int = 0
    sm_count: int = 4
    step_limit: int = 1 << 36
    rules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    races: bool = True
    threads: int = 1
    relaxed: bool = False
    poison_outputs: bool = True
    trace: bool = False
    trace_limit: int = 1 << 21

    def __post_init__(self) -> None:
        for name, least, most in (
            ("seed", 0, (1 << 64) - 1),
            ("sm_count", 1, 1024),
            ("step_limit", 1, (1 << 64) - 1),
            ("threads", 1, 1024),
            ("trace_limit", 0, 1 << 26),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if not least <= value <= most:
                raise ValueError(f"{name} must be in [{least}, {most}], got {value}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise TypeError(f"{field.name} must be True or False, got {value!r}")
        object.__setattr__(self, "rules", _severities(self.rules))


def _severities(changes: Any) -> dict[str, str]:
    """The severity of every rule, with these changes."""
    if not isinstance(changes, Mapping):
        raise TypeError(f"rules must be a mapping of names to severities, got {changes!r}")
    severities = {rule.name: rule.severity for rule in rules()}
    for name, severity in changes.items():
        if name not in severities:
            raise ValueError(f"no rule {name!r}: there are {', '.join(severities)}")
        if severity not in SEVERITIES:
            raise ValueError(
                f"the severity of rule {name!r} must be one of {', '.join(SEVERITIES)}, "
                f"got {severity!r}"
            )
        severities[name] = severity
    return severities


def settings() -> Settings:
    """The settings in force."""
    return Settings(**native().settings())


@contextlib.contextmanager
def configure(**changes: Any) -> Iterator[Settings]:
    """Changes settings for the launches inside a ``with`` block.

    The settings belong to the process, not to the thread, because JAX runs CPU computations on
    threads of its own: wait for results (``jax.block_until_ready``) before the block ends, and do
    not nest blocks on different threads.

    Args:
        **changes: Fields of `Settings`. ``rules`` changes the severities of the rules that it
            names and leaves the others as they are.

    Yields:
        The settings inside the block.

    Raises:
        TypeError: A name is not a setting, or a value has the wrong type.
        ValueError: A value is out of range.
    """
    before = settings()
    inside = dataclasses.replace(before, **_current_names(before, changes))
    _apply(inside)
    try:
        yield inside
    finally:
        _apply(before)


def _current_names(before: Settings, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes with severities added to those in force, and without older names."""
    changes = dict(changes)
    severities = {}
    for old, rule in _OLDER_NAMES.items():
        if old in changes:
            value = changes.pop(old)
            if not isinstance(value, bool):
                raise TypeError(f"{old} must be True or False, got {value!r}")
            severities[rule] = "error" if value else "off"
    named = changes.pop("rules", {})
    _severities(named)  # before they are merged: its errors are about the caller's value
    return {**changes, "rules": {**before.rules, **severities, **named}}


def _apply(settings: Settings) -> None:
    fields = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    native().configure(**{**fields, "rules": list(settings.rules.items())})
