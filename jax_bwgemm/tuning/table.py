"""`TuningTable`: the choices measured to be fastest on one kind of GPU; a context manager."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax_bwgemm.tuning import context, storage, text
from jax_bwgemm.tuning.keys import Key
from jax_bwgemm.tuning.records import TunedDevice, TunedEntry, TuningFileError


class TuningTable:
    """Tuned choices of one kind of GPU. Immutable, hashable by content.

    A context manager: within it these entries come before the cache and the heuristic (but after
    an explicit ``config=``), and within nested tables the innermost comes first. Programs traced
    outside are traced again inside, as with any JAX configuration. ``a | b`` merges two tables;
    where both have a problem, b's entry stays.

    Args:
        device: Where the entries were measured.
        entries: Choice of each problem.
    """

    def __init__(self, device: TunedDevice, entries: Mapping[Key, TunedEntry]) -> None:
        self.device = device
        # Only keys of one kind can be compared.
        order = sorted(entries, key=lambda key: (type(key).__name__, key))
        self._entries = {key: entries[key] for key in order}
        self._identity = (device, tuple(self._entries.items()))
        self._hash = hash(self._identity)
        self._entered = threading.local()  # contexts belong to the thread that entered them

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.device, self._entries)  # the hash is another process's own

    def get(self, key: Key) -> TunedEntry | None:
        """The choice for a problem; None when it was not tuned."""
        return self._entries.get(key)

    def items(self) -> Iterable[tuple[Key, TunedEntry]]:
        """All problems with their choices, sorted by kind of product."""
        return self._entries.items()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TuningTable) and self._identity == other._identity

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<{len(self)} tuned problems of {self.device.kind}>"

    def __or__(self, other: TuningTable) -> TuningTable:
        """Both tables' entries; where both have a problem, the other's entry.

        Raises:
            ValueError: The tables are of different devices.
        """
        if not isinstance(other, TuningTable):
            return NotImplemented
        if self.device != other.device:
            raise ValueError(f"cannot merge tuning of {self.device} with that of {other.device}")
        return TuningTable(self.device, {**self._entries, **other._entries})

    def __enter__(self) -> TuningTable:
        entered = context.tuned(self)
        entered.__enter__()
        self._entered.stack = [*getattr(self._entered, "stack", []), entered]
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.stack.pop().__exit__(*error)

    def dumps(self) -> str:
        """The table as JSON text."""
        return text.dumps(self.device, self._entries)

    @classmethod
    def loads(cls, data: str | bytes) -> TuningTable:
        """Reads what `dumps` wrote, or a version before.

        Raises:
            TuningFileError: It is not such text, or a field has a value it cannot have.
        """
        return TuningTable(*text.loads(data))

    def dump(self, path: str | os.PathLike[str], *, merge: bool = False) -> TuningTable:
        """Writes the table to a file, which readers see either before or after, never in between.

        A file in its place that is not a tuning file, or that ``merge`` finds to be of another
        GPU, is moved aside (``.1``, ``.2``, ...) with a warning. Concurrent writers wait for each
        other.

        Args:
            path: Where.
            merge: Keep the entries of other problems that the file has.

        Returns:
            The table that was written.

        Raises:
            OSError: The file cannot be written.
            TuningFileError: The path is something else than a file, such as a folder or a pipe.
        """
        with storage.locked(path) as target:
            table = self
            try:
                old = TuningTable.load(target)
                if merge:
                    table = old | self
            except FileNotFoundError:
                pass
            except storage.NotAFileError:
                raise
            except ValueError as error:  # not a tuning file, or another GPU's
                storage.set_aside(target, str(error))
            storage.replace(target, table.dumps())
        return table

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TuningTable:
        """Reads a file that `dump` wrote, or a version before.

        Raises:
            OSError: The file cannot be read.
            TuningFileError: It is not a tuning file; the message starts with its path.
            TypeError: Not a path.
        """
        path = os.fspath(path)  # numbers would be open files
        data = storage.read(path)
        try:
            return cls.loads(data)
        except TuningFileError as error:
            raise TuningFileError(f"{os.fspath(path)}: {error}") from None
