"""`jax_bwgemm.emulator.triton.driver`: Triton's own launches, on NumPy arrays.

Optional: needs ``triton``.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
from emulator_cases import requires_emulator

from jax_bwgemm import emulator

triton = pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [
    *requires_emulator,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]


@pytest.fixture(params=["sm80", "sm90", "sm100"])
def arch(request: pytest.FixtureRequest):
    """Runs the test with the driver installed."""
    from jax_bwgemm.emulator.triton import driver

    with driver(request.param):
        yield request.param


def kernels() -> types.ModuleType:
    import triton_launches

    return triton_launches


def test_arrays_are_written_in_place(arch: str) -> None:
    x = np.arange(1000, dtype=np.float32)
    y, out = np.ones_like(x), np.zeros_like(x)
    grid = lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)  # noqa: E731
    kernels().scaled_sum[grid](x, y, out, 1000, 2.0, BLOCK=256)
    np.testing.assert_array_equal(out, 2 * x + 1)
    stats = emulator.last_launch()
    assert (stats.grid, stats.block) == ((4, 1, 1), (128, 1, 1))
    kernels().scaled_sum[grid](x.astype(np.float16), None, out, 1000, np.int32(3), BLOCK=512)
    np.testing.assert_array_equal(out[:800], 3 * x[:800])
    kernels().scaled_sum[(0,)](x, y, out, 1000, 7.0, BLOCK=256)  # no programs: nothing happens
    np.testing.assert_array_equal(out[:800], 3 * x[:800])


def test_settings_apply(arch: str) -> None:
    x = np.ones(64, np.float32)
    with emulator.configure(seed=5, sm_count=2):
        kernels().scaled_sum[(1,)](x, x, x, 64, 1.0, BLOCK=64, num_warps=2)
    stats = emulator.last_launch()
    assert (stats.seed, stats.sm_count, stats.block) == (5, 2, (64, 1, 1))


def test_faults_are_raised(arch: str) -> None:
    x, out = np.ones(64, np.float32), np.ones(32, np.float32)
    with pytest.raises(emulator.LaunchFault, match=r"past the end of 'memory1'"):
        kernels().scaled_sum[(1,)](x, None, out, 64, 1.0, BLOCK=64)


def test_tuples_and_wide_scalars(arch: str) -> None:
    out = np.zeros(4, np.float64)
    kernels().scalars[(1,)](out, (2**40, np.float64(0.5)), True)
    np.testing.assert_array_equal(out, [2.0**40, 0.5, 1, 0])


@pytest.mark.parametrize("arch", ["sm90", "sm100"], indirect=True)
def test_tensor_descriptors(arch: str) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    from jax_bwgemm.emulator.triton import Array

    rng = np.random.default_rng(0)
    a = rng.integers(-2, 3, (128, 192)).astype(np.float16)
    b = rng.integers(-2, 3, (192, 64)).astype(np.float16)
    c = np.zeros((128, 64), np.float32)
    described = [TensorDescriptor.from_tensor(Array(x), [64, 64]) for x in (a, b, c)]
    kernels().described_matmul[(2, 1)](*described, 192, BLOCK=64)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    assert emulator.last_launch().tma_loads == 2 * 3 * 2


@pytest.mark.parametrize("arch", ["sm90", "sm100"], indirect=True)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_a_descriptor_reads_outside(arch: str, dtype: str) -> None:
    """The last 64 of K are in neither matrix."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from jax_bwgemm.emulator.triton import Array

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (64, 64)).astype(np.dtype(dtype)) for _ in range(2))
    for padding in ("zero", "nan"):
        c = np.zeros((64, 64), np.float32)
        described = [
            TensorDescriptor.from_tensor(Array(x), [64, 64], padding=padding) for x in (a, b)
        ]
        kernels().described_matmul[(1, 1)](
            *described, TensorDescriptor.from_tensor(Array(c), [64, 64]), 128, BLOCK=64
        )
        want = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_array_equal(c, np.full_like(want, np.nan) if padding == "nan" else want)


@pytest.mark.parametrize("arch", ["sm90", "sm100"], indirect=True)
def test_ragged_descriptors(arch: str) -> None:
    """Their addresses wrap around in 64 bits."""
    from triton.tools.ragged_tma import create_ragged_descriptor

    from jax_bwgemm.emulator.triton import Array

    a = np.arange(100 * 64, dtype=np.float32).reshape(100, 64)
    for first, count, row in ((10, 40, 0), (10, 40, 32), (10, 40, 64), (0, 0, 0), (96, 4, 0)):
        out = np.full_like(a, -1)
        source, target = (create_ragged_descriptor(Array(x), [32, 64]) for x in (a, out))
        kernels().next_rows[(1,)](source, target, first, count, row)
        inside = slice(first + row, first + min(row + 32, max(count, row)))
        want = np.full_like(a, -1)
        want[inside] = a[inside] + 1
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("arch", ["sm90", "sm100"], indirect=True)
def test_descriptors_made_by_the_kernel(arch: str) -> None:
    a = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    out = np.zeros(2, np.float32)
    kernels().block_sums[(2,)](a, out, 64, 32, ROWS=32, COLUMNS=32)  # in scratch memory
    np.testing.assert_array_equal(out, [a[:32].sum(), a[32:].sum()])


