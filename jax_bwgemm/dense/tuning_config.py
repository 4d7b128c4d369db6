"""`TuningConfig`: what a user may demand of the kernel for one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax_bwgemm.product.kernel_config import KernelConfig, kernel_config
from jax_bwgemm.product.kernels import Kernel

SWIZZLES = (1, 2, 4, 8, 16)
MAX_SPLITS = 64  # kMaxSplits of cc/dense/split_k.h
SCHEDULES = ("cooperative", "pingpong", "clusterk", "1sm", "2sm")
SCHEDULERS = {"sm90": "persistent", "sm100": "clc"}
STREAM_K = "stream_k"
DECOMPOSITIONS = ("heuristic", "data_parallel", "split_k", STREAM_K)


@kernel_config(
    max_concurrent_steps="stages",
    collective="two_cta",
    grid_minor_dim="raster_order",
    grid_tile_width="swizzle",
)
class TuningConfig(KernelConfig):
    """Constraints on the kernel for one GEMM. ``None`` means "any"; the heuristic decides.

    A configuration applies to the call it is given to. The GEMMs of its gradients are other
    problems (other majors, other sizes), so they are left to the heuristic.

    **Tile sizes are those of one MMA tile**: per *CTA pair* when ``two_cta=True`` (2-CTA MMA,
    schedule ``2sm``: each CTA of the pair computes half of ``tile_m``), per *CTA* otherwise. The
    cluster shape is always counted in CTAs.

    Attributes:
        kernel: Full name of a kernel, as listed by ``python -m jax_bwgemm info --kernels``. A plain
            string passed as ``config=`` means this.
        tile_m: Rows of D computed by one MMA tile. Per CTA pair if ``two_cta``, else per CTA.
        tile_n: Columns of D computed by one MMA tile. Per CTA pair if ``two_cta``, else per CTA.
        tile_k: Elements of K per pipeline stage; the same for the pair and each of its CTAs.
        stages: Pipeline stages of the mainloop, per CTA. An older name: ``max_concurrent_steps``.
        two_cta: Whether two CTAs cooperate in one MMA (Blackwell ``2sm`` kernels). An older name:
            ``collective``.
        raster_order: Dimension along which consecutive tiles run, ``"m"`` or ``"n"``;
            ``"heuristic"`` leaves it to the kernel. ``None`` lets the heuristic decide. A run-time
            attribute of every kernel but ``clusterk`` ones, which have one order of their tiles. An
            older name: ``grid_minor_dim``.
        swizzle: Height, in clusters, of the bands of tiles that are computed together to reuse
            operands in L2: 1, 2, 4, 8 or 16. A run-time attribute of the same kernels; ``clusterk``
            ones take 1 only. An older name: ``grid_tile_width``.
        cluster_m: CTAs of a cluster along M.
        cluster_n: CTAs of a cluster along N.
        schedule: Kernel schedule: ``cooperative``, ``pingpong`` or ``clusterk`` (sm90; the last
            one's cluster lies along K and has `splits` CTAs), ``1sm`` or ``2sm`` (sm100).
        scheduler: Tile scheduler: ``persistent`` (sm90), ``clc`` (sm100) or ``stream_k``, whose
            CTAs may share a tile along K.
        splits: Parts that K is split into, 1 to 64; a second kernel adds their f32 results in
            order. A run-time attribute of every kernel whose tile is also built with f32 output.
            It needs a batch of one and, on sm100, a K that is a multiple of 8 times the parts (on
            sm90 parts may differ by a block). Two kinds of kernels need none of this: stream-K
            kernels add the parts themselves, one after the other, and ``clusterk`` kernels add up
            to 8 (of more parts, their largest divisor up to 8; a second kernel adds the rest).
        decomposition: How a stream-K kernel divides the work, a run-time attribute of these only:
            ``data_parallel`` (whole tiles), ``split_k`` (every tile in ``splits`` parts),
            ``stream_k`` (one or two waves of tiles shared evenly by all CTAs, whole tiles for the
            rest), or ``heuristic``: ``split_k`` if ``splits`` is more than 1; else whole tiles if
            the last wave of them is at least half full, ``stream_k`` if not.
        swap_ab: Whether to compute the transposed problem, so that few rows fill a tile: then
            ``tile_m`` and ``cluster_m`` lie along N, ``tile_n`` and ``cluster_n`` along M.

    Raises:
        ValueError: A value that no kernel could have.
    """

    two_cta: bool | None = None
    scheduler: str | None = None
    splits: int | None = None
    decomposition: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_int("splits", at_most=MAX_SPLITS)
        if (self.cluster_m or 1) * (self.cluster_n or 1) > 16:
            raise ValueError(
                f"TuningConfig: a cluster has at most 16 CTAs, got cluster_m={self.cluster_m} "
                f"times cluster_n={self.cluster_n}"
            )
        self._check_choice("swizzle", SWIZZLES)
        self._check_choice("two_cta", (False, True))
        self._check_choice("schedule", SCHEDULES)
        self._check_choice("scheduler", (*SCHEDULERS.values(), STREAM_K))
        self._check_choice("decomposition", DECOMPOSITIONS)
        if (self.splits or 1) > 1 and self.decomposition in ("data_parallel", STREAM_K):
            raise ValueError(
                f"TuningConfig: splits={self.splits} contradicts "
                f"decomposition={self.decomposition!r}"
            )
        pair = None if self.schedule is None else self.schedule == "2sm"
        if None not in (self.two_cta, pair) and self.two_cta != pair:
            raise ValueError(
                f"TuningConfig: two_cta={self.two_cta} contradicts schedule={self.schedule!r}: "
                "two CTAs cooperate in exactly the '2sm' kernels"
            )
        if self.two_cta and self.cluster_m is not None and self.cluster_m % 2:
            raise ValueError(
                "TuningConfig: two_cta=True needs an even cluster_m (the CTA pair lies along "
                f"M), got cluster_m={self.cluster_m}"
            )

    def mismatch(self, kernel: Kernel) -> str | None:
        """Why a kernel does not satisfy this configuration; None when it does."""
        if reason := super().mismatch(kernel):
            return reason
        if self.decomposition is not None and not kernel.stream_k:
            return f"decomposition={self.decomposition!r} is for stream-K kernels"
        ordered = self.raster_order in ("m", "n") or (self.swizzle or 1) > 1
        if kernel.cluster_k and ordered:
            return "a cluster-K kernel has one order of its tiles"
        return None

    def _properties(self, kernel: Kernel) -> Mapping[str, Any]:
        return {
            **super()._properties(kernel),
            "two_cta": kernel.schedule == "2sm",
            "scheduler": STREAM_K if kernel.stream_k else SCHEDULERS[kernel.arch],
        }
