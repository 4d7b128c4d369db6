"""Faults injected into the 2-CTA kernel, and what notices them.

``python tests/support/emulator_mutations.py`` prints each fault with its report.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import jax
import numpy as np
from emulator_cases import Problem, expected, operands, two_cta_kernel

from jax_bwgemm import emulator
from jax_bwgemm.emulator.dense import run_gemm

# Four tiles on one pair of SMs, each K loop three times around the six-stage pipeline: every
# barrier changes phase, accumulators and stages are used again, and clusters are taken over.
PROBLEM = Problem(512, 512, 64 * 18)
SMS = 2
SEEDS = 10

MMA = "tcgen05.mma.cta_group::2"
LOAD = "cp.async.bulk.tensor.3d.cta_group::2"
STORE = "cp.async.bulk.tensor.3d.global"
READ_TMEM = "tcgen05.ld.sync"
BLOCKING = "bra LAB_WAIT;"

# Runs a kernel; its result and what it should be.
Launch = Callable[[], tuple[np.ndarray, np.ndarray]]


class NotApplicable(Exception):
    """The text does not contain what the mutation changes: a new compiler needs a new mutation."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        name: What is wrong.
        edit: Makes the wrong PTX.
    """

    name: str
    edit: Callable[[str], str]


def _find(text: str, what: str, start: int = 0) -> int:
    position = text.find(what, start)
    if position < 0:
        raise NotApplicable(what)
    return position


def _find_last(text: str, what: str, end: int) -> int:
    position = text.rfind(what, 0, end)
    if position < 0:
        raise NotApplicable(what)
    return position


def _cut(text: str, start: int, old: str, new: str) -> str:
    assert text.startswith(old, start)
    return text[:start] + new + text[start + len(old) :]


def first(old: str, new: str) -> Callable[[str], str]:
    """Replaces the first occurrence."""
    return lambda text: _cut(text, _find(text, old), old, new)


def all_of(old: str, new: str) -> Callable[[str], str]:
    """Replaces every occurrence."""

    def edit(text: str) -> str:
        _find(text, old)
        return text.replace(old, new)

    return edit


def before(anchor: str, old: str, new: str) -> Callable[[str], str]:
    """Replaces the last occurrence before the first `anchor`."""

    def edit(text: str) -> str:
        return _cut(text, _find_last(text, old, _find(text, anchor)), old, new)

    return edit


def after(anchor: str, old: str, new: str) -> Callable[[str], str]:
    """Replaces the first occurrence after the first `anchor`."""

    def edit(text: str) -> str:
        return _cut(text, _find(text, old, _find(text, anchor)), old, new)

    return edit


def statement(start: str, new: str = "") -> Callable[[str], str]:
    """Replaces the first statement that begins so."""

    def edit(text: str) -> str:
        position = _find(text, start)
        return text[:position] + new + text[_find(text, ";", position) + 1 :]

    return edit


def every_statement(start: str) -> Callable[[str], str]:
    """Removes all statements that begin so."""

    def edit(text: str) -> str:
        _find(text, start)
        return re.sub(re.escape(start) + r"[^;]*;", "", text)

    return edit


def substitute_before(anchor: str, pattern: str, new: str) -> Callable[[str], str]:
    """Replaces the last match of a regular expression before the first `anchor`."""

    def edit(text: str) -> str:
        matches = list(re.finditer(pattern, text[: _find(text, anchor)]))
        if not matches:
            raise NotApplicable(pattern)
        last = matches[-1]
        return text[: last.start()] + last.expand(new) + text[last.end() :]

    return edit


def _blind_consumer(anchor: str) -> Callable[[str], str]:
    """Goes on without the barrier wait before `anchor`, whether or not it has completed."""
    return before(anchor, BLOCKING, "")


def _skip_wait_by_poll(text: str) -> str:
    """The epilogue polls the accumulator's barrier and reads tensor memory whatever the answer."""
    return substitute_before(
        READ_TMEM, r"@%p\d+ bra (\$L__BB0_\d+);(?=\s*mov\.b32 %r\d+, 10000000)", r"bra \1;"
    )(text)


