"""What is measured in the middle of a compilation, by the policy ``"autotune"``.

Selection may ask for a measurement, and a measurement compiles kernels by way of selection's own
lowering. So that neither imports the other, the code that measures registers here.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable

from jax_bwgemm.tuning import files
from jax_bwgemm.tuning.keys import Key
from jax_bwgemm.tuning.records import TunedDevice
from jax_bwgemm.tuning.table import TuningTable

Tuner = Callable[[Key, TunedDevice], TuningTable]

# Tuned in this process, also with the cache switched off.
measured: dict[TunedDevice, TuningTable] = {}
_adding = threading.Lock()
_tuner: Tuner | None = None


def register(tuner: Tuner) -> None:
    """Sets what measures a problem on a GPU of this process; the last one registered counts."""
    global _tuner
    _tuner = tuner


def tune_now(key: Key, kind: TunedDevice) -> TuningTable:
    """Tunes one problem and keeps the result, in this process and in the cache."""
    # A thread of its own has none of the tracing state of the program that is being compiled.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert _tuner is not None, "importing the package registers one"
        found = pool.submit(_tuner, key, kind).result()
    with _adding:  # programs may be compiled side by side
        measured[kind] = measured[kind] | found if kind in measured else found
    path = files.cache_path(kind.kind)
    if path is not None:
        try:
            found.dump(path, merge=True)
        # The program that is being compiled can run all the same.
        except (OSError, ValueError) as error:
            files.warn_once(f"tuning is not kept: {error}")
    return measured[kind]
