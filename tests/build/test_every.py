"""The option --every, by which the tests take a share of each test's cases."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[[str], subprocess.CompletedProcess[str]]
TESTS = pathlib.Path(__file__).resolve().parents[1]
CASES = """
import pytest

@pytest.mark.parametrize("y", range(20))
@pytest.mark.parametrize("x", range(3))
def test_many(x, y): pass

@pytest.mark.parametrize("x", range(2))
def test_few(x): pass

def test_one(): pass
"""


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Run:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)

    def pytest_every(share: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-v", "--every", share, "-p", "no:cacheprovider"]
        env = os.environ | {"PYTHONPATH": str(TESTS / "support")}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return pytest_every


def test_every_test_runs_with_a_share_of_its_cases(run: Run) -> None:
    ran = run("3")
    assert ran.returncode == 0
    passed = re.findall(r"::(\S+) PASSED", ran.stdout)
    assert {"test_one", "test_few[0]"} <= set(passed)
    many = [name for name in passed if name.startswith("test_many")]
    assert 10 < len(many) < 35
    # Every value of each parameter, though every third case has the same x or runs of y.
    assert {re.search(r"\[(\d+)-", name).group(1) for name in many} == {"0", "1", "2"}
    assert f"{63 - len(passed)} deselected" in ran.stdout


def test_all_cases_run_without_it(run: Run) -> None:
    assert "63 passed" in run("1").stdout


@pytest.mark.parametrize("share", ["0", "-1", "two"])
def test_a_share_is_a_positive_integer(run: Run, share: str) -> None:
    ran = run(share)
    assert ran.returncode != 0
    assert f"{share!r} is not a positive integer" in ran.stderr