def _shifted_swizzle(text: str) -> str:
    """The shared-memory descriptor of A says 64-byte swizzle (layout type 4) instead of 128 (2)."""
    found = re.search(r"or\.b64\s+%rd\d+, %rd\d+, (46117\d{14});", text)
    if not found:
        raise NotApplicable("shared memory descriptor")
    wrong = (int(found[1]) & ~(7 << 61)) | (4 << 61)
    return text[: found.start(1)] + str(wrong - (1 << 64)) + text[found.end(1) :]


def _transposed_a(text: str) -> str:
    """The instruction descriptor says that A is M-major (bit 15)."""
    mma = re.search(re.escape(MMA) + r"[^;]*\], %rd\d+, %rd\d+, (%r\d+),", text)
    if mma is None:
        raise NotApplicable("instruction descriptor")
    descriptor = mma[1]
    *_, made = re.finditer(rf"\n\S+\s+{descriptor}, [^;]*;", text[: mma.start()])
    wrong = f"\nxor.b32 {descriptor}, {descriptor}, {1 << 15};"
    return text[: made.end()] + wrong + text[made.end() :]


def _long_k_step(text: str) -> str:
    """The second MMA of a K tile starts 32 elements into it, not 16."""
    position = _find(text, MMA)
    step = re.compile(r"(add\.s32\s+%r\d+, %r\d+, )2;").search(text, position)
    if step is None:
        raise NotApplicable("K step")
    return text[: step.start()] + step[1] + "4;" + text[step.end() :]


def _second(start: str) -> Callable[[str], str]:
    """Removes the second statement that begins so."""

    def edit(text: str) -> str:
        position = _find(text, start, _find(text, start) + 1)
        return text[:position] + text[_find(text, ";", position) + 1 :]

    return edit


def _dealloc_early(text: str) -> str:
    """Frees tensor memory without waiting for the epilogue's last reads."""
    start = _find(text, "tcgen05.relinquish_alloc_permit")
    end = _find(text, "tcgen05.dealloc", start)
    return text[:start] + text[start:end].replace(BLOCKING, "") + text[end:]


def _same_b(text: str) -> str:
    start = _find(text, LOAD, _find(text, LOAD) + 1)
    second = _find(text, LOAD, start + 1)
    coordinates = re.compile(r", \{[^}]*\}\]")
    one, two = coordinates.search(text, start), coordinates.search(text, second)
    if one is None or two is None:
        raise NotApplicable("coordinates")
    return text[: two.start()] + one[0] + text[two.end() :]


