"""`python -m jax_bwgemm info`: versions, devices, the kernels of this build and what would run."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.metadata
import json
import platform
from typing import Any

# Problems shown under "what would run here": a large, a small-batch and an unaligned product.
EXAMPLES = (
    (8192, 8192, 8192, "bfloat16"),
    (16, 6144, 4096, "bfloat16"),
    (1000, 1001, 1002, "bfloat16"),
    (4096, 4096, 4096, "float32"),
)
PACKAGES = (
    "jax_bwgemm",
    "jax",
    "jaxlib",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "numpy",
    "flax",
    "scikit-learn",
)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds `info` to the command line."""
    parser = subparsers.add_parser(
        "info",
        help="versions, devices, kernels of this build and what would be used here",
        description="Shows versions, devices, the kernels of this build, and which "
        "implementation and kernel some example problems would get on this machine.",
    )
    parser.add_argument("--kernels", action="store_true", help="list every kernel by name")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if "jax_bwgemm" not in found:
        import jax_bwgemm

        found["jax_bwgemm"] = f"{jax_bwgemm.__version__} (source checkout, not installed)"
    return found


def devices() -> list[dict[str, Any]]:
    """One entry per JAX device: platform, kind and the kernels' view of it."""
    import jax

    from jax_bwgemm import runtime

    found = []
    for device in jax.devices():
        view = runtime.device_target(device)
        target = dataclasses.asdict(view.target) if view.target else None
        found.append(
            {
                "platform": device.platform,
                "kind": device.device_kind,
                "compute_capability": str(getattr(device, "compute_capability", "")) or None,
                "target": target,
                "reason": view.reason,
            }
        )
    return found


def device_lines() -> list[str]:
    """The devices in words, equal ones counted together."""
    lines = []
    counted = collections.Counter(json.dumps(entry) for entry in devices())
    for text, count in counted.items():
        entry = json.loads(text)
        arch = entry["target"]["arch"] if entry["target"] else None
        use = f"{arch} kernels" if arch else f"no kernels: {entry['reason']}"
        capability = entry["compute_capability"]
        detail = f", compute capability {capability}" if capability else ""
        lines.append(f"{count} x {entry['kind']} ({entry['platform']}{detail}): {use}")
    return lines


def explanation(m: int, n: int, k: int, dtype: str, device: str | None = None) -> Any:
    """What an [m, k] @ [k, n] product would get on a device of that name, by default here."""
    import jax

    import jax_bwgemm

    lhs, rhs = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
    return jax_bwgemm.explain(lhs, rhs, device=device)


def decision(found: Any) -> str:
    """An `explain` result on one line: the kernel, or XLA and why not a kernel."""
    if found.kernel is not None:
        return f"{found.implementation}, kernel {found.kernel}"
    refused, reason = found.rejected[-1] if found.rejected else (None, found.reason)
    return f"{found.implementation} ({f'not {refused}: ' if refused else ''}{reason})"


def build() -> dict[str, Any]:
    """What the compiled parts are; None for one that this installation lacks."""
    from jax_bwgemm import runtime

    kernels, emulator = runtime.extension(), runtime.load_emulator()
    emulated = (
        runtime.emulated_kernels(),
        runtime.emulated_grouped_kernels(),
        runtime.emulated_scaled_kernels(),
        runtime.emulated_scaled_grouped_kernels(),
    )
    return {
        "kernels": dict(kernels.build_info()) if kernels else None,
        "emulator": sum(map(len, emulated)) if emulator else None,
    }


def epilogue_line() -> str:
    """How many kernels epilogues can be linked into, and whether there is a linker."""
    from jax_bwgemm.epilogue.linkable import linkable_kernels
    from jax_bwgemm.epilogue.linker import LinkError, linker

    if not linkable_kernels():
        return "no kernels to link them into were built"
    try:
        return f"{len(linkable_kernels())} kernels to link them into, tools {linker().version}"
    except LinkError as error:
        return f"{len(linkable_kernels())} kernels to link them into, but {error}"


def kernel_lines(every: bool) -> list[str]:
    """The kernel table: one line per tile, or per kernel."""
    from jax_bwgemm import runtime

    if every:
        return [kernel.name for kernel in runtime.kernels()]
    tiles: dict[tuple, list[Any]] = {}
    for k in runtime.kernels():
        tile = f"{k.tile_m}x{k.tile_n}x{k.tile_k}"
        schedule = k.schedule + " swapped" * k.swap_ab + " stream-K" * k.stream_k
        key = (k.arch, tile, f"{k.cluster_m}x{k.cluster_n}", schedule)
        tiles.setdefault(key, []).append(k)
    lines = []
    for (arch, tile, cluster, schedule), found in tiles.items():
        types = sorted({f"{k.in_dtype}->{k.out_dtype}" for k in found})
        majors = sorted({k.a_major + k.b_major for k in found})
        stages = "-".join(map(str, sorted({k.stages for k in found})))
        lines.append(
            f"{arch} {tile} cluster {cluster} {schedule}, {stages} stages: {len(found)} kernels, "
            f"{', '.join(types)}, majors {' '.join(majors)}"
        )
    return lines


