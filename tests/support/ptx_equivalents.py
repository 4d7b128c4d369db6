"""Faults of ptx_faults.py that change nothing that PTX promises, and why.

A fault that the emulator misses is looked at here: the paths through the text that lead to its
place or away from it tell whether something else does its work. What cannot be told counts as
missed.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable

from ptx_faults import Fault

_STATEMENT = re.compile(r"(?:([$\w]+):(?!:)|((?:@!?%?\w+\s+)?[a-z][^;{}:]*(?:[:{][^;]*)?);)")
_BRANCH = re.compile(r"^(@!?%?\w+\s+)?bra(?:\.uni)?\s+([$\w]+)$")
_END = re.compile(r"^(?:ret|exit|trap)\b")


class Paths:
    """The statements of a text, and which may follow which."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), text)
        self.starts: list[int] = []
        self.statements: list[str] = []
        labels: dict[str, list[int]] = {}
        for match in _STATEMENT.finditer(text):
            if match[1]:
                labels.setdefault(match[1], []).append(len(self.starts))
            else:
                self.starts.append(match.start(2))
                self.statements.append(" ".join(match[2].split()))
        count = len(self.starts)
        self.after: list[list[int]] = [[] for _ in range(count)]
        self.before: list[list[int]] = [[] for _ in range(count)]
        for i, statement in enumerate(self.statements):
            branch = _BRANCH.match(statement)
            if not _END.match(statement) and not (branch and not branch[1]) and i + 1 < count:
                self._join(i, i + 1)
            if branch:  # labels in braces have one name in many places
                self._join(i, min(labels[branch[2]], key=lambda at, i=i: abs(at - i)))

    def _join(self, a: int, b: int) -> None:
        if b < len(self.after):
            self.after[a].append(b)
            self.before[b].append(a)

    def at(self, position: int) -> int:
        return bisect.bisect_left(self.starts, position)

    def straight(self, start: int, to: str) -> bool:
        """Whether nobody leaves the way from a statement to the next one of `to`."""
        for statement in self.statements[start + 1 :]:
            if re.match(to, statement):
                return True
            if "bra" in statement and not _IN_BRACES.search(statement):
                return False
        return False

    def clear(self, start: int, stop: str, breaks: str, *, forward: bool) -> bool:
        """Whether all paths from a statement come to one of `stop`, or end, ahead of `breaks`.

        A `stop` that has a predicate is none.
        """
        steps = self.after if forward else self.before
        left: list[int] = list(steps[start])
        seen = set(left)
        while left:
            i = left.pop()
            if re.match(stop, self.statements[i]):
                continue
            if re.match(rf"(?:@!?%?\w+ )?(?:{breaks})", self.statements[i]):
                return False
            new = [j for j in steps[i] if j not in seen]
            seen.update(new)
            left += new
        return True


_ACCESS = (
    r"(?:ld(?!\.param)|st\b|st\.|atom|red|ldmatrix|stmatrix|mbarrier|cp\.|tcgen05\.(?!fence)|"
    r"wgmma|bar\.arrive|clusterlaunchcontrol\.try)"
)
_SHARED_WRITES = (
    r"(?:st\.(?!param|global|local)|stmatrix|(?:atom|red)(?!\S*\.global)|cp\.async\.(?!bulk))"
)
_TENSOR = r"tcgen05\.(?:mma|cp|shift|ld|st|commit)"
_IN_BRACES = re.compile(r"bra(?:\.uni)? (?:LAB_WAIT|DONE)$")


def _accumulators_stay(p: Paths, at: int) -> bool:
    """Whether nothing writes the accumulators of the next wgmma between another one and here."""
    mma = next((s for s in p.statements[at:] if s.startswith("wgmma.mma_async")), "")
    registers = re.findall(r"%\w+", mma[: mma.find("}")])
    written = rf"\S+ \{{?(?:{'|'.join(registers)})\b"
    return bool(registers) and p.clear(at, r"wgmma\.mma_async", written, forward=False)


