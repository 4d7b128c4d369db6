"""Statistics of emulated launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax_bwgemm.emulator.settings import native


@dataclasses.dataclass(frozen=True)
class WarpStats:
    """What the warps with one index in their CTA did, summed over all CTAs.

    A warp-specialised kernel gives each index one role.

    Attributes:
        instructions: Warp instructions.
        waits: Times a warp was parked.
        wait_ticks: Ticks it spent parked.
        mma: MMA instructions issued.
        tma: Bulk copies issued.
    """

    instructions: int
    waits: int
    wait_ticks: int
    mma: int
    tma: int


@dataclasses.dataclass(frozen=True)
class LaunchWarning:
    """Breaches of a rule whose severity is ``"warning"``, in one line of the PTX.

    Attributes:
        rule: Name of the rule (`rules`).
        line: PTX line, 0 when no line is to blame.
        text: Report of the first one: what happened, the PTX line and, where the PTX says so, the
            line of the source.
        count: How many there were.
    """

    rule: str
    line: int
    text: str
    count: int


@dataclasses.dataclass(frozen=True)
class LaunchStats:
    """One launch. A tick is one executed warp instruction: an order of events, not a time.

    Attributes:
        kernel: Name in the PTX (mangled).
        grid: CTAs along x, y, z.
        block: Threads of a CTA along x, y, z.
        cluster: CTAs of a cluster along x, y, z.
        dynamic_shared_bytes: Dynamic shared memory of a CTA.
        seed: Seed that was in force.
        sm_count: Multiprocessors that were emulated.
        seconds: Wall time of the emulation.
        ok: Whether the kernel ran to its end.
        kind: Kind of the error, empty if none.
        error: Report of the error, empty if none.
        line: PTX line of the error.
        rule: Rule that the error is about, empty if none.
        warnings: In the order in which they were first seen.
        instructions: Warp instructions executed.
        thread_instructions: The same times active lanes.
        ticks: End of the timeline.
        ctas: CTAs that ran.
        clusters_cancelled: Clusters that running ones took over (cluster launch control).
        mma_instructions: MMA instructions.
        mma_flops: Their floating-point operations, a multiply-add counting two.
        tma_loads: Bulk copies from global memory.
        tma_load_bytes: Bytes they read from global memory; a multicast counts once.
        tma_store_bytes: Bytes that bulk copies wrote to global memory.
        global_load_bytes: Bytes of ordinary global loads.
        global_store_bytes: Bytes of ordinary global stores.
        async_operations: Asynchronous operations of any kind.
        warps: By warp index in the CTA.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared_bytes: int
    seed: int
    sm_count: int
    seconds: float
    ok: bool
    kind: str
    error: str
    line: int
    rule: str
    warnings: tuple[LaunchWarning, ...]
    instructions: int
    thread_instructions: int
    ticks: int
    ctas: int
    clusters_cancelled: int
    mma_instructions: int
    mma_flops: int
    tma_loads: int
    tma_load_bytes: int
    tma_store_bytes: int
    global_load_bytes: int
    global_store_bytes: int
    async_operations: int
    warps: tuple[WarpStats, ...]

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LaunchStats:
        """Reads the dict that the compiled emulator returns."""
        warps = tuple(WarpStats(**warp) for warp in record["warps"])
        warnings = tuple(LaunchWarning(*warning) for warning in record["warnings"])
        return cls(**{**record, "warps": warps, "warnings": warnings})

    def table(self) -> str:
        """The statistics as lines of text, the warps' waits per role included."""
        launch = " ".join(
            f"{name} {'x'.join(map(str, dims))}"
            for name, dims in (
                ("grid", self.grid),
                ("block", self.block),
                ("cluster", self.cluster),
            )
        )
        lines = [
            f"launch           {launch}, {self.dynamic_shared_bytes:,} B dynamic shared memory",
            f"machine          {self.sm_count} SMs, seed {self.seed}",
            f"CTAs             {self.ctas}, clusters taken over {self.clusters_cancelled}",
            f"instructions     {self.instructions:,} warp, {self.thread_instructions:,} thread",
            f"MMA              {self.mma_instructions:,} instructions, {self.mma_flops:,} flops",
            f"TMA loads        {self.tma_loads:,}, {self.tma_load_bytes:,} B from global memory",
            f"TMA stores       {self.tma_store_bytes:,} B to global memory",
            f"other global     {self.global_load_bytes:,} B loaded, "
            f"{self.global_store_bytes:,} B stored",
            f"emulation        {self.seconds:.2f} s, {self.ticks:,} ticks",
            "warp   role        instructions      waits  ticks waiting    MMA    TMA",
        ]
        lines += [
            f"{index:>4}   {role(warp):<10} {warp.instructions:>13,} {warp.waits:>10,} "
            f"{warp.wait_ticks:>14,} {warp.mma:>6,} {warp.tma:>6,}"
            for index, warp in enumerate(self.warps)
        ]
        for rule in dict.fromkeys(w.rule for w in self.warnings):
            found = [w for w in self.warnings if w.rule == rule]
            lines.append(
                f"warning          {found[0].text}: {sum(w.count for w in found):,} times, "
                f"{len(found)} lines"
            )
        return "\n".join(lines)


def role(warp: WarpStats) -> str:
    """What a warp is for, judged by what it issued."""
    if warp.mma and warp.tma:
        return "MMA+TMA"
    if warp.mma:
        return "MMA"
    if warp.tma:
        return "TMA"
    return "other"


def last_launch() -> LaunchStats | None:
    """Statistics of the last launch that finished in this process, failed or not.

    None before the first. A product with split K is two launches, the second of which adds the
    partial products.
    """
    record = native().last_launch()
    return None if record is None else LaunchStats.from_record(record)


def launch_count() -> int:
    """How many launches this process has emulated."""
    return native().launches()


def progress() -> tuple[int, int]:
    """Clusters finished and clusters in all of the launch that is running now; (0, 0) when none
    is.
    """
    return native().progress()
