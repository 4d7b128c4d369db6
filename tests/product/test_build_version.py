"""A source folder's Python files and the compiled modules of an installed package."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jax_bwgemm
from jax_bwgemm import runtime

pytestmark = pytest.mark.skipif(
    not (Path(runtime.__file__).parents[1] / "pyproject.toml").exists(),
    reason="needs the source tree, not an installed package",
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with one compiled module, of version 9.9.9."""
    folder = tmp_path / "jax_bwgemm"
    folder.mkdir()
    text = "def build_info():\n    return {'version': '9.9.9'}\n"
    (folder / "_of_another_version.py").write_text(text)
    (folder / "_silent.py").write_text("")
    distribution = SimpleNamespace(locate_file=lambda name: tmp_path / name)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)
    monkeypatch.setattr(jax_bwgemm, "__path__", [*jax_bwgemm.__path__])
    yield folder
    for name in ("_of_another_version", "_silent"):
        sys.modules.pop(f"jax_bwgemm.{name}", None)


def refused(source: str, built: str, installed: Path) -> str:
    return (
        f"the Python files in {Path(runtime.__file__).parent} are jax_bwgemm {source}, but the "
        f"compiled modules in {installed} are of {built}: install this source folder (pip install "
        ".), or run in another folder to use the installed version"
    )


def test_modules_of_another_version_are_refused(installed: Path) -> None:
    source = runtime._source_version()
    with pytest.raises(ImportError) as caught:
        runtime._import_optional("jax_bwgemm._of_another_version")
    assert str(caught.value) == refused(source, "9.9.9", installed)


@pytest.mark.parametrize("fits", [True, False])
def test_modules_that_do_not_say_have_their_packages_version(
    installed: Path, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = runtime._source_version()
    version = source if fits else "0.0.1"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if fits:
        assert runtime._import_optional("jax_bwgemm._silent") is not None
        return
    with pytest.raises(ImportError) as caught:
        runtime._import_optional("jax_bwgemm._silent")
    assert str(caught.value) == refused(source, "0.0.1", installed)


def test_this_folders_version_is_its_modules() -> None:
    module: Any = runtime.extension()
    if module is None:
        pytest.skip("the kernels were not built")
    assert module.build_info()["version"] == runtime._source_version()


def jaxlib_headers(folder: Path, minor: int) -> Path:
    """A folder with the header of a jaxlib whose FFI has this version."""
    header = folder / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#define XLA_FFI_API_MAJOR 0\n\n#define XLA_FFI_API_MINOR {minor}\n")
    return folder


@pytest.mark.parametrize("built", ["0.5", "0.10", "1.0"])
def test_kernels_for_a_newer_ffi_are_refused(built: str, tmp_path: Path) -> None:
    message = (
        f"jax_bwgemm was compiled for version {built} of XLA's FFI, but this jaxlib has 0.4: "
        "install it again with pip's build isolation (without --no-build-isolation), or update "
        "jaxlib"
    )
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        runtime.check_ffi_version(built, jaxlib_headers(tmp_path, 4))


@pytest.mark.parametrize("built", ["0.1", "0.4"])
def test_kernels_for_an_older_ffi_are_loaded(built: str, tmp_path: Path) -> None:
    runtime.check_ffi_version(built, jaxlib_headers(tmp_path, 4))


def test_the_installed_jaxlib_says_its_version() -> None:
    with pytest.raises(ImportError, match=r"but this jaxlib has 0\.\d+: "):
        runtime.check_ffi_version("99.0", Path(jax.ffi.include_dir()))
