"""Which kernel for which problem: filter the table, then compare predicted times. Pure.

The prediction is costs.py's; every other constant that a measurement may change is at the top of
this file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jax_bwgemm.config import Target
from jax_bwgemm.dense import cluster_k
from jax_bwgemm.dense.costs import BYTES, Candidate, ceil_div, evaluate, round_up
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.dense.tile_schedule import MAX_GRID_Y
from jax_bwgemm.product.dtypes import narrowest_bytes
from jax_bwgemm.product.implementations import f32_algorithm
from jax_bwgemm.product.kernels import Kernel

# The measurements behind constants are in docs/decisions/constants.md.

# Numbers of parts of K that are compared where the tiles alone leave multiprocessors idle.
SPLITS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 20, 24, 32)
STREAM_K_MOST_SPLITS = 4  # added one after the other; a second kernel adds more of them faster
MIN_SPLIT_K = 512  # a shorter mainloop does not fill its pipeline
MAX_SPLIT_WAVES = 4  # more rounds than that, and the unsplit problem fills the GPU too

# Padding copies the unaligned operands and the result. It pays when the copies are small beside
# what the kernel gains over XLA's own handling of unaligned shapes.
PAD_MIN_SIZE = 512

# Swizzle: bands of this many clusters keep operands in L2. In SM90's kernels without stream-K,
# bands run along the dimension in which the CTAs of a cluster share an operand; without a cluster,
# along the one in which CTAs of a GPC share the wider operand (cc/sm90/gpc.h).
BAND = 8
BAND_OF_ONE_WAVE = 4
# Where at most SHORT_RASTER clusters lie along the raster, a wave covers several rows of them
# without bands.
SHORT_RASTER = 13
# Large results have no bands if L2 keeps the operand along the raster anyway: if that and half of
# the results written between two readings of it fit in RESIDENT_BYTES. Else they have high bands,
# if a band's part of the other operand fits in HIGH_BAND_BYTES.
LARGE_RESULTS = 2**24
RESIDENT_BYTES = 18 * 2**20
HIGH_BAND = 16
HIGH_BAND_BYTES = 12 * 2**20
# Where rows of operands have at most SHORT_ROW_BYTES along K, writing the result takes most of the
# time. Bands then run along the shorter dimension of the result, and are higher where that has at
# most SHORT_LENGTH clusters. Kernels that do not swap operands gain only above SHORTEST_ROW_BYTES.
SHORT_ROW_BYTES = 768
SHORTEST_ROW_BYTES = 256
SHORT_LENGTH = 16
SHORT_BANDS = (4, 8)
# No bands either if matrices of a batch have at most this many tiles: several run at once.
SMALL_MATRIX_TILES = 64
# CUTLASS's kernels round the grid up to whole bands. They get bands if that adds hardly any tile
# and the operands are larger than what L2 holds anyway.
SWIZZLES = (8, 4, 2)
SWIZZLE_MAX_EXTRA_TILES = 0.025
SWIZZLE_2_MIN_WAVES = 8  # a band of two only pays in long launches
SWIZZLE_MIN_OPERAND_BYTES = 32 * 2**20
# Two terms of f16 round a value to 2^-22. From this many products on, f32's own sums round more.
F16_TERMS_MIN_K = 256


def aligned_dims(spec: GemmSpec, dims: GemmDims, in_bytes: int, out_bytes: int) -> GemmDims:
    """Sizes padded so that the contiguous extent of A, B and D is a multiple of 16 bytes."""
    in_multiple, out_multiple = 16 // in_bytes, 16 // out_bytes
    m, n, k = dims.m, round_up(dims.n, out_multiple), dims.k
    if "k" in (spec.a_major, spec.b_major):
        k = round_up(k, in_multiple)
    if spec.a_major == "m":
        m = round_up(m, in_multiple)
    if spec.b_major == "n":
        n = round_up(n, in_multiple)
    return dataclasses.replace(dims, m=m, n=n, k=k)


def padding_refusal(dims: GemmDims, padded: GemmDims) -> str | None:
    """Why an unaligned problem is left to XLA when the choice is free; None when padding pays.

    The rule: pad when M, N and K are all at least `PAD_MIN_SIZE`. The copies cost
    O(MK + KN + MN) bytes against O(MNK) work, so it is the smallest size that decides.
    """
    if padded == dims or min(dims.m, dims.n, dims.k) >= PAD_MIN_SIZE:
        return None
    return (
        f"row pitches are not multiples of 16 bytes, and padding {dims} to {padded} does not pay "
        f"when a size is below {PAD_MIN_SIZE}"
    )


def split_refusal(dims: GemmDims, splits: int, in_bytes: int, *, evenly: bool) -> str | None:
    """Why a problem cannot be split into that many parts along K; None when it can."""
    if splits == 1:
        return None
    if dims.batch != 1:
        return f"a batch of {dims.batch} cannot be split along K"
    if not evenly:
        return None
    multiple = splits * 16 // in_bytes  # every part starts at a multiple of 16 bytes
    return f"K={dims.k} is not a multiple of {multiple}" if dims.k % multiple else None


def run_refusal(
    kernel: Kernel, dims: GemmDims, splits: int, decomposition: str, in_bytes: int
) -> str | None:
    """Why a kernel cannot divide a problem in that way; None when it can."""
    if not kernel.stream_k:
        if decomposition != "heuristic":
            return f"decomposition={decomposition!r} is for stream-K kernels"
        apart = cluster_k.parts_apart(kernel, splits)
        if apart > 1 and not kernel.f32_twin:
            return "no kernel of this tile has the f32 output that parts of K are computed in"
        return split_refusal(dims, apart, in_bytes, evenly=not kernel.uneven_parts)
    if splits > 1 and decomposition in ("data_parallel", "stream_k"):
        return f"splits={splits} contradicts decomposition={decomposition!r}"
    return None


def possible_splits(
    spec: GemmSpec, kernel: Kernel, dims: GemmDims, in_bytes: int, tiles: int, sm_count: int
) -> list[int]:
    """The numbers of parts worth comparing, or the one that the configuration names."""
    way = (spec.policy.config and spec.policy.config.decomposition) or "heuristic"
    if spec.policy.config is not None and spec.policy.config.splits is not None:
        wanted = spec.policy.config.splits
        if kernel.stream_k or kernel.uneven_parts:  # no part is shorter than a step of K
            wanted = max(1, min(wanted, -(-dims.k // kernel.tile_k)))
        return [] if run_refusal(kernel, dims, wanted, way, in_bytes) else [wanted]
    if kernel.cluster_k:
        return cluster_k.worthwhile_splits(kernel, dims.k, tiles, sm_count)
    most = MAX_SPLIT_WAVES * sm_count // max(tiles, 1)
    if kernel.stream_k:
        most = min(most, STREAM_K_MOST_SPLITS)
    return [1] + [
        s
        for s in SPLITS
        if s <= most
        and dims.k // s >= MIN_SPLIT_K
        and not run_refusal(kernel, dims, s, way, in_bytes)
    ]


def kernel_mismatch(kernel: Kernel, spec: GemmSpec, in_dtype: str, arch: str) -> str | None:
    """Why a kernel cannot run a (padded) problem; None when it can."""
    if kernel.arch != arch:
        return f"for {kernel.arch}"
    if kernel.in_dtype != in_dtype or kernel.out_dtype != spec.out_dtype:
        return f"multiplies {kernel.in_dtype} into {kernel.out_dtype}"
    if kernel.a_major + kernel.b_major != spec.majors:
        return f"majors {kernel.a_major}{kernel.b_major}"
    asked = f32_algorithm(spec.policy.precision)
    if kernel.splits_both and asked is not None and asked not in kernel.f32_algorithms:
        if kernel.term_dtype == "float16":
            return "multiplies terms of float16, the precision asks for bfloat16"
        return f"splits float32 into {kernel.terms} terms, too few for the precision"
    return spec.policy.config.mismatch(kernel) if spec.policy.config is not None else None


def grid_refusal(kernel: Kernel, batch: int) -> str | None:
    """Why a launch cannot have so many matrices; None when it can.

    SM100's kernels without groups count matrices along grid.z, all others in one dimension.
    """
    if kernel.arch != "sm100" or kernel.contraction not in ("dense", "scaled"):
        return None
    return f"a batch of more than {MAX_GRID_Y}" if batch > MAX_GRID_Y else None


def rank(
    table: Sequence[Kernel], spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """All usable kernels, each with its best splits, best first; the others with the reason."""
    usable: list[Candidate] = []
    rejected: list[tuple[str, str]] = []
    in_bytes = narrowest_bytes(in_dtype)
    for kernel in table:
        reason = kernel_mismatch(kernel, spec, in_dtype, target.arch)
        decomposition = "heuristic"
        if reason is None and spec.policy.config is not None:
            decomposition = spec.policy.config.decomposition or decomposition
            wanted = spec.policy.config.splits or 1
            reason = run_refusal(kernel, dims, wanted, decomposition, in_bytes)
        elif reason is None and kernel.term_dtype == "float16" and dims.k < F16_TERMS_MIN_K:
            reason = f"K={dims.k} is below {F16_TERMS_MIN_K}: too few sums to hide f16's rounding"
        reason = reason or grid_refusal(kernel, dims.batch)
        cluster = kernel.cluster_m * kernel.cluster_n
        if reason is None and cluster > target.sm_count:
            reason = f"a cluster of {cluster} CTAs does not fit: {target.sm_count} multiprocessors"
        if reason is not None:
            rejected.append((kernel.name, reason))
            continue
        whole = evaluate(kernel, dims, target)
        tiles = whole.tiles_m * whole.tiles_n * dims.batch
        splits = possible_splits(spec, kernel, dims, in_bytes, tiles, target.sm_count)
        candidates = [evaluate(kernel, dims, target, s, decomposition) for s in splits]
        free = (
            spec.policy.config is None
            or (spec.policy.config.splits, spec.policy.config.decomposition) == (None,) * 2
        )
        if kernel.stream_k and free:  # the kernel's own heuristic shares less readily
            candidates.append(evaluate(kernel, dims, target, 1, "stream_k"))
        usable.append(min(candidates, key=preference))
    usable.sort(key=preference)
    return usable, rejected


def preference(candidate: Candidate) -> tuple[float, int, int, int, str]:
    """What candidates are sorted by, best first."""
    kernel = candidate.kernel
    return (
        # The shorter predicted time wins.
        candidate.cycles,
        # At equal time, no second kernel,
        candidate.splits,
        # and less computed outside the matrix.
        candidate.tiles_m * candidate.tiles_n * kernel.tile_m * kernel.tile_n,
        # Then fewer, larger tiles: they read less.
        candidate.tiles_m * candidate.tiles_n,
        # Then the name, so that the order of kernels.def does not matter.
        kernel.name,
    )


def tile_order(candidate: Candidate, dims: GemmDims, in_bytes: int) -> tuple[str, int]:
    """Raster order and swizzle for a kernel on a problem, both run-time attributes."""
    kernel, tiles_m, tiles_n = candidate.kernel, candidate.tiles_m, candidate.tiles_n
    if kernel.cluster_k:  # has only one tile order
        return "heuristic", 1
    if kernel.arch == "sm90" and not kernel.stream_k:
        if candidate.splits > 1:  # the tiles of one part of K run together
            return "heuristic", 1
        if kernel.cluster_m * kernel.cluster_n > 1:
            along = "n" if kernel.cluster_m > 1 else "m"
        else:
            along = "m" if kernel.tile_n > kernel.tile_m else "n"
        if dims.batch > 1 and tiles_m * tiles_n <= SMALL_MATRIX_TILES:
            return along, 1
        if candidate.waves == 1:
            return along, BAND_OF_ONE_WAVE
        if dims.batch == 1 and _writes_most_of_the_time(kernel, dims, in_bytes):
            return _along_the_shorter(kernel, dims)
        clusters = tiles_m / kernel.cluster_m if along == "m" else tiles_n / kernel.cluster_n
        if clusters <= SHORT_RASTER:
            return along, 1
        return along, _band_of_waves(kernel, along, dims, in_bytes)
    clusters_m = max(1, kernel.cluster_m // (2 if kernel.schedule == "2sm" else 1))
    # What lies along grid.y in either order.
    y_of_n = round_up(tiles_m, clusters_m) // clusters_m * kernel.cluster_n
    y_of_m = round_up(tiles_n, kernel.cluster_n)
    # CUTLASS's order has the longer dimension along y, unless it is M and does not fit.
    whole = "n" if y_of_m > MAX_GRID_Y >= y_of_n else "heuristic"
    if (dims.m * dims.k + dims.k * dims.n) * in_bytes < SWIZZLE_MIN_OPERAND_BYTES:
        return whole, 1
    if y_of_n > MAX_GRID_Y:
        return "heuristic", 1
    for swizzle in SWIZZLES:
        if swizzle == 2 and candidate.waves < SWIZZLE_2_MIN_WAVES:
            continue
        launched = round_up(tiles_m, swizzle * clusters_m)
        launched *= round_up(tiles_n, swizzle * kernel.cluster_n)
        if launched <= (1 + SWIZZLE_MAX_EXTRA_TILES) * tiles_m * tiles_n:
            return "n", swizzle
    return whole, 1


def _writes_most_of_the_time(kernel: Kernel, dims: GemmDims, in_bytes: int) -> bool:
    """Whether K is so short that the order of tiles matters most for the results."""
    least = 0 if kernel.swap_ab else SHORTEST_ROW_BYTES
    return least < dims.k * in_bytes <= SHORT_ROW_BYTES


def _along_the_shorter(kernel: Kernel, dims: GemmDims) -> tuple[str, int]:
    """Raster order along the shorter dimension of the result, and the height of the bands."""
    rows, columns = (dims.n, dims.m) if kernel.swap_ab else (dims.m, dims.n)
    clusters_m = ceil_div(rows, kernel.tile_m * kernel.cluster_m)
    clusters_n = ceil_div(columns, kernel.tile_n * kernel.cluster_n)
    along, length = ("m", clusters_m) if rows <= columns else ("n", clusters_n)
    return along, SHORT_BANDS[length <= SHORT_LENGTH]


def _band_of_waves(kernel: Kernel, along: str, dims: GemmDims, in_bytes: int) -> int:
    """Height of the bands of a plain SM90 kernel whose tiles take several waves."""
    if dims.m * dims.n < LARGE_RESULTS:
        return BAND
    along_m = (along == "m") != kernel.swap_ab  # of D; a swapped kernel's N is D's M
    length = dims.m if along_m else dims.n
    height = kernel.tile_n * kernel.cluster_n if along == "m" else kernel.tile_m * kernel.cluster_m
    written = length * height * BYTES[kernel.out_dtype]
    if length * dims.k * in_bytes + written // 2 <= RESIDENT_BYTES:
        return 1
    fits = HIGH_BAND * height * dims.k * in_bytes <= HIGH_BAND_BYTES
    return HIGH_BAND if fits else BAND


def fraction_inside(candidate: Candidate, dims: GemmDims) -> float:
    """Share of the computed tiles that lies inside the matrix, for explanations."""
    kernel = candidate.kernel
    computed = candidate.tiles_m * kernel.tile_m * candidate.tiles_n * kernel.tile_n
    return dims.m * dims.n / computed if computed else math.nan
