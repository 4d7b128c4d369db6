"""Tuning tables as JSON and as files: what is accepted, what is not, and nothing is ever lost."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import dataclasses
import json
import os
import pickle
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_bwgemm import TuningFileError, TuningTable
from jax_bwgemm.tuning import files as tuning_files
from jax_bwgemm.tuning import storage
from jax_bwgemm.tuning.autotuning import AutotuneResult
from jax_bwgemm.tuning.keys import DenseKey, GroupedKey
from jax_bwgemm.tuning.records import TunedDevice, TunedEntry

H200 = TunedDevice("NVIDIA H200", "sm90", 132)
KEY = DenseKey("bfloat16", "float32", "kn", 512, 1024, 2048)
ENTRY = TunedEntry("sm90_bf16_f32_kn_128x128x64_2x1_pingpong", "n", 8, 1, 12.5, 13.0, "cupti")
GROUPED = GroupedKey(
    "m-grouped", "bfloat16", "bfloat16", "n", 64, 32, 16, groups=4, experts=2, shares=((4, 16),)
)
KINDS = (DenseKey, GroupedKey, TunedEntry)
FIELDS = ["product", *(field.name for kind in KINDS for field in dataclasses.fields(kind))]


def table(*sizes: int, us: float = 1.0, device: TunedDevice = H200) -> TuningTable:
    """Entries for square problems."""
    entries = {
        DenseKey("bfloat16", "bfloat16", "kn", n, n, n): TunedEntry(
            "some_kernel", "m", 1, 2, us, us, "wall"
        )
        for n in sizes
    }
    return TuningTable(device, entries)


def document(**changes: Any) -> dict[str, Any]:
    """A valid file's content, with top-level changes."""
    return json.loads(TuningTable(H200, {KEY: ENTRY}).dumps()) | changes


def row(**changes: Any) -> list[dict[str, Any]]:
    """The entries of a valid file, with changes in its only one."""
    return [document()["entries"][0] | changes]


def test_a_table_survives_json() -> None:
    batched = DenseKey("float16", "float16", "mk", 8, 16, 24, 5, "lhs")
    tuned = TuningTable(H200, {KEY: ENTRY, batched: ENTRY})
    assert TuningTable.loads(tuned.dumps()) == tuned
    assert tuned.get(KEY) == ENTRY
    assert list(tuned) == [KEY, batched]
    assert TuningTable.loads(TuningTable(H200, {}).dumps()) == TuningTable(H200, {})


def test_equal_tables_are_equal_and_hash_alike_whatever_the_order() -> None:
    other = DenseKey("bfloat16", "bfloat16", "kn", 8, 8, 8)
    a = TuningTable(H200, {KEY: ENTRY, other: ENTRY})
    b = TuningTable(H200, {other: ENTRY, KEY: ENTRY})
    assert a == b
    assert hash(a) == hash(b)
    assert a != TuningTable(H200, {KEY: ENTRY})


def test_merging_keeps_both_and_prefers_the_right() -> None:
    merged = table(8, 16, us=1.0) | table(16, 24, us=2.0)
    assert {key.m: entry.us for key, entry in merged.items()} == {8: 1.0, 16: 2.0, 24: 2.0}
    with pytest.raises(ValueError, match=r"cannot merge tuning of .*H200.* with that of .*H100"):
        table(8) | table(8, device=TunedDevice("NVIDIA H100", "sm90", 132))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"format": "jax_bwgemm tuning", ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe\x00junk", "not JSON"),
        ("[]", "not a tuning file"),
        ('{"entries": []}', "not a tuning file"),
        (document(version=4), "version 4 of the format, this package reads 1 to 3"),
        (document(version=0), "version 0 of the format"),
        (document(version=True), "version True of the format"),
        (document(entries=row(product="sparse")), r"entries\[0\]: product has the impossible"),
        (document(entries=row(product=[])), r"entries\[0\]: product has the impossible"),
        (document(device=None), "device: not an object"),
        (document(device={"kind": "x", "arch": "sm90"}), "device: no field 'sm_count'"),
        (document(device={"kind": "x", "arch": "sm80", "sm_count": 1}), "device: arch has"),
        (document(entries={}), "entries: not a list"),
        (document(entries=[3]), r"entries\[0\]: not an object"),
        (document(entries=[{}]), r"entries\[0\]: no field 'in_dtype'"),
        (document(entries=row(code="print(1)")), r"entries\[0\]: unknown fields \['code'\]"),
    ],
)
def test_other_text_is_refused_with_the_reason(text: Any, message: str) -> None:
    with pytest.raises(TuningFileError, match=message):
        TuningTable.loads(json.dumps(text) if isinstance(text, dict) else text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("in_dtype", "int8"), ("majors", "nn"), ("m", 0), ("m", -8), ("m", 8.0), ("m", True),
        ("m", "8"), ("k", 2**31), ("batch", None), ("shared", "both"), ("shared", []),
        ("kernel", ""), ("kernel", "../../etc"), ("kernel", "a" * 129), ("kernel", 7),
        ("raster_order", "x"), ("swizzle", 3), ("swizzle", True), ("splits", 0), ("splits", 65),
        ("us", 0), ("us", "1"), ("us", float("nan")), ("us", float("inf")), ("method", "guess"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_with_their_place(field: str, value: Any) -> None:
    with pytest.raises(TuningFileError, match=rf"entries\[0\]: {field} has the impossible value"):
        TuningTable.loads(json.dumps(document(entries=row(**{field: value}))))


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x)
                    | st.dictionaries(st.sampled_from([*document(), *FIELDS]), x)))  # fmt: skip
