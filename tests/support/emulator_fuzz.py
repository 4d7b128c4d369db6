"""Feeds damaged PTX to the emulator: every text must run or be refused with one of its exceptions.

``python tests/support/emulator_fuzz.py --count 2000 --seed 0`` prints how the texts ended. The test
runs it as a process of its own, because what it looks for are crashes and hangs.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import random
import re
import resource
import sys
from collections.abc import Callable, Iterator

import jax
import micro
import numpy as np
from emulator_cases import Problem, operands, two_cta_kernel
from ptx_samples import AXPB, COUNTER, ROWS_COPY, TMA_COPY

from jax_bwgemm import emulator
from jax_bwgemm.emulator.dense import run_gemm

STEP_LIMIT = 50_000
_NUMBER = re.compile(r"(?<![\w%$.])\d+")
_REGISTER = re.compile(r"(%[a-z]+)\d+\b")
_MODIFIER = re.compile(r"\.[a-z][a-z0-9:_]*(?=[.\s])")
_TOKEN = re.compile(r"[\w.%$:]+|\S")
_EXTREMES = ("0", "-1", "1", "3", "255", "65536", "4294967295", "9223372036854775807", "1e9")


def damage(text: str, rng: random.Random, others: list[str]) -> str:
    """One to three random edits."""
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(_EDITS)(text, rng, others)
    return text


def _drop_line(text: str, rng: random.Random, _: list[str]) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _repeat_line(text: str, rng: random.Random, _: list[str]) -> str:
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines)


def _swap_lines(text: str, rng: random.Random, _: list[str]) -> str:
    lines = text.split("\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


def _foreign_line(text: str, rng: random.Random, others: list[str]) -> str:
    lines = text.split("\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(rng.choice(others).split("\n")))
    return "\n".join(lines)


def _change_number(text: str, rng: random.Random, _: list[str]) -> str:
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    n = rng.choice(numbers)
    return text[: n.start()] + rng.choice(_EXTREMES) + text[n.end() :]


def _change_token(text: str, rng: random.Random, _: list[str]) -> str:
    tokens = list(_TOKEN.finditer(text))
    if not tokens:
        return text
    t = rng.choice(tokens)
    return text[: t.start()] + rng.choice(tokens)[0] + text[t.end() :]


def _change_register(text: str, rng: random.Random, _: list[str]) -> str:
    """Another register of the same kind: the text stays well-formed."""
    registers = list(_REGISTER.finditer(text))
    if not registers:
        return text
    r = rng.choice(registers)
    same = [other[0] for other in registers if other[1] == r[1]]
    return text[: r.start()] + rng.choice(same) + text[r.end() :]


def _change_modifier(text: str, rng: random.Random, _: list[str]) -> str:
    """Another part of a mnemonic, or none."""
    parts = list(_MODIFIER.finditer(text))
    if not parts:
        return text
    part = rng.choice(parts)
    new = rng.choice(("", rng.choice(parts)[0]))
    return text[: part.start()] + new + text[part.end() :]


def _flip_byte(text: str, rng: random.Random, _: list[str]) -> str:
    i = rng.randrange(max(len(text), 1))
    return text[:i] + chr(rng.randrange(1, 256)) + text[i + 1 :]


def _truncate(text: str, rng: random.Random, _: list[str]) -> str:
    return text[: rng.randrange(len(text) + 1)]


# How often each kind of damage is done: mostly such that the parser does not notice.
_EDITS: tuple[Callable[[str, random.Random, list[str]], str], ...] = (
    *[_drop_line, _swap_lines, _repeat_line] * 3,
    *[_change_number, _change_register] * 6,
    *[_change_modifier] * 4,
    _foreign_line,
    _change_token,
    _flip_byte,
    _truncate,
)


def _run_axpb(ptx: str) -> None:
    x = np.arange(64, dtype=np.float32)
    emulator.Module(ptx).launch("axpb", x, x.copy(), 2.0, 1.0, 64, grid=2, block=32)


def _run_tma_copy(ptx: str) -> None:
    maps = [emulator.TensorMap(np.zeros((20, 40), np.float32), (16, 32)) for _ in range(2)]
    emulator.Module(ptx).launch("tma_copy", *maps, 0, 0, block=64)


def _run_rows_copy(ptx: str) -> None:
    maps = [emulator.TensorMap(np.zeros((20, 40), np.float32), (1, 32)) for _ in range(2)]
    emulator.Module(ptx).launch("rows_copy", *maps)


def _run_counter(ptx: str) -> None:
    emulator.Module(ptx).launch("counter", np.zeros(1, np.uint32), grid=2, block=64)


def _run_gemm(ptx: str) -> None:
    kernel = two_cta_kernel()
    with emulator.substituted_ptx(ptx):
        run_gemm(kernel, *operands(kernel, Problem(64, 64, 64)))


def subjects() -> list[tuple[str, Callable[[str], None]]]:
    """Texts to damage, with what runs them."""
    kernel = two_cta_kernel()
    run_gemm(kernel, *operands(kernel, Problem(64, 64, 64)))
    gemm = emulator.last_ptx()
    assert gemm is not None
    return [
        (AXPB, _run_axpb),
        (TMA_COPY, _run_tma_copy),
        (ROWS_COPY, _run_rows_copy),
        (COUNTER, _run_counter),
        (gemm, _run_gemm),
    ]


def cases(count: int, seed: int) -> Iterator[tuple[int, str, Callable[[str], None]]]:
    """Damaged texts, reproducible one by one: index, text, what runs it."""
    whole = subjects()
    small = [(case.text(right=True), case.launch) for case in micro.KERNELS]
    others = [text for text, _ in whole + small]
    for index in range(count):
        rng = random.Random(seed * 1_000_003 + index)
        turn = index % (2 * len(whole))
        text, run = whole[turn] if turn < len(whole) else rng.choice(small)
        yield index, damage(text, rng, others), run


def main() -> int:
    """Runs the cases; a crash or a hang ends the process, any other exception is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, help="stop with a traceback when one text takes longer"
    )
    parser.add_argument(
        "--memory", type=int, default=16, help="GiB of address space; 0: no limit, for sanitizers"
    )
    args = parser.parse_args()
    if args.memory:
        # An absurd size in the text must be refused, not allocated.
        resource.setrlimit(resource.RLIMIT_AS, (args.memory << 30, args.memory << 30))
    ends: collections.Counter[str] = collections.Counter()
    failures = 0
    with emulator.configure(step_limit=STEP_LIMIT):
        for index, text, run in cases(args.count, args.seed):
            if args.seconds:
                faulthandler.dump_traceback_later(args.seconds, exit=True)
            try:
                run(text)
                ends["ran"] += 1
            except emulator.EmulatorError as error:
                ends[error.kind] += 1
            except jax.errors.JaxRuntimeError as error:
                ends["reported through JAX"] += 1
                if "INTERNAL" not in str(error):
                    failures += 1
                    print(f"case {index}: {error!r}", file=sys.stderr)
            except Exception as error:
                failures += 1
                print(f"case {index}: {error!r}", file=sys.stderr)
            if args.seconds:
                faulthandler.cancel_dump_traceback_later()
    for end, n in sorted(ends.items()):
        print(f"{end}: {n}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
