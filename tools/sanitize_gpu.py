"""Runs every tile of this GPU's kernels under compute-sanitizer: memcheck, racecheck and more.

    python tools/sanitize_gpu.py                              # memcheck, then racecheck
    python tools/sanitize_gpu.py --tool memcheck --filter streamk
    python tools/sanitize_gpu.py --dry-run                    # what would run; needs no GPU

One storage order and type of each tile and schedule, on a problem with ragged edges whose K goes
around the pipeline more than once; with K split where the sum is a kernel of its own; stream-K
kernels in every decomposition; grouped kernels with sizes that nobody checked; kernels of 8-bit
operands with every layout of scales; kernels with epilogues linked into them. Results are compared
with exact ones. Exit code: 0 clean, 1 a tool found something or a result was wrong, 2 could not
run.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sanitize_grouped
import sanitize_linked
import sanitize_scaled
import sanitize_scaled_grouped
import sanitize_scaled_grouped_linked
import sanitize_scaled_linked

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# What the sanitizer's own exit code is not confused with.
FOUND = 77


@dataclasses.dataclass(frozen=True)
class Case:
    """One launch.

    Attributes:
        kernel: Name of the kernel.
        m, n, k, batch: Sizes.
        options: Fields of its TuningConfig.
        types: Of A and B.
    """

    kernel: str
    m: int
    n: int
    k: int
    batch: int
    options: tuple[tuple[str, Any], ...]
    types: tuple[str, str] = ("bfloat16", "bfloat16")

    def __str__(self) -> str:
        options = "".join(f" {name}={value}" for name, value in self.options)
        return f"{self.kernel} {self.m}x{self.n}x{self.k} b{self.batch}{options}"

    @property
    def splits_both(self) -> bool:
        """Whether both operands are f32."""
        return self.types == ("float32", "float32")

    def is_exact(self, implementation: str) -> bool:
        """Launches it in this process and compares."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        from jax_bwgemm.dense.primitive import gemm
        from jax_bwgemm.dense.spec import GemmSpec
        from jax_bwgemm.dense.tuning_config import TuningConfig
        from jax_bwgemm.product.spec import Policy

        config = TuningConfig(kernel=self.kernel, **dict(self.options))
        # Kernels of three terms answer HIGH too.
        precision = jax.lax.Precision.HIGH if self.splits_both else None
        policy = Policy(implementations=(implementation,), config=config, precision=precision)
        out = "float32" if self.splits_both else "bfloat16"
        spec = GemmSpec(policy=policy, out_dtype=out)
        rng = np.random.default_rng(0)
        a = rng.integers(-2, 3, (self.batch, self.m, self.k)).astype(np.float32)
        b = rng.integers(-2, 3, (self.batch, self.k, self.n)).astype(np.float32)
        operands = (x.astype(jnp.dtype(t)) for x, t in zip((a, b), self.types, strict=True))
        got = np.asarray(jax.jit(lambda x, y: gemm(x, y, spec))(*operands))
        return np.array_equal(got, (a @ b).astype(jnp.dtype(out)))


AnyCase = (
    Case
    | sanitize_grouped.GroupedCase
    | sanitize_linked.LinkedCase
    | sanitize_scaled.ScaledCase
    | sanitize_scaled_grouped.ScaledGroupedCase
    | sanitize_scaled_linked.ScaledLinkedCase
    | sanitize_scaled_linked.SourceCase
)


def cases(arch: str, pattern: str) -> list[Case]:
    """One kernel of each tile and schedule whose name the pattern is in."""
    from jax_bwgemm import runtime

    found = []
    for k in runtime.kernels():
        if k.arch != arch or not re.search(pattern, k.name):
            continue
        if (k.out_dtype != "bfloat16" and not k.splits_both) or k.majors != "kn":
            continue
        types = k.a_dtype, k.b_dtype
        rows, columns = (k.tile_n, k.tile_m) if k.swap_ab else (k.tile_m, k.tile_n)
        # A tile and an edge each way, and a pipeline's depth and a half.
        m, n, steps = rows + 8, columns + 24, k.stages + k.stages // 2 + 1
        whole = m, n, steps * k.tile_k + 8, 1
        found.append(Case(k.name, *whole, (), types))
        if not k.stream_k:
            if k.splits_k:
                found.append(Case(k.name, m, n, 2 * steps * k.tile_k, 1, (("splits", 2),), types))
            continue
        deep = m, n, 20 * k.tile_k + 8, 2
        found += [Case(k.name, *deep, (("decomposition", d),)) for d in ("heuristic", "stream_k")]
        found.append(Case(k.name, *deep, (("decomposition", "split_k"), ("splits", 3))))
    return found


