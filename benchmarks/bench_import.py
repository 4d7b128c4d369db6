"""What `import jax_bwgemm` costs over `import jax`, in fresh processes that take turns.

    python bench_import.py                  # 21 processes of each; the budget is 0.1 s

Processor time of the importing process, which other programs on the machine disturb less than the
wall clock. The first process of each kind is not counted: it compiles the Python files to bytecode
and reads them into the system's cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common import options, report

# Imports the modules named by its arguments and prints each one's processor time in microseconds.
PROGRAM = """
import importlib, sys, time
for name in sys.argv[1:]:
    begin = time.process_time_ns()
    importlib.import_module(name)
    print((time.process_time_ns() - begin) / 1000)
"""
# What a process imports, in order; the last module is the one that counts.
CASES = {"jax": ["jax"], "jax_bwgemm after jax": ["jax", "jax_bwgemm"]}
PACKAGE = Path(__file__).resolve().parent.parent


def import_us(modules: Sequence[str]) -> float:
    """Processor time of importing the last of `modules` after the others, in a new process.

    Raises:
      subprocess.CalledProcessError: one of them cannot be imported.
    """
    path = os.pathsep.join(filter(None, (str(PACKAGE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", metavar="FILE", help="write JSON lines to FILE")
    parser.add_argument("--rounds", type=options.positive, default=21, help="processes of each")
    parser.add_argument("--budget", type=float, metavar="S", help="exit with 1 above this median")
    parser.add_argument("--small", action="store_true", help="rehearse: one round")
    parser.add_argument("--dry-run", action="store_true", help="print what would run, run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    rounds = 1 if args.small else args.rounds
    if args.dry_run:
        for name, modules in CASES.items():
            print(f"{rounds} processes: {name} (import {', '.join(modules)})")
        return 0
    out = report.Report(args.out, "bench_import")
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(rounds + 1):  # the first fills the system's file cache
        for name, modules in CASES.items():
            us = import_us(modules)
            if turn:
                times[name].append(us)
    rows = [out.add("import", what=name, **report.summarise(us)) for name, us in times.items()]
    out.close()
    print(report.table(rows, ("what", "median_us", "min_us", "max_us", "samples")))
    seconds = statistics.median(times["jax_bwgemm after jax"]) / 1e6
    print(f"import jax_bwgemm takes {seconds:.3f} s over import jax")
    if args.budget is not None and seconds > args.budget:
        print(f"above the budget of {args.budget:g} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
