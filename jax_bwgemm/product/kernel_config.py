"""What the configurations of dense and grouped GEMMs have in common: checks, text, comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """Constraints on a kernel, one a field; ``None`` means "any".

    Attributes:
        kernel: Full name of a kernel.
    """

    kernel: str | None = None

    @classmethod
    def of(cls, config: Self | str | None) -> Self | None:
        """Normalises a ``config=`` argument; a string is a kernel name.

        Raises:
            TypeError: Neither a configuration of this class, a string nor None.
        """
        if config is None or isinstance(config, cls):
            return config
        if isinstance(config, str):
            return cls(kernel=config)
        raise TypeError(f"config must be a {cls.__name__}, a kernel name or None, got {config!r}")

    def mismatch(self, kernel: Any) -> str | None:
        """Why a kernel does not satisfy this configuration; None when it does."""
        raise NotImplementedError

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        fields = ", ".join(f"{k}={v!r}" for k, v in given if v is not None)
        return f"{type(self).__name__}({fields})"

    def _check_int(self, field: str, multiple_of: int = 1) -> None:
        value = getattr(self, field)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._invalid(f"{field} must be an int or None, got {value!r}")
        if value < 1 or value % multiple_of:
            what = "positive" if multiple_of == 1 else f"a positive multiple of {multiple_of}"
            raise self._invalid(f"{field} must be {what}, got {value}")

    def _check_choice(self, field: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, field)
        if value is not None and value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise self._invalid(f"{field} must be one of {listed}, got {value!r}")

    def _invalid(self, what: str) -> ValueError:
        return ValueError(f"{type(self).__name__}: {what}")

    def _differs(self, actual: Mapping[str, Any]) -> str | None:
        """The first field that is set to something else than what a kernel has."""
        for field, value in actual.items():
            wanted = getattr(self, field)
            if wanted is not None and wanted != value:
                return f"{field} is {value!r}, not {wanted!r}"
        return None