MUTATIONS = (
    Mutation("MMA does not wait for its operands", _blind_consumer(MMA)),
    Mutation(
        "MMA's barrier phase is never flipped",
        substitute_before(MMA, r"xor\.b32\s+(%r\d+), %r\d+, %r\d+;", r"mov.b32 \1, \1;"),
    ),
    Mutation(
        "producer does not wait for a free stage (reuse of a full one)",
        lambda text: re.sub(
            r"bra LAB_WAIT;(?=(?:(?!LAB_WAIT)[\s\S])*?mbarrier\.arrive\.expect_tx\.shared::cta)",
            "",
            text,
        ),
    ),
    Mutation("expect_tx 16 bytes short", before("mbarrier.arrive.expect_tx", "65536;", "65520;")),
    Mutation("expect_tx 16 bytes long", before("mbarrier.arrive.expect_tx", "65536;", "65552;")),
    Mutation("expect_tx missing", statement("mbarrier.arrive.expect_tx.shared::cta", "")),
    Mutation("operand descriptor: wrong swizzle", _shifted_swizzle),
    Mutation("instruction descriptor: A transposed", _transposed_a),
    Mutation(
        "operand descriptor: K step of A twice as long",
        _long_k_step,
    ),
    Mutation(
        "no fence between epilogue stores and TMA store", every_statement("fence.proxy.async")
    ),
    Mutation(
        "no barrier between epilogue stores and TMA store",
        before(STORE, "bar.sync", "// bar.sync"),
    ),
    Mutation(
        "staging buffer reused while TMA still reads it",
        every_statement("cp.async.bulk.wait_group.read"),
    ),
    Mutation("tensor memory freed early", _dealloc_early),
    Mutation("tensor memory never freed", statement("tcgen05.dealloc")),
    Mutation(
        "tensor memory freed twice",
        lambda text: re.sub(r"(tcgen05\.dealloc[^;]*;)", r"\1\n\1", text),
    ),
    Mutation("fewer columns allocated than used", before("tcgen05.alloc", ", 512;", ", 256;")),
    Mutation(
        "TMA load signals its own CTA's barrier instead of the leader's",
        before(LOAD, "-16777224;", "-8;"),
    ),
    Mutation(
        "K coordinate advances by one tile too much",
        after(LOAD, ", 64;", ", 128;"),
    ),
    Mutation("no commit of the consumed stage", statement("tcgen05.commit")),
    Mutation("no commit of the accumulator", _second("tcgen05.commit")),
    Mutation("epilogue does not wait for the accumulator", _skip_wait_by_poll),
    Mutation(
        "first MMA of a tile accumulates onto the last tile",
        substitute_before(f"{MMA}", r"setp\.ne\.b32\s+p, %r\d+, 0;", "setp.eq.b32 p, 0, 0;"),
    ),
    Mutation(
        "epilogue never gives the accumulator back",
        after("tcgen05.wait::ld", "mbarrier.arrive.shared::cluster.b64 _,", "// arrive"),
    ),
    Mutation(
        "stage barrier expects two arrivals",
        substitute_before(
            "fence.mbarrier_init",
            r"mov\.b32\s+(%r\d+), 1;(?=\s*\{\s*mbarrier\.init)",
            r"mov.b32 \1, 2;",
        ),
    ),
    Mutation(
        "no cluster barrier after the barriers' initialisation",
        lambda text: statement("barrier.cluster.wait")(statement("barrier.cluster.arrive")(text)),
    ),
    Mutation("TMA load of A left out", statement(LOAD)),
    Mutation("second half of B loaded from the first half's place", _same_b),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What noticed a mutation: ``"wrong result"``, a kind of report, or nothing (None)."""

    caught_by: str | None
    seeds: int
    detail: str


def ptx_of(launch: Launch, sms: int) -> str:
    """PTX of an unchanged kernel, which must pass."""
    with emulator.configure(sm_count=sms):
        np.testing.assert_array_equal(*launch())
    ptx = emulator.last_ptx()
    assert ptx is not None
    return ptx


def try_on(launch: Launch, sms: int, ptx: str, mutation: Mutation) -> Outcome:
    """Runs a wrong kernel with up to `SEEDS` seeds until something notices."""
    wrong = mutation.edit(ptx)
    assert wrong != ptx
    with emulator.substituted_ptx(wrong):
        for seed in range(SEEDS):
            with emulator.configure(seed=seed, sm_count=sms, step_limit=1 << 24):
                try:
                    out, right = launch()
                # JAX 0.11 raises a ValueError where a call fails.
                except (jax.errors.JaxRuntimeError, ValueError) as error:
                    last = emulator.last_launch()
                    assert last is not None
                    return Outcome(last.kind, seed + 1, str(error))
            if np.any(out != right):
                return Outcome("wrong result", seed + 1, "")
    return Outcome(None, SEEDS, "")


def report(
    ptx: str, mutations: Sequence[Mutation], attempt: Callable[[str, Mutation], Outcome]
) -> None:
    """Prints a table of what caught each fault."""
    print("| fault | caught by | on seed | report |\n|---|---|---|---|")
    for mutation in mutations:
        outcome = attempt(ptx, mutation)
        text = outcome.detail.split("emulator: ")[-1].splitlines()[0] if outcome.detail else ""
        # Without the text of the PTX line, which follows the last colon.
        text = text.rpartition(": ")[0] if text.startswith("line ") else text
        print(f"| {mutation.name} | {outcome.caught_by} | {outcome.seeds} | {text} |")


def _launch() -> tuple[np.ndarray, np.ndarray]:
    kernel = two_cta_kernel()
    a, b = operands(kernel, PROBLEM)
    return run_gemm(kernel, a, b), expected(kernel, a, b)


def original_ptx() -> str:
    """PTX of the unchanged kernel, which must pass."""
    return ptx_of(_launch, SMS)


def try_mutation(ptx: str, mutation: Mutation) -> Outcome:
    """Runs the wrong kernel until something notices."""
    return try_on(_launch, SMS, ptx, mutation)


if __name__ == "__main__":
    report(original_ptx(), MUTATIONS, try_mutation)
