"""Every folder of tests is collected."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {file.parent for file in TESTS.rglob("test_*.py")}
    assert TESTS / "build" in folders
    for folder in folders:
        for part in folder.relative_to(TESTS).parts:
            assert not any(Path(part).match(pattern) for pattern in left_out), (folder, left_out)
