"""`GroupedConfig`: what a user may demand of the kernel for one grouped GEMM."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.runtime import GroupedKernelInfo

ORDERS = ("heuristic", "horizontal", "vertical")
SCHEDULES = ("cooperative", "pingpong", "1sm", "2sm")
MAX_SWIZZLE = 64  # kMaxSwizzle of cc/grouped/grouped_call.cc


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedConfig:
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

    kernel: str | None = None
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

    def _check_int(self, field: str, multiple_of: int = 1) -> None:
        value = getattr(self, field)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"GroupedConfig: {field} must be an int or None, got {value!r}")
        if value < 1 or value % multiple_of:
            what = "positive" if multiple_of == 1 else f"a positive multiple of {multiple_of}"
            raise ValueError(f"GroupedConfig: {field} must be {what}, got {value}")

    def _check_choice(self, field: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, field)
        if value is not None and value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"GroupedConfig: {field} must be one of {listed}, got {value!r}")

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"GroupedConfig({', '.join(f'{k}={v!r}' for k, v in given if v is not None)})"

    def mismatch(self, kernel: GroupedKernelInfo) -> str | None:
        """Why a kernel does not satisfy this configuration; None when it does."""
        actual = {
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
        for field, value in actual.items():
            wanted = getattr(self, field)
            if wanted is not None and wanted != value:
                return f"{field} is {value!r}, not {wanted!r}"
        return None


def as_grouped_config(config: GroupedConfig | str | None) -> GroupedConfig | None:
    """Normalises the ``config=`` argument; a string is a kernel name.

    Raises:
        TypeError: Neither a `GroupedConfig`, a string nor None.
    """
    if config is None or isinstance(config, GroupedConfig):
        return config
    if isinstance(config, str):
        return GroupedConfig(kernel=config)
    raise TypeError(f"config must be a GroupedConfig, a kernel name or None, got {config!r}")
