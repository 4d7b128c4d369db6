"""The functions that are linked into a kernel of two products: ``cc/dense/sm90/gated.h``."""

from __future__ import annotations

import dataclasses

from jax_bwgemm.epilogue.hook import Hook

_FUNCTION = (
    'extern "C" __device__ unsigned bwgemm_gated_epilogue(float x, float y, float u, float v, '
    "int m, int n, const bw_arguments* a, int result) {"
)


@dataclasses.dataclass(frozen=True)
class GatedHook(Hook):
    """As `Hook`; the program's first operand is the second product, which the kernel hands over.

    All results have D's type: the kernel stores them.
    """

    arch: str = "sm90"
    swapped: bool = True

    @property
    def operand_roles(self) -> str:
        return " ".join(super().operand_roles.split(" ")[1:])

    def _function(self) -> str:
        lines = [*self._places(), "  const float x0_0 = u, x0_1 = v;"]
        for i, operand in enumerate(self.program.operands[1:], 1):
            lines += self._loads(i, operand.dtype, operand.axes, along=0)
        lines += self._calls()
        for i in range(len(self.program.results)):
            lines.append(f"  if (result == {i}) return {self._packed(i)};")
        return "\n".join([_FUNCTION, *lines, "  return 0;", "}", ""])

    def _plan(self) -> str:
        count = len(self.program.results)
        return f'extern "C" __device__ int bwgemm_gated_results() {{ return {count}; }}\n'

    def _pointer(self, i: int) -> str:
        return super()._pointer(i - 1)