@pytest.mark.parametrize("arch", ["sm90", "sm100"], indirect=True)
def test_every_cta_has_scratch_memory(arch: str) -> None:
    a = np.arange(128 * 32, dtype=np.float32).reshape(128, 32)
    out = np.zeros(2, np.float32)
    kernels().block_sums[(2,)](a, out, 128, 32, ROWS=64, COLUMNS=32, num_ctas=2)
    np.testing.assert_array_equal(out, [a[:64].sum(), a[64:].sum()])
    assert emulator.last_launch().cluster == (2, 1, 1)


def test_autotuning_counts_instructions(arch: str) -> None:
    x = np.ones(2048, np.float32)
    out = np.zeros_like(x)
    tuned = kernels().tuned_copy
    tuned.cache.clear()
    tuned[lambda meta: (triton.cdiv(2048, meta["BLOCK"]),)](x, out, 2048)
    np.testing.assert_array_equal(out, x)
    counts = {config.kwargs["BLOCK"]: time for config, time in tuned.configs_timings.items()}
    assert set(counts) == {32, 1024}
    assert counts[32][0] > counts[1024][0]
    assert tuned.best_config.kwargs["BLOCK"] == 1024


class Tensor:
    """As much of a torch tensor as a launch uses."""

    def __init__(self, values: np.ndarray, device: str = "cpu") -> None:
        self.values, self.dtype = values, values.dtype
        self.device = types.SimpleNamespace(type=device)

    def data_ptr(self) -> int:
        return self.values.ctypes.data

    def untyped_storage(self) -> object:
        return types.SimpleNamespace(
            nbytes=lambda: self.values.nbytes, data_ptr=lambda: self.values.ctypes.data
        )


def test_tensors_of_torch(arch: str) -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    kernels().scaled_sum[(1,)](Tensor(x), None, Tensor(out), 64, 2.0, BLOCK=64)
    np.testing.assert_array_equal(out, 2 * x)
    with pytest.raises(TypeError, match=r"take NumPy arrays and CPU tensors, got Tensor"):
        kernels().scaled_sum[(1,)](Tensor(x, "cuda"), None, Tensor(out), 64, 2.0, BLOCK=64)


def test_memory_behind_addresses() -> None:
    from jax_bwgemm.emulator.triton import driver

    arrays = [np.full(32, value, np.float32) for value in (1, 2, 3)]
    addresses = np.array([array.ctypes.data for array in arrays], np.int64)
    shown: list[np.ndarray] = []
    with driver("sm90", memory=shown):
        double = kernels().doubled_through_addresses[(3,)]
        with pytest.raises(emulator.LaunchFault, match="in no registered memory"):
            double(addresses, BLOCK=32, num_warps=1)
        shown += [*arrays, arrays[0]]
        double(addresses, BLOCK=32, num_warps=1)
    assert [array.tolist() for array in arrays] == [[2.0] * 32, [4.0] * 32, [6.0] * 32]


def test_arguments_of_the_driver() -> None:
    from jax_bwgemm.emulator.triton import Array, driver

    with pytest.raises(ValueError, match="arch must be one of sm80, sm90, sm100, got 'sm70'"):
        driver("sm70").__enter__()
    with pytest.raises(TypeError, match="needs a NumPy array, got list"):
        Array([1.0])
    with driver(), pytest.raises(ValueError, match="there is one emulated device"):
        triton.runtime.driver.active.set_current_device(0)


def test_driver_is_taken_out() -> None:
    from triton.runtime.jit import JITFunction

    from jax_bwgemm.emulator.triton import driver

    def active() -> object:
        try:
            return triton.runtime.driver.active
        except RuntimeError:  # no GPU
            return None

    before, run = active(), JITFunction.run
    with driver(), driver("sm90"):
        assert triton.runtime.driver.active.get_current_target().arch == 90
    assert active() is before
    assert JITFunction.run is run


def test_a_programmatic_launch_waits_for_the_one_before() -> None:
    from jax_bwgemm.emulator.triton import driver

    x = np.zeros(128, np.float32)
    launch = kernels().incremented[(1,)]
    with driver("sm90"):
        launch(x, WAITS=False, BLOCK=128)
        launch(x, WAITS=True, BLOCK=128, launch_pdl=True)
        launch(x, WAITS=False, BLOCK=128)
        assert (x == 3).all()
        with pytest.raises(emulator.LaunchFault, match="comes first"):
            launch(x, WAITS=False, BLOCK=128, launch_pdl=True)
