"""Exceptions of the emulator."""

from __future__ import annotations

from typing import Any


class EmulatorError(RuntimeError):
    """Base of the emulator's exceptions.

    Attributes:
        kind: ``"parse error"``, ``"unsupported"``, ``"launch error"``, ``"fault"``, ``"deadlock"``
            or ``"step limit"``.
        line: 1-based line of the PTX text, 0 when no line is to blame.
        rule: Name of the rule that was broken (`rules`), empty when the error is about none.
    """

    def __init__(self, message: str, *, kind: str, line: int, rule: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.line = line
        self.rule = rule

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled by calling its class with `args`, which lack the keywords: a
        # process pool that gets such an error back would never end.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    cls: type[EmulatorError], args: tuple[Any, ...], fields: dict[str, Any]
) -> EmulatorError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


class PtxError(EmulatorError):
    """The text is not PTX, or holds an instruction that the emulator does not have.

    Attributes:
        text: That line of the PTX text, stripped; empty when no line is to blame.
    """

    def __init__(self, message: str, *, kind: str, line: int, text: str) -> None:
        super().__init__(message, kind=kind, line=line)
        self.text = text


class LaunchError(EmulatorError, ValueError):
    """The launch parameters do not fit the kernel or the machine."""


class LaunchFault(EmulatorError):
    """The kernel did something illegal, came to a deadlock, or ran into the step limit."""


def check_text(what: str, text: object) -> None:
    """Refuses what the compiled part cannot take as text.

    Raises:
        TypeError: Not a str.
        ValueError: A str with lone surrogates, which are no characters.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is no valid Unicode: {error}") from None


def make_error(kind: str, line: int, message: str, ptx: str, rule: str = "") -> EmulatorError:
    """The exception for an error that the compiled part reported about a PTX text."""
    if kind in ("parse error", "unsupported"):
        lines = ptx.splitlines()
        text = lines[line - 1].strip() if 1 <= line <= len(lines) else ""
        return PtxError(message, kind=kind, line=line, text=text)
    if kind == "launch error":
        return LaunchError(message, kind=kind, line=line)
    return LaunchFault(message, kind=kind, line=line, rule=rule)
