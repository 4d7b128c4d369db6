"""The emulator's one-instruction tests on a real GPU: the same texts, inputs and results.

    BWGEMM_ISA_RECORD=cases.jsonl ctest --test-dir build/emulator -R test_isa   # any machine
    python tools/compare_isa_gpu.py cases.jsonl                                 # one with a GPU

Only the CUDA driver is needed. Texts are assembled for the GPU at hand; those it does not have
(sm_100 instructions on a Hopper GPU) are listed. Results are compared bit for bit, except that NaNs
are equal and approximate functions may differ by the test's tolerance.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys

import numpy as np

LANES = 32
# Where each kind of result lies in a lane's 32 bytes, and its type.
RESULTS = {
    "d": (0, np.uint64),
    "r": (8, np.uint32),
    "f": (12, np.uint32),
    "h": (16, np.uint16),
    "p": (24, np.uint32),
}


class Gpu:
    """The few driver calls that loading and launching a text takes."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.check(self.cuda.cuInit(0))
        device = ctypes.c_int()
        self.check(self.cuda.cuDeviceGet(ctypes.byref(device), 0))
        context = ctypes.c_void_p()
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.check(self.cuda.cuCtxSetCurrent(context))
        capability = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            value = ctypes.c_int()
            self.check(self.cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
            capability.append(value.value)
        self.target = f"sm_{capability[0]}{capability[1]}a"

    @staticmethod
    def check(status: int) -> None:
        if status != 0:
            raise RuntimeError(f"CUDA driver error {status}")

    def run(self, ptx: str, inputs: np.ndarray, out_bytes: int) -> np.ndarray | None:
        """The output buffer, or None where this GPU cannot run the text."""
        cuda = self.cuda
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = re.sub(r"\.target \w+", f".target {self.target}", ptx).encode()
        if cuda.cuModuleLoadData(ctypes.byref(module), text) != 0:
            return None
        self.check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k"))
        source, target = ctypes.c_uint64(), ctypes.c_uint64()
        out = np.zeros(out_bytes, np.uint8)
        self.check(cuda.cuMemAlloc_v2(ctypes.byref(source), ctypes.c_size_t(inputs.nbytes)))
        self.check(cuda.cuMemAlloc_v2(ctypes.byref(target), ctypes.c_size_t(out_bytes)))
        for pointer, array in ((source, inputs), (target, out)):
            size = ctypes.c_size_t(array.nbytes)
            self.check(cuda.cuMemcpyHtoD_v2(pointer, ctypes.c_void_p(array.ctypes.data), size))
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(source), ctypes.addressof(target))
        self.check(cuda.cuLaunchKernel(function, 1, 1, 1, LANES, 1, 1, 0, None, arguments, None))
        self.check(cuda.cuCtxSynchronize())
        self.check(
            cuda.cuMemcpyDtoH_v2(
                ctypes.c_void_p(out.ctypes.data), target, ctypes.c_size_t(out_bytes)
            )
        )
        for pointer in (source, target):
            self.check(cuda.cuMemFree_v2(pointer))
        self.check(cuda.cuModuleUnload(module))
        return out


def results(buffer: np.ndarray, kind: str) -> np.ndarray:
    """Each lane's result of this kind."""
    offset, dtype = RESULTS[kind]
    size = np.dtype(dtype).itemsize
    lanes = buffer.reshape(LANES, 32)[:, offset : offset + size]
    return np.ascontiguousarray(lanes).view(dtype)[:, 0]


def agree(ours: np.ndarray, theirs: np.ndarray, kind: str, tolerance: float) -> np.ndarray:
    """Which lanes agree."""
    same = ours == theirs
    if kind in "df":
        float_type = np.float64 if kind == "d" else np.float32
        a, b = ours.view(float_type), theirs.view(float_type)
        same |= np.isnan(a) & np.isnan(b)
        if tolerance > 0:
            with np.errstate(invalid="ignore", over="ignore"):
                same |= np.abs(a - b) <= tolerance * np.abs(b)
    if kind == "h" and tolerance > 0:  # off by one in the last place
        same |= np.abs(ours.astype(np.int32) - theirs) <= 1
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cases", help="file written by the C++ tests")
    arguments = parser.parse_args()
    gpu = Gpu()
    equal = different = refused = 0
    with open(arguments.cases, encoding="utf-8") as file:
        for line in file:
            case = json.loads(line)
            inputs = np.frombuffer(bytes.fromhex(case["in"]), np.uint8).copy()
            ours = np.frombuffer(bytes.fromhex(case["out"]), np.uint8)
            theirs = gpu.run(case["ptx"], inputs, ours.size)
            if theirs is None:
                refused += 1
                print(f"not on {gpu.target}: {case['body']}")
                continue
            kind = case["kind"]
            a, b = results(ours, kind), results(theirs, kind)
            lanes = np.flatnonzero(~agree(a, b, kind, case["tolerance"]))
            equal += lanes.size == 0
            different += lanes.size != 0
            for lane in lanes[:4]:
                values = [f"0x{v:x}" for v in inputs.view(np.uint64)[3 * lane : 3 * lane + 3]]
                print(f"{case['body']}\n  lane {lane} {values}:", end=" ")
                print(f"emulator 0x{a[lane]:x}, GPU 0x{b[lane]:x}")
    print(f"{gpu.target}: {equal} equal, {different} different, {refused} not available")
    return 1 if different or not equal else 0


if __name__ == "__main__":
    sys.exit(main())
