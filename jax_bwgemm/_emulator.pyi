"""Types of the compiled emulator; `jax_bwgemm.emulator` is its public face."""

from collections.abc import Sequence
from typing import Any

class Error(RuntimeError):
    """Arguments: kind, line of the PTX text (0: none), message."""

class Module:
    @staticmethod
    def load(text: str) -> Module: ...
    def kernels(self) -> list[str]: ...
    def params(self, kernel: str) -> list[tuple[str, int]]: ...
    def launch(
        self,
        kernel: str,
        args: Sequence[bytes],
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        shared_bytes: int,
        programmatic: bool,
        buffers: Sequence[tuple[int, int, bool, str]],
    ) -> dict[str, Any]: ...

def registrations() -> dict[str, object]: ...
def kernels() -> list[dict[str, Any]]: ...
def workspace_bytes(
    kernel: str,
    *,
    m: int,
    n: int,
    k: int,
    batch: int,
    groups: int = 0,
    experts: int = 0,
    sm_count: int,
    splits: int = 1,
    raster_order: str = "heuristic",
    swizzle: int = 1,
    decomposition: str = "heuristic",
) -> int: ...
def configure(
    *,
    seed: int,
    sm_count: int,
    step_limit: int,
    rules: Sequence[tuple[str, str]],
    races: bool,
    threads: int,
    relaxed: bool,
    poison_outputs: bool,
    trace: bool,
    trace_limit: int,
) -> None: ...
def rules() -> list[tuple[str, str, str]]: ...
def settings() -> dict[str, Any]: ...
def last_launch() -> dict[str, Any] | None: ...
def last_trace() -> tuple[bytes, list[str], int] | None: ...
def last_ptx() -> tuple[str, str] | None: ...
def substitute(ptx: str) -> None: ...
def progress() -> tuple[int, int]: ...
def launches() -> int: ...
def encode_tensor_map(
    *,
    type: int,
    address: int,
    dims: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int],
    swizzle: int,
    fill: int,
) -> bytes: ...
