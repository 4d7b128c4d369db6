"""Runs a selection with the replacement, and what failed without it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

from jax_tests import known
from jax_tests.suite import Outcome, Runner


@dataclasses.dataclass(frozen=True)
class Report:
    """One file's tests, with and without the replacement.

    Attributes:
        file: File of JAX's tests.
        outcomes: With the replacement.
        shared: Tests that fail in both ways.
        explained: Tests that fail with the replacement only, as expected, with the reason.
        unexplained: Tests that fail with the replacement only.
        only_plain: Tests that fail without the replacement only (seen with ``--compare all``).
        error: The end of pytest's output, if it did not finish.
    """

    file: str
    outcomes: list[Outcome]
    shared: list[Outcome]
    explained: list[tuple[Outcome, str]]
    unexplained: list[Outcome]
    only_plain: list[Outcome]
    error: str

    @property
    def broken(self) -> int:
        """Whether this says nothing: pytest did not finish, or no test called our functions."""
        return int(bool(self.error) or not any(o.calls for o in self.outcomes))

    def log(self) -> str:
        """One line of JSON for each test."""
        lines = [{"file": self.file, **dataclasses.asdict(o)} for o in self.outcomes]
        return "".join(json.dumps(line) + "\n" for line in lines)

    def text(self) -> str:
        """The report for people."""
        states = Counter(outcome.state for outcome in self.outcomes)
        calling = [outcome for outcome in self.outcomes if outcome.calls]
        lines = [
            f"{self.file}: {states['passed']} passed, {states['failed']} failed, "
            f"{states['skipped']} skipped; {len(calling)} tests made "
            f"{sum(o.calls for o in calling)} calls of our functions, "
            f"{sum(o.binds for o in self.outcomes)} of a primitive"
        ]
        if self.shared:
            lines.append(f"  {len(self.shared)} fail without the replacement too")
        for outcome, why in self.explained:
            lines.append(f"  expected  {outcome.test}: {why}")
        for outcome in self.only_plain:
            lines.append(f"  only plain  {outcome.test}: {outcome.message}")
        for outcome in self.unexplained:
            lines.append(f"  DIFFERS  {outcome.test}: {outcome.message}")
        if self.error:
            lines.append(f"  pytest did not finish: {self.error}")
        elif self.broken:
            lines.append("  no test called a function of jax_bwgemm: nothing was compared")
        return "\n".join(lines)


def compare(run: Runner, mode: str) -> Report:
    """Runs the tests with the replacement, and by ``mode`` some of them without.

    Args:
        run: Runs one selection.
        mode: ``"failures"``, ``"all"`` or ``"no"``: what is run without the replacement.
    """
    outcomes, error = run(replaced=True)
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    plain: list[Outcome] = []
    if mode == "all" or (mode == "failures" and failed):
        only = None if mode == "all" else [outcome.test for outcome in failed]
        plain, plain_error = run(replaced=False, only=only)
        error = error or plain_error
    fails_plain = {outcome.test for outcome in plain if outcome.state == "failed"}
    replaced_fails = {outcome.test for outcome in failed}
    shared, explained, unexplained = [], [], []
    for outcome in failed:
        why = known.reason(run.selection.file, outcome.test, outcome.message)
        if outcome.test in fails_plain:
            shared.append(outcome)
        elif why is not None:
            explained.append((outcome, why))
        else:
            unexplained.append(outcome)
    only_plain = [o for o in plain if o.test in fails_plain - replaced_fails]
    return Report(run.selection.file, outcomes, shared, explained, unexplained, only_plain, error)
