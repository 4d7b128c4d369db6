"""What the compiler made of the kernels: the instructions that matter are there, nothing spills.

The machine code of every kernel in the build is disassembled with cuobjdump (PyPI:
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm, in the ``test`` extra). No GPU is involved.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from linked_cases import requires_linker

from jax_bwgemm import runtime
from jax_bwgemm.epilogue import linking
from jax_bwgemm.epilogue.grouped_hook import (
    GatedGroupedHook,
    GroupedHook,
    GroupedRowHook,
    grouped_hook,
)
from jax_bwgemm.epilogue.hook import Hook, pairs_along_m, staging_of
from jax_bwgemm.epilogue.linkable import linkable_kernels
from jax_bwgemm.epilogue.program import MATRICES, Operand
from jax_bwgemm.epilogue.split_k_hook import SplitKHook, split_k_symbol
from jax_bwgemm.epilogue.tracing import trace_epilogue
from jax_bwgemm.product.kernels import Kernel

pytestmark = pytest.mark.skipif(
    runtime.extension() is None, reason="jax_bwgemm was installed without its compiled kernels"
)

CLUSTER_K = "14ClusterKKernel"
# Part of the mangled name of every GEMM kernel; the one that adds the parts of a split K has none.
GEMMS = ("GemmUniversal", "14GemmKernelSm90", "21GemmKernelSm90StreamK", CLUSTER_K)
# Part of the mangled name of every grouped kernel.
GROUPED = "GroupedGemmKernel"
# Part of the mangled name of every kernel of 8-bit and 4-bit operands: SM90's, and SM100's.
SCALED = "20ScaledGemmKernelSm90"
SCALED_GROUPED = "23GroupedScaledKernelSm90"
SCALED_GROUPED_SM100 = ("19GroupedScaledKernelI", "24GroupedBlockScaledKernelI")
FLOAT8, FLOAT4 = "float_e4m3_t", "float_e2m1_t"
# And of those whose MMA instructions read scales.
BLOCK_SCALED = "BlockScaled"
# Part of the mangled name of every kernel whose MMA instruction spans two CTAs.
TWO_CTA_MMA = "2x1SM"
# Upper half of the L2 eviction priority "last", a constant of CUTLASS's: TMA::CacheHintSm90.
EVICT_LAST = "0x14f00000"


@dataclasses.dataclass
class Disassembly:
    """One kernel's machine code."""

    arch: str
    opcodes: set[str] = dataclasses.field(default_factory=set)
    evicts_last: bool = False  # has that priority for something
    stack_bytes: int = -1
    local_bytes: int = -1
    copies: int = 1  # of the same kernel, for one architecture


