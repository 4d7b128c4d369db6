"""Which of JAX's tests are run, and one run of them in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PRODUCTS = "dot or matmul or einsum or inner or vecdot or vdot or matvec or ragged"
# Files of many subjects are searched by name; in the others most tests multiply.
DEFAULT = (
    f"lax_test::{PRODUCTS}",
    f"lax_autodiff_test::{PRODUCTS}",
    f"lax_vmap_test::{PRODUCTS}",
    f"lax_numpy_test::{PRODUCTS}",
    "lax_numpy_einsum_test",
    "batching_test",
    "shard_map_test",
    "pjit_test",
)
TOOLS = Path(__file__).resolve().parent.parent
REPOSITORY = TOOLS.parent


@dataclasses.dataclass(frozen=True)
class Selection:
    """Tests of one file: all, or those whose name matches a pattern."""

    file: str
    pattern: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Attributes:
        test: ``Class::name``, the same in every run.
        state: ``"passed"``, ``"failed"`` or ``"skipped"``.
        message: Type and first line of the error of a test that failed.
        calls: How many times it called a function of jax_bwgemm.
        binds: How many of its products became a primitive of jax_bwgemm.
    """

    test: str
    state: str
    message: str = ""
    calls: int = 0
    binds: int = 0


def parse(text: str) -> Selection:
    """``FILE`` or ``FILE::PATTERN``."""
    file, _, pattern = text.partition("::")
    return Selection(file.removesuffix(".py"), pattern)


@dataclasses.dataclass(frozen=True)
class Runner:
    """Runs a selection, in a process of its own: some files set the number of devices.

    Attributes:
        folder: The folder tests/ of a checkout of JAX.
        selection: The tests.
        cases: Cases of each test that JAX samples.
        primitive: Whether kernels for f32 and f64 are pretended.
    """

    folder: Path
    selection: Selection
    cases: int
    primitive: bool

    def __call__(
        self, *, replaced: bool, only: Sequence[str] | None = None
    ) -> tuple[list[Outcome], str]:
        """Runs the tests.

        Args:
            replaced: Whether jax_bwgemm's functions take the place of JAX's.
            only: The tests to run; None means all that are selected.

        Returns:
            Outcomes, and the end of the output if pytest itself failed (else an empty string).
        """
        with tempfile.TemporaryDirectory() as scratch:
            results = Path(scratch) / "results.jsonl"
            wanted = Path(scratch) / "wanted.json"
            wanted.write_text(json.dumps(None if only is None else list(only)))
            environment = {
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_GENERATED_CASES": str(self.cases),
                "PYTHONPATH": os.pathsep.join(
                    [str(TOOLS), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
                ).rstrip(os.pathsep),
                "BWGEMM_TUNING_CACHE": "off",
                "BWGEMM_JAX_TESTS_RESULTS": str(results),
                "BWGEMM_JAX_TESTS_ONLY": str(wanted),
                "BWGEMM_JAX_TESTS_MODE": (
                    "plain" if not replaced else "primitive" if self.primitive else "xla"
                ),
            }
            command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "--tb=no"]
            command += ["-c", os.devnull, "--rootdir", scratch, "-p", "no:cacheprovider"]
            command += [
                "-p",
                "jax_tests.plugin",
                str((self.folder / self.selection.file).resolve()),
            ]
            command[-1] += ".py"
            if self.selection.pattern:
                command += ["-k", self.selection.pattern]
            process = subprocess.run(
                command,
                cwd=scratch,  # the checkout's own jax must not be found
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            lines = results.read_text().splitlines() if results.exists() else []
        outcomes = [Outcome(**json.loads(line)) for line in lines]
        finished = process.returncode in (0, 1) and outcomes
        return outcomes, "" if finished else process.stdout[-2000:] or f"{process.returncode}"
