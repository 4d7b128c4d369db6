"""Test environment: 8 CPU devices, the kernel table, and what a GPU test needs.

CPU tests run on CPU devices even on a machine with a GPU. Where the extension was not built, the
kernel table is read from cc/dense/kernels.def, so that everything above the FFI call is tested.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Before jax is imported. Several processes of pytest-xdist share a GPU and the cores: NumPy's
# threads would only wait for each other. The CPU client reads its flag once.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
_FLAGS = [
    "--xla_force_host_platform_device_count=8",
    # Most programs run once: XLA spends more time on optimising them than they take.
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()
# Processes of one run share what they compile: small functions of jax.numpy, mostly.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.mkdtemp(prefix="jax_bwgemm_tests_")
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import argparse  # noqa: E402
import gc  # noqa: E402
import pathlib  # noqa: E402
import zlib  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import grouped_oracle  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from jax.extend import backend as jax_backend  # noqa: E402
from kernel_table import (  # noqa: E402
    described_grouped_kernels,
    described_kernels,
    described_scaled_grouped_kernels,
    described_scaled_kernels,
    widened,
)

from jax_bwgemm import emulator, runtime  # noqa: E402
from jax_bwgemm.product.kernels import Kernel  # noqa: E402

# The same cases everywhere, every time: a failure is reproduced by running the test again.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.load_profile("deterministic")


@pytest.fixture
def no_rule_broken() -> Iterator[None]:
    """A launch in the emulator that breaks a rule which is on by default fails.

    But for one: SM90 kernels store the same values where tiles overlap at a ragged edge.
    """
    warnings = {rule.name for rule in emulator.rules() if rule.severity == "warning"}
    with emulator.configure(rules=dict.fromkeys(warnings - {"same-value"}, "error")):
        yield


def _share(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a positive integer")
    return int(value)


SHARE_OF_THE_SUITE = 4  # one case in so many: every test and kernel still runs, in far less time


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every", type=_share, metavar="N",
        help="of each test with parameters, run one case in N. Without this option: all of what "
        f"the command line names; of the whole suite one in {SHARE_OF_THE_SUITE}, but every case "
        "on a GPU.",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist's workers are given the options of the process that started them.
    whole_suite = config.args_source is not pytest.Config.ArgsSource.ARGS
    config.option.every_default = getattr(config.option, "every_default", whole_suite)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What needs a certain GPU needs one: ``-m gpu`` selects it too."""
    if any(item.get_closest_marker(mark) for mark in GPU_MARKS):
        item.add_marker("gpu")


