"""The Python mirror of the tile schedulers against CUTLASS's own code, on random problems.

    python tools/compare_tile_schedule.py --cutlass DIR --cuda DIR [--cases 400]

Needs a C++ compiler, CUTLASS's headers (`cutlass_library/source/include` of the nvidia-cutlass
wheel) and CUDA's (`nvidia/cu13/include`), no GPU: the schedulers are ordinary arithmetic. The
digests in tests/dense/test_tile_schedule.py are from this program.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile

from jax_bwgemm.dense.tile_schedule import Tile, TileOrder, band_order, tile_order
from jax_bwgemm.dense.work_schedule import Part, WorkOrder, work_order
from jax_bwgemm.product.kernels import Kernel

SOURCE = pathlib.Path(__file__).with_name("tile_schedule.cc")
RASTERS = ("heuristic", "m", "n")
# 0: a kernel that is no stream-K kernel.
DECOMPOSITIONS = (None, "heuristic", "data_parallel", "split_k", "stream_k")
Case = tuple[int, ...]


def build(folder: str, cutlass: str, cuda: str) -> str:
    """Compiles the program that prints what CUTLASS does; returns its path."""
    program = str(pathlib.Path(folder) / "tile_schedule")
    includes = [f"-I{cutlass}", f"-I{cuda}", f"-I{cuda}/cccl"]
    # The headers ask for the version of nvcc, which is not the compiler here.
    defines = ["-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0"]
    flags = ["-std=c++17", "-O1", "-w", "-fpermissive"]
    subprocess.run(["c++", *flags, *defines, *includes, str(SOURCE), "-o", program], check=True)
    return program


def random_case(rng: random.Random) -> Case:
    """arch, m, n, batch, tile, cluster, sm_count, raster, swizzle, k, splits, decomposition."""
    arch = rng.choice((90, 100))
    clusters = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2)]
    tile = rng.choice([(64, 128), (128, 256), (128, 128), (64, 16)])
    if arch == 100:
        tile = rng.choice([(256, 256), (256, 128), (128, 128), (128, 64)])
        clusters = [c for c in clusters if tile[0] != 256 or c[0] % 2 == 0]
    sizes = rng.randint(1, 3000), rng.randint(1, 3000), rng.choice((1, 1, 3))
    run = rng.choice((132, 148, 114, 4, 20)), rng.randrange(3), rng.choice((1, 2, 4, 8, 16))
    decomposition = rng.choice((0, 1, 1, 2, 3, 4, 4))
    splits = rng.randint(1, 12) if decomposition in (1, 3) and rng.random() < 0.3 else 1
    if arch == 90 and decomposition:  # CUTLASS fills up bands, SM90's kernels are our own
        run = (*run[:2], 1)
    k = rng.choice((rng.randint(1, 1500), 64 * rng.randint(8, 300)))
    return (arch, *sizes, *tile, *rng.choice(clusters), *run, k, splits, decomposition)


def parse(text: str) -> Tile | Part:
    """A tile, or part of one, as the program prints it."""
    row, column, batch, *steps = map(int, text.split(","))
    return Part(Tile(row, column, batch), *steps) if steps else Tile(row, column, batch)


def of_cutlass(case: Case, lines: list[str]) -> tuple[tuple[int, ...], list[list[Tile | Part]]]:
    """The grid, and the tiles of each CTA in the mirror's order of CTAs."""
    grid = tuple(map(int, lines[0].split()))
    cm, cn = case[6], case[7]
    by_cta: dict[tuple[int, ...], list[Tile | Part]] = {}
    for line in lines[1:]:
        x, y, z, *tiles = line.split()
        by_cta[int(z), int(y), int(x)] = [parse(t) for t in tiles]
    found = mirror(case)
    along_m = (found.order if isinstance(found, WorkOrder) else found).raster_order == "m"
    if case[0] == 90:
        # Tiles are dealt out along x first, or along y first when the order runs along M.
        order = sorted(by_cta, key=lambda c: (c[2], c[1]) if along_m else (c[1], c[2]))
    elif isinstance(found, WorkOrder) and found.plan.kind == "stream_k" and along_m:
        order = sorted(by_cta, key=lambda c: (c[0], c[2], c[1]))  # y is within a cluster
    else:
        # Clusters start along x, then y, then z; within one the mirror lists rows first.
        order = sorted(by_cta, key=lambda c: (c[0], c[1] // cn, c[2] // cm, c[1] % cn, c[2] % cm))
    return grid, [by_cta[cta] for cta in order]


def mirror(case: Case) -> TileOrder | WorkOrder:
    """The tile order of a case, or a stream-K kernel's units, by this package."""
    arch, m, n, batch, tile_m, tile_n, cm, cn, sms, raster, swizzle, k, splits, mode = case
    schedule = "pingpong" if arch == 90 else "2sm" if tile_m == 256 else "1sm"
    kernel = Kernel.of_tile(f"sm{arch}", (tile_m, tile_n, 64), (cm, cn), schedule)
    if mode:
        run = sms, RASTERS[raster], swizzle, splits, DECOMPOSITIONS[mode]
        return work_order(kernel, m, n, k, batch, *run)
    order = band_order if arch == 90 else tile_order  # how SM100's stream-K kernels number tiles
    return order(kernel, m, n, batch, sms, RASTERS[raster], swizzle)


def equal(case: Case, lines: list[str]) -> bool:
    """Whether the mirror gives every CTA the tiles that CUTLASS does."""
    order = mirror(case)
    grid, tiles = of_cutlass(case, lines)
    if isinstance(order, TileOrder) and order.dynamic:
        mine: list[list[Tile | Part]] = [[tile] for tile in order.tiles]
    elif isinstance(order, WorkOrder) and order.order.dynamic:
        mine = [list(parts) for parts in order.units]
        mine += [[]] * (len(tiles) - len(mine))  # the last row of the grid may be too long
    elif isinstance(order, WorkOrder) and order.plan.splits > 1:
        # Every unit has a CTA of its own in our launches, CUTLASS's have no more than run at once.
        return tiles == [list(sum(order.units[i :: len(tiles)], ())) for i in range(len(tiles))]
    else:
        mine = [list(own) for own in order.assignment()]
    return order.grid == grid and mine == tiles


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cutlass", required=True, help="folder with cutlass/ and cute/")
    parser.add_argument("--cuda", required=True, help="folder with cuda_runtime.h")
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    cases = [random_case(rng) for _ in range(args.cases)]
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder, args.cutlass, args.cuda)
        text = "\n".join(" ".join(map(str, case)) for case in cases)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    answers = [block.strip().split("\n") for block in done.stdout.split("end\n")[:-1]]
    different = [c for c, lines in zip(cases, answers, strict=True) if not equal(c, lines)]
    for case in different[:10]:
        print("different:", *case)
    print(f"{len(cases) - len(different)} of {len(cases)} problems are the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
