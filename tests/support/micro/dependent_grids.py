"""Programmatic dependent launch: what a grid does before it waits for those launched before it."""

# ruff: noqa: E501 (statements of PTX are not broken)

from __future__ import annotations

import dataclasses

import numpy as np

from jax_bwgemm import emulator
from micro.case import Micro
from micro.pieces import BAR, READY, bulk, expect, wait

RACE = ("global-race",)
WAIT = "griddepcontrol.wait;\n"
TRIGGER = "griddepcontrol.launch_dependents;\n"
_STORE = "st.global.u32 [%d2], %r0;\n"
_LOAD = "ld.global.u32 %r20, [%d2];\n"
_TILE_LOAD = "@%p0 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d5, {%r41, %r41}], [%r4];\n"
_KEEP = "st.global.u32 [%d2+4096], %r20;\n"


@dataclasses.dataclass(frozen=True)
class Dependent(Micro):
    """A kernel that is launched several times; the first word of ``in`` is the number of the launch.

    Attributes:
        launches: How often.
        programmatic: Each launch may start while the one before still runs.
    """

    grid: int = 2
    launches: int = 2
    programmatic: bool = True

    def launch(self, text: str) -> emulator.LaunchStats:
        """Runs the launches one after the other; returns the last one's statistics."""
        module = emulator.Module(text)
        out = np.zeros((256, 32), np.uint32)
        source = np.ones((256, 32), np.uint32)
        maps = [emulator.TensorMap(array, box=(16, 32)) for array in (source, out)]
        for number in range(self.launches):
            source[:] = number
            stats = module.launch(
                "k",
                out,
                source,
                *maps,
                grid=self.grid,
                block=self.block,
                programmatic=self.programmatic and number > 0,
            )
        return stats


def grids(*bodies: str) -> str:
    """What each launch does."""
    text = "ld.global.u32 %r40, [%d3];\n"
    for number, body in enumerate(bodies):
        text += f"setp.ne.u32 %p3, %r40, {number};\n@%p3 bra G{number};\n{body}bra E;\nG{number}:\n"
    return text + "E:\n"


def before_or_after(first: str, early: str, late: str = "") -> str:
    """The second grid does this too early, or behind its wait."""
    return grids(first, f"<<{early}{WAIT}|{WAIT}{early}>>{late}")


KERNELS = (
    Dependent(
        "words read ahead of the wait", before_or_after(_STORE + TRIGGER, _LOAD, _KEEP), RACE
    ),
    Dependent("no wait at all", grids(_STORE + TRIGGER, f"<<|{WAIT}>>{_LOAD}{_KEEP}"), RACE),
    Dependent("no trigger and no wait", grids(_STORE, f"<<|{WAIT}>>{_LOAD}{_KEEP}"), RACE),
    Dependent(
        "words stored after the trigger, read without a wait",
        grids(TRIGGER + _STORE, f"{TRIGGER}<<|{WAIT}>>{_LOAD}{_KEEP}"),
        RACE,
    ),
    Dependent(
        "words stored that the grid before may still read",
        before_or_after(TRIGGER + _LOAD + _KEEP, _STORE),
        RACE,
    ),
    Dependent(
        "words stored over those of the grid before",
        before_or_after(TRIGGER + _STORE, _STORE),
        RACE,
    ),
    Dependent(
        "a sum read ahead of the wait",
        before_or_after(
            f"red.global.add.u32 [%d1], 1;\n{TRIGGER}", "ld.global.u32 %r20, [%d1];\n", _KEEP
        ),
        RACE,
    ),
    Dependent(
        "a sum set to zero ahead of the wait",
        before_or_after(
            f"red.global.add.u32 [%d1], 1;\n{TRIGGER}", "@%p0 st.global.u32 [%d1], 0;\n"
        ),
        RACE,
        grid=1,
    ),
    Dependent(
        "a read without coherence ahead of the wait",
        before_or_after(_STORE + TRIGGER, "ld.global.nc.u32 %r20, [%d2];\n", _KEEP),
        RACE,
    ),
    Dependent(
        "a bulk load ahead of the wait",
        grids(
            _STORE + TRIGGER,
            f"{READY}{expect(512)}<<{bulk(512, source='%d1')}{WAIT}|{WAIT}{bulk(512, source='%d1')}>>{wait(0, 0)}ld.shared.u32 %r20, [%r7];\n{_KEEP}",
        ),
        RACE,
    ),
    Dependent(
        "a tile loaded ahead of the wait",
        grids(
            _STORE + TRIGGER,
            f"{READY}{expect(2048)}mov.u32 %r41, 0;\n<<|{WAIT}>>{_TILE_LOAD}<<{WAIT}|>>{wait(0, 0)}ld.shared.u32 %r20, [%r7];\n{_KEEP}",
        ),
        RACE,
    ),
    Dependent(
        "cp.async ahead of the wait",
        grids(
            _STORE + TRIGGER,
            f"<<|{WAIT}>>cp.async.ca.shared.global [%r7], [%d2], 4;\ncp.async.wait_all;\n<<{WAIT}|>>ld.shared.u32 %r20, [%r7];\n{_KEEP}",
        ),
        RACE,
    ),
    # --- who waits
    Dependent(
        "one warp waits for all, without a barrier",
        grids(_STORE + TRIGGER, f"@!%p2 bra GO;\n{WAIT}GO:\n<<|{BAR}>>{_LOAD}{_KEEP}"),
        RACE,
    ),
    Dependent(
        "one lane waits for its warp, without a barrier of the warp",
        grids(
            _STORE + TRIGGER,
            f"@!%p1 bra GO;\n{WAIT}GO:\n<<|bar.warp.sync -1;\n>>{_LOAD}{_KEEP}",
        ),
        (*RACE, "lane-wait"),
    ),
    Dependent(
        "one CTA waits, the other does not",
        grids(
            _STORE + TRIGGER,
            f"setp.eq.u32 %p4, %r9, <<0|%r9>>;\n@!%p4 bra GO;\n{WAIT}GO:\n{_LOAD}{_KEEP}",
        ),
        RACE,
    ),
    # --- chains: the end of a grid that has not waited tells of no other
    Dependent(
        "words of the grid before the last, which the last one did not wait for",
        grids(_STORE + TRIGGER, f"{TRIGGER}<<|{WAIT}>>", f"{WAIT}{_LOAD}{_KEEP}"),
        RACE,
        launches=3,
    ),
    Dependent(
        "words of the grid before the last, which triggers ahead of its wait",
        grids(_STORE + TRIGGER, f"<<{TRIGGER}{WAIT}|{WAIT}{TRIGGER}>>", f"{_LOAD}{WAIT}{_KEEP}"),
        RACE,
        launches=3,
    ),
    # --- other order between grids that run side by side
    Dependent(
        "a flag between grids without release",
        grids(
            f"{_STORE}{BAR}@%p0 st.<<relaxed|release>>.gpu.global.u32 [%d1+16384], 1;\n",
            f"@!%p0 bra GO;\nS:\nld.acquire.gpu.global.u32 %r20, [%d1+16384];\nsetp.eq.u32 %p4, %r20, 0;\n@%p4 bra S;\nGO:\n{BAR}{_LOAD}{_KEEP}",
        ),
        RACE,
        grid=1,
    ),
)
