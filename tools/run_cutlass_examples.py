"""Compiles CUTLASS's tutorials and examples, unchanged, and runs them on the emulator.

    python tools/run_cutlass_examples.py ~/cutlass               # all: about half an hour
    python tools/run_cutlass_examples.py ~/cutlass --only tutorial-02 70

Needs nvcc 13 (`jax_bwgemm.emulator.program.find_nvcc`) and the headers of cuRAND (``pip install
nvidia-curand``, or ``--include``). Each example checks its own result. Prints a line for each:
whether it passed, seconds to compile and to run, and how many lines of its kernels broke which
rules (three at most of a rule and a kernel are counted).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass(frozen=True)
class Example:
    """One program of CUTLASS.

    Attributes:
        name: What ``--only`` calls it.
        source: Its file, below ``examples``.
        arch: What it is compiled for.
        arguments: Its own; problems are small.
        success: What it prints when its check has passed.
        relaxed: Whether it leaves out waits for tensor memory.
        lenient: Rules that it breaks and that are warnings here; docs/emulator.md says why.
    """

    name: str
    source: str
    arch: str
    arguments: str
    success: str = "Passed"
    relaxed: bool = False
    lenient: tuple[str, ...] = ()


_BLACKWELL = "cute/tutorial/blackwell"
_TUTORIAL = "Execution is successful"
_GEMM = "--m=512 --n=256 --k=128"
EXAMPLES = (
    Example(
        "tutorial-01",
        f"{_BLACKWELL}/01_mma_sm100.cu",
        "sm100",
        "512 512 256",
        _TUTORIAL,
        relaxed=True,
        lenient=("proxy-fence",),
    ),
    *(
        Example(
            f"tutorial-{file[:2]}",
            f"{_BLACKWELL}/{file}.cu",
            "sm100",
            "512 1024 256",
            _TUTORIAL,
            relaxed=True,
            lenient=("tensor-race",) if "2sm" in file or "epi" in file else (),
        )
        for file in (
            "02_mma_tma_sm100",
            "03_mma_tma_multicast_sm100",
            "04_mma_tma_2sm_sm100",
            "05_mma_tma_epi_sm100",
        )
    ),
    # They print a rate and check nothing.
    Example(
        "tutorial-wgmma",
        "cute/tutorial/hopper/wgmma_sm90.cu",
        "sm90",
        "256 256 128",
        "CUTE_GEMM:",
        lenient=("async-hazard", "shared-race", "proxy-fence"),
    ),
    Example(
        "tutorial-wgmma-tma",
        "cute/tutorial/hopper/wgmma_tma_sm90.cu",
        "sm90",
        "512 256 256",
        "CUTE_GEMM:",
    ),
    Example(
        "48",
        "48_hopper_warp_specialized_gemm/48_hopper_warp_specialized_gemm.cu",
        "sm90",
        f"{_GEMM} --iterations=1",
    ),
    Example("49", "49_hopper_gemm_with_collective_builder/49_collective_builder.cu", "sm90", _GEMM),
    Example(
        "50",
        "50_hopper_gemm_with_epilogue_swizzle/50_hopper_gemm_with_epilogue_swizzle.cu",
        "sm90",
        _GEMM,
    ),
    Example(
        "57",
        "57_hopper_grouped_gemm/57_hopper_grouped_gemm.cu",
        "sm90",
        "--m=256 --n=256 --k=128 --groups=3 --iterations=0",
    ),
    Example(
        "70",
        "70_blackwell_gemm/70_blackwell_fp16_gemm.cu",
        "sm100",
        "--m=512 --n=512 --k=256 --iterations=0",
        relaxed=True,
    ),
    Example(
        "71",
        "71_blackwell_gemm_with_collective_builder/71_blackwell_gemm_with_collective_builder.cu",
        "sm100",
        _GEMM,
        relaxed=True,
    ),
    *(
        Example(
            name,
            f"72_blackwell_narrow_precision_gemm/{name}_blackwell_{file}_gemm.cu",
            "sm100",
            "--m=512 --n=256 --k=256 --iterations=0",
            relaxed=True,
        )
        for name, file in (
            ("72a", "nvfp4_bf16"),
            ("72b", "nvfp4_nvfp4"),
            ("72c", "mixed_mxfp8_bf16"),
        )
    ),
    Example(
        "73",
        "73_blackwell_gemm_preferred_cluster/blackwell_gemm_preferred_cluster.cu",
        "sm100",
        "--m=512 --n=512 --k=128 --iterations=0",
        relaxed=True,
    ),
    Example(
        "74",
        "74_blackwell_gemm_streamk/blackwell_gemm_streamk.cu",
        "sm100",
        "--m=512 --n=512 --k=512 --iterations=0",
        relaxed=True,
    ),
    Example(
        "75",
        "75_blackwell_grouped_gemm/75_blackwell_grouped_gemm.cu",
        "sm100",
        "--m=256 --n=256 --k=128 --groups=3 --iterations=0",
        relaxed=True,
    ),
    Example(
        "75-block-scaled",
        "75_blackwell_grouped_gemm/75_blackwell_grouped_gemm_block_scaled.cu",
        "sm100",
        "--m=256 --n=256 --k=128 --groups=3 --iterations=0",
        relaxed=True,
    ),
    Example(
        "77",
        "77_blackwell_fmha/77_blackwell_fmha.cu",
        "sm100",
        "--b=1 --h=2 --q=256 --k=256 --d=128 --iterations=0 --verify",
        "[OK]",
        relaxed=True,
    ),
    Example(
        "81",
        "81_blackwell_gemm_blockwise/81_blackwell_gemm_blockwise.cu",
        "sm100",
        "--m=256 --n=256 --k=256 --iterations=0",
        relaxed=True,
    ),
)


def emulate(*words: str, log: pathlib.Path) -> tuple[int, str, float]:
    """Runs ``python -m jax_bwgemm emulate``, logged: exit code, output, seconds."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "jax_bwgemm", "emulate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with log.open("a") as file:
        file.write(done.stdout)
    return done.returncode, done.stdout, time.monotonic() - start


