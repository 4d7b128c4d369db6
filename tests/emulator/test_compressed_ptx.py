"""The emulator's module unpacks its PTX when a kernel first runs, on whatever thread that is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import jax_bwgemm
from jax_bwgemm import runtime

SCRIPT = Path(__file__).parents[2] / "cmake" / "split_fatbin.py"
ZLIB_PTX = 0x5A01

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(not runtime.emulated_kernels(), reason="the emulator was not built"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree"),
]

PRODUCTS = """
    import threading
    import jax.numpy as jnp
    import jax_bwgemm

    failures = []

    def product(rows):
        try:
            x = jnp.ones((rows, 64), jnp.bfloat16)
            y = jax_bwgemm.matmul(x, x.T, implementation="emulator")
            assert (y == 64).all()
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=product, args=(rows,)) for rows in (16, 16, 64, 136)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*failures, sep="\\n")
"""


def run(folder: Path) -> str:
    """Output of `PRODUCTS` in a process that imports jax_bwgemm from `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PRODUCTS)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "BWGEMM_TARGET_ARCH": "sm90"},
        capture_output=True,
        text=True,
        timeout=300,  # a deadlock fails
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A folder with this package, its emulator a copy of its own."""
    package = tmp_path / "jax_bwgemm"
    package.mkdir()
    for folder in map(Path, reversed(jax_bwgemm.__path__)):
        for file in folder.iterdir():
            if file.name != "__pycache__":
                (package / file.name).unlink(missing_ok=True)
                (package / file.name).symlink_to(file.resolve())
    emulator = package / Path(runtime.load_emulator().__file__).name
    contents = emulator.read_bytes()
    emulator.unlink()
    emulator.write_bytes(contents)
    return tmp_path


def damage(module: Path) -> None:
    """Overwrites the first bytes of each compressed text of a compiled module."""
    spec = importlib.util.spec_from_file_location("split_fatbin", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    contents = bytearray(module.read_bytes())
    section = next(s for s in script.sections(contents) if s.name == script.SECTION)
    position, end = section.offset, section.offset + section.size
    while position < end:
        entries, after = script.read_container(contents, position)
        for entry in entries:
            assert entry.kind == ZLIB_PTX
            start = contents.index(entry.data, position) + int.from_bytes(entry.data[4:8], "little")
            contents[start : start + 4] = b"\0\0\0\0"
        position = after + -after % 8
    module.write_bytes(contents)


def test_threads_that_use_kernels_for_the_first_time(installation: Path) -> None:
    assert run(installation) == ""


def test_damaged_ptx_is_an_error_that_says_so(installation: Path) -> None:
    damage(next((installation / "jax_bwgemm").glob("_emulator*.so")))
    messages = run(installation).splitlines()
    unpacking = [line for line in messages if "the PTX cannot be unpacked: " in line]
    assert len(unpacking) == 4, messages
    assert "while decompressing data" in unpacking[0]
