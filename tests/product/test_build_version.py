"""A source folder's Python files and the compiled modules of an installed package."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
