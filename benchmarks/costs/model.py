"""A model of how long a kernel takes, from tiles, waves and bytes.

cost_fit.py fits it to H200 and says how well it holds; cost_table.py prints what it expects of
B200.

Stream-K and cluster-K kernels, whose CTAs share tiles along K, are not part of it.

The tiles and waves come from the mirror of the kernels' tile schedulers
(jax_bwgemm/dense/tile_schedule.py). One multiprocessor's time for a tile is the slower of

- its multiply-adds at the tensor cores' rate, and
- the operand bytes it takes from L2, less what a cluster multicasts,

plus what of the epilogue no mainloop hides. The launch takes the time of the busiest
multiprocessor, or of the bytes from device memory where that is longer. The constants of H200 are
fitted by cost_fit.py; those of B200 are assumptions, listed in cost_table.py.
"""

from __future__ import annotations

import dataclasses

from dense import shapes as shape_lists

from jax_bwgemm.dense.occupancy import concurrent_ctas
from jax_bwgemm.dense.tile_schedule import TileOrder, tile_order
from jax_bwgemm.runtime import KernelInfo


@dataclasses.dataclass(frozen=True)
class Machine:
    """A GPU as the model sees it.

    Attributes:
        name: Its name.
        sm_count: Multiprocessors.
        gigahertz: Clock that cycles are counted in.
        macs_per_cycle: Multiply-adds of a multiprocessor per cycle, 16-bit inputs.
        memory_gb_per_s: Device memory bandwidth that a copy reaches.
        l2_mb: What L2 keeps of operands between waves.
        efficiency: Share of the multiply-add rate that long mainloops reach if no load delays
            them, power included.
        l2_bytes: Bytes per cycle that each multiprocessor takes from L2 when all do.
        l2_port: The most that one takes when few do.
        sharpness: How sharp the corner between those two limits is (the p of a p-norm).
        epilogue_bytes: Bytes of results per cycle that a multiprocessor stores.
        launch_cycles: Cycles of a launch: starting, filling the pipeline, ending.
        reduce_us: Launch of the kernel that adds the parts of a split K.
    """

    name: str
    sm_count: int
    gigahertz: float
    macs_per_cycle: float
    memory_gb_per_s: float
    l2_mb: float
    efficiency: float
    l2_bytes: float
    l2_port: float
    sharpness: float
    epilogue_bytes: float
    launch_cycles: float
    reduce_us: float


# Fitted by `python cost_fit.py`; 4210 GB/s is the copy measured in the same session.
H200 = Machine(
    name="NVIDIA H200",
    sm_count=132,
    gigahertz=1.83,
    macs_per_cycle=2048,
    memory_gb_per_s=4210,
    l2_mb=40,
    efficiency=0.8905,
    l2_bytes=62.45,
    l2_port=95.86,
    sharpness=4.333,
    epilogue_bytes=29.1,
    launch_cycles=5774,
    reduce_us=0.6152,
)


@dataclasses.dataclass(frozen=True)
class Work:
    """What a launch has to do, before anything is known of the machine's speed.

    Attributes:
        active: Multiprocessors that have tiles.
        tiles: Tiles of the busiest multiprocessor, those that only fill up a cluster included.
        macs: Multiply-adds of one CTA's tile.
        l2_bytes: Operand bytes that a CTA takes from L2 for a tile.
        out_bytes: Result bytes of a CTA's tile.
        memory_bytes: Bytes from and to device memory.
        reduce_bytes: Bytes that the kernel adding the parts of a split K moves through L2.
        overlap: ``none`` (cooperative), ``half`` (ping-pong) or ``full`` (tensor memory).
    """

    active: int
    tiles: int
    macs: float
    l2_bytes: float
    out_bytes: float
    memory_bytes: float
    reduce_bytes: float
    overlap: str


OVERLAP = {"cooperative": "none", "pingpong": "half", "1sm": "full", "2sm": "full"}


def models(schedule: str, stream_k: bool) -> bool:
    """Whether kernels of a kind are part of the model."""
    return schedule in OVERLAP and not stream_k


