"""The functions that are linked into a kernel: their C++, from a program.

A kernel calls one for two neighbouring results, and asks the other what it is to move for it: see
``cc/dense/linked.h``.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from jax_bwgemm.epilogue.algebra import in_few_operations
from jax_bwgemm.epilogue.program import FLOATS, MATRICES, Program
from jax_bwgemm.epilogue.simplify import simplified
from jax_bwgemm.epilogue.source import (
    C_TYPES,
    load,
    prelude,
    program_source,
    store,
)
from jax_bwgemm.product.kernels import Kernel

# Those of cc/core/epilogue_arguments.h and cc/core/epilogue_plan.h.
MAX_OPERANDS = 8
MAX_RESULTS = 4  # the first is D
MAX_ROWS, MAX_SUMS, MAX_STAGED = 4, 2, 2
# kEpilogueVersion of cc/call/product_call.h, which says when to raise it.
VERSION = 6
# Types of arrays that a call may have, and the bytes of an element.
OPERAND_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
OPERAND_TYPES = tuple(OPERAND_BYTES)
_PAIRS = {"float32": "float2", "int32": "int2"}
ARGUMENTS = f"""
struct bw_arguments {{
  const void* operands[{MAX_OPERANDS}];
  void* results[{MAX_RESULTS - 1}];
  int m, n;
}};
"""
_FUNCTION = (
    'extern "C" __device__ float2 bwgemm_epilogue(float x, float y, int m, int n, int batch, '
    "const bw_arguments* a, const unsigned* staged, unsigned* stored, "
    "const unsigned char* rows, int column, float2* summed) {"
)
# kRowOfMatrix of cc/core/epilogue_plan.h.
_ROW_OF_MATRIX = 1 << 16
# Where an operand's element lies, by the dimensions along which the operand varies.
_INDICES = {(): "0", (0,): "{m}", (1,): "{n}", (0, 1): "{m} * width + {n}"}
_INDICES |= {
    (MATRICES,): "{matrix}",
    (MATRICES, 0): "{matrix} * height + {m}",
    (MATRICES, 1): "{matrix} * width + {n}",
    (MATRICES, 0, 1): "({matrix} * height + {m}) * width + {n}",
}


@dataclasses.dataclass(frozen=True)
class Staging:
    """What a kernel without swapped operands can move for an epilogue.

    Attributes:
        tile_n: Columns of a tile.
        row_bytes: Shared memory for operands that are rows; SM100's and scaled kernels read them in
            place.
        matrices: How many it loads.
    """

    tile_n: int
    row_bytes: int
    matrices: int = 1


def staging_of(kernel: Kernel, n: int) -> Staging | None:
    """What a kernel moves for an epilogue of a result with so many columns; None: nothing."""
    if kernel.swap_ab:
        return None
    if kernel.arch == "sm100" or kernel.contraction == "scaled":
        return Staging(kernel.tile_n, 0)
    if n < 64:  # it copies 64 columns of a row at a time
        return None
    # kLoadsTwo and kRowBytes of cc/dense/sm90/config.h.
    if kernel.schedule == "pingpong":
        return Staging(kernel.tile_n, 4 * kernel.tile_n, matrices=2)
    return Staging(kernel.tile_n, 2 * kernel.tile_n)


def pairs_along_m(kernel: Kernel) -> bool:
    """Whether the two elements that a kernel calls the function for are in two rows.

    They are with swapped operands, whose accumulators are transposed, except in cluster-K kernels,
    which add the parts along a row.
    """
    return kernel.swap_ab and not kernel.cluster_k


def partial_sum_rows(kernel: Kernel, m: int) -> int:
    """How many partial sums of each column a kernel leaves of a result that is summed over rows."""
    warpgroups = 2 if kernel.schedule in ("cooperative", "2sm") else 1  # PartialSumRows
    return -(-m // kernel.tile_m) * warpgroups * 4


@dataclasses.dataclass(frozen=True)
class Hook:
    """A program as a kernel calls it.

    Attributes:
        program: Of `as_matrix`; its first result is D, of float32, which the kernel rounds.
        result_types: Types of all results in memory; partial sums are float32.
        arch: The kernel's architecture.
        swapped: Whether pairs lie along M: see `pairs_along_m`. The kernel then sums nothing.
        staging: What the kernel moves for it.
    """

    program: Program
    result_types: tuple[str, ...]
    arch: str
    swapped: bool
    staging: Staging | None = None

    products: ClassVar[int] = 1  # that the kernel computes: see `Fused`
    # Whether rows may belong to no matrix: its number is then negative.
    _may_have_no_matrix: ClassVar[bool] = False

    def sums_shape(self, kernel: Kernel, m: int, n: int) -> tuple[int, int]:
        """Shape of the partial sums that a kernel leaves of a summed result, for each matrix.

        They are still to be added along the first dimension.
        """
        return partial_sum_rows(kernel, m), n

    @property
    def form(self) -> str:
        """epilogue_form of the call."""
        return ""

    def symbol(self, kernel: str) -> str:
        """Name of the kernel's entry that this is linked into."""
        return kernel

    @property
    def staged_operands(self) -> list[int]:
        """The operands that the kernel moves: the first matrices of D's type."""
        wanted = self.result_types[0], self.program.whole
        found = [i for i, x in enumerate(self.program.operands) if (x.dtype, x.axes) == wanted]
        return found[: self._most_staged_operands]

    @property
    def staged_results(self) -> list[int]:
        """The results besides D that the kernel moves: the first of D's type."""
        types = enumerate(self.result_types)
        found = [i for i, t in types if i > 0 and t == self.result_types[0]]
        return found[: self._most_staged_results]

    @property
    def _most_staged_operands(self) -> int:
        return 0 if self.staging is None else self.staging.matrices

    @property
    def _most_staged_results(self) -> int:
        return 0 if self.staging is None else 1

    @property
    def rows(self) -> list[int]:
        """Operands that the kernel has in shared memory."""
        if self.staging is None or self.staging.row_bytes == 0:
            return []
        found: list[int] = []
        left = self.staging.row_bytes
        for i, operand in enumerate(self.program.operands):
            size = self.staging.tile_n * OPERAND_BYTES[operand.dtype]
            if operand.axes in ((1,), (MATRICES, 1)) and size <= left and len(found) < MAX_ROWS:
                found.append(i)
                left -= size
        return found

    @property
    def operand_roles(self) -> str:
        """Type and dimensions of every operand, in words: ``"bfloat16:n bfloat16:mn:staged"``."""
        letters = ("".join("mng"[axis] for axis in x.axes) for x in self.program.operands)
        types = (x.dtype for x in self.program.operands)
        words = [f"{t}:{a}" for t, a in zip(types, letters, strict=True)]
        for i in self.staged_operands:
            words[i] += ":staged"
        return " ".join(words)

    @property
    def result_roles(self) -> str:
        """Types of the results besides D, in words."""
        words = [
            f"{t}:summed" if i in self.program.summed else t
            for i, t in enumerate(self.result_types)
        ]
        for i in self.staged_results:
            words[i] += ":staged"
        return " ".join(words[1:])

    def source(self) -> str:
        """The C++ of the functions."""
        whole = [t for i, t in enumerate(self.result_types) if i not in self.program.summed]
        approximate = all(t != "float32" for t in whole if t in FLOATS)
        define = "#define BW_APPROXIMATE\n" if approximate else ""
        program = in_few_operations(self.program) if approximate else simplified(self.program)
        program = program_source(program)
        return f"{define}{prelude()}{ARGUMENTS}{program}{self._function()}{self._plan()}"

    def _plan(self) -> str:
        rows = [
            i + 256 * OPERAND_BYTES[x.dtype] + _ROW_OF_MATRIX * (MATRICES in x.axes)
            for i, x in enumerate(self.program.operands)
            if i in self.rows
        ]
        rows += [-1] * (MAX_ROWS - len(rows))
        sums = [i - 1 for i in self.program.summed]
        sums += [-1] * (MAX_SUMS - len(sums))
        nothing = [-1] * MAX_STAGED
        loaded = [i + 1 - self.products for i in self.staged_operands]
        moved = [*loaded, *nothing], [*(i - 1 for i in self.staged_results), *nothing]
        f16 = 1 if self.result_types[0] == "float16" else -1
        answers = [moved[0][0], moved[1][0], *rows, *sums, moved[0][1], moved[1][1], f16]
        text = "".join(f"i == {i} ? {x} : " for i, x in enumerate(answers))
        return f'extern "C" __device__ int bwgemm_epilogue_plan(int i) {{ return {text}-1; }}\n'

    def _function(self) -> str:
        along = 0 if self.swapped else 1
        lines = self._places()
        at = 0
        for i, operand in enumerate(self.program.operands):
            if i in self.staged_operands:
                word = f"staged[{self.staged_operands.index(i)}]"
                lines += self._pair(i, operand.dtype, word)
            elif i in self.rows:
                lines += self._shared_row(i, operand.dtype, at)
                at += self.staging.tile_n * OPERAND_BYTES[operand.dtype] if self.staging else 0
            else:
                lines += self._loads(i, operand.dtype, operand.axes, along)
        lines += self._calls()
        for i in range(1, len(self.program.results)):
            if i in self.program.summed:
                lines.append(f"  *summed++ = make_float2(r{i}_0, r{i}_1);")
            elif i in self.staged_results:
                lines.append(f"  {self._stored(i)} = {self._packed(i)};")
            else:
                lines += self._stores(i)
        lines.append("  return make_float2(r0_0, r0_1);")
        return "\n".join([self._head, *lines, "}", ""])

    def _stored(self, i: int) -> str:
        """Where those of a result go that the kernel moves."""
        del i
        return "*stored"

    @property
    def _head(self) -> str:
        """The function's declaration."""
        return _FUNCTION

    @property
    def _matrix(self) -> str:
        """The number of the results' matrix."""
        return "batch"

    @property
    def _end(self) -> str:
        """What a row that is stored is below."""
        return "a->m"

    def _places(self) -> list[str]:
        """Statements for the positions, inside of D: what lies beyond it must not be read."""
        columns = 1 if self.swapped else 2
        return [
            f"  const int m0 = min(m, {self._end} - 1), n0 = min(n, a->n - {columns});",
            f"  const int m1 = min(m + 1, {self._end} - 1);"
            if self.swapped
            else "  const int n1 = n0 + 1;",
            "  const long long width = a->n, height = a->m;",
        ]

    def _calls(self) -> list[str]:
        """Statements that compute all results at both places."""
        lines = []
        names = range(len(self.program.results))
        for pair, acc in ((0, "x"), (1, "y")):
            for i, value in enumerate(self.program.results):
                lines.append(f"  {C_TYPES[self.program.dtype(value)]} r{i}_{pair};")
            place = ["m0", "n0"] if pair == 0 else (["m1", "n0"] if self.swapped else ["m0", "n1"])
            place += [self._matrix] * (self.program.rank - 2)
            arguments = [acc, *(f"x{i}_{pair}" for i in range(len(self.program.operands)))]
            arguments += [*place, *(f"r{i}_{pair}" for i in names)]
            lines.append(f"  bw_program({', '.join(arguments)});")
        return lines

    def _pointer(self, i: int) -> str:
        """Where operand i of the program is."""
        return f"a->operands[{i}]"

    def _shared_row(self, i: int, dtype: str, at: int) -> list[str]:
        """Statements that read a row at both columns, of which the first is even."""
        # In bytes: a thread's columns then differ by constants, which are part of the loads.
        place = f"(rows + {at} + column * {OPERAND_BYTES[dtype]})"
        if dtype not in _PAIRS:
            return self._pair(i, dtype, f"*(const unsigned*){place}")
        return [
            f"  const {_PAIRS[dtype]} w{i} = *(const {_PAIRS[dtype]}*){place};",
            f"  const {C_TYPES[dtype]} x{i}_0 = w{i}.x, x{i}_1 = w{i}.y;",
        ]

    def _loads(self, i: int, dtype: str, axes: tuple[int, ...], along: int) -> list[str]:
        """Statements that load an operand's values at both places."""
        pointer, kind = self._pointer(i), C_TYPES[dtype]

        def index(m: str, n: str) -> str:
            return _INDICES[axes].format(m=m, n=n, matrix=self._matrix)

        def of_matrix(read: str, nothing: str) -> str:
            if MATRICES in axes and self._may_have_no_matrix:
                return f"{self._matrix} < 0 ? {nothing} : {read}"
            return read

        first = index("m0", "n0")
        if along not in axes:
            one = of_matrix(load(dtype, pointer, first), f"({kind})0")
            return [f"  const {kind} x{i}_0 = {one}, x{i}_1 = x{i}_0;"]
        if self.swapped:
            two = [load(dtype, pointer, at) for at in (first, index("m1", "n0"))]
            return [f"  const {kind} x{i}_0 = {two[0]}, x{i}_1 = {two[1]};"]
        # Both at once: n0 and the width are even, and arrays begin at multiples of 16 bytes.
        pair = _PAIRS.get(dtype, "unsigned")
        both = f"BW_LOAD((const {pair}*){pointer} + ({first}) / 2)"
        if dtype not in _PAIRS:
            return self._pair(i, dtype, of_matrix(both, "0u"))
        both = of_matrix(both, f"make_{pair}(0, 0)")
        return [
            f"  const {pair} w{i} = {both};",
            f"  const {kind} x{i}_0 = w{i}.x, x{i}_1 = w{i}.y;",
        ]

    @staticmethod
    def _pair(i: int, dtype: str, word: str) -> list[str]:
        """Statements that make two values of 16 bits floats."""
        if dtype == "bfloat16":  # the upper half of a float
            low, high = f"bw_from_bits(w{i} << 16)", f"bw_from_bits(w{i} & 0xffff0000u)"
        else:
            low, high = (f"bw_from_{dtype}((unsigned short)(w{i}{s}))" for s in ("", " >> 16"))
        return [
            f"  const unsigned w{i} = {word};",
            f"  const float x{i}_0 = {low};",
            f"  const float x{i}_1 = {high};",
        ]

    def _packed(self, i: int) -> str:
        """Both values of a result of 16 bits, as one word."""
        dtype = self.result_types[i]
        return f"bw_pack_{dtype}(r{i}_0, r{i}_1)"

    def _stores(self, i: int) -> list[str]:
        """Statements that store a result besides D at both places."""
        pointer, dtype = f"a->results[{i - 1}]", self.result_types[i]
        whole = _INDICES[self.program.whole]
        first = whole.format(m="m", n="n", matrix=self._matrix)
        one = store(dtype, pointer, first, f"r{i}_0")
        if self.swapped:
            below = whole.format(m="(m + 1)", n="n", matrix=self._matrix)
            two = store(dtype, pointer, below, f"r{i}_1")
            return [
                f"  if (n < a->n && m < {self._end}) {{ {one} }}",
                f"  if (n < a->n && m + 1 < {self._end}) {{ {two} }}",
            ]
        if dtype in ("bfloat16", "float16"):
            both = f"((unsigned*){pointer})[({first}) / 2] = {self._packed(i)};"
        else:
            pair = _PAIRS[dtype]
            both = f"(({pair}*){pointer})[({first}) / 2] = make_{pair}(r{i}_0, r{i}_1);"
        return [f"  if (m < {self._end} && n < a->n) {{ {both} }}"]
