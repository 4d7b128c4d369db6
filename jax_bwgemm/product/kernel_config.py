"""What a user may demand of a kernel, as far as all products have it in common."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, dataclass_transform

CLUSTER_SIZES = (1, 2, 4, 8, 16)
RASTER_ORDERS = ("heuristic", "m", "n")

_Config = TypeVar("_Config", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def kernel_config(**aliases: str) -> Callable[[_Config], _Config]:
    """Makes a frozen dataclass of keywords.

    Args:
        **aliases: Older names of fields, which are still accepted as keywords.
    """

    def decorate(cls: _Config) -> _Config:
        cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        init = cls.__init__

        @functools.wraps(init)
        def with_aliases(self: Any, **fields: Any) -> None:
            for old in aliases.keys() & fields.keys():
                new = aliases[old]
                if new in fields:
                    raise TypeError(f"{cls.__name__}: {old} is an older name of {new}: give one")
                fields[new] = fields.pop(old)
            init(self, **fields)

        cls.__init__ = with_aliases
        return cls

    return decorate


@kernel_config()
class KernelConfig:
    """Constraints on a kernel, one a field; ``None`` means "any".

    Tile sizes are those of one MMA tile: per *CTA pair* for 2-CTA MMA (schedule ``2sm``: each CTA
    of the pair computes half of ``tile_m``), per *CTA* otherwise. Clusters are counted in CTAs.
    With ``swap_ab`` the tile is transposed: ``tile_m`` and ``cluster_m`` then lie along N,
    ``tile_n`` and ``cluster_n`` along M.

    Attributes:
        kernel: Full name of a kernel, as listed by ``python -m jax_bwgemm info --kernels``. A plain
            string passed as ``config=`` means this.
        tile_m: Rows of one MMA tile.
        tile_n: Columns of one MMA tile.
        tile_k: Elements of the contracted dimension per pipeline stage.
        cluster_m: CTAs of a cluster along M.
        cluster_n: CTAs of a cluster along N.
        stages: Pipeline stages of the mainloop, per CTA.
        schedule: How a kernel divides its work among warps.
        swap_ab: Whether to compute the transposed problem, so that few rows fill a tile.
        raster_order: Dimension along which consecutive tiles run, ``"m"`` or ``"n"``;
            ``"heuristic"`` leaves it to the kernel. A run-time attribute.
        swizzle: Height of the bands of tiles that are computed together, so that operands are
            found in L2. A run-time attribute.

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
    schedule: str | None = None
    swap_ab: bool | None = None
    raster_order: str | None = None
    swizzle: int | None = None

    def __post_init__(self) -> None:
        if not (self.kernel is None or isinstance(self.kernel, str)):
            raise self._invalid(f"kernel must be a kernel's name or None, got {self.kernel!r}")
        for field in ("tile_m", "tile_n", "tile_k"):
            self._check_int(field, multiple_of=8)
        self._check_int("stages")
        for field in ("cluster_m", "cluster_n"):
            self._check_choice(field, CLUSTER_SIZES)
        self._check_choice("swap_ab", (False, True))
        self._check_choice("raster_order", RASTER_ORDERS)

    @classmethod
    def of(
        cls, config: Self | str | None, implementations: Sequence[str] = ("cutlass",)
    ) -> Self | None:
        """Normalises a ``config=`` argument; a string is a kernel name.

        Args:
            config: The argument.
            implementations: Those of the call.

        Raises:
            TypeError: Neither a configuration of this class, a string nor None.
            ValueError: There is a configuration, and only XLA may compute the product.
        """
        if isinstance(config, str):
            config = cls(kernel=config)
        if not (config is None or isinstance(config, cls)):
            raise TypeError(
                f"config must be a {cls.__name__}, a kernel name or None, got {config!r}"
            )
        if config is not None and tuple(implementations) == ("xla",):
            raise ValueError(f"{config} is for the kernels; implementation='xla' has none")
        return config

    def mismatch(self, kernel: Any) -> str | None:
        """Why a kernel does not satisfy this configuration; None when it does."""
        for field, value in self._properties(kernel).items():
            wanted = getattr(self, field)
            if wanted is not None and wanted != value:
                return f"{field} is {value!r}, not {wanted!r}"
        return None

    def _properties(self, kernel: Any) -> Mapping[str, Any]:
        """What a kernel has of each field that is not a run-time attribute."""
        return {
            "kernel": kernel.name,
            "tile_m": kernel.tile_m,
            "tile_n": kernel.tile_n,
            "tile_k": kernel.tile_k,
            "cluster_m": kernel.cluster_m,
            "cluster_n": kernel.cluster_n,
            "stages": kernel.stages,
            "schedule": kernel.schedule,
            "swap_ab": kernel.swap_ab,
        }

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        fields = ", ".join(f"{k}={v!r}" for k, v in given if v is not None)
        return f"{type(self).__name__}({fields})"

    def _check_int(self, field: str, multiple_of: int = 1, at_most: int | None = None) -> None:
        value = getattr(self, field)
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._invalid(f"{field} must be an int or None, got {value!r}")
        if value < 1 or value % multiple_of:
            what = "positive" if multiple_of == 1 else f"a positive multiple of {multiple_of}"
            raise self._invalid(f"{field} must be {what}, got {value}")
        if at_most is not None and value > at_most:
            raise self._invalid(f"{field} must be at most {at_most}, got {value}")

    def _check_choice(self, field: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, field)
        if value is not None and not any(_is(value, choice) for choice in choices):
            listed = ", ".join(repr(choice) for choice in choices)
            raise self._invalid(f"{field} must be one of {listed}, got {value!r}")

    def _invalid(self, what: str) -> ValueError:
        return ValueError(f"{type(self).__name__}: {what}")


def _is(value: object, choice: object) -> bool:
    """Whether a value is a choice. True and 1.0 are equal to 1, but are not accepted for it."""
    if not isinstance(value, type(choice)) or isinstance(value, bool) != isinstance(choice, bool):
        return False
    return value == choice
