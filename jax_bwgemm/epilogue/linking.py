"""Kernels with an epilogue in them, linked when they are first needed and kept.

In memory, and on disk: in ``$BWGEMM_LINK_CACHE``, or else in
``$XDG_CACHE_HOME/jax_bwgemm/linked-v1`` (``~/.cache`` when that is not set);
``BWGEMM_LINK_CACHE=off`` switches that off. A file's name is a hash of everything that goes into
the kernel but the tools' version, so that what is found needs no tools. A file is only believed if
it begins with the hash of its contents.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from jax_bwgemm.epilogue.hook import Hook
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.linker import Linker, LinkError, linker
from jax_bwgemm.product.implementations import PLATFORMS
from jax_bwgemm.tuning import storage

_logger = logging.getLogger("jax_bwgemm")
SEVERAL_DEVICES = "XLA may partition the program over several devices"
# Changes when the same inputs no longer give the same file.
_FORMAT = "jax_bwgemm linked kernel 2"


@dataclasses.dataclass(frozen=True)
class LinkedKernel:
    """A kernel with an epilogue in it.

    Attributes:
        code: The code, base64.
        digest: Its name.
    """

    code: str
    digest: str


# Linked kernels that a process remembers, of 60 KB each; those on disk are found again.
MOST_KEPT = 1024

_lock = threading.Lock()
_futures: dict[tuple[str, Hook, bool], Future[LinkedKernel]] = {}


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(os.cpu_count() or 1, 2), thread_name_prefix="bwgemm-link")


def linker_refusal() -> str | None:
    """Why nothing can be linked here; None where the tools are there."""
    try:
        linker()
    except LinkError as error:
        return str(error)
    return None


def default_platform() -> str:
    """The platform of JAX's default backend, as lowering rules name it."""
    return jax.default_backend().replace("gpu", "cuda")


def only_platform() -> str | None:
    """The platform of this process's only device; None if there are several to partition for."""
    return default_platform() if jax.local_device_count() == 1 else None


def first_linked(
    implementations: Sequence[str], platform: str, attempt: Callable[[str], Any]
) -> Any:
    """The result of the first implementation with a linked kernel, or why there is none.

    Args:
        implementations: In order of preference.
        platform: JAX platform being lowered for.
        attempt: From the name of an implementation of this platform, its result, or the reason why
            it has none. A `LinkError` is one too.
    """
    refusals = []
    for name in implementations:
        if PLATFORMS.get(name) != platform:
            continue
        try:
            found = attempt(name)
        except LinkError as error:
            found = str(error)
        if not isinstance(found, str):
            return found
        refusals.append(f"{name}: {found}")
    return "; ".join(refusals) or f"no kernels for {platform} are allowed"


def start_linking(kernel: str, hook: Hook, *, ptx: bool) -> Future[LinkedKernel]:
    """Begins what `linked_kernel` does, unless it has begun: kernels are linked side by side."""
    key = (kernel, hook, ptx)
    with _lock:
        found = _futures.get(key)
        if found is None or (found.done() and found.exception() is not None):  # try it again
            found = _futures[key] = _threads().submit(_find_or_link, kernel, hook, ptx=ptx)
            done = [k for k, future in _futures.items() if future.done()]
            for old in done[: max(0, len(_futures) - MOST_KEPT)]:
                del _futures[old]
        return found


def forget_linked_kernels() -> None:
    """Forgets what this process has linked. What is on disk stays."""
    with _lock:
        _futures.clear()


def linked_kernel(kernel: str, hook: Hook, *, ptx: bool) -> LinkedKernel:
    """Links a function into a kernel, or finds it linked.

    Args:
        kernel: A name in `linkable_kernels`.
        hook: The function.
        ptx: Whether the code is PTX, for the emulator; else it is a cubin.

    Raises:
        NoLinkerError: It was not linked before and there is no linker.
        LinkError: The tools refuse it.
    """
    return start_linking(kernel, hook, ptx=ptx).result()


def _find_or_link(kernel: str, hook: Hook, *, ptx: bool) -> LinkedKernel:
    source, file = hook.source(), linkable_kernels()[kernel]
    inputs = (_FORMAT, kernel, source, str(ptx), _hash_of(file))
    key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    folder = cache_folder()
    path = None if folder is None else folder / f"{key}.txt"
    code = None if path is None else _read(path)
    if code is None:
        code = _link(linker(), file, kernel, source, hook.arch, ptx=ptx)
        if path is not None:
            _write(path, code)
    return LinkedKernel(code, hashlib.sha256(code.encode()).hexdigest())


def cache_folder() -> Path | None:
    """Where linked kernels are kept; None when that is switched off, or without a home."""
    folder = os.environ.get("BWGEMM_LINK_CACHE", "")
    if folder == "off":
        return None
    if folder:
        return Path(folder)
    caches = storage.user_caches()
    return None if caches is None else caches / "jax_bwgemm" / "linked-v1"


@functools.cache
def _hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _link(tools: Linker, file: Path, kernel: str, source: str, arch: str, *, ptx: bool) -> str:
    start = time.perf_counter()
    code = tools.link(file.read_bytes(), kernel, tools.compile(source, arch), arch, ptx=ptx)
    _logger.info("%s: epilogue linked in %.1f s", kernel, time.perf_counter() - start)
    return base64.b64encode(code).decode()


def _read(path: Path) -> str | None:
    """The code in a file of the cache; None where there is none that is whole."""
    try:
        digest, _, code = storage.read(path).decode("ascii").partition("\n")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, storage.TuningFileError) as error:
        _logger.warning("%s is not used: %s", path, error)
        return None
    if hashlib.sha256(code.encode()).hexdigest() == digest and _is_base64(code):
        return code
    _logger.warning("%s is not used: it is damaged, and will be written again", path)
    return None


def _is_base64(code: str) -> bool:
    try:
        return bool(base64.b64decode(code, validate=True))
    except ValueError:
        return False


def _write(path: Path, code: str) -> None:
    """Keeps code for other processes; where that fails, the program goes on without."""
    try:
        with storage.locked(path):
            storage.replace(path, f"{hashlib.sha256(code.encode()).hexdigest()}\n{code}")
    except (OSError, storage.TuningFileError) as error:
        _logger.warning("%s is not written: %s", path, error)
