"""The C++ folders are layers: a file includes files of its own layer and of those below."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CC = Path(__file__).parents[2] / "cc"
# What each folder may include, besides itself. The emulator stands beside the kernels: its machine
# knows none of them, its runtime runs them.
ALLOWED = {
    "core": set(),
    "sm90": {"core"},
    "dense": {"core", "sm90"},
    "grouped": {"core", "sm90"},
    "scaled": {"core", "sm90", "dense", "grouped"},
    "call": {"core", "dense", "grouped", "scaled"},
    "emulator": set(),
    "emulator/runtime": {"core", "sm90", "call", "emulator"},
    "emulator/tests": {"core", "sm90", "grouped", "emulator", "emulator/runtime"},
}
# Python modules, which include whatever they show.
TOP = {"module.cc", "emulator/module.cc"}


def folder(path: str) -> str:
    """The layer that a path below cc/ belongs to."""
    return max((name for name in ALLOWED if path.startswith(f"{name}/")), key=len, default="")


def upward(path: str, text: str) -> list[str]:
    """Includes of a file that its layer may not have."""
    own = folder(path)
    included = re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)
    ours = [name for name in included if folder(name)]
    return [name for name in ours if folder(name) not in ALLOWED[own] | {own}]


def sources() -> list[str]:
    suffixes = (".h", ".cc", ".cu")
    files = (p for p in CC.rglob("*") if p.suffix in suffixes)
    return sorted(str(p.relative_to(CC)) for p in files)


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_a_layer_includes_nothing_above_it(name: str) -> None:
    files = [f for f in sources() if f not in TOP and folder(f) == name]
    assert files
    found = {f: upward(f, (CC / f).read_text()) for f in files}
    assert {f: names for f, names in found.items() if names} == {}


def test_every_file_is_in_a_layer() -> None:
    assert [f for f in sources() if f not in TOP and not folder(f)] == []


def test_an_include_upward_is_found() -> None:
    text = '#include <string>\n\n#include "core/status.h"\n#include "dense/problem.h"\n'
    assert upward("core/device.h", text) == ["dense/problem.h"]
    assert upward("dense/sm90/config.h", text) == []
    assert upward("emulator/machine/grid.cc", text) == ["core/status.h", "dense/problem.h"]


def test_the_layers_have_no_circle() -> None:
    order = list(ALLOWED)
    for name, below in ALLOWED.items():
        assert all(order.index(other) < order.index(name) for other in below)


def test_kernels_beside_the_main_one_are_loaded_ahead() -> None:
    """A file that starts kernels by `<<<` lists them for `HelperKernels`."""
    started = [
        path
        for path in CC.rglob("*")
        if path.suffix in (".h", ".cu") and "emulator" not in path.parts
        if re.search(r"\w<<<", path.read_text(encoding="utf-8"))
    ]
    assert len(started) >= 4
    for path in started:
        text = path.read_text(encoding="utf-8")
        listed = set(re.findall(r"const void\*>\(&(\w+)", text))
        kernel = r"__global__ void(?: __launch_bounds__\([^)]*\))?\s+(\w+)\("
        assert set(re.findall(kernel, text)) <= listed, path
