"""Pictures of benchmark results, from the JSON lines that the benchmarks write.

    python plot.py ratios gemm.jsonl --out ratios.svg        # speed against each peer, per shape
    python plot.py roofline gemm.jsonl --out roofline.svg    # TFLOP/s against arithmetic intensity
    python plot.py sawtooth sawtooth.jsonl --out sawtooth.svg   # TFLOP/s against N, per scheduler

The ending of --out decides the format: svg, png or pdf.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from common import report

# Dense 16-bit peak TFLOP/s by the start of the device kind, from NVIDIA's data sheets.
PEAKS = {"NVIDIA H100": 989, "NVIDIA H200": 989, "NVIDIA B200": 2250, "NVIDIA GB200": 2500}
# Colours that differ in lightness too, for readers who do not see them all.
COLOURS = ("#0b6e4f", "#e07a1f", "#3d5a98", "#b23a48", "#8a8d91", "#6a4c93")
OURS = "#0b6e4f"


def figure(width: float, height: float) -> tuple[Any, Any]:
    """An empty picture in this project's style."""
    import matplotlib

    matplotlib.use("svg")  # draws into files only
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "legend.frameon": False,
            "svg.hashsalt": "jax_bwgemm",  # the same picture for the same numbers
        }
    )
    return pyplot.subplots(figsize=(width, height), layout="constrained")


def save(drawing: Any, path: str) -> None:
    """Writes a picture and frees it."""
    from matplotlib import pyplot

    metadata = {"Date": None} if path.endswith(".svg") else None
    drawing.savefig(path, dpi=160, metadata=metadata)
    pyplot.close(drawing)


def device_of(rows: Sequence[dict]) -> str:
    """The GPU that a file was measured on."""
    return rows[0]["devices"][0].split(":", 1)[-1]


def measured(rows: Sequence[dict]) -> list[dict]:
    """The rows that have a time.

    Raises:
      ValueError: There are none.
    """
    found = [r for r in rows if r["record"] == "gemm" and r["status"] == "ok"]
    if not found:
        raise ValueError("no measured products in the file")
    return found


def method_note(rows: Sequence[dict]) -> str:
    """How the times were taken, for the title."""
    methods = {r.get("method") for r in rows}
    return "kernel time" if methods == {"cupti"} else "WALL CLOCK"


def ratios(rows: Sequence[dict]) -> Any:
    """Peer time over our time for each shape: a dot per peer, right of 1 where we are faster."""
    done = measured(rows)
    by_shape: dict[str, dict[str, float]] = {}
    for row in done:
        by_shape.setdefault(row["shape"], {})[row["impl"]] = row["median_us"]
    peers = [
        p
        for p in ("xla", "xla-cublas", "torch", "pallas")
        if any(p in v for v in by_shape.values())
    ]
    names = [n for n, v in by_shape.items() if "bwgemm" in v and len(v) > 1]
    if not names or not peers:
        raise ValueError("no shape was measured with this package and with a peer")
    drawing, axes = figure(8, 1.2 + 0.24 * len(names))
    places = {name: len(names) - 1 - i for i, name in enumerate(names)}
    for peer, colour, marker in zip(peers, COLOURS[1:], "os^D", strict=False):
        found = {n: by_shape[n][peer] / by_shape[n]["bwgemm"] for n in names if peer in by_shape[n]}
        mean = report.geomean(found.values())
        axes.scatter(
            list(found.values()),
            [places[n] for n in found],
            s=34,
            c=colour,
            marker=marker,
            label=f"{peer}: geometric mean {mean:.2f}, least {min(found.values()):.2f}",
            zorder=3,
        )
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5), axes.get_xlim())
    axes.set_yticks(list(places.values()), list(places), fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="both", color="#e6e6e6", linewidth=0.6)
    axes.set_xlabel("peer time / bwgemm time   (right of 1: bwgemm is faster)")
    title = f"{done[0]['dtype']} M,N,K on {device_of(rows)}, {method_note(done)}"
    drawing.legend(
        loc="outside upper left",
        ncols=min(2, len(peers)),
        fontsize=8,
        title=title,
        title_fontsize=11,
        alignment="left",
    )
    return drawing


