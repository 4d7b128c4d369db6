"""cmake/split_fatbin.py on archives made here, and on the fat binaries of the built modules."""

from __future__ import annotations

import importlib.util
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from jax_bwgemm import runtime

SCRIPT = Path(__file__).parents[2] / "cmake" / "split_fatbin.py"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree")

PTX, MACHINE_CODE, ZLIB_PTX = 1, 2, 0x5A01


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("split_fatbin", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def entry(kind: int, payload: bytes, *, header: int = 64, compressed: int = 0) -> bytes:
    head = struct.pack("<HHIQI", kind, 0x101, header, len(payload), compressed)
    return head.ljust(header, b"\0") + payload


def zlib_entry(payload: bytes, *, header: int) -> bytes:
    stream = zlib.compress(payload)
    padded = stream + bytes(-len(stream) % 8)
    return entry(ZLIB_PTX, padded, header=header, compressed=len(stream))


def container(*entries: bytes, magic: int = 0xBA55ED50, version: int = 1) -> bytes:
    payload = b"".join(entries)
    return struct.pack("<IHHQ", magic, version, 16, len(payload)) + payload


def elf(fatbin: bytes | None, *, extra: list[tuple[str, int, int]] | None = None) -> bytes:
    """An object with `.text`, a fat binary and, after them, `extra` (name, type, sh_info)."""
    parts: list[tuple[str, int, int, bytes]] = [("", 0, 0, b""), (".text", 1, 0, b"host code")]
    if fatbin is not None:
        parts.append((".nv_fatbin", 1, 0, fatbin))
    parts += [(name, kind, info, b"") for name, kind, info in extra or []]
    names = b"".join(name.encode() + b"\0" for name, *_ in parts) + b".shstrtab\0"
    parts.append((".shstrtab", 3, 0, names))
    body, headers, name_at = b"", b"", 0
    for name, kind, info, data in parts:
        body += bytes(-len(body) % 8)
        headers += struct.pack(
            "<IIQQQQIIQQ", name_at, kind, 0, 0, 64 + len(body), len(data), 0, info, 8, 0
        )
        body += data
        name_at += len(name) + 1
    body += bytes(-len(body) % 8)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, 64 + len(body),
        0, 64, 0, 0, 64, len(parts), len(parts) - 1,
    )  # fmt: skip
    return head + body + headers


def archive(members: dict[str, bytes]) -> bytes:
    """A static library as GNU ar writes it: a symbol table, long names, then the members."""

    def member(name: str, data: bytes) -> bytes:
        head = f"{name:<16}{0:<12}{0:<6}{0:<6}{0o644:<8}{len(data):<10}`\n".encode()
        return head + data + b"\n" * (len(data) % 2)

    long_names, out = b"", b""
    for name, data in members.items():
        if len(name) < 16:
            out += member(name + "/", data)
        else:
            out += member(f"/{len(long_names)}", data)
            long_names += name.encode() + b"/\n"
    return b"!<arch>\n" + member("/", b"symbols") + member("//", long_names) + out


CODE, TEXT = b"SASS" * 40, (b".version 9.0\n" + b"// text\n" * 16).ljust(152, b"\0")
NOISE = random.Random(0).randbytes(1 << 20)
BOTH = container(
    entry(MACHINE_CODE, CODE), entry(PTX, TEXT, header=80), entry(MACHINE_CODE, CODE[:8])
)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (MACHINE_CODE, container(entry(MACHINE_CODE, CODE), entry(MACHINE_CODE, CODE[:8]))),
        (PTX, container(zlib_entry(TEXT, header=80))),
    ],
    ids=["machine code", "ptx"],
)
def test_each_half_keeps_its_entries_and_every_offset(script, kind, kept):
    long_name = "a_name_of_more_than_fifteen_letters.cu.o"
    before = archive({"odd.o": elf(BOTH) + b"!", long_name: elf(BOTH), "host.o": elf(None)})
    after = script.split(before, kind)
    assert len(after) == len(before)
    placed = list(script.members(before))
    assert [name for name, *_ in placed] == ["odd.o", long_name, "host.o"]
    assert list(script.members(after)) == placed
    for name, start, size in placed:
        was, now = before[start : start + size], after[start : start + size]
        if name == "host.o":
            assert now == was
            continue
        old, new = script.sections(was), script.sections(now)
        for x, y in zip(old, new, strict=True):
            assert (x.name, x.offset, x.header, x.type) == (y.name, y.offset, y.header, y.type)
            contents = now[y.offset : y.offset + y.size]
            if x.name == ".nv_fatbin":
                assert contents == kept
                gap = now[y.offset + y.size : x.offset + x.size]
                assert gap == bytes(len(gap))
            else:
                assert contents == was[x.offset : x.offset + x.size]


