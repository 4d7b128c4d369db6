"""The functions that are linked into the quantizing kernel: their C++, from programs.

The kernel calls one for eight neighbouring elements, and asks the other what it is to do: see
``cc/scaled/quantize/linked.h``.
"""

from __future__ import annotations

import dataclasses

from jax_bwgemm.epilogue.algebra import in_few_operations
from jax_bwgemm.epilogue.hook import ARGUMENTS, OPERAND_BYTES
from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.epilogue.source import C_TYPES, load, prelude, program_source

# Elements that the function computes at once.
ELEMENTS = 8
# Columns of a tile: kTile of cc/scaled/quantize/tile.h.
TILE = 128
_WORDS = "xyzw"


@dataclasses.dataclass(frozen=True)
class Window:
    """Columns of a row-major array that a part reads.

    Attributes:
        array: Which operand of the call.
        pitch: Elements from row to row.
        offset: Of the first column.
    """

    array: int
    pitch: int
    offset: int

    def aligned(self, dtype: str) -> bool:
        """Whether eight elements can be read at once."""
        return all(x * OPERAND_BYTES[dtype] % 16 == 0 for x in (self.pitch, self.offset))


@dataclasses.dataclass(frozen=True)
class SourcePart:
    """Some columns of what is quantized.

    Attributes:
        program: What is computed there, of rank 2, with one result. It does not read the
            accumulator.
        windows: Of every operand of the program.
        columns: How many.
    """

    program: Program
    windows: tuple[Window, ...]
    columns: int


@dataclasses.dataclass(frozen=True)
class SourceHook:
    """A function of arrays as the quantizing kernel calls it.

    Attributes:
        parts: Its columns, side by side.
        dtype: Type of its result, of 16 bits.
        arch: The kernel's architecture.
        e5m2: Whether values are e5m2fn.
        transposed: Whether the transposed copy is wanted.
        stochastic: Whether values are rounded by random bits.
    """

    parts: tuple[SourcePart, ...]
    dtype: str
    arch: str
    e5m2: bool
    transposed: bool
    stochastic: bool

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        # No name is the beginning of another: the linker keeps all that begin so.
        return f"{self.arch}_quantize_{'random_' if self.stochastic else ''}{self.dtype}"

    def source(self) -> str:
        """The C++ of the functions."""
        text = [f"#define BW_APPROXIMATE\n{prelude()}{ARGUMENTS}"]
        text += [self._part(i, part) for i, part in enumerate(self.parts)]
        return "\n".join([*text, self._function(), self._plan(), ""])

    @property
    def _turns(self) -> int:
        """Parts whose tiles take turns: all, if they are equally many whole tiles."""
        first, *rest = [part.columns for part in self.parts]
        equal = first % TILE == 0 and all(columns == first for columns in rest)
        return len(self.parts) if equal else 1

    def _plan(self) -> str:
        answers = int(self.e5m2), int(self.transposed), self._turns
        text = "".join(f"i == {i} ? {x} : " for i, x in enumerate(answers))
        return f'extern "C" __device__ int bwgemm_quantize_plan(int i) {{ return {text}0; }}'

    def _function(self) -> str:
        lines = [
            'extern "C" __device__ void bwgemm_quantize_source(int m, int n, '
            "const bw_arguments* a, unsigned* words) {"
        ]
        first = 0
        for i, part in enumerate(self.parts):
            end = first + part.columns
            lines.append(f"  if (n < {end}) return bw_part{i}::compute(m, n - {first}, a, words);")
            first = end
        return "\n".join([*lines, "}"])

    def _part(self, number: int, part: SourcePart) -> str:
        program = in_few_operations(part.program)
        lines = []
        for i, (operand, window) in enumerate(zip(program.operands, part.windows, strict=True)):
            lines += _loads(i, operand.dtype, operand.axes, window)
        kind = C_TYPES[program.dtype(program.results[0])]
        for j in range(ELEMENTS):
            values = [
                f"x{i}_{j if 1 in operand.axes else 0}"
                for i, operand in enumerate(program.operands)
            ]
            arguments = ", ".join(["0.0f", *values, "m", f"n + {j}", f"r{j}"])
            lines += [f"  {kind} r{j};", f"  bw_program({arguments});"]
        for w in range(ELEMENTS // 2):
            lines.append(f"  words[{w}] = bw_pack_{self.dtype}(r{2 * w}, r{2 * w + 1});")
        head = "BW_FUNCTION void compute(int m, int n, const bw_arguments* a, unsigned* words) {"
        body = "\n".join([head, *lines, "}"])
        return f"namespace bw_part{number} {{\n{program_source(program)}{body}\n}}"


def _loads(i: int, dtype: str, axes: tuple[int, ...], window: Window) -> list[str]:
    """Statements that load an operand's values at eight columns, or the one that all have."""
    pointer, kind = f"a->operands[{window.array}]", C_TYPES[dtype]
    row = f"(long long)m * {window.pitch}" if 0 in axes else "0ll"
    if 1 not in axes:
        return [f"  const {kind} x{i}_0 = {load(dtype, pointer, row)};"]
    memory = "unsigned short" if OPERAND_BYTES[dtype] == 2 else kind
    lines = [f"  const {memory}* p{i} = (const {memory}*){pointer} + {row} + {window.offset} + n;"]
    words = ELEMENTS * OPERAND_BYTES[dtype] // 16
    lines += [f"  const uint4 w{i}_{v} = __ldg((const uint4*)p{i} + {v});" for v in range(words)]
    for j in range(ELEMENTS):
        word = j * OPERAND_BYTES[dtype] // 4
        bits = f"w{i}_{word // 4}.{_WORDS[word % 4]}"
        if dtype == "bfloat16":
            value = f"bw_from_bits({f'{bits} & 0xffff0000u' if j % 2 else f'{bits} << 16'})"
        elif dtype == "float16":
            value = f"bw_from_float16((unsigned short)({bits}{' >> 16' if j % 2 else ''}))"
        else:
            value = f"bw_from_bits({bits})" if dtype == "float32" else f"(int){bits}"
        lines.append(f"  const {kind} x{i}_{j} = {value};")
    return lines