def grouped_kernel_lines(every: bool) -> list[str]:
    """The table of grouped kernels: one line per tile, or per kernel."""
    from jax_bwgemm import runtime

    if every:
        return [kernel.name for kernel in runtime.grouped_kernels()]
    tiles: dict[tuple, list[Any]] = {}
    for k in runtime.grouped_kernels():
        tile = f"{k.tile_m}x{k.tile_n}x{k.tile_k} cluster {k.cluster_m}x{k.cluster_n}"
        form = k.kind + " swapped" * k.swap_ab + " pingpong" * (k.schedule == "pingpong")
        tiles.setdefault((k.arch, tile, form), []).append(k)
    lines = []
    for (arch, tile, kind), found in tiles.items():
        types = sorted({f"{k.in_dtype}->{k.out_dtype}" for k in found})
        majors = " ".join(sorted({k.b_major for k in found}))
        lines.append(
            f"{arch} {tile} {kind}: {len(found)} kernels, {', '.join(types)}, B majors {majors}"
        )
    return lines


def scaled_kernel_lines(every: bool) -> list[str]:
    """The table of kernels of 8-bit operands: one line per tile, or per kernel."""
    from jax_bwgemm import runtime

    kernels = runtime.scaled_kernels() + runtime.scaled_grouped_kernels()
    if every:
        return [kernel.name for kernel in kernels]
    tiles: dict[tuple, list[Any]] = {}
    for k in kernels:
        tile = f"{k.tile_m}x{k.tile_n}x{k.tile_k} cluster {k.cluster_m}x{k.cluster_n}"
        kind = "" if k.contraction == "scaled" else f"{k.kind} "
        form = kind + k.schedule + " swapped" * k.swap_ab
        tiles.setdefault((k.arch, tile, form, k.scales), []).append(k)
    lines = []
    for (arch, tile, schedule, scales), found in tiles.items():
        types = sorted({f"{k.a_dtype} x {k.b_dtype}->{k.out_dtype}" for k in found})
        lines.append(
            f"{arch} {tile} {schedule}, scales of {scales}: {len(found)} kernels, "
            f"{', '.join(types)}"
        )
    return lines


def run(args: argparse.Namespace) -> int:
    """Prints the report; always 0."""
    from jax_bwgemm import runtime
    from jax_bwgemm.config import DEFAULT_SM_COUNT

    if args.json:
        examples = [dataclasses.asdict(explanation(*problem)) for problem in EXAMPLES]
        report = {
            "versions": versions(),
            "devices": devices(),
            "build": build(),
            "kernels": [dataclasses.asdict(kernel) for kernel in runtime.kernels()],
            "grouped_kernels": [dataclasses.asdict(k) for k in runtime.grouped_kernels()],
            "scaled_kernels": [dataclasses.asdict(k) for k in runtime.scaled_kernels()],
            "scaled_grouped_kernels": [
                dataclasses.asdict(k) for k in runtime.scaled_grouped_kernels()
            ],
            "examples": examples,
        }
        print(json.dumps(report, indent=1))
        return 0
    print("Versions")
    for name, version in versions().items():
        print(f"  {name:18s} {version}")
    print("Devices")
    for line in device_lines():
        print(f"  {line}")
    compiled = build()
    print("Build")
    if compiled["kernels"] is None:
        print("  kernels            not built: every product runs on XLA")
    else:
        for name, value in compiled["kernels"].items():
            print(f"  {name:18s} {value}")
    emulated = compiled["emulator"]
    print(f"  emulator           {'not built' if emulated is None else f'{emulated} kernels'}")
    print(f"  epilogues          {epilogue_line()}")
    print(f"Dense kernels ({len(runtime.kernels())})")
    for line in kernel_lines(args.kernels):
        print(f"  {line}")
    print(f"Grouped kernels ({len(runtime.grouped_kernels())})")
    for line in grouped_kernel_lines(args.kernels):
        print(f"  {line}")
    scaled = len(runtime.scaled_kernels()) + len(runtime.scaled_grouped_kernels())
    print(f"Scaled kernels ({scaled})")
    for line in scaled_kernel_lines(args.kernels):
        print(f"  {line}")
    print("What would run")
    # Where there is no GPU, what one would run is the more interesting answer.
    elsewhere = [] if any(d["target"] for d in devices()) else list(DEFAULT_SM_COUNT)
    for m, n, k, dtype in EXAMPLES:
        print(f"  [{m}, {k}] @ [{k}, {n}] {dtype}")
        for place in (None, *elsewhere):
            text = decision(explanation(m, n, k, dtype, place))
            print(f"    {place or 'here'}: {text}")
    return 0
