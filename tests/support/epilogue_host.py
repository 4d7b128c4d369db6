"""Epilogues by the host's compiler: their C++ is that of the device but for a few intrinsics."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from jax_bwgemm.epilogue.program import Program
from jax_bwgemm.epilogue.source import C_TYPES, load, prelude, program_source, store

COMPILER = shutil.which("g++") or shutil.which("clang++")
# Contraction would round differently than XLA does operation by operation.
FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror")
FLAGS += (
    "-Wno-unused-function",
    "-Wno-bool-operation",
    "-Wno-unused-variable",
    "-Wno-tautological-compare",
)


def numpy_type(name: str) -> np.dtype:
    return np.dtype(bfloat16) if name == "bfloat16" else np.dtype(name)


def run_on_host(
    program: Program,
    accumulator: np.ndarray,
    operands: Sequence[np.ndarray],
    approximate: bool = False,
) -> list[np.ndarray]:
    """Computes a program at every position of the accumulator.

    approximate: Whether as kernels with 16-bit results do, but for the GPU's approximations.
    """
    shapes = tuple(x.shape for x in operands)
    function = _compiled(program, accumulator.shape, shapes, approximate)
    results = [np.empty(accumulator.shape, numpy_type(program.dtype(x))) for x in program.results]
    held = [np.ascontiguousarray(x) for x in (accumulator, *operands)]
    pointers = [
        (ctypes.c_void_p * max(len(xs), 1))(*(x.ctypes.data for x in xs))
        for xs in (held[1:], results)
    ]
    function(held[0].ctypes.data_as(ctypes.c_void_p), *pointers)
    return results


@functools.cache
def _compiled(
    program: Program,
    shape: tuple[int, ...],
    shapes: tuple[tuple[int, ...], ...],
    approximate: bool,
) -> Any:
    define = "#define BW_APPROXIMATE" if approximate else ""
    code = f"{define}\n{prelude()}\n{program_source(program)}\n{_loops(program, shape, shapes)}"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "epilogue.cc"), Path(folder, "epilogue.so")
        source.write_text(code)
        done = subprocess.run(
            [COMPILER, *FLAGS, str(source), "-o", str(library), "-lm"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{program}\n{code}"
        return ctypes.CDLL(str(library)).run


def _loops(program: Program, shape: tuple[int, ...], shapes: tuple[tuple[int, ...], ...]) -> str:
    values = []
    for i, (operand, own) in enumerate(zip(program.operands, shapes, strict=True)):
        first, terms = len(shape) - len(own), ["0"]
        for d, size in enumerate(own):
            stride = int(np.prod(own[d + 1 :], dtype=int))
            terms += [f"i{first + d} * {stride}"] if size > 1 else []
        values.append(load(operand.dtype, f"x[{i}]", " + ".join(terms)))
    position = [f"i{d}" for d in range(len(shape))]
    at = " + ".join(f"i{d} * {int(np.prod(shape[d + 1 :], dtype=int))}" for d in range(len(shape)))
    names = [f"r{i}" for i in range(len(program.results))]
    types = [program.dtype(x) for x in program.results]
    body = "".join(f"{C_TYPES[t]} {n}; " for t, n in zip(types, names, strict=True))
    body += f"bw_program({', '.join([f'accumulator[{at}]', *values, *position, *names])}); "
    body += " ".join(store(t, f"r[{i}]", at, names[i]) for i, t in enumerate(types))
    loops = "".join(f"for (int i{d} = 0; i{d} < {n}; ++i{d}) " for d, n in enumerate(shape))
    return (
        'extern "C" void run(const float* accumulator, const void* const* x, void* const* r) {\n'
        f"  {loops}{{ {body} }}\n}}\n"
    )
