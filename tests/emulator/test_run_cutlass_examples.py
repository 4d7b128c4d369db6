"""tools/run_cutlass_examples.py, on a checkout of one made-up example."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from emulator_cases import requires_emulator

from jax_bwgemm.emulator import program

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "run_cutlass_examples.py"
EXAMPLE = pathlib.Path("examples", "cute", "tutorial", "blackwell", "02_mma_tma_sm100.cu")
SOURCE = """
#include <cstdio>
#include <cutlass/answer.h>
__global__ void same(int* out) { out[0] = ANSWER; }
int main(int argc, char** argv) {
  int* out;
  cudaMalloc(&out, 4);
  same<<<4, 1>>>(out);
  std::printf("Execution is %s %d\\n", cudaDeviceSynchronize() ? "bad" : "successful", argc);
}
"""

pytestmark = requires_emulator


def tool(*words: object, expected: int) -> str:
    if not TOOL.exists():
        pytest.skip("the tools are not part of an installed package")
    done = subprocess.run(
        [sys.executable, str(TOOL), *map(str, words)], capture_output=True, text=True
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "include/cutlass").mkdir(parents=True)
    (tmp_path / "include/cutlass/answer.h").write_text("#define ANSWER 7\n")
    source = tmp_path / EXAMPLE
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    return tmp_path


def test_examples_are_compiled_run_and_listed(checkout: pathlib.Path) -> None:
    try:
        program.find_nvcc()
    except program.ProgramError as error:
        pytest.skip(str(error))
    build = checkout / "build"
    out = tool(checkout, "--only", "tutorial-02", "--build", build, expected=0)
    assert "passed" in out
    assert "same-value 1" in out
    (checkout / EXAMPLE).write_text(SOURCE.replace("Execution is", "Execution was"))
    assert "passed" in tool(checkout, "--only", "tutorial-02", "--build", build, expected=0)
    (build / "tutorial-02").unlink()
    assert "FAILED (0)" in tool(checkout, "--only", "tutorial-02", "--build", build, expected=1)
    (build / "tutorial-02").unlink()
    (checkout / EXAMPLE).write_text("int main() { return nothing; }")
    out = tool(checkout, "--only", "tutorial-02", "--build", build, expected=1)
    assert "does not compile: see" in out
    assert '"nothing" is undefined' in (build / "tutorial-02.log").read_text()


def test_refusals(checkout: pathlib.Path) -> None:
    assert "is no CUTLASS checkout" in tool(checkout / "examples", expected=2)
    assert "error: no example '12': tutorial-01" in tool(checkout, "--only", "12", expected=2)
