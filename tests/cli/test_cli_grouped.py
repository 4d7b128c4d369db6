"""`python -m jax_bwgemm info` lists the grouped kernels."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from jax_bwgemm import runtime
from jax_bwgemm.cli import info


def output(capsys: pytest.CaptureFixture[str], *, kernels: bool = False, json: bool = False) -> str:
    assert info.run(SimpleNamespace(kernels=kernels, json=json)) == 0
    return capsys.readouterr().out


def test_one_line_per_tile(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys)
    table = runtime.grouped_kernels()
    assert f"Grouped kernels ({len(table)})\n" in text
    tiles = {
        (k.arch, k.kind, k.tile_m, k.tile_n, k.cluster_m, k.swap_ab, k.schedule) for k in table
    }
    lines = info.grouped_kernel_lines(False)
    assert all(f"  {line}\n" in text for line in lines)
    assert len(lines) == len(tiles)
    rows = next(line for line in lines if " m-grouped" in line)
    assert rows.endswith(
        ": 8 kernels, bfloat16->bfloat16, bfloat16->float32, float16->float16, float16->float32, "
        "B majors k n"
    )


def test_every_kernel_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, kernels=True)
    assert all(f"  {kernel.name}\n" in text for kernel in runtime.grouped_kernels())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(capsys, json=True))
    names = [kernel["name"] for kernel in report["grouped_kernels"]]
    assert names == [kernel.name for kernel in runtime.grouped_kernels()]