def run(example: Example, cutlass: pathlib.Path, args: argparse.Namespace) -> bool:
    """Compiles and runs one example and prints its line."""
    folder: pathlib.Path = args.build
    source = cutlass / "examples" / example.source
    executable, log = folder / example.name, folder / f"{example.name}.log"
    log.unlink(missing_ok=True)
    print(f"{example.name:20}", end="", flush=True)
    compiling = 0.0
    if not executable.exists():
        includes = [
            cutlass / "include",
            cutlass / "tools/util/include",
            cutlass / "examples/common",
            source.parent,
            *args.include,
        ]
        options = [f"-I{path}" for path in includes]
        options += ["-std=c++17", "-O2", "--expt-relaxed-constexpr", "-o", str(executable)]
        # It ends with the arguments that are wrong: only the compilation is looked at.
        words = ["--arch", example.arch, "--program", str(source), *options, "--", "--help"]
        _, _, compiling = emulate(*words, log=log)
        if not executable.exists():
            print(f"does not compile: see {log}")
            return False
    words = ["--arch", example.arch, "--sm-count", "16", "--seed", str(args.seed)]
    words += ["--threads", str(args.threads)]
    words += ["--relaxed"] if example.relaxed else []
    for rule in example.lenient:
        words += ["--rule", f"{rule}=warning"]
    words += ["--program", str(executable), "--", *example.arguments.split()]
    code, output, running = emulate(*words, log=log)
    passed = code == 0 and example.success in output and "Failed" not in output
    broken = collections.Counter(re.findall(r"emulator: warning: .*\[rule ([a-z-]+)\]", output))
    warnings = ", ".join(f"{rule} {count}" for rule, count in sorted(broken.items())) or "none"
    verdict = "passed" if passed else f"FAILED ({code})"
    print(f"{verdict:12} {compiling:5.0f} s {running:5.0f} s   {warnings}")
    if not passed:
        print(f"    see {log}")
    return passed


def main() -> int:
    """Returns 0 if all passed, 1 if not, 2 if nothing could be run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cutlass", type=pathlib.Path, help="a CUTLASS checkout, 4.2 or newer")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these, not all")
    parser.add_argument("--seed", type=int, default=0, help="of the emulator")
    parser.add_argument("--threads", type=int, default=1, help="of the emulator")
    parser.add_argument("--build", type=pathlib.Path, help="keep executables and logs here")
    parser.add_argument("--include", type=pathlib.Path, action="append", default=[])
    args = parser.parse_args()
    cutlass = args.cutlass.expanduser().resolve()
    if not (cutlass / "include" / "cutlass").is_dir():
        print(f"error: {cutlass} is no CUTLASS checkout", file=sys.stderr)
        return 2
    known = {example.name: example for example in EXAMPLES}
    unknown = [name for name in args.only or () if name not in known]
    if unknown:
        print(f"error: no example {unknown[0]!r}: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in args.only] if args.only else EXAMPLES
    args.build = args.build or pathlib.Path(tempfile.mkdtemp(prefix="cutlass-examples-"))
    args.build.mkdir(parents=True, exist_ok=True)
    print(f"{'example':20}{'':12} compile    run   lines of kernels that break a rule")
    passed = [run(example, cutlass, args) for example in chosen]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
