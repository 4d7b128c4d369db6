"""The examples of `accelerate` run, learn and say what was rewritten."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import pytest

pytest.importorskip("flax")
pytest.importorskip("optax")
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["accelerate_linen", "accelerate_nnx"])
def test_it_learns(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # flax's dataclasses look there
    spec.loader.exec_module(module)
    assert module.main(["--steps", "40", "--width", "64", "--rows", "64", "--layers", "1"]) == 0
    text = capsys.readouterr().out
    rewritten, found = map(int, re.match(r"(\d+) of (\d+) products rewritten", text).groups())
    assert 0 < rewritten <= found
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", text)]
    assert losses[-1] < losses[0]
