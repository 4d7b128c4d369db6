"""`Program` -> C++.

The text defines ``bw_program``, which computes all results of a program at one position:

    void bw_program(float accumulator, T0 x0, ..., int i0, ..., R0& r0, ...)

of the operands' values and the position's coordinates. Values of bfloat16 and float16 are floats.
"""

from __future__ import annotations

import functools
import importlib.resources
import struct
from typing import Any

from jax_bwgemm.epilogue.primitives import KINDS, PRIMITIVES
from jax_bwgemm.epilogue.program import Program, Step

C_TYPES = {
    "float32": "float",
    "bfloat16": "float",
    "float16": "float",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "bool": "bool",
}


@functools.cache
def prelude() -> str:
    """The functions that the text calls."""
    return importlib.resources.files(__package__).joinpath("prelude.h").read_text("utf-8")


def program_source(program: Program) -> str:
    """The definition of ``bw_program``, without `prelude`."""
    operands = [f"{C_TYPES[x.dtype]} x{i}" for i, x in enumerate(program.operands)]
    position = [f"int i{axis}" for axis in range(program.rank)]
    results = [f"{C_TYPES[program.dtype(x)]}& r{i}" for i, x in enumerate(program.results)]
    first = 1 + len(program.operands)

    def name(value: int) -> str:
        if value == 0:
            return "accumulator"
        return f"x{value - 1}" if value < first else f"v{value - first}"

    lines = []
    for number, step in enumerate(program.steps, first):
        of = [program.dtype(x) for x in step.inputs]
        code = _rounded(step, _code(step, [name(x) for x in step.inputs], of))
        lines.append(f"  const {C_TYPES[step.dtype]} {name(number)} = {code};")
    lines += [f"  r{i} = {name(x)};" for i, x in enumerate(program.results)]
    arguments = ", ".join(["float accumulator", *operands, *position, *results])
    return "\n".join([f"BW_FUNCTION void bw_program({arguments}) {{", *lines, "}", ""])


def load(dtype: str, pointer: str, index: str) -> str:
    """The value of an element in memory, as an expression.

    Args:
        dtype: The array's type.
        pointer: Its address, a ``const void*``.
        index: The element.
    """
    element = f"BW_LOAD((const {memory_type(dtype)}*){pointer} + ({index}))"
    return f"bw_from_{dtype}({element})" if dtype in ("bfloat16", "float16") else element


def store(dtype: str, pointer: str, index: str, value: str) -> str:
    """The statement that writes a value to an element in memory."""
    value = f"bw_to_{dtype}({value})" if dtype in ("bfloat16", "float16") else value
    return f"(({memory_type(dtype)}*){pointer})[{index}] = {value};"


def memory_type(dtype: str) -> str:
    """C++ type of an element in memory."""
    return "unsigned short" if dtype in ("bfloat16", "float16") else C_TYPES[dtype]


def _rounded(step: Step, code: str) -> str:
    """The expression, rounded to its type where that is narrower than the one it is computed in."""
    narrow = step.dtype in ("bfloat16", "float16") and step.op not in ("literal", "select_n")
    return f"bw_round_{step.dtype}({code})" if narrow else code


def _code(step: Step, names: list[str], of: list[str]) -> str:
    """The expression of a step.

    Args:
        step: The step.
        names: Its operands.
        of: Their types.
    """
    if step.op in _SPECIAL:
        return _SPECIAL[step.op](step, names, of)
    return PRIMITIVES[step.op].code.format(*names)


def _literal(step: Step, names: list[str], of: list[str]) -> str:
    del names, of
    value: Any = step.param("value")
    if KINDS[step.dtype] == "f":
        (number,) = struct.unpack("<f", bytes.fromhex(value))
        (bits,) = struct.unpack("<I", bytes.fromhex(value))
        return f"bw_from_bits({bits:#010x}u) /* {number!r} */"
    if step.dtype == "bool":
        return "true" if value else "false"
    if step.dtype == "int32":  # -2147483648 would be the negative of a number that is no int
        return f"(int){value & 0xFFFFFFFF:#x}u"
    return f"({C_TYPES[step.dtype]}){value}{'u' if step.dtype == 'uint32' else ''}"


def _iota(step: Step, names: list[str], of: list[str]) -> str:
    del names, of
    return f"({C_TYPES[step.dtype]})i{step.param('axis')}"


def _convert(step: Step, names: list[str], of: list[str]) -> str:
    to = KINDS[step.dtype]
    if to == "b":
        return f"({names[0]} != 0)"
    if KINDS[of[0]] == "f" and to in "iu":
        return f"bw_to_integer<{C_TYPES[step.dtype]}>({names[0]})"
    return f"({C_TYPES[step.dtype]}){names[0]}"


def _bitcast(step: Step, names: list[str], of: list[str]) -> str:
    bits = f"bw_to_bits({names[0]})" if of[0] == "float32" else f"(unsigned){names[0]}"
    return f"bw_from_bits({bits})" if step.dtype == "float32" else f"({C_TYPES[step.dtype]}){bits}"


def _integer_pow(step: Step, names: list[str], of: list[str]) -> str:
    del of
    y: Any = step.param("y")
    if y == 0:
        return f"({C_TYPES[step.dtype]})1"
    power = f"bw_power<{abs(y)}>({names[0]})"
    return power if y > 0 else f"1.0f / {power}"


def _reduce_precision(step: Step, names: list[str], of: list[str]) -> str:
    del of
    to = step.param("to")
    return names[0] if to == "float32" else f"bw_round_{to}({names[0]})"


def _round(step: Step, names: list[str], of: list[str]) -> str:
    del of
    return f"{'rintf' if step.param('even') else 'roundf'}({names[0]})"


def _one_plus_tanh(step: Step, names: list[str], of: list[str]) -> str:
    del step, of
    return f"bw_one_plus_tanh({names[0]})"


def _logistic_of_log2(step: Step, names: list[str], of: list[str]) -> str:
    del step, of
    return f"bw_logistic_of_log2({names[0]})"


def _select(step: Step, names: list[str], of: list[str]) -> str:
    which, *cases = names
    if of[0] == "bool":
        return f"({which} ? {cases[1]} : {cases[0]})" if len(cases) > 1 else cases[0]
    code = cases[-1]
    for i in range(len(cases) - 2, -1, -1):
        code = f"({which} == {i} ? {cases[i]} : {code})"
    return code


_SPECIAL = {
    "literal": _literal,
    "iota": _iota,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "integer_pow": _integer_pow,
    "reduce_precision": _reduce_precision,
    "round": _round,
    "select_n": _select,
    "one_plus_tanh": _one_plus_tanh,
    "logistic_of_log2": _logistic_of_log2,
}
