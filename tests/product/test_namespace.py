"""What `jax_bwgemm` has: every name of `__all__`, and modules only when they are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import jax_bwgemm

EMULATOR = """
import sys
import jax_bwgemm
assert "jax_bwgemm.emulator" not in sys.modules
assert "emulator" in dir(jax_bwgemm)
assert jax_bwgemm.emulator is sys.modules["jax_bwgemm.emulator"]
assert jax_bwgemm.emulator.configure
"""
ALL = """
from jax_bwgemm import *
assert emulator.configure and issubclass(TuningFileError, Exception)
"""


@pytest.mark.parametrize("code", [EMULATOR, ALL], ids=["emulator", "all"])
def test_modules_are_imported_when_they_are_used(code: str) -> None:
    """In a process of its own, where no test has imported them."""
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", jax_bwgemm.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert hasattr(jax_bwgemm, name)
    assert name in dir(jax_bwgemm)


def test_public_names_are_sorted_and_others_refused() -> None:
    assert sorted(set(jax_bwgemm.__all__)) == jax_bwgemm.__all__
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = jax_bwgemm.no_such_name
