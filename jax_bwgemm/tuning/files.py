"""Tuning files: where they are, and reading and writing them safely.

The cache is one file for each kind of GPU in ``$BWGEMM_TUNING_CACHE``, or else in
``$XDG_CACHE_HOME/jax_bwgemm/tuning-v1`` (``~/.cache`` when that is not set);
``BWGEMM_TUNING_CACHE=off`` switches it off. A file that cannot be read is ignored with a warning;
writing moves it aside and never loses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from jax_bwgemm.tuning.cache import VERSION, TuningFileError, TuningTable

# Far more than any table needs; protects from being pointed at something huge.
MAX_FILE_BYTES = 64 * 2**20


def cache_path(device_kind: str) -> Path | None:
    """The cache file of a kind of GPU; None when the cache is switched off."""
    folder = os.environ.get("BWGEMM_TUNING_CACHE", "")
    if folder == "off":
        return None
    if not folder:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = str(Path(base) / "jax_bwgemm" / f"tuning-v{VERSION}")
    return Path(folder) / file_name(device_kind)


def packaged_path(device_kind: str) -> Path:
    """The table of a kind of GPU that comes with the package, where there is one."""
    return Path(__file__).parent / "data" / file_name(device_kind)


def file_name(device_kind: str) -> str:
    """File name of a kind of GPU: ``NVIDIA H200`` -> ``nvidia_h200.json``."""
    slug = re.sub(r"[^a-z0-9]+", "_", device_kind.lower()).strip("_")
    return f"{slug or 'unknown'}.json"


def load(path: str | os.PathLike[str]) -> TuningTable:
    """Reads a tuning file.

    Raises:
        OSError: The file cannot be read.
        TuningFileError: It is not a tuning file; the message starts with its path.
    """
    with open(path, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise TuningFileError(f"{os.fspath(path)}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return TuningTable.loads(data)
    except TuningFileError as error:
        raise TuningFileError(f"{os.fspath(path)}: {error}") from None


def load_if_usable(path: Path) -> TuningTable | None:
    """Reads a tuning file, again only when it changed; None when absent or not usable.

    What is wrong with a file that is there is a warning, once per state of the file.
    """
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _warn_once(f"tuning file {path} is ignored: {error}")
        return None
    return _load_state(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=16)
def _load_state(path: Path, mtime_ns: int, size: int, inode: int) -> TuningTable | None:
    del mtime_ns, size, inode  # only part of the cache key
    try:
        return load(path)
    except (OSError, TuningFileError) as error:
        _warn_once(f"tuning file {path} is ignored: {error}")
        return None


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def dump(table: TuningTable, path: str | os.PathLike[str], *, merge: bool = False) -> TuningTable:
    """Writes a table to a file, which readers see either before or after, never in between.

    A file in its place that is not a tuning file, or that ``merge`` finds to be of another GPU,
    is moved aside (``.1``, ``.2``, ...) with a warning.

    Args:
        table: What to write.
        path: Where.
        merge: Keep the file's entries of other problems. Concurrent writers wait for each other.

    Returns:
        The table that was written.

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        try:
            old = load(path)
            if merge:
                table = old | table
        except FileNotFoundError:
            pass
        except ValueError as error:  # not a tuning file, or another GPU's
            warnings.warn(f"{error}; it is kept as {_set_aside(path)}", RuntimeWarning, 2)
        # In the same folder, since a rename is only atomic within one file system.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(table.dumps())
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return table


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other writers of the file out. The lock file stays: removing it would race."""
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _set_aside(path: Path) -> Path:
    """Renames a file to its name with the first free number."""
    number = 1
    while (other := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    os.rename(path, other)
    return other