def object_with(fatbin: bytes) -> bytes:
    return archive({"k.o": elf(fatbin)})


TRUNCATED = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 1 << 20)
REFUSED = {
    "no archive": (b"\x7fELF", "not a static library"),
    "thin archive": (b"!<thin>\n", "thin archives are not supported"),
    "cut archive": (object_with(BOTH)[:-9], "archive member 'k.o/' is truncated"),
    "no member": (b"!<arch>\n" + b"x" * 60, "no archive member at byte 8"),
    "no object": (archive({"k.o": b"x" * 64}), "k.o: not a 64-bit little-endian ELF file"),
    "host code only": (archive({"h.o": elf(None)}), "no object holds device code"),
    "magic": (object_with(container(magic=1)), "unknown fat binary: magic 0x1"),
    "version": (object_with(container(version=2)), "version 2"),
    "empty": (object_with(b""), "header is truncated"),
    "cut": (object_with(TRUNCATED), "larger than its section"),
    "entry header": (object_with(container(b"\2\0")), "an entry's header is truncated"),
    "entry size": (object_with(container(entry(PTX, TEXT)[:-8])), "does not fit"),
    "entry padding": (object_with(container(entry(PTX, TEXT[:-1]))), "does not fit"),
    "entry kind": (object_with(container(entry(3, TEXT))), "unknown kind of entry: 3"),
    "compressed": (object_with(container(entry(PTX, TEXT, compressed=9))), "nvcc --no-compress"),
    "two containers": (object_with(BOTH + BOTH), "more than one fat binary"),
    "no code": (object_with(container(entry(PTX, TEXT))), "k.o: the fat binary holds no machine"),
    "no ptx": (object_with(container(entry(MACHINE_CODE, CODE))), "holds no PTX"),
    "relocated": (
        archive({"k.o": elf(BOTH, extra=[(".rela.nv_fatbin", 4, 2)])}),
        ".nv_fatbin has relocations",
    ),
    "incompressible": (
        object_with(container(entry(MACHINE_CODE, b"", header=32), entry(PTX, NOISE))),
        "does not fit into the place",
    ),
    "two sections": (
        archive({"k.o": elf(BOTH, extra=[(".nv_fatbin", 1, 0)])}),
        ".nv_fatbin is not one section of data",
    ),
}


@pytest.mark.parametrize(("library", "message"), REFUSED.values(), ids=REFUSED)
def test_an_unknown_layout_is_refused_and_nothing_written(tmp_path, library, message):
    source, code, ptx = (tmp_path / name for name in ("in.a", "code.a", "ptx.a"))
    source.write_bytes(library)
    done = subprocess.run(
        [sys.executable, SCRIPT, source, code, ptx], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"split_fatbin.py: {source}: ")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [source]


def test_writes_both_libraries(tmp_path, script):
    source, code, ptx = (tmp_path / name for name in ("in.a", "code.a", "ptx.a"))
    source.write_bytes(object_with(BOTH))
    assert script.main([str(source), str(code), str(ptx)]) == 0
    assert code.read_bytes() == script.split(source.read_bytes(), MACHINE_CODE)
    assert ptx.read_bytes() == script.split(source.read_bytes(), PTX)


def test_wrong_arguments_show_the_usage(script, capsys):
    assert script.main(["in.a"]) == 2
    assert "LIBRARY MACHINE_CODE_LIBRARY PTX_LIBRARY" in capsys.readouterr().err


def kinds_in(script: ModuleType, module: ModuleType | None) -> set[int]:
    """Kinds of the entries in all fat binaries of a compiled module."""
    if module is None:
        pytest.skip("the module was not built")
    file = Path(module.__file__).read_bytes()
    section = next(s for s in script.sections(file) if s.name == script.SECTION)
    data, position, kinds = file[section.offset : section.offset + section.size], 0, set()
    while position < len(data):
        entries, end = script.read_container(data, position)
        kinds |= {e.kind for e in entries}
        position = end + -end % 8
    return kinds


def test_the_cuda_module_holds_machine_code_only(script):
    assert kinds_in(script, runtime.extension()) == {MACHINE_CODE}


def test_the_emulator_holds_compressed_ptx_only(script):
    assert kinds_in(script, runtime.load_emulator()) == {ZLIB_PTX}


def test_an_installation_takes_at_most_70_megabytes():
    if runtime.extension() is None:
        pytest.skip("the kernels were not built")
    package = Path(runtime.extension().__file__).parent
    files = [f for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    assert sum(f.stat().st_size for f in files) <= 70e6