def run_cases(selected: Sequence[AnyCase], implementation: str = "cutlass") -> int:
    """Runs launches in this process; returns how many results were wrong."""
    wrong = 0
    for case in selected:
        ok = case.is_exact(implementation)
        wrong += not ok
        print("exact" if ok else "WRONG", case, flush=True)
    return wrong


def sanitizer(path: str | None) -> str | None:
    """The program: given, on PATH, or of a CUDA toolkit."""
    candidates = [path, shutil.which("compute-sanitizer")]
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        candidates.append(str(Path(root) / "bin" / "compute-sanitizer") if root else None)
    return next((c for c in candidates if c and Path(c).exists()), None)


def command(program: str, tool: str, arguments: Sequence[str]) -> list[str]:
    """The sanitizer's command line around this script."""
    own = [sys.executable, str(Path(__file__).resolve()), "--inside", *arguments]
    tools = ["--tool", tool, "--error-exitcode", str(FOUND)]
    if tool == "memcheck":
        # Whether a linked kernel has more than one parameter is asked of CUDA, and the right answer
        # is an error (CheckOneParameter in cc/call/linked.cc).
        tools += ["--report-api-errors", "no"]
    return [program, *tools, "--target-processes", "application-only", *own]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", nargs="+", choices=TOOLS, default=["memcheck", "racecheck"])
    parser.add_argument("--filter", default="", help="regular expression in a kernel's name")
    parser.add_argument("--arch", choices=("sm90", "sm100"), help="default: this GPU's")
    parser.add_argument("--sanitizer", help="compute-sanitizer, where it is not found")
    parser.add_argument("--limit", type=float, default=280, help="seconds for each tool")
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def hazards(text: str) -> dict[str, int]:
    """How often racecheck reports each kernel, whose name is that of its parameters."""
    found = re.findall(r"reported between \w+ access at (?:void )?(.+?)>*\([^()]*\)\+0x", text)
    names = (re.sub(r"\((?:bwgemm::\w+|int|bool)\)|bwgemm::", "", name) for name in found)
    return dict(collections.Counter(names))


def ends(text: str, most: int = 6000) -> str:
    """Begin and end of a text: a sanitizer says first what is wrong, a program last."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n...\n{text[-most // 2 :]}"


def check(program: str, tool: str, args: argparse.Namespace) -> bool:
    """Runs one tool; returns whether it found nothing."""
    arguments = ["--arch", args.arch, "--filter", args.filter]
    environment = os.environ | {
        # Every buffer an allocation of its own, so that a byte beyond it is an error.
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_command_buffer=",
    }
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command(program, tool, arguments),
            env=environment, capture_output=True, text=True, timeout=args.limit,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        print(f"{tool}: not finished after {args.limit:g} s; use --filter")
        print((late.stdout or b"").decode()[-2000:])
        return False
    seconds = time.monotonic() - begin
    exact = done.stdout.count("exact ")
    summary = [x for x in done.stdout.splitlines() if "SUMMARY" in x]
    print(f"{tool}: {exact} launches exact, exit code {done.returncode}, {seconds:.0f} s")
    print("\n".join(summary))
    for kernel, count in hazards(done.stdout).items():
        print(f"{count} x {kernel}")
    if done.returncode or not summary:
        print(ends(done.stdout), done.stderr[-2000:], sep="\n")
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    from jax_bwgemm import runtime

    if args.arch is None:
        target = runtime.local_target().target
        if target is None and not args.dry_run:
            print("error: no GPU that this build has kernels for", file=sys.stderr)
            return 2
        args.arch = target.arch if target else "sm90"
    selected: list[AnyCase] = []
    families = (
        sanitize_grouped, sanitize_linked, sanitize_scaled, sanitize_scaled_grouped,
        sanitize_scaled_linked, sanitize_scaled_grouped_linked,
    )  # fmt: skip
    for family in (cases, *(module.cases for module in families)):
        selected += family(args.arch, args.filter)
    if not selected:
        print(f"error: no {args.arch} kernel has {args.filter!r} in its name", file=sys.stderr)
        return 2
    if args.inside:
        return 1 if run_cases(selected) else 0
    program = sanitizer(args.sanitizer)
    if args.dry_run:
        for tool in args.tool:
            print(*command(program or "compute-sanitizer", tool, ["--arch", args.arch]))
        print(*selected, sep="\n")
        return 0
    if program is None:
        print("error: compute-sanitizer is not found; it comes with CUDA toolkits", file=sys.stderr)
        return 2
    clean = [check(program, tool, args) for tool in args.tool]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
