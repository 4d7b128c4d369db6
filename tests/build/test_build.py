"""The build refuses in one clear sentence when something is missing."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or not (ROOT / "CMakeLists.txt").exists(),
    reason="needs cmake and the source tree",
)


def configure(tmp_path: Path, *options: str) -> str:
    """Output of a CMake run that must fail, on one line."""
    done = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.skipif(
    importlib.util.find_spec("cutlass_library") is not None,
    reason="this environment has the build requirements",
)
def test_missing_requirement_is_named(tmp_path: Path) -> None:
    output = configure(tmp_path, "-Dnanobind_ROOT=", "-DPYTHONNOUSERSITE=1")
    # Which one is missing first depends on what the interpreter has.
    assert "(build requirement" in output
    assert "Install with `pip install .` (which brings it)" in output


def test_wrong_cutlass_folder_is_named(tmp_path: Path) -> None:
    nanobind = pytest.importorskip("nanobind")
    pytest.importorskip("jaxlib")
    output = configure(
        tmp_path, f"-Dnanobind_ROOT={nanobind.cmake_dir()}", "-DBWGEMM_CUTLASS_DIR=/nowhere"
    )
    assert "BWGEMM_CUTLASS_DIR=/nowhere has no include/cutlass/cutlass.h" in output


@pytest.mark.parametrize(
    ("folder", "name", "line", "complaint"),
    [
        ("dense", "kernels", "BWGEMM_TILE(sm90, 128, 128, 64)", "cannot read"),
        ("dense", "kernels", "BWGEMM_TILE_F16(sm90, 64, 64, 64, 1, 1, pingpong)", "cannot read"),
        ("dense", "kernels", "BWGEMM_TILE(sm90, 64, 64, 64, 1, 1, odd)", "unknown schedule 'odd'"),
        (
            "dense",
            "kernels",
            "BWGEMM_TILE_F32(sm90, 64, 64, 64, 1, 1, pingpong)",
            "f32 operands need sm90's schedule 'cooperative'",
        ),
        (
            "dense",
            "kernels",
            "BWGEMM_TILE(sm90, 64, 64, 64, 1, 1, pingpong, no_kn)",
            "'no_kn' is none of",
        ),
        (
            "dense",
            "kernels",
            "BWGEMM_TILE_F32X3(sm90, 128, 256, 32, 2, 1, cooperative, f16_terms)",
            "'f16_terms' is for F32X6",
        ),
        (
            "dense",
            "kernels",
            "BWGEMM_TILE(sm90, 64, 64, 64, 1, 1, pingpong no_mk)",
            "' no_mk' is none of",
        ),
        (
            "grouped",
            "grouped",
            "GROUPED_ROWS_PINGPONG(sm100, 128, 128, 64, 1, 1)",
            "ping-pong is for sm90",
        ),
        ("grouped", "grouped", "GROUPED_ROWS(sm90, 128, 128, 64)", "cannot read"),
        (
            "scaled",
            "scaled",
            "SCALED_TILE(sm90, 128, 128, 128, 2, 1, cooperative, columns)",
            "cannot read",
        ),
        (
            "scaled",
            "scaled_grouped",
            "SCALED_COLUMNS(sm90, 128, 128, 128, 2, 1, cooperative, blocks)",
            "cannot read",
        ),
    ],
)
def test_wrong_line_in_a_list_of_kernels_is_named(
    tmp_path: Path, folder: str, name: str, line: str, complaint: str
) -> None:
    """The lists are read ahead of everything that needs the rest of the build."""
    (tmp_path / f"{name}.def").write_text(f"{line}\n")
    for script in (ROOT / "cc" / folder).glob("*.cmake"):
        shutil.copy(script, tmp_path)
    modules = f"-DCMAKE_MODULE_PATH={ROOT / 'cmake'}"
    done = subprocess.run(
        ["cmake", "-DBWGEMM_ARCHS=sm90;sm100", modules, "-P", f"{name}.cmake"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    output = " ".join(done.stderr.split())
    assert f"jax_bwgemm: {name}.def: {' '.join(complaint.split())}" in output
    assert line in output


def test_kernels_for_linking_are_apart_where_a_name_begins_with_another(tmp_path: Path) -> None:
    """nvJitLink keeps all kernels whose names begin with the one that is asked for."""
    names = ("sm90_a_pingpong", "sm90_b_pingpong", "sm90_a_pingpong_swap", "sm90_a", "sm90_c")
    where = "HEADER h.h NAMESPACE ns"
    calls = "\n".join(
        f'bwgemm_link_kernel(sm90_dense NAME {name} {where} INSTANCE "K({name}, 1)")'
        for name in names
    )
    (tmp_path / "test.cmake").write_text(
        f"""cmake_minimum_required(VERSION 3.24)
set(CMAKE_SOURCE_DIR "{ROOT}")
list(APPEND CMAKE_MODULE_PATH "{ROOT / "cmake"}")
include(BwgemmKernelUnits)
include(BwgemmLinkedKernels)
file(WRITE list.def "")
bwgemm_read_list("${{CMAKE_CURRENT_LIST_DIR}}/list.def" made "^TILE")
set(unit_dir "${{CMAKE_CURRENT_LIST_DIR}}")
{calls}
bwgemm_write_linked()
file(WRITE "${{unit_dir}}/index.txt" "${{linked_index}}")
"""
    )
    (tmp_path / "list.def").write_text("")
    subprocess.run(["cmake", "-P", "test.cmake"], cwd=tmp_path, check=True, capture_output=True)
    index = dict(line.split() for line in (tmp_path / "index.txt").read_text().splitlines())
    first, more, most = (f"sm90_dense{tail}.fatbin" for tail in ("", "_more", "_more_more"))
    assert index == dict(zip(names, (first, first, more, most, first), strict=True))
    units = {path.stem: path.read_text() for path in (tmp_path / "linked").glob("*.cu")}
    assert {f"{unit}.fatbin" for unit in units} == {first, more, most}
    for name, file in index.items():
        assert f"K({name}, 1)\n" in units[Path(file).stem]
    for text in units.values():
        assert '#include "h.h"' in text
        assert "using namespace ns;" in text


@pytest.mark.parametrize(("jobs", "pool"), [(1, "compilers"), (10**6, "large")])
def test_compilers_that_take_gigabytes_have_a_pool_where_memory_is_short(
    tmp_path: Path, jobs: int, pool: str
) -> None:
    (tmp_path / "test.cmake").write_text(
        f"""set(BWGEMM_COMPILE_JOBS {jobs})
include("{ROOT / "cmake" / "BwgemmJobPools.cmake"}")
get_property(pools GLOBAL PROPERTY JOB_POOLS)
message("${{pools}} ${{CMAKE_JOB_POOL_COMPILE}} ${{bwgemm_large_pool}}")
"""
    )
    done = subprocess.run(
        ["cmake", "-P", "test.cmake"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    pools, usual, large = done.stderr.split()
    sizes = dict(word.split("=") for word in pools.split(";"))
    assert sizes["compilers"] == str(jobs)
    assert int(sizes["large"]) >= 1
    assert (usual, large) == ("compilers", pool)
