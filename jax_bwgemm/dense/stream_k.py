"""How a stream-K launch divides tiles along K: arithmetic only, in units of ``tile_k``.

Where whole tiles would leave most CTAs idle in the last wave, CTAs share tiles: the tiles of the
first waves are laid end to end along K and cut into equal pieces, one per CTA; whole tiles follow.
A tile's pieces are added in the order of K, so the bits of the result do not depend on which CTA
is first. Mirrors the schedulers of the kernels: cc/dense/stream_k_plan.h (SM90) and CUTLASS's
(SM100), with which tools/compare_tile_schedule.py compares it.
"""

from __future__ import annotations

import dataclasses

# No piece of a tile is shorter than this: its result costs a round trip through L2.
MIN_STEPS = 8
# Most groups of units of work; each group has a share of the tiles.
MAX_GROUPS = 8

# A piece of work: index of the tile in the order of tiles, first step along K, one past the last.
Piece = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many tiles are shared, and by how many units. A unit is what one CTA does at a time.

    Attributes:
        tiles: All tiles.
        steps: Steps along K of a tile.
        cluster: CTAs of a cluster, whose units have the same steps of neighbouring tiles.
        splits: Equal parts of every tile; 1 unless K is split.
        shared_tiles: The tiles, first in order, that are laid end to end. 0 without stream-K.
        shared_units: The units that they are cut into.
        groups: Groups of units; unit ``u`` of clusters is in group ``u % groups``.
    """

    tiles: int
    steps: int
    cluster: int
    splits: int = 1
    shared_tiles: int = 0
    shared_units: int = 0
    groups: int = 1

    @property
    def kind(self) -> str:
        """``"stream_k"``, ``"split_k"`` or ``"data_parallel"``."""
        if self.shared_units:
            return "stream_k"
        return "split_k" if self.splits > 1 else "data_parallel"

    @property
    def units(self) -> int:
        """All units."""
        return self.shared_units + (self.tiles - self.shared_tiles) * self.splits

    def pieces(self, unit: int) -> list[Piece]:
        """What a unit computes, in its order: the last tile first."""
        if unit >= self.shared_units:
            part, tile = divmod(unit - self.shared_units, self.tiles - self.shared_tiles)
            length, longer = divmod(self.steps, self.splits)
            begin = part * length + min(part, longer)
            return [(self.shared_tiles + tile, begin, begin + length + (part < longer))]
        cluster_unit, place = divmod(unit, self.cluster)
        place_in_group, group = divmod(cluster_unit, self.groups)
        begin, end = self._range(group, place_in_group)
        found = []
        while begin < end:
            tile = (end - 1) // self.steps
            first = max(begin, tile * self.steps)
            index = (tile * self.groups + group) * self.cluster + place
            found.append((index, first - tile * self.steps, end - tile * self.steps))
            end = first
        return found

    def _range(self, group: int, place: int) -> tuple[int, int]:
        """The steps of a cluster of units, among all steps of its group's tiles."""
        cluster_tiles = self.shared_tiles // self.cluster
        own, longer_groups = divmod(cluster_tiles, self.groups)
        total = (own + (group < longer_groups)) * self.steps
        length, longer = divmod(total, self.shared_units // self.groups // self.cluster)
        begin = place * length + min(place, longer)
        return self._whole(begin), self._whole(begin + length + (place < longer))

    def _whole(self, step: int) -> int:
        """A cut, moved to a tile's edge if it is less than `MIN_STEPS` from one."""
        after = step % self.steps
        if after < MIN_STEPS:
            return step - after
        return step + self.steps - after if self.steps - after < MIN_STEPS else step


def plan(
    tiles: int,
    ctas: int,
    cluster: int,
    steps: int,
    rows: int,
    sm_count: int,
    splits: int = 1,
    decomposition: str = "heuristic",
) -> Plan:
    """Decides how to divide the work of one launch.

    Args:
        tiles: All tiles, those outside of the matrix included; a multiple of ``cluster``.
        ctas: CTAs that run at the same time.
        cluster: CTAs of a cluster.
        steps: Steps along K of a tile.
        rows: Clusters along the dimension that the order of tiles runs along.
        sm_count: Multiprocessors.
        splits: Parts of K, for ``"heuristic"`` and ``"split_k"``.
        decomposition: ``"heuristic"``, ``"data_parallel"``, ``"split_k"`` or ``"stream_k"``.
    """
    if splits > 1 or decomposition in ("split_k", "data_parallel"):
        return Plan(tiles, steps, cluster, min(splits, sm_count, steps))
    whole_waves, last_wave = divmod(tiles, ctas)
    by_itself = decomposition == "heuristic"
    if not last_wave or steps <= MIN_STEPS or (by_itself and 2 * last_wave >= ctas):
        return Plan(tiles, steps, cluster)
    # One whole wave is shared together with the last one: alone, it is too little for all CTAs.
    shared = tiles - max(0, whole_waves - 1) * ctas
    shared -= shared % cluster
    units = min(ctas, steps * shared // MIN_STEPS) // cluster * cluster
    if not units:
        return Plan(tiles, steps, cluster)
    if by_itself and shared < units and units % shared == 0:
        return Plan(tiles, steps, cluster, units // shared)
    groups = _groups(shared // cluster, units // cluster, steps, rows)
    return Plan(tiles, steps, cluster, 1, shared, units, groups)


def _groups(tiles: int, units: int, steps: int, rows: int) -> int:
    """Most groups that divide units (and tiles, if any does) and leave pieces long enough."""

    def fits(groups: int) -> bool:
        return units % groups == 0 and tiles // groups * steps // (units // groups) >= MIN_STEPS

    most = min(rows, MAX_GROUPS)
    fitting = [g for g in range(most, 1, -1) if fits(g)]
    return next((g for g in fitting if tiles % g == 0), fitting[0] if fitting else 1)
