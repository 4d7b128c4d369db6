"""`GroupedConfig`: what a user may demand of the kernel for one grouped GEMM."""

from __future__ import annotations

from jax_bwgemm.product.kernel_config import KernelConfig, kernel_config

SCHEDULES = ("cooperative", "pingpong", "1sm", "2sm")
MAX_SWIZZLE = 64  # kMaxSwizzle of cc/call/grouped_call.cc


@kernel_config(order="raster_order")
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
        schedule: ``"cooperative"`` or ``"pingpong"`` on sm90, ``"1sm"`` or ``"2sm"`` on sm100.
        swap_ab: Whether to compute the transposed problem, so that small groups fill a tile.
        raster_order: Dimension along which consecutive tiles run: ``"n"`` (group after group),
            ``"m"`` (columns of tiles through all groups) or ``"heuristic"`` (the kernel decides). A
            run-time attribute of every kernel. An older name is ``order``, with the older values
            ``"horizontal"`` for ``"n"`` and ``"vertical"`` for ``"m"``.
        swizzle: Tiles along the rows of a group in a band, which is computed together: 1 to 64. A
            run-time attribute too.

    Raises:
        ValueError: A value that no kernel could have.
    """

    def __post_init__(self) -> None:
        older = {"horizontal": "n", "vertical": "m"}
        if self.raster_order in older:
            object.__setattr__(self, "raster_order", older[self.raster_order])
        super().__post_init__()
        self._check_choice("schedule", SCHEDULES)
        self._check_int("swizzle", at_most=MAX_SWIZZLE)
