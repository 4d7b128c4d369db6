"""The command line: one module per subcommand, with `add_parser(subparsers)` and `run(args)`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import jax

import jax_bwgemm
from jax_bwgemm import config

COMMANDS = ("info", "demo", "emulate", "tune")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jax_bwgemm` and returns its exit code.

    Args:
      argv: arguments after the program name; None takes them from the process.

    Returns:
      0 on success, 1 when something was found wrong or the output's reader has gone, 2 when it
      could not run.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    program: list[str] | None = None
    if argv[:1] == ["emulate"]:
        for at, word in enumerate(argv):
            option, equals, file = word.partition("=")
            if option == "--program":  # the rest is nvcc's and the program's
                program = [file, *argv[at + 1 :]] if equals else argv[at + 1 :]
                argv = argv[:at]
                break
    parser = argparse.ArgumentParser(
        prog="python -m jax_bwgemm",
        description="CUTLASS matrix multiplication for JAX on NVIDIA Blackwell and Hopper GPUs.",
    )
    version = f"jax_bwgemm {jax_bwgemm.__version__}"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # Only the command that runs is imported: they need different optional packages.
    for name in [argv[0]] if argv and argv[0] in COMMANDS else COMMANDS:
        importlib.import_module(f"jax_bwgemm.cli.{name}").add_parser(subparsers)
    args = parser.parse_args(argv)
    if program is not None:
        args.program = program
    command = importlib.import_module(f"jax_bwgemm.cli.{args.command}")
    try:
        config.check_variables()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # A program of nvcc's runs without JAX.
    if program is None and (reason := _without_backend()) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    try:
        code = command.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output wants no more of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's last flush
        return 1
    return code


def _without_backend() -> str | None:
    """Why JAX cannot run anything here; None if it can."""
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # the latter without any text
        platforms = os.environ.get("JAX_PLATFORMS")
        asked = f" with JAX_PLATFORMS={platforms}" if platforms else ""
        return f"JAX has no device here{asked}{f': {error}' if str(error) else ''}"
    return None
