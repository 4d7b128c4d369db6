"""The option --every, by which the tests take a share of each test's cases, and its default."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
TESTS = pathlib.Path(__file__).resolve().parents[1]
CASES = """
import types
import pytest

KERNELS = [types.SimpleNamespace(name=f"kernel{i}") for i in range(20)]

@pytest.mark.parametrize("y", range(20))
@pytest.mark.parametrize("x", range(3))
def test_many(x, y): pass

@pytest.mark.parametrize("x", range(2))
def test_few(x): pass

def test_one(): pass

@pytest.mark.parametrize("shape", range(9))
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_kernels(kernel, shape): pass

@pytest.mark.gpu
@pytest.mark.parametrize("x", range(9))
def test_on_a_gpu(x): pass
"""
MANY, KERNELS, ALL = 60, 180, 60 + 2 + 1 + 180 + 9


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Run:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)

    def pytest_here(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options]
        env = os.environ | {"PYTHONPATH": str(TESTS / "support")}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return pytest_here


def chosen(ran: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The parameters that ran or were skipped, by test."""
    names = re.findall(r"::test_(\w+)(?:\[(\S+)\])? (?:PASSED|SKIPPED)", ran.stdout)
    return {test: [case for name, case in names if name == test] for test, _ in names}


def test_every_test_runs_with_a_share_of_its_cases(run: Run) -> None:
    ran = run("--every", "3")
    assert ran.returncode == 0
    tests = chosen(ran)
    assert tests["one"] == [""]
    assert "0" in tests["few"]
    assert MANY / 6 < len(tests["many"]) < 0.6 * MANY
    # Every value of each parameter, though every third case has the same x or runs of y.
    assert {case.split("-")[0] for case in tests["many"]} == {"0", "1", "2"}
    assert len({case.split("-")[0] for case in tests["kernels"]}) == 20
    assert len(tests["kernels"]) < 0.6 * KERNELS
    assert len(tests["on_a_gpu"]) < 9
    assert f"{ALL - sum(map(len, tests.values()))} deselected" in ran.stdout


def test_of_the_whole_suite_a_share_runs_but_all_that_needs_a_gpu(run: Run) -> None:
    tests = chosen(run())
    assert MANY / 6 < len(tests["many"]) < 0.6 * MANY
    assert len({case.split("-")[0] for case in tests["kernels"]}) == 20
    assert len(tests["on_a_gpu"]) == 9


def test_what_is_named_runs_whole(run: Run) -> None:
    assert len(chosen(run("test_cases.py"))["many"]) == MANY
    assert chosen(run("test_cases.py::test_many[2-19]")) == {"many": ["2-19"]}


def test_all_cases_run_on_request(run: Run) -> None:
    assert sum(map(len, chosen(run("--every", "1")).values())) == ALL


def test_processes_agree(run: Run) -> None:
    pytest.importorskip("xdist")
    names = set(chosen(run())["many"])
    ran = run("-n", "2")
    assert ran.returncode == 0
    found = set(re.findall(r"PASSED test_cases.py::test_many\[(\S+)\]", ran.stdout))
    assert found == names


@pytest.mark.parametrize("share", ["0", "two"])
def test_a_share_is_a_positive_integer(run: Run, share: str) -> None:
    ran = run("--every", share)
    assert ran.returncode != 0
    assert f"{share!r} is not a positive integer" in ran.stderr
