"""Where tuning files are, without a home directory too, and what is written beside them."""

# Fixtures are imported and are then names of arguments.
# ruff: noqa: F811

from __future__ import annotations

import os
import stat
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_fakes import (  # noqa: F401
    H200,
    array,
    clock,
    fake_gpu,
    gpu,
    key,
    own_cache,
    pretend,
)

import jax_bwgemm as bw
from jax_bwgemm import TuningFileError, TuningTable
from jax_bwgemm.cli import main
from jax_bwgemm.dense.tuning_config import MAX_SPLITS
from jax_bwgemm.grouped.grouped_config import MAX_SWIZZLE
from jax_bwgemm.tuning import files, storage
from jax_bwgemm.tuning.keys import DenseKey, GroupedKey
from jax_bwgemm.tuning.records import Choice, TunedDevice, TunedEntry

EMPTY = TuningTable(H200, {})


def test_the_largest_values_are_read(tmp_path: Path) -> None:
    largest = 2**31 - 1
    problem = DenseKey("bfloat16", "bfloat16", "kn", largest, largest, largest, largest)
    entry = TunedEntry("a" * 128, "m", 16, MAX_SPLITS, 1e17, 1e17, "wall")
    device = TunedDevice("x" * 256, "sm100", 10**4)
    tuned = TuningTable(device, {problem: entry})
    assert TuningTable.loads(tuned.dumps()) == tuned
    groups = {"shares": ((1, 16 * largest),), "groups": 1, "experts": 1}
    grouped = GroupedKey("m-grouped", "bfloat16", "bfloat16", "n", 8, 8, 8, **groups)
    tuned = TuningTable(H200, {grouped: replace(entry, swizzle=MAX_SWIZZLE, splits=1)})
    assert TuningTable.loads(tuned.dumps()) == tuned


@pytest.mark.parametrize(
    "device",
    [
        TunedDevice("x" * 257, "sm100", 132),
        TunedDevice("", "sm90", 132),
        TunedDevice("x", "sm90", 0),
        TunedDevice("x", "sm90", 10**4 + 1),
    ],
    ids=["long", "empty", "none", "many"],
)
def test_impossible_devices_are_refused(device: TunedDevice) -> None:
    with pytest.raises(TuningFileError, match=r"device: (kind|sm_count) has the impossible value"):
        TuningTable.loads(TuningTable(device, {}).dumps())


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has a number only."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    for variable in ("BWGEMM_TUNING_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)


def test_without_a_home_directory_there_is_no_cache(no_home: None, gpu: None) -> None:
    assert files.cache_path(H200.kind) is None
    assert files.older_cache_paths(H200.kind) == []
    assert bw.explain(array(512, 512), array(512, 512), device="sm90").kernel


def test_without_a_home_directory_a_miss_is_measured(
    no_home: None, gpu: None, clock: list[Choice]
) -> None:
    with bw.config.tuning_miss("autotune"):
        assert bw.explain(array(512, 512), array(512, 512), device="sm90").kernel
    assert clock


def test_without_a_home_directory_other_folders_are_used(
    no_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert files.cache_path(H200.kind) == Path("/x/jax_bwgemm/tuning-v3/nvidia_h200.json")
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "/y")
    assert files.cache_path(H200.kind) == Path("/y/nvidia_h200.json")


def test_the_command_says_that_there_is_no_home_directory(
    no_home: None, gpu: None, capsys: pytest.CaptureFixture
) -> None:
    assert main(["tune", "--shapes", "512,512,512"]) == 2
    reason = "there is no home directory for a cache, nor BWGEMM_TUNING_CACHE"
    assert capsys.readouterr().err == f"error: {reason}, and no --out was given\n"


@pytest.mark.parametrize("path", [".", "", "/", ".."])
def test_a_folder_without_a_name_is_refused_as_any(path: str) -> None:
    for write in (EMPTY.dump, storage.check_writable):
        with pytest.raises(TuningFileError, match=r"^[./]+: a folder and not a regular file$"):
            write(path)


def test_everyone_may_read_a_tuning_file(tmp_path: Path) -> None:
    """A cache may be shared; the temporary file it comes from is its writer's alone."""
    EMPTY.dump(tmp_path / "t.json")
    assert stat.S_IMODE(os.stat(tmp_path / "t.json").st_mode) == 0o644


def test_a_file_is_on_the_disk_before_it_takes_anothers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a crash would leave an empty one."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda *x: (steps.append("fsync"), fsync(*x)))
    monkeypatch.setattr(os, "replace", lambda *x: (steps.append("replace"), replace(*x)))
    EMPTY.dump(tmp_path / "t.json")
    assert steps == ["fsync", "replace"]


def test_what_is_moved_aside_replaces_nothing(tmp_path: Path) -> None:
    """Neither a file nor a link that leads nowhere."""
    path = tmp_path / "t.json"
    (tmp_path / "t.json.1").symlink_to("nowhere")
    (tmp_path / "t.json.2").write_text("mine")
    path.write_text("not ours")
    with pytest.warns(RuntimeWarning, match=r"it is kept as .*t\.json\.3"):
        storage.set_aside(path, "not JSON")
    assert (tmp_path / "t.json.1").is_symlink()
    assert (tmp_path / "t.json.2").read_text() == "mine"
    assert (tmp_path / "t.json.3").read_text() == "not ours"


def test_a_path_that_cannot_be_followed_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "loop.json"
    path.symlink_to(path)
    with pytest.warns(
        RuntimeWarning, match=r"tuning file .*loop\.json is ignored: .*symbolic link"
    ):
        assert files.load_if_usable(path) is None


def test_a_path_below_a_file_is_as_good_as_absent(tmp_path: Path) -> None:
    """Where the cache's folder should be, say: writing tells, reading need not."""
    (tmp_path / "file").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert files.load_if_usable(tmp_path / "file" / "t.json") is None


def test_the_command_keeps_what_the_cache_has(gpu: None, clock: list[Choice]) -> None:
    for size in ("512", "1024"):
        assert main(["tune", "--shapes", f"512,512,{size}"]) == 0
    assert main(["tune", "--shapes", "512,512,512", "--out-dtype", "f32"]) == 0
    cached = TuningTable.load(files.cache_path(H200.kind))
    wide = replace(key(512, 512, 512), out_dtype="float32")
    assert set(cached) == {key(512, 512, 512), key(512, 512, 1024), wide}
