"""The tuning cache and the package's tables: where they are, and reading them where usable.

The cache is one file for each kind of GPU in ``$BWGEMM_TUNING_CACHE``, or else in
``$XDG_CACHE_HOME/jax_bwgemm/tuning-v3`` (``~/.cache`` when that is not set);
``BWGEMM_TUNING_CACHE=off`` switches it off, and a user without a home directory has none. A file
that cannot be read is ignored with a warning.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from pathlib import Path

from jax_bwgemm.tuning import storage
from jax_bwgemm.tuning.records import TuningFileError
from jax_bwgemm.tuning.table import TuningTable
from jax_bwgemm.tuning.text import VERSION


def cache_path(device_kind: str) -> Path | None:
    """The cache file of a kind of GPU; None without a cache, see `why_no_cache`."""
    folder = os.environ.get("BWGEMM_TUNING_CACHE", "")
    if folder == "off":
        return None
    found = Path(folder) if folder else _default_folder(VERSION)
    return None if found is None else found / file_name(device_kind)


def why_no_cache() -> str:
    """The reason, where `cache_path` is None."""
    if os.environ.get("BWGEMM_TUNING_CACHE", "") == "off":
        return "BWGEMM_TUNING_CACHE=off"
    return "there is no home directory for a cache, nor BWGEMM_TUNING_CACHE"


def older_cache_paths(device_kind: str) -> list[Path]:
    """Where versions before kept their caches, the latest first; none with a folder of one's own.

    That folder is the same for all versions, and "off" has none.
    """
    if os.environ.get("BWGEMM_TUNING_CACHE", ""):
        return []
    folders = (_default_folder(version) for version in range(VERSION - 1, 0, -1))
    return [folder / file_name(device_kind) for folder in folders if folder is not None]


def _default_folder(version: int) -> Path | None:
    # The version is part of the name, so that versions of this package do not fight over files.
    caches = storage.user_caches()
    return None if caches is None else caches / "jax_bwgemm" / f"tuning-v{version}"


def packaged_path(device_kind: str) -> Path:
    """The table of a kind of GPU that comes with the package, where there is one."""
    return Path(__file__).parent / "data" / file_name(device_kind)


def file_name(device_kind: str) -> str:
    """File name of a kind of GPU: ``NVIDIA H200`` -> ``nvidia_h200.json``."""
    slug = re.sub(r"[^a-z0-9]+", "_", device_kind.lower()).strip("_")
    return f"{slug or 'unknown'}.json"


def load_if_usable(path: Path) -> TuningTable | None:
    """Reads a tuning file, again only when it changed; None when absent or not usable.

    What is wrong with a file that is there is a warning, once per state of the file.
    """
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warn_once(f"tuning file {path} is ignored: {error}")
        return None
    return _load_state(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=16)
def _load_state(path: Path, mtime_ns: int, size: int, inode: int) -> TuningTable | None:
    del mtime_ns, size, inode  # only part of the cache key
    try:
        return TuningTable.load(path)
    except (OSError, TuningFileError) as error:
        warn_once(f"tuning file {path} is ignored: {error}")
        return None


@functools.lru_cache(maxsize=1024)
def warn_once(message: str) -> None:
    """Warns the first time a message is seen in this process, of the last 1024."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)
