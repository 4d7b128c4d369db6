"""Command-line options and set-up that the benchmark programs share."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

from common.timing import ROTATE_BYTES, configure_environment

DTYPES = ("bfloat16", "float16", "float32")
IMPLEMENTATIONS = ("cutlass", "xla", "emulator", "auto")


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options every benchmark has."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--out", metavar="FILE", help="write JSON lines to FILE")
    made.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="operand type")
    made.add_argument(
        "--implementation",
        choices=IMPLEMENTATIONS,
        default="cutlass",
        help="what runs in this package's column. Only auto may fall back to XLA",
    )
    made.add_argument(
        "--small",
        action="store_true",
        help="rehearse on tiny problems; on a machine without a GPU this package's column then "
        "runs on XLA and is timed by the wall clock: such figures mean nothing",
    )
    made.add_argument("--dry-run", action="store_true", help="print what would run, run nothing")
    made.add_argument("--seed", type=int, default=0, help="seed of the random operands")
    return made


def add_turns(made: argparse.ArgumentParser, *, rounds: int) -> None:
    """Options of benchmarks whose columns take turns on the GPU."""
    made.add_argument("--rounds", type=positive, default=rounds, help="turns per column")
    made.add_argument("--burst", type=positive, default=3, help="calls per turn")
    made.add_argument(
        "--turn-ms",
        type=not_negative,
        default=0.0,
        metavar="MS",
        help="make turns last at least so long, with more calls. The GPU rests between short "
        "turns and its clock is high; with 50 it is kept busy, and runs at the clock that its "
        "power limit allows in training",
    )


def add_peers(made: argparse.ArgumentParser, *, rounds: int) -> None:
    """Options of benchmarks that compare with other libraries' kernels, Pallas's among them."""
    made.add_argument(
        "--pallas-grid",
        choices=("small", "full"),
        default="small",
        help="configurations of the Pallas kernel to try",
    )
    made.add_argument(
        "--compile-threads",
        type=positive,
        default=os.cpu_count() or 1,
        help="threads that compile Pallas kernels",
    )
    made.add_argument(
        "--timer",
        choices=("auto", "cupti", "wall"),
        default="auto",
        help="kernel times by CUPTI, or the wall clock",
    )
    add_turns(made, rounds=rounds)
    made.add_argument(
        "--rotate-mb",
        type=float,
        default=ROTATE_BYTES / 2**20,
        help="memory that operands rotate through",
    )


def sizes(parser: argparse.ArgumentParser, option: str, text: str, form: str) -> list[int]:
    """Reads positive sizes as an option has them: ``4096,7168,2048`` for the form ``M,N,K``.

    Exits with a message where the text has another form.
    """
    found = text.split(",")
    if len(found) != form.count(",") + 1 or not all(s.isdigit() and int(s) for s in found):
        parser.error(f"{option}: {text!r} is not {form}")
    return [int(s) for s in found]


def parse_problems(
    made: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    form: str,
    problem: Callable[..., object],
    usual: Sequence[object],
    small: Sequence[object],
    *,
    option: str = "--problems",
) -> argparse.Namespace:
    """Parses, with an option that replaces the problems; a rehearsal has two turns of one call.

    Args:
        made: The parser, with the options of `add_turns`.
        argv: The arguments.
        form: How the option names a problem, such as ``M,N,K``.
        problem: Makes a problem of its sizes.
        usual: The problems without the option.
        small: Those of a rehearsal.
        option: Its name, and that of the list of problems in what is returned.
    """
    listed = "; ".join(map(str, usual))
    made.add_argument(option, nargs="+", metavar=form, help=f"instead of {listed}", dest="given")
    args = made.parse_args(argv)
    if args.given:
        found = [problem(*sizes(made, option, text, form)) for text in args.given]
    else:
        found = list(small if args.small else usual)
    del args.given
    setattr(args, option.removeprefix("--"), found)
    if args.small:
        args.rounds, args.burst = 2, 1
    return args


def turns(args: argparse.Namespace) -> str:
    """What the options of `add_turns` say."""
    more = f", or of {args.turn_ms:g} ms" if args.turn_ms else ""
    return f"{args.rounds} rounds of {args.burst} calls{more}"


def prepare(args: argparse.Namespace, *, share_gpu: bool = False) -> str:
    """Sets up JAX and returns the default device's platform; makes `--small` runnable on a CPU.

    Raises:
      SystemExit: no GPU, and neither --small nor an implementation that needs none.
    """
    configure_environment(share_gpu=share_gpu)
    import jax.numpy as jnp

    # Where arrays go by default, which `jax.default_device` may have moved off the GPU.
    platform = jnp.zeros(()).devices().pop().platform
    if platform != "gpu" and args.implementation == "cutlass":
        if not args.small:
            raise SystemExit(
                f"error: the CUTLASS kernels need an NVIDIA GPU and JAX runs on {platform!r}; "
                "use --small to rehearse, or --implementation xla"
            )
        args.implementation = "xla"
        print(f"rehearsal on {platform}: this package's column is its XLA path", file=sys.stderr)
    return platform


def implementation_of(args: argparse.Namespace) -> str | None:
    """The package's `implementation=` argument."""
    return None if args.implementation == "auto" else args.implementation


def has_torch() -> bool:
    """Whether torch can be imported, without importing it."""
    return importlib.util.find_spec("torch") is not None


def not_negative(text: str) -> float:
    """argparse type of a duration."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0 and finite, got {value}")
    return value


def positive(text: str) -> int:
    """argparse type of a count."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
