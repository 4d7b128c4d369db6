"""The numbers of the cost model of costs.py, for one architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple


class TileKey(NamedTuple):
    """What of a kernel has a cost of its own."""

    schedule: str
    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    swap_ab: bool


class Cost(NamedTuple):
    """What a tile costs, in clock cycles.

    Attributes:
        efficiency: Share of the tensor cores' peak that a long mainloop reaches.
        per_wave: Cycles of every wave that no mainloop hides; what a cooperative kernel's
            epilogue costs, since both its warpgroups work on the same tile.
        fixed: Cycles of a launch whatever the size: filling the pipeline, writing the last tile.
        streaming: Share of the memory bandwidth it reaches when that is the limit.
    """

    efficiency: float
    per_wave: float
    fixed: float
    streaming: float


# For tiles without a cost: the smaller, the less reuse of what was read.
UNKNOWN_COST = Cost(0.5, 500, 4500, 0.9)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The cost model's numbers. Bytes and cycles are those of the whole GPU unless said otherwise.

    Attributes:
        tiles: Costs of the tiles.
        overlap: Computing, memory and L2 overlap, not perfectly where they take about equally
            long: the exponent of the norm that adds them. Infinity would be their maximum.
        l2_bytes_per_cycle: What all multiprocessors together take from L2; a multicast counts once.
        sm_bytes_per_cycle: What one of them takes, which bounds small tiles.
        gpc_share: CTAs that form no cluster but neighbouring tiles in a GPC, whose path to L2
            merges their requests (cc/sm90/gpc.h), take so much of what they load, where there are
            tiles to share with in both directions.
        gpc_share_later: The same after the first wave, as the CTAs drift apart.
        unaligned_share: Rows not aligned to 32-byte L2 sectors cost so many times as much there,
            and are not merged: their 128 bytes lie in two lines.
        unaligned_stream_k: What such rows cost a stream-K kernel, as a factor.
        epilogue_cycles: Cycles that a CTA takes at least to write a result from registers, main
            loop or not: the limit where K is short.
        reduction_cycles: Split-K adds a kernel that reads every part's f32 result: its launch.
        reduction_bytes_per_cycle: The bytes that it reads and that the parts write, from L2.
        stream_k_cycles: Counters are cleared before a stream-K launch.
        stream_k_bytes_per_cycle: Each further part of a tile is written to L2 and read by the next
            one's CTA while that waits (of one multiprocessor).
        stream_k_margin: Leaves ties to the kernels without a second launch.
        cluster_k_bytes_per_cycle: What limits a multiprocessor with cluster-K kernels, whose
            operands come from L2 without multicast.
        cluster_k_fixed: Cycles of their launch.
        cluster_k_memory: Share of the memory bandwidth that they reach.
        cluster_k_turn: They are not persistent: cycles of each further CTA that a multiprocessor
            runs. CTAs that share it also have half of the pipeline each.
        cluster_k_crowded: More CTAs than run at once find no place: a factor.
        padded_tile: CTAs of a cluster that have no tile of their own still take part in its
            multicasts, which shows once the GPU is full.
        long_cooperative: Launches of milliseconds run at the power limit, where cooperative
            kernels lose to ping-pong ones: a factor.
    """

    tiles: Mapping[TileKey, Cost]
    overlap: float
    l2_bytes_per_cycle: float
    sm_bytes_per_cycle: float
    gpc_share: float
    gpc_share_later: float
    unaligned_share: float
    unaligned_stream_k: float
    epilogue_cycles: float
    reduction_cycles: float
    reduction_bytes_per_cycle: float
    stream_k_cycles: float
    stream_k_bytes_per_cycle: float
    stream_k_margin: float
    cluster_k_bytes_per_cycle: float
    cluster_k_fixed: float
    cluster_k_memory: float
    cluster_k_turn: float
    cluster_k_crowded: float
    padded_tile: float
    long_cooperative: float
