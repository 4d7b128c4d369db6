"""The kernels that the .def files describe, for tests on a checkout without a build."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from jax_bwgemm.product.kernels import Kernel

_CC = Path(__file__).parents[2] / "cc"
KERNELS_DEF = _CC / "dense" / "kernels.def"
GROUPED_DEF = _CC / "grouped" / "grouped.def"
SCALED_DEF = _CC / "scaled" / "scaled.def"
SCALED_GROUPED_DEF = _CC / "scaled" / "scaled_grouped.def"
_SCALED_GROUPED = (
    r"^SCALED_(ROWS|CONTRACT)(_SWAP_AB)?"
    r"\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\w+), (\w+)(.*)\)$"
)
_FLOAT8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "float4_e2m1fn"}
_SCALED = r"^SCALED_TILE(_SWAP_AB)?\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\w+), (\w+)(.*)\)$"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_TYPES = [(i, o) for i in ("bf16", "f16") for o in (i, "f32")]
_TILE = (
    r"^BWGEMM_TILE(_SWAP_AB|_STREAM_K|_F32(?:X3|X6)?(?:_SWAP_AB)?)?"
    r"\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+), (\w+)(.*)\)$"
)
_GROUPED = (
    r"^GROUPED_(ROWS|CONTRACT)(_F32)?(_SWAP_AB)?(_PINGPONG)?"
    r"\((\w+), (\d+), (\d+), (\d+), (\d+), (\d+)(?:, linked)?\)"
)


def _sizes(numbers: tuple[str, ...]) -> dict[str, int]:
    fields = ("tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n")
    return dict(zip(fields, map(int, numbers), strict=True))


def _text(numbers: tuple[str, ...]) -> str:
    return "x".join(numbers[:3]) + "_" + "x".join(numbers[3:])


def _types(variant: str) -> list[tuple[str, str, str]]:
    """Types of A, B and D that a line stands for."""
    if variant.startswith("_F32X"):
        return [("f32", "f32", "f32")]
    if variant.startswith("_F32"):
        a, b = ("bf16", "f32") if variant.endswith("_SWAP_AB") else ("f32", "bf16")
        return [(a, b, out) for out in ("bf16", "f32")]
    return [(i, i, out) for i, out in _TYPES]


@functools.cache
def described_kernels() -> tuple[Kernel, ...]:
    """The dense kernels as the build makes them: 16 a tile (of f32 operands 8 or 4), less those
    that its line leaves out.
    """
    found = []
    for variant, arch, *numbers, schedule, left_out in re.findall(
        _TILE, KERNELS_DEF.read_text(), re.MULTILINE
    ):
        swap_ab = variant.endswith("_SWAP_AB")
        tail = "_swap" if swap_ab else "_streamk" if variant == "_STREAM_K" else ""
        stream_k = variant == "_STREAM_K"
        for a, b, out_name in _types(variant):
            in_name = a if a == b else f"{a}_{b}"
            if a == b == "f32":
                in_name += variant[4:6].lower()
            terms = 1 if "f32" not in (a, b) else 3 if in_name == "f32x6" else 2
            for majors in ("kn", "kk", "mn", "mk"):
                if f"no_{out_name}" in left_out or f"no_{majors}" in left_out:
                    continue
                rest = f"{majors}_{_text(numbers)}_{schedule}{tail}"
                has_twin = not stream_k and "no_f32" not in left_out
                kernel = Kernel(
                    name=f"{arch}_{in_name}_{out_name}_{rest}",
                    arch=arch,
                    a_dtype=_DTYPES[a],
                    b_dtype=_DTYPES[b],
                    out_dtype=_DTYPES[out_name],
                    a_major=majors[0],
                    b_major=majors[1],
                    **_sizes(numbers),
                    schedule=schedule,
                    swap_ab=swap_ab,
                    stream_k=stream_k,
                    terms=terms,
                    uneven_parts=not stream_k and schedule in ("cooperative", "pingpong"),
                    f32_twin=f"{arch}_{in_name}_f32_{rest}" if has_twin else "",
                )
                found.append(kernel)
                if "f16_terms" in left_out:
                    names = (x.replace("f32x6", "f32f16x3") for x in (kernel.name, kernel.f32_twin))
                    name, twin = names
                    found.append(
                        dataclasses.replace(
                            kernel, name=name, f32_twin=twin, terms=2, term_dtype="float16"
                        )
                    )
    return tuple(found)


def _grouped_schedule(arch: str, cluster_m: int, pingpong: str) -> str:
    if arch == "sm100":
        return "2sm" if cluster_m == 2 else "1sm"
    return "pingpong" if pingpong else "cooperative"


@functools.cache
def described_grouped_kernels() -> tuple[Kernel, ...]:
    """The grouped kernels as the build makes them: 8 for each m-grouped line, 4 k-grouped; of f32
    operands half as many.
    """
    found = []
    for kind, f32, swap, pingpong, arch, *numbers in re.findall(
        _GROUPED, GROUPED_DEF.read_text(), re.MULTILINE
    ):
        m_grouped = kind == "ROWS"
        tail = ("_swap" if swap else "") + ("_pingpong" if pingpong else "")
        for a, b, out_name in _types(f32 + swap if f32 else ""):
            in_name = a if a == b else f"{a}_{b}"
            for majors in ("kn", "kk") if m_grouped else ("mn",):
                types = f"{in_name}_{out_name}_{majors}"
                found.append(
                    Kernel(
                        name=f"{arch}_grouped_{kind.lower()}_{types}_{_text(numbers)}{tail}",
                        arch=arch,
                        contraction="m_grouped" if m_grouped else "k_grouped",
                        a_dtype=_DTYPES[a],
                        b_dtype=_DTYPES[b],
                        out_dtype=_DTYPES[out_name],
                        a_major=majors[0],
                        b_major=majors[1],
                        **_sizes(numbers),
                        schedule=_grouped_schedule(arch, int(numbers[3]), pingpong),
                        swap_ab=bool(swap),
                        terms=2 if f32 else 1,
                    )
                )
    return tuple(found)


@functools.cache
def described_scaled_kernels() -> tuple[Kernel, ...]:
    """The scaled kernels as the build makes them: 6 a line, 2 without e5m2, half without f32."""
    found = []
    for swap, arch, *numbers, schedule, scales, left_out in re.findall(
        _SCALED, SCALED_DEF.read_text(), re.MULTILINE
    ):
        tail = "_swap" if swap else ""
        pairs = [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2")]
        if "e5m2" in left_out:
            pairs = pairs[:1]
        elif "e2m1" in left_out:
            pairs = [("e2m1", "e2m1")]
        no_f32 = "no_f32" in left_out
        for a, b in pairs:
            for out in ("bf16",) if no_f32 else ("bf16", "f32"):
                rest = f"{scales}_{_text(numbers)}_{schedule}{tail}"
                twin = "" if no_f32 or scales == "mma" else f"{arch}_scaled_{a}_{b}_f32_{rest}"
                found.append(
                    Kernel(
                        name=f"{arch}_scaled_{a}_{b}_{out}_{rest}",
                        arch=arch,
                        contraction="scaled",
                        a_dtype=_FLOAT8[a],
                        b_dtype=_FLOAT8[b],
                        out_dtype=_DTYPES[out],
                        a_major="k",
                        b_major="k",
                        **_sizes(numbers),
                        schedule=schedule,
                        swap_ab=bool(swap),
                        uneven_parts=arch == "sm90",
                        scales=scales,
                        f32_twin=twin,
                    )
                )
    return tuple(found)


@functools.cache
def described_scaled_grouped_kernels() -> tuple[Kernel, ...]:
    """The grouped scaled kernels as the build makes them: 4 a line, 2 without e5m2, 6 of mma, 8 of
    SM100's blocks, which are rows' too."""
    found = []
    for kind, swap, arch, *numbers, schedule, scales, left_out in re.findall(
        _SCALED_GROUPED, SCALED_GROUPED_DEF.read_text(), re.MULTILINE
    ):
        rows = kind == "ROWS"
        pairs = [("e4m3", "e4m3"), ("e5m2", "e4m3") if rows else ("e4m3", "e5m2")]
        pairs = pairs[: 1 if "no_e5m2" in left_out else 2]
        if scales == "mma":
            pairs.append(("e2m1", "e2m1"))
        uses = [scales]
        if (arch, scales) == ("sm100", "blocks"):
            uses.append("rows")
        for (a, b), use, out in itertools.product(pairs, uses, ("bf16", "f32")):
            tile = list(numbers)
            if a == "e2m1":
                tile[2] = str(2 * int(tile[2]))
            types = f"{kind.lower()}_{a}_{b}_{out}_{use}"
            found.append(
                Kernel(
                    name=f"{arch}_scaled_{types}_{_text(tile)}_{schedule}{swap[:5].lower()}",
                    arch=arch,
                    contraction="m_grouped" if rows else "k_grouped",
                    a_dtype=_FLOAT8[a],
                    b_dtype=_FLOAT8[b],
                    out_dtype=_DTYPES[out],
                    a_major="k",
                    b_major="k",
                    **_sizes(tile),
                    schedule=schedule,
                    swap_ab=bool(swap),
                    scales=use,
                )
            )
    return tuple(found)


def widened(table: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The bf16 kernels of a table as if they existed for f32 and f64.

    The rules then apply to types in which finite differences mean something. On the CPU the
    lowering is XLA's dot anyway, so no kernel is ever asked for.
    """
    return tuple(
        dataclasses.replace(
            k, name=f"{dtype}_{k.name}", a_dtype=dtype, b_dtype=dtype, out_dtype=dtype
        )
        for k in table
        if k.in_dtype == k.out_dtype == "bfloat16"
        for dtype in ("float32", "float64")
    )