@pytest.hookimpl(trylast=True)  # after -k and -m: a test's first case is the first one that is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a share leaves out is deselected, and counted in the summary.

    The first case of a test and of each of its kernels runs, and those that a checksum of the name
    picks: every Nth would be the same value of a parameter each time.
    """
    share = config.getoption("every")
    by_default = share is None
    if by_default:
        share = SHARE_OF_THE_SUITE if config.option.every_default else 1
    seen: set[tuple[str, str]] = set()
    kept, left_out = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        kernel = callspec.params.get("kernel") if callspec else None
        test = (item.nodeid.partition("[")[0], getattr(kernel, "name", ""))
        on_gpu = by_default and any(item.get_closest_marker(mark) for mark in GPU_MARKS)
        picked = on_gpu or test not in seen or zlib.crc32(item.nodeid.encode()) % share == 0
        (kept if picked else left_out).append(item)
        seen.add(test)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector need not visit it again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # or nanobind reports at exit what was not collected


GPU_MARKS = {"gpu", "sm90", "sm100", "multigpu"}


def _gpu() -> jax.Device | None:
    client = jax_backend.backends().get("cuda")
    return client.local_devices()[0] if client is not None else None


def unmet_gpu_need(marks: set[str]) -> tuple[str, bool] | None:
    """Why a test with these markers cannot run here, and whether BWGEMM_REQUIRE_GPU excuses it.

    Excused is what a machine with a supported GPU could not have tested either: another
    architecture than its GPU's, or more GPUs than it has.
    """
    if not marks & GPU_MARKS:
        return None
    gpu = _gpu()
    if gpu is None:
        return "no NVIDIA GPU", False
    if runtime.extension() is None:
        return "the kernels were not built", False
    target = runtime.device_target(gpu).target
    if target is None:
        return f"no kernels for {gpu.device_kind}", False
    for arch in ("sm90", "sm100"):
        if arch in marks and target.arch != arch:
            return f"needs {arch}, this GPU is {target.arch}", True
    if "multigpu" in marks and len(gpu.client.local_devices()) < 2:
        return "needs two GPUs", True
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    unmet = unmet_gpu_need({mark.name for mark in item.iter_markers()})
    if unmet is None:
        return
    reason, excused = unmet
    if os.environ.get("BWGEMM_REQUIRE_GPU") == "1" and not excused:
        pytest.fail(f"BWGEMM_REQUIRE_GPU=1, but {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """CPU tests run on the CPU, whatever else the machine has."""
    if {mark.name for mark in request.node.iter_markers()} & GPU_MARKS:
        yield
        return
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(autouse=True)
def _no_target_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BWGEMM_TARGET_ARCH", raising=False)
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "off")  # nor what this machine was tuned for


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder of the run, of all workers of pytest-xdist: for what one of them makes."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def kernel_table() -> Iterator[tuple[Kernel, ...]]:
    """The kernels of this build, or those that kernels.def describes when there is no build."""
    if runtime.extension() is not None:
        yield runtime.kernels()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "kernels", described_kernels)
        patch.setattr(runtime, "workspace_bytes", lambda *_, **__: 4096)
        yield described_kernels()


@pytest.fixture(scope="session", autouse=True)
def grouped_table() -> Iterator[tuple[Kernel, ...]]:
    """The grouped kernels of this build, or those that grouped.def describes without a build."""
    if runtime.extension() is not None:
        yield runtime.grouped_kernels()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "grouped_kernels", described_grouped_kernels)
        patch.setattr(runtime, "grouped_workspace_bytes", lambda *_, **__: 4096)
        yield described_grouped_kernels()


@pytest.fixture(scope="session", autouse=True)
def scaled_table() -> Iterator[tuple[Kernel, ...]]:
    """The scaled kernels of this build, or those that scaled.def describes without a build."""
    if runtime.extension() is not None:
        yield runtime.scaled_kernels()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "scaled_kernels", described_scaled_kernels)
        yield described_scaled_kernels()


@pytest.fixture(scope="session", autouse=True)
def scaled_grouped_table() -> Iterator[tuple[Kernel, ...]]:
    """As `scaled_table`, of scaled_grouped.def."""
    if runtime.extension() is not None:
        yield runtime.scaled_grouped_kernels()
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "scaled_grouped_kernels", described_scaled_grouped_kernels)
        yield described_scaled_grouped_kernels()


@pytest.fixture(scope="module")
def dense_grouped() -> Iterator[None]:
    """On the CPU, grouped GEMMs become one einsum instead of a loop: several times less to compile.

    For tests of what happens to a grouped GEMM before it is lowered.
    """
    with grouped_oracle.in_one_einsum():
        yield


@pytest.fixture
def wide_kernels(
    kernel_table: tuple[Kernel, ...], monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Pretends that the bf16 kernels exist for f32 and f64 too."""
    wide = widened(kernel_table)
    monkeypatch.setattr(runtime, "kernels", lambda: (*kernel_table, *wide))
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def benchmark_programs(monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The folder of the benchmarks, whose modules can be imported from then on."""
    folder = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"
    if not folder.is_dir():
        pytest.skip("the benchmarks are not part of an installed package")
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture(scope="session")
def cpu_devices() -> list[jax.Device]:
    """The 8 CPU devices that sharding tests spread over."""
    devices = jax.devices("cpu")
    assert len(devices) == 8
    return devices
