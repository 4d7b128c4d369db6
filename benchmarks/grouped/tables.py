"""The tables and figures of merit that bench_grouped.py prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import report

# Kernels that a user could run instead; lax.ragged_dot is in a class of its own.
RIVALS = ("pallas", "torch", "tokamax")


def choice(row: dict) -> str:
    """This package's choice in short: kernel without architecture and types, order, swizzle."""
    if row.get("kernel") is None:
        return "xla" if row.get("status") == "ok" else "-"
    return f"{row['kernel'].split('_', 5)[-1]} {row['order'][0]}{row['swizzle']}"


def by_problem(rows: Sequence[dict]) -> dict[tuple[str, str], dict[str, dict]]:
    """Rows by (mode, shape), then by column."""
    found: dict[tuple[str, str], dict[str, dict]] = {}
    for row in rows:
        found.setdefault((row["mode"], row["shape"]), {})[row["impl"]] = row
    return found


def temporary_share(row: dict) -> float | None:
    """Temporary memory over the operands and the result, from the compiled program."""
    if row.get("argument_bytes") is None:
        return None
    return row["temp_bytes"] / (row["argument_bytes"] + row["output_bytes"])


def ratios(rows: Sequence[dict]) -> dict[tuple[str, str], list[float]]:
    """Peer time over this package's time by (mode, column); column "best" is the best rival."""
    found: dict[tuple[str, str], list[float]] = {}
    for (mode, _), impls in by_problem(rows).items():
        mine = impls.get("bwgemm", {}).get("median_us")
        if mine is None:
            continue
        peers = {i: r["median_us"] for i, r in impls.items() if "median_us" in r and i != "bwgemm"}
        rivals = [peers[i] for i in RIVALS if i in peers]
        if rivals:
            peers["best"] = min(rivals)
        for impl, us in peers.items():
            found.setdefault((mode, impl), []).append(us / mine)
    return found


def summary(rows: Sequence[dict], peers: Sequence[str]) -> str:
    """One table for each mode and, below it, what the ratios come to."""
    parts = []
    grouped = by_problem(rows)
    for mode in dict.fromkeys(mode for mode, _ in grouped):
        lines = []
        for (its_mode, shape), impls in grouped.items():
            if its_mode != mode:
                continue
            ours = impls.get("bwgemm", {})
            mine = ours.get("median_us")
            line: dict[str, Any] = {"shape": shape, "bwgemm us": mine}
            line["TFLOP/s"] = ours.get("tflops")
            line["over floor"] = mine / ours["floor_us"] if mine else None
            share = temporary_share(ours)
            line["temp %"] = None if share is None else 100 * share
            line["what ran"] = choice(ours)
            for impl in peers:
                if impl not in impls:
                    continue
                us = impls[impl].get("median_us")
                line[f"{impl} TFLOP/s"] = impls[impl].get("tflops")
                line[f"{impl} ratio"] = us / mine if us and mine else None
            lines.append(line)
        columns = list(dict.fromkeys(column for line in lines for column in line))
        parts.append(f"{mode}\n{report.table(lines, columns)}")
    for (mode, impl), values in ratios(rows).items():
        if impl not in (*peers, "best"):
            continue
        name = "best of " + ", ".join(RIVALS) if impl == "best" else impl
        parts.append(
            f"{mode}: {name} time / bwgemm time over {len(values)} problems: geometric mean "
            f"{report.geomean(values):.3f}, least {min(values):.3f}, most {max(values):.3f}"
        )
    parts += backward_rates(rows)
    return "\n".join(parts)


def backward_rates(rows: Sequence[dict]) -> list[str]:
    """How this package's gradients compare with its forward product, problem by problem."""
    rates = {(r["mode"], r["shape"]): r["tflops"] for r in rows if _ours(r)}
    lines = []
    for mode in ("dx", "dw"):
        found = {
            shape: rate / rates["forward", shape]
            for (its_mode, shape), rate in rates.items()
            if its_mode == mode and ("forward", shape) in rates
        }
        if found:
            each = ", ".join(f"{shape} {value:.2f}" for shape, value in found.items())
            lines.append(f"{mode} rate over forward rate: {each}")
    return lines


def _ours(row: dict) -> bool:
    return row["impl"] == "bwgemm" and row["status"] == "ok"


def failures(rows: Sequence[dict], peers: Sequence[str]) -> list[str]:
    """One line for each column and reason that it has no time, with the problems concerned."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] != "ok":
            found.setdefault((row["impl"], row["status"]), []).append(
                f"{row['mode']} {row['shape']}"
            )
    return [
        f"{'peer' if impl in peers else 'failed'}: {impl}: {status} ({'; '.join(where)})"
        for (impl, status), where in found.items()
    ]


def fastest_kernels(rows: Sequence[dict], peers: Sequence[str], top: int = 12) -> str:
    """Per problem, the fastest kernels of an --all-kernels run and what each loses to the best."""
    parts = []
    for (mode, shape), impls in by_problem(rows).items():
        timed = [r for i, r in impls.items() if "median_us" in r and i not in peers]
        timed.sort(key=lambda r: r["median_us"])
        lines = [
            {
                "kernel": f"default: {choice(r)}" if r["impl"] == "bwgemm" else r["impl"],
                "us": r["median_us"],
                "TFLOP/s": r["tflops"],
                "of best": timed[0]["median_us"] / r["median_us"],
                "spread": r["spread"],
            }
            for r in timed
        ]
        shown = lines[:top] + [x for x in lines[top:] if x["kernel"].startswith("default")]
        columns = ("kernel", "us", "TFLOP/s", "of best", "spread")
        parts.append(f"{mode} {shape}\n{report.table(shown, columns)}")
    return "\n\n".join(parts)
