"""`python -m jax_bwgemm emulate`: run one GPU kernel, or a whole program, on the CPU."""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jax_bwgemm.product.kernels import Kernel

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
# How JAX begins the message of a call whose operands or options no kernel takes.
_REFUSED = "INVALID_ARGUMENT: "


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "emulate",
        help="run a Blackwell or Hopper kernel on this CPU, check it and show its timeline",
        description="Runs one GEMM kernel of this build in the GPU emulator, compares the result "
        "with the exact product of the same integers and prints what the kernel did. Exit code: "
        "0 equal, 1 different or reported by the emulator, 2 could not run. With --program it runs "
        "a CUDA program, whose exit code it returns; 1 instead of 0 if a kernel was reported.",
    )
    for name, default, meaning in (
        ("m", 256, "rows of lhs and of the result"),
        ("n", 256, "columns of rhs and of the result"),
        ("k", 256, "contracted dimension"),
        ("batch", 1, "number of products"),
    ):
        parser.add_argument(
            f"--{name}", type=_positive, default=default, help=f"{meaning} (default: {default})"
        )
    parser.add_argument(
        "--kernel",
        help="full name, which the next four options may not contradict (default: the first kernel "
        "that fits them)",
    )
    # No defaults here: an option that was given is compared with the kernel's name.
    parser.add_argument("--arch", choices=("sm100", "sm90"), help="default: sm100")
    parser.add_argument(
        "--dtype",
        choices=("bf16", "f16"),
        help="type of the operands (default: bf16)",
    )
    parser.add_argument(
        "--out-dtype",
        choices=("bf16", "f16", "f32"),
        help="type of the result (default: the operands' type)",
    )
    parser.add_argument(
        "--majors",
        choices=("kn", "kk", "mn", "mk"),
        help="contiguous dimension of lhs and of rhs (default: kn, both row-major)",
    )
    parser.add_argument(
        "--sm-count", type=_positive, default=4, help="emulated multiprocessors (default: 4)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the scheduler and of the operands (default: 0)"
    )
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        type=_severity,
        metavar="NAME=SEVERITY",
        help="make a rule an error, a warning or off (docs/emulator/reports.md); repeatable",
    )
    parser.add_argument(
        "--relaxed",
        action="store_true",
        help="complete tcgen05.ld and .st when they are issued, whether or not the kernel waits",
    )
    parser.add_argument(
        "--no-races",
        action="store_true",
        help="keep no history of accesses: faster, but only what happens in this schedule is seen",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="run clusters side by side: faster, but not reproducible, and races between warps in "
        "global memory are not seen (default: 1)",
    )
    parser.add_argument(
        "--step-limit",
        type=_positive,
        default=2**36,
        metavar="N",
        help="warp instructions after which a launch is ended (default: 2^36, hours)",
    )
    parser.add_argument("--trace", metavar="FILE", help="write a timeline for ui.perfetto.dev")
    parser.add_argument("--picture", metavar="FILE", help="save the timeline as PNG")
    parser.add_argument(
        "--program",
        metavar="FILE.cu",
        help="compile and run a CUDA program instead; what follows belongs to nvcc and, after --, "
        "to the program: --program FILE.cu -I include -- --size 64. An executable that was made "
        "with -o is run without compiling",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the subcommand; returns its exit code."""
    if args.program is not None:
        return _run_program(args)
    import jax

    from jax_bwgemm import emulator, runtime
    from jax_bwgemm.emulator.dense import run_gemm

    if runtime.load_emulator() is None:
        return _refuse("jax_bwgemm was installed without its emulator (module _emulator)")
    if reason := _files_refusal(args):
        return _refuse(reason)
    try:
        kernel = _choose(args, runtime.emulated_kernels())
        a, b, expected = _operands(args, kernel)
        print(f"kernel           {kernel.name}")
        print(f"problem          B={args.batch} M={args.m} N={args.n} K={args.k}", flush=True)
        tracing = bool(args.trace or args.picture)
        with emulator.configure(**_settings(args), trace=tracing):
            out = _with_progress(lambda: run_gemm(kernel, a, b))
    except ValueError as error:
        return _refuse(str(error))
    except MemoryError as error:
        return _refuse(f"not enough memory: {error}")
    except jax.errors.JaxRuntimeError as error:
        if str(error).startswith(_REFUSED):  # before the kernel ran
            return _refuse(str(error).removeprefix(_REFUSED))
        print(f"reported         {error}", file=sys.stderr)
        return 1
    stats, trace = emulator.last_launch(), emulator.last_trace()
    assert stats is not None  # a launch has just succeeded
    print(stats.table())
    try:
        if args.trace and trace is not None:
            trace.save(args.trace)
            print(f"trace            {args.trace}: open it in https://ui.perfetto.dev")
        if args.picture and trace is not None:
            emulator.save_picture(trace, args.picture, title=kernel.name)
            print(f"picture          {args.picture}")
    except (OSError, ValueError) as error:  # the disk, an empty trace
        return _refuse(str(error))
    different = np.count_nonzero(out != expected)
    verdict = "bitwise equal" if not different else f"{different} of {out.size} elements DIFFER"
    print(f"check            {verdict} to the exact product")
    return 1 if different else 0


def _run_program(args: argparse.Namespace) -> int:
    from jax_bwgemm import emulator
    from jax_bwgemm.emulator import program

    # A shortened option, which argparse reads, takes one word.
    words = [args.program] if isinstance(args.program, str) else list(args.program)
    split = words.index("--") if "--" in words else len(words)
    options, arguments = words[:split], words[split + 1 :]
    if not options or not options[0]:
        return _refuse("--program needs a file")
    source = options.pop(0)
    try:
        settings = emulator.Settings(**_settings(args))
        with tempfile.TemporaryDirectory() as folder:
            executable = source
            if pathlib.Path(source).suffix:
                executable = f"{folder}/program"
                if "-o" in options[:-1]:
                    at = options.index("-o")
                    executable = options[at + 1]
                    del options[at : at + 2]
                architecture = (args.arch or "sm100").removeprefix("sm") + "a"
                program.compile_program(source, executable, options, architecture=architecture)
            elif options:
                return _refuse(f"{source} is compiled already: no options of nvcc")
            outcome = program.run_program(executable, arguments, settings)
    except (program.ProgramError, RuntimeError, ValueError) as error:
        return _refuse(str(error))
    return outcome.code or (1 if outcome.faults else 0)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "seed": args.seed,
        "sm_count": args.sm_count,
        "step_limit": args.step_limit,
        "rules": dict(args.rule),
        "relaxed": args.relaxed,
        "races": not args.no_races,
        "threads": args.threads,
    }


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _severity(text: str) -> tuple[str, str]:
    name, equals, severity = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=SEVERITY, got {text!r}")
    return name, severity


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _files_refusal(args: argparse.Namespace) -> str | None:
    """Why a file that was asked for cannot be written, said before hours of emulation."""
    from jax_bwgemm.emulator import picture

    for file in (args.trace, args.picture):
        if file and not pathlib.Path(file).absolute().parent.is_dir():
            return f"{file}: no such folder"
        if file and pathlib.Path(file).is_dir():
            return f"{file} is a folder"
    if args.picture:
        try:
            picture.check_path(args.picture)
        except (RuntimeError, ValueError) as error:  # matplotlib is missing, or has no such format
            return str(error)
    return None


def _choose(args: argparse.Namespace, kernels: tuple[Kernel, ...]) -> Kernel:
    """The kernel that the options name or describe."""
    from jax_bwgemm.emulator.dense import find_kernel

    if args.kernel:
        named = find_kernel(args.kernel)
        own = {"arch": named.arch, "dtype": named.in_dtype, "out_dtype": named.out_dtype}
        for option, value in (own | {"majors": named.a_major + named.b_major}).items():
            given = getattr(args, option)
            if given is not None and _DTYPES.get(given, given) != value:
                option = option.replace("_", "-")
                raise ValueError(
                    f"--{option} {given} contradicts --kernel {args.kernel}, of {value}"
                )
        return named
    arch, dtype, majors = args.arch or "sm100", args.dtype or "bf16", args.majors or "kn"
    out_dtype = args.out_dtype or dtype
    wanted = (arch, _DTYPES[dtype], _DTYPES[out_dtype], *majors)
    for k in kernels:
        if (k.arch, k.in_dtype, k.out_dtype, k.a_major, k.b_major) == wanted:
            return k
    raise ValueError(
        f"this build has no {arch} kernel {dtype} -> {out_dtype} with majors {majors}; see "
        "`python -m jax_bwgemm info`"
    )


def _operands(
    args: argparse.Namespace, kernel: Kernel
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Small integers, and their product in the kernel's output type: exact in f32 arithmetic."""
    import jax.numpy as jnp

    from jax_bwgemm.emulator.dense import operand_shapes, reference

    rng = np.random.default_rng(abs(args.seed))
    a, b = (
        rng.integers(-2, 3, shape).astype(jnp.dtype(kernel.in_dtype))
        for shape in operand_shapes(kernel, args.m, args.n, args.k, args.batch)
    )
    # Rounded once, from exact sums, like the kernel's f32 accumulators.
    return a, b, reference(kernel, a, b).astype(np.float32).astype(jnp.dtype(kernel.out_dtype))


def _with_progress(work: Callable[[], np.ndarray]) -> np.ndarray:
    """Runs `work` while a line on a terminal says how far the launch is."""
    from jax_bwgemm import emulator

    finished = threading.Event()

    def report() -> None:
        while not finished.wait(0.5):
            done, total = emulator.progress()
            if total:
                print(f"\rcluster          {done} of {total}", end="", file=sys.stderr, flush=True)
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)

    reporter = threading.Thread(target=report, daemon=True) if sys.stderr.isatty() else None
    if reporter:
        reporter.start()
    try:
        return work()
    finally:
        finished.set()
        if reporter:
            reporter.join()
