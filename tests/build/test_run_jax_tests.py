"""tools/run_jax_tests.py, on a small folder of tests in place of JAX's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "run_jax_tests.py"
TESTS = """
import unittest
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def primitives(f, *operands):
    return [eqn.primitive.name for eqn in jax.make_jaxpr(f)(*operands).eqns]


class Products(unittest.TestCase):
    def test_values(self):
        a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
        for f in (jnp.matmul, jnp.dot, lax.dot, lambda a, b: jnp.einsum("ij,jk->ik", a, b)):
            np.testing.assert_array_equal(f(a, b), np.full((3, 5), 4.0))

    def test_jaxpr(self):
        a = np.ones((4, 4), np.float32)
        self.assertIn("dot_general", primitives(jnp.matmul, a, a), "jaxpr of JAX")

    def test_broken_anyway(self):
        self.assertEqual(jnp.dot(np.ones(2), np.ones(2)), 3)

    @unittest.skip("not here")
    def test_skipped(self):
        jnp.dot(np.ones(2), np.ones(2))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "jax").mkdir()  # must not be imported in the place of the installed one
    (tmp_path / "jax" / "__init__.py").write_text("raise ImportError('of the checkout')")
    (tmp_path / "tests" / "products_test.py").write_text(TESTS)
    (tmp_path / "tests" / "other_test.py").write_text("def test_nothing(): pass")
    return tmp_path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_only_what_fails_because_of_us_is_a_difference(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    done = run(checkout, "--tests", "products_test", "--log", log)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed, 2 failed, 1 skipped" in done.stdout
    assert "1 fail without the replacement too" in done.stdout
    (difference,) = (line for line in done.stdout.splitlines() if "DIFFERS" in line)
    assert "Products::test_jaxpr: AssertionError: 'dot_general' not found" in difference
    assert done.stdout.endswith("1 unexplained difference\n")
    logged = {r["test"]: r for r in map(json.loads, log.read_text().splitlines())}
    assert logged["Products::test_values"]["calls"] == 4
    assert logged["Products::test_values"]["binds"] >= 1  # equal products are traced once
    assert logged["Products::test_skipped"]["state"] == "skipped"


def test_nothing_is_pretended_without_the_primitive(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    done = run(checkout, "--tests", "products_test::jaxpr", "--no-primitive", "--log", log)
    assert done.returncode == 0, done.stdout + done.stderr
    (logged,) = map(json.loads, log.read_text().splitlines())
    assert (logged["state"], logged["calls"], logged["binds"]) == ("passed", 1, 0)


def test_a_file_that_calls_nothing_of_ours_is_an_error(checkout: Path) -> None:
    done = run(checkout, "--tests", "other_test")
    assert done.returncode == 1
    assert "no test called a function of jax_bwgemm: nothing was compared" in done.stdout


def test_a_pattern_that_selects_nothing_is_an_error(checkout: Path) -> None:
    done = run(checkout, "--tests", "products_test::no_such_test")
    assert done.returncode == 1
    assert "pytest did not finish" in done.stdout


def test_a_file_that_is_not_there_is_an_error(checkout: Path) -> None:
    done = run(checkout, "--tests", "lax_test")
    assert done.returncode == 2
    assert f"there is no {checkout / 'tests' / 'lax_test.py'}" in done.stderr


def test_known_differences_are_of_one_test_and_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    from jax_tests import known

    table = (known.Known("pjit_test", r"A::test_b\w*", "not in jaxpr", "its name"),)
    assert known.reason("pjit_test", "A::test_b1", "AssertionError: x not in jaxpr", table)
    assert known.reason("pjit_test", "A::test_b1", "TypeError: no", table) is None
    assert known.reason("pjit_test", "A::test_a", "not in jaxpr", table) is None
    assert known.reason("lax_test", "A::test_b1", "not in jaxpr", table) is None
