"""tools/sanitize_gpu.py without a GPU: what it would run, that it is exact, and its refusals."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import jax_bwgemm as bw
from jax_bwgemm import runtime
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.spec import GemmDims

TOOLS = Path(__file__).resolve().parents[2] / "tools"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="not part of an installed package")


@pytest.fixture(autouse=True)
def _tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_every_tile_and_schedule_is_run_in_every_way(arch: str) -> None:
    import sanitize_gpu

    found = sanitize_gpu.cases(arch, "")
    table = {k.name: k for k in runtime.kernels() if k.arch == arch}

    def tile(name: str) -> tuple[str, int, str]:
        kernel = table[name]
        return kernel.in_dtype, kernel.mmas, name.split(f"_{kernel.majors}_")[1]

    tiles = {tile(name) for name, k in table.items() if k.in_dtype != "float16"}
    assert {tile(case.kernel) for case in found} == tiles
    for case in found:
        kernel = table[case.kernel]
        config = bw.TuningConfig(kernel=case.kernel, **dict(case.options))
        assert config.mismatch(kernel) is None
        refusal = heuristics.run_refusal(
            kernel, GemmDims(case.m, case.n, case.k, case.batch), config.splits or 1,
            config.decomposition or "heuristic", 2,
        )  # fmt: skip
        assert refusal is None
        assert (case.n % 8, case.k % 8) == (0, 0)
    ways = {dict(c.options).get("decomposition") for c in found if table[c.kernel].stream_k}
    assert ways == {None, "heuristic", "stream_k", "split_k"}


def test_every_scaled_kernel_is_run_with_every_layout() -> None:
    import sanitize_scaled

    kernels = [k for k in runtime.scaled_kernels() if k.arch == "sm90"]
    found = sanitize_scaled.cases("sm90", "")
    assert {case.kernel for case in found} == {k.name for k in kernels}
    for case in found:
        assert case.m % 2 == 1
        assert case.k % 128 == 16
    for k in kernels:
        those = [c for c in found if c.kernel == k.name]
        assert {c.scalings for c in those} == set(sanitize_scaled.layouts_of(k))
        assert {c.splits for c in those} == ({1, 3} if k.f32_twin else {1})
        assert any(c.k > (k.stages + 2) * k.tile_k for c in those)


def test_random_scaled_problems_are_the_same_every_time() -> None:
    import sanitize_scaled

    kernels = [k for k in runtime.scaled_kernels() if k.arch == "sm90"]
    found = sanitize_scaled.random_cases(kernels, 400)
    assert found == sanitize_scaled.random_cases(kernels, 400)
    assert {case.kernel for case in found} == {k.name for k in kernels}


def linkable_kernels(implementation: str) -> list:
    import sanitize_linked

    if not sanitize_linked.cases("sm90", ""):
        pytest.skip("nothing can be linked here")
    table = runtime.kernel_table(implementation)
    return [k for k in sanitize_linked.linkable(table) if k.majors == "kn"]


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_every_tile_is_run_with_epilogues(arch: str) -> None:
    import sanitize_linked

    table = [
        k for k in linkable_kernels("cutlass") if k.arch == arch and k.contraction != "m_grouped"
    ]
    kernels = {k.name: k for k in table if k.a_dtype == "bfloat16"}
    found = [
        c for c in sanitize_linked.cases(arch, "") if isinstance(c, sanitize_linked.LinkedCase)
    ]
    assert {case.kernel for case in found} == set(kernels)
    for name, kernel in kernels.items():
        own = [c for c in found if c.kernel == name]
        assert max(c.results for c in own) == 3
        assert max(c.sums for c in own) == (0 if kernel.swap_ab else 1)
        splits = {1, 2, 5, 8} if kernel.cluster_k else {1}
        apart = {16 if kernel.cluster_k else 3} if kernel.f32_twin else set()
        assert {c.splits for c in own} == splits | apart
        assert {c.batch for c in own} == ({1} if kernel.contraction == "gated" else {1, 3})


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_every_grouped_tile_is_run_with_epilogues_of_every_form(arch: str) -> None:
    """And of every kind that tests of values have."""
    import grouped_linked_cases
    import sanitize_grouped_linked

    table = [k for k in grouped_linked_cases.kernels("cutlass", arch) if k.a_dtype == "bfloat16"]
    if not table:
        pytest.skip("nothing can be linked here")
    found = sanitize_grouped_linked.cases(arch, "")
    assert {case.kernel for case in found} == {k.name for k in table}
    for kernel in table:
        own = [case for case in found if case.kernel == kernel.name]
        forms = set(sanitize_grouped_linked.forms_of(kernel))
        assert {c.form for c in own} == forms - ({"gated"} if kernel.b_major == "k" else set())
        assert max(c.sums for c in own) == (arch == "sm90")
    kinds = sanitize_grouped_linked.EPILOGUES
    assert set(kinds) == set(grouped_linked_cases.EPILOGUES)
    shapes = {"row": ("n",), "column": ("m", 1), "scalar": (), "matrix": ("m", "n")}
    of_groups = {"row": ("e", "n"), "value": ("e",)}
    for name, (_, *wanted) in grouped_linked_cases.EPILOGUES.items():
        plain, groups, results = kinds[name]
        assert [(shapes[kind], dtype) for kind, dtype in plain] == wanted[0]
        assert [(of_groups[kind], dtype) for kind, dtype in groups] == wanted[1]
        own = [
            c for c in found if (c.of_groups, c.results, c.sums, c.form) == (groups, results, 0, "")
        ]
        assert any([k for k, _ in c.operands] == [k for k, _ in plain] for c in own)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_every_kernel_of_low_precision_is_run_with_code_in_it(arch: str) -> None:
    import sanitize_scaled_grouped_linked
    import sanitize_scaled_linked

    from jax_bwgemm.epilogue.linkable import linkable_kernels as names

    if not runtime.scaled_kernels():
        pytest.skip("no kernels were built")
    families = sanitize_scaled_linked, sanitize_scaled_grouped_linked
    found = {case.kernel for family in families for case in family.cases(arch, "")}
    wanted = {x for x in names() if x.startswith((f"{arch}_quantize", f"{arch}_scaled"))}
    assert found == {x for x in wanted if not ("_rows_" in x and "_mma_" in x)}


@pytest.mark.emulator
@pytest.mark.parametrize("pattern", ["sm90_scaled_e4m3_e4m3_bf16_blocks_128x128", "sm100_quantize"])
def test_kernels_of_low_precision_are_exact(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax
    import sanitize_gpu
    import sanitize_scaled_linked

    if not runtime.emulated_kernels():
        pytest.skip("the emulator was not built")
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    found = sanitize_scaled_linked.cases(pattern.split("_")[0], pattern)[:2]
    assert len(found) == 2
    assert sanitize_gpu.run_cases(found, "emulator") == 0
    if "quantize" in pattern:
        with pytest.raises(ValueError, match="not linked"):
            dataclasses.replace(found[0], half=7).is_exact("emulator")


@pytest.mark.emulator
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_grouped_kernels_of_low_precision_are_exact(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    import sanitize_gpu
    import sanitize_scaled_grouped_linked

    if not runtime.emulated_kernels():
        pytest.skip("the emulator was not built")
    monkeypatch.setattr(jax, "local_device_count", lambda: 1)
    found = sanitize_scaled_grouped_linked.cases(arch, "e4m3_e4m3_bf16_blocks")[:1]
    assert len(found) == 1
    assert sanitize_gpu.run_cases(found, "emulator") == 0
    with pytest.raises(ValueError, match="not linked"):
        dataclasses.replace(found[0], kernel=f"{arch}_none").is_exact("emulator")


@pytest.mark.emulator
def test_grouped_epilogues_are_exact() -> None:
    import grouped_linked_cases
    import sanitize_grouped_linked

    table = {k.name: k for k in grouped_linked_cases.kernels("emulator")}
    found = [c for c in sanitize_grouped_linked.cases("sm90", "128x32x64") if c.kernel in table]
    if not found:
        pytest.skip("the emulator was not built, or nothing can be linked")
    assert [str(c) for c in found[1:3] if not c.is_exact("emulator")] == []
    with pytest.raises(ValueError, match="not linked"):
        dataclasses.replace(found[0], n=7).compiled("emulator")


def test_random_epilogues_are_the_same_every_time() -> None:
    import sanitize_linked

    kernels = linkable_kernels("cutlass")
    found = sanitize_linked.random_cases(kernels, 200)
    assert found == sanitize_linked.random_cases(kernels, 200)
    assert {case.kernel for case in found} == {k.name for k in kernels}
    assert {case.sums for case in found} == {0, 1, 2}
    if any(k.cluster_k for k in kernels):
        assert max(getattr(case, "splits", 1) for case in found) > 1
    assert {getattr(case, "batch", 1) for case in found} == {1, 2, 5}


@pytest.mark.emulator
def test_epilogues_are_exact(capsys: pytest.CaptureFixture) -> None:
    import sanitize_gpu
    import sanitize_linked

    if not runtime.emulated_kernels():
        pytest.skip("the emulator was not built")
    kernels = [k for k in linkable_kernels("emulator") if k.contraction == "dense"]
    found = sanitize_linked.cases("sm90", "64x128x64|128x16x64.*gated")
    found += sanitize_linked.cases("sm100", "128x128x64")
    assert sanitize_gpu.run_cases(found, "emulator") == 0
    for processes in ("1", "2"):
        arguments = ["--implementation", "emulator", "--random", "2", "--processes", processes]
        assert sanitize_linked.main(arguments) == 0
        assert "2 random epilogues, 0 wrong" in capsys.readouterr().out
    case = sanitize_linked.random_cases(kernels, 1)[0]
    with pytest.raises(ValueError, match="not linked"):
        dataclasses.replace(case, n=7).compiled("emulator")
    for more in ([], ["--list"]):
        assert sanitize_linked.main(["--filter", "nothing", *more]) == 2
        assert "no kernel for linking has 'nothing'" in capsys.readouterr().err
    listed = ["--implementation", "emulator", "--filter", "64x128x64|128x32x64"]
    assert sanitize_linked.main([*listed, "--list"]) == 0
    assert " results, " in capsys.readouterr().out


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_every_grouped_line_is_run_with_sizes_nobody_checked(arch: str) -> None:
    import sanitize_grouped

    found = sanitize_grouped.cases(arch, "")
    table = {k.name: k for k in runtime.grouped_kernels() if k.arch == arch}

    def lines(names: Iterable[str]) -> set[tuple]:
        kernels = (table[name] for name in names if table[name].in_dtype != "float16")
        return {
            (k.kind, k.in_dtype, k.tile_m, k.tile_n, k.cluster_m, k.swap_ab, k.schedule)
            for k in kernels
        }

    assert lines(case.kernel for case in found) == lines(table)
    for case in found:
        assert min(case.sizes) < 0
        assert sum(case.sizes) > case.m
        assert case.experts < len(case.sizes)


@pytest.mark.emulator
@pytest.mark.parametrize("pattern", ["rows", "contract"])
def test_grouped_cases_are_exact(pattern: str) -> None:
    import sanitize_gpu
    import sanitize_grouped

    if not any(k.arch == "sm100" for k in runtime.emulated_grouped_kernels()):
        pytest.skip("the emulator was not built")
    found = sanitize_grouped.cases("sm100", pattern)[:1]
    assert found
    assert sanitize_gpu.run_cases(found, "emulator") == 0


@pytest.mark.emulator
def test_cases_are_exact() -> None:
    import sanitize_gpu

    if not any(k.arch == "sm100" for k in runtime.emulated_kernels()):
        pytest.skip("the emulator was not built")
    found = sanitize_gpu.cases("sm100", "256x128x64.*2sm")
    assert found
    assert sanitize_gpu.run_cases(found, "emulator") == 0


def test_hazards_are_counted_by_kernel() -> None:
    import sanitize_gpu

    kernel = "void bwgemm::Kernel<bwgemm::Spec<(bwgemm::DType)3, (int)64, (bool)1>>(bwgemm::Params)"
    lines = [
        f"========= Error: Race reported between Read access at {kernel}+0x8d00",
        f"=========     and Write access at {kernel}+0x10 [256 hazards]",
        f"========= Warning: Race reported between Write access at {kernel}+0x20",
        "========= RACECHECK SUMMARY: 2 hazards displayed (1 errors, 1 warnings)",
    ]
    assert sanitize_gpu.hazards("\n".join(lines)) == {"Kernel<Spec<3, 64, 1": 2}


def test_a_dry_run_prints_commands_and_launches(capsys: pytest.CaptureFixture) -> None:
    import sanitize_gpu

    assert sanitize_gpu.main(["--dry-run", "--filter", "streamk", "--arch", "sm90"]) == 0
    text = capsys.readouterr().out
    assert "--tool memcheck --error-exitcode 77 --report-api-errors no" in text
    assert "--tool racecheck --error-exitcode 77 --target-processes" in text
    assert "128x256x64_2x1_cooperative_streamk 136x280x" in text
    assert "pingpong" not in text


def test_refusals(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import sanitize_gpu

    assert sanitize_gpu.main(["--filter", "nothing", "--arch", "sm90"]) == 2
    assert "no sm90 kernel has 'nothing' in its name" in capsys.readouterr().err
    assert sanitize_gpu.main([]) == 2
    assert "no GPU that this build has kernels for" in capsys.readouterr().err
    monkeypatch.setattr(sanitize_gpu, "sanitizer", lambda _: None)
    assert sanitize_gpu.main(["--arch", "sm90"]) == 2
    assert "compute-sanitizer is not found" in capsys.readouterr().err


FAKE = """#!{python}
import sys
print("exact a\\nexact b")
print("========= ERROR SUMMARY: {errors} errors")
sys.exit({code})
"""


@pytest.mark.parametrize(("errors", "code", "want"), [(0, 0, 0), (3, 77, 1)])
def test_exit_code_is_what_the_tool_found(
    tmp_path: Path, capsys: pytest.CaptureFixture, errors: int, code: int, want: int
) -> None:
    import sanitize_gpu

    fake = tmp_path / "compute-sanitizer"
    fake.write_text(FAKE.format(python=sys.executable, errors=errors, code=code))
    fake.chmod(0o755)
    args = ["--arch", "sm90", "--sanitizer", str(fake), "--tool", "memcheck"]
    assert sanitize_gpu.main(args) == want
    text = capsys.readouterr().out
    assert f"memcheck: 2 launches exact, exit code {code}" in text
    assert f"ERROR SUMMARY: {errors} errors" in text


def test_both_ends_of_long_output_are_shown() -> None:
    from sanitize_gpu import ends

    assert ends("begun" + "." * 20 + "ended", 10) == "begun\n...\nended"
    assert ends("all of it", 10) == "all of it"


def test_a_tool_that_takes_too_long_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sanitize_gpu

    limits = []

    def late(command: list[str], *, timeout: float, **_: object) -> None:
        limits.append(timeout)
        raise subprocess.TimeoutExpired(command, timeout, output=b"begun")

    fake = tmp_path / "compute-sanitizer"
    fake.touch(mode=0o755)
    monkeypatch.setattr(sanitize_gpu.subprocess, "run", late)
    args = ["--arch", "sm90", "--sanitizer", str(fake), "--tool", "racecheck", "--limit", "7"]
    assert sanitize_gpu.main(args) == 1
    assert limits == [7]
    text = capsys.readouterr().out
    assert "racecheck: not finished after 7 s; use --filter" in text
    assert "begun" in text


def test_runs_as_a_script() -> None:
    script = str(TOOLS / "sanitize_gpu.py")
    done = subprocess.run(
        [sys.executable, script, "--tool", "none"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid choice: 'none'" in done.stderr