def test_any_json_is_read_or_refused(value: Any) -> None:
    with pytest.raises(TuningFileError):
        TuningTable.loads(json.dumps(document(entries=[value])))


@given(st.integers(0, 2000), st.binary(min_size=1, max_size=3))
def test_a_damaged_file_is_read_or_refused(position: int, junk: bytes) -> None:
    tuned = table(8, 16) | TuningTable(H200, {GROUPED: dataclasses.replace(ENTRY, swizzle=3)})
    text = tuned.dumps().encode()
    position %= len(text)
    with contextlib.suppress(TuningFileError):
        TuningTable.loads(text[:position] + junk + text[position + len(junk) :])


def test_version_1_is_still_read() -> None:
    """What the first version wrote: dense products only, in rows without "product"."""
    text = """{"format": "jax_bwgemm tuning", "version": 1, "device": {"kind": "NVIDIA H200", \
"arch": "sm90", "sm_count": 132}, "entries": [
  {"in_dtype": "bfloat16", "out_dtype": "float32", "majors": "kn", "m": 512, "n": 1024, \
"k": 2048, "batch": 1, "shared": "none", "kernel": "sm90_bf16_f32_kn_128x128x64_2x1_pingpong", \
"raster_order": "n", "swizzle": 8, "splits": 1, "us": 12.5, "heuristic_us": 13.0, \
"method": "cupti", "decomposition": "heuristic"}
]}
"""
    assert TuningTable.loads(text) == TuningTable(H200, {KEY: ENTRY})
    with pytest.raises(TuningFileError, match=r"entries\[0\]: unknown fields \['product'\]"):
        TuningTable.loads(text.replace('{"in_dtype"', '{"product": "dense", "in_dtype"'))


# --- files ---


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BWGEMM_TUNING_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    name = Path("/x/jax_bwgemm/tuning-v3/nvidia_h200.json")
    assert tuning_files.cache_path("NVIDIA H200") == name
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    home = Path("/home/someone/.cache/jax_bwgemm/tuning-v3/nvidia_h200.json")
    assert tuning_files.cache_path("NVIDIA H200") == home
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "/y")
    assert tuning_files.cache_path("NVIDIA H200") == Path("/y/nvidia_h200.json")
    monkeypatch.setenv("BWGEMM_TUNING_CACHE", "off")
    assert tuning_files.cache_path("NVIDIA H200") is None
    assert tuning_files.file_name("../NVIDIA  H200/MIG 1g.18gb") == "nvidia_h200_mig_1g_18gb.json"
    assert tuning_files.file_name("??") == "unknown.json"


def test_files_are_replaced_or_merged(tmp_path: Path) -> None:
    path = tmp_path / "new" / "t.json"
    table(8).dump(path)
    assert TuningTable.load(path) == table(8)
    assert len(table(16).dump(path, merge=True)) == 2
    assert TuningTable.load(path) == table(8, 16)
    table(24).dump(path)
    assert TuningTable.load(path) == table(24)
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == [".t.json.lock", "t.json"]


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b'{"a": 1}', table(8).dumps()[:-9].encode()])
def test_writing_moves_what_it_cannot_read_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    for number in (1, 2):
        path.write_bytes(content)
        with pytest.warns(RuntimeWarning, match=rf"t.json: .*; it is kept as .*t.json.{number}"):
            table(8).dump(path, merge=True)
        assert TuningTable.load(path) == table(8)
        assert (tmp_path / f"t.json.{number}").read_bytes() == content


def test_merging_into_another_gpus_file_moves_it_aside(tmp_path: Path) -> None:
    path, other = tmp_path / "t.json", TunedDevice("NVIDIA H100", "sm90", 132)
    table(8, device=other).dump(path)
    with pytest.warns(RuntimeWarning, match="cannot merge"):
        table(16).dump(path, merge=True)
    assert TuningTable.load(path) == table(16)
    assert TuningTable.load(tmp_path / "t.json.1").device == other