def _cuobjdump(*options: str, file: Path | None = None) -> str:
    nvidia = pytest.importorskip("nvidia", reason="nvidia-cuda-cuobjdump is not installed")
    candidates = (Path(p) / "cu13" / "bin" / "cuobjdump" for p in nvidia.__path__)
    tool = next((c for c in candidates if c.exists()), None)
    if tool is None:
        pytest.skip("nvidia-cuda-cuobjdump is not installed")
    environment = {**os.environ, "PATH": f"{tool.parent}:{os.environ['PATH']}"}
    library = runtime.extension().__file__ if file is None else file
    return subprocess.run(
        [tool, *options, library], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def machine_code() -> dict[str, Disassembly]:
    """Mangled kernel name -> its disassembly (one, if it exists for several architectures)."""
    found: dict[str, Disassembly] = {}
    arch, name = "", ""
    for line in _cuobjdump("-sass").splitlines():
        if match := re.match(r"\s*arch = (sm_\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            name = match[1]
            before = found.get(name)
            found[name] = Disassembly(arch)
            if before is not None and before.arch == arch:
                found[name].copies = before.copies + 1
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", line):
            found[name].opcodes.add(match[1])
            found[name].evicts_last |= EVICT_LAST in line
    for line in _cuobjdump("-res-usage").splitlines():
        if match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"STACK:(\d+).*LOCAL:(\d+)", line):
            found[name].stack_bytes, found[name].local_bytes = int(match[1]), int(match[2])
    return found


def _with_arch(machine_code: dict[str, Disassembly], arch: str) -> dict[str, Disassembly]:
    return {
        n: d
        for n, d in machine_code.items()
        if d.arch.startswith(arch)
        and any(g in n for g in GEMMS)
        and not {FLOAT8, FLOAT4} & set(re.findall(r"float_e\dm\d_t", n))
    }


def _cutlass_codes(kernels: Iterable[Kernel]) -> set[str]:
    """SM100's dense and scaled kernels by their machine code, which types of one size share."""
    names = (re.sub("(?<!b)f16", "bf16", k.name) for k in kernels if k.arch == "sm100")
    return {name.replace("e5m2", "e4m3") for name in names}


def test_every_sm90_kernel_is_compiled_for_its_own_architecture_only(machine_code):
    kernels = [k for k in runtime.kernels() if k.arch == "sm90"]
    # Of two f32 operands one is split ahead of the kernel, which is the same for both its majors.
    shared = sum(k.splits_both for k in kernels) // 2
    assert len(_with_arch(machine_code, "sm_90")) == len(kernels) - shared


def test_sm100_kernels_of_bf16_and_f16_are_one(machine_code):
    codes = _with_arch(machine_code, "sm_100")
    assert len(codes) == len(_cutlass_codes(runtime.kernels())) > 0
    assert {code.copies for code in codes.values()} == {1}
    rounds = [
        {o for o in code.opcodes if o.startswith(("F2FP.F16.F32", "F2FP.BF16.F32"))}
        for code in codes.values()
    ]
    of_16_bits = [k for k in runtime.kernels() if k.out_dtype != "float32"]
    assert sum(len(found) == 2 for found in rounds) == len(_cutlass_codes(of_16_bits))
    assert all(len(found) in (0, 2) for found in rounds)


def test_no_kernel_spills_or_uses_local_memory(machine_code):
    spilling = {
        name: d
        for name, d in machine_code.items()
        if d.stack_bytes or d.local_bytes or any(o.startswith(("LDL", "STL")) for o in d.opcodes)
    }
    # Of an f32 and a bf16 operand, grouped: the scheduler's registers leave too few for the upper
    # parts of sums, a few of which wait in memory from one run of blocks of K to the next.
    f32 = {n for n in spilling if re.search(r"GroupedGemmKernel.*DTypeE(2ELS\d_0|0ELS\d_2)EL", n)}
    assert set(spilling) == f32
    # Those of f32 matrices of experts have a main loop for each of several widths.
    several = {n for n in f32 if re.search(r"ContractionE1ELNS_5DTypeE0E", n)}
    assert 0 < len(several) < len(f32)
    assert all(spilling[n].stack_bytes <= (104 if n in several else 16) for n in f32)


def test_sm90_kernels_use_wgmma(machine_code):
    kernels = _with_arch(machine_code, "sm_90")
    assert kernels
    for name, code in kernels.items():
        assert any(o.startswith("HGMMA") for o in code.opcodes), name
        assert any(o.startswith("UTMALDG") for o in code.opcodes), name


def test_scaled_sm90_kernels_multiply_8_bit_operands(machine_code):
    kernels = [code for name, code in machine_code.items() if SCALED in name]
    assert len(kernels) == sum(k.arch == "sm90" for k in runtime.scaled_kernels()) > 0
    grouped = [code for name, code in machine_code.items() if SCALED_GROUPED in name]
    table = [k for k in runtime.scaled_grouped_kernels() if k.arch == "sm90"]
    assert len(grouped) == len(table) > 0
    for code in kernels + grouped:
        assert any(o.startswith("QGMMA") for o in code.opcodes)
        assert any(o.startswith("UTMALDG") for o in code.opcodes)
    for code in kernels:
        assert not any(o == "ST" or o.startswith("ST.") for o in code.opcodes)


def test_scaled_sm100_kernels_multiply_8_bit_and_4_bit_operands(machine_code):
    kernels = {
        n: c
        for n, c in machine_code.items()
        if "GemmUniversal" in n and (FLOAT8 in n or FLOAT4 in n)
    }
    assert len(kernels) == len(_cutlass_codes(runtime.scaled_kernels())) > 0
    for name, code in kernels.items():
        pair = ".2CTA" if TWO_CTA_MMA in name else ""
        # kind::mxf4nvf4 with four scales for an instruction's K; kinds f8f6f4 and mxf8f6f4.
        mma = f"UTCOMMA{pair}.4X" if FLOAT4 in name else f"UTCQMMA{pair}"
        assert mma in code.opcodes, name
        # tcgen05.cp brings scales to tensor memory.
        copies = any(o.startswith(f"UTCCP.T.S{pair}") for o in code.opcodes)
        assert copies == (BLOCK_SCALED in name), name
        assert any(o.startswith("UGETNEXTWORKID") for o in code.opcodes), name


def test_grouped_scaled_sm100_kernels_are_all_formats(machine_code):
    """One machine code for all types, and for both uses of scales of blocks of K."""
    found = {n: c for n, c in machine_code.items() if any(s in n for s in SCALED_GROUPED_SM100)}
    table = [k for k in runtime.scaled_grouped_kernels() if k.arch == "sm100"]
    codes = {(k.kind, k.scales.replace("rows", "blocks"), k.out_dtype) for k in table}
    assert len(found) == len(codes) > 0
    pairs = 0
    for name, code in found.items():
        pair = ".2CTA" if "UTCQMMA.2CTA" in code.opcodes else ""
        pairs += bool(pair)
        assert f"UTCQMMA{pair}" in code.opcodes, name
        block_scaled = BLOCK_SCALED in name
        assert (f"UTCOMMA{pair}.4X" in code.opcodes) == block_scaled, name
        assert any(o.startswith(f"UTCCP.T.S{pair}") for o in code.opcodes) == block_scaled, name
        loads = {o for o in code.opcodes if o.startswith("UTMALDG")}
        assert loads, name
        assert all(o.endswith(".2CTA") == bool(pair) for o in loads), (name, loads)
        assert any(o.startswith("UTMASTG") for o in code.opcodes), name
    assert pairs == sum(kind == "m-grouped" for kind, *_ in codes)


def test_sm100_kernels_use_tcgen05_and_cluster_launch_control(machine_code):
    kernels = _with_arch(machine_code, "sm_100")
    assert kernels
    for name, code in kernels.items():
        assert any(o.startswith("UTCHMMA") for o in code.opcodes), name
        assert any(o.startswith("UGETNEXTWORKID") for o in code.opcodes), name


def test_sm100_two_cta_kernels_use_two_cta_instructions(machine_code):
    pairs = {n: c for n, c in _with_arch(machine_code, "sm_100").items() if TWO_CTA_MMA in n}
    assert len(pairs) == len(_cutlass_codes(k for k in runtime.kernels() if k.schedule == "2sm"))
    for name, code in pairs.items():
        assert "UTCHMMA.2CTA" in code.opcodes, name
        loads = {o for o in code.opcodes if o.startswith("UTMALDG")}
        assert loads, name
        assert all(o.endswith(".2CTA") for o in loads), (name, loads)


def test_cluster_k_kernels_store_vectors(machine_code):
    """Four results an instruction, of 16 or of 32 bits."""
    kernels = [code for name, code in machine_code.items() if CLUSTER_K in name]
    table = [k for k in runtime.kernels() if k.cluster_k]
    assert len(kernels) == len(table) > 0
    stores = [{o for o in code.opcodes if o.startswith("STG")} for code in kernels]
    wide = sum(k.out_dtype == "float32" for k in table)
    assert stores.count({"STG.E.128"}) == wide
    assert stores.count({"STG.E.64"}) == len(table) - wide


def test_grouped_sm90_kernels_keep_rows_of_lhs_in_l2(machine_code):
    """Those whose tiles along N read the rows again; dW has no such operand."""
    found = [name for name, code in machine_code.items() if code.evicts_last]
    for part, table in (
        (GROUPED, runtime.grouped_kernels()),
        (SCALED_GROUPED, runtime.scaled_grouped_kernels()),
    ):
        rows = [k for k in table if (k.arch, k.kind) == ("sm90", "m-grouped")]
        assert len([name for name in found if part in name]) == len(rows) > 0
    assert all(GROUPED in name or SCALED_GROUPED in name for name in found)


def test_handwritten_kernels_know_shared_memory_for_what_it_is(machine_code):
    """A store whose address might be anywhere is slower, and ST instead of STS."""
    kernels = {n: c for n, c in machine_code.items() if CLUSTER_K in n or GROUPED in n}
    assert kernels
    for name, code in kernels.items():
        assert any(o.startswith("STS") for o in code.opcodes), name
        assert not any(o == "ST" or o.startswith("ST.") for o in code.opcodes), name


@pytest.mark.parametrize(
    ("arch", "code", "mma"), [("sm90", "sm_90", "HGMMA"), ("sm100", "sm_100", "UTCHMMA")]
)
def test_grouped_kernels_use_the_tensor_cores_of_their_architecture(machine_code, arch, code, mma):
    kernels = [c for n, c in machine_code.items() if GROUPED in n and c.arch.startswith(code)]
    assert len(kernels) == sum(k.arch == arch for k in runtime.grouped_kernels()) > 0
    for kernel in kernels:
        assert any(o.startswith(mma) for o in kernel.opcodes)
        assert any(o.startswith("UTMALDG") for o in kernel.opcodes)
        assert any(o.startswith("UTMASTG") for o in kernel.opcodes)


def test_grouped_two_cta_kernels_use_two_cta_instructions_only(machine_code):
    pairs = [c for n, c in machine_code.items() if GROUPED in n and "UTCHMMA.2CTA" in c.opcodes]
    table = runtime.grouped_kernels()
    assert len(pairs) == sum(k.arch == "sm100" and k.cluster_m == 2 for k in table) > 0
    for kernel in pairs:
        assert "UTCHMMA" not in kernel.opcodes
        loads = {o for o in kernel.opcodes if o.startswith("UTMALDG")}
        assert loads
        assert all(o.endswith(".2CTA") for o in loads), loads


def _derivative(z: Any, gate: Any, up: Any, w: Any) -> Any:
    gate, up = (x.astype(jnp.float32) for x in (gate, up))
    bars = jax.vjp(lambda g, u: jax.nn.silu(g) * u * w, gate, up)[1](z)
    return (*bars, z * jax.nn.silu(gate) * up)


LINKED: dict[str, Any] = {
    "gate and up": (
        "gated",
        lambda g, u, w: (jax.nn.silu(g) * u * w, g, u),
        ["float32", "column"],
    ),
    "derivative of gate and up": ("halves", _derivative, ["bfloat16", "bfloat16", "column"]),
    "activation and its argument": ("", lambda z, w: (jax.nn.gelu(z) * w, z), ["column"]),
}


@requires_linker
@pytest.mark.parametrize("name", LINKED)
def test_grouped_kernels_have_registers_for_an_epilogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Those of a layer of experts, in the tile whose sums take most registers."""
    monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
    form, function, kinds = LINKED[name]
    column, matrix = jax.ShapeDtypeStruct((64, 1), "float32"), (64, 128)
    operands = [column if k == "column" else jax.ShapeDtypeStruct(matrix, k) for k in kinds]
    program = trace_epilogue(function, (64, 128), operands).program
    types = ["bfloat16"] * len(program.results)
    if form == "halves":
        program = dataclasses.replace(program, summed=(len(types) - 1,))
        types[-1] = "float32"
    if form == "gated":
        hook: GroupedHook = GatedGroupedHook(program, tuple(types))
    else:
        hook = GroupedHook(program, tuple(types), halves=form == "halves")
    kernels = [k for k in runtime.grouped_kernels() if hook.symbol(k.name) in linkable_kernels()]
    kernels = [k for k in kernels if k.tile_n > 128 and k.arch == "sm90"]
    if not kernels:
        pytest.skip("no such kernel was built")
    assert _stack_of(hook.symbol(kernels[0].name), hook, tmp_path) == [("0", "0")]
    # Short of registers, the compiler would have every MMA wait for the one before it.
    code = _cuobjdump("-sass", file=tmp_path / "linked.cubin")
    assert code.count("HGMMA") >= 4 * code.count("WARPGROUP.ARRIVE") > 0


@requires_linker
@pytest.mark.parametrize("rows", [32, 256])
def test_no_grouped_sm100_kernel_spills_with_an_epilogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
    table = [k for k in runtime.grouped_kernels() if (k.arch, k.tile_n) == ("sm100", rows)]
    table = [k for k in table if k.name in linkable_kernels() and k.out_dtype == "bfloat16"]
    if not table:
        pytest.skip("no such kernel was built")
    kinds = ((64, 1), "float32"), ((64, 128), "bfloat16"), ((64, 128), "float32")
    program = trace_epilogue(
        lambda z, w, r, q: (jax.nn.gelu(z) * w + r, z + q),
        (64, 128),
        [jax.ShapeDtypeStruct(*kind) for kind in kinds],
    ).program
    hook = grouped_hook(program, ("bfloat16", "bfloat16"), "sm100")
    assert _stack_of(table[0].name, hook, tmp_path) == [("0", "0")]


@requires_linker
def test_no_scaled_sm100_kernel_spills_with_an_epilogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row, a matrix that is moved, two results and a sum; of one kernel for each tile."""
    monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
    table = [k for k in runtime.scaled_kernels() if k.name in linkable_kernels()]
    tiles = {(k.scales, k.tile_n, k.schedule): k for k in table if k.arch == "sm100"}
    assert len(tiles) == 4
    kinds = ((128,), "bfloat16"), ((64, 128), "bfloat16")
    program = trace_epilogue(
        lambda z, b, r: (jax.nn.gelu(z + b) + r, z, z * z),
        (64, 128),
        [jax.ShapeDtypeStruct(*kind) for kind in kinds],
    ).program
    program = dataclasses.replace(program, summed=(2,))
    for kernel in tiles.values():
        hook = Hook(
            program,
            ("bfloat16", "bfloat16", "float32"),
            "sm100",
            pairs_along_m(kernel),
            staging_of(kernel, 128),
        )
        assert _stack_of(hook.symbol(kernel.name), hook, tmp_path) == [("0", "0")], kernel.name


@requires_linker
def test_no_grouped_scaled_kernel_spills_with_an_epilogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activation and its argument, with a bias of every matrix; a gradient.

    SM100's that promote, whose sums are in registers all along, spill some in the epilogue.
    """
    monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
    table = [k for k in runtime.scaled_grouped_kernels() if k.name in linkable_kernels()]
    codes = {(k.arch, k.scales, k.tile_n): k for k in table}
    assert len(codes) == 7
    codes = {(k.arch, k.scales): k for k in codes.values()}
    del codes["sm100", "blocks"], codes["sm100", "rows"]
    bias, matrix = ((64, 128), "float32"), ((64, 128), "bfloat16")
    functions: list[tuple[Any, list[Any], list[tuple[int, ...]]]] = [
        (lambda z, b: (jax.nn.gelu(z + b), z), [bias], [(MATRICES, 1)]),
        (
            lambda z, h, w: z * jnp.tanh(h.astype(z.dtype)) * w,
            [matrix, bias],
            [(0, 1), (MATRICES,)],
        ),
    ]
    for function, kinds, axes in functions:
        types = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
        program = trace_epilogue(function, (64, 128), types).program
        found = zip(program.operands, axes, strict=True)
        operands = tuple(Operand(x.dtype, along) for x, along in found)
        program = dataclasses.replace(program, operands=operands)
        for kernel in codes.values():
            hook = GroupedRowHook(program, ("bfloat16",) * len(program.results), kernel.arch)
            assert _stack_of(kernel.name, hook, tmp_path) == [("0", "0")], kernel.name


@requires_linker
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_second_kernel_of_split_k_does_not_spill_with_an_epilogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str, dtype: str
) -> None:
    monkeypatch.setenv("BWGEMM_LINK_CACHE", "off")
    if split_k_symbol(arch, dtype) not in linkable_kernels():
        pytest.skip("no kernels of this architecture were built")
    kinds = (128,), (64, 128)
    program = trace_epilogue(
        lambda z, b, r: (jax.nn.gelu(z + b) + r, z),
        (64, 128),
        [jax.ShapeDtypeStruct(s, dtype) for s in kinds],
    ).program
    hook = SplitKHook(program, (dtype, dtype), arch)
    assert _stack_of(hook.symbol(""), hook, tmp_path) == [("0", "0")]


def _stack_of(entry: str, hook: Any, folder: Path) -> list[tuple[str, str]]:
    """Bytes of stack and local memory of every kernel of what is linked."""
    cubin = folder / "linked.cubin"
    cubin.write_bytes(base64.b64decode(linking.linked_kernel(entry, hook, ptx=False).code))
    return re.findall(r"STACK:(\d+).*LOCAL:(\d+)", _cuobjdump("-res-usage", file=cubin))