# By kind: why, and whether that is so of the statement with this number.
_Reason = tuple[str, Callable[[Paths, int], bool]]
REASONS: dict[str, tuple[_Reason, ...]] = {
    "no warp barrier": (
        (
            "a barrier of all threads follows ahead of any access",
            lambda p, i: p.clear(
                i,
                r"bar\.sync|barrier\.sync|barrier\.cluster\.arrive",
                rf"{_ACCESS}|ret",
                forward=True,
            ),
        ),
        (
            "since an instruction of the whole warp there are only copies, by the lane that "
            "issues them",
            lambda p, i: p.clear(
                i,
                r"elect\.sync|tcgen05\.wait|bar\.(?:sync|warp)|barrier\.(?:sync|cluster\.wait)",
                r"(?:ld(?!\.param)|st\.|atom|red|ldmatrix|stmatrix|mbarrier\.init|"
                r"cp\.async\.bulk\.wait)",
                forward=False,
            ),
        ),
        (
            "behind it each lane waits and arrives for itself",
            lambda p, i: p.straight(i, r"mbarrier\.arrive(?!\.expect)"),
        ),
    ),
    "no relinquish": (
        (
            "it only lets other CTAs allocate before this one has exited",
            lambda p, i: p.clear(i, "never", r"tcgen05\.alloc", forward=True),
        ),
    ),
    "no fence of barriers' initialisation": (
        (
            "another one follows ahead of any use",
            lambda p, i: p.clear(
                i,
                r"fence\.mbarrier_init",
                r"bar\.|barrier|mbarrier\.(?!init)|cp\.async|ret",
                forward=True,
            ),
        ),
        (
            "nothing is initialised since the one before",
            lambda p, i: p.clear(i, r"fence\.mbarrier_init", r"mbarrier\.init", forward=False),
        ),
    ),
    "no barrier": (
        (
            "the same barrier follows ahead of any access",
            lambda p, i: p.clear(
                i, re.escape(p.statements[i]), rf"{_ACCESS}|bar|ret", forward=True
            ),
        ),
    ),
    "no proxy fence": (
        (
            "only ordinary reads lie between it and the one before: they are over, and leave "
            "nothing to be made visible",
            lambda p, i: (
                ".shared" in p.statements[i]
                and p.clear(i, r"fence\.proxy\.async", _SHARED_WRITES, forward=False)
            ),
        ),
    ),
    "no tensor memory wait": (
        (
            "nothing to wait for since the one before",
            lambda p, i: p.clear(
                i, re.escape(p.statements[i]), r"tcgen05\.(?:ld|st)", forward=False
            ),
        ),
    ),
    "no cp.async wait": (
        (
            "its thread neither accesses nor orders anything behind it",
            lambda p, i: p.clear(i, "never", rf"{_ACCESS}|bar|fence", forward=True),
        ),
    ),
    "no wgmma fence": (
        ("the same accumulators as in the MMA before, which nothing wrote", _accumulators_stay),
    ),
    "no tensor memory fence": (
        (
            "no asynchronous tcgen05 instruction lies before it, or since the one before",
            lambda p, i: (
                "before" in p.statements[i]
                and p.clear(i, r"tcgen05\.fence::before", _TENSOR, forward=False)
            ),
        ),
    ),
}


def equivalent(text: str, fault: Fault) -> str | None:
    """Why a fault in a text changes nothing; None: it may."""
    if fault.kind not in REASONS:
        return None
    paths = Paths(text)
    lines = text.splitlines(keepends=True)
    line = fault.line - 1
    at = paths.at(sum(map(len, lines[:line])) + len(lines[line]) - len(lines[line].lstrip()))
    return next((why for why, holds in REASONS[fault.kind] if holds(paths, at)), None)


def reasons(found: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of a table: how many faults of a kind change nothing, and why."""
    counts: dict[tuple[str, str], int] = {}
    for kind, why in found:
        counts[kind, why] = counts.get((kind, why), 0) + 1
    return [f"| {kind} | {n} | {why} |" for (kind, why), n in sorted(counts.items())]
