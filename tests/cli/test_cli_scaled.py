"""`python -m jax_bwgemm info` lists the kernels of 8-bit operands."""

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
    table = runtime.scaled_kernels() + runtime.scaled_grouped_kernels()
    assert f"Scaled kernels ({len(table)})\n" in text
    lines = info.scaled_kernel_lines(False)
    assert all(f"  {line}\n" in text for line in lines)
    fields = ("arch", "tile_m", "tile_n", "tile_k", "cluster_m", "schedule", "swap_ab", "scales")
    fields += ("contraction",)
    assert len(lines) == len({tuple(getattr(k, f) for f in fields) for k in table})
    assert (
        "sm90 128x128x128 cluster 2x1 cooperative, scales of rows: 2 kernels, float8_e4m3fn x "
        "float8_e4m3fn->bfloat16, float8_e4m3fn x float8_e4m3fn->float32" in lines
    )
    assert any(
        line.startswith("sm90 128x256x128 cluster 1x2 m-grouped cooperative, scales of blocks: 4")
        for line in lines
    )


def test_every_kernel_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, kernels=True)
    kernels = runtime.scaled_kernels() + runtime.scaled_grouped_kernels()
    assert all(f"  {kernel.name}\n" in text for kernel in kernels)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(capsys, json=True))
    names = [kernel["name"] for kernel in report["scaled_kernels"]]
    assert names == [kernel.name for kernel in runtime.scaled_kernels()]
    grouped = [kernel["name"] for kernel in report["scaled_grouped_kernels"]]
    assert grouped == [kernel.name for kernel in runtime.scaled_grouped_kernels()] != []
