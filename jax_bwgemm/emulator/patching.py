"""Reading and changing the PTX of this package's kernels, to study and to break them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from jax_bwgemm.emulator.errors import check_text, make_error
from jax_bwgemm.emulator.settings import native

_ENTRY = re.compile(r"^(?:\.(?:visible|weak)\s+)?\.entry\s+([\w$]+)", re.MULTILINE)


def last_ptx() -> str | None:
    """PTX of the kernel that the last launch ran, if it was one of this package's, else None.

    The text holds that kernel alone, although its object file holds several.
    """
    found = native().last_ptx()
    return None if found is None else extract_kernel(found[1], found[0])


def extract_kernel(ptx: str, kernel: str) -> str:
    """A module with one of the kernels of `ptx`; everything that is not a kernel stays.

    Raises:
        ValueError: `ptx` has no such kernel.
    """
    entries = list(_ENTRY.finditer(ptx))
    if kernel not in (entry[1] for entry in entries):
        raise ValueError(f"the PTX text has no kernel {kernel!r}")
    parts, position = [], 0
    for entry in entries:
        if entry[1] == kernel:
            continue
        parts.append(ptx[position : entry.start()])
        position = _end_of_body(ptx, entry.end())
    return "".join([*parts, ptx[position:]])


def _end_of_body(ptx: str, start: int) -> int:
    """Where the function body ends whose signature begins before `start`."""
    depth, position = 0, ptx.find("{", start)
    if position < 0:
        raise ValueError("the PTX text ends before the body of a kernel")
    for brace in re.finditer(r"[{}]", ptx[position:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return position + brace.end()
    return len(ptx)


@contextlib.contextmanager
def substituted_ptx(ptx: str) -> Iterator[None]:
    """Inside the ``with`` block, kernels of this package that `ptx` contains run its text.

    Host code, parameters and launch dimensions stay those of the compiled kernel. Belongs to the
    process, like `configure`.

    Args:
        ptx: A module, usually an edited `last_ptx`.

    Raises:
        TypeError: `ptx` is not a str.
        PtxError: The text is not PTX.
    """
    check_text("PTX", ptx)
    try:
        native().substitute(ptx)
    except native().Error as error:
        raise make_error(*error.args, ptx) from None
    try:
        yield
    finally:
        native().substitute("")