def work(
    kernel: KernelInfo,
    shape: shape_lists.Shape,
    sm_count: int,
    l2_mb: float,
    raster_order: str = "heuristic",
    swizzle: int = 1,
    splits: int = 1,
    out_bytes: int = 2,
) -> Work:
    """Counts the work of one launch. 16-bit operands."""
    order = tile_order(
        kernel, shape.m, shape.n, shape.batch, sm_count, raster_order, swizzle, splits
    )
    pair = 2 if kernel.schedule == "2sm" else 1
    cluster = kernel.cluster_m * kernel.cluster_n
    workers = order.ctas if not order.dynamic else concurrent_ctas(sm_count, cluster)
    depth = -(-shape.k // splits // kernel.tile_k) * kernel.tile_k
    # A cluster's CTAs share what they have in common: A along its N, B along its M. The two CTAs
    # of a pair hold half of B each, which the 2-CTA MMA reads from both.
    rows = kernel.tile_m / pair / kernel.cluster_n
    columns = kernel.tile_n / kernel.cluster_m
    result = 4 if splits > 1 else out_bytes
    partials = shape.m * shape.n * splits * 4
    return Work(
        active=min(workers, len(order.tiles)),
        tiles=most_tiles(order, workers),
        macs=kernel.tile_m / pair * kernel.tile_n * depth,
        l2_bytes=(rows + columns) * depth * 2,
        out_bytes=kernel.tile_m / pair * kernel.tile_n * result,
        memory_bytes=operand_bytes(order, shape, workers, l2_mb, splits)
        + shape.batch * shape.m * shape.n * out_bytes,
        reduce_bytes=partials + shape.m * shape.n * out_bytes if splits > 1 else 0,
        overlap=OVERLAP[kernel.schedule],
    )


def most_tiles(order: TileOrder, workers: int) -> int:
    """Tiles of the busiest multiprocessor."""
    return -(-len(order.tiles) // (workers if order.dynamic else order.ctas))


def operand_bytes(
    order: TileOrder, shape: shape_lists.Shape, workers: int, l2_mb: float, splits: int
) -> float:
    """Operand bytes from device memory: once each if L2 holds them, else as each wave needs them.

    A wave reads the rows of A and columns of B that its tiles touch, each once, since its tiles
    proceed along K together. What it read is there for the next wave if all of it fits into L2.
    """
    k = shape.k / splits
    row, column = order.tile_rows * k * 2, order.tile_columns * k * 2
    once = shape.batch * (shape.m + shape.n) * shape.k * 2
    if once <= l2_mb * 1e6:
        return once
    total, left = 0.0, (set(), set())
    for wave in order.waves(workers):
        inside = [tile for tile in wave if order.inside(tile)]
        rows = {(tile.batch, tile.row) for tile in inside}
        columns = {(tile.batch, tile.column) for tile in inside}
        total += len(rows - left[0]) * row + len(columns - left[1]) * column
        fits = len(rows) * row + len(columns) * column <= l2_mb * 1e6
        left = (rows, columns) if fits else (set(), set())
    return max(total, once)


def l2_rate(amount: Work, machine: Machine) -> float:
    """Bytes per cycle that each of the multiprocessors at work takes from L2."""
    return min(machine.l2_port, machine.l2_bytes * machine.sm_count / amount.active)


def mainloop(amount: Work, machine: Machine) -> float:
    """Cycles of one tile's mainloop."""
    multiply = amount.macs / (machine.macs_per_cycle * machine.efficiency)
    load = amount.l2_bytes / l2_rate(amount, machine)
    p = machine.sharpness
    return (multiply**p + load**p) ** (1 / p)


def predict(amount: Work, machine: Machine) -> float:
    """Microseconds of a launch."""
    epilogue = amount.out_bytes / machine.epilogue_bytes

    main = mainloop(amount, machine)
    if amount.overlap == "none":
        tile = main + epilogue
    elif amount.overlap == "half":
        # Two warpgroups take turns: a tile's epilogue runs under the other one's mainloop.
        tile = max(main, (main + epilogue) / 2)
    else:
        tile = max(main, epilogue)
    cycles = amount.tiles * tile + (epilogue if amount.overlap != "none" else 0.0)
    p = machine.sharpness
    compute = cycles / machine.gigahertz / 1e3
    memory = amount.memory_bytes / machine.memory_gb_per_s / 1e3
    us = (compute**p + memory**p) ** (1 / p) + machine.launch_cycles / machine.gigahertz / 1e3
    if amount.reduce_bytes:
        us += machine.reduce_us + amount.reduce_bytes / machine.memory_gb_per_s / 1e3
    return us


def limit(amount: Work, machine: Machine) -> str:
    """What a launch waits for most."""
    compute = amount.tiles * amount.macs / machine.macs_per_cycle / machine.efficiency
    load = amount.tiles * amount.l2_bytes / l2_rate(amount, machine)
    memory = amount.memory_bytes / machine.memory_gb_per_s * machine.gigahertz
    longest = max(compute, load, memory, machine.launch_cycles)
    return {compute: "tensor cores", load: "L2", memory: "device memory"}.get(longest, "launch")
