"""The cost model's numbers that no program fits: assumed.

SM100: never measured. They only have to rank the tiles: large problems get the largest 2-CTA tile,
few tiles the 1-CTA tile, few rows swapped operands. What is not about tiles is SM90's, or a guess,
`reduction_part` among it.

SM90's kernels of f32 operands and of two matrices: few tiles, set by hand to times of an H200. What
is not about tiles is the other kernels'.
"""

from __future__ import annotations

import dataclasses

from jax_bwgemm.dense.cost_parameters import Cost, Parameters, TileKey
from jax_bwgemm.dense.fitted_costs import SM90

SM90_F32 = dataclasses.replace(
    SM90,
    tiles={
        TileKey("cooperative", 128, 256, 2, 1, False): Cost(0.95, 2800, 4600, 1.0),
        TileKey("cooperative", 128, 128, 1, 1, False): Cost(0.755, 1500, 4200, 1.0),
        TileKey("cooperative", 128, 256, 2, 1, True): Cost(0.95, 2800, 4600, 1.0),
        TileKey("cooperative", 128, 128, 1, 1, True): Cost(0.755, 1500, 4200, 1.0),
        TileKey("cooperative", 128, 64, 1, 1, True): Cost(0.6, 1000, 4200, 1.0),
        TileKey("cooperative", 128, 16, 1, 1, True): Cost(0.2, 1000, 4200, 1.0),
    },
)

SM90_GATED = dataclasses.replace(
    SM90,
    tiles={
        TileKey("pingpong", 128, 192, 2, 1, True): Cost(0.97, 300, 4500, 1.0),
        TileKey("pingpong", 128, 160, 2, 1, True): Cost(0.96, 300, 4500, 1.0),
        TileKey("pingpong", 128, 128, 2, 1, True): Cost(0.93, 300, 4300, 1.0),
        TileKey("pingpong", 128, 64, 1, 1, True): Cost(0.6, 600, 4200, 1.05),
        TileKey("pingpong", 128, 16, 1, 1, True): Cost(0.25, 600, 4200, 1.08),
    },
)

SM100 = Parameters(
    tiles={
        TileKey("2sm", 256, 256, 2, 1, False): Cost(0.95, 400, 5000, 0.9),
        TileKey("2sm", 256, 128, 2, 1, False): Cost(0.85, 300, 4500, 0.9),
        TileKey("1sm", 128, 128, 1, 1, False): Cost(0.8, 300, 4000, 0.9),
        TileKey("1sm", 128, 64, 1, 1, True): Cost(0.45, 300, 4000, 0.95),
        TileKey("1sm", 128, 32, 1, 1, True): Cost(0.24, 300, 4000, 0.95),
        TileKey("1sm", 128, 16, 1, 1, True): Cost(0.14, 300, 4000, 1.0),
    },
    overlap=4.6,
    l2_bytes_per_cycle=12700,
    sm_bytes_per_cycle=200,
    gpc_share=1.0,
    gpc_share_later=0.98,
    unaligned_share=2.4,
    unaligned_stream_k=2.0,
    epilogue_cycles=0.1,
    reduction_cycles=2198,
    reduction_part=150,
    reduction_round=800,
    reduction_bytes_per_cycle=3391,
    stream_k_cycles=6000,
    stream_k_bytes_per_cycle=60,
    stream_k_margin=1.04,
    cluster_k_step=155,
    cluster_k_bytes_per_cycle=48,
    cluster_k_fixed=6000,
    cluster_k_row=20,
    cluster_k_memory=1.08,
    cluster_k_turn=2000,
    cluster_k_crowded=1.4,
    padded_tile=0.3,
    long_cooperative=1.03,
)
