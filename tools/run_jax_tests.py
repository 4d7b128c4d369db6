"""Runs JAX's own tests of products with jax_bwgemm's functions in the place of JAX's.

    git clone --branch jax-v0.11.0 https://github.com/jax-ml/jax
    python tools/run_jax_tests.py jax
    python tools/run_jax_tests.py jax --tests batching_test pjit_test::dot
    python tools/run_jax_tests.py jax --no-primitive      # every product is XLA's

The checkout's version should be that of the installed JAX; only its folder tests/ is used. Needs
pytest, absl-py, hypothesis and SciPy besides.

lax.dot, lax.dot_general, lax.ragged_dot, lax.ragged_dot_general and jnp.matmul are replaced in all
of JAX, so that jnp.dot, einsum, tensordot, inner, vdot and the operator @ call ours too. Tests that
fail are run once more without the replacement; what then passes is a difference. The program ends
with 1 if there is a difference that tools/jax_tests/known.py does not list.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jax_tests import compare, suite


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of JAX: a folder that has tests/")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="FILE[::PATTERN]",
        default=list(suite.DEFAULT),
        help="files of tests/, without .py, each optionally with an expression as pytest's -k "
        "takes it (default: %(default)s)",
    )
    parser.add_argument(
        "--primitive",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="pretend that kernels for f32 and f64 exist, so that products become the primitive "
        "and its rules are tested; lowering stays XLA's (default: yes)",
    )
    parser.add_argument(
        "--compare",
        choices=("failures", "all", "no"),
        default="failures",
        help="what to run without the replacement: the tests that failed, all, or none "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--cases",
        type=int,
        default=10,
        help="cases of each test that JAX samples (default: %(default)s)",
    )
    parser.add_argument("--log", type=Path, help="a file for each test's outcome, as JSON lines")
    options = parser.parse_args(arguments)
    folder = options.checkout / "tests"
    selections = [suite.parse(text) for text in options.tests]
    for selection in selections:
        if not (folder / f"{selection.file}.py").is_file():
            parser.error(f"there is no {folder / selection.file}.py")
    new = 0
    for selection in selections:
        run = suite.Runner(folder, selection, options.cases, options.primitive)
        report = compare.compare(run, options.compare)
        print(report.text(), flush=True)
        new += len(report.unexplained) + report.broken
        if options.log is not None:
            with options.log.open("a") as file:
                file.write(report.log())
    print(f"{new} unexplained difference{'' if new == 1 else 's'}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