def _plain_ticks(axis: Any, ticks: Sequence[float], limits: tuple[float, float]) -> None:
    """Ticks of a logarithmic axis as ordinary numbers, those within the limits."""
    from matplotlib import ticker

    shown = [t for t in ticks if limits[0] <= t <= limits[1]]
    axis.set_major_locator(ticker.FixedLocator(shown))
    axis.set_major_formatter(ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def roofline(rows: Sequence[dict]) -> Any:
    """TFLOP/s against operations per byte, under the roof of the copy bandwidth and the peak."""
    done = measured(rows)
    copies = [r["gb_per_s"] for r in rows if r["record"] == "copy"]
    if not copies:
        raise ValueError("the file has no measured copy bandwidth")
    peak = next((p for kind, p in PEAKS.items() if device_of(rows).startswith(kind)), None)
    drawing, axes = figure(7.5, 4.6)
    shown = [i for i in ("xla", "torch", "bwgemm") if any(r["impl"] == i for r in done)]
    intensities = []
    for impl, colour, marker in zip(
        shown, (COLOURS[4], COLOURS[1], OURS)[-len(shown) :], "s^o"[-len(shown) :], strict=True
    ):
        own = [r for r in done if r["impl"] == impl]
        # Bytes of both operands and the result, each once: what no kernel can avoid.
        xs = [r["tflops"] * 1e3 / r["gb_per_s"] for r in own]
        intensities += xs
        axes.scatter(xs, [r["tflops"] for r in own], s=26, c=colour, marker=marker, label=impl)
    slope = copies[0] / 1e3
    left, right = min(intensities) / 1.5, max(intensities) * 1.5
    top = min(peak or right * slope, right * slope)
    label = f"{slope:.2f} TB/s copied" + (f", {peak} TFLOP/s peak" if peak else "")
    roof = [left * slope, top, top]
    axes.plot([left, top / slope, right], roof, color="black", linewidth=1.2, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes.xaxis, (1, 3, 10, 30, 100, 300, 1000, 3000, 10000), axes.get_xlim())
    _plain_ticks(axes.yaxis, (1, 3, 10, 30, 100, 300, 1000, 2000), axes.get_ylim())
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_xlabel("operations per byte of operands and result")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{done[0]['dtype']} products on {device_of(rows)}, {method_note(done)}")
    axes.legend(loc="lower right", fontsize=9)
    return drawing


def sawtooth(rows: Sequence[dict]) -> Any:
    """TFLOP/s against N, one line per scheduler."""
    done = measured(rows)
    names = list(dict.fromkeys(r["impl"] for r in done))
    drawing, axes = figure(8, 4.2)
    fixed = [n for n in names if n not in ("default", "xla")]
    colours = {"default": OURS, "xla": COLOURS[4]} | dict(
        zip(fixed, COLOURS[1:4] + COLOURS[5:], strict=False)
    )
    for name in [*fixed, *(n for n in ("xla", "default") if n in names)]:
        own = sorted((r for r in done if r["impl"] == name), key=lambda r: r["n"])
        axes.plot(
            [r["n"] for r in own],
            [r["tflops"] for r in own],
            color=colours.get(name, "black"),
            linewidth=2.4 if name == "default" else 1.3,
            linestyle="--" if name == "xla" else "-",
            marker="." if len(own) < 80 else "",
            markersize=4,
            label="bwgemm, default selection" if name == "default" else name,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_xlabel("N")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(
        f"{done[0]['dtype']} M={done[0]['m']} K={done[0]['k']} on {device_of(rows)}, "
        f"{method_note(done)}"
    )
    axes.legend(loc="lower right", fontsize=9)
    return drawing


PICTURES = {"ratios": ratios, "roofline": roofline, "sawtooth": sawtooth}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("picture", choices=PICTURES)
    parser.add_argument("file", help="JSON lines of bench_gemm.py or bench_sawtooth.py")
    parser.add_argument("--out", required=True, help="picture to write: .svg, .png or .pdf")
    args = parser.parse_args(argv)
    try:
        save(PICTURES[args.picture](report.load(args.file)), args.out)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