def test_an_unusable_file_is_a_warning_once_and_then_ignored(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert tuning_files.load_if_usable(path) is None  # absent: nothing to warn about
    assert tuning_files.load_if_usable(path / "below a file") is None
    path.write_text("not ours")
    with pytest.warns(RuntimeWarning, match=r"tuning file .*t.json is ignored: .*not JSON"):
        assert tuning_files.load_if_usable(path) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuning_files.load_if_usable(path) is None
        tuning_files._load_state.cache_clear()
        assert tuning_files.load_if_usable(path) is None


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    table(8).dump(path)
    assert tuning_files.load_if_usable(path) == table(8)
    table(16).dump(path, merge=True)
    assert tuning_files.load_if_usable(path) == table(8, 16)


def test_a_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    table(8).dump(path)
    monkeypatch.setattr(storage, "MAX_FILE_BYTES", 10)
    with pytest.raises(TuningFileError, match="larger than 10 bytes"):
        TuningTable.load(path)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    table(8).dump(path)

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        table(16).dump(path, merge=True)
    assert TuningTable.load(path) == table(8)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".t.json.lock", "t.json"]


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.json"

    def write_some(first: int) -> None:
        for n in range(first, first + 10):
            table(8 * n).dump(path, merge=True)

    # Every writer opens the lock file itself, so threads exclude each other as processes do.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write_some, (1, 11, 21, 31)))
    assert sorted(key.m for key in TuningTable.load(path)) == [8 * n for n in range(1, 41)]


def test_tables_read_and_write_files_themselves(tmp_path: Path) -> None:
    table(8).dump(tmp_path / "t.json")
    assert TuningTable.load(tmp_path / "t.json") == table(8)
    (tmp_path / "bad.json").write_text("x")
    with pytest.raises(TuningFileError, match=r"bad.json: not JSON"):
        TuningTable.load(tmp_path / "bad.json")


# --- what is not a file ---


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


SPECIAL = [(make_pipe, "a pipe"), (Path.mkdir, "a folder"), (make_socket, "a socket")]


@pytest.fixture
def near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with a short name, since those of sockets are limited."""
    monkeypatch.chdir(tmp_path)
    return Path("t.json")


@pytest.mark.parametrize(("make", "kind"), SPECIAL)
def test_what_is_not_a_file_is_refused_without_waiting(
    near: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(near)
    with pytest.raises(TuningFileError, match=rf"^t.json: {kind} and not a regular file$"):
        TuningTable.load(near)
    with pytest.raises(TuningFileError, match=rf"^t.json: {kind} and not a regular file$"):
        table(8).dump(near)
    assert near.exists()  # it was not moved aside
    tuning_files._load_state.cache_clear()
    tuning_files.warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match=rf"file t\.json is ignored: t\.json: {kind} and not"):
        assert tuning_files.load_if_usable(near) is None


def test_a_device_is_refused_before_it_is_opened() -> None:
    with pytest.raises(TuningFileError, match=r"^/dev/zero: a device and not a regular file$"):
        TuningTable.load("/dev/zero")


def test_what_is_exchanged_for_a_pipe_in_between_is_refused_too(
    near: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor that was opened is what counts, not what the path led to before."""
    table(8).dump(near)
    before = os.stat(near)
    near.unlink()
    make_pipe(near)
    monkeypatch.setattr(os, "stat", lambda *_, **__: before)
    with pytest.raises(TuningFileError, match=r"^t\.json: a pipe and not a regular file"):
        TuningTable.load(near)


@pytest.mark.parametrize(("make", "kind"), SPECIAL)
def test_a_lock_that_is_not_a_file_is_refused(
    near: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(near.with_name(".t.json.lock"))
    with pytest.raises(TuningFileError, match=rf"^\.t\.json\.lock: {kind} and not a regular file$"):
        table(8).dump(near)


def test_a_lock_that_is_never_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stopped process, say: other writers end with an error."""
    monkeypatch.setattr(storage, "LOCK_SECONDS", 0.0)
    path = tmp_path / "t.json"
    with storage.locked(path):
        with pytest.raises(
            TimeoutError, match=r"another process has held .*t\.json\.lock for 0 seconds"
        ):
            table(8).dump(path)
        assert not path.exists()
    table(8).dump(path)


def test_a_lock_is_never_written_through_a_link(near: Path) -> None:
    Path("precious").write_text("kept")
    near.with_name(".t.json.lock").symlink_to("precious")
    with pytest.raises(OSError, match=r"\.t\.json\.lock"):
        table(8).dump(near)
    assert Path("precious").read_text() == "kept"


def test_a_path_that_cannot_be_written_is_found_out_before(near: Path) -> None:
    storage.check_writable(Path("new") / near)
    near.mkdir()
    with pytest.raises(TuningFileError, match="a folder and not a regular file"):
        storage.check_writable(near)
    Path("file").touch()
    with pytest.raises(OSError, match="file"):
        storage.check_writable("file/t.json")


def test_tables_can_be_sent_to_other_processes() -> None:
    plain = table(64, 128)
    measured = AutotuneResult(plain.device, dict(plain.items()), (), (("a product", "why not"),))
    for first in (plain, measured):
        for other in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first), copy.copy(first)):
            assert type(other) is type(first)
            assert other == first
            assert hash(other) == hash(first)
            assert str(other) == str(first)
            with other, first:  # each has contexts of its own
                pass
    assert pickle.loads(pickle.dumps(measured)).skipped == measured.skipped


def test_a_file_exchanged_for_one_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    """Where two writers come within a tick of the file system's clock."""
    path = tmp_path / "t.json"
    table(16).dump(path)
    assert tuning_files.load_if_usable(path) == table(16)
    before = path.stat()
    table(24).dump(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert tuning_files.load_if_usable(path) == table(24)
