"""Tensor maps that end where a group ends: in the emulator, and on the GPU at hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from emulator_cases import requires_emulator

TOOL = Path(__file__).parents[2] / "tools" / "check_bounded_tensor_map.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(TOOL.stem, TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _main(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", [TOOL.name, *arguments])
    return tool.main()


class TestEmulated:
    pytestmark = requires_emulator

    def test_every_box(self, tool, monkeypatch, capsys):
        assert _main(tool, monkeypatch) == 0
        assert capsys.readouterr().out == "107 boxes, 0 wrong\n"

    def test_a_wrong_row_is_noticed(self, tool, capsys):
        right = tool.emulated()

        def one_row_further(source, target, column, valid, row, matrix):
            return right(source, target, column, valid, row + 1, matrix)

        assert not tool.check_box(one_row_further, (1, 100, 72), (0, 5, 33, 0))
        assert "elements stored" in capsys.readouterr().out

    def test_zeros_that_are_missing_are_noticed(self, tool):
        right = tool.emulated()

        def without_zeros(*where):
            target, box = right(*where)
            return target, np.where(box == 0, np.uint16(0xFFFF), box)

        assert not tool.check_box(without_zeros, (1, 100, 72), (0, 5, 33, 0))


@pytest.mark.gpu
def test_every_box_on_the_gpu(tool, monkeypatch, capsys):
    assert _main(tool, monkeypatch, "--gpu") == 0
    assert capsys.readouterr().out == "214 boxes, 0 wrong\n"
