"""The function that is linked into a kernel: its C++, from a program.

A kernel calls it for two neighbouring results: see ``cc/dense/sm90/linked.h``.
"""

from __future__ import annotations

import dataclasses

from jax_bwgemm.epilogue.program import FLOATS, Program
from jax_bwgemm.epilogue.simplify import simplified
from jax_bwgemm.epilogue.source import (
    C_TYPES,
    load,
    prelude,
    program_source,
    store,
)

# Those of cc/dense/epilogue_arguments.h.
MAX_OPERANDS = 8
MAX_RESULTS = 4  # the first is D
# Types of arrays that a call may have.
OPERAND_TYPES = ("float32", "bfloat16", "float16", "int32")
_ARGUMENTS = f"""
struct bw_arguments {{
  const void* operands[{MAX_OPERANDS}];
  void* results[{MAX_RESULTS - 1}];
  int m, n;
}};
"""


@dataclasses.dataclass(frozen=True)
class Hook:
    """A program as a kernel calls it.

    Attributes:
        program: Of rank 2; its first result is D, of float32, which the kernel rounds.
        result_types: Types of all results in memory.
        swapped: Whether the kernel's operands are swapped: its pairs then lie along M.
    """

    program: Program
    result_types: tuple[str, ...]
    swapped: bool

    @property
    def operand_roles(self) -> str:
        """Type and dimensions of every operand, in words: ``"bfloat16:n float32:mn"``."""
        letters = ("".join("mn"[axis] for axis in x.axes) for x in self.program.operands)
        types = (x.dtype for x in self.program.operands)
        return " ".join(f"{t}:{a}" for t, a in zip(types, letters, strict=True))

    @property
    def result_roles(self) -> str:
        """Types of the results besides D, in words."""
        return " ".join(self.result_types[1:])

    def source(self) -> str:
        """The C++ of the function."""
        approximate = all(t != "float32" for t in self.result_types if t in FLOATS)
        define = "#define BW_APPROXIMATE\n" if approximate else ""
        program = program_source(simplified(self.program))
        return f"{define}{prelude()}{_ARGUMENTS}{program}{self._function()}"

    def _function(self) -> str:
        along = 0 if self.swapped else 1
        lines = [
            # Inside of D: what lies beyond is not stored, but must not be read either.
            f"  const int m0 = min(m, a->m - 1), n0 = min(n, a->n - {1 if self.swapped else 2});",
            "  const int m1 = min(m + 1, a->m - 1);"
            if self.swapped
            else "  const int n1 = n0 + 1;",
            "  const long long width = a->n;",
        ]
        for i, operand in enumerate(self.program.operands):
            lines += self._loads(i, operand.dtype, operand.axes, along)
        names = len(self.program.results)
        for pair, acc in ((0, "x"), (1, "y")):
            for i, value in enumerate(self.program.results):
                lines.append(f"  {C_TYPES[self.program.dtype(value)]} r{i}_{pair};")
            place = ["m0", "n0"] if pair == 0 else (["m1", "n0"] if self.swapped else ["m0", "n1"])
            arguments = [acc, *(f"x{i}_{pair}" for i in range(len(self.program.operands)))]
            arguments += [*place, *(f"r{i}_{pair}" for i in range(names))]
            lines.append(f"  bw_program({', '.join(arguments)});")
        for i in range(1, names):
            lines += self._stores(i)
        lines.append("  return make_float2(r0_0, r0_1);")
        head = (
            'extern "C" __device__ float2 bwgemm_epilogue(float x, float y, int m, int n, '
            "const bw_arguments* a) {"
        )
        return "\n".join([head, *lines, "}", ""])

    def _loads(self, i: int, dtype: str, axes: tuple[int, ...], along: int) -> list[str]:
        """Statements that load an operand's values at both places."""
        pointer, kind = f"a->operands[{i}]", C_TYPES[dtype]

        def index(m: str, n: str) -> str:
            return {(): "0", (0,): m, (1,): n, (0, 1): f"{m} * width + {n}"}[axes]

        first = index("m0", "n0")
        if along not in axes:
            one = load(dtype, pointer, first)
            return [f"  const {kind} x{i}_0 = {one}, x{i}_1 = x{i}_0;"]
        if self.swapped:
            two = [load(dtype, pointer, at) for at in (first, index("m1", "n0"))]
            return [f"  const {kind} x{i}_0 = {two[0]}, x{i}_1 = {two[1]};"]
        # Both at once: n0 and the width are even, and arrays begin at multiples of 16 bytes.
        if dtype in ("bfloat16", "float16"):
            return [
                f"  const unsigned w{i} = __ldg((const unsigned*){pointer} + ({first}) / 2);",
                f"  const float x{i}_0 = bw_from_{dtype}((unsigned short)w{i});",
                f"  const float x{i}_1 = bw_from_{dtype}((unsigned short)(w{i} >> 16));",
            ]
        pair = {"float32": "float2", "int32": "int2"}[dtype]
        return [
            f"  const {pair} w{i} = __ldg((const {pair}*){pointer} + ({first}) / 2);",
            f"  const {kind} x{i}_0 = w{i}.x, x{i}_1 = w{i}.y;",
        ]

    def _stores(self, i: int) -> list[str]:
        """Statements that store a result besides D at both places."""
        pointer, dtype = f"a->results[{i - 1}]", self.result_types[i]
        one = store(dtype, pointer, "m * width + n", f"r{i}_0")
        if self.swapped:
            two = store(dtype, pointer, "(m + 1) * width + n", f"r{i}_1")
            return [
                f"  if (n < a->n && m < a->m) {{ {one} }}",
                f"  if (n < a->n && m + 1 < a->m) {{ {two} }}",
            ]
        if dtype in ("bfloat16", "float16"):
            packed = f"(unsigned)bw_to_{dtype}(r{i}_0) | (unsigned)bw_to_{dtype}(r{i}_1) << 16"
            both = f"((unsigned*){pointer})[(m * width + n) / 2] = {packed};"
        elif dtype in ("float32", "int32"):
            pair = {"float32": "float2", "int32": "int2"}[dtype]
            both = f"(({pair}*){pointer})[(m * width + n) / 2] = make_{pair}(r{i}_0, r{i}_1);"
        else:
            both = f"{one} {store(dtype, pointer, 'm * width + n + 1', f'r{i}_1')}"
        return [f"  if (m < a->m && n < a->n) {{ {both} }}"]
