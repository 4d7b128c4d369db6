"""What every benchmark writes: JSON lines with a header, statistics, and a table for people.

A file starts with one `{"record": "run", ...}` line that describes the machine and the software;
every later line is one measurement and is flushed at once, so that a run that is cut short keeps
what it had.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

SCHEMA = 1
# A record of each kind holds at least these keys; `load` and the tests check them.
REQUIRED = {
    "run": {"schema", "benchmark", "argv", "date", "versions", "devices"},
    "gemm": {"shape", "m", "n", "k", "batch", "majors", "dtype", "out_dtype", "impl", "status"},
    "copy": {"bytes", "median_us", "gb_per_s"},
    "overhead": {"impl", "calls", "size", "median_us"},
    "grouped": {"shape", "mode", "m", "n", "k", "groups", "dtype", "impl", "status"},
    "layer": {"shape", "top_k", "dtype", "impl", "status"},
    "sharded": {"mode", "devices", "shape", "median_us", "efficiency", "collectives", "status"},
    "block": {"impl", "median_us", "what"},
    "model": {"model", "impl", "median_us", "loss"},
    "import": {"what", "median_us"},
    "link": {"kernel", "epilogue", "seconds"},
    "linked_model": {"linked", "plain", "cold", "warm"},
    "accuracy": {"values", "m", "n", "k"},
    "f32": {"shape", "f32", "impl", "out_dtype", "median_us", "error"},
    "grouped_f32": {"shape", "mode", "impl", "median_us", "error"},
    "loss": {"problem", "what", "dtype", "impl", "median_us"},
    "mlp": {"problem", "impl", "dtype", "median_us", "temporary_gb"},
    "epilogue": {"problem", "function", "impl", "median_us"},
    "linear": {"problem", "layer", "dtype", "impl", "median_us", "linked"},
    "gated": {"problem", "layer", "dtype", "impl", "median_us", "kernel"},
    "moe": {"problem", "impl", "dtype", "median_us", "tflops", "distance"},
    "scaled": {"problem", "impl", "median_us", "tflops"},
    "scaled_grouped": {"problem", "mode", "impl", "median_us", "tflops"},
    "low_precision": {"problem", "impl", "median_us", "tflops", "speedup", "decibels"},
    "recipe": {"layer", "impl", "median_us"},
    "quantize": {"size", "impl", "median_us", "gb_per_s", "of_copy"},
    "emulator": {"kernel", "size", "median_us", "instructions_per_us"},
}
PACKAGES = ("jax_bwgemm", "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "torch")


def geomean(values: Iterable[float]) -> float:
    """Geometric mean of positive numbers.

    Raises:
      ValueError: no values, or one that is not positive.
    """
    values = list(values)
    if not values:
        raise ValueError("the geometric mean of no values is undefined")
    if min(values) <= 0:
        raise ValueError(f"the geometric mean needs positive values, got {min(values)}")
    return math.exp(sum(math.log(v) for v in values) / len(values))


def summarise(times_us: Sequence[float]) -> dict[str, float]:
    """Median, extremes and relative quartile spread of a list of times in microseconds."""
    ordered = sorted(times_us)
    median = statistics.median(ordered)
    quarter = len(ordered) // 4
    return {
        "median_us": median,
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "spread": (ordered[-1 - quarter] - ordered[quarter]) / median if median else 0.0,
        "samples": len(ordered),
    }


def turns_of(row: Mapping[str, Any]) -> str:
    """What a row's label says of how long its columns' turns were (`--turn-ms`): at 0, nothing.

    Files from before that option lack the field.
    """
    turn_ms = row.get("turn_ms")
    return f", turns of {turn_ms:g} ms" if turn_ms else ""


def one_line(error: BaseException) -> str:
    """Type and first line of an exception; many have no message."""
    first, *_ = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {first}"


def _command(*args: str) -> str | None:
    """Output of a command that may not exist on this machine."""
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def clocks() -> list[dict[str, str]]:
    """Clocks, power and temperature of every NVIDIA GPU now; empty where nvidia-smi is absent."""
    fields = (
        "index,name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.draw,power.limit,"
        "temperature.gpu,clocks_throttle_reasons.active"
    )
    text = _command("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    if not text:
        return []
    names = fields.split(",")
    return [dict(zip(names, map(str.strip, ln.split(",")), strict=True)) for ln in text.split("\n")]


def versions() -> dict[str, str]:
    """Versions of Python and of those packages of interest that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Commit of the checkout these benchmarks lie in, `+` appended when it has local changes."""
    here = str(pathlib.Path(__file__).resolve().parent)
    head = _command("git", "-C", here, "rev-parse", "--short=12", "HEAD")
    if not head:
        return None
    return head + ("+" if _command("git", "-C", here, "status", "--porcelain", "-uno") else "")


class Report:
    """Writes records to a JSON-lines file and remembers them.

    Args:
      path: file to write, replaced if present; None keeps the records in memory only.
      benchmark: name of the program, kept in the header.
      log: where progress goes.
    """

    def __init__(self, path: str | os.PathLike | None, benchmark: str, log: TextIO | None = None):
        self.records: list[dict[str, Any]] = []
        self._log = log or sys.stderr
        self._file = None
        if path is not None:
            pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Open for the life of the run: a record must be on disk when the next one starts.
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115
        import jax  # after the caller has set up the environment for it

        self.add(
            "run",
            schema=SCHEMA,
            benchmark=benchmark,
            argv=sys.argv[1:],
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            versions=versions(),
            commit=commit(),
            devices=[f"{d.platform}:{d.device_kind}" for d in jax.devices()],
            xla_flags=os.environ.get("XLA_FLAGS", ""),
            clocks=clocks(),
        )

    def add(self, record: str, **fields: Any) -> dict[str, Any]:
        """Appends one record and flushes it to the file.

        Raises:
          ValueError: a key that records of this kind must have is missing.
        """
        missing = REQUIRED[record] - fields.keys()
        if missing:
            raise ValueError(f"a {record!r} record needs {sorted(missing)}")
        row = {"record": record, **fields}
        self.records.append(row)
        if self._file:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        return row

    def rows(self, record: str) -> list[dict[str, Any]]:
        """All records of one kind, in order."""
        return [r for r in self.records if r["record"] == record]

    def progress(self, text: str) -> None:
        """One line on the log stream."""
        print(text, file=self._log, flush=True)

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()


def load(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads a file written by Report.

    Raises:
      ValueError: not JSON lines of a known schema, with the line number.
    """
    rows = []
    for number, line in enumerate(pathlib.Path(path).read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}: not JSON: {error.msg}") from None
        kind = row.get("record") if isinstance(row, dict) else None
        if kind not in REQUIRED:
            raise ValueError(f"{path}:{number}: unknown record kind {kind!r}")
        missing = REQUIRED[kind] - row.keys()
        if missing:
            raise ValueError(f"{path}:{number}: {kind!r} record without {sorted(missing)}")
        rows.append(row)
    if not rows or rows[0]["record"] != "run":
        raise ValueError(f"{path}: the first line is not the description of a run")
    if rows[0]["schema"] != SCHEMA:
        raise ValueError(f"{path}: schema {rows[0]['schema']}, this program reads {SCHEMA}")
    return rows


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A Markdown table of the given columns; floats get four significant digits, None a dash."""

    def cell(value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, float):
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return str(value)

    body = [[cell(row.get(c)) for c in columns] for row in rows]
    widths = [max(len(c), *(len(r[i]) for r in body), 0) for i, c in enumerate(columns)]
    lines = [columns, ["-" * w for w in widths], *body]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
