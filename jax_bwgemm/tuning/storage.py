"""Reads and writes small files that others may write too, or may have put something else in place
of.

Reading opens regular files only, never waits, and is bounded; writing is atomic, under a lock, and
never loses what it cannot read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from jax_bwgemm.tuning.records import TuningFileError

# Far more than any table needs; protects from being pointed at something huge.
MAX_FILE_BYTES = 64 * 2**20
# To wait for another writer, which needs milliseconds.
LOCK_SECONDS = 30.0

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def user_caches() -> Path | None:
    """The folder of the user's caches; None for a user without a home directory."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(named) if named else Path.home() / ".cache"
    except RuntimeError:  # a container's user may be a mere number
        return None


class NotAFileError(TuningFileError):
    """A path that leads to something else than a regular file."""


def read(path: str | os.PathLike[str]) -> bytes:
    """The content of a regular file.

    Raises:
        OSError: The file cannot be read.
        NotAFileError: It is a folder, a pipe, a socket or a device.
        TuningFileError: It is larger than `MAX_FILE_BYTES`.
    """
    _check(os.stat(path).st_mode, path)  # a socket cannot be opened, and a device need not be
    # The descriptor is what counts: the path may lead elsewhere by now. Not blocking, since opening
    # a pipe waits for its other end.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        state = os.fstat(handle)
        _check(state.st_mode, path)
        data = b"" if state.st_size > MAX_FILE_BYTES else file.read(MAX_FILE_BYTES + 1)
    if max(len(data), state.st_size) > MAX_FILE_BYTES:
        raise TuningFileError(f"{os.fspath(path)}: larger than {MAX_FILE_BYTES} bytes")
    return data


def check_writable(path: str | os.PathLike[str]) -> None:
    """Says before any work is done that its result could not be written to a path.

    Raises:
        OSError: The folder cannot be made or written to.
        NotAFileError: Something else than a file is in the way.
    """
    with locked(path):
        pass


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise NotAFileError(f"{os.fspath(path)}: {kind} and not a regular file")


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Keeps other writers of a file out; makes its folder.

    The lock file stays: removing it would race.

    Raises:
        OSError: The folder or the lock file cannot be made.
        TimeoutError: Another process, stopped perhaps, holds the lock for LOCK_SECONDS.
        NotAFileError: Something else than a file is in its place, or in the lock file's.
    """
    path = Path(path)
    with contextlib.suppress(FileNotFoundError):
        _check(os.stat(path).st_mode, path)  # "." and "/" have no name to make the lock's of
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.suppress(FileNotFoundError):
        _check(os.stat(lock).st_mode, lock)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(lock, flags, 0o644)
    try:
        _lock(handle, lock)
        yield path
    finally:
        os.close(handle)


def _lock(handle: int, lock: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"another process has held {lock} for {LOCK_SECONDS:g} seconds"
                ) from None
        time.sleep(0.02)


def replace(path: Path, content: str) -> None:
    """Puts a file in the place of another; call it with the file `locked`.

    Raises:
        OSError: The file cannot be written; the old one is then still there.
    """
    # In the same folder, since a rename is only atomic within one file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def set_aside(path: Path, reason: str) -> None:
    """Renames a file to its name with the first free number, with a warning."""
    number = 1
    while os.path.lexists(other := path.with_name(f"{path.name}.{number}")):
        number += 1
    os.rename(path, other)
    warnings.warn(f"{reason}; it is kept as {other}", RuntimeWarning, stacklevel=3)
