"""Finds the tuned choice of a problem: tables in force > cache > table in the package."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend import backend as jax_backend

from jax_bwgemm import runtime
from jax_bwgemm.config import Target
from jax_bwgemm.dense import heuristics
from jax_bwgemm.dense.spec import GemmDims, GemmSpec
from jax_bwgemm.product.implementations import log_once
from jax_bwgemm.runtime import KernelInfo
from jax_bwgemm.tuning import files as tuning_files
from jax_bwgemm.tuning.cache import (
    ProblemKey,
    TunedDevice,
    TunedEntry,
    TuningTable,
    problem_key,
)
from jax_bwgemm.tuning.context import Tuning, TuningMissError

# Seconds for one problem that is tuned because a program that is being compiled needs it.
MISS_SECONDS = 5.0
MEASURED = "what was measured in this process"


def find(
    spec: GemmSpec, in_dtype: str, dims: GemmDims, target: Target, table: Sequence[KernelInfo]
) -> tuple[KernelInfo, TunedEntry, str] | None:
    """The tuned choice of a folded and padded problem.

    Args:
        spec: The problem, with the tuning in force where it was traced.
        in_dtype: Type of both operands.
        dims: Sizes.
        target: The GPU.
        table: The kernels to choose from.

    Returns:
        Kernel, entry and where the entry comes from; None to leave it to the heuristic.

    Raises:
        TuningMissError: There is none, and the policy is ``"error"``.
    """
    key = problem_key(spec, in_dtype, dims)
    tuning = spec.tuning or Tuning()
    for tuned, source in _tables(tuning, target):
        found = _usable(key, spec, tuned, source, target, table)
        if found is not None:
            return found
    if tuning.on_miss == "error":
        raise TuningMissError(
            f"no tuned entry for {key} on {target}, and the policy on a miss is 'error'"
        )
    if tuning.on_miss == "autotune":
        kind = local_kind(target)
        if kind is None:
            log_once(f"{key} is not tuned: the GPU compiled for is not in this process")
            return None
        found_now = _tune_now(key, kind)
        return _usable(key, spec, found_now, MEASURED, target, table)
    return None


def local_kind(target: Target) -> TunedDevice | None:
    """This process's first GPU, if it is what kernels are selected for."""
    if runtime.local_target().target != target:
        return None
    device = jax_backend.backends()["cuda"].local_devices()[0]
    return TunedDevice(device.device_kind, target.arch, target.sm_count)


def _tables(tuning: Tuning, target: Target) -> Iterator[tuple[TuningTable, str]]:
    for tuned in tuning.tables:
        # Entered by the user: the kind of GPU is their business, but kernels must run and sizes
        # in multiprocessors must be right.
        if (tuned.device.arch, tuned.device.sm_count) == (target.arch, target.sm_count):
            yield tuned, "the tuning in force"
    kind = local_kind(target)
    if kind is None:
        return
    if kind in _measured:
        yield _measured[kind], MEASURED
    for path, source in (
        (tuning_files.cache_path(kind.kind), "the tuning cache"),
        (tuning_files.packaged_path(kind.kind), "the package's tuning table"),
    ):
        tuned = tuning_files.load_if_usable(path) if path else None
        if tuned is None:
            continue
        if tuned.device == kind:
            yield tuned, f"{source} {path}"
        else:
            log_once(f"{path} is for {tuned.device}, not {kind}")


def _usable(
    key: ProblemKey,
    spec: GemmSpec,
    tuned: TuningTable,
    source: str,
    target: Target,
    table: Sequence[KernelInfo],
) -> tuple[KernelInfo, TunedEntry, str] | None:
    """A table's entry for a problem, if this build can still run it."""
    entry = tuned.get(key)
    if entry is None:
        return None
    kernel = next((k for k in table if k.name == entry.kernel), None)
    if kernel is None:
        reason: str | None = "is not in this build"
    else:
        reason = heuristics.kernel_mismatch(kernel, spec, key.in_dtype, target.arch)
        if reason is None:
            in_bytes = np.dtype(key.in_dtype).itemsize
            reason = heuristics.run_refusal(
                kernel, key.dims, entry.splits, entry.decomposition, in_bytes
            )
    if kernel is None or reason is not None:
        log_once(f"{key}: kernel {entry.kernel} of {source} is ignored: {reason}")
        return None
    return kernel, entry, source


# Tuned by the "autotune" policy in this process, also with the cache switched off.
_measured: dict[TunedDevice, TuningTable] = {}


def _tune_now(key: ProblemKey, kind: TunedDevice) -> TuningTable:
    """Tunes one problem in the middle of a compilation and keeps the result."""
    # A thread of its own has none of the tracing state of the program that is being compiled.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(functools.partial(_tune_one, key)).result()
    _measured[kind] = _measured[kind] | found if kind in _measured else found
    path = tuning_files.cache_path(kind.kind)
    if path is not None:
        tuning_files.dump(found, path, merge=True)
    return _measured[kind]


def _tune_one(key: ProblemKey) -> TuningTable:
    from jax_bwgemm.tuning import autotuning  # which needs selection, and so this module
    from jax_bwgemm.tuning.problems import Problems

    device, target, kind = autotuning.local_device()
    found = autotuning.tune(Problems({key: 1}, ()), device, target, kind, timeout=MISS_SECONDS)
    return TuningTable(kind, dict(found.items()))
