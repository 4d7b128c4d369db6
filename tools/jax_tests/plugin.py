"""A pytest plugin: replaces JAX's functions before the tests are imported, writes what happened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jax_tests import replacement

_MODE = os.environ["BWGEMM_JAX_TESTS_MODE"]
_RESULTS = Path(os.environ["BWGEMM_JAX_TESTS_RESULTS"])
_ONLY = json.loads(Path(os.environ["BWGEMM_JAX_TESTS_ONLY"]).read_text())
_STATES = {"passed": 0, "skipped": 1, "failed": 2}


def pytest_configure() -> None:
    if _MODE != "plain":
        replacement.install(primitive=_MODE == "primitive")


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _ONLY is not None:
        wanted = set(_ONLY)
        config.hook.pytest_deselected(items=[i for i in items if _name(i) not in wanted])
        items[:] = [item for item in items if _name(item) in wanted]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_COUNTS] = (replacement.counts.calls, replacement.counts.binds)
    item.stash[_OUTCOME] = ("passed", "")
    result = yield
    calls, binds = item.stash[_COUNTS]
    state, message = item.stash[_OUTCOME]
    outcome = {
        "test": _name(item),
        "state": state,
        "message": message,
        "calls": replacement.counts.calls - calls,
        "binds": replacement.counts.binds - binds,
    }
    with _RESULTS.open("a") as file:  # at once: what ran before a crash is known
        file.write(json.dumps(outcome) + "\n")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if _STATES[report.outcome] > _STATES[item.stash[_OUTCOME][0]]:
        message = ""
        if report.outcome == "failed" and call.excinfo is not None:
            lines = str(call.excinfo.value).strip().splitlines() or [""]
            message = f"{call.excinfo.typename}: {lines[0][:300]}"
        item.stash[_OUTCOME] = (report.outcome, message)
    return report


_COUNTS = pytest.StashKey[tuple[int, int]]()
_OUTCOME = pytest.StashKey[tuple[str, str]]()
