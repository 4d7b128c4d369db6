"""Faults that fit any PTX: what synchronises is left out, weakened, doubled or moved, once each.

Unlike the lists of faults in single kernels (emulator_mutations.py and others), nobody has looked
at what each of them breaks: some change nothing that matters, because something else orders the
same accesses. ``tools/run_emulator_faults.py`` runs them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class Fault:
    """A wrong text.

    Attributes:
        kind: What was done, the same for all places.
        line: The PTX line where.
        statement: That line of the unchanged text.
        text: The whole wrong text.
        trap: The text with a trap in that place instead: it tells whether anybody comes there. Of
            an mbarrier's initialisation, one that nobody completes: whether anybody waits for it.
    """

    kind: str
    line: int
    statement: str
    text: str
    trap: str


# Replaces one match; None: does not apply there.
Edit = Callable[[re.Match[str]], str | None]


def _gone(_: re.Match[str]) -> str:
    return ""


def _twice(match: re.Match[str]) -> str:
    return f"{match[0]}\n{match[0]}"


def _plus(step: int) -> Edit:
    """The number in the first group that matched, with `step` added."""

    def edit(match: re.Match[str]) -> str | None:
        group = next(i for i, text in enumerate(match.groups(), 1) if text is not None)
        value = int(match[group], 0) + step
        if value < 0:
            return None
        start, end = (position - match.start() for position in match.span(group))
        return f"{match[0][:start]}{value}{match[0][end:]}"

    return edit


def _other_parity(match: re.Match[str]) -> str:
    """Waits for the other phase: the operand goes through a register of its own."""
    return (
        f"{{ .reg .b32 other_parity; xor.b32 other_parity, {match[2]}, 1; "
        f"{match[1]}other_parity{match[3]} }}"
    )


# Predicates of instructions, "@%p1 ", stay with what they guard.
GUARD = r"(?:@!?%?\w+\s+)?"


def _statement(start: str) -> str:
    return rf"{GUARD}\b{start}[^;{{}}]*(?:\{{[^}}]*\}}[^;{{}}]*)*;"


FAULTS: dict[str, tuple[str, Edit]] = {
    "no proxy fence": (_statement(r"fence\.proxy"), _gone),
    "no fence of barriers' initialisation": (_statement(r"fence\.mbarrier_init"), _gone),
    "no fence": (_statement(r"(?:fence\.(?:acq_rel|sc|acquire|release)|membar)"), _gone),
    "narrower fence": (
        _statement(r"fence\.(?:acq_rel|sc)\.(?:gpu|sys|cluster)"),
        lambda m: re.sub(r"\.(gpu|sys|cluster)", ".cta", m[0], count=1),
    ),
    "no barrier": (_statement(r"(?:bar\.sync|barrier\.sync|bar\.red)"), _gone),
    "no arrival at a barrier": (_statement(r"bar(?:rier)?\.arrive"), _gone),
    "no cluster barrier": (_statement(r"barrier\.cluster\.(?:arrive|wait)"), _gone),
    "no mbarrier initialisation": (_statement(r"mbarrier\.init"), _gone),
    "no arrival": (_statement(r"mbarrier\.arrive"), _gone),
    "two arrivals": (_statement(r"mbarrier\.arrive(?!\.expect_tx)"), _twice),
    "one arrival more expected": (r"mbarrier\.init[^;]*\],\s*(\d+);", _plus(1)),
    "one arrival less expected": (r"mbarrier\.init[^;]*\],\s*(\d+);", _plus(-1)),
    "bytes short": (r"expect_tx[^;]*\],\s*(\d+);", _plus(-16)),
    "bytes long": (r"expect_tx[^;]*\],\s*(\d+);", _plus(16)),
    "other parity": (
        r"(mbarrier\.(?:try|test)_wait\.parity[^;]*\],\s*)(%?\w+)([^;]*;)",
        _other_parity,
    ),
    "wait goes on": (r"(?:@!?%?\w+\s+)?bra(?:\.uni)?\s+(?:LAB_WAIT|waitLoop);", _gone),
    "no copy": (_statement(r"cp\.(?:reduce\.)?async\.bulk(?!\.(?:commit|wait|prefetch))"), _gone),
    "no bulk commit": (_statement(r"cp\.async\.bulk\.commit_group"), _gone),
    "no bulk wait": (_statement(r"cp\.async\.bulk\.wait_group"), _gone),
    "weaker bulk wait": (r"cp\.async\.bulk\.wait_group(?:\.read)?\s+(\d+);", _plus(1)),
    "no cp.async commit": (_statement(r"cp\.async\.commit_group"), _gone),
    "no cp.async wait": (_statement(r"cp\.async\.wait_(?:group|all)"), _gone),
    "weaker cp.async wait": (r"cp\.async\.wait_group\s+(\d+);", _plus(1)),
    "no wgmma fence": (_statement(r"wgmma\.fence"), _gone),
    "no wgmma commit": (_statement(r"wgmma\.commit_group"), _gone),
    "no wgmma wait": (_statement(r"wgmma\.wait_group"), _gone),
    "weaker wgmma wait": (r"wgmma\.wait_group[\w.]*\s+(\d+);", _plus(1)),
    "no tensor memory wait": (_statement(r"tcgen05\.wait"), _gone),
    "no tensor memory fence": (_statement(r"tcgen05\.fence"), _gone),
    "no commit": (_statement(r"tcgen05\.commit"), _gone),
    "no relinquish": (_statement(r"tcgen05\.relinquish"), _gone),
    "no dealloc": (_statement(r"tcgen05\.dealloc"), _gone),
    "two deallocs": (_statement(r"tcgen05\.dealloc"), _twice),
    "no alloc": (_statement(r"tcgen05\.alloc"), _gone),
    "no MMA": (_statement(r"(?:tcgen05\.mma|wgmma\.mma_async|mma\.sync)"), _gone),
    "no acquire": (
        _statement(r"(?:ld|atom|red)\.[\w.:]*acquire"),
        lambda m: m[0].replace(".acquire", ".relaxed", 1),
    ),
    "no release": (
        _statement(r"(?:st|atom|red)\.[\w.:]*(?:release|acq_rel)"),
        lambda m: re.sub(r"\.(release|acq_rel)", ".relaxed", m[0], count=1),
    ),
    "narrower scope": (
        _statement(r"(?:ld|st|atom|red)\.[\w.:]*\.(?:gpu|sys)\b"),
        lambda m: re.sub(r"\.(gpu|sys)\b", ".cta", m[0], count=1),
    ),
    "plain store": (
        _statement(r"st\.(?:release|relaxed)"),
        lambda m: re.sub(r"\.(?:release|relaxed)(?:\.\w+)?", "", m[0], count=1),
    ),
    "no warp barrier": (_statement(r"bar\.warp\.sync"), _gone),
    "no shared store": (_statement(r"st\.shared"), _gone),
}

# A statement that synchronises, and the one after it: they change places.
_SYNCHRONISES = (
    r"(?:fence|bar\.sync|barrier|mbarrier\.arrive|tcgen05\.(?:commit|wait|dealloc)|"
    r"cp\.async\.bulk\.(?:commit|wait)_group|cp\.async\.wait_group|wgmma\.(?:commit|wait)_group)"
)
_SWAP = re.compile(
    rf"^([ \t]*{GUARD}{_SYNCHRONISES}[^;{{}}\n]*;[ \t]*)\n"
    rf"([ \t]*{GUARD}(?:{_SYNCHRONISES}|ld\.|st\.|atom|red\.|cp\.|tcgen05|wgmma)[^;\n]*;)",
    re.MULTILINE,
)


# The last operand of mbarrier.init, and a count that no kernel arrives at.
_COUNT, _NEVER = re.compile(r"[%\w]+(?=\s*;)"), "1048575"


def faults(text: str) -> Iterator[Fault]:
    """Every fault in every place."""
    lines = text.splitlines()

    def fault(kind: str, start: int, end: int, new: str) -> Fault:
        line = text.count("\n", 0, start)
        before, after = text[:start], text[end:]
        trap = f"{before}trap;\n{text[start:]}"
        if kind == "no mbarrier initialisation":
            trap = f"{before}{_COUNT.sub(_NEVER, text[start:end])}{after}"
        return Fault(kind, line + 1, lines[line].strip(), f"{before}{new}{after}", trap)

    for kind, (pattern, edit) in FAULTS.items():
        for match in re.finditer(pattern, text):
            new = edit(match)
            if new is not None and new != match[0]:
                yield fault(kind, *match.span(), new)
    for match in _SWAP.finditer(text):
        yield fault("changes places with the next", *match.span(), f"{match[2]}\n{match[1]}")
