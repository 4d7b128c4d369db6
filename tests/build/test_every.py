"""The option --every, by which the tests take a share of each test's cases."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
CASES = """
import pytest

@pytest.mark.parametrize("x", range(7))
def test_many(x): pass

def test_one(): pass
"""


def test_every_test_runs_with_a_share_of_its_cases(tmp_path: pathlib.Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-v", "--every", "3", "-p", "no:cacheprovider"]
    env = os.environ | {"PYTHONPATH": str(TESTS / "support")}
    ran = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    ).stdout
    assert "4 passed, 4 deselected" in ran
    for case in ("test_one", "test_many[0]", "test_many[3]", "test_many[6]"):
        assert f"::{case} PASSED" in ran
