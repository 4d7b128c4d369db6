"""`GroupedConfig`: what a user may demand of the kernel for one grouped GEMM."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.product.kernel_config import KernelConfig
from jax_bwgemm.runtime import GroupedKernelInfo

ORDERS = ("heuristic", "horizontal", "vertical")
SCHEDULES = ("cooperative", "pingpong", "1sm", "2sm")
MAX_SWIZZLE = 64  # kMaxSwizzle of cc/grouped/grouped_call.cc


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedConfig(KernelConfig):
    """Constraints on the kernel for one grouped GEMM. ``None`` means "any"; the heuristic decides.

    A configuration applies to the call it is given to. The grouped GEMMs of its gradients are
    other problems, so they are left to the heuristic.

    Tile sizes are those of one MMA tile: per CTA pair for a cluster of 2 along M on sm100, per CTA
    otherwise. With ``swap_ab`` the tile is transposed: ``tile_m`` then lies along N, ``tile_n``
    along the ragged rows.

    Attributes:
        kernel: Full name of a kernel. A plain string passed as ``config=`` means this.
        tile_m: Rows of one MMA tile.
        tile_n: Columns of one MMA tile.
        tile_k: Elements of the contracted dimension per pipeline stage.
        cluster_m: CTAs of a cluster along M.
        cluster_n: CTAs of a cluster along N.
        stages: Pipeline stages of the mainloop, per CTA.
        swap_ab: Whether to compute the transposed problem, so that small groups fill a tile.
        schedule: ``"cooperative"`` or ``"pingpong"`` on sm90, ``"1sm"`` or ``"2sm"`` on sm100.
        order: Order of the tiles: ``"horizontal"`` (group after group), ``"vertical"`` (columns of
            tiles through all groups) or ``"heuristic"`` (the kernel decides). A run-time attribute
            of every kernel.
        swizzle: Tiles along the rows of a group in a band, which is computed together: 1 to 64. A
            run-time attribute too.

    Raises:
        ValueError: A value that no kernel could have.
    """

    tile_m: int | None = None
    tile_n: int | None = None
    tile_k: int | None = None
    cluster_m: int | None = None
    cluster_n: int | None = None
    stages: int | None = None
    swap_ab: bool | None = None
    schedule: str | None = None
    order: str | None = None
    swizzle: int | None = None

    def __post_init__(self) -> None:
        for field in ("tile_m", "tile_n", "tile_k"):
            self._check_int(field, multiple_of=8)
        self._check_int("stages")
        for field in ("cluster_m", "cluster_n"):
            self._check_choice(field, (1, 2, 4, 8, 16))
        self._check_choice("swap_ab", (False, True))
        self._check_choice("schedule", SCHEDULES)
        self._check_choice("order", ORDERS)
        self._check_int("swizzle")
        if self.swizzle is not None and self.swizzle > MAX_SWIZZLE:
            raise ValueError(
                f"GroupedConfig: swizzle must be at most {MAX_SWIZZLE}, got {self.swizzle}"
            )

    def mismatch(self, kernel: GroupedKernelInfo) -> str | None:
        """Why a kernel does not satisfy this configuration; None when it does."""
        return self._differs(
            {
                "kernel": kernel.name,
                "tile_m": kernel.tile_m,
                "tile_n": kernel.tile_n,
                "tile_k": kernel.tile_k,
                "cluster_m": kernel.cluster_m,
                "cluster_n": kernel.cluster_n,
                "stages": kernel.stages,
                "swap_ab": kernel.swap_ab,
                "schedule": kernel.schedule,
            }
        )
