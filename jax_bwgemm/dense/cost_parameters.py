"""The numbers of the cost model of costs.py, for one architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple


class TileKey(NamedTuple):
    """The properties of a kernel that its cost depends on.

    Attributes:
        scales: As of `Kernel`; empty if operands have none.
    """

    schedule: str
    tile_m: int
    tile_n: int
    cluster_m: int
    cluster_n: int
    swap_ab: bool
    scales: str = ""


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


# For tiles without a cost. They rank by size: smaller tiles reuse less of what they read.
UNKNOWN_COST = Cost(0.5, 500, 4500, 0.9)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The cost model's numbers. Bytes and cycles are those of the whole GPU unless said otherwise.

    Attributes:
        tiles: Costs of the tiles.
        overlap: Exponent of the norm that adds the times of computing, memory and L2. They overlap,
            but not perfectly if they take about equally long; infinity would be their maximum.
        l2_bytes_per_cycle: What all multiprocessors together take from L2; a multicast counts once.
        sm_bytes_per_cycle: What one of them takes, which bounds small tiles.
        gpc_share: Share of their loads that CTAs without a cluster take from L2, if they share
            tiles in both directions within a GPC, whose path to L2 merges requests (cc/sm90/gpc.h).
        gpc_share_later: The same after the first wave, when the CTAs have drifted apart.
        unaligned_share: Factor for loads from L2 of rows not aligned to 32-byte sectors. They are
            not merged: their 128 bytes lie in two lines.
        unaligned_stream_k: What such rows cost a stream-K kernel, as a factor.
        epilogue_cycles: Least cycles in which a CTA writes one result from registers: the limit if
            K is short.
        reduction_cycles: Launch of the kernel that adds the f32 results of split-K.
        reduction_part: What each part after the second adds to it, up to `FEW_PARTS` of costs.py.
        reduction_round: Latency of each further round of its loads: it has so many parts on their
            way at once (`SUM_ROUND` of costs.py).
        reduction_bytes_per_cycle: L2 rate at which the parts write these results and it reads them.
        stream_k_cycles: Clearing the counters before a stream-K launch.
        stream_k_bytes_per_cycle: Rate, for one multiprocessor, at which a further part of a tile is
            written to L2 and read by the next part's CTA, which waits for it.
        stream_k_margin: Factor on stream-K's time: ties go to kernels without a second launch.
        cluster_k_step: Cycles of a CTA of a cluster-K kernel for a step of K.
        cluster_k_bytes_per_cycle: What each multiprocessor takes from L2 while all do, without
            multicast.
        cluster_k_fixed: Cycles of a cluster-K launch.
        cluster_k_row: Further cycles of it for each row of D in a tile, whose parts the CTAs
            exchange.
        cluster_k_memory: Share of the memory bandwidth that cluster-K reaches.
        cluster_k_turn: Cycles of each further CTA that a multiprocessor runs, as cluster-K is not
            persistent. CTAs that share a multiprocessor have half of the pipeline each.
        cluster_k_crowded: Factor if more CTAs are launched than find a place at once.
        padded_tile: Cost of CTAs of a cluster that have no tile but take part in its multicasts,
            once the GPU is full.
        long_cooperative: Factor of cooperative kernels over ping-pong ones in launches of
            milliseconds, which run at the power limit.
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
    reduction_part: float
    reduction_round: float
    reduction_bytes_per_cycle: float
    stream_k_cycles: float
    stream_k_bytes_per_cycle: float
    stream_k_margin: float
    cluster_k_step: float
    cluster_k_bytes_per_cycle: float
    cluster_k_fixed: float
    cluster_k_row: float
    cluster_k_memory: float
    cluster_k_turn: float
    cluster_k_crowded: float
    padded_tile: float
    long_cooperative: float
