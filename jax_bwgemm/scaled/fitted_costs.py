"""Generated from benchmarks/costs/scaled by benchmarks/cost_fit.py --scaled --fit --write."""

from __future__ import annotations

from jax_bwgemm.dense.cost_parameters import Cost, TileKey

# fmt: off
SM90_TILES = {
    TileKey("cooperative", 128, 256, 2, 1, False, "sums"): Cost(0.99, 2821, 4278, 1.1),
    TileKey("pingpong", 128, 192, 2, 1, False, "sums"): Cost(0.9753, 102.1, 5472, 0.9207),
    TileKey("pingpong", 128, 128, 2, 1, False, "sums"): Cost(0.9406, 325.6, 3925, 1.02),
    TileKey("pingpong", 64, 128, 2, 1, False, "sums"): Cost(0.7583, 2836, 1022, 1.1),
    TileKey("pingpong", 64, 128, 1, 1, False, "sums"): Cost(0.9038, 1386, 2277, 1.033),
    TileKey("pingpong", 64, 64, 1, 1, True, "sums"): Cost(0.6749, 1613, 2340, 1.029),
    TileKey("pingpong", 64, 32, 1, 1, True, "sums"): Cost(0.4838, 124.8, 3367, 0.9692),
    TileKey("pingpong", 64, 16, 1, 1, True, "sums"): Cost(0.2416, 2677, 1702, 1.023),
    TileKey("cooperative", 128, 256, 2, 1, False, "blocks"): Cost(0.8, 2234, 2859, 0.902),
    TileKey("cooperative", 128, 128, 2, 1, False, "blocks"): Cost(0.6943, 1353, 1528, 0.9843),
    TileKey("pingpong", 64, 128, 1, 1, False, "blocks"): Cost(0.5459, 348.8, 3168, 0.95),
    TileKey("cooperative", 128, 256, 2, 1, True, "blocks"): Cost(0.8, 2234, 2859, 0.902),
    TileKey("cooperative", 128, 256, 2, 1, False, "rows"): Cost(0.56, 2234, 6709, 1.1),
    TileKey("cooperative", 128, 128, 2, 1, False, "rows"): Cost(0.5139, 1829, 6709, 1.1),
    TileKey("pingpong", 64, 64, 1, 1, True, "rows"): Cost(0.3332, 5753, 1050, 1.1),
    TileKey("pingpong", 64, 32, 1, 1, True, "rows"): Cost(0.1996, 601.2, 5557, 1.1),
    TileKey("pingpong", 64, 16, 1, 1, True, "rows"): Cost(0.1132, 169.4, 6401, 1.1),
}
