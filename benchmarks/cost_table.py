"""What costs/model.py expects of the kernels on a GPU, by default B200: PREDICTED, not measured.

python cost_table.py                     # B200, all named shapes of the suite
python cost_table.py --machine h200      # the same for H200, to hold against measurements
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from common import report
from costs.model import H200, Machine, Work, limit, models, predict, work
from dense import shapes as shape_lists

from jax_bwgemm.runtime import KernelInfo

# Never measured by this project. Every figure is an assumption.
B200_ASSUMPTIONS = (
    "148 multiprocessors at 1.85 GHz, 4096 multiply-adds a cycle each: 2243 TFLOP/s dense",
    "undelayed mainloops reach 0.80 of that, and a multiprocessor takes 64 bytes a cycle from "
    "L2 (44 are what fits H200): both chosen so that the large shapes come out near what others "
    "publish",
    "device memory 7.0 TB/s: 8 TB/s times the share that H200's copy reaches of its 4.8",
    "L2 of 126 MB, of which 100 keep operands",
    "accumulators are double-buffered in tensor memory: epilogues run under the next mainloop",
    "launch, store rate and the corner between the limits as fitted on H200; for 512 to 1024 rows "
    "this comes out 15 to 35 % below what others publish",
)
# TFLOP/s of bf16 or f16 products on B200 that others report, m,n,k -> (least, most): JAX's Pallas
# Blackwell tutorial, ThunderKittens, pyptx.dev, vLLM pull requests 19566 and 20071.
PUBLISHED = {
    "4096,8192,4096": (1426, 1562),
    "4096,4096,4096": (1532, 1540),
    "2048,2048,2048": (1006, 1006),
    "4096,8192,8192": (1652, 1652),
    "8192,8192,8192": (1610, 1610),
    "512,4096,4096": (1336, 1336),
    "1024,4096,4096": (1363, 1363),
}


def b200() -> Machine:
    """B200 by `B200_ASSUMPTIONS`."""
    return dataclasses.replace(
        H200,
        name="NVIDIA B200",
        sm_count=148,
        gigahertz=1.85,
        macs_per_cycle=4096,
        memory_gb_per_s=7000,
        l2_mb=100,
        efficiency=0.8,
        l2_bytes=64,
        l2_port=64,
    )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The best of a set of kernels for a shape.

    Attributes:
        kernel: The kernel.
        raster_order, swizzle, splits: Its run-time attributes.
        amount: Its work.
        us: Predicted microseconds.
    """

    kernel: KernelInfo
    raster_order: str
    swizzle: int
    splits: int
    amount: Work
    us: float


def best(kernels: Iterable[KernelInfo], shape: shape_lists.Shape, machine: Machine) -> Prediction:
    """The kernel, order and splits with the least predicted time.

    Raises:
        ValueError: There are no kernels.
    """
    found = []
    for kernel in kernels:
        rows, columns = (shape.n, shape.m) if kernel.swap_ab else (shape.m, shape.n)
        tiles = -(-rows // kernel.tile_m) * -(-columns // kernel.tile_n) * shape.batch
        if tiles > 40 * machine.sm_count and kernel.tile_m * kernel.tile_n < 128 * 128:
            continue  # small tiles never win there, and their orders are long
        for splits in (1, 2, 3, 4, 6, 8, 16, 32):
            if splits > 1 and (
                shape.batch > 1
                or shape.k % (8 * splits)
                or shape.k // splits < 512
                or tiles * splits > 2 * machine.sm_count
            ):
                continue
            for raster, swizzle in (("heuristic", 1), ("n", 8)):
                amount = work(
                    kernel, shape, machine.sm_count, machine.l2_mb, raster, swizzle, splits
                )
                us = predict(amount, machine)
                found.append(Prediction(kernel, raster, swizzle, splits, amount, us))
    if not found:
        raise ValueError(f"no kernels to predict {shape.name} with")
    return min(found, key=lambda p: p.us)


def expected(
    kernels: Sequence[KernelInfo], selected: Sequence[shape_lists.Shape], machine: Machine
) -> list[dict[str, Any]]:
    """One row per shape: the best kernel and its predicted time."""
    rows = []
    for shape in selected:
        found = best(kernels, shape, machine)
        kernel = found.kernel
        tile = f"{kernel.tile_m}x{kernel.tile_n} {kernel.schedule}{' swap' * kernel.swap_ab}"
        rows.append(
            {
                "shape": shape.name,
                "predicted us": found.us,
                "predicted TFLOP/s": shape.flops / found.us / 1e6,
                "tile": tile,
                "splits": found.splits,
                "tiles per SM": found.amount.tiles,
                "limited by": limit(found.amount, machine),
            }
        )
        if machine.name == "NVIDIA B200":
            published = PUBLISHED.get(shape.name)
            rows[-1]["others publish TFLOP/s"] = (
                "-".join(str(x) for x in sorted(set(published))) if published else None
            )
    return rows


def kernels_of(arch: str) -> list[KernelInfo]:
    """The bf16 kernels of this build for plain products.

    Raises:
        SystemExit: The kernels were not built.
    """
    from jax_bwgemm import runtime

    found = [
        k
        for k in runtime.kernels()
        if (k.arch, k.in_dtype, k.out_dtype, k.lhs_major + k.rhs_major)
        == (arch, "bfloat16", "bfloat16", "kn")
        and models(k.schedule, k.stream_k)
    ]
    if not found:
        raise SystemExit(f"error: this installation has no compiled {arch} kernels")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--machine", choices=("b200", "h200"), default="b200")
    parser.add_argument("--tags", nargs="*", default=["suite"], choices=shape_lists.TAGS)
    args = parser.parse_args(argv)
    machine, arch = (b200(), "sm100") if args.machine == "b200" else (H200, "sm90")
    print(f"PREDICTED for {machine.name}, bf16, by a model; nothing here was measured on one.")
    if args.machine == "b200":
        print("Assumptions:")
        print("\n".join(f"- {line}" for line in B200_ASSUMPTIONS))
    names = list(PUBLISHED) if args.machine == "b200" else []
    rows = expected(kernels_of(arch), shape_lists.select(args.tags, names), machine)
    print(report.table(rows, list(rows[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
